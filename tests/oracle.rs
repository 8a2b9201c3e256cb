//! An oracle for the taint room: the rules once more, written down a second time from the design
//! and the API's matching rules alone, and compared with what the room says about random facts.
//!
//! [`rules`] and [`history`] share no code with `ostrakon::taint`; they match by `ostrakon::sim`'s rule, and
//! count time in nanoseconds of their own. [`facts`] makes up the facts.

#![allow(clippy::unwrap_used)]

#[path = "oracle/facts.rs"]
mod facts;
#[path = "oracle/history.rs"]
mod history;
#[path = "oracle/rules.rs"]
mod rules;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use ostrakon::model::{Anchors, Node, Pod, Stamp, Taint, Verdict};
use ostrakon::taint::{self, TaintMethod, decide, decide_by, record, since, upstream};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use history::{Observer, Step};

#[test]
fn the_room_agrees_with_the_rules() {
    let met = RefCell::new(BTreeMap::<&str, u32>::new());
    let mut runner = TestRunner::new(cases(2500));
    let facts = (facts::pod(), facts::node(), facts::anchors());
    runner
        .run(&facts, |(pod, node, anchors)| {
            let expected = rules::default_profile(&pod, &node, &anchors);
            *met.borrow_mut().entry(expected.kind()).or_default() += 1;
            prop_assert_eq!(rules::Says::from(&decide(&pod, &node, &anchors)), expected);
            Ok(())
        })
        .unwrap();
    // An oracle that is asked the same thing all the time proves nothing.
    let met = met.into_inner();
    for kind in [
        "untolerated",
        "at once",
        "time added",
        "first seen",
        "outage",
        "bound",
        "end of time",
        "tolerated",
        "no taints",
        "mirror",
        "finished",
        "terminating",
    ] {
        assert!(met.get(kind).is_some_and(|times| *times >= 5), "{kind} in {met:?}");
    }
}

#[test]
fn by_rules_a_pod_is_due_and_deleted_when_they_say_so() {
    let met = RefCell::new(BTreeMap::<&str, u32>::new());
    let mut runner = TestRunner::new(cases(2500));
    let facts = (facts::rules(), facts::pod(), facts::node(), facts::anchors());
    runner
        .run(&facts, |(rules, pod, node, anchors)| {
            let expected = rules::by_rules(&rules, &pod, &node, &anchors);
            let verdict = decide_by(&rules, &pod, &node, &anchors);
            let nanos = |verdict: &Verdict| match verdict {
                Verdict::Keep(_) => None,
                Verdict::EvictNow(_) => Some(i128::MIN),
                Verdict::EvictAt { deadline, .. } => Some(deadline.0.as_nanosecond()),
            };
            let deletion = if verdict.respects_budgets() {
                verdict.deletion().and_then(nanos)
            } else {
                nanos(&verdict)
            };
            prop_assert_eq!((nanos(&verdict), deletion), expected, "{}", verdict);
            // The last of them deletes, and says so.
            let last = verdict.at(Timestamp::MAX);
            prop_assert_eq!(last.respects_budgets(), nanos(last).is_some() && deletion.is_none());
            let kind = match (expected, decide(&pod, &node, &anchors)) {
                ((None, _), Verdict::Keep(_)) => "stays",
                ((None, _), _) => "ignored",
                ((Some(_), None), _) => "evicted only",
                ((Some(due), Some(deleted)), _) if due == deleted => "deleted",
                _ => "evicted, then deleted",
            };
            *met.borrow_mut().entry(kind).or_default() += 1;
            Ok(())
        })
        .unwrap();
    let met = met.into_inner();
    for kind in ["stays", "ignored", "evicted only", "deleted", "evicted, then deleted"] {
        assert!(met.get(kind).is_some_and(|times| *times >= 20), "{kind} in {met:?}");
    }
}

