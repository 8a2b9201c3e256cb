use std::time::Duration;

use super::*;
use crate::drain::build::{kept, policy};
use crate::drain::{DrainPhase, Window};
use crate::model::ConditionStatus::{False, True, Unknown};
use crate::model::build::{at, node as bare};

mod leftovers;

const CLEAR: i64 = 300;

pub(super) fn claim(policy: &str, conditions: &[&str]) -> Claim {
    let conditions = conditions.iter().map(|text| Arc::from(*text)).collect();
    Claim { policy: Arc::from(policy), conditions }
}

/// A record of ours for `Bad`, in this phase.
pub(super) fn record(phase: DrainPhase) -> Record {
    let ours = Record::new(Arc::from("s1"), Cordon::Ours, vec![claim("p", &["Bad=True,0s"])]);
    let (scheduled, started) = (Some(at(60)), Some(at(60)));
    match phase {
        DrainPhase::Cordoned => Record { phase, ..ours },
        DrainPhase::Scheduled => Record { phase, scheduled, ..ours },
        DrainPhase::Draining => {
            Record { phase, scheduled, started, deadline: Some(at(600)), ..ours }
        }
        DrainPhase::Drained => Record { phase, scheduled, started, ended: Some(at(100)), ..ours },
        DrainPhase::Failed => Record {
            phase,
            scheduled,
            started,
            ended: Some(at(600)),
            failures: 1,
            next: Some(at(1200)),
            ..ours
        },
        DrainPhase::Released => Record { phase, cordon: Cordon::Lifted, ..ours },
    }
}

/// A cordoned node with `Bad=True` since noon, this record, and the condition that belongs to it.
fn bad(record: &Record) -> Node {
    let is_scheduled = matches!(record.phase, DrainPhase::Scheduled | DrainPhase::Draining);
    let node = kept("n1")
        .reporting("Bad", True, 0)
        .unschedulable(record.cordon != Cordon::Lifted)
        .recorded(Some(record));
    if is_scheduled { node.reporting("DrainScheduled", True, 0) } else { node }
}

fn step(node: &Node, now: i64) -> Step {
    next_step(node, &[policy("p", &["Bad"])], Orphans::Keep, at(now))
}

fn written(step: Step) -> Change {
    match step {
        Step::Action(Action::Write(change)) => change,
        other => panic!("nothing is written: {other:?}"),
    }
}

fn begun(step: Step) -> Vec<Claim> {
    match step {
        Step::Action(Action::Begin { claims, .. }) => claims,
        other => panic!("nothing is begun: {other:?}"),
    }
}

// draino's table of its node handler, by what it comes to here.

#[test]
fn without_conditions_or_policies_nothing_is_done() {
    assert_eq!(next_step(&kept("n1"), &[], Orphans::Keep, at(0)), Step::Rest);
    assert_eq!(step(&kept("n1"), 0), Step::Rest);
    assert_eq!(step(&bare("n1"), 0), Step::Rest, "nothing is known of its conditions");
}

#[test]
fn a_condition_that_nobody_asks_for_is_none() {
    assert_eq!(step(&kept("n1").reporting("Other", True, 0), 10), Step::Rest);
    let good = step(&kept("n1").reporting("Bad", False, -9000), 10);
    assert_eq!(good, Step::Rest);
}

#[test]
fn a_bad_condition_begins_a_cordon_also_of_a_node_that_is_cordoned_by_somebody() {
    let node = kept("n1").reporting("Bad", True, 0);
    assert_eq!(begun(step(&node, 10)), [claim("p", &["Bad=True,0s"])]);
    assert_eq!(begun(step(&node.unschedulable(true), 10)), [claim("p", &["Bad=True,0s"])]);
}

#[test]
fn a_good_node_that_somebody_has_cordoned_is_left_alone() {
    let node = kept("n1").reporting("Bad", False, -9000).unschedulable(true);
    assert_eq!(step(&node, 10), Step::Rest);
}

#[test]
fn a_good_node_that_draino_has_cordoned_is_uncordoned() {
    let node = kept("n1")
        .reporting("Bad", False, -9000)
        .unschedulable(true)
        .marked_by_draino("Bad=True,0s");
    let change = written(step(&node, 10));
    assert_eq!((change.record, change.unschedulable), (None, Some(false)));
    assert_eq!(change.report, Report::Uncordoned);
}

