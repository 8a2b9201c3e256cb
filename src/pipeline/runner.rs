//! Runs the work on keys that are due, a task for each.
//!
//! A key that was handed out by a queue is not handed out again before it is completed. So the one thing that
//! must never happen is that work ends without that: by a panic, its key would be busy for ever. Here
//! every key is completed, and a panic is logged and counted.

use std::any::Any;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::error;

use super::{Fired, Outcome, Panics, TimedQueue};

/// Pause before work comes again that panicked. What panics once will mostly do so again.
pub const AFTER_PANIC: Duration = Duration::from_secs(10);

/// Runs work until it is abandoned. Clones share everything.
#[derive(Clone, Debug)]
pub struct Runner {
    tasks: TaskTracker,
    abandoned: CancellationToken,
    panics: Panics,
}

/// The work panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panicked;

impl Runner {
    /// One whose tasks are tracked by `tasks`.
    pub fn new(tasks: TaskTracker, panics: Panics) -> Self {
        Self { tasks, abandoned: CancellationToken::new(), panics }
    }

    /// Runs the `work` on `key`, and hands what came of it to `complete`, in every case but one: if
    /// it is abandoned, the queue that handed the key out is about to be cleared.
    pub fn run<T: Send>(
        &self,
        kind: &'static str,
        key: String,
        work: impl Future<Output = T> + Send + 'static,
        complete: impl FnOnce(Result<T, Panicked>) + Send + 'static,
    ) {
        let (panics, abandoned) = (self.panics.clone(), self.abandoned.clone());
        self.tasks.spawn(async move {
            let work = AssertUnwindSafe(work).catch_unwind();
            let Some(ended) = abandoned.run_until_cancelled(work).await else { return };
            complete(ended.map_err(|panic| {
                panics.count(kind);
                error!(
                    work = kind,
                    key,
                    panic = message(&*panic),
                    "work panicked; it will be retried"
                );
                Panicked
            }));
        });
    }

    /// Works on what is due in `queue` until `stop`, on so many keys at the same time. A key whose
    /// work panics is tried again.
    pub async fn run_due<K, V, W>(
        self,
        kind: &'static str,
        queue: Arc<TimedQueue<K, V>>,
        at_once: usize,
        stop: CancellationToken,
        work: impl Fn(&Fired<K, V>) -> W,
    ) where
        K: Clone + Eq + Hash + ToString + Send + 'static,
        V: Clone + PartialEq + Send + 'static,
        W: Future<Output = Outcome<V>> + Send + 'static,
    {
        let slots = Arc::new(Semaphore::new(at_once));
        loop {
            let next = async {
                let fired = queue.next().await;
                // Where nothing is answered, a slot may take as long as a request.
                let slot = Arc::clone(&slots).acquire_owned().await;
                (fired, slot)
            };
            let (fired, slot) = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                next = next => next,
            };
            let (queue, work) = (Arc::clone(&queue), work(&fired));
            self.run(kind, fired.key.to_string(), work, move |ended| {
                let Fired { key, token, value, failures, .. } = fired;
                let outcome = ended.unwrap_or_else(|Panicked| {
                    let not_before = Instant::now() + AFTER_PANIC;
                    Outcome::Retry { not_before, value, failures }
                });
                queue.complete(&key, token, outcome);
                drop(slot);
            });
        }
    }

    /// Drops all work where it stands. Requests that were sent may still be carried out.
    pub fn abandon(&self) {
        self.abandoned.cancel();
    }
}

/// What was panicked with. `panic!` makes a `&str` or a `String`.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no message)")
}

#[cfg(test)]
impl Runner {
    /// One of which nobody knows.
    pub(crate) fn alone() -> Self {
        let panics = Panics::register(&prometheus::Registry::new()).unwrap();
        Self::new(TaskTracker::new(), panics)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    use parking_lot::Mutex;
    use tokio::time::sleep;

    use super::*;

    type Queue = Arc<TimedQueue<&'static str, ()>>;

    #[tokio::test(start_paused = true)]
    async fn work_that_panics_is_counted_and_comes_again() {
        let (runner, queue, stop) = (Runner::alone(), Queue::default(), CancellationToken::new());
        let begin = Instant::now();
        queue.arm("n1", begin, ());
        let attempts = Arc::new(AtomicUsize::new(0));
        let work = move |_: &Fired<_, _>| {
            let attempts = Arc::clone(&attempts);
            async move {
                assert!(attempts.fetch_add(1, Relaxed) > 0, "on purpose");
                Outcome::Done
            }
        };
        tokio::spawn(runner.clone().run_due("record", Arc::clone(&queue), 1, stop, work));
        sleep(Duration::from_millis(1)).await;
        assert_eq!((queue.running(), queue.len()), (0, 1), "its key is not busy for ever");
        assert_eq!(runner.panics.counted("record"), 1);
        assert!(begin.elapsed() < AFTER_PANIC);
        sleep(AFTER_PANIC).await;
        assert!(queue.is_empty(), "once it went well nothing is left");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_are_counted_until_it_goes_well() {
        let (queue, stop) = (Queue::default(), CancellationToken::new());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let inner = Arc::clone(&seen);
        let work = move |fired: &Fired<_, _>| {
            inner.lock().push(fired.failures);
            let failures = if fired.failures < 2 { fired.failures + 1 } else { 0 };
            let not_before = Instant::now() + Duration::from_secs(1);
            async move { Outcome::Retry { not_before, value: (), failures } }
        };
        queue.arm("n1", Instant::now(), ());
        tokio::spawn(Runner::alone().run_due("record", Arc::clone(&queue), 1, stop.clone(), work));
        sleep(Duration::from_millis(3500)).await;
        assert_eq!(*seen.lock(), [0, 1, 2, 0]);
        queue.arm("n1", Instant::now(), ());
        sleep(Duration::from_secs(1)).await;
        assert_eq!(*seen.lock(), [0, 1, 2, 0, 1], "arming it anew takes back no failure");
        queue.disarm(&"n1");
        queue.arm("n1", Instant::now(), ());
        sleep(Duration::from_millis(1)).await;
        assert_eq!(*seen.lock(), [0, 1, 2, 0, 1, 0]);
        stop.cancel();
        sleep(Duration::from_secs(60)).await;
        assert_eq!(seen.lock().len(), 6);
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_keys_are_worked_on_at_once_and_no_more() {
        let (queue, stop) = (Queue::default(), CancellationToken::new());
        for key in ["a", "b", "c"] {
            queue.arm(key, Instant::now(), ());
        }
        let at_work = Arc::new(AtomicUsize::new(0));
        let inner = Arc::clone(&at_work);
        let work = move |_: &Fired<_, _>| {
            let at_work = Arc::clone(&inner);
            async move {
                at_work.fetch_add(1, Relaxed);
                sleep(Duration::from_secs(1)).await;
                Outcome::Done
            }
        };
        tokio::spawn(Runner::alone().run_due("record", Arc::clone(&queue), 2, stop, work));
        sleep(Duration::from_millis(500)).await;
        assert_eq!(at_work.load(Relaxed), 2);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(at_work.load(Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_abandoned_completes_nothing() {
        let (runner, queue) = (Runner::alone(), Queue::default());
        let inner = Arc::clone(&queue);
        runner.run("drain", "n1".to_owned(), std::future::pending::<()>(), move |_| {
            inner.arm("n1", Instant::now(), ());
        });
        sleep(Duration::from_secs(1)).await;
        runner.abandon();
        runner.tasks.close();
        runner.tasks.wait().await;
        assert!(queue.is_empty());
    }
}
