//! ostrakon itself, as a child process with a kubeconfig.

use std::net::{Ipv4Addr, TcpListener};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::usage::{self, Memory};

/// How often is looked whether it is synced.
const LOOK: Duration = Duration::from_millis(10);
const SYNC: Duration = Duration::from_secs(300);
const STOP: Duration = Duration::from_secs(60);

/// A running controller. It ends with its value.
pub(crate) struct Controller {
    child: Child,
    pid: u32,
    port: u16,
    folder: TempDir,
}

impl Controller {
    /// Starts it on the server at this port, and does not wait.
    pub(crate) fn start(server: u16) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let kubeconfig = folder.path().join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: scale\n\
             clusters: [{{name: scale, cluster: {{server: 'http://127.0.0.1:{server}'}}}}]\n\
             contexts: [{{name: scale, context: {{cluster: scale, user: scale}}}}]\n\
             users: [{{name: scale, user: {{}}}}]\n"
        );
        std::fs::write(&kubeconfig, text)?;
        let log = std::fs::File::create(folder.path().join("log"))?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let other = std::env::var_os("OSTRAKON_BINARY").filter(|path| !path.is_empty());
        let program = other.unwrap_or_else(|| env!("CARGO_BIN_EXE_ostrakon").into());
        let child = Command::new(program)
            .args(["run", "--leader-elect=false"])
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--listen=127.0.0.1:{port}"))
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("start ostrakon")?;
        let pid = child.id().context("ostrakon ended at once")?;
        Ok(Self { child, pid, port, folder })
    }

    /// Waits until it knows all nodes and pods.
    pub(crate) async fn synced(&mut self) -> Result<()> {
        let end = Instant::now() + SYNC;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait()? {
                bail!("ostrakon ended by itself ({status}): {}", self.last_words());
            }
            if self.get("/readyz").await.is_ok() {
                return Ok(());
            }
            sleep(LOOK).await;
        }
        bail!("not synced after {SYNC:?}: {}", self.last_words())
    }

    /// The number of entries in all timed queues.
    pub(crate) async fn timers(&self) -> Result<usize> {
        let text = self.get("/metrics").await?;
        let lines = text.lines().filter(|line| line.starts_with("ostrakon_timers{"));
        let counts = lines.filter_map(|line| line.rsplit(' ').next());
        counts.map(|count| count.parse::<usize>().context("a metric that is no number")).sum()
    }

    pub(crate) fn cpu(&self) -> Result<f64> {
        usage::cpu(self.pid)
    }

    pub(crate) fn memory(&self) -> Result<Memory> {
        usage::memory(self.pid)
    }

    /// Ends it as an operator does.
    pub(crate) async fn stop(mut self) -> Result<()> {
        let pid = rustix::process::Pid::from_raw(self.pid.cast_signed()).context("no process")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let status = timeout(STOP, self.child.wait()).await.context("it does not end")??;
        ensure!(status.success(), "ostrakon ended with {status}: {}", self.last_words());
        Ok(())
    }

    /// The body of a page of its own, if that is 200.
    async fn get(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "{path} is not 200");
        Ok(answer)
    }

    fn last_words(&self) -> String {
        let text = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}
