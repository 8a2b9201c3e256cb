//! The only source of time.
//!
//! Deadlines are wall-clock times, because the API stores those; timers use the monotonic clock. Only
//! [`Clock`] converts between the two. It reads the system's wall clock once and then follows the
//! monotonic clock, so that a step of the wall clock (an administrator, NTP, a resumed machine) does
//! not move a deadline by itself. The controller decides whether a step counts, and applies it with
//! [`Clock::set`].
//!
//! It follows `tokio::time::pause`, so tests control the time.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::RwLock;
use tokio::time::Instant;

use crate::model::later;

/// Timers are cut into pieces of at most this length; whoever handles one looks at the deadline
/// again. tokio's `DelayQueue` panics beyond about 2.18 years.
const FURTHEST: Duration = Duration::from_hours(24);

/// A clock that shows the cluster's time and never jumps by itself. Clones share it.
#[derive(Clone, Debug)]
pub struct Clock {
    base: Arc<RwLock<Base>>,
}

/// A wall-clock time and the monotonic time at which it was.
#[derive(Clone, Copy, Debug)]
struct Base {
    wall: Timestamp,
    monotonic: Instant,
}

impl Clock {
    /// A clock that shows the system's time.
    pub fn system() -> Self {
        Self::starting_at(system_time())
    }

    /// A clock that shows `wall` now.
    pub fn starting_at(wall: Timestamp) -> Self {
        let base = Base { wall, monotonic: Instant::now() };
        Self { base: Arc::new(RwLock::new(base)) }
    }

    /// The time of the cluster.
    pub fn now(&self) -> Timestamp {
        let base = *self.base.read();
        later(base.wall, base.monotonic.elapsed())
    }

    /// The monotonic time at which this clock will show `moment`, but at the most a day from now,
    /// and not before now.
    pub fn instant_of(&self, moment: Timestamp) -> Instant {
        let left = moment.duration_since(self.now());
        let left = Duration::try_from(left).unwrap_or(Duration::ZERO);
        Instant::now() + left.min(FURTHEST)
    }

    /// Makes the clock show `wall` from now on. Whoever calls this re-arms all timers.
    pub fn set(&self, wall: Timestamp) {
        *self.base.write() = Base { wall, monotonic: Instant::now() };
    }
}

/// The system's wall clock, which may step at any time. For [`Clock`] and for who watches over it.
#[allow(clippy::disallowed_methods)]
pub fn system_time() -> Timestamp {
    Timestamp::now()
}

/// A moment as the API stores it: whole seconds, UTC.
pub fn whole_seconds(moment: Timestamp) -> String {
    format!("{moment:.0}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noon() -> Timestamp {
        "2026-01-01T12:00:00Z".parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn it_goes_on_with_the_monotonic_clock() {
        let clock = Clock::starting_at(noon());
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(clock.now(), "2026-01-01T12:01:30Z".parse().unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_moment_in_the_future_is_that_far_away() {
        let clock = Clock::starting_at(noon());
        let due = clock.instant_of("2026-01-01T12:05:00Z".parse().unwrap());
        assert_eq!(due - Instant::now(), Duration::from_secs(300));
    }

    #[tokio::test(start_paused = true)]
    async fn a_moment_in_the_past_is_now_and_the_end_of_time_is_a_day_away() {
        let clock = Clock::starting_at(noon());
        assert_eq!(clock.instant_of(Timestamp::MIN), Instant::now());
        assert_eq!(clock.instant_of(Timestamp::MAX) - Instant::now(), FURTHEST);
    }

    #[tokio::test(start_paused = true)]
    async fn setting_it_moves_what_it_shows() {
        let clock = Clock::starting_at(noon());
        let later = "2026-01-01T14:00:00Z".parse().unwrap();
        clock.clone().set(later);
        assert_eq!(clock.now(), later);
    }

    #[tokio::test(start_paused = true)]
    async fn it_stops_at_the_end_of_time() {
        let clock = Clock::starting_at(Timestamp::MAX);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(clock.now(), Timestamp::MAX);
    }
}
