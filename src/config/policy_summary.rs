//! What a drain policy means, as rows of a key and a text.

use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;

use crate::drain::{
    AtDeadline, CapScope, ConditionRule, Limit, NodeSelector, PodRules, Policy, Undrainable,
    format_duration,
};

/// A policy as rows of a key and a text.
pub fn policy(policy: &Policy, now: Timestamp) -> Vec<(&'static str, String)> {
    let mut rows = vec![("nodes", nodes(&policy.nodes))];
    rows.extend(policy.conditions.iter().map(|rule| ("bad", bad(rule))));
    rows.push(("cordon", cordon(policy)));
    if !policy.drain {
        rows.push(("drain", "never: nodes are only cordoned".to_owned()));
        return rows;
    }
    let notice = format_duration(policy.pace.notice);
    let spacing = format_duration(policy.pace.spacing);
    let drain =
        format!("{notice} after the cordon, and {spacing} after the previous drain started");
    rows.push(("drain", drain));
    if !policy.windows.is_empty() {
        let opens = match policy.next_opening(now) {
            Some(opens) if opens > now => format!("opens {opens}"),
            _ => "open now".to_owned(),
        };
        let many = policy.windows.len();
        let windows = if many == 1 { "window" } else { "windows" };
        rows.push(("windows", format!("{many} {windows}, {opens}")));
    }
    rows.push(("pods", pods(&policy.pods)));
    if policy.undrainable == Undrainable::Cordon {
        rows.push(("", "no drain while a pod cannot be evicted".to_owned()));
    }
    let deadline = if let Some(deadline) = policy.deadline {
        format_duration(deadline)
    } else {
        let headroom = format_duration(policy.headroom);
        let most = format_duration(policy.time_for(Duration::MAX));
        format!("the longest grace period of the node's pods plus {headroom}, at most {most}")
    };
    let then = match policy.at_deadline {
        AtDeadline::GiveUp => "then the node stays cordoned",
        AtDeadline::Uncordon => "then the node is uncordoned",
        AtDeadline::DeleteRest => "then remaining pods are deleted, even against budgets",
    };
    rows.push(("deadline", format!("{deadline}, {then}")));
    let tries = match policy.retry.attempts {
        1 => "never".to_owned(),
        attempts => format!(
            "{attempts} attempts, after {} to {}",
            format_duration(policy.retry.first),
            format_duration(policy.retry.most)
        ),
    };
    rows.push(("retry", tries));
    rows
}

fn nodes(nodes: &NodeSelector) -> String {
    let labels = nodes.labels.iter().map(|(key, value)| format!("{key} is {value}"));
    let expression = nodes.expression.to_string();
    let parts: Vec<_> = labels.chain((!expression.is_empty()).then_some(expression)).collect();
    if parts.is_empty() { "all".to_owned() } else { parts.join(", and ") }
}

fn bad(rule: &ConditionRule) -> String {
    let mut text = format!("{} is {}", rule.kind, rule.status);
    if !rule.min_age.is_zero() {
        let _ = write!(text, " for {}", format_duration(rule.min_age));
    }
    match rule.clear_after {
        Some(after) => {
            let _ = write!(text, "; clears after {}", format_duration(after));
        }
        None => text.push_str("; never clears by itself"),
    }
    if let Some(after) = rule.stale_after {
        let _ = write!(text, "; ignored after {} without a heartbeat", format_duration(after));
    }
    text
}

fn cordon(policy: &Policy) -> String {
    let caps = policy.pace.caps.iter().map(|cap| {
        let limit = match cap.limit {
            Limit::Count(count) => count.to_string(),
            Limit::Percent(percent) => format!("{percent}%"),
        };
        match &cap.scope {
            CapScope::Cluster => format!("{limit} of all nodes"),
            CapScope::Label(label) => format!("{limit} of the nodes with the same {label}"),
        }
    });
    let caps: Vec<_> = caps.collect();
    let caps = match caps.as_slice() {
        [] => "at once, any number of nodes".to_owned(),
        caps => format!("at once, while at most {} are unavailable", caps.join(" and ")),
    };
    match (policy.drain, policy.undrainable) {
        (true, Undrainable::Report) => {
            format!("{caps}; not while a pod cannot be evicted")
        }
        _ => caps,
    }
}

/// Which pods are evicted.
fn pods(rules: &PodRules) -> String {
    let mut left = Vec::new();
    for (evicted, what) in [
        (rules.evict_daemonset, "of a DaemonSet"),
        (rules.evict_statefulset, "of a StatefulSet"),
        (rules.evict_local_storage, "with an emptyDir"),
        (rules.evict_unreplicated, "without a controller"),
    ] {
        if !evicted {
            left.push(what.to_owned());
        }
    }
    left.extend(rules.left_controllers.iter().map(|it| format!("of a {}", it.kind)));
    left.extend(rules.protections.iter().map(|it| match &it.value {
        Some(value) => format!("annotated {}={value}", it.key),
        None => format!("annotated {}", it.key),
    }));
    if rules.honour_safe_to_evict {
        left.push("marked as not safe to evict for cluster-autoscaler".to_owned());
    }
    if left.is_empty() {
        "all are evicted except mirror pods".to_owned()
    } else {
        format!("all are evicted except those {}", left.join(", "))
    }
}
