//! A pause holds cordons and starts of drains, and never what takes them back. The controller takes part in
//! no election here, and reads the lease for pauses only.

use std::time::Duration;

use super::*;
use crate::pauses::annotate;

impl Stage {
    /// Somebody pauses, and the controller has seen it.
    async fn pause(&self) {
        annotate(&self.cluster, Some("x"));
        self.pass(1500).await;
    }

    async fn resume(&self) {
        annotate(&self.cluster, None);
        self.pass(2500).await;
    }

    async fn pass(&self, milliseconds: u64) {
        sleep(Duration::from_millis(milliseconds)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn during_a_pause_no_node_is_cordoned_and_after_it_all_that_are_bad() {
    let stage = stage(|_| {});
    stage.pause().await;
    stage.bad_node("n1");
    stage.pod("a", "n1");
    stage.pass(600_000).await;
    assert!(!stage.is_cordoned("n1") && stage.has_pod("a") && stage.record("n1").is_none());
    stage.resume().await;
    stage.pass(10_000).await;
    assert!(stage.is_cordoned("n1") && !stage.has_pod("a"));
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Drained));
}

#[tokio::test(start_paused = true)]
async fn a_pause_before_the_start_is_seen_before_the_first_write() {
    let mut stage = Stage::idle(vec![policy("p", &["Bad"])]);
    annotate(&stage.cluster, Some("x"));
    stage.bad_node("n1");
    stage.start();
    stage.pass(60_000).await;
    assert!(!stage.is_cordoned("n1"));
}

#[tokio::test(start_paused = true)]
async fn a_scheduled_drain_does_not_start_during_a_pause() {
    let stage = stage(|policy| policy.pace.notice = Duration::from_secs(60));
    stage.bad_node("n1");
    stage.pod("a", "n1");
    stage.pass(10_000).await;
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Scheduled));
    stage.pause().await;
    stage.pass(600_000).await;
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Scheduled));
    assert!(stage.has_pod("a"));
    stage.resume().await;
    stage.pass(10_000).await;
    assert!(!stage.has_pod("a"));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_recovers_during_a_pause_is_uncordoned() {
    let stage = stage(|policy| policy.conditions[0].clear_after = Some(Duration::from_secs(5)));
    stage.bad_node("n1");
    stage.pass(10_000).await;
    assert!(stage.is_cordoned("n1"));
    stage.pause().await;
    stage.report("n1", "Bad", "False");
    stage.pass(7_000).await;
    assert!(!stage.is_cordoned("n1") && stage.uncordons("n1") == 1);
    // And another one that becomes bad waits.
    stage.bad_node("n2");
    stage.pass(60_000).await;
    assert!(!stage.is_cordoned("n2"));
}

#[tokio::test(start_paused = true)]
async fn a_drain_under_way_keeps_its_state_and_has_its_whole_time_after_a_pause() {
    let stage = stage(|policy| {
        policy.deadline = Some(Duration::from_secs(300));
        policy.at_deadline = ostrakon::drain::AtDeadline::DeleteRest;
    });
    stage.budget(0);
    stage.bad_node("n1");
    stage.pod("a", "n1");
    stage.pod_of("other", "b", "n1");
    stage.pass(30_000).await;
    assert_eq!(stage.gone(), ["b"]);
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Draining));
    stage.pause().await;
    stage.let_go(5);
    // Long beyond its deadline.
    stage.pass(3_600_000).await;
    assert_eq!(stage.gone(), ["b"], "nothing is evicted, although the budget would let it");
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Draining));
    stage.let_go(0);
    stage.resume().await;
    stage.pass(200_000).await;
    assert_eq!(stage.gone(), ["b"], "the budget is respected for the whole time once more");
    let record = stage.record("n1").unwrap();
    assert!(record.phase == DrainPhase::Draining && !record.forced, "{record:?}");
    stage.pass(120_000).await;
    assert_eq!(stage.gone(), ["b", "a"], "after that the deadline counts");
}
