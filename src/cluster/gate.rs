//! Whether writes may be sent: always, or for as long as a lease is held.
//!
//! It is asked at the moment of writing, not when the work was taken up. What it grants is bounded
//! on both sides: a write may begin until the renew deadline, and must have its answer before the
//! lease can be taken by another. Both are counted from when the last renewal was *sent*, which is
//! before the API server stored it and so before anybody else saw it.
//!
//! They are counted by two clocks, and the one that has gone further counts, since the monotonic clock
//! stands still while the machine sleeps. A wall clock that is set tells no time: the gate is shut until
//! the next renewal.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The right to write. Clones share it.
#[derive(Clone)]
pub struct WriteGate {
    state: Arc<Mutex<State>>,
    wall: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

/// When a renewal was sent, by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// By the monotonic clock.
    pub at: Instant,
    wall: Timestamp,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Open,
    Shut,
    Leased(Lease),
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    sent: Sent,
    begin_within: Duration,
    end_within: Duration,
}

impl WriteGate {
    /// Open for good: nobody else writes.
    pub fn open() -> Self {
        Self { state: Arc::new(Mutex::new(State::Open)), wall: Arc::new(|| Timestamp::MIN) }
    }

    /// Shut, until [`WriteGate::grant`]. `wall` is the system's wall clock.
    pub fn shut(wall: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self { state: Arc::new(Mutex::new(State::Shut)), wall: Arc::new(wall) }
    }

    /// Now, for a renewal that is about to be sent.
    pub fn sending(&self) -> Sent {
        Sent { at: Instant::now(), wall: (self.wall)() }
    }

    /// Opens it after a renewal of the lease. Writes may begin until `begin_within` after that was
    /// sent, and end until `end_within` after that.
    pub fn grant(&self, sent: Sent, begin_within: Duration, end_within: Duration) {
        *self.state.lock() = State::Leased(Lease { sent, begin_within, end_within });
    }

    /// Shuts it.
    pub fn close(&self) {
        *self.state.lock() = State::Shut;
    }

    /// For how long a write may take that begins now; `None` if none may begin. An open gate sets
    /// no bound.
    pub fn left(&self) -> Option<Duration> {
        let lease = match *self.state.lock() {
            State::Open => return Some(Duration::MAX),
            State::Shut => return None,
            State::Leased(lease) => lease,
        };
        let by_wall = Duration::try_from((self.wall)().duration_since(lease.sent.wall)).ok()?;
        let elapsed = lease.sent.at.elapsed().max(by_wall);
        (elapsed < lease.begin_within).then(|| lease.end_within.saturating_sub(elapsed))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;
    use crate::model::build::at;

    const BEGIN: Duration = Duration::from_secs(10);
    const END: Duration = Duration::from_secs(15);

    /// A gate on a machine whose wall clock shows so many seconds after noon.
    fn gate() -> (WriteGate, Arc<AtomicI64>) {
        let seconds = Arc::new(AtomicI64::new(0));
        let shown = Arc::clone(&seconds);
        (WriteGate::shut(move || at(shown.load(Ordering::Relaxed))), seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_begins_before_the_renew_deadline_and_ends_before_the_lease_does() {
        let (gate, _) = gate();
        assert_eq!(gate.left(), None);
        let sent = gate.sending();
        tokio::time::advance(Duration::from_secs(3)).await;
        gate.grant(sent, BEGIN, END);
        assert_eq!(gate.left(), Some(Duration::from_secs(12)), "counted from when it was sent");
        tokio::time::advance(Duration::from_millis(6_900)).await;
        assert_eq!(gate.left(), Some(Duration::from_millis(5_100)));
        tokio::time::advance(Duration::from_millis(100)).await;
        assert_eq!(gate.left(), None);
        gate.grant(gate.sending(), BEGIN, END);
        assert!(gate.left().is_some());
        gate.clone().close();
        assert_eq!(gate.left(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_sleep_nothing_is_written_before_the_next_renewal() {
        let (gate, wall) = gate();
        gate.grant(gate.sending(), BEGIN, END);
        wall.store(3600, Ordering::Relaxed);
        assert_eq!(gate.left(), None);
        gate.grant(gate.sending(), BEGIN, END);
        assert_eq!(gate.left(), Some(END));
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_between_a_renewal_and_its_answer_counts() {
        let (gate, wall) = gate();
        let sent = gate.sending();
        wall.store(3600, Ordering::Relaxed);
        gate.grant(sent, BEGIN, END);
        assert_eq!(gate.left(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_wall_clock_was_set_back_nothing_is_written_before_the_next_renewal() {
        let (gate, wall) = gate();
        gate.grant(gate.sending(), BEGIN, END);
        wall.store(-3600, Ordering::Relaxed);
        assert_eq!(gate.left(), None);
        gate.grant(gate.sending(), BEGIN, END);
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(gate.left(), Some(Duration::from_secs(11)));
    }

    #[test]
    fn an_open_gate_sets_no_bound() {
        assert_eq!(WriteGate::open().left(), Some(Duration::MAX));
    }
}
