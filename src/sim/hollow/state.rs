//! The state of the kubelets, without I/O: events go in, requests come out.
//!
//! Queued work is only named ([`Work`]). An event queues the work that it may concern. The decision is
//! made when the work is taken from its lane, from the newest facts, so queued work cannot be out of date.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1 as core;
use kube::runtime::watcher::Event;
use rand::rngs::StdRng;
use serde_json::Value;
use tokio::sync::oneshot;
use tracing::debug;

use super::agenda::{Lane, Timers};
use super::calls::CallError;
use super::lifecycle::{Worker, later};
use super::node::HollowNode;
use super::objects::{Node, Pod, is_newer};
use super::switches::{Conduct, Switch};
use super::{Options, lease};
use crate::model::{NodeName, Uid};

/// Something to look at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Work {
    /// A part of a kubelet's own work.
    Node(NodeName, Part),
    /// A pod.
    Pod(Uid),
}

/// The parts of a kubelet's work that are not about one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Part {
    /// Renew the lease.
    Lease,
    /// Report the node's status.
    Status,
    /// Keep up the mirror of a static pod, given by its place in the node's list.
    Mirror(usize),
    /// Lead the node's shutdown, if one is under way.
    Shutdown,
    /// End the kubelet's restart.
    Comeback,
}

/// A request to be sent.
#[derive(Clone, Debug)]
pub(super) enum Call {
    CreateLease(Box<Lease>),
    RenewLease(NodeName, Value),
    PatchNodeStatus(NodeName, Value),
    CreatePod(Box<core::Pod>),
    PatchPodStatus(Box<Pod>, Value),
    RemovePod(Box<Pod>),
}

/// A request, and on whose account it is sent.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) work: Work,
    pub(super) node: NodeName,
    pub(super) call: Call,
}

/// What came of a request.
pub(super) type Outcome = Result<Reply, CallError>;

/// The answer to a request that succeeded.
#[derive(Debug)]
pub(super) enum Reply {
    Done,
    Node(Box<Node>),
    Pod(Box<Pod>),
}

/// One hollow kubelet.
pub(super) struct Kubelet {
    pub(super) node: HollowNode,
    pub(super) address: String,
    pub(super) conduct: Conduct,
    pub(super) back_at: Option<Timestamp>,
    pub(super) lease_exists: bool,
    pub(super) lease_due: Timestamp,
    /// When the status was last written; `None`: write it now.
    pub(super) status_written: Option<Timestamp>,
    /// When each mirror was last created, until the watch has shown it.
    pub(super) published: BTreeMap<usize, Timestamp>,
    /// Requests that are on their way.
    pub(super) on_their_way: usize,
    /// Who waits until none is.
    pub(super) waiting: Vec<oneshot::Sender<()>>,
}

/// A pod and its worker.
pub(super) struct Tended {
    pub(super) pod: Pod,
    pub(super) worker: Worker,
    pub(super) ip: Option<String>,
}

/// Everything.
pub(super) struct State {
    pub(super) options: Options,
    pub(super) rng: StdRng,
    /// The kubelets of this process.
    pub(super) kubelets: BTreeMap<NodeName, Kubelet>,
    /// All nodes of the cluster, as the API server stores them.
    pub(super) nodes: BTreeMap<NodeName, Node>,
    /// All bound pods of the cluster; the node of one may be added later.
    pub(super) pods: HashMap<Uid, Tended>,
    pub(super) pods_of: BTreeMap<NodeName, BTreeSet<Uid>>,
    /// Names seen by a list that is not complete.
    pub(super) listed_nodes: BTreeSet<NodeName>,
    pub(super) listed_pods: BTreeSet<Uid>,
    /// Whether each list was complete once.
    pub(super) synced_nodes: bool,
    pub(super) synced_pods: bool,
    /// How many pods got an address.
    pub(super) addresses: u32,
    /// Works that failed, and when each is retried.
    pub(super) held: HashMap<Work, (u32, Timestamp)>,
    pub(super) node_lane: Lane<Work>,
    pub(super) pod_lane: Lane<Work>,
    pub(super) timers: Timers<Work>,
}

impl State {
    pub(super) fn new(options: Options, rng: StdRng) -> Self {
        Self {
            node_lane: Lane::new(options.node_writes),
            pod_lane: Lane::new(options.pod_writes),
            options,
            rng,
            kubelets: BTreeMap::new(),
            nodes: BTreeMap::new(),
            pods: HashMap::new(),
            pods_of: BTreeMap::new(),
            listed_nodes: BTreeSet::new(),
            listed_pods: BTreeSet::new(),
            synced_nodes: false,
            synced_pods: false,
            addresses: 0,
            held: HashMap::new(),
            timers: Timers::new(),
        }
    }

