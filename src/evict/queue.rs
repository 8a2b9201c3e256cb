//! Evictions that are due: each waits for its turn and for what holds it, and is then handed out.

use std::future::pending;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::evictor::{Evictor, Notices, Outcome, Requests};
use super::fairness::FairQueue;
use super::hold::{Holds, LineId, Lines};
use super::window::{HANGS, Window};
use super::{Backlog, Eviction, Key, Recheck, State};
use crate::pipeline::{AFTER_PANIC, Runner};

/// Where due evictions come from, and where each goes back to with what became of it.
pub trait Origin: Send + Sync + 'static {
    /// Tells one hand-out of an eviction from all others.
    type Ticket: Copy + Send + Sync + 'static;

    /// Whether an eviction is still asked for. Called under a lock: it must not wait, nor call the queue.
    fn standing(&self, eviction: &Eviction, ticket: Self::Ticket) -> Standing;

    /// Takes an eviction back.
    fn finish(&self, eviction: &Eviction, ticket: Self::Ticket, outcome: &Outcome);
}

/// Whether an eviction that was taken in is still asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is.
    Current,
    /// Another for the same pod has taken its place, and comes once this one is finished.
    Replaced,
    /// It is not.
    Cancelled,
}

/// Evictions that are due and not handed out.
#[derive(Debug)]
pub struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    holds: Holds,
    backlog: Arc<Backlog>,
    /// Something came in, or a place became free.
    changed: Notify,
}

#[derive(Debug)]
struct Waiting<T> {
    /// Those that nothing holds, as far as is known.
    due: FairQueue<Item<T>>,
    /// Those that were held when they were asked about.
    held: Lines<T>,
    /// The held and the others take turns.
    held_first: bool,
}

/// An eviction that waits.
#[derive(Debug)]
pub(super) struct Item<T> {
    pub(super) eviction: Eviction,
    ticket: T,
    pub(super) is_retry: bool,
}

impl<T: Copy> Queue<T> {
    /// An empty queue, which notes its evictions in `backlog`.
    pub fn new(backlog: Arc<Backlog>, holds: Holds) -> Self {
        let (due, held) = (FairQueue::default(), Lines::default());
        let waiting = Mutex::new(Waiting { due, held, held_first: false });
        Self { waiting, holds, backlog, changed: Notify::new() }
    }

    /// Takes in an eviction that is due. From now on it is in the backlog, also while it waits.
    pub fn push(&self, eviction: Eviction, ticket: T, was_tried: bool) {
        let Eviction { pod, cause, due } = &eviction;
        self.backlog.enter(pod, cause, *due);
        let state = self.backlog.update(&eviction, |entry| {
            entry.retry.next = None;
            entry.state
        });
        let is_retry = was_tried || state.is_some_and(|state| state != State::Due);
        let node = pod.node.clone();
        self.waiting.lock().due.push(&node, is_retry, Item { eviction, ticket, is_retry });
        self.changed.notify_one();
    }

    /// Gives back an eviction that is held. Whoever has cancelled or replaced one asks for it, so
    /// that this waits for no hold, and finishes it.
    pub fn recall(&self, key: Key) -> Option<(Eviction, T)> {
        if self.holds.is_empty() {
            return None;
        }
        let Item { eviction, ticket, .. } = self.waiting.lock().held.remove(key)?;
        Some((eviction, ticket))
    }

    /// Forgets everything: this process does not evict any more.
    pub fn clear(&self) {
        let mut waiting = self.waiting.lock();
        (waiting.due, waiting.held) = <(FairQueue<_>, Lines<_>)>::default();
    }

