//! Kubernetes events: what happened to a pod or a node, visible with kubectl.
//!
//! Events never delay the work. The queue is bounded; what does not fit is counted and dropped. While
//! the API server has more important work they are held back for a while: an event costs it nearly as
//! much as the write that it reports.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use prometheus::{IntCounterVec, Opts, Registry};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::reasons::Reason;
use super::repeats::Repeats;
use crate::clock::{Clock, whole_seconds};
use crate::model::{NodeName, PodRef, Uid, Verdict};

/// Capacity of the queue. At about 50 events per second, this is a delay of half a minute.
const LANE: usize = 2048;
/// With more than this many queued, events are not held back, to make room for new ones.
const HELD: usize = LANE / 2;
/// Maximum time that an event is held back: someone may be waiting for it.
const HELD_FOR: Duration = Duration::from_secs(10);
/// Interval at which the sender checks for more important work.
const LOOK: Duration = Duration::from_millis(50);
/// Component of upstream's events; alerts and audits match on it.
const COMPONENT: &str = "taint-eviction-controller";
/// Component of events about cordons and drains.
const DRAIN_COMPONENT: &str = "ostrakon";
/// Component of the events of a dry run.
const DRY_RUN_COMPONENT: &str = "ostrakon-dry-run";
/// What the reasons of a dry run's events begin with.
const DRY_RUN_REASON: &str = "DryRun";
/// What the messages of a dry run's events begin with.
const DRY_RUN_MESSAGE: &str = "Dry run, nothing was done: ";

/// Maximum length of a message about a configuration, in characters.
const LONGEST_MESSAGE: usize = 1000;

/// Counters of events. Clones share them.
#[derive(Clone, Debug)]
pub struct EventMetrics {
    results: IntCounterVec,
}

impl EventMetrics {
    /// Registers the counters.
    ///
    /// # Errors
    /// A metric of the same name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let results = IntCounterVec::new(
            Opts::new(
                "ostrakon_events_total",
                "Kubernetes events: sent, failed (refused or unanswered), dropped (the queue was \
                 full).",
            ),
            &["result"],
        )?;
        for result in ["sent", "failed", "dropped"] {
            results.with_label_values(&[result]);
        }
        registry.register(Box::new(results.clone()))?;
        Ok(Self { results })
    }

    fn count(&self, result: &str) {
        self.results.with_label_values(&[result]).inc();
    }
}

/// An event ready to be created.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Namespace to create it in.
    pub namespace: String,
    /// The object, core/v1.
    pub object: Value,
    /// When it was made.
    pub made: Instant,
}

/// Creates events and queues them. Clones share the queue.
#[derive(Clone, Debug)]
pub struct Recorder {
    lane: mpsc::Sender<Event>,
    metrics: EventMetrics,
    clock: Clock,
    instance: Arc<str>,
    serial: Arc<AtomicU64>,
    repeats: Arc<Repeats>,
    /// In a dry run, whether events are sent.
    dry_run: Option<bool>,
}

/// Something that happened to a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeEvent<'a> {
    /// The node.
    pub name: &'a NodeName,
    /// Its identity.
    pub uid: Uid,
    /// For programs.
    pub reason: Reason,
    /// For people.
    pub message: &'a str,
}

/// The receiving end of the queue.
#[derive(Debug)]
pub struct EventLane {
    events: mpsc::Receiver<Event>,
    metrics: EventMetrics,
}

impl Recorder {
    /// A recorder and its lane. `instance` names this process, for example its pod.
    pub fn new(instance: &str, metrics: EventMetrics, clock: Clock) -> (Self, EventLane) {
        let (lane, events) = mpsc::channel(LANE);
        let recorder = Self {
            lane,
            metrics: metrics.clone(),
            clock,
            instance: Arc::from(instance),
            serial: Arc::default(),
            repeats: Arc::new(Repeats::new()),
            dry_run: None,
        };
        (recorder, EventLane { events, metrics })
    }

    /// For a dry run, which does none of what its events say: they are made only if it is to `send` them, and
    /// by their component, reason and message nobody takes them for those of a real run.
    #[must_use]
    pub fn dry_run(self, send: bool) -> Self {
        Self { dry_run: Some(send), ..self }
    }

    /// The current time.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Whether this is a dry run.
    pub fn is_dry_run(&self) -> bool {
        self.dry_run.is_some()
    }

    /// The pod is being evicted: upstream's event, with the reason in full beside it.
    pub fn evicting(&self, pod: &PodRef, verdict: &Verdict) {
        let message = format!("Marking for deletion Pod {pod}");
        self.about_pod(pod, Reason::TaintManagerEviction, "Evict", &message, verdict);
    }