#[test]
fn a_bad_node_that_draino_has_cordoned_is_scheduled_and_not_cordoned_again() {
    let node = kept("n1")
        .reporting("Bad", True, 0)
        .unschedulable(true)
        .marked_by_draino("Bad=True,0s;Gone=True,10m0s");
    let Step::Action(Action::Write(Change { record: Some(noted), unschedulable: None, .. })) =
        step(&node, 10)
    else {
        panic!("{:?}", step(&node, 10));
    };
    assert_eq!(noted.vanished, Some(at(10)), "a condition that is not reported any more");
    assert_eq!(noted.cordon, Cordon::Ours);
    let Step::Action(Action::Schedule(_)) = step(&node.recorded(Some(&noted)), 11) else {
        panic!();
    };
}

// Ages and sickness of the conditions themselves.

#[test]
fn a_minimum_age_is_waited_for_without_any_event() {
    let policies = [policy("p", &["Bad=True,10m"])];
    let node = kept("n1").reporting("Bad", True, 0);
    assert_eq!(next_step(&node, &policies, Orphans::Keep, at(30)), Step::Wait(at(600)));
    assert_eq!(
        begun(next_step(&node, &policies, Orphans::Keep, at(600))),
        [claim("p", &["Bad=True,10m0s"])]
    );
}

#[test]
fn each_policy_that_finds_a_node_bad_has_a_claim_and_the_first_one_decides() {
    let mut policies =
        [policy("a", &["Worse"]), policy("b", &["Bad"]), policy("c", &["Bad", "Worse"])];
    let node = kept("n1").reporting("Bad", True, 0).labelled(&[("pool", "x")]);
    let claims = begun(next_step(&node, &policies, Orphans::Keep, at(10)));
    assert_eq!(claims, [claim("b", &["Bad=True,0s"]), claim("c", &["Bad=True,0s"])]);
    policies[1].nodes.labels = vec![(Arc::from("pool"), Arc::from("y"))];
    let claims = begun(next_step(&node, &policies, Orphans::Keep, at(10)));
    assert_eq!(claims, [claim("c", &["Bad=True,0s"])], "b does not select it");
}

#[test]
fn a_new_claim_is_written_down_and_an_old_one_stays_until_it_has_cleared() {
    let policies = [policy("p", &["Bad", "Worse"])];
    let both = bad(&record(DrainPhase::Drained)).reporting("Worse", True, 5);
    let noted = written(next_step(&both, &policies, Orphans::Keep, at(110))).record.unwrap();
    assert_eq!(noted.claims, [claim("p", &["Bad=True,0s", "Worse=True,0s"])]);
    let one = both.recorded(Some(&noted)).reporting("Bad", False, 200);
    let now = at(200 + CLEAR - 1);
    assert!(
        matches!(next_step(&one, &policies, Orphans::Keep, now), Step::Wait(_)),
        "Bad may come back"
    );
    let noted = written(next_step(&one, &policies, Orphans::Keep, at(200 + CLEAR))).record.unwrap();
    assert_eq!(noted.claims, [claim("p", &["Worse=True,0s"])]);
}

// The way of a node from cordon to uncordon.

#[test]
fn a_cordoned_node_is_scheduled_unless_the_policy_only_cordons() {
    let node = bad(&record(DrainPhase::Cordoned));
    assert!(matches!(step(&node, 10), Step::Action(Action::Schedule(_))));
    let cordons = Policy { drain: false, ..policy("p", &["Bad"]) };
    let noted = written(next_step(&node, std::slice::from_ref(&cordons), Orphans::Keep, at(10)))
        .record
        .unwrap();
    assert_eq!(noted.why.as_deref(), Some(cancelled::CORDON_ONLY));
    let node = node.recorded(Some(&noted));
    assert_eq!(next_step(&node, &[cordons], Orphans::Keep, at(11)), Step::Rest, "said once");
}

