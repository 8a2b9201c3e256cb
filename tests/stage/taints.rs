//! Evictions for taints. Deleted pods are gone at once, and the watches show it at once unless they are
//! [held back](Stage::hold).

mod facts;
mod managers;
mod methods;
mod restarts;
mod retries;
mod upstream_cases;
mod upstream_profile;

use std::sync::Arc;
use std::time::Duration;

use ostrakon::clock::Clock;
use ostrakon::config::{Compat, Settings};
use ostrakon::sim::embedded::{
    DeleteOptions, Embedded, Fault, Options, Part, Resource, Rule, Verb,
};
use ostrakon::taint::TaintRule;
use serde_json::{Value, json};
use tokio::time::sleep;

use self::facts::{Class, Node, Pod};
use crate::noon;
use crate::process::{Asked, Process, Wire};

/// Until everything has come to rest that can be done now.
const REST: Duration = Duration::from_millis(5);
/// The record of a node's taints.
const RECORD: &str = "ostrakon.dev/noexecute-since";

/// A controller and its cluster.
struct Stage {
    cluster: Embedded,
    wire: Arc<Wire>,
    compat: Compat,
    rules: Vec<TaintRule>,
    process: Option<Process>,
}

impl Stage {
    /// A controller by our own rules that has just started, at noon, in an empty cluster.
    fn new() -> Self {
        Self::with(Compat::None)
    }

    /// The same, by the given rules.
    fn with(compat: Compat) -> Self {
        Self::ruled(compat, Vec::new())
    }

    /// The same, with rules for taints.
    fn ruled(compat: Compat, rules: Vec<TaintRule>) -> Self {
        let options = Options {
            default_toleration_seconds: None,
            taint_new_nodes: false,
            // Lists and watches are asked for apart, and can be refused apart.
            streaming_lists: false,
            ..Options::default()
        };
        let cluster = Embedded::new(Clock::starting_at(noon()), options);
        let wire = Arc::default();
        let mut stage = Self { cluster, wire, compat, rules, process: None };
        stage.process = Some(stage.start());
        stage
    }

    fn start(&self) -> Process {
        let clock = Clock::starting_at(self.cluster.store().clock().now());
        if self.rules.is_empty() {
            return Process::start(&self.cluster, clock, self.compat, &[], &self.wire);
        }
        let settings = Settings { taint_rules: self.rules.clone(), ..Settings::default() };
        Process::with_settings(&self.cluster, clock, settings, &self.wire)
    }

    /// The controller dies and another one starts.
    async fn restart(&mut self) {
        self.process = Some(self.start());
        self.settle().await;
    }

    /// The controller dies, and for the time being none starts.
    fn die(&mut self) {
        self.process = None;
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("a controller that runs")
    }

    /// Stores a node. The record on it is the controller's: it stays unless the test writes one.
    fn store_node(&self, node: &Node) {
        if self.cluster.store().get(Resource::Nodes, "", &node.name).is_err() {
            self.cluster.store().insert(Resource::Nodes, node.object()).unwrap();
            return;
        }
        for part in [Part::Whole, Part::Status] {
            let change = |stored: &Value| {
                let mut stored = stored.clone();
                stored["spec"]["taints"] = json!(node.taints);
                stored["status"]["conditions"] = json!([node.ready]);
                if let Some(record) = &node.record {
                    stored["metadata"]["annotations"][RECORD] = json!(record);
                }
                Ok(stored)
            };
            let store = self.cluster.store();
            store.modify(Resource::Nodes, "", &node.name, part, false, change).unwrap();
        }
    }

    /// Stores a node, and waits for what the controller makes of it.
    async fn put_node(&self, node: Node) {
        self.store_node(&node);
        self.settle().await;
    }

    async fn remove_node(&self, name: &str) {
        let options = DeleteOptions::default();
        self.cluster.store().delete(Resource::Nodes, "", name, &options).unwrap();
        self.settle().await;
    }

