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
use crate::evict::{BreakerMode, BreakerRules, EvictionLimits, RateLimit, TaintMethod, TaintRule};
use crate::model::ConditionStatus;

/// A file with these settings. What every file has comes last, so that places are those in `settings`.
fn file(settings: &str) -> String {
    if settings.contains(API_VERSION) {
        return settings.to_owned();
    }
    format!("{}\napiVersion: {API_VERSION}\nkind: {KIND}\n", settings.trim_end())
}

fn read_policies(text: &str) -> Result<Vec<Policy>, Vec<Problem>> {
    read_settings(&file(text)).map(|settings| settings.policies)
}

/// A file with one policy, of which these lines are said besides its name and a condition.
fn with(lines: &str) -> String {
    let mut text = String::from("drainPolicies:\n- name: p\n  conditions: [KernelDeadlock]\n");
    for line in lines.lines() {
        text.push_str("  ");
        text.push_str(line);
        text.push('\n');
    }
    file(&text)
}

fn policy(lines: &str) -> Policy {
    let text = with(lines);
    read_policies(&text).unwrap_or_else(|error| panic!("{text}\n{error:?}")).remove(0)
}

/// The errors of a file, without their places.
fn problems(text: &str) -> Vec<String> {
    let errors = read_policies(text).expect_err(text);
    errors.iter().map(ToString::to_string).collect()
}

/// All that is said of a file with these settings, as `LINE:COLUMN severity PATH: cause; remedy`.
fn said(settings: &str) -> Vec<String> {
    said_exactly(&file(settings))
}

fn said_exactly(text: &str) -> Vec<String> {
    let said = |problem: &Problem| {
        let Problem { severity, place, path, cause, remedy, .. } = problem;
        format!("{} {} {path}: {cause}; {remedy}", place.unwrap(), severity.as_str())
    };
    read(text.as_bytes()).problems.iter().map(said).collect()
}

