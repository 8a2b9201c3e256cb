//! The API over HTTP, without sockets: a function from request to response.
//!
//! Requests over loopback and requests inside the process both end here, so that a simulation gets the
//! same responses as `kubectl`.

mod discovery;
mod events;
mod form;
mod openapi;
mod protobuf;
mod query;
mod read;
mod route;
mod table;
mod watch;
mod write;

use std::convert::Infallible;

use futures::TryStreamExt;
use http::header::{ACCEPT, CONTENT_TYPE, DATE, RETRY_AFTER, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Bytes;
use jiff::tz::TimeZone;
use serde_json::Value;

use self::form::{Encoder, Form};
use self::query::Query;
use self::route::{Route, View};
use super::audit::{Audit, Audited};
use super::error::ApiError;
use super::faults::{Fault, Faults};
use super::operation::{Operation, Verb};
use super::store::Store;

/// What a body may fail with.
type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;

/// The connection breaks before there is an answer: a fault rule wants it so.
#[derive(Debug, thiserror::Error)]
#[error("connection closed by a fault rule")]
pub(super) struct Broken;

/// Answers requests from a store. Clones share it.
#[derive(Clone)]
pub(super) struct Api {
    pub(super) store: Store,
    pub(super) faults: Faults,
    pub(super) audit: Audit,
    /// Whether lists may be streamed (`sendInitialEvents`).
    pub(super) streaming_lists: bool,
}

/// A request about objects, taken apart.
struct Call<'a> {
    request: &'a Request<Bytes>,
    query: &'a Query<'a>,
    encoder: Encoder,
    namespace: Option<&'a str>,
    name: &'a str,
    subresource: &'a str,
}

impl Api {
    /// Answers the request, or breaks the connection.
    pub(super) async fn answer(&self, request: Request<Bytes>) -> Result<Response<Body>, Broken> {
        let Some(route) = Route::parse(request.uri().path()) else {
            return Ok(refusal(&ApiError::no_such_path()));
        };
        let query = Query::parse(request.uri().query());
        let Some(operation) = operation(&request, &route, &query) else {
            return Ok(refusal(&ApiError::method_not_allowed()));
        };
        let fate = self.faults.fate(&operation);
        if !fate.delay.is_zero() {
            tokio::time::sleep(fate.delay).await;
        }
        match fate.then {
            None | Some(Fault::Latency(_)) => {
                Ok(self.carry_out(&request, &route, &query, &operation))
            }
            Some(Fault::StripAnnotations) => {
                Ok(self.carry_out(&write::stripped(request.clone()), &route, &query, &operation))
            }
            Some(Fault::Refuse { code, retry_after }) => {
                Ok(refusal(&ApiError::with_code(code, retry_after)))
            }
            Some(Fault::Deny { webhook, code }) => {
                Ok(refusal(&ApiError::denied_by_webhook(&webhook, code)))
            }
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Cut) => Err(Broken),
            Some(Fault::LoseAnswer) => {
                drop(self.carry_out(&request, &route, &query, &operation));
                Err(Broken)
            }
        }
    }

    fn carry_out(
        &self,
        request: &Request<Bytes>,
        route: &Route,
        query: &Query<'_>,
        operation: &Operation,
    ) -> Response<Body> {
        let before = self.store.version();
        let mut answer =
            self.dispatch(request, route, query).unwrap_or_else(|error| refusal(&error));
        let versions = before + 1..=self.store.version();
        let code = answer.status().as_u16();
        self.audit.tell(|| Audited {
            at: self.store.clock().now(),
            request: request.clone(),
            operation: operation.clone(),
            code,
            versions,
        });
        if matches!(route, Route::Version) {
            // Who asks for the version asks for the time: that of this cluster, not of the system.
            let date =
                jiff::fmt::rfc2822::to_string(&self.store.clock().now().to_zoned(TimeZone::UTC));
            if let Some(date) = date.ok().and_then(|date| HeaderValue::try_from(date).ok()) {
                answer.headers_mut().insert(DATE, date);
            }
        }
        answer
    }

    fn dispatch(
        &self,
        request: &Request<Bytes>,
        route: &Route,
        query: &Query<'_>,
    ) -> Result<Response<Body>, ApiError> {
        let found = |value: Option<Value>| {
            let value = value.ok_or_else(ApiError::no_such_path)?;
            Ok(json_answer(StatusCode::OK, &value))
        };
        match route {
            Route::Health => Ok(with_type(StatusCode::OK, "text/plain", Bytes::from_static(b"ok"))),
            Route::Version => found(Some(discovery::version())),
            Route::CoreVersions => found(Some(discovery::core_versions())),
            Route::Groups => found(Some(discovery::groups())),
            Route::Group(name) => Ok(discovery::group(name)
                .map_or_else(nothing_here, |group| json_answer(StatusCode::OK, &group))),
            Route::Resources(group) => Ok(discovery::resources(group)
                .map_or_else(nothing_here, |list| json_answer(StatusCode::OK, &list))),
            Route::OpenApi => found(openapi::document(request.uri().path())),
            Route::AccessReview => write::access_review(request),
            Route::Collection { view, namespace } => {
                let call = self.call(request, query, *view, namespace.as_deref(), "", "")?;
                match *request.method() {
                    Method::POST => self.create(&call),
                    Method::DELETE => self.delete_collection(&call),
                    _ if query.flag("watch") => self.watch(&call),
                    _ => self.list(&call),
                }
            }
            Route::Object { view, namespace, name, subresource } => {
                let namespace = Some(namespace.as_str());
                let call = self.call(request, query, *view, namespace, name, subresource)?;
                match *request.method() {
                    Method::POST => self.create_subresource(&call),
                    Method::PUT => self.update(&call),
                    Method::PATCH => self.patch(&call),
                    Method::DELETE => self.delete(&call),
                    _ => self.get(&call),
                }
            }
        }
    }

    fn call<'a>(
        &self,
        request: &'a Request<Bytes>,
        query: &'a Query<'a>,
        view: View,
        namespace: Option<&'a str>,
        name: &'a str,
        subresource: &'a str,
    ) -> Result<Call<'a>, ApiError> {
        let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
        let form = Form::accepted(accept, query.text("includeObject"), view.resource)?;
        Ok(Call {
            request,
            query,
            encoder: Encoder { view, form, now: self.store.clock().now(), columns: true },
            namespace,
            name,
            subresource,
        })
    }
}

