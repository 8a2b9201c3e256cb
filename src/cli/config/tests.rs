//! What a file means, and what draino's arguments become.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::config::{API_VERSION, KIND, Reading, read_settings};
use crate::drain::{GroupKind, Limit, NodeSelector, PodRules, Policy, Undrainable};
use crate::model::build::noon;

mod corpus;

fn from_draino(arguments: &[&str]) -> Migration {
    let arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    of_arguments(&arguments)
}

/// What was not converted.
fn lost(migration: &Migration) -> Vec<&str> {
    migration.notes.iter().map(|note| note.what.as_str()).collect()
}

/// The one policy of a file that was made. It must be usable.
fn only(migration: &Migration) -> Policy {
    let file = &migration.file;
    let read = read_settings(file).unwrap_or_else(|errors| panic!("{errors:?}\n{file}"));
    let [policy] = &read.policies[..] else { panic!("{file}") };
    policy.clone()
}

/// The one policy that draino's arguments become, by way of the file, with nothing lost.
fn policy(arguments: &[&str]) -> Policy {
    let migration = from_draino(arguments);
    assert_eq!(lost(&migration), Vec::<&str>::new(), "{}", migration.file);
    only(&migration)
}

#[test]
fn a_draino_for_healthy_nodes_becomes_a_file_that_says_so() {
    assert!(policy(&["Ready=True,0s"]).allow_majority);
    assert!(!policy(&["Ready=False,0s"]).allow_majority);
}

#[test]
fn the_defaults_of_draino_become_settings() {
    let policy = policy(&["KernelDeadlock"]);
    assert_eq!(policy.conditions[0].to_string(), "KernelDeadlock=True,0s");
    assert_eq!(policy.nodes, NodeSelector::default());
    assert_eq!(policy.pods, PodRules::default());
    assert_eq!(policy.pace.notice, Duration::from_secs(11));
    assert_eq!(policy.pace.spacing, Duration::from_secs(600));
    assert_eq!(policy.pace.caps, []);
    assert_eq!(policy.max_grace, Some(Duration::from_secs(480)));
    assert_eq!(policy.headroom, Duration::from_secs(30));
    assert_eq!(policy.deadline, Some(Duration::from_secs(510)));
    assert_eq!(policy.undrainable, Undrainable::DrainRest);
    assert!(policy.drain);
}

#[test]
fn every_argument_of_draino_becomes_a_setting() {
    let policy = policy(&[
        "--node-label-expr",
        "metadata.labels['it\\'s'] == \"a\" or metadata.labels.b matches '^\\\\d: #$'",
        "--max-grace-period=1m",
        "--eviction-headroom=14s",
        "--drain-buffer=1h30m",
        "--skip-drain",
        "--evict-daemonset-pods",
        "--evict-statefulset-pods",
        "--evict-emptydir-pods",
        "--evict-unreplicated-pods",
        "--protected-pod-annotation=keep",
        "--protected-pod-annotation=a: b=#c",
        "OutOfDisk",
        "Ready=Unknown,30m",
    ]);
    let rules: Vec<_> = policy.conditions.iter().map(ToString::to_string).collect();
    assert_eq!(rules, ["OutOfDisk=True,0s", "Ready=Unknown,30m0s"]);
    let expression =
        "metadata.labels['it\\'s'] == 'a' || metadata.labels['b'] matches '^\\\\d: #$'";
    assert_eq!(policy.nodes.expression.to_string(), expression);
    assert_eq!(policy.max_grace, Some(Duration::from_secs(60)));
    assert_eq!(policy.deadline, Some(Duration::from_secs(74)));
    assert_eq!(policy.pace.spacing, Duration::from_secs(5400));
    assert!(!policy.drain);
    let pods = &policy.pods;
    assert!(pods.evict_daemonset && pods.evict_statefulset);
    assert!(pods.evict_local_storage && pods.evict_unreplicated);
    assert_eq!(&*pods.protections[1].key, "a: b");
    assert_eq!(pods.protections[1].value.as_deref(), Some("#c"));
}

#[test]
fn labels_of_draino_become_an_expression() {
    let policy = policy(&["--node-label=foo=bar", "--node-label", "baz=", "A"]);
    let expression = "'baz' in metadata.labels && metadata.labels['foo'] == 'bar'";
    assert_eq!(policy.nodes.expression.to_string(), expression);
}

