//! Differences between our own rules and `--compat upstream`.

use super::facts::{equal, exists, node, not_ready, pod, taint, unreachable};
use super::*;

const UPSTREAM: Compat = Compat::Upstream;
const OURS: Compat = Compat::None;

/// When the pod `a` leaves, in seconds since noon, within the next hour.
async fn leaves_at(stage: &Stage) -> Option<f64> {
    stage.pass_secs(3600.0).await;
    let deletions = stage.deletions("a");
    assert!(deletions.len() <= 1, "deleted more than once: {deletions:?}");
    deletions.first().map(|when| (when * 10.0).round() / 10.0)
}

#[tokio::test(start_paused = true)]
async fn a_second_taint_with_less_time_shortens_ours_only() {
    for (compat, expected) in [(UPSTREAM, 3600.0), (OURS, 110.0)] {
        let stage = Stage::with(compat);
        let pod =
            pod("a").tolerating(exists("a").lasting(3600)).tolerating(exists("b").lasting(10));
        stage.put_pod(pod).await;
        stage.put_node(node("n1").tainted(taint("a", ""))).await;
        stage.pass_secs(100.0).await;
        stage.put_node(node("n1").tainted(taint("a", "")).tainted(taint("b", ""))).await;
        assert_eq!(leaves_at(&stage).await, Some(expected), "{compat:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_shorter_of_two_taints_that_goes_lengthens_ours_only() {
    for (compat, expected) in [(UPSTREAM, 10.0), (OURS, 300.0)] {
        let stage = Stage::with(compat);
        let pod = pod("a").tolerating(exists("a").lasting(10)).tolerating(exists("b").lasting(300));
        stage.put_pod(pod).await;
        stage.put_node(node("n1").tainted(taint("a", "")).tainted(taint("b", ""))).await;
        stage.pass_secs(5.0).await;
        stage.put_node(node("n1").tainted(taint("b", ""))).await;
        assert_eq!(leaves_at(&stage).await, Some(expected), "{compat:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_taint_that_is_replaced_by_another_counts_anew_in_ours_only() {
    for (compat, expected) in [(UPSTREAM, 10.0), (OURS, 305.0)] {
        let stage = Stage::with(compat);
        let pod = pod("a").tolerating(exists("a").lasting(10)).tolerating(exists("b").lasting(300));
        stage.put_pod(pod).await;
        stage.put_node(node("n1").tainted(taint("a", ""))).await;
        stage.pass_secs(5.0).await;
        stage.put_node(node("n1").tainted(taint("b", ""))).await;
        assert_eq!(leaves_at(&stage).await, Some(expected), "{compat:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn time_added_moves_ours_in_both_directions() {
    // It is stored in whole seconds and counts at the end of its second.
    for (compat, expected) in [(UPSTREAM, 300.0), (OURS, 251.0)] {
        let stage = Stage::with(compat);
        stage.put_pod(pod("a").tolerating(exists("a").lasting(300))).await;
        stage.put_node(node("n1").tainted(taint("a", "").added_at(0))).await;
        stage.pass_secs(5.0).await;
        stage.put_node(node("n1").tainted(taint("a", "").added_at(-50))).await;
        assert_eq!(leaves_at(&stage).await, Some(expected), "{compat:?}");
    }
    for (compat, expected) in [(UPSTREAM, 300.0), (OURS, 305.0)] {
        let stage = Stage::with(compat);
        stage.put_pod(pod("a").tolerating(exists("a").lasting(300))).await;
        stage.put_node(node("n1").tainted(taint("a", "").added_at(0))).await;
        stage.pass_secs(5.0).await;
        stage.put_node(node("n1").tainted(taint("a", "").added_at(4))).await;
        assert_eq!(leaves_at(&stage).await, Some(expected), "{compat:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_old_taint_counts_from_when_it_was_put_on_in_ours_only() {
    for (compat, expected) in [(UPSTREAM, 300.0), (OURS, 0.0)] {
        let stage = Stage::with(compat);
        stage.put_pod(pod("a").tolerating(exists("a").lasting(300))).await;
        stage.put_node(node("n1").tainted(taint("a", "").added_at(-1000))).await;
        assert_eq!(leaves_at(&stage).await, Some(expected), "{compat:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn finished_pods_go_upstream_only() {
    for (compat, goes) in [(UPSTREAM, true), (OURS, false)] {
        let stage = Stage::with(compat);
        stage.put_pod(pod("a").that_is(Class::Finished)).await;
        stage.put_node(node("n1").tainted(taint("a", ""))).await;
        assert_eq!(leaves_at(&stage).await.is_some(), goes, "{compat:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn mirror_and_terminating_pods_stay_in_ours() {
    for class in [Class::Mirror, Class::Terminating] {
        let stage = Stage::with(OURS);
        stage.put_pod(pod("a").that_is(class)).await;
        stage.put_node(node("n1").tainted(taint("a", ""))).await;
        assert_eq!(leaves_at(&stage).await, None, "{class:?}");
        assert!(stage.asked().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_ends_or_is_deleted_by_another_is_let_go_of() {
    for class in [Class::Finished, Class::Terminating] {
        let stage = Stage::with(OURS);
        let pod = pod("a").tolerating(exists("a").lasting(60));
        stage.put_pod(pod.clone()).await;
        stage.put_node(node("n1").tainted(taint("a", ""))).await;
        assert!(stage.armed() > 0);
        stage.put_pod(pod.clone().that_is(class)).await;
        assert!(stage.armed() == 0, "{class:?}");
        assert_eq!(leaves_at(&stage).await, None);
        assert!(stage.wire.events().is_empty(), "nothing was cancelled that would have mattered");
    }
}

#[tokio::test(start_paused = true)]
async fn the_swap_of_not_ready_and_unreachable_keeps_the_countdown_in_both() {
    for (compat, expected) in [(UPSTREAM, 300.0), (OURS, 301.0)] {
        let stage = Stage::with(compat);
        let pod = pod("a")
            .tolerating(exists("node.kubernetes.io/not-ready").lasting(300))
            .tolerating(exists("node.kubernetes.io/unreachable").lasting(300));
        stage.put_pod(pod).await;
        stage.put_node(node("n1").tainted(not_ready(0))).await;
        stage.pass_secs(100.0).await;
        stage.put_node(node("n1").tainted(not_ready(0)).tainted(unreachable(100))).await;
        stage.put_node(node("n1").tainted(unreachable(100))).await;
        assert_eq!(leaves_at(&stage).await, Some(expected), "{compat:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_counts_anew_upstream_only() {
    for (compat, expected) in [(UPSTREAM, 400.0), (OURS, 300.0)] {
        let mut stage = Stage::with(compat);
        let pod = pod("a").tolerating(equal("a", "").lasting(300));
        stage.put_pod(pod).await;
        stage.put_node(node("n1").tainted(taint("a", ""))).await;
        stage.pass_secs(100.0).await;
        stage.restart().await;
        assert_eq!(leaves_at(&stage).await, Some(expected), "{compat:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_days_are_two_days_in_both_although_a_timer_is_cut_short_after_one() {
    for (compat, seconds) in [(UPSTREAM, 172_800.0), (OURS, 172_800.0)] {
        let stage = Stage::with(compat);
        stage.put_pod(pod("a").tolerating(exists("k").lasting(172_800))).await;
        stage.put_node(node("n1").tainted(taint("k", ""))).await;
        stage.pass_secs(seconds - 1.0).await;
        assert!(stage.deletions("a").is_empty(), "{compat:?}");
        stage.pass_secs(2.0).await;
        assert_eq!(stage.deletions("a").len(), 1, "{compat:?}");
    }
}
