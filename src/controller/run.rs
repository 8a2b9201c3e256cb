//! Start, run and stop of a controller.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use prometheus::Registry;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::drain::DrainMetrics;
use super::ingest::{Nodes, Pods};
use super::judge::View;
use super::preflight::{self, PreflightError};
use super::pump::Carrier;
use super::requests::{ApiRequests, ByEvents};
use super::state::Shared;
use super::work::Work;
use super::{metrics, time_watch};
use crate::clock::Clock;
use crate::cluster::{self, Api, Cluster, PodDecoder, WriteGate, watch};
use crate::config::Config;
use crate::evict::{self, Drainer, Evictor, OrderMetrics, Pace};
use crate::leader::{self, Candidate, Times};
use crate::observe::{
    Endpoints, Event, EventLane, EventMetrics, Gate, ListenError, Readiness, Recorder, serve,
};
use crate::pipeline;

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
    /// The system grants no threads.
    #[error("cannot start the worker threads: {0}; check the limits of processes and memory")]
    Threads(std::io::Error),
    /// Another process leads, or may.
    #[error(transparent)]
    Lease(#[from] leader::Lost),
    /// A task ended or panicked.
    #[error("a task ended, so the process must be restarted: {0}")]
    Task(String),
}

/// A controller at work, or standing by. Dropping it abandons what is in flight;
/// [`Running::stop`] does not.
pub struct Running {
    shared: Arc<Shared>,
    /// Ends what takes in new work.
    stop: CancellationToken,
    /// What only the leader does.
    work: JoinHandle<Result<(), Failed>>,
    /// Keeps the time; does not end by itself.
    clocks: JoinHandle<()>,
    /// Ends the watches.
    blind: CancellationToken,
    /// The watches of nodes and pods; they do not end by themselves either.
    watches: JoinSet<()>,
    /// Evictions and records in flight.
    in_flight: TaskTracker,
    events: JoinHandle<()>,
    last_events: CancellationToken,
    /// Gives the lease back.
    resign: CancellationToken,
    /// Takes part in the election, if there is one.
    election: JoinHandle<Result<(), leader::Lost>>,
    endpoints: CancellationToken,
    served: JoinHandle<()>,
    address: std::net::SocketAddr,
}

/// Starts a controller on a cluster. It works at once or, where a leader is elected, as soon as it
/// leads.
///
/// # Errors
/// See [`StartError`]: each says what to do about it.
pub async fn start(cluster: Cluster, config: &Config) -> Result<Running, StartError> {
    let registry = Registry::new();
    register_process(&registry)?;
    let cluster_metrics = cluster::Metrics::register(&registry)?;
    let elects = config.election.is_some();
    let gate = if elects { WriteGate::shut() } else { WriteGate::open() };
    let api = Api::new(cluster.client, cluster_metrics.clone()).gated(gate.clone());
    let drains = !config.policies.is_empty();
    preflight::check(&api, &cluster.server, config.election.as_deref(), drains).await?;

    let clock = Clock::system();
    let event_metrics = EventMetrics::register(&registry)?;
    let (recorder, lane) = Recorder::new(&config.instance, event_metrics, clock.clone());
    let shared = share(config, &registry, clock.clone(), recorder.clone())?;
    let pace = Arc::new(Pace::default());
    metrics::register(&registry, &shared, &pace)?;
    let evict_metrics = evict::Metrics::register(&registry, Arc::clone(&shared.backlog))?;
    let order_metrics = OrderMetrics::register(&registry, Arc::clone(&shared.orders))?;
    let leader_metrics = leader::Metrics::register(&registry, !elects)?;
    let aligned = time_watch::align(&shared, &api).await;

    let readiness = Readiness::default();
    let gates = (readiness.gate("list of nodes"), readiness.gate("list of pods"));
    let endpoints = CancellationToken::new();
    let (address, served) =
        serve(config.listen, Endpoints { registry, readiness }, endpoints.clone()).await?;
    info!(%address, server = cluster.server, version = env!("CARGO_PKG_VERSION"),
        rules = config.compat.rules(), "started");

    let requests = ApiRequests {
        api: api.clone(),
        watched: shared.drains.as_ref().map(|drains| Arc::clone(&drains.watched)),
    };
    let evictor = Evictor::new(
        View { shared: Arc::clone(&shared) },
        requests.clone(),
        ByEvents(recorder.clone()),
        Arc::clone(&shared.backlog),
        evict_metrics,
        clock.clone(),
        Arc::clone(&pace),
    );
    let drainer = Drainer::new(
        View { shared: Arc::clone(&shared) },
        requests,
        ByEvents(recorder),
        Arc::clone(&shared.orders),
        order_metrics,
        clock.clone(),
        Arc::clone(&pace),
    );
    let carrier = Carrier { evictor, drainer };

    let (stop, blind) = (CancellationToken::new(), CancellationToken::new());
    let in_flight = TaskTracker::new();
    let listed = [CancellationToken::new(), CancellationToken::new()];
    let watches = start_watches(&shared, &api, &cluster_metrics, gates, listed.clone(), &blind);
    let (leads, resign) = (CancellationToken::new(), CancellationToken::new());
    let work = Work {
        shared: Arc::clone(&shared),
        api: api.clone(),
        carrier,
        pace: Arc::clone(&pace),
        listed,
        in_flight: in_flight.clone(),
    };
    let work = tokio::spawn(work.run(leads.clone(), stop.clone()));
    let clocks = time_watch::run(Arc::clone(&shared), api.clone(), aligned);
    let clocks = tokio::spawn(stop.clone().run_until_cancelled_owned(clocks).map(drop));
    let last_events = CancellationToken::new();
    let events = tokio::spawn(send_events(lane, api.clone(), pace, last_events.clone()));
    let candidate = config.election.clone().map(|namespace| Candidate {
        api,
        namespace,
        identity: leader::identity(&config.instance),
        times: Times::default(),
        gate,
        metrics: leader_metrics,
        clock,
    });
    let election = tokio::spawn(elect(candidate, leads, resign.clone()));

    Ok(Running {
        shared,
        stop,
        work,
        clocks,
        blind,
        watches,
        in_flight,
        events,
        last_events,
        resign,
        election,
        endpoints,
        served,
        address,
    })
}