#[test]
fn a_node_that_could_not_be_drained_is_looked_at_again() {
    let record = Record { next: Some(at(100)), ..record(DrainPhase::Cordoned) };
    assert_eq!(step(&bad(&record), 99), Step::Wait(at(100)));
    assert!(matches!(step(&bad(&record), 100), Step::Action(Action::Schedule(_))));
}

#[test]
fn a_scheduled_drain_begins_at_its_time_and_not_before() {
    let node = bad(&record(DrainPhase::Scheduled));
    assert_eq!(step(&node, 59), Step::Wait(at(60)));
    assert!(matches!(step(&node, 60), Step::Action(Action::Start(_))));
}

#[test]
fn the_condition_is_set_right_before_anything_else() {
    let lacking = bad(&record(DrainPhase::Scheduled)).silent_on("DrainScheduled");
    let Step::Action(Action::Mark { scheduled: true, message }) = step(&lacking, 60) else {
        panic!();
    };
    assert_eq!(message, format!("Drain activity scheduled {}", at(60)));
    let done = bad(&record(DrainPhase::Drained)).reporting("DrainScheduled", True, 0);
    let Step::Action(Action::Mark { scheduled: false, message }) = step(&done, 110) else {
        panic!();
    };
    assert_eq!(message, format!("Drain activity scheduled {} | Completed: {}", at(60), at(100)));
    let failed = bad(&record(DrainPhase::Failed)).reporting("DrainScheduled", True, 0);
    let Step::Action(Action::Mark { scheduled: false, message }) = step(&failed, 610) else {
        panic!();
    };
    assert_eq!(message, format!("Drain activity scheduled {} | Failed: {}", at(60), at(600)));
}

#[test]
fn a_condition_of_others_is_not_touched() {
    let node = kept("n1").reporting("DrainScheduled", True, 0);
    assert_eq!(step(&node, 10), Step::Rest);
}

#[test]
fn a_drain_goes_on_until_its_deadline() {
    let node = bad(&record(DrainPhase::Draining));
    assert!(matches!(step(&node, 599), Step::Action(Action::Continue(_))));
    assert!(matches!(step(&node, 600), Step::Action(Action::Expire(_))));
    assert!(is_draining(&node, "s1", &[policy("p", &["Bad"])], at(599)));
    assert!(!is_draining(&node, "s2", &[policy("p", &["Bad"])], at(599)), "another session");
    assert!(!is_draining(&node, "s1", &[policy("p", &["Bad"])], at(600)), "its time is over");
}

#[test]
fn a_drained_node_is_not_drained_again_and_reported_once_if_it_lingers() {
    let node = bad(&record(DrainPhase::Drained));
    assert_eq!(step(&node, 110), Step::Wait(at(100 + 3600)));
    let change = written(step(&node, 100 + 3600));
    assert_eq!(change.report, Report::Lingers);
    assert_eq!(step(&node.recorded(change.record.as_ref()), 3800), Step::Rest);
}

#[test]
fn a_failed_drain_is_tried_again_after_its_pause_or_on_request() {
    let node = bad(&record(DrainPhase::Failed));
    assert_eq!(step(&node, 1199), Step::Wait(at(1200)));
    assert!(matches!(step(&node, 1200), Step::Action(Action::Start(_))));
    assert!(matches!(step(&node.asking_for_retry(), 700), Step::Action(Action::Start(_))));
    let exhausted = bad(&Record { next: None, ..record(DrainPhase::Failed) });
    assert_eq!(step(&exhausted, 99_999), Step::Rest);
    assert!(matches!(step(&exhausted.asking_for_retry(), 700), Step::Action(Action::Start(_))));
}

#[test]
fn a_node_that_was_uncordoned_until_the_next_try_is_cordoned_for_it() {
    let lifted = Record { cordon: Cordon::Lifted, ..record(DrainPhase::Failed) };
    let node = bad(&lifted);
    assert_eq!(step(&node, 1199), Step::Wait(at(1200)));
    let Step::Action(Action::Begin { failures, .. }) = step(&node, 1200) else { panic!() };
    assert_eq!(failures, 1, "the tries are still counted");
}

// Conditions that clear.

