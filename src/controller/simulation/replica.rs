//! One replica of the controller, unchanged but for what surrounds it, and whoever starts it again
//! when it has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, Request};
use hyper::body::Bytes;
use jiff::SignedDuration;
use parking_lot::Mutex;
use prometheus::Registry;
use prometheus::proto::MetricFamily;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::Broken;
use super::observer::{SENT, WHO, seconds};
use crate::clock::Clock;
use crate::cluster::Cluster;
use crate::config::{Compat, Config, Election};
use crate::controller::engine::{Prepared, Surroundings};
use crate::controller::state::Shared;
use crate::controller::work::Hands;
use crate::drain::Policy;
use crate::leader::{Identity, Times};
use crate::observe::Readiness;
use crate::sim::embedded::Embedded;

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
    /// What its process that works knows.
    knows: Arc<Mutex<Option<Known>>>,
}

/// What a process knows, and what it serves of it.
struct Known {
    shared: Arc<Shared>,
    registry: Registry,
}

impl Replica {
    pub(super) fn start(
        cluster: &Embedded,
        index: u64,
        broken: Broken,
        policies: &[Policy],
    ) -> Self {
        let (commands, receiver) = mpsc::unbounded_channel();
        let ahead = Arc::new(AtomicI64::new(0));
        let (working, knows) = <(Arc<_>, Arc<_>)>::default();
        let life = Life {
            cluster: cluster.clone(),
            index,
            broken,
            ahead: Arc::clone(&ahead),
            working: Arc::clone(&working),
            knows: Arc::clone(&knows),
            policies: policies.to_vec(),
        };
        tokio::task::spawn_local(live(life, receiver));
        Self { commands, ahead, working, knows }
    }

    /// Whether its process of this identity works.
    pub(super) fn works_as(&self, identity: &str) -> bool {
        !identity.is_empty() && *self.working.lock() == identity
    }

    /// A node whose pods it has ordered to go, if it works.
    pub(super) fn order_left(&self) -> Option<String> {
        let knows = self.knows.lock();
        let Known { shared, .. } = knows.as_ref().filter(|_| !self.working.lock().is_empty())?;
        let names = shared.view.node_names().into_iter();
        names.filter(|name| !shared.orders.on(name).is_empty()).map(|name| name.to_string()).min()
    }

    /// The metrics that it serves, if it works.
    pub(super) fn metrics(&self) -> Vec<MetricFamily> {
        let knows = self.knows.lock();
        let known = knows.as_ref().filter(|_| !self.working.lock().is_empty());
        known.map(|known| known.registry.gather()).unwrap_or_default()
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
    knows: Arc<Mutex<Option<Known>>>,
    policies: Vec<Policy>,
}

async fn live(life: Life, mut commands: mpsc::UnboundedReceiver<End>) {
    let Life { cluster, index, broken, ahead, working, knows, policies } = life;
    let mut pod = 0;
    for generation in 0_u64.. {
        let identity = format!("r{index}_{pod}_{generation:08x}");
        let in_same_pod;
        let alive = Arc::new(AtomicBool::new(true));
        let begun = async {
            loop {
                match prepare(&cluster, &identity, &alive, &ahead, broken, &policies).await {
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
                *knows.lock() = Some(Known { shared: Arc::clone(&prepared.shared), registry });
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
    policies: &[Policy],
) -> Option<(Prepared, Registry)> {
    let clock = cluster.store().clock().clone();
    let way = {
        let (identity, alive, clock) = (identity.to_owned(), Arc::clone(alive), clock.clone());
        move |request| {
            alive.load(Ordering::Relaxed).then(|| sent(request, &identity, &clock, broken))
        }
    };
    let client = cluster.client_through(way);
    let config = Config {
        kubeconfig: None,
        context: None,
        api_server_wait: API_SERVER_WAIT,
        listen: ([127, 0, 0, 1], 0).into(),
        compat: if broken == Broken::CountsFromObservation {
            Compat::Upstream
        } else {
            Compat::None
        },
        election: (broken != Broken::DoesNotElect)
            .then(|| Election { namespace: "kube-system".to_owned(), times: TIMES }),
        pod_uid: None,
        instance: identity.to_owned(),
        policies: policies.to_vec(),
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
        hands: Hands::Task,
        seed: identity.bytes().fold(1, |sum, byte| sum * 31 + u128::from(byte)),
        flaw: broken.flaw(),
    };
    let cluster = Cluster { client, server: "embedded".to_owned() };
    let registry = Registry::new();
    let prepared = Prepared::new(cluster, &config, surroundings, &registry).await.ok()?;
    Some((prepared, registry))
}

/// The request as it arrives: marked with who sent it and when, and spoilt as `broken` has it.
fn sent(
    mut request: Request<Bytes>,
    identity: &str,
    clock: &Clock,
    broken: Broken,
) -> Request<Bytes> {
    let value = |text: &str| HeaderValue::from_str(text).unwrap();
    let now = seconds(clock.now()).to_string();
    let headers = request.headers_mut();
    headers.insert(HeaderName::from_static(WHO), value(identity));
    headers.insert(HeaderName::from_static(SENT), value(&now));
    let path = request.uri().path().to_owned();
    let is_pod = path.contains("/pods/");
    match broken {
        Broken::IgnoresUid if is_pod => edit(&mut request, |body| {
            if let Some(body) = body.as_object_mut() {
                body.remove("preconditions");
            }
            if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("uid");
            }
        }),
        Broken::UndoesForeign if path.contains("/nodes/") => edit(&mut request, |body| {
            body["metadata"]["annotations"]["example.com/owner"] = Value::Null;
        }),
        Broken::OtherWords if is_pod => edit(&mut request, |body| {
            if let Some(condition) = body.pointer_mut("/status/conditions/0") {
                condition["reason"] = json!("DeletionByOstrakon");
            }
        }),
        Broken::OtherDrainWords if path.ends_with("/events") => edit(&mut request, |body| {
            if body["reason"] == "DrainStarting" {
                body["reason"] = json!("DrainBegins");
            }
        }),
        _ => {}
    }
    request
}

fn edit(request: &mut Request<Bytes>, change: impl FnOnce(&mut Value)) {
    if !matches!(*request.method(), Method::PATCH | Method::DELETE | Method::POST) {
        return;
    }
    if let Ok(mut body) = serde_json::from_slice(request.body()) {
        change(&mut body);
        *request.body_mut() = Bytes::from(body.to_string());
    }
}
