//! Warnings about settings that are valid but rarely intended, logged at startup and printed by
//! `ostrakon config check`.

use std::time::Duration;

use super::decode::nearest;
use super::yaml::cut;
use crate::drain::{AtDeadline, ConditionRule, GroupKind, Policy, format_duration, is_label_key};
use crate::model::ConditionStatus;

/// Conditions that node-problem-detector reads once from a log and forgets when it restarts.
const LATCHED: [&str; 6] = [
    "KernelDeadlock",
    "ReadonlyFilesystem",
    "XfsShutdown",
    "CperHardwareErrorFatal",
    "DiskBadBlock",
    "CorruptDockerOverlay2",
];

/// Other conditions that kubelets, cloud controllers and node-problem-detector report as True when
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

/// Names mistaken for conditions, what they are, and what to write instead.
const NOT_CONDITIONS: [(&str, &str, &str); 7] = [
    ("NotReady", NOT_READY, READY),
    ("NodeNotReady", "it is the reason of an event", READY),
    ("NodeReady", "it is the reason of an event", READY),
    ("Unreachable", "it is a taint, added when Ready is Unknown", "write Ready=Unknown,5m"),
    ("SchedulingDisabled", "kubectl shows it for cordoned nodes", "remove it"),
    ("Unschedulable", "it is a field of cordoned nodes", "remove it"),
    (
        "OutOfDisk",
        "no kubelet has reported it since Kubernetes 1.13",
        "write DiskPressure, or remove it",
    ),
];

const NOT_READY: &str = "kubectl shows it for nodes whose Ready is False or Unknown";
const READY: &str = "write Ready=False,5m and Ready=Unknown,5m";

/// Kinds of controllers that own pods.
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

/// Kubelets and node-problem-detector send heartbeats every 5 min; this adds some slack.
const HEARTBEAT: Duration = Duration::from_secs(360);

/// A longer duration is probably a mistake.
const LONG: Duration = Duration::from_secs(7 * 86_400);

/// Only this many policies at the beginning of a file are compared with the later ones: a comparison
/// may take a millisecond.
const COMPARED: usize = 32;

/// A setting that is valid but rarely intended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Index of the policy; `None` if the finding is about the whole file.
    pub policy: Option<usize>,
    /// The key of the setting; empty for the whole policy.
    pub key: String,
    /// Why it is suspicious.
    pub cause: String,
    /// What to do about it.
    pub remedy: String,
}

