//! Stories of cordons and drains: conditions go bad and clear, people and cluster-autoscaler do
//! what they do, and all that goes wrong in the other stories goes wrong here.

use std::time::Duration;

use jiff::SignedDuration;
use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::super::observer::drains::{GUARDED, PROTECTED, REMOVING};
use super::super::replica::{End, Replica};
use super::{Story, TAKE_OVER, Verified};
use crate::drain::{
    AtDeadline, Cap, CapScope, ConditionRule, Limit, Pace, Policy, Protection, Retry, Undrainable,
};
use crate::model::ConditionStatus;
use crate::model::build::at;
use crate::sim::embedded::{DeleteOptions, Part, Resource, Selector};

/// Conditions that the policies are about.
const KINDS: [&str; 2] = ["KernelDeadlock", "ReadonlyFilesystem"];
/// Without anything happening, after the faults and besides a change of leaders.
const QUIET: f64 = 10.0;
/// Until then everything is settled: every pause has its longest once or twice.
const SETTLED: f64 = 400.0;

/// The policies of a story.
pub(super) fn policies(random: &mut StdRng) -> Vec<Policy> {
    let seconds = |random: &mut StdRng, range| Duration::from_secs(random.random_range(range));
    let limit = match random.random_range(0..5) {
        0 => Limit::Percent(25),
        1 => Limit::Percent(75),
        2 => Limit::Count(1),
        3 => Limit::Count(2),
        _ => Limit::Count(4),
    };
    let clear_after = seconds(random, 2..12);
    let min_ages = KINDS.map(|_| seconds(random, 0..6));
    let count = random.random_range(1..=KINDS.len());
    let of_kind = |random: &mut StdRng, index: usize| {
        let (kind, min_age) = (KINDS[index], min_ages[index]);
        let rule = ConditionRule::new(kind, ConditionStatus::True, min_age);
        let rule = ConditionRule { clear_after: Some(clear_after), ..rule };
        let name = format!("p{index}");
        let mut policy = Policy::new(name, vec![rule]);
        policy.drain = random.random_bool(0.9);
        policy.pace = Pace {
            notice: seconds(random, 0..5),
            spacing: Duration::ZERO,
            caps: vec![Cap { scope: CapScope::Cluster, limit }],
        };
        policy.headroom = seconds(random, 10..30);
        policy.at_deadline = match random.random_range(0..4) {
            0 => AtDeadline::Uncordon,
            1 => AtDeadline::DeleteRest,
            _ => AtDeadline::GiveUp,
        };
        policy.retry = Retry {
            first: seconds(random, 5..10),
            most: Duration::from_secs(20),
            attempts: random.random_range(2..8),
        };
        policy.stop_when_clear = random.random_bool(0.7);
        policy.undrainable =
            if random.random_bool(0.7) { Undrainable::Report } else { Undrainable::Cordon };
        policy.pods.protections = vec![Protection { key: PROTECTED.into(), value: None }];
        policy
    };
    (0..count).map(|index| of_kind(random, index)).collect()
}

