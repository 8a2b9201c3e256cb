//! Scenarios of taints: taints are added and removed; pods are bound, edited and recreated under the same
//! name.

use std::time::Duration;

use jiff::SignedDuration;
use ostrakon::sim::embedded::{Fault, Part, Resource, Rule, Verb};
use rand::Rng;
use serde_json::{Value, json};

use super::super::replica::End;
use super::cluster::ready;
use super::{LATE, LONGEST, LONGEST_PAUSE, OUTAGE, Story, Subject, TAKE_OVER, Verified};

/// How long after a restore a pod may stay that has to go at once, with what is left of earlier pauses.
const CAUGHT_UP: f64 = 90.0;

impl Story {
    /// One random thing happens.
    pub(super) fn step(&mut self) {
        let name = self.some_node();
        match self.random.random_range(0..100) {
            0..26 => self.bind(name),
            26..42 => self.taint(name),
            42..54 => self.untaint(name),
            54..58 => self.come_or_go(name),
            58..66 => self.replace(),
            // A first sight that no deadline depends on is not kept through a restart: one that
            // comes to depend on it later is counted from the restart, and not exact.
            66..71 if !(self.calm && self.restarted) => self.edit(),
            71..77 => self.flip(name),
            77..83 => self.restart(),
            83..92 if !self.calm => self.go_wrong(),
            92..100 => self.cluster.faults().clear(),
            _ => {}
        }
    }

    /// Puts a taint on, in place of one with the same key.
    pub(super) fn taint(&mut self, name: &str) {
        let new = if self.random.random_bool(0.5) {
            // One that does not tell when it was put on; never the same one twice, since one that
            // went and came back while nobody watched cannot be told from one that stayed.
            self.serial += 1;
            json!({"key": format!("u{}", self.serial), "effect": "NoExecute"})
        } else {
            let key = ["a", "b"][self.random.random_range(0..2)];
            let ago = self.random.random_range(0..20);
            json!({"key": key, "effect": "NoExecute", "timeAdded": self.ago(ago)})
        };
        self.change_taints(name, |taints| {
            taints.retain(|taint| taint["key"] != new["key"]);
            taints.push(new.clone());
        });
    }

    pub(super) fn untaint(&mut self, name: &str) {
        let which = self.random.random_range(0..8);
        self.change_taints(name, |taints| {
            let is_ours = |taint: &Value| !OUTAGE.contains(&taint["key"].as_str().unwrap_or(""));
            let ours: Vec<_> = (0..taints.len()).filter(|i| is_ours(&taints[*i])).collect();
            if let Some(gone) = ours.get(which % ours.len().max(1)) {
                taints.remove(*gone);
            }
        });
    }

    /// A node falls silent, is not ready, or has recovered: condition first, then taint, as the
    /// node lifecycle controller has it.
    fn flip(&mut self, name: &str) {
        let status = ["True", "False", "Unknown"][self.random.random_range(0..3)];
        let condition = ready(status, self.cluster.store().clock());
        self.change_node(name, Part::Status, |node| {
            let was = node["status"]["conditions"][0]["status"].clone();
            if was != status {
                node["status"]["conditions"] = json!([condition]);
            }
        });
        let key = match status {
            "False" => Some(OUTAGE[0]),
            "Unknown" => Some(OUTAGE[1]),
            _ => None,
        };
        let added = self.ago(0);
        self.change_taints(name, |taints| {
            let key = key.map(Value::from);
            let is_there = taints.iter().any(|taint| Some(&taint["key"]) == key.as_ref());
            let is_outage =
                |taint: &Value| OUTAGE.contains(&taint["key"].as_str().unwrap_or_default());
            taints.retain(|taint| !is_outage(taint) || Some(&taint["key"]) == key.as_ref());
            if let Some(key) = key.filter(|_| !is_there) {
                taints.push(json!({"key": key, "effect": "NoExecute", "timeAdded": added}));
            }
        });
    }

    pub(super) fn toleration(&mut self) -> Value {
        let keys = ["a", "b", "", ""];
        let mut toleration = json!({"operator": "Exists", "effect": "NoExecute"});
        let key = keys[self.random.random_range(0..keys.len())];
        if !key.is_empty() {
            toleration["key"] = json!(key);
        }
        match self.random.random_range(0..10) {
            0..2 => {}
            2 => toleration["tolerationSeconds"] = json!(0),
            _ => {
                toleration["tolerationSeconds"] = json!(self.random.random_range(1..=LONGEST));
            }
        }
        toleration
    }

    /// A pod is bound, under a name that is free.
    fn bind(&mut self, node: &str) {
        let name = format!("web-{}", self.random.random_range(0..6));
        self.create_pod(&name, node);
    }

    /// A pod is deleted by its owner, and mostly created again under its name at once.
    fn replace(&mut self) {
        let Some(pod) = self.some_pod() else { return };
        let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        self.remove_pod(&name);
        if self.random.random_bool(0.8) {
            let node = self.some_node();
            self.create_pod(&name, node);
        }
    }

    /// A pod is given another toleration.
    fn edit(&mut self) {
        let Some(pod) = self.some_pod() else { return };
        let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let new = self.toleration();
        self.tolerate(&name, &new);
    }

    /// Puts a toleration before those that the pod has.
    fn tolerate(&self, name: &str, new: &Value) {
        let changed = |pod: &Value| {
            let mut pod = pod.clone();
            match pod["spec"]["tolerations"].as_array_mut() {
                Some(tolerations) => tolerations.insert(0, new.clone()),
                None => pod["spec"]["tolerations"] = json!([new]),
            }
            Ok(pod)
        };
        let store = self.cluster.store();
        let _ = store.modify(Resource::Pods, "default", name, Part::Whole, false, changed);
    }

