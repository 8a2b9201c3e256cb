//! The queue of due evictions. Each waits for its turn and for its holds, and is then handed out.

use std::future::pending;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::evictor::{Evictor, Notices, Outcome, Requests};
use super::fairness::FairQueue;
use super::hold::{Held, Holds};
use super::lines::{LineId, Lines};
use super::window::{HANGS, Window};
use super::{Backlog, Eviction, Key, Recheck, State};
use crate::pipeline::{AFTER_PANIC, Runner};

/// Where due evictions come from, and where each returns with its outcome.
pub trait Origin: Send + Sync + 'static {
    /// Identifies one entry of an eviction into the queue.
    type Ticket: Copy + Send + Sync + 'static;

    /// Whether an eviction is still requested. Called under a lock: must not block or call the queue.
    fn standing(&self, eviction: &Eviction, ticket: Self::Ticket) -> Standing;

    /// Takes an eviction back, with its outcome.
    fn finish(&self, eviction: &Eviction, ticket: Self::Ticket, outcome: &Outcome);
}

/// Whether a queued eviction is still requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Still requested.
    Current,
    /// Replaced by another eviction of the same pod, which becomes due once this one is finished.
    Replaced,
    /// No longer requested.
    Cancelled,
}

/// Due evictions that are not handed out yet.
#[derive(Debug)]
pub struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    holds: Holds,
    backlog: Arc<Backlog>,
    /// Notified when an eviction comes in, or a place in the window becomes free.
    changed: Notify,
}

#[derive(Debug)]
struct Waiting<T> {
    /// Evictions for which no hold was consulted yet.
    due: FairQueue<Item<T>>,
    /// Evictions that a hold holds.
    held: Lines<T>,
    /// Whether the next one comes from `held`, if possible: the two take turns.
    held_first: bool,
}

/// A queued eviction.
#[derive(Debug)]
pub(super) struct Item<T> {
    pub(super) eviction: Eviction,
    ticket: T,
    /// Whether it queues behind first attempts.
    pub(super) is_retry: bool,
    pub(super) attempt: Attempt,
}

/// Which holds an eviction is subject to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// It was not handed out yet: all of them.
    First,
    /// It was handed out before, and nothing was accepted: those that apply to retries.
    Again,
    /// It was accepted, and the pod is not seen gone yet: none.
    Poll,
}

impl<T: Copy> Queue<T> {
    /// An empty queue. It records its evictions in `backlog`.
    pub fn new(backlog: Arc<Backlog>, holds: Holds) -> Self {
        let (due, held) = (FairQueue::default(), Lines::default());
        let waiting = Mutex::new(Waiting { due, held, held_first: false });
        Self { waiting, holds, backlog, changed: Notify::new() }
    }

    /// Queues a due eviction and enters it in the backlog.
    pub fn push(&self, eviction: Eviction, ticket: T, was_tried: bool) {
        let Eviction { pod, cause, due } = &eviction;
        self.backlog.enter(pod, cause, *due);
        let known = self.backlog.update(&eviction, |entry| {
            entry.retry.next = None;
            (entry.state, entry.admitted)
        });
        let is_retry = was_tried || known.is_some_and(|(state, _)| state != State::Due);
        let attempt = match known {
            Some((State::Sent | State::WouldEvict, _)) => Attempt::Poll,
            Some((_, true)) => Attempt::Again,
            _ => Attempt::First,
        };
        if attempt == Attempt::First {
            self.holds.came_due(&eviction);
        }
        let node = eviction.pod.node.clone();
        self.waiting.lock().due.push(&node, is_retry, Item { eviction, ticket, is_retry, attempt });
        self.changed.notify_one();
    }

    /// Removes and returns a held eviction. After cancelling or replacing an eviction, the caller recalls
    /// and finishes it here, so that this does not wait for a hold.
    pub fn recall(&self, key: Key) -> Option<(Eviction, T)> {
        let mut waiting = self.waiting.lock();
        let (Item { eviction, ticket, .. }, emptied) = waiting.held.remove(key)?;
        if let Some(line) = emptied {
            self.holds.left(&line, Instant::now());
        }
        Some((eviction, ticket))
    }

    /// Drops everything, at the end of a term.
    pub fn clear(&self) {
        let mut waiting = self.waiting.lock();
        (waiting.due, waiting.held) = <(FairQueue<_>, Lines<_>)>::default();
        self.holds.clear();
    }

    /// How many evictions each hold holds, in the order in which they are consulted.
    pub fn held(&self) -> Vec<(&'static str, usize)> {
        let waiting = self.waiting.lock();
        let names = self.holds.names().enumerate();
        names.map(|(hold_index, name)| (name, waiting.held.len_of(hold_index))).collect()
    }

    /// Why a held eviction waits: a sentence for people.
    pub fn why(&self, held: &Held) -> String {
        self.holds.why(held)
    }

    /// The next eviction that no hold holds. Evictions that are no longer requested go to `ended`.
    pub(super) fn next(
        &self,
        origin: &impl Origin<Ticket = T>,
        ended: impl Fn(&Eviction, T, Standing),
    ) -> Option<Item<T>> {
        loop {
            let now = Instant::now();
            let mut waiting = self.waiting.lock();
            let (from, item) = waiting.pop(now)?;
            // Checked under the lock, so that a later cancellation finds it with `recall`.
            let standing = origin.standing(&item.eviction, item.ticket);
            if standing != Standing::Current {
                self.leave(&mut waiting, from, now);
                drop(waiting);
                ended(&item.eviction, item.ticket, standing);
                continue;
            }
            let held = self.holds.ask(&item, from.as_ref(), &waiting.held, now);
            let Some((line, held)) = held else {
                waiting.held.keep_open(from);
                drop(waiting);
                self.backlog.update(&item.eviction, |entry| {
                    entry.held = None;
                    entry.admitted = true;
                });
                return Some(item);
            };
            let wait = held.wait;
            self.backlog.update(&item.eviction, |entry| entry.held = Some(held));
            if from.as_ref() == Some(&line) {
                waiting.held.put_back(line, wait, item);
            } else {
                waiting.held.push(line, wait, item);
                self.leave(&mut waiting, from, now);
            }
        }
    }

    /// The first eviction of a line has left it without being handed out.
    fn leave(&self, waiting: &mut Waiting<T>, from: Option<LineId>, now: Instant) {
        if let Some(line) = waiting.held.keep_open(from) {
            self.holds.left(&line, now);
        }
    }

    #[cfg(test)]
    pub(super) fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    /// Waits until a hold is to be asked again, for tests of holds.
    #[cfg(test)]
    pub(super) async fn next_question(&self) {
        self.changed(&Window::default()).await;
    }

    /// Completes when there may be something to hand out.
    async fn changed(&self, window: &Window) {
        // A full window needs no timer: a place that becomes free notifies `changed`.
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

/// Hands evictions to the `evictor` until `stop`, as many at a time as its window has places. The `runner`
/// finishes those in flight.
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
            // During the stop, evictions that end free places, which must not be used.
            biased;
            () = stop.cancelled() => return,
            () = queue.changed(window) => {}
        }
    }
}

/// A place in the window, given back when dropped.
struct Place<T> {
    window: Arc<Window>,
    queue: Arc<Queue<T>>,
    hangs: bool,
}

impl<T> Place<T> {
    /// Gives the place back early, so that another eviction can start.
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
