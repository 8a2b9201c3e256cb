//! Looks before the start whether the cluster answers and all rights are there.

use futures::{StreamExt, stream};

use crate::cluster::{Api, Permission, RequestError};
use crate::leader;

/// Questions asked at the same time. One after the other they take as long as all else before the
/// lists; each of those at the same time opens a connection.
const AT_ONCE: usize = 4;

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
        "cannot reach the API server at {server}: {cause}; check the address, the network, and \
         the certificate authority of the kubeconfig"
    )]
    Unreachable {
        /// Its URL.
        server: String,
        /// What happened instead of an answer.
        cause: RequestError,
    },
    /// It does not take the credentials.
    #[error("the API server does not accept the credentials ({0}); check the kubeconfig's user")]
    Unauthorized(RequestError),
    /// It answers, but not as an API server does that lets its users ask.
    #[error(
        "cannot ask the API server at {server} for permissions: {cause}; check that it is one, and \
         that this user may create selfsubjectaccessreviews"
    )]
    Refused {
        /// Its URL.
        server: String,
        /// What it answered.
        cause: RequestError,
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

/// Asks the API server for every right that is needed: those to the lease in the namespace
/// `election`, if there is one, and those of drains if there are any.
pub(super) async fn check(
    api: &Api,
    server: &str,
    election: Option<&str>,
    drains: bool,
) -> Result<(), PreflightError> {
    let lacking = missing(api, server, permissions(), "").await?;
    if !lacking.is_empty() {
        return Err(PreflightError::Missing(lacking));
    }
    if drains {
        let lacking = missing(api, server, drain_permissions(), "").await?;
        if !lacking.is_empty() {
            return Err(PreflightError::MissingForDrains(lacking));
        }
    }
    let Some(namespace) = election else { return Ok(()) };
    let missing = missing(api, server, election_permissions(), namespace).await?;
    if missing.is_empty() {
        return Ok(());
    }
    Err(PreflightError::MissingLease { missing, namespace: namespace.to_owned() })
}

/// Those of the permissions that are not there, in words.
async fn missing(
    api: &Api,
    server: &str,
    needed: &[Permission],
    namespace: &str,
) -> Result<String, PreflightError> {
    let mut missing = Vec::new();
    let asked = needed.iter().map(|&permission| async move {
        // Objects are created under any name or none.
        let named = !namespace.is_empty() && permission.verb != "create";
        let name = if named { leader::LEASE } else { "" };
        (permission, api.is_allowed(permission, namespace, name).await)
    });
    let mut answers = stream::iter(asked).buffered(AT_ONCE);
    while let Some((permission, answer)) = answers.next().await {
        match answer {
            Ok(true) => {}
            Ok(false) => missing.push(permission.to_string()),
            Err(cause) => {
                let server = server.to_owned();
                return Err(match &cause {
                    RequestError::Status(answer) if answer.code == 401 => {
                        PreflightError::Unauthorized(cause)
                    }
                    RequestError::Timeout(_) | RequestError::Transport(_) => {
                        PreflightError::Unreachable { server, cause }
                    }
                    _ => PreflightError::Refused { server, cause },
                });
            }
        }
    }
    Ok(missing.join(", "))
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
            let review = request.into_body().collect_bytes().await.unwrap();
            let review: serde_json::Value = serde_json::from_slice(&review).unwrap();
            let allowed = review["spec"]["resourceAttributes"]["resource"] != resource;
            let answer = serde_json::json!({"status": {"allowed": allowed}}).to_string();
            Ok::<_, Infallible>(Response::new(Body::from(answer.into_bytes())))
        });
        Api::new(Client::new(service, "default"), Metrics::register(&Registry::new()).unwrap())
    }

    #[tokio::test]
    async fn rights_of_drains_are_asked_for_where_there_are_drains_only() {
        let api = lacking("poddisruptionbudgets");
        assert!(check(&api, "server", None, false).await.is_ok());
        let error = check(&api, "server", None, true).await.unwrap_err().to_string();
        assert!(error.contains("missing permission: list poddisruptionbudgets.policy;"), "{error}");
        assert!(error.contains("components/drain"), "{error}");
        assert!(check(&lacking(""), "server", None, true).await.is_ok());
    }
}