#[test]
fn when_the_conditions_clear_a_planned_drain_and_one_under_way_are_cancelled() {
    for phase in [DrainPhase::Scheduled, DrainPhase::Draining] {
        let node = bad(&record(phase)).reporting("Bad", False, 70);
        let change = written(step(&node, 71));
        assert_eq!(change.report, Report::Cancelled(cancelled::CLEAR));
        assert_eq!(change.unschedulable, None, "the cordon stays until that has lasted");
        let record = change.record.unwrap();
        assert_eq!((record.phase, record.deadline), (DrainPhase::Cordoned, None));
    }
}

#[test]
fn a_policy_may_let_a_drain_under_way_go_on() {
    let goes_on = Policy { stop_when_clear: false, ..policy("p", &["Bad"]) };
    let node = bad(&record(DrainPhase::Draining)).reporting("Bad", False, 70);
    let now = at(71 + CLEAR);
    assert!(matches!(
        next_step(&node, &[goes_on], Orphans::Keep, now),
        Step::Action(Action::Continue(_))
    ));
}

#[test]
fn a_node_is_uncordoned_once_its_conditions_have_been_good_for_long_enough() {
    for phase in [DrainPhase::Cordoned, DrainPhase::Drained, DrainPhase::Failed] {
        let node = bad(&record(phase)).reporting("Bad", False, 1000);
        assert_eq!(step(&node, 1000 + CLEAR - 1), Step::Wait(at(1000 + CLEAR)), "{phase}");
        let change = written(step(&node, 1000 + CLEAR));
        assert_eq!((change.record, change.unschedulable), (None, Some(false)), "{phase}");
    }
}

#[test]
fn the_cordon_of_somebody_else_is_never_lifted() {
    let foreign = Record { cordon: Cordon::Foreign, ..record(DrainPhase::Drained) };
    let node = bad(&foreign).reporting("Bad", False, 1000);
    let change = written(step(&node, 1000 + CLEAR));
    assert_eq!((change.record, change.unschedulable), (None, None));
}

#[test]
fn a_condition_that_is_bad_again_before_that_is_no_cure() {
    let node = bad(&record(DrainPhase::Drained)).reporting("Bad", False, 1000);
    assert!(matches!(step(&node, 1200), Step::Wait(_)));
    let again = node.reporting("Bad", True, 1250);
    assert!(matches!(step(&again, 1000 + CLEAR), Step::Wait(_)), "drained stays drained");
}

#[test]
fn a_condition_that_is_not_reported_any_more_clears_after_the_same_time() {
    let node = bad(&record(DrainPhase::Drained)).silent_on("Bad");
    let noted = written(step(&node, 1000)).record.unwrap();
    assert_eq!(noted.vanished, Some(at(1000)));
    let node = node.recorded(Some(&noted));
    let clear = later(at(1000 + CLEAR), Duration::from_nanos(999_999_999));
    assert_eq!(
        step(&node, 1001),
        Step::Wait(clear),
        "of the second in which it vanished, the end counts"
    );
    assert_eq!(step(&node, 1000 + CLEAR), Step::Wait(clear));
    assert_eq!(written(step(&node, 1001 + CLEAR)).unschedulable, Some(false));
    // It comes back: the next time counts anew.
    let back = node.reporting("Bad", True, 1100);
    assert_eq!(written(step(&back, 1101)).record.unwrap().vanished, None);
}

#[test]
fn what_does_not_clear_by_itself_stays_cordoned() {
    let mut policy = policy("p", &["Bad"]);
    policy.conditions[0].clear_after = None;
    let node = bad(&record(DrainPhase::Drained)).reporting("Bad", False, 1000);
    assert_eq!(next_step(&node, &[policy], Orphans::Keep, at(99_999)), Step::Rest);
}

