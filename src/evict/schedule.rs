//! When each pod is evicted: the timed queues, and what else is known of an eviction until it is due.
//!
//! One timed queue per shard. What is due goes to the [`Queue`]; here an eviction comes back with what became
//! of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{
    Backlog, BacklogEntry, Cause, CauseKind, DrainEviction, Eviction, Holds, Key, Origin, Outcome,
    Queue, Standing,
};
use crate::clock::Clock;
use crate::informer::WorkQueues;
use crate::model::{NodeName, PodRef, Uid, Verdict};
use crate::pipeline::{self, Fired, SHARDS, TimedQueue, Token, shard_of};

/// Between the pods that a drain evicts, so that they come due in the order in which they were given.
const IN_A_ROW: Duration = Duration::from_millis(1);

pub(crate) type EvictionTimers = TimedQueue<Key, (PodRef, Cause)>;

/// All evictions from the decision until the pod is gone.
pub(crate) struct Schedule {
    clock: Clock,
    /// Takes the pods and nodes that are to be decided about again.
    queues: Arc<WorkQueues>,
    /// By shard.
    pub timers: [EvictionTimers; SHARDS],
    /// Evictions that are due and not handed out.
    pub due: Arc<Queue<Token>>,
    /// Evictions that are due and whose pods are not yet gone.
    pub backlog: Arc<Backlog>,
}

impl Schedule {
    pub(crate) fn new(clock: Clock, queues: Arc<WorkQueues>, holds: Holds) -> Self {
        let backlog = Arc::<Backlog>::default();
        Self {
            clock,
            queues,
            timers: std::array::from_fn(|_| TimedQueue::default()),
            due: Arc::new(Queue::new(Arc::clone(&backlog), holds)),
            backlog,
        }
    }

    /// Has a node decided about again.
    pub(crate) fn node_changed(&self, name: &NodeName) {
        self.queues.node_changed(name.clone());
    }

    pub(crate) fn timers_of(&self, node: &NodeName) -> &EvictionTimers {
        &self.timers[shard_of(node.as_str())]
    }

    /// The verdict by which a pod is to be evicted for taints, if one is armed.
    pub(crate) fn armed_verdict(&self, pod: &PodRef) -> Option<Verdict> {
        let key = Key { uid: pod.uid, kind: CauseKind::Taint };
        match self.timers_of(&pod.node).get(&key)?.value.1 {
            Cause::Taint(verdict) => Some(verdict),
            Cause::Drain(_) => None,
        }
    }

    /// Forgets all evictions. None may be in flight any more.
    pub(crate) fn clear(&self) {
        self.clear_timers();
        self.due.clear();
        self.backlog.clear();
    }

    /// Forgets the evictions that are not yet due.
    pub(crate) fn clear_timers(&self) {
        for timers in &self.timers {
            timers.clear();
        }
    }

    /// Has a pod evicted at `due` for this cause, instead of another of its kind.
    pub(crate) fn arm(&self, pod: &PodRef, cause: Cause, due: Instant) {
        let key = Key { uid: pod.uid, kind: cause.kind() };
        self.timers_of(&pod.node).arm(key, due, (pod.clone(), cause));
        self.recall(key);
    }

    /// Cancels the eviction of a pod. True only if it counted down or was held, so that nobody reports a
    /// cancellation of what is being done already.
    pub(crate) fn disarm(&self, node: &NodeName, uid: Uid, kind: CauseKind) -> bool {
        let key = Key { uid, kind };
        let counted_down = self.timers_of(node).disarm(&key);
        self.recall(key) || counted_down
    }

    /// Ends an eviction that is held, since it was cancelled or replaced.
    fn recall(&self, key: Key) -> bool {
        let recalled = self.due.recall(key);
        if let Some((eviction, token)) = &recalled {
            self.finish(eviction, *token, &Outcome::Reconsider);
        }
        recalled.is_some()
    }

    /// Has these pods of a node evicted for its drain, in this order. One that is being evicted for the same
    /// goes on; anything else takes the place of what was asked for before at once.
    pub(crate) fn evict_for_drain(&self, pods: &[PodRef], drain: &Arc<DrainEviction>) {
        let mut due = Instant::now();
        for pod in pods {
            let cause = Cause::Drain(Arc::clone(drain));
            let key = Key { uid: pod.uid, kind: CauseKind::Drain };
            let armed = self.timers_of(&pod.node).get(&key);
            let is_same = armed.is_some_and(|armed| armed.value.1 == cause);
            if !is_same {
                // What was waited for before does not hold for this one.
                self.disarm(&pod.node, pod.uid, CauseKind::Drain);
            }
            self.backlog.enter(pod, &cause, due);
            if !is_same {
                self.arm(pod, cause, due);
                due += IN_A_ROW;
            }
        }
    }