    /// The pod's countdown was cancelled: upstream's event, at most once a minute for a pod.
    pub fn cancelled(&self, pod: &PodRef, verdict: &Verdict) {
        if !self.repeats.is_news(pod.uid, "cancelled") {
            return;
        }
        let message = format!("Cancelling deletion of Pod {pod}");
        self.about_pod(pod, Reason::TaintManagerEviction, "Cancel", &message, verdict);
    }

    /// The pod cannot be evicted for now. At most once a minute for a pod and a cause.
    pub fn failing(&self, pod: &PodRef, verdict: &Verdict, cause: &'static str, error: &str) {
        if !self.repeats.is_news(pod.uid, cause) {
            return;
        }
        let what = if verdict.respects_budgets() { "evict" } else { "delete" };
        let message = format!(
            "Cannot {what} Pod {pod} from node {} ({cause}: {error}); retrying until it succeeds",
            pod.node
        );
        self.about_pod(pod, Reason::TaintManagerEvictionFailed, "Evict", &message, verdict);
    }

    /// A rule respects the pod's disruption budgets, and they do not allow its eviction. At most once a
    /// minute for a pod and a cause.
    pub fn taint_blocked(&self, pod: &PodRef, verdict: &Verdict, cause: &'static str, why: &str) {
        if !self.repeats.is_news(pod.uid, cause) {
            return;
        }
        let message = format!("Cannot evict Pod {pod} from node {}: {why}", pod.node);
        self.about_pod(pod, Reason::TaintManagerEvictionBlocked, "Evict", &message, verdict);
    }

    /// The pod's condition `DisruptionTarget` was refused. At most once a minute for a pod.
    pub fn unmarked(&self, pod: &PodRef, verdict: &Verdict, cause: &'static str, error: &str) {
        if !self.repeats.is_news(pod.uid, "unmarked") {
            return;
        }
        let message = format!(
            "Cannot set condition DisruptionTarget of Pod {pod} ({cause}: {error}); deleting the pod \
             without it"
        );
        self.about_pod(pod, Reason::DisruptionConditionRefused, "Evict", &message, verdict);
    }

    /// The node's record of when its taints began cannot be read. At most once a minute for a node.
    pub fn record_unreadable(&self, node: &NodeName, uid: Uid, error: &str) {
        if !self.repeats.is_news(uid, "record") {
            return;
        }
        let message = format!(
            "Replacing annotation ostrakon.dev/noexecute-since, which cannot be read: {error}"
        );
        let reason = Reason::TaintRecordUnreadable;
        let event = NodeEvent { name: node, uid, reason, message: &message };
        self.node(&event, "ReplaceRecord", COMPONENT);
    }

    /// This machine's clock and the API server's disagree. The event is about the lease, which is in the
    /// namespace of this process. At most once a minute.
    pub fn clock_skew(&self, namespace: &str, lease: &str, message: &str) {
        if !self.repeats.is_news(Uid(0), "clock") {
            return;
        }
        let message = format!("{}: {message}", self.instance);
        self.about_lease(namespace, lease, Reason::ClockSkew, "CompareClocks", &message);
    }

    /// Evictions, cordons and starts of drains are paused. The event is about the lease, which holds the
    /// pause.
    pub fn paused(&self, namespace: &str, lease: &str, message: &str) {
        self.about_lease(namespace, lease, Reason::EvictionsPaused, "Pause", message);
    }

    /// The pause is over.
    pub fn resumed(&self, namespace: &str, lease: &str, message: &str) {
        self.about_lease(namespace, lease, Reason::EvictionsResumed, "Resume", message);
    }

    /// The breaker has tripped.
    pub fn breaker_tripped(&self, namespace: &str, lease: &str, message: &str) {
        self.about_lease(namespace, lease, Reason::EvictionBreakerTripped, "Evict", message);
    }

    /// The breaker is reset.
    pub fn breaker_reset(&self, namespace: &str, lease: &str, message: &str) {
        self.about_lease(namespace, lease, Reason::EvictionBreakerReset, "Evict", message);
    }

    /// A configuration file cannot be used, and the one before stays in force. The event is about the lease,
    /// which is in the namespace of this process.
    pub fn config_refused(&self, namespace: &str, lease: &str, message: &str) {
        let message: String =
            format!("{}: {message}", self.instance).chars().take(LONGEST_MESSAGE).collect();
        let reason = Reason::ConfigurationRefused;
        self.about_lease(namespace, lease, reason, "ReadConfiguration", &message);
    }

