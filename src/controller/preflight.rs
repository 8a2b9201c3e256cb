//! Looks before the start whether the cluster answers and all rights are there.

use futures::{StreamExt, stream};

use crate::cluster::{Api, Permission, RequestError};

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
    Permission { verb, resource, subresource }
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
}

/// Asks the API server for every right that is needed.
pub(super) async fn check(api: &Api, server: &str) -> Result<(), PreflightError> {
    let mut missing = Vec::new();
    let asked = permissions()
        .iter()
        .map(|&permission| async move { (permission, api.is_allowed(permission).await) });
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
                    RequestError::Status(_) | RequestError::Body(_) => {
                        PreflightError::Refused { server, cause }
                    }
                    RequestError::Timeout(_) | RequestError::Transport(_) => {
                        PreflightError::Unreachable { server, cause }
                    }
                });
            }
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(PreflightError::Missing(missing.join(", "))) }
}
