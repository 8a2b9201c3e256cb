//! What the file says, what is wrong with one, and what is worth a second look.

use std::time::Duration;

use jiff::civil::{Weekday, time};
use jiff::tz::TimeZone;
use proptest::prelude::*;

use super::*;
use crate::drain::{
    AtDeadline, Cap, CapScope, ConditionRule, GroupKind, LabelExpr, Limit, PriorityGroup,
    Protection, Undrainable,
};
use crate::model::ConditionStatus;

/// A file with one policy, of which these lines are said besides its name and a condition.
fn with(lines: &str) -> String {
    let mut text = String::from("drainPolicies:\n- name: p\n  conditions: [KernelDeadlock]\n");
    for line in lines.lines() {
        text.push_str("  ");
        text.push_str(line);
        text.push('\n');
    }
    text
}

fn policy(lines: &str) -> Policy {
    let text = with(lines);
    read_policies(&text).unwrap_or_else(|error| panic!("{text}\n{error}")).remove(0)
}

fn problems(text: &str) -> Vec<String> {
    match read_policies(text) {
        Err(FileError::Invalid(problems)) => problems.iter().map(ToString::to_string).collect(),
        other => panic!("{text}\n{other:?}"),
    }
}

fn shape(text: &str) -> String {
    match read_policies(text) {
        Err(error @ FileError::Shape(_)) => error.to_string(),
        other => panic!("{text}\n{other:?}"),
    }
}

fn rule(text: &str) -> ConditionRule {
    ConditionRule::parse(text).unwrap()
}

const EXAMPLE: &str = include_str!("../../docs/config.example.yaml");

#[test]
fn the_example_has_every_key_with_its_default() {
    let policies = read_policies(EXAMPLE).unwrap();
    let rules = vec![rule("KernelDeadlock"), rule("KubeletUnhealthy")];
    let defaults = Policy::new("default", rules);
    assert_eq!(format!("{:?}", policies[1]), format!("{defaults:?}"));
    let mut keys = Vec::new();
    properties(&schema(), &mut keys);
    assert!(keys.len() > 40, "{keys:?}");
    for key in keys {
        // A group has no place among the defaults.
        let known = key == "group" || EXAMPLE.contains(&format!("{key}:"));
        assert!(known, "no {key} in the example");
    }
}

/// The keys of all objects of a schema.
fn properties(schema: &serde_json::Value, keys: &mut Vec<String>) {
    if let Some(object) = schema.as_object() {
        let own = object.get("properties").and_then(|properties| properties.as_object());
        keys.extend(own.into_iter().flat_map(|own| own.keys().cloned()));
        object.values().for_each(|value| properties(value, keys));
    }
}

#[test]
fn the_schema_requires_what_has_no_default() {
    let schema = schema();
    let mut required: Vec<_> = vec![schema["required"].to_string()];
    let parts = schema["$defs"].as_object().unwrap().values();
    required.extend(parts.filter_map(|part| part.get("required").map(ToString::to_string)));
    required.sort();
    let keys = "[\"drainPolicies\"] [\"kind\"] [\"limit\"] [\"name\",\"conditions\"] [\"share\"] [\"type\"]";
    assert_eq!(required.join(" "), keys);
}

#[test]
fn a_policy_with_a_name_and_a_condition_has_the_defaults_of_all_else() {
    let expected = Policy::new("p", vec![rule("KernelDeadlock")]);
    assert_eq!(format!("{:?}", policy("")), format!("{expected:?}"));
}

