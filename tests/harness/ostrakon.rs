//! The program under test as a child process with a kubeconfig, as a user runs it.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::bed::Bed;
use super::metrics::Metrics;
use super::process::{Ended, Leash, Process, Program};
use super::{http, ports, wait};

/// How long it may take until nodes and pods are synced, on a machine that stalls.
const READY: Duration = Duration::from_secs(90);

/// How long it may take to end after SIGTERM. Its own bound is asserted where it runs alone.
const STOP: Duration = Duration::from_secs(60);

static RUNS: AtomicUsize = AtomicUsize::new(0);

/// Names another ostrakon to run than the one that was built with the test, to compare the two.
const OTHER: &str = "OSTRAKON_BINARY";

fn binary() -> PathBuf {
    let other = std::env::var_os(OTHER).filter(|path| !path.is_empty());
    other.map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_ostrakon")), PathBuf::from)
}

/// How `ostrakon run` is started.
#[derive(Clone, Debug)]
pub struct Launch {
    kubeconfig: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    port: Option<u16>,
}

impl Launch {
    /// `ostrakon run` with this kubeconfig; logs on level `debug`, and no election, unless an
    /// argument says otherwise.
    pub fn new(kubeconfig: PathBuf) -> Self {
        Self { kubeconfig, args: Vec::new(), env: Vec::new(), port: None }
    }

    /// Another argument.
    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Listens on this port instead of any free one.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Starts it and does not wait for anything.
    pub fn spawn(self, bed: &Bed) -> Result<Ostrakon> {
        self.spawn_in(bed.folder(), bed.leash())
    }

    /// The same without a bed: its log is in `folder`, and the leash takes it on.
    pub fn spawn_in(self, folder: &Path, leash: &Leash) -> Result<Ostrakon> {
        let port = match self.port {
            Some(port) => port,
            None => ports::free_port()?,
        };
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let mut args = vec![
            "run".to_owned(),
            format!("--kubeconfig={}", self.kubeconfig.display()),
            format!("--listen=127.0.0.1:{port}"),
        ];
        // Mostly there is one, which shall not wait for the lease of the one before to run out.
        for default in ["--log-level=debug", "--leader-elect=false"] {
            let flag = default.split('=').next().unwrap_or_default();
            if !self.args.iter().any(|arg| arg.split('=').next() == Some(flag)) {
                args.push(default.to_owned());
            }
        }
        args.extend(self.args.iter().cloned());
        let program = Program {
            name: "ostrakon".to_owned(),
            path: binary(),
            args,
            env: self.env.clone(),
            log: folder.join(format!("ostrakon-{run}.log")),
        };
        let process = Process::start(&program, leash)?;
        Ok(Ostrakon { process, log: program.log, port, launch: self })
    }

    /// Starts it and waits until `/readyz` answers 200.
    pub async fn start(self, bed: &Bed) -> Result<Ostrakon> {
        let mut ostrakon = self.spawn(bed)?;
        ostrakon.ready().await?;
        Ok(ostrakon)
    }
}

/// A running `ostrakon run`.
#[derive(Debug)]
pub struct Ostrakon {
    process: Process,
    log: PathBuf,
    port: u16,
    launch: Launch,
}

impl Ostrakon {
    /// As it runs in a cluster: with the rights of `deploy/`, straight at the API server.
    pub async fn start(bed: &Bed) -> Result<Self> {
        Launch::new(bed.kubeconfig(super::User::Ostrakon)?).start(bed).await
    }

    /// Waits until `/readyz` answers 200.
    pub async fn ready(&mut self) -> Result<()> {
        let url = self.url("/readyz");
        let process = &mut self.process;
        let ready = wait::until("ostrakon to be ready", READY, async || {
            if let Some(status) = process.exit_status()? {
                return Ok(Some(Err(status)));
            }
            let (code, body) = http::get(&url).await?;
            ensure!(code == 200, "/readyz says {code}: {body}");
            Ok(Some(Ok(())))
        })
        .await
        .with_context(|| process.log_tail())?;
        if let Err(status) = ready {
            bail!("ostrakon ended by itself ({status}); {}", process.log_tail());
        }
        Ok(())
    }

    /// SIGKILL.
    pub fn kill9(mut self) -> Result<Launch> {
        self.process.kill()?;
        Ok(self.launch.clone())
    }

    /// SIGTERM; fails unless it ends in time and with exit code 0.
    pub async fn stop(mut self) -> Result<Launch> {
        match self.process.stop(STOP).await? {
            Ended::Orderly(status) if status.success() => Ok(self.launch.clone()),
            ended => bail!("ostrakon did not end well: {ended:?}; {}", self.process.log_tail()),
        }
    }

    /// Waits until it ends by itself.
    pub async fn ended(&mut self, patience: Duration) -> Result<ExitStatus> {
        let process = &mut self.process;
        wait::until("ostrakon to end", patience, async || process.exit_status()).await
    }

    /// SIGTERM, and does not wait.
    pub fn terminate(&mut self) -> Result<()> {
        self.process.terminate()
    }

    /// Sends SIGHUP.
    pub fn hang_up(&mut self) -> Result<()> {
        self.process.hang_up()
    }

    /// SIGSTOP: it hangs, its connections stay open.
    pub fn freeze(&mut self) -> Result<()> {
        self.process.freeze()
    }

    /// SIGCONT.
    pub fn thaw(&mut self) -> Result<()> {
        self.process.thaw()
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The URL of `path` on its own port.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// A scrape of its metrics.
    pub async fn metrics(&self) -> Result<Metrics> {
        let (code, text) = http::get(&self.url("/metrics")).await?;
        ensure!(code == 200, "/metrics says {code}: {text}");
        Ok(Metrics::parse(&text))
    }

    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Waits until one line of its log has all of these words.
    pub async fn says(&self, words: &[&str], patience: Duration) -> Result<()> {
        let mut log = File::open(&self.log)?;
        let mut line = String::new();
        wait::until(&format!("ostrakon to say {words:?}"), patience, async || {
            // What is half written stays for the next time.
            let mut new = Vec::new();
            log.read_to_end(&mut new)?;
            line.push_str(&String::from_utf8_lossy(&new));
            let whole = line.rfind('\n').map_or(0, |end| end + 1);
            let is_it = |line: &str| words.iter().all(|word| line.contains(word));
            let found = line[..whole].lines().any(is_it);
            line.drain(..whole);
            Ok(found.then_some(()))
        })
        .await
    }

    /// All that it has logged up to now.
    pub fn log(&self) -> Result<String> {
        Ok(std::fs::read_to_string(&self.log)?)
    }
}
