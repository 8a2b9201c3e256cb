//! Start, run and stop of a controller.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use prometheus::Registry;
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::handler::Decider;
use super::ingest::{Nodes, Pods};
use super::judge::View;
use super::preflight::{self, PreflightError};
use super::requests::{ApiRequests, ByEvents};
use super::state::{NodeKey, PodKey, Shared};
use super::{metrics, pump, records, time_watch};
use crate::clock::Clock;
use crate::cluster::{self, Api, Cluster, PodDecoder, watch};
use crate::config::Config;
use crate::evict::{self, Evictor, Pace};
use crate::observe::{
    Endpoints, Event, EventLane, EventMetrics, Gate, ListenError, Readiness, Recorder, serve,
};
use crate::pipeline::{self, Pipeline, SHARDS};

/// For how long requests in flight may go on after the stop was asked for: one request's timeout
/// and a little more, within the grace period that `deploy/` grants.
const LAST_REQUESTS: Duration = Duration::from_secs(20);
/// For how long the events that wait may still be sent then.
const LAST_EVENTS: Duration = Duration::from_secs(2);

/// The controller could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The cluster cannot be worked with.
    #[error(transparent)]
    Preflight(#[from] PreflightError),
    /// The endpoints cannot be served.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The system grants no threads.
    #[error("cannot start the worker threads: {0}; check the limits of processes and memory")]
    Threads(std::io::Error),
    /// Two metrics have one name.
    #[error("cannot register the metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// A part of the controller that must not end has ended; so must the process.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// A worker or dispatcher thread panicked.
    #[error(transparent)]
    Thread(#[from] pipeline::Failure),
    /// A task ended or panicked.
    #[error("a task ended, so the process must be restarted: {0}")]
    Task(String),
}

/// A controller at work. Dropping it abandons what is in flight; [`Running::stop`] does not.
pub struct Running {
    shared: Arc<Shared>,
    pipeline: Pipeline<NodeKey, PodKey>,
    /// Ends what takes in new work.
    stop: CancellationToken,
    /// What takes in new work: none of it ends by itself.
    intake: JoinSet<()>,
    /// Ends the watches.
    blind: CancellationToken,
    /// The watches of nodes and pods; they do not end by themselves either.
    watches: JoinSet<()>,
    /// Evictions and records in flight.
    in_flight: TaskTracker,
    events: JoinHandle<()>,
    last_events: CancellationToken,
    endpoints: CancellationToken,
    served: JoinHandle<()>,
    address: std::net::SocketAddr,
}

/// Starts a controller on a cluster.
///
/// # Errors
/// See [`StartError`]: each says what to do about it.
pub async fn start(cluster: Cluster, config: &Config) -> Result<Running, StartError> {
    let registry = Registry::new();
    register_process(&registry)?;
    let cluster_metrics = cluster::Metrics::register(&registry)?;
    let api = Api::new(cluster.client, cluster_metrics.clone());
    preflight::check(&api, &cluster.server).await?;

    let clock = Clock::system();
    let event_metrics = EventMetrics::register(&registry)?;
    let (recorder, lane) = Recorder::new(&config.instance, event_metrics, clock.clone());
    let shared = Arc::new(Shared::new(clock.clone(), config.compat, recorder.clone()));
    let pace = Arc::new(Pace::default());
    metrics::register(&registry, &shared, &pace)?;
    let evict_metrics = evict::Metrics::register(&registry, Arc::clone(&shared.backlog))?;
    let aligned = time_watch::align(&shared, &api).await;

    let readiness = Readiness::default();
    let gates = (readiness.gate("list of nodes"), readiness.gate("list of pods"));
    let endpoints = CancellationToken::new();
    let (address, served) =
        serve(config.listen, Endpoints { registry, readiness }, endpoints.clone()).await?;
    info!(%address, server = cluster.server, version = env!("CARGO_PKG_VERSION"),
        rules = config.compat.rules(), "started");

    let decider = Arc::new(Decider { shared: Arc::clone(&shared) });
    let pipeline = Pipeline::start(&shared.nodes, &shared.pods, &decider, &Handle::current())
        .map_err(StartError::Threads)?;
    let evictor = Evictor::new(
        View { shared: Arc::clone(&shared) },
        ApiRequests(api.clone()),
        ByEvents(recorder),
        Arc::clone(&shared.backlog),
        evict_metrics,
        clock,
        Arc::clone(&pace),
    );

    let (stop, blind) = (CancellationToken::new(), CancellationToken::new());
    let in_flight = TaskTracker::new();
    let pods_listed = CancellationToken::new();
    let watches =
        start_watches(&shared, &api, &cluster_metrics, gates, pods_listed.clone(), &blind);
    let mut intake = JoinSet::new();
    let queue = Arc::new(pump::Queue::default());
    for shard in 0..SHARDS {
        let queue = Arc::clone(&queue);
        intake.spawn(pump::take_due(Arc::clone(&shared), shard, queue, stop.clone()));
    }
    let carry =
        pump::carry(queue, Arc::new(evictor), Arc::clone(&pace), in_flight.clone(), stop.clone());
    intake.spawn(carry);
    intake.spawn(records::run(
        Arc::clone(&shared),
        api.clone(),
        pods_listed,
        stop.clone(),
        in_flight.clone(),
    ));
    let clocks = time_watch::run(Arc::clone(&shared), api.clone(), aligned);
    intake.spawn(stop.clone().run_until_cancelled_owned(clocks).map(drop));
    let last_events = CancellationToken::new();
    let events = tokio::spawn(send_events(lane, api, pace, last_events.clone()));

    Ok(Running {
        shared,
        pipeline,
        stop,
        intake,
        blind,
        watches,
        in_flight,
        events,
        last_events,
        endpoints,
        served,
        address,
    })
}

/// Starts to watch nodes and pods until `blind`. Each gate opens with the first complete list, and
/// `pods_listed` is cancelled with that of the pods.
fn start_watches(
    shared: &Arc<Shared>,
    api: &Api,
    metrics: &cluster::Metrics,
    (nodes_known, pods_known): (Gate, Gate),
    pods_listed: CancellationToken,
    blind: &CancellationToken,
) -> JoinSet<()> {
    let nodes = Nodes { shared: Arc::clone(shared) };
    let nodes = watch::run(api.clone(), metrics.clone(), nodes, move || nodes_known.open());
    let pods = Pods { shared: Arc::clone(shared), decoder: PodDecoder::default() };
    let pods = watch::run(api.clone(), metrics.clone(), pods, move || {
        pods_known.open();
        pods_listed.cancel();
    });
    let mut tasks = JoinSet::new();
    tasks.spawn(blind.clone().run_until_cancelled_owned(nodes).map(drop));
    tasks.spawn(blind.clone().run_until_cancelled_owned(pods).map(drop));
    tasks
}

impl Running {
    /// The address of the HTTP endpoints.
    pub fn address(&self) -> std::net::SocketAddr {
        self.address
    }

    /// Completes only if a part that must not end has ended: the process must end then too.
    pub async fn failed(&mut self) -> Failed {
        let ended = tokio::select! {
            failure = self.pipeline.failed() => return Failed::Thread(failure),
            Some(ended) = self.intake.join_next() => ended,
            Some(ended) = self.watches.join_next() => ended,
            ended = &mut self.events => ended,
            ended = &mut self.served => ended,
        };
        Failed::Task(match ended {
            Ok(()) => "it returned".to_owned(),
            Err(error) => error.to_string(),
        })
    }

    /// Takes no new work, finishes the requests in flight within 20 s, and ends.
    ///
    /// The watches go on for as long as evictions are in flight: each asks again between its two
    /// requests, and a taint may be removed meanwhile.
    ///
    /// # Errors
    /// A worker had panicked.
    pub async fn stop(mut self) -> Result<(), Failed> {
        self.stop.cancel();
        while self.intake.join_next().await.is_some() {}
        let pipeline = self.pipeline;
        let stopped = tokio::task::spawn_blocking(move || pipeline.stop()).await;
        self.in_flight.close();
        let left = self.in_flight.len();
        if timeout(LAST_REQUESTS, self.in_flight.wait()).await.is_err() {
            warn!(requests = self.in_flight.len(), "requests in flight were abandoned");
        } else if left > 0 {
            info!(requests = left, "requests in flight were finished");
        }
        self.blind.cancel();
        while self.watches.join_next().await.is_some() {}
        for timers in &self.shared.timers {
            timers.clear();
        }
        self.last_events.cancel();
        if timeout(LAST_EVENTS, self.events).await.is_err() {
            warn!("events that were waiting were abandoned");
        }
        self.endpoints.cancel();
        let _ = timeout(Duration::from_secs(1), self.served).await;
        match stopped {
            Ok(result) => Ok(result?),
            Err(error) => Err(Failed::Task(error.to_string())),
        }
    }
}

/// Sends events until `stop`, and lets evictions that wait for a place in the window go first.
async fn send_events(lane: EventLane, api: Api, pace: Arc<Pace>, stop: CancellationToken) {
    let create = |event: Event| {
        let api = api.clone();
        async move { api.create_event(&event.namespace, &event.object).await }
    };
    lane.run(create, || pace.is_full(), stop).await;
}

#[cfg(target_os = "linux")]
fn register_process(registry: &Registry) -> prometheus::Result<()> {
    use prometheus::process_collector::ProcessCollector;
    registry.register(Box::new(ProcessCollector::for_self()))
}

#[cfg(not(target_os = "linux"))]
fn register_process(_: &Registry) -> prometheus::Result<()> {
    Ok(())
}
