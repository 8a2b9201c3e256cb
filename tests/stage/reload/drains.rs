//! What drains make of a new configuration.

use super::*;

/// Seconds from the start of the drain to its deadline.
fn length(record: &Record) -> i64 {
    record.deadline.unwrap().duration_since(record.started.unwrap()).as_secs()
}

/// `n1` is being drained by a file with these policies; a budget holds its pod.
async fn draining(entries: &[String]) -> Bed {
    let bed = Bed::new(&policies(entries)).await;
    bed.budget();
    bed.pod("a", json!([]));
    bed.bad();
    bed.pass(60.0).await;
    assert_eq!(bed.record().phase, DrainPhase::Draining);
    bed
}

#[tokio::test(start_paused = true)]
async fn a_drain_under_way_keeps_its_session_and_deadline_when_its_policy_changes() {
    for (before, after, hours) in [("1h", "10h", 0.5), ("10h", "1h", 3.0), ("100h", "10m", 6.0)] {
        let bed = draining(&[policy("p", &format!(", deadline: {before}"))]).await;
        let record = bed.record();
        bed.apply(&policies(&[policy("p", &format!(", deadline: {after}"))])).await;
        bed.pass(hours * 3600.0).await;
        let later = bed.record();
        assert_eq!(later.phase, DrainPhase::Draining, "{before}, {after}");
        assert_eq!((later.session, later.started), (record.session, record.started));
        assert_eq!(later.deadline, record.deadline, "{before}, {after}");
        assert_eq!(bed.told("Draining node"), 1);
        bed.remove_budget();
        bed.pass(120.0).await;
        assert_eq!((bed.record().phase, bed.pods()), (DrainPhase::Drained, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn another_policy_that_takes_a_drain_over_does_not_end_it() {
    let both = [policy("p", ", deadline: 2h"), policy("q", ", atDeadline: DeleteRest")];
    let bed = draining(&both).await;
    let deadline = bed.record().deadline;
    assert_eq!(length(&bed.record()), 7200);
    bed.apply(&policies(&both[1..])).await;
    bed.pass(1800.0).await;
    let record = bed.record();
    assert_eq!((record.policy(), record.phase), ("q", DrainPhase::Draining));
    assert_eq!(record.deadline, deadline);
    assert_eq!((bed.pods(), bed.count(Asked::Deleted)), (1, 0), "the budget still holds it");
    bed.apply(&policies(&both)).await;
    bed.pass(600.0).await;
    assert_eq!((bed.record().phase, bed.record().deadline), (DrainPhase::Draining, deadline));
    bed.remove_budget();
    bed.pass(120.0).await;
    assert_eq!((bed.record().phase, bed.pods()), (DrainPhase::Drained, 0));
}

#[tokio::test(start_paused = true)]
async fn a_drain_whose_policy_is_removed_evicts_nothing_more_and_goes_on_when_it_is_back() {
    let own = policies(&[policy("p", ", deadline: 2h")]);
    let bed = draining(&[policy("p", ", deadline: 2h")]).await;
    let session = bed.record().session;
    bed.apply("").await;
    bed.pass(1.0).await;
    let evicted = bed.count(Asked::Evicted);
    assert_eq!(bed.metric("ostrakon_drain_backlog_pods", &[]), 0.0);
    bed.remove_budget();
    bed.pass(3600.0).await;
    assert_eq!((bed.count(Asked::Evicted), bed.pods()), (evicted, 1));
    assert!(bed.is_cordoned(), "the cordon stays by default");
    bed.apply(&own).await;
    bed.pass(120.0).await;
    assert_eq!((bed.record().phase, bed.pods()), (DrainPhase::Drained, 0));
    assert_eq!(bed.record().session, session, "it is not a new cordon");
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_is_put_back_does_not_shorten_the_drain() {
    let own = policies(&[policy("p", ", deadline: 2h, atDeadline: DeleteRest")]);
    let bed = draining(&[policy("p", ", deadline: 2h, atDeadline: DeleteRest")]).await;
    let before = bed.record().deadline;
    bed.apply("").await;
    bed.pass(60.0).await;
    bed.apply(&own).await;
    bed.pass(1800.0).await;
    let record = bed.record();
    assert_eq!(record.phase, DrainPhase::Draining);
    assert!(record.deadline >= before, "{:?} {before:?}", record.deadline);
    assert_eq!(length(&record), 7200, "the whole time of the policy");
    assert_eq!(
        (bed.pods(), bed.count(Asked::Deleted)),
        (1, 0),
        "the budget is respected until then"
    );
}

#[tokio::test(start_paused = true)]
async fn a_file_without_policies_gets_some_and_loses_them_again() {
    let bed = Bed::new("").await;
    bed.pod("a", json!([]));
    bed.bad();
    bed.pass(120.0).await;
    assert!(!bed.is_cordoned());
    bed.apply(&policies(&[policy("p", "")])).await;
    bed.pass(10.0).await;
    assert!(bed.is_cordoned(), "a condition that was there before is known");
    assert_eq!((bed.record().phase, bed.pods()), (DrainPhase::Drained, 0));
    bed.apply("").await;
    bed.change_node(Part::Whole, |node| node["spec"]["unschedulable"] = json!(false));
    bed.pod("b", json!([]));
    bed.pass(600.0).await;
    assert!(!bed.is_cordoned() && bed.has_pod("b"));
}
