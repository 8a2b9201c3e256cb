//! All keys at once, and deadlines that are far away.

use super::*;

#[tokio::test(start_paused = true)]
async fn all_countdowns_are_moved_when_the_clock_was_set() {
    let queue = TimedQueue::<u32, u64>::new();
    // The value is the deadline on the wall clock, which stood at 0 when we began.
    let start = Instant::now();
    let by_clock = |set_to: u64| move |value: &u64| Some(start + secs(value - set_to));
    for key in 1..=3 {
        queue.arm(key, after(u64::from(key) * 100), u64::from(key) * 100);
    }
    queue.arm(4, Instant::now(), 0);
    let refused = take(&queue).unwrap();
    let not_before = after(60);
    queue.complete(&4, refused.token, Outcome::Retry { not_before, value: 50, failures: 1 });
    assert!(take(&queue).is_none());

    assert_eq!(queue.rearm_all(by_clock(0)), 0, "nothing moves by itself");
    // The wall clock jumps ahead by 50 s.
    assert_eq!(queue.rearm_all(by_clock(50)), 3);
    assert_eq!(queue.get(&4).unwrap().due, not_before, "the floor holds");
    assert_eq!(queue.rearm_all(|_| None), 0);
    advance(secs(49)).await;
    assert!(run_due(&queue).is_empty());
    advance(secs(1)).await;
    assert_eq!(run_due(&queue), [1]);
    // And back again.
    assert_eq!(queue.rearm_all(by_clock(0)), 2);
    advance(secs(149)).await;
    assert_eq!(run_due(&queue), [4]);
    advance(secs(1)).await;
    assert_eq!(run_due(&queue), [2]);
    advance(secs(100)).await;
    assert_eq!(run_due(&queue), [3]);
    assert_nothing_more_comes(&queue).await;
}

#[tokio::test(start_paused = true)]
async fn clearing_forgets_everything_and_the_queue_goes_on() {
    let queue = Queue::new();
    queue.arm(1, Instant::now(), "running");
    let running = take(&queue).unwrap();
    queue.arm(1, after(1), "held");
    queue.arm(2, Instant::now(), "due");
    queue.arm(3, after(1), "counting down");
    queue.clear();
    assert_eq!((queue.len(), queue.running()), (0, 0));
    assert!(!queue.is_current(&1, running.token));
    assert!(!queue.complete(&1, running.token, retry(Instant::now())));
    assert_nothing_more_comes(&queue).await;
    queue.arm(1, after(1), "new");
    advance(secs(1)).await;
    assert_eq!(run_due(&queue), [1]);
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_keys_come_out_in_order() {
    const KEYS: u32 = 10_000;
    let queue = Queue::new();
    let now = Instant::now();
    for key in 0..KEYS {
        // A permutation, as 7,919 is prime to 10,000.
        let key = key * 7_919 % KEYS;
        queue.arm(key, now + Duration::from_millis(u64::from(key) * 10), "a");
    }
    for key in (0..KEYS).step_by(4) {
        assert!(queue.disarm(&key));
    }
    let mut handed_out = Vec::new();
    while handed_out.len() < 7_500 {
        advance(secs(10)).await;
        handed_out.extend(run_due(&queue));
    }
    let expected: Vec<_> = (0..KEYS).filter(|key| key % 4 != 0).collect();
    assert_eq!(handed_out, expected);
    assert!(queue.is_empty());
    assert_nothing_more_comes(&queue).await;
}

#[tokio::test(start_paused = true)]
async fn a_far_deadline_is_kept_to_the_second() {
    let queue = Queue::new();
    queue.arm(1, Instant::now() + 10 * YEAR, "ten years");
    queue.arm(2, Instant::now() + 100 * YEAR, "a hundred");
    queue.arm(2, Instant::now() + 50 * YEAR, "fifty");
    for _ in 0..10 {
        assert!(run_due(&queue).is_empty());
        advance(A_YEAR_LESS_A_SECOND).await;
    }
    advance(secs(9)).await;
    assert!(run_due(&queue).is_empty());
    advance(secs(1)).await;
    assert_eq!(run_due(&queue), [1]);
    advance(39 * YEAR).await;
    assert!(run_due(&queue).is_empty());
    advance(YEAR).await;
    assert_eq!(run_due(&queue), [2]);
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_stood_empty_for_years_still_works() {
    let queue = Queue::new();
    advance(5 * YEAR).await;
    queue.arm(1, after(10), "a");
    advance(secs(10)).await;
    assert_eq!(run_due(&queue), [1]);
    advance(5 * YEAR).await;
    queue.arm(1, Instant::now() + 2 * YEAR, "a");
    assert!(run_due(&queue).is_empty());
    advance(2 * YEAR).await;
    assert_eq!(run_due(&queue), [1]);
}
