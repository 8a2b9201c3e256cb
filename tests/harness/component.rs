//! A component of the control plane: a program that can be stopped, killed, frozen and restarted, always
//! on the same port and with the same data.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::sync::Mutex;

use super::process::{Ended, Leash, Process, Program, log_tail};
use super::{http, wait};

/// The longest that a component may take to be ready; the machine may be busy.
const START: Duration = Duration::from_secs(180);

/// The longest that a component may take to end when asked to.
const STOP: Duration = Duration::from_secs(120);

/// How a component is brought down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// SIGTERM, and it finishes what it is doing.
    Graceful,
    /// SIGKILL in the middle of whatever it is doing.
    Kill,
}

/// One of etcd, kube-apiserver, kube-controller-manager and kube-scheduler.
#[derive(Debug)]
pub struct Component {
    /// Answers 200 when the component is ready.
    health: String,
    leash: Leash,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    program: Program,
    process: Option<Process>,
}

impl Component {
    /// A component that does not run yet and is ready when `health` answers 200.
    pub fn new(program: Program, health: String, leash: &Leash) -> Self {
        Self { health, leash: leash.clone(), state: Mutex::new(State { program, process: None }) }
    }

    /// Starts it, unless it runs, and waits until it is ready.
    pub async fn start(&self) -> Result<()> {
        self.state.lock().await.start(&self.leash, &self.health).await
    }

    /// Brings it down, if it runs.
    pub async fn stop(&self, how: How) -> Result<()> {
        self.state.lock().await.stop(how).await
    }

    /// Brings it down, starts it again and waits until it is ready.
    pub async fn restart(&self, how: How) -> Result<()> {
        let mut state = self.state.lock().await;
        state.stop(how).await?;
        state.start(&self.leash, &self.health).await
    }

    /// As [`Component::restart`], gracefully and with other arguments from now on.
    pub async fn restart_with(&self, args: Vec<String>) -> Result<()> {
        let mut state = self.state.lock().await;
        state.stop(How::Graceful).await?;
        state.program.args = args;
        state.start(&self.leash, &self.health).await
    }

    /// Stops it where it is: connections stay open and nobody answers.
    pub async fn freeze(&self) -> Result<()> {
        self.state.lock().await.running()?.freeze()
    }

    /// Lets it go on after [`Component::freeze`].
    pub async fn thaw(&self) -> Result<()> {
        self.state.lock().await.running()?.thaw()
    }

    /// Makes it run, whatever happened to it.
    pub async fn mend(&self) -> Result<()> {
        let mut state = self.state.lock().await;
        if let Some(process) = &mut state.process {
            process.thaw()?;
            if process.exit_status()?.is_some() {
                state.process = None;
            }
        }
        state.start(&self.leash, &self.health).await
    }

    /// Whether its process is there.
    pub async fn is_running(&self) -> bool {
        let mut state = self.state.lock().await;
        state.process.as_mut().is_some_and(|process| matches!(process.exit_status(), Ok(None)))
    }

    /// The id of its process, if it has one.
    pub async fn pid(&self) -> Option<u32> {
        self.state.lock().await.process.as_ref().map(Process::pid)
    }

    /// The arguments that it is started with.
    pub async fn args(&self) -> Vec<String> {
        self.state.lock().await.program.args.clone()
    }

    /// Where its output goes.
    pub async fn log(&self) -> PathBuf {
        self.state.lock().await.program.log.clone()
    }
}

impl State {
    fn running(&mut self) -> Result<&mut Process> {
        let name = &self.program.name;
        self.process.as_mut().with_context(|| format!("{name} does not run"))
    }

    async fn start(&mut self, leash: &Leash, health: &str) -> Result<()> {
        if self.process.is_some() {
            return Ok(());
        }
        let name = self.program.name.clone();
        let mut process = Process::start(&self.program, leash)?;
        let ready = wait::until(&format!("{name} to be ready"), START, async || {
            if let Some(status) = process.exit_status()? {
                return Ok(Some(Err(status)));
            }
            let (code, _) = http::get(health).await?;
            Ok((code == 200).then_some(Ok(())))
        })
        .await
        .with_context(|| process.log_tail())?;
        if let Err(status) = ready {
            anyhow::bail!("{name} ended by itself ({status}); {}", process.log_tail());
        }
        self.process = Some(process);
        Ok(())
    }

    async fn stop(&mut self, how: How) -> Result<()> {
        let Some(mut process) = self.process.take() else {
            return Ok(());
        };
        match how {
            How::Kill => process.kill(),
            How::Graceful => {
                let ended = process.stop(STOP).await?;
                ensure!(
                    matches!(ended, Ended::Orderly(_)),
                    "{} did not end within {STOP:?} of SIGTERM and was killed; {}",
                    self.program.name,
                    log_tail(&self.program.log)
                );
                Ok(())
            }
        }
    }
}
