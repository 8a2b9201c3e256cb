//! Upstream's test cases of its taint-eviction controller (`taint_eviction_test.go`), with descriptive
//! names. Both sets of rules must pass them; where they differ, each has its expected value. That nothing
//! else is deleted is checked for an hour of virtual time.

use super::facts::{equal, exists, node, pod, taint};
use super::*;

const BOTH: [Compat; 2] = [Compat::None, Compat::Upstream];

fn untainted() -> Node {
    node("node1")
}

/// `node1` with the test taints of these numbers.
fn tainted(numbers: &[usize]) -> Node {
    let taints = numbers.iter().map(|n| taint(&format!("testTaint{n}"), &format!("test{n}")));
    taints.fold(untainted(), Node::tainted)
}

fn plain(name: &str) -> Pod {
    pod(name).on("node1")
}

/// A pod that tolerates test taint `number`, for ever or for so many seconds.
fn tolerating(name: &str, number: usize, seconds: Option<i64>) -> Pod {
    let toleration = equal(&format!("testTaint{number}"), &format!("test{number}"));
    plain(name).tolerating(match seconds {
        Some(seconds) => toleration.lasting(seconds),
        None => toleration,
    })
}

fn patched_and_deleted(names: &[&str]) -> Vec<(Asked, String)> {
    let of = |name: &&str| [(Asked::Patched, name.to_string()), (Asked::Deleted, name.to_string())];
    names.iter().flat_map(of).collect()
}

/// Nothing is asked for, now or within the hour.
async fn stays_quiet(stage: &Stage, case: &str) {
    let before = stage.asked();
    stage.pass_secs(3600.0).await;
    assert_eq!(stage.asked(), before, "{case}");
}

