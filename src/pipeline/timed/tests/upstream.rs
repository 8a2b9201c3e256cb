//! The cases of upstream's `timed_workers_test.go`, with the quiet side that those leave out.

use super::*;

#[tokio::test(start_paused = true)]
async fn what_is_due_at_once_runs_at_once() {
    let queue = Queue::new();
    for key in 1..=5 {
        assert_eq!(queue.arm(key, Instant::now(), "a"), Armed::New);
    }
    assert_eq!(run_due(&queue), [1, 2, 3, 4, 5]);
    assert!(queue.is_empty());
    assert_nothing_more_comes(&queue).await;
}

/// Five keys that are due in ten seconds, each armed twice.
fn five_twice() -> Queue {
    let queue = Queue::new();
    for key in 1..=5 {
        assert_eq!(queue.arm(key, after(10), "a"), Armed::New);
        assert_eq!(queue.arm(key, after(10), "a"), Armed::Unchanged);
    }
    queue
}

#[tokio::test(start_paused = true)]
async fn what_is_armed_twice_runs_once_and_at_its_time() {
    let queue = five_twice();
    advance(Duration::from_millis(9_999)).await;
    assert!(run_due(&queue).is_empty());
    advance(Duration::from_millis(1)).await;
    assert_eq!(run_due(&queue), [1, 2, 3, 4, 5]);
    assert!(queue.is_empty());
    assert_nothing_more_comes(&queue).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_disarmed_does_not_run() {
    let queue = five_twice();
    assert!(queue.disarm(&2));
    assert!(queue.disarm(&4));
    assert!(!queue.disarm(&4), "it counts down no more");
    assert_eq!(queue.len(), 3);
    advance(secs(11)).await;
    assert_eq!(run_due(&queue), [1, 3, 5]);
    assert_nothing_more_comes(&queue).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_disarmed_and_armed_again_runs() {
    let queue = five_twice();
    assert!(queue.disarm(&2));
    assert!(queue.disarm(&4));
    assert_eq!(queue.arm(2, after(10), "a"), Armed::New);
    advance(secs(11)).await;
    assert_eq!(run_due(&queue), [1, 3, 5, 2]);
    assert_nothing_more_comes(&queue).await;
}

/// Whatever `first` is when it is being worked on: it is cancelled, armed again, and ends late.
async fn completion_leaves_the_replacement(queue: Queue, first: Fired<u32, &'static str>) {
    assert!(!queue.disarm(&1), "it was too late to cancel it");
    assert!(!queue.is_current(&1, first.token), "but it can be told");
    let due = after(10);
    assert_eq!(queue.arm(1, due, "replacement"), Armed::New);

    assert!(queue.complete(&1, first.token, Outcome::Done));
    let replacement = Scheduled { due, value: "replacement", running: false };
    assert_eq!(queue.get(&1), Some(replacement));

    advance(secs(9)).await;
    assert!(take(&queue).is_none());
    assert!(queue.disarm(&1), "it can still be cancelled");
    assert_eq!(queue.get(&1), None);
    assert_nothing_more_comes(&queue).await;
}

#[tokio::test(start_paused = true)]
async fn work_that_was_due_at_once_does_not_remove_its_replacement() {
    let queue = Queue::new();
    queue.arm(1, Instant::now(), "first");
    let first = take(&queue).unwrap();
    completion_leaves_the_replacement(queue, first).await;
}

#[tokio::test(start_paused = true)]
async fn work_whose_countdown_ended_does_not_remove_its_replacement() {
    let queue = Queue::new();
    queue.arm(1, after(10), "first");
    assert!(take(&queue).is_none());
    advance(secs(10)).await;
    let first = take(&queue).unwrap();
    completion_leaves_the_replacement(queue, first).await;
}

#[tokio::test(start_paused = true)]
async fn what_has_ended_but_was_not_handed_out_can_be_disarmed() {
    let queue = Queue::new();
    for key in 1..=3 {
        queue.arm(key, after(10), "a");
    }
    queue.arm(4, Instant::now(), "a");
    advance(secs(20)).await;
    assert!(queue.disarm(&1), "it is still in the wheel");
    assert_eq!(take(&queue).unwrap().key, 4);
    assert!(queue.disarm(&2), "it has left the wheel");
    assert_eq!(run_due(&queue), [3]);
    assert_nothing_more_comes(&queue).await;
}