    /// Another controller evicts pods for NoExecute taints too. The event is about the lease.
    pub fn other_manager(&self, namespace: &str, lease: &str, message: &str) {
        self.about_lease(namespace, lease, Reason::OtherTaintManager, "WatchPods", message);
    }

    /// The same where there is no lease: the event is about a node of which it evicted a pod.
    pub fn other_manager_on(&self, node: &NodeName, message: &str) {
        let about = json!({"apiVersion": "v1", "kind": "Node", "name": node.as_str()});
        let content = json!({"action": "WatchPods", "message": message, "involvedObject": about});
        self.send("default", DRAIN_COMPONENT, Reason::OtherTaintManager, content);
    }

    /// A taint of a node is not acted on.
    pub fn about_taint(&self, event: &NodeEvent<'_>) {
        self.node(event, "IgnoreTaint", COMPONENT);
    }

    /// Something happened to a node that is cordoned or drained.
    pub fn about_node(&self, event: &NodeEvent<'_>) {
        self.node(event, "Drain", DRAIN_COMPONENT);
    }

    /// Whether this was not said of that object within the last minute. Counts as saying it.
    pub fn is_news(&self, about: Uid, what: &'static str) -> bool {
        self.repeats.is_news(about, what)
    }

    /// The pod is being evicted, or at last deleted, since its node is drained.
    pub fn draining(&self, pod: &PodRef, policy: &str, delete: bool) {
        let how = if delete { "Deleting" } else { "Evicting" };
        let message = format!("{how} Pod {pod}: policy {policy} drains node {}", pod.node);
        self.about_drained(pod, Reason::DrainEviction, &message);
    }

    /// The pod keeps its node from being drained for now. At most once a minute for a pod and a
    /// cause.
    pub fn drain_blocked(&self, pod: &PodRef, cause: &'static str, why: &str) {
        if !self.repeats.is_news(pod.uid, cause) {
            return;
        }
        let message = format!("Cannot evict Pod {pod} to drain node {}: {why}", pod.node);
        self.about_drained(pod, Reason::DrainEvictionBlocked, &message);
    }

    fn about_drained(&self, pod: &PodRef, reason: Reason, message: &str) {
        let content = json!({
            "action": "Drain", "message": message, "involvedObject": regarding(pod),
            "related": {"apiVersion": "v1", "kind": "Node", "name": pod.node.as_str()},
        });
        self.send(&pod.namespace, DRAIN_COMPONENT, reason, content);
    }

    fn node(&self, event: &NodeEvent<'_>, action: &str, component: &str) {
        let NodeEvent { name, uid, reason, message } = event;
        let about = json!({
            "apiVersion": "v1", "kind": "Node", "name": name.as_str(), "uid": uid.to_string(),
        });
        let content = json!({"action": action, "message": message, "involvedObject": about});
        self.send("default", component, *reason, content);
    }

    fn about_lease(
        &self,
        namespace: &str,
        lease: &str,
        reason: Reason,
        action: &str,
        message: &str,
    ) {
        let about = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "namespace": namespace,
            "name": lease,
        });
        let content = json!({"action": action, "message": message, "involvedObject": about});
        self.send(namespace, DRAIN_COMPONENT, reason, content);
    }

    fn about_pod(
        &self,
        pod: &PodRef,
        reason: Reason,
        action: &str,
        message: &str,
        verdict: &Verdict,
    ) {
        let content = json!({
            "metadata": {"annotations": {"ostrakon.dev/verdict": verdict.to_string()}},
            "action": action, "message": message, "involvedObject": regarding(pod),
            "related": {"apiVersion": "v1", "kind": "Node", "name": pod.node.as_str()},
        });
        self.send(&pod.namespace, COMPONENT, reason, content);
    }

    /// Queues an event with this `content`, in `namespace`.
    fn send(&self, namespace: &str, component: &str, reason: Reason, content: Value) {
        if self.dry_run == Some(false) {
            return;
        }
        let now = self.clock.now();
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let mut object = content;
        let about = object["involvedObject"]["name"].as_str().unwrap_or_default();
        // An object's name may take up the whole length that an event's name may have.
        let about: String = about.chars().take(200).collect();
        let about = about.trim_end_matches(['-', '.']);
        let nanos = u64::try_from(now.as_nanosecond()).unwrap_or_default();
        object["apiVersion"] = json!("v1");
        object["kind"] = json!("Event");
        object["type"] = json!(reason.severity());
        object["reason"] = json!(reason);
        let component = if self.is_dry_run() {
            let message = object["message"].as_str().unwrap_or_default();
            object["message"] = json!(format!("{DRY_RUN_MESSAGE}{message}"));
            object["reason"] = json!(format!("{DRY_RUN_REASON}{reason:?}"));
            DRY_RUN_COMPONENT
        } else {
            component
        };
        object["metadata"]["name"] = json!(format!("{about}.{:x}", nanos.wrapping_add(serial)));
        object["metadata"]["namespace"] = json!(namespace);
        object["firstTimestamp"] = json!(whole_seconds(now));
        object["lastTimestamp"] = json!(whole_seconds(now));
        object["count"] = json!(1);
        object["source"] = json!({"component": component});
        object["reportingComponent"] = json!(component);
        object["reportingInstance"] = json!(&*self.instance);
        let event = Event { namespace: namespace.to_owned(), object, made: Instant::now() };
        if self.lane.try_send(event).is_err() {
            self.metrics.count("dropped");
        }
    }
}