/// The warnings of a file that has no errors.
fn warned(text: &str) -> Vec<String> {
    let (_, warnings) = read(file(text).as_bytes()).usable().expect(text);
    warnings.iter().map(ToString::to_string).collect()
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
    let keys = "[\"apiVersion\",\"kind\"] [\"kind\"] [\"limit\"] [\"name\",\"conditions\"] \
                [\"name\",\"method\"] [\"pods\"] [\"share\"] [\"type\"]";
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
            "drainPolicies: [{{name: p, conditions: [{{type: Cool, status: {text}, minAge: 10m}}]}}]"
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
        ("headroom: 10", "headroom: \"10\" is not a duration; write a duration as 10m"),
        ("maxGracePeriod: 0s", "maxGracePeriod: it is less than 1s; write a longer"),
        ("deadline: 5ms", "deadline: it is less than 1s; write a longer"),
        ("lingering: soon", "lingering: \"soon\" is not a duration"),
        (
            "nodeLabelExpression: metadata.labels.a",
            "nodeLabelExpression: \"metadata.labels.a\", column 1: a string is not a boolean",
        ),
        ("nodeSelector: {'': x}", "nodeSelector[\"\"]: the label key is empty; write letters"),
        (
            "nodeSelector: {'a b': x}",
            "nodeSelector[\"a b\"]: \"a b\" is not a valid label key; write letters",
        ),
        (
            "nodeSelector: {a: 'x y'}",
            "nodeSelector[\"a\"]: \"x y\" is not a valid label value; write up to 63",
        ),
        ("nodeSelector: {a: }", "nodeSelector[\"a\"]: it has no value; write a value, or ''"),
        (
            "pace: {caps: [{limit: 1, perLabel: 'a b'}]}",
            "pace.caps[0].perLabel: \"a b\" is not a valid label key; write letters",
        ),
        (
            "drain: \"yes\"",
            "drain: \"yes\" is a quoted string; write true or false, without quotes",
        ),
        ("drain: yes", "drain: \"yes\" is neither true nor false; write true or false"),
        ("drain: 'true'", "drain: \"true\" is a quoted string; write true or false"),
        ("pods: [evictEmptyDir]", "pods: it is a list; write a mapping"),
        (
            "pods: {leaveControllers: Rollout}",
            "pods.leaveControllers: \"Rollout\" is a single value",
        ),
        (
            "pods: {leaveControllers: [Rollout]}",
            "pods.leaveControllers[0]: \"Rollout\" is a single",
        ),
        ("pace: {windows: [{days: [mon]}]}", "pace.windows[0].days[0]: \"mon\" is not one of Mon"),
        ("headroom: [1m]", "headroom: it is a list; write a string"),
        ("pods: {protectedAnnotations: [a, =b]}", "pods.protectedAnnotations[1]: \"=b\", column 1"),
        ("pods: {leaveControllers: [{kind: ''}]}", "pods.leaveControllers[0].kind: it is empty"),
        ("pace: {notice: -1s}", "pace.notice: \"-1s\" is not a duration"),
        ("pace: {spacing: 1d}", "pace.spacing: \"1d\" is not a duration"),
        (
            "pace: {caps: [{limit: 0}]}",
            "pace.caps[0].limit: \"0\" is not a valid limit; write a number",
        ),
        ("pace: {caps: [{limit: 101%}]}", "pace.caps[0].limit: \"101%\" is not a valid limit"),
        ("pace: {caps: [{limit: 0%}]}", "pace.caps[0].limit: \"0%\" is not a valid limit"),
        ("pace: {caps: [{limit: 1%%}]}", "pace.caps[0].limit: \"1%%\" is not a valid limit"),
        ("pace: {caps: [{limit: -1}]}", "pace.caps[0].limit: \"-1\" is not a valid limit"),
        ("pace: {caps: [{limit: 1, perLabel: ''}]}", "pace.caps[0].perLabel: it is empty"),
        (
            "pace: {windows: [{from: '9:00'}]}",
            "pace.windows[0].from: \"9:00\" is not a time of day",
        ),
        ("pace: {windows: [{to: '24:01'}]}", "pace.windows[0].to: \"24:01\" is not a time of day"),
        (
            "pace: {windows: [{days: []}]}",
            "pace.windows[0].days: the list is empty, so the window never opens",
        ),
        (
            "pace: {windows: [{zone: Mars/Base}]}",
            "pace.windows[0].zone: \"Mars/Base\" is not a known time zone; write an IANA name",
        ),
        ("retry: {first: 3h, most: 1h}", "retry.first: it is longer than retry.most"),
        (
            "retry: {attempts: many}",
            "retry.attempts: \"many\" is not a valid number; write 1 or more",
        ),
        ("retry: {attempts: '3'}", "retry.attempts: \"3\" is a quoted string"),
        ("retry: {attempts: 0}", "retry.attempts: it is 0, so no drain would start"),
        ("groups: []", "groups: the list is empty; list at least one"),
        (
            "groups: [{share: 90}]",
            "groups: the shares add up to 90 percent; make them add up to 100",
        ),
        ("groups: [{share: 50}, {share: 50}]", "groups[0].below: it is missing; only the last"),
        ("groups: [{below: 5, share: 100}]", "groups[0].below: the last group has a bound"),
        (
            "groups: [{below: 5, share: 50}, {below: 5, share: 25}, {share: 25}]",
            "groups[1].below: it is not higher than in the previous group; write the groups in asc",
        ),
        (
            "groups: [{below: 5, share: 0}, {share: 100}]",
            "groups[0].share: it is 0, which leaves no time for the group",
        ),
        ("statusTaint: example.com/x", "statusTaint: \"example.com/x\" would keep cluster-auto"),
        (
            "statusTaint: status-taint.cluster-autoscaler.kubernetes.io/",
            "statusTaint: \"\" is not a valid taint name; write 1 to 63 letters",
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
            "conditions[0].type: \"\", column 1: the condition type is missing",
        ),
        (
            "{type: 'A=True,1m'}".to_owned(),
            "conditions[0].type: \"A=True,1m\", column 2: a condition type cannot contain '='",
        ),
        ("{status: 'True'}".to_owned(), "conditions[0].type: it is missing"),
        ("[A]".to_owned(), "conditions[0]: it is a list; write Type, Type=Status,Duration"),
        (long("status: Broken"), "conditions[0].status: \"Broken\" is not a status; write True"),
        (long("minAge: x"), "conditions[0].minAge: \"x\" is not a duration"),
        (
            long("clearAfter: Never"),
            "conditions[0].clearAfter: \"Never\" is not a duration; write never",
        ),
        (long("staleAfter: 0s"), "conditions[0].staleAfter: it is less than 1s"),
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
        "policy \"a\", conditions: the list is empty, so no node is ever bad; list at least one, such \
         as KernelDeadlock",
        "policy \"a\", name: another policy has this name; choose another name",
        "policy \"a\", conditions[2]: Cool=True is listed twice; list each type and status once",
        "drainPolicies[2], name: \"\" is not a valid name; write 1 to 63 letters, digits, - _ and .",
        "drainPolicies[2], headroom: \"x\" is not a duration; write a duration as 10m, 1h30m or 90s",
        "drainPolicies[2], lingering: \"y\" is not a duration; write a duration as 10m, 1h30m or 90s",
        "policy \"b c\", name: \"b c\" is not a valid name; write 1 to 63 letters, digits, - _ and .",
    ];
    assert_eq!(found, expected);
}

