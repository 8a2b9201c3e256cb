//! Carries what is due in one shard to the evictor, and its outcome back to the timers.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::judge::View;
use super::requests::{ApiRequests, ByEvents};
use super::state::{Shared, TimerKey, Work};
use crate::evict::{Evictor, Job, Outcome};
use crate::pipeline::{self, Fired, SHARDS, Token};

/// Pods being evicted at the same time, each over a connection of its own. A kube-apiserver on
/// two cores gives the most evictions per second at 16 connections, and fewer beyond.
const SLOTS: usize = 16;
/// Pause before an eviction comes again that ended without an outcome.
const AFTER_PANIC: Duration = Duration::from_secs(10);

pub(super) type Carrier = Evictor<View, ApiRequests, ByEvents>;

/// The way of one shard from its timers to the evictor.
pub(super) struct Pump {
    shard: usize,
    shared: Arc<Shared>,
    evictor: Arc<Carrier>,
    slots: Arc<Semaphore>,
    in_flight: TaskTracker,
}

impl Pump {
    /// One for each shard. Together they keep to the number of slots.
    pub(super) fn for_all_shards(
        shared: &Arc<Shared>,
        evictor: Carrier,
        in_flight: &TaskTracker,
    ) -> impl Iterator<Item = Self> {
        let (evictor, slots) = (Arc::new(evictor), Arc::new(Semaphore::new(SLOTS)));
        (0..SHARDS).map(move |shard| Self {
            shard,
            shared: Arc::clone(shared),
            evictor: Arc::clone(&evictor),
            slots: Arc::clone(&slots),
            in_flight: in_flight.clone(),
        })
    }

    /// Runs until `stop`. Evictions in flight then go on, tracked by `in_flight`.
    pub(super) async fn run(self, stop: CancellationToken) {
        let timers = &self.shared.timers[self.shard];
        loop {
            let Fired { key, token, value, due } = tokio::select! {
                () = stop.cancelled() => return,
                fired = timers.next() => fired,
            };
            match (&key, value) {
                (TimerKey::Pod(_), Work::Evict { pod, verdict }) => {
                    // What is due meanwhile waits in the queue, where a newer decision finds it.
                    let slot = tokio::select! {
                        () = stop.cancelled() => return,
                        slot = Arc::clone(&self.slots).acquire_owned() => slot,
                    };
                    let Ok(slot) = slot else { return };
                    let evictor = Arc::clone(&self.evictor);
                    let job = Job { pod, verdict, due };
                    let handed_out = HandedOut::new(&self.shared, self.shard, key, token, job);
                    self.in_flight.spawn(async move {
                        let outcome = evictor.carry_out(handed_out.job()).await;
                        drop(slot);
                        handed_out.finish(&outcome);
                    });
                }
                (TimerKey::Node(name), _) => {
                    timers.complete(&key, token, pipeline::Outcome::Done);
                    self.shared.node_changed(name.clone());
                }
                (TimerKey::Pod(_), Work::LookAgain) => {
                    timers.complete(&key, token, pipeline::Outcome::Done);
                }
            }
        }
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
        let timers = &self.shared.timers[self.shard];
        match outcome {
            Outcome::Reconsider => {
                timers.complete(&self.key, self.token, pipeline::Outcome::Done);
                self.shared.pod_changed(self.job.pod.node.clone(), self.job.pod.uid);
            }
            Outcome::Again(pause) => self.again(*pause),
        }
    }

    fn again(&self, pause: Duration) {
        let value = Work::Evict { pod: self.job.pod.clone(), verdict: self.job.verdict.clone() };
        let retry = pipeline::Outcome::Retry { not_before: Instant::now() + pause, value };
        self.shared.timers[self.shard].complete(&self.key, self.token, retry);
    }
}

impl Drop for HandedOut {
    fn drop(&mut self) {
        // On a runtime that shuts down there is no timer to go back to, and no one to care.
        if !self.finished && std::thread::panicking() {
            tracing::error!(pod = %self.job.pod, uid = %self.job.pod.uid,
                "the eviction panicked; it will be tried again");
            self.again(AFTER_PANIC);
        }
    }
}
