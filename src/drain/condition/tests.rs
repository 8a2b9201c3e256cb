//! The case tables of draino, and what its parser lets through.

use proptest::prelude::*;

use super::*;
use crate::model::Condition;
use crate::model::build::{at, noon, stamp};

const MINUTE: i64 = 60;

fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

fn condition(text: &str, since: Option<i64>) -> Condition {
    let (kind, status) = text.split_once('=').unwrap();
    Condition {
        kind: Arc::from(kind),
        status: ConditionStatus::parse(status).unwrap(),
        since: since.map(stamp),
        heartbeat: None,
        reason: Arc::from("Test"),
    }
}

fn node(conditions: &[Condition]) -> NodeDrainFacts {
    NodeDrainFacts { conditions: conditions.into(), ..NodeDrainFacts::default() }
}

fn rule(text: &str) -> ConditionRule {
    ConditionRule::parse(text).unwrap()
}

/// Those of the rules that are bad at noon, as text.
fn bad(has: &[Condition], rules: &[&str]) -> Vec<String> {
    let node = node(has);
    let bad = rules.iter().map(|text| rule(text));
    let bad = bad.filter(|rule| rule.judge(&node, noon()) == Holding::Bad);
    bad.map(|rule| rule.to_string()).collect()
}

#[test]
fn offending_conditions_are_those_of_draino() {
    type Has<'a> = &'a [(&'a str, Option<i64>)];
    let old = Some(-3600);
    let cases: &[(&str, Has<'_>, &[&str], &[&str])] = &[
        ("single match", &[("Cool=True", old)], &["Cool"], &["Cool=True,0s"]),
        (
            "many, in the order of the rules",
            &[("Rad=True", old), ("Cool=True", old)],
            &["Cool", "Rad"],
            &["Cool=True,0s", "Rad=True,0s"],
        ),
        (
            "partly matching",
            &[("Cool=True", old), ("Rad=False", old)],
            &["Cool", "Rad"],
            &["Cool=True,0s"],
        ),
        ("partly absent", &[("Rad=True", old)], &["Cool", "Rad"], &["Rad=True,0s"]),
        ("single false", &[("Cool=False", old)], &["Cool"], &[]),
        ("node has none", &[], &["Cool"], &[]),
        ("nothing configured", &[("Cool=False", old)], &[], &[]),
        ("new form", &[("Cool=Unknown", None)], &["Cool=Unknown,10m"], &["Cool=Unknown,10m0s"]),
        ("too young", &[("Cool=Unknown", Some(-9 * MINUTE))], &["Cool=Unknown,10m"], &[]),
        (
            "old enough",
            &[("Cool=Unknown", Some(-15 * MINUTE))],
            &["Cool=Unknown,14m"],
            &["Cool=Unknown,14m0s"],
        ),
    ];
    for (name, has, rules, expected) in cases {
        let has: Vec<_> = has.iter().map(|(text, since)| condition(text, *since)).collect();
        assert_eq!(bad(&has, rules), *expected, "{name}");
    }
}

#[test]
fn a_young_condition_is_bad_at_the_very_moment_it_is_old_enough() {
    let rule = rule("Cool=True,10m");
    let node = node(&[condition("Cool=True", Some(-9 * MINUTE))]);
    let then = at(MINUTE);
    assert_eq!(rule.judge(&node, noon()), Holding::Young { at: then });
    assert_eq!(rule.looks_again_at(&node, noon()), Some(then));
    assert_eq!(rule.judge(&node, then), Holding::Bad);
    assert_eq!(rule.looks_again_at(&node, then), None);
}

#[test]
fn an_absent_condition_is_neither_bad_nor_over() {
    let rule = rule("Cool");
    let node = node(&[condition("Rad=True", None)]);
    assert_eq!(rule.judge(&node, noon()), Holding::Absent);
    assert_eq!(rule.over_from(Holding::Absent), None);
    assert_eq!(rule.looks_again_at(&node, noon()), None);
}

#[test]
fn a_condition_is_over_once_it_was_good_for_long_enough() {
    let rule = rule("Cool");
    let node = node(&[condition("Cool=False", Some(-MINUTE))]);
    let holding = rule.judge(&node, noon());
    assert_eq!(holding, Holding::Other { since: Some(stamp(-MINUTE)) });
    assert_eq!(rule.over_from(holding), Some(at(4 * MINUTE)));
    assert_eq!(rule.looks_again_at(&node, noon()), Some(at(4 * MINUTE)));
    assert_eq!(rule.looks_again_at(&node, at(4 * MINUTE)), None);
}

/// A condition as the API stores it, of something that happened at noon and some milliseconds.
fn stored(text: &str) -> NodeDrainFacts {
    node(&[Condition {
        since: Some(Stamp::of_second(noon())),
        heartbeat: Some(Stamp::of_second(noon())),
        ..condition(text, None)
    }])
}

#[test]
fn no_age_of_a_condition_is_reached_before_the_end_of_the_second_that_is_stored() {
    let minute = Some(Duration::from_secs(60));
    let rule = ConditionRule { min_age: minutes(1), clear_after: minute, ..rule("Cool") };
    let rule = ConditionRule { stale_after: Some(minutes(2)), ..rule };
    let end = |seconds: i64| Stamp::of_second(at(seconds)).latest();
    assert_eq!(rule.judge(&stored("Cool=True"), at(60)), Holding::Young { at: end(60) });
    assert_eq!(rule.judge(&stored("Cool=True"), end(60)), Holding::Bad);
    let good = rule.judge(&stored("Cool=False"), at(60));
    assert_eq!(rule.over_from(good), Some(end(60)));
    assert_ne!(rule.judge(&stored("Cool=True"), at(120)), Holding::Stale);
    assert_eq!(rule.judge(&stored("Cool=True"), end(120)), Holding::Stale);
}

#[test]
fn a_minimum_age_of_nothing_is_reached_at_once_and_so_is_a_time_to_clear() {
    let rule = ConditionRule { clear_after: Some(Duration::ZERO), ..rule("Cool") };
    let rule = ConditionRule { min_age: Duration::ZERO, ..rule };
    assert_eq!(rule.judge(&stored("Cool=True"), noon()), Holding::Bad);
    let good = rule.judge(&stored("Cool=False"), noon());
    assert!(rule.over_from(good).is_some_and(|at| at <= noon()));
}

#[test]
fn a_condition_from_the_future_grows_older_from_when_it_was_seen_first() {
    let rule = ConditionRule { min_age: minutes(1), stale_after: Some(minutes(2)), ..rule("Cool") };
    let far = Some(Stamp::of_second(at(2_000_000_000)));
    let reported =
        || node(&[Condition { since: far, heartbeat: far, ..condition("Cool=True", None) }]);
    let mut first = reported();
    first.seen_at(noon(), None);
    let mut again = reported();
    again.seen_at(at(60), Some(&first));
    assert_eq!(again, first);
    assert_eq!(rule.judge(&again, at(59)), Holding::Young { at: at(60) });
    assert_eq!(rule.judge(&again, at(60)), Holding::Bad);
    assert_eq!(rule.judge(&again, at(120)), Holding::Stale);
}

#[test]
fn without_a_transition_time_it_was_good_for_ever() {
    let holding = rule("Cool").judge(&node(&[condition("Cool=False", None)]), noon());
    assert_eq!(holding, Holding::Other { since: None });
    assert!(rule("Cool").over_from(holding).unwrap() < noon());
}

#[test]
fn a_latched_condition_is_never_over_by_itself() {
    let rule = ConditionRule { clear_after: None, ..rule("Cool") };
    let node = node(&[condition("Cool=False", Some(-90 * 24 * 3600))]);
    let holding = rule.judge(&node, noon());
    assert_eq!(holding, Holding::Other { since: Some(stamp(-90 * 24 * 3600)) });
    assert_eq!(rule.over_from(holding), None);
    assert_eq!(rule.looks_again_at(&node, noon()), None);
}

#[test]
fn what_is_bad_or_young_is_not_over() {
    for holding in [Holding::Bad, Holding::Young { at: noon() }, Holding::Stale] {
        assert_eq!(rule("Cool").over_from(holding), None);
    }
}

#[test]
fn unknown_is_no_cure() {
    let unknown = node(&[condition("Cool=Unknown", None)]);
    assert_eq!(rule("Cool").judge(&unknown, noon()), Holding::Stale);
    assert_eq!(rule("Cool=False,0s").judge(&unknown, noon()), Holding::Stale);
    assert_eq!(rule("Cool=Unknown,0s").judge(&unknown, noon()), Holding::Bad);
}

#[test]
fn an_old_heartbeat_is_not_trusted_either_way() {
    let rule = ConditionRule { stale_after: Some(minutes(15)), ..rule("Cool") };
    for status in ["Cool=True", "Cool=False"] {
        let heard = |minutes: Option<i64>| {
            let heartbeat = minutes.map(|minutes| stamp(-minutes * MINUTE));
            node(&[Condition { heartbeat, ..condition(status, Some(-3600)) }])
        };
        assert_ne!(rule.judge(&heard(Some(14)), noon()), Holding::Stale);
        assert_eq!(rule.looks_again_at(&heard(Some(14)), noon()), Some(at(MINUTE)));
        for stale in [heard(Some(15)), heard(Some(60)), heard(None)] {
            assert_eq!(rule.judge(&stale, noon()), Holding::Stale);
            assert_eq!(rule.looks_again_at(&stale, noon()), None);
        }
    }
}

#[test]
fn ages_beyond_all_time_are_never_reached() {
    let rule = ConditionRule { min_age: Duration::MAX, ..rule("Cool") };
    let node = node(&[condition("Cool=True", Some(0))]);
    assert_eq!(rule.judge(&node, noon()), Holding::Young { at: Timestamp::MAX });
}

#[test]
fn arguments_of_draino_are_read() {
    let read = |text| {
        let rule = rule(text);
        (rule.kind.to_string(), rule.status, rule.min_age)
    };
    assert_eq!(read("OutOfDisk"), ("OutOfDisk".into(), ConditionStatus::True, Duration::ZERO));
    let expected = ("OutOfDisk".into(), ConditionStatus::True, minutes(10));
    assert_eq!(read("OutOfDisk=True,10m"), expected);
    let expected = ("Ready".into(), ConditionStatus::Unknown, minutes(30));
    assert_eq!(read("Ready=Unknown,30m"), expected);
    assert_eq!(rule("Ready=True,0s").status, ConditionStatus::True);
    let defaults = rule("example.com/Odd_type-1=False,1h30m0s");
    assert_eq!(defaults.clear_after, Some(minutes(5)));
    assert_eq!(defaults.stale_after, None);
}

#[test]
fn what_draino_takes_or_panics_on_is_an_error_at_its_place() {
    for (text, column, cause, remedy) in [
        ("", 1, "condition type is missing", "write Type"),
        ("=True,0s", 1, "condition type is missing", "write Type"),
        ("Ready", 1, "every healthy node would be bad", "Ready=Unknown,10m"),
        ("Kernel Deadlock", 7, "cannot contain ' '", "write Type"),
        ("A;B", 2, "cannot contain ';'", "write Type"),
        ("Cool=", 6, "status is missing", "True, False or Unknown"),
        ("Cool=,10m", 6, "status is missing", "True, False or Unknown"),
        ("Cool=true,10m", 6, "\"true\" is not a status", "True, False or Unknown"),
        ("Cool=Unknwon,10m", 6, "\"Unknwon\" is not a status", "True, False or Unknown"),
        ("Ready=Unknown", 14, "minimum age is missing", "Ready=Unknown,0s"),
        ("Ready=Unknown,", 15, "minimum age is missing", "10m"),
        ("Ready=Unknown,garbage", 15, "\"garbage\" is not a duration", "10m"),
        ("Ready=Unknown,10", 15, "\"10\" is not a duration", "10m"),
        ("Ready=Unknown,-10m", 15, "\"-10m\" is not a duration", "10m"),
        ("Ready=Unknown,10m,5m", 15, "\"10m,5m\" is not a duration", "10m"),
        ("Cool=True;delay=10m", 6, "\"True;delay=10m\" is not a status", "True, False or Unknown"),
        ("Cool={\"delay\":\"10m\"}", 6, "is not a status", "True, False or Unknown"),
    ] {
        let error = ConditionRule::parse(text).unwrap_err();
        assert_eq!(error.column, column, "{error}");
        assert!(error.cause.contains(cause), "{error}");
        assert!(error.remedy.contains(remedy), "{error}");
        assert!(error.to_string().starts_with(&format!("{text:?}, column {column}: ")), "{error}");
    }
}

#[test]
fn the_annotation_is_that_of_draino() {
    let rules = [rule("KernelDeadlock"), rule("Ready=Unknown,10m")];
    let text = format_conditions(&rules);
    assert_eq!(text, "KernelDeadlock=True,0s;Ready=Unknown,10m0s");
    assert_eq!(recorded_conditions(&text), rules);
    assert_eq!(format_conditions([]), "");
}

#[test]
fn of_a_damaged_annotation_the_rest_is_read() {
    let read = recorded_conditions("Ready; Cool=True,garbage ;;KernelDeadlock=True,0s;=;x=y");
    let read: Vec<_> = read.iter().map(ToString::to_string).collect();
    assert_eq!(read, ["Ready=True,0s", "KernelDeadlock=True,0s"]);
    assert_eq!(recorded_conditions(""), []);
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,40}") {
        let _ = ConditionRule::parse(&text);
        let _ = recorded_conditions(&text);
    }

    #[test]
    fn what_is_written_reads_the_same(
        kind in "[A-Za-z./_-]{1,20}", status in 0..3_usize, secs in 0..1_000_000_u64,
    ) {
        use ConditionStatus::{False, True, Unknown};
        let rule = ConditionRule::new(kind, [True, False, Unknown][status], Duration::from_secs(secs));
        prop_assert_eq!(ConditionRule::parse(&rule.to_string()), Ok(rule));
    }

    /// A timer armed for the next look misses nothing: in between, every look says the same.
    #[test]
    fn nothing_changes_before_the_next_look(
        status in prop::bool::ANY, since in -900..0_i64, heartbeat in -900..0_i64,
        min_age in 0..900_u64, clear_after in 0..900_u64, stale_after in prop::option::of(0..900_u64),
        step in 1..2000_i64,
    ) {
        let rule = ConditionRule {
            min_age: Duration::from_secs(min_age),
            clear_after: Some(Duration::from_secs(clear_after)),
            stale_after: stale_after.map(Duration::from_secs),
            ..rule("Cool")
        };
        let text = if status { "Cool=True" } else { "Cool=False" };
        let node = node(&[Condition {
            heartbeat: Some(stamp(heartbeat)), ..condition(text, Some(since))
        }]);
        let says = |now| {
            let holding = rule.judge(&node, now);
            (holding, rule.over_from(holding).map(|at| at <= now))
        };
        if let Some(next) = rule.looks_again_at(&node, noon()) {
            prop_assert!(next > noon());
            prop_assert_ne!(says(next), says(noon()));
            if at(step) < next {
                prop_assert_eq!(says(at(step)), says(noon()));
            }
        } else {
            prop_assert_eq!(says(at(step)), says(noon()));
        }
    }
}
