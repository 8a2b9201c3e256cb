//! Looks before the start whether the cluster answers and all rights are there.

use crate::cluster::{Api, Permission, RequestError};

/// Every right that a run needs. `deploy/` grants these and no others.
pub(super) const NEEDED: [Permission; 10] = [
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

const fn needed(
    verb: &'static str,
    resource: &'static str,
    subresource: &'static str,
) -> Permission {
    Permission { verb, resource, subresource }
}

/// The cluster cannot be worked with.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// It does not answer.
    #[error("cannot reach the API server: {0}; check its address and the network")]
    Unreachable(RequestError),
    /// It does not take the credentials.
    #[error("the API server does not accept the credentials ({0}); check the kubeconfig's user")]
    Unauthorized(RequestError),
    /// It answers, but not as an API server does.
    #[error("cannot ask the API server for permissions: {0}")]
    Refused(RequestError),
    /// Rights are missing.
    #[error("missing permission: {0}; apply the ClusterRole in deploy/kustomize/base")]
    Missing(String),
}

/// Asks the API server for every right that is needed.
pub(super) async fn check(api: &Api) -> Result<(), PreflightError> {
    let mut missing = Vec::new();
    for permission in NEEDED {
        match api.is_allowed(permission).await {
            Ok(true) => {}
            Ok(false) => missing.push(permission.to_string()),
            Err(error) => {
                return Err(match &error {
                    RequestError::Status(answer) if answer.code == 401 => {
                        PreflightError::Unauthorized(error)
                    }
                    RequestError::Status(_) => PreflightError::Refused(error),
                    _ => PreflightError::Unreachable(error),
                });
            }
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(PreflightError::Missing(missing.join(", "))) }
}
