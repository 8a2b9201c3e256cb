//! What the parts of a running controller share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::drain::{DrainMetrics, Drains, Reporter};
use super::ingest::{self, Rates};
use super::timers::{NodeTimer, Timers};
use crate::clock::Clock;
use crate::cluster::View;
use crate::config::Compat;
use crate::drain::Policy;
use crate::evict::{self, Backlog, Holds};
use crate::model::{Node, NodeName, Pod, Uid};
use crate::observe::Recorder;
use crate::pipeline::{SHARDS, Sharded, TimedQueue, Token, WorkQueue};
use crate::taint::anchor::{self, CLOCKS_APART};

/// A node in the node queue, by its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct NodeKey(pub NodeName);

/// A pod in the pod queue: by its UID, beside the node whose shard it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PodKey {
    pub node: NodeName,
    pub uid: Uid,
}

impl Sharded for NodeKey {
    fn node_name(&self) -> &str {
        self.0.as_str()
    }
}

impl Sharded for PodKey {
    fn node_name(&self) -> &str {
        self.node.as_str()
    }
}

/// The facts, the queues and the timers: shared by everything that runs.
pub(super) struct Shared {
    pub clock: Clock,
    pub compat: Compat,
    pub view: View,
    pub nodes: Arc<WorkQueue<NodeKey>>,
    pub pods: Arc<WorkQueue<PodKey>>,
    pub timers: [Timers; SHARDS],
    /// Nodes whose record may have to be written.
    pub records: Arc<TimedQueue<NodeName, ()>>,
    /// Evictions that are due and not handed out.
    pub evictions: Arc<evict::Queue<Token>>,
    /// Evictions that are due and whose pods are not yet gone.
    pub backlog: Arc<Backlog>,
    /// Cordon and drain, where a policy is configured.
    pub drains: Option<Arc<Drains>>,
    pub recorder: Recorder,
    rates: Mutex<Rates>,
    leads: AtomicBool,
    /// The API server's clock is ahead of the one that is kept, by its last word.
    is_behind: AtomicBool,
}

impl Shared {
    pub(super) fn new(clock: Clock, compat: Compat, recorder: Recorder) -> Self {
        let backlog = Arc::<Backlog>::default();
        Self {
            clock,
            compat,
            view: View::default(),
            nodes: Arc::default(),
            pods: Arc::default(),
            timers: std::array::from_fn(|_| Timers::default()),
            records: Arc::default(),
            evictions: Arc::new(evict::Queue::new(Arc::clone(&backlog), Holds::default())),
            backlog,
            drains: None,
            recorder,
            rates: Mutex::default(),
            leads: AtomicBool::new(false),
            is_behind: AtomicBool::new(false),
        }
    }

    /// With cordon and drain by these policies.
    pub(super) fn draining_by(mut self, policies: Arc<[Policy]>, metrics: DrainMetrics) -> Self {
        let reporter = Reporter { recorder: self.recorder.clone(), metrics };
        self.drains = Some(Arc::new(Drains::new(policies, reporter)));
        self
    }

    /// Begins to work: all that is known is queued, and from now on what changes.
    pub(super) fn lead(&self) {
        if let Some(drains) = &self.drains {
            drains.lead(self.clock.now());
        }
        // Before the view is read: what comes in now is either in it, or queued by who brings it.
        self.leads.store(true, Ordering::SeqCst);
        let mut names = self.view.node_names();
        names.sort_unstable();
        for name in names {
            self.node_changed(name);
        }
    }

    /// Stops queueing. What is queued, armed or known of evictions stays until
    /// [`forget_work`](Self::forget_work).
    pub(super) fn stand_by(&self) {
        self.leads.store(false, Ordering::SeqCst);
    }

    /// Forgets everything that belongs to the work and not to the view: who leads next starts from
    /// what the API stores, also if that is this process. Nothing may be at work any more.
    pub(super) fn forget_work(&self) {
        for timers in &self.timers {
            timers.clear();
        }
        self.records.clear();
        self.evictions.clear();
        self.backlog.clear();
        if let Some(drains) = &self.drains {
            drains.due.clear();
            drains.node_budget.lock().forget_claims();
        }
        self.nodes.reopen();
        self.pods.reopen();
        // Another may have led before this process knew that it does no more, and what that one has
        // recorded since counts.
        for name in self.view.node_names() {
            self.view.refresh_node(&name, |anchors, node| {
                match ingest::recorded(node, self.clock.now()) {
                    Some(record) => anchor::adopted(anchors, &record),
                    None => anchors.clone(),
                }
            });
        }
    }

    /// Whether this process works, or stands by.
    pub(super) fn leads(&self) -> bool {
        self.leads.load(Ordering::SeqCst)
    }

    /// Takes in the API server's time.
    pub(super) fn heard_time(&self, server: Timestamp) {
        let behind = server.duration_since(self.clock.now());
        self.is_behind.store(behind > CLOCKS_APART, Ordering::Relaxed);
    }

    /// Whether the clock that is kept is behind, by the API server's last word. What is seen first by such
    /// a clock lasts as long as it should by the same clock, but by another one it would have been seen
    /// long ago.
    pub(super) fn clock_is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    /// Has a version of a node count as it does for who reads it now.
    pub(super) fn see_node(&self, node: &mut Node) {
        if node.drain_facts.is_some() {
            let known = self.view.node_alone(&node.name);
            node.seen_at(self.clock.now(), known.as_ref().map(|(known, _)| &**known));
        }
    }

    /// Has a version of a pod count as it does for who reads it now.
    pub(super) fn see_pod(&self, pod: &mut Pod) {
        let now = self.clock.now();
        if pod.bound.written() > now {
            let known = self.view.pod(&pod.node, pod.uid);
            pod.seen_at(now, known.as_ref().map(|known| &*known.pod));
        }
    }

    /// Queues the node. While this process stands by, the view is all that is kept.
    pub(super) fn node_changed(&self, name: NodeName) {
        if self.leads() {
            self.nodes.add(NodeKey(name));
        }
    }

    /// Queues a node that somebody has written to, or has it queued when it may be looked at again.
    pub(super) fn node_written(&self, name: NodeName) {
        if !self.leads() {
            return;
        }
        let Some(wait) = self.rates.lock().take(&name) else {
            return self.node_changed(name);
        };
        // The view has the newest facts by now. If a timer is there, it has not fired before that.
        let timers = &self.timers_of(&name).nodes;
        let key = NodeTimer::Noisy(name);
        if timers.get(&key).is_none() {
            timers.arm(key, Instant::now() + wait, ());
        }
    }

    /// Queues the pod, likewise.
    pub(super) fn pod_changed(&self, node: NodeName, uid: Uid) {
        if self.leads() {
            self.pods.add(PodKey { node, uid });
        }
    }
}
