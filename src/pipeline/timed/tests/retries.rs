//! Retries and their floor.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_retry_runs_again_at_its_floor_and_not_before() {
    let queue = Queue::new();
    queue.arm(1, Instant::now(), "first");
    let first = take(&queue).unwrap();
    assert!(queue.complete(&1, first.token, retry(after(10))));
    assert_eq!(queue.running(), 0);
    // The decision is made anew meanwhile, and is "now" again.
    assert_eq!(queue.arm(1, Instant::now(), "again"), Armed::Unchanged);
    assert_eq!(queue.arm(1, Instant::now(), "other"), Armed::Moved);
    advance(Duration::from_millis(9_999)).await;
    assert!(take(&queue).is_none());
    advance(Duration::from_millis(1)).await;
    let second = take(&queue).unwrap();
    assert_eq!(second.value, "other");
    // The floor does not outlive the attempt.
    queue.complete(&1, second.token, Outcome::Done);
    queue.arm(1, Instant::now(), "a");
    assert_eq!(run_due(&queue), [1]);
    assert_nothing_more_comes(&queue).await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_lifts_a_newer_countdown_to_its_floor_but_keeps_a_later_one() {
    let queue = Queue::new();
    for (key, newer) in [(1, 5), (2, 20)] {
        queue.arm(key, Instant::now(), "first");
        let first = take(&queue).unwrap();
        queue.arm(key, after(newer), "newer");
        assert!(queue.complete(&key, first.token, retry(after(10))));
    }
    assert_eq!(queue.get(&1).unwrap().due, after(10));
    assert_eq!(queue.get(&2).unwrap().due, after(20));
    assert_eq!(queue.get(&1).unwrap().value, "newer");
    // The floor goes on to hold under the later one.
    assert_eq!(queue.arm(2, Instant::now(), "newer"), Armed::Moved);
    assert_eq!(queue.get(&2).unwrap().due, after(10));
    advance(secs(9)).await;
    assert!(run_due(&queue).is_empty());
    advance(secs(1)).await;
    assert_eq!(run_due(&queue), [1, 2]);
    assert_nothing_more_comes(&queue).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_disarmed_is_not_retried() {
    let queue = Queue::new();
    queue.arm(1, Instant::now(), "first");
    let first = take(&queue).unwrap();
    queue.disarm(&1);
    assert!(queue.complete(&1, first.token, retry(after(10))));
    assert!(queue.is_empty());
    assert_nothing_more_comes(&queue).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_disarmed_and_armed_again_waits_for_the_floor_with_its_own_value() {
    let queue = Queue::new();
    queue.arm(1, Instant::now(), "first");
    let first = take(&queue).unwrap();
    queue.disarm(&1);
    queue.arm(1, Instant::now(), "newer");
    assert!(queue.complete(&1, first.token, retry(after(10))));
    assert!(take(&queue).is_none());
    advance(secs(10)).await;
    assert_eq!(take(&queue).unwrap().value, "newer");
}

#[tokio::test(start_paused = true)]
async fn disarming_forgets_the_floor() {
    let queue = Queue::new();
    queue.arm(1, Instant::now(), "first");
    let first = take(&queue).unwrap();
    queue.complete(&1, first.token, retry(after(10)));
    assert!(queue.disarm(&1));
    queue.arm(1, Instant::now(), "afresh");
    assert_eq!(run_due(&queue), [1]);
    assert_nothing_more_comes(&queue).await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_in_the_past_runs_at_once() {
    let queue = Queue::new();
    let start = Instant::now();
    advance(secs(5)).await;
    queue.arm(1, start, "first");
    let first = take(&queue).unwrap();
    queue.complete(&1, first.token, retry(start));
    assert_eq!(run_due(&queue), [1]);
    assert_nothing_more_comes(&queue).await;
}
