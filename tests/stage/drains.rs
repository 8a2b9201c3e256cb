//! Cordon and drain end to end. A kubelet ends pods after their grace period.

mod beginnings;
mod cordons;
mod endings;
mod evictions;
mod leftovers;
mod names;
mod pauses;
mod records;
mod rest;
mod restarts;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use ostrakon::clock::Clock;
use ostrakon::config::Compat;
use ostrakon::drain::{ConditionRule, DrainPhase, Limits, Policy, Record};
use ostrakon::model::{Autoscaler, NodeDrainFacts};
use ostrakon::sim::embedded::{
    Change, DeleteOptions, Embedded, Fault, Options, Part, Resource, Rule, Selector, Verb,
};
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::noon;
use crate::process::{Process, Wire};

/// Grace of the pods, in seconds.
const GRACE: i64 = 2;

/// A cluster, and the controller that works on it.
struct Stage {
    cluster: Embedded,
    clock: Clock,
    policies: Vec<Policy>,
    seen: Mutex<Seen>,
    process: Option<Process>,
    wire: Arc<Wire>,
    _kubelet: JoinSet<()>,
}

/// What was stored so far.
struct Seen {
    changes: UnboundedReceiver<Arc<Change>>,
    /// Names of nodes, each time that they became unschedulable.
    cordons: Vec<String>,
    /// And schedulable again.
    uncordons: Vec<String>,
    /// Phases that records came to, beside the names of their nodes.
    phases: Vec<(String, DrainPhase)>,
    /// Names of pods in the order in which they were told to go.
    gone: Vec<String>,
}

/// A policy for every node, without caps, notice or spacing; its rules in draino's form.
fn policy(name: &str, rules: &[&str]) -> Policy {
    let rules = rules.iter().map(|text| ConditionRule::parse(text).unwrap()).collect();
    let pace = Limits { notice: Duration::ZERO, spacing: Duration::ZERO, caps: Vec::new() };
    Policy { pace, ..Policy::new(name, rules) }
}

/// A stage with a controller at work by this policy for `Bad=True,0s`, as changed.
fn stage(change: impl FnOnce(&mut Policy)) -> Stage {
    let mut policy = policy("p", &["Bad"]);
    change(&mut policy);
    let mut stage = Stage::idle(vec![policy]);
    stage.start();
    stage
}

impl Stage {
    /// A stage without a controller, at noon.
    fn idle(policies: Vec<Policy>) -> Self {
        let clock = Clock::starting_at(noon());
        let cluster = Embedded::new(clock.clone(), Options::default());
        let seen = Mutex::new(Seen::of(cluster.store().follow()));
        let mut kubelet = JoinSet::new();
        kubelet.spawn(end_pods(cluster.clone(), clock.clone()));
        Self {
            cluster,
            clock,
            policies,
            seen,
            process: None,
            wire: Arc::default(),
            _kubelet: kubelet,
        }
    }

    /// A controller begins to work.
    fn start(&mut self) {
        let (clock, policies) = (self.clock.clone(), &self.policies);
        self.wire = Arc::default();
        let process = Process::start(&self.cluster, clock, Compat::None, policies, &self.wire);
        self.process = Some(process);
    }

    /// The controller dies: from this moment on it writes nothing.
    fn kill(&mut self) {
        self.process.take().expect("a controller that runs");
    }