    /// Whether all nodes and pods were listed once.
    pub(super) fn is_synced(&self) -> bool {
        self.synced_nodes && self.synced_pods
    }

    /// Takes over a node that was registered.
    pub(super) fn adopt(&mut self, node: HollowNode, address: String, stored: Node) {
        let now = self.now();
        let name = node.name.clone();
        let mut conduct = Conduct::default();
        for switch in &node.switches {
            conduct.apply(switch.clone(), now);
        }
        let first = lease::first_pause(self.options.lease_interval, &mut self.rng);
        let kubelet = Kubelet {
            node,
            address,
            conduct,
            back_at: None,
            lease_exists: true,
            lease_due: later(now, first),
            status_written: Some(now),
            published: BTreeMap::new(),
            on_their_way: 0,
            waiting: Vec::new(),
        };
        self.kubelets.insert(name.clone(), kubelet);
        self.fold_node(stored);
        self.ask_all_of(&name);
    }

    /// Changes a node's behaviour. `done` is answered when the change holds: for a node that falls
    /// silent, when none of its requests is on its way any more. It is dropped if there is no such
    /// node.
    pub(super) fn set(&mut self, name: &NodeName, switch: Switch, done: oneshot::Sender<()>) {
        let now = self.now();
        let Some(kubelet) = self.kubelets.get_mut(name) else {
            return;
        };
        kubelet.conduct.apply(switch, now);
        kubelet.status_written = None;
        kubelet.answer_when_done(done);
        self.ask_all_of(name);
    }

    /// Restarts a kubelet: it is silent for a while and forgets what it had begun.
    pub(super) fn restart(
        &mut self,
        name: &NodeName,
        down_for: Duration,
        done: oneshot::Sender<()>,
    ) {
        let now = self.now();
        let Some(kubelet) = self.kubelets.get_mut(name) else {
            return;
        };
        kubelet.conduct.restarting = true;
        kubelet.back_at = Some(later(now, down_for));
        kubelet.answer_when_done(done);
        for uid in self.pods_of.get(name).into_iter().flatten() {
            if let Some(tended) = self.pods.get_mut(uid) {
                tended.worker = Worker::default();
            }
        }
        self.ask_part(name, Part::Comeback);
    }

    /// Lets go of a node. Its pods stay behind, as those of a machine that is gone.
    pub(super) fn dismiss(&mut self, name: &NodeName) {
        self.kubelets.remove(name);
        self.held.retain(|work, _| !matches!(work, Work::Node(of, _) if of == name));
    }

