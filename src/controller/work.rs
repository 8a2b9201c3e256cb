//! What only the leader does: decide, evict, drain, and keep records.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::due::take_due;
use super::failure::{Failed, ended};
use super::handler::Decider;
use super::newest_facts::NewestFacts;
use super::requests::ByEvents;
use super::state::Shared;
use crate::cluster::{Api, WriteGate};
use crate::drain_reconciler::{self, DrainReconciler};
use crate::evict::{self, Evictor, Requests, Window};
use crate::informer::WorkQueues;
use crate::leader::Term;
use crate::pipeline::{Panics, Pipeline, Runner, SHARDS, work_inline};
use crate::taint_records::RecordLane;

/// The work of a controller, through all its terms.
pub(super) struct Work<A> {
    pub(super) shared: Arc<Shared>,
    pub(super) api: Api,
    pub(super) evictor: Arc<Evictor<NewestFacts, A, ByEvents>>,
    /// Cancelled once the nodes are known, and once the pods are.
    pub(super) listed: [CancellationToken; 2],
    /// Evictions and records in flight.
    pub(super) in_flight: TaskTracker,
    pub(super) panics: Panics,
    /// Says until when a request may be in flight after the lease was lost.
    pub(super) gate: WriteGate,
    pub(super) hands: Hands,
    /// Tells this controller's jitter from that of others.
    pub(super) seed: u128,
}

/// All that work needs but the requests of evictions.
pub(super) struct WorkParts {
    pub(super) shared: Arc<Shared>,
    pub(super) api: Api,
    pub(super) notices: ByEvents,
    pub(super) evict_metrics: evict::Metrics,
    pub(super) window: Arc<Window>,
    pub(super) listed: [CancellationToken; 2],
    pub(super) in_flight: TaskTracker,
    pub(super) panics: Panics,
    pub(super) gate: WriteGate,
    pub(super) hands: Hands,
    pub(super) seed: u128,
}

impl WorkParts {
    /// Work whose evictions send these requests.
    pub(super) fn sending<A: Requests>(self, requests: A) -> Work<A> {
        let Self { shared, api, listed, in_flight, panics, gate, hands, seed, .. } = self;
        let evictor = Arc::new(Evictor::new(
            shared.newest_facts(),
            requests,
            self.notices,
            Arc::clone(&shared.schedule.backlog),
            self.evict_metrics,
            shared.facts.clock.clone(),
            self.window,
        ));
        Work { shared, api, evictor, listed, in_flight, panics, gate, hands, seed }
    }
}

/// Who handles what is in the work queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hands {
    /// The pipeline's threads.
    Threads,
    /// The caller's runtime, so that all happens in one thread, and in virtual time if that is paused.
    Inline,
}

impl Hands {
    /// Handles what is queued until `stop`.
    async fn work(
        self,
        queues: &WorkQueues,
        decider: &Arc<Decider>,
        stop: &CancellationToken,
    ) -> Result<(), Failed> {
        if self == Self::Inline {
            let work = work_inline(&queues.nodes, &queues.pods, &**decider);
            stop.run_until_cancelled(work).await;
            return Ok(());
        }
        let pipeline = Pipeline::start(&queues.nodes, &queues.pods, decider, &Handle::current())
            .map_err(Failed::Threads)?;
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            failure = pipeline.failed() => return Err(failure.into()),
        }
        match tokio::task::spawn_blocking(move || pipeline.stop()).await {
            Ok(result) => Ok(result?),
            Err(error) => Err(Failed::Task(error.to_string())),
        }
    }
}

