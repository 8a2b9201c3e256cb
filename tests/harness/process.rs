//! Child processes that do not outlive the test.
//!
//! A [`Process`] is killed when its value is dropped: on return, on error and on panic. A [`Leash`] covers
//! the sudden end of the test process itself (Ctrl-C, SIGKILL): it is a shell that reads from a pipe, and
//! kills the remaining children once the other end is closed. The children are in process groups of their
//! own, so that a Ctrl-C does not reach all of them at once: an API server that loses its etcd first hangs.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::NamedTempFile;
use tokio::time::Instant;

/// How often a process that is asked to end is looked at.
const POLL: Duration = Duration::from_millis(10);

/// How long a destructor waits for an orderly end before it kills.
const PATIENCE_IN_DROP: Duration = Duration::from_secs(15);

/// How much of a log goes into an error.
const TAIL_LINES: usize = 25;

/// Variables that would lead a child away from loopback or to somebody else's cluster, or make its
/// log another than expected.
const NOT_INHERITED: [&str; 9] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "KUBECONFIG",
    "RUST_BACKTRACE",
    "RUST_LOG",
];

/// What to run, and where its output goes.
#[derive(Clone, Debug)]
pub struct Program {
    /// For messages.
    pub name: String,
    pub path: PathBuf,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Stdout and stderr are appended to this file.
    pub log: PathBuf,
}

/// How a process ended that was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself, within the time it was given.
    Orderly(ExitStatus),
    /// It had to be killed.
    Killed,
}

/// A running child process.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    child: Child,
    pid: Pid,
    leash: Leash,
    ended: bool,
}

impl Process {
    /// Starts `program`. The leash takes it on.
    pub fn start(program: &Program, leash: &Leash) -> Result<Self> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&program.log)
            .with_context(|| format!("open the log {}", program.log.display()))?;
        let mut command = Command::new(&program.path);
        for variable in NOT_INHERITED {
            command.env_remove(variable);
        }
        let child = command
            .args(&program.args)
            .envs(program.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {} ({})", program.name, program.path.display()))?;
        let pid = Pid::from_child(&child);
        leash.take(pid);
        Ok(Self {
            name: program.name.clone(),
            log: program.log.clone(),
            child,
            pid,
            leash: leash.clone(),
            ended: false,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        if status.is_some() && !self.ended {
            self.ended = true;
            self.leash.let_go(self.pid);
        }
        Ok(status)
    }

    /// Asks it to end (SIGTERM) and waits; kills it when `patience` is over.
    pub async fn stop(&mut self, patience: Duration) -> Result<Ended> {
        self.terminate()?;
        let end = Instant::now() + patience;
        while Instant::now() < end {
            if let Some(status) = self.exit_status()? {
                return Ok(Ended::Orderly(status));
            }
            tokio::time::sleep(POLL).await;
        }
        self.kill()?;
        Ok(Ended::Killed)
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.exit_status()?;
        Ok(())
    }

    /// Asks it to end (SIGTERM) and does not wait.
    pub fn terminate(&mut self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    /// Asks it to read its configuration file again (SIGHUP).
    pub fn hang_up(&mut self) -> Result<()> {
        self.signal(Signal::HUP)
    }

    /// Stops it where it is (SIGSTOP): connections stay open and nobody answers.
    pub fn freeze(&mut self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on after [`Process::freeze`].
    pub fn thaw(&mut self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        // A child that has not been waited for keeps its id, so this hits no stranger.
        if self.exit_status()?.is_none() {
            kill_process(self.pid, signal).with_context(|| format!("signal {}", self.name))?;
        }
        Ok(())
    }

    /// The end of its log, for an error message.
    pub fn log_tail(&self) -> String {
        log_tail(&self.log)
    }
}

impl Drop for Process {
    #[allow(
        clippy::disallowed_methods,
        reason = "a destructor cannot await, and this one must not return before the end"
    )]
    fn drop(&mut self) {
        // A frozen process does not hear SIGTERM.
        let _ = self.thaw();
        let _ = self.terminate();
        let end = std::time::Instant::now() + PATIENCE_IN_DROP;
        while matches!(self.exit_status(), Ok(None)) {
            if std::time::Instant::now() > end {
                let _ = self.kill();
                return;
            }
            std::thread::sleep(POLL);
        }
    }
}

/// The last lines of a log file.
pub fn log_tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let first = lines.len().saturating_sub(TAIL_LINES);
    format!("end of {}:\n{}", log.display(), lines[first..].join("\n"))
}

/// Ends its processes, newest first, and removes the folder when this process ends without having
/// done so. Clones are the same leash.
#[derive(Clone, Debug)]
pub struct Leash(Arc<Watchman>);

#[derive(Debug)]
struct Watchman {
    shell: Mutex<Child>,
    orders: Mutex<Option<ChildStdin>>,
}

/// Reads `+ PID` and `- PID`. `.` is the orderly end.
const WATCHMAN: &str = r#"
trap '' HUP INT TERM
pids=
while read -r order pid; do
  case $order in
  +) pids="$pid $pids" ;;
  -) rest=
     for p in $pids; do [ "$p" = "$pid" ] || rest="$rest $p"; done
     pids=$rest ;;
  .) exit 0 ;;
  esac
done
for p in $pids; do
  kill -CONT "$p" 2>/dev/null
  kill -TERM "$p" 2>/dev/null || continue
  tries=0
  while [ $tries -lt 100 ] && kill -0 "$p" 2>/dev/null; do sleep 0.1; tries=$((tries + 1)); done
  kill -KILL "$p" 2>/dev/null
done
rm -rf "$1"
"#;

impl Leash {
    /// A leash that also removes `folder` if this process ends suddenly.
    pub fn new(folder: &Path) -> Result<Self> {
        let mut shell = Command::new("sh")
            .args(["-c", WATCHMAN, "leash"])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("start sh, which ends the components if this process dies")?;
        let orders = Mutex::new(shell.stdin.take());
        let shell = Mutex::new(shell);
        Ok(Self(Arc::new(Watchman { shell, orders })))
    }

    fn take(&self, pid: Pid) {
        self.0.tell("+", pid);
    }

    fn let_go(&self, pid: Pid) {
        self.0.tell("-", pid);
    }
}

impl Watchman {
    fn tell(&self, order: &str, pid: Pid) {
        if let Some(orders) = self.orders.lock().as_mut() {
            // Without the shell only the cover against a sudden death is missing.
            let _ = writeln!(orders, "{order} {}", pid.as_raw_nonzero());
        }
    }
}

impl Drop for Watchman {
    fn drop(&mut self) {
        if let Some(mut orders) = self.orders.lock().take() {
            let _ = writeln!(orders, ".");
        }
        let _ = self.shell.lock().wait();
    }
}

/// Creates a file with `content`, or replaces it in one step: somebody may be reading it.
pub fn write_file(path: &Path, content: &str) -> Result<()> {
    let write = || -> Result<()> {
        let mut file = NamedTempFile::new_in(path.parent().context("a path without folder")?)?;
        file.write_all(content.as_bytes())?;
        file.persist(path)?;
        Ok(())
    };
    write().with_context(|| format!("write {}", path.display()))
}
