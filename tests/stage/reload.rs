//! The configuration file changes while the controller works: what is armed, held or being drained stays, and
//! new settings lead to new decisions.

mod drains;
mod refusals;
mod taints;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use ostrakon::clock::Clock;
use ostrakon::controller::Offered;
use ostrakon::drain::{DrainPhase, Record};
use ostrakon::model::NodeDrainFacts;
use ostrakon::sim::embedded::{DeleteOptions, Embedded, Options, Part, Resource};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::noon;
use crate::process::{Asked, Process, Wire};

/// A cluster with the node `n1`, and a leader with a configuration file.
struct Bed {
    cluster: Embedded,
    process: Process,
    wire: Arc<Wire>,
}

/// A file with these sections.
fn file(sections: &str) -> String {
    format!("apiVersion: config.ostrakon.dev/v1alpha1\nkind: OstrakonConfiguration\n{sections}")
}

/// A section with a rule for the key `k`.
fn rule(method: &str) -> String {
    format!("taintEviction: {{rules: [{{name: r, key: k, method: {method}}}]}}\n")
}

/// An entry of a policy for the condition `Bad` that drains at once, with these keys.
fn policy(name: &str, keys: &str) -> String {
    format!(
        "- {{name: {name}, conditions: [Bad], pace: {{notice: 0s, spacing: 0s, caps: []}}{keys}}}\n"
    )
}

/// A section with these policies.
fn policies(entries: &[String]) -> String {
    format!("drainPolicies:\n{}", entries.concat())
}

impl Bed {
    async fn new(sections: &str) -> Self {
        let bed = Self::begin(sections, None);
        bed.pass(30.0).await;
        assert_eq!(bed.metric("ostrakon_leader", &[]), 1.0);
        bed
    }

    /// A process that begins now; another one holds the lease if it is given.
    fn begin(sections: &str, lease: Option<Value>) -> Self {
        let options = Options { default_toleration_seconds: None, ..Options::default() };
        let cluster = Embedded::new(Clock::starting_at(noon()), options);
        let node = json!({
            "metadata": {"name": "n1"}, "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        cluster.store().insert(Resource::Nodes, node).unwrap();
        if let Some(lease) = lease {
            cluster.store().insert(Resource::Leases, lease).unwrap();
        }
        let (clock, wire) = (Clock::starting_at(cluster.store().clock().now()), Arc::default());
        let process = Process::with_file(&cluster, clock, &file(sections), &wire);
        Self { cluster, process, wire }
    }

    /// Lets virtual time pass.
    async fn pass(&self, seconds: f64) {
        sleep(Duration::from_secs_f64(seconds)).await;
    }

    /// The file has these sections now.
    async fn offer(&self, sections: &str) -> Offered {
        self.process.offer(Ok(&file(sections))).await
    }

    /// The file has these sections now, and they are put in force.
    async fn apply(&self, sections: &str) {
        assert_eq!(self.offer(sections).await, Offered::Applied, "{sections}");
        sleep(Duration::from_millis(5)).await;
    }

    fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        self.process.metric(name, labels)
    }

    fn change_node(&self, part: Part, change: impl Fn(&mut Value)) {
        let changed = self.cluster.store().modify(Resource::Nodes, "", "n1", part, false, |node| {
            let mut node = node.clone();
            change(&mut node);
            Ok(node)
        });
        changed.unwrap();
    }

    /// Taints `n1` with the key `k`.
    fn taint(&self) {
        let now = self.now().to_string();
        self.change_node(Part::Whole, |node| {
            node["spec"]["taints"] = json!([{"key": "k", "effect": "NoExecute", "timeAdded": now}]);
        });
    }

    /// Somebody reports the condition `Bad` of `n1`.
    fn bad(&self) {
        let since = self.now().to_string();
        self.change_node(Part::Status, |node| {
            let bad = json!({"type": "Bad", "status": "True", "lastTransitionTime": since});
            node["status"]["conditions"].as_array_mut().unwrap().push(bad);
        });
    }

    fn now(&self) -> Timestamp {
        self.cluster.store().clock().now()
    }

    /// Seconds since noon.
    fn elapsed(&self) -> f64 {
        self.now().duration_since(noon()).as_secs_f64()
    }

    /// A ready pod of a replica set on `n1`, which ends at once.
    #[allow(clippy::needless_pass_by_value, reason = "for json! at the call")]
    fn pod(&self, name: &str, tolerations: Value) {
        let owner = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web",
            "controller": true,
        });
        let pod = json!({
            "metadata": {
                "name": name, "namespace": "default", "labels": {"app": "web"},
                "ownerReferences": [owner],
            },
            "spec": {
                "nodeName": "n1", "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main"}], "tolerations": tolerations,
            },
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        self.cluster.store().insert(Resource::Pods, pod).unwrap();
    }

    fn has_pod(&self, name: &str) -> bool {
        self.cluster.store().get(Resource::Pods, "default", name).is_ok()
    }

    fn pods(&self) -> usize {
        self.cluster.store().count(Resource::Pods)
    }

    /// A budget over all pods that allows no disruption.
    fn budget(&self) {
        let budget = json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"minAvailable": 1, "selector": {}},
            "status": {
                "observedGeneration": 1, "disruptionsAllowed": 0, "desiredHealthy": 1,
                "currentHealthy": 1, "expectedPods": 3,
            },
        });
        self.cluster.store().insert(Resource::PodDisruptionBudgets, budget).unwrap();
    }

    fn remove_budget(&self) {
        let (budgets, options) = (Resource::PodDisruptionBudgets, DeleteOptions::default());
        self.cluster.store().delete(budgets, "default", "web", &options).unwrap();
    }

    fn node(&self) -> Arc<Value> {
        self.cluster.store().get(Resource::Nodes, "", "n1").unwrap()
    }

    fn is_cordoned(&self) -> bool {
        self.node()["spec"]["unschedulable"] == true
    }

    fn record(&self) -> Record {
        let node = self.node();
        let text = &node["metadata"]["annotations"][NodeDrainFacts::RECORD_ANNOTATION];
        Record::parse(text.as_str().unwrap_or_else(|| panic!("no record: {node}"))).unwrap()
    }

    /// How often this was asked for.
    fn count(&self, what: Asked) -> usize {
        self.wire.asked().iter().filter(|it| it.asked == what).count()
    }

    /// How many events have these words.
    fn told(&self, words: &str) -> usize {
        self.wire.events().iter().filter(|message| message.contains(words)).count()
    }
}
