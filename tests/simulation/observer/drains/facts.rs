//! Facts about nodes and pods, read from JSON, and what a policy makes of them.

use jiff::SignedDuration;
use ostrakon::drain::{ConditionRule, Policy};
use serde_json::Value;

use super::super::{aged, text, time};
use super::{CONDITIONS, RECORD, REMOVING, RETRY, STATUS_TAINT, ZONE};
use crate::time::noon;

/// Whether a condition of the policy is bad by `now`, by a heartbeat that counts at `trusted`.
pub(super) fn bad(node: &Value, policy: &Policy, now: f64, trusted: f64) -> bool {
    selects(node, policy)
        && policy.conditions.iter().any(|rule| {
            let Some(reported) = condition(node, &rule.kind) else { return false };
            text(reported, "/status") == "True"
                && is_trusted(reported, rule, trusted)
                && since(node, &rule.kind)
                    .is_some_and(|at| aged(at, rule.min_age.as_secs_f64()) <= now + 1e-3)
        })
}

/// Whether the condition was heard of within what the rule asks for before this moment.
pub(super) fn is_trusted(condition: &Value, rule: &ConditionRule, moment: f64) -> bool {
    rule.stale_after.is_none_or(|after| {
        time(condition, "/lastHeartbeatTime")
            .is_some_and(|at| aged(at, after.as_secs_f64()) > moment)
    })
}

pub(super) fn selects(node: &Value, policy: &Policy) -> bool {
    policy.nodes.labels.iter().all(|(key, value)| **key == *ZONE && zone(node) == Some(value))
}

pub(super) fn zone(node: &Value) -> Option<&str> {
    node.get("metadata")?.get("labels")?.get(ZONE)?.as_str()
}

/// Whether a drain may begin by the policy at one of these moments, both since noon.
pub(super) fn is_open(policy: &Policy, from: f64, to: f64) -> bool {
    let moment = |seconds| noon() + SignedDuration::from_secs_f64(seconds);
    // The windows are parsed and tested elsewhere, and here no more than asked.
    policy.windows.is_empty()
        || [from, to]
            .into_iter()
            .any(|at| policy.windows.iter().any(|w| w.next_opening(moment(at)) == Some(moment(at))))
}

pub(super) fn has_status_taint(node: &Value) -> bool {
    let taints = node.pointer("/spec/taints").and_then(Value::as_array);
    taints.into_iter().flatten().any(is_status_taint)
}

fn is_status_taint(taint: &Value) -> bool {
    taint["key"] == STATUS_TAINT && taint["effect"] == "NoSchedule"
}

pub(super) fn condition<'a>(node: &'a Value, kind: &str) -> Option<&'a Value> {
    let all = node.pointer("/status/conditions").and_then(Value::as_array);
    all.into_iter().flatten().find(|condition| condition["type"] == kind)
}

pub(super) fn status<'a>(node: &'a Value, kind: &str) -> Option<&'a str> {
    condition(node, kind).map(|condition| text(condition, "/status"))
}

pub(super) fn since(node: &Value, kind: &str) -> Option<f64> {
    time(condition(node, kind)?, "/lastTransitionTime")
}

pub(super) fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get("metadata")?.get("annotations")?.get(key)?.as_str()
}

pub(super) fn unschedulable(node: &Value) -> bool {
    node.pointer("/spec/unschedulable").and_then(Value::as_bool) == Some(true)
}

pub(super) fn is_removed(node: &Value) -> bool {
    let taints = node.pointer("/spec/taints").and_then(Value::as_array);
    taints.into_iter().flatten().any(|taint| taint["key"] == REMOVING)
}

/// Whether the condition `DrainScheduled` is the same.
pub(super) fn is_same_mark(before: &Value, after: &Value) -> bool {
    condition(before, "DrainScheduled") == condition(after, "DrainScheduled")
}

/// The node without what is ours.
pub(super) fn stripped(node: &Value) -> Value {
    let mut node = node.clone();
    if let Some(metadata) = node.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["resourceVersion", "managedFields", "generation"] {
            metadata.remove(field);
        }
    }
    if let Some(annotations) =
        node.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
    {
        for key in [RECORD, CONDITIONS, RETRY, super::super::RECORD] {
            annotations.remove(key);
        }
    }
    if let Some(spec) = node.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("unschedulable");
        if let Some(Value::Array(taints)) = spec.get_mut("taints") {
            taints.retain(|taint| !is_status_taint(taint));
        }
        if spec.get("taints").and_then(Value::as_array).is_some_and(Vec::is_empty) {
            spec.remove("taints");
        }
    }
    if let Some(Value::Array(conditions)) = node.pointer_mut("/status/conditions") {
        conditions.retain(|condition| condition["type"] != "DrainScheduled");
    }
    node
}

pub(super) fn owner(pod: &Value) -> Option<&str> {
    pod.pointer("/metadata/ownerReferences/0/kind").and_then(Value::as_str)
}