#[test]
fn mistakes_of_form_of_type_and_of_meaning_are_named_in_one_run_each_with_its_place() {
    let text = "drainPolicies:\n- name: p\n  conditions: [Ready]\n  drian: false\n  headroom: 10\n  \
                pace:\n    notize: 1s\n    caps:\n    - limit: 0\n  drain: maybe\n  drain: true\n\
                - conditions: [KernelDeadlock]\n";
    assert_eq!(
        said(text),
        [
            "3:16 error drainPolicies[0].conditions[0]: \"Ready\", column 1: Ready alone means \
             Ready=True, so every healthy node would be bad; write Ready=Unknown,10m or \
             Ready=False,10m, or, to select healthy nodes, Ready=True,0s",
            "4:3 error drainPolicies[0].drian: unknown key \"drian\"; did you mean drain? \
             docs/config.md lists all keys",
            "5:13 error drainPolicies[0].headroom: \"10\" is not a duration; write a duration as 10m, \
             1h30m or 90s",
            "7:5 error drainPolicies[0].pace.notize: unknown key \"notize\"; did you mean notice? \
             docs/config.md lists all keys",
            "9:14 error drainPolicies[0].pace.caps[0].limit: \"0\" is not a valid limit; write a number of \
             at least 1, or 1% to 100%",
            "10:10 error drainPolicies[0].drain: \"maybe\" is neither true nor false; write true or \
             false, without quotes",
            "11:3 error : duplicate key \"drain\", first in line 10; remove one of them",
            "12:3 error drainPolicies[1].name: it is missing; write 1 to 63 letters, digits, - _ and .",
            "12:16 warning drainPolicies[1].conditions[0]: KernelDeadlock is read from a log, and a \
             restart of node-problem-detector sets it to False; set clearAfter: never, so that only a person \
             uncordons the node",
        ]
    );
}

