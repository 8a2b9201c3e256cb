//! Start, run and stop of a controller.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use prometheus::Registry;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::handler::Decider;
use super::ingest::{Nodes, Pods};
use super::judge::View;
use super::preflight::{self, PreflightError};
use super::requests::{ApiRequests, ByEvents};
use super::state::{NodeKey, PodKey, Shared, TimerKey, Work};
use super::{metrics, records, time_watch};
use crate::clock::Clock;
use crate::cluster::{self, Api, PodDecoder, watch};
use crate::config::Config;
use crate::evict::{self, Evictor, Job, Outcome};
use crate::observe::{
    Endpoints, Event, EventLane, EventMetrics, Gate, ListenError, Readiness, Recorder, serve,
};
use crate::pipeline::{self, Fired, Pipeline, SHARDS};

/// Pods being evicted at the same time, each over a connection of its own. A kube-apiserver on
/// two cores gives the most evictions per second at 16 connections, and fewer beyond.
const SLOTS: usize = 16;
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

type Carrier = Evictor<View, ApiRequests, ByEvents>;

/// A controller at work. Dropping it abandons what is in flight; [`Running::stop`] does not.
pub struct Running {
    shared: Arc<Shared>,
    pipeline: Pipeline<NodeKey, PodKey>,
    /// Ends what takes in new work.
    stop: CancellationToken,
    /// Evictions and records in flight.
    in_flight: TaskTracker,
    watches: Vec<JoinHandle<()>>,
    background: TaskTracker,
    events: JoinHandle<()>,
    last_events: CancellationToken,
    endpoints: CancellationToken,
    served: JoinHandle<()>,
    address: std::net::SocketAddr,
}

/// Starts a controller on the cluster that `client` leads to.
///
/// # Errors
/// See [`StartError`]: each says what to do about it.
pub async fn start(client: Client, config: &Config) -> Result<Running, StartError> {
    let registry = Registry::new();
    register_process(&registry)?;
    let cluster_metrics = cluster::Metrics::register(&registry)?;
    let api = Api::new(client, cluster_metrics.clone());
    preflight::check(&api).await?;

    let clock = Clock::system();
    let event_metrics = EventMetrics::register(&registry)?;
    let (recorder, lane) = Recorder::new(&config.instance, event_metrics, clock.clone());
    let shared = Arc::new(Shared::new(clock.clone(), config.compat, recorder.clone()));
    metrics::register(&registry, &shared)?;
    let evict_metrics = evict::Metrics::register(&registry, Arc::clone(&shared.backlog))?;
    time_watch::align(&shared, &api).await;

    let readiness = Readiness::default();
    let (nodes_known, pods_known) =
        (readiness.gate("list of nodes"), readiness.gate("list of pods"));
    let endpoints = CancellationToken::new();
    let (address, served) =
        serve(config.listen, Endpoints { registry, readiness }, endpoints.clone()).await?;
    info!(%address, version = env!("CARGO_PKG_VERSION"), compat = ?config.compat, "started");

    let decider = Arc::new(Decider { shared: Arc::clone(&shared) });
    let pipeline = Pipeline::start(&shared.nodes, &shared.pods, &decider, &Handle::current())
        .map_err(StartError::Threads)?;

    let watches = start_watches(&shared, &api, &cluster_metrics, nodes_known, pods_known);
    let stop = CancellationToken::new();
    let (in_flight, background) = (TaskTracker::new(), TaskTracker::new());
    let evictor = Evictor::new(
        View { shared: Arc::clone(&shared) },
        ApiRequests(api.clone()),
        ByEvents(recorder),
        Arc::clone(&shared.backlog),
        evict_metrics,
        clock,
    );
    for pump in Pump::for_all_shards(&shared, evictor, &in_flight) {
        background.spawn(pump.run(stop.clone()));
    }
    let records = records::run(Arc::clone(&shared), api.clone(), stop.clone(), in_flight.clone());
    background.spawn(records);
    background.spawn(time_watch::run(Arc::clone(&shared), api.clone(), stop.clone()));
    let last_events = CancellationToken::new();
    let events = tokio::spawn(send_events(lane, api, last_events.clone()));

    Ok(Running {
        shared,
        pipeline,
        stop,
        in_flight,
        watches,
        background,
        events,
        last_events,
        endpoints,
        served,
        address,
    })
}

