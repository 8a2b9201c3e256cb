//! The parts of a controller that do its work, without those of a process: flags, signals, HTTP endpoints,
//! the system's clock.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use jiff::{SignedDuration, Timestamp};
use prometheus::Registry;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::breaker_reports::BreakerReports;
use super::config_metrics::ConfigMetrics;
use super::failure::{Failed, StartError, ended, flatten};
use super::holds::{Limiters, holds};
use super::ignored_taints;
use super::in_force::{InForce, Loaded};
use super::pause_metrics;
use super::pause_reports::PauseReports;
use super::requests::{ApiRequests, ByEvents};
use super::state::Shared;
use super::work::{Hands, WorkParts};
use super::would_evict::WouldEvict;
use super::{Shadowing, controller_metrics};
use crate::clock::{Clock, system_time};
use crate::clock_watch::{self, Skew};
use crate::cluster::{self, Api, Cluster, WriteGate, watch};
use crate::config::{Config, DryRun, Election, Settings};
use crate::drain_reconciler::DrainMetrics;
use crate::evict::{self, Pauses, Window};
use crate::informer::{Facts, Nodes, Pods};
use crate::leader::{self, Annotations, Candidate, Identity, Term};
use crate::observe::{Event, EventLane, EventMetrics, Gate, Readiness, Recorder};
use crate::other_managers::{self, OtherManagers};
use crate::pipeline::Panics;
use crate::preflight;

/// For how long requests in flight may go on after the stop was asked for: one request's timeout
/// and a little more, within the grace period that `deploy/` grants.
const LAST_REQUESTS: Duration = Duration::from_secs(20);
/// For how long the events that wait may still be sent then.
const LAST_EVENTS: Duration = Duration::from_secs(2);

/// What surrounds a controller.
pub struct Surroundings {
    /// The time by which deadlines are kept.
    pub clock: Clock,
    /// The system's wall clock, which may step.
    pub wall: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// Identity in the election.
    pub identity: Identity,
    /// Who decides.
    pub hands: Hands,
    /// Tells this controller's jitter from that of others.
    pub seed: u128,
}

impl Surroundings {
    /// Those of a process.
    pub fn of_process(config: &Config) -> Self {
        Self {
            clock: Clock::system(),
            wall: Arc::new(system_time),
            identity: Identity::new(&config.instance, config.pod_uid.as_deref()),
            hands: Hands::Threads,
            seed: rand::random(),
        }
    }
}

/// A controller that has looked at its cluster and has not begun.
pub struct Prepared {
    shared: Arc<Shared>,
    in_force: Arc<InForce>,
    api: Api,
    gate: WriteGate,
    lane: EventLane,
    recorder: Recorder,
    window: Arc<Window>,
    evict_metrics: evict::Metrics,
    leader_metrics: leader::Metrics,
    cluster_metrics: cluster::Metrics,
    panics: Panics,
    /// What the start made of the clocks: see [`clock_watch::align`].
    held_back: Option<SignedDuration>,
    skew: Skew,
    election: Option<Election>,
    /// Namespace of the lease, also without an election.
    lease_namespace: String,
    annotations: Annotations,
    /// Tells the queue of evictions that a hold's answer has changed.
    holds_changed: Arc<Notify>,
    zone_label: Arc<str>,
    surroundings: Surroundings,
}

