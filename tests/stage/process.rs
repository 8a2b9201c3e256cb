//! The shipped controller on an embedded cluster, in one thread and in virtual time. Tests can observe the
//! requests between the two.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use ostrakon::clock::Clock;
use ostrakon::cluster::Cluster;
use ostrakon::config::{
    Compat, Config, ConfigFile, DryRun, Election, Settings, content_hash, read_settings,
};
use ostrakon::controller::{Hands, InForce, Offered, Prepared, Surroundings};
use ostrakon::drain::Policy;
use ostrakon::leader::{Identity, Times};
use ostrakon::observe::Readiness;
use ostrakon::sim::embedded::{Body, Embedded, Onward};
use parking_lot::Mutex;
use prometheus::Registry;
use prometheus::proto::LabelPair;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::noon;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// A running controller. It dies when it is dropped: from then on it writes nothing.
pub(crate) struct Process {
    registry: Registry,
    readiness: Readiness,
    alive: Arc<AtomicBool>,
    in_force: Arc<OnceLock<Arc<InForce>>>,
    _end: oneshot::Sender<()>,
}

/// What went over the wire.
#[derive(Default)]
pub(crate) struct Wire {
    /// Messages of the events that were created.
    events: Mutex<Vec<String>>,
    /// Requests about pods.
    asked: Mutex<Vec<Entry>>,
    /// Methods and paths of all requests that may write.
    writes: Mutex<Vec<String>>,
    /// What happens while the next deletion is on its way.
    meanwhile: Mutex<Option<Meanwhile>>,
    /// The resource to which this process has no right, whatever it asks.
    without_right_to: Mutex<Option<&'static str>>,
}

type Meanwhile = Box<dyn FnOnce() + Send>;

/// What was asked for about a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Its condition was patched.
    Patched,
    /// It was to be deleted, with whatever answer.
    Deleted,
    /// It was to be evicted by the Eviction API, with whatever answer.
    Evicted,
}

/// A request about a pod.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) asked: Asked,
    pub(crate) name: String,
    /// Virtual seconds since noon.
    pub(crate) at: f64,
}

/// How it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Evict,
    /// Only while nobody else does.
    Exclusive,
    DryRun(DryRun),
}

impl Process {
    /// One that begins to work now, and for good: there is no election. `clock` is its own.
    pub(crate) fn start(
        cluster: &Embedded,
        clock: Clock,
        compat: Compat,
        policies: &[Policy],
        wire: &Arc<Wire>,
    ) -> Self {
        Self::begin(
            cluster,
            clock,
            compat,
            policies.to_vec().into(),
            wire,
            ("test", None),
            Mode::Evict,
        )
    }

    /// One that evicts only while nobody else does.
    pub(crate) fn exclusive(cluster: &Embedded, clock: Clock, wire: &Arc<Wire>) -> Self {
        let settings = Settings::default();
        Self::begin(cluster, clock, Compat::None, settings, wire, ("test", None), Mode::Exclusive)
    }

    /// One by our own rules that works for good, with these settings.
    pub(crate) fn with_settings(
        cluster: &Embedded,
        clock: Clock,
        settings: Settings,
        wire: &Arc<Wire>,
    ) -> Self {
        Self::begin(cluster, clock, Compat::None, settings, wire, ("test", None), Mode::Evict)
    }

    /// The same, with the settings of a configuration file: that may have policies later if it has none now.
    pub(crate) fn of_file(
        cluster: &Embedded,
        clock: Clock,
        settings: Settings,
        wire: &Arc<Wire>,
    ) -> Self {
        let file = Some(ConfigFile { path: "ostrakon.yaml".into(), hash: String::new() });
        let part = ("test", None);
        Self::begin_with(cluster, clock, Compat::None, (settings, file), wire, part, Mode::Evict)
    }

    /// One that writes nothing, although it is told to elect a leader.
    pub(crate) fn dry_run(
        cluster: &Embedded,
        clock: Clock,
        policies: &[Policy],
        wire: &Arc<Wire>,
        dry_run: DryRun,
    ) -> Self {
        let election = Election { namespace: "kube-system".to_owned(), times: Times::default() };
        Self::begin(
            cluster,
            clock,
            Compat::None,
            policies.to_vec().into(),
            wire,
            ("test", Some(election)),
            Mode::DryRun(dry_run),
        )
    }

    /// One that works while it holds the lease.
    pub(crate) fn elected(cluster: &Embedded, clock: Clock) -> Self {
        Self::replica(cluster, clock, "test", &Arc::default())
    }

