//! A stage for tests: the whole controller without threads and without a wire, in virtual time.
//!
//! Facts come in as the watches would bring them; the same queues, handler, timers and evictor do
//! the rest, driven by hand. Beside it stands a small cluster that takes the evictor's requests,
//! refuses those that it is told to refuse, and writes down what was asked of it and when. What
//! it deletes is seen by the controller only when the test says so, or at once with
//! [`Stage::seen_at_once`].

mod restarts;
mod retries;
mod simulation;
mod upstream_cases;
mod upstream_profile;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::time::Instant;

use super::handler::Decider;
use super::ingest;
use super::judge;
use super::pump::{HandedOut, Task};
use super::requests::ByEvents;
use super::state::{NodeKey, Shared, TimerKey, Timers, Work};
use crate::clock::Clock;
use crate::cluster::watch::Source;
use crate::config::Compat;
use crate::evict::{self, Evictor, Failure, FailureKind, Job, Judge, Judgement, Requests};
use crate::model::build::noon;
use crate::model::{Node, NodeName, Pod, PodClass, PodRef, Uid, Verdict};
use crate::observe::{EventLane, EventMetrics, Recorder};
use crate::pipeline::{self, Handler, shard_of};

/// Shortest step in which virtual time advances: what is due within one is handled at its end.
const STEP: Duration = Duration::from_millis(1);

/// What was asked of the cluster about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Patched,
    Deleted,
}

/// A request about a pod.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    asked: Asked,
    uid: Uid,
    name: String,
    /// Virtual seconds since noon.
    at: f64,
}

/// The cluster on the other side of the requests.
#[derive(Default)]
pub(super) struct Cluster {
    pods: BTreeMap<Uid, Pod>,
    nodes: BTreeMap<String, Node>,
    /// Each request, in order.
    log: Vec<Entry>,
    /// Deletions go by name, as if the requests named no UID.
    by_name: bool,
    /// Answers to the next deletions, before they succeed.
    refusals: VecDeque<Failure>,
    /// The answer to every deletion, while there is one.
    denied: Option<Failure>,
}

impl Cluster {
    /// Which pod a deletion of `pod` hits.
    fn target(&self, pod: &PodRef) -> Option<Uid> {
        let same_name = |other: &&Pod| other.namespace == pod.namespace && other.name == pod.name;
        if self.by_name {
            self.pods.values().find(same_name).map(|pod| pod.uid)
        } else {
            self.pods.contains_key(&pod.uid).then_some(pod.uid)
        }
    }
}

#[derive(Clone)]
pub(super) struct FakeApi {
    cluster: Arc<Mutex<Cluster>>,
    clock: Clock,
}

impl FakeApi {
    fn log(&self, asked: Asked, uid: Uid, name: &str) {
        let at = self.clock.now().duration_since(noon()).as_secs_f64();
        self.cluster.lock().log.push(Entry { asked, uid, name: name.to_owned(), at });
    }
}

impl Requests for FakeApi {
    async fn mark(&self, pod: &Pod, _: Timestamp) -> Result<Pod, Failure> {
        let cluster = self.cluster.lock();
        let stored = if cluster.by_name {
            cluster.target(&pod.reference()).map(|_| pod.clone())
        } else {
            cluster.pods.get(&pod.uid).cloned()
        };
        drop(cluster);
        if stored.is_some() {
            self.log(Asked::Patched, pod.uid, &pod.name);
        }
        stored.ok_or(Failure::Gone)
    }

    async fn delete(&self, pod: &PodRef) -> Result<(), Failure> {
        let Some(uid) = self.cluster.lock().target(pod) else {
            let message = "another UID".to_owned();
            return Err(Failure::Doubtful { kind: FailureKind::Conflict, message });
        };
        self.log(Asked::Deleted, uid, &pod.name);
        let mut cluster = self.cluster.lock();
        if let Some(failure) = cluster.refusals.pop_front().or_else(|| cluster.denied.clone()) {
            return Err(failure);
        }
        cluster.pods.remove(&uid);
        Ok(())
    }

    async fn pod(&self, pod: &PodRef) -> Result<Option<Pod>, Failure> {
        Ok(self.cluster.lock().pods.get(&pod.uid).cloned())
    }

    async fn node(&self, name: &NodeName) -> Result<Option<Node>, Failure> {
        Ok(self.cluster.lock().nodes.get(name.as_str()).cloned())
    }
}