impl Prepared {
    /// Registers the metrics, waits for the API server, and checks the rights.
    #[allow(clippy::too_many_lines, reason = "one part after the other is made")]
    pub async fn new(
        cluster: Cluster,
        config: &Config,
        surroundings: Surroundings,
        registry: &Registry,
    ) -> Result<Self, StartError> {
        let cluster_metrics = cluster::Metrics::register(registry)?;
        let election = config.election.clone();
        let wall = Arc::clone(&surroundings.wall);
        let annotations = Annotations::default();
        let clock = surroundings.clock.clone();
        let pauses = Arc::new(Pauses::new(annotations.subscribe(), clock.clone()));
        let dry_run = config.dry_run;
        let election = election.filter(|_| dry_run.is_none());
        let elects = election.is_some();
        let gate = if let Some(DryRun { events }) = dry_run {
            WriteGate::read_only(events)
        } else if elects {
            WriteGate::shut(move || wall())
        } else {
            WriteGate::open()
        };
        let gate = {
            let pauses = Arc::clone(&pauses);
            gate.pausing(move || pauses.is_on())
        };
        let api = Api::new(cluster.client, cluster_metrics.clone()).gated(gate.clone());
        let drains = !config.settings.policies.is_empty();
        let file = config.file.as_ref();
        let event_metrics = EventMetrics::register(registry)?;
        let (recorder, lane) = Recorder::new(&config.instance, event_metrics, clock.clone());
        let recorder = match dry_run {
            Some(DryRun { events }) => recorder.dry_run(events),
            None => recorder,
        };
        let facts = Facts::new(clock, config.compat);
        let facts = Arc::new(if dry_run.is_some() { facts.writing_nothing() } else { facts });
        let holds_changed = Arc::<Notify>::default();
        let limiters = Limiters::new(&facts, &config.settings, &pauses, &holds_changed);
        let others = Arc::new(OtherManagers::new(facts.clock.clone()));
        let exclusive = config.require_exclusive.then(|| Arc::clone(&others));
        let holds = holds(&pauses, exclusive, &limiters, &holds_changed);
        let shared = Shared::new(facts, recorder.clone(), pauses, holds);
        let mut shared = shared.limited_by(limiters);
        shared.others = others;
        // A file that has no policy may have one later.
        if drains || file.is_some() {
            let metrics = DrainMetrics::register(registry)?;
            let Settings { policies, orphans, .. } = &config.settings;
            shared = shared.draining_by(policies.clone().into(), *orphans, metrics);
        }
        shared.facts.set_taint_rules(config.settings.taint_rules.clone().into());
        let shared = Arc::new(shared.shadowing(registry)?);
        if let Some(drains) = &shared.drains {
            DrainMetrics::register_gauges(registry, &shared.facts, drains)?;
        }
        let window = Arc::new(Window::default());
        let Shared { facts, queues, schedule, .. } = &*shared;
        controller_metrics::register(registry, facts, queues, schedule, &window)?;
        pause_metrics::register(registry, &shared.pauses)?;
        if let Some(limiters) = &shared.limiters {
            evict::register_limits(registry, &schedule.due, &limiters.rates, &limiters.ramp)?;
            evict::register_breaker(registry, &limiters.breaker)?;
        }
        ignored_taints::register(registry, facts)?;
        let evict_metrics = evict::Metrics::register(registry, &schedule.backlog)?;
        other_managers::register(registry, &shared.others)?;
        let leader_metrics = leader::Metrics::register(registry, !elects && dry_run.is_none())?;
        let panics = Panics::register(registry)?;
        let namespace = election.as_ref().map(|election| election.namespace.as_str());
        let lease = namespace.map(str::to_owned);
        let mut skew = Skew::register(registry, recorder.clone(), lease)?;

        let (server, wait) = (&cluster.server, config.api_server_wait);
        let tasks = preflight::Tasks::of(&config.settings);
        preflight::check(&api, server, namespace, tasks, dry_run, wait).await?;
        let wall = Arc::clone(&surroundings.wall);
        let loaded = Loaded {
            settings: config.settings.clone(),
            file: config.file.clone(),
            since: shared.facts.clock.now(),
        };
        let config_metrics = file.map(|_| ConfigMetrics::register(registry)).transpose()?;
        let in_force = Arc::new(InForce::new(
            Arc::clone(&shared),
            (api.clone(), cluster.server.clone(), dry_run),
            (recorder.clone(), gate.clone(), namespace.map(str::to_owned)),
            loaded,
            config_metrics,
        ));
        let held_back = clock_watch::align(&shared.kept_time(), &api, &mut skew, || wall()).await;
        Ok(Self {
            shared,
            in_force,
            api,
            gate,
            lane,
            recorder,
            window,
            evict_metrics,
            leader_metrics,
            cluster_metrics,
            panics,
            held_back,
            skew,
            election,
            lease_namespace: config.lease_namespace.clone(),
            annotations,
            holds_changed,
            zone_label: Arc::clone(&config.settings.zone_label),
            surroundings,
        })
    }

    /// The configuration in force, which can be replaced.
    pub fn in_force(&self) -> Arc<InForce> {
        Arc::clone(&self.in_force)
    }

