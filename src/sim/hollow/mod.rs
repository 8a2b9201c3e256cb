//! Hollow kubelets: nodes without machines, many in one process.
//!
//! To the API server, its controllers and the scheduler they look like kubelets. They register nodes,
//! renew leases, report conditions, take bound pods to Running and Ready, and carry out deletions:
//! containers stop, a terminal phase is reported, and the object is deleted without grace. They execute
//! nothing and accept no connections.
//!
//! Each node has [`Switch`]es that make it misbehave as real nodes do.
//!
//! ```no_run
//! # use ostrakon::sim::hollow::{HollowKubelets, HollowNode, Options, StaticPod, Switch};
//! # async fn example(client: kube::Client) -> Result<(), ostrakon::sim::hollow::Error> {
//! let kubelets = HollowKubelets::start(client, Options::default()).await?;
//! kubelets.add_node(HollowNode::new("n1").zone("a").static_pod(StaticPod::new("kube-system", "proxy"))).await?;
//! kubelets.set("n1", Switch::Silent(true)).await?;
//! kubelets.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! The parts, from the outside in:
//!
//! - `mod`: start, stop, registration;
//! - `watch`, `calls`, `engine`: input and output, with a timeout on every request;
//! - `state`, `next_request`: the state and the next requests, without I/O;
//! - `lifecycle`, `admission`, `shutdown`: the next step of a pod, whether a pod is accepted, and the next
//!   step of a node shutdown;
//! - `agenda`: queued work and timers;
//! - `node`, `lease`, `mirror`, `report`: what kubelets write;
//! - `objects`, `switches`: what they read, and how they behave.

mod admission;
mod agenda;
mod calls;
mod engine;
mod lease;
mod lifecycle;
mod mirror;
mod next_request;
mod node;
mod objects;
mod report;
mod shutdown;
mod state;
mod switches;
mod watch;

#[cfg(test)]
mod next_request_tests;
#[cfg(test)]
mod shell_tests;
#[cfg(test)]
mod testing;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use kube::{Api, Client};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::{mpsc, oneshot, watch as signal};
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::model::NodeName;

pub use calls::CallError;
pub use mirror::StaticPod;
pub use node::HollowNode;
pub use shutdown::{ShutdownGroup, ShutdownPlan};
pub use switches::{HollowCondition, Rejection, Switch};

use calls::Calls;
use engine::{Command, Inbox};
use state::State;
use switches::Conduct;

/// Events of a watch that wait to be taken in. A full channel holds the watch back.
const EVENTS_WAITING: usize = 1024;

/// Commands that wait to be obeyed.
const COMMANDS_WAITING: usize = 64;

/// How long the first lists may take: a trial that starts its API server at the same time waits
/// for it.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How often each request of a registration is tried; with its pauses, about 20 s.
const REGISTRATION_TRIES: u32 = 10;

/// Pauses between failed requests. A real kubelet waits up to 7 s; a test should not.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(200), most: Duration::from_secs(5) };

/// Times and limits that hold for all nodes of one [`HollowKubelets`].
#[derive(Clone, Debug)]
pub struct Options {
    /// From one renewal of a lease to the next; the lease lasts four times as long.
    pub lease_interval: Duration,
    /// How long someone else's change of a node's or pod's status stands before it is put right.
    pub sync_interval: Duration,
    /// How often an unchanged node status is written.
    pub status_interval: Duration,
    /// How long a pod takes to stop, unless its grace is shorter.
    pub stop_time: Duration,
    /// How long one request may take.
    pub call_timeout: Duration,
    /// Writes of pods that are on their way at a time.
    pub pod_writes: usize,
    /// Writes of nodes and leases that are on their way at a time.
    pub node_writes: usize,
    /// Whose time is written into the objects.
    pub clock: Clock,
    /// Seed of the little that is left to chance: when leases are renewed.
    pub seed: u64,
}

/// A kubelet's intervals, pods that stop in a second, and writes enough to keep an API server
/// busy.
impl Default for Options {
    fn default() -> Self {
        Self {
            lease_interval: Duration::from_secs(10),
            sync_interval: Duration::from_secs(10),
            status_interval: Duration::from_mins(5),
            stop_time: Duration::from_secs(1),
            call_timeout: Duration::from_secs(10),
            pod_writes: 16,
            node_writes: 8,
            clock: Clock::system(),
            seed: rand::random(),
        }
    }
}

