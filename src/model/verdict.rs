//! The decision about a pod, with its reason.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::{Deadline, Stamp, Taint};

/// What happens to a pod because of its node's taints.
///
/// It contains the reason: the evictor acts on this value, and logs and events print it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The pod stays.
    Keep(Kept),
    /// The pod is evicted at once.
    EvictNow(Cause),
    /// The pod is evicted when its `tolerationSeconds` are over.
    EvictAt {
        /// When. If it is in the past, the eviction is overdue.
        deadline: Deadline,
        /// Why.
        cause: Cause,
    },
}

/// Why a pod stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Its node has no NoExecute taint.
    NoTaints,
    /// It tolerates all of them forever.
    Tolerated,
    /// A rule ignores each of them that it does not tolerate forever.
    Ignored,
    /// It is a mirror pod.
    Mirror,
    /// It has finished.
    Finished,
    /// It is terminating.
    Terminating,
    /// It no longer exists.
    PodGone,
    /// Its node no longer exists: the pod garbage collector deletes its pods.
    NodeGone,
}

/// The taint that decides, how it is tolerated, and what its rule says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The taint.
    pub taint: Taint,
    /// The toleration that matches it, or `None` if none does.
    pub tolerance: Option<Tolerance>,
    /// The name of the rule for the taint, if there is one.
    pub rule: Option<Arc<str>>,
    /// Whether the pod's disruption budgets are respected.
    pub budgets: Budgets,
}

/// Whether the disruption budgets of a pod are respected when it is evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Budgets {
    /// They are not asked: the pod is deleted.
    #[default]
    NotAsked,
    /// They were respected for so long after the deadline. Now the pod is deleted.
    RespectedFor(Duration),
    /// They are respected: the pod is evicted by the Eviction API.
    Respected {
        /// The verdict by which the pod is deleted, which is due later. `None`: it is never deleted.
        until: Option<Box<Verdict>>,
    },
}

/// A toleration that matches for a limited time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tolerance {
    /// Its index in the pod's `spec.tolerations`.
    pub index: usize,
    /// Its `tolerationSeconds`.
    pub seconds: i64,
    /// The time from which the seconds count; `None` if there are none (0 or less).
    pub anchor: Option<Anchor>,
}

/// The time from which `tolerationSeconds` count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// The time.
    pub at: Stamp,
    /// Where it comes from.
    pub source: AnchorSource,
}

/// Where an anchor comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnchorSource {
    /// The taint's own `timeAdded`.
    TimeAdded,
    /// The first sight of a taint without `timeAdded`.
    FirstSeen,
    /// The start of the node's unbroken outage.
    Outage,
    /// The pod was bound to the node after the taint was added.
    Bound,
    /// The time of the decision (`--compat upstream` only).
    Observed,
}

impl Cause {
    /// A cause without a rule: the pod is deleted.
    pub fn new(taint: Taint, tolerance: Option<Tolerance>) -> Self {
        Self { taint, tolerance, rule: None, budgets: Budgets::NotAsked }
    }
}

impl Verdict {
    /// Why the pod is evicted; `None` if it stays.
    pub fn cause(&self) -> Option<&Cause> {
        match self {
            Self::Keep(_) => None,
            Self::EvictNow(cause) | Self::EvictAt { cause, .. } => Some(cause),
        }
    }

    /// The verdict by which the pod is deleted although this one respects its budgets; `None` if there is
    /// none.
    pub fn deletion(&self) -> Option<&Self> {
        match &self.cause()?.budgets {
            Budgets::Respected { until } => until.as_deref(),
            Budgets::NotAsked | Budgets::RespectedFor(_) => None,
        }
    }

    /// What counts at `now`: this verdict, or the deletion that follows it, once that is due.
    pub fn at(&self, now: Timestamp) -> &Self {
        self.deletion().filter(|deletion| deletion.is_due(now)).unwrap_or(self)
    }

    /// Whether the pod is evicted by the Eviction API, which asks its disruption budgets.
    pub fn respects_budgets(&self) -> bool {
        self.cause().is_some_and(|cause| matches!(cause.budgets, Budgets::Respected { .. }))
    }

    /// Whether the pod is due at `now`.
    pub fn is_due(&self, now: Timestamp) -> bool {
        match self {
            Self::Keep(_) => false,
            Self::EvictNow(_) => true,
            Self::EvictAt { deadline, .. } => deadline.is_due(now),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep(kept) => write!(f, "keep: {kept}"),
            Self::EvictNow(cause) => write!(f, "evict now: {cause}"),
            Self::EvictAt { deadline, cause } => write!(f, "evict at {deadline}: {cause}"),
        }
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoTaints => "its node has no NoExecute taint",
            Self::Tolerated => "it tolerates every NoExecute taint forever",
            Self::Ignored => {
                "a rule ignores each NoExecute taint that it does not tolerate forever"
            }
            Self::Mirror => "it is a mirror pod, which only the kubelet can stop",
            Self::Finished => "it has finished",
            Self::Terminating => "it is already terminating",
            Self::PodGone => "it no longer exists",
            Self::NodeGone => "its node no longer exists",
        })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let taint = &self.taint;
        match &self.tolerance {
            None => write!(f, "taint {taint} is not tolerated")?,
            Some(Tolerance { index, seconds, anchor }) => {
                write!(f, "taint {taint} is tolerated for {seconds} s by toleration {index}")?;
                if let Some(anchor) = anchor {
                    write!(f, ", counted from {anchor}")?;
                }
            }
        }
        if let Some(rule) = &self.rule {
            write!(f, "; rule {rule}")?;
        }
        self.budgets.fmt(f)
    }
}

/// What is said after the cause; nothing if budgets are not asked.
impl fmt::Display for Budgets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAsked => Ok(()),
            Self::RespectedFor(time) => {
                write!(f, "; disruption budgets were respected for {time:?}")
            }
            Self::Respected { until: None } => f.write_str("; disruption budgets are respected"),
            Self::Respected { until: Some(deletion) } => match &**deletion {
                Verdict::EvictAt { deadline, .. } => {
                    write!(f, "; disruption budgets are respected until {deadline}")
                }
                // Nothing is respected until a time that is over.
                Verdict::EvictNow(_) | Verdict::Keep(_) => Ok(()),
            },
        }
    }
}

impl fmt::Display for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match self.source {
            AnchorSource::TimeAdded => "the taint's timeAdded",
            AnchorSource::FirstSeen => "the first sight of the taint",
            AnchorSource::Outage => "the start of the outage",
            AnchorSource::Bound => "the pod's binding",
            AnchorSource::Observed => "the decision",
        };
        write!(f, "{source} at {}", self.at)
    }
}