    /// Takes in what the watch of pods tells.
    pub(super) fn pod_event(&mut self, event: Event<Pod>) {
        match event {
            Event::Init => self.listed_pods.clear(),
            Event::InitApply(pod) => {
                self.listed_pods.extend(pod.uid());
                self.fold_pod(pod);
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed_pods);
                let known = self.pods.keys().copied();
                let gone: Vec<_> = known.filter(|uid| !listed.contains(uid)).collect();
                for uid in gone {
                    self.forget_pod(uid);
                }
                self.synced_pods = true;
            }
            Event::Apply(pod) => self.fold_pod(pod),
            Event::Delete(pod) => {
                if let Some(uid) = pod.uid() {
                    self.forget_pod(uid);
                }
            }
        }
    }

    /// Takes in what the watch of nodes tells.
    pub(super) fn node_event(&mut self, event: Event<Node>) {
        match event {
            Event::Init => self.listed_nodes.clear(),
            Event::InitApply(node) => {
                self.listed_nodes.insert(NodeName::from(node.name()));
                self.fold_node(node);
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed_nodes);
                self.nodes.retain(|name, _| listed.contains(name));
                self.synced_nodes = true;
            }
            Event::Apply(node) => self.fold_node(node),
            Event::Delete(node) => {
                self.nodes.remove(node.name());
            }
        }
    }

    /// Takes in a node as it is stored now.
    pub(super) fn fold_node(&mut self, node: Node) {
        let name = NodeName::from(node.name());
        if let Some(known) = self.nodes.get(&name)
            && !is_newer(&node.metadata, &known.metadata)
        {
            return;
        }
        self.nodes.insert(name.clone(), node);
        if self.kubelets.contains_key(&name) {
            self.ask_part(&name, Part::Lease);
            self.ask_part(&name, Part::Status);
            self.ask_mirrors_of(&name);
        }
    }

    /// Takes in a pod as it is stored now.
    fn fold_pod(&mut self, pod: Pod) {
        let Some(uid) = pod.uid() else {
            debug!(pod = pod.name(), "ignoring a pod without a UID");
            return;
        };
        if self.pods.contains_key(&uid) {
            self.refresh_pod(uid, pod);
            return;
        }
        let name = NodeName::from(pod.spec.node_name.as_str());
        let tended = Tended { pod, worker: Worker::default(), ip: None };
        self.pods.insert(uid, tended);
        self.pods_of.entry(name).or_default().insert(uid);
        self.ask(Work::Pod(uid));
    }

    /// Takes in a newer version of a pod, provided that it is still there.
    pub(super) fn refresh_pod(&mut self, uid: Uid, pod: Pod) {
        let Some(tended) = self.pods.get_mut(&uid) else {
            return;
        };
        if !is_newer(&pod.metadata, &tended.pod.metadata) {
            return;
        }
        let node = NodeName::from(pod.spec.node_name.as_str());
        tended.pod = pod;
        self.ask(Work::Pod(uid));
        self.ask_shutdown_of(&node);
    }

    /// A pod is gone.
    fn forget_pod(&mut self, uid: Uid) {
        let Some(tended) = self.pods.remove(&uid) else {
            return;
        };
        self.timers.clear(&Work::Pod(uid));
        self.held.remove(&Work::Pod(uid));
        let node = NodeName::from(tended.pod.spec.node_name.as_str());
        if let Some(pods) = self.pods_of.get_mut(&node) {
            pods.remove(&uid);
            if pods.is_empty() {
                self.pods_of.remove(&node);
            }
        }
        self.ask_shutdown_of(&node);
        if tended.pod.is_mirror()
            && let Some(kubelet) = self.kubelets.get_mut(&node)
        {
            kubelet.published.clear();
            self.ask_mirrors_of(&node);
        }
    }

    /// Asks for a look at it.
    pub(super) fn ask(&mut self, work: Work) {
        self.lane(&work).ask(work);
    }

    /// Asks for a look at a part of a node's work.
    pub(super) fn ask_part(&mut self, name: &NodeName, part: Part) {
        self.ask(Work::Node(name.clone(), part));
    }

    /// Where it waits. Leases, statuses and mirrors do not wait for pods.
    pub(super) fn lane(&mut self, work: &Work) -> &mut Lane<Work> {
        match work {
            Work::Pod(_) => &mut self.pod_lane,
            Work::Node(..) => &mut self.node_lane,
        }
    }

    /// Asks for a look at all that concerns a node.
    pub(super) fn ask_all_of(&mut self, name: &NodeName) {
        self.ask_part(name, Part::Lease);
        self.ask_part(name, Part::Status);
        self.ask_mirrors_of(name);
        self.ask_shutdown_of(name);
        self.ask_pods_of(name);
    }

    /// Asks for a look at all pods of a node.
    pub(super) fn ask_pods_of(&mut self, name: &NodeName) {
        for uid in self.pods_of.get(name).into_iter().flatten() {
            self.pod_lane.ask(Work::Pod(*uid));
        }
    }

    pub(super) fn ask_mirrors_of(&mut self, name: &NodeName) {
        let kubelet = self.kubelets.get(name);
        for index in 0..kubelet.map_or(0, |kubelet| kubelet.node.static_pods.len()) {
            self.ask_part(name, Part::Mirror(index));
        }
    }

    fn ask_shutdown_of(&mut self, name: &NodeName) {
        let kubelet = self.kubelets.get(name);
        if kubelet.is_some_and(|kubelet| kubelet.conduct.shutdown.is_some()) {
            self.ask_part(name, Part::Shutdown);
        }
    }

    /// The time.
    pub(super) fn now(&self) -> Timestamp {
        self.options.clock.now()
    }
}

impl Kubelet {
    /// Answers when the kubelet does as it is told.
    fn answer_when_done(&mut self, done: oneshot::Sender<()>) {
        self.waiting.push(done);
        self.answer_if_done();
    }

    pub(super) fn answer_if_done(&mut self) {
        if self.on_their_way == 0 || !self.conduct.is_silent() {
            for done in self.waiting.drain(..) {
                // Whoever asked may have gone away.
                let _ = done.send(());
            }
        }
    }
}
