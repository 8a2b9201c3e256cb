//! Checks at startup that the API server answers and grants all permissions, and waits for one that
//! cannot answer yet.

use std::time::Duration;

use asking::Asking;

use crate::cluster::{Api, CredentialsError, Permission, RequestError};
use crate::config::{DryRun, Settings};
use crate::drain::{AtDeadline, Orphans, Policy, format_duration};
use crate::evict::{TaintMethod, TaintRule, may_delete};

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

/// The permissions of a run without configuration, and no more.
pub fn permissions() -> &'static [Permission] {
    &NEEDED
}

/// The permissions that every run needs, even one that deletes no pod without asking its budgets.
/// `deploy/kustomize/components/evict-only` leaves these of the base.
pub fn permissions_without_deletions() -> Vec<Permission> {
    let deletes = |right: &Permission| (right.verb, right.resource) == ("delete", "pods");
    NEEDED.into_iter().filter(|right| !deletes(right)).collect()
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

/// The additional permissions for taint rules that respect disruption budgets.
/// `deploy/kustomize/components/evict` grants these and no others.
const FOR_RULES: [Permission; 2] = [
    needed("create", "pods", "eviction"),
    Permission { verb: "list", group: "policy", resource: "poddisruptionbudgets", subresource: "" },
];

/// The additional permissions that a run with taint rules needs if one of them respects disruption budgets.
pub fn rule_permissions() -> &'static [Permission] {
    &FOR_RULES
}

/// What a run may have to do, by its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tasks {
    /// Cordon and drain.
    pub drains: bool,
    /// Evict pods for taints by the Eviction API.
    pub evicts: bool,
    /// Delete pods without asking their budgets, for taints or at the deadline of a drain.
    pub deletes: bool,
}

impl Tasks {
    /// The tasks of a run with these settings.
    pub fn of(settings: &Settings) -> Self {
        let evicts = |rule: &TaintRule| {
            matches!(rule.method, TaintMethod::Evict | TaintMethod::EvictThenDelete { .. })
        };
        let last_resort = |policy: &Policy| policy.at_deadline == AtDeadline::DeleteRest;
        Self {
            drains: !settings.policies.is_empty() || settings.orphans == Orphans::Uncordon,
            evicts: settings.taint_rules.iter().any(evicts),
            deletes: may_delete(&settings.taint_rules) || settings.policies.iter().any(last_resort),
        }
    }

    /// The permissions for all of them, without those for the lease.
    fn permissions(self) -> Vec<Permission> {
        let mut all = permissions_without_deletions();
        if self.deletes {
            all = permissions().to_vec();
        }
        let more = [(self.evicts, rule_permissions()), (self.drains, drain_permissions())];
        for (_, more) in more.into_iter().filter(|(is_needed, _)| *is_needed) {
            let new: Vec<_> = more.iter().copied().filter(|right| !all.contains(right)).collect();
            all.extend(new);
        }
        all
    }
}

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
pub fn dry_run_permissions(tasks: Tasks, events: bool) -> Vec<Permission> {
    let is_needed = |needed: &Permission| {
        let Permission { verb, resource, .. } = *needed;
        matches!(verb, "get" | "list" | "watch") || events && resource == "events"
    };
    tasks.permissions().into_iter().filter(is_needed).collect()
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
    /// Permissions for taint rules are missing.
    #[error(
        "missing permission: {0}; taint rules with Evict or EvictThenDelete need the component \
         deploy/kustomize/components/evict; add it, or change the rules"
    )]
    MissingForRules(String),
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

