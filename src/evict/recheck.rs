//! The second check: whether an eviction is still wanted, right before anything is written.

use std::sync::Arc;

use super::{Cause, Eviction, Method};
use crate::model::{Node, Pod, Verdict};

/// Decides whether an eviction is still wanted.
pub trait Recheck: Send + Sync {
    /// Decides by the view. If the eviction is wanted: the pod, and the cause that counts now, of which
    /// the method follows.
    ///
    /// # Errors
    /// The pod must not be evicted now.
    #[allow(clippy::result_large_err, reason = "a verdict is no rare error")]
    fn by_view(&self, eviction: &Eviction) -> Result<(Arc<Pod>, Cause), Spared>;

    /// Decides by the pod and the node as read from the API server (`None`: there is no such node), whether
    /// the pod may be evicted by this `method`. The response may be older than the view: the newer of
    /// the two counts.
    ///
    /// # Errors
    /// The pod must not be evicted now, or not without asking its budgets.
    #[allow(clippy::result_large_err, reason = "a verdict is no rare error")]
    fn by_server(
        &self,
        eviction: &Eviction,
        method: Method,
        pod: &Pod,
        node: Option<&Node>,
    ) -> Result<(), Spared>;
}

/// Why a pod is not evicted now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spared {
    /// It is already being deleted.
    Going,
    /// Its eviction is no longer wanted. For taints, the verdict says why.
    Unwanted(Option<Verdict>),
    /// It stays according to the API server, which is ahead of the view, or its budgets must be asked after
    /// all. The view will catch up.
    Unconfirmed(Verdict),
}