/// Why hollow kubelets did not do what they were told.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nodes and pods could not be listed.
    #[error(
        "nodes and pods were not listed within {START_LIMIT:?}: is the API server up, and may this user list them?"
    )]
    NotSynced,
    /// A node could not be registered or removed.
    #[error("node {node} could not be {what}: {error}")]
    Node {
        /// The node.
        node: NodeName,
        /// What was tried.
        what: &'static str,
        /// The last attempt's error.
        #[source]
        error: CallError,
    },
    /// No node of that name was added.
    #[error("there is no hollow node {0}; add it first")]
    UnknownNode(NodeName),
    /// The kubelets were stopped.
    #[error("the hollow kubelets were stopped")]
    Stopped,
}

/// The hollow kubelets of one process.
///
/// Dropping it ends their tasks too, but without waiting; use [`HollowKubelets::stop`].
pub struct HollowKubelets {
    calls: Calls,
    options: Options,
    commands: mpsc::Sender<Command>,
    /// How many nodes got an address.
    addresses: AtomicU32,
    tasks: TaskTracker,
    stop: DropGuard,
}

impl HollowKubelets {
    /// Starts the tasks, with no nodes yet, and returns when nodes and pods were listed.
    ///
    /// The client should not retry by itself (`Config::default_retry = false`): the kubelets do,
    /// and decide afresh before they do.
    pub async fn start(client: Client, options: Options) -> Result<Self, Error> {
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let calls = Calls { client: client.clone(), timeout: options.call_timeout };
        let (commands, receive_commands) = mpsc::channel(COMMANDS_WAITING);
        let (pod_events, pods) = mpsc::channel(EVENTS_WAITING);
        let (node_events, nodes) = mpsc::channel(EVENTS_WAITING);
        let (synced, mut is_synced) = signal::channel(false);
        let patience = options.call_timeout;

        // The watches end when the engine's inbox is dropped, or with these guards.
        let pods_api = Api::<objects::Pod>::all(client.clone());
        let follow_pods = watch::follow(pods_api, Some("spec.nodeName!="), patience, pod_events);
        let nodes_api = Api::<objects::Node>::all(client);
        let follow_nodes = watch::follow(nodes_api, None, patience, node_events);
        tasks.spawn(stop.clone().run_until_cancelled_owned(follow_pods));
        tasks.spawn(stop.clone().run_until_cancelled_owned(follow_nodes));

        let state = State::new(options.clone(), StdRng::seed_from_u64(options.seed));
        let inbox = Inbox { commands: receive_commands, pods, nodes };
        tasks.spawn(engine::run(state, calls.clone(), inbox, synced, stop.clone()));
        tasks.close();

        let kubelets = Self {
            calls,
            options,
            commands,
            addresses: AtomicU32::new(0),
            tasks,
            stop: stop.drop_guard(),
        };
        match timeout(START_LIMIT, is_synced.wait_for(|synced| *synced)).await {
            Ok(Ok(_)) => Ok(kubelets),
            Ok(Err(_)) | Err(_) => Err(Error::NotSynced),
        }
    }

    /// Registers a node (object, status, lease) and serves it from then on.
    ///
    /// A node object of that name that is there already is taken over, as by a kubelet that
    /// starts again.
    pub async fn add_node(&self, node: HollowNode) -> Result<(), Error> {
        let index = self.addresses.fetch_add(1, Ordering::Relaxed);
        let address = node_address(index);
        let registered = self.register(&node, &address).await;
        let stored = registered.map_err(|error| Error::Node {
            node: node.name.clone(),
            what: "registered",
            error,
        })?;
        self.command(Command::Adopt { node: Box::new(node), address, stored: Box::new(stored) })
            .await
    }

    /// Registers many nodes, a few at a time.
    pub async fn add_nodes(
        &self,
        nodes: impl IntoIterator<Item = HollowNode>,
    ) -> Result<(), Error> {
        let additions = nodes.into_iter().map(|node| self.add_node(node));
        let width = self.options.node_writes.max(1);
        stream::iter(additions).buffer_unordered(width).try_collect().await
    }

    /// Sets a switch of a node.
    ///
    /// When this returns, the node behaves so. A node that falls silent has no request on its way
    /// any more; a condition that changes is written soon after.
    pub async fn set(&self, node: &str, switch: Switch) -> Result<(), Error> {
        let name = NodeName::from(node);
        let (done, is_done) = oneshot::channel();
        let command = Command::Set { node: name.clone(), switch, done };
        self.command(command).await?;
        self.answer(name, is_done).await
    }

