//! Whether writes may be sent: always, or for as long as a lease is held.
//!
//! It is asked at the moment of writing, not when the work was taken up. What it grants is bounded
//! on both sides: a write may begin until the renew deadline, and must have its answer before the
//! lease can be taken by another. Both are counted from when the last renewal was *sent*, which is
//! before the API server stored it and so before anybody else saw it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::clock::system_time;

/// The right to write. Clones share it.
#[derive(Clone, Debug)]
pub struct WriteGate {
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Open,
    Shut,
    Leased(Lease),
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    sent: Instant,
    /// The same by the wall clock, which goes on while a machine sleeps.
    sent_wall: Timestamp,
    begin_within: Duration,
    end_within: Duration,
}

impl WriteGate {
    /// Open for good: nobody else writes.
    pub fn open() -> Self {
        Self { state: Arc::new(Mutex::new(State::Open)) }
    }

    /// Shut, until [`WriteGate::grant`].
    pub fn shut() -> Self {
        Self { state: Arc::new(Mutex::new(State::Shut)) }
    }

    /// Opens it after a renewal of the lease that was sent at `sent`. Writes may begin until
    /// `begin_within` after that, and end until `end_within` after that.
    pub fn grant(&self, sent: Instant, begin_within: Duration, end_within: Duration) {
        let ago = jiff::SignedDuration::try_from(sent.elapsed()).unwrap_or_default();
        let sent_wall = system_time().saturating_sub(ago).unwrap_or(Timestamp::MIN);
        *self.state.lock() = State::Leased(Lease { sent, sent_wall, begin_within, end_within });
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
        let by_wall = Duration::try_from(system_time().duration_since(lease.sent_wall));
        let elapsed = lease.sent.elapsed().max(by_wall.unwrap_or_default());
        (elapsed < lease.begin_within).then(|| lease.end_within.saturating_sub(elapsed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: Duration = Duration::from_secs(10);
    const END: Duration = Duration::from_secs(15);

    #[tokio::test(start_paused = true)]
    async fn a_write_begins_before_the_renew_deadline_and_ends_before_the_lease_does() {
        let gate = WriteGate::shut();
        assert_eq!(gate.left(), None);
        let sent = Instant::now();
        tokio::time::advance(Duration::from_secs(3)).await;
        gate.grant(sent, BEGIN, END);
        let left = gate.left().unwrap();
        assert!(left <= Duration::from_secs(12), "counted from when it was sent: {left:?}");
        tokio::time::advance(Duration::from_millis(6_900)).await;
        assert!(gate.left().unwrap() <= Duration::from_millis(5_100));
        tokio::time::advance(Duration::from_millis(100)).await;
        assert_eq!(gate.left(), None);
        gate.grant(Instant::now(), BEGIN, END);
        assert!(gate.left().is_some());
        gate.clone().close();
        assert_eq!(gate.left(), None);
    }

    #[test]
    fn an_open_gate_sets_no_bound() {
        assert_eq!(WriteGate::open().left(), Some(Duration::MAX));
    }
}
