//! Runs the program under test to its end, and returns its output and exit code.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::process::Command;
use tokio::time::timeout;

/// What a run of the program came to.
#[derive(Debug)]
pub struct Run {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// Its exit code; `None` if a signal ended it.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// The one line that it says on stderr.
    pub fn complaint(&self) -> Result<&str> {
        match self.stderr.lines().collect::<Vec<_>>().as_slice() {
            [line] => Ok(line),
            _ => bail!("not one line: {self:?}"),
        }
    }
}

/// Runs `ostrakon` with these arguments and nothing in its environment but `env`, in `folder`.
/// Fails if it does not end by itself.
pub async fn run(
    folder: &Path,
    args: &[&str],
    env: &[(&str, &str)],
    patience: Duration,
) -> Result<Run> {
    let running = Command::new(env!("CARGO_BIN_EXE_ostrakon"))
        .args(args)
        .env_clear()
        .envs(env.iter().copied())
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("start ostrakon")?;
    let output = timeout(patience, running.wait_with_output())
        .await
        .with_context(|| format!("ostrakon {args:?} still runs after {patience:?}"))??;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Ok(Run { status: output.status, stdout: text(&output.stdout), stderr: text(&output.stderr) })
}
