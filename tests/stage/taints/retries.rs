//! Failed evictions and their retries: upstream's test cases of durable retries, and more.

use std::sync::atomic::{AtomicBool, Ordering};

use super::facts::{equal, exists, node, pod, taint};
use super::*;

fn tainted() -> Node {
    node("n1").tainted(taint("testTaint1", "test1"))
}

fn tolerating(seconds: i64) -> Pod {
    pod("a").tolerating(equal("testTaint1", "test1").lasting(seconds))
}

#[tokio::test(start_paused = true)]
async fn a_denied_eviction_is_tried_for_ever_at_a_growing_pace_and_announced_once() {
    let stage = Stage::new();
    stage.deny(403);
    stage.put_pod(pod("a")).await;
    stage.put_node(tainted()).await;
    stage.pass_secs(20.0).await;
    let tries = stage.deletions("a");
    assert!((5..=9).contains(&tries.len()), "doubling from 250 ms: {tries:?}");
    for window in tries.windows(3) {
        assert!(window[2] - window[1] > (window[1] - window[0]) * 0.45, "{tries:?}");
    }
    stage.pass_secs(3600.0).await;
    let tries = stage.deletions("a");
    assert!(tries.len() >= 30, "every two minutes at the least: {}", tries.len());
    let forbidden = || stage.process().metric("ostrakon_backlog_pods", &["forbidden"]);
    assert!((forbidden() - 1.0).abs() < 0.1);
    let events = stage.wire.events();
    assert_eq!(events.iter().filter(|e| e.starts_with("Marking")).count(), 1);
    assert_eq!(events.iter().filter(|e| e.starts_with("Cannot delete")).count(), 1);

    stage.allow();
    stage.pass_secs(121.0).await;
    assert_eq!(stage.deletions("a").len(), tries.len() + 1, "gone at the next try, and no more");
    assert!(forbidden().abs() < 0.1);
    assert!(stage.backlog() == 0);
    stage.pass_secs(600.0).await;
    assert_eq!(stage.deletions("a").len(), tries.len() + 1);
}

#[tokio::test(start_paused = true)]
async fn a_zero_second_toleration_changes_nothing_about_the_retries() {
    let stage = Stage::new();
    stage.deny(403);
    stage.put_pod(pod("a")).await;
    stage.put_node(tainted()).await;
    stage.pass_secs(10.0).await;
    let before = stage.deletions("a");
    stage.put_pod(tolerating(0)).await;
    let after = stage.deletions("a");
    assert_eq!(before.len(), after.len(), "the pause goes on: no new burst");
    stage.pass_secs(60.0).await;
    let tries = stage.deletions("a");
    let last = tries[tries.len() - 1] - tries[tries.len() - 2];
    assert!(last > 4.0, "the pauses went on growing: {tries:?}");
}