/// What the request asks for, if its method is one that the route has.
fn operation(request: &Request<Bytes>, route: &Route, query: &Query<'_>) -> Option<Operation> {
    let (view, namespace, name, subresource) = match route {
        Route::Collection { view, namespace } => {
            (Some(*view), namespace.as_deref().unwrap_or_default(), "", "")
        }
        Route::Object { view, namespace, name, subresource } => {
            (Some(*view), namespace.as_str(), name.as_str(), subresource.as_str())
        }
        _ => (None, "", "", ""),
    };
    let verb = match (request.method(), route) {
        (&Method::GET, Route::Collection { .. }) if query.flag("watch") => Verb::Watch,
        (&Method::GET, Route::Collection { .. }) => Verb::List,
        (&Method::GET | &Method::HEAD, _) if !matches!(route, Route::AccessReview) => Verb::Get,
        (&Method::DELETE, Route::Collection { .. }) => Verb::DeleteCollection,
        (&Method::POST, Route::Collection { .. } | Route::AccessReview) => Verb::Create,
        (&Method::POST, Route::Object { .. }) if !subresource.is_empty() => Verb::Create,
        (&Method::PUT, Route::Object { .. }) => Verb::Update,
        (&Method::PATCH, Route::Object { .. }) => Verb::Patch,
        (&Method::DELETE, Route::Object { .. }) if subresource.is_empty() => Verb::Delete,
        _ => return None,
    };
    let agent = request.headers().get(USER_AGENT).and_then(|agent| agent.to_str().ok());
    Some(Operation {
        verb,
        resource: view.map(|view| view.resource),
        subresource: subresource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        agent: agent.unwrap_or_default().to_owned(),
    })
}

/// An answer that says no.
pub(super) fn refusal(error: &ApiError) -> Response<Body> {
    let code = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = json_answer(code, &error.status());
    if let Some(seconds) = error.retry_after() {
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

/// The answer under paths that belong to nobody.
fn nothing_here() -> Response<Body> {
    let text = Bytes::from_static(b"404 page not found\n");
    with_type(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", text)
}

fn json_answer(code: StatusCode, value: &Value) -> Response<Body> {
    let mut body = Vec::new();
    form::write(value, &mut body);
    with_type(code, "application/json", Bytes::from(body))
}

fn with_type(code: StatusCode, media: &'static str, body: Bytes) -> Response<Body> {
    let body = Full::new(body).map_err(|never: Infallible| match never {});
    respond(code, media, body.boxed_unsync())
}

fn respond(code: StatusCode, media: &'static str, body: Body) -> Response<Body> {
    let mut answer = Response::new(body);
    *answer.status_mut() = code;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    answer
}

/// An answer that goes on until the watch ends.
fn stream_answer(
    media: &'static str,
    frames: impl futures::Stream<Item = std::io::Result<hyper::body::Frame<Bytes>>> + Send + 'static,
) -> Response<Body> {
    let body = StreamBody::new(frames.map_err(BodyError::from));
    respond(StatusCode::OK, media, body.boxed_unsync())
}
