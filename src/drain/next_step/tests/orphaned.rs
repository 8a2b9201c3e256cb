//! Cordons of policies that are configured no longer.

use super::*;

/// Another policy than that of the records, which reads other conditions.
fn other() -> [Policy; 1] {
    [policy("q", &["Other"])]
}

/// A node that a policy `p` cordoned, without any bad condition.
fn good(phase: DrainPhase) -> Node {
    bad(&record(phase)).reporting("Bad", False, 100)
}

#[test]
fn an_orphan_that_is_kept_stays_cordoned_whatever_its_conditions_are() {
    for phase in [DrainPhase::Cordoned, DrainPhase::Drained, DrainPhase::Failed] {
        for policies in [&other()[..], &[]] {
            for node in [good(phase), bad(&record(phase)), kept("n1").unschedulable(true)] {
                let node = node.recorded(Some(&record(phase)));
                let step = next_step(&node, policies, Orphans::Keep, at(99_999));
                assert_eq!(step, Step::Rest, "{phase}");
            }
        }
    }
}

#[test]
fn an_orphan_is_given_back_at_once_where_the_settings_say_so() {
    for phase in [DrainPhase::Cordoned, DrainPhase::Drained, DrainPhase::Failed] {
        for policies in [&other()[..], &[]] {
            let node = bad(&record(phase));
            let change = written(next_step(&node, policies, Orphans::Uncordon, at(100)));
            assert_eq!((change.unschedulable, change.report), (Some(false), Report::Uncordoned));
        }
    }
}

#[test]
fn no_drain_of_an_orphan_goes_on() {
    for orphans in [Orphans::Keep, Orphans::Uncordon] {
        for phase in [DrainPhase::Scheduled, DrainPhase::Draining] {
            let change = written(next_step(&bad(&record(phase)), &other(), orphans, at(100)));
            assert_eq!(change.report, Report::Cancelled(cancelled::ORPHANED));
            assert_eq!(change.record.unwrap().phase, DrainPhase::Cordoned);
            assert_eq!(change.unschedulable, None, "one step after the other");
        }
    }
    assert!(!is_draining(&bad(&record(DrainPhase::Draining)), "s1", &other(), at(100)));
}

#[test]
fn what_is_not_only_an_orphans_is_never_taken_back() {
    let uncordons = |step: Step| matches!(step, Step::Action(Action::Write(change)) if change.unschedulable.is_some());
    let decide = |record: &Record, policies: &[Policy]| {
        next_step(&bad(record), policies, Orphans::Uncordon, at(100))
    };
    let cordoned = record(DrainPhase::Cordoned);
    let foreign = Record { cordon: Cordon::Foreign, ..cordoned.clone() };
    assert!(!uncordons(decide(&foreign, &[])), "someone else cordoned it");
    let both = vec![claim("p", &["Bad=True,0s"]), claim("q", &["Other=True,0s"])];
    let shared = Record { claims: both, ..cordoned.clone() };
    assert!(!uncordons(decide(&shared, &other())), "one of its policies is left");
    let unnamed = Record { claims: Vec::new(), ..cordoned };
    assert!(!unnamed.is_orphaned(&[]), "no policy is named that could be gone");
}

#[test]
fn a_policy_that_finds_an_orphan_bad_takes_its_cordon_over() {
    let renamed = [policy("q", &["Bad"])];
    for orphans in [Orphans::Keep, Orphans::Uncordon] {
        let node = bad(&record(DrainPhase::Drained));
        let change = written(next_step(&node, &renamed, orphans, at(100)));
        assert_eq!(change.unschedulable, None);
        let taken = change.record.unwrap();
        assert_eq!(taken.policy(), "q");
        assert!(!taken.is_orphaned(&renamed));
        let facts = node.drain_facts.as_deref().unwrap();
        assert_eq!(orphan(facts, &renamed, at(100)), None, "and it is not reported");
        assert!(orphan(facts, &other(), at(100)).is_some());
    }
}

#[test]
fn an_orphan_whose_policy_is_back_is_an_orphan_no_more() {
    let node = good(DrainPhase::Drained);
    let back = next_step(&node, &[policy("p", &["Bad"])], Orphans::Keep, at(100 + CLEAR));
    assert_eq!(written(back).unschedulable, Some(false));
}

#[test]
fn an_orphan_that_someone_uncordons_stays_in_use() {
    let node = bad(&record(DrainPhase::Drained)).unschedulable(false);
    let change = written(next_step(&node, &[], Orphans::Keep, at(100)));
    assert_eq!((change.unschedulable, change.record.unwrap().phase), (None, DrainPhase::Released));
    assert_eq!(orphan(node.drain_facts.as_deref().unwrap(), &[], at(100)), None);
}
