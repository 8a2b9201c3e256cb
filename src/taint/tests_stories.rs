//! Stories of a node over time: what its pods' deadlines do, and that a restart of ours at any
//! point of them changes nothing (P3).

use super::{Past, advance, decide, gap_deadline, record};
use crate::model::ConditionStatus::{False, True, Unknown};
use crate::model::build::{at, exists, node, not_ready, pod, taint, unreachable};
use crate::model::{Anchors, Node, Taint, Verdict};

/// Seconds after noon at which the pod goes; `None` while it stays.
type Deadline = Option<i64>;

/// A process of ours that watches one node, with one pod on it that tolerates everything for 300 s,
/// and the annotation that it keeps there.
#[derive(Default)]
struct Watcher {
    anchors: Option<Anchors>,
    annotation: Option<String>,
}

impl Watcher {
    /// Sees a version of the node, after having looked again at a gap that became too long before.
    fn see(&mut self, now: i64, node: &Node) -> Deadline {
        let due = self.anchors.as_ref().and_then(gap_deadline);
        if let Some(due) = due.filter(|due| *due < at(now)) {
            let untainted = Node { taints: [].into(), ..node.clone() };
            self.look(due, &untainted.ready_is(False, -5));
        }
        self.look(at(now), node)
    }

    fn look(&mut self, now: jiff::Timestamp, node: &Node) -> Deadline {
        let node = node.clone().annotated(self.annotation.as_deref());
        let stored = self.annotation.as_deref().map(record::parse);
        let stored = stored.and_then(Result::ok);
        let past = match &self.anchors {
            Some(anchors) => Past::Watched(anchors),
            None => Past::recorded(stored.as_ref()),
        };
        let anchors = advance(past, &node, now);
        let pod = pod("a").on("n1").tolerating(exists("").lasting(300));
        self.annotation = record::wanted(&anchors, &node, [&pod], &[]);
        let verdict = decide(&pod, &node, &anchors);
        self.anchors = Some(anchors);
        match verdict {
            Verdict::EvictAt { deadline, .. } => Some(deadline.0.duration_since(at(0)).as_secs()),
            Verdict::EvictNow(cause) => panic!("all is tolerated, but {cause}"),
            Verdict::Keep(_) => None,
        }
    }

    fn restart(&mut self) {
        self.anchors = None;
    }
}

/// A step of a story: when, what the node looks like from then on, when the pod is to go.
type Step = (i64, Node, Deadline);

fn assert_tells(steps: &[Step]) {
    let mut watcher = Watcher::default();
    for (number, (now, node, expected)) in steps.iter().enumerate() {
        assert_eq!(watcher.see(*now, node), *expected, "step {number}");
    }
}

/// The story is told the same with a restart before or after each step.
fn assert_survives_restarts(steps: &[Step]) {
    for restart in 0..steps.len() {
        for after in [false, true] {
            let mut watcher = Watcher::default();
            for (number, (now, node, expected)) in steps.iter().enumerate() {
                if number == restart {
                    if after {
                        let _ = watcher.see(*now, node);
                    }
                    watcher.restart();
                }
                let found = watcher.see(*now, node);
                let moment = if after { "after" } else { "before" };
                assert_eq!(found, *expected, "step {number}, restart {moment} {restart}");
            }
        }
    }
}

fn healthy() -> Node {
    node("n1")
}

/// A node that has not been ready since five seconds before noon.
fn unready() -> Node {
    node("n1").ready_is(False, -5)
}

#[test]
fn a_restarted_lifecycle_controller_that_puts_its_taint_back_within_60_s_moves_nothing() {
    let story = [
        (-9, healthy(), None),
        (-5, unready(), None),
        (1, unready().tainted(not_ready(0)), Some(300)),
        (100, unready(), None),
        (159, unready().tainted(not_ready(159)), Some(300)),
        (200, unready(), None),
        (210, unready().tainted(not_ready(210)), Some(300)),
    ];
    assert_tells(&story);
    assert_survives_restarts(&story);
}

