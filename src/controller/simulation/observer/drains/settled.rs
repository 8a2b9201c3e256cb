//! P2: what each node has to be by the end, when nothing happens any more.

use serde_json::Value;

use super::super::{number, text, time};
use super::facts::{
    annotation, bad, has_status_taint, is_open, is_removed, owner, selects, status, unschedulable,
};
use super::{CONDITIONS, Drains, GUARDED, LATE, PROTECTED, RECORD};
use crate::drain::{Cap, Undrainable};

impl Drains {
    /// The first node that is not what it has to be by now, if nothing happens any more: P2.
    pub(in crate::controller::simulation) fn unsettled(&self, now: f64) -> Option<String> {
        self.nodes.iter().find_map(|(name, states)| {
            let (_, node) = states.last()?;
            let node = node.as_deref()?;
            let why = self.unsettled_node(node, now)?;
            Some(format!("node {name} {why}: {}", annotation(node, RECORD).unwrap_or_default()))
        })
    }

    fn unsettled_node(&self, node: &Value, now: f64) -> Option<&'static str> {
        if is_removed(node) {
            return None;
        }
        let name = text(node, "/metadata/name");
        let record = self.record(node);
        let phase = text(&record, "/phase");
        let is_ours = text(&record, "/cordon") == "ours";
        if has_status_taint(node) && !is_ours {
            return Some("bears our taint and is not cordoned by us");
        }
        if record.is_null() && status(node, "DrainScheduled") == Some("True") {
            return Some("is said to be drained soon, and nobody is about to");
        }
        // draino puts its annotation on together with its cordon.
        let is_looked_after = self.policies.iter().any(|policy| selects(node, policy));
        let is_in_use = !is_ours && !unschedulable(node);
        if is_in_use && is_looked_after && annotation(node, CONDITIONS).is_some() {
            return Some("is in use, and bears the mark of draino's cordon");
        }
        if is_ours && self.is_over(node, now, LATE, now) {
            return Some("has recovered and is still cordoned");
        }
        let policy = self.policies.iter().find(|policy| bad(node, policy, now - LATE, now))?;
        let is_dead = status(node, "Ready") == Some("Unknown");
        let held = !policy.drain || is_dead || self.is_undrainable(name);
        let is_late = |field: &str| time(&record, field).is_none_or(|at| at < now - LATE);
        let may_begin = || {
            let policy = self.policy_of(&record).unwrap_or(policy);
            is_open(policy, now, now) && is_open(policy, now - LATE, now - LATE)
        };
        let has_room = || {
            let has_room =
                |cap: &Cap| self.out_of_use(cap, node).count() < self.most(cap, node, now);
            policy.pace.caps.iter().all(has_room)
        };
        if is_ours && !unschedulable(node) {
            // cluster-autoscaler has uncordoned it, and to cordon it again may be too much.
            return has_room().then_some("is bad and is not cordoned again");
        }
        match phase {
            "" if unschedulable(node) => Some("is bad, and nobody took note of its cordon"),
            "" => {
                let is_left = policy.drain
                    && !is_dead
                    && policy.undrainable == Undrainable::Report
                    && self.is_undrainable(name);
                (has_room() && !is_left).then_some("is bad and is not cordoned")
            }
            "cordoned" if !held => Some("could be drained, and no drain is planned"),
            "scheduled" if is_late("/scheduled") && !held && may_begin() => {
                Some("was to be drained")
            }
            "draining" if is_late("/deadline") && !is_dead => Some("is past its deadline"),
            "failed" if !unschedulable(node) && !has_room() => None,
            "failed"
                if record.get("next").is_some() && is_late("/next") && !held && may_begin() =>
            {
                Some("was to be tried again")
            }
            _ => None,
        }
    }

    /// Whether a pod is on the node that must not be lost with it, or that the budget never lets go.
    fn is_undrainable(&self, name: &str) -> bool {
        let expected = self.budget.as_deref().map_or(0.0, |b| number(b, "/status/expectedPods"));
        let desired = self.budget.as_deref().map_or(0.0, |b| number(b, "/status/desiredHealthy"));
        self.pods.values().filter(|pod| text(pod, "/spec/nodeName") == name).any(|pod| {
            let is_held = text(pod, "/metadata/labels/app") == GUARDED && expected <= desired;
            owner(pod) != Some("DaemonSet")
                && (owner(pod).is_none() || annotation(pod, PROTECTED).is_some() || is_held)
        })
    }
}
