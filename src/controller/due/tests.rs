//! Evictions of a drain on their way through timers, queue and window to an API server.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use prometheus::Registry;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::*;
use crate::clock::Clock;
use crate::cluster::watch::Source;
use crate::cluster::{self, Api};
use crate::config::Compat;
use crate::controller::requests::{ApiRequests, ByEvents};
use crate::controller::state::Shared;
use crate::drain::build::policy;
use crate::drain::{Claim, Cordon, DrainPhase, Orphans, Record};
use crate::drain_reconciler::DrainMetrics;
use crate::evict::{
    self, Cause, CauseKind, DrainEviction, Evictor, Hold, Holds, Key, Pauses, State, Wait, Window,
};
use crate::informer::{Facts, NodeKey, PodKey};
use crate::model::build::{at, noon, uid};
use crate::model::{NodeDrainFacts, NodeName, PodRef, Verdict};
use crate::observe::{EventLane, EventMetrics, Recorder};
use crate::pipeline::{Handler, Runner, TimedQueue, shard_of};
use crate::sim::embedded::{Embedded, Fault, Options, Resource, Rule, Verb};

struct Bench {
    cluster: Embedded,
    api: Api,
    shared: Arc<Shared>,
    events: EventLane,
    _tasks: JoinSet<()>,
}

fn node_name() -> NodeName {
    "n1".into()
}

fn record(phase: DrainPhase) -> String {
    let claim = Claim { policy: "p".into(), conditions: vec!["Bad=True,0s".into()] };
    let record = Record::new("s".into(), Cordon::Ours, vec![claim]);
    Record { phase, started: Some(at(0)), deadline: Some(at(600)), ..record }.format()
}

fn drain() -> Arc<DrainEviction> {
    Arc::new(DrainEviction {
        policy: "p".into(),
        session: "s".into(),
        grace: None,
        deadline: at(600),
        delete: false,
    })
}

/// A cluster with the node `n1`, which is drained, and what evicts in its shard.
async fn bench() -> Bench {
    held_by(Vec::new(), Arc::default()).await
}

/// The same, with these holds.
async fn held_by(holds: Vec<Box<dyn Hold>>, changed: Arc<Notify>) -> Bench {
    let clock = Clock::starting_at(noon());
    let cluster = Embedded::new(clock.clone(), Options::default());
    let annotations = json!({NodeDrainFacts::RECORD_ANNOTATION: record(DrainPhase::Draining)});
    let node = json!({
        "metadata": {"name": "n1", "annotations": annotations},
        "spec": {"unschedulable": true},
        "status": {"conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": noon().to_string()},
            {"type": "Bad", "status": "True", "lastTransitionTime": noon().to_string()},
        ]},
    });
    cluster.store().insert(Resource::Nodes, node).unwrap();

    let registry = Registry::new();
    let api = Api::new(cluster.client(), cluster::Metrics::register(&registry).unwrap());
    let metrics = EventMetrics::register(&registry).unwrap();
    let (recorder, events) = Recorder::new("test", metrics, clock.clone());
    let holds = Holds::new(holds, changed);
    let pauses = Pauses::none(clock.clone());
    let facts = Arc::new(Facts::new(clock.clone(), Compat::None));
    let shared = Shared::new(facts, recorder.clone(), pauses, holds);
    let policies = Arc::from([policy("p", &["Bad"])]);
    let shared =
        shared.draining_by(policies, Orphans::Keep, DrainMetrics::register(&registry).unwrap());
    let shared = Arc::new(shared);
    shared.lead();
    let drains = shared.drains.as_ref().unwrap();
    let requests = ApiRequests { api: api.clone(), drains: Some(Arc::clone(drains)) };
    let evictor = Arc::new(Evictor::new(
        shared.newest_facts(),
        requests,
        ByEvents(recorder),
        Arc::clone(&shared.schedule.backlog),
        evict::Metrics::register(&registry, &shared.schedule.backlog).unwrap(),
        clock,
        Arc::new(Window::default()),
    ));
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(take_due(
        Arc::clone(&shared.queues),
        Arc::clone(&shared.schedule),
        shard_of("n1"),
        stop.clone(),
    ));
    let (queue, origin) = (Arc::clone(&shared.schedule.due), Arc::clone(&shared.schedule));
    tasks.spawn(evict::hand_out(queue, origin, evictor, Runner::alone(), stop));
    let bench = Bench { cluster, api, shared, events, _tasks: tasks };
    bench.see_node().await;
    bench.node_is_queued();
    bench
}

