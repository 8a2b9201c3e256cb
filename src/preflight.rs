//! Checks at startup that the API server answers and grants all permissions, and waits for one that
//! cannot answer yet.

use std::time::Duration;

use asking::Asking;

use crate::cluster::{Api, CredentialsError, Permission, RequestError};
use crate::config::DryRun;
use crate::drain::format_duration;

mod asking;
mod patience;

/// The permissions that every run needs. `deploy/` grants these and no others; a test compares them.
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

/// The permissions that every run needs, and no more.
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

/// The additional permissions for cordon and drain. `deploy/kustomize/components/drain` grants these
/// and no others.
const FOR_DRAINS: [Permission; 5] = [
    needed("patch", "nodes", "status"),
    needed("create", "pods", "eviction"),
    Permission { verb: "list", group: "policy", resource: "poddisruptionbudgets", subresource: "" },
    Permission { verb: "get", group: "apps", resource: "daemonsets", subresource: "" },
    Permission { verb: "get", group: "apps", resource: "statefulsets", subresource: "" },
];

/// The additional permissions that a run with drain policies needs.
pub fn drain_permissions() -> &'static [Permission] {
    &FOR_DRAINS
}

/// The additional permissions for leader election, in the namespace of the lease.
const FOR_ELECTION: [Permission; 3] = [on_leases("create"), on_leases("get"), on_leases("update")];

/// The additional permissions for leader election, in the namespace of the lease. All but `create`,
/// which has no name, are only needed for the lease itself.
pub fn election_permissions() -> &'static [Permission] {
    &FOR_ELECTION
}

/// The permissions that a person needs to pause and resume, for the lease itself.
const FOR_PAUSES: [Permission; 2] = [on_leases("get"), on_leases("patch")];

/// The permissions that a person needs to pause and resume, for the lease itself. The controller does
/// without `patch`.
pub fn pause_permissions() -> &'static [Permission] {
    &FOR_PAUSES
}

const fn on_leases(verb: &'static str) -> Permission {
    Permission { verb, group: "coordination.k8s.io", resource: "leases", subresource: "" }
}

/// The permissions that a dry run needs: to read what a run reads, and to create events if it is to.
pub fn dry_run_permissions(drains: bool, events: bool) -> Vec<Permission> {
    let is_needed = |needed: &Permission| {
        let Permission { verb, resource, .. } = *needed;
        matches!(verb, "get" | "list" | "watch") || events && resource == "events"
    };
    let for_drains = if drains { drain_permissions() } else { &[] };
    permissions().iter().chain(for_drains).copied().filter(is_needed).collect()
}

/// The cluster cannot be used.
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
        /// Why there was no answer.
        cause: RequestError,
        /// How long the start waited for it.
        waited: Duration,
    },
    /// There are no credentials for it.
    #[error("cannot get credentials for the API server at {server}{}: {cause}", after(*.waited))]
    Credentials {
        /// Its URL.
        server: String,
        /// Why.
        cause: CredentialsError,
        /// How long the start kept trying.
        waited: Duration,
    },
    /// It rejects the credentials.
    #[error("the API server rejects the credentials ({0}); check the user of the kubeconfig")]
    Unauthorized(RequestError),
    /// Permissions cannot be checked: something else answers, or the user may not check them.
    #[error(
        "cannot check permissions with the API server at {server}{}: {cause}; check that an API \
         server runs there, and that this user may create selfsubjectaccessreviews", after(*.waited)
    )]
    Refused {
        /// Its URL.
        server: String,
        /// What it answered.
        cause: RequestError,
        /// How long the start waited for it.
        waited: Duration,
    },
    /// Permissions are missing.
    #[error("missing permission: {0}; apply the ClusterRole in deploy/kustomize/base")]
    Missing(String),
    /// Permissions for a dry run are missing.
    #[error("missing permission: {0}; apply the ClusterRole in deploy/kustomize/dry-run")]
    MissingForDryRun(String),
    /// Permissions for drains are missing.
    #[error(
        "missing permission: {0}; drain policies need the component \
         deploy/kustomize/components/drain; add it, or remove the policies"
    )]
    MissingForDrains(String),
    /// Permissions for the lease are missing.
    #[error(
        "missing permission: {missing} in namespace {namespace}; apply the Role in \
         deploy/kustomize/base, choose another namespace with --leader-elect-namespace, or run a \
         single replica with --leader-elect=false"
    )]
    MissingLease {
        /// The permissions.
        missing: String,
        /// The namespace of the lease.
        namespace: String,
    },
}

/// How long the start waited, as a text; empty if it did not.
fn after(waited: Duration) -> String {
    match waited.as_secs() {
        0 => String::new(),
        secs => format!(" after waiting {}", format_duration(Duration::from_secs(secs))),
    }
}

/// Checks every permission that is needed: with `election`, those for the lease in that namespace; with
/// `drains`, those for drains; for a `dry_run` only those to read. Waits for a server that is unreachable,
/// overloaded or still starting.
pub(crate) async fn check(
    api: &Api,
    server: &str,
    election: Option<&str>,
    drains: bool,
    dry_run: Option<DryRun>,
    wait: Duration,
) -> Result<(), PreflightError> {
    let asking = Asking::new(api, server, wait);
    if let Some(DryRun { events }) = dry_run {
        let lacking = asking.missing(&dry_run_permissions(drains, events), "").await?;
        let is_missing = !lacking.is_empty();
        return if is_missing { Err(PreflightError::MissingForDryRun(lacking)) } else { Ok(()) };
    }
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
        let outcome = check(api, "server", None, drains, None, Duration::ZERO).await;
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

    #[tokio::test]
    async fn a_dry_run_asks_for_rights_to_read_only() {
        let api = lacking("events");
        let checked = async |drains, events| {
            let dry_run = Some(DryRun { events });
            check(&api, "server", None, drains, dry_run, Duration::ZERO).await
        };
        assert!(checked(true, false).await.is_ok());
        let error = checked(false, true).await.unwrap_err().to_string();
        assert!(error.contains("missing permission: create events;"), "{error}");
        assert!(error.contains("deploy/kustomize/dry-run"), "{error}");
        for (drains, count) in [(false, 6), (true, 9)] {
            let needed = dry_run_permissions(drains, false);
            assert_eq!(needed.len(), count, "{needed:?}");
            assert!(needed.iter().all(|right| ["get", "list", "watch"].contains(&right.verb)));
        }
    }
}