    /// Tries again at once to evict a pod that waits after a refusal, since what held it is gone.
    pub(crate) fn retry_at_once(&self, BacklogEntry { pod, cause, .. }: &BacklogEntry) {
        // The pause after the refusal does not hold any more.
        if self.disarm(&pod.node, pod.uid, cause.kind()) {
            self.arm(pod, cause.clone(), Instant::now());
        }
    }

    /// Cancels the eviction of a pod for its node's drain, if there is one. Its request may be on its way
    /// already.
    pub(crate) fn cancel_for_drain(&self, node: &NodeName, uid: Uid) -> bool {
        self.disarm(node, uid, CauseKind::Drain);
        self.backlog.leave(node, uid, CauseKind::Drain)
    }

    /// Cancels all evictions for the drain of a node.
    pub(crate) fn cancel_all_for_drain(&self, node: &NodeName) {
        for entry in self.backlog.on(node, CauseKind::Drain) {
            self.cancel_for_drain(node, entry.pod.uid);
        }
    }

    /// When the work that a verdict calls for is due; `None` if it calls for none.
    pub(crate) fn due_at(&self, verdict: &Verdict) -> Option<Instant> {
        match verdict {
            Verdict::Keep(_) => None,
            Verdict::EvictNow(_) => Some(Instant::now()),
            Verdict::EvictAt { deadline, .. } => Some(self.clock.instant_of(deadline.0)),
        }
    }

    /// Waits for the next eviction that is due by the clock.
    ///
    /// A timer may end before: it is cut short if it is long (see [`Clock::instant_of`]). It goes on
    /// with what it was armed with; a new decision would count from now by `--compat upstream`.
    ///
    /// [`Clock::instant_of`]: crate::clock::Clock::instant_of
    pub(crate) async fn next_eviction(
        &self,
        timers: &EvictionTimers,
    ) -> Fired<Key, (PodRef, Cause)> {
        loop {
            let fired = timers.next().await;
            let early = match &fired.value.1 {
                Cause::Taint(verdict) if !verdict.is_due(self.clock.now()) => self.due_at(verdict),
                Cause::Taint(_) | Cause::Drain(_) => None,
            };
            let Some(due) = early else { return fired };
            let outcome = pipeline::Outcome::Early { due, value: fired.value };
            timers.complete(&fired.key, fired.token, outcome);
        }
    }

    /// Sets the timers right after the clock was set. Returns how many there are.
    pub(crate) fn rearm(&self) -> usize {
        let due = |(_, cause): &(PodRef, Cause)| match cause {
            Cause::Taint(verdict) => self.due_at(verdict),
            // A pause, not a moment of the clock.
            Cause::Drain(_) => None,
        };
        self.timers.iter().map(|timers| timers.rearm_all(due)).sum()
    }
}

impl Origin for Schedule {
    type Ticket = Token;

    fn standing(&self, eviction: &Eviction, token: Token) -> Standing {
        let (timers, key) = (self.timers_of(&eviction.pod.node), eviction.key());
        if timers.is_newest(&key, token) {
            Standing::Current
        } else if timers.get(&key).is_some() {
            Standing::Replaced
        } else {
            Standing::Cancelled
        }
    }

    fn finish(&self, eviction: &Eviction, token: Token, outcome: &Outcome) {
        let Eviction { pod, cause, .. } = eviction;
        let (timers, key) = (self.timers_of(&pod.node), eviction.key());
        match outcome {
            Outcome::Reconsider => {
                let was_known = timers.complete(&key, token, pipeline::Outcome::Done);
                match cause {
                    Cause::Taint(_) => self.queues.pod_changed(pod.node.clone(), pod.uid),
                    // Unless another has taken its place by now, the drain is to go on.
                    Cause::Drain(_) if was_known && timers.get(&key).is_none() => {
                        self.queues.node_changed(pod.node.clone());
                    }
                    Cause::Drain(_) => {}
                }
            }
            Outcome::Again(pause) => {
                let retry = pipeline::Outcome::Retry {
                    not_before: Instant::now() + *pause,
                    value: (pod.clone(), cause.clone()),
                    // How many there were is in the backlog; here it only says that this is no first try.
                    failures: 1,
                };
                timers.complete(&key, token, retry);
            }
        }
    }
}
