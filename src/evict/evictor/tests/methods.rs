//! Pods that are evicted for taints by rules that respect disruption budgets.

use jiff::SignedDuration;

use super::super::*;
use super::taints::{Bench, cause, noon, pod};
use crate::model::{self, Budgets, Deadline, Verdict};

/// Budgets are respected, and from `until` seconds after noon on the pod is deleted.
fn respected(until: Option<i64>) -> Verdict {
    let until = until.map(|seconds| {
        let budgets = Budgets::RespectedFor(Duration::from_secs(300));
        let cause = model::Cause { budgets, ..cause() };
        Box::new(Verdict::EvictAt { deadline: Deadline::exactly(noon(), seconds), cause })
    });
    Verdict::EvictNow(model::Cause { budgets: Budgets::Respected { until }, ..cause() })
}

fn bench(verdict: Verdict) -> Bench {
    let bench = Bench::new();
    (bench.world.lock().view, bench.world.lock().live) = (verdict.clone(), verdict);
    bench
}

fn blocked() -> Failure {
    let budget = Some("web".to_owned());
    Failure::Blocked { budget, message: "needs 2, has 2".into(), after: None }
}

fn pause(outcome: Outcome) -> Duration {
    match outcome {
        Outcome::Again(pause) => pause,
        outcome @ Outcome::Reconsider => panic!("{outcome:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_eviction_api_is_used_and_the_condition_tells_the_taint_afterwards() {
    let bench = bench(respected(None));
    bench.run().await;
    assert_eq!(bench.requests(), ["pod", "node", "evict", "mark"], "no deletion");
    assert_eq!(bench.told(), ["evicting shop/web-0 if budgets allow it"]);
    assert_eq!(bench.state(), Some(State::Sent));
    assert!((bench.deletions() - 1.0).abs() < f64::EPSILON, "upstream's metric counts it too");
}

#[tokio::test(start_paused = true)]
async fn an_eviction_succeeded_even_if_the_condition_is_refused() {
    for refusal in [Failure::Gone, Failure::Paused, blocked()] {
        let bench = bench(respected(None));
        bench.refuse("mark", refusal);
        bench.run().await;
        assert_eq!(bench.state(), Some(State::Sent));
        assert_eq!(bench.told(), ["evicting shop/web-0 if budgets allow it"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_tolerates_the_taint_as_it_is_stored_is_not_evicted() {
    let bench = bench(respected(None));
    bench.world.lock().spared_when_stored = true;
    bench.run().await;
    assert_eq!(bench.requests(), ["pod", "node"]);
    assert_eq!(bench.state(), Some(State::Unconfirmed));
    assert!(bench.told().is_empty());

    let bench = self::bench(respected(None));
    bench.world.lock().stored = None;
    bench.run().await;
    assert_eq!(bench.requests(), ["pod"], "it is gone");
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_blocks_is_reported_once_and_asked_again_for_as_long_as_it_takes() {
    let bench = bench(respected(None));
    for attempt in 1..=40 {
        bench.refuse("evict", blocked());
        let pause = pause(bench.run().await);
        assert!(pause <= Duration::from_secs(60), "{attempt}: {pause:?}");
        assert_eq!(bench.state(), Some(State::Blocked));
        bench.world.lock().now += SignedDuration::from_hours(1);
    }
    assert!(!bench.requests().iter().any(|request| matches!(*request, "delete" | "mark")));
    assert_eq!(
        bench.told(),
        ["evicting shop/web-0 if budgets allow it", "blocked shop/web-0: needs 2, has 2"]
    );
    bench.run().await;
    assert_eq!(bench.requests(), ["pod", "node", "evict", "mark"]);
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_can_never_be_met_is_reported_with_its_numbers() {
    let bench = bench(respected(None));
    bench.world.lock().hopeless = Some("web can never be met: it needs 3, only 3 exist".into());
    bench.refuse("evict", blocked());
    bench.run().await;
    let told = bench.told();
    assert_eq!(told[1], "blocked shop/web-0: web can never be met: it needs 3, only 3 exist");

    let bench = self::bench(respected(None));
    bench.refuse("evict", blocked());
    bench.refuse("hopeless", Failure::Gone);
    bench.run().await;
    assert_eq!(bench.told()[1], "blocked shop/web-0: needs 2, has 2", "as the server says");
}

#[tokio::test(start_paused = true)]
async fn several_budgets_are_reported_by_name() {
    let bench = bench(respected(None));
    bench.refuse("evict", Failure::SeveralBudgets);
    assert_eq!(pause(bench.run().await), UNTIL_ONE_BUDGET);
    assert_eq!(bench.told()[1], "several shop/web-0: x y");
    assert_eq!(bench.state(), Some(State::SeveralBudgets));
}

#[tokio::test(start_paused = true)]
async fn no_pause_is_longer_than_until_the_deletion() {
    let wait = |refusal: Failure, until: i64| async move {
        let bench = bench(respected(Some(until)));
        bench.refuse("evict", refusal);
        pause(bench.run().await)
    };
    // The read of the node takes 5 ms.
    let left = Duration::from_millis(2995);
    assert_eq!(wait(blocked(), 3).await, left);
    assert_eq!(wait(Failure::SeveralBudgets, 3).await, left);
    let asked = Some(Duration::from_secs(600));
    let failure = Failure::Retry { kind: FailureKind::Server, message: "503".into(), after: asked };
    assert_eq!(wait(failure, 3).await, left);
    assert!(wait(blocked(), 3600).await >= Duration::from_secs(5), "an hour is not waited for");
}

#[tokio::test(start_paused = true)]
async fn the_pod_is_deleted_from_the_moment_on_and_not_a_nanosecond_earlier() {
    let bench = bench(respected(Some(3)));
    let due = noon() + SignedDuration::from_secs(3);
    for early in [noon(), due - SignedDuration::from_nanos(1)] {
        bench.world.lock().now = early;
        bench.refuse("evict", blocked());
        bench.run().await;
        assert!(!bench.requests().contains(&"delete"), "{early}");
    }
    bench.world.lock().now = due;
    bench.told();
    bench.run().await;
    assert_eq!(bench.requests(), ["node", "mark", "delete"], "as by Delete");
    assert_eq!(bench.told(), ["evicting shop/web-0"], "announced again: budgets are not asked");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_deleted_if_the_api_server_or_the_view_says_at_last_that_budgets_count() {
    for change_view in [false, true] {
        let bench = bench(respected(Some(0)));
        if change_view {
            // After the patch of the condition.
            bench.world.lock().after_mark = Some(respected(None));
        } else {
            bench.world.lock().live = respected(Some(1));
        }
        bench.run().await;
        assert!(!bench.requests().contains(&"delete"), "{change_view}");
        assert_eq!(bench.state(), Some(State::Unconfirmed));
    }
    // The other way round, the milder method is never wrong.
    let bench = bench(respected(None));
    bench.world.lock().live = respected(Some(0));
    bench.run().await;
    assert_eq!(bench.requests(), ["pod", "node", "evict", "mark"]);
}

#[tokio::test(start_paused = true)]
async fn an_accepted_eviction_is_not_sent_twice_while_the_watch_is_behind() {
    let bench = bench(respected(Some(60)));
    bench.run().await;
    bench.requests();
    let terminating = Pod { class: PodClass::Terminating, ..pod() };
    bench.world.lock().stored = Some(terminating);
    assert_eq!(pause(bench.run().await), UNTIL_SEEN);
    assert_eq!(bench.requests(), ["pod"]);
}
