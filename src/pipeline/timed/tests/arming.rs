//! Arming again, and the order of handing out.

use super::*;

#[tokio::test(start_paused = true)]
async fn arming_again_moves_a_countdown_both_ways() {
    let queue = Queue::new();
    queue.arm(1, after(10), "a");
    queue.arm(2, after(10), "a");
    queue.arm(3, after(10), "a");
    assert!(take(&queue).is_none());
    assert_eq!(queue.arm(1, after(5), "a"), Armed::Moved);
    assert_eq!(queue.arm(2, after(20), "a"), Armed::Moved);
    advance(secs(5)).await;
    assert_eq!(run_due(&queue), [1]);
    advance(secs(5)).await;
    assert_eq!(run_due(&queue), [3]);
    advance(secs(9)).await;
    assert!(run_due(&queue).is_empty());
    advance(secs(1)).await;
    assert_eq!(run_due(&queue), [2]);
    assert_nothing_more_comes(&queue).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_due_can_be_put_off_and_what_is_put_off_can_be_made_due() {
    let queue = Queue::new();
    queue.arm(1, Instant::now(), "a");
    queue.arm(2, after(10), "a");
    queue.arm(1, after(10), "a");
    queue.arm(2, Instant::now(), "a");
    assert_eq!(run_due(&queue), [2]);
    advance(secs(10)).await;
    assert_eq!(run_due(&queue), [1]);
    assert_nothing_more_comes(&queue).await;
}

#[tokio::test(start_paused = true)]
async fn another_value_replaces_and_the_same_does_not() {
    let queue = Queue::new();
    queue.arm(1, after(10), "a");
    assert_eq!(queue.arm(1, after(10), "b"), Armed::Moved);
    assert_eq!(queue.arm(1, after(10), "b"), Armed::Unchanged);
    advance(secs(10)).await;
    assert_eq!(take(&queue).unwrap().value, "b");
    assert_nothing_more_comes(&queue).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_due_first_goes_first() {
    let queue = Queue::new();
    let now = Instant::now();
    queue.arm(1, now + secs(3), "a");
    queue.arm(2, now + secs(1), "a");
    queue.arm(3, now + secs(2), "a");
    queue.arm(4, now + secs(2), "a");
    advance(secs(5)).await;
    // Overdue when it is armed.
    queue.arm(5, now + Duration::from_millis(1_500), "a");
    queue.arm(6, now, "a");
    queue.arm(7, now + secs(6), "a");
    assert_eq!(run_due(&queue), [6, 2, 5, 3, 4, 1]);
    advance(secs(1)).await;
    assert_eq!(run_due(&queue), [7]);
}