#[test]
fn what_has_not_the_shape_of_a_file_is_named_with_its_line() {
    for (text, words) in [
        ("", &["1:1", "the file is empty", "docs/config.md"][..]),
        ("# nothing\n---\n", &["the file is empty"]),
        ("[]", &["1:1", "it is a list", "write apiVersion, kind and the settings"]),
        ("just words", &["1:1", "a single value", "write apiVersion, kind and the settings"]),
        ("drainPolicies: [", &["bracket"]),
        ("drainPolices: []", &["1:1", "unknown key", "did you mean drainPolicies?"]),
        ("drainPolicies: {name: p}", &["1:16", "it is a mapping", "write a list"]),
        ("drainPolicies:\n- p", &["2:3", "a single value", "name and conditions"]),
        ("drainPolicies:\n- {conditions: [A]}", &["2:3", "name: it is missing"]),
        ("drainPolicies:\n- {name: p}", &["2:3", "conditions: it is missing", "KernelDeadlock"]),
        ("drainPolicies:\n- {name: p, conditions: }", &["2:13", "conditions: it is empty"]),
        (&with("atDeadline: Explode"), &["4:15", "Explode", "GiveUp, Uncordon, DeleteRest"]),
        (&with("atDeadline: giveUp"), &["4:15", "write GiveUp"]),
        (&with("groups: [{share: 300}]"), &["4:20", "\"300\" is not a valid number", "1 to 100"]),
        ("drainPolicies: []\n---\ndrainPolicies: []\n", &["2 documents; only one"]),
        ("drainPolicies:\n\t- name: p\n", &["2:", "YAML does not allow tabs"]),
    ] {
        // Without a setting, what every file has is not added.
        let found = if text.contains("drain") { said(text) } else { said_exactly(text) };
        let has_all = |it: &&String| words.iter().all(|word| it.contains(word));
        let it = found.iter().filter(|it| it.contains(" error ")).find(has_all);
        let it = it.unwrap_or_else(|| panic!("{text}: no {words:?} in: {found:?}"));
        assert!(!it.contains('\n'), "{it}");
    }
}

#[test]
fn a_file_of_another_kind_is_refused_in_words_that_help() {
    let other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n";
    let found = said_exactly(other);
    assert!(found[0].contains("1:13 error apiVersion: \"v1\" is not known; write"), "{found:?}");
    assert!(found[0].contains("this file looks like a Kubernetes resource"), "{found:?}");
    assert!(found[1].contains("\"ConfigMap\" is not known"), "{found:?}");
    let without = said_exactly("drainPolicies: []\n");
    assert_eq!(without.len(), 2, "{without:?}");
    assert!(without[1].contains("kind: it is missing; write kind: OstrakonConfiguration"));
}

#[test]
fn evictions_are_configured_by_rules_limits_and_a_breaker() {
    let settings = read_settings(EXAMPLE).unwrap();
    let minutes = |count: u64| Duration::from_secs(60 * count);
    let rule = TaintRule {
        name: "maintenance".into(),
        key: "maintenance.example.com/*".into(),
        value: Some("os".into()),
        method: TaintMethod::EvictThenDelete { after: minutes(5) },
        limit: Some(RateLimit { pods: 30, per: minutes(1), burst: 10 }),
    };
    assert_eq!(settings.taint_rules, [rule]);
    let defaults = Settings::default();
    assert_eq!(settings.limits, defaults.limits, "the example shows the defaults");
    assert_eq!((settings.breaker, settings.orphans), (defaults.breaker, defaults.orphans));
    assert_eq!(settings.zone_label, defaults.zone_label);

    let text = "taintEviction: {rules: [{name: a, method: Ignore}]}\norphans: Uncordon\nzoneLabel: z\n\
                limits: {cluster: {pods: 5}, zone: {pods: 2, per: 10s, burst: 1}, ramp: {enabled: false}}\n\
                breaker: {mode: Off, share: 50%, atLeast: 1, window: 1m, calm: 2m, trickle: 1s}\n";
    let settings = read_settings(&file(text)).unwrap();
    let all = &settings.taint_rules[0];
    assert_eq!((&*all.key, &all.value, all.method), ("*", &None, TaintMethod::Ignore));
    assert_eq!((settings.orphans, &*settings.zone_label), (Orphans::Uncordon, "z"));
    let second = Duration::from_secs(1);
    let cluster = RateLimit { pods: 5, per: second, burst: 5 };
    let zone = RateLimit { pods: 2, per: second * 10, burst: 1 };
    let limits = EvictionLimits { cluster: Some(cluster), zone: Some(zone), ramp: None };
    assert_eq!(settings.limits, limits);
    let breaker = BreakerRules {
        mode: BreakerMode::Off,
        share: 50,
        at_least: 1,
        window: minutes(1),
        calm: minutes(2),
        trickle: second,
    };
    assert_eq!(settings.breaker, breaker);
}

