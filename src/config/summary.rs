//! What a configuration means, as rows of a key and a text: the report of `config check`, and what a running
//! controller shows of the configuration in force.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

pub use super::policy_summary::policy;
use super::{Orphans, Settings};
use crate::drain::format_duration;
use crate::evict::{BreakerMode, BreakerRules, Ramp, RateLimit, TaintMethod, TaintRule};

/// All settings as JSON, with the keys `evictions` and `policies`.
pub fn json(settings: &Settings, now: Timestamp) -> Map<String, Value> {
    let rows = |rows: Vec<(&str, String)>| -> Value {
        rows.into_iter().map(|(key, value)| json!({ "key": key, "value": value })).collect()
    };
    let policies = settings.policies.iter();
    let policies =
        policies.map(|it| json!({ "name": &*it.name, "summary": rows(policy(it, now)) }));
    let policies: Value = policies.collect();
    let evictions = rows(evictions(settings));
    Map::from_iter([("evictions".to_owned(), evictions), ("policies".to_owned(), policies)])
}

/// The settings besides the drain policies.
pub fn evictions(settings: &Settings) -> Vec<(&'static str, String)> {
    let Settings { taint_rules, orphans, limits, breaker, zone_label, .. } = settings;
    let mut rows: Vec<_> = taint_rules.iter().map(|rule| ("taint", taint(rule))).collect();
    if !taint_rules.iter().any(TaintRule::matches_all) {
        let which = if taint_rules.is_empty() { "every taint" } else { "every other taint" };
        rows.push(("taint", format!("{which}: pods are deleted")));
    }
    if let Some(limit) = limits.cluster {
        rows.push(("limit", rate(limit)));
    }
    if let Some(limit) = limits.zone {
        rows.push(("limit", format!("{} of the nodes with the same {zone_label}", rate(limit))));
    }
    rows.push(("ramp", ramp(limits.ramp)));
    rows.push(("breaker", trips(breaker)));
    rows.push(("orphans", kept(*orphans).to_owned()));
    rows
}

pub(super) fn ramp(ramp: Option<Ramp>) -> String {
    match ramp {
        Some(ramp) => format!(
            "{} nodes, or {}% if that is more, at full speed within {}; then a node every {}",
            ramp.nodes,
            ramp.share,
            format_duration(ramp.within),
            format_duration(ramp.interval)
        ),
        None => "none: any number of nodes at full speed".to_owned(),
    }
}

pub(super) fn kept(orphans: Orphans) -> &'static str {
    match orphans {
        Orphans::Keep => "nodes of a policy that is gone stay cordoned, and are reported",
        Orphans::Uncordon => "nodes of a policy that is gone are uncordoned",
    }
}

pub(super) fn taint(rule: &TaintRule) -> String {
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

pub(super) fn rate(RateLimit { pods, per, burst }: RateLimit) -> String {
    let many = if pods == 1 { "pod" } else { "pods" };
    let burst = if burst == pods { String::new() } else { format!(", {burst} at once") };
    format!("at most {pods} {many} in {}{burst}", format_duration(per))
}

pub(super) fn trips(rules: &BreakerRules) -> String {
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
