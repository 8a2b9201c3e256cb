//! How many pods are evicted at the same time: found by additive increase and multiplicative
//! decrease, as TCP finds its window.
//!
//! Each eviction in flight holds a connection. Too few leave the API server idle between requests;
//! too many make it slower for everybody. Which number is right depends on a server that nobody
//! here knows, so it is felt for: one more for each round in which all went well, a third less when
//! the server says that it is overloaded, does not answer, or takes longer than its own service
//! objective for writes.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Where it starts. A kube-apiserver on two cores does its best with about 16.
const FIRST: f64 = 8.0;
/// Never fewer: one hanging webhook must not hold up the whole cluster.
const LEAST: f64 = 4.0;
/// Never more: a bound on connections.
const MOST: f64 = 32.0;
/// Part of the window that is left after a cut.
const CUT: f64 = 0.67;
/// One overload is answered by many refusals: within this time they count as one.
const SETTLES: Duration = Duration::from_secs(1);
/// An eviction that takes longer has waited in the server most of the time: more of them would wait
/// longer, and so would everybody else.
const BRISK: Duration = Duration::from_millis(500);
/// Kubernetes' objective for a write is 1 s at the 99th percentile. An eviction is two.
const SLOW: Duration = Duration::from_secs(2);

/// An eviction without an outcome for so long waits for somebody else, for example for a webhook that
/// does not answer. It costs the server little, and must not hold up those that it would answer.
pub(super) const HANGS: Duration = Duration::from_secs(2);
/// So many of them hold no place. A bound on connections, and on what a server is asked for that is slow
/// with everything.
const MOST_HANGING: usize = 64;

/// The window of evictions in flight.
#[derive(Debug)]
pub struct Window {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    window: f64,
    in_flight: usize,
    /// In flight without a place.
    hanging: usize,
    cut: Option<Instant>,
}

impl Default for Window {
    fn default() -> Self {
        Self { state: Mutex::new(State { window: FIRST, in_flight: 0, hanging: 0, cut: None }) }
    }
}

impl Window {
    /// Takes a place in the window, if there is one.
    pub fn enter(&self) -> bool {
        let mut state = self.state.lock();
        let free = state.in_flight < state.places();
        state.in_flight += usize::from(free);
        free
    }

    /// Gives a place back.
    pub fn leave(&self) {
        let mut state = self.state.lock();
        state.in_flight = state.in_flight.saturating_sub(1);
    }

    /// Gives the place of an eviction back that [hangs](HANGS), if not too many do. It is then ended by
    /// [`leave_hanging`](Self::leave_hanging).
    pub fn hang(&self) -> bool {
        let mut state = self.state.lock();
        let may = state.hanging < MOST_HANGING;
        if may {
            state.hanging += 1;
            state.in_flight = state.in_flight.saturating_sub(1);
        }
        may
    }

    /// An eviction that had given its place back is over.
    pub fn leave_hanging(&self) {
        let mut state = self.state.lock();
        state.hanging = state.hanging.saturating_sub(1);
    }

    /// An eviction was carried out, and its requests took this long.
    pub(super) fn went_well(&self, took: Duration) {
        let mut state = self.state.lock();
        if took > SLOW {
            state.cut();
        } else if took <= BRISK && state.in_flight >= state.places() {
            // Only a window that is used up says anything about a larger one.
            state.window = (state.window + 1.0 / state.window).min(MOST);
        }
    }

    /// The server is overloaded, or did not answer.
    pub(super) fn overloaded(&self) {
        self.state.lock().cut();
    }

    /// Whether all places are taken.
    pub fn is_full(&self) -> bool {
        let state = self.state.lock();
        state.in_flight >= state.places()
    }

    /// How many pods may be evicted at the same time.
    pub fn window(&self) -> usize {
        self.state.lock().places()
    }

    /// How many are.
    pub fn in_flight(&self) -> usize {
        let state = self.state.lock();
        state.in_flight + state.hanging
    }
}

impl State {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Between 4 and 32.
    fn places(&self) -> usize {
        self.window as usize
    }

    fn cut(&mut self) {
        if self.cut.is_none_or(|at| at.elapsed() >= SETTLES) {
            self.cut = Some(Instant::now());
            self.window = (self.window * CUT).max(LEAST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_millis(20);

    fn full(window: &Window) {
        while window.enter() {}
    }

    #[tokio::test(start_paused = true)]
    async fn it_grows_by_one_for_each_round_that_went_well() {
        let window = Window::default();
        full(&window);
        assert_eq!(window.in_flight(), 8);
        for _ in 0..9 {
            window.went_well(QUICK);
        }
        assert_eq!(window.window(), 9);
        for _ in 0..10_000 {
            full(&window);
            window.went_well(QUICK);
        }
        assert_eq!(window.window(), 32, "and not beyond its bound");
    }

    #[tokio::test(start_paused = true)]
    async fn it_does_not_grow_while_it_is_not_used() {
        let window = Window::default();
        assert!(window.enter());
        for _ in 0..1000 {
            window.went_well(QUICK);
        }
        assert_eq!(window.window(), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn it_stays_as_it_is_where_more_would_only_wait() {
        let window = Window::default();
        full(&window);
        for _ in 0..1000 {
            window.went_well(Duration::from_millis(600));
        }
        assert_eq!(window.window(), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn one_overload_cuts_it_once_and_many_down_to_the_least() {
        let window = Window::default();
        for _ in 0..50 {
            window.overloaded();
        }
        assert_eq!(window.window(), 5);
        for _ in 0..10 {
            tokio::time::advance(SETTLES).await;
            window.went_well(Duration::from_secs(3));
        }
        assert_eq!(window.window(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn evictions_that_hang_hold_no_place_but_not_any_number_of_them() {
        let window = Window::default();
        let mut hanging = 0;
        loop {
            full(&window);
            if !window.hang() {
                break;
            }
            hanging += 1;
        }
        assert_eq!((hanging, window.in_flight()), (64, 72));
        assert!(window.is_full(), "now they hold places");
        window.leave_hanging();
        assert!(window.is_full() && window.hang() && !window.is_full());
        assert_eq!((window.window(), window.in_flight()), (8, 71));
    }

    #[tokio::test(start_paused = true)]
    async fn places_are_given_back() {
        let window = Window::default();
        full(&window);
        assert!(!window.enter() && window.is_full());
        window.leave();
        assert!(!window.is_full() && window.enter());
        assert!(!window.enter());
    }
}