#[test]
fn each_mistake_in_the_settings_of_evictions_names_key_cause_and_remedy() {
    let rule = |fields: &str| format!("taintEviction: {{rules: [{{name: r, {fields}}}]}}");
    for (text, words) in [
        (rule("key: k"), "taintEviction.rules[0].method: it is missing; write Delete, Evict"),
        (rule("method: evict"), "taintEviction.rules[0].method: \"evict\" is not one of"),
        (rule("method: EvictThenDelete"), "rules[0].deleteAfter: it is missing; write a duration"),
        (
            rule("method: Evict, deleteAfter: 5m"),
            "deleteAfter: only method: EvictThenDelete uses it",
        ),
        (rule("method: EvictThenDelete, deleteAfter: x"), "deleteAfter: \"x\" is not a duration"),
        (rule("method: Evict, effect: NoSchedule"), "effect: \"NoSchedule\" evicts no pods; write"),
        (
            rule("method: Evict, key: 'a b'"),
            "rules[0].key: no taint has \"a b\"; write at most 317",
        ),
        (
            rule("method: Evict, value: 'a*'"),
            "rules[0].value: no taint has \"a*\"; write at most 63",
        ),
        (rule("method: Evict, limit: {per: 1m}"), "limit.pods: it is missing; write a number"),
        (
            rule("method: Evict, limit: {pods: 0}"),
            "limit.pods: it is 0; write a number of at least 1",
        ),
        (rule("method: Evict, limit: {pods: 1, per: 0s}"), "limit.per: it is less than 1s"),
        (
            "taintEviction: {rules: [{name: a, method: Evict}, {name: b, method: Evict}]}".into(),
            "rules[1]: an earlier rule matches every taint, so this one never applies",
        ),
        (
            "taintEviction: {rules: [{name: a, key: a, method: Evict}, {name: a, method: Evict}]}"
                .into(),
            "rules[1].name: another rule has this name",
        ),
        ("limits: {ramp: {share: 5}}".into(), "limits.ramp.share: \"5\" is not a valid percentage"),
        (
            "limits: {ramp: {share: 0%}}".into(),
            "limits.ramp.share: \"0%\" is not a valid percentage",
        ),
        ("limits: {ramp: {nodes: 0}}".into(), "limits.ramp.nodes: it is 0"),
        ("breaker: {mode: On}".into(), "breaker.mode: \"On\" is not one of Observe, Enforce, Off"),
        ("breaker: {share: 101%}".into(), "breaker.share: \"101%\" is not a valid percentage"),
        ("orphans: Drop".into(), "orphans: \"Drop\" is not one of Keep, Uncordon"),
        ("zoneLabel: 'a b'".into(), "zoneLabel: \"a b\" is not a valid label key"),
    ] {
        let found = problems(&text);
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        assert!(found[0].contains(words), "{text}: {}", found[0]);
    }
}