#[test]
fn an_ignored_taint_counts_as_if_it_were_not_there() {
    let mut runner = TestRunner::new(cases(1000));
    let facts = (facts::rules(), facts::pod(), facts::node(), facts::anchors());
    runner
        .run(&facts, |(rules, pod, node, anchors)| {
            let is_ignored = |taint: &Taint| {
                let rule = taint::rules::rule_of(&rules, taint);
                rule.is_some_and(|rule| rule.method == TaintMethod::Ignore)
            };
            let taints = node.taints.iter().filter(|taint| !is_ignored(taint)).cloned().collect();
            let others = Node { taints, ..node.clone() };
            let verdict = decide_by(&rules, &pod, &node, &anchors);
            let without = decide_by(&rules, &pod, &others, &anchors);
            match without {
                Verdict::Keep(_) => prop_assert!(matches!(verdict, Verdict::Keep(_))),
                evicted => prop_assert_eq!(verdict, evicted),
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_compat_profile_agrees_with_its_rules() {
    let met = RefCell::new(BTreeMap::<&str, u32>::new());
    let mut runner = TestRunner::new(cases(2500));
    let facts = (facts::pod(), facts::node(), facts::time(), facts::running());
    runner
        .run(&facts, |(pod, node, now, running)| {
            let expected = rules::upstream_profile(&pod, &node, now, running.as_ref());
            *met.borrow_mut().entry(expected.kind()).or_default() += 1;
            let found = upstream::decide(&pod, &node, now, running.as_ref());
            prop_assert_eq!(rules::Says::from(&found), expected);
            Ok(())
        })
        .unwrap();
    let met = met.into_inner();
    for kind in ["untolerated", "at once", "observed", "tolerated", "no taints", "terminating"] {
        assert!(met.get(kind).is_some_and(|times| *times >= 5), "{kind} in {met:?}");
    }
}

/// So many cases, whose failures are told but not written down: a runner of one's own does not
/// know the source file beside which to do so.
fn cases(number: u32) -> Config {
    Config { failure_persistence: None, ..Config::with_cases(number) }
}

/// When the pod goes, without the reason.
fn when(verdict: &Verdict) -> Option<Timestamp> {
    match verdict {
        Verdict::Keep(_) => None,
        Verdict::EvictNow(_) => Some(Timestamp::MIN),
        Verdict::EvictAt { deadline, .. } => Some(deadline.0),
    }
}

/// The same, with "never" after everything.
fn order(verdict: &Verdict) -> Timestamp {
    when(verdict).unwrap_or(Timestamp::MAX)
}

fn reversed<T: Clone>(list: &[T]) -> Arc<[T]> {
    list.iter().rev().cloned().collect()
}

proptest! {
    #![proptest_config(Config::with_cases(300))]

    #[test]
    fn no_deadline_is_before_the_binding_plus_the_seconds(
        pod in facts::pod(), node in facts::node(), anchors in facts::anchors(),
    ) {
        if let Verdict::EvictAt { deadline, cause } = decide(&pod, &node, &anchors) {
            let tolerance = cause.tolerance.unwrap();
            let seconds = SignedDuration::from_secs(tolerance.seconds);
            prop_assert!(tolerance.seconds > 0);
            for anchor in [pod.bound, since(&anchors, &cause.taint).at] {
                prop_assert!(deadline.0 >= anchor.latest().saturating_add(seconds).unwrap());
            }
        }
    }

    #[test]
    fn the_order_of_taints_and_records_does_not_move_a_deadline(
        pod in facts::pod(), node in facts::node(), anchors in facts::anchors(),
    ) {
        let other_node = Node { taints: reversed(&node.taints), ..node.clone() };
        let other_anchors = Anchors {
            first_seen: reversed(&anchors.first_seen).to_vec(),
            ..anchors.clone()
        };
        let one = decide(&pod, &node, &anchors);
        let other = decide(&pod, &other_node, &other_anchors);
        prop_assert_eq!(when(&one), when(&other));
    }

    #[test]
    fn one_more_toleration_at_the_end_never_shortens_and_one_more_taint_never_lengthens(
        pod in facts::pod(), node in facts::node(), anchors in facts::anchors(),
        toleration in facts::toleration(), taint in facts::taint(),
    ) {
        let verdict = decide(&pod, &node, &anchors);
        let more = pod.tolerations.iter().cloned().chain([toleration]).collect();
        let tolerant = Pod { tolerations: more, ..pod.clone() };
        prop_assert!(order(&decide(&tolerant, &node, &anchors)) >= order(&verdict));

        let more = node.taints.iter().cloned().chain([taint]).collect();
        let worse = Node { taints: more, ..node };
        prop_assert!(order(&decide(&pod, &worse, &anchors)) <= order(&verdict));
    }

    #[test]
    fn a_running_countdown_is_never_moved_in_the_compat_profile(
        pod in facts::pod(), node in facts::node(), now in facts::time(),
        running in facts::running(),
    ) {
        let verdict = upstream::decide(&pod, &node, now, running.as_ref());
        if let (Some(running @ Verdict::EvictAt { .. }), Some(_)) = (&running, when(&verdict)) {
            let untolerated = verdict.cause().unwrap().tolerance.is_none();
            prop_assert!(untolerated || verdict == *running);
        }
    }

    #[test]
    fn nothing_but_the_gap_is_lost_in_a_record(anchors in facts::anchors()) {
        let text = record::render(&anchors);
        let mut expected = anchors;
        expected.first_seen.retain(|seen| {
            let ahead = |added: Stamp| added.written().duration_since(seen.since.latest());
            seen.added.is_none_or(|added| ahead(added) > SignedDuration::from_secs(5))
        });
        expected.first_seen.sort_by(|a, b| (&a.key, &a.value).cmp(&(&b.key, &b.value)));
        for added in expected.first_seen.iter_mut().filter_map(|seen| seen.added.as_mut()) {
            *added = Stamp::of_second(added.written());
        }
        if let Some(outage) = &mut expected.outage {
            outage.gap_from = None;
        }
        let parsed = record::parse(&text).unwrap();
        prop_assert_eq!(record::render(&parsed), text);
        prop_assert_eq!(parsed, expected);
    }

    #[test]
    fn no_text_makes_the_parser_fail_in_any_other_way_than_by_an_error(text in ".{0,200}") {
        let _ = record::parse(&text);
    }

    #[test]
    fn a_watched_history_gives_the_anchors_of_the_rules(steps in history::steps(20)) {
        let versions = history::versions(&steps);
        let mut observer = Observer::default();
        for seen in 1..=versions.len() {
            let version = &versions[seen - 1];
            observer.see(version);
            for taint in version.node.taints.iter() {
                let expected = history::anchor(&versions[..seen], taint);
                let found = rules::end_of(observer.since(taint));
                prop_assert_eq!(found, expected, "{} at version {}", taint, seen - 1);
            }
        }
    }

    #[test]
    fn a_restart_at_any_moment_at_which_a_pod_counts_down_moves_no_deadline(
        steps in history::steps(20), later in 0..200i64,
    ) {
        let mut observer = Observer::default();
        for version in history::versions(&steps) {
            observer.see(&version);
            if version.node.taints.is_empty() {
                continue;
            }
            let before = observer.verdict(&version);
            let mut restarted = observer.restarted();
            restarted.see(&version.looked_at_later(later));
            prop_assert_eq!(restarted.verdict(&version), before);
        }
    }

    #[test]
    fn whatever_was_missed_no_anchor_is_earlier_than_the_outage_or_the_taint(
        steps in history::stamped_steps(20),
        missed in prop::collection::vec((any::<bool>(), any::<bool>()), 20),
    ) {
        let versions = history::versions(&steps);
        let mut observer = Observer::default();
        for (seen, (version, (down, restart))) in versions.iter().zip(missed).enumerate() {
            if down || restart {
                observer = observer.restarted();
            }
            if down {
                continue;
            }
            observer.see(version);
            for taint in version.node.taints.iter() {
                let earliest = history::earliest_anchor(&versions[..=seen], taint);
                let found = rules::end_of(observer.since(taint));
                prop_assert!(found >= earliest, "{taint} at version {seen}: {found} < {earliest}");
            }
        }
    }
}

/// The histories tell of what they are meant for.
#[test]
fn random_histories_have_outages_gaps_and_recoveries() {
    let met = RefCell::new(BTreeMap::<&str, u32>::new());
    let mut runner = TestRunner::new(cases(400));
    runner
        .run(&history::steps(20), |steps: Vec<Step>| {
            let versions = history::versions(&steps);
            let mut observer = Observer::default();
            for version in &versions {
                let had_gap = observer.in_gap();
                observer.see(version);
                let kind = match (had_gap, observer.outage(), observer.in_gap()) {
                    (true, Some(outage), false) if outage.since < outage.through => "bridged",
                    (true, Some(_), false) => "broken",
                    (true, None, _) => "dropped",
                    (false, Some(_), true) => "gap",
                    (false, Some(outage), false) if outage.since < outage.through => "moved on",
                    _ => continue,
                };
                *met.borrow_mut().entry(kind).or_default() += 1;
            }
            Ok(())
        })
        .unwrap();
    let met = met.into_inner();
    for kind in ["bridged", "broken", "dropped", "gap", "moved on"] {
        assert!(met.get(kind).is_some_and(|times| *times >= 5), "{kind} in {met:?}");
    }
}
