//! Ends the demo on a signal, whatever it is doing.
//!
//! A thread of its own waits for signals. The scenario may be blocked, for example in a write to a pipe
//! that nobody reads; then no task of its runtime would notice a signal.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::screen::AS_FOUND;

/// Time for an orderly end. Someone who pressed Ctrl-C waits no longer than a second.
const LAST_WORDS: Duration = Duration::from_millis(700);
/// Time to restore the terminal.
const LAST_WRITE: Duration = Duration::from_millis(100);

/// Listens for signals. Clones share the state.
#[derive(Clone)]
pub(super) struct Ending {
    shared: Arc<Shared>,
}

struct Shared {
    asked: CancellationToken,
    /// Files to remove.
    files: Mutex<Vec<PathBuf>>,
    /// Whether the terminal shows a live table.
    live: AtomicBool,
    /// Whether the check of the outcome has failed.
    failed: AtomicBool,
}

impl Ending {
    /// From now on SIGINT and SIGTERM end the process within a second.
    pub(super) fn listen() -> anyhow::Result<Self> {
        let shared = Arc::new(Shared {
            asked: CancellationToken::new(),
            files: Mutex::default(),
            live: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot listen for signals; check the open file limit")?;
        let (mut interrupt, mut terminate) = {
            let _inside = runtime.enter();
            (
                signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
                signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            )
        };
        let hears = Arc::clone(&shared);
        let hear = move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                hears.asked.cancel();
                sleep(LAST_WORDS).await;
            });
            hears.end();
        };
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(hear)
            .context("cannot start the signal thread; check the process limit")?;
        Ok(Self { shared })
    }

    /// Completes when a signal has arrived.
    pub(super) async fn asked(&self) {
        self.shared.asked.cancelled().await;
    }

    /// Registers a file to remove at the end.
    pub(super) fn removes(&self, file: PathBuf) {
        self.shared.files.lock().push(file);
    }

    /// Sets whether the terminal shows a live table.
    pub(super) fn is_live(&self, live: bool) {
        self.shared.live.store(live, Ordering::Relaxed);
    }

    /// Records that the check of the outcome failed, for the exit code.
    pub(super) fn has_failed(&self) {
        self.shared.failed.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    /// Ends the process, whatever its other threads are doing.
    #[allow(clippy::disallowed_methods, reason = "`main` may be blocked and never return")]
    fn end(&self) -> ! {
        for file in self.files.lock().iter() {
            // It is gone already if the scenario has ended by itself.
            let _ = fs::remove_file(file);
        }
        if self.live.load(Ordering::Relaxed) {
            // Another thread may be blocked while it holds standard output, or the terminal.
            let (done, written) = mpsc::channel();
            let _ = thread::Builder::new().spawn(move || {
                let terminal = OpenOptions::new().write(true).open("/dev/tty");
                let _ = terminal.and_then(|mut terminal| terminal.write_all(AS_FOUND.as_bytes()));
                done.send(())
            });
            let _ = written.recv_timeout(LAST_WRITE);
        }
        process::exit(i32::from(self.failed.load(Ordering::Relaxed)));
    }
}
