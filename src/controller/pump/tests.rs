//! Orders of a drain on their way through timers, turns and window to an API server.

use std::time::Duration;

use prometheus::Registry;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::*;
use crate::clock::Clock;
use crate::cluster::{self, Api};
use crate::config::Compat;
use crate::controller::drain::DrainMetrics;
use crate::controller::handler::Decider;
use crate::controller::ingest;
use crate::controller::state::PodKey;
use crate::drain::build::policy;
use crate::drain::{Claim, Cordon, DrainPhase, Record};
use crate::evict::{self, Order, OrderMetrics};
use crate::model::build::{at, noon, uid};
use crate::model::{NodeDrainFacts, NodeName, Verdict};
use crate::observe::{EventLane, EventMetrics, Recorder};
use crate::pipeline::{Handler, shard_of};
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

fn order() -> Arc<Order> {
    Arc::new(Order {
        node: node_name(),
        policy: "p".into(),
        session: "s".into(),
        grace: None,
        deadline: at(600),
        delete: false,
    })
}

/// A cluster with the node `n1`, which is drained, and what carries out orders for its shard.
fn bench() -> Bench {
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
    let shared = Shared::new(clock.clone(), Compat::None, recorder.clone());
    let policies = Arc::from([policy("p", &["Bad"])]);
    let shared = shared.draining_by(policies, DrainMetrics::register(&registry).unwrap());
    let shared = Arc::new(shared);
    shared.lead();
    let pace = Arc::new(Pace::default());
    let view = || View { shared: Arc::clone(&shared) };
    let drains = shared.drains.as_ref().unwrap();
    let requests = ApiRequests { api: api.clone(), watched: Some(Arc::clone(&drains.watched)) };
    let evictor = Evictor::new(
        view(),
        requests.clone(),
        ByEvents(recorder.clone()),
        Arc::clone(&shared.backlog),
        evict::Metrics::register(&registry, Arc::clone(&shared.backlog)).unwrap(),
        clock.clone(),
        Arc::clone(&pace),
    );
    let drainer = Drainer::new(
        view(),
        requests,
        ByEvents(recorder),
        Arc::clone(&shared.orders),
        OrderMetrics::register(&registry, Arc::clone(&shared.orders)).unwrap(),
        clock,
        Arc::clone(&pace),
    );
    let queue = Arc::new(Queue::default());
    let (carrier, stop) = (Arc::new(Carrier { evictor, drainer }), CancellationToken::new());
    let mut tasks = JoinSet::new();
    tasks.spawn(take_due(Arc::clone(&shared), shard_of("n1"), Arc::clone(&queue), stop.clone()));
    tasks.spawn(carry(queue, carrier, pace, Runner::alone(), stop));
    Bench { cluster, api, shared, events, _tasks: tasks }
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

    /// Has the view catch up with a pod.
    async fn see(&self, pod: &PodRef) {
        match self.api.pod(pod).await.unwrap() {
            Some(facts) => ingest::take_pod(&self.shared, facts),
            None => ingest::drop_pod(&self.shared, &pod.node, pod.uid),
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

    fn state(&self, pod: &PodRef) -> Option<OrderState> {
        self.shared.orders.get(pod.uid).map(|ordered| ordered.state)
    }

    fn node_is_queued(&self) -> bool {
        let queued = !self.shared.nodes.is_empty();
        if queued {
            let key = self.shared.nodes.get().unwrap();
            self.shared.nodes.done(&key);
        }
        queued
    }
}

async fn seconds(count: u64) {
    tokio::time::sleep(Duration::from_secs(count)).await;
}

#[tokio::test(start_paused = true)]
async fn ordered_pods_go_in_their_order_and_the_node_is_looked_at_when_one_is_gone() {
    let mut bench = bench();
    let (a, b) = (bench.pod("a").await, bench.pod("b").await);
    let bystander = bench.pod("c").await;
    bench.shared.order_evictions(&[b.clone(), a.clone()], &order());
    seconds(1).await;
    let version = |name: &str| -> u64 {
        bench.stored(name)["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    };
    assert!(bench.is_going("a") && bench.is_going("b") && !bench.is_going("c"));
    assert!(version("b") < version("a"));
    assert_eq!(bench.state(&a), Some(OrderState::Sent));
    assert_eq!(bench.state(&bystander), None);

    bench.node_is_queued();
    let decider = Decider { shared: Arc::clone(&bench.shared) };
    let client: kube::Api<k8s_openapi::api::core::v1::Pod> =
        kube::Api::namespaced(bench.cluster.client(), "default");
    client.delete("a", &kube::api::DeleteParams::default().grace_period(0)).await.unwrap();
    bench.see(&a).await;
    decider.pod(shard_of("n1"), &PodKey { node: node_name(), uid: a.uid });
    assert_eq!(bench.state(&a), None);
    assert!(bench.node_is_queued(), "is its drain at its end?");
    assert!(bench.shared.timers[shard_of("n1")].get(&TimerKey::Drained(a.uid)).is_none());
    let messages = bench.events.take_messages();
    assert_eq!(messages.iter().filter(|m| m.starts_with("Evicting Pod")).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_its_budget_holds_back_goes_when_the_budget_has_room() {
    let mut bench = bench();
    let (a, b) = (bench.pod("a").await, bench.pod("b").await);
    bench.budget(1);
    bench.shared.order_evictions(&[a.clone(), b.clone()], &order());
    seconds(100).await;
    assert!(bench.is_going("a") && !bench.is_going("b"));
    assert_eq!(bench.state(&b), Some(OrderState::Blocked));
    let told = bench.events.take_messages();
    let told: Vec<_> = told.iter().filter(|message| message.starts_with("Cannot evict")).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("default/b") && told[0].contains("web"), "{told:?}");
    let key = TimerKey::Drained(b.uid);
    let next = || bench.shared.timers[shard_of("n1")].get(&key).unwrap().due;
    let before = next();
    bench.shared.order_evictions(&[a, b.clone()], &order());
    assert_eq!(next(), before, "the same order does not cut its pause short");
    assert!(before > Instant::now());
    bench.free_budget().await;
    seconds(60).await;
    assert!(bench.is_going("b"));
}

#[tokio::test(start_paused = true)]
async fn pods_whose_evictions_are_not_answered_do_not_hold_up_the_others() {
    let bench = bench();
    let mut stuck = Vec::new();
    for n in 0..40 {
        let name = format!("stuck-{n}");
        let hangs = Rule::always(Fault::Hang).on(Verb::Create).of(Resource::Pods);
        bench.cluster.faults().add(hangs.named(&name));
        stuck.push(bench.pod(&name).await);
    }
    let pod = bench.pod("a").await;
    bench.shared.order_evictions(&stuck, &order());
    seconds(1).await;
    bench.shared.order_evictions(&[pod], &order());
    seconds(1).await;
    assert!(!bench.is_going("a"), "all places are taken");
    seconds(12).await;
    assert!(bench.is_going("a"));
    assert!(!bench.is_going("stuck-0"));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_order_is_not_carried_out_even_if_it_waits() {
    let bench = bench();
    let a = bench.pod("a").await;
    bench.budget(0);
    bench.shared.order_evictions(std::slice::from_ref(&a), &order());
    seconds(1).await;
    assert_eq!(bench.state(&a), Some(OrderState::Blocked));
    bench.shared.cancel_orders(&node_name());
    bench.free_budget().await;
    seconds(300).await;
    assert!(!bench.is_going("a"));
    assert!(bench.shared.orders.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_is_over_by_the_node_itself_evicts_nobody() {
    for phase in DrainPhase::ALL.into_iter().filter(|phase| *phase != DrainPhase::Draining) {
        let bench = bench();
        let a = bench.pod("a").await;
        bench.change_node(phase).await;
        bench.node_is_queued();
        bench.shared.order_evictions(std::slice::from_ref(&a), &order());
        seconds(1).await;
        assert!(!bench.is_going("a"), "{phase}");
        assert!(bench.shared.orders.is_empty() && bench.node_is_queued());
    }
}

#[tokio::test(start_paused = true)]
async fn an_order_of_another_session_or_past_its_deadline_evicts_nobody() {
    let orders = [
        Order { session: "before".into(), ..(*order()).clone() },
        Order { deadline: noon(), ..(*order()).clone() },
    ];
    for order in orders {
        let bench = bench();
        let a = bench.pod("a").await;
        bench.shared.order_evictions(std::slice::from_ref(&a), &Arc::new(order));
        seconds(1).await;
        assert!(!bench.is_going("a"));
        assert!(bench.shared.orders.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_resort_takes_the_place_of_an_eviction_that_is_held_back() {
    let bench = bench();
    let a = bench.pod("a").await;
    bench.budget(0);
    bench.shared.order_evictions(std::slice::from_ref(&a), &order());
    seconds(200).await;
    assert!(!bench.is_going("a"));
    let delete = Arc::new(Order { delete: true, ..(*order()).clone() });
    bench.shared.order_evictions(std::slice::from_ref(&a), &delete);
    seconds(1).await;
    assert!(bench.is_going("a"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_may_be_condemned_and_ordered_at_once() {
    let bench = bench();
    let a = bench.pod("a").await;
    bench.budget(0);
    let timers = &bench.shared.timers[shard_of("n1")];
    let verdict = Verdict::Keep(crate::model::Kept::NoTaints);
    let later = Instant::now() + Duration::from_secs(300);
    timers.arm(TimerKey::Pod(a.uid), later, Work::Evict { pod: a.clone(), verdict });
    bench.shared.order_evictions(std::slice::from_ref(&a), &order());
    seconds(1).await;
    assert_eq!(timers.len(), 2);
    assert!(bench.shared.cancel_order(&a.node, a.uid));
    assert_eq!(timers.len(), 1, "the countdown of the taint goes on");
    assert!(!bench.shared.cancel_order(&a.node, uid("other")));
}
