//! The timed worker queue: keys that must be handled at a given time. One per shard.
//!
//! Any thread can arm and disarm keys. One task takes due keys with [`TimedQueue::next`] and reports the
//! result with [`TimedQueue::complete`]. One table under one lock holds the state of each key: counting
//! down, being handled, or waiting.
//!
//! It follows upstream's timed workers (`pkg/controller/tainteviction/timed_workers.go`) where
//! those are sound. It differs where they lose or leak work:
//!
//! - Each countdown has a token. A completion acts only if its token is the running one, so
//!   work that ends late removes nothing that was armed since.
//! - A key that is being handled can be armed. It then waits and runs once more, never twice at once.
//!   Upstream drops such a request.
//! - Arming again moves a countdown, in both directions. Upstream keeps the first.
//! - A failed attempt sets a floor: nothing makes the key run before it, except that a disarmed
//!   key starts afresh.
//!
//! It must never return a key early or after it was disarmed, and never lose one. It decides nothing: the
//! receiver of a key checks again whether the work is still needed.

use std::fmt;
use std::hash::Hash;
use std::task::Poll;

use parking_lot::Mutex;
use tokio::task::coop::cooperative;
use tokio::time::Instant;

use table::Table;

mod table;
mod waiting;

/// Countdowns by key. Share it in an `Arc`.
///
/// No method but [`next`](Self::next) waits for anything but the lock, or needs a tokio runtime, one
/// with a timer.
pub struct TimedQueue<K, V> {
    table: Mutex<Table<K, V>>,
}

/// Tells one countdown of a queue from all others, earlier and later, of the same key or another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

/// What arming a key changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// It had no countdown, and has one now.
    New,
    /// It had another countdown, which this one replaces.
    Moved,
    /// It had the same one, which stays as it is.
    Unchanged,
}

/// A key whose time has come. Whoever takes it must [`complete`](TimedQueue::complete) it in every
/// case: until then the key is not handed out again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fired<K, V> {
    /// The key.
    pub key: K,
    /// Identifies this hand-out towards [`complete`](TimedQueue::complete) and
    /// [`is_current`](TimedQueue::is_current).
    pub token: Token,
    /// What the key was armed with last.
    pub value: V,
    /// When it was due. Never in the future.
    pub due: Instant,
    /// How many attempts in a row have failed before, as the last completion said.
    pub failures: u32,
}

/// How the work on a key that was handed out ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<V> {
    /// Nothing is left to do, unless the key was armed meanwhile.
    Done,
    /// It was handed out too early: the countdown goes on with `value` until `due`. If the key was
    /// armed meanwhile, that countdown stays; if it was disarmed, there is none.
    Early {
        /// When it is due.
        due: Instant,
        /// What to hand out then.
        value: V,
    },
    /// It is to be retried with `value`, and not before `not_before` in any case. If the key
    /// was armed meanwhile, that countdown stays, but is moved to `not_before` if it is due earlier.
    /// If it was disarmed meanwhile, it is not retried.
    Retry {
        /// The floor.
        not_before: Instant,
        /// What to hand out then.
        value: V,
        /// How many attempts in a row have failed. It goes with the floor: a key that was disarmed
        /// starts at none.
        failures: u32,
    },
}

/// What is known about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduled<V> {
    /// When its countdown ends; if it has none, when the one being worked on ended.
    pub due: Instant,
    /// What belongs to that countdown.
    pub value: V,
    /// Whether it was handed out and is not completed.
    pub running: bool,
}

impl<K, V> TimedQueue<K, V>
where
    K: Clone + Eq + Hash,
    V: Clone + PartialEq,
{
    /// An empty queue.
    pub fn new() -> Self {
        Self { table: Mutex::new(Table::new()) }
    }

    /// Makes `key` due at `due`, with `value`, instead of what it was armed with before. A `due`
    /// in the past is due at once; one below the floor that a retry has set is lifted to it. What is
    /// due later than 292 years from the queue's beginning is due then.
    ///
    /// A key that is being worked on waits until that is completed, and is then handed out.
    pub fn arm(&self, key: K, due: Instant, value: V) -> Armed {
        self.table.lock().arm(key, due, value)
    }

    /// Cancels the countdown of `key`, forgets its floor, and marks the work on it, if it was
    /// handed out, as cancelled: [`is_current`](Self::is_current) is false for it from now on.
    ///
    /// True only if there was a countdown, so that nobody reports a cancellation of what is being
    /// done already. After it returns the key is not handed out until it is armed again.
    pub fn disarm(&self, key: &K) -> bool {
        self.table.lock().disarm(key)
    }

    /// Waits for the next key that is due, and hands it out. Of several, the one that was due
    /// first goes first; within the same nanosecond, the one that was armed first.
    ///
    /// Dropping the future loses nothing. There must be one consumer at a time: of two that wait,
    /// only the later one is woken.
    pub async fn next(&self) -> Fired<K, V> {
        // In a storm of due keys the runtime's other tasks must get their turn.
        cooperative(std::future::poll_fn(|cx| {
            self.table.lock().poll_next(cx).map_or(Poll::Pending, Poll::Ready)
        }))
        .await
    }

    /// Says how the work on a key that was handed out ended. Returns whether it mattered: a `token`
    /// that is not the running one changes nothing.
    pub fn complete(&self, key: &K, token: Token, outcome: Outcome<V>) -> bool {
        self.table.lock().complete(key, token, outcome)
    }

    /// Whether the hand-out with this token is still wanted: it is neither completed nor was the
    /// key disarmed since. To be asked right before acting.
    pub fn is_current(&self, key: &K, token: Token) -> bool {
        self.table.lock().is_current(key, token)
    }

    /// The same, and the key was not armed anew either: nothing newer is known of it.
    pub fn is_newest(&self, key: &K, token: Token) -> bool {
        self.table.lock().is_newest(key, token)
    }

    /// What is known about `key`; `None` if it is neither counting down nor being worked on. Work that
    /// was disarmed is not known any more, although it may go on: to arm the key anew is no
    /// repetition of it.
    pub fn get(&self, key: &K) -> Option<Scheduled<V>> {
        self.table.lock().get(key)
    }

    /// Every key that counts down or is being worked on, in no order. Copies them all under the
    /// lock: for people, not for the data path.
    pub fn snapshot(&self) -> Vec<(K, Scheduled<V>)> {
        self.table.lock().snapshot()
    }

    /// Computes every countdown's end anew, since the wall clock was set: `due_of` says when
    /// a value is due, or `None` to leave it. No countdown ends before its floor. Returns how many
    /// were moved.
    ///
    /// `due_of` runs under the lock: it must be quick and must not call this queue.
    pub fn rearm_all(&self, due_of: impl Fn(&V) -> Option<Instant>) -> usize {
        self.table.lock().rearm_all(due_of)
    }

    /// Forgets everything, for shutdown. Completions of what was handed out change nothing.
    pub fn clear(&self) {
        self.table.lock().clear();
    }

    /// The number of keys that count down or are being worked on.
    pub fn len(&self) -> usize {
        self.table.lock().len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of keys that were handed out and are not completed.
    pub fn running(&self) -> usize {
        self.table.lock().working()
    }
}

impl<K, V> Default for TimedQueue<K, V>
where
    K: Clone + Eq + Hash,
    V: Clone + PartialEq,
{
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> fmt::Debug for TimedQueue<K, V>
where
    K: Clone + Eq + Hash,
    V: Clone + PartialEq,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table.lock();
        f.debug_struct("TimedQueue")
            .field("len", &table.len())
            .field("running", &table.working())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;
