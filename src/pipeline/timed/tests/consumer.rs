//! Waiting for what is due, and being woken.

use super::*;

#[tokio::test(start_paused = true)]
async fn waiting_ends_exactly_at_the_due_time() {
    let queue = Queue::new();
    let start = Instant::now();
    for seconds in [300, 10, 7_200] {
        queue.arm(1, start + secs(seconds), "a");
        queue.arm(2, start + 2 * secs(seconds), "a");
        queue.disarm(&2);
    }
    let fired = queue.next().await;
    assert_eq!((fired.key, fired.due), (1, start + secs(7_200)));
    assert_eq!(start.elapsed(), secs(7_200));
    let nothing = timeout(10 * YEAR, queue.next()).await;
    assert!(nothing.is_err(), "it waits for ever when there is nothing");
}

#[tokio::test(start_paused = true)]
async fn giving_up_waiting_loses_nothing() {
    let queue = Queue::new();
    queue.arm(1, after(10), "a");
    assert!(timeout(secs(3), queue.next()).await.is_err());
    assert!(timeout(secs(3), queue.next()).await.is_err());
    assert_eq!(timeout(secs(5), queue.next()).await.unwrap().key, 1);
}

#[tokio::test(start_paused = true)]
async fn a_storm_lets_other_tasks_run() {
    let queue = Arc::new(Queue::new());
    for key in 0..5_000 {
        queue.arm(key, Instant::now(), "a");
    }
    let consumer = tokio::spawn({
        let queue = Arc::clone(&queue);
        async move {
            loop {
                let fired = queue.next().await;
                queue.complete(&fired.key, fired.token, Outcome::Done);
            }
        }
    });
    tokio::task::yield_now().await;
    assert!(!queue.is_empty(), "we had a turn before it was through");
    while !queue.is_empty() {
        tokio::task::yield_now().await;
    }
    consumer.abort();
}

/// Has a consumer wait on one thread, lets `disturb` do its work on another, outside of the
/// runtime, and returns what the consumer got.
async fn woken_by(
    queue: &Arc<Queue>,
    disturb: impl FnOnce(&Queue) + Send + 'static,
) -> Fired<u32, &'static str> {
    let consumer = tokio::spawn({
        let queue = Arc::clone(queue);
        async move { queue.next().await }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!consumer.is_finished(), "it waits");
    let (queue, runtime) = (Arc::clone(queue), Handle::current());
    std::thread::spawn(move || {
        let _context = runtime.enter();
        disturb(&queue);
    });
    timeout(NEVER, consumer).await.expect("it was not woken").unwrap()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(20)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arming_wakes_a_consumer_that_has_nothing_to_wait_for() {
    let queue = Arc::new(Queue::new());
    let fired = woken_by(&queue, |queue| {
        queue.arm(1, Instant::now(), "at once");
    });
    assert_eq!(fired.await.key, 1);
    let fired = woken_by(&queue, |queue| {
        queue.arm(2, soon(), "soon");
    });
    assert_eq!(fired.await.key, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arming_wakes_a_consumer_that_waits_for_something_later() {
    let queue = Arc::new(Queue::new());
    queue.arm(9, after(3_600), "far");
    let fired = woken_by(&queue, |queue| {
        queue.arm(1, Instant::now(), "at once");
    });
    assert_eq!(fired.await.key, 1);
    let fired = woken_by(&queue, |queue| {
        queue.arm(2, soon(), "soon");
    });
    assert_eq!(fired.await.key, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_a_countdown_nearer_wakes_the_consumer() {
    let queue = Arc::new(Queue::new());
    queue.arm(1, after(3_600), "far");
    let fired = woken_by(&queue, |queue| {
        queue.arm(1, soon(), "moved");
    });
    assert_eq!(fired.await.value, "moved");
    queue.arm(2, after(3_600), "far");
    let fired = woken_by(&queue, |queue| {
        queue.arm(2, Instant::now(), "moved");
    });
    assert_eq!(fired.await.value, "moved");
    for due_of in [soon, Instant::now] {
        queue.arm(3, after(3_600), "far");
        let fired = woken_by(&queue, move |queue| {
            queue.rearm_all(|_| Some(due_of()));
        });
        let fired = fired.await;
        queue.complete(&fired.key, fired.token, Outcome::Done);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completing_work_wakes_the_consumer_for_what_waited() {
    let queue = Arc::new(Queue::new());
    queue.arm(1, Instant::now(), "first");
    let first = queue.next().await.token;
    queue.arm(1, Instant::now(), "second");
    let second = woken_by(&queue, move |queue| {
        assert!(queue.complete(&1, first, Outcome::Done));
    });
    let second = second.await.token;
    let third = woken_by(&queue, move |queue| {
        assert!(queue.complete(&1, second, retry(soon())));
    });
    assert_eq!(third.await.value, "again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_waits_is_woken_after_a_clear_as_before() {
    let queue = Arc::new(Queue::new());
    queue.arm(1, after(3_600), "far");
    let fired = woken_by(&queue, |queue| {
        queue.clear();
        queue.arm(2, soon(), "soon");
    });
    assert_eq!(fired.await.key, 2);
}

/// Four threads arm, move and disarm their keys while the consumer works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_countdown_is_lost_under_contention() {
    const KEYS: u64 = 64;
    const ROUNDS: u64 = 200;

    #[derive(Default)]
    struct Fact {
        seen: AtomicU64,
        in_work: AtomicBool,
    }

    let queue = Arc::new(TimedQueue::<u64, u64>::new());
    let facts: Arc<Vec<Fact>> = Arc::new((0..4 * KEYS).map(|_| Fact::default()).collect());
    let consumer = tokio::spawn({
        let (queue, facts) = (Arc::clone(&queue), Arc::clone(&facts));
        async move {
            loop {
                let fired = queue.next().await;
                assert!(fired.due <= Instant::now(), "handed out early");
                let (queue, facts) = (Arc::clone(&queue), Arc::clone(&facts));
                tokio::spawn(async move {
                    let fact = &facts[usize::try_from(fired.key).unwrap()];
                    assert!(!fact.in_work.swap(true, Ordering::SeqCst), "twice at once");
                    tokio::task::yield_now().await;
                    fact.seen.store(fired.value, Ordering::SeqCst);
                    assert!(fact.in_work.swap(false, Ordering::SeqCst));
                    assert!(queue.complete(&fired.key, fired.token, Outcome::Done));
                });
            }
        }
    });
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let (queue, runtime) = (Arc::clone(&queue), Handle::current());
            std::thread::spawn(move || {
                let _context = runtime.enter();
                for round in 1..=ROUNDS {
                    for key in thread * KEYS..(thread + 1) * KEYS {
                        let delay = Duration::from_micros((key * 131 + round * 977) % 5_000);
                        queue.arm(key, Instant::now() + delay, round);
                        if (key + round).is_multiple_of(7) && round < ROUNDS {
                            queue.disarm(&key);
                        }
                    }
                }
            })
        })
        .collect();
    let all_done = async {
        while !queue.is_empty() || threads.iter().any(|thread| !thread.is_finished()) {
            assert!(!consumer.is_finished());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(6 * NEVER, all_done).await.expect("a countdown was lost");
    for fact in facts.iter() {
        assert_eq!(fact.seen.load(Ordering::SeqCst), ROUNDS, "the last one ran");
    }
    consumer.abort();
}