#[test]
fn hostile_files_cost_little_and_are_refused_in_words() {
    let big = vec![b'a'; 10 << 20];
    let reading = read(&big);
    assert_eq!(reading.problems.len(), 1);
    assert!(reading.problems[0].cause.contains("10485760 bytes"), "{reading:?}");
    assert!(
        read(file("\u{feff}drainPolicies: []").as_bytes()).usable().is_ok(),
        "a byte order mark is no harm"
    );
    assert!(
        read(
            "drainPolicies: []"
                .encode_utf16()
                .flat_map(u16::to_le_bytes)
                .collect::<Vec<_>>()
                .as_slice()
        )
        .usable()
        .is_err()
    );
    let mut many = String::from("drainPolicies:\n");
    for _ in 0..20_000 {
        many.push_str("- {name: '', conditions: [], x: 1}\n");
    }
    let found = said(&many);
    assert_eq!(found.len(), 101);
    assert!(found[100].contains("more problems follow; fix those above first"), "{}", found[100]);
    let keys: String = (0..40_000)
        .map(|n| format!("k{n}: 1\n"))
        .chain(vec!["k9: 1\n".to_owned(); 40_000])
        .collect();
    assert_eq!(said(&keys).len(), 101);
}

#[test]
fn anchors_and_merges_can_be_used() {
    let text = "drainPolicies:\n- &base\n  name: a\n  conditions: [Cool]\n  pace: {notice: 1m}\n\
                - <<: *base\n  name: b\n  nodeSelector: {pool: x}\n";
    let policies = read_policies(text).unwrap();
    assert_eq!((&*policies[1].name, policies[1].pace.notice), ("b", Duration::from_secs(60)));
}

#[test]
fn the_reader_and_the_schema_have_the_same_keys() {
    // Whatever a mapping may have is named where it has something else.
    let with_all = "drainPolicies:\n- name: p\n  conditions: [{type: Cool, x: 1}]\n  x: 1\n  pods:\n    \
                    x: 1\n    leaveControllers: [{kind: A, x: 1}]\n  pace:\n    x: 1\n    caps: [{limit: 1, x: 1}]\n    \
                    windows: [{x: 1}]\n  retry: {x: 1}\n  groups: [{share: 100, x: 1}]\nx: 1\n\
                    taintEviction:\n  x: 1\n  rules: [{name: r, method: Delete, x: 1}]\n\
                    limits: {x: 1, cluster: {pods: 1, x: 1}, ramp: {x: 1}}\nbreaker: {x: 1}\n";
    let mut read: Vec<String> = Vec::new();
    for problem in read_policies(with_all).unwrap_err() {
        let keys =
            problem.remedy.strip_prefix("remove it, or write one of ").expect(&problem.remedy);
        let (keys, _) = keys.split_once("; docs").expect(keys);
        read.extend(keys.split(", ").map(str::to_owned));
    }
    let mut published = Vec::new();
    properties(&schema(), &mut published);
    read.sort();
    published.sort();
    assert_eq!(read, published);
}

#[test]
fn ready_as_a_bad_condition_is_refused_unless_the_policy_says_that_it_is_meant() {
    for entry in ["'Ready=True,0s'", "{type: Ready, status: 'True', minAge: 1h}"] {
        let text =
            |more: &str| format!("drainPolicies: [{{name: p, conditions: [{entry}]{more}}}]");
        let found = problems(&text(""));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("conditions[0]: Ready=True makes every healthy node"),
            "{found:?}"
        );
        assert!(found[0].contains("allowMajority: true"), "{found:?}");
        assert_eq!(warned(&text(", allowMajority: true")), Vec::<String>::new());
        assert_eq!(problems(&text(", allowMajority: false")).len(), 1);
    }
    let bad = "drainPolicies: [{name: p, conditions: ['Ready=False,10m']}]";
    assert_eq!(warned(bad), Vec::<String>::new(), "what is not healthy is no matter");
}

