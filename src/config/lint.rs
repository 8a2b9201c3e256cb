//! What is allowed and seldom meant: said at the start, and by `ostrakon config check`.

use std::time::Duration;

use super::decode::nearest;
use super::yaml::cut;
use crate::drain::{AtDeadline, ConditionRule, GroupKind, Policy, format_duration, is_label_key};
use crate::model::ConditionStatus;

/// Conditions that node-problem-detector reads once from a log, and forgets when it restarts.
const LATCHED: [&str; 6] = [
    "KernelDeadlock",
    "ReadonlyFilesystem",
    "XfsShutdown",
    "CperHardwareErrorFatal",
    "DiskBadBlock",
    "CorruptDockerOverlay2",
];

/// Other conditions that kubelets, cloud controllers and node-problem-detector report where
/// something is wrong.
const PROBLEMS: [&str; 16] = [
    "MemoryPressure",
    "DiskPressure",
    "PIDPressure",
    "NetworkUnavailable",
    "FrequentUnregisterNetDevice",
    "FrequentKubeletRestart",
    "FrequentDockerRestart",
    "FrequentContainerdRestart",
    "KubeletUnhealthy",
    "ContainerRuntimeUnhealthy",
    "KubeProxyUnhealthy",
    "KubeletProblem",
    "ContainerRuntimeProblem",
    "FilesystemCorruptionProblem",
    "NTPProblem",
    "VMEventScheduled",
];

/// What is taken for a condition and is none, and what is meant instead.
const NONE: [(&str, &str, &str); 7] = [
    ("NotReady", NOT_READY, READY),
    ("NodeNotReady", "an event has this reason", READY),
    ("NodeReady", "an event has this reason", READY),
    ("Unreachable", "it is a taint, put on where Ready is Unknown", "write Ready=Unknown,5m"),
    ("SchedulingDisabled", "kubectl shows it of a node that is cordoned", "take it away"),
    ("Unschedulable", "it is a field of a node that is cordoned", "take it away"),
    (
        "OutOfDisk",
        "no kubelet has reported it since Kubernetes 1.13",
        "write DiskPressure, or take it away",
    ),
];

const NOT_READY: &str = "kubectl shows it of a node whose Ready is False or Unknown";
const READY: &str = "write Ready=False,5m and Ready=Unknown,5m";

/// Kinds of controllers that pods have.
const CONTROLLERS: [&str; 10] = [
    "ReplicaSet",
    "StatefulSet",
    "DaemonSet",
    "Job",
    "ReplicationController",
    "Deployment",
    "CronJob",
    "Rollout",
    "CloneSet",
    "ExtendedDaemonSetReplicaSet",
];

/// Kubelets and node-problem-detector repeat what has not changed every 5 min; with some slack.
const HEARTBEAT: Duration = Duration::from_secs(360);

/// Longer than anybody waits for a node.
const LONG: Duration = Duration::from_secs(7 * 86_400);

/// So many policies at the beginning of a file are compared with all that follow: each comparison may
/// take a millisecond.
const COMPARED: usize = 32;

/// Something that is worth a second look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Index of the policy; `None` if it is about none.
    pub policy: Option<usize>,
    /// Which setting of it; empty if it is all of it.
    pub key: String,
    /// What is strange about it.
    pub cause: String,
    /// What could be done about it.
    pub remedy: String,
}

/// Everything that is worth a second look, with what could be done about it.
pub fn lint(policies: &[Policy]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if policies.is_empty() {
        findings.push(Finding {
            policy: None,
            key: "drainPolicies".to_owned(),
            cause: "there are no drain policies".to_owned(),
            remedy: "no node is cordoned or drained until there is one".to_owned(),
        });
    }
    for (index, policy) in policies.iter().enumerate() {
        let mut warn = |key: String, cause: String, remedy: String| {
            findings.push(Finding { policy: Some(index), key, cause, remedy });
        };
        if let Some((key, cause, remedy)) = shadow(&policies[..index.min(COMPARED)], policy) {
            warn(key.to_owned(), cause, remedy.to_owned());
        }
        nodes(policy, &mut warn);
        for (at, rule) in policy.conditions.iter().enumerate() {
            condition(policy, rule, &mut |cause, remedy| {
                warn(format!("conditions[{at}]"), cause, remedy.to_owned());
            });
        }
        for (key, duration) in durations(policy) {
            if duration > LONG {
                let days = duration.as_secs() / 86_400;
                let cause = format!("{} is {days} days", format_duration(duration));
                warn(key, cause, "write less, unless it is meant".to_owned());
            }
        }
        if policy.pace.caps.is_empty() {
            warn(
                "pace.caps".to_owned(),
                "there is no cap: a fault of what reports conditions could cordon every node"
                    .to_owned(),
                "set pace.caps in a file".to_owned(),
            );
        }
        if policy.drain {
            pods(policy, &mut warn);
        }
    }
    findings
}

