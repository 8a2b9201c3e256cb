//! Starts, runs and stops the controller of a process.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus::Registry;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::info;

use super::engine::{Engine, Prepared, Surroundings};
use super::failure::{Failed, StartError, ended};
use super::file_watch;
use super::in_force::InForce;
use crate::clock::system_time;
use crate::cluster::Cluster;
use crate::config::Config;
use crate::observe::{Endpoints, Readiness, serve};

/// A running controller, leader or standby. Dropping it abandons requests in flight;
/// [`Running::stop`] finishes them.
pub struct Running {
    engine: Engine,
    /// Ends the endpoints.
    endpoints: DropGuard,
    served: JoinHandle<()>,
    address: std::net::SocketAddr,
    /// Reads the configuration file again, if there is one; does not end by itself.
    file_watch: JoinHandle<()>,
    /// Has it read at once.
    read_file: Arc<Notify>,
}

/// Starts a controller. Waits for a cluster that is unreachable, overloaded or still starting. Without
/// leader election it works at once, otherwise while it leads. The HTTP endpoints are served from the
/// beginning, so that a liveness probe does not kill a process that is waiting.
///
/// # Errors
/// See [`StartError`].
pub async fn start(cluster: Cluster, config: &Config) -> Result<Running, StartError> {
    let registry = registry(config.dry_run.is_some())?;
    register_process(&registry)?;
    let readiness = Readiness::default();
    let reached = readiness.gate("API server");
    let gates = (readiness.gate("list of nodes"), readiness.gate("list of pods"));
    let endpoints = CancellationToken::new();
    let shown_config = Arc::new(OnceLock::<Arc<InForce>>::new());
    let shown = Endpoints {
        registry: registry.clone(),
        readiness: readiness.clone(),
        config: Arc::new({
            let shown = Arc::clone(&shown_config);
            move || Some(shown.get()?.loaded().json(system_time()))
        }),
    };
    let (address, served) = serve(config.listen, shown, endpoints.clone()).await?;
    let endpoints = endpoints.drop_guard();

    let server = cluster.server.clone();
    let surroundings = Surroundings::of_process(config);
    let prepared = Prepared::new(cluster, config, surroundings, &registry).await?;
    reached.open();
    let in_force = prepared.in_force();
    let _ = shown_config.set(Arc::clone(&in_force));
    let read_file = Arc::new(Notify::new());
    let file_watch = tokio::spawn(watch_file(config, in_force, Arc::clone(&read_file)));
    if config.dry_run.is_some() {
        info!("dry run: nothing is written, no lease is taken");
    }
    info!(%address, server, version = env!("CARGO_PKG_VERSION"),
        rules = config.compat.rules(), "started");
    let engine = prepared.begin(gates, &readiness);
    Ok(Running { engine, endpoints, served, address, file_watch, read_file })
}

/// Reads the configuration file again and again, if there is one.
fn watch_file(
    config: &Config,
    in_force: Arc<InForce>,
    asked: Arc<Notify>,
) -> impl Future<Output = ()> + use<> {
    let path = config.file.as_ref().map(|file| file.path.clone());
    async move {
        match path {
            Some(path) => file_watch::follow(path, in_force, asked).await,
            None => std::future::pending().await,
        }
    }
}

impl Running {
    /// The address of the HTTP endpoints.
    pub fn address(&self) -> std::net::SocketAddr {
        self.address
    }

    /// In a dry run, the comparison with who really goes.
    pub(crate) fn shadowing(&self) -> Option<Arc<super::Shadowing>> {
        self.engine.shadowing()
    }

    /// Has the configuration file read at once.
    pub fn read_file(&self) {
        self.read_file.notify_one();
    }

    /// Completes when a part that must keep running has ended. The process must then end.
    pub async fn failed(&mut self) -> Failed {
        tokio::select! {
            failed = self.engine.failed() => failed,
            served = &mut self.served => ended(served),
            watch = &mut self.file_watch => ended(watch),
        }
    }

    /// Starts no new work, finishes requests in flight within 20 s, and releases the lease.
    ///
    /// # Errors
    /// A worker has panicked.
    pub async fn stop(self) -> Result<(), Failed> {
        self.file_watch.abort();
        let stopped = self.engine.stop().await;
        drop(self.endpoints);
        let _ = timeout(Duration::from_secs(1), self.served).await;
        stopped
    }
}

/// Where metrics are registered. Those of a dry run have names and a label of their own: no alert and no sum
/// takes them for a real run's.
fn registry(is_dry_run: bool) -> prometheus::Result<Registry> {
    if !is_dry_run {
        return Ok(Registry::new());
    }
    let labels = [("dry_run".to_owned(), "true".to_owned())];
    Registry::new_custom(Some("dry_run".to_owned()), Some(labels.into()))
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