#[test]
fn of_a_condition_that_is_given_twice_the_lower_age_counts() {
    let policy = policy(&["A=True,10m", "B", "A=True,5m", "A=False,1m"]);
    let rules: Vec<_> = policy.conditions.iter().map(ToString::to_string).collect();
    assert_eq!(rules, ["A=True,5m0s", "B=True,0s", "A=False,1m0s"]);
}

#[test]
fn what_is_no_policy_is_said_in_a_comment() {
    let migration = from_draino(&["--namespace=x", "--listen=:1", "A"]);
    let file = &migration.file;
    assert!(file.contains("# Not set in this file: --listen (argument 2); run with"), "{file}");
    assert!(file.contains("# Not set in this file: --namespace (argument 1); "), "{file}");
    assert!(!file.contains("--master"), "{file}");
    assert!(file.lines().all(|line| line.len() <= 100 && line.trim_end() == line), "{file}");
    assert_eq!(lost(&migration), Vec::<&str>::new());
}

#[test]
fn every_setting_says_where_it_came_from() {
    let file = from_draino(&[
        "/draino",
        "--drain-buffer=5m",
        "--evict-emptydir-pods",
        "--node-label=a=b",
        "--protected-pod-annotation=keep",
        "--max-grace-period=1m",
        "--eviction-headroom=1m",
        "--skip-drain",
        "A",
    ])
    .file;
    for line in [
        "    spacing: 5m0s # --drain-buffer, argument 2",
        "      evictEmptyDir: true # --evict-emptydir-pods, argument 3",
        "      evictDaemonSet: false # draino's default",
        "    nodeLabelExpression: \"metadata.labels['a'] == 'b'\" # --node-label, argument 4",
        "        - \"keep\" # --protected-pod-annotation, argument 5",
        "    maxGracePeriod: 1m0s # --max-grace-period, argument 6",
        "    headroom: 1m0s # --eviction-headroom, argument 7",
        "    drain: false # --skip-drain, argument 8",
        "      - \"A=True,0s\" # argument 9",
        "      notice: 11s # draino's default",
    ] {
        assert!(file.contains(line), "no {line:?} in:\n{file}");
    }
}

#[test]
fn what_is_not_converted_is_a_comment_and_a_warning_and_the_rest_goes_on() {
    for (arguments, what, why) in [
        (&["Ready=Unknown", "A"][..], "condition \"Ready=Unknown\"", "column 14: the minimum age"),
        (&["Ready", "A"], "condition \"Ready\"", "every healthy node would be bad"),
        (&["Ready=Unknown,garbage", "A"], "condition", "\"garbage\" is not a duration"),
        (&["A=True"], "A=True", "here it is 0s"),
        (&["--drain-buffer=10", "A"], "--drain-buffer=10", "it is not a duration"),
        (&["--max-grace-period=0s", "A"], "--max-grace-period", "less than 1s"),
        (&["--protected-pod-annotation==x", "A"], "--protected-pod-annotation", "key is missing"),
        (&["--dry-run", "A"], "--dry-run", "this policy only cordons, one node at a time"),
        (&["--help", "A"], "--help", "it does not configure anything"),
        (&["--nonsense", "A"], "--nonsense", "no known draino has this flag"),
        (
            &["--allow-force-delete", "A"],
            "--allow-force-delete of getamis' draino",
            "the grace period",
        ),
        (&["--max-notready-nodes=5", "A"], "--max-notready-nodes of DataDog's draino", "pace.caps"),
        (
            &["--node-label=a=b", "--node-label-expr='a' == 'b'", "A"],
            "--node-label-expr",
            "only one of",
        ),
        (&["--node-conditions=A,B"], "A,B", "here it is read as several"),
    ] {
        let migration = from_draino(arguments);
        let note = migration.notes.iter().find(|note| note.what.starts_with(what));
        let note = note.unwrap_or_else(|| panic!("{arguments:?}: {:?}", migration.notes));
        assert!(note.why.contains(why), "{arguments:?}: {note:?}");
        assert!(note.origin.starts_with("argument "), "{note:?}");
        assert!(migration.file.contains("\n# Not converted: "), "{}", migration.file);
        let _ = only(&migration);
    }
}

#[test]
fn an_expression_that_cannot_be_converted_selects_no_node() {
    for arguments in [
        &["--node-label=foo", "A"][..],
        &["--node-label=a=b", "--node-label=a=c", "A"],
        &["--node-label-expr=metadata.labels.a", "A"],
        &["--node-label-expr=node-role.kubernetes.io/worker", "A"],
    ] {
        let migration = from_draino(arguments);
        assert_eq!(migration.notes.len(), 1, "{arguments:?}: {:?}", migration.notes);
        assert!(migration.notes[0].why.contains("selects no node"), "{:?}", migration.notes);
        let policy = only(&migration);
        assert_eq!(policy.nodes.expression.always(&[]), Some(false), "{arguments:?}");
    }
}