impl EventLane {
    /// Messages of the events that wait, taken out.
    #[cfg(test)]
    pub(crate) fn take_messages(&mut self) -> Vec<String> {
        let mut messages = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            messages.push(event.object["message"].as_str().unwrap_or_default().to_owned());
        }
        messages
    }

    /// Hands each event to `create`, one after the other. While `yields` says so they are held back,
    /// each for ten seconds at most, and as long as the lane is not half full. After `stop` it takes
    /// no new ones, and ends when those that wait have been handed over.
    pub async fn run<F, E>(
        mut self,
        create: impl Fn(Event) -> F,
        yields: impl Fn() -> bool,
        stop: CancellationToken,
    ) where
        F: Future<Output = Result<(), E>>,
        E: std::fmt::Display,
    {
        loop {
            let next = tokio::select! {
                biased;
                next = self.events.recv() => next,
                () = stop.cancelled(), if !self.events.is_closed() => {
                    self.events.close();
                    continue;
                }
            };
            let Some(event) = next else { return };
            while event.made.elapsed() < HELD_FOR && self.events.len() < HELD && yields() {
                if stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_none() {
                    break;
                }
            }
            match create(event).await {
                Ok(()) => self.metrics.count("sent"),
                Err(error) => {
                    self.metrics.count("failed");
                    tracing::debug!(%error, "cannot create an event");
                }
            }
        }
    }
}

