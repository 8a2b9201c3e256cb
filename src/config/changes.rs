//! What differs between two configurations, in words.

use std::sync::Arc;

use super::{Settings, summary};
use crate::drain::Policy;
use crate::evict::{RateLimit, TaintRule};

/// What `new` changes, a text for each section that differs; empty if they mean the same.
pub fn changes(old: &Settings, new: &Settings) -> Vec<String> {
    let mut changes = Vec::new();
    changes.extend(taint_rules(&old.taint_rules, &new.taint_rules));
    changes.extend(policies(&old.policies, &new.policies));
    let mut value = |name: &str, old: String, new: String| {
        if old != new {
            changes.push(format!("{name}: {new} (was: {old})"));
        }
    };
    let rate = |limit: Option<RateLimit>| limit.map_or_else(|| "none".to_owned(), summary::rate);
    value("limits.cluster", rate(old.limits.cluster), rate(new.limits.cluster));
    value("limits.zone", rate(old.limits.zone), rate(new.limits.zone));
    value("limits.ramp", summary::ramp(old.limits.ramp), summary::ramp(new.limits.ramp));
    value("orphans", summary::kept(old.orphans).to_owned(), summary::kept(new.orphans).to_owned());
    if old.breaker != new.breaker {
        changes.push(format!(
            "breaker: {} (was: {})",
            summary::trips(&new.breaker),
            summary::trips(&old.breaker)
        ));
    }
    if old.zone_label != new.zone_label {
        changes.push(format!("zoneLabel: {} (was: {})", new.zone_label, old.zone_label));
    }
    changes
}

/// What of a change only a restart puts in force, with the remedy; `None` if nothing.
pub fn needs_restart(old: &Settings, new: &Settings) -> Option<String> {
    // The zone is read of nodes when they come in, and what limits and the breaker have counted by zone
    // would mean nothing for other zones.
    (old.zone_label != new.zone_label).then(|| {
        format!(
            "zoneLabel: {:?} is in force, and {:?} needs a restart; restart ostrakon, or set it back",
            old.zone_label, new.zone_label
        )
    })
}

fn taint_rules(old: &[TaintRule], new: &[TaintRule]) -> Option<String> {
    let name = |rule: &TaintRule| Arc::clone(&rule.name);
    let describe = |old: &TaintRule, new: &TaintRule| {
        (old != new).then(|| format!("{} ({})", new.name, summary::taint(new)))
    };
    list("taintEviction.rules", old, new, name, describe)
}

fn policies(old: &[Policy], new: &[Policy]) -> Option<String> {
    let name = |policy: &Policy| Arc::clone(&policy.name);
    let describe = |old: &Policy, new: &Policy| {
        (old != new).then(|| match parts(old, new).join(", ") {
            parts if parts.is_empty() => new.name.to_string(),
            parts => format!("{} ({parts})", new.name),
        })
    };
    list("drainPolicies", old, new, name, describe)
}

/// What differs between two lists of things that have names.
fn list<T>(
    section: &str,
    old: &[T],
    new: &[T],
    name: impl Fn(&T) -> Arc<str>,
    describe: impl Fn(&T, &T) -> Option<String>,
) -> Option<String> {
    let find = |list: &'_ [T], wanted: &str| list.iter().position(|it| *name(it) == *wanted);
    let only_in = |these: &[T], others: &[T]| {
        let missing = these.iter().map(&name).filter(|it| find(others, it).is_none());
        missing.map(|it| it.to_string()).collect::<Vec<_>>()
    };
    let changed = new.iter().filter_map(|it| describe(&old[find(old, &name(it))?], it));
    let changed: Vec<_> = changed.collect();
    let common = |these: &[T], others: &[T]| {
        these.iter().map(&name).filter(|it| find(others, it).is_some()).collect::<Vec<_>>()
    };
    let mut parts = Vec::new();
    for (what, names) in
        [("added", only_in(new, old)), ("removed", only_in(old, new)), ("changed", changed)]
    {
        if !names.is_empty() {
            parts.push(format!("{what} {}", names.join(", ")));
        }
    }
    if common(old, new) != common(new, old) {
        parts.push("the order changed".to_owned());
    }
    (!parts.is_empty()).then(|| format!("{section}: {}", parts.join("; ")))
}

