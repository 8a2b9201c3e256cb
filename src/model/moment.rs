//! Times from the API, which have whole seconds and may be wrong, and saturating arithmetic.

use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// A stored time, such as a taint's `timeAdded`.
///
/// The API truncates times to whole seconds: 12:00:00.9 is stored as 12:00:00. So a stamp counts as the
/// end of its second: nothing happens early, and nothing more than a second late. Times that this program
/// observed itself are exact.
///
/// [`latest`](Self::latest) and [`plus`](Self::plus) apply this rule, so that a stamp is never compared or
/// added to without it; [`written`](Self::written) is for texts. It contains the time that it counts as,
/// which is stored and read again without rounding twice. Stamps are ordered by that time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(Timestamp);

/// The last nanosecond of a second.
const END: i32 = 999_999_999;

impl Stamp {
    /// A stamp from the API: the second in which something happened.
    pub fn of_second(written: Timestamp) -> Self {
        let end = SignedDuration::from_nanos(i64::from(END - written.subsec_nanosecond()));
        Self(written.saturating_add(end).unwrap_or(Timestamp::MAX))
    }

    /// An exact time.
    pub const fn exact(moment: Timestamp) -> Self {
        Self(moment)
    }

    /// The latest time at which it can have happened, which is what it counts as.
    pub const fn latest(self) -> Timestamp {
        self.0
    }

    /// What is written down.
    pub fn written(self) -> Timestamp {
        if self.is_of_second() { second_of(self.0) } else { self.0 }
    }

    /// Whether it is the second in which something happened, and not the very moment.
    pub fn is_of_second(self) -> bool {
        self.0.subsec_nanosecond() == END
    }

    /// The time at which this duration has certainly passed since the stamp. A zero duration has passed
    /// immediately.
    pub fn plus(self, time: Duration) -> Timestamp {
        if time.is_zero() { self.written() } else { later(self.0, time) }
    }

    /// The stamp as read at `now`. One that is more than a day in the future counts as `before`, the
    /// previously read value, otherwise as now: its author may want something to last forever. One that is
    /// less far ahead is kept, because the reader's clock may be wrong, and a replaced value would be too
    /// early once the clock is corrected.
    #[must_use]
    pub fn seen_at(self, now: Timestamp, before: Option<Self>) -> Self {
        let newest = later(now, Duration::from_hours(24));
        let is_plausible = |stamp: &Self| stamp.written() <= newest;
        if is_plausible(&self) { self } else { before.filter(is_plausible).unwrap_or(Self(now)) }
    }
}

/// What is written down.
impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.written().fmt(f)
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Adds, saturating at `Timestamp::MAX`.
pub fn later(moment: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    moment.saturating_add(by).unwrap_or(Timestamp::MAX)
}

/// Truncates a time to its second, as the API does. See [`Stamp`].
pub fn second_of(moment: Timestamp) -> Timestamp {
    Timestamp::from_second(moment.as_second()).unwrap_or(moment)
}

/// Rounds a time up to a whole second, for storing the earliest time at which something may happen.
pub fn second_from(moment: Timestamp) -> Timestamp {
    second_of(later(moment, Duration::from_nanos(999_999_999)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        format!("2026-01-01T{text}Z").parse().unwrap()
    }

    #[test]
    fn a_stamp_of_whole_seconds_counts_as_the_end_of_its_second_and_an_exact_one_as_it_stands() {
        let stored = Stamp::of_second(at("12:00:00"));
        assert_eq!(stored.latest(), at("12:00:00.999999999"));
        assert_eq!(stored.written(), at("12:00:00"));
        assert_eq!(stored.to_string(), "2026-01-01T12:00:00Z");
        for exact in ["12:00:00", "12:00:00.001"].map(at) {
            assert_eq!(Stamp::exact(exact).latest(), exact);
            assert_eq!(Stamp::exact(exact).written(), exact);
        }
        for end in [Timestamp::MIN, Timestamp::MAX] {
            assert!(Stamp::of_second(end).latest() >= end);
        }
    }

    #[test]
    fn a_stamp_that_is_stored_by_what_it_counts_as_is_the_same_when_it_is_read() {
        let stored = Stamp::of_second(at("12:00:00"));
        let text = stored.latest().to_string();
        assert_eq!(Stamp::exact(text.parse().unwrap()), stored);
        assert_eq!(Stamp::of_second(stored.latest()), stored, "it is not rounded twice");
    }

    #[test]
    fn no_age_is_reached_a_millisecond_early_whenever_in_its_second_a_thing_happened() {
        let age = Duration::from_secs(6);
        for millisecond in [0, 1, 99, 500, 850, 999] {
            let happened = later(at("12:00:00"), Duration::from_millis(millisecond));
            let stored = Stamp::of_second(second_of(happened));
            let late = stored.plus(age).duration_since(later(happened, age));
            assert!(!late.is_negative() && late <= SignedDuration::from_secs(1), "{late}");
        }
    }

    #[test]
    fn no_time_at_all_has_passed_at_once() {
        assert_eq!(Stamp::of_second(at("12:00:00")).plus(Duration::ZERO), at("12:00:00"));
        assert_eq!(Stamp::exact(Timestamp::MAX).plus(Duration::MAX), Timestamp::MAX);
    }

    #[test]
    fn a_stamp_from_the_far_future_counts_from_the_first_sight_and_no_other_is_changed() {
        let now = at("12:00:00.5");
        let known = Some(Stamp::of_second(at("10:00:00")));
        for past in ["11:00:00", "12:00:00", "13:00:00"].map(|text| Stamp::of_second(at(text))) {
            assert_eq!(past.seen_at(now, known), past);
        }
        let future = Stamp::of_second("2099-01-01T00:00:00Z".parse().unwrap());
        let first = future.seen_at(now, None);
        assert_eq!(first, Stamp::exact(now));
        assert_eq!(future.seen_at(at("12:10:00"), Some(first)), first);
        let anew = Stamp::exact(at("12:10:00"));
        assert_eq!(future.seen_at(at("12:10:00"), Some(future)), anew);
    }

    #[test]
    fn a_moment_that_is_waited_for_is_stored_as_the_next_second() {
        assert_eq!(second_from(at("12:00:00")), at("12:00:00"));
        assert_eq!(second_from(at("12:00:00.001")), at("12:00:01"));
    }
}
