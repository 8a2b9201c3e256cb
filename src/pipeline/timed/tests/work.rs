//! A key that is being worked on, and stale tokens.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_key_never_runs_twice_at_once() {
    let queue = Queue::new();
    queue.arm(1, Instant::now(), "first");
    let first = take(&queue).unwrap();
    assert_eq!(queue.arm(1, Instant::now(), "second"), Armed::New);
    assert_eq!(queue.arm(1, after(1), "second"), Armed::Moved);
    assert_eq!((queue.len(), queue.running()), (1, 1));
    assert_nothing_more_comes(&queue).await;

    assert!(queue.complete(&1, first.token, Outcome::Done));
    assert_eq!(queue.running(), 0);
    let second = take(&queue).unwrap();
    assert_eq!(second.value, "second");
    assert!(queue.complete(&1, second.token, Outcome::Done));
    assert!(queue.is_empty());
    assert_nothing_more_comes(&queue).await;
}

#[tokio::test(start_paused = true)]
async fn a_countdown_armed_during_the_work_keeps_its_time() {
    let queue = Queue::new();
    queue.arm(1, Instant::now(), "first");
    let first = take(&queue).unwrap();
    queue.arm(1, after(10), "second");
    advance(secs(4)).await;
    queue.complete(&1, first.token, Outcome::Done);
    advance(secs(5)).await;
    assert!(take(&queue).is_none());
    advance(secs(1)).await;
    assert_eq!(run_due(&queue), [1]);
    assert_nothing_more_comes(&queue).await;
}

#[tokio::test(start_paused = true)]
async fn disarming_during_the_work_cancels_what_waits_and_tells_the_work() {
    let queue = Queue::new();
    queue.arm(1, Instant::now(), "first");
    let first = take(&queue).unwrap();
    assert!(queue.is_current(&1, first.token));
    queue.arm(1, Instant::now(), "second");
    assert!(queue.disarm(&1), "a countdown waited");
    assert!(!queue.disarm(&1), "and does no more");
    assert!(!queue.is_current(&1, first.token));
    // Arming again does not make the cancelled work wanted.
    queue.arm(1, after(1), "third");
    assert!(!queue.is_current(&1, first.token));
    assert!(queue.disarm(&1));
    assert!(queue.complete(&1, first.token, Outcome::Done));
    assert!(queue.is_empty());
    assert_nothing_more_comes(&queue).await;
}

#[tokio::test(start_paused = true)]
async fn a_stale_token_changes_nothing() {
    let queue = Queue::new();
    queue.arm(1, Instant::now(), "first");
    let first = take(&queue).unwrap();
    assert!(!queue.complete(&2, first.token, Outcome::Done), "not its key");
    assert!(queue.complete(&1, first.token, Outcome::Done));
    assert!(!queue.complete(&1, first.token, Outcome::Done), "done already");
    assert!(!queue.is_current(&1, first.token));

    queue.arm(1, Instant::now(), "second");
    assert!(!queue.complete(&1, first.token, retry(after(5))));
    let second = take(&queue).unwrap();
    assert_ne!(second.token, first.token);
    assert!(!queue.complete(&1, first.token, Outcome::Done));
    assert!(!queue.complete(&1, first.token, retry(after(5))));
    assert!(queue.is_current(&1, second.token), "the second still runs");
    assert_eq!(queue.running(), 1);
    assert!(queue.complete(&1, second.token, Outcome::Done));
    assert_nothing_more_comes(&queue).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_known_about_a_key_can_be_read() {
    let queue = Queue::new();
    assert_eq!(queue.get(&1), None);
    let (due, later) = (Instant::now(), after(5));
    let known = |due, value, running| Some(Scheduled { due, value, running });
    queue.arm(1, due, "first");
    assert_eq!(queue.get(&1), known(due, "first", false));
    let first = take(&queue).unwrap();
    assert_eq!(queue.get(&1), known(due, "first", true));
    queue.arm(1, later, "second");
    assert_eq!(queue.get(&1), known(later, "second", true));
    assert_eq!(queue.snapshot(), [(1, queue.get(&1).unwrap())]);
    queue.complete(&1, first.token, Outcome::Done);
    assert_eq!(queue.get(&1), known(later, "second", false));
    queue.disarm(&1);
    assert_eq!(queue.get(&1), None);
    assert_eq!(queue.snapshot(), []);
}
