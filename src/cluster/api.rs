//! Requests to the API server. Each has a timeout, is counted, and returns a small response.
//!
//! Nothing is retried here. [`RequestError`] says whether there was a response; the caller knows what
//! that means.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONNECTION, CONTENT_TYPE, DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use prost::Message;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::connect::{CredentialsError, chain};
use super::rewind::Rewinds;
use super::{Metrics, PodDecoder, WriteGate, decode_node, wire};

mod drain;
mod gated;
mod node_drain;
mod transport;

use gated::GatedClient;

pub use drain::BudgetRefusal;
pub(super) use gated::{Call, CallRequest};
pub use node_drain::{NodeDrainPatch, StoredNode};

use crate::clock::whole_seconds;
use crate::model::{Disruption, Node, NodeName, Pod, PodRef, Uid, Version};

/// For how long a write or a single read may take, its answer included. Admission webhooks may
/// take up to 10 s by default.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// No single object and no list of a node's pods is as long.
const LARGEST_ANSWER: usize = 256 << 20;
/// How a small answer is asked for; the server falls back to the second where it has no first.
const SMALL: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
pub(super) const JSON: &str = "application/json";
/// So much is kept of what a refusal says, in characters. It may quote what someone wrote, and is kept
/// for each pod that is refused.
const LONGEST_MESSAGE: usize = 2_000;
/// For how long the beginning of an answer of the wrong form is waited for, to quote it.
const EXCERPT_TIMEOUT: Duration = Duration::from_secs(1);
pub(super) const FIELD_MANAGER: &str = "ostrakon";
/// How the API server begins the message of an error of its own.
const INTERNAL_ERROR: &str = "Internal error occurred: ";
/// How it begins what it says of an admission webhook, before the webhook's name: a denial, and a
/// call that failed (`k8s.io/apiserver`, `admission/plugin/webhook/errors` and `util/webhook`).
const WEBHOOK_ANSWERS: [&str; 2] = ["admission webhook \"", "failed calling webhook \""];

/// Access to the API server. Clones share the connections, the counters and the gate.
#[derive(Clone)]
pub struct Api {
    client: GatedClient,
    metrics: Metrics,
    rewinds: Rewinds,
}

/// The server's refusal of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status code.
    pub code: u16,
    /// `reason` of the Status, for example `NotFound`; empty if there was none.
    pub reason: String,
    /// `message` of the Status, or the beginning of the body.
    pub message: String,
    /// How long the server asks to wait.
    pub retry_after: Option<Duration>,
    /// `details.causes` of the Status: what exactly is in the way.
    pub causes: Vec<StatusCause>,
}

/// One cause of a refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StatusCause {
    /// For a program, for example `DisruptionBudget`.
    pub reason: String,
    /// For a person.
    pub message: String,
}

impl Answer {
    /// Whether the API server itself says that there is no such object. A proxy's 404 says nothing,
    /// nor does that of a webhook.
    pub fn is_not_found(&self) -> bool {
        self.code == 404 && self.reason == "NotFound" && self.by_webhook().is_none()
    }

    /// Whether another writer was faster: the object is not at the version that the request names any
    /// more, or the one to create exists. A webhook's 409 does not say that.
    pub fn is_conflict(&self) -> bool {
        self.code == 409
            && matches!(&*self.reason, "Conflict" | "AlreadyExists")
            && self.by_webhook().is_none()
    }

    /// Whether the object would be longer than the store takes. The API server passes the store's words
    /// on as a failure of its own, but it is none that passes: whoever writes an object may fill it to
    /// the last byte.
    pub fn is_too_large(&self) -> bool {
        const STORES: [&str; 2] =
            ["etcdserver: request is too large", "trying to send message larger than max"];
        self.code == 413
            || self.code == 500 && STORES.iter().any(|words| self.message.contains(words))
    }

    /// Whether the user may not do this at all, in the words of the API server's authorization. Those
    /// of admission, which judges what is to be written, are others.
    pub fn is_missing_right(&self) -> bool {
        let cause = self.message.split_once("orbidden: ").map_or("", |(_, cause)| cause);
        self.code == 403
            && self.by_webhook().is_none()
            && cause.starts_with("User \"")
            && cause.contains("\" cannot ")
    }