/// What is wrong with a controller on purpose, so that a check can show that it is able to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    Nothing,
    /// Requests name no UID.
    IgnoresUid,
    /// What failed is not tried again.
    ForgetsFailures,
    /// What was armed once is carried out, whatever is known by now.
    TrustsTimers,
    /// Seconds are counted from when the taint is seen, by each process anew.
    CountsFromObservation,
}

impl Broken {
    fn trusts(self) -> bool {
        self == Self::TrustsTimers
    }
}

/// Asks again, unless it trusts what was armed.
struct Ask {
    view: judge::View,
    trusting: bool,
}

impl Judge for Ask {
    fn judge(&self, pod: &PodRef, armed: &Verdict) -> Judgement {
        let judgement = self.view.judge(pod, armed);
        if !self.trusting {
            return judgement;
        }
        let pod = judgement.pod.or_else(|| Some(Arc::new(Pod::named_by(pod))));
        Judgement { verdict: armed.clone(), pod }
    }

    fn judge_on(&self, pod: &Pod, armed: &Verdict, node: Option<&Node>) -> Verdict {
        if self.trusting { armed.clone() } else { self.view.judge_on(pod, armed, node) }
    }
}

/// A controller and its cluster.
pub(super) struct Stage {
    pub(super) shared: Arc<Shared>,
    pub(super) cluster: Arc<Mutex<Cluster>>,
    decider: Decider,
    evictor: Evictor<Ask, FakeApi, ByEvents>,
    clock: Clock,
    compat: Compat,
    events: EventLane,
    registry: Registry,
    /// Whether a deletion is seen as soon as it was carried out.
    seen_at_once: bool,
    fault: Broken,
    /// Versions of a node that are seen while the next eviction is in flight.
    off_and_on: Option<(Node, Node)>,
}

impl Stage {
    /// A controller by our own rules that has just started, at noon, in an empty cluster.
    pub(super) fn new() -> Self {
        Self::with(Compat::None)
    }

    /// The same, by the given rules.
    pub(super) fn with(compat: Compat) -> Self {
        Self::starting(compat, Clock::starting_at(noon()), Arc::default(), Broken::Nothing)
    }

    fn starting(compat: Compat, clock: Clock, cluster: Arc<Mutex<Cluster>>, fault: Broken) -> Self {
        cluster.lock().by_name = fault == Broken::IgnoresUid;
        let registry = Registry::new();
        let metrics = EventMetrics::register(&registry).unwrap();
        let (recorder, events) = Recorder::new("test", metrics, clock.clone());
        let shared = Arc::new(Shared::new(clock.clone(), compat, recorder.clone()));
        shared.lead();
        let metrics = evict::Metrics::register(&registry, Arc::clone(&shared.backlog)).unwrap();
        let evictor = Evictor::new(
            Ask { view: judge::View { shared: Arc::clone(&shared) }, trusting: fault.trusts() },
            FakeApi { cluster: Arc::clone(&cluster), clock: clock.clone() },
            ByEvents(recorder),
            Arc::clone(&shared.backlog),
            metrics,
            clock.clone(),
            Arc::default(),
        );
        let decider = Decider { shared: Arc::clone(&shared) };
        Self {
            shared,
            cluster,
            decider,
            evictor,
            clock,
            compat,
            events,
            registry,
            seen_at_once: true,
            fault,
            off_and_on: None,
        }
    }

    /// What is deleted is not seen until [`Stage::see_pods`] or [`Stage::remove_pod`].
    pub(super) fn seen_late(mut self) -> Self {
        self.seen_at_once = false;
        self
    }

    /// The controller dies and another one starts, which lists what is in the cluster.
    pub(super) async fn restart(self) -> Self {
        let seen_at_once = self.seen_at_once;
        let mut next = Self::starting(self.compat, self.clock, self.cluster, self.fault);
        next.seen_at_once = seen_at_once;
        let (nodes, pods) = {
            let cluster = next.cluster.lock();
            let nodes: Vec<_> = cluster.nodes.values().cloned().collect();
            (nodes, cluster.pods.values().cloned().collect::<Vec<_>>())
        };
        for node in nodes {
            ingest::take_node(&next.shared, node, Source::List);
        }
        for pod in pods {
            ingest::take_pod(&next.shared, pod);
        }
        next.settle().await;
        next
    }

