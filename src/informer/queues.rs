//! The nodes and pods that have to be looked at again, and whether this process does that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::rates::Rates;
use crate::model::{NodeName, Uid};
use crate::pipeline::{SHARDS, Sharded, TimedQueue, WorkQueue, shard_of};

/// A node in the node queue, by its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeKey(pub NodeName);

/// A pod in the pod queue: by its UID, beside the node whose shard it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PodKey {
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

/// Why a node is to be decided about again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NodeTimer {
    /// Its own facts say so: an outage is over, something of its drain is due.
    Decide(NodeName),
    /// It is written to too often: its newest facts wait for their turn.
    Noisy(NodeName),
}

/// The work queues of nodes and pods, and the nodes that enter theirs at a certain time. While this process
/// stands by, nothing is queued.
pub(crate) struct WorkQueues {
    pub nodes: Arc<WorkQueue<NodeKey>>,
    pub pods: Arc<WorkQueue<PodKey>>,
    /// By shard.
    pub timers: [TimedQueue<NodeTimer, ()>; SHARDS],
    rates: Mutex<Rates>,
    leads: AtomicBool,
}

impl Default for WorkQueues {
    fn default() -> Self {
        Self {
            nodes: Arc::default(),
            pods: Arc::default(),
            timers: std::array::from_fn(|_| TimedQueue::default()),
            rates: Mutex::default(),
            leads: AtomicBool::new(false),
        }
    }
}

impl WorkQueues {
    /// Queues what changes from now on.
    pub(crate) fn lead(&self) {
        self.leads.store(true, Ordering::SeqCst);
    }

    /// Stops queueing. What is queued stays until [`clear`](Self::clear).
    pub(crate) fn stand_by(&self) {
        self.leads.store(false, Ordering::SeqCst);
    }

    /// Whether this process works, or stands by.
    pub(crate) fn leads(&self) -> bool {
        self.leads.load(Ordering::SeqCst)
    }

    /// Forgets what is queued. Nobody may work on it any more.
    pub(crate) fn clear(&self) {
        self.clear_timers();
        self.nodes.reopen();
        self.pods.reopen();
    }

    /// Forgets which nodes were to be queued at some time.
    pub(crate) fn clear_timers(&self) {
        for timers in &self.timers {
            timers.clear();
        }
    }

    /// Queues all timed nodes now, since the clock was set. Returns how many there are.
    pub(crate) fn rearm(&self) -> usize {
        self.timers.iter().map(|timers| timers.rearm_all(|()| Some(Instant::now()))).sum()
    }

    /// Queues the node.
    pub(crate) fn node_changed(&self, name: NodeName) {
        if self.leads() {
            self.nodes.add(NodeKey(name));
        }
    }

    /// Queues a node that somebody has written to, or has it queued when it may be looked at again.
    pub(crate) fn node_written(&self, name: NodeName) {
        if !self.leads() {
            return;
        }
        let Some(wait) = self.rates.lock().take(&name) else {
            return self.node_changed(name);
        };
        // The view has the newest facts by now. If a timer is there, it has not fired before that.
        let timers = &self.timers[shard_of(name.as_str())];
        let key = NodeTimer::Noisy(name);
        if timers.get(&key).is_none() {
            timers.arm(key, Instant::now() + wait, ());
        }
    }

    /// Queues the pod.
    pub(crate) fn pod_changed(&self, node: NodeName, uid: Uid) {
        if self.leads() {
            self.pods.add(PodKey { node, uid });
        }
    }
}