impl Story {
    /// What is there before the controllers are.
    pub(super) fn set_drain_scene(&mut self) {
        let agent = json!({"metadata": {"name": "agent", "namespace": "default"}});
        let _ = self.cluster.store().insert(Resource::DaemonSets, agent);
        let least = self.random.random_range(0..4);
        let budget = json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {
                "minAvailable": least, "selector": {"matchLabels": {"app": GUARDED}},
            },
        });
        let _ = self.cluster.store().insert(Resource::PodDisruptionBudgets, budget);
        for _ in 0..4 {
            let name = self.some_node();
            self.place(name);
        }
    }

    /// One random thing happens.
    pub(super) fn drain_step(&mut self) {
        let name = self.some_node();
        match self.random.random_range(0..100) {
            0..24 => {
                self.place(name);
                self.place(name);
            }
            24..44 => self.go_bad(name),
            44..56 => self.recover(name),
            56..59 => self.come_or_go(name),
            59..62 => self.remove_some_pod(),
            62..66 => self.cordon(name, true),
            66..71 => self.cordon(name, false),
            71..74 => self.ask_for_a_try(name),
            74..81 => self.scale_down(name),
            81..83 => self.kubelet_dies_or_comes_back(name),
            83..88 => self.restart(),
            88..95 if !self.calm => self.go_wrong(),
            _ => self.cluster.faults().clear(),
        }
    }

    /// A pod comes to a node, mostly to one that is not cordoned.
    fn place(&mut self, node: &str) {
        let is_out = self.node(node).is_some_and(|node| node["spec"]["unschedulable"] == true);
        if is_out && self.random.random_bool(0.9) {
            return;
        }
        self.serial += 1;
        let mut metadata = json!({
            "name": format!("web-{}", self.serial), "namespace": "default",
            "labels": {"app": if self.random.random_bool(0.6) { GUARDED } else { "free" }},
        });
        let owner = |kind: &str, name: &str, uid: &str| {
            json!([{
                "apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid,
                "controller": true,
            }])
        };
        match self.random.random_range(0..40) {
            0..6 => {
                let uid = self.agent();
                metadata["ownerReferences"] = owner("DaemonSet", "agent", &uid);
            }
            6 => {}
            which => {
                metadata["ownerReferences"] = owner("ReplicaSet", "web", "web-set");
                if which == 7 {
                    metadata["annotations"] = json!({PROTECTED: "true"});
                }
            }
        }
        let grace = [0, 0, 1, 3][self.random.random_range(0..4)];
        let now = self.ago(0);
        let pod = json!({
            "metadata": metadata,
            "spec": {"nodeName": node, "terminationGracePeriodSeconds": grace},
            "status": {"phase": "Running", "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": now},
                {"type": "Ready", "status": "True", "lastTransitionTime": now},
            ]},
        });
        let _ = self.cluster.store().insert(Resource::Pods, pod);
    }

    /// UID of the `DaemonSet`.
    fn agent(&self) -> String {
        let store = self.cluster.store();
        let agent = store.get(Resource::DaemonSets, "default", "agent");
        agent.map_or_else(
            |_| String::new(),
            |agent| agent["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
        )
    }

    fn node(&self, name: &str) -> Option<std::sync::Arc<Value>> {
        self.cluster.store().get(Resource::Nodes, "", name).ok()
    }

    /// One of the conditions goes bad.
    fn go_bad(&mut self, name: &str) {
        let kind = KINDS[usize::from(self.random.random_bool(0.3))];
        self.set_condition(name, kind, "True");
    }

    /// The conditions are good again, or are not known.
    fn recover(&mut self, name: &str) {
        let status = if self.random.random_bool(0.9) { "False" } else { "Unknown" };
        for kind in KINDS {
            if self.random.random_bool(0.8) {
                self.set_condition(name, kind, status);
            }
        }
    }

    fn kubelet_dies_or_comes_back(&mut self, name: &str) {
        let status = if self.random.random_bool(0.3) { "Unknown" } else { "True" };
        self.set_condition(name, "Ready", status);
    }

    fn set_condition(&self, name: &str, kind: &str, status: &str) {
        #[allow(clippy::cast_possible_truncation)] // Minutes at most.
        let now = at(self.now() as i64).to_string();
        self.change_node(name, Part::Status, |node| {
            let mut all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            if all.iter().any(|known| known["type"] == kind && known["status"] == status) {
                return;
            }
            all.retain(|known| known["type"] != kind);
            all.push(json!({"type": kind, "status": status, "lastTransitionTime": now}));
            node["status"]["conditions"] = Value::Array(all);
        });
    }

    /// Somebody cordons or uncordons a node.
    fn cordon(&self, name: &str, unschedulable: bool) {
        self.change_node(name, Part::Whole, |node| set_unschedulable(node, unschedulable));
    }

    fn ask_for_a_try(&self, name: &str) {
        self.change_node(name, Part::Whole, |node| {
            node["metadata"]["annotations"]["draino/drain-retry"] = json!("true");
        });
    }

    /// cluster-autoscaler is about to remove a node, or thinks better of it and makes the node
    /// schedulable, whoever cordoned it.
    fn scale_down(&mut self, name: &str) {
        let uncordons = self.random.random_bool(0.7);
        self.change_node(name, Part::Whole, |node| {
            let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
            let before = taints.len();
            taints.retain(|taint| taint["key"] != REMOVING);
            if taints.len() == before {
                taints.push(json!({"key": REMOVING, "value": "1", "effect": "NoSchedule"}));
            } else if uncordons {
                set_unschedulable(node, false);
            }
            node["spec"]["taints"] = Value::Array(taints);
        });
    }

    fn remove_some_pod(&mut self) {
        if let Some(pod) = self.some_pod() {
            self.remove_pod(pod["metadata"]["name"].as_str().unwrap_or_default());
        }
    }

    /// The faults are over and nothing happens any more: each node becomes what it has to be.
    pub(super) async fn drain_end(&mut self) -> Verified {
        self.cluster.faults().clear();
        for replica in &self.replicas {
            replica.step_clock(SignedDuration::ZERO);
        }
        self.pass_until_led().await?;
        if !self.calm {
            self.drain_scene().await?;
            self.cluster.faults().clear();
            self.pass_until_led().await?;
        }
        let index = self.random.random_range(0..self.replicas.len());
        self.replicas[index].end(End::Stop(Duration::from_secs(3600)));
        self.pass(QUIET + TAKE_OVER).await?;
        let latest = self.now() + SETTLED;
        while let Some(why) = self.unsettled() {
            if self.now() > latest {
                return Err(format!("P2: at {:.3} {why}", self.now()));
            }
            self.pass(2.0).await?;
        }
        Ok(())
    }

    /// A budget holds back the pod of a node that is drained. When it lets the pod go, the drain is
    /// not wanted any more, which no watch tells.
    async fn drain_scene(&mut self) -> Verified {
        let (here, elsewhere) = ("n1", "n2");
        let store = self.cluster.store();
        for name in super::ALL_NODES {
            let _ = store.delete(Resource::Nodes, "", name, &DeleteOptions::default());
        }
        let all =
            Selector::parse(Resource::Pods, None, "", "").map_err(|error| error.to_string())?;
        for pod in store.select(Resource::Pods, &all) {
            self.remove_pod(pod["metadata"]["name"].as_str().unwrap_or_default());
        }
        let _ = store.modify(
            Resource::PodDisruptionBudgets,
            "default",
            "web",
            Part::Whole,
            false,
            |budget| {
                let mut budget = budget.clone();
                budget["spec"]["minAvailable"] = json!(1);
                Ok(budget)
            },
        );
        self.pass(1.0).await?;
        for name in [here, elsewhere] {
            self.create_node(name);
            self.cordon(name, false);
        }
        self.bind_guarded("held", here, "True");
        self.bind_guarded("other", elsewhere, "False");
        self.set_condition(here, KINDS[0], "True");
        self.pass(14.0).await?;
        let what = self.random.random_range(0..4);
        self.cluster.faults().hold_watches(Resource::Nodes, what < 3);
        match what {
            0 => self.cordon(here, false),
            1 => self.set_condition(here, KINDS[0], "False"),
            2 => self.scale_down(here),
            // Or it is wanted, and whoever began it is not there any more.
            _ => {
                for replica in &self.replicas {
                    replica.end(End::Kill(Duration::from_secs(1)));
                }
                return self.pass(1.0).await;
            }
        }
        self.bind_guarded("third", elsewhere, "True");
        self.pass(16.0).await
    }

    fn bind_guarded(&self, name: &str, node: &str, ready: &str) {
        let now = self.ago(0);
        let owner = json!([{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web-set",
            "controller": true,
        }]);
        let pod = json!({
            "metadata": {
                "name": name, "namespace": "default", "labels": {"app": GUARDED},
                "ownerReferences": owner,
            },
            "spec": {"nodeName": node, "terminationGracePeriodSeconds": 0},
            "status": {"phase": "Running", "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": now},
                {"type": "Ready", "status": ready, "lastTransitionTime": now},
            ]},
        });
        let _ = self.cluster.store().insert(Resource::Pods, pod);
    }

    fn unsettled(&self) -> Option<String> {
        let now = self.now();
        let observer = self.observer.lock();
        observer.drains.as_ref()?.unsettled(now).or_else(|| {
            let left = self.replicas.iter().find_map(Replica::order_left)?;
            let is_drained = self.nodes_in_phase("draining").contains(&left);
            (!is_drained).then(|| format!("an order is left for node {left}"))
        })
    }

    fn nodes_in_phase(&self, phase: &str) -> Vec<String> {
        let Ok(all) = Selector::parse(Resource::Nodes, None, "", "") else { return Vec::new() };
        let nodes = self.cluster.store().select(Resource::Nodes, &all);
        let is_in = |node: &Value| {
            let record = node["metadata"]["annotations"]["ostrakon.dev/drain"].as_str();
            record.is_some_and(|record| record.contains(&format!("\"phase\":\"{phase}\"")))
        };
        let nodes = nodes.iter().filter(|node| is_in(node));
        nodes.map(|node| node["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Budgets count what is there, as the disruption controller does.
    pub(super) fn disruption_controller(&self) {
        if !self.policies.is_empty() {
            self.cluster.store().update_budgets();
        }
    }
}

fn set_unschedulable(node: &mut Value, unschedulable: bool) {
    if unschedulable {
        node["spec"]["unschedulable"] = json!(true);
    } else if let Some(spec) = node["spec"].as_object_mut() {
        spec.remove("unschedulable");
    }
}