    /// One of several that take part in the election.
    pub(crate) fn replica(
        cluster: &Embedded,
        clock: Clock,
        identity: &str,
        wire: &Arc<Wire>,
    ) -> Self {
        let election = Election { namespace: "kube-system".to_owned(), times: Times::default() };
        let part = (identity, Some(election));
        Self::begin(cluster, clock, Compat::None, Settings::default(), wire, part, Mode::Evict)
    }

    /// One of several that take part in the election, with these settings.
    pub(crate) fn configured(
        cluster: &Embedded,
        clock: Clock,
        identity: &str,
        settings: Settings,
        wire: &Arc<Wire>,
    ) -> Self {
        let election = Election { namespace: "kube-system".to_owned(), times: Times::default() };
        let part = (identity, Some(election));
        Self::begin(cluster, clock, Compat::None, settings, wire, part, Mode::Evict)
    }

    /// One that takes part in the election, with a configuration file of this content.
    pub(crate) fn with_file(
        cluster: &Embedded,
        clock: Clock,
        content: &str,
        wire: &Arc<Wire>,
    ) -> Self {
        let settings = read_settings(content).expect("a configuration that can be used");
        let path = PathBuf::from("/etc/ostrakon/config.yaml");
        let file = Some(ConfigFile { path, hash: content_hash(content.as_bytes()) });
        let election = Election { namespace: "kube-system".to_owned(), times: Times::default() };
        let part = ("test", Some(election));
        Self::begin_with(cluster, clock, Compat::None, (settings, file), wire, part, Mode::Evict)
    }

    fn begin(
        cluster: &Embedded,
        clock: Clock,
        compat: Compat,
        settings: Settings,
        wire: &Arc<Wire>,
        part: (&str, Option<Election>),
        mode: Mode,
    ) -> Self {
        Self::begin_with(cluster, clock, compat, (settings, None), wire, part, mode)
    }

    fn begin_with(
        cluster: &Embedded,
        clock: Clock,
        compat: Compat,
        (settings, file): (Settings, Option<ConfigFile>),
        wire: &Arc<Wire>,
        (identity, election): (&str, Option<Election>),
        mode: Mode,
    ) -> Self {
        let registry = Registry::new();
        let alive = Arc::new(AtomicBool::new(true));
        let client = cluster.client_through({
            let (wire, alive) = (Arc::clone(wire), Arc::clone(&alive));
            let clock = cluster.store().clock().clone();
            move |request, onward| {
                let (wire, alive, clock) = (Arc::clone(&wire), Arc::clone(&alive), clock.clone());
                async move { wire.carry(request, onward, &alive, &clock).await }
            }
        });
        let config = Config {
            kubeconfig: None,
            context: None,
            api_server_wait: Duration::from_secs(300),
            listen: ([127, 0, 0, 1], 0).into(),
            compat,
            election,
            lease_namespace: "kube-system".to_owned(),
            pod_uid: None,
            instance: "test".to_owned(),
            dry_run: match mode {
                Mode::DryRun(dry_run) => Some(dry_run),
                Mode::Evict | Mode::Exclusive => None,
            },
            require_exclusive: mode == Mode::Exclusive,
            settings,
            file,
        };
        let wall = cluster.store().clock().clone();
        let surroundings = Surroundings {
            clock,
            wall: Arc::new(move || wall.now()),
            identity: Identity::named(identity),
            hands: Hands::Inline,
            seed: 1,
        };
        let (end, ended) = oneshot::channel();
        let (served, readiness) = (registry.clone(), Readiness::default());
        let said = readiness.clone();
        let in_force = Arc::new(OnceLock::new());
        let known = Arc::clone(&in_force);
        tokio::spawn(async move {
            let work = async {
                let cluster = Cluster { client, server: "embedded".to_owned() };
                let prepared = Prepared::new(cluster, &config, surroundings, &served).await;
                let prepared = prepared.expect("the embedded cluster can be worked with");
                let _ = known.set(prepared.in_force());
                let gates = (said.gate("nodes"), said.gate("pods"));
                prepared.begin(gates, &said)
            };
            tokio::pin!(ended);
            tokio::select! {
                engine = work => {
                    let _ = ended.await;
                    engine.abort();
                }
                _ = &mut ended => {}
            }
        });
        Self { registry, readiness, alive, in_force, _end: end }
    }

    fn in_force(&self) -> &InForce {
        self.in_force.get().expect("a controller that has started")
    }

    /// Its configuration file has this content now, or cannot be read.
    pub(crate) async fn offer(&self, content: Result<&str, &str>) -> Offered {
        self.in_force().offer(content.map(str::as_bytes), false).await
    }

    /// Hash of the configuration in force.
    pub(crate) fn config_hash(&self) -> String {
        let loaded = self.in_force().loaded();
        loaded.file.as_ref().expect("it has a file").hash.clone()
    }

