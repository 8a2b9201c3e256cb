//! What is to be done at a certain time: evictions, and nodes that are to be decided about again.
//!
//! One pair of timed queues per shard. What is due goes to the evictions' queue or back to the node queue;
//! here an eviction comes back with what became of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::state::Shared;
use crate::evict::{
    BacklogEntry, Cause, CauseKind, DrainEviction, Eviction, Key, Origin, Outcome, Standing,
};
use crate::model::{NodeName, PodRef, Uid, Verdict};
use crate::pipeline::{self, Fired, TimedQueue, Token, shard_of};

/// Between the pods that a drain evicts, so that they come due in the order in which they were given.
const IN_A_ROW: Duration = Duration::from_millis(1);

/// What is to be done when in one shard.
#[derive(Debug, Default)]
pub(super) struct Timers {
    pub nodes: TimedQueue<NodeTimer, ()>,
    pub evictions: EvictionTimers,
}

pub(super) type EvictionTimers = TimedQueue<Key, (PodRef, Cause)>;

/// Why a node is to be decided about again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum NodeTimer {
    /// Its own facts say so: an outage is over, something of its drain is due.
    Decide(NodeName),
    /// It is written to too often: its newest facts wait for their turn.
    Noisy(NodeName),
}

impl Timers {
    pub(super) fn clear(&self) {
        self.nodes.clear();
        self.evictions.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len() + self.evictions.len()
    }
}

/// Takes what is due in one shard, until `stop`.
pub(super) async fn take_due(shared: Arc<Shared>, shard: usize, stop: CancellationToken) {
    let timers = &shared.timers[shard];
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            Fired { key, token, .. } = timers.nodes.next() => {
                timers.nodes.complete(&key, token, pipeline::Outcome::Done);
                let (NodeTimer::Decide(name) | NodeTimer::Noisy(name)) = key;
                shared.node_changed(name);
            }
            fired = shared.next_eviction(&timers.evictions) => {
                let Fired { token, value: (pod, cause), due, failures, .. } = fired;
                shared.evictions.push(Eviction { pod, cause, due }, token, failures > 0);
            }
        }
    }
}

impl Shared {
    pub(super) fn timers_of(&self, node: &NodeName) -> &Timers {
        &self.timers[shard_of(node.as_str())]
    }

    /// Has a pod evicted at `due` for this cause, instead of another of its kind.
    pub(super) fn arm(&self, pod: &PodRef, cause: Cause, due: Instant) {
        let key = Key { uid: pod.uid, kind: cause.kind() };
        self.timers_of(&pod.node).evictions.arm(key, due, (pod.clone(), cause));
        self.recall(key);
    }

    /// Cancels the eviction of a pod. True only if it counted down or was held, so that nobody reports a
    /// cancellation of what is being done already.
    pub(super) fn disarm(&self, node: &NodeName, uid: Uid, kind: CauseKind) -> bool {
        let key = Key { uid, kind };
        let counted_down = self.timers_of(node).evictions.disarm(&key);
        self.recall(key) || counted_down
    }

    /// Ends an eviction that is held, since it was cancelled or replaced.
    fn recall(&self, key: Key) -> bool {
        let recalled = self.evictions.recall(key);
        if let Some((eviction, token)) = &recalled {
            self.finish(eviction, *token, &Outcome::Reconsider);
        }
        recalled.is_some()
    }

    /// Has these pods of a node evicted for its drain, in this order. One that is being evicted for the same
    /// goes on; anything else takes the place of what was asked for before at once.
    pub(super) fn evict_for_drain(&self, pods: &[PodRef], drain: &Arc<DrainEviction>) {
        let mut due = Instant::now();
        for pod in pods {
            let cause = Cause::Drain(Arc::clone(drain));
            let key = Key { uid: pod.uid, kind: CauseKind::Drain };
            let armed = self.timers_of(&pod.node).evictions.get(&key);
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
    pub(super) fn retry_at_once(&self, BacklogEntry { pod, cause, .. }: &BacklogEntry) {
        // The pause after the refusal does not hold any more.
        if self.disarm(&pod.node, pod.uid, cause.kind()) {
            self.arm(pod, cause.clone(), Instant::now());
        }
    }

    /// Cancels the eviction of a pod for its node's drain, if there is one. Its request may be on its way
    /// already.
    pub(super) fn cancel_for_drain(&self, node: &NodeName, uid: Uid) -> bool {
        self.disarm(node, uid, CauseKind::Drain);
        self.backlog.leave(node, uid, CauseKind::Drain)
    }

    /// Cancels all evictions for the drain of a node.
    pub(super) fn cancel_all_for_drain(&self, node: &NodeName) {
        for entry in self.backlog.on(node, CauseKind::Drain) {
            self.cancel_for_drain(node, entry.pod.uid);
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

    /// Waits for the next eviction that is due by the clock.
    ///
    /// A timer may end before: it is cut short if it is long (see [`Clock::instant_of`]). It goes on
    /// with what it was armed with; a new decision would count from now by `--compat upstream`.
    ///
    /// [`Clock::instant_of`]: crate::clock::Clock::instant_of
    pub(super) async fn next_eviction(
        &self,
        timers: &EvictionTimers,
    ) -> Fired<Key, (PodRef, Cause)> {
        loop {
            let fired = timers.next().await;
            let early = match &fired.value.1 {
                Cause::Taint(verdict) if !verdict.is_due(self.clock.now()) => self.due(verdict),
                Cause::Taint(_) | Cause::Drain(_) => None,
            };
            let Some(due) = early else { return fired };
            let outcome = pipeline::Outcome::Early { due, value: fired.value };
            timers.complete(&fired.key, fired.token, outcome);
        }
    }

    /// Re-arms everything after the clock was set.
    pub(super) fn rearm(&self) -> usize {
        let due = |(_, cause): &(PodRef, Cause)| match cause {
            Cause::Taint(verdict) => self.due(verdict),
            // A pause, not a moment of the clock.
            Cause::Drain(_) => None,
        };
        let rearm = |timers: &Timers| {
            timers.nodes.rearm_all(|()| Some(Instant::now())) + timers.evictions.rearm_all(due)
        };
        self.timers.iter().map(rearm).sum()
    }
}

impl Origin for Shared {
    type Ticket = Token;

    fn standing(&self, eviction: &Eviction, token: Token) -> Standing {
        let (timers, key) = (&self.timers_of(&eviction.pod.node).evictions, eviction.key());
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
        let (timers, key) = (&self.timers_of(&pod.node).evictions, eviction.key());
        match outcome {
            Outcome::Reconsider => {
                let was_known = timers.complete(&key, token, pipeline::Outcome::Done);
                match cause {
                    Cause::Taint(_) => self.pod_changed(pod.node.clone(), pod.uid),
                    // Unless another has taken its place by now, the drain is to go on.
                    Cause::Drain(_) if was_known && timers.get(&key).is_none() => {
                        self.node_changed(pod.node.clone());
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

#[cfg(test)]
mod tests;
