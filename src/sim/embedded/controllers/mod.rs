//! The controllers of a control plane that matter here: node lifecycle, replicas, daemons, scheduler,
//! disruption budgets and garbage collection.
//!
//! They use the store directly, so no fault rule applies to them: the clients of the API are under test,
//! not these controllers.

mod daemons;
mod feed;
mod housekeeping;
mod lifecycle;
mod replicas;
mod scheduler;
mod taints;
#[cfg(test)]
mod tests;

use std::time::Duration;

use futures::FutureExt;
use futures::future::select_all;
use tokio::task::JoinSet;
use tokio::time::sleep;

use self::daemons::Daemons;
use self::housekeeping::Housekeeping;
use self::lifecycle::Lifecycle;
use self::replicas::Replicas;
use self::scheduler::Scheduler;
use super::resource::Resource;
use super::store::Store;

/// Changes that come within this time are handled together.
const GATHER: Duration = Duration::from_millis(50);

/// After this time a controller looks even if nothing has changed: some things depend on time.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Which controllers run, and how fast. The default is what Kubernetes does by default.
// Not states of one thing: each is a controller.
#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, Debug)]
pub struct Settings {
    /// How often the signs of life of nodes are looked at.
    pub monitor_period: Duration,
    /// After how long without a sign of life a node's state is unknown.
    pub monitor_grace: Duration,
    /// The same for a node that never reported.
    pub startup_grace: Duration,
    /// How many nodes per second get a NoExecute taint because of an outage.
    pub taint_rate: f64,
    /// Whether conditions become taints.
    pub lifecycle: bool,
    /// Whether sets are filled up to their replicas.
    pub replicas: bool,
    /// Whether nodes are given the pods of each `DaemonSet`.
    pub daemons: bool,
    /// Whether pods without a node get one.
    pub scheduler: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            monitor_period: Duration::from_secs(5),
            monitor_grace: Duration::from_secs(50),
            startup_grace: Duration::from_secs(60),
            taint_rate: 0.1,
            lifecycle: true,
            replicas: true,
            daemons: true,
            scheduler: true,
        }
    }
}

/// The running controllers. They end when this is dropped.
#[derive(Debug)]
pub struct Controllers {
    tasks: JoinSet<()>,
}

impl Controllers {
    /// Starts them. Must be called within a tokio runtime.
    pub fn start(store: &Store, settings: &Settings) -> Self {
        let mut tasks = JoinSet::new();
        if settings.lifecycle {
            let mut lifecycle = Lifecycle::new(store.clone(), settings.clone());
            let step = move || lifecycle.step();
            tasks.spawn(keep(store.clone(), &[Resource::Nodes], step));
        }
        if settings.replicas {
            let mut replicas = Replicas::new(store.clone());
            let watched = &[Resource::Pods, Resource::ReplicaSets, Resource::StatefulSets];
            tasks.spawn(keep(store.clone(), watched, unhurried(move || replicas.step())));
        }
        if settings.daemons {
            let mut daemons = Daemons::new(store.clone());
            let watched = &[Resource::DaemonSets, Resource::Nodes, Resource::Pods];
            tasks.spawn(keep(store.clone(), watched, unhurried(move || daemons.step())));
        }
        if settings.scheduler {
            let mut scheduler = Scheduler::new(store.clone());
            let watched = &[Resource::Pods, Resource::Nodes];
            tasks.spawn(keep(store.clone(), watched, unhurried(move || scheduler.step())));
        }
        let budgets = store.clone();
        let watched = &[
            Resource::Pods,
            Resource::PodDisruptionBudgets,
            Resource::ReplicaSets,
            Resource::StatefulSets,
        ];
        tasks.spawn(keep(store.clone(), watched, unhurried(move || budgets.update_budgets())));
        let mut housekeeping = Housekeeping::new(store.clone());
        let watched =
            &[Resource::Namespaces, Resource::Pods, Resource::ReplicaSets, Resource::StatefulSets];
        tasks.spawn(keep(store.clone(), watched, unhurried(move || housekeeping.step())));
        Self { tasks }
    }

    /// Ends them, and waits until they have ended.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

/// A step after which nothing is due by itself for a while.
fn unhurried(mut step: impl FnMut() + Send) -> impl FnMut() -> Duration + Send {
    move || {
        step();
        LOOK_AGAIN
    }
}

/// Takes a step whenever one of the resources has changed, and at the latest after the time that
/// the step before has named.
async fn keep(
    store: Store,
    resources: &'static [Resource],
    mut step: impl FnMut() -> Duration + Send,
) {
    let mut signals: Vec<_> = resources.iter().map(|r| store.signal(*r)).collect();
    loop {
        for signal in &mut signals {
            signal.see();
        }
        let longest = step();
        let changed = select_all(signals.iter_mut().map(|signal| signal.changed().boxed()));
        if tokio::time::timeout(longest, changed).await.is_ok() {
            sleep(GATHER).await;
        }
    }
}
