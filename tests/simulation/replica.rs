//! One replica of the controller, unchanged but for what surrounds it, and whoever starts it again
//! when it has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use jiff::SignedDuration;
use ostrakon::clock::Clock;
use ostrakon::cluster::Cluster;
use ostrakon::config::{Config, Election, Settings};
use ostrakon::controller::{Hands, Prepared, Surroundings};
use ostrakon::leader::{Identity, Times};
use ostrakon::observe::Readiness;
use ostrakon::sim::embedded::Embedded;
use parking_lot::Mutex;
use prometheus::Registry;
use prometheus::proto::MetricFamily;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::mutants::{Between, Broken};

/// Pause before a process that ended by itself, or could not start, is started again.
const RESTART: Duration = Duration::from_secs(2);

/// How long a process that starts waits for the API server.
const API_SERVER_WAIT: Duration = Duration::from_secs(300);

/// From when a process knows that it must end until it has.
const LAST_WORDS: Duration = Duration::from_secs(8);
/// Shorter pauses would make a story of renewals.
const TIMES: Times = Times {
    lease: Duration::from_secs(15),
    renew: Duration::from_secs(10),
    retry: Duration::from_secs(3),
    look: Duration::from_secs(3),
};

/// How a process is ended, and for how long it stays down.
pub(super) enum End {
    /// It is stopped, and its pod replaced.
    Stop(Duration),
    /// It dies together with its pod.
    Kill(Duration),
    /// It dies, and the container is started again in the same pod.
    Crash(Duration),
}

/// A replica, through all its processes.
pub(super) struct Replica {
    commands: mpsc::UnboundedSender<End>,
    /// How far its machine's wall clock is ahead, in milliseconds.
    ahead: Arc<AtomicI64>,
    /// Identity of the process that works; empty while there is none, or it stops.
    working: Arc<Mutex<String>>,
    /// What its process serves.
    served: Arc<Mutex<Registry>>,
}

impl Replica {
    pub(super) fn start(
        cluster: &Embedded,
        index: u64,
        broken: Broken,
        settings: Settings,
    ) -> Self {
        let (commands, receiver) = mpsc::unbounded_channel();
        let ahead = Arc::new(AtomicI64::new(0));
        let (working, served) = <(Arc<_>, Arc<_>)>::default();
        let life = Life {
            cluster: cluster.clone(),
            index,
            broken,
            ahead: Arc::clone(&ahead),
            working: Arc::clone(&working),
            served: Arc::clone(&served),
            settings,
        };
        tokio::task::spawn_local(live(life, receiver));
        Self { commands, ahead, working, served }
    }

    /// Whether its process of this identity works.
    pub(super) fn works_as(&self, identity: &str) -> bool {
        !identity.is_empty() && *self.working.lock() == identity
    }

    /// The metrics that it serves, if it works.
    pub(super) fn metrics(&self) -> Vec<MetricFamily> {
        if self.working.lock().is_empty() { Vec::new() } else { self.served.lock().gather() }
    }

    /// The sum of a gauge that it serves.
    pub(super) fn gauge(&self, name: &str) -> f64 {
        let served = self.metrics();
        let metrics = served.iter().filter(|family| family.name() == name);
        metrics.flat_map(MetricFamily::get_metric).map(|it| it.get_gauge().get_value()).sum()
    }

    pub(super) fn end(&self, how: End) {
        self.working.lock().clear();
        // It cannot be gone: it lives as long as the story.
        let _ = self.commands.send(how);
    }

    /// Its machine's wall clock steps.
    pub(super) fn step_clock(&self, ahead: SignedDuration) {
        let ahead = i64::try_from(ahead.as_millis()).unwrap_or_default();
        self.ahead.store(ahead, Ordering::Relaxed);
    }
}

/// What a replica's processes have in common.
struct Life {
    cluster: Embedded,
    index: u64,
    broken: Broken,
    ahead: Arc<AtomicI64>,
    working: Arc<Mutex<String>>,
    served: Arc<Mutex<Registry>>,
    settings: Settings,
}