    /// Stores a node in the cluster, and has the controller see it.
    pub(super) async fn put_node(&mut self, mut node: Node) {
        {
            let mut cluster = self.cluster.lock();
            // The record is the controller's: it stays unless the test writes one.
            if node.since_annotation.is_none() {
                let before = cluster.nodes.get(node.name.as_str());
                node.since_annotation = before.and_then(|before| before.since_annotation.clone());
            }
            cluster.nodes.insert(node.name.to_string(), node.clone());
        }
        ingest::take_node(&self.shared, node, Source::Watch);
        self.settle().await;
    }

    /// Has the controller see a version of a node, and does not wait for what it makes of it.
    pub(super) fn see_node(&self, node: Node) {
        ingest::take_node(&self.shared, node, Source::Watch);
    }

    /// Stores a node in the cluster, and does not have the controller see it.
    pub(super) fn put_node_unseen(&mut self, node: Node) {
        self.cluster.lock().nodes.insert(node.name.to_string(), node);
    }

    /// The node object vanishes, and the controller sees it.
    pub(super) async fn remove_node(&mut self, name: &str) {
        let node = self.cluster.lock().nodes.remove(name).expect("a node of that name");
        ingest::drop_node(&self.shared, &node.name, node.uid);
        self.settle().await;
    }

    /// Stores a pod in the cluster, and has the controller see it.
    pub(super) async fn put_pod(&mut self, pod: Pod) {
        self.cluster.lock().pods.insert(pod.uid, pod.clone());
        ingest::take_pod(&self.shared, pod);
        self.settle().await;
    }

    /// The pod vanishes from the cluster, and the controller sees it.
    pub(super) async fn remove_pod(&mut self, pod: &Pod) {
        self.cluster.lock().pods.remove(&pod.uid);
        ingest::drop_pod(&self.shared, &pod.node, pod.uid);
        self.settle().await;
    }

    /// A pod of the cluster is deleted and another created, and the controller sees neither.
    pub(super) fn replace_pod_unseen(&mut self, old: &Pod, new: &Pod) {
        let mut cluster = self.cluster.lock();
        cluster.pods.remove(&old.uid);
        cluster.pods.insert(new.uid, new.clone());
    }

    /// The controller lists the pods anew: it sees what is there, and what is not.
    pub(super) async fn see_pods(&mut self) {
        let pods: Vec<_> = self.cluster.lock().pods.values().cloned().collect();
        let seen = pods.iter().map(|pod| pod.uid).collect();
        for pod in pods {
            ingest::take_pod(&self.shared, pod);
        }
        ingest::retain_pods(&self.shared, &seen);
        self.settle().await;
    }

    /// Every deletion is refused like this, until [`Stage::allow`].
    pub(super) fn deny(&mut self, kind: FailureKind) {
        let message = "denied by the test".to_owned();
        self.cluster.lock().denied = Some(Failure::Retry { kind, message, after: None });
    }

    /// Deletions succeed again.
    pub(super) fn allow(&mut self) {
        self.cluster.lock().denied = None;
    }

    /// Lets virtual time pass, handling what comes due on the way.
    pub(super) async fn pass(&mut self, time: Duration) {
        let end = Instant::now() + time;
        self.settle().await;
        while Instant::now() < end {
            let now = Instant::now();
            let next = self.next_due().map_or(end, |due| due.max(now + STEP).min(end));
            tokio::time::advance(next - now).await;
            self.settle().await;
        }
    }

    /// [`Stage::pass`] in seconds.
    pub(super) async fn pass_secs(&mut self, seconds: f64) {
        self.pass(Duration::from_secs_f64(seconds)).await;
    }

    /// The record lane writes what it has to.
    pub(super) async fn write_records(&mut self) {
        let nodes: Vec<_> = self.cluster.lock().nodes.values().cloned().collect();
        for mut node in nodes {
            let Some(facts) = self.shared.view.node(&node.name) else { continue };
            let Some(known) = facts.node else { continue };
            let pods = facts.pods.iter().map(|pod| &**pod);
            let wanted = crate::taint::record::wanted(&facts.anchors, &known, pods);
            node.since_annotation = wanted.map(Arc::from);
            self.cluster.lock().nodes.insert(node.name.to_string(), node.clone());
            ingest::take_node(&self.shared, node, Source::Watch);
        }
        self.settle().await;
    }

