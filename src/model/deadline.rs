//! The time at which a pod's toleration ends.

use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::Stamp;

/// A wall-clock time before which a pod is not evicted.
///
/// Ordered by time: the smaller deadline comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline(pub Timestamp);

impl Deadline {
    /// `anchor` plus `seconds`, never early despite truncated stamps.
    ///
    /// Saturates at the last representable moment (the end of the year 9999) instead of wrapping,
    /// as upstream does from 9,223,372,037 s on: a deadline that far away never comes.
    pub fn after(anchor: Stamp, seconds: i64) -> Self {
        Self::exactly(anchor.latest(), seconds)
    }

    /// The exact time `from` plus `seconds`.
    pub fn exactly(from: Timestamp, seconds: i64) -> Self {
        let later = from.saturating_add(SignedDuration::from_secs(seconds));
        Self(later.unwrap_or(Timestamp::MAX))
    }

    /// So much later. Saturates like [`after`](Self::after).
    pub fn plus(self, time: Duration) -> Self {
        let time = SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
        Self(self.0.saturating_add(time).unwrap_or(Timestamp::MAX))
    }

    /// Whether the deadline has come at `now`.
    pub fn is_due(self, now: Timestamp) -> bool {
        self.0 <= now
    }
}

impl fmt::Display for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A deadline that is counted from a second's end is shown as the second that follows.
        let shown = self.0.saturating_add(SignedDuration::from_nanos(1)).unwrap_or(self.0);
        if shown.subsec_nanosecond() == 0 { shown.fmt(f) } else { self.0.fmt(f) }
    }
}
