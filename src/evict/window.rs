//! How many evictions may be in flight. The number adapts by additive increase and multiplicative
//! decrease, like TCP's congestion window.
//!
//! Each eviction in flight uses a connection. Too few leave the API server idle between requests; too
//! many slow it down for everyone. The right number depends on the server. So the window grows by one for
//! each round of quick successes. It shrinks by a third when the server is overloaded, does not respond,
//! or is slower than its service objective for writes.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Initial size. A kube-apiserver on two cores works best with about 16.
const FIRST: f64 = 8.0;
/// Minimum size: one hanging webhook must not delay the whole cluster.
const LEAST: f64 = 4.0;
/// Maximum size: a bound on connections.
const MOST: f64 = 32.0;
/// Factor by which a cut shrinks the window.
const CUT: f64 = 0.67;
/// One overload causes many refusals. Within this time they count as one.
const SETTLES: Duration = Duration::from_secs(1);
/// A slower eviction spent most of its time queued in the server. A larger window would only make that
/// queue longer, for everyone.
const BRISK: Duration = Duration::from_millis(500);
/// Kubernetes' objective for a write is 1 s at the 99th percentile. An eviction is two writes.
const SLOW: Duration = Duration::from_secs(2);

/// An eviction that takes longer than this waits for a third party, such as a webhook that does not
/// respond. It costs the server little, and must not delay other evictions.
pub(super) const HANGS: Duration = Duration::from_secs(2);
/// How many hanging evictions may give their place back. This bounds connections, and the load on a server
/// that is slow with all requests.
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

    /// Gives back the place of an eviction that [hangs](HANGS), unless too many do. Returns whether it
    /// did; the eviction then ends with [`leave_hanging`](Self::leave_hanging).
    pub fn hang(&self) -> bool {
        let mut state = self.state.lock();
        let may = state.hanging < MOST_HANGING;
        if may {
            state.hanging += 1;
            state.in_flight = state.in_flight.saturating_sub(1);
        }
        may
    }

    /// Ends an eviction that gave its place back early.
    pub fn leave_hanging(&self) {
        let mut state = self.state.lock();
        state.hanging = state.hanging.saturating_sub(1);
    }

    /// Records that an eviction succeeded, and how long its requests took.
    pub(super) fn went_well(&self, took: Duration) {
        let mut state = self.state.lock();
        if took > SLOW {
            state.cut();
        } else if took <= BRISK && state.in_flight >= state.places() {
            // Only a full window is evidence for a larger one.
            state.window = (state.window + 1.0 / state.window).min(MOST);
        }
    }

    /// Records that the server is overloaded or did not respond.
    pub(super) fn overloaded(&self) {
        self.state.lock().cut();
    }

    /// Whether all places are taken.
    pub fn is_full(&self) -> bool {
        let state = self.state.lock();
        state.in_flight >= state.places()
    }

    /// How many evictions may be in flight.
    pub fn window(&self) -> usize {
        self.state.lock().places()
    }

    /// How many evictions are in flight, hanging ones included.
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
