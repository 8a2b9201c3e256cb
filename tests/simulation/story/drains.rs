//! Stories of cordons and drains: conditions go bad and clear, people and cluster-autoscaler do
//! what they do, and all that goes wrong in the other stories goes wrong here.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use ostrakon::sim::embedded::{DeleteOptions, Fault, Part, Resource, Rule, Selector, Verb};
use rand::Rng;
use serde_json::{Value, json};

use super::super::observer::drains::{CONDITIONS, GUARDED, PROTECTED, REMOVING, ZONE};
use super::super::observer::seconds;
use super::super::replica::{End, Replica};
use super::policies::{KINDS, ZONES};
use super::{Story, Subject, TAKE_OVER, Verified};

/// Name of a second budget over the same pods.
const SECOND: &str = "web-too";
/// Without anything happening, after the faults and besides a change of leaders.
const QUIET: f64 = 10.0;
/// Until then everything is settled: every pause has its longest once or twice.
const SETTLED: f64 = 400.0;
/// How often what sets a node's conditions is heard of while nothing changes.
const HEARTBEAT: f64 = 4.0;

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
        for name in super::ALL_NODES {
            self.label(name, if name < "n3" { "a" } else { "b" });
        }
        for _ in 0..4 {
            let name = self.some_node();
            self.place(name);
        }
        if self.random.random_bool(0.3) {
            let name = self.some_node();
            self.cordon_as_draino(name);
            if self.random.random_bool(0.3) {
                self.cordon(name, false);
            }
        }
    }

    /// One random thing happens.
    pub(super) fn drain_step(&mut self) {
        if self.subject == Subject::Budgets && self.random.random_bool(0.25) {
            return self.budget_step();
        }
        let name = self.some_node();
        match self.random.random_range(0..100) {
            0..22 => {
                self.place(name);
                self.place(name);
            }
            22..24 => self.taint(name),
            24..26 => self.untaint(name),
            26..28 => self.cordon_as_draino(name),
            28..31 => self.protect_some_pod(),
            31..33 => self.fall_silent_or_speak(name),
            // Of a label that is not known yet no cap can be told.
            33..35 if self.calm => {
                let zone = ZONES[self.random.random_range(0..ZONES.len())];
                self.label(name, zone);
            }
            35..44 => self.go_bad(name),
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
        let tolerations: Vec<_> =
            (0..self.random.random_range(0..3)).map(|_| self.toleration()).collect();
        let mut pod = json!({
            "metadata": metadata,
            "spec": {"nodeName": node, "terminationGracePeriodSeconds": grace},
            "status": {"phase": "Running", "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": now},
                {"type": "Ready", "status": "True", "lastTransitionTime": now},
            ]},
        });
        if !tolerations.is_empty() {
            pod["spec"]["tolerations"] = Value::Array(tolerations);
        }
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
        let now = self.ago(0);
        self.change_node(name, Part::Status, |node| {
            let mut all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            if all.iter().any(|known| known["type"] == kind && known["status"] == status) {
                return;
            }
            all.retain(|known| known["type"] != kind);
            all.push(json!({
                "type": kind, "status": status, "lastTransitionTime": now,
                "lastHeartbeatTime": now,
            }));
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

    /// draino has cordoned a node, before it was stopped for good.
    fn cordon_as_draino(&mut self, name: &str) {
        let kind = KINDS[self.random.random_range(0..KINDS.len())];
        let is_free = self.node(name).is_some_and(|node| {
            node["spec"]["unschedulable"] != true
                && node["metadata"]["annotations"]["ostrakon.dev/drain"].is_null()
        });
        if !is_free {
            return;
        }
        if self.random.random_bool(0.6) {
            self.set_condition(name, kind, "True");
        }
        self.change_node(name, Part::Whole, |node| {
            set_unschedulable(node, true);
            node["metadata"]["annotations"][CONDITIONS] = json!(format!("{kind}=True,0s"));
        });
    }

    /// A pod is protected from now on, if there is one most likely one whose node is drained.
    fn protect_some_pod(&mut self) {
        let drained = self.nodes_in_phase("draining");
        let mut pod = self.some_pod();
        for _ in 0..3 {
            let is_drained =
                |pod: &Value| drained.iter().any(|node| pod["spec"]["nodeName"] == **node);
            if !pod.as_deref().is_some_and(is_drained) {
                pod = self.some_pod();
            }
        }
        let Some(pod) = pod else { return };
        let changed = |pod: &Value| {
            let mut pod = pod.clone();
            pod["metadata"]["annotations"][PROTECTED] = json!("true");
            Ok(pod)
        };
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let store = self.cluster.store();
        let _ = store.modify(Resource::Pods, "default", name, Part::Whole, false, changed);
    }

    /// What is in the way of evictions changes.
    fn budget_step(&mut self) {
        let store = self.cluster.store().clone();
        match self.random.random_range(0..10) {
            0..2 => {
                let least = self.random.random_range(0..5);
                self.demand(&json!({"minAvailable": least}));
            }
            2 => self.demand(&json!({"maxUnavailable": 0})),
            3..5 => {
                let budgets = Resource::PodDisruptionBudgets;
                let options = DeleteOptions::default();
                if store.delete(budgets, "default", SECOND, &options).is_err() {
                    let selector = json!({"matchLabels": {"app": GUARDED}});
                    let second = json!({
                        "metadata": {"name": SECOND, "namespace": "default"},
                        "spec": {"minAvailable": 0, "selector": selector},
                    });
                    let _ = store.insert(budgets, second);
                }
            }
            5 => self.protect_some_pod(),
            6..8 => self.unprotect_some_pod(),
            _ => {
                let code = [429, 500][self.random.random_range(0..2)];
                let denial = Fault::Deny { webhook: "operator.example.com".to_owned(), code };
                let rule = Rule::always(denial).on(Verb::Create).of(Resource::Pods).at("eviction");
                let times = self.random.random_range(1..5);
                self.cluster.faults().add(rule.times(times));
            }
        }
    }

    /// The budget demands this from now on.
    fn demand(&self, demand: &Value) {
        let budgets = Resource::PodDisruptionBudgets;
        let changed = |budget: &Value| {
            let mut budget = budget.clone();
            let selector = budget["spec"]["selector"].take();
            budget["spec"] = demand.clone();
            budget["spec"]["selector"] = selector;
            Ok(budget)
        };
        let _ = self.cluster.store().modify(budgets, "default", "web", Part::Whole, false, changed);
    }

    /// A pod that is protected is so no more.
    fn unprotect_some_pod(&mut self) {
        let Ok(all) = Selector::parse(Resource::Pods, None, "", "") else { return };
        let store = self.cluster.store();
        let is_protected =
            |pod: &&std::sync::Arc<Value>| pod["metadata"]["annotations"].get(PROTECTED).is_some();
        let pods = store.select(Resource::Pods, &all);
        let Some(pod) = pods.iter().find(is_protected) else { return };
        let changed = |pod: &Value| {
            let mut pod = pod.clone();
            if let Some(annotations) = pod["metadata"]["annotations"].as_object_mut() {
                annotations.remove(PROTECTED);
            }
            Ok(pod)
        };
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let _ = store.modify(Resource::Pods, "default", name, Part::Whole, false, changed);
    }

    fn label(&self, name: &str, zone: &str) {
        self.change_node(name, Part::Whole, |node| {
            node["metadata"]["labels"][ZONE] = json!(zone);
        });
    }

    /// What sets a node's conditions stops, or is there again.
    fn fall_silent_or_speak(&mut self, name: &'static str) {
        if !self.silent.remove(name) {
            self.silent.insert(name);
        }
    }

    /// Conditions are reported again and again, if a policy asks for that.
    pub(super) fn heartbeats(&self) {
        let mut rules = self.policies.iter().flat_map(|policy| &policy.conditions);
        if !rules.any(|rule| rule.stale_after.is_some()) {
            return;
        }
        let now = self.ago(0);
        for name in super::ALL_NODES.iter().filter(|name| !self.silent.contains(*name)) {
            let is_old = |reported: &&Value| {
                let heard = reported["lastHeartbeatTime"].as_str().and_then(|at| at.parse().ok());
                KINDS.iter().any(|kind| reported["type"] == **kind)
                    && heard.is_some_and(|heard| seconds(heard) + HEARTBEAT <= self.now())
            };
            let Some(node) = self.node(name) else { continue };
            let reported = node["status"]["conditions"].as_array();
            if reported.into_iter().flatten().find(is_old).is_none() {
                continue;
            }
            self.change_node(name, Part::Status, |node| {
                let all = node["status"]["conditions"].as_array_mut();
                let ours = |c: &&mut Value| KINDS.iter().any(|kind| c["type"] == **kind);
                for reported in all.into_iter().flatten().filter(ours) {
                    reported["lastHeartbeatTime"] = json!(now);
                }
            });
        }
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
        while let Some(why) = self.unsettled().or_else(|| self.overdue()).or_else(|| self.left()) {
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
        self.demand(&json!({"minAvailable": 1}));
        let second = DeleteOptions::default();
        let _ = store.delete(Resource::PodDisruptionBudgets, "default", SECOND, &second);
        self.pass(1.0).await?;
        for name in [here, elsewhere] {
            self.create_node(name);
            self.label(name, "a");
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
        let observer = self.observer();
        observer.drains.as_ref()?.unsettled(now).or_else(|| {
            let ordered = |replica: &Replica| replica.gauge("ostrakon_drain_backlog_pods");
            let ordered: f64 = self.replicas.iter().map(ordered).sum();
            let may_go = self.pods_on(&self.nodes_in_phase("draining"));
            (ordered > may_go)
                .then(|| format!("{ordered} pods are ordered to go, of {may_go} on drained nodes"))
        })
    }

    #[allow(clippy::cast_precision_loss)] // A few.
    fn pods_on(&self, nodes: &[String]) -> f64 {
        let Ok(all) = Selector::parse(Resource::Pods, None, "", "") else { return 0.0 };
        let pods = self.cluster.store().select(Resource::Pods, &all);
        let is_there = |pod: &&Arc<Value>| {
            let on = pod["spec"]["nodeName"].as_str();
            nodes.iter().any(|node| Some(node.as_str()) == on)
        };
        pods.iter().filter(is_there).count() as f64
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