#[test]
fn what_is_seldom_meant_is_warned_of() {
    assert_eq!(warned("drainPolicies: []"), Vec::<String>::new());
    let quiet = "drainPolicies: [{name: p, conditions: [{type: Cool, staleAfter: 15m}]}]";
    assert_eq!(warned(quiet), Vec::<String>::new());
    for (entry, words) in [
        ("conditions: ['Ready=Unknown,10m']", "not drained"),
        ("conditions: [KernelDeadlock]", "clearAfter: never"),
        ("conditions: [{type: Cool, staleAfter: 5m}]", "between two heartbeats"),
        ("conditions: [Cool], pace: {caps: []}", "no cap"),
        ("conditions: [Cool], maxGracePeriod: 8m", "more than 8m0s are cut short"),
        ("conditions: [Cool], atDeadline: DeleteRest", "even against a disruption budget"),
        ("conditions: [NotReady]", "no node has a condition NotReady: kubectl shows it"),
        ("conditions: [notready]", "write Ready=False,5m and Ready=Unknown,5m"),
        ("conditions: [OutOfDisk]", "since Kubernetes 1.13"),
        ("conditions: [SchedulingDisabled]", "remove it"),
        (
            "conditions: ['NetworkUnavailable=False,0s']",
            "every healthy node has NetworkUnavailable",
        ),
        ("conditions: ['KernelDeadlock=False,0s']", "every healthy node has KernelDeadlock=False"),
        ("conditions: [NetworkingReady]", "every healthy node has NetworkingReady=True"),
        ("conditions: [GPUHealthy]", "every healthy node has GPUHealthy=True"),
        ("conditions: [DrainScheduled]", "ostrakon itself sets DrainScheduled"),
        ("conditions: ['DrainScheduled=False,1h']", "ostrakon itself sets DrainScheduled"),
        ("conditions: [kernelDeadlock]", "write KernelDeadlock, unless"),
        ("conditions: [DiskPresure]", "write DiskPressure, unless"),
        ("conditions: [ReadOnlyFilesystem]", "write ReadonlyFilesystem, unless"),
        ("conditions: ['ready=False,5m']", "write Ready, unless"),
        ("conditions: [Cool], pace: {notice: 10000h}", "pace.notice: 10000h0m0s is 416 days"),
        ("conditions: [Cool], deadline: 200h", "deadline: 200h0m0s is 8 days"),
        ("conditions: [{type: Cool, minAge: 400h}]", "conditions[0].minAge: 400h0m0s is 16 days"),
        ("conditions: [Cool], pods: {leaveControllers: [{kind: daemonset}]}", "write DaemonSet"),
        (
            "conditions: [Cool], pods: {leaveControllers: [{kind: StatefulSets}]}",
            "write StatefulSet",
        ),
        ("conditions: [Cool], pods: {leaveControllers: [{kind: rocket}]}", "is in lower case"),
        (
            "conditions: [Cool], pods: {leaveControllers: [{kind: Deployment}]}",
            "pods.leaveControllers[0].kind: a Deployment does not own pods; its \
             ReplicaSet does; write ReplicaSet",
        ),
        (
            "conditions: [Cool], pods: {protectedAnnotations: ['a b']}",
            "is not a valid annotation key",
        ),
        ("conditions: [Cool], nodeLabelExpression: 'false'", "false for every node, so"),
        (
            "conditions: [Cool], nodeLabelExpression: \"metadata.labels.a == 'x' && metadata.labels.a == 'y'\"",
            "nodeLabelExpression: it is false for every node",
        ),
        (
            "conditions: [Cool], nodeSelector: {a: x}, nodeLabelExpression: \"metadata.labels.a == 'y'\"",
            "false for every node that nodeSelector selects",
        ),
        (
            "conditions: [Cool], nodeLabelExpression: \"metadata.labels.a != 'x' || metadata.labels.a != 'y'\"",
            "it is true for every node",
        ),
        (
            "conditions: [Cool], nodeLabelExpression: \"!('a b' in metadata.labels) && 'c' in metadata.labels\"",
            "\"a b\" is not a valid label key",
        ),
    ] {
        let found = warned(&format!("drainPolicies: [{{name: p, {entry}}}]"));
        assert_eq!(found.len(), 1, "{entry}: {found:?}");
        let starts = found[0].starts_with("policy \"p\", ");
        assert!(starts && found[0].contains(words), "{entry}: {}", found[0]);
    }
    for quiet in [
        "conditions: [{type: KernelDeadlock, clearAfter: never}]",
        "drain: false, atDeadline: DeleteRest, conditions: ['Ready=Unknown,10m'], maxGracePeriod: 8m",
        "conditions: ['Ready=False,5m', MemoryPressure, KubeletUnhealthy, GPUProblem, kernel-issue]",
        "conditions: ['KernelReady=False,5m', 'GPUHealthy=False,5m']",
        "conditions: [Cool], nodeLabelExpression: 'true'",
        "conditions: [Cool], pods: {leaveControllers: [{kind: Rollout}, {kind: Whatever}]}",
        "conditions: [Cool], pace: {notice: 168h}",
    ] {
        let found = warned(&format!("drainPolicies: [{{name: p, {quiet}}}]"));
        assert_eq!(found, Vec::<String>::new(), "{quiet}");
    }
}