#[test]
fn a_dry_run_becomes_a_policy_that_only_cordons_and_one_node_at_a_time() {
    let policy = only(&from_draino(&["--dry-run", "A"]));
    assert!(!policy.drain);
    assert_eq!(policy.pace.caps.len(), 1);
    assert_eq!(policy.pace.caps[0].limit, Limit::Count(1));
    let off = self::policy(&["--dry-run=false", "A"]);
    assert!(off.drain && off.pace.caps.is_empty());
}

#[test]
fn flags_of_datadog_become_settings_where_they_have_a_counterpart() {
    let policy = policy(&[
        "--node-conditions=A",
        "--node-conditions",
        "B={\"delay\":\"6h\",\"conditionStatus\":\"False\"}",
        "--do-not-evict-pod-controlled-by=DaemonSet",
        "--do-not-evict-pod-controlled-by=StatefulSets.apps.v1,Rollout.v1alpha1.argoproj.io",
        "--do-not-evict-pod-controlled-by=ExtendedDaemonSetReplicaSet",
        "--max-simultaneous-cordon=15%",
        "--max-simultaneous-cordon-for-labels=3,app",
        "--max-drain-attempts-before-fail=7",
        "--retry-backoff-delay=23m",
        "--min-eviction-timeout=10m",
        "--eviction-headroom=10s",
        "--wait-before-draining=30s",
        "--evict-emptydir-pods=true",
        "--leader-elect-id=x",
    ]);
    let rules: Vec<_> = policy.conditions.iter().map(ToString::to_string).collect();
    assert_eq!(rules, ["A=True,0s", "B=False,6h0m0s"]);
    let pods = &policy.pods;
    assert!(!pods.evict_daemonset && !pods.evict_statefulset && pods.evict_local_storage);
    assert!(pods.evict_unreplicated, "no empty kind is named");
    let kind = |group: Option<&str>, kind: &str| GroupKind {
        group: group.map(Into::into),
        kind: kind.into(),
    };
    let kinds = [kind(Some("argoproj.io"), "Rollout"), kind(None, "ExtendedDaemonSetReplicaSet")];
    assert_eq!(pods.left_controllers, kinds);
    let limits: Vec<_> = policy.pace.caps.iter().map(|cap| cap.limit).collect();
    assert_eq!(limits, [Limit::Percent(15), Limit::Count(3)]);
    assert_eq!((policy.retry.attempts, policy.retry.first), (7, Duration::from_secs(1380)));
    assert_eq!((policy.max_grace, policy.deadline), (None, None));
    assert_eq!(policy.headroom, Duration::from_secs(610));
    assert_eq!(policy.pace.notice, Duration::from_secs(30));
}

#[test]
fn getamis_has_other_defaults_and_ignores_safe_to_evict_when_told() {
    let policy = policy(&["--ignore-safe-to-evict-annotation", "A"]);
    assert!(!policy.pods.honour_safe_to_evict);
    assert_eq!(policy.max_grace, Some(Duration::from_secs(60)));
    assert_eq!(policy.headroom, Duration::from_secs(600));
}

#[test]
fn without_a_condition_there_is_no_file() {
    for arguments in [&[][..], &["--debug"], &["Ready"], &["/draino"]] {
        let migration = from_draino(arguments);
        assert_eq!(migration.file, "", "{arguments:?}");
        let last = migration.notes.last().unwrap();
        assert!(last.why.contains("there is no condition"), "{last:?}");
    }
}