#[test]
fn every_setting_is_read() {
    let policies = read_policies(EXAMPLE).unwrap();
    let gpu = &policies[0];
    assert_eq!(gpu.nodes.labels, [("example.com/pool".into(), "gpu".into())]);
    let expression = LabelExpr::parse("'example.com/keep' not in metadata.labels").unwrap();
    assert_eq!(gpu.nodes.expression, expression);
    assert_eq!(gpu.conditions[0].clear_after, None);
    let minutes = |count: u64| Duration::from_secs(60 * count);
    let throttled = ConditionRule {
        clear_after: Some(minutes(30)),
        stale_after: Some(minutes(15)),
        ..rule("GpuThrottled=True,10m")
    };
    assert_eq!(gpu.conditions[1], throttled);
    assert_eq!((gpu.max_grace, gpu.deadline), (Some(minutes(60)), Some(minutes(120))));
    let zone = CapScope::Label("topology.kubernetes.io/zone".into());
    let caps = [(CapScope::Cluster, 2), (zone, 1)];
    let caps = caps.map(|(scope, count)| Cap { scope, limit: Limit::Count(count) });
    assert_eq!(gpu.pace.caps, caps);
    let window = &gpu.windows[0];
    assert_eq!((window.from, window.to), (time(22, 0, 0, 0), time(6, 0, 0, 0)));
    assert_eq!(window.zone, TimeZone::get("Europe/Berlin").unwrap());
    assert_eq!((window.days[0], window.days.len()), (Weekday::Monday, 5));

    let p = policy(
        "drain: false\natDeadline: DeleteRest\nstopWhenClear: false\nundrainable: Cordon\n\
         headroom: 30s\nlingering: 2h\nretry: {first: 1m, most: 1h, attempts: 3}\n\
         groups: [{below: 0, share: 1}, {below: 10, share: 9}, {share: 90}]\n\
         statusTaint: status-taint.cluster-autoscaler.kubernetes.io/ostrakon\n\
         pods:\n  evictDaemonSet: true\n  evictStatefulSet: true\n  evictEmptyDir: true\n  \
         evictUnreplicated: true\n  leaveControllers: [{kind: A}, {group: b, kind: C}]\n  \
         protectedAnnotations: [keep, a=b, c=]\n  honourSafeToEvict: false\n\
         pace: {notice: 1m, spacing: 0s, caps: [], windows: [{}]}",
    );
    assert_eq!((p.drain, p.stop_when_clear), (false, false));
    assert_eq!((p.at_deadline, p.undrainable), (AtDeadline::DeleteRest, Undrainable::Cordon));
    assert_eq!((p.headroom, p.lingering), (Duration::from_secs(30), minutes(120)));
    assert_eq!((p.retry.first, p.retry.most, p.retry.attempts), (minutes(1), minutes(60), 3));
    let group = |below, share| PriorityGroup { below, share };
    assert_eq!(p.groups, [group(Some(0), 1), group(Some(10), 9), group(None, 90)]);
    let taint = "status-taint.cluster-autoscaler.kubernetes.io/ostrakon";
    assert_eq!(p.status_taint.as_deref(), Some(taint));
    assert!(p.pods.evict_daemonset && p.pods.evict_statefulset);
    assert!(p.pods.evict_local_storage && p.pods.evict_unreplicated);
    assert!(!p.pods.honour_safe_to_evict);
    let kind = |group: Option<&str>, kind: &str| GroupKind {
        group: group.map(Into::into),
        kind: kind.into(),
    };
    assert_eq!(p.pods.left_controllers, [kind(None, "A"), kind(Some("b"), "C")]);
    let protection = |key: &str, value: Option<&str>| Protection {
        key: key.into(),
        value: value.map(Into::into),
    };
    let expected =
        [protection("keep", None), protection("a", Some("b")), protection("c", Some(""))];
    assert_eq!(p.pods.protections, expected);
    assert_eq!((p.pace.notice, p.pace.spacing), (minutes(1), Duration::ZERO));
    assert_eq!(p.pace.caps, []);
    let midnight = time(0, 0, 0, 0);
    let always = &p.windows[0];
    assert_eq!((always.from, always.to, always.days.len()), (midnight, midnight, 7));
    assert_eq!(always.zone, TimeZone::UTC);
}