#[tokio::test(start_paused = true)]
async fn create_pod_on_an_untainted_node_is_left_alone() {
    for compat in BOTH {
        let stage = Stage::with(compat);
        stage.put_node(untainted()).await;
        stage.put_pod(plain("pod1")).await;
        stays_quiet(&stage, "untainted").await;
        assert!(stage.asked().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn create_pod_on_a_tainted_node_is_patched_and_deleted() {
    for compat in BOTH {
        let stage = Stage::with(compat);
        stage.put_node(tainted(&[1])).await;
        stage.put_pod(plain("pod1")).await;
        assert_eq!(stage.asked(), patched_and_deleted(&["pod1"]));
        stays_quiet(&stage, "once").await;
    }
}

#[tokio::test(start_paused = true)]
async fn create_pod_with_a_finite_toleration_is_deleted_when_it_is_over() {
    for compat in BOTH {
        let stage = Stage::with(compat);
        stage.put_node(tainted(&[1])).await;
        stage.put_pod(tolerating("pod1", 1, Some(100))).await;
        stage.pass_secs(99.8).await;
        assert!(stage.asked().is_empty(), "{compat:?}");
        stage.pass_secs(0.5).await;
        assert_eq!(stage.asked(), patched_and_deleted(&["pod1"]));
    }
}

#[tokio::test(start_paused = true)]
async fn create_pod_with_an_infinite_toleration_stays() {
    for compat in BOTH {
        let stage = Stage::with(compat);
        stage.put_node(tainted(&[1])).await;
        stage.put_pod(tolerating("pod1", 1, None)).await;
        stays_quiet(&stage, "tolerated for ever").await;
        assert!(stage.asked().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn create_pod_that_tolerates_another_taint_is_patched_and_deleted() {
    for compat in BOTH {
        let stage = Stage::with(compat);
        stage.put_node(tainted(&[1])).await;
        stage.put_pod(tolerating("pod1", 2, None)).await;
        assert_eq!(stage.asked(), patched_and_deleted(&["pod1"]));
    }
}

#[tokio::test(start_paused = true)]
async fn delete_pod_that_is_in_no_cache_does_nothing() {
    for compat in BOTH {
        let stage = Stage::with(compat);
        stage.put_node(tainted(&[1])).await;
        stage.store_pod(&plain("pod1").on("elsewhere"));
        stage.remove_pod("pod1").await;
        stays_quiet(&stage, "unknown pod").await;
        assert!(stage.asked().is_empty());
        assert!(stage.wire.events().is_empty(), "and no cancellation is reported");
    }
}

#[tokio::test(start_paused = true)]
async fn update_pod_that_loses_its_toleration_goes_at_once() {
    for compat in BOTH {
        let stage = Stage::with(compat);
        stage.put_node(tainted(&[1])).await;
        let pod = tolerating("pod1", 1, Some(100));
        stage.put_pod(pod.clone()).await;
        assert!(stage.armed() == 1);
        assert!(stage.asked().is_empty());
        stage.put_pod(plain("pod1")).await;
        assert_eq!(stage.asked(), patched_and_deleted(&["pod1"]));
        stays_quiet(&stage, "once").await;
    }
}

#[tokio::test(start_paused = true)]
async fn update_pod_that_lengthens_its_toleration() {
    for (compat, leaves_at) in [(Compat::Upstream, 1.0), (Compat::None, 100.0)] {
        let stage = Stage::with(compat);
        stage.put_node(tainted(&[1])).await;
        stage.put_pod(tolerating("pod1", 1, Some(1))).await;
        stage.pass_secs(0.5).await;
        stage.put_pod(tolerating("pod1", 1, Some(100))).await;
        stage.pass_secs(leaves_at - 0.7).await;
        assert!(stage.asked().is_empty(), "{compat:?}");
        stage.pass_secs(0.5).await;
        assert_eq!(stage.asked(), patched_and_deleted(&["pod1"]), "{compat:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn update_pod_that_shortens_its_toleration() {
    for (seconds, ours) in [(0, 0.0), (10, 10.0)] {
        for (compat, leaves_at) in [(Compat::Upstream, 300.0), (Compat::None, ours)] {
            let stage = Stage::with(compat);
            stage.put_node(tainted(&[1])).await;
            stage.put_pod(tolerating("pod1", 1, Some(300))).await;
            stage.pass_secs(5.0).await;
            stage.put_pod(tolerating("pod1", 1, Some(seconds))).await;
            if leaves_at > 5.0 {
                stage.pass_secs(leaves_at - 5.2).await;
                assert!(stage.asked().is_empty(), "{compat:?} {seconds}");
                stage.pass_secs(0.5).await;
            }
            assert_eq!(stage.asked(), patched_and_deleted(&["pod1"]), "{compat:?} {seconds}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn create_node_untainted_with_a_pod_leaves_it() {
    for compat in BOTH {
        let stage = Stage::with(compat);
        stage.put_pod(plain("pod1")).await;
        stage.put_node(untainted()).await;
        stays_quiet(&stage, "untainted").await;
        assert!(stage.asked().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn create_node_tainted_deletes_what_does_not_tolerate_it() {
    for compat in BOTH {
        let stage = Stage::with(compat);
        stage.put_pod(plain("pod1")).await;
        stage.put_pod(tolerating("pod2", 1, None)).await;
        stage.put_node(tainted(&[1])).await;
        assert_eq!(stage.asked(), patched_and_deleted(&["pod1"]));
        stays_quiet(&stage, "pod2 tolerates").await;
    }
}

#[tokio::test(start_paused = true)]
async fn delete_node_drops_the_timers_of_its_pods() {
    for compat in BOTH {
        let stage = Stage::with(compat);
        let pod = tolerating("pod1", 1, Some(100));
        stage.put_pod(pod.clone()).await;
        stage.put_node(tainted(&[1])).await;
        assert!(stage.armed() > 0);
        stage.remove_node("node1").await;
        assert!(stage.armed() == 0);
        stays_quiet(&stage, "pod garbage collection takes it").await;
        assert!(stage.asked().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn update_node_that_gains_a_taint() {
    for compat in BOTH {
        let stage = Stage::with(compat);
        stage.put_node(untainted()).await;
        stage.put_pod(plain("pod1")).await;
        stage.put_pod(tolerating("pod2", 1, Some(100))).await;
        stage.put_node(tainted(&[1])).await;
        assert_eq!(stage.asked(), patched_and_deleted(&["pod1"]), "pod2 has 100 s");
        stage.pass_secs(99.0).await;
        assert_eq!(stage.asked().len(), 2);
        stage.pass_secs(1.5).await;
        assert_eq!(stage.asked(), patched_and_deleted(&["pod1", "pod2"]));
    }
}

#[tokio::test(start_paused = true)]
async fn update_node_that_gains_two_taints_of_which_one_is_tolerated() {
    for compat in BOTH {
        let stage = Stage::with(compat);
        stage.put_node(untainted()).await;
        stage.put_pod(tolerating("pod1", 1, Some(100))).await;
        stage.put_node(tainted(&[1, 2])).await;
        assert_eq!(stage.asked(), patched_and_deleted(&["pod1"]));
    }
}

#[tokio::test(start_paused = true)]
async fn update_node_that_loses_its_taint_saves_the_pod() {
    for compat in BOTH {
        let stage = Stage::with(compat);
        stage.put_node(tainted(&[1])).await;
        stage.put_pod(tolerating("pod1", 1, Some(1))).await;
        stage.pass_secs(0.5).await;
        stage.put_node(untainted()).await;
        stays_quiet(&stage, "the taint is gone").await;
        assert!(stage.asked().is_empty());
        assert_eq!(stage.wire.events(), ["Cancelling deletion of Pod default/pod1"]);
    }
}

#[tokio::test(start_paused = true)]
async fn update_node_with_two_tolerated_taints_the_shorter_counts() {
    for compat in BOTH {
        let stage = Stage::with(compat);
        let both =
            tolerating("pod1", 1, Some(1)).tolerating(equal("testTaint2", "test2").lasting(100));
        stage.put_pod(both).await;
        stage.put_node(tainted(&[1, 2])).await;
        stage.pass_secs(0.8).await;
        assert!(stage.asked().is_empty());
        stage.pass_secs(0.5).await;
        assert_eq!(stage.asked(), patched_and_deleted(&["pod1"]));
    }
}

#[tokio::test(start_paused = true)]
async fn update_node_with_multiple_taints_arms_and_disarms() {
    for compat in BOTH {
        let stage = Stage::with(compat);
        let pod = plain("pod1")
            .tolerating(exists("testTaint1"))
            .tolerating(exists("testTaint2").lasting(60));
        stage.put_pod(pod.clone()).await;
        for (taints, armed) in [(&[][..], false), (&[1], false), (&[1, 2], true), (&[1], false)] {
            stage.put_node(tainted(taints)).await;
            assert_eq!(stage.armed() > 0, armed, "{compat:?} {taints:?}");
        }
        stays_quiet(&stage, "never a delete").await;
        assert!(stage.asked().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn update_node_with_multiple_pods_each_at_its_time() {
    for compat in BOTH {
        let stage = Stage::with(compat);
        stage.put_node(untainted()).await;
        stage.put_pod(plain("pod1")).await;
        stage.put_pod(tolerating("pod2", 1, Some(1))).await;
        stage.put_pod(tolerating("pod3", 1, None)).await;
        stage.put_node(tainted(&[1])).await;
        assert_eq!(stage.asked(), patched_and_deleted(&["pod1"]));
        stage.pass_secs(1.2).await;
        assert_eq!(stage.asked(), patched_and_deleted(&["pod1", "pod2"]));
        stays_quiet(&stage, "pod3 tolerates").await;
    }
}

#[tokio::test(start_paused = true)]
async fn update_node_with_multiple_pods_that_tolerate_not_all() {
    for compat in BOTH {
        let stage = Stage::with(compat);
        stage.put_node(untainted()).await;
        stage.put_pod(plain("pod1")).await;
        stage.put_pod(tolerating("pod2", 1, Some(1))).await;
        stage.put_pod(tolerating("pod3", 1, None)).await;
        stage.put_node(tainted(&[1, 2])).await;
        for name in ["pod1", "pod2", "pod3"] {
            assert_eq!(stage.deletions(name).len(), 1, "{compat:?} {name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_the_node_listing_missed_is_judged_when_it_turns_up() {
    for compat in BOTH {
        for seconds in [None, Some(100)] {
            let stage = Stage::with(compat);
            stage.put_pod(plain("pod1")).await;
            stage.put_node(tainted(&[1])).await;
            assert_eq!(stage.asked(), patched_and_deleted(&["pod1"]));
            let late = match seconds {
                None => plain("pod2"),
                Some(_) => tolerating("pod2", 1, seconds),
            };
            stage.put_pod(late.clone()).await;
            assert_eq!(stage.deletions("pod2").len(), usize::from(seconds.is_none()));
            assert_eq!(stage.armed() > 0, seconds.is_some());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn events_are_upstreams() {
    for compat in BOTH {
        let stage = Stage::with(compat);
        stage.put_pod(plain("test")).await;
        stage.put_node(tainted(&[1])).await;
        assert_eq!(stage.wire.events(), ["Marking for deletion Pod default/test"]);
    }
}