    /// Name of the admission webhook that denied the request, or that the API server could not call.
    /// The code and all else of a denial are the webhook's own: they say nothing about the server.
    pub fn by_webhook(&self) -> Option<&str> {
        let message = self.message.strip_prefix(INTERNAL_ERROR).unwrap_or(&self.message);
        let named = WEBHOOK_ANSWERS.iter().find_map(|begin| message.strip_prefix(begin))?;
        named.split_once('"').map(|(name, _)| name)
    }
}

/// Why a request did not do what it was to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The server refused.
    #[error("{} {}: {}", .0.code, .0.reason, .0.message)]
    Status(Answer),
    /// No answer in time. The request may have been carried out all the same.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The connection failed. The request may have been carried out all the same.
    #[error("{0}")]
    Transport(String),
    /// What is there is not the API server, or cannot show that it is: its certificate is not trusted
    /// or for another name, or it speaks no TLS or no HTTP. That does not pass by itself.
    #[error("{0}")]
    WrongPeer(String),
    /// There are no credentials to ask with. Nothing was sent.
    #[error("{0}")]
    Credentials(CredentialsError),
    /// The answer was not what was asked for.
    #[error("{0}")]
    Body(String),
    /// The response is longer than this many bytes and was not read completely.
    #[error("the answer is longer than {0} bytes")]
    TooLarge(usize),
    /// A write was not sent, since this process does not hold the lease.
    #[error("not sent: this process does not hold the lease")]
    NotLeading,
    /// A harmful write was not sent, since evictions and cordons are paused.
    #[error("not sent: evictions and cordons are paused")]
    Paused,
    /// A write was not sent, since this is a dry run.
    #[error("not sent: this is a dry run, which only reads")]
    DryRun,
}

/// The condition by which a pod's owner and its users see why it goes.
#[derive(Clone, Copy, Debug)]
pub struct Mark;

impl Mark {
    /// Reason of the `DisruptionTarget` condition; Job failure policies match on it.
    pub const REASON: &str = "DeletionByTaintManager";
    /// Message of the `DisruptionTarget` condition.
    pub const MESSAGE: &str = "Taint manager: deleting due to NoExecute taint";
}

/// A right that is needed: a verb on a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    /// For example `delete`.
    pub verb: &'static str,
    /// For example `policy`; empty for the core group.
    pub group: &'static str,
    /// For example `pods`.
    pub resource: &'static str,
    /// For example `status`; empty for the resource itself.
    pub subresource: &'static str,
}

impl std::fmt::Display for Permission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        let slash = if self.subresource.is_empty() { "" } else { "/" };
        let Self { verb, group, resource, subresource } = self;
        write!(f, "{verb} {resource}{dot}{group}{slash}{subresource}")
    }
}

impl Api {
    /// Sends requests through `client`, which must not retry by itself.
    pub fn new(client: Client, metrics: Metrics) -> Self {
        let client = GatedClient::new(client, WriteGate::open());
        Self { client, metrics, rewinds: Rewinds::default() }
    }

    /// Who notices that the API server's store went back in time.
    pub(super) fn rewinds(&self) -> &Rewinds {
        &self.rewinds
    }

    /// Sends writes only while `gate` lets them pass.
    pub fn gated(self, gate: WriteGate) -> Self {
        Self { client: self.client.gated(gate), ..self }
    }

