//! Read requests: get, list, watch.

use http::{Response, StatusCode};
use hyper::body::Bytes;
use serde_json::json;

use super::watch::{self, Wanted};
use super::{Api, Body, Call, stream_answer, with_type};
use crate::sim::embedded::error::ApiError;

impl Api {
    pub(super) fn get(&self, call: &Call<'_>) -> Result<Response<Body>, ApiError> {
        let resource = call.encoder.view.resource;
        let known = match call.subresource {
            "" => true,
            "status" => resource.spec().status,
            _ => false,
        };
        if !known {
            return Err(ApiError::no_such_path());
        }
        let namespace = call.namespace.unwrap_or_default();
        let object = self.store.get(resource, namespace, call.name)?;
        Ok(call.answer(StatusCode::OK, &object))
    }

    pub(super) fn list(&self, call: &Call<'_>) -> Result<Response<Body>, ApiError> {
        let view = call.encoder.view;
        let selector = call.query.selector(view, call.namespace)?;
        let page = self.store.list(view.resource, &selector, &call.query.paging()?)?;
        let mut metadata = json!({"resourceVersion": page.version.to_string()});
        if let Some(next) = page.next {
            metadata["continue"] = next.into();
        }
        if let Some(remaining) = page.remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
        let mut body = Vec::new();
        call.encoder.list(metadata, &page.items, &mut body);
        Ok(with_type(StatusCode::OK, call.encoder.form.media_type(), Bytes::from(body)))
    }

    pub(super) fn watch(&self, call: &Call<'_>) -> Result<Response<Body>, ApiError> {
        let view = call.encoder.view;
        let wanted = Wanted {
            encoder: call.encoder,
            selector: call.query.selector(view, call.namespace)?,
            from: call.query.from(self.streaming_lists)?,
            bookmarks: call.query.flag("allowWatchBookmarks"),
            timeout: call.query.timeout()?,
        };
        let frames = watch::open(&self.store, &self.faults, wanted)?;
        Ok(stream_answer(call.encoder.form.watch_media_type(), frames))
    }
}

impl Call<'_> {
    /// An answer with the object, in the form that the client accepts.
    pub(super) fn answer(&self, code: StatusCode, object: &serde_json::Value) -> Response<Body> {
        let mut body = Vec::new();
        self.encoder.object(object, &mut body);
        with_type(code, self.encoder.form.media_type(), Bytes::from(body))
    }
}