#[test]
fn a_warning_has_the_place_of_what_it_is_about() {
    let text = "drainPolicies:\n- name: p\n  conditions:\n  - Ready\n  - NotReady\n  pace:\n    \
                notice: 10000h\n";
    let found = said(text);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(
        found[1].starts_with("5:5 warning drainPolicies[0].conditions[1]: no node has"),
        "{found:?}"
    );
    assert!(found[2].starts_with("7:5 warning drainPolicies[0].pace.notice: "), "{found:?}");
}

#[test]
fn a_policy_that_another_shadows_is_warned_of() {
    let policy = |name: &str, rest: &str| format!("- {{name: {name}{rest}}}\n");
    let (cool, pool) = (", conditions: [Cool]", ", nodeSelector: {pool: a}");
    let whole = "policy \"b\": it is never used: policy \"a\" comes first, selects all its nodes";
    let part = "policy \"b\", conditions: policy \"a\" comes first, selects the same nodes";
    for (first, second, words) in [
        (cool.to_owned(), cool.to_owned(), Some(whole)),
        (format!("{cool}{pool}"), format!("{cool}{pool}"), Some(whole)),
        (cool.to_owned(), format!("{cool}{pool}"), Some(whole)),
        (format!("{cool}{pool}"), cool.to_owned(), None),
        (format!("{cool}{pool}"), format!("{cool}, nodeSelector: {{pool: b}}"), None),
        (format!("{cool}, nodeLabelExpression: 'true'"), format!("{cool}{pool}"), Some(whole)),
        (
            format!("{cool}, nodeLabelExpression: \"metadata.labels.a == 'x'\""),
            format!(
                "{cool}, nodeLabelExpression: \"'b' in metadata.labels && metadata.labels.a == 'x'\""
            ),
            Some(whole),
        ),
        (
            format!("{cool}, nodeLabelExpression: \"metadata.labels.pool != 'b'\""),
            format!("{cool}{pool}"),
            Some(whole),
        ),
        (", conditions: [Cool, Rad]".to_owned(), cool.to_owned(), Some(whole)),
        (cool.to_owned(), ", conditions: [Cool, Rad]".to_owned(), Some(part)),
        (cool.to_owned(), ", conditions: [Rad]".to_owned(), None),
        (cool.to_owned(), ", conditions: ['Cool=True,10m']".to_owned(), Some(whole)),
        (", conditions: ['Cool=True,10m']".to_owned(), cool.to_owned(), None),
        (", conditions: [{type: Cool, staleAfter: 15m}]".to_owned(), cool.to_owned(), None),
    ] {
        let text = format!("drainPolicies:\n{}{}", policy("a", &first), policy("b", &second));
        let found = warned(&text);
        assert_eq!(found.len(), usize::from(words.is_some()), "{text}: {found:?}");
        assert!(found.iter().all(|it| it.starts_with(words.unwrap())), "{text}: {found:?}");
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
