//! What the parts of a running controller share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::drain::{DrainMetrics, Drains, Reporter};
use super::ingest::{self, Rates};
use crate::clock::Clock;
use crate::cluster::View;
use crate::config::Compat;
use crate::drain::Policy;
use crate::evict::{Backlog, Order, Ordered, Orders};
use crate::model::{Node, NodeName, Pod, PodRef, Uid, Verdict};
use crate::observe::Recorder;
use crate::pipeline::{Fired, Outcome, SHARDS, Sharded, TimedQueue, WorkQueue, shard_of};
use crate::taint::anchor::{self, CLOCKS_APART};

/// Between the pods of one order, so that they come due in the order in which they were given.
const IN_A_ROW: Duration = Duration::from_millis(1);

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

/// What a timer is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum TimerKey {
    /// A pod that the taints of its node condemn.
    Pod(Uid),
    /// A pod that the drain of its node has ordered to go. It may be condemned as well.
    Drained(Uid),
    Node(NodeName),
    /// A node that is written to too often: its newest facts wait for the next look.
    Noisy(NodeName),
}

/// What is to be done when it is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Remove the pod.
    Evict { pod: PodRef, verdict: Verdict },
    /// Evict the pod for a drain.
    Drain { pod: PodRef, order: Arc<Order> },
    /// Look at the node again.
    LookAgain,
}

pub(super) type Timers = TimedQueue<TimerKey, Work>;

/// The facts, the queues and the timers: shared by everything that runs.
pub(super) struct Shared {
    pub clock: Clock,
    pub compat: Compat,
    pub view: View,
    pub nodes: Arc<WorkQueue<NodeKey>>,
    pub pods: Arc<WorkQueue<PodKey>>,
    /// One timed queue per shard.
    pub timers: [Timers; SHARDS],
    /// Nodes whose record may have to be written.
    pub records: TimedQueue<NodeName, ()>,
    pub backlog: Arc<Backlog>,
    /// Cordon and drain, where a policy is configured.
    pub drains: Option<Arc<Drains>>,
    /// Pods that drains have ordered to go.
    pub orders: Arc<Orders>,
    pub recorder: Recorder,
    rates: Mutex<Rates>,
    leads: AtomicBool,
    /// The API server's clock is ahead of the one that is kept, by its last word.
    is_behind: AtomicBool,
}

impl Shared {
    pub(super) fn new(clock: Clock, compat: Compat, recorder: Recorder) -> Self {
        Self {
            clock,
            compat,
            view: View::default(),
            nodes: Arc::default(),
            pods: Arc::default(),
            timers: std::array::from_fn(|_| Timers::new()),
            records: TimedQueue::new(),
            backlog: Arc::default(),
            drains: None,
            orders: Arc::default(),
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
        self.backlog.clear();
        self.orders.clear();
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
        let timers = &self.timers[shard_of(name.as_str())];
        let key = TimerKey::Noisy(name);
        if timers.get(&key).is_none() {
            timers.arm(key, Instant::now() + wait, Work::LookAgain);
        }
    }

    /// Queues the pod, likewise.
    pub(super) fn pod_changed(&self, node: NodeName, uid: Uid) {
        if self.leads() {
            self.pods.add(PodKey { node, uid });
        }
    }

    /// Has these pods of a node evicted, in this order. One that has the same order already goes on
    /// with it; another order takes the place of the one before at once.
    pub(super) fn order_evictions(&self, pods: &[PodRef], order: &Arc<Order>) {
        let timers = &self.timers[shard_of(order.node.as_str())];
        let mut due = Instant::now();
        for pod in pods {
            let key = TimerKey::Drained(pod.uid);
            let work = Work::Drain { pod: pod.clone(), order: Arc::clone(order) };
            if timers.get(&key).is_some_and(|scheduled| scheduled.value == work) {
                self.orders.enter(pod, order);
                continue;
            }
            // What the order before waits for does not hold for this one.
            timers.disarm(&key);
            self.orders.enter(pod, order);
            timers.arm(key, due, work);
            due += IN_A_ROW;
        }
    }

    /// Tries again at once to evict a pod whose order waits after a refusal, since what held it is gone.
    pub(super) fn retry_order(&self, ordered: &Ordered) {
        let (pod, order) = (&ordered.pod, &ordered.order);
        let key = TimerKey::Drained(pod.uid);
        let timers = &self.timers[shard_of(order.node.as_str())];
        // The pause after the refusal does not hold any more.
        if timers.disarm(&key) {
            let work = Work::Drain { pod: pod.clone(), order: Arc::clone(order) };
            timers.arm(key, Instant::now(), work);
        }
    }

    /// Drops the order of a pod, if it has one. Its request may be on its way already.
    pub(super) fn cancel_order(&self, node: &NodeName, uid: Uid) -> bool {
        self.timers[shard_of(node.as_str())].disarm(&TimerKey::Drained(uid));
        self.orders.leave(uid)
    }

    /// Drops all orders of a node.
    pub(super) fn cancel_orders(&self, node: &NodeName) {
        if self.orders.is_empty() {
            return;
        }
        for ordered in self.orders.on(node) {
            self.cancel_order(node, ordered.pod.uid);
        }
    }

    /// When the work that a verdict calls for is due; `None` if it calls for none.
    pub(super) fn due(&self, verdict: &Verdict) -> Option<Instant> {
        match verdict {
            Verdict::Keep(_) => None,
            Verdict::EvictNow(_) => Some(Instant::now()),
            Verdict::EvictAt { deadline, .. } => Some(self.clock.instant_of(deadline.0)),
        }
    }

    /// Waits for the next work that is due by the clock.
    ///
    /// A timer may end before: it is cut short if it is long (see [`Clock::instant_of`]). It goes on
    /// with what it was armed with; a new decision would count from now by `--compat upstream`.
    pub(super) async fn next_due(&self, timers: &Timers) -> Fired<TimerKey, Work> {
        loop {
            let fired = timers.next().await;
            let early = match &fired.value {
                Work::Evict { verdict, .. } if !verdict.is_due(self.clock.now()) => {
                    self.due(verdict)
                }
                _ => None,
            };
            let Some(due) = early else { return fired };
            timers.complete(&fired.key, fired.token, Outcome::Early { due, value: fired.value });
        }
    }

    /// Re-arms everything after the clock was set.
    pub(super) fn rearm(&self) -> usize {
        let due = |work: &Work| match work {
            Work::Evict { verdict, .. } => self.due(verdict),
            Work::LookAgain => Some(Instant::now()),
            // A pause, not a moment of the clock.
            Work::Drain { .. } => None,
        };
        self.timers.iter().map(|timers| timers.rearm_all(due)).sum()
    }
}