    /// A healthy node.
    fn node(&self, name: &str) {
        let since = self.clock.now().to_string();
        let node = json!({
            "metadata": {"name": name},
            "spec": {},
            "status": {"conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": since},
            ]},
        });
        self.cluster.store().insert(Resource::Nodes, node).unwrap();
    }

    /// The same, with the condition `Bad`.
    fn bad_node(&self, name: &str) {
        self.node(name);
        self.report(name, "Bad", "True");
    }

    /// Somebody reports a condition of the node.
    fn report(&self, name: &str, kind: &str, status: &str) {
        let since = self.clock.now().to_string();
        self.change_node(name, Part::Status, |node| {
            let conditions = node["status"]["conditions"].as_array_mut().unwrap();
            conditions.retain(|condition| condition["type"] != kind);
            conditions.push(json!({"type": kind, "status": status, "lastTransitionTime": since}));
        });
    }

    /// The condition is not reported any more.
    fn silence(&self, name: &str, kind: &str) {
        self.change_node(name, Part::Status, |node| {
            let conditions = node["status"]["conditions"].as_array_mut().unwrap();
            conditions.retain(|condition| condition["type"] != kind);
        });
    }

    /// A person cordons or uncordons the node.
    fn set_unschedulable(&self, name: &str, unschedulable: bool) {
        self.change_node(name, Part::Whole, |node| {
            node["spec"]["unschedulable"] = json!(unschedulable);
        });
    }

    /// cluster-autoscaler is about to remove the node.
    fn scale_down(&self, name: &str) {
        let taints = json!([{"key": Autoscaler::REMOVING, "effect": "NoSchedule"}]);
        self.change_node(name, Part::Whole, |node| node["spec"]["taints"] = taints.clone());
    }

    /// It thinks better of it, and uncordons the node, whoever cordoned that.
    fn keep(&self, name: &str) {
        self.change_node(name, Part::Whole, |node| {
            node["spec"]["taints"] = json!([]);
            node["spec"]["unschedulable"] = json!(false);
        });
    }

    fn annotate(&self, name: &str, key: &str, value: &str) {
        self.change_node(name, Part::Whole, |node| {
            node["metadata"]["annotations"][key] = json!(value);
        });
    }

    fn change_node(&self, name: &str, part: Part, change: impl Fn(&mut Value)) {
        let changed = self.cluster.store().modify(Resource::Nodes, "", name, part, false, |node| {
            let mut node = node.clone();
            change(&mut node);
            Ok(node)
        });
        changed.unwrap();
    }

    fn delete_node(&self, name: &str) {
        let options = DeleteOptions::default();
        self.cluster.store().delete(Resource::Nodes, "", name, &options).unwrap();
    }

    /// A ready pod of a replica set, with the label `app=web`.
    fn pod(&self, name: &str, node: &str) {
        self.pod_with(name, node, |_| {});
    }

    fn pod_with(&self, name: &str, node: &str, change: impl FnOnce(&mut Value)) {
        let owner = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web",
            "controller": true,
        });
        let mut pod = json!({
            "metadata": {
                "name": name, "namespace": "default", "labels": {"app": "web"},
                "ownerReferences": [owner],
            },
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": GRACE,
                "containers": [{"name": "main"}],
            },
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        change(&mut pod);
        self.cluster.store().insert(Resource::Pods, pod).unwrap();
    }

    /// A pod without a controller, which would be lost.
    fn lone_pod(&self, name: &str, node: &str) {
        self.pod_with(name, node, |pod| pod["metadata"]["ownerReferences"] = json!([]));
    }

    /// Somebody deletes a pod, and it is gone at once.
    fn delete_pod(&self, name: &str) {
        let options = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
        self.cluster.store().delete(Resource::Pods, "default", name, &options).unwrap();
    }

    /// The budget `name` over the pods with this label `app`, which needs so many healthy ones of so
    /// many that there are.
    fn strict_budget(&self, name: &str, app: &str, demand: Value, pods: i64) {
        let mut spec = demand;
        spec["selector"] = json!({"matchLabels": {"app": app}});
        let budget = json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": spec,
            "status": {
                "observedGeneration": 1, "disruptionsAllowed": 0, "desiredHealthy": pods,
                "currentHealthy": pods, "expectedPods": pods,
            },
        });
        self.cluster.store().insert(Resource::PodDisruptionBudgets, budget).unwrap();
    }

    fn remove_budget(&self, name: &str) {
        let (budgets, options) = (Resource::PodDisruptionBudgets, DeleteOptions::default());
        self.cluster.store().delete(budgets, "default", name, &options).unwrap();
    }

    /// A ready pod of this app.
    fn pod_of(&self, app: &str, name: &str, node: &str) {
        self.pod_with(name, node, |pod| pod["metadata"]["labels"]["app"] = json!(app));
    }

    /// A budget over the pods with `app=web` that lets so many go.
    fn budget(&self, allowed: i64) {
        let budget = json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
            "status": {
                "observedGeneration": 1, "disruptionsAllowed": allowed, "desiredHealthy": 1,
                "currentHealthy": 1, "expectedPods": 3,
            },
        });
        self.cluster.store().insert(Resource::PodDisruptionBudgets, budget).unwrap();
    }

    /// The budget lets so many go from now on.
    fn let_go(&self, allowed: i64) {
        let (budgets, part) = (Resource::PodDisruptionBudgets, Part::Status);
        let changed = self.cluster.store().modify(budgets, "default", "web", part, false, |old| {
            let mut budget = old.clone();
            budget["status"]["disruptionsAllowed"] = json!(allowed);
            Ok(budget)
        });
        changed.unwrap();
    }

    /// Requests like this are refused from now on, or so many of them.
    fn refuse(&self, verb: Verb, resource: Resource, part: &str, code: u16, times: Option<u32>) {
        let fault = Fault::Refuse { code, retry_after: None };
        let rule = Rule::always(fault).on(verb).of(resource).at(part);
        self.cluster.faults().add(Rule { count: times, ..rule });
    }

    fn stored(&self, name: &str) -> Arc<Value> {
        self.cluster.store().get(Resource::Nodes, "", name).unwrap()
    }

    fn is_cordoned(&self, name: &str) -> bool {
        self.stored(name)["spec"]["unschedulable"] == true
    }

    fn record(&self, name: &str) -> Option<Record> {
        record(&self.stored(name))
    }

    fn phase(&self, name: &str) -> Option<DrainPhase> {
        self.record(name).map(|record| record.phase)
    }

    /// Status and message of the condition `DrainScheduled`.
    fn mark(&self, name: &str) -> Option<(String, String)> {
        let node = self.stored(name);
        let conditions = node["status"]["conditions"].as_array().unwrap();
        let mark = conditions.iter().find(|c| c["type"] == NodeDrainFacts::SCHEDULED_CONDITION)?;
        let text = |field: &str| mark[field].as_str().unwrap().to_owned();
        Some((text("status"), text("message")))
    }

    fn has_pod(&self, name: &str) -> bool {
        self.cluster.store().get(Resource::Pods, "default", name).is_ok()
    }

    /// What was stored up to now.
    fn seen(&self) -> MutexGuard<'_, Seen> {
        let mut seen = self.seen.lock();
        while let Ok(change) = seen.changes.try_recv() {
            seen.take(&change);
        }
        seen
    }

    /// Names of pods in the order in which they were told to go.
    fn gone(&self) -> Vec<String> {
        self.seen().gone.clone()
    }

    /// How often the node was cordoned.
    fn cordons(&self, name: &str) -> usize {
        self.seen().cordons.iter().filter(|node| *node == name).count()
    }

    fn uncordons(&self, name: &str) -> usize {
        self.seen().uncordons.iter().filter(|node| *node == name).count()
    }

    /// How often the node's record came to this phase.
    fn times(&self, name: &str, phase: DrainPhase) -> usize {
        let seen = self.seen();
        seen.phases.iter().filter(|(node, its)| node == name && *its == phase).count()
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("a controller that runs")
    }

    /// How many events with this begin the running controller has told.
    fn told(&self, begin: &str) -> usize {
        self.wire.events().iter().filter(|message| message.starts_with(begin)).count()
    }

    /// A counter of the running controller, over all its labels that these are among.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // It counts by ones.
    fn counted(&self, name: &str, labels: &[&str]) -> u64 {
        self.process().metric(name, labels) as u64
    }

    /// Whether no drain has ordered a pod to go.
    fn nothing_is_ordered(&self) -> bool {
        self.counted("ostrakon_drain_backlog_pods", &[]) == 0
    }

    /// Requests of the running controller.
    fn requests(&self, verb: &str, resource: &str) -> u64 {
        self.counted("ostrakon_api_requests_total", &[verb, resource])
    }
}

