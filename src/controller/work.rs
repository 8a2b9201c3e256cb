//! What only the leader does: decide, evict, drain, and keep records.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::drain::{self, Conductor};
use super::engine::ended;
use super::handler::Decider;
use super::pump::{self, Carrier};
use super::records;
use super::run::Failed;
use super::state::Shared;
use crate::cluster::Api;
use crate::evict::Pace;
use crate::pipeline::{Pipeline, SHARDS};

/// The work of a controller, not begun.
pub(super) struct Work {
    pub(super) shared: Arc<Shared>,
    pub(super) api: Api,
    pub(super) carrier: Carrier,
    pub(super) pace: Arc<Pace>,
    /// Cancelled once the nodes are known, and once the pods are.
    pub(super) listed: [CancellationToken; 2],
    /// Evictions and records in flight.
    pub(super) in_flight: TaskTracker,
    pub(super) hands: Hands,
}

/// Who handles what is in the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hands {
    /// The pipeline's threads.
    Threads,
    /// A task, so that everything happens in one thread and in virtual time.
    #[cfg(test)]
    Task,
}

impl Hands {
    /// Handles what is queued until `stop`.
    async fn work(
        self,
        shared: &Arc<Shared>,
        decider: &Arc<Decider>,
        stop: &CancellationToken,
    ) -> Result<(), Failed> {
        #[cfg(test)]
        if self == Self::Task {
            stop.run_until_cancelled(decide_here(shared, decider)).await;
            return Ok(());
        }
        let pipeline = Pipeline::start(&shared.nodes, &shared.pods, decider, &Handle::current())
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

/// Handles what is queued, nodes before pods, as the workers do.
#[cfg(test)]
async fn decide_here(shared: &Shared, decider: &Decider) {
    use crate::pipeline::{Handler, shard_of};
    loop {
        if !shared.nodes.is_empty() {
            let Some(key) = shared.nodes.get() else { return };
            decider.node(shard_of(key.0.as_str()), &key);
            shared.nodes.done(&key);
        } else if !shared.pods.is_empty() {
            let Some(key) = shared.pods.get() else { return };
            decider.pod(shard_of(key.node.as_str()), &key);
            shared.pods.done(&key);
        } else {
            shared.queued.notified().await;
        }
    }
}

impl Work {
    /// Waits until this process `leads`, and works until `stop`. Then it takes no new work and
    /// returns; what is in flight goes on.
    ///
    /// # Errors
    /// A part has ended that must not, and so must the process.
    pub(super) async fn run(
        self,
        leads: CancellationToken,
        stop: CancellationToken,
    ) -> Result<(), Failed> {
        if stop.run_until_cancelled(leads.cancelled()).await.is_none() {
            return Ok(());
        }
        let Self { shared, api, carrier, pace, listed, in_flight, hands } = self;
        shared.lead();
        let decider = Arc::new(Decider { shared: Arc::clone(&shared) });
        let mut tasks = JoinSet::new();
        let queue = Arc::new(pump::Queue::default());
        for shard in 0..SHARDS {
            let queue = Arc::clone(&queue);
            tasks.spawn(pump::take_due(Arc::clone(&shared), shard, queue, stop.clone()));
        }
        tasks.spawn(pump::carry(queue, Arc::new(carrier), pace, in_flight.clone(), stop.clone()));
        if let Some(drains) = &shared.drains {
            let conductor = Conductor::new(Arc::clone(&shared), Arc::clone(drains), api.clone());
            tasks.spawn(drain::run(conductor, listed.clone(), stop.clone(), in_flight.clone()));
        }
        let [_, pods_listed] = listed;
        let records = records::run(Arc::clone(&shared), api, pods_listed, stop.clone(), in_flight);
        tasks.spawn(records);
        tokio::select! {
            biased;
            worked = hands.work(&shared, &decider, &stop) => worked?,
            failed = ended_early(&mut tasks, &stop) => return Err(failed),
        }
        while tasks.join_next().await.is_some() {}
        Ok(())
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
