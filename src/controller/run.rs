//! Start, run and stop of a controller as a process has it.

use std::time::Duration;

use prometheus::Registry;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::info;

use super::engine::{Engine, Prepared, Surroundings, ended};
use super::preflight::PreflightError;
use crate::cluster::Cluster;
use crate::config::Config;
use crate::observe::{Endpoints, ListenError, Readiness, serve};
use crate::pipeline;

/// The controller could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The cluster cannot be worked with.
    #[error(transparent)]
    Preflight(#[from] PreflightError),
    /// The endpoints cannot be served.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Two metrics have one name.
    #[error("cannot register the metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// A part of the controller that must not end has ended; so must the process.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// A worker or dispatcher thread panicked.
    #[error(transparent)]
    Thread(#[from] pipeline::Failure),
    /// The system grants no threads.
    #[error("cannot start the worker threads: {0}; check the limits of processes and memory")]
    Threads(std::io::Error),
    /// A task ended or panicked.
    #[error("a task ended, so the process must be restarted: {0}")]
    Task(String),
}

/// A controller at work, or standing by. Dropping it abandons what is in flight;
/// [`Running::stop`] does not.
pub struct Running {
    engine: Engine,
    /// Ends the endpoints.
    endpoints: DropGuard,
    served: JoinHandle<()>,
    address: std::net::SocketAddr,
}

/// Starts a controller on a cluster, which is waited for if it cannot be reached yet. It works at
/// once or, where a leader is elected, whenever it leads. The endpoints are served from the
/// beginning: who looks whether the process lives must not end it because it waits.
///
/// # Errors
/// See [`StartError`]: each says what to do about it.
pub async fn start(cluster: Cluster, config: &Config) -> Result<Running, StartError> {
    let registry = Registry::new();
    register_process(&registry)?;
    let readiness = Readiness::default();
    let reached = readiness.gate("API server");
    let gates = (readiness.gate("list of nodes"), readiness.gate("list of pods"));
    let endpoints = CancellationToken::new();
    let shown = Endpoints { registry: registry.clone(), readiness: readiness.clone() };
    let (address, served) = serve(config.listen, shown, endpoints.clone()).await?;
    let endpoints = endpoints.drop_guard();

    let server = cluster.server.clone();
    let surroundings = Surroundings::of_process(config);
    let prepared = Prepared::new(cluster, config, surroundings, &registry).await?;
    reached.open();
    info!(%address, server, version = env!("CARGO_PKG_VERSION"),
        rules = config.compat.rules(), "started");
    Ok(Running { engine: prepared.begin(gates, &readiness), endpoints, served, address })
}

impl Running {
    /// The address of the HTTP endpoints.
    pub fn address(&self) -> std::net::SocketAddr {
        self.address
    }

    /// Completes only if a part that must not end has ended: the process must end then too.
    pub async fn failed(&mut self) -> Failed {
        tokio::select! {
            failed = self.engine.failed() => failed,
            served = &mut self.served => ended(served),
        }
    }

    /// Takes no new work, finishes the requests in flight within 20 s, gives the lease back, and
    /// ends.
    ///
    /// # Errors
    /// A worker had panicked.
    pub async fn stop(self) -> Result<(), Failed> {
        let stopped = self.engine.stop().await;
        drop(self.endpoints);
        let _ = timeout(Duration::from_secs(1), self.served).await;
        stopped
    }
}

#[cfg(target_os = "linux")]
fn register_process(registry: &Registry) -> prometheus::Result<()> {
    use prometheus::process_collector::ProcessCollector;
    registry.register(Box::new(ProcessCollector::for_self()))
}

#[cfg(not(target_os = "linux"))]
fn register_process(_: &Registry) -> prometheus::Result<()> {
    Ok(())
}