    /// Begins to watch, to take part in the election, and to work. The gates open with the first
    /// complete lists of nodes and pods. What is lost later goes to `readiness`.
    #[allow(clippy::too_many_lines, reason = "one task after the other is started")]
    pub fn begin(self, (nodes_known, pods_known): (Gate, Gate), readiness: &Readiness) -> Engine {
        let Self {
            shared, api, gate, lane, recorder, window, evict_metrics, leader_metrics, ..
        } = self;
        let mut skew = self.skew;
        skew.beside(readiness);
        let Surroundings { clock, wall, identity, hands, seed } = self.surroundings;
        let requests = ApiRequests { api: api.clone(), drains: shared.drains.clone() };
        let (stop, blind) = (CancellationToken::new(), CancellationToken::new());
        let in_flight = TaskTracker::new();
        let listed = [CancellationToken::new(), CancellationToken::new()];
        let [nodes_listed, pods_listed] = listed.clone();
        let mut watches = JoinSet::new();
        let metrics = self.cluster_metrics.telling(readiness);
        let nodes = Nodes::new(shared.ingest(), metrics.clone(), self.zone_label);
        let relist = self.in_force.nodes.clone();
        let nodes = watch::run(api.clone(), metrics.clone(), nodes, seed, relist, move || {
            nodes_known.open();
            nodes_listed.cancel();
        });
        watches.spawn(blind.clone().run_until_cancelled_owned(nodes).map(drop));
        let pods = Pods::new(shared.ingest(), metrics.clone());
        let relist = watch::Relist::default();
        let pods = watch::run(api.clone(), metrics.clone(), pods, !seed, relist, move || {
            pods_known.open();
            pods_listed.cancel();
        });
        watches.spawn(blind.clone().run_until_cancelled_owned(pods).map(drop));
        let pauses = PauseReports {
            pauses: Arc::clone(&shared.pauses),
            changed: self.holds_changed,
            gate: gate.clone(),
            recorder: shared.recorder.clone(),
            readiness: readiness.clone(),
            namespace: self.lease_namespace.clone(),
        };
        watches.spawn(blind.clone().run_until_cancelled_owned(pauses.run()).map(drop));
        if let Some(shadowing) = &shared.shadowing {
            let comparing = Arc::clone(shadowing).run(api.clone());
            watches.spawn(blind.clone().run_until_cancelled_owned(comparing).map(drop));
        }
        if let Some(limiters) = &shared.limiters {
            let breaker = BreakerReports {
                breaker: Arc::clone(&limiters.breaker),
                recorder: shared.recorder.clone(),
                api: api.clone(),
                namespace: self.lease_namespace.clone(),
                stores: self.election.is_some() && shared.facts.unwritten.is_none(),
            };
            watches.spawn(blind.clone().run_until_cancelled_owned(breaker.run()).map(drop));
        }
        let resign = CancellationToken::new();
        // One term at a time: the next one begins after the work of the one before has ended.
        let (terms, terms_to_work) = mpsc::channel(1);
        let parts = WorkParts {
            shared: Arc::clone(&shared),
            api: api.clone(),
            notices: ByEvents(recorder.clone()),
            evict_metrics,
            window: Arc::clone(&window),
            listed: listed.clone(),
            in_flight: in_flight.clone(),
            panics: self.panics,
            gate: gate.clone(),
            hands,
            seed,
        };
        let work = match &shared.facts.unwritten {
            None => tokio::spawn(parts.sending(requests).run(terms_to_work, stop.clone())),
            Some(unwritten) => {
                let shadowing = shared.shadowing.clone();
                let recorded = WouldEvict::new(requests, Arc::clone(unwritten), shadowing);
                tokio::spawn(parts.sending(recorded).run(terms_to_work, stop.clone()))
            }
        };
        let clocks =
            clock_watch::run(shared.kept_time(), api.clone(), self.held_back, skew, move || wall());
        let clocks = tokio::spawn(stop.clone().run_until_cancelled_owned(clocks).map(drop));
        // A dry run is made to run beside another one.
        if shared.shadowing.is_none() {
            let reporter = other_managers::Reporter {
                others: Arc::clone(&shared.others),
                readiness: readiness.clone(),
                recorder: recorder.clone(),
                lease: self.election.as_ref().map(|election| election.namespace.clone()),
            };
            watches.spawn(stop.clone().run_until_cancelled_owned(reporter.run()).map(drop));
        }
        let last_events = CancellationToken::new();
        let events = tokio::spawn(send_events(lane, api.clone(), window, last_events.clone()));
        let annotations = self.annotations;
        let candidate = match self.election {
            None => Err((api, self.lease_namespace, annotations)),
            Some(Election { namespace, times }) => Ok(Candidate {
                api,
                namespace,
                identity,
                times,
                gate,
                annotations,
                metrics: leader_metrics,
                clock,
                synced: listed,
                sign: readiness.sign("readable lease"),
            }),
        };
        let election = tokio::spawn(elect(candidate, terms, resign.clone()));
        Engine {
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
        }
    }
}

