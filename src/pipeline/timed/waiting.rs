//! Where countdowns wait: a timer wheel for those in the future, an ordered list for those due.
//!
//! tokio-util's `DelayQueue` is the wheel: arming, moving and cancelling cost the same however many
//! there are. Three things about it shape this file.
//!
//! - Its keys are bare indexes of a slab: one that is used after its entry has left removes
//!   a stranger. So each [`Place`] is kept in exactly one entry of the table, is changed in the same
//!   step as the wheel, under the same lock, and does not outlive it.
//! - It panics on delays beyond about 2.18 years. So a far countdown takes several hops.
//! - What is overdue when inserted comes out last in, first out. So what is due never enters it.
//!
//! What has left the wheel moves to the list, where it can still be cancelled, and from there it is
//! handed out in order.

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::time::{DelayQueue, delay_queue};

use super::Token;

/// The longest that a countdown stays in the wheel at a stretch; then it is put in again. Far below
/// the wheel's limit of 2^36 - 1 ms, which counts from when the wheel last turned, not from now.
const HOP: Duration = Duration::from_hours(24 * 365);

/// How long an empty wheel may stand still before it is replaced by a new one. It turns only when
/// something expires, and twice [`HOP`] plus this must stay within its limit.
const STANDSTILL: Duration = Duration::from_hours(24 * 30);

/// The turn of a countdown: what is due first goes first, then what was armed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    pub(super) due: Instant,
    pub(super) token: Token,
}

/// Where a countdown waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the wheel.
    Wheel(delay_queue::Key),
    /// In the list of what is due.
    List,
}

/// The countdowns of keys that nobody works on.
pub(super) struct Waiting<K> {
    wheel: DelayQueue<K>,
    wheel_made: Instant,
    due: BTreeMap<Turn, K>,
    /// Whoever waits for the next one.
    consumer: Option<Waker>,
}

impl<K: Clone> Waiting<K> {
    pub(super) fn new() -> Self {
        Self {
            wheel: DelayQueue::new(),
            wheel_made: Instant::now(),
            due: BTreeMap::new(),
            consumer: None,
        }
    }

    /// Puts a countdown in.
    pub(super) fn put(&mut self, key: K, turn: Turn) -> Place {
        let now = Instant::now();
        if turn.due <= now {
            self.due.insert(turn, key);
            self.wake();
            return Place::List;
        }
        if self.wheel.is_empty() && now.duration_since(self.wheel_made) > STANDSTILL {
            self.new_wheel();
        }
        // It wakes the consumer itself if this is the earliest.
        Place::Wheel(self.wheel.insert_at(key, turn.due.min(now + HOP)))
    }

    /// Takes a countdown out of where it is.
    pub(super) fn take(&mut self, place: Place, turn: Turn) {
        match place {
            Place::Wheel(slot) => {
                let removed = self.wheel.try_remove(&slot);
                debug_assert!(removed.is_some(), "the wheel lost a countdown");
            }
            Place::List => {
                let removed = self.due.remove(&turn);
                debug_assert!(removed.is_some(), "the list lost a countdown");
            }
        }
    }

    /// Gives a countdown another turn.
    pub(super) fn shift(&mut self, key: &K, place: Place, from: Turn, to: Turn) -> Place {
        let now = Instant::now();
        match place {
            Place::Wheel(slot) if to.due > now => {
                // It wakes the consumer itself, as its sleep keeps the waker.
                self.wheel.reset_at(&slot, to.due.min(now + HOP));
                place
            }
            Place::Wheel(_) | Place::List => {
                self.take(place, from);
                self.put(key.clone(), to)
            }
        }
    }

    /// The next key that has left the wheel, and the place that it had. The caller puts it in
    /// again: where that is depends on its turn.
    pub(super) fn poll_wheel(&mut self, cx: &mut Context<'_>) -> Option<(K, Place)> {
        match self.wheel.poll_expired(cx) {
            Poll::Ready(Some(expired)) => {
                let place = Place::Wheel(expired.key());
                Some((expired.into_inner(), place))
            }
            // Empty, too early, or the task's budget is used up; the task is woken in each case.
            Poll::Ready(None) | Poll::Pending => None,
        }
    }

    /// Takes the first of what is due. If there is none, the task of `cx` is woken when there is.
    pub(super) fn pop_due(&mut self, cx: &Context<'_>) -> Option<(Turn, K)> {
        let first = self.due.pop_first();
        self.consumer = match first {
            Some(_) => None,
            None => Some(cx.waker().clone()),
        };
        first
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        self.due.clear();
        self.new_wheel();
    }

    fn new_wheel(&mut self) {
        self.wheel = DelayQueue::new();
        self.wheel_made = Instant::now();
        // The consumer waits for the old one.
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(consumer) = self.consumer.take() {
            consumer.wake();
        }
    }
}