fn regarding(pod: &PodRef) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "namespace": &*pod.namespace, "name": &*pod.name,
        "uid": pod.uid.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Kept;

    fn pod() -> PodRef {
        PodRef { uid: Uid(7), namespace: "shop".into(), name: "web-0".into(), node: "n1".into() }
    }

    fn recorder() -> (Recorder, EventLane, EventMetrics) {
        let metrics = EventMetrics::register(&Registry::new()).unwrap();
        let clock = Clock::starting_at("2026-01-01T12:00:00.5Z".parse().unwrap());
        let (recorder, lane) = Recorder::new("ostrakon-0", metrics.clone(), clock);
        (recorder, lane, metrics)
    }

    #[tokio::test(start_paused = true)]
    async fn events_say_what_upstreams_say_and_more_beside_it() {
        let (recorder, mut lane, _) = recorder();
        let verdict = Verdict::Keep(Kept::NoTaints);
        recorder.evicting(&pod(), &verdict);
        recorder.cancelled(&pod(), &verdict);
        let evicting = lane.events.recv().await.unwrap();
        assert_eq!(evicting.namespace, "shop");
        let object = evicting.object;
        assert_eq!(object["type"], "Normal");
        assert_eq!(object["reason"], "TaintManagerEviction");
        assert_eq!(object["message"], "Marking for deletion Pod shop/web-0");
        assert_eq!(object["source"]["component"], "taint-eviction-controller");
        assert_eq!(object["involvedObject"]["uid"], pod().uid.to_string());
        assert_eq!(object["related"]["name"], "n1");
        assert_eq!(object["firstTimestamp"], "2026-01-01T12:00:00Z");
        let verdict_text = object["metadata"]["annotations"]["ostrakon.dev/verdict"].as_str();
        assert_eq!(verdict_text, Some("keep: its node has no NoExecute taint"));
        let cancelled = lane.events.recv().await.unwrap().object;
        assert_eq!(cancelled["message"], "Cancelling deletion of Pod shop/web-0");
        assert_ne!(cancelled["metadata"]["name"], object["metadata"]["name"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_holds_up_a_drain_is_told_on_the_pod_once_a_minute_for_each_cause() {
        let (recorder, mut lane, _) = recorder();
        recorder.draining(&pod(), "kernel", false);
        for _ in 0..9 {
            recorder.drain_blocked(&pod(), "budget", "its budget web has nothing left");
        }
        recorder.drain_blocked(&pod(), "forbidden", "no");
        let evicting = lane.events.recv().await.unwrap().object;
        assert_eq!(evicting["message"], "Evicting Pod shop/web-0: policy kernel drains node n1");
        assert_eq!(
            (&evicting["type"], &evicting["reason"]),
            (&json!("Normal"), &json!("DrainEviction"))
        );
        let blocked = lane.events.recv().await.unwrap().object;
        assert_eq!(blocked["type"], "Warning");
        assert_eq!(blocked["source"]["component"], "ostrakon");
        assert_eq!(blocked["involvedObject"]["uid"], pod().uid.to_string());
        assert_eq!(lane.take_messages().len(), 1, "the other cause");
    }

    #[tokio::test(start_paused = true)]
    async fn a_taint_that_flaps_is_told_of_once_a_minute() {
        let (recorder, mut lane, _) = recorder();
        for _ in 0..50 {
            recorder.evicting(&pod(), &Verdict::Keep(Kept::NoTaints));
            recorder.cancelled(&pod(), &Verdict::Keep(Kept::NoTaints));
            recorder.failing(&pod(), &Verdict::Keep(Kept::NoTaints), "forbidden", "no");
            recorder.failing(&pod(), &Verdict::Keep(Kept::NoTaints), "timeout", "no");
        }
        let messages = lane.take_messages();
        let count = |start: &str| messages.iter().filter(|m| m.starts_with(start)).count();
        assert_eq!(count("Marking"), 50, "each comes with a request that deletes the pod");
        assert_eq!(count("Cancelling"), 1);
        assert_eq!(count("Cannot delete"), 2, "one per cause");
        tokio::time::advance(std::time::Duration::from_secs(61)).await;
        recorder.cancelled(&pod(), &Verdict::Keep(Kept::NoTaints));
        assert_eq!(lane.take_messages().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_lane_drops_and_counts_and_never_waits() {
        let (recorder, lane, metrics) = recorder();
        for _ in 0..LANE + 3 {
            recorder.evicting(&pod(), &Verdict::Keep(Kept::NoTaints));
        }
        assert_eq!(metrics.results.with_label_values(&["dropped"]).get(), 3);
        let create = |event: Event| async move {
            let name = event.object["metadata"]["name"].as_str().unwrap().to_owned();
            if name.ends_with('0') { Err("refused") } else { Ok(()) }
        };
        let stop = CancellationToken::new();
        stop.cancel();
        lane.run(create, || true, stop).await;
        let sent = metrics.results.with_label_values(&["sent"]).get();
        let failed = metrics.results.with_label_values(&["failed"]).get();
        assert_eq!(sent + failed, LANE as u64);
        assert!(failed > 0);
    }

    /// How many events have been sent this long after the first of so many was made.
    async fn sent_after(time: Duration, made: usize) -> u64 {
        let (recorder, lane, metrics) = recorder();
        for _ in 0..made {
            recorder.evicting(&pod(), &Verdict::Keep(Kept::NoTaints));
        }
        let create = async |_: Event| Ok::<_, String>(());
        let _ =
            tokio::time::timeout(time, lane.run(create, || true, CancellationToken::new())).await;
        metrics.results.with_label_values(&["sent"]).get()
    }

    #[tokio::test(start_paused = true)]
    async fn more_important_work_holds_events_back_for_a_while() {
        assert_eq!(sent_after(Duration::from_millis(9_900), 20).await, 0);
        assert_eq!(sent_after(Duration::from_millis(10_100), 20).await, 20);
    }

    #[tokio::test(start_paused = true)]
    async fn what_fills_half_the_lane_is_not_held_back() {
        assert_eq!(sent_after(Duration::from_secs(1), HELD).await, 0);
        assert_eq!(sent_after(Duration::from_secs(1), HELD + 5).await, 5);
    }

    #[tokio::test(start_paused = true)]
    async fn the_stop_lets_go_what_is_held_back() {
        let (recorder, lane, metrics) = recorder();
        for _ in 0..20 {
            recorder.evicting(&pod(), &Verdict::Keep(Kept::NoTaints));
        }
        let stop = CancellationToken::new();
        let create = async |_: Event| Ok::<_, String>(());
        let running = tokio::spawn(lane.run(create, || true, stop.clone()));
        tokio::time::sleep(Duration::from_millis(120)).await;
        assert_eq!(metrics.results.with_label_values(&["sent"]).get(), 0);
        let stopped = Instant::now();
        stop.cancel();
        running.await.unwrap();
        assert_eq!(metrics.results.with_label_values(&["sent"]).get(), 20);
        assert_eq!(stopped.elapsed(), Duration::ZERO);
    }
}