    /// Restarts a node's kubelet: silent for that long, then back, without its memory. The pods
    /// run on meanwhile; what is being deleted begins to stop anew.
    pub async fn restart(&self, node: &str, down_for: Duration) -> Result<(), Error> {
        let name = NodeName::from(node);
        let (done, is_done) = oneshot::channel();
        let command = Command::Restart { node: name.clone(), down_for, done };
        self.command(command).await?;
        self.answer(name, is_done).await
    }

    /// Takes a node away: its kubelet falls silent and the node object is deleted. Its pods are
    /// left to whoever cares for orphans.
    pub async fn remove_node(&self, node: &str) -> Result<(), Error> {
        self.set(node, Switch::Silent(true)).await?;
        let name = NodeName::from(node);
        self.command(Command::Dismiss(name.clone())).await?;
        let deleted = retry(|| self.calls.delete_node(&name)).await;
        match deleted {
            Err(error) if !error.is_not_found() => {
                Err(Error::Node { node: name, what: "deleted", error })
            }
            _ => Ok(()),
        }
    }

    /// Ends all tasks. Requests that are on their way are waited for; the nodes stay registered
    /// and will be missed.
    pub async fn stop(self) {
        drop(self.stop);
        self.tasks.wait().await;
    }

    async fn register(&self, node: &HollowNode, address: &str) -> Result<objects::Node, CallError> {
        let calls = &self.calls;
        let now = || self.options.clock.now();
        let object = node.object();
        let created = retry(|| calls.create_node(&object)).await;
        let stored = match created {
            Err(error) if error.is_already_exists() => {
                let labels = node.labels_patch();
                retry(|| calls.patch_node(&node.name, &labels)).await?
            }
            created => created?,
        };
        let mut conduct = Conduct::default();
        for switch in &node.switches {
            conduct.apply(switch.clone(), now());
        }
        if conduct.is_silent() {
            return Ok(stored);
        }
        // A patch, since the node lifecycle controller writes to the new node at the same time.
        let status = node.status_patch(address, &conduct, &stored.status.conditions, now());
        let stored = retry(|| calls.patch_node_status(&node.name, &status)).await?;
        self.lease(node, stored.metadata.uid.as_deref().unwrap_or_default()).await?;
        Ok(stored)
    }

    /// Creates the lease of a node, or takes over the one that is there. That may be another node's,
    /// which had the name before, and be collected at any moment.
    async fn lease(&self, node: &HollowNode, uid: &str) -> Result<(), CallError> {
        let (calls, interval) = (&self.calls, self.options.lease_interval);
        let now = || self.options.clock.now();
        let mut tries = 0;
        loop {
            tries += 1;
            let lease = lease::lease(node.name.as_str(), uid, interval, now());
            match retry(|| calls.create_lease(&lease)).await {
                Err(error) if error.is_already_exists() => {}
                created => return created,
            }
            let renewal = lease::renewal(node.name.as_str(), uid, interval, now());
            match retry(|| calls.patch_lease(&node.name, &renewal)).await {
                Err(error) if error.is_not_found() && tries < REGISTRATION_TRIES => {}
                renewed => return renewed,
            }
        }
    }

    async fn command(&self, command: Command) -> Result<(), Error> {
        self.commands.send(command).await.map_err(|_| Error::Stopped)
    }

    /// Waits until a command is obeyed. Its answer is dropped if there is no such node.
    async fn answer(&self, node: NodeName, is_done: oneshot::Receiver<()>) -> Result<(), Error> {
        match is_done.await {
            Ok(()) => Ok(()),
            Err(_) if self.commands.is_closed() => Err(Error::Stopped),
            Err(_) => Err(Error::UnknownNode(node)),
        }
    }
}

/// Tries until it succeeds, fails for good, or has failed too often.
async fn retry<T, C>(call: impl Fn() -> C) -> Result<T, CallError>
where
    C: Future<Output = Result<T, CallError>>,
{
    for failures in 1..REGISTRATION_TRIES {
        match call().await {
            Err(error) if !error.is_final() => sleep(BACKOFF.pause(failures, 0)).await,
            outcome => return outcome,
        }
    }
    call().await
}

/// An address for a node: one of 172.16.0.0/12.
fn node_address(index: u32) -> String {
    let [_, b, c, d] = index.wrapping_add(1).to_be_bytes();
    format!("172.{}.{c}.{d}", 16 + b % 16)
}
