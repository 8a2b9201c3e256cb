//! What only the leader does: decide, evict, drain, and keep records.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::drain::{self, Conductor};
use super::handler::Decider;
use super::pump::{self, Carrier};
use super::records;
use super::run::{Failed, ended};
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
        let Self { shared, api, carrier, pace, listed, in_flight } = self;
        shared.lead();
        let decider = Arc::new(Decider { shared: Arc::clone(&shared) });
        let pipeline = Pipeline::start(&shared.nodes, &shared.pods, &decider, &Handle::current())
            .map_err(Failed::Threads)?;
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
        tasks.spawn(records::run(shared, api, pods_listed, stop.clone(), in_flight));
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            failure = pipeline.failed() => return Err(failure.into()),
            Some(task) = tasks.join_next() => return Err(ended(task)),
        }
        while tasks.join_next().await.is_some() {}
        match tokio::task::spawn_blocking(move || pipeline.stop()).await {
            Ok(result) => Ok(result?),
            Err(error) => Err(Failed::Task(error.to_string())),
        }
    }
}
