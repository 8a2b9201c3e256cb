//! API errors.
//!
//! Clients act on the code and the reason, some on the causes, and people search for the message. So all
//! of these are as a real API server sends them.

use serde_json::{Value, json};

use super::resource::Resource;

/// A refused request: what becomes a `Status` body with `status: Failure`.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason; empty where the API gives none.
    pub reason: &'static str,
    /// Text for people.
    pub message: String,
    /// `details` of the status; null when there are none.
    pub details: Value,
}

impl ApiError {
    fn about(
        resource: Resource,
        name: &str,
        code: u16,
        reason: &'static str,
        text: String,
    ) -> Self {
        let spec = resource.spec();
        let mut details = json!({"kind": spec.plural});
        if !name.is_empty() {
            details["name"] = name.into();
        }
        if !spec.group.is_empty() {
            details["group"] = spec.group.into();
        }
        Self { code, reason, message: text, details }
    }

    fn plain(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Value::Null }
    }

    fn with_empty_details(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        let mut error = Self::plain(code, reason, message);
        error.details = json!({});
        error
    }

    /// 404: no such object.
    pub fn not_found(resource: Resource, name: &str) -> Self {
        let text = format!("{} {name:?} not found", resource.qualified());
        Self::about(resource, name, 404, "NotFound", text)
    }

    /// 404: no such resource or path.
    pub fn no_such_path() -> Self {
        Self::with_empty_details(
            404,
            "NotFound",
            "the server could not find the requested resource",
        )
    }

    /// 409: the name is taken.
    pub fn already_exists(resource: Resource, name: &str) -> Self {
        let text = format!("{} {name:?} already exists", resource.qualified());
        Self::about(resource, name, 409, "AlreadyExists", text)
    }

    /// 409: the object is not the one, or not the version, that the request was meant for.
    pub fn conflict(resource: Resource, name: &str, cause: &str) -> Self {
        let text =
            format!("Operation cannot be fulfilled on {} {name:?}: {cause}", resource.qualified());
        Self::about(resource, name, 409, "Conflict", text)
    }

    /// 409: someone else wrote first.
    pub fn modified(resource: Resource, name: &str) -> Self {
        let cause = "the object has been modified; please apply your changes to the latest \
                     version and try again";
        Self::conflict(resource, name, cause)
    }

    /// 422: a field has a value that it may not have.
    pub fn invalid(
        resource: Resource,
        name: &str,
        field: &str,
        cause: &'static str,
        text: &str,
    ) -> Self {
        let spec = resource.spec();
        let message = format!("{} {name:?} is invalid: {field}: {text}", spec.kind);
        let mut error = Self::about(resource, name, 422, "Invalid", message);
        error.details["kind"] = spec.kind.into();
        error.details["causes"] = json!([{"reason": cause, "message": text, "field": field}]);
        error
    }

    /// 409: preconditions that the object does not meet. The API names the kind here, where it
    /// names the resource elsewhere.
    pub fn precondition(resource: Resource, name: &str, cause: &str) -> Self {
        let spec = resource.spec();
        let kind = match spec.group {
            "" => spec.kind.to_owned(),
            group => format!("{}.{group}", spec.kind),
        };
        let text = format!("Operation cannot be fulfilled on {kind} {name:?}: {cause}");
        let mut error = Self::about(resource, name, 409, "Conflict", text);
        error.details["kind"] = spec.kind.into();
        error
    }

    /// 422: an update that does not say of which version, where it has to.
    pub fn unversioned(resource: Resource, name: &str) -> Self {
        let text = "Invalid value: 0: must be specified for an update";
        let field = "metadata.resourceVersion";
        let mut error = Self::invalid(resource, name, field, "FieldValueInvalid", text);
        error.message = format!("{} {name:?} is invalid: {field}: {text}", resource.qualified());
        error.details["kind"] = resource.spec().plural.into();
        error
    }

    /// 422: a patch that cannot be applied to the object.
    pub fn unprocessable() -> Self {
        let text = "the server rejected our request due to an error in our request";
        Self::with_empty_details(422, "Invalid", text)
    }

    /// Says each cause twice, as the API server does where it validates an update twice.
    pub fn twice(mut self) -> Self {
        if let Some(causes) = self.details["causes"].as_array_mut() {
            causes.extend_from_within(..);
        }
        self
    }

    /// 403: not allowed.
    pub fn forbidden(resource: Resource, name: &str, cause: &str) -> Self {
        let text = format!("{} {name:?} is forbidden: {cause}", resource.qualified());
        Self::about(resource, name, 403, "Forbidden", text)
    }

    /// 400: the request makes no sense.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::plain(400, "BadRequest", message)
    }

    /// 405: the path is known, the method is not.
    pub fn method_not_allowed() -> Self {
        Self::with_empty_details(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
    }

    /// 406: no form that the client accepts.
    pub fn not_acceptable() -> Self {
        Self::with_empty_details(
            406,
            "NotAcceptable",
            "only the following media types are accepted: application/json",
        )
    }

    /// 415: a body in a form that is not understood.
    pub fn unsupported_media_type(given: &str) -> Self {
        let text = format!(
            "the body of the request was in an unknown format ({given}) - accepted media types \
             include: application/json, and those of patches for a PATCH"
        );
        Self::with_empty_details(415, "UnsupportedMediaType", text)
    }

    /// 413: the body is larger than an API server takes.
    pub fn too_large() -> Self {
        Self::plain(413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728")
    }

    /// 410: the history that the request builds on is gone.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::plain(410, "Expired", message)
    }

    /// 429: the server, or a budget, wants the caller to come back later.
    pub fn too_many_requests(message: impl Into<String>, retry_after: Option<u32>) -> Self {
        let mut error = Self::plain(429, "TooManyRequests", message);
        error.details = json!({});
        if let Some(seconds) = retry_after {
            error.details["retryAfterSeconds"] = seconds.into();
        }
        error
    }

    /// What an admission webhook denies, with the code that it chose.
    pub fn denied_by_webhook(webhook: &str, code: u16) -> Self {
        let message = format!("admission webhook \"{webhook}\" denied the request: not now");
        Self { code, reason: "", message, details: Value::Null }
    }

    /// 504: a version from the future was asked for.
    pub fn too_large_version(asked: u64, current: u64) -> Self {
        let text = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let mut error = Self::plain(504, "Timeout", text);
        error.details = json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        });
        error
    }

    /// A refusal with `code` that has nothing to do with the request itself, as an overloaded or
    /// broken server gives it.
    pub fn with_code(code: u16, retry_after: Option<u32>) -> Self {
        let (reason, text) = match code {
            401 => ("Unauthorized", "Unauthorized"),
            403 => (
                "Forbidden",
                r#"forbidden: User "somebody" cannot do this: denied by a fault rule"#,
            ),
            404 => ("NotFound", "the server could not find the requested resource"),
            409 => ("Conflict", "Operation cannot be fulfilled: denied by a fault rule"),
            410 => ("Expired", "too old resource version"),
            429 => ("TooManyRequests", "Too many requests, please try again later."),
            503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
            504 => ("Timeout", "Timeout: request did not complete within the allotted timeout"),
            _ => ("InternalError", "Internal error occurred: fault rule"),
        };
        let mut error = Self::plain(code, reason, text);
        if let Some(seconds) = retry_after {
            error.details = json!({"retryAfterSeconds": seconds});
        }
        error
    }

    /// Adds a cause to the details.
    pub fn caused_by(mut self, reason: &str, message: &str) -> Self {
        if !self.details.is_object() {
            self.details = json!({});
        }
        let cause = json!({"reason": reason, "message": message});
        match self.details["causes"].as_array_mut() {
            Some(causes) => causes.push(cause),
            None => self.details["causes"] = json!([cause]),
        }
        self
    }

    /// Seconds after which the client may come back, if the refusal names them.
    pub fn retry_after(&self) -> Option<u64> {
        self.details.get("retryAfterSeconds")?.as_u64()
    }

    /// The `Status` object.
    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }
}
