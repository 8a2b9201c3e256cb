//! Restarts, stale facts, steps of the clock, and pods that come back under their old names.

use super::*;
use crate::model::ConditionStatus;
use crate::model::build::{at, exists, node, not_ready, pod, taint};

fn tainted() -> Node {
    node("n1").tainted(taint("k", ""))
}

fn counting(seconds: i64) -> Pod {
    pod("a").tolerating(exists("k").lasting(seconds))
}

#[tokio::test(start_paused = true)]
async fn a_deadline_survives_every_restart() {
    let mut stage = Stage::new();
    stage.put_pod(counting(60)).await;
    stage.put_node(tainted()).await;
    stage.write_records().await;
    for _ in 0..5 {
        stage.pass_secs(11.0).await;
        stage = stage.restart().await;
        assert!(stage.asked().is_empty());
    }
    stage.pass_secs(4.5).await;
    assert!(stage.asked().is_empty(), "not before its deadline");
    stage.pass_secs(1.0).await;
    assert_eq!(stage.deletions("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_passed_while_nobody_was_there_is_overdue() {
    let mut stage = Stage::new();
    stage.put_pod(counting(60)).await;
    stage.put_node(tainted()).await;
    stage.write_records().await;
    // The process is down for ten minutes.
    tokio::time::advance(Duration::from_secs(600)).await;
    let mut stage = stage.restart().await;
    stage.pass_secs(0.1).await;
    assert_eq!(stage.deletions("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_record_goes_with_the_last_pod_that_needs_it() {
    let mut stage = Stage::new();
    let counting = counting(60);
    stage.put_pod(counting.clone()).await;
    stage.put_node(tainted()).await;
    stage.write_records().await;
    let record = |stage: &Stage| stage.cluster.lock().nodes["n1"].since_annotation.clone();
    assert!(record(&stage).is_some());
    stage.remove_pod(&counting).await;
    stage.write_records().await;
    assert_eq!(record(&stage), None);
    stage.put_pod(pod("b").tolerating(exists("k"))).await;
    stage.write_records().await;
    assert_eq!(record(&stage), None, "a pod that tolerates it for ever needs none");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_gone_has_the_record_looked_at() {
    let mut stage = Stage::new();
    let counting = counting(60);
    stage.put_pod(counting.clone()).await;
    stage.put_node(tainted()).await;
    stage.write_records().await;
    let fired = stage.shared.records.next().await;
    stage.shared.records.complete(&fired.key, fired.token, pipeline::Outcome::Done);
    assert!(stage.shared.records.is_empty());
    stage.remove_pod(&counting).await;
    assert!(stage.shared.records.get(&counting.node).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_is_replaced_and_moves_nothing_early() {
    let mut stage = Stage::new();
    let mut garbled = tainted();
    garbled.since_annotation = Some(Arc::from("{\"taints\":[{\"key\":"));
    stage.put_pod(counting(60)).await;
    stage.put_node(garbled).await;
    stage.write_records().await;
    let record = stage.cluster.lock().nodes["n1"].since_annotation.clone().unwrap();
    assert!(crate::taint::record::parse(&record).is_ok(), "{record}");
    stage.pass_secs(59.8).await;
    assert!(stage.asked().is_empty());
    stage.pass_secs(0.5).await;
    assert_eq!(stage.deletions("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_a_stranger_edits_on_a_live_node_moves_nothing() {
    let mut stage = Stage::new();
    stage.put_pod(counting(60)).await;
    stage.put_node(tainted()).await;
    stage.write_records().await;
    let mut edited = tainted();
    let long_ago = r#"{"taints":[{"key":"k","value":"","since":"2020-01-01T00:00:00Z"}]}"#;
    edited.since_annotation = Some(Arc::from(long_ago));
    stage.put_node(edited).await;
    stage.pass_secs(59.8).await;
    assert!(stage.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_manager_that_strips_and_re_adds_a_taint_moves_nothing() {
    let mut stage = Stage::new();
    let outage =
        |added: i64| node("n1").ready_is(ConditionStatus::False, 0).tainted(not_ready(added));
    let pod = pod("a").tolerating(exists("node.kubernetes.io/not-ready").lasting(300));
    stage.put_pod(pod.clone()).await;
    stage.put_node(outage(0)).await;
    stage.write_records().await;
    stage.pass_secs(100.0).await;
    stage.put_node(node("n1").ready_is(ConditionStatus::False, 0)).await;
    assert!(stage.timer(&pod).is_none(), "without a taint nothing counts");
    stage.pass_secs(8.0).await;
    stage.put_node(outage(108)).await;
    let mut stage = stage.restart().await;
    stage.pass_secs(191.5).await;
    assert!(stage.asked().is_empty());
    stage.pass_secs(1.0).await;
    assert_eq!(stage.deletions("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_gap_that_is_too_long_ends_the_outage_and_its_record() {
    let mut stage = Stage::new();
    let pod = pod("a").tolerating(exists("node.kubernetes.io/not-ready").lasting(300));
    stage.put_pod(pod.clone()).await;
    stage.put_node(node("n1").ready_is(ConditionStatus::False, 0).tainted(not_ready(0))).await;
    stage.write_records().await;
    stage.pass_secs(10.0).await;
    stage.put_node(node("n1").ready_is(ConditionStatus::False, 0)).await;
    stage.write_records().await;
    let record = |stage: &Stage| stage.cluster.lock().nodes["n1"].since_annotation.clone();
    assert!(record(&stage).is_some(), "kept through the gap");
    stage.pass_secs(61.0).await;
    stage.write_records().await;
    assert_eq!(record(&stage), None, "removed without any event of the node");
    stage.put_node(node("n1").ready_is(ConditionStatus::False, 0).tainted(not_ready(71))).await;
    stage.pass_secs(299.0).await;
    assert!(stage.asked().is_empty(), "counted from the new taint");
    stage.pass_secs(1.5).await;
    assert_eq!(stage.deletions("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_created_again_is_not_deleted_by_its_predecessors_timer() {
    // Delete and create are seen one after the other, or as one list that merges them.
    for merged in [false, true] {
        let mut stage = Stage::new();
        let old = counting(60);
        stage.put_pod(old.clone()).await;
        stage.put_node(tainted()).await;
        stage.pass_secs(30.0).await;
        let new = Pod { uid: Uid(4711), ..counting(60).bound_at(30) };
        if merged {
            stage.replace_pod_unseen(&old, &new);
            stage.see_pods().await;
        } else {
            stage.remove_pod(&old).await;
            stage.put_pod(new.clone()).await;
        }
        stage.pass_secs(59.5).await;
        assert!(stage.asked().is_empty(), "the old one's time is over, the new one's is not");
        stage.pass_secs(1.0).await;
        assert_eq!(stage.deletions("a").len(), 1, "counted from its own binding");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_created_again_elsewhere_is_left_alone() {
    let mut stage = Stage::new();
    let old = counting(60);
    stage.put_pod(old.clone()).await;
    stage.put_node(tainted()).await;
    stage.put_node(node("n2")).await;
    stage.pass_secs(30.0).await;
    let new = Pod { uid: Uid(4711), ..pod("a").on("n2") };
    stage.replace_pod_unseen(&old, &new);
    // The old one's end is not seen before its timer fires.
    crate::controller::ingest::take_pod(&stage.shared, new);
    stage.pass_secs(600.0).await;
    assert!(stage.deletions("a").is_empty(), "the request names the old UID");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_overtakes_the_removal_of_the_taint_is_kept() {
    let mut stage = Stage::new();
    stage.put_node(tainted()).await;
    stage.pass_secs(60.0).await;
    // The network agent takes the taint off; a pod is bound; the pod is seen first.
    stage.put_node_unseen(node("n1"));
    stage.put_pod(pod("a").bound_at(60)).await;
    stage.pass_secs(1.0).await;
    assert!(stage.asked().is_empty());
    stage.put_node(node("n1")).await;
    stage.pass_secs(600.0).await;
    assert!(stage.asked().is_empty());
    assert!(stage.shared.backlog.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_returns_is_judged_anew() {
    let mut stage = Stage::new();
    let pod = counting(60);
    stage.put_pod(pod.clone()).await;
    stage.put_node(tainted()).await;
    stage.pass_secs(30.0).await;
    stage.remove_node("n1").await;
    assert!(stage.timer(&pod).is_none());
    stage.pass_secs(100.0).await;
    assert!(stage.asked().is_empty());
    stage.put_node(Node { uid: Uid(99), ..tainted() }).await;
    stage.pass_secs(59.5).await;
    assert!(stage.asked().is_empty(), "counted from the new node's taint");
    stage.pass_secs(1.0).await;
    assert_eq!(stage.deletions("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_re_arms_and_fires_nothing_that_is_not_due() {
    let mut stage = Stage::new();
    let counting = counting(3600);
    stage.put_pod(counting.clone()).await;
    stage.put_node(tainted()).await;
    // Confirmed by the API server: it is half an hour later than was thought.
    stage.shared.clock.set(at(1800));
    assert_eq!(stage.shared.rearm(), 1);
    assert!(stage.timer(&counting).is_some_and(|left| (left - 1800.0).abs() < 1.0));
    stage.settle().await;
    assert!(stage.asked().is_empty());
    // Back again: it moves away again.
    stage.shared.clock.set(at(0));
    stage.shared.rearm();
    stage.pass_secs(3599.0).await;
    assert!(stage.asked().is_empty());
    stage.pass_secs(1.5).await;
    assert_eq!(stage.deletions("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_countdown_never_fires_and_a_new_one_is_its_own() {
    let mut stage = Stage::new();
    stage.put_pod(counting(10)).await;
    for round in 0..20 {
        stage.put_node(tainted()).await;
        stage.pass_secs(9.0).await;
        stage.put_node(node("n1")).await;
        stage.pass_secs(0.5).await;
        assert!(stage.asked().is_empty(), "round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_in_the_far_future_neither_panics_nor_fires() {
    for seconds in [9_223_372_037, 10_000_000_000, 20_000_000_000, i64::MAX] {
        let mut stage = Stage::new();
        stage.put_pod(counting(seconds)).await;
        stage.put_node(tainted()).await;
        stage.pass_secs(3600.0).await;
        // Past the day after which far timers are looked at again.
        tokio::time::advance(Duration::from_secs(90_000)).await;
        stage.settle().await;
        assert!(stage.asked().is_empty(), "{seconds}");
    }
}