/// What all parts share, empty.
fn share(
    config: &Config,
    registry: &Registry,
    clock: Clock,
    recorder: Recorder,
) -> prometheus::Result<Arc<Shared>> {
    let shared = Shared::new(clock, config.compat, recorder);
    if config.policies.is_empty() {
        return Ok(Arc::new(shared));
    }
    let metrics = DrainMetrics::register(registry)?;
    let shared = Arc::new(shared.draining_by(config.policies.clone().into(), metrics));
    if let Some(drains) = &shared.drains {
        DrainMetrics::register_gauges(registry, &shared, drains)?;
    }
    Ok(shared)
}

/// Leads when the election is won, or at once if there is none, until `resign`.
async fn elect(
    candidate: Option<Candidate>,
    leads: CancellationToken,
    resign: CancellationToken,
) -> Result<(), leader::Lost> {
    if let Some(candidate) = candidate {
        return leader::run(candidate, leads, resign).await;
    }
    leads.cancel();
    resign.cancelled().await;
    Ok(())
}

/// Starts to watch nodes and pods until `blind`. Each gate opens with the first complete list, and
/// the token in `listed` is cancelled with it.
fn start_watches(
    shared: &Arc<Shared>,
    api: &Api,
    metrics: &cluster::Metrics,
    (nodes_known, pods_known): (Gate, Gate),
    [nodes_listed, pods_listed]: [CancellationToken; 2],
    blind: &CancellationToken,
) -> JoinSet<()> {
    let nodes = Nodes { shared: Arc::clone(shared) };
    let nodes = watch::run(api.clone(), metrics.clone(), nodes, move || {
        nodes_known.open();
        nodes_listed.cancel();
    });
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
        let task = tokio::select! {
            work = &mut self.work => match work {
                Ok(Err(failed)) => return failed,
                other => other.map(drop),
            },
            election = &mut self.election => match election {
                Ok(Err(lost)) => return lost.into(),
                other => other.map(drop),
            },
            clocks = &mut self.clocks => clocks,
            Some(watch) = self.watches.join_next() => watch,
            events = &mut self.events => events,
            served = &mut self.served => served,
        };
        ended(task)
    }

    /// Takes no new work, finishes the requests in flight within 20 s, gives the lease back, and
    /// ends.
    ///
    /// The watches go on for as long as evictions are in flight: each asks again between its two
    /// requests, and a taint may be removed meanwhile. The lease is renewed for as long.
    ///
    /// # Errors
    /// A worker had panicked, or the lease was lost.
    pub async fn stop(mut self) -> Result<(), Failed> {
        self.stop.cancel();
        let worked = flatten(self.work.await);
        let clocks = self.clocks.await.map_err(|error| ended(Err(error)));
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
        self.resign.cancel();
        let elected = flatten(self.election.await);
        self.endpoints.cancel();
        let _ = timeout(Duration::from_secs(1), self.served).await;
        worked.and(clocks).and(elected)
    }
}

/// What a task came to, its panic included.
fn flatten<E: Into<Failed>>(task: Result<Result<(), E>, JoinError>) -> Result<(), Failed> {
    task.map_err(|error| ended(Err(error)))?.map_err(Into::into)
}

/// That a task has ended which must not.
pub(super) fn ended(task: Result<(), JoinError>) -> Failed {
    Failed::Task(match task {
        Ok(()) => "it returned".to_owned(),
        Err(error) => error.to_string(),
    })
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
