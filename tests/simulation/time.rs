//! The time of scenarios, which starts at noon.

use jiff::{SignedDuration, Timestamp};

/// When every story begins.
pub(crate) fn noon() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

/// So many seconds after noon.
pub(crate) fn at(seconds: i64) -> Timestamp {
    noon() + SignedDuration::from_secs(seconds)
}