    /// The faults are over: what is condemned goes, and the rest stays in peace.
    pub(super) async fn end(&mut self) -> Verified {
        self.cluster.faults().clear();
        for replica in &self.replicas {
            replica.step_clock(SignedDuration::ZERO);
        }
        self.pass_until_led().await?;
        self.remove_budget();
        if !self.calm && self.subject == Subject::Taints {
            // The lease is renewed once by the clock that is right again.
            self.pass(4.0).await?;
            self.scene().await?;
            self.cluster.faults().clear();
            self.pass_until_led().await?;
        }
        // One is enough, and which must not matter.
        self.restarted = true;
        let index = self.random.random_range(0..self.replicas.len());
        self.replicas[index].end(End::Stop(Duration::from_secs(3600)));
        #[allow(clippy::cast_precision_loss)]
        let longest = LONGEST as f64;
        self.pass(longest + LATE).await?;
        let latest = self.now() + TAKE_OVER + LONGEST_PAUSE;
        while let Some(why) = self.overdue().or_else(|| self.left()) {
            if self.now() > latest {
                return Err(format!("P2: at {:.3} {why}", self.now()));
            }
            self.pass(1.0).await?;
        }
        Ok(())
    }

    /// A pod counts down, and what should save it, or delay it, goes unnoticed by the controller.
    async fn scene(&mut self) -> Verified {
        let (here, elsewhere) = ("n1", "n2");
        for node in [here, elsewhere] {
            self.create_node(node);
            self.change_taints(node, Vec::clear);
        }
        let name = "extra";
        self.remove_pod(name);
        self.bind_extra(name, here, 3);
        let which = self.random.random_range(0..7);
        let stamped = json!({"key": "a", "effect": "NoExecute", "timeAdded": self.ago(0)});
        let bare = json!({"key": "again", "effect": "NoExecute"});
        let taint = if which == 5 { bare.clone() } else { stamped };
        self.change_taints(here, |taints| taints.push(taint.clone()));
        self.pass(1.0).await?;
        if self.rewinds {
            return self.go_back_in_time(here, elsewhere).await;
        }
        match which {
            // Another pod gets its name, on a node that is well.
            0 => {
                self.cluster.faults().hold_watches(Resource::Pods, true);
                self.remove_pod(name);
                self.bind_extra(name, elsewhere, 0);
            }
            // The taint goes.
            1 => {
                self.cluster.faults().hold_watches(Resource::Nodes, true);
                self.change_taints(here, Vec::clear);
            }
            // The deletion is refused.
            2 => {
                let refusal = Fault::Refuse { code: 500, retry_after: None };
                let rule = Rule::always(refusal).of(Resource::Pods).on(Verb::Delete);
                self.cluster.faults().add(rule);
            }
            // Nothing runs for a while, and then everything is due at once.
            3 => {
                let from = self.now();
                tokio::time::advance(Duration::from_secs(13)).await;
                self.observer().paused(from, self.now());
            }
            // The machines sleep, and nothing tells the processes: their own time stands still. It is
            // tainted anew before they see by a clock that they slept.
            4 => {
                let (from, asleep) = (self.now(), self.random.random_range(12..4000));
                let clock = self.cluster.store().clock();
                clock.set(clock.now() + SignedDuration::from_secs(asleep));
                self.observer().paused(from, self.now());
                let anew = json!({"key": "slept", "effect": "NoExecute"});
                self.change_taints(here, |taints| *taints = vec![anew.clone()]);
            }
            // A taint that does not tell when it was put on goes, and is put on anew.
            5 => {
                self.cluster.faults().hold_watches(Resource::Nodes, true);
                self.change_taints(here, Vec::clear);
                self.pass(1.5).await?;
                self.change_taints(here, |taints| taints.push(bare.clone()));
            }
            // Its owner gives it a toleration.
            _ => {
                self.cluster.faults().hold_watches(Resource::Pods, true);
                self.tolerate(name, &json!({"operator": "Exists", "effect": "NoExecute"}));
            }
        }
        self.pass(12.0).await
    }

    /// The store is restored from a backup, and what is bound to a tainted node from then on has versions
    /// that were seen: it goes as any other.
    async fn go_back_in_time(&mut self, here: &str, elsewhere: &str) -> Verified {
        let backup = self.cluster.store().snapshot();
        for number in 0..self.random.random_range(10..60) {
            let name = format!("lost-{number}");
            self.bind_extra(&name, elsewhere, 0);
            self.remove_pod(&name);
        }
        let between = self.random.random_range(0.0..6.0);
        self.pass(between).await?;
        self.cluster.go_back_to(&backup);
        let until_bound = self.random.random_range(0.0..3.0);
        self.pass(until_bound).await?;
        // The store comes further before anybody looks, but not as far as it was: then nothing but the
        // lease would tell.
        for number in 0..self.random.random_range(0..10) {
            self.bind_extra(&format!("more-{number}"), elsewhere, 0);
        }
        self.bind_extra("bound-late", here, 0);
        let bound = self.now();
        let pods = self.cluster.store().clone();
        while pods.get(Resource::Pods, "default", "bound-late").is_ok() {
            if self.now() > bound + CAUGHT_UP {
                return Err(format!(
                    "P2: bound at {bound:.3}, after the store went back in time, and there at {:.3}",
                    self.now()
                ));
            }
            self.pass(1.0).await?;
        }
        Ok(())
    }

    fn bind_extra(&self, name: &str, node: &str, tolerated: i64) {
        let pod = json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 0,
                "tolerations": [{"operator": "Exists", "tolerationSeconds": tolerated}],
            },
            "status": {"phase": "Running", "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.ago(0)},
            ]},
        });
        let _ = self.cluster.store().insert(Resource::Pods, pod);
    }
}
