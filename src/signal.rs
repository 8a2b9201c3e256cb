//! A value that others wait to see changed.
//!
//! Like `tokio::sync::watch`, which wakes its receivers in random order. Here they are woken in the order
//! in which they began to wait: a simulation must take the same course each time.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The value, for who changes it. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Signal<T> {
    shared: Arc<Shared<T>>,
}

/// The value, for who waits until it changes.
#[derive(Clone, Debug)]
pub struct Follower<T> {
    shared: Arc<Shared<T>>,
    /// The change that was seen last.
    seen: u64,
}

#[derive(Debug, Default)]
struct Shared<T> {
    /// How often it was changed, and what it is now.
    state: Mutex<(u64, T)>,
    changed: Notify,
}

impl<T: Copy> Signal<T> {
    /// The value.
    pub fn get(&self) -> T {
        self.shared.state.lock().1
    }

    /// Changes the value, and wakes all who wait for that.
    pub fn change(&self, change: impl FnOnce(&mut T)) {
        let mut state = self.shared.state.lock();
        change(&mut state.1);
        state.0 += 1;
        drop(state);
        self.shared.changed.notify_waiters();
    }

    /// One who has seen the value as it is now.
    pub fn follow(&self) -> Follower<T> {
        let seen = self.shared.state.lock().0;
        Follower { shared: Arc::clone(&self.shared), seen }
    }
}

impl<T: Copy> Follower<T> {
    /// The value, which is seen by that.
    pub fn see(&mut self) -> T {
        let state = self.shared.state.lock();
        self.seen = state.0;
        state.1
    }

    /// Whether it was changed since it was seen.
    pub fn has_changed(&self) -> bool {
        self.shared.state.lock().0 != self.seen
    }

    /// Waits until it was changed since it was seen. The change is seen by that. It may be dropped and
    /// called again; no change is missed.
    pub async fn changed(&mut self) {
        loop {
            let changed = self.shared.changed.notified();
            let count = self.shared.state.lock().0;
            if count != self.seen {
                self.seen = count;
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn who_waits_is_woken_by_a_change_and_by_nothing_else() {
        let signal = Signal::<u8>::default();
        let mut follower = signal.follow();
        assert!(follower.changed().now_or_never().is_none());
        let waits = tokio::spawn(async move {
            follower.changed().await;
            (follower.see(), follower.has_changed())
        });
        tokio::task::yield_now().await;
        signal.change(|value| *value = 7);
        assert_eq!(waits.await.unwrap(), (7, false));
    }

    #[tokio::test]
    async fn a_change_between_two_looks_is_not_missed() {
        let signal = Signal::<u8>::default();
        let mut follower = signal.follow();
        signal.change(|value| *value = 1);
        assert!(follower.has_changed());
        assert!(follower.changed().now_or_never().is_some());
        assert!(!follower.has_changed() && follower.changed().now_or_never().is_none());
        signal.change(|value| *value = 2);
        assert_eq!((follower.see(), follower.has_changed()), (2, false));
    }

    #[tokio::test]
    async fn they_are_woken_in_the_order_in_which_they_began_to_wait() {
        for _ in 0..20 {
            let signal = Signal::<u8>::default();
            let woken = Arc::new(Mutex::new(Vec::new()));
            let tasks: Vec<_> = (0..8)
                .map(|number| {
                    let (mut follower, woken) = (signal.follow(), Arc::clone(&woken));
                    tokio::spawn(async move {
                        follower.changed().await;
                        woken.lock().push(number);
                    })
                })
                .collect();
            tokio::task::yield_now().await;
            signal.change(|value| *value += 1);
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(*woken.lock(), [0, 1, 2, 3, 4, 5, 6, 7]);
        }
    }
}