    /// The next eviction that nothing holds. What is not asked for any more goes to `ended`.
    fn next(
        &self,
        origin: &impl Origin<Ticket = T>,
        ended: impl Fn(&Eviction, T, Standing),
    ) -> Option<Item<T>> {
        loop {
            let now = Instant::now();
            let mut waiting = self.waiting.lock();
            let (from, item) = waiting.pop(now)?;
            // Under the lock: whoever cancels it afterwards finds it when recalling it.
            let standing = origin.standing(&item.eviction, item.ticket);
            if standing != Standing::Current {
                waiting.held.keep_open(from);
                drop(waiting);
                ended(&item.eviction, item.ticket, standing);
                continue;
            }
            let held = self.holds.ask(&item.eviction, from.as_ref(), &waiting.held, now);
            let Some((line, held)) = held else {
                if from.is_some() {
                    waiting.held.keep_open(from);
                    drop(waiting);
                    self.backlog.update(&item.eviction, |entry| entry.held = None);
                }
                return Some(item);
            };
            let wait = held.wait;
            self.backlog.update(&item.eviction, |entry| entry.held = Some(held));
            if from.as_ref() == Some(&line) {
                waiting.held.put_back(line, wait, item);
            } else {
                waiting.held.push(line, wait, item);
                waiting.held.keep_open(from);
            }
        }
    }

    /// Completes when there may be something to hand out.
    async fn changed(&self, window: &Window) {
        // While there is no place, the next one to become free says so.
        let next = (!window.is_full()).then(|| self.waiting.lock().held.next_time()).flatten();
        let time = async {
            match next {
                Some(time) => sleep_until(time).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = self.changed.notified() => {}
            () = self.holds.changed() => self.waiting.lock().held.open_all(),
            () = time => {}
        }
    }
}

impl<T> Waiting<T> {
    fn pop(&mut self, now: Instant) -> Option<(Option<LineId>, Item<T>)> {
        self.held_first = !self.held_first;
        let held = self.held_first.then(|| self.held.pop(now)).flatten();
        let other = |due: Item<T>| (None, due);
        held.or_else(|| self.due.pop().map(other)).or_else(|| self.held.pop(now))
    }
}

/// Hands evictions to the `evictor`, as many at a time as its window has places, until `stop`. Those in
/// flight then go on, in the hands of the `runner`.
pub async fn hand_out<O, R, A, N>(
    queue: Arc<Queue<O::Ticket>>,
    origin: Arc<O>,
    evictor: Arc<Evictor<R, A, N>>,
    runner: Runner,
    stop: CancellationToken,
) where
    O: Origin,
    R: Recheck + 'static,
    A: Requests + 'static,
    N: Notices + 'static,
{
    let ended = |eviction: &Eviction, ticket, standing| {
        if standing == Standing::Cancelled {
            evictor.cancelled(eviction);
        }
        origin.finish(eviction, ticket, &Outcome::Reconsider);
    };
    let window = evictor.window();
    loop {
        while window.enter() {
            let Some(item) = queue.next(&*origin, ended) else {
                window.leave();
                break;
            };
            let (item, evictor) = (Arc::new(item), Arc::clone(&evictor));
            let mut place =
                Place { window: Arc::clone(window), queue: Arc::clone(&queue), hangs: false };
            let pod = item.eviction.pod.to_string();
            let work = {
                let item = Arc::clone(&item);
                async move {
                    let work = evictor.carry_out(&item.eviction);
                    tokio::pin!(work);
                    if let Ok(outcome) = timeout(HANGS, &mut work).await {
                        outcome
                    } else {
                        place.hang();
                        work.await
                    }
                }
            };
            let origin = Arc::clone(&origin);
            runner.run("eviction", pod, work, move |ended| {
                let outcome = ended.unwrap_or(Outcome::Again(AFTER_PANIC));
                origin.finish(&item.eviction, item.ticket, &outcome);
            });
        }
        tokio::select! {
            // What ends during the stop makes room, but not for another.
            biased;
            () = stop.cancelled() => return,
            () = queue.changed(window) => {}
        }
    }
}

/// A place in the window, given back in every case.
struct Place<T> {
    window: Arc<Window>,
    queue: Arc<Queue<T>>,
    hangs: bool,
}

impl<T> Place<T> {
    /// Lets another eviction begin meanwhile.
    fn hang(&mut self) {
        self.hangs = self.window.hang();
        self.queue.changed.notify_one();
    }
}

impl<T> Drop for Place<T> {
    fn drop(&mut self) {
        if self.hangs {
            self.window.leave_hanging();
        } else {
            self.window.leave();
        }
        self.queue.changed.notify_one();
    }
}

#[cfg(test)]
mod tests;
