//! Carries what is due from the timers to the evictor, and its outcome back.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::judge::View;
use super::requests::{ApiRequests, ByEvents};
use super::runner::{AFTER_PANIC, Panicked, Runner};
use super::state::{Shared, TimerKey, Work};
use crate::evict::{Drainer, Evictor, HANGS, Job, OrderState, OrderedJob, Outcome, Pace, Turns};
use crate::model::PodRef;
use crate::pipeline::{self, Fired, Token};

/// Carries out evictions of both kinds.
pub(super) struct Carrier {
    pub evictor: Evictor<View, ApiRequests, ByEvents>,
    pub drainer: Drainer<View, ApiRequests, ByEvents>,
}

impl Carrier {
    async fn carry_out(&self, handed_out: &HandedOut) -> Outcome {
        match &handed_out.task {
            Task::Evict(job) => self.evictor.carry_out(job).await,
            // Cancelled while it waited for its turn.
            Task::Drain(_) if !handed_out.is_current() => Outcome::Reconsider,
            Task::Drain(job) => self.drainer.carry_out(job).await,
        }
    }
}

/// An eviction that was handed out.
#[derive(Clone, Debug)]
pub(super) enum Task {
    /// A taint condemns the pod.
    Evict(Job),
    /// A drain has ordered it to go.
    Drain(OrderedJob),
}

impl Task {
    fn pod(&self) -> &PodRef {
        match self {
            Self::Evict(job) => &job.pod,
            Self::Drain(job) => &job.pod,
        }
    }

    /// What goes back into the timers, to come again.
    fn into_work(self) -> Work {
        match self {
            Self::Evict(Job { pod, verdict, .. }) => Work::Evict { pod, verdict },
            Self::Drain(OrderedJob { pod, order, .. }) => Work::Drain { pod, order },
        }
    }
}

/// Evictions that are due and wait for a place in the evictor's window.
#[derive(Default)]
pub(super) struct Queue {
    turns: Mutex<Turns<HandedOut>>,
    /// Something came in, or a place became free.
    changed: Notify,
}

/// Takes what is due in one shard, until `stop`: nodes back to the node queue, pods to `queue`.
pub(super) async fn take_due(
    shared: Arc<Shared>,
    shard: usize,
    queue: Arc<Queue>,
    stop: CancellationToken,
) {
    let timers = &shared.timers[shard];
    loop {
        let Fired { key, token, value, due } = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            fired = shared.next_due(timers) => fired,
        };
        match (&key, value) {
            (TimerKey::Pod(uid), Work::Evict { pod, verdict }) => {
                let is_retry = shared.backlog.get(*uid).is_some();
                // It is in the backlog from now on, also while it waits for its turn.
                shared.backlog.enter(&pod, &verdict, due);
                let node = pod.node.clone();
                let task = Task::Evict(Job { pod, verdict, due });
                let handed_out = HandedOut::new(&shared, shard, key, token, task);
                queue.turns.lock().push(&node, is_retry, handed_out);
                queue.changed.notify_one();
            }
            (_, Work::Drain { pod, order }) => {
                let node = pod.node.clone();
                let is_retry =
                    shared.orders.get(pod.uid).is_some_and(|o| o.state != OrderState::Due);
                let task = Task::Drain(OrderedJob { pod, order, due });
                let handed_out = HandedOut::new(&shared, shard, key, token, task);
                queue.turns.lock().push(&node, is_retry, handed_out);
                queue.changed.notify_one();
            }
            (
                TimerKey::Node(name) | TimerKey::Noisy(name),
                Work::Evict { .. } | Work::LookAgain,
            ) => {
                timers.complete(&key, token, pipeline::Outcome::Done);
                shared.node_changed(name.clone());
            }
            (TimerKey::Drained(_), Work::Evict { .. } | Work::LookAgain)
            | (TimerKey::Pod(_), Work::LookAgain) => {
                timers.complete(&key, token, pipeline::Outcome::Done);
            }
        }
    }
}

/// Hands evictions to the evictor, as many at a time as its window has places, until `stop`. Those
/// in flight then go on, in the hands of the `runner`.
pub(super) async fn carry(
    queue: Arc<Queue>,
    carrier: Arc<Carrier>,
    pace: Arc<Pace>,
    runner: Runner,
    stop: CancellationToken,
) {
    loop {
        while pace.enter() {
            let Some(handed_out) = queue.turns.lock().pop() else {
                pace.leave();
                break;
            };
            let (pace, queue) = (Arc::clone(&pace), Arc::clone(&queue));
            let mut place = Place { pace, queue, hangs: false };
            let (carrier, handed_out) = (Arc::clone(&carrier), Arc::new(handed_out));
            let pod = handed_out.task.pod().to_string();
            let work = {
                let handed_out = Arc::clone(&handed_out);
                async move {
                    let work = carrier.carry_out(&handed_out);
                    tokio::pin!(work);
                    if let Ok(outcome) = tokio::time::timeout(HANGS, &mut work).await {
                        outcome
                    } else {
                        place.hang();
                        work.await
                    }
                }
            };
            runner.run("eviction", pod, work, move |ended| match ended {
                Ok(outcome) => handed_out.finish(&outcome),
                Err(Panicked) => handed_out.finish(&Outcome::Again(AFTER_PANIC)),
            });
        }
        tokio::select! {
            // What ends during the stop makes room, but not for another.
            biased;
            () = stop.cancelled() => return,
            () = queue.changed.notified() => {}
        }
    }
}

/// A place in the window, given back in every case.
struct Place {
    pace: Arc<Pace>,
    queue: Arc<Queue>,
    hangs: bool,
}

impl Place {
    /// Lets another one begin meanwhile.
    fn hang(&mut self) {
        self.hangs = self.pace.hang();
        self.queue.changed.notify_one();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.hangs {
            self.pace.leave_hanging();
        } else {
            self.pace.leave();
        }
        self.queue.changed.notify_one();
    }
}

/// An eviction that was handed out by the timers, and goes back to them.
pub(super) struct HandedOut {
    shared: Arc<Shared>,
    shard: usize,
    key: TimerKey,
    token: Token,
    task: Task,
}

impl HandedOut {
    pub(super) fn new(
        shared: &Arc<Shared>,
        shard: usize,
        key: TimerKey,
        token: Token,
        task: Task,
    ) -> Self {
        Self { shared: Arc::clone(shared), shard, key, token, task }
    }

    /// Whether it is still wanted: it was not disarmed since.
    fn is_current(&self) -> bool {
        self.shared.timers[self.shard].is_current(&self.key, self.token)
    }

    pub(super) fn finish(&self, outcome: &Outcome) {
        match outcome {
            Outcome::Reconsider => {
                let timers = &self.shared.timers[self.shard];
                let was_current = timers.complete(&self.key, self.token, pipeline::Outcome::Done);
                let PodRef { node, uid, .. } = self.task.pod();
                match &self.task {
                    Task::Evict(_) => self.shared.pod_changed(node.clone(), *uid),
                    // Unless there is another order by now, that one is over.
                    Task::Drain(_) if was_current && timers.get(&self.key).is_none() => {
                        self.shared.orders.leave(*uid);
                        self.shared.node_changed(node.clone());
                    }
                    Task::Drain(_) => {}
                }
            }
            Outcome::Again(pause) => {
                let not_before = Instant::now() + *pause;
                let retry =
                    pipeline::Outcome::Retry { not_before, value: self.task.clone().into_work() };
                self.shared.timers[self.shard].complete(&self.key, self.token, retry);
            }
        }
    }
}

#[cfg(test)]
mod tests;