    /// Sets the pod's `DisruptionTarget` condition, and returns the pod as it is then. Refused with
    /// 422 if it is another pod by now: the UID in a patch is a field that cannot change.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn mark_pod(&self, pod: &Pod, now: Timestamp) -> Result<Pod, RequestError> {
        let mut condition = json!({
            "type": "DisruptionTarget",
            "status": "True",
            "reason": Mark::REASON,
            "message": Mark::MESSAGE,
        });
        // The transition time tells since when the status is what it is: it stays if it is True.
        if pod.disruption == Disruption::None {
            condition["lastTransitionTime"] = json!(whole_seconds(now));
        }
        if pod.generation > 0 {
            condition["observedGeneration"] = json!(pod.generation);
        }
        let body = json!({
            "metadata": {"uid": pod.uid.to_string()},
            "status": {"conditions": [condition]},
        });
        let path = format!("{}/status?fieldManager={FIELD_MANAGER}", pod_path(&pod.reference()));
        let call = Call::mark_pod();
        let kind = "application/strategic-merge-patch+json";
        let request = call.request(&path, wire::MEDIA_TYPE, Some(kind), &body)?;
        let (_, answer) = self.send(request, REQUEST_TIMEOUT).await?;
        decoded_pod(&answer)
    }

    /// Deletes the pod with its own grace period, unless it is another pod by now (409).
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn delete_pod(&self, pod: &PodRef) -> Result<(), RequestError> {
        let body = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": pod.uid.to_string()},
        });
        let call = Call::delete_pod();
        self.write(call, &pod_path(pod), JSON, &body).await
    }

    /// The pod that has this pod's name now, or `None` if the name is free.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn pod(&self, pod: &PodRef) -> Result<Option<Pod>, RequestError> {
        let call = Call::get("pods");
        let body = match self.read(call, &pod_path(pod)).await {
            Err(RequestError::Status(answer)) if answer.is_not_found() => return Ok(None),
            other => other?,
        };
        decoded_pod(&body).map(Some)
    }

    /// The node as it is stored now, or `None` if there is none.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn node(&self, name: &NodeName) -> Result<Option<Node>, RequestError> {
        let call = Call::get("nodes");
        let asked = self.rewinds.asked();
        let body = match self.read(call, &format!("/api/v1/nodes/{name}")).await {
            Err(RequestError::Status(answer)) if answer.is_not_found() => return Ok(None),
            other => other?,
        };
        let object = wire::open(&body, "Node").map_err(unreadable)?;
        if let Some(version) = wire::version(&object) {
            self.rewinds.see(&format!("node {name}"), version, asked);
        }
        named(decode_node(&object).map_err(unreadable)?, name).map(Some)
    }

    /// Writes the record of the node's taints, or removes it with `None`. Refused with 422 if
    /// it is another node by now, and with 409 if it is not at `version` any more.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn annotate_node(
        &self,
        name: &NodeName,
        uid: Uid,
        version: Option<&Version>,
        record: Option<&str>,
    ) -> Result<(), RequestError> {
        let mut body = json!({
            "metadata": {"uid": uid.to_string(), "annotations": {Node::SINCE_ANNOTATION: record}},
        });
        if let Some(version) = version {
            body["metadata"]["resourceVersion"] = json!(version.to_string());
        }
        let path = format!("/api/v1/nodes/{name}?fieldManager={FIELD_MANAGER}");
        let call = Call::uncordon_or_annotate();
        let kind = "application/merge-patch+json";
        self.write(call, &path, kind, &body).await
    }

    /// Creates an event (core/v1) in its namespace.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn create_event(&self, namespace: &str, event: &Value) -> Result<(), RequestError> {
        let path = format!("/api/v1/namespaces/{namespace}/events?fieldManager={FIELD_MANAGER}");
        let call = Call::create_event();
        self.write(call, &path, JSON, event).await
    }

    /// Whether the credentials in use have a right in a namespace, or cluster-wide with an empty
    /// one; to the object of that name, or to all with an empty one.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn is_allowed(
        &self,
        permission: Permission,
        namespace: &str,
        name: &str,
    ) -> Result<bool, RequestError> {
        let body = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {
                "namespace": namespace,
                "name": name,
                "verb": permission.verb,
                "group": permission.group,
                "resource": permission.resource,
                "subresource": permission.subresource,
            }},
        });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let call = Call::review_access();
        let request = call.request(path, JSON, Some(JSON), &body)?;
        let (_, body) = self.send(request, REQUEST_TIMEOUT).await?;
        let review: Value = serde_json::from_slice(&body).map_err(unreadable)?;
        Ok(review.pointer("/status/allowed").and_then(Value::as_bool).unwrap_or(false))
    }

    /// The user name of the credentials in use, as the API server knows it; `None` if it does not tell.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn who_am_i(&self) -> Result<Option<String>, RequestError> {
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let request = Call::review_self().request(path, JSON, Some(JSON), &body)?;
        let (_, body) = self.send(request, REQUEST_TIMEOUT).await?;
        let review: Value = serde_json::from_slice(&body).map_err(unreadable)?;
        let name = review.pointer("/status/userInfo/username").and_then(Value::as_str);
        Ok(name.filter(|name| !name.is_empty()).map(str::to_owned))
    }

    /// Whether the server says that it is ready: it has read who may do what. Anybody may ask.
    pub async fn is_ready(&self) -> bool {
        let call = Call::get("readyz");
        match call.request("/readyz", "*/*", None, &Value::Null) {
            Ok(request) => self.send(request, REQUEST_TIMEOUT).await.is_ok(),
            Err(_) => false,
        }
    }

    /// The server's clock, from the `Date` of an answer; whole seconds. `None` if the answer
    /// carries none, as behind some proxies. No two answers come over the same connection: each asks
    /// for its end.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn server_time(&self) -> Result<Option<Timestamp>, RequestError> {
        let call = Call::get("version");
        let mut request = call.request("/version", JSON, None, &Value::Null)?;
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        let (head, _) = self.send(request, REQUEST_TIMEOUT).await?;
        let date = head.headers().get(DATE).and_then(|value| value.to_str().ok());
        Ok(date
            .and_then(|date| jiff::fmt::rfc2822::parse(date).ok().map(|zoned| zoned.timestamp())))
    }

    /// One page of a list, as it came, if it has no more than `most` bytes.
    pub(super) async fn list_page(
        &self,
        resource: &'static str,
        query: &str,
        within: Duration,
        most: usize,
    ) -> Result<Bytes, RequestError> {
        let path = format!("/api/v1/{resource}?{query}");
        let call = Call::list(resource);
        let request = call.request(&path, wire::MEDIA_TYPE, None, &Value::Null)?;
        self.send_for(request, within, most).await.map(|(_, body)| body)
    }

    /// Opens a watch and returns its stream. Only the headers have a timeout.
    pub(super) async fn open_watch(
        &self,
        resource: &'static str,
        query: &str,
        within: Duration,
    ) -> Result<Body, RequestError> {
        let call = Call::watch(resource);
        let path = format!("/api/v1/{resource}?{query}");
        let request = call.request(&path, wire::WATCH_MEDIA_TYPE, None, &Value::Null)?;
        let start = Instant::now();
        let open = async |response: Response<Body>| {
            let other = other_form(response.headers());
            let mut body = response.into_body();
            let Some(other) = other else { return Ok(body) };
            let first = timeout(EXCERPT_TIMEOUT, body.frame()).await.ok().flatten();
            let first = first.and_then(Result::ok).and_then(|frame| frame.into_data().ok());
            Err(wrong_form(&other, &first.unwrap_or_default()))
        };
        let result = self.client.send(request, within, open).await;
        self.count(call, result.as_ref().map(|_| StatusCode::OK), start);
        result
    }

    /// Sends a write. Success that does not come as an object of the API is not the API server's
    /// word but that of something in between, and nothing was written.
    async fn write(
        &self,
        call: Call,
        path: &str,
        content: &'static str,
        body: &Value,
    ) -> Result<(), RequestError> {
        #[derive(Deserialize)]
        struct Object {
            kind: String,
        }
        let request = call.request(path, SMALL, Some(content), body)?;
        let (_, answer) = self.send(request, REQUEST_TIMEOUT).await?;
        match serde_json::from_slice::<Object>(&answer) {
            Ok(object) if !object.kind.is_empty() => Ok(()),
            _ => {
                let begin = String::from_utf8_lossy(&answer[..answer.len().min(120)]);
                Err(unreadable(format!("it is no object of the API but {begin:?}")))
            }
        }
    }

    async fn read(&self, call: Call, path: &str) -> Result<Bytes, RequestError> {
        let request = call.request(path, wire::MEDIA_TYPE, None, &Value::Null)?;
        self.send(request, REQUEST_TIMEOUT).await.map(|(_, body)| body)
    }

    /// Sends a request and reads its whole answer, both within one time limit.
    pub(super) async fn send(
        &self,
        request: CallRequest,
        within: Duration,
    ) -> Result<(Response<()>, Bytes), RequestError> {
        self.send_for(request, within, LARGEST_ANSWER).await
    }

    /// The same for an answer of no more than `most` bytes.
    async fn send_for(
        &self,
        mut request: CallRequest,
        within: Duration,
        most: usize,
    ) -> Result<(Response<()>, Bytes), RequestError> {
        let start = Instant::now();
        let call = request.call();
        let form = request.headers_mut().get(ACCEPT).cloned();
        let read = async |response: Response<Body>| {
            let (head, body) = response.into_parts();
            let body = Limited::new(body, most).collect().await;
            let body = body.map_err(|error| {
                if error.is::<LengthLimitError>() {
                    RequestError::TooLarge(most)
                } else {
                    RequestError::Transport(chain(&*error))
                }
            });
            let body = body?.to_bytes();
            match other_form(&head.headers) {
                Some(other) if form.is_some_and(|form| form == wire::MEDIA_TYPE) => {
                    Err(wrong_form(&other, &body))
                }
                _ => Ok((Response::from_parts(head, ()), body)),
            }
        };
        let result = self.client.send(request, within, read).await;
        self.count(call, result.as_ref().map(|(head, _)| head.status()), start);
        result
    }

    fn count(&self, call: Call, result: Result<StatusCode, &RequestError>, start: Instant) {
        let code = match result {
            Ok(status) => status.as_u16().to_string(),
            Err(RequestError::Status(answer)) => answer.code.to_string(),
            Err(RequestError::Timeout(_)) => "timeout".to_owned(),
            // Nothing was sent.
            Err(RequestError::NotLeading | RequestError::Paused | RequestError::DryRun) => return,
            Err(
                RequestError::Transport(_)
                | RequestError::WrongPeer(_)
                | RequestError::Credentials(_)
                | RequestError::Body(_)
                | RequestError::TooLarge(_),
            ) => "error".to_owned(),
        };
        self.metrics.request(call.verb(), call.resource(), &code, start.elapsed());
    }
}