/// Whether one of those before it leaves a policy nothing to do, or nearly nothing.
fn shadow(before: &[Policy], policy: &Policy) -> Option<(&'static str, String, &'static str)> {
    let covered = |other: &Policy, rule: &ConditionRule| {
        other.conditions.iter().any(|wide| {
            (&wide.kind, wide.status) == (&rule.kind, rule.status)
                && wide.min_age <= rule.min_age
                && match (wide.stale_after, rule.stale_after) {
                    (None, _) => true,
                    (Some(wide), Some(narrow)) => wide >= narrow,
                    (Some(_), None) => false,
                }
        })
    };
    let mut others = before.iter().filter(|other| other.nodes.covers(&policy.nodes));
    let whole = others.clone().find(|other| {
        !policy.conditions.is_empty() && policy.conditions.iter().all(|rule| covered(other, rule))
    });
    if let Some(other) = whole {
        let cause = format!(
            "it is never used: policy {:?} comes first, selects all its nodes, and has all its \
             conditions",
            cut(&other.name)
        );
        return Some(("", cause, "move it up, or give the two different conditions or nodes"));
    }
    let part = others.find(|other| policy.conditions.iter().any(|rule| covered(other, rule)))?;
    let cause = format!(
        "policy {:?} selects the same nodes, has some of its conditions and comes first, so a \
         drain goes by its settings where these are bad",
        cut(&part.name)
    );
    Some(("conditions", cause, "keep each condition in one of the two, or move this one up"))
}

/// Whether it selects the nodes that it seems to.
fn nodes(policy: &Policy, warn: &mut impl FnMut(String, String, String)) {
    let mut warn = |cause: String, remedy: &str| {
        warn("nodeLabelExpression".to_owned(), cause, remedy.to_owned());
    };
    let expression = &policy.nodes.expression;
    for key in expression.keys().into_iter().filter(|key| !is_label_key(key)) {
        let cause = format!("{:?} cannot be the key of a label, so no node has it", cut(key));
        warn(cause, "write the key as `kubectl get nodes --show-labels` shows it");
    }
    match expression.always(&policy.nodes.labels) {
        Some(false) => {
            let cause = match policy.nodes.labels.as_slice() {
                [] => "it is false for every node, so the policy is for none",
                _ => "it is false for every node that nodeSelector selects",
            };
            warn(cause.to_owned(), "correct it, or take the policy away");
        }
        Some(true) if !expression.is_empty() && expression.to_string() != "true" => {
            warn("it is true for every node".to_owned(), "correct it, or leave it out");
        }
        _ => {}
    }
}

fn condition(policy: &Policy, rule: &ConditionRule, warn: &mut impl FnMut(String, &str)) {
    let kind = &*rule.kind;
    let healthy = match rule.status {
        ConditionStatus::True => kind.ends_with("Ready") || kind.ends_with("Healthy"),
        ConditionStatus::False => LATCHED.contains(&kind) || PROBLEMS.contains(&kind),
        ConditionStatus::Unknown => false,
    };
    let none = NONE.iter().find(|(name, ..)| name.eq_ignore_ascii_case(kind));
    if kind.eq_ignore_ascii_case("DrainScheduled") {
        warn(
            "DrainScheduled is what ostrakon itself writes on a node that it drains".to_owned(),
            "take it away: a node would stay bad for its own drain",
        );
    } else if let Some((_, what, remedy)) = none {
        warn(format!("no node has a condition {kind}: {what}"), remedy);
    } else if healthy && kind == "Ready" {
        warn(
            "Ready=True makes every healthy node bad".to_owned(),
            "Ready=False or Ready=Unknown is what is usually meant",
        );
    } else if healthy {
        warn(
            format!("every healthy node has {kind}={}, and would be bad", rule.status),
            match rule.status {
                ConditionStatus::True => "write the status that is bad, such as False,5m",
                _ => "write the type alone, which means True",
            },
        );
    } else if let Some(known) = misspelled(kind) {
        warn(
            format!("no known condition is called {kind}: types are compared to the letter"),
            &format!("write {known}, unless something of yours reports {kind}"),
        );
    }
    if kind == "Ready" && rule.status == ConditionStatus::Unknown && policy.drain {
        warn(
            "a node whose Ready is Unknown is cordoned and not drained, since no pod ends there"
                .to_owned(),
            "its NoExecute taint removes them",
        );
    }
    if LATCHED.contains(&kind) && rule.status == ConditionStatus::True && rule.clear_after.is_some()
    {
        warn(
            format!(
                "{kind} is read from a log, and a restart of node-problem-detector sets it to False"
            ),
            "with clearAfter: never only a person brings the node back",
        );
    }
    if rule.stale_after.is_some_and(|after| after < HEARTBEAT) {
        warn(
            format!("{kind} is stale between two heartbeats, which come every 5m"),
            "set staleAfter to 15m or more",
        );
    }
}