/// The keys of a policy whose values differ.
fn parts(old: &Policy, new: &Policy) -> Vec<&'static str> {
    [
        ("nodeSelector", old.nodes.labels != new.nodes.labels),
        ("nodeLabelExpression", old.nodes.expression != new.nodes.expression),
        ("conditions", old.conditions != new.conditions),
        ("drain", old.drain != new.drain),
        ("pods", old.pods != new.pods),
        ("pace", old.pace != new.pace || old.windows != new.windows),
        ("maxGracePeriod", old.max_grace != new.max_grace),
        ("headroom", old.headroom != new.headroom),
        ("deadline", old.deadline != new.deadline),
        ("atDeadline", old.at_deadline != new.at_deadline),
        ("retry", old.retry != new.retry),
        ("stopWhenClear", old.stop_when_clear != new.stop_when_clear),
        ("undrainable", old.undrainable != new.undrainable),
        ("groups", old.groups != new.groups),
        ("lingering", old.lingering != new.lingering),
        ("statusTaint", old.status_taint != new.status_taint),
        ("allowMajority", old.allow_majority != new.allow_majority),
    ]
    .into_iter()
    .filter_map(|(key, differs)| differs.then_some(key))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read_settings;

    fn settings(sections: &str) -> Settings {
        let text = format!(
            "apiVersion: config.ostrakon.dev/v1alpha1\nkind: OstrakonConfiguration\n{sections}"
        );
        read_settings(&text).unwrap()
    }

    fn differ(old: &str, new: &str) -> Vec<String> {
        changes(&settings(old), &settings(new))
    }

    #[test]
    fn what_means_the_same_is_no_change() {
        let old = "drainPolicies:\n- name: p\n  conditions: [KernelDeadlock]\n";
        let new = "# Why.\ndrainPolicies: [{name: p, conditions: [{type: KernelDeadlock}]}]\n";
        assert!(differ(old, new).is_empty());
        assert!(differ(old, old).is_empty());
        assert!(differ("", "orphans: Keep\n").is_empty(), "the default is written out");
    }

    #[test]
    fn policies_and_rules_are_named_with_what_became_of_them() {
        let old = "drainPolicies:\n- {name: a, conditions: [KernelDeadlock]}\n\
                   - {name: b, conditions: [ReadonlyFilesystem]}\n";
        let new = "drainPolicies:\n- {name: b, conditions: [ReadonlyFilesystem], deadline: 1h}\n\
                   - {name: c, conditions: [Hot]}\n";
        assert_eq!(differ(old, new), ["drainPolicies: added c; removed a; changed b (deadline)"]);
        let turned = "drainPolicies:\n- {name: b, conditions: [ReadonlyFilesystem]}\n\
                      - {name: a, conditions: [KernelDeadlock]}\n";
        assert_eq!(differ(old, turned), ["drainPolicies: the order changed"]);
        assert_eq!(differ(old, ""), ["drainPolicies: removed a, b"]);
        let rule = |method: &str| {
            format!("taintEviction: {{rules: [{{name: r, key: spot, method: {method}}}]}}\n")
        };
        assert_eq!(
            differ(&rule("Delete"), &rule("Ignore")),
            ["taintEviction.rules: changed r (spot (rule r): pods stay)"]
        );
    }

    #[test]
    fn every_other_section_is_told_with_its_old_and_new_value() {
        let all = "limits: {cluster: {pods: 2}, zone: {pods: 1}, ramp: {enabled: false}}\n\
                   breaker: {mode: Enforce}\norphans: Uncordon\nzoneLabel: rack\n";
        let words = differ("", all);
        let sections: Vec<_> = words.iter().map(|it| it.split(':').next().unwrap()).collect();
        assert_eq!(
            sections,
            ["limits.cluster", "limits.zone", "limits.ramp", "orphans", "breaker", "zoneLabel"]
        );
        assert_eq!(words[0], "limits.cluster: at most 2 pods in 1s (was: none)");
        assert!(words.iter().all(|it| it.contains("(was: ")), "{words:?}");
    }

    #[test]
    fn only_another_zone_label_needs_a_restart() {
        let old = settings("");
        let refused = needs_restart(&old, &settings("zoneLabel: rack\n")).unwrap();
        assert!(refused.contains("\"rack\" needs a restart"), "{refused}");
        assert_eq!(needs_restart(&old, &settings("breaker: {mode: Off}\n")), None);
    }

    /// A new field of a policy must be told as well.
    #[test]
    fn a_policy_that_differs_says_in_what() {
        let policy = || Policy::new("p", Vec::new());
        let Policy {
            name: _,
            nodes: _,
            conditions: _,
            windows: _,
            drain: _,
            pods: _,
            pace: _,
            max_grace: _,
            headroom: _,
            deadline: _,
            at_deadline: _,
            retry: _,
            stop_when_clear: _,
            undrainable: _,
            groups: _,
            lingering: _,
            status_taint: _,
            allow_majority: _,
        } = policy();
        let other = Policy { drain: false, allow_majority: true, ..policy() };
        assert_eq!(parts(&policy(), &other), ["drain", "allowMajority"]);
        assert!(parts(&policy(), &policy()).is_empty());
    }
}