#[test]
fn one_that_puts_its_taint_back_after_60_s_begins_anew() {
    let story = [
        (1, unready().tainted(not_ready(0)), Some(300)),
        (100, unready(), None),
        (160, unready().tainted(not_ready(160)), Some(460)),
    ];
    assert_tells(&story);
}

#[test]
fn full_disruption_begins_anew_and_its_record_goes_in_time() {
    let story = [
        (1, unready().tainted(not_ready(0)), Some(300)),
        (100, unready(), None),
        (130, unready(), None),
        (160, unready(), None),
        (900, unready().tainted(not_ready(899)), Some(1199)),
        (905, unready().tainted(not_ready(899)), Some(1199)),
    ];
    assert_tells(&story);
    // A restart in the gap begins to measure it anew, which is no matter in one this long. Without
    // us from before the gap until its end, the outage is taken for the same: see below.
    let before_the_return = &story[..4];
    assert_survives_restarts(before_the_return);

    let mut watcher = Watcher::default();
    for (now, node, expected) in before_the_return {
        assert!(watcher.annotation.is_some() || *now == 1);
        assert_eq!(watcher.see(*now, node), *expected);
    }
    assert_eq!(watcher.annotation, None);
    watcher.restart();
    for (now, node, expected) in &story[4..] {
        assert_eq!(watcher.see(*now, node), *expected);
    }
}

#[test]
fn a_gap_that_nobody_saw_is_bridged_if_ready_proves_that_the_node_was_never_ready() {
    let mut watcher = Watcher::default();
    let _ = watcher.see(1, &unready().tainted(not_ready(0)));
    watcher.restart();
    let back = unready().tainted(not_ready(899));
    assert_eq!(watcher.see(900, &back), Some(300));
}

#[test]
fn a_swap_of_the_taints_moves_nothing() {
    let silent = node("n1").ready_is(Unknown, 48);
    let story = [
        (1, unready().tainted(not_ready(0)), Some(300)),
        (48, silent.clone().tainted(not_ready(0)), Some(300)),
        (50, silent.clone().tainted(not_ready(0)).tainted(unreachable(50)), Some(300)),
        (50, silent.clone().tainted(unreachable(50)), Some(300)),
        (90, silent.clone(), None),
        (95, silent.tainted(unreachable(95)), Some(300)),
        (
            97,
            unready().ready_is(False, 96).tainted(unreachable(95)).tainted(not_ready(97)),
            Some(300),
        ),
        (98, unready().ready_is(False, 96).tainted(not_ready(97)), Some(300)),
    ];
    assert_tells(&story);
    assert_survives_restarts(&story);
}

#[test]
fn a_swap_that_nobody_watched_counts_anew_rather_than_too_early() {
    let mut watcher = Watcher::default();
    let _ = watcher.see(1, &unready().tainted(not_ready(0)));
    watcher.restart();
    let swapped = node("n1").ready_is(Unknown, 48).tainted(unreachable(50));
    assert_eq!(watcher.see(51, &swapped), Some(350));
}

#[test]
fn a_node_that_was_ready_in_between_begins_anew() {
    let story = [
        (1, unready().tainted(not_ready(0)), Some(300)),
        (20, node("n1").ready_is(True, 20).tainted(not_ready(0)), Some(300)),
        (25, node("n1").ready_is(True, 20), None),
        (30, node("n1").ready_is(False, 30), None),
        (36, node("n1").ready_is(False, 30).tainted(not_ready(36)), Some(336)),
    ];
    assert_tells(&story);
    assert_survives_restarts(&story);
}

#[test]
fn a_node_that_was_ready_in_a_gap_begins_anew() {
    let story = [
        (1, unready().tainted(not_ready(0)), Some(300)),
        (20, unready(), None),
        (22, node("n1").ready_is(True, 22), None),
        (24, node("n1").ready_is(False, 24), None),
        (30, node("n1").ready_is(False, 24).tainted(not_ready(30)), Some(330)),
    ];
    assert_tells(&story);
    assert_survives_restarts(&story);
}