impl<A: Requests + 'static> Work<A> {
    /// Works in each of the `terms` until `stop`. Then it takes no new work and returns; what is in
    /// flight goes on.
    ///
    /// Every term begins from what the API stores, as it is in the view. Of the work of the one
    /// before nothing is left, neither in flight nor in a queue.
    ///
    /// # Errors
    /// A part has ended that must not, and so must the process.
    pub(super) async fn run(
        self,
        mut terms: mpsc::Receiver<Term>,
        stop: CancellationToken,
    ) -> Result<(), Failed> {
        for number in 0.. {
            let Some(term) = stop.run_until_cancelled(terms.recv()).await else { return Ok(()) };
            let Some(term) = term else {
                // The election has ended, and says why.
                stop.cancelled().await;
                return Ok(());
            };
            let runner = Runner::new(self.in_flight.clone(), self.panics.clone());
            self.lead(number, &term, &runner, &stop).await?;
            if stop.run_until_cancelled(self.finish(&runner)).await.is_none() {
                return Ok(());
            }
            self.shared.forget_work();
            term.end();
        }
        Ok(())
    }

    /// Works until the term is over, or until `stop`.
    async fn lead(
        &self,
        number: u64,
        term: &Term,
        runner: &Runner,
        stop: &CancellationToken,
    ) -> Result<(), Failed> {
        let Self { shared, api, evictor, listed, hands, .. } = self;
        let Shared { facts, queues, schedule, .. } = &**shared;
        let over = stop.child_token();
        shared.lead();
        let decider = Arc::new(shared.decider());
        let mut tasks = JoinSet::new();
        for shard in 0..SHARDS {
            let (queues, schedule) = (Arc::clone(queues), Arc::clone(schedule));
            tasks.spawn(take_due(queues, schedule, shard, over.clone()));
        }
        let (evictor, origin) = (Arc::clone(evictor), Arc::clone(schedule));
        let queue = Arc::clone(&schedule.due);
        tasks.spawn(evict::hand_out(queue, origin, evictor, runner.clone(), over.clone()));
        if let Some(drains) = &shared.drains {
            let (facts, schedule) = (Arc::clone(facts), Arc::clone(schedule));
            let drains = Arc::clone(drains);
            // Names of sessions must not come again in a later term.
            let seed = self.seed.wrapping_add(u128::from(number) << 64);
            let pauses = Arc::clone(&shared.pauses);
            let reconciler =
                DrainReconciler::new(facts, schedule, drains, pauses, api.clone(), seed);
            tasks.spawn(drain_reconciler::run(
                reconciler,
                listed.clone(),
                over.clone(),
                runner.clone(),
            ));
        }
        let pods_listed = listed[1].clone();
        let lane = RecordLane {
            facts: Arc::clone(facts),
            queue: Arc::clone(&shared.records),
            recorder: shared.recorder.clone(),
            api: api.clone(),
        };
        // A dry run records nothing: what it has seen first is forgotten when it ends.
        if facts.unwritten.is_none() {
            tasks.spawn(lane.run(pods_listed, over.clone(), runner.clone()));
        }
        {
            let work = async {
                tokio::select! {
                    biased;
                    worked = hands.work(queues, &decider, &over) => worked,
                    failed = ended_early(&mut tasks, &over) => Err(failed),
                }
            };
            tokio::pin!(work);
            let worked = tokio::select! {
                biased;
                worked = &mut work => worked,
                () = term.lost() => {
                    shared.stand_by();
                    over.cancel();
                    work.await
                }
            };
            worked?;
        }
        while tasks.join_next().await.is_some() {}
        Ok(())
    }

    /// Waits for what is in flight, for as long as the lost claim lets it, and drops the rest.
    async fn finish(&self, runner: &Runner) {
        self.in_flight.close();
        tokio::select! {
            () = self.in_flight.wait() => {}
            () = self.gate.ended() => {
                runner.abandon();
                self.in_flight.wait().await;
            }
        }
        self.in_flight.reopen();
    }
}

/// Completes only if a task ends before `stop`: from then on each of them is to.
async fn ended_early(tasks: &mut JoinSet<()>, stop: &CancellationToken) -> Failed {
    while let Some(task) = tasks.join_next().await {
        if task.is_err() || !stop.is_cancelled() {
            return ended(task);
        }
    }
    std::future::pending().await
}