    /// What was asked about pods so far, in order.
    pub(super) fn asked(&self) -> Vec<(Asked, String)> {
        self.cluster.lock().log.iter().map(|e| (e.asked.clone(), e.name.clone())).collect()
    }

    /// When deletions of the pod were asked for, in seconds since noon.
    pub(super) fn deletions(&self, name: &str) -> Vec<f64> {
        let cluster = self.cluster.lock();
        let of_pod = cluster.log.iter().filter(|e| e.asked == Asked::Deleted && e.name == name);
        of_pod.map(|e| e.at).collect()
    }

    /// Whether a countdown of the pod is armed, and in how many seconds it ends.
    pub(super) fn timer(&self, pod: &Pod) -> Option<f64> {
        let scheduled = self.timers(&pod.node).get(&TimerKey::Pod(pod.uid))?;
        Some(scheduled.due.saturating_duration_since(Instant::now()).as_secs_f64())
    }

    /// Messages of the events so far, taken out.
    pub(super) fn events(&mut self) -> Vec<String> {
        self.events.take_messages()
    }

    /// The value of a counter or gauge without labels, or with this one value of its only label.
    pub(super) fn metric(&self, name: &str, label: Option<&str>) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().find(|f| f.name() == name).expect("a metric of that name");
        let metric = family
            .get_metric()
            .iter()
            .find(|m| label.is_none_or(|l| m.get_label().iter().any(|pair| pair.value() == l)));
        let metric = metric.expect("a metric with that label");
        metric.get_counter().get_value() + metric.get_gauge().get_value()
    }

    fn timers(&self, node: &NodeName) -> &Timers {
        &self.shared.timers[shard_of(node.as_str())]
    }

    /// Handles everything that can be handled now: node items, pod items, timers that are due.
    pub(super) async fn settle(&mut self) {
        for _ in 0..10_000 {
            if let Some(key) = take(&self.shared.nodes) {
                self.decider.node(shard_of(key.0.as_str()), &key);
                self.shared.nodes.done(&key);
            } else if let Some(key) = take(&self.shared.pods) {
                self.decider.pod(shard_of(key.node.as_str()), &key);
                self.shared.pods.done(&key);
            } else if !self.fire_one().await {
                return;
            }
        }
        panic!("the controller does not come to rest");
    }

    fn next_due(&self) -> Option<Instant> {
        let all = self.shared.timers.iter().flat_map(Timers::snapshot);
        all.map(|(_, scheduled)| scheduled.due).min()
    }

    async fn fire_one(&mut self) -> bool {
        for (shard, timers) in self.shared.timers.iter().enumerate() {
            let Some(fired) =
                tokio::task::unconstrained(self.shared.next_due(timers)).now_or_never()
            else {
                continue;
            };
            match fired.value {
                Work::LookAgain => {
                    timers.complete(&fired.key, fired.token, pipeline::Outcome::Done);
                    let (TimerKey::Node(name) | TimerKey::Noisy(name)) = fired.key else {
                        panic!("a pod to look at again")
                    };
                    self.shared.node_changed(name);
                }
                Work::Drain { pod, .. } => panic!("nobody orders {pod} to go"),
                Work::Evict { pod, verdict } => {
                    let (uid, node) = (pod.uid, pod.node.clone());
                    let there = self.cluster.lock().pods.contains_key(&uid);
                    let job = Job { pod, verdict, due: fired.due };
                    let (key, token) = (fired.key, fired.token);
                    let task = Task::Evict(job.clone());
                    let handed_out = HandedOut::new(&self.shared, shard, key, token, task);
                    let outcome = self.evictor.carry_out(&job).await;
                    if let Some((off, on)) = self.off_and_on.take() {
                        for node in [off, on] {
                            let key = NodeKey(node.name.clone());
                            ingest::take_node(&self.shared, node, Source::Watch);
                            self.decider.node(shard, &key);
                        }
                    }
                    if self.fault == Broken::ForgetsFailures {
                        handed_out.forget();
                    } else {
                        handed_out.finish(&outcome);
                    }
                    let gone = there && !self.cluster.lock().pods.contains_key(&uid);
                    if gone && self.seen_at_once {
                        ingest::drop_pod(&self.shared, &node, uid);
                    }
                }
            }
            return true;
        }
        false
    }
}

fn take<K: Clone + Eq + std::hash::Hash>(queue: &pipeline::WorkQueue<K>) -> Option<K> {
    if queue.is_empty() { None } else { queue.get() }
}