#[test]
fn a_recovery_that_nobody_saw_is_never_bridged() {
    for (now, untainted, tainted) in [
        // Back with a new taint at first sight, or in the gap before it.
        (40, None, node("n1").ready_is(False, 30).tainted(not_ready(36))),
        (
            40,
            Some(node("n1").ready_is(False, 30)),
            node("n1").ready_is(False, 30).tainted(not_ready(36)),
        ),
    ] {
        let mut watcher = Watcher::default();
        assert_eq!(watcher.see(1, &unready().tainted(not_ready(0))), Some(300));
        watcher.restart();
        if let Some(untainted) = untainted {
            assert_eq!(watcher.see(32, &untainted), None);
            assert_eq!(watcher.annotation, None);
        }
        assert_eq!(watcher.see(now, &tainted), Some(336));
    }
}

#[test]
fn a_flap_that_is_too_short_for_the_taint_to_go_changes_nothing() {
    let story = [
        (1, unready().tainted(not_ready(0)), Some(300)),
        (20, node("n1").ready_is(True, 20).tainted(not_ready(0)), Some(300)),
        (22, node("n1").ready_is(False, 22).tainted(not_ready(0)), Some(300)),
    ];
    assert_tells(&story);
    assert_survives_restarts(&story);
}

#[test]
fn a_hand_put_taint_counts_from_its_first_sight_until_it_is_taken_off() {
    let tainted = || healthy().tainted(taint("k", "v"));
    let story = [
        (-9, healthy(), None),
        (0, tainted(), Some(300)),
        (200, tainted(), Some(300)),
        (250, healthy(), None),
        (251, tainted(), Some(551)),
        (400, healthy().tainted(taint("k", "w")), Some(700)),
    ];
    assert_tells(&story);
    let mut watcher = Watcher::default();
    for (now, node, expected) in &story[1..4] {
        assert_eq!(watcher.see(*now, node), *expected);
        watcher.restart();
    }
    assert_eq!(watcher.annotation, None);
}

#[test]
fn a_hand_put_outage_taint_on_a_ready_node_is_over_when_it_is_taken_off() {
    let tainted = || healthy().tainted(taint(Taint::UNREACHABLE, ""));
    let story = [
        (0, tainted(), Some(300)),
        (100, tainted(), Some(300)),
        (150, healthy(), None),
        (151, tainted(), Some(451)),
    ];
    assert_tells(&story);
}

#[test]
fn a_garbage_record_is_as_good_as_none() {
    for garbage in ["", "garbage", r#"{"taints":"k"}"#, r#"{"outage":{"since":"x"}}"#] {
        let mut watcher = Watcher { anchors: None, annotation: Some(garbage.to_owned()) };
        assert_eq!(watcher.see(0, &healthy().tainted(taint("k", ""))), Some(300));
        let replaced = watcher.annotation.as_deref().map(record::parse);
        assert!(matches!(replaced, Some(Ok(_))), "{garbage} was not replaced");
    }
}

#[test]
fn a_record_that_is_forged_on_a_live_node_moves_nothing() {
    let forged = r#"{"taints":[{"key":"k","value":"","since":"2020-01-01T00:00:00Z"}],
        "outage":{"since":"2020-01-01T00:00:00Z","through":"2030-01-01T00:00:00Z"}}"#;
    let mut watcher = Watcher::default();
    assert_eq!(watcher.see(0, &healthy()), None);
    watcher.annotation = Some(forged.to_owned());
    assert_eq!(watcher.see(10, &healthy().tainted(taint("k", ""))), Some(310));
    watcher.annotation = Some(forged.to_owned());
    let both = healthy().tainted(taint("k", "")).tainted(not_ready(20));
    assert_eq!(watcher.see(20, &both), Some(310));
    assert!(!watcher.annotation.is_some_and(|text| text.contains("2020")));
}

#[test]
fn a_record_that_somebody_removed_is_written_again() {
    let mut watcher = Watcher::default();
    let tainted = healthy().tainted(taint("k", ""));
    let _ = watcher.see(0, &tainted);
    let written = watcher.annotation.take();
    assert!(written.is_some());
    assert_eq!(watcher.see(100, &tainted), Some(300));
    assert_eq!(watcher.annotation, written);
}
