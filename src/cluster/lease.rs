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
            Ok((_, body)) => self.seen(&body, name, asked).map(Some),
            Err(RequestError::Status(answer)) if answer.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Stores a lease and returns it as it is then. One without a resourceVersion is created (409
    /// if there is one); another replaces the version that it names (409 if that is not the
    /// latest). The gate for writes does not hold it up.
    ///
    /// An answer that does not bear out what was stored is an error: whoever believes that it holds the
    /// lease writes.
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
        let stored = self.seen(&answer, name, asked)?;
        let holder = |lease: &Lease| {
            let spec = lease.spec.as_ref();
            spec.and_then(|spec| spec.holder_identity.clone()).unwrap_or_default()
        };
        let (sent, answered) = (holder(lease), holder(&stored));
        if sent != answered {
            return Err(unreadable(format!(
                "the lease was stored with the holder {answered:?} instead of {sent:?}; does a webhook \
                 change it?"
            )));
        }
        Ok(stored)
    }

    /// A lease that was answered. Its version only grows, unless the store goes back in time.
    fn seen(&self, body: &[u8], name: &str, asked: Asked) -> Result<Lease, RequestError> {
        let lease: Lease = serde_json::from_slice(body).map_err(unreadable)?;
        // Any object of JSON can be read as a lease that says nothing.
        let is_it = lease.metadata.name.as_deref() == Some(name);
        let version = lease.metadata.resource_version.as_deref().filter(|v| !v.is_empty());
        let Some(version) = version.filter(|_| is_it) else {
            let begin = String::from_utf8_lossy(&body[..body.len().min(120)]);
            return Err(unreadable(format!("it is no stored lease {name} but {begin:?}")));
        };
        self.rewinds().see(&format!("lease {name}"), version, asked);
        Ok(lease)
    }
}

fn folder(namespace: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::Response;
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use kube::Client;
    use kube::client::Body;
    use prometheus::Registry;
    use tower::service_fn;

    use super::*;
    use crate::cluster::Metrics;

    const WITHIN: Duration = Duration::from_secs(1);

    /// Access to a server that answers 200 and this to everything.
    fn api(answer: &'static str) -> Api {
        let service = service_fn(move |_: http::Request<Body>| async move {
            Ok::<_, Infallible>(Response::new(Body::from(answer.as_bytes().to_vec())))
        });
        Api::new(Client::new(service, "default"), Metrics::register(&Registry::new()).unwrap())
    }

    async fn claim(answer: &'static str) -> Result<Lease, RequestError> {
        let mut lease = Lease::default();
        lease.metadata.name = Some("ostrakon".to_owned());
        let holder_identity = Some("me".to_owned());
        lease.spec = Some(LeaseSpec { holder_identity, ..LeaseSpec::default() });
        api(answer).put_lease(&lease, WITHIN).await
    }

    #[tokio::test]
    async fn only_the_lease_as_it_was_stored_says_that_it_is_held() {
        let answer = r#"{"metadata":{"name":"ostrakon","resourceVersion":"7"},
                         "spec":{"holderIdentity":"me"}}"#;
        assert!(claim(answer).await.is_ok());
        for answer in [
            "{}",
            r#"{"status":"ok"}"#,
            r#"{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{}}"#,
            r#"{"metadata":{"name":"ostrakon"},"spec":{"holderIdentity":"me"}}"#,
            r#"{"metadata":{"name":"other","resourceVersion":"7"},"spec":{"holderIdentity":"me"}}"#,
            r#"{"metadata":{"name":"ostrakon","resourceVersion":"7"},"spec":{"holderIdentity":"x"}}"#,
            r#"{"metadata":{"name":"ostrakon","resourceVersion":"7"}}"#,
        ] {
            let outcome = claim(answer).await;
            assert!(matches!(outcome, Err(RequestError::Body(_))), "{answer}: {outcome:?}");
        }
    }

    #[tokio::test]
    async fn a_lease_that_says_nothing_is_no_lease_that_nobody_holds() {
        for answer in ["{}", r#"{"message":"sign in"}"#, r#"{"metadata":{"name":"ostrakon"}}"#] {
            let outcome = api(answer).lease("kube-system", "ostrakon", WITHIN).await;
            assert!(matches!(outcome, Err(RequestError::Body(_))), "{answer}: {outcome:?}");
        }
    }
}