#[test]
fn a_status_that_is_not_trusted_neither_begins_nor_clears_nor_stops() {
    let mut policies = [policy("p", &["Bad"])];
    policies[0].conditions[0].stale_after = Some(Duration::from_secs(600));
    // Reported without a heartbeat: stale.
    assert_eq!(
        next_step(&kept("n1").reporting("Bad", True, 0), &policies, Orphans::Keep, at(10)),
        Step::Rest
    );
    let drained = bad(&record(DrainPhase::Drained)).reporting("Bad", False, 1000);
    assert_eq!(next_step(&drained, &policies, Orphans::Keep, at(99_999)), Step::Rest);
    let scheduled = bad(&record(DrainPhase::Scheduled));
    assert_eq!(
        next_step(&scheduled, &policies, Orphans::Keep, at(60)),
        Step::Rest,
        "it has to wait"
    );
    let draining = bad(&record(DrainPhase::Draining));
    assert!(matches!(
        next_step(&draining, &policies, Orphans::Keep, at(100)),
        Step::Action(Action::Continue(_))
    ));
    // Whoever reported it does not know any more.
    let unknown = bad(&record(DrainPhase::Draining)).reporting("Bad", Unknown, 90);
    assert!(matches!(step(&unknown, 100), Step::Action(Action::Continue(_))));
}

#[test]
fn what_is_recorded_decides_when_the_policy_has_changed() {
    let other = [policy("p", &["Other"])];
    let node = bad(&record(DrainPhase::Drained));
    assert_eq!(
        next_step(&node, &other, Orphans::Keep, at(110)),
        Step::Rest,
        "the recorded condition is still bad"
    );
    let scheduled = bad(&record(DrainPhase::Scheduled));
    assert_eq!(
        written(next_step(&scheduled, &other, Orphans::Keep, at(60))).report,
        Report::Cancelled(cancelled::CLEAR),
        "nobody asks for its drain any more"
    );
    let good = node.reporting("Bad", False, 1000);
    assert_eq!(
        written(next_step(&good, &other, Orphans::Keep, at(1000 + CLEAR))).unschedulable,
        Some(false)
    );
}

#[test]
fn a_node_that_is_not_selected_any_more_is_not_drained() {
    let mut policies = [policy("p", &["Bad"])];
    policies[0].nodes.labels = vec![(Arc::from("pool"), Arc::from("y"))];
    let node = bad(&record(DrainPhase::Draining));
    let change = written(next_step(&node, &policies, Orphans::Keep, at(100)));
    assert_eq!(change.report, Report::Cancelled(cancelled::CLEAR));
}

// Others who cordon and uncordon.

#[test]
fn somebody_uncordons_and_the_node_is_left_alone() {
    for phase in [DrainPhase::Scheduled, DrainPhase::Draining, DrainPhase::Drained] {
        let node = bad(&record(phase)).unschedulable(false);
        let change = written(step(&node, 110));
        assert_eq!(change.unschedulable, None);
        let released = change.record.unwrap();
        assert_eq!(released.phase, DrainPhase::Released, "{phase}");
        let node = node.recorded(Some(&released)).silent_on("DrainScheduled");
        assert_eq!(step(&node, 120), Step::Rest, "it is still bad, and stays in use");
    }
}

#[test]
fn a_released_node_is_cordoned_again_for_a_new_reason_or_after_it_was_good() {
    let policies = [policy("p", &["Bad", "Worse"])];
    let node = bad(&record(DrainPhase::Released));
    assert_eq!(next_step(&node, &policies, Orphans::Keep, at(110)), Step::Rest);
    let worse = node.clone().reporting("Worse", True, 105);
    assert_eq!(begun(next_step(&worse, &policies, Orphans::Keep, at(110))).len(), 1);
    let good = node.clone().reporting("Bad", False, 200);
    assert_eq!(next_step(&good, &policies, Orphans::Keep, at(201)), Step::Wait(at(200 + CLEAR)));
    let change = written(next_step(&good, &policies, Orphans::Keep, at(200 + CLEAR)));
    assert_eq!((change.record, change.unschedulable, change.report), (None, None, Report::None));
    let cordoned = node.unschedulable(true);
    assert_eq!(
        begun(next_step(&cordoned, &policies, Orphans::Keep, at(110))).len(),
        1,
        "somebody else's cordon"
    );
}

#[test]
fn the_autoscalers_node_is_left_to_it() {
    let bad_node = kept("n1").reporting("Bad", True, 0);
    let removed = bad_node.clone().autoscaled(Autoscaler::Removing);
    assert_eq!(step(&removed, 10), Step::Rest);
    assert_eq!(begun(step(&bad_node.autoscaled(Autoscaler::Candidate), 10)).len(), 1);
    let draining = bad(&record(DrainPhase::Draining)).autoscaled(Autoscaler::Removing);
    let noted = written(step(&draining, 100)).record.unwrap();
    assert!(noted.autoscaler && noted.phase == DrainPhase::Draining);
    let draining = draining.recorded(Some(&noted));
    assert_eq!(step(&draining, 101), Step::Rest, "it evicts, not we");
    assert!(!is_draining(&draining, "s1", &[policy("p", &["Bad"])], at(101)));
}

