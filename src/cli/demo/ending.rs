//! The end by a signal, which comes whatever the story is doing.
//!
//! Signals are heard on a thread of their own. The story may be blocked, be it in a write to a reader
//! who does not read; then no task of its runtime would ever hear them.

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

/// The story has this long to end in order. A person who pressed ctrl-C waits no longer than a second.
const LAST_WORDS: Duration = Duration::from_millis(700);
/// A terminal has this long to be set right.
const LAST_WRITE: Duration = Duration::from_millis(100);

/// Hears signals. Clones share it.
#[derive(Clone)]
pub(super) struct Ending {
    shared: Arc<Shared>,
}

struct Shared {
    asked: CancellationToken,
    /// Files that must not be left behind.
    files: Mutex<Vec<PathBuf>>,
    /// Whether the terminal bears a live table.
    live: AtomicBool,
    /// Whether the story has come out wrong.
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
            .context("cannot listen for signals; check the limit of open files")?;
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
            .context("cannot start the thread for signals; check the limit of processes")?;
        Ok(Self { shared })
    }

    /// Completes when the end was asked for.
    pub(super) async fn asked(&self) {
        self.shared.asked.cancelled().await;
    }

    /// This file must not be left behind.
    pub(super) fn removes(&self, file: PathBuf) {
        self.shared.files.lock().push(file);
    }

    /// The terminal bears a live table, or does not any more.
    pub(super) fn is_live(&self, live: bool) {
        self.shared.live.store(live, Ordering::Relaxed);
    }

    /// The story has come out wrong, so that is what the exit code says.
    pub(super) fn has_failed(&self) {
        self.shared.failed.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    /// Ends the process, whatever its other threads are doing.
    #[allow(clippy::disallowed_methods, reason = "`main` may be blocked and never return")]
    fn end(&self) -> ! {
        for file in self.files.lock().iter() {
            // It is gone if the story has ended by itself meanwhile.
            let _ = fs::remove_file(file);
        }
        if self.live.load(Ordering::Relaxed) {
            // Standard output may be held by a thread that is blocked in it, and so may the terminal.
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
