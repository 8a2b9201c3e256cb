//! The nodes and pods of a story, and the kubelets.

use std::sync::Arc;

use ostrakon::clock::Clock;
use ostrakon::sim::embedded::{DeleteOptions, Part, Resource, Selector};
use rand::Rng;
use serde_json::{Value, json};

use super::super::observer::seconds;
use super::{ALL_NODES, NODES, Story, hostile};
use crate::time::at;

impl Story {
    pub(super) fn some_node(&mut self) -> &'static str {
        let all = if self.policies.is_empty() { &NODES[..] } else { &ALL_NODES };
        all[self.random.random_range(0..all.len())]
    }

    pub(super) fn create_node(&mut self, name: &str) {
        let mut spec = json!({"podCIDR": "10.0.0.0/24"});
        if self.random.random_bool(0.2) {
            spec["unschedulable"] = json!(true);
        }
        let node = json!({
            "metadata": {"name": name, "annotations": {"example.com/owner": "somebody"}},
            "spec": spec,
            "status": {"conditions": [ready("True", self.cluster.store().clock())]},
        });
        // There is none of that name.
        let _ = self.cluster.store().insert(Resource::Nodes, node);
    }

    /// Changes a node, if there is one.
    pub(super) fn change_node(&self, name: &str, part: Part, change: impl Fn(&mut Value)) {
        let changed = |node: &Value| {
            let mut node = node.clone();
            change(&mut node);
            Ok(node)
        };
        let _ = self.cluster.store().modify(Resource::Nodes, "", name, part, false, changed);
    }

    pub(super) fn change_taints(&self, name: &str, change: impl Fn(&mut Vec<Value>)) {
        self.change_node(name, Part::Whole, |node| {
            let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
            change(&mut taints);
            node["spec"]["taints"] = Value::Array(taints);
        });
    }

    /// A node is removed, or registered again under its name.
    pub(super) fn come_or_go(&mut self, name: &str) {
        let options = DeleteOptions::default();
        if self.cluster.store().delete(Resource::Nodes, "", name, &options).is_err() {
            self.create_node(name);
        }
    }

    pub(super) fn create_pod(&mut self, name: &str, node: &str) {
        let tolerations: Vec<_> =
            (0..self.random.random_range(0..3)).map(|_| self.toleration()).collect();
        let grace = if self.random.random_bool(0.7) { 0 } else { 2 };
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}},
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": grace,
            },
            "status": {"phase": "Running", "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.ago(0)},
            ]},
        });
        // What says nothing the API leaves out.
        if !tolerations.is_empty() {
            pod["spec"]["tolerations"] = Value::Array(tolerations);
        }
        // The name may be taken: then nothing happens.
        let _ = self.cluster.store().insert(Resource::Pods, pod);
    }

    pub(super) fn some_pod(&mut self) -> Option<Arc<Value>> {
        let all = Selector::parse(Resource::Pods, None, "", "").ok()?;
        let mut pods = self.cluster.store().select(Resource::Pods, &all);
        pods.retain(|pod| pod["metadata"]["namespace"] != hostile::TENANT);
        let index = self.random.random_range(0..pods.len().max(1));
        pods.get(index).cloned()
    }

    pub(super) fn remove_pod(&self, name: &str) {
        let at_once = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
        let _ = self.cluster.store().delete(Resource::Pods, "default", name, &at_once);
    }

    /// Pods that were told to go have gone, as their kubelet reports.
    pub(super) fn kubelets(&self) {
        let Ok(all) = Selector::parse(Resource::Pods, None, "", "") else { return };
        for pod in self.cluster.store().select(Resource::Pods, &all) {
            if pod["metadata"]["namespace"] == hostile::TENANT {
                continue;
            }
            let end = pod["metadata"]["deletionTimestamp"].as_str().and_then(|t| t.parse().ok());
            if end.is_some_and(|end: jiff::Timestamp| seconds(end) <= self.now()) {
                self.remove_pod(pod["metadata"]["name"].as_str().unwrap_or_default());
            }
        }
    }
}

/// The condition Ready with this status, since now.
pub(super) fn ready(status: &str, clock: &Clock) -> Value {
    #[allow(clippy::cast_possible_truncation)]
    let now = seconds(clock.now()) as i64;
    json!({"type": "Ready", "status": status, "lastTransitionTime": at(now).to_string()})
}