async fn live(life: Life, mut commands: mpsc::UnboundedReceiver<End>) {
    let Life { cluster, index, broken, ahead, working, served, settings } = life;
    let mut pod = 0;
    for generation in 0_u64.. {
        let identity = format!("r{index}_{pod}_{generation:08x}");
        let in_same_pod;
        let alive = Arc::new(AtomicBool::new(true));
        let begun = async {
            loop {
                match prepare(&cluster, &identity, &alive, &ahead, broken, &settings).await {
                    Some(prepared) => break prepared,
                    None => sleep(RESTART).await,
                }
            }
        };
        let down = tokio::select! {
            biased;
            command = commands.recv() => {
                alive.store(false, Ordering::Relaxed);
                in_same_pod = matches!(command, Some(End::Crash(_)));
                let Some(End::Stop(down) | End::Kill(down) | End::Crash(down)) = command else {
                    return;
                };
                down
            }
            (prepared, registry) = begun => {
                working.lock().clone_from(&identity);
                *served.lock() = registry;
                let readiness = Readiness::default();
                let mut engine = prepared.begin((readiness.gate("nodes"), readiness.gate("pods")), &readiness);
                tokio::select! {
                    biased;
                    command = commands.recv() => match command {
                        Some(End::Stop(down)) => {
                            in_same_pod = false;
                            let _ = engine.stop().await;
                            alive.store(false, Ordering::Relaxed);
                            down
                        }
                        Some(how @ (End::Kill(down) | End::Crash(down))) => {
                            in_same_pod = matches!(how, End::Crash(_));
                            alive.store(false, Ordering::Relaxed);
                            engine.abort();
                            down
                        }
                        None => return,
                    },
                    _ = engine.failed() => {
                        in_same_pod = true;
                        working.lock().clear();
                        // Its last words take a while; it must not write meanwhile.
                        sleep(LAST_WORDS).await;
                        alive.store(false, Ordering::Relaxed);
                        engine.abort();
                        RESTART
                    }
                }
            }
        };
        working.lock().clear();
        pod += u32::from(!in_same_pod);
        sleep(down).await;
    }
}

async fn prepare(
    cluster: &Embedded,
    identity: &str,
    alive: &Arc<AtomicBool>,
    ahead: &Arc<AtomicI64>,
    broken: Broken,
    settings: &Settings,
) -> Option<(Prepared, Registry)> {
    let clock = cluster.store().clock().clone();
    let client = Between::new(cluster, broken, identity, alive).client();
    let election = Election { namespace: "kube-system".to_owned(), times: TIMES };
    let config = Config {
        kubeconfig: None,
        context: None,
        api_server_wait: API_SERVER_WAIT,
        listen: ([127, 0, 0, 1], 0).into(),
        compat: broken.compat(),
        election: broken.election(election),
        lease_namespace: "kube-system".to_owned(),
        pod_uid: None,
        instance: identity.to_owned(),
        dry_run: None,
        require_exclusive: false,
        settings: settings.clone(),
        file: None,
    };
    let wall = {
        let (clock, ahead) = (clock.clone(), Arc::clone(ahead));
        move || clock.now() + SignedDuration::from_millis(ahead.load(Ordering::Relaxed))
    };
    let surroundings = Surroundings {
        // A process reads its machine's clock once, and may be told a better time.
        clock: Clock::starting_at(wall()),
        wall: Arc::new(wall),
        identity: Identity::named(identity),
        hands: Hands::Inline,
        seed: identity.bytes().fold(1, |sum, byte| sum * 31 + u128::from(byte)),
    };
    let cluster = Cluster { client, server: "embedded".to_owned() };
    let registry = Registry::new();
    let prepared = Prepared::new(cluster, &config, surroundings, &registry).await.ok()?;
    Some((prepared, registry))
}
