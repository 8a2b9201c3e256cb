//! An eviction: which pod, why, and what is asked of the API server.

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
    /// Why it goes.
    pub cause: Cause,
    /// When it came due. It was decided before.
    pub due: Instant,
}

/// Why a pod goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The taints of its node, by this verdict.
    Taint(Verdict),
    /// Its node is drained.
    Drain(Arc<DrainEviction>),
}

/// What kind of cause it is. A pod may go for one of each, and neither hides the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CauseKind {
    /// The taints of its node.
    Taint,
    /// The drain of its node.
    Drain,
}

/// What tells an eviction from all others: its pod and the kind of its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The pod.
    pub uid: Uid,
    /// Why it goes.
    pub kind: CauseKind,
}

/// What one drain asks for some of its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainEviction {
    /// The policy by which the node is drained.
    pub policy: Arc<str>,
    /// The drain: a node that is drained again has another.
    pub session: Arc<str>,
    /// Grace in seconds instead of the pod's own.
    pub grace: Option<i64>,
    /// When the drain is over.
    pub deadline: Timestamp,
    /// Delete the pod whatever its budgets say: the last resort.
    pub delete: bool,
}

/// What is asked of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Write the condition `DisruptionTarget`, then delete the pod.
    Delete,
    /// Evict it by the Eviction API, which asks its disruption budgets and writes the condition.
    Evict {
        /// Grace in seconds instead of the pod's own.
        grace: Option<i64>,
    },
    /// Delete it, whatever its budgets say.
    DeleteWithin {
        /// Grace in seconds instead of the pod's own.
        grace: Option<i64>,
    },
}

impl Eviction {
    /// What tells it from all others.
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

    /// What is asked of the API server.
    pub fn method(&self) -> Method {
        match self {
            Self::Taint(_) => Method::Delete,
            Self::Drain(drain) if drain.delete => Method::DeleteWithin { grace: drain.grace },
            Self::Drain(drain) => Method::Evict { grace: drain.grace },
        }
    }
}

impl Method {
    /// Its result as a metric label.
    pub(super) fn result(self) -> &'static str {
        match self {
            Self::Delete | Self::DeleteWithin { .. } => "deleted",
            Self::Evict { .. } => "evicted",
        }
    }

    /// Whether the pod's disruption budgets are asked.
    pub(super) fn asks_budgets(self) -> bool {
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
