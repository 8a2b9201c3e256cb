//! Restarts, stale facts, clock steps, and pods that are recreated under the same name.

use super::facts::{at, exists, node, not_ready, pod, taint};
use super::*;

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
    for _ in 0..5 {
        stage.pass_secs(11.0).await;
        stage.restart().await;
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
    stage.pass_secs(5.0).await;
    stage.die();
    stage.pass_secs(600.0).await;
    assert!(stage.asked().is_empty());
    stage.restart().await;
    stage.pass_secs(0.1).await;
    assert_eq!(stage.deletions("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_record_goes_with_the_last_pod_that_needs_it() {
    let stage = Stage::new();
    stage.put_pod(counting(60)).await;
    stage.put_node(tainted()).await;
    stage.pass_secs(5.0).await;
    assert!(stage.record().is_some());
    stage.remove_pod("a").await;
    stage.pass_secs(5.0).await;
    assert_eq!(stage.record(), None, "looked at without any event of the node");
    stage.put_pod(pod("b").tolerating(exists("k"))).await;
    stage.pass_secs(60.0).await;
    assert_eq!(stage.record(), None, "a pod that tolerates it for ever needs none");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_is_replaced_and_moves_nothing_early() {
    let stage = Stage::new();
    stage.put_pod(counting(60)).await;
    stage.put_node(tainted().recorded("{\"taints\":[{\"key\":")).await;
    stage.pass_secs(5.0).await;
    let record = stage.record().unwrap();
    assert!(ostrakon::taint::record::parse(&record).is_ok(), "{record}");
    stage.pass_secs(54.8).await;
    assert!(stage.asked().is_empty());
    stage.pass_secs(0.5).await;
    assert_eq!(stage.deletions("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_a_stranger_edits_on_a_live_node_moves_nothing() {
    let stage = Stage::new();
    stage.put_pod(counting(60)).await;
    stage.put_node(tainted()).await;
    stage.pass_secs(5.0).await;
    let long_ago = r#"{"taints":[{"key":"k","value":"","since":"2020-01-01T00:00:00Z"}]}"#;
    stage.put_node(tainted().recorded(long_ago)).await;
    stage.pass_secs(54.8).await;
    assert!(stage.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_manager_that_strips_and_re_adds_a_taint_moves_nothing() {
    let mut stage = Stage::new();
    let outage = |added: i64| node("n1").not_ready_since(0).tainted(not_ready(added));
    let pod = pod("a").tolerating(exists("node.kubernetes.io/not-ready").lasting(300));
    stage.put_pod(pod).await;
    stage.put_node(outage(0)).await;
    stage.pass_secs(100.0).await;
    stage.put_node(node("n1").not_ready_since(0)).await;
    stage.pass_secs(8.0).await;
    stage.put_node(outage(108)).await;
    stage.restart().await;
    stage.pass_secs(191.5).await;
    assert!(stage.asked().is_empty());
    stage.pass_secs(1.7).await;
    assert_eq!(stage.deletions("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_gap_that_is_too_long_ends_the_outage_and_its_record() {
    let stage = Stage::new();
    let pod = pod("a").tolerating(exists("node.kubernetes.io/not-ready").lasting(300));
    stage.put_pod(pod).await;
    stage.put_node(node("n1").not_ready_since(0).tainted(not_ready(0))).await;
    stage.pass_secs(10.0).await;
    stage.put_node(node("n1").not_ready_since(0)).await;
    stage.pass_secs(5.0).await;
    assert!(stage.record().is_some(), "kept through the gap");
    stage.pass_secs(61.0).await;
    assert_eq!(stage.record(), None, "removed without any event of the node");
    stage.put_node(node("n1").not_ready_since(0).tainted(not_ready(76))).await;
    stage.pass_secs(299.0).await;
    assert!(stage.asked().is_empty(), "counted from the new taint");
    stage.pass_secs(2.2).await;
    assert_eq!(stage.deletions("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_created_again_is_not_deleted_by_its_predecessors_timer() {
    // Delete and create are seen one after the other, or as one list that merges them.
    for merged in [false, true] {
        let stage = Stage::new();
        stage.put_pod(counting(60)).await;
        stage.put_node(tainted()).await;
        stage.pass_secs(30.0).await;
        if merged {
            stage.hold(Resource::Pods);
        }
        stage.remove_pod("a").await;
        stage.put_pod(counting(60).bound_at(30)).await;
        if merged {
            stage.see_anew(Resource::Pods).await;
        } else {
            stage.pass_secs(5.0).await;
        }
        stage.pass_secs(55.5).await;
        assert!(stage.asked().is_empty(), "the old one's time is over, the new one's is not");
        stage.pass_secs(0.7).await;
        assert_eq!(stage.deletions("a").len(), 1, "counted from its own binding");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_created_again_elsewhere_is_left_alone() {
    let stage = Stage::new();
    stage.put_pod(counting(60)).await;
    stage.put_node(tainted()).await;
    stage.put_node(node("n2")).await;
    stage.pass_secs(30.0).await;
    // The old one's end is not seen before its timer fires.
    stage.hold(Resource::Pods);
    stage.drop_pod("a");
    stage.store_pod(&pod("a").on("n2"));
    stage.pass_secs(60.0).await;
    stage.see_anew(Resource::Pods).await;
    stage.pass_secs(600.0).await;
    assert!(stage.deletions("a").is_empty(), "the request names the old UID");
    assert!(stage.has_pod("a"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_overtakes_the_removal_of_the_taint_is_kept() {
    let stage = Stage::new();
    stage.put_node(tainted()).await;
    stage.pass_secs(60.0).await;
    // The network agent takes the taint off; a pod is bound; the pod is seen first.
    stage.hold(Resource::Nodes);
    stage.put_node(node("n1")).await;
    stage.put_pod(pod("a").bound_at(60)).await;
    stage.pass_secs(1.0).await;
    assert!(stage.asked().is_empty());
    stage.see_anew(Resource::Nodes).await;
    stage.pass_secs(600.0).await;
    assert!(stage.asked().is_empty());
    assert_eq!(stage.backlog(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_returns_is_judged_anew() {
    let stage = Stage::new();
    stage.put_pod(counting(60)).await;
    stage.put_node(tainted()).await;
    stage.pass_secs(30.0).await;
    assert_eq!(stage.armed(), 1);
    stage.remove_node("n1").await;
    assert_eq!(stage.armed(), 0);
    stage.pass_secs(100.0).await;
    assert!(stage.asked().is_empty());
    stage.put_node(tainted()).await;
    stage.pass_secs(59.5).await;
    assert!(stage.asked().is_empty(), "counted from the new node's taint");
    stage.pass_secs(1.0).await;
    assert_eq!(stage.deletions("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_re_arms_and_fires_nothing_that_is_not_due() {
    // The API server's time and the machine's step forwards together, and back again or not.
    for steps_back in [false, true] {
        let stage = Stage::new();
        stage.put_pod(counting(3600)).await;
        stage.put_node(tainted()).await;
        stage.pass_secs(60.0).await;
        stage.cluster.store().clock().set(at(1860));
        stage.pass_secs(60.0).await;
        assert!(stage.asked().is_empty());
        if steps_back {
            stage.cluster.store().clock().set(at(120));
        }
        stage.pass_secs(1670.0).await;
        assert!(stage.asked().is_empty());
        stage.pass_secs(20.0).await;
        assert_eq!(stage.deletions("a").len(), usize::from(!steps_back), "half an hour earlier");
        stage.pass_secs(1780.0).await;
        assert_eq!(stage.deletions("a").len(), usize::from(!steps_back));
        stage.pass_secs(20.0).await;
        assert_eq!(stage.deletions("a").len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_countdown_never_fires_and_a_new_one_is_its_own() {
    let stage = Stage::new();
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
        let stage = Stage::new();
        stage.put_pod(counting(seconds)).await;
        stage.put_node(tainted()).await;
        stage.pass_secs(60.0).await;
        // Past the day after which far timers are looked at again.
        tokio::time::advance(Duration::from_secs(90_000)).await;
        stage.settle().await;
        assert!(stage.asked().is_empty(), "{seconds}");
    }
}
