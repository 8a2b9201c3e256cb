//! P2: the required state of each node at the end, when nothing changes any more.

use std::sync::Arc;

use ostrakon::drain::{AtDeadline, Cap, Policy, Undrainable};
use serde_json::Value;

use super::super::{number, text, time};
use super::facts::{
    annotation, bad, has_status_taint, is_open, is_removed, owner, selects, status, unschedulable,
};
use super::{CONDITIONS, Drains, GUARDED, LATE, PROTECTED, RECORD};

impl Drains {
    /// The first node that is not what it has to be by now, if nothing happens any more: P2.
    pub(crate) fn unsettled(&self, now: f64) -> Option<String> {
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
        let treated_by = self.policy_of(&record).unwrap_or(policy);
        let held = !policy.drain || is_dead || self.is_undrainable(name, treated_by);
        let is_late = |field: &str| time(&record, field).is_none_or(|at| at < now - LATE);
        let may_begin = || {
            let policy = self.policy_of(&record).unwrap_or(policy);
            is_open(policy, now, now) && is_open(policy, now - LATE, now - LATE)
        };
        let has_room = || {
            let has_room =
                |cap: &Cap| self.unavailable(cap, node).count() < self.most(cap, node, now);
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
                    && self.is_undrainable(name, policy);
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

    /// Whether the policy leaves the node undrained for the pods that are on it. A policy that drains
    /// the rest never does.
    fn is_undrainable(&self, name: &str, policy: &Policy) -> bool {
        policy.undrainable != Undrainable::DrainRest
            && self.bears_what_cannot_go(name, policy.at_deadline != AtDeadline::DeleteRest)
    }

    /// Whether a pod is on the node that must not be lost with it, or that budgets never let go.
    pub(super) fn bears_what_cannot_go(&self, name: &str, by_budgets: bool) -> bool {
        let is_hopeless = |budget: &Arc<Value>| {
            number(budget, "/status/expectedPods") <= number(budget, "/status/desiredHealthy")
        };
        let held = by_budgets && (self.budgets.len() > 1 || self.budgets.values().any(is_hopeless));
        self.pods.values().filter(|pod| text(pod, "/spec/nodeName") == name).any(|pod| {
            let is_held = text(pod, "/metadata/labels/app") == GUARDED && held;
            owner(pod) != Some("DaemonSet")
                && (owner(pod).is_none() || annotation(pod, PROTECTED).is_some() || is_held)
        })
    }

    /// A pod that had to go before the drain of this record was over, and is there.
    pub(super) fn left_behind(&self, name: &str, record: &Value) -> Option<String> {
        let started = time(record, "/started")?;
        let had_to_go = |pod: &&Arc<Value>| {
            let is_older = time(pod, "/metadata/creationTimestamp").is_some_and(|at| at < started);
            text(pod, "/spec/nodeName") == name
                && owner(pod) == Some("ReplicaSet")
                && !self.ever_protected.contains(text(pod, "/metadata/uid"))
                && is_older
        };
        let pod = self.pods.values().find(had_to_go)?;
        Some(text(pod, "/metadata/name").to_owned())
    }
}
