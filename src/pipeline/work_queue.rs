//! The de-duplicating work queue.
//!
//! It follows client-go's work queue (`k8s.io/client-go/util/workqueue`): keys are returned in the order in
//! which they were added; a waiting key is not queued again; a key that is added while it is being
//! handled is returned once more afterwards. So a key is never handled twice at once, and no change is
//! missed, because the handler reads the newest facts.
//!
//! client-go has a *dirty* set, a *processing* set and a list. Here both sets are one map from the key to
//! its state, so that impossible combinations cannot occur.
//!
//! Its size is limited by the number of distinct keys. `add` must never wait, and an open queue must never
//! drop a key. It has no delays or rate limits; those belong to the timed queue.

use std::collections::VecDeque;
use std::fmt;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use ahash::AHashMap;
use parking_lot::{Condvar, Mutex, MutexGuard};

/// A first-in, first-out queue of keys, each of which waits at most once and is worked on by at
/// most one thread. Share it in an `Arc`.
///
/// ```
/// # use ostrakon::pipeline::WorkQueue;
/// let queue = WorkQueue::new();
/// queue.add("node-1");
/// queue.add("node-1");
/// assert_eq!(queue.get(), Some("node-1"));
/// queue.add("node-1"); // it changed again while we work on it
/// assert_eq!(queue.len(), 0);
/// queue.done(&"node-1");
/// assert_eq!(queue.len(), 1);
/// ```
pub struct WorkQueue<K> {
    state: Mutex<State<K>>,
    /// There is a key to take, or the queue was shut down.
    changed: Condvar,
    /// The length of the list, for who must not wait for the lock.
    depth: AtomicUsize,
    adds: AtomicU64,
    full_channels: AtomicU64,
}

struct State<K> {
    waiting: VecDeque<K>,
    stages: AHashMap<K, Stage>,
    /// Who has found the list empty, and is not a thread that waits.
    waker: Option<Waker>,
    open: bool,
}

impl<K> State<K> {
    fn empty() -> Self {
        Self { waiting: VecDeque::new(), stages: AHashMap::new(), waker: None, open: true }
    }
}

/// Where a known key is. A key that is not in the map is neither waiting nor taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// In the list.
    Waiting,
    /// Someone works on it.
    Taken,
    /// Someone works on it, and it was added again since.
    TakenAgain,
}

impl<K: Clone + Eq + Hash> WorkQueue<K> {
    /// An open queue without keys.
    pub fn new() -> Self {
        Self {
            state: Mutex::new(State::empty()),
            changed: Condvar::new(),
            depth: AtomicUsize::new(0),
            adds: AtomicU64::new(0),
            full_channels: AtomicU64::new(0),
        }
    }

    /// Sees to it that `key` is worked on after this call: queues it, unless it waits already; if
    /// someone works on it, it is queued when they are done. Does nothing after [`shutdown`].
    ///
    /// [`shutdown`]: Self::shutdown
    pub fn add(&self, key: K) {
        let mut state = self.state.lock();
        if !state.open {
            return;
        }
        match state.stages.get_mut(&key) {
            Some(Stage::Waiting | Stage::TakenAgain) => return,
            Some(known @ Stage::Taken) => *known = Stage::TakenAgain,
            None => {
                state.stages.insert(key.clone(), Stage::Waiting);
                self.push(state, key);
            }
        }
        self.adds.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the key that has waited longest; blocks the thread until there is one. `None` after
    /// [`shutdown`](Self::shutdown). The caller must call [`done`](Self::done) with the key.
    pub fn get(&self) -> Option<K> {
        let mut state = self.state.lock();
        loop {
            if !state.open {
                return None;
            }
            if let Some(key) = self.pop(&mut state) {
                return Some(key);
            }
            self.changed.wait(&mut state);
        }
    }

    /// The same for a task: it is woken when there is a key, and no thread waits. One task at a time
    /// may poll.
    pub fn poll_get(&self, context: &mut Context<'_>) -> Poll<Option<K>> {
        let mut state = self.state.lock();
        if !state.open {
            return Poll::Ready(None);
        }
        let Some(key) = self.pop(&mut state) else {
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        };
        Poll::Ready(Some(key))
    }

    /// Says that the work on `key` is over. If it was added meanwhile, it is queued again. A key
    /// that nobody works on is left as it is.
    pub fn done(&self, key: &K) {
        let mut state = self.state.lock();
        match state.stages.get_mut(key) {
            Some(known @ Stage::TakenAgain) => {
                *known = Stage::Waiting;
                self.push(state, key.clone());
            }
            Some(Stage::Taken) => {
                state.stages.remove(key);
            }
            Some(Stage::Waiting) | None => {}
        }
    }

    /// Closes the queue until [`reopen`](Self::reopen): whoever waits in [`get`](Self::get) gets `None`, and what still
    /// waits is dropped. Nothing is lost by it, since all state is read anew at the next start.
    pub fn shutdown(&self) {
        let mut state = self.state.lock();
        state.open = false;
        state.waiting.clear();
        state.stages.clear();
        self.depth.store(0, Ordering::Relaxed);
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Opens the queue again, empty. No key may be in handling.
    pub fn reopen(&self) {
        let mut state = self.state.lock();
        *state = State::empty();
        self.depth.store(0, Ordering::Relaxed);
    }

    /// The number of keys that wait. Those that someone works on are not among them.
    pub fn len(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Whether no key waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn pop(&self, state: &mut State<K>) -> Option<K> {
        let key = state.waiting.pop_front()?;
        self.depth.store(state.waiting.len(), Ordering::Relaxed);
        state.stages.insert(key.clone(), Stage::Taken);
        Some(key)
    }

    fn push(&self, mut state: MutexGuard<'_, State<K>>, key: K) {
        state.waiting.push_back(key);
        self.depth.store(state.waiting.len(), Ordering::Relaxed);
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<K> WorkQueue<K> {
    /// The number of keys that wait, without waiting for the lock: for metrics.
    pub fn depth(&self) -> usize {
        self.depth.load(Ordering::Relaxed)
    }

    /// How many keys were added since the start, as client-go counts them: an add of a key that
    /// was queued already, or that is queued again anyway, is not one.
    pub fn adds(&self) -> u64 {
        self.adds.load(Ordering::Relaxed)
    }

    /// How many keys that were taken had to wait since the start, because the channel to their worker was
    /// full.
    pub fn full_channels(&self) -> u64 {
        self.full_channels.load(Ordering::Relaxed)
    }

    /// A key that was taken waits for its worker.
    pub(super) fn count_full_channel(&self) {
        self.full_channels.fetch_add(1, Ordering::Relaxed);
    }
}

impl<K: Clone + Eq + Hash> Default for WorkQueue<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> fmt::Debug for WorkQueue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue")
            .field("depth", &self.depth())
            .field("adds", &self.adds())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