#[test]
fn a_status_may_be_written_without_quotes() {
    for (text, status) in [
        ("True", ConditionStatus::True),
        ("False", ConditionStatus::False),
        ("\"Unknown\"", ConditionStatus::Unknown),
    ] {
        let text = format!(
            "drainPolicies: [{{name: p, conditions: [{{type: Ready, status: {text}, minAge: 10m}}]}}]"
        );
        let policies = read_policies(&text).unwrap();
        assert_eq!(policies[0].conditions[0].status, status);
        assert_eq!(policies[0].conditions[0].min_age, Duration::from_secs(600));
    }
}

#[test]
fn limits_are_numbers_or_percent() {
    for (text, limit) in [
        ("3", Limit::Count(3)),
        ("\"3\"", Limit::Count(3)),
        ("1%", Limit::Percent(1)),
        ("100%", Limit::Percent(100)),
    ] {
        assert_eq!(
            policy(&format!("pace: {{caps: [{{limit: {text}}}]}}")).pace.caps[0].limit,
            limit
        );
    }
}

#[test]
fn a_longer_first_pause_makes_the_longest_as_long() {
    let retry = policy("retry: {first: 5h}").retry;
    assert_eq!(
        (retry.first, retry.most),
        (Duration::from_secs(18_000), Duration::from_secs(18_000))
    );
}

#[test]
fn each_mistake_names_the_policy_the_key_the_cause_and_the_remedy() {
    for (lines, words) in [
        ("headroom: 10", "headroom: \"10\" is no duration; write a duration as 10m"),
        ("maxGracePeriod: 0s", "maxGracePeriod: it is less than a second; write more"),
        ("deadline: 5ms", "deadline: it is less than a second; write more"),
        ("lingering: soon", "lingering: \"soon\" is no duration"),
        (
            "nodeLabelExpression: metadata.labels.a",
            "nodeLabelExpression: \"metadata.labels.a\", column 1: a text is neither true nor false",
        ),
        ("nodeSelector: {'': x}", "nodeSelector: the key of a label is empty; write KEY"),
        ("pods: {protectedAnnotations: [a, =b]}", "pods.protectedAnnotations[1]: \"=b\", column 1"),
        ("pods: {leaveControllers: [{kind: ''}]}", "pods.leaveControllers[0].kind: it is empty"),
        ("pace: {notice: -1s}", "pace.notice: \"-1s\" is no duration"),
        ("pace: {spacing: 1d}", "pace.spacing: \"1d\" is no duration"),
        ("pace: {caps: [{limit: 0}]}", "pace.caps[0].limit: \"0\" is no limit; write a number"),
        ("pace: {caps: [{limit: 101%}]}", "pace.caps[0].limit: \"101%\" is no limit"),
        ("pace: {caps: [{limit: 0%}]}", "pace.caps[0].limit: \"0%\" is no limit"),
        ("pace: {caps: [{limit: 1%%}]}", "pace.caps[0].limit: \"1%%\" is no limit"),
        ("pace: {caps: [{limit: -1}]}", "pace.caps[0].limit: \"-1\" is no limit"),
        ("pace: {caps: [{limit: 1, perLabel: ''}]}", "pace.caps[0].perLabel: it is empty"),
        ("pace: {windows: [{from: '9:00'}]}", "pace.windows[0].from: \"9:00\" is no time of day"),
        ("pace: {windows: [{to: '24:01'}]}", "pace.windows[0].to: \"24:01\" is no time of day"),
        (
            "pace: {windows: [{days: []}]}",
            "pace.windows[0].days: there are none, so it never opens",
        ),
        (
            "pace: {windows: [{zone: Mars/Base}]}",
            "pace.windows[0].zone: \"Mars/Base\" is no known time zone; write an IANA name",
        ),
        ("retry: {first: 3h, most: 1h}", "retry.first: it is longer than retry.most"),
        ("retry: {attempts: 0}", "retry.attempts: it is 0, so no drain would begin"),
        ("groups: []", "groups: there are none; name at least one"),
        ("groups: [{share: 90}]", "groups: the shares make 90 percent; let them make 100"),
        ("groups: [{share: 50}, {share: 50}]", "groups[0].below: it is missing; only the last"),
        ("groups: [{below: 5, share: 100}]", "groups[0].below: the last group has a bound"),
        (
            "groups: [{below: 5, share: 50}, {below: 5, share: 25}, {share: 25}]",
            "groups[1].below: it is not above that of the group before; write the groups in asc",
        ),
        (
            "groups: [{below: 5, share: 0}, {share: 100}]",
            "groups[0].share: it is 0, so that there is no time for its pods",
        ),
        ("statusTaint: example.com/x", "statusTaint: \"example.com/x\" would keep cluster-auto"),
        (
            "statusTaint: status-taint.cluster-autoscaler.kubernetes.io/",
            "statusTaint: \"\" is no name of a taint; write 1 to 63 letters",
        ),
    ] {
        let found = problems(&with(lines));
        assert_eq!(found.len(), 1, "{lines}: {found:?}");
        assert!(found[0].starts_with(&format!("policy \"p\", {words}")), "{lines}: {}", found[0]);
    }
}

