//! Reads that several callers need at the same time: the first one sends the request, the others wait for
//! its answer, and for a while the answer is used again.
//!
//! How old an answer may be is up to the caller: a confirmation must not come from before the eviction
//! was due, while the owner of a pod may be known for some seconds.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// A read, in flight or answered.
#[derive(Debug)]
pub(crate) struct Read<V> {
    /// No later than its request was sent.
    pub begun: Instant,
    answer: Arc<OnceCell<V>>,
}

impl<V> Read<V> {
    /// The answer, if there is one yet.
    pub(crate) fn answer(&self) -> Option<&V> {
        self.answer.get()
    }

    /// Someone waits for it. A read that everyone has given up is none in flight.
    fn is_in_flight(&self) -> bool {
        Arc::strong_count(&self.answer) > 1
    }
}

/// Reads by key. An answer is dropped `kept_for` after its request began.
#[derive(Debug)]
pub(crate) struct SharedReads<K, V> {
    kept_for: Duration,
    reads: Mutex<AHashMap<K, Read<V>>>,
}

impl<K: Clone + Eq + Hash, V: Clone> SharedReads<K, V> {
    /// None so far.
    pub(crate) fn new(kept_for: Duration) -> Self {
        Self { kept_for, reads: Mutex::default() }
    }

    /// The answer of the last read of `key` if it `suits`, or else of a new one by `read`. If a caller
    /// gives up a read that others wait for, one of them goes on with its own.
    pub(crate) async fn get(
        &self,
        key: &K,
        suits: impl FnOnce(&Read<V>) -> bool,
        read: impl Future<Output = V>,
    ) -> V {
        let answer = {
            let mut reads = self.reads.lock();
            let now = Instant::now();
            reads.retain(|_, read| now - read.begun < self.kept_for || read.is_in_flight());
            match reads.get(key) {
                Some(last) if suits(last) => Arc::clone(&last.answer),
                _ => {
                    let answer = Arc::default();
                    let new = Read { begun: now, answer: Arc::clone(&answer) };
                    reads.insert(key.clone(), new);
                    answer
                }
            }
        };
        answer.get_or_init(|| read).await.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::{sleep, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Counts its reads, each of which takes three seconds.
    struct Server(SharedReads<&'static str, u32>, AtomicU32);

    impl Server {
        fn new() -> Self {
            Self(SharedReads::new(SECOND), AtomicU32::new(0))
        }

        async fn get(&self, key: &'static str, suits: impl FnOnce(&Read<u32>) -> bool) -> u32 {
            let read = async {
                let number = self.1.fetch_add(1, Ordering::Relaxed);
                sleep(3 * SECOND).await;
                number
            };
            self.0.get(&key, suits, read).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn callers_at_the_same_time_share_one_read_of_a_key_and_none_of_another() {
        let server = Server::new();
        let second = async {
            sleep(2 * SECOND).await;
            server.get("a", |read| read.answer().is_none()).await
        };
        let (first, second, other) =
            tokio::join!(server.get("a", |_| true), second, server.get("b", |_| true));
        assert_eq!((first, second, other), (0, 0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_does_not_suit_is_replaced_and_an_old_answer_is_dropped() {
        let server = Server::new();
        assert_eq!(server.get("a", |_| true).await, 0);
        assert_eq!(server.get("a", |_| true).await, 1, "the request began three seconds ago");
        let (early, late) = tokio::join!(server.get("b", |_| true), server.get("b", |_| false));
        assert_eq!((early, late), (2, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_its_caller_gives_up_goes_on_for_those_who_wait() {
        let server = Server::new();
        let impatient = timeout(SECOND, server.get("a", |_| true));
        let (given_up, answered) = tokio::join!(impatient, server.get("a", |_| true));
        assert!(given_up.is_err());
        assert_eq!(answered, 1);
        assert_eq!(server.1.load(Ordering::Relaxed), 2, "one request each");
    }
}