impl Bench {
    /// A ready pod of `n1` with the label `app=web`, in the cluster and in the view.
    async fn pod(&self, name: &str) -> PodRef {
        let pod = json!({
            "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}},
            "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 30, "containers": [{}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        self.cluster.store().insert(Resource::Pods, pod).unwrap();
        let pod = self.stored(name)["metadata"]["uid"].as_str().unwrap().parse().unwrap();
        let (namespace, name) = ("default".into(), name.into());
        let pod = PodRef { uid: pod, namespace, name, node: node_name() };
        self.see(&pod).await;
        pod
    }

    /// Has the view catch up with the node.
    async fn see_node(&self) {
        let watched = &self.shared.drains.as_ref().unwrap().watched();
        let stored = self.api.stored_node(&node_name(), watched).await.unwrap().unwrap();
        self.shared.ingest().take_node(stored.node, Source::Watch);
    }

    /// Has the view catch up with a pod.
    async fn see(&self, pod: &PodRef) {
        match self.api.pod(pod).await.unwrap() {
            Some(facts) => self.shared.ingest().take_pod(facts),
            None => self.shared.ingest().drop_pod(&pod.node, pod.uid),
        }
    }

    fn stored(&self, name: &str) -> Arc<Value> {
        self.cluster.store().get(Resource::Pods, "default", name).unwrap()
    }

    fn is_going(&self, name: &str) -> bool {
        !self.stored(name)["metadata"]["deletionTimestamp"].is_null()
    }

    fn budget(&self, allowed: i64) {
        let budget = json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
            "status": {"observedGeneration": 1, "disruptionsAllowed": allowed, "desiredHealthy": 1},
        });
        self.cluster.store().insert(Resource::PodDisruptionBudgets, budget).unwrap();
    }

    async fn change_node(&self, phase: DrainPhase) {
        let patch = json!({
            "metadata": {"annotations": {NodeDrainFacts::RECORD_ANNOTATION: record(phase)}},
        });
        let kind = kube::api::Patch::Merge(patch);
        let nodes: kube::Api<k8s_openapi::api::core::v1::Node> =
            kube::Api::all(self.cluster.client());
        nodes.patch("n1", &kube::api::PatchParams::default(), &kind).await.unwrap();
    }

    async fn free_budget(&self) {
        let patch = json!({"status": {"disruptionsAllowed": 1}});
        let budgets: kube::Api<k8s_openapi::api::policy::v1::PodDisruptionBudget> =
            kube::Api::namespaced(self.cluster.client(), "default");
        let kind = kube::api::Patch::Merge(patch);
        budgets.patch_status("web", &kube::api::PatchParams::default(), &kind).await.unwrap();
    }

    fn state(&self, pod: &PodRef) -> Option<State> {
        self.shared.schedule.backlog.get(pod, CauseKind::Drain).map(|entry| entry.state)
    }

    fn timers(&self) -> &TimedQueue<Key, (PodRef, Cause)> {
        self.shared.schedule.timers_of(&node_name())
    }

    fn node_is_queued(&self) -> bool {
        let queued = !self.shared.queues.nodes.is_empty();
        if queued {
            let key = self.shared.queues.nodes.get().unwrap();
            self.shared.queues.nodes.done(&key);
        }
        queued
    }
}

async fn seconds(count: u64) {
    tokio::time::sleep(Duration::from_secs(count)).await;
}

