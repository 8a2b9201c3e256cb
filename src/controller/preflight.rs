//! Looks before the work begins whether the cluster answers and all rights are there.

use futures::{StreamExt, stream};

use crate::cluster::{Api, Permission, RequestError};
use crate::leader;

/// Questions asked at the same time, while the lists are under way. Each of them may open a connection.
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

/// What a run is to be allowed.
#[derive(Clone, Debug)]
pub(super) struct Rights {
    /// The API server's URL, for messages.
    pub(super) server: String,
    /// Namespace of the lease, if there is an election.
    pub(super) election: Option<String>,
    /// Whether a drain policy is configured.
    pub(super) drains: bool,
}

impl Rights {
    /// Asks the API server for every right that is needed, and names those that are missing.
    ///
    /// # Errors
    /// See [`PreflightError`].
    pub(super) async fn check(&self, api: &Api) -> Result<(), PreflightError> {
        let mut needed: Vec<(Permission, Part)> = Vec::new();
        needed.extend(NEEDED.map(|right| (right, Part::Base)));
        if self.drains {
            needed.extend(FOR_DRAINS.map(|right| (right, Part::Drains)));
        }
        if self.election.is_some() {
            needed.extend(FOR_ELECTION.map(|right| (right, Part::Election)));
        }
        let asked = needed.into_iter().map(|(right, part)| async move {
            (right, part, self.is_granted(api, right, part).await)
        });
        // One after the other would be many waits for what needs one.
        let mut answers = stream::iter(asked).buffered(AT_ONCE);
        let mut missing: Vec<(Part, String)> = Vec::new();
        while let Some((right, part, answer)) = answers.next().await {
            match answer {
                Ok(true) => {}
                Ok(false) => missing.push((part, right.to_string())),
                Err(cause) => return Err(self.unasked(cause)),
            }
        }
        // What is needed in any case is named first, and alone.
        let Some(&(part, _)) = missing.first() else { return Ok(()) };
        let of_part = missing.into_iter().filter(|(other, _)| *other == part);
        let missing = of_part.map(|(_, right)| right).collect::<Vec<_>>().join(", ");
        Err(match part {
            Part::Base => PreflightError::Missing(missing),
            Part::Drains => PreflightError::MissingForDrains(missing),
            Part::Election => {
                let namespace = self.election.clone().unwrap_or_default();
                PreflightError::MissingLease { missing, namespace }
            }
        })
    }

    async fn is_granted(
        &self,
        api: &Api,
        right: Permission,
        part: Part,
    ) -> Result<bool, RequestError> {
        let namespace = match part {
            Part::Base | Part::Drains => "",
            Part::Election => self.election.as_deref().unwrap_or_default(),
        };
        // Objects are created under any name or none.
        let named = !namespace.is_empty() && right.verb != "create";
        let name = if named { leader::LEASE } else { "" };
        api.is_allowed(right, namespace, name).await
    }

    /// Why there was no answer to a question.
    pub(super) fn unasked(&self, cause: RequestError) -> PreflightError {
        let server = self.server.clone();
        match &cause {
            RequestError::Status(answer) if answer.code == 401 => {
                PreflightError::Unauthorized(cause)
            }
            RequestError::Timeout(_) | RequestError::Transport(_) => {
                PreflightError::Unreachable { server, cause }
            }
            _ => PreflightError::Refused { server, cause },
        }
    }
}

/// What a right is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// In any case.
    Base,
    /// To drain.
    Drains,
    /// To take part in an election.
    Election,
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

    fn rights(drains: bool) -> Rights {
        Rights { server: "server".to_owned(), election: None, drains }
    }

    #[tokio::test]
    async fn rights_of_drains_are_asked_for_where_there_are_drains_only() {
        let api = lacking("poddisruptionbudgets");
        assert!(rights(false).check(&api).await.is_ok());
        let error = rights(true).check(&api).await.unwrap_err().to_string();
        assert!(error.contains("missing permission: list poddisruptionbudgets.policy;"), "{error}");
        assert!(error.contains("components/drain"), "{error}");
        assert!(rights(true).check(&lacking("")).await.is_ok());
    }

    #[tokio::test]
    async fn rights_to_the_lease_are_asked_for_where_there_is_an_election_only() {
        let api = lacking("leases");
        assert!(rights(true).check(&api).await.is_ok());
        let elects = Rights { election: Some("here".to_owned()), ..rights(false) };
        let error = elects.check(&api).await.unwrap_err().to_string();
        let missing = ["create", "get", "update"].map(|verb| format!("{verb} leases"));
        assert!(missing.iter().all(|right| error.contains(right)), "{error}");
        assert!(error.contains("in namespace here;"), "{error}");
    }

    #[tokio::test]
    async fn what_is_missing_in_any_case_is_named_alone() {
        let all = Rights { election: Some("here".to_owned()), ..rights(true) };
        let error = all.check(&lacking("nodes")).await.unwrap_err();
        // The right to the status of nodes is one that drains need.
        let PreflightError::Missing(missing) = error else { panic!("{error}") };
        assert_eq!(missing, "list nodes, watch nodes, get nodes, patch nodes");
    }
}
