//! Dry runs: everything is decided, nothing is written.

use std::sync::Arc;
use std::time::Duration;

use ostrakon::clock::Clock;
use ostrakon::config::DryRun;
use ostrakon::drain::{ConditionRule, Limits, Policy};
use ostrakon::sim::embedded::{DeleteOptions, Embedded, Options, Part, Resource, Selector};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::noon;
use crate::process::{Process, Wire};

struct Stage {
    cluster: Embedded,
    process: Process,
    wire: Arc<Wire>,
}

impl Stage {
    fn new(policies: &[Policy], events: bool) -> Self {
        let clock = Clock::starting_at(noon());
        let options = Options { taint_new_nodes: false, ..Options::default() };
        let cluster = Embedded::new(clock.clone(), options);
        let wire = Arc::default();
        let process = Process::dry_run(&cluster, clock, policies, &wire, DryRun { events });
        Self { cluster, process, wire }
    }

    fn node(&self, name: &str) {
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": noon()});
        let node =
            json!({"metadata": {"name": name}, "spec": {}, "status": {"conditions": [ready]}});
        self.cluster.store().insert(Resource::Nodes, node).unwrap();
    }

    /// A pod on `n1` that tolerates the taint `k` for so long, with a label.
    fn pod(&self, name: &str, seconds: Option<i64>) {
        let tolerations: Vec<_> = seconds
            .map(|seconds| {
                json!({"key": "k", "operator": "Exists", "effect": "NoExecute",
                    "tolerationSeconds": seconds})
            })
            .into_iter()
            .collect();
        let pod = json!({
            "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web",
                    "uid": "00000000-0000-0000-0000-000000000001", "controller": true}]},
            "spec": {"nodeName": "n1", "tolerations": tolerations},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        self.cluster.store().insert(Resource::Pods, pod).unwrap();
    }

    fn change_node(&self, part: Part, change: impl Fn(&mut Value)) {
        let changed = |node: &Value| {
            let mut node = node.clone();
            change(&mut node);
            Ok(node)
        };
        self.cluster.store().modify(Resource::Nodes, "", "n1", part, false, changed).unwrap();
    }

    fn taint(&self, taints: &Value) {
        self.change_node(Part::Whole, |node| node["spec"]["taints"] = taints.clone());
    }

    fn condition(&self, status: &str) {
        self.change_node(Part::Status, |node| {
            let bad = json!({"type": "Bad", "status": status, "lastTransitionTime": noon()});
            node["status"]["conditions"] = json!([node["status"]["conditions"][0], bad]);
        });
    }

    /// Everything that is stored, but not events.
    fn stored(&self) -> Vec<Value> {
        let names = [Resource::Nodes, Resource::Pods, Resource::Leases];
        let store = self.cluster.store();
        let objects = names.iter().flat_map(|kind| store.select(*kind, &Selector::default()));
        objects.map(|object| Value::clone(&object)).collect()
    }

    fn evictions(&self) -> f64 {
        self.process.metric("ostrakon_evictions_total", &["deleted"])
    }

    fn would_go(&self) -> f64 {
        self.process.metric("ostrakon_backlog_pods", &["would_evict"])
    }
}

