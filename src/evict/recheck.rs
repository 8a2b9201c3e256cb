//! The second look: whether an eviction is still wanted, right before anything is written.

use std::sync::Arc;

use super::{Cause, Eviction};
use crate::model::{Node, Pod, Verdict};

/// Who decides whether an eviction is still wanted.
pub trait Recheck: Send + Sync {
    /// By the newest facts at hand. If it is wanted: the pod, and the cause as it is by now.
    ///
    /// # Errors
    /// It is not to go now.
    fn by_view(&self, eviction: &Eviction) -> Result<(Arc<Pod>, Cause), Spared>;

    /// By the pod and the node as the API server has answered (`None`: there is no such node).
    /// The answer may be older than the facts at hand: whichever is newer counts.
    ///
    /// # Errors
    /// It is not to go now.
    fn by_server(&self, eviction: &Eviction, pod: &Pod, node: Option<&Node>) -> Result<(), Spared>;
}

/// Why a pod is not evicted now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spared {
    /// It is being deleted already.
    Going,
    /// Nobody wants it gone any more; a verdict says why, where taints were the cause.
    Unwanted(Option<Verdict>),
    /// The API server knows more than the view, and by that it stays. The view will catch up.
    Unconfirmed(Verdict),
}