/// The media type of an answer, if it is said to be other than protobuf.
fn other_form(headers: &HeaderMap) -> Option<String> {
    let said = String::from_utf8_lossy(headers.get(CONTENT_TYPE)?.as_bytes());
    let essence = said.split(';').next().unwrap_or_default().trim();
    (!essence.eq_ignore_ascii_case(wire::MEDIA_TYPE)).then(|| said.clone().into_owned())
}

fn wrong_form(other: &str, body: &[u8]) -> RequestError {
    RequestError::Body(format!(
        "the answer is {other} instead of {}; is there a proxy that answers in the API server's \
         place? It begins with {}",
        wire::MEDIA_TYPE,
        wire::excerpt(body)
    ))
}

/// Reads the Status of a refusal, whatever form it has.
async fn refusal(response: Response<Body>) -> RequestError {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        reason: String,
        message: String,
        details: Option<Details>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Details {
        causes: Option<Vec<StatusCause>>,
        retry_after_seconds: u64,
    }
    let code = response.status().as_u16();
    let header = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_after = header.and_then(|text| text.parse().ok()).map(Duration::from_secs);
    let body = Limited::new(response.into_body(), 1 << 20).collect().await;
    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let protobuf = wire::open(&body, "Status").ok().and_then(|s| wire::Status::decode(s).ok());
    let status = match protobuf {
        Some(status) => Status { reason: status.reason, message: status.message, details: None },
        None => serde_json::from_slice(&body).unwrap_or_else(|_| Status {
            message: String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned(),
            ..Status::default()
        }),
    };
    let details = status.details.unwrap_or_default();
    let one_line = |c| if c == '\n' { ' ' } else { c };
    let told = (details.retry_after_seconds > 0).then_some(details.retry_after_seconds);
    RequestError::Status(Answer {
        code,
        reason: status.reason,
        message: status.message.chars().take(LONGEST_MESSAGE).map(one_line).collect(),
        retry_after: retry_after.or(told.map(Duration::from_secs)),
        causes: details.causes.unwrap_or_default(),
    })
}