/// Checks policies for settings that are valid but rarely intended.
pub fn lint(policies: &[Policy]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if policies.is_empty() {
        findings.push(Finding {
            policy: None,
            key: "drainPolicies".to_owned(),
            cause: "there are no drain policies".to_owned(),
            remedy: "add one, or no node is cordoned or drained".to_owned(),
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
                warn(key, cause, "write a shorter duration, unless this is intended".to_owned());
            }
        }
        if policy.pace.caps.is_empty() {
            warn(
                "pace.caps".to_owned(),
                "there is no cap: if the reporter of conditions fails, every node may be cordoned"
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

/// Whether an earlier policy covers some or all conditions of this one.
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
            "it is never used: policy {:?} comes first, selects all its nodes and has all its \
             conditions",
            cut(&other.name)
        );
        return Some(("", cause, "move it up, or change the conditions or nodes of one"));
    }
    let part = others.find(|other| policy.conditions.iter().any(|rule| covered(other, rule)))?;
    let cause = format!(
        "policy {:?} comes first, selects the same nodes and has some of these conditions; for \
         those, its settings are used",
        cut(&part.name)
    );
    Some(("conditions", cause, "list each condition in only one of the two, or move this one up"))
}

/// Warns of a node selection that selects every node, or none.
fn nodes(policy: &Policy, warn: &mut impl FnMut(String, String, String)) {
    let mut warn = |cause: String, remedy: &str| {
        warn("nodeLabelExpression".to_owned(), cause, remedy.to_owned());
    };
    let expression = &policy.nodes.expression;
    for key in expression.keys().into_iter().filter(|key| !is_label_key(key)) {
        let cause = format!("{:?} is not a valid label key, so no node has it", cut(key));
        warn(cause, "write the key as `kubectl get nodes --show-labels` shows it");
    }
    match expression.always(&policy.nodes.labels) {
        Some(false) => {
            let cause = match policy.nodes.labels.as_slice() {
                [] => "it is false for every node, so the policy selects none",
                _ => "it is false for every node that nodeSelector selects",
            };
            warn(cause.to_owned(), "fix it, or remove the policy");
        }
        Some(true) if !expression.is_empty() && expression.to_string() != "true" => {
            warn("it is true for every node".to_owned(), "fix it, or leave it out");
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
    let none = NOT_CONDITIONS.iter().find(|(name, ..)| name.eq_ignore_ascii_case(kind));
    if kind.eq_ignore_ascii_case("DrainScheduled") {
        warn(
            "ostrakon itself sets DrainScheduled on nodes that it drains".to_owned(),
            "remove it: a node would stay bad because of its own drain",
        );
    } else if let Some((_, what, remedy)) = none {
        warn(format!("no node has a condition {kind}: {what}"), remedy);
    } else if healthy && kind == "Ready" {
        // In a file this is an error unless the policy says that it is meant. Flags cannot say so.
        if !policy.allow_majority {
            warn(
                "Ready=True makes every healthy node bad".to_owned(),
                "write Ready=False or Ready=Unknown",
            );
        }
    } else if healthy {
        warn(
            format!("every healthy node has {kind}={} and would be bad", rule.status),
            match rule.status {
                ConditionStatus::True => "write the status that is bad, such as False,5m",
                _ => "write the type alone, which means True",
            },
        );
    } else if let Some(known) = misspelled(kind) {
        warn(
            format!("{kind} is not a known condition; types are case-sensitive"),
            &format!("write {known}, unless your own tooling reports {kind}"),
        );
    }
    if kind == "Ready" && rule.status == ConditionStatus::Unknown && policy.drain {
        warn(
            "a node whose Ready is Unknown is cordoned but not drained: its kubelet cannot stop pods"
                .to_owned(),
            "rely on its NoExecute taint, which evicts the pods",
        );
    }
    if LATCHED.contains(&kind) && rule.status == ConditionStatus::True && rule.clear_after.is_some()
    {
        warn(
            format!(
                "{kind} is read from a log, and a restart of node-problem-detector sets it to False"
            ),
            "set clearAfter: never, so that only a person uncordons the node",
        );
    }
    if rule.stale_after.is_some_and(|after| after < HEARTBEAT) {
        warn(
            format!("{kind} becomes stale between two heartbeats, which are 5m apart"),
            "set staleAfter to 15m or more",
        );
    }
}

/// The known condition that this type is probably a typo of.
fn misspelled(kind: &str) -> Option<&'static str> {
    let mut known = vec!["Ready"];
    known.extend(LATCHED);
    known.extend(PROBLEMS);
    if known.contains(&kind) {
        return None;
    }
    // Short words are similar to many others.
    nearest(kind, &known).filter(|known| known.len() > 8 || known.eq_ignore_ascii_case(kind))
}

/// All durations of a policy, by key.
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

/// Warns about the handling of pods.
fn pods(policy: &Policy, warn: &mut impl FnMut(String, String, String)) {
    for (at, controller) in policy.pods.left_controllers.iter().enumerate() {
        if let Some((cause, remedy)) = left_controller(controller) {
            warn(format!("pods.leaveControllers[{at}].kind"), cause, remedy);
        }
    }
    for (at, protection) in policy.pods.protections.iter().enumerate() {
        // The API server ignores the case of prefixes.
        if !is_label_key(&protection.key.to_ascii_lowercase()) {
            let cause = format!("{:?} is not a valid annotation key", cut(&protection.key));
            let remedy = "copy the key from the pod";
            warn(format!("pods.protectedAnnotations[{at}]"), cause, remedy.to_owned());
        }
    }
    if let Some(grace) = policy.max_grace {
        let cause = format!("grace periods of more than {} are cut short", format_duration(grace));
        let remedy = "leave it out to give each pod its own grace period";
        warn("maxGracePeriod".to_owned(), cause, remedy.to_owned());
    }
    if policy.at_deadline == AtDeadline::DeleteRest {
        warn(
            "atDeadline".to_owned(),
            "pods that remain at the deadline are deleted, even against a disruption budget"
                .to_owned(),
            "write GiveUp to respect budgets".to_owned(),
        );
    }
}

/// Why this kind of controller owns no pods, and what to write instead.
fn left_controller(controller: &GroupKind) -> Option<(String, String)> {
    let kind = &*controller.kind;
    let owner = match kind {
        "Deployment" => Some("ReplicaSet"),
        "CronJob" => Some("Job"),
        _ => None,
    };
    if let Some(owner) = owner {
        let cause = format!("a {kind} does not own pods; its {owner} does");
        return Some((cause, format!("write {owner}")));
    }
    if kind.is_empty() || CONTROLLERS.contains(&kind) {
        return None;
    }
    let singular = kind.strip_suffix('s').unwrap_or(kind);
    let known = CONTROLLERS.iter().find(|known| known.eq_ignore_ascii_case(singular));
    match known {
        Some(known) => {
            let cause = format!("{kind:?} is not a kind: kinds are singular and case-sensitive");
            Some((cause, format!("write {known}")))
        }
        None if kind.starts_with(|c: char| c.is_ascii_lowercase()) => {
            let cause = format!("{:?} is in lower case; kinds begin with a capital", cut(kind));
            Some((cause, "write the kind as in a manifest, such as Rollout".to_owned()))
        }
        None => None,
    }
}
