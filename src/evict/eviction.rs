//! An eviction: which pod, why, and by which request.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::model::{PodRef, Uid, Verdict};

/// An eviction that is due.
#[derive(Clone, Debug)]
pub struct Eviction {
    /// The pod.
    pub pod: PodRef,
    /// Why it is evicted.
    pub cause: Cause,
    /// When it became due. The decision is older.
    pub due: Instant,
}

/// Why a pod is evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The taints of its node, according to this verdict. The verdict also tells whether budgets are
    /// respected, and until when.
    Taint(Verdict),
    /// A drain of its node.
    Drain(Arc<DrainEviction>),
}

/// The kind of a cause. A pod may have one eviction of each kind, and neither hides the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CauseKind {
    /// The taints of its node.
    Taint,
    /// The drain of its node.
    Drain,
}

/// Identifies an eviction: the pod and the kind of the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The pod.
    pub uid: Uid,
    /// The kind of the cause.
    pub kind: CauseKind,
}

/// An eviction that a drain requests. Several pods share one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainEviction {
    /// The drain policy.
    pub policy: Arc<str>,
    /// The drain session: a cordon of the node and all drains under it.
    pub session: Arc<str>,
    /// Grace in seconds instead of the pod's own.
    pub grace: Option<i64>,
    /// The deadline of the drain.
    pub deadline: Timestamp,
    /// Delete the pod without asking its budgets, as a last resort.
    pub delete: bool,
}

/// Which requests evict the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Write the condition `DisruptionTarget`, then delete the pod.
    Delete,
    /// Use the Eviction API, which asks the pod's disruption budgets and writes the condition.
    Evict {
        /// Grace in seconds instead of the pod's own.
        grace: Option<i64>,
    },
    /// Delete it without asking its budgets.
    DeleteWithin {
        /// Grace in seconds instead of the pod's own.
        grace: Option<i64>,
    },
}

impl Eviction {
    /// Its key in queues and in the backlog.
    pub fn key(&self) -> Key {
        Key { uid: self.pod.uid, kind: self.cause.kind() }
    }
}

impl Cause {
    /// Its kind.
    pub fn kind(&self) -> CauseKind {
        match self {
            Self::Taint(_) => CauseKind::Taint,
            Self::Drain(_) => CauseKind::Drain,
        }
    }

    /// The cause that counts at `now`: a taint's pod may be deleted from some time on.
    pub fn at(&self, now: Timestamp) -> Self {
        match self {
            Self::Taint(verdict) => Self::Taint(verdict.at(now).clone()),
            Self::Drain(_) => self.clone(),
        }
    }

    /// Which requests evict the pod.
    pub fn method(&self) -> Method {
        match self {
            Self::Taint(verdict) if verdict.respects_budgets() => Method::Evict { grace: None },
            Self::Taint(_) => Method::Delete,
            Self::Drain(drain) if drain.delete => Method::DeleteWithin { grace: drain.grace },
            Self::Drain(drain) => Method::Evict { grace: drain.grace },
        }
    }
}

impl Method {
    /// The result of a success, as a metric label.
    pub(super) fn result(self) -> &'static str {
        match self {
            Self::Delete | Self::DeleteWithin { .. } => "deleted",
            Self::Evict { .. } => "evicted",
        }
    }

    /// Whether the API server asks the pod's disruption budgets.
    pub fn asks_budgets(self) -> bool {
        matches!(self, Self::Evict { .. })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taint(verdict) => verdict.fmt(f),
            Self::Drain(drain) => write!(f, "its node is drained by policy {}", drain.policy),
        }
    }
}
