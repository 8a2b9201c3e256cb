//! Looks before the start whether the cluster answers and all rights are there, and waits for a
//! cluster that cannot answer yet.

use std::time::Duration;

use asking::Asking;

use crate::cluster::{Api, CredentialsError, Permission, RequestError};
use crate::drain::format_duration;

mod asking;
mod patience;

/// Every right that a run needs. `deploy/` grants these and no others; a test compares the two.
const NEEDED: [Permission; 10] = [
    needed("list", "nodes", ""),
    needed("watch", "nodes", ""),
    needed("get", "nodes", ""),
    needed("patch", "nodes", ""),
    needed("list", "pods", ""),
    needed("watch", "pods", ""),
    needed("get", "pods", ""),
    needed("delete", "pods", ""),
    needed("patch", "pods", "status"),
    needed("create", "events", ""),
];

/// Every right that a run needs, and no more.
pub fn permissions() -> &'static [Permission] {
    &NEEDED
}

const fn needed(
    verb: &'static str,
    resource: &'static str,
    subresource: &'static str,
) -> Permission {
    Permission { verb, group: "", resource, subresource }
}

/// The rights that a run needs on top which cordons and drains nodes.
/// `deploy/kustomize/components/drain` grants these and no others.
const FOR_DRAINS: [Permission; 5] = [
    needed("patch", "nodes", "status"),
    needed("create", "pods", "eviction"),
    Permission { verb: "list", group: "policy", resource: "poddisruptionbudgets", subresource: "" },
    Permission { verb: "get", group: "apps", resource: "daemonsets", subresource: "" },
    Permission { verb: "get", group: "apps", resource: "statefulsets", subresource: "" },
];

/// What a run needs on top where a drain policy is configured.
pub fn drain_permissions() -> &'static [Permission] {
    &FOR_DRAINS
}

/// The rights to the lease, in its namespace, that a run needs which takes part in an election.
const FOR_ELECTION: [Permission; 3] = [on_leases("create"), on_leases("get"), on_leases("update")];

/// What a run needs on top to elect a leader: in the namespace of the lease, and but for `create`,
/// which knows no names, only on the lease itself.
pub fn election_permissions() -> &'static [Permission] {
    &FOR_ELECTION
}

const fn on_leases(verb: &'static str) -> Permission {
    Permission { verb, group: "coordination.k8s.io", resource: "leases", subresource: "" }
}

/// The cluster cannot be worked with.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// It does not answer.
    #[error(
        "cannot reach the API server at {server}{}: {cause}; check the address, the network, and \
         the certificate authority of the kubeconfig", after(*.waited)
    )]
    Unreachable {
        /// Its URL.
        server: String,
        /// What happened instead of an answer.
        cause: RequestError,
        /// For how long it was waited for.
        waited: Duration,
    },
    /// There is nothing to show to it.
    #[error("cannot get credentials for the API server at {server}{}: {cause}", after(*.waited))]
    Credentials {
        /// Its URL.
        server: String,
        /// What is in the way.
        cause: CredentialsError,
        /// For how long it was tried.
        waited: Duration,
    },
    /// It does not take the credentials.
    #[error("the API server does not accept the credentials ({0}); check the kubeconfig's user")]
    Unauthorized(RequestError),
    /// It answers, but not as an API server does that lets its users ask.
    #[error(
        "cannot ask the API server at {server} for permissions{}: {cause}; check that it is one, \
         and that this user may create selfsubjectaccessreviews", after(*.waited)
    )]
    Refused {
        /// Its URL.
        server: String,
        /// What it answered.
        cause: RequestError,
        /// For how long it was waited for.
        waited: Duration,
    },
    /// Rights are missing.
    #[error("missing permission: {0}; apply the ClusterRole in deploy/kustomize/base")]
    Missing(String),
    /// Rights are missing that drains need.
    #[error(
        "missing permission: {0}; a drain policy is configured, so add the component \
         deploy/kustomize/components/drain, or take the policies away"
    )]
    MissingForDrains(String),
    /// Rights to the lease are missing.
    #[error(
        "missing permission: {missing} in namespace {namespace}; apply the Role in \
         deploy/kustomize/base, name another namespace with --leader-elect-namespace, or run one \
         replica with --leader-elect=false"
    )]
    MissingLease {
        /// The rights.
        missing: String,
        /// Where the lease would be.
        namespace: String,
    },
}

/// How long was waited, in words, if it was.
fn after(waited: Duration) -> String {
    match waited.as_secs() {
        0 => String::new(),
        secs => format!(" after waiting {}", format_duration(Duration::from_secs(secs))),
    }
}

/// Asks the API server for every right that is needed: those to the lease in the namespace
/// `election`, if there is one, and those of drains if there are any. Waits for a server that cannot
/// be reached, or cannot answer now.
pub(super) async fn check(
    api: &Api,
    server: &str,
    election: Option<&str>,
    drains: bool,
    wait: Duration,
) -> Result<(), PreflightError> {
    let asking = Asking::new(api, server, wait);
    let lacking = asking.missing(permissions(), "").await?;
    if !lacking.is_empty() {
        return Err(PreflightError::Missing(lacking));
    }
    if drains {
        let lacking = asking.missing(drain_permissions(), "").await?;
        if !lacking.is_empty() {
            return Err(PreflightError::MissingForDrains(lacking));
        }
    }
    let Some(namespace) = election else { return Ok(()) };
    let missing = asking.missing(election_permissions(), namespace).await?;
    if missing.is_empty() {
        return Ok(());
    }
    Err(PreflightError::MissingLease { missing, namespace: namespace.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use prometheus::Registry;
    use tower::service_fn;

    use super::*;
    use crate::cluster::Metrics;

    /// A server that grants everything but what is about this resource.
    fn lacking(resource: &'static str) -> Api {
        let service = service_fn(move |request: Request<Body>| async move {
            if request.uri().path() == "/readyz" {
                return Ok(Response::new(Body::empty()));
            }
            let review = request.into_body().collect_bytes().await.unwrap();
            let review: serde_json::Value = serde_json::from_slice(&review).unwrap();
            let allowed = review["spec"]["resourceAttributes"]["resource"] != resource;
            let answer = serde_json::json!({"status": {"allowed": allowed}}).to_string();
            Ok::<_, Infallible>(Response::new(Body::from(answer.into_bytes())))
        });
        Api::new(Client::new(service, "default"), Metrics::register(&Registry::new()).unwrap())
    }

    async fn checked(api: &Api, drains: bool) -> Result<(), String> {
        let outcome = check(api, "server", None, drains, Duration::ZERO).await;
        outcome.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn rights_of_drains_are_asked_for_where_there_are_drains_only() {
        let api = lacking("poddisruptionbudgets");
        assert_eq!(checked(&api, false).await, Ok(()));
        let error = checked(&api, true).await.unwrap_err();
        assert!(error.contains("missing permission: list poddisruptionbudgets.policy;"), "{error}");
        assert!(error.contains("components/drain"), "{error}");
        assert_eq!(checked(&lacking(""), true).await, Ok(()));
    }
}
