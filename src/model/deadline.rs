//! The moment at which a pod's toleration is over.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

/// A point in wall-clock time, of the cluster's clock, before which a pod is not removed.
///
/// Ordered by time: the smaller deadline comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline(pub Timestamp);

impl Deadline {
    /// `anchor` plus `seconds`.
    ///
    /// Saturates at the last representable moment (the end of the year 9999) instead of wrapping,
    /// as upstream does from 9,223,372,037 s on: a deadline that far away never comes.
    pub fn after(anchor: Timestamp, seconds: i64) -> Self {
        let later = anchor.saturating_add(SignedDuration::from_secs(seconds));
        Self(later.unwrap_or(Timestamp::MAX))
    }

    /// Whether the deadline has come at `now`.
    pub fn is_due(self, now: Timestamp) -> bool {
        self.0 <= now
    }
}

impl fmt::Display for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