async fn seconds(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn evictions_are_counted_at_their_deadlines_once_and_nothing_is_written() {
    let stage = Stage::new(&[], false);
    stage.node("n1");
    stage.pod("now", None);
    stage.pod("later", Some(60));
    stage.pod("never", Some(100_000));
    stage.taint(&json!([{"key": "k", "effect": "NoExecute", "timeAdded": noon()}]));
    let stored = stage.stored();
    seconds(50).await;
    assert_eq!((stage.evictions(), stage.would_go()), (1.0, 1.0));
    seconds(20).await;
    assert_eq!((stage.evictions(), stage.would_go()), (2.0, 2.0));
    seconds(3600).await;
    assert_eq!((stage.evictions(), stage.would_go()), (2.0, 2.0), "each once");
    stage.taint(&json!([]));
    seconds(1).await;
    assert_eq!((stage.evictions(), stage.would_go()), (2.0, 0.0));
    stage.taint(&json!([{"key": "k", "effect": "NoExecute", "timeAdded": noon()}]));
    assert_eq!(stage.wire.writes(), [""; 0], "no pod, node, lease or event was written");
    assert_eq!(stage.stored().len(), stored.len());
    assert_eq!(stage.process.metric("ostrakon_leader", &[]), 0.0, "it does not count as a leader");
}

fn policy() -> Policy {
    let rules = vec![ConditionRule::parse("Bad").unwrap()];
    let pace =
        Limits { notice: Duration::from_secs(10), spacing: Duration::ZERO, caps: Vec::new() };
    Policy { pace, ..Policy::new("p", rules) }
}

#[tokio::test(start_paused = true)]
async fn a_drain_is_told_from_the_cordon_to_its_end_and_nothing_is_written() {
    let stage = Stage::new(&[policy()], false);
    let counted = |name: &str| stage.process.metric(name, &["succeeded"]);
    stage.node("n1");
    stage.pod("a", None);
    stage.pod("b", None);
    stage.condition("True");
    let stored = stage.stored();
    seconds(5).await;
    assert_eq!(counted("draino_cordoned_nodes_total"), 1.0);
    assert_eq!(counted("draino_drain_scheduled_nodes_total"), 1.0);
    assert_eq!(stage.process.metric("ostrakon_drain_nodes", &["scheduled"]), 1.0);
    assert_eq!(counted("draino_drained_nodes_total"), 0.0, "not before the notice is over");
    seconds(30).await;
    assert_eq!(stage.process.metric("ostrakon_drain_evictions_total", &["evicted"]), 2.0);
    assert_eq!(counted("draino_drained_nodes_total"), 1.0);
    assert_eq!(stage.process.metric("ostrakon_drain_nodes", &["drained"]), 1.0);
    assert_eq!(stage.stored(), stored, "the node is in use, and has its pods");
    stage.condition("False");
    seconds(600).await;
    assert_eq!(counted("draino_uncordoned_nodes_total"), 1.0);
    assert_eq!(stage.process.metric("ostrakon_drain_evictions_total", &["evicted"]), 2.0);
    assert_eq!(stage.wire.writes(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_budgets_as_they_are() {
    let stage = Stage::new(&[policy()], false);
    let budget = json!({
        "metadata": {"name": "web", "namespace": "default", "generation": 1},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        "status": {"observedGeneration": 1, "disruptionsAllowed": 1, "desiredHealthy": 1,
            "currentHealthy": 2, "expectedPods": 2},
    });
    stage.cluster.store().insert(Resource::PodDisruptionBudgets, budget).unwrap();
    stage.node("n1");
    stage.pod("a", None);
    stage.pod("b", None);
    seconds(5).await;
    stage.condition("True");
    seconds(40).await;
    let evicted = || stage.process.metric("ostrakon_drain_evictions_total", &["evicted"]);
    assert_eq!(evicted(), 1.0, "the budget allows one, until it is replaced");
    assert_eq!(stage.process.metric("ostrakon_drain_backlog_pods", &["blocked"]), 1.0);
    seconds(120).await;
    assert_eq!(evicted(), 2.0);
    assert_eq!(stage.wire.writes(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn events_say_that_nothing_was_done_and_are_all_that_is_written() {
    let stage = Stage::new(&[policy()], true);
    stage.node("n1");
    stage.pod("a", None);
    stage.taint(&json!([{"key": "k", "effect": "NoExecute", "timeAdded": noon()}]));
    stage.condition("True");
    seconds(60).await;
    let events = stage.wire.events();
    assert!(events.iter().all(|it| it.starts_with("Dry run, nothing was done: ")), "{events:?}");
    for words in ["Marking for deletion Pod default/a", "Cordoned node", "Drained node"] {
        assert!(events.iter().any(|event| event.contains(words)), "{words}: {events:?}");
    }
    let writes = stage.wire.writes();
    assert!(
        writes.iter().all(|it| it.starts_with("POST ") && it.ends_with("/events")),
        "{writes:?}"
    );
    assert_eq!(writes.len(), events.len());
}

/// As kube-controller-manager deletes a pod: it writes the condition first, unless it is someone else who deletes.
fn delete(stage: &Stage, name: &str, by_taint: bool) {
    let store = stage.cluster.store();
    if by_taint {
        let marked = |pod: &Value| {
            let mut pod = pod.clone();
            pod["status"]["conditions"] = json!([{
                "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
                "message": "Taint manager: deleting due to NoExecute taint",
                "lastTransitionTime": store.clock().now(),
            }]);
            Ok(pod)
        };
        store.modify(Resource::Pods, "default", name, Part::Status, false, marked).unwrap();
    }
    store.delete(Resource::Pods, "default", name, &DeleteOptions::default()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_really_goes_is_compared_with_who_would_have_gone() {
    let stage = Stage::new(&[], false);
    stage.node("n1");
    for (name, seconds) in [
        ("same", Some(60)),
        ("late", Some(60)),
        ("early", Some(600)),
        ("lost", Some(60)),
        ("scaled-down", Some(60)),
        ("spared", Some(100_000)),
        ("tolerant", Some(100_000)),
    ] {
        stage.pod(name, seconds);
    }
    stage.taint(&json!([{"key": "k", "effect": "NoExecute", "timeAdded": noon()}]));
    seconds(62).await;
    delete(&stage, "same", true);
    delete(&stage, "scaled-down", false);
    delete(&stage, "early", true);
    delete(&stage, "tolerant", false);
    seconds(60).await;
    delete(&stage, "late", true);
    seconds(400).await;
    let compared = |result: &str| stage.process.metric("ostrakon_shadow_pods_total", &[result]);
    let counts = ["same", "later", "earlier", "only_other", "deleted_by_others"].map(compared);
    assert_eq!(counts, [1.0, 1.0, 1.0, 0.0, 1.0]);
    let waiting = |state: &str| stage.process.metric("ostrakon_shadow_waiting_pods", &[state]);
    assert_eq!((waiting("waiting"), waiting("overdue")), (0.0, 1.0), "the lost one");
    stage.taint(&json!([]));
    seconds(5).await;
    assert_eq!((compared("only_ostrakon"), waiting("overdue")), (1.0, 0.0));
    assert_eq!(stage.wire.writes(), [""; 0]);
}
