//! What a drain, or draino, would leave on a node, and what becomes of it.

use super::*;

/// A good node that draino has cordoned, and someone uncordoned.
fn left_by_draino() -> Node {
    kept("n1").reporting("Bad", False, -9000).marked_by_draino("Bad=True,0s")
}

/// Whether a change takes draino's annotation away.
fn unmarks(change: &Change, node: &Node) -> bool {
    change.draino_conditions(node.drain_facts.as_deref().unwrap()) == Some(None)
}

#[test]
fn drainos_annotation_on_a_node_in_use_goes_and_the_next_cordon_is_a_persons() {
    let node = left_by_draino();
    let change = written(step(&node, 10));
    assert!(unmarks(&change, &node));
    assert_eq!((change.record, change.unschedulable), (None, None));
    assert_eq!(change.report, Report::None);
    let cordoned = node.with_draino_conditions(None).unschedulable(true);
    assert_eq!(step(&cordoned, 11), Step::Rest, "it was not draino");
}

#[test]
fn before_a_bad_node_waits_for_its_cordon_drainos_annotation_goes() {
    let node = left_by_draino().reporting("Bad", True, 0);
    let change = written(step(&node, 10));
    assert!(unmarks(&change, &node));
    assert_eq!(begun(step(&node.with_draino_conditions(None), 10)).len(), 1);
}

#[test]
fn drainos_annotation_stays_beside_its_cordon_and_where_no_policy_looks() {
    let cordoned = left_by_draino().unschedulable(true).reporting("Bad", False, 100);
    assert_eq!(step(&cordoned, 110), Step::Wait(at(100 + CLEAR)));
    assert_eq!(next_step(&left_by_draino(), &[], Orphans::Keep, at(10)), Step::Rest);
    let removed = left_by_draino().autoscaled(Autoscaler::Removing);
    assert_eq!(step(&removed, 10), Step::Rest);
}

#[test]
fn drainos_annotation_goes_from_a_node_that_a_person_has_released() {
    let released = record(DrainPhase::Released);
    let node = bad(&released).marked_by_draino("Bad=True,0s");
    let change = written(step(&node, 10));
    assert!(unmarks(&change, &node));
    assert_eq!(change.record, Some(released), "and nothing else");
}

#[test]
fn a_cordon_that_counts_as_somebody_elses_keeps_no_annotation_by_which_it_were_ours() {
    let node = kept("n1").unschedulable(true).marked_by_draino("Bad=True,0s").with_record("{");
    let change = written(step(&node, 10));
    assert_eq!(change.record.as_ref().unwrap().cordon, Cordon::Foreign);
    assert!(unmarks(&change, &node));
}

#[test]
fn a_plan_is_taken_back_before_its_record_goes_with_the_autoscalers_uncordon() {
    for phase in [DrainPhase::Scheduled, DrainPhase::Draining] {
        let noted = Record { autoscaler: true, ..record(phase) };
        let node = bad(&noted).unschedulable(false).reporting("Bad", False, 50);
        let change = written(step(&node, 110));
        assert_eq!((change.unschedulable, change.report), (None, Report::Uncordoned), "{phase}");
        let over = change.record.unwrap();
        assert!(over.claims.is_empty() && over.cordon == Cordon::Lifted, "{over:?}");
        let node = node.recorded(Some(&over));
        let Step::Action(Action::Mark { scheduled: false, message }) = step(&node, 111) else {
            panic!("{:?}", step(&node, 111));
        };
        assert_eq!(message, format!("Drain activity scheduled {} | Called off", at(60)));
        // A person's cordon meanwhile is a person's.
        let cordoned = node.clone().unschedulable(true).silent_on("DrainScheduled");
        let change = written(step(&cordoned, 112));
        assert_eq!((change.record, change.unschedulable), (None, None), "{phase}");
        let marked = node.reporting("DrainScheduled", False, 111);
        let change = written(step(&marked, 112));
        assert_eq!((change.record, change.report), (None, Report::None), "{phase}");
        // Whatever goes bad before that starts again.
        let worse = marked.reporting("Bad", True, 112);
        assert_eq!(begun(step(&worse, 112)), [claim("p", &["Bad=True,0s"])], "{phase}");
    }
}

#[test]
fn an_uncordon_takes_a_plan_back_that_could_not_be_taken_back_before() {
    let node = bad(&record(DrainPhase::Cordoned)).reporting("Bad", False, 0);
    let planned = Record { scheduled: Some(at(60)), ..record(DrainPhase::Cordoned) };
    let node = node.recorded(Some(&planned)).reporting("DrainScheduled", True, 0);
    let change = written(step(&node, CLEAR));
    assert_eq!((change.unschedulable, &change.report), (Some(false), &Report::Uncordoned));
    let node = node.unschedulable(false).recorded(change.record.as_ref());
    assert!(matches!(step(&node, CLEAR), Step::Action(Action::Mark { scheduled: false, .. })));
}

#[test]
fn a_request_for_one_more_try_goes_with_the_record() {
    let cleared = |phase| bad(&record(phase)).reporting("Bad", False, 1000);
    let noted = Record { autoscaler: true, ..record(DrainPhase::Drained) };
    for node in [
        cleared(DrainPhase::Failed),
        cleared(DrainPhase::Released),
        cleared(DrainPhase::Drained).recorded(Some(&noted)).unschedulable(false),
    ] {
        let now = 1000 + CLEAR;
        let change = written(step(&node, now));
        assert!(change.record.is_none() && !change.retry_taken, "nobody asks");
        let change = written(step(&node.asking_for_retry(), now));
        assert!(change.record.is_none() && change.retry_taken);
    }
}