#[test]
fn on_the_autoscalers_node_nothing_is_set_right() {
    let removed = bad(&record(DrainPhase::Drained)).autoscaled(Autoscaler::Removing);
    // Some of it is not believed, as after a clock was set right.
    let odd = Record {
        ended: Some(at(90_000)),
        forced: true,
        taint: Some(Arc::from("node-role.kubernetes.io/control-plane")),
        ..record(DrainPhase::Drained)
    };
    let noted = written(step(&removed.clone().recorded(Some(&odd)), 100)).record.unwrap();
    assert_eq!(noted, Record { autoscaler: true, ..odd.clone() });
    assert_eq!(step(&removed.clone().recorded(Some(&noted)), 101), Step::Rest);
    let unreadable = removed.with_record("no record");
    assert_eq!(step(&unreadable, 100), Step::Rest);
    assert_eq!(step(&unreadable.clone().being_deleted(), 100), Step::Rest);
    let kept = written(step(&unreadable.autoscaled(Autoscaler::None), 110));
    assert_eq!(kept.record.unwrap().cordon, Cordon::Foreign, "once it is not removed any more");
}

#[test]
fn an_uncordon_while_the_autoscaler_removes_the_node_is_a_persons() {
    let removed = bad(&record(DrainPhase::Draining)).autoscaled(Autoscaler::Removing);
    let uncordoned = removed.clone().unschedulable(false);
    assert_eq!(step(&uncordoned, 100), Step::Rest, "not noted as what the autoscaler may do");
    let noted = Record { autoscaler: true, ..record(DrainPhase::Draining) };
    let uncordoned = uncordoned.recorded(Some(&noted));
    let record = written(step(&uncordoned, 100)).record.unwrap();
    assert!(!record.autoscaler, "noted before, and not true any more");
    let uncordoned = uncordoned.recorded(Some(&record));
    assert_eq!(step(&uncordoned, 101), Step::Rest);
    let change = written(step(&uncordoned.autoscaled(Autoscaler::None), 110));
    assert_eq!(change.record.unwrap().phase, DrainPhase::Released, "and stays undone");
    assert_eq!(change.unschedulable, None);
}

#[test]
fn the_autoscalers_blind_uncordon_is_undone_while_the_reason_holds() {
    let noted = Record { autoscaler: true, ..record(DrainPhase::Drained) };
    let node = bad(&noted).unschedulable(false);
    let change = written(step(&node, 110));
    assert_eq!((change.unschedulable, change.report), (Some(true), Report::CordonedAgain));
    let record = change.record.unwrap();
    assert!(!record.autoscaler && record.phase == DrainPhase::Drained, "and not drained again");
    let good = written(step(&node.reporting("Bad", False, 109), 110));
    assert_eq!((good.record, good.unschedulable), (None, None), "nothing to undo");
    let foreign = Record { cordon: Cordon::Foreign, ..noted };
    let change = written(step(&bad(&foreign).unschedulable(false), 110));
    assert_eq!(change.unschedulable, None, "it was not ours");
}

#[test]
fn a_node_that_is_being_deleted_is_left_alone() {
    let node = kept("n1").reporting("Bad", True, 0).being_deleted();
    assert_eq!(step(&node, 10), Step::Rest);
    assert_eq!(step(&bad(&record(DrainPhase::Draining)).being_deleted(), 100), Step::Rest);
}

// Dead nodes.

