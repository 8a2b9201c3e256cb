//! What a configuration means for evictions, as rows of a key and a text.

use crate::config::{Orphans, Settings};
use crate::drain::format_duration;
use crate::evict::{BreakerMode, BreakerRules, RateLimit, TaintMethod, TaintRule};

/// The settings besides the drain policies.
pub(super) fn rows(settings: &Settings) -> Vec<(&'static str, String)> {
    let Settings { taint_rules, orphans, limits, breaker, zone_label, .. } = settings;
    let mut rows: Vec<_> = taint_rules.iter().map(|rule| ("taint", taint(rule))).collect();
    let is_for_all = |rule: &TaintRule| &*rule.key == "*" && rule.value.is_none();
    if !taint_rules.iter().any(is_for_all) {
        let which = if taint_rules.is_empty() { "every taint" } else { "every other taint" };
        rows.push(("taint", format!("{which}: pods are deleted")));
    }
    if let Some(limit) = limits.cluster {
        rows.push(("limit", rate(limit)));
    }
    if let Some(limit) = limits.zone {
        rows.push(("limit", format!("{} of the nodes with the same {zone_label}", rate(limit))));
    }
    let ramp = match limits.ramp {
        Some(ramp) => format!(
            "{} nodes, or {}% if that is more, at full speed within {}; then a node every {}",
            ramp.nodes,
            ramp.share,
            format_duration(ramp.within),
            format_duration(ramp.interval)
        ),
        None => "none: any number of nodes at full speed".to_owned(),
    };
    rows.push(("ramp", ramp));
    rows.push(("breaker", trips(breaker)));
    let orphans = match orphans {
        Orphans::Keep => "nodes of a policy that is gone stay cordoned, and are reported",
        Orphans::Uncordon => "nodes of a policy that is gone are uncordoned",
    };
    rows.push(("orphans", orphans.to_owned()));
    rows
}

fn taint(rule: &TaintRule) -> String {
    let taint = match &rule.value {
        Some(value) => format!("{}={value}", rule.key),
        None => rule.key.to_string(),
    };
    let then = match rule.method {
        TaintMethod::Delete => "pods are deleted".to_owned(),
        TaintMethod::Evict => "pods are evicted when their budgets allow it".to_owned(),
        TaintMethod::EvictThenDelete { after } => format!(
            "pods are evicted when their budgets allow it, and deleted {} after the deadline",
            format_duration(after)
        ),
        TaintMethod::Ignore => "pods stay".to_owned(),
    };
    let limit = rule.limit.map_or_else(String::new, |limit| format!(", {}", rate(limit)));
    format!("{taint} (rule {}): {then}{limit}", rule.name)
}

fn rate(RateLimit { pods, per, burst }: RateLimit) -> String {
    let many = if pods == 1 { "pod" } else { "pods" };
    let burst = if burst == pods { String::new() } else { format!(", {burst} at once") };
    format!("at most {pods} {many} in {}{burst}", format_duration(per))
}

fn trips(rules: &BreakerRules) -> String {
    let then = match rules.mode {
        BreakerMode::Off => return "off".to_owned(),
        BreakerMode::Observe => "is only reported",
        BreakerMode::Enforce => "holds evictions",
    };
    format!(
        "{then} when more than {}% of the nodes, and more than {}, have due pods within {}",
        rules.share,
        rules.at_least,
        format_duration(rules.window)
    )
}