#[tokio::test(start_paused = true)]
async fn pods_go_in_the_order_that_the_drain_gives_and_the_node_is_looked_at_when_one_is_gone() {
    let mut bench = bench().await;
    let (a, b) = (bench.pod("a").await, bench.pod("b").await);
    let bystander = bench.pod("c").await;
    bench.shared.schedule.evict_for_drain(&[b.clone(), a.clone()], &drain());
    seconds(1).await;
    let version = |name: &str| -> u64 {
        bench.stored(name)["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    };
    assert!(bench.is_going("a") && bench.is_going("b") && !bench.is_going("c"));
    assert!(version("b") < version("a"));
    assert_eq!(bench.state(&a), Some(State::Sent));
    assert_eq!(bench.state(&bystander), None);

    bench.node_is_queued();
    let decider = bench.shared.decider();
    let client: kube::Api<k8s_openapi::api::core::v1::Pod> =
        kube::Api::namespaced(bench.cluster.client(), "default");
    client.delete("a", &kube::api::DeleteParams::default().grace_period(0)).await.unwrap();
    bench.see(&a).await;
    decider.pod(shard_of("n1"), &PodKey { node: node_name(), uid: a.uid });
    assert_eq!(bench.state(&a), None);
    assert!(bench.node_is_queued(), "is its drain at its end?");
    assert!(bench.timers().get(&Key { uid: a.uid, kind: CauseKind::Drain }).is_none());
    let messages = bench.events.take_messages();
    assert_eq!(messages.iter().filter(|m| m.starts_with("Evicting Pod")).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_its_budget_holds_back_goes_when_the_budget_has_room() {
    let mut bench = bench().await;
    let (a, b) = (bench.pod("a").await, bench.pod("b").await);
    bench.budget(1);
    bench.shared.schedule.evict_for_drain(&[a.clone(), b.clone()], &drain());
    seconds(100).await;
    assert!(bench.is_going("a") && !bench.is_going("b"));
    assert_eq!(bench.state(&b), Some(State::Blocked));
    let told = bench.events.take_messages();
    let told: Vec<_> = told.iter().filter(|message| message.starts_with("Cannot evict")).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("default/b") && told[0].contains("web"), "{told:?}");
    let key = Key { uid: b.uid, kind: CauseKind::Drain };
    let next = || bench.timers().get(&key).unwrap().due;
    let before = next();
    bench.shared.schedule.evict_for_drain(&[a, b.clone()], &drain());
    assert_eq!(next(), before, "the same drain does not cut its pause short");
    assert!(before > Instant::now());
    bench.free_budget().await;
    seconds(60).await;
    assert!(bench.is_going("b"));
}

#[tokio::test(start_paused = true)]
async fn pods_whose_evictions_are_not_answered_do_not_hold_up_the_others() {
    let bench = bench().await;
    let mut stuck = Vec::new();
    for n in 0..40 {
        let name = format!("stuck-{n}");
        let hangs = Rule::always(Fault::Hang).on(Verb::Create).of(Resource::Pods);
        bench.cluster.faults().add(hangs.named(&name));
        stuck.push(bench.pod(&name).await);
    }
    let pod = bench.pod("a").await;
    bench.shared.schedule.evict_for_drain(&stuck, &drain());
    seconds(1).await;
    bench.shared.schedule.evict_for_drain(&[pod], &drain());
    seconds(1).await;
    assert!(!bench.is_going("a"), "all places are taken");
    seconds(12).await;
    assert!(bench.is_going("a"));
    assert!(!bench.is_going("stuck-0"));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_eviction_is_not_carried_out_even_if_it_waits() {
    let bench = bench().await;
    let a = bench.pod("a").await;
    bench.budget(0);
    bench.shared.schedule.evict_for_drain(std::slice::from_ref(&a), &drain());
    seconds(1).await;
    assert_eq!(bench.state(&a), Some(State::Blocked));
    bench.shared.schedule.cancel_all_for_drain(&node_name());
    bench.free_budget().await;
    seconds(300).await;
    assert!(!bench.is_going("a"));
    assert!(bench.shared.schedule.backlog.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_is_over_by_the_node_itself_evicts_nobody() {
    for phase in DrainPhase::ALL.into_iter().filter(|phase| *phase != DrainPhase::Draining) {
        let bench = bench().await;
        let a = bench.pod("a").await;
        bench.change_node(phase).await;
        bench.node_is_queued();
        bench.shared.schedule.evict_for_drain(std::slice::from_ref(&a), &drain());
        seconds(1).await;
        assert!(!bench.is_going("a"), "{phase}");
        assert!(bench.shared.schedule.backlog.is_empty() && bench.node_is_queued());
    }
}

#[tokio::test(start_paused = true)]
async fn an_eviction_of_another_session_or_past_its_deadline_evicts_nobody() {
    let drains = [
        DrainEviction { session: "before".into(), ..(*drain()).clone() },
        DrainEviction { deadline: noon(), ..(*drain()).clone() },
    ];
    for drain in drains {
        let bench = bench().await;
        let a = bench.pod("a").await;
        bench.shared.schedule.evict_for_drain(std::slice::from_ref(&a), &Arc::new(drain));
        seconds(1).await;
        assert!(!bench.is_going("a"));
        assert!(bench.shared.schedule.backlog.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_resort_takes_the_place_of_an_eviction_that_is_held_back() {
    let bench = bench().await;
    let a = bench.pod("a").await;
    bench.budget(0);
    bench.shared.schedule.evict_for_drain(std::slice::from_ref(&a), &drain());
    seconds(200).await;
    assert!(!bench.is_going("a"));
    let delete = Arc::new(DrainEviction { delete: true, ..(*drain()).clone() });
    bench.shared.schedule.evict_for_drain(std::slice::from_ref(&a), &delete);
    seconds(1).await;
    assert!(bench.is_going("a"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_may_go_for_a_taint_and_for_a_drain_at_once() {
    let bench = bench().await;
    let a = bench.pod("a").await;
    bench.budget(0);
    let verdict = Verdict::Keep(crate::model::Kept::NoTaints);
    let later = Instant::now() + Duration::from_secs(300);
    bench.shared.schedule.arm(&a, Cause::Taint(verdict), later);
    bench.shared.schedule.evict_for_drain(std::slice::from_ref(&a), &drain());
    seconds(1).await;
    assert_eq!(bench.timers().len(), 2);
    assert!(bench.shared.schedule.cancel_for_drain(&a.node, a.uid));
    assert_eq!(bench.timers().len(), 1, "the countdown of the taint goes on");
    assert!(!bench.shared.schedule.cancel_for_drain(&a.node, uid("other")));
}

/// Holds every eviction until it is told not to; in one line for each drain and for each taint key.
#[derive(Clone, Default)]
struct Pause(Arc<AtomicBool>);

impl Hold for Pause {
    fn name(&self) -> &'static str {
        "pause"
    }

    fn line(&self, eviction: &Eviction) -> Option<Arc<str>> {
        Some(match &eviction.cause {
            Cause::Taint(verdict) => Arc::clone(&verdict.cause()?.taint.key),
            Cause::Drain(drain) => Arc::clone(&drain.session),
        })
    }

    fn holds(&self, line: &str, _: Instant, _: Instant) -> Option<Wait> {
        (line != "free" && !self.0.load(Relaxed)).then_some(Wait::ForChange)
    }
}

/// A bench with a pause, and what ends it.
async fn paused() -> (Bench, impl Fn()) {
    let (pause, changed) = (Pause::default(), Arc::new(Notify::new()));
    let bench = held_by(vec![Box::new(pause.clone())], Arc::clone(&changed)).await;
    let go = move || {
        pause.0.store(true, Relaxed);
        changed.notify_one();
    };
    (bench, go)
}

impl Bench {
    /// The node has a taint with this key, or none, and whoever decides takes that in.
    async fn taint(&self, key: Option<&str>) {
        let taints: Vec<_> =
            key.into_iter().map(|key| json!({"key": key, "effect": "NoExecute"})).collect();
        let patch = json!({"spec": {"taints": taints}});
        let nodes: kube::Api<k8s_openapi::api::core::v1::Node> =
            kube::Api::all(self.cluster.client());
        let kind = kube::api::Patch::Merge(patch);
        nodes.patch("n1", &kube::api::PatchParams::default(), &kind).await.unwrap();
        self.see_node().await;
        self.decide();
    }

    fn decide(&self) {
        let decider = self.shared.decider();
        decider.node(shard_of("n1"), &NodeKey(node_name()));
    }

    fn held(&self, pod: &PodRef, kind: CauseKind) -> Option<String> {
        let held = self.shared.schedule.backlog.get(pod, kind)?.held?;
        Some(held.to_string())
    }
}

#[tokio::test(start_paused = true)]
async fn a_taint_that_goes_while_its_eviction_is_held_cancels_it_at_once() {
    let (mut bench, go) = paused().await;
    let a = bench.pod("a").await;
    bench.taint(Some("k")).await;
    seconds(1).await;
    assert_eq!(bench.held(&a, CauseKind::Taint).as_deref(), Some("pause (k)"));
    bench.taint(None).await;
    assert!(bench.timers().is_empty() && bench.shared.schedule.backlog.is_empty());
    let messages = bench.events.take_messages();
    assert!(messages.iter().any(|m| m.starts_with("Cancelling deletion")), "{messages:?}");
    go();
    seconds(60).await;
    assert!(!bench.is_going("a"));
}

#[tokio::test(start_paused = true)]
async fn an_eviction_that_is_held_for_one_taint_goes_for_another_that_nothing_holds() {
    let (bench, _go) = paused().await;
    let a = bench.pod("a").await;
    bench.taint(Some("k")).await;
    seconds(60).await;
    assert!(!bench.is_going("a") && bench.held(&a, CauseKind::Taint).is_some());
    bench.taint(Some("free")).await;
    seconds(1).await;
    assert!(bench.is_going("a"));
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_ends_while_its_evictions_are_held_cancels_them_at_once() {
    let (bench, go) = paused().await;
    let (a, b) = (bench.pod("a").await, bench.pod("b").await);
    bench.shared.schedule.evict_for_drain(&[a.clone(), b.clone()], &drain());
    seconds(1).await;
    assert_eq!(bench.held(&a, CauseKind::Drain).as_deref(), Some("pause (s)"));
    let last = Arc::new(DrainEviction { delete: true, ..(*drain()).clone() });
    bench.shared.schedule.evict_for_drain(std::slice::from_ref(&b), &last);
    seconds(1).await;
    assert_eq!(bench.held(&b, CauseKind::Drain).as_deref(), Some("pause (s)"), "it is held too");
    bench.shared.schedule.cancel_all_for_drain(&node_name());
    assert!(bench.timers().is_empty() && bench.shared.schedule.backlog.is_empty());
    go();
    seconds(300).await;
    assert!(!bench.is_going("a") && !bench.is_going("b"));
}

#[tokio::test(start_paused = true)]
async fn of_what_was_held_when_leadership_was_lost_nothing_is_left() {
    let (bench, go) = paused().await;
    let a = bench.pod("a").await;
    bench.taint(Some("k")).await;
    bench.shared.schedule.evict_for_drain(std::slice::from_ref(&a), &drain());
    seconds(1).await;
    assert_eq!((bench.timers().len(), bench.shared.schedule.backlog.len()), (2, 2));
    bench.shared.stand_by();
    bench.shared.forget_work();
    assert!(bench.timers().is_empty() && bench.shared.schedule.backlog.is_empty());
    go();
    seconds(60).await;
    assert!(!bench.is_going("a"));
    bench.shared.lead();
    bench.decide();
    seconds(1).await;
    assert!(bench.is_going("a"), "whoever leads next begins from what is stored");
}
