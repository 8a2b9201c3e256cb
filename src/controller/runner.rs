//! Runs the work on keys that are due, a task for each.
//!
//! A key that was handed out by a queue is not handed out again before it is completed. So the one thing that
//! must never happen is that work ends without that: by a panic, its key would be busy for ever. Here
//! every key is completed, and a panic is logged and counted.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::error;

use super::metrics::Panics;

/// Pause before work comes again that panicked. What panics once will mostly do so again.
pub(super) const AFTER_PANIC: Duration = Duration::from_secs(10);

/// Runs work until it is abandoned. Clones share everything.
#[derive(Clone, Debug)]
pub(super) struct Runner {
    tasks: TaskTracker,
    abandoned: CancellationToken,
    panics: Panics,
}

/// The work panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Panicked;

impl Runner {
    /// One whose tasks are tracked by `tasks`.
    pub(super) fn new(tasks: TaskTracker, panics: Panics) -> Self {
        Self { tasks, abandoned: CancellationToken::new(), panics }
    }

    /// Runs the `work` on `key`, and hands what came of it to `complete`, in every case but one: if
    /// it is abandoned, the queue that handed the key out is about to be cleared.
    pub(super) fn run<T: Send>(
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

    /// Drops all work where it stands. Requests that were sent may still be carried out.
    pub(super) fn abandon(&self) {
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
    pub(super) fn alone() -> Self {
        let panics = Panics::register(&prometheus::Registry::new()).unwrap();
        Self::new(TaskTracker::new(), panics)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::pipeline::{Outcome, TimedQueue};

    type Queue = Arc<TimedQueue<&'static str, ()>>;

    /// Works on what is due next. A panic has it tried again.
    async fn work_once(runner: &Runner, queue: &Queue, work: fn()) {
        let fired = queue.next().await;
        let queue = Arc::clone(queue);
        runner.run("record", fired.key.to_owned(), async move { work() }, move |ended| {
            let outcome = match ended {
                Ok(()) => Outcome::Done,
                Err(Panicked) => {
                    Outcome::Retry { not_before: Instant::now() + AFTER_PANIC, value: () }
                }
            };
            queue.complete(&fired.key, fired.token, outcome);
        });
        sleep(Duration::from_millis(1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_panics_is_counted_and_comes_again() {
        let (runner, queue) = (Runner::alone(), Queue::default());
        queue.arm("n1", Instant::now(), ());
        let begin = Instant::now();
        work_once(&runner, &queue, || panic!("on purpose")).await;
        assert_eq!(queue.running(), 0, "its key is not busy for ever");
        assert_eq!(runner.panics.counted("record"), 1);
        assert!(begin.elapsed() < AFTER_PANIC);
        work_once(&runner, &queue, || ()).await;
        assert!(begin.elapsed() >= AFTER_PANIC);
        assert!(queue.is_empty(), "once it went well nothing is left");
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