/// Starts to watch nodes and pods. Each gate opens with the first complete list.
fn start_watches(
    shared: &Arc<Shared>,
    api: &Api,
    metrics: &cluster::Metrics,
    nodes_known: Gate,
    pods_known: Gate,
) -> Vec<JoinHandle<()>> {
    let nodes = Nodes { shared: Arc::clone(shared) };
    let pods = Pods { shared: Arc::clone(shared), decoder: PodDecoder::default() };
    vec![
        tokio::spawn(watch::run(api.clone(), metrics.clone(), nodes, move || {
            nodes_known.open();
        })),
        tokio::spawn(watch::run(api.clone(), metrics.clone(), pods, move || {
            pods_known.open();
        })),
    ]
}

impl Running {
    /// The address of the HTTP endpoints.
    pub fn address(&self) -> std::net::SocketAddr {
        self.address
    }

    /// Completes only if a part that must not end has ended: the process must end then too.
    pub async fn failed(&self) -> pipeline::Failure {
        self.pipeline.failed().await
    }

    /// Takes no new work, finishes the requests in flight within 20 s, and ends.
    ///
    /// # Errors
    /// A worker had panicked.
    pub async fn stop(self) -> Result<(), pipeline::Failure> {
        self.stop.cancel();
        for watch in &self.watches {
            watch.abort();
        }
        self.background.close();
        self.background.wait().await;
        let pipeline = self.pipeline;
        let stopped = tokio::task::spawn_blocking(move || pipeline.stop()).await;
        self.in_flight.close();
        let left = self.in_flight.len();
        if timeout(LAST_REQUESTS, self.in_flight.wait()).await.is_err() {
            warn!(requests = self.in_flight.len(), "requests in flight were abandoned");
        } else if left > 0 {
            info!(requests = left, "requests in flight were finished");
        }
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
            Ok(result) => result,
            Err(error) => {
                warn!(%error, "the worker threads could not be joined");
                Ok(())
            }
        }
    }
}

/// Carries what is due in one shard to the evictor.
struct Pump {
    shard: usize,
    shared: Arc<Shared>,
    evictor: Arc<Carrier>,
    slots: Arc<Semaphore>,
    in_flight: TaskTracker,
}

impl Pump {
    fn for_all_shards(
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

    async fn run(self, stop: CancellationToken) {
        let timers = &self.shared.timers[self.shard];
        loop {
            let Fired { key, token, value, due } = tokio::select! {
                () = stop.cancelled() => return,
                fired = timers.next() => fired,
            };
            match (&key, value) {
                (TimerKey::Node(name), _) => {
                    timers.complete(&key, token, pipeline::Outcome::Done);
                    self.shared.node_changed(name.clone());
                }
                (TimerKey::Pod(_), Work::Evict { pod, verdict }) => {
                    // What is due meanwhile waits in the queue, where a newer decision finds it.
                    let slot = tokio::select! {
                        () = stop.cancelled() => return,
                        slot = Arc::clone(&self.slots).acquire_owned() => slot,
                    };
                    let Ok(slot) = slot else { return };
                    let (shared, evictor) = (Arc::clone(&self.shared), Arc::clone(&self.evictor));
                    let shard = self.shard;
                    self.in_flight.spawn(async move {
                        let job = Job { pod, verdict, due };
                        let outcome = evictor.carry_out(&job).await;
                        drop(slot);
                        finish(&shared, shard, &key, token, job, &outcome);
                    });
                }
                (TimerKey::Pod(_), Work::LookAgain) => {
                    timers.complete(&key, token, pipeline::Outcome::Done);
                }
            }
        }
    }
}

pub(super) fn finish(
    shared: &Shared,
    shard: usize,
    key: &TimerKey,
    token: pipeline::Token,
    job: Job,
    outcome: &Outcome,
) {
    let (uid, node) = (job.pod.uid, job.pod.node.clone());
    match outcome {
        Outcome::Reconsider => {
            shared.timers[shard].complete(key, token, pipeline::Outcome::Done);
            shared.pod_changed(node, uid);
        }
        Outcome::Again(pause) => {
            let value = Work::Evict { pod: job.pod, verdict: job.verdict };
            let retry = pipeline::Outcome::Retry { not_before: Instant::now() + *pause, value };
            shared.timers[shard].complete(key, token, retry);
        }
    }
}

async fn send_events(lane: EventLane, api: Api, stop: CancellationToken) {
    let create = |event: Event| {
        let api = api.clone();
        async move { api.create_event(&event.namespace, &event.object).await }
    };
    lane.run(create, stop).await;
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
