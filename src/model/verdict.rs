//! The decision about a pod, with its reason.

use std::fmt;

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

/// The taint that decides, and how it is tolerated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The taint.
    pub taint: Taint,
    /// The toleration that matches it, or `None` if none does.
    pub tolerance: Option<Tolerance>,
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

impl Verdict {
    /// Why the pod is evicted; `None` if it stays.
    pub fn cause(&self) -> Option<&Cause> {
        match self {
            Self::Keep(_) => None,
            Self::EvictNow(cause) | Self::EvictAt { cause, .. } => Some(cause),
        }
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
            None => write!(f, "taint {taint} is not tolerated"),
            Some(Tolerance { index, seconds, anchor }) => {
                write!(f, "taint {taint} is tolerated for {seconds} s by toleration {index}")?;
                match anchor {
                    Some(anchor) => write!(f, ", counted from {anchor}"),
                    None => Ok(()),
                }
            }
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