#[test]
fn a_mistake_in_a_condition_is_named_with_its_place() {
    let long = |fields: &str| format!("{{type: Cool, {fields}}}");
    for (entry, words) in [
        (
            "Ready=Unknown".to_owned(),
            "conditions[0]: \"Ready=Unknown\", column 14: the minimum age",
        ),
        ("Ready".to_owned(), "conditions[0]: \"Ready\", column 1: Ready alone means Ready=True"),
        ("{type: Ready}".to_owned(), "conditions[0]: \"Ready\", column 1: Ready alone"),
        (
            "{type: ''}".to_owned(),
            "conditions[0]: \"=True,0s\", column 1: the type of the condition",
        ),
        ("{type: 'A=True,1m'}".to_owned(), "conditions[0]: \"A=True,1m=True,0s\", column 8"),
        (long("status: Broken"), "conditions[0]: \"Cool=Broken,0s\", column 6: \"Broken\" is no"),
        (long("minAge: x"), "conditions[0].minAge: \"x\" is no duration"),
        (long("clearAfter: Never"), "conditions[0].clearAfter: \"Never\" is no duration"),
        (long("staleAfter: 0s"), "conditions[0].staleAfter: it is less than a second"),
    ] {
        let found = problems(&format!("drainPolicies: [{{name: p, conditions: [{entry}]}}]"));
        assert_eq!(found.len(), 1, "{entry}: {found:?}");
        assert!(found[0].starts_with(&format!("policy \"p\", {words}")), "{entry}: {}", found[0]);
    }
}

#[test]
fn all_mistakes_are_named_at_once() {
    let found = problems(
        "drainPolicies:\n\
         - {name: a, conditions: []}\n\
         - {name: a, conditions: [Cool, Rad, 'Cool=True,10m']}\n\
         - {name: '', conditions: [Cool], headroom: x, lingering: y}\n\
         - {name: 'b c', conditions: [Cool]}\n",
    );
    let expected = [
        "policy \"a\", conditions: there are none, so no node is ever bad; name at least one, such \
         as KernelDeadlock",
        "policy \"a\", name: another policy has this name; give each its own",
        "policy \"a\", conditions[2]: Cool=True is there already; give each type and status once",
        "drainPolicies[2], name: \"\" is no name; write 1 to 63 letters, digits, - _ and .",
        "drainPolicies[2], headroom: \"x\" is no duration; write a duration as 10m, 1h30m or 90s",
        "drainPolicies[2], lingering: \"y\" is no duration; write a duration as 10m, 1h30m or 90s",
        "policy \"b c\", name: \"b c\" is no name; write 1 to 63 letters, digits, - _ and .",
    ];
    assert_eq!(found, expected);
}

