//! Leases (coordination.k8s.io/v1), as far as an election needs them.

use std::time::Duration;

use http::Method;
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::Value;

use super::api::{Api, FIELD_MANAGER, JSON, Label, RequestError, request, unreadable};
use super::rewind::Asked;

const RESOURCE: &str = "leases";

impl Api {
    /// The lease as it is stored, or `None` if there is none.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn lease(
        &self,
        namespace: &str,
        name: &str,
        within: Duration,
    ) -> Result<Option<Lease>, RequestError> {
        let path = format!("{}/{name}", folder(namespace));
        let label = Label { verb: "get", resource: RESOURCE };
        let request = request(Method::GET, &path, JSON, None, &Value::Null)?;
        let asked = self.rewinds().asked();
        match self.send(label, request, within).await {
            Ok((_, body)) => self.seen(&body, asked).map(Some),
            Err(RequestError::Status(answer)) if answer.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Stores a lease and returns it as it is then. One without a resourceVersion is created (409
    /// if there is one); another replaces the version that it names (409 if that is not the
    /// latest). The gate for writes does not hold it up.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn put_lease(&self, lease: &Lease, within: Duration) -> Result<Lease, RequestError> {
        let namespace = lease.metadata.namespace.as_deref().unwrap_or_default();
        let name = lease.metadata.name.as_deref().unwrap_or_default();
        let folder = folder(namespace);
        let (verb, method, path) = match lease.metadata.resource_version {
            None => ("create", Method::POST, folder),
            Some(_) => ("update", Method::PUT, format!("{folder}/{name}")),
        };
        let label = Label { verb, resource: RESOURCE };
        let path = format!("{path}?fieldManager={FIELD_MANAGER}");
        let body = serde_json::to_value(lease).map_err(unreadable)?;
        let request = request(method, &path, JSON, Some(JSON), &body)?;
        let asked = self.rewinds().asked();
        let (_, answer) = self.send(label, request, within).await?;
        self.seen(&answer, asked)
    }

    /// A lease that was answered. Its version only grows, unless the store goes back in time.
    fn seen(&self, body: &[u8], asked: Asked) -> Result<Lease, RequestError> {
        let lease: Lease = serde_json::from_slice(body).map_err(unreadable)?;
        if let Some(version) = &lease.metadata.resource_version {
            let name = lease.metadata.name.as_deref().unwrap_or_default();
            self.rewinds().see(&format!("lease {name}"), version, asked);
        }
        Ok(lease)
    }
}

fn folder(namespace: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
}
