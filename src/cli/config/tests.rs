//! What a file means, and what draino's arguments become.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::drain::{PodRules, Undrainable};
use crate::model::build::noon;

fn from_draino(arguments: &[&str]) -> Result<String, String> {
    let arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    migrate::file(&draino::parse(&arguments)?)
}

/// The one policy that draino's arguments become, by way of the file.
fn policy(arguments: &[&str]) -> Policy {
    let file = from_draino(arguments).unwrap();
    let mut policies = read_policies(&file).unwrap_or_else(|error| panic!("{error}\n{file}"));
    assert_eq!(policies.len(), 1);
    policies.remove(0)
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
    let file = from_draino(&["--namespace=x", "--listen=:1", "A"]).unwrap();
    assert!(file.contains("# Not a part of this file: --listen; run with --listen"), "{file}");
    assert!(file.contains("# Not a part of this file: --namespace; "), "{file}");
    assert!(!file.contains("--master"), "{file}");
    assert!(file.lines().all(|line| line.len() <= 100 && line.trim_end() == line), "{file}");
}

#[test]
fn arguments_that_draino_takes_wrongly_are_refused() {
    for (arguments, words) in [
        (&[][..], "there are no conditions; name at least one"),
        (&["Ready"], "every healthy node would be bad"),
        (&["Ready=Unknown"], "column 14: the minimum age is missing"),
        (&["Ready=Unknown,garbage"], "\"garbage\" is no duration"),
        (&["--node-label=foo", "A"], "--node-label: \"foo\", column 4: there is no ="),
        (&["--node-label=a=b", "--node-label=a=c", "A"], "no node has both"),
        (&["--node-label=a=b", "--node-label-expr='a' == 'b'", "A"], "exclude each other"),
        (&["--node-label-expr=metadata.labels.a", "A"], "neither true nor false"),
        (&["--drain-buffer=10", "A"], "--drain-buffer: \"10\" is no duration"),
        (&["--max-grace-period=0s", "A"], "--max-grace-period is less than a second"),
        (&["--protected-pod-annotation==x", "A"], "the key is missing"),
        (&["--dry-run", "A"], "`ostrakon run` would drain"),
        (&["--help"], "--help makes no policy"),
        (&["--nonsense", "A"], "draino has no flag --nonsense"),
    ] {
        let error = from_draino(arguments).unwrap_err();
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
    let error = from_draino(&["Ready", "--drain-buffer=x"]).unwrap_err();
    assert!(error.contains("Ready alone") && error.contains("; also --drain-buffer"), "{error}");
}

#[test]
fn a_file_is_summed_up_with_what_is_seldom_meant() {
    let text = include_str!("../../../docs/config.example.yaml");
    let summary = summary("FILE", &read_policies(text).unwrap(), noon());
    let expected = "\
FILE can be used: 2 drain policies

gpu
  nodes       example.com/pool=gpu, !('example.com/keep' in metadata.labels)
  bad         GpuFallenOffTheBus=True,0s; never over by itself
  bad         GpuThrottled=True,10m0s; over after 30m0s, stale after 15m0s
  out of use  2 of all nodes, 1 per topology.kubernetes.io/zone
  drain       10s after the cordon, 1h0m0s after another
  windows     1 window, opens 2026-01-01T21:00:00Z
  deadline    2h0m0s, then GiveUp

default
  nodes       all
  bad         KernelDeadlock=True,0s; over after 5m0s
  bad         KubeletUnhealthy=True,0s; over after 5m0s
  out of use  25% of all nodes
  drain       10s after the cordon, 10m0s after another
  deadline    longest grace and 10m0s, at most 4h10m0s, then GiveUp

warning: policy \"gpu\": pods that ask for more than 1h0m0s to end are cut short
warning: policy \"default\": KernelDeadlock is read from a log, and a restart of \
node-problem-detector sets it to False; with clearAfter: never only a person brings the node back
";
    assert_eq!(summary, expected);
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
