//! Carries what is due from the timers to the evictor, and its outcome back.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::judge::View;
use super::requests::{ApiRequests, ByEvents};
use super::state::{Shared, TimerKey, Work};
use crate::evict::{Evictor, Job, Outcome, Pace, Turns};
use crate::pipeline::{self, Fired, Token};

/// Pause before an eviction comes again that ended without an outcome.
const AFTER_PANIC: Duration = Duration::from_secs(10);

pub(super) type Carrier = Evictor<View, ApiRequests, ByEvents>;

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
            fired = timers.next() => fired,
        };
        match (&key, value) {
            (TimerKey::Pod(uid), Work::Evict { pod, verdict }) => {
                let is_retry = shared.backlog.get(*uid).is_some();
                // It is in the backlog from now on, also while it waits for its turn.
                shared.backlog.enter(&pod, &verdict, due);
                let node = pod.node.clone();
                let job = Job { pod, verdict, due };
                let handed_out = HandedOut::new(&shared, shard, key, token, job);
                queue.turns.lock().push(&node, is_retry, handed_out);
                queue.changed.notify_one();
            }
            (TimerKey::Node(name), _) => {
                timers.complete(&key, token, pipeline::Outcome::Done);
                shared.node_changed(name.clone());
            }
            (TimerKey::Pod(_), Work::LookAgain) => {
                timers.complete(&key, token, pipeline::Outcome::Done);
            }
        }
    }
}

/// Hands evictions to the evictor, as many at a time as its window has places, until `stop`. Those
/// in flight then go on, tracked by `in_flight`.
pub(super) async fn carry(
    queue: Arc<Queue>,
    evictor: Arc<Carrier>,
    pace: Arc<Pace>,
    in_flight: TaskTracker,
    stop: CancellationToken,
) {
    loop {
        while pace.enter() {
            let Some(handed_out) = queue.turns.lock().pop() else {
                pace.leave();
                break;
            };
            let place = Place { pace: Arc::clone(&pace), queue: Arc::clone(&queue) };
            let evictor = Arc::clone(&evictor);
            in_flight.spawn(async move {
                let outcome = evictor.carry_out(handed_out.job()).await;
                handed_out.finish(&outcome);
                drop(place);
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
}

impl Drop for Place {
    fn drop(&mut self) {
        self.pace.leave();
        self.queue.changed.notify_one();
    }
}

/// An eviction that was handed out by the timers. It goes back to them in every case: if the work
/// on it panics, it comes again.
pub(super) struct HandedOut {
    shared: Arc<Shared>,
    shard: usize,
    key: TimerKey,
    token: Token,
    job: Job,
    finished: bool,
}

impl HandedOut {
    pub(super) fn new(
        shared: &Arc<Shared>,
        shard: usize,
        key: TimerKey,
        token: Token,
        job: Job,
    ) -> Self {
        Self { shared: Arc::clone(shared), shard, key, token, job, finished: false }
    }

    pub(super) fn job(&self) -> &Job {
        &self.job
    }

    pub(super) fn finish(mut self, outcome: &Outcome) {
        self.finished = true;
        match outcome {
            Outcome::Reconsider => {
                let timers = &self.shared.timers[self.shard];
                timers.complete(&self.key, self.token, pipeline::Outcome::Done);
                self.shared.pod_changed(self.job.pod.node.clone(), self.job.pod.uid);
            }
            Outcome::Again(pause) => self.again(*pause),
        }
    }

    /// Loses it, as a controller must not.
    #[cfg(test)]
    pub(super) fn forget(mut self) {
        self.finished = true;
        let timers = &self.shared.timers[self.shard];
        timers.complete(&self.key, self.token, pipeline::Outcome::Done);
    }

    fn again(&self, pause: Duration) {
        let value = Work::Evict { pod: self.job.pod.clone(), verdict: self.job.verdict.clone() };
        let retry = pipeline::Outcome::Retry { not_before: Instant::now() + pause, value };
        self.shared.timers[self.shard].complete(&self.key, self.token, retry);
    }
}

impl Drop for HandedOut {
    fn drop(&mut self) {
        // One that is dropped at the stop goes nowhere: the next process finds the pod itself.
        if !self.finished && std::thread::panicking() {
            tracing::error!(pod = %self.job.pod, uid = %self.job.pod.uid,
                "the eviction panicked; it will be tried again");
            self.again(AFTER_PANIC);
        }
    }
}