    /// Stores a pod, or changes the one of that name.
    fn store_pod(&self, pod: &Pod) {
        let store = self.cluster.store();
        let object = pod.object();
        if store.get(Resource::Pods, "default", &pod.name).is_err() {
            store.insert(Resource::Pods, object).unwrap();
        } else {
            for part in [Part::Whole, Part::Status] {
                let change = |stored: &Value| {
                    let mut stored = stored.clone();
                    stored["spec"] = object["spec"].clone();
                    stored["status"]["phase"] = object["status"]["phase"].clone();
                    Ok(stored)
                };
                store.modify(Resource::Pods, "default", &pod.name, part, false, change).unwrap();
            }
        }
        if pod.class == Class::Terminating {
            let hours =
                DeleteOptions { grace_period_seconds: Some(86_400), ..DeleteOptions::default() };
            store.delete(Resource::Pods, "default", &pod.name, &hours).unwrap();
        }
    }

    /// Stores a pod, and waits for what the controller makes of it.
    async fn put_pod(&self, pod: Pod) {
        self.store_pod(&pod);
        self.settle().await;
    }

    fn drop_pod(&self, name: &str) {
        let options = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
        self.cluster.store().delete(Resource::Pods, "default", name, &options).unwrap();
    }

    /// Somebody deletes the pod.
    async fn remove_pod(&self, name: &str) {
        self.drop_pod(name);
        self.settle().await;
    }

    fn has_pod(&self, name: &str) -> bool {
        self.cluster.store().get(Resource::Pods, "default", name).is_ok()
    }

    /// What changes of this resource is not seen from now on, neither by watches nor by lists.
    fn hold(&self, resource: Resource) {
        let faults = self.cluster.faults();
        faults.hold_watches(resource, true);
        let refusal = Fault::Refuse { code: 503, retry_after: None };
        faults.add(Rule::always(refusal).on(Verb::List).of(resource));
    }

    /// All is seen again; what happened meanwhile is seen in a new list.
    async fn see_anew(&self, resource: Resource) {
        self.cluster.store().compact(resource);
        self.cluster.faults().clear();
        self.cluster.faults().cut_watches(resource);
        self.pass_secs(5.0).await;
    }

    /// Every deletion is refused like this, until [`Stage::allow`].
    fn deny(&self, code: u16) {
        let refusal = Fault::Refuse { code, retry_after: None };
        let rule = Rule::always(refusal).on(Verb::Delete).of(Resource::Pods);
        self.cluster.faults().add(rule);
    }

    /// Deletions succeed again.
    fn allow(&self) {
        self.cluster.faults().clear();
    }

    /// Lets virtual time pass.
    async fn pass(&self, time: Duration) {
        sleep(time).await;
        self.settle().await;
    }

    /// [`Stage::pass`] in seconds.
    async fn pass_secs(&self, seconds: f64) {
        self.pass(Duration::from_secs_f64(seconds)).await;
    }

    /// Everything is done that can be done now.
    async fn settle(&self) {
        sleep(REST).await;
    }

    /// What was asked about pods so far, in order.
    fn asked(&self) -> Vec<(Asked, String)> {
        self.wire.asked().into_iter().map(|entry| (entry.asked, entry.name)).collect()
    }

    /// When deletions of the pod were asked for, in seconds since noon.
    fn deletions(&self, name: &str) -> Vec<f64> {
        let all = self.wire.asked().into_iter();
        all.filter(|it| it.asked == Asked::Deleted && it.name == name).map(|it| it.at).collect()
    }

    /// How many countdowns are armed.
    fn armed(&self) -> u64 {
        self.gauge("ostrakon_timers")
    }

    /// How many pods are in the backlog.
    fn backlog(&self) -> u64 {
        self.gauge("ostrakon_backlog_pods")
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // It counts by ones.
    fn gauge(&self, name: &str) -> u64 {
        self.process().metric(name, &[]) as u64
    }

    /// The record on `n1`.
    fn record(&self) -> Option<String> {
        let node = self.cluster.store().get(Resource::Nodes, "", "n1").unwrap();
        node["metadata"]["annotations"][RECORD].as_str().map(str::to_owned)
    }
}