#[test]
fn what_has_not_the_shape_of_a_file_is_named_with_its_line() {
    for (text, words) in [
        ("", &["docs/config.md"][..]),
        ("[]", &["line 1"]),
        ("drainPolicies: [", &["line 1"]),
        ("policies: []", &["policies", "drainPolicies", "line 1"]),
        ("drainPolicies:\n- {conditions: [A]}", &["name", "line 2"]),
        ("drainPolicies:\n- {name: p}", &["conditions", "line 2"]),
        (&with("drian: false"), &["drian", "line 4"]),
        (&with("drain: maybe"), &["line 4"]),
        (&with("pace:\n  notize: 1s"), &["notize", "notice", "line 5"]),
        (&with("atDeadline: Explode"), &["Explode", "GiveUp", "line 4"]),
        (&with("groups: [{share: 300}]"), &["line 4"]),
        (&with("drain: true\ndrain: false"), &["drain", "line 5"]),
        ("drainPolicies:\n- name: p\n  conditions:\n  - {kind: A}", &["kind", "type", "line 4"]),
        ("drainPolicies:\n- name: p\n  conditions:\n  - [A]", &["Type=Status,Duration", "line 4"]),
    ] {
        let error = shape(text);
        assert!(!error.contains('\n'), "{error}");
        for word in words {
            assert!(error.contains(word), "no {word:?} in: {error}");
        }
    }
}

#[test]
fn what_is_seldom_meant_is_warned_of() {
    let read = |text: &str| lint(&read_policies(text).unwrap());
    assert_eq!(read("drainPolicies: []").len(), 1);
    let quiet = "drainPolicies: [{name: p, conditions: [{type: Cool, staleAfter: 15m}]}]";
    assert_eq!(read(quiet), Vec::<String>::new());
    for (entry, words) in [
        ("conditions: ['Ready=True,0s']", "every healthy node"),
        ("conditions: ['Ready=Unknown,10m']", "not drained"),
        ("conditions: [KernelDeadlock]", "clearAfter: never"),
        ("conditions: [{type: Cool, staleAfter: 5m}]", "between two heartbeats"),
        ("conditions: [Cool], pace: {caps: []}", "no cap"),
        ("conditions: [Cool], maxGracePeriod: 8m", "more than 8m0s to end"),
        ("conditions: [Cool], atDeadline: DeleteRest", "disruption budgets or not"),
    ] {
        let found = read(&format!("drainPolicies: [{{name: p, {entry}}}]"));
        assert_eq!(found.len(), 1, "{entry}: {found:?}");
        let starts = found[0].starts_with("policy \"p\": ");
        assert!(starts && found[0].contains(words), "{entry}: {}", found[0]);
    }
    let latched =
        "drainPolicies: [{name: p, conditions: [{type: KernelDeadlock, clearAfter: never}]}]";
    assert_eq!(read(latched), Vec::<String>::new());
    let cordon_only = "drainPolicies: [{name: p, drain: false, atDeadline: DeleteRest, \
                       conditions: ['Ready=Unknown,10m'], maxGracePeriod: 8m}]";
    assert_eq!(read(cordon_only), Vec::<String>::new());
}

#[test]
fn policies_for_the_same_nodes_are_warned_of() {
    let policy = |name: &str, rest: &str| format!("- {{name: {name}, conditions: [Cool]{rest}}}\n");
    let selector = ", nodeSelector: {pool: a}";
    for (first, second, same) in [
        ("", "", true),
        (selector, selector, true),
        ("", selector, false),
        (selector, "", false),
        (selector, ", nodeSelector: {pool: b}", false),
        (", nodeLabelExpression: 'true'", selector, false),
    ] {
        let text = format!("drainPolicies:\n{}{}", policy("a", first), policy("b", second));
        let found = lint(&read_policies(&text).unwrap());
        assert_eq!(found.len(), usize::from(same), "{text}: {found:?}");
        let says = |text: &String| text.starts_with("policy \"b\": policy \"a\" selects the same");
        assert!(found.iter().all(says), "{found:?}");
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,80}", value in ".{0,20}") {
        let _ = read_policies(&text);
        let quoted = serde_json::Value::from(value);
        for key in ["headroom", "nodeLabelExpression", "statusTaint", "name"] {
            let _ = read_policies(&format!("drainPolicies: [{{conditions: [{quoted}], {key}: {quoted}}}]"));
        }
    }
}