/// A known condition whose type differs from this by case, or by a slip of the pen.
fn misspelled(kind: &str) -> Option<&'static str> {
    let mut known = vec!["Ready"];
    known.extend(LATCHED);
    known.extend(PROBLEMS);
    if known.contains(&kind) {
        return None;
    }
    // Short words are near to many others.
    nearest(kind, &known).filter(|known| known.len() > 8 || known.eq_ignore_ascii_case(kind))
}

/// All durations that are waited for, by key.
fn durations(policy: &Policy) -> Vec<(String, Duration)> {
    let mut all = vec![
        ("pace.notice".to_owned(), policy.pace.notice),
        ("pace.spacing".to_owned(), policy.pace.spacing),
        ("headroom".to_owned(), policy.headroom),
        ("retry.first".to_owned(), policy.retry.first),
        ("retry.most".to_owned(), policy.retry.most),
    ];
    all.extend(policy.max_grace.map(|it| ("maxGracePeriod".to_owned(), it)));
    all.extend(policy.deadline.map(|it| ("deadline".to_owned(), it)));
    for (at, rule) in policy.conditions.iter().enumerate() {
        all.push((format!("conditions[{at}].minAge"), rule.min_age));
        all.extend(rule.clear_after.map(|it| (format!("conditions[{at}].clearAfter"), it)));
        all.extend(rule.stale_after.map(|it| (format!("conditions[{at}].staleAfter"), it)));
    }
    all
}

/// What it does with pods.
fn pods(policy: &Policy, warn: &mut impl FnMut(String, String, String)) {
    for (at, controller) in policy.pods.left_controllers.iter().enumerate() {
        if let Some((cause, remedy)) = left_controller(controller) {
            warn(format!("pods.leaveControllers[{at}].kind"), cause, remedy);
        }
    }
    for (at, protection) in policy.pods.protections.iter().enumerate() {
        // The API server compares prefixes without regard to case.
        if !is_label_key(&protection.key.to_ascii_lowercase()) {
            let cause = format!("{:?} cannot be the key of an annotation", cut(&protection.key));
            let remedy = "write it as it stands on the pod";
            warn(format!("pods.protectedAnnotations[{at}]"), cause, remedy.to_owned());
        }
    }
    if let Some(grace) = policy.max_grace {
        let cause =
            format!("pods that ask for more than {} to end are cut short", format_duration(grace));
        warn("maxGracePeriod".to_owned(), cause, "leave it out to give each its own".to_owned());
    }
    if policy.at_deadline == AtDeadline::DeleteRest {
        warn(
            "atDeadline".to_owned(),
            "what is left at the deadline is deleted, disruption budgets or not".to_owned(),
            "write GiveUp to keep to the budgets".to_owned(),
        );
    }
}

/// Why pods of this kind of controllers are none, and what to write instead.
fn left_controller(controller: &GroupKind) -> Option<(String, String)> {
    let kind = &*controller.kind;
    let owner = match kind {
        "Deployment" => Some("ReplicaSet"),
        "CronJob" => Some("Job"),
        _ => None,
    };
    if let Some(owner) = owner {
        let cause = format!("no pod is controlled by a {kind}, but by its {owner}");
        return Some((cause, format!("write {owner}")));
    }
    if kind.is_empty() || CONTROLLERS.contains(&kind) {
        return None;
    }
    let singular = kind.strip_suffix('s').unwrap_or(kind);
    let known = CONTROLLERS.iter().find(|known| known.eq_ignore_ascii_case(singular));
    match known {
        Some(known) => {
            let cause = format!("{kind:?} is no kind: kinds are compared to the letter");
            Some((cause, format!("write {known}")))
        }
        None if kind.starts_with(|c: char| c.is_ascii_lowercase()) => {
            let cause = format!("{:?} is in lower case, and kinds begin with a capital", cut(kind));
            Some((cause, "write the kind as in a manifest, such as Rollout".to_owned()))
        }
        None => None,
    }
}