#[test]
fn a_dead_node_is_cordoned_and_not_drained_until_it_is_heard_of() {
    let policies = [policy("p", &["Ready=Unknown,10m"])];
    let dead = kept("n1").reporting("Ready", Unknown, 0).ready_is(Unknown, 0);
    let claims = begun(next_step(&dead, &policies, Orphans::Keep, at(600)));
    let cordoned = Record::new(Arc::from("s1"), Cordon::Ours, claims);
    let dead = dead.unschedulable(true).recorded(Some(&cordoned));
    let change = written(next_step(&dead, &policies, Orphans::Keep, at(601)));
    assert_eq!(change.report, Report::Held(Arc::from(cancelled::UNREACHABLE)));
    let held = dead.recorded(change.record.as_ref());
    assert_eq!(next_step(&held, &policies, Orphans::Keep, at(602)), Step::Rest);
    for phase in [DrainPhase::Scheduled, DrainPhase::Draining] {
        let node = bad(&record(phase)).ready_is(Unknown, 50);
        let change = written(step(&node, 61));
        assert_eq!(change.report, Report::Cancelled(cancelled::UNREACHABLE), "{phase}");
        let back = node.ready_is(True, 90).recorded(change.record.as_ref());
        let back = back.silent_on("DrainScheduled");
        assert!(matches!(step(&back, 91), Step::Action(Action::Schedule(_))), "{phase}");
    }
}

// What holds back, and what wakes.

#[test]
fn a_condition_that_is_bad_again_is_waited_for_until_it_is_old_enough() {
    let policies = [policy("p", &["Bad=True,10m"])];
    let claims = vec![claim("p", &["Bad=True,10m0s"])];
    let cordoned = Record { claims, ..record(DrainPhase::Cordoned) };
    let node = bad(&cordoned).reporting("Bad", True, 1000);
    assert_eq!(next_step(&node, &policies, Orphans::Keep, at(1001)), Step::Wait(at(1600)));
    assert!(matches!(
        next_step(&node, &policies, Orphans::Keep, at(1600)),
        Step::Action(Action::Schedule(_))
    ));
}

#[test]
fn a_second_condition_that_becomes_old_enough_is_not_missed() {
    let drains = policy("drains", &["Worse=True,10m"]);
    let cordons = Policy { drain: false, ..policy("cordons", &["Bad"]) };
    let held = Record {
        claims: vec![claim("cordons", &["Bad=True,0s"])],
        why: Some(Arc::from(cancelled::CORDON_ONLY)),
        ..record(DrainPhase::Cordoned)
    };
    let policies = [drains, cordons];
    let node = bad(&held).reporting("Worse", True, 0);
    assert_eq!(next_step(&node, &policies, Orphans::Keep, at(10)), Step::Wait(at(600)));
    let noted = written(next_step(&node, &policies, Orphans::Keep, at(600))).record.unwrap();
    assert_eq!(noted.policy(), "drains");
    let node = node.recorded(Some(&noted));
    assert!(matches!(
        next_step(&node, &policies, Orphans::Keep, at(600)),
        Step::Action(Action::Schedule(_))
    ));
}

#[test]
fn a_policy_that_drains_no_more_calls_off_what_is_planned_and_under_way() {
    let cordons = [Policy { drain: false, ..policy("p", &["Bad"]) }];
    for phase in [DrainPhase::Scheduled, DrainPhase::Draining] {
        let change = written(next_step(&bad(&record(phase)), &cordons, Orphans::Keep, at(100)));
        assert_eq!(change.report, Report::Cancelled(cancelled::CORDON_ONLY), "{phase}");
    }
    assert_eq!(
        next_step(&bad(&record(DrainPhase::Failed)), &cordons, Orphans::Keep, at(5000)),
        Step::Rest
    );
}

#[test]
fn the_settings_of_a_drain_do_not_change_with_another_policys_condition() {
    let policies = [policy("first", &["Worse"]), policy("p", &["Bad"])];
    let node = bad(&record(DrainPhase::Draining)).reporting("Worse", True, 90);
    let noted = written(next_step(&node, &policies, Orphans::Keep, at(100))).record.unwrap();
    assert_eq!((noted.policy(), noted.claims.len()), ("p", 2));
}

#[test]
fn a_deselected_node_is_not_drained_to_the_end_by_any_setting() {
    let mut goes_on = Policy { stop_when_clear: false, ..policy("p", &["Bad"]) };
    goes_on.nodes.labels = vec![(Arc::from("pool"), Arc::from("y"))];
    let change =
        written(next_step(&bad(&record(DrainPhase::Draining)), &[goes_on], Orphans::Keep, at(100)));
    assert_eq!(change.report, Report::Cancelled(cancelled::CLEAR));
}