impl Seen {
    /// Of these changes.
    fn of(changes: UnboundedReceiver<Arc<Change>>) -> Self {
        let (cordons, uncordons, phases, gone) = Default::default();
        Self { changes, cordons, uncordons, phases, gone }
    }

    fn take(&mut self, change: &Change) {
        let current = &*change.current;
        let name = current["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let previous = change.previous.as_deref().unwrap_or(&Value::Null);
        match change.resource {
            Resource::Nodes if !change.deleted => {
                let unschedulable = |node: &Value| node["spec"]["unschedulable"] == true;
                match (unschedulable(previous), unschedulable(current)) {
                    (false, true) => self.cordons.push(name.clone()),
                    (true, false) => self.uncordons.push(name.clone()),
                    _ => {}
                }
                if let Some(record) = record(current)
                    && self::record(previous).map(|before| before.phase) != Some(record.phase)
                {
                    self.phases.push((name, record.phase));
                }
            }
            Resource::Pods => {
                let is_going = |pod: &Value| !pod["metadata"]["deletionTimestamp"].is_null();
                if is_going(current) && !is_going(previous) {
                    self.gone.push(name);
                }
            }
            _ => {}
        }
    }
}

/// The record on a node.
fn record(node: &Value) -> Option<Record> {
    let text = node["metadata"]["annotations"][NodeDrainFacts::RECORD_ANNOTATION].as_str()?;
    Some(Record::parse(text).unwrap())
}

/// Ends pods when their grace is over, but not those that a finalizer holds.
async fn end_pods(cluster: Embedded, clock: Clock) {
    let all = Selector::parse(Resource::Pods, None, "", "").unwrap();
    loop {
        sleep(Duration::from_millis(500)).await;
        for pod in cluster.store().select(Resource::Pods, &all) {
            let meta = &pod["metadata"];
            let Some(until) = meta["deletionTimestamp"].as_str() else { continue };
            let is_over = until.parse::<Timestamp>().unwrap() <= clock.now();
            if is_over && meta["finalizers"].as_array().is_none_or(Vec::is_empty) {
                let options = DeleteOptions::at_once(meta["uid"].as_str().unwrap());
                let name = meta["name"].as_str().unwrap();
                let _ = cluster.store().delete(Resource::Pods, "default", name, &options);
            }
        }
    }
}

async fn seconds(count: u64) {
    sleep(Duration::from_secs(count)).await;
}

async fn minutes(count: u64) {
    seconds(60 * count).await;
}

/// A notice of so many seconds before each drain.
fn notice(seconds: u64) -> impl FnOnce(&mut Policy) {
    move |policy| policy.pace.notice = Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn a_bad_node_is_cordoned_drained_and_in_the_end_uncordoned() {
    let stage = stage(notice(10));
    stage.node("good");
    stage.bad_node("n1");
    stage.pod("a", "n1");
    stage.pod("b", "good");
    seconds(2).await;
    assert!(stage.is_cordoned("n1") && stage.gone().is_empty());
    let message =
        format!("Drain activity scheduled {}", stage.record("n1").unwrap().scheduled.unwrap());
    assert_eq!(stage.mark("n1"), Some(("True".to_owned(), message.clone())));
    let conditions = &stage.stored("n1")["metadata"]["annotations"]["draino.planet.com/conditions"];
    assert_eq!(conditions, "Bad=True,0s");
    seconds(20).await;
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Drained));
    let (status, completed) = stage.mark("n1").unwrap();
    assert_eq!(status, "False");
    assert!(completed.starts_with(&format!("{message} | Completed: ")), "{completed}");
    assert_eq!((stage.gone(), stage.has_pod("b")), (vec!["a".to_owned()], true));
    for told in [
        "Cordoning node",
        "Cordoned node",
        "Will drain node after",
        "Draining node",
        "Drained node",
    ] {
        assert_eq!(stage.told(told), 1, "{told}");
    }
    stage.report("n1", "Bad", "False");
    minutes(4).await;
    assert!(stage.is_cordoned("n1"));
    minutes(2).await;
    assert!(!stage.is_cordoned("n1") && stage.record("n1").is_none());
    let annotations = &stage.stored("n1")["metadata"]["annotations"];
    assert!(annotations["draino.planet.com/conditions"].is_null(), "{annotations}");
    assert_eq!((stage.told("Uncordoning node"), stage.told("Uncordoned node")), (1, 1));
    assert_eq!((stage.cordons("n1"), stage.uncordons("n1"), stage.cordons("good")), (1, 1, 0));
}
