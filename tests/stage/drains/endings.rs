//! Drains after their deadline.

use ostrakon::drain::{AtDeadline, Retry};

use super::*;

/// A node whose only pod is held back by its budget, with a deadline after 25 s.
fn held_back(at_deadline: AtDeadline, attempts: u32) -> Stage {
    let stage = stage(|policy| {
        policy.deadline = Some(Duration::from_secs(25));
        policy.at_deadline = at_deadline;
        let (first, most) = (Duration::from_secs(60), Duration::from_secs(120));
        policy.retry = Retry { first, most, attempts };
    });
    stage.bad_node("n1");
    stage.pod("a", "n1");
    stage.budget(0);
    stage
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_is_given_up_leaves_the_cordon_and_evicts_nobody_until_the_next_try() {
    let stage = held_back(AtDeadline::GiveUp, 8);
    seconds(28).await;
    let record = stage.record("n1").unwrap();
    assert_eq!((record.phase, record.failures), (DrainPhase::Failed, 1));
    assert!(stage.is_cordoned("n1"));
    let (status, message) = stage.mark("n1").unwrap();
    assert!(status == "False" && message.contains(" | Failed: "), "{status} {message}");
    assert_eq!((stage.told("Draining failed: "), stage.told("Drained node")), (1, 0));
    assert_eq!(stage.counted("draino_drained_nodes_total", &["failed"]), 1);
    assert_eq!(stage.counted("draino_drained_nodes_total", &["succeeded"]), 0);
    stage.let_go(1);
    seconds(20).await;
    assert!(stage.gone().is_empty(), "not before its time");
    seconds(60).await;
    assert_eq!((stage.gone().len(), stage.phase("n1")), (1, Some(DrainPhase::Drained)));
    assert_eq!(stage.told("Drained node"), 1);
}

#[tokio::test(start_paused = true)]
async fn failed_drains_are_tried_again_with_growing_pauses_and_at_last_on_request_only() {
    let stage = held_back(AtDeadline::GiveUp, 3);
    let mut ends = Vec::new();
    for failures in 1..=3 {
        while stage
            .record("n1")
            .is_none_or(|r| r.failures < failures || r.phase != DrainPhase::Failed)
        {
            seconds(1).await;
            assert!(stage.clock.now() < noon() + jiff::SignedDuration::from_hours(1));
        }
        let record = stage.record("n1").unwrap();
        ends.push((record.ended.unwrap(), record.next));
    }
    let pauses: Vec<_> = ends
        .iter()
        .map(|(ended, next)| next.map(|next| next.duration_since(*ended).as_secs()))
        .collect();
    let [Some(first), Some(second), None] = pauses[..] else { panic!("{pauses:?}") };
    assert!((29..=60).contains(&first) && (59..=120).contains(&second), "{pauses:?}");
    minutes(20).await;
    assert_eq!((stage.times("n1", DrainPhase::Draining), stage.told("Draining node")), (3, 3));

    stage.annotate("n1", NodeDrainFacts::RETRY_ANNOTATION, "true");
    minutes(20).await;
    assert_eq!(stage.times("n1", DrainPhase::Draining), 4, "once more, and no loop");
    assert!(
        stage.stored("n1")["metadata"]["annotations"][NodeDrainFacts::RETRY_ANNOTATION].is_null()
    );
    assert_eq!(stage.record("n1").unwrap().failures, 4);

    stage.let_go(1);
    stage.annotate("n1", NodeDrainFacts::RETRY_ANNOTATION, "true");
    minutes(1).await;
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Drained));
}

#[tokio::test(start_paused = true)]
async fn at_the_deadline_a_node_may_be_uncordoned_until_the_next_try() {
    let stage = held_back(AtDeadline::Uncordon, 8);
    seconds(28).await;
    assert!(!stage.is_cordoned("n1") && stage.phase("n1") == Some(DrainPhase::Failed));
    stage.let_go(1);
    seconds(20).await;
    assert!(stage.gone().is_empty());
    seconds(60).await;
    assert!(stage.is_cordoned("n1"));
    assert_eq!((stage.gone().len(), stage.phase("n1")), (1, Some(DrainPhase::Drained)));
}

#[tokio::test(start_paused = true)]
async fn at_the_deadline_the_cordon_of_a_person_is_not_lifted() {
    let stage = stage(|policy| {
        policy.deadline = Some(Duration::from_secs(25));
        policy.at_deadline = AtDeadline::Uncordon;
    });
    stage.node("n1");
    stage.set_unschedulable("n1", true);
    stage.pod("a", "n1");
    stage.budget(0);
    stage.report("n1", "Bad", "True");
    minutes(1).await;
    assert!(stage.is_cordoned("n1") && stage.phase("n1") == Some(DrainPhase::Failed));
}

#[tokio::test(start_paused = true)]
async fn at_the_deadline_the_rest_may_be_deleted_whatever_its_budget_says() {
    let stage = held_back(AtDeadline::DeleteRest, 8);
    seconds(20).await;
    assert!(stage.gone().is_empty());
    seconds(20).await;
    assert_eq!((stage.gone().len(), stage.phase("n1")), (1, Some(DrainPhase::Drained)));
    assert_eq!((stage.told("Deleting Pod default/a"), stage.told("Draining failed")), (1, 0));
    assert!(!stage.record("n1").unwrap().forced, "nothing is deleted any more");
}

#[tokio::test(start_paused = true)]
async fn one_that_fails_does_not_keep_others_from_being_drained() {
    let stage = held_back(AtDeadline::GiveUp, 8);
    stage.bad_node("n2");
    stage.pod_with("b", "n2", |pod| pod["metadata"]["labels"] = json!({}));
    seconds(10).await;
    assert_eq!(stage.phase("n2"), Some(DrainPhase::Drained));
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Draining));
}
