use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::task::coop::unconstrained;
use tokio::time::{advance, timeout};

use super::*;

mod arming;
mod consumer;
mod many;
mod retries;
mod upstream;
mod work;

type Queue = TimedQueue<u32, &'static str>;

const YEAR: Duration = Duration::from_hours(24 * 365);
const A_YEAR_LESS_A_SECOND: Duration = Duration::from_secs(365 * 24 * 3_600 - 1);
/// Longer than any thread takes that works.
const NEVER: Duration = Duration::from_secs(60);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn after(seconds: u64) -> Instant {
    Instant::now() + secs(seconds)
}

/// What is handed out without waiting.
fn take<K: Clone + Eq + Hash, V: Clone + PartialEq>(
    queue: &TimedQueue<K, V>,
) -> Option<Fired<K, V>> {
    unconstrained(queue.next()).now_or_never()
}

/// Takes and finishes everything that is due; the keys in the order of handing out.
fn run_due<V: Clone + PartialEq>(queue: &TimedQueue<u32, V>) -> Vec<u32> {
    std::iter::from_fn(|| take(queue))
        .map(|fired| {
            assert!(fired.due <= Instant::now(), "handed out early");
            assert!(queue.complete(&fired.key, fired.token, Outcome::Done));
            fired.key
        })
        .collect()
}

/// The quiet side: nothing more comes, however long one waits.
async fn assert_nothing_more_comes<V: Clone + PartialEq>(queue: &TimedQueue<u32, V>) {
    for _ in 0..30 {
        assert!(take(queue).is_none());
        advance(YEAR).await;
    }
    assert!(take(queue).is_none());
}

fn retry(not_before: Instant) -> Outcome<&'static str> {
    Outcome::Retry { not_before, value: "again", failures: 1 }
}