#[test]
fn a_file_is_summed_up_in_words_with_what_is_seldom_meant() {
    let text = include_str!("../../../docs/config.example.yaml");
    let summary = check::report("FILE", &read(text.as_bytes()), false, noon()).unwrap();
    let expected = "\
FILE can be used: 2 drain policies

evictions
  taint     maintenance.example.com/*=os (rule maintenance): pods are evicted when their budgets allow it, and \
deleted 5m0s after the deadline, at most 30 pods in 1m0s, 10 at once
  taint     every other taint: pods are deleted
  ramp      10 nodes, or 5% if that is more, at full speed within 10m0s; then a node every 1s
  breaker   is only reported when more than 30% of the nodes, and more than 5, have due pods within 10m0s
  orphans   nodes of a policy that is gone stay cordoned, and are reported

gpu
  nodes     example.com/pool is gpu, and !('example.com/keep' in metadata.labels)
  bad       GpuFallenOffTheBus is True; never clears by itself
  bad       GpuThrottled is True for 10m0s; clears after 30m0s; ignored after 15m0s without a \
heartbeat
  cordon    at once, while at most 2 of all nodes and 1 of the nodes with the same \
topology.kubernetes.io/zone are unavailable
  drain     10s after the cordon, and 1h0m0s after the previous drain started
  windows   1 window, opens 2026-01-01T21:00:00Z
  pods      all are evicted except those of a DaemonSet, of a StatefulSet, with an emptyDir, without a \
controller, marked as not safe to evict for cluster-autoscaler
  deadline  2h0m0s, then the node stays cordoned
  retry     8 attempts, after 10m0s to 2h0m0s

default
  nodes     all
  bad       KernelDeadlock is True; clears after 5m0s
  bad       KubeletUnhealthy is True; clears after 5m0s
  cordon    at once, while at most 25% of all nodes are unavailable
  drain     10s after the cordon, and 10m0s after the previous drain started
  pods      all are evicted except those of a DaemonSet, of a StatefulSet, with an emptyDir, without a \
controller, marked as not safe to evict for cluster-autoscaler
  deadline  the longest grace period of the node's pods plus 10m0s, at most 4h10m0s, then the node stays cordoned
  retry     8 attempts, after 10m0s to 2h0m0s

FILE:59:5: warning: policy \"gpu\", maxGracePeriod: grace periods of more than 1h0m0s are cut \
short; leave it out to give each pod its own grace period
FILE:76:9: warning: policy \"default\", conditions[0]: KernelDeadlock is read from a log, and a \
restart of node-problem-detector sets it to False; set clearAfter: never, so that only a person \
uncordons the node
";
    assert_eq!(summary, expected);
}

/// A file with these settings.
fn read_file(settings: &str) -> Reading {
    read(format!("{settings}\napiVersion: {API_VERSION}\nkind: {KIND}\n").as_bytes())
}

#[test]
fn warnings_are_errors_where_strictness_is_asked_for() {
    let warned = read_file("drainPolicies: [{name: p, conditions: [NotReady]}]");
    assert!(check::report("F", &warned, false, noon()).is_ok());
    let strict = check::report("F", &warned, true, noon()).unwrap_err();
    assert!(
        strict.starts_with("F cannot be used: 1 error\nF:1:40: error: policy \"p\""),
        "{strict}"
    );
    let both = read_file("drainPolicies: [{name: p, conditions: [NotReady], headroom: x}]");
    let report = check::report("F", &both, false, noon()).unwrap_err();
    assert!(report.starts_with("F cannot be used: 1 error and 1 warning\n"), "{report}");
    assert_eq!(report.lines().count(), 3, "{report}");
    let clean = read_file("drainPolicies: [{name: p, conditions: [Cool]}]");
    assert!(check::report("F", &clean, true, noon()).is_ok());
}

#[test]
fn a_program_reads_every_problem_with_its_place() {
    let reading = read_file("drainPolicies: [{name: p, conditions: [NotReady], headroom: x}]");
    let json = check::json("F", &reading, false, noon());
    assert_eq!((&json["usable"], &json["file"]), (&false.into(), &"F".into()));
    let problem = &json["problems"][1];
    assert_eq!(problem["severity"], "error");
    assert_eq!((&problem["line"], &problem["column"]), (&1.into(), &61.into()));
    assert_eq!(problem["path"], "drainPolicies[0].headroom");
    assert_eq!(problem["cause"], "\"x\" is not a duration");
    assert_eq!(json["problems"][0]["severity"], "warning");
    assert_eq!(json["policies"].as_array().unwrap().len(), 0, "what cannot be used means nothing");
    let reading = read_file("drainPolicies: [{name: p, conditions: [Cool]}]");
    let json = check::json("F", &reading, true, noon());
    assert_eq!((&json["usable"], &json["policies"][0]["name"]), (&true.into(), &"p".into()));
}

proptest! {
    /// Whatever stands in an argument, YAML reads it as it was.
    #[test]
    fn texts_pass_through_the_file_unchanged(text in "(?s:.){0,20}|[\\x00-\\xa0\u{2028}\u{2029}\u{feff}\u{fffe}]{1,8}") {
        let annotation = format!("--protected-pod-annotation=key={text}");
        let policy = policy(&[&annotation, "A"]);
        prop_assert_eq!(policy.pods.protections[0].value.as_deref(), Some(text.as_str()));
    }
}
