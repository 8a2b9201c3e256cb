//! Sums of times that cannot overflow.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// A moment so much later; the last one of all if there is none.
pub fn later(moment: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    moment.saturating_add(by).unwrap_or(Timestamp::MAX)
}

/// The second that a moment is in: the API stores no finer times.
pub fn second_of(moment: Timestamp) -> Timestamp {
    Timestamp::from_second(moment.as_second()).unwrap_or(moment)
}