pub(super) fn unreadable(error: impl std::fmt::Display) -> RequestError {
    RequestError::Body(format!("cannot read the response: {error}"))
}

fn decoded_pod(body: &Bytes) -> Result<Pod, RequestError> {
    let object = wire::open(body, "Pod").map_err(unreadable)?;
    let pod = PodDecoder::default().decode(&object).map_err(unreadable)?;
    pod.ok_or_else(|| unreadable("the pod is bound to no node"))
}

/// The node, if it is the one that was asked for. What lies between may mix up answers, and a pod must
/// not go for the taints of another node.
fn named(node: Node, name: &NodeName) -> Result<Node, RequestError> {
    if node.name == *name {
        return Ok(node);
    }
    Err(unreadable(format!(
        "it is about {} and not about {name}; is there a proxy that mixes up answers?",
        node.name
    )))
}

fn pod_path(pod: &PodRef) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::Request;
    use prometheus::Registry;
    use tower::service_fn;

    use super::*;
    use crate::model::build::pod;

    /// What a deletion comes to that is answered like this.
    async fn delete(code: u16, answer: &'static str) -> Result<(), RequestError> {
        let service = service_fn(move |_: Request<Body>| async move {
            let response =
                Response::builder().status(code).body(Body::from(answer.as_bytes().to_vec()));
            Ok::<_, Infallible>(response.unwrap())
        });
        let metrics = Metrics::register(&Registry::new()).unwrap();
        let api = Api::new(Client::new(service, "default"), metrics);
        api.delete_pod(&pod("a").reference()).await
    }

    #[tokio::test]
    async fn success_is_an_object_of_the_api() {
        for answer in [
            r#"{"kind":"Status","apiVersion":"v1","status":"Success"}"#,
            r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{}}"#,
            r#"{"kind":"Pod","apiVersion":"v1"}"#,
        ] {
            assert_eq!(delete(200, answer).await, Ok(()));
        }
    }

    #[tokio::test]
    async fn of_a_long_refusal_the_beginning_is_kept() {
        let words = format!("no:\n{}", "x".repeat(100_000));
        let answer = json!({"kind": "Status", "reason": "Invalid", "message": words}).to_string();
        let Err(RequestError::Status(answer)) = delete(422, answer.leak()).await else { panic!() };
        assert!(answer.message.starts_with("no: x") && answer.message.len() == LONGEST_MESSAGE);
    }

    #[tokio::test]
    async fn what_something_in_between_calls_success_is_none() {
        for answer in ["", "<html>sign in</html>", "{}", "[]", r#"{"kind":""}"#, "null"] {
            let outcome = delete(200, answer).await;
            assert!(matches!(outcome, Err(RequestError::Body(_))), "{answer}: {outcome:?}");
        }
    }

    #[tokio::test]
    async fn an_answer_about_another_node_is_none() {
        let node = |name: &str| wire::Node {
            metadata: wire::ObjectMeta {
                name: name.to_owned().into(),
                uid: Uid(1).to_string().into(),
                ..wire::ObjectMeta::default()
            },
            ..wire::Node::default()
        };
        let service = service_fn(move |_: Request<Body>| async move {
            let body = wire::seal("Node", &node("n1")).to_vec();
            let answer = Response::builder().header(CONTENT_TYPE, wire::MEDIA_TYPE);
            Ok::<_, Infallible>(answer.body(Body::from(body)).unwrap())
        });
        let metrics = Metrics::register(&Registry::new()).unwrap();
        let api = Api::new(Client::new(service, "default"), metrics);
        assert!(matches!(api.node(&"n1".into()).await, Ok(Some(_))));
        let other = api.node(&"n2".into()).await;
        assert!(matches!(other, Err(RequestError::Body(_))), "{other:?}");
        let watched = crate::cluster::Watched::default();
        assert!(matches!(api.stored_node(&"n1".into(), &watched).await, Ok(Some(_))));
        let other = api.stored_node(&"n2".into(), &watched).await;
        assert!(matches!(other, Err(RequestError::Body(_))), "{other:?}");
    }

    #[test]
    fn a_missing_right_is_told_from_what_admission_refuses() {
        let is_missing = |code, message: &str| {
            let answer = Answer {
                code,
                reason: "Forbidden".to_owned(),
                message: message.to_owned(),
                retry_after: None,
                causes: Vec::new(),
            };
            answer.is_missing_right()
        };
        let missing = [
            "nodes \"n1\" is forbidden: User \"system:serviceaccount:kube-system:ostrakon\" cannot \
             patch resource \"nodes\" in API group \"\" at the cluster scope",
            "forbidden: User \"system:anonymous\" cannot get path \"/version\"",
        ];
        let judged = [
            "admission webhook \"a\" denied the request: forbidden: User \"x\" cannot do that",
            "nodes \"n1\" is forbidden: ValidatingAdmissionPolicy 'a' with binding 'b' denied request: \
             User \"x\" cannot annotate nodes",
            "nodes \"n1\" is forbidden: node \"n2\" is not allowed to modify node \"n1\"",
            "",
        ];
        assert!(missing.iter().all(|message| is_missing(403, message)));
        assert!(!judged.iter().any(|message| is_missing(403, message)));
        assert!(!is_missing(422, missing[0]));
    }
}