#[tokio::test(start_paused = true)]
async fn a_replacement_under_the_same_name_is_not_touched_by_the_retry() {
    let stage = Stage::new();
    stage.deny(403);
    stage.put_pod(pod("a")).await;
    stage.put_node(tainted()).await;
    stage.pass_secs(2.0).await;
    let before = stage.deletions("a").len();
    assert!(before > 0);
    stage.remove_pod("a").await;
    stage.put_pod(tolerating(3600)).await;
    stage.allow();
    stage.pass_secs(600.0).await;
    assert_eq!(stage.deletions("a").len(), before);
    assert_eq!(stage.armed(), 1, "it has a countdown of its own, and the other none");
    assert_eq!(stage.backlog(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_taint_that_is_removed_ends_the_retries() {
    let stage = Stage::new();
    stage.deny(500);
    stage.put_pod(pod("a")).await;
    stage.put_node(tainted()).await;
    stage.pass_secs(2.0).await;
    let before = stage.deletions("a").len();
    stage.put_node(node("n1")).await;
    stage.allow();
    stage.pass_secs(600.0).await;
    assert_eq!(stage.deletions("a").len(), before);
    assert!(stage.backlog() == 0);
    assert_eq!(stage.wire.events().last().unwrap(), "Cancelling deletion of Pod default/a");
}

#[tokio::test(start_paused = true)]
async fn a_toleration_that_is_gained_meanwhile_sets_a_deadline() {
    let stage = Stage::new();
    stage.deny(403);
    stage.put_pod(pod("a")).await;
    stage.put_node(tainted()).await;
    stage.pass_secs(3.0).await;
    let before = stage.deletions("a").len();
    stage.put_pod(tolerating(10)).await; // Counted from the first sight of the taint, at noon.
    stage.allow();
    stage.pass_secs(6.5).await;
    assert_eq!(stage.deletions("a").len(), before, "not before 10 s");
    stage.pass_secs(1.0).await;
    assert_eq!(stage.deletions("a").len(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_taint_that_is_swapped_for_a_tolerated_one_sets_a_deadline() {
    let stage = Stage::new();
    stage.deny(403);
    let pod = pod("a").tolerating(exists("testTaint2").lasting(5));
    stage.put_pod(pod.clone()).await;
    stage.put_node(tainted()).await;
    stage.pass_secs(3.0).await;
    let before = stage.deletions("a").len();
    stage.put_node(node("n1").tainted(taint("testTaint2", "test2"))).await;
    stage.allow();
    stage.pass_secs(4.5).await;
    assert_eq!(stage.deletions("a").len(), before, "not before 5 s");
    stage.pass_secs(1.0).await;
    assert_eq!(stage.deletions("a").len(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_deleted_once_although_the_watch_does_not_show_it() {
    let stage = Stage::new();
    stage.put_pod(pod("a")).await;
    stage.settle().await;
    stage.hold(Resource::Pods);
    stage.put_node(tainted()).await;
    stage.pass_secs(1.0).await;
    // Whatever makes the pod be judged again meanwhile.
    stage.put_node(tainted().tainted(taint("testTaint2", "test2"))).await;
    stage.pass_secs(300.0).await;
    assert_eq!(stage.deletions("a").len(), 1);
    assert_eq!(stage.backlog(), 1, "kept in sight until it is seen to be gone");
    stage.see_anew(Resource::Pods).await;
    assert_eq!(stage.backlog(), 0);
    stage.pass_secs(300.0).await;
    assert_eq!(stage.deletions("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_taint_that_comes_back_while_the_eviction_is_in_flight_counts_again() {
    // The request is on its way when the taint goes and comes back, and then it fails.
    for compat in [Compat::None, Compat::Upstream] {
        let stage = Arc::new(Stage::with(compat));
        stage.deny(500);
        stage.put_pod(pod("a")).await;
        let (happened, cluster) = (Arc::new(AtomicBool::new(false)), Arc::clone(&stage));
        let happens = Arc::clone(&happened);
        stage.wire.meanwhile(move || {
            cluster.store_node(&node("n1"));
            cluster.store_node(&tainted());
            happens.store(true, Ordering::Relaxed);
        });
        stage.put_node(tainted()).await;
        stage.pass_secs(1.0).await;
        assert!(happened.load(Ordering::Relaxed));
        stage.allow();
        stage.pass_secs(130.0).await;
        assert!(!stage.has_pod("a"), "{compat:?}: lost");
        assert_eq!(stage.backlog(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_written_to_without_end_waits_for_its_next_look_and_no_other_does() {
    let stage = Stage::new();
    stage.put_pod(pod("a").on("noisy")).await;
    stage.put_pod(pod("b").on("quiet")).await;
    for number in 0..300 {
        stage.store_node(&node("noisy").recorded(&number.to_string()));
    }
    stage.put_node(node("quiet").tainted(taint("k", ""))).await;
    assert_eq!(stage.deletions("b").len(), 1, "at once");
    stage.put_node(node("noisy").tainted(taint("k", ""))).await;
    assert!(stage.deletions("a").is_empty(), "it has used up its looks");
    stage.pass_secs(1.5).await;
    assert_eq!(stage.deletions("a").len(), 1, "by its newest facts, of which none is lost");
}
