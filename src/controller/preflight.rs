//! Looks before the start whether the cluster answers and all rights are there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{StreamExt, stream};
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::backoff::Backoff;
use crate::cluster::{Api, Permission, RequestError};
use crate::leader;

/// Questions asked at the same time. One after the other they take as long as all else before the
/// lists; each of those at the same time opens a connection.
const AT_ONCE: usize = 4;

/// A server that answers but cannot now, as while it starts, is asked again for so long.
const PATIENCE: Duration = Duration::from_secs(30);
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(250), most: Duration::from_secs(4) };

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
    let asking =
        Asking { api, server, answered: AtomicBool::new(false), until: Instant::now() + PATIENCE };
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

/// Questions to one API server.
struct Asking<'a> {
    api: &'a Api,
    server: &'a str,
    /// Whether it has ever answered. One that never has is probably not the one that was meant.
    answered: AtomicBool,
    until: Instant,
}

impl Asking<'_> {
    /// Those of the permissions that are not there, in words.
    async fn missing(
        &self,
        needed: &[Permission],
        namespace: &str,
    ) -> Result<String, PreflightError> {
        let mut missing = Vec::new();
        let asked = needed.iter().map(async |&permission| {
            // Objects are created under any name or none.
            let named = !namespace.is_empty() && permission.verb != "create";
            let name = if named { leader::LEASE } else { "" };
            (permission, self.ask(permission, namespace, name).await)
        });
        let mut answers = stream::iter(asked).buffered(AT_ONCE);
        while let Some((permission, answer)) = answers.next().await {
            match answer {
                Ok(true) => {}
                Ok(false) => missing.push(permission.to_string()),
                Err(cause) => {
                    let server = self.server.to_owned();
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

    /// Asks, and asks again while the server only cannot answer now.
    async fn ask(
        &self,
        permission: Permission,
        namespace: &str,
        name: &str,
    ) -> Result<bool, RequestError> {
        let mut failures = 0;
        loop {
            let error = match self.api.is_allowed(permission, namespace, name).await {
                Ok(answer) => {
                    self.answered.store(true, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(error) => error,
            };
            let passes = match &error {
                RequestError::Status(answer) => {
                    self.answered.store(true, Ordering::Relaxed);
                    matches!(answer.code, 429 | 500..=599)
                }
                RequestError::Timeout(_) | RequestError::Transport(_) => {
                    self.answered.load(Ordering::Relaxed)
                }
                RequestError::Body(_) | RequestError::NotLeading => false,
            };
            failures += 1;
            let pause = BACKOFF.pause(failures, 0);
            if !passes || Instant::now() + pause > self.until {
                return Err(error);
            }
            warn!(%permission, %error, "the API server cannot tell a permission now; asking again");
            sleep(pause).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use prometheus::Registry;
    use tower::{BoxError, service_fn};

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

    /// A server that does this with its first requests, and grants everything afterwards.
    fn ailing(
        ails: usize,
        how: impl Fn(usize) -> Option<u16> + Clone + Send + Sync + 'static,
    ) -> Api {
        let asked = Arc::new(AtomicUsize::new(0));
        let service = service_fn(move |_: Request<Body>| {
            let (how, number) = (how.clone(), asked.fetch_add(1, Ordering::Relaxed));
            async move {
                let code = if number < ails { how(number).ok_or("broken")? } else { 200 };
                let answer = serde_json::json!({"status": {"allowed": true}}).to_string();
                let answer = Response::builder().status(code).body(Body::from(answer.into_bytes()));
                answer.map_err(BoxError::from)
            }
        });
        Api::new(Client::new(service, "default"), Metrics::register(&Registry::new()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_cannot_answer_now_is_asked_again() {
        let begin = Instant::now();
        for code in [429, 500, 503, 504] {
            let api = ailing(9, move |_| Some(code));
            assert!(check(&api, "server", Some("kube-system"), true).await.is_ok(), "{code}");
        }
        // It has answered, so it is the right one, whatever becomes of its connections.
        let api = ailing(30, |number| (number < 4).then_some(503));
        assert!(check(&api, "server", None, false).await.is_ok());
        assert!(begin.elapsed() > Duration::from_millis(500), "there are pauses between");
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_given_up_in_time_and_at_once_if_that_will_not_pass() {
        for (code, patience) in [(503, PATIENCE), (403, Duration::ZERO), (401, Duration::ZERO)] {
            let begin = Instant::now();
            let api = ailing(usize::MAX, move |_| Some(code));
            let error = check(&api, "server", None, false).await.unwrap_err().to_string();
            assert!(error.contains(&code.to_string()), "{error}");
            let took = begin.elapsed();
            assert!(took <= patience && took >= patience.saturating_sub(BACKOFF.most), "{took:?}");
        }
        let begin = Instant::now();
        let error = check(&ailing(usize::MAX, |_| None), "server", None, false).await.unwrap_err();
        assert!(matches!(error, PreflightError::Unreachable { .. }), "{error}");
        assert_eq!(begin.elapsed(), Duration::ZERO);
    }
}
