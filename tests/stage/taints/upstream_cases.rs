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

/// What happens, or what must be so by then.
enum Step {
    /// `node1` is stored with the test taints of these numbers.
    Node(&'static [usize]),
    NodeGoes,
    Pod(Pod),
    Pass(f64),
    /// Whether anything counts down.
    Armed(bool),
    /// The pods that have been patched and deleted so far, and nothing else was asked for.
    Gone(&'static [&'static str]),
    /// Messages of all events so far.
    Events(&'static [&'static str]),
}
use Step::{Armed, Events, Gone, NodeGoes, Pass};

/// Plays a case by both sets of rules. Within an hour after it nothing more is asked for.
async fn case(name: &str, steps: &[Step]) {
    for compat in BOTH {
        let stage = Stage::with(compat);
        for (number, step) in steps.iter().enumerate() {
            let here = format!("{name}, step {number}, {compat:?}");
            match step {
                Step::Node(taints) => stage.put_node(tainted(taints)).await,
                NodeGoes => stage.remove_node("node1").await,
                Step::Pod(pod) => stage.put_pod(pod.clone()).await,
                Pass(seconds) => stage.pass_secs(*seconds).await,
                Armed(armed) => assert_eq!(stage.armed() > 0, *armed, "{here}"),
                Gone(names) => assert_eq!(stage.asked(), patched_and_deleted(names), "{here}"),
                Events(messages) => assert_eq!(stage.wire.events(), *messages, "{here}"),
            }
        }
        stays_quiet(&stage, name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn create_pod() {
    let (untainted, tainted) = (|| Step::Node(&[]), || Step::Node(&[1]));
    let pod = |number, seconds| Step::Pod(tolerating("pod1", number, seconds));
    let plain = || Step::Pod(plain("pod1"));
    case("on an untainted node", &[untainted(), plain(), Gone(&[])]).await;
    let marked = Events(&["Marking for deletion Pod default/pod1"]);
    case("on a tainted node", &[tainted(), plain(), Gone(&["pod1"]), marked]).await;
    let steps = [tainted(), pod(1, Some(100)), Pass(99.8), Gone(&[]), Pass(0.5), Gone(&["pod1"])];
    case("with a finite toleration", &steps).await;
    case("with an infinite toleration", &[tainted(), pod(1, None), Pass(3600.0), Gone(&[])]).await;
    case("that tolerates another taint", &[tainted(), pod(2, None), Gone(&["pod1"])]).await;
}

#[tokio::test(start_paused = true)]
async fn update_pod_that_loses_its_toleration_goes_at_once() {
    let (before, after) = (tolerating("pod1", 1, Some(100)), plain("pod1"));
    let (tolerant, intolerant) = (Step::Pod(before), Step::Pod(after));
    let steps = [Step::Node(&[1]), tolerant, Armed(true), Gone(&[]), intolerant, Gone(&["pod1"])];
    case("goes at once", &steps).await;
}

#[tokio::test(start_paused = true)]
async fn create_node() {
    let (plain, tolerant) = (|| Step::Pod(plain("pod1")), Step::Pod(tolerating("pod2", 1, None)));
    case("untainted", &[plain(), Step::Node(&[]), Gone(&[])]).await;
    case("tainted", &[plain(), tolerant, Step::Node(&[1]), Gone(&["pod1"])]).await;
}

#[tokio::test(start_paused = true)]
async fn delete_node_drops_the_timers_of_its_pods() {
    let pod = Step::Pod(tolerating("pod1", 1, Some(100)));
    let steps =
        [pod, Step::Node(&[1]), Armed(true), NodeGoes, Armed(false), Pass(3600.0), Gone(&[])];
    case("pod garbage collection takes them", &steps).await;
}

#[tokio::test(start_paused = true)]
async fn update_node() {
    let plain = || Step::Pod(plain("pod1"));
    let pod = |name, seconds| Step::Pod(tolerating(name, 1, seconds));
    let (untainted, one, two) = (|| Step::Node(&[]), || Step::Node(&[1]), || Step::Node(&[1, 2]));

    let steps = [untainted(), plain(), pod("pod2", Some(100)), one(), Gone(&["pod1"])];
    let later = [Pass(99.0), Gone(&["pod1"]), Pass(1.5), Gone(&["pod1", "pod2"])];
    case("that gains a taint", &steps.into_iter().chain(later).collect::<Vec<_>>()).await;

    let steps = [untainted(), pod("pod1", Some(100)), two(), Gone(&["pod1"])];
    case("that gains two taints of which one is tolerated", &steps).await;

    let saved = Events(&["Cancelling deletion of Pod default/pod1"]);
    let steps =
        [one(), pod("pod1", Some(1)), Pass(0.5), untainted(), Pass(3600.0), Gone(&[]), saved];
    case("that loses its taint", &steps).await;

    let both = tolerating("pod1", 1, Some(1)).tolerating(equal("testTaint2", "test2").lasting(100));
    let steps = [Step::Pod(both), two(), Pass(0.8), Gone(&[]), Pass(0.5), Gone(&["pod1"])];
    case("with two tolerated taints, of which the shorter counts", &steps).await;

    let pod_of_both = super::facts::pod("pod1").on("node1").tolerating(exists("testTaint1"));
    let steps = [
        Step::Pod(pod_of_both.tolerating(exists("testTaint2").lasting(60))),
        untainted(),
        Armed(false),
        one(),
        Armed(false),
        two(),
        Armed(true),
        one(),
        Armed(false),
        Pass(3600.0),
        Gone(&[]),
    ];
    case("with multiple taints arms and disarms", &steps).await;

    let steps = [
        untainted(),
        plain(),
        pod("pod2", Some(1)),
        pod("pod3", None),
        one(),
        Gone(&["pod1"]),
        Pass(1.2),
        Gone(&["pod1", "pod2"]),
    ];
    case("with multiple pods, each at its time", &steps).await;
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