/// A controller at work, or standing by.
pub struct Engine {
    shared: Arc<Shared>,
    /// Ends what takes in new work.
    stop: CancellationToken,
    /// What only the leader does.
    work: JoinHandle<Result<(), Failed>>,
    /// Keeps the time; does not end by itself.
    clocks: JoinHandle<()>,
    /// Ends the watches.
    blind: CancellationToken,
    /// The watches of nodes and pods, and what reports; they do not end by themselves either.
    watches: JoinSet<()>,
    /// Evictions and records in flight.
    in_flight: TaskTracker,
    events: JoinHandle<()>,
    last_events: CancellationToken,
    /// Gives the lease back.
    resign: CancellationToken,
    /// Takes part in the election, if there is one.
    election: JoinHandle<()>,
}

impl Engine {
    /// In a dry run, the comparison with who really goes.
    pub(crate) fn shadowing(&self) -> Option<Arc<Shadowing>> {
        self.shared.shadowing.clone()
    }

    /// Completes only if a part that must not end has ended: the process must end then too.
    pub async fn failed(&mut self) -> Failed {
        let task = tokio::select! {
            biased;
            work = &mut self.work => match work {
                Ok(Err(failed)) => return failed,
                other => other.map(drop),
            },
            election = &mut self.election => election,
            clocks = &mut self.clocks => clocks,
            Some(watch) = self.watches.join_next() => watch,
            events = &mut self.events => events,
        };
        ended(task)
    }

    /// Takes no new work, finishes the requests in flight within 20 s, gives the lease back, and
    /// ends.
    ///
    /// The watches go on for as long as evictions are in flight: each asks again between its two
    /// requests, and a taint may be removed meanwhile. The lease is renewed for as long. If requests
    /// had to be abandoned, it is not given back: they may still arrive, and nobody else may write before
    /// it has run out.
    pub async fn stop(mut self) -> Result<(), Failed> {
        self.stop.cancel();
        let worked = flatten(self.work.await);
        let clocks = self.clocks.await.map_err(|error| ended(Err(error)));
        self.in_flight.close();
        let left = self.in_flight.len();
        if timeout(LAST_REQUESTS, self.in_flight.wait()).await.is_err() {
            warn!(requests = self.in_flight.len(), "abandoned requests in flight");
            // Ended so, it does not give the lease back.
            self.election.abort();
        } else if left > 0 {
            info!(requests = left, "finished requests in flight");
        }
        self.blind.cancel();
        while self.watches.join_next().await.is_some() {}
        self.shared.queues.clear_timers();
        self.shared.schedule.clear_timers();
        self.last_events.cancel();
        if timeout(LAST_EVENTS, self.events).await.is_err() {
            warn!("dropped events that were still queued");
        }
        self.resign.cancel();
        let elected = match self.election.await {
            Err(panic) if panic.is_panic() => Err(ended(Err(panic))),
            _ => Ok(()),
        };
        worked.and(clocks).and(elected)
    }

    /// Ends it where it stands, as a process that is killed: what is in flight is not awaited, the lease
    /// is not given back.
    pub fn abort(mut self) {
        self.work.abort();
        self.clocks.abort();
        self.events.abort();
        self.election.abort();
        self.watches.abort_all();
    }
}

/// Takes part in the election until `resign`. Without one it leads for good, once it has read whether
/// evictions are paused.
async fn elect(
    candidate: Result<Candidate, (Api, String, Annotations)>,
    terms: mpsc::Sender<Term>,
    resign: CancellationToken,
) {
    let (api, namespace, annotations) = match candidate {
        Ok(candidate) => return leader::run(candidate, terms, resign).await,
        Err(alone) => alone,
    };
    let first_look = leader::first_look(&api, &namespace, &annotations);
    if resign.run_until_cancelled(first_look).await.is_none() {
        return;
    }
    // If nobody works any more, that is said elsewhere.
    let _ = terms.send(Term::default()).await;
    resign.run_until_cancelled(leader::poll(&api, &namespace, &annotations)).await;
}

/// Sends events until `stop`, and lets evictions that wait for a place in the window go first.
async fn send_events(lane: EventLane, api: Api, window: Arc<Window>, stop: CancellationToken) {
    let create = |event: Event| {
        let api = api.clone();
        async move { api.create_event(&event.namespace, &event.object).await }
    };
    lane.run(create, || window.is_full(), stop).await;
}