    /// Why it is not ready; nothing if it is.
    pub(crate) fn not_ready(&self) -> Vec<String> {
        self.readiness.reasons()
    }

    /// The metrics that it serves, each with the values of its labels.
    pub(crate) fn labels(&self) -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
        let mut families = BTreeMap::new();
        for family in self.registry.gather() {
            let labels: &mut BTreeMap<_, BTreeSet<_>> =
                families.entry(family.name().to_owned()).or_default();
            for label in family.get_metric().iter().flat_map(prometheus::proto::Metric::get_label) {
                let values = labels.entry(label.name().to_owned()).or_default();
                values.insert(label.value().to_owned());
            }
        }
        families
    }

    /// Notes for operators beside readiness.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.readiness.notes()
    }

    /// The sum of a metric that it serves, over all its labels that these are among.
    pub(crate) fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let families = self.registry.gather();
        let Some(family) = families.iter().find(|family| family.name() == name) else { return 0.0 };
        let metrics = family.get_metric().iter().filter(|metric| {
            let values: Vec<_> = metric.get_label().iter().map(LabelPair::value).collect();
            labels.iter().all(|label| values.contains(label))
        });
        metrics.map(|it| it.get_counter().get_value() + it.get_gauge().get_value()).sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.alive.store(false, Ordering::Relaxed);
    }
}

impl Wire {
    /// Messages of the events so far.
    pub(crate) fn events(&self) -> Vec<String> {
        self.events.lock().clone()
    }

    /// Requests about pods so far.
    pub(crate) fn asked(&self) -> Vec<Entry> {
        self.asked.lock().clone()
    }

    /// Methods and paths of all requests so far that may write.
    pub(crate) fn writes(&self) -> Vec<String> {
        self.writes.lock().clone()
    }

    /// Has something happen while the next deletion is on its way.
    pub(crate) fn meanwhile(&self, happens: impl FnOnce() + Send + 'static) {
        *self.meanwhile.lock() = Some(Box::new(happens));
    }

    /// The process has no right to this resource from now on, or all rights again.
    pub(crate) fn take_right(&self, resource: Option<&'static str>) {
        *self.without_right_to.lock() = resource;
    }

    /// Whether a review of access is denied.
    fn denies(&self, review: &[u8]) -> bool {
        let review = String::from_utf8_lossy(review);
        let taken = *self.without_right_to.lock();
        taken.is_some_and(|resource| review.contains(&format!("\"resource\":\"{resource}\"")))
    }

    async fn carry(
        &self,
        request: Request<Bytes>,
        onward: Onward,
        alive: &AtomicBool,
        clock: &Clock,
    ) -> Result<Response<Body>, Failed> {
        if !alive.load(Ordering::Relaxed) {
            return Err("the process is dead".into());
        }
        let path = request.uri().path().to_owned();
        let is_review = path.ends_with("/selfsubjectaccessreviews");
        if is_review && self.denies(request.body()) {
            let mut review: serde_json::Value = serde_json::from_slice(request.body())?;
            review["status"] = serde_json::json!({"allowed": false});
            let body = Full::new(Bytes::from(review.to_string()));
            let body = Body::new(body.map_err(|never| match never {}));
            let created = Response::builder().status(201);
            return Ok(created.header("content-type", "application/json").body(body)?);
        }
        if request.method() != Method::GET && !is_review {
            self.writes.lock().push(format!("{} {path}", request.method()));
        }
        if request.method() == Method::POST && path.ends_with("/events") {
            let event: serde_json::Value = serde_json::from_slice(request.body())?;
            self.events.lock().push(event["message"].as_str().unwrap_or_default().to_owned());
        }
        let asked = match *request.method() {
            Method::PATCH => Asked::Patched,
            Method::DELETE => Asked::Deleted,
            Method::POST if path.ends_with("/eviction") => Asked::Evicted,
            _ => return onward.answer(request).await,
        };
        let Some(name) = path.strip_prefix("/api/v1/namespaces/default/pods/") else {
            return onward.answer(request).await;
        };
        let name = name.split('/').next().unwrap_or_default().to_owned();
        let at = clock.now().duration_since(noon()).as_secs_f64();
        let happens = (asked == Asked::Deleted).then(|| self.meanwhile.lock().take()).flatten();
        if let Some(happens) = happens {
            happens();
            sleep(Duration::from_millis(100)).await;
        }
        let answer = onward.answer(request).await?;
        // What hits no pod does nothing.
        if !matches!(answer.status().as_u16(), 404 | 409) {
            self.asked.lock().push(Entry { asked, name, at });
        }
        Ok(answer)
    }
}