/// Checks every permission that is needed for these tasks: with `election`, those for the lease in that
/// namespace; for a `dry_run` only those to read. Waits for a server that is unreachable, overloaded or still
/// starting.
pub(crate) async fn check(
    api: &Api,
    server: &str,
    election: Option<&str>,
    tasks: Tasks,
    dry_run: Option<DryRun>,
    wait: Duration,
) -> Result<(), PreflightError> {
    let asking = Asking::new(api, server, wait);
    if let Some(DryRun { events }) = dry_run {
        let lacking = asking.missing(&dry_run_permissions(tasks, events), "").await?;
        let is_missing = !lacking.is_empty();
        return if is_missing { Err(PreflightError::MissingForDryRun(lacking)) } else { Ok(()) };
    }
    let needed =
        if tasks.deletes { permissions().to_vec() } else { permissions_without_deletions() };
    let lacking = asking.missing(&needed, "").await?;
    if !lacking.is_empty() {
        return Err(PreflightError::Missing(lacking));
    }
    if tasks.evicts {
        let lacking = asking.missing(rule_permissions(), "").await?;
        if !lacking.is_empty() {
            return Err(PreflightError::MissingForRules(lacking));
        }
    }
    if tasks.drains {
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

    const DELETES: Tasks = Tasks { drains: false, evicts: false, deletes: true };

    async fn checked_for(api: &Api, tasks: Tasks) -> Result<(), String> {
        let outcome = check(api, "server", None, tasks, None, Duration::ZERO).await;
        outcome.map_err(|error| error.to_string())
    }

    async fn checked(api: &Api, drains: bool) -> Result<(), String> {
        checked_for(api, Tasks { drains, ..DELETES }).await
    }

    #[test]
    fn a_run_deletes_unless_its_rules_cover_every_taint_and_no_drain_deletes_at_last() {
        let rule = |key: &str, method| TaintRule {
            name: "a".into(),
            key: key.into(),
            value: None,
            method,
            limit: None,
        };
        let tasks = |rules: Vec<TaintRule>, policies: Vec<Policy>| {
            Tasks::of(&Settings { taint_rules: rules, policies, ..Settings::default() })
        };
        let evict = || vec![rule("*", TaintMethod::Evict)];
        assert_eq!(tasks(vec![], vec![]), DELETES);
        let evicts = Tasks { drains: false, evicts: true, deletes: false };
        assert_eq!(tasks(evict(), vec![]), evicts);
        let some = vec![rule("a", TaintMethod::Evict)];
        assert_eq!(tasks(some, vec![]), Tasks { deletes: true, ..evicts });
        let nothing = Tasks { drains: false, evicts: false, deletes: false };
        assert_eq!(tasks(vec![rule("*", TaintMethod::Ignore)], vec![]), nothing);
        let policy = crate::drain::build::policy("p", &["Bad"]);
        let drains = Tasks { drains: true, ..evicts };
        assert_eq!(tasks(evict(), vec![policy.clone()]), drains);
        let last = Policy { at_deadline: AtDeadline::DeleteRest, ..policy };
        assert_eq!(tasks(evict(), vec![last]), Tasks { deletes: true, ..drains });
    }

    #[tokio::test]
    async fn without_deletions_no_right_to_delete_is_asked_for() {
        let no_deletions = Tasks { deletes: false, ..DELETES };
        let (verb, resource) = ("delete", "pods");
        let service = service_fn(move |request: Request<Body>| async move {
            if request.uri().path() == "/readyz" {
                return Ok(Response::new(Body::empty()));
            }
            let review = request.into_body().collect_bytes().await.unwrap();
            let review: serde_json::Value = serde_json::from_slice(&review).unwrap();
            let asked = &review["spec"]["resourceAttributes"];
            let allowed = asked["verb"] != verb || asked["resource"] != resource;
            let answer = serde_json::json!({"status": {"allowed": allowed}}).to_string();
            Ok::<_, Infallible>(Response::new(Body::from(answer.into_bytes())))
        });
        let metrics = Metrics::register(&Registry::new()).unwrap();
        let api = Api::new(Client::new(service, "default"), metrics);
        let evicts = Tasks { evicts: true, ..no_deletions };
        for tasks in [no_deletions, evicts, Tasks { drains: true, ..evicts }] {
            assert_eq!(checked_for(&api, tasks).await, Ok(()), "{tasks:?}");
        }
        let error = checked_for(&api, DELETES).await.unwrap_err();
        assert!(error.contains("missing permission: delete pods;"), "{error}");
    }

    #[tokio::test]
    async fn rights_of_rules_are_asked_for_where_a_rule_respects_budgets_only() {
        let api = lacking("poddisruptionbudgets");
        assert_eq!(checked_for(&api, DELETES).await, Ok(()));
        let error = checked_for(&api, Tasks { evicts: true, ..DELETES }).await.unwrap_err();
        assert!(error.contains("missing permission: list poddisruptionbudgets.policy;"), "{error}");
        assert!(error.contains("components/evict"), "{error}");
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
            let tasks = Tasks { drains, ..DELETES };
            check(&api, "server", None, tasks, dry_run, Duration::ZERO).await
        };
        assert!(checked(true, false).await.is_ok());
        let error = checked(false, true).await.unwrap_err().to_string();
        assert!(error.contains("missing permission: create events;"), "{error}");
        assert!(error.contains("deploy/kustomize/dry-run"), "{error}");
        for (drains, count) in [(false, 6), (true, 9)] {
            let needed = dry_run_permissions(Tasks { drains, ..DELETES }, false);
            assert_eq!(needed.len(), count, "{needed:?}");
            assert!(needed.iter().all(|right| ["get", "list", "watch"].contains(&right.verb)));
        }
    }
}
