//! Write requests: create, update, patch, delete, and the subresources of pods.

use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{Request, Response, StatusCode};
use hyper::body::Bytes;
use serde_json::{Value, json};

use super::{Api, Body, Call, events, json_answer};
use crate::sim::embedded::deletion::DeleteOptions;
use crate::sim::embedded::error::ApiError;
use crate::sim::embedded::object::{meta, set, set_default, text};
use crate::sim::embedded::patch::Patch;
use crate::sim::embedded::resource::Resource;
use crate::sim::embedded::write::{Deleted, Part};

/// The patch without the annotations that it sets.
pub(super) fn stripped(request: Request<Bytes>) -> Request<Bytes> {
    request.map(|body| {
        let Ok(mut patch) = serde_json::from_slice::<Value>(&body) else { return body };
        let annotations = patch.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
        for annotation in annotations.into_iter().flat_map(serde_json::Map::values_mut) {
            *annotation = Value::Null;
        }
        patch.to_string().into()
    })
}

impl Api {
    pub(super) fn create(&self, call: &Call<'_>) -> Result<Response<Body>, ApiError> {
        let view = call.encoder.view;
        if view.resource.spec().namespaced && call.namespace.is_none() {
            return Err(ApiError::method_not_allowed());
        }
        let object = call.object()?;
        let namespace = call.namespace.unwrap_or_default();
        let dry_run = call.query.is_dry_run();
        let object = self.store.create(view.resource, namespace, object, dry_run)?;
        Ok(call.answer(StatusCode::CREATED, &object))
    }

    pub(super) fn create_subresource(&self, call: &Call<'_>) -> Result<Response<Body>, ApiError> {
        if call.encoder.view.resource != Resource::Pods {
            return Err(ApiError::no_such_path());
        }
        let namespace = call.namespace.unwrap_or_default();
        let body = json_body(call.request)?;
        match call.subresource {
            "eviction" => {
                let dry_run = call.query.is_dry_run();
                self.store.evict(namespace, call.name, &body, dry_run)?;
            }
            "binding" => {
                if meta(&body, "name") != call.name {
                    return Err(ApiError::bad_request(
                        "name in URL does not match name in Binding object",
                    ));
                }
                self.store.bind(namespace, call.name, text(&body, &["target", "name"]))?;
            }
            _ => return Err(ApiError::no_such_path()),
        }
        let mut status = success(json!({}));
        status["code"] = 201.into();
        Ok(json_answer(StatusCode::CREATED, &status))
    }

    pub(super) fn update(&self, call: &Call<'_>) -> Result<Response<Body>, ApiError> {
        let resource = call.encoder.view.resource;
        let namespace = call.namespace.unwrap_or_default();
        let part = call.part()?;
        let object = call.object()?;
        let is_new = self.store.get(resource, namespace, call.name).is_err();
        let dry_run = call.query.is_dry_run();
        let object = self.store.update(resource, namespace, call.name, part, object, dry_run)?;
        let code = if is_new { StatusCode::CREATED } else { StatusCode::OK };
        Ok(call.answer(code, &object))
    }

    pub(super) fn patch(&self, call: &Call<'_>) -> Result<Response<Body>, ApiError> {
        let view = call.encoder.view;
        let namespace = call.namespace.unwrap_or_default();
        let part = call.part()?;
        let dry_run = call.query.is_dry_run();
        let patch = patch(call.request)?;
        let object = if view.new_events {
            let change = |event: &Value| patch.apply_to(&events::to_new(event));
            let change = |event: &Value| Ok(events::to_core(&change(event)?));
            self.store.modify(view.resource, namespace, call.name, part, dry_run, change)?
        } else {
            let (manager, resource) = (call.query.text("fieldManager"), view.resource);
            self.store.patch_by(manager, resource, namespace, call.name, part, &patch, dry_run)?
        };
        Ok(call.answer(StatusCode::OK, &object))
    }