#[test]
fn an_autoscaler_that_changes_its_mind_leaves_the_uncordon_to_persons() {
    let noted = Record { autoscaler: true, ..record(DrainPhase::Drained) };
    let change = written(step(&bad(&noted), 110));
    let record = change.record.unwrap();
    assert!(!record.autoscaler && change.unschedulable.is_none());
    let uncordoned = bad(&record).unschedulable(false);
    assert_eq!(written(step(&uncordoned, 120)).record.unwrap().phase, DrainPhase::Released);
}

#[test]
fn a_condition_that_cannot_be_set_holds_no_recovery_back() {
    let unmarked = bad(&record(DrainPhase::Drained))
        .reporting("DrainScheduled", True, 0)
        .reporting("Bad", False, 1000);
    assert_eq!(written(step(&unmarked, 1000 + CLEAR)).unschedulable, Some(false));
}

#[test]
fn another_minimum_age_is_no_other_condition() {
    let older = [policy("p", &["Bad=True,5m"])];
    let released = bad(&record(DrainPhase::Released));
    assert_eq!(
        next_step(&released, &older, Orphans::Keep, at(400)),
        Step::Rest,
        "a person has decided"
    );
    let mut never = policy("p", &["Bad=True,5m"]);
    never.conditions[0].clear_after = None;
    let drained = bad(&record(DrainPhase::Drained)).reporting("Bad", False, 1000);
    assert_eq!(next_step(&drained, &[never], Orphans::Keep, at(99_999)), Step::Rest);
}

#[test]
fn what_nobody_can_read_is_left_to_a_person() {
    let policies = [policy("p", &["Bad"])];
    let odd =
        Record { claims: vec![claim("p", &["Bad={\"delay\":1}"])], ..record(DrainPhase::Drained) };
    let node = bad(&odd).reporting("Bad", False, 1000);
    assert_eq!(next_step(&node, &policies, Orphans::Keep, at(99_999)), Step::Rest);
}

// Records that are none.

#[test]
fn a_record_that_cannot_be_read_leaves_the_cordon_to_somebody_else() {
    let broken = |node: Node| node.with_record("{");
    let change = written(step(&broken(kept("n1").unschedulable(true)), 10));
    assert_eq!(change.record.unwrap().cordon, Cordon::Foreign);
    assert_eq!(change.unschedulable, None);
    assert!(matches!(change.report, Report::Unreadable(_)));
    assert_eq!(written(step(&broken(kept("n1")), 10)).record, None);
}

#[test]
fn windows_hold_back_a_beginning_and_nothing_else() {
    let mut closed = policy("p", &["Bad"]);
    closed.windows = vec![Window {
        days: vec![jiff::civil::Weekday::Saturday],
        from: jiff::civil::time(1, 0, 0, 0),
        to: jiff::civil::time(2, 0, 0, 0),
        zone: jiff::tz::TimeZone::UTC,
    }];
    let policies = [closed];
    let node = kept("n1").reporting("Bad", True, 0);
    assert_eq!(
        begun(next_step(&node, &policies, Orphans::Keep, at(10))).len(),
        1,
        "cordoned at once"
    );
    let scheduled = bad(&record(DrainPhase::Scheduled));
    assert!(
        matches!(next_step(&scheduled, &policies, Orphans::Keep, at(60)), Step::Wait(moment) if moment > at(60))
    );
    let draining = bad(&record(DrainPhase::Draining));
    assert!(matches!(
        next_step(&draining, &policies, Orphans::Keep, at(100)),
        Step::Action(Action::Continue(_))
    ));
}

#[test]
fn what_cannot_be_read_of_a_record_is_not_repeated_at_length() {
    let phase = "x".repeat(30_000);
    let text = format!(r#"{{"session":"a","phase":"{phase}"}}"#);
    let change = written(step(&kept("n1").unschedulable(true).with_record(&text), 0));
    let Report::Unreadable(error) = change.report else { panic!("{:?}", change.report) };
    assert!(error.contains("ostrakon.dev/drain") && error.len() < 1_000, "{}", error.len());
}

mod orphaned;
