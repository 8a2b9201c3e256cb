//! The gate for writes: open always, or only while a lease is held, or never in a dry run. Harmful writes
//! can be paused besides.
//!
//! It is checked at the moment of writing, not when the work starts. A write may start until the renew
//! deadline, and must be answered before another replica can take the lease. Both count from when the last
//! renewal was *sent*, which is before anyone else could see it. A renewal extends the time of writes in
//! flight, so a write may take longer than one claim lasts.
//!
//! Two clocks measure the time, and the longer time counts, because the monotonic clock stands still while
//! the machine sleeps. If the wall clock is set, the gate closes until the next renewal.
//!
//! A pause refuses what harms: evictions, cordons. It never refuses what takes harm back or reports.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// The right to write. Clones share it.
#[derive(Clone)]
pub struct WriteGate {
    state: Arc<watch::Sender<State>>,
    wall: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    is_paused: Arc<dyn Fn() -> bool + Send + Sync>,
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
    /// A dry run: for good, whatever happens to a lease. Only events may be created, if they are asked for.
    ReadOnly {
        events: bool,
    },
    /// Writes may begin, and end.
    Leased(Lease),
    /// No write may begin. Those under way may end within the lease.
    Closing(Lease),
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    sent: Sent,
    begin_within: Duration,
    end_within: Duration,
}

impl WriteGate {
    /// Always open: there is no other writer.
    pub fn open() -> Self {
        Self::new(State::Open, || Timestamp::MIN)
    }

    /// Shut, until [`WriteGate::grant`]. `wall` is the system's wall clock.
    pub fn shut(wall: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self::new(State::Shut, wall)
    }

    /// Never open: a dry run only reads. With `events` it may create events, and nothing else.
    pub fn read_only(events: bool) -> Self {
        Self::new(State::ReadOnly { events }, || Timestamp::MIN)
    }

    /// For a dry run, whether it may create events; `None` if this is no dry run.
    pub(super) fn reads_only(&self) -> Option<bool> {
        match *self.state.borrow() {
            State::ReadOnly { events } => Some(events),
            _ => None,
        }
    }

    fn new(state: State, wall: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let is_paused = Arc::new(|| false);
        Self { state: Arc::new(watch::Sender::new(state)), wall: Arc::new(wall), is_paused }
    }

    /// Refuses harmful writes while `is_paused` says so. It is asked at the moment of each.
    #[must_use]
    pub fn pausing(self, is_paused: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { is_paused: Arc::new(is_paused), ..self }
    }

    /// Whether harmful writes are paused now.
    pub fn is_paused(&self) -> bool {
        (self.is_paused)()
    }

    /// Now, for a renewal that is about to be sent.
    pub fn sending(&self) -> Sent {
        Sent { at: Instant::now(), wall: (self.wall)() }
    }

    /// Opens it after a renewal of the lease. Writes may begin until `begin_within` after that was
    /// sent, and end until `end_within` after that.
    pub fn grant(&self, sent: Sent, begin_within: Duration, end_within: Duration) {
        self.set(State::Leased(Lease { sent, begin_within, end_within }));
    }

    /// Lets no write begin. Those under way have the time that the last grant gave them.
    pub fn close(&self) {
        self.state.send_modify(|state| match *state {
            State::Open => *state = State::Shut,
            State::Leased(lease) => *state = State::Closing(lease),
            State::Shut | State::Closing(_) | State::ReadOnly { .. } => {}
        });
    }

    fn set(&self, new: State) {
        self.state.send_modify(|state| {
            if !matches!(state, State::ReadOnly { .. }) {
                *state = new;
            }
        });
    }

    /// Lets no write begin, and ends those under way: another may hold the lease already.
    pub fn revoke(&self) {
        self.set(State::Shut);
    }

    /// How long a write may take that begins now, unless the lease is renewed meanwhile; `None` if
    /// none may begin. An open gate sets no bound.
    pub fn left(&self) -> Option<Duration> {
        let lease = match *self.state.borrow() {
            State::Open => return Some(Duration::MAX),
            State::Shut | State::Closing(_) | State::ReadOnly { .. } => return None,
            State::Leased(lease) => lease,
        };
        let elapsed = self.elapsed(lease.sent)?;
        (elapsed < lease.begin_within).then(|| lease.end_within.saturating_sub(elapsed))
    }

    /// Completes when no write may be under way any more: when the time that the last grant gave is
    /// over, and no new one came meanwhile.
    pub async fn ended(&self) {
        let mut state = self.state.subscribe();
        loop {
            let left = match *state.borrow_and_update() {
                State::Open => None,
                State::Shut | State::ReadOnly { .. } => return,
                State::Leased(lease) | State::Closing(lease) => {
                    let elapsed = self.elapsed(lease.sent).unwrap_or(Duration::MAX);
                    Some(lease.end_within.saturating_sub(elapsed))
                }
            };
            let over = async {
                match left {
                    Some(left) => sleep(left).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                changed = state.changed() => if changed.is_err() { return },
                () = over => return,
            }
        }
    }

    /// The time since then by the clock that has gone further; `None` if the wall clock was set back.
    fn elapsed(&self, sent: Sent) -> Option<Duration> {
        let by_wall = Duration::try_from((self.wall)().duration_since(sent.wall)).ok()?;
        Some(sent.at.elapsed().max(by_wall))
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

    /// In how many seconds writes that are under way have to end.
    async fn ends_in(gate: &WriteGate) -> f64 {
        let begin = Instant::now();
        gate.ended().await;
        begin.elapsed().as_secs_f64()
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_under_way_goes_on_for_as_long_as_the_lease_is_renewed() {
        let (gate, _) = gate();
        gate.grant(gate.sending(), BEGIN, END);
        let renewed = gate.clone();
        let ends = tokio::spawn(async move { ends_in(&gate).await });
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_secs(9)).await;
            assert!(!ends.is_finished());
            renewed.grant(renewed.sending(), BEGIN, END);
        }
        assert!((ends.await.unwrap() - 105.0).abs() < 0.1, "a lease after the last renewal");
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_loss_no_write_begins_and_those_under_way_end_with_the_claim() {
        let (gate, _) = gate();
        gate.grant(gate.sending(), BEGIN, END);
        tokio::time::advance(Duration::from_secs(10)).await;
        gate.close();
        assert_eq!(gate.left(), None);
        assert!((ends_in(&gate).await - 5.0).abs() < 0.1);
        gate.grant(gate.sending(), BEGIN, END);
        let ends = tokio::spawn({
            let gate = gate.clone();
            async move { ends_in(&gate).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        gate.revoke();
        assert!((ends.await.unwrap() - 1.0).abs() < 0.1, "at once if another has the lease");
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

    #[tokio::test(start_paused = true)]
    async fn nothing_opens_the_gate_of_a_dry_run() {
        let gate = WriteGate::read_only(false);
        gate.grant(gate.sending(), BEGIN, END);
        assert_eq!((gate.left(), gate.reads_only()), (None, Some(false)));
        gate.close();
        gate.revoke();
        assert_eq!((gate.left(), gate.reads_only()), (None, Some(false)));
        gate.ended().await;
        assert_eq!(WriteGate::read_only(true).left(), None, "events are no other writes");
        assert_eq!(WriteGate::open().reads_only(), None);
    }

    #[test]
    fn an_open_gate_sets_no_bound() {
        assert_eq!(WriteGate::open().left(), Some(Duration::MAX));
    }
}