    pub(super) fn delete(&self, call: &Call<'_>) -> Result<Response<Body>, ApiError> {
        let resource = call.encoder.view.resource;
        let namespace = call.namespace.unwrap_or_default();
        let options = call.delete_options()?;
        let Deleted { object, gone } =
            self.store.delete(resource, namespace, call.name, &options)?;
        // Pods are shown as they were; of others that are gone there is only a report.
        if !gone || resource == Resource::Pods {
            return Ok(call.answer(StatusCode::OK, &object));
        }
        let spec = resource.spec();
        let mut details =
            json!({"name": call.name, "kind": spec.plural, "uid": meta(&object, "uid")});
        if !spec.group.is_empty() {
            details["group"] = spec.group.into();
        }
        Ok(json_answer(StatusCode::OK, &success(details)))
    }

    pub(super) fn delete_collection(&self, call: &Call<'_>) -> Result<Response<Body>, ApiError> {
        let view = call.encoder.view;
        let options = call.delete_options()?;
        let selector = call.query.selector(view, call.namespace)?;
        let mut deleted: Vec<Arc<Value>> = Vec::new();
        for object in self.store.select(view.resource, &selector) {
            let (namespace, name) = (meta(&object, "namespace"), meta(&object, "name"));
            match self.store.delete(view.resource, namespace, name, &options) {
                Ok(one) => deleted.push(one.object),
                Err(error) if error.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let mut body = Vec::new();
        let metadata = json!({"resourceVersion": self.store.version().to_string()});
        call.encoder.list(metadata, &deleted, &mut body);
        Ok(super::with_type(StatusCode::OK, call.encoder.form.media_type(), Bytes::from(body)))
    }
}

impl Call<'_> {
    /// The object in the body, as it is stored.
    fn object(&self) -> Result<Value, ApiError> {
        let object = json_body(self.request)?;
        Ok(if self.encoder.view.new_events { events::to_core(&object) } else { object })
    }

    fn part(&self) -> Result<Part, ApiError> {
        match self.subresource {
            "" => Ok(Part::Whole),
            "status" if self.encoder.view.resource.spec().status => Ok(Part::Status),
            _ => Err(ApiError::no_such_path()),
        }
    }

    fn delete_options(&self) -> Result<DeleteOptions, ApiError> {
        let body = match self.request.body() {
            body if body.is_empty() => Value::Null,
            _ => json_body(self.request)?,
        };
        let mut options = DeleteOptions::from_value(&body);
        options.dry_run |= self.query.is_dry_run();
        if let Some(seconds) = self.query.number("gracePeriodSeconds")? {
            options.grace_period_seconds = i64::try_from(seconds).ok();
        }
        Ok(options)
    }
}

/// Answers that everything is allowed: there are no users here.
pub(super) fn access_review(request: &Request<Bytes>) -> Result<Response<Body>, ApiError> {
    let mut review = json_body(request)?;
    set(&mut review, &["status"], json!({"allowed": true}));
    set_default(&mut review, &["metadata"], json!({}));
    set(&mut review, &["kind"], "SelfSubjectAccessReview");
    set(&mut review, &["apiVersion"], "authorization.k8s.io/v1");
    Ok(json_answer(StatusCode::CREATED, &review))
}

fn media_type(request: &Request<Bytes>) -> &str {
    let header = request.headers().get(CONTENT_TYPE);
    let header = header.and_then(|value| value.to_str().ok()).unwrap_or_default();
    header.split(';').next().unwrap_or_default().trim()
}

fn json_body(request: &Request<Bytes>) -> Result<Value, ApiError> {
    match media_type(request) {
        "" | "application/json" | "*/*" => parse(request.body()),
        other => Err(ApiError::unsupported_media_type(other)),
    }
}

fn parse(body: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(body).map_err(|error| {
        ApiError::bad_request(format!("error decoding the body of the request: {error}"))
    })
}

fn patch(request: &Request<Bytes>) -> Result<Patch, ApiError> {
    let body = request.body();
    match media_type(request) {
        "application/merge-patch+json" => Ok(Patch::Merge(parse(body)?)),
        "application/json-patch+json" => Ok(Patch::Json(parse(body)?)),
        "application/strategic-merge-patch+json" => Ok(Patch::Strategic(parse(body)?)),
        // Every client that matters here sends JSON, which is YAML as well.
        "application/apply-patch+yaml" => Ok(Patch::Apply(parse(body)?)),
        other => Err(ApiError::unsupported_media_type(other)),
    }
}

fn success(details: Value) -> Value {
    let mut status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
    });
    if details.as_object().is_some_and(|details| !details.is_empty()) {
        status["details"] = details;
    }
    status
}
