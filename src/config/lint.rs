//! What is allowed and seldom meant: said at the start, and by `ostrakon config check`.

use std::time::Duration;

use crate::drain::{AtDeadline, ConditionRule, Policy, format_duration};
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

/// Kubelets and node-problem-detector repeat what has not changed every 5 min; with some slack.
const HEARTBEAT: Duration = Duration::from_secs(360);

/// Everything that is worth a second look, with what could be done about it.
pub fn lint(policies: &[Policy]) -> Vec<String> {
    let mut warnings = Vec::new();
    if policies.is_empty() {
        warnings.push("there are no drain policies: no node is cordoned or drained".to_owned());
    }
    for (index, policy) in policies.iter().enumerate() {
        let mut warn = |text: String| warnings.push(format!("policy {:?}: {text}", policy.name));
        if let Some(other) = policies[..index].iter().find(|other| other.nodes == policy.nodes) {
            warn(format!(
                "policy {:?} selects the same nodes and comes first, so a drain mostly goes by its \
                 settings; join the two, or narrow one",
                other.name
            ));
        }
        for rule in &policy.conditions {
            condition(policy, rule, &mut warn);
        }
        if policy.pace.caps.is_empty() {
            warn(
                "there is no cap: a fault of what reports conditions could cordon every node; \
                  set pace.caps in a file"
                    .to_owned(),
            );
        }
        if !policy.drain {
            continue;
        }
        if let Some(grace) = policy.max_grace {
            let grace = format_duration(grace);
            warn(format!("pods that ask for more than {grace} to end are cut short"));
        }
        if policy.at_deadline == AtDeadline::DeleteRest {
            warn("what is left at the deadline is deleted, disruption budgets or not".to_owned());
        }
    }
    warnings
}

fn condition(policy: &Policy, rule: &ConditionRule, warn: &mut impl FnMut(String)) {
    if &*rule.kind == "Ready" {
        match rule.status {
            ConditionStatus::True => {
                warn(
                    "Ready=True makes every healthy node bad; Ready=False or Ready=Unknown is \
                      what is usually meant"
                        .to_owned(),
                );
            }
            ConditionStatus::Unknown if policy.drain => {
                warn(
                    "a node whose Ready is Unknown is cordoned and not drained, since no pod \
                      ends there; its NoExecute taint removes them"
                        .to_owned(),
                );
            }
            _ => {}
        }
    }
    if LATCHED.contains(&&*rule.kind) && rule.clear_after.is_some() {
        warn(format!(
            "{} is read from a log, and a restart of node-problem-detector sets it to False; \
             with clearAfter: never only a person brings the node back",
            rule.kind
        ));
    }
    if rule.stale_after.is_some_and(|after| after < HEARTBEAT) {
        warn(format!(
            "{} is stale between two heartbeats, which come every 5m; set staleAfter to 15m or \
             more",
            rule.kind
        ));
    }
}
