//! Makes decisions and arms timers accordingly. Runs on the workers; does no I/O.
//!
//! The facts are read when an item is handled, not when it was queued: ten changes of a node cost
//! one decision, by the newest of them.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::ignored_taints::IgnoredTaints;
use super::newest_facts::verdict;
use crate::cluster::NodeFacts;
use crate::config::Compat;
use crate::drain::Step;
use crate::drain_reconciler::{self, Drains};
use crate::evict::{Cause, CauseKind, Schedule, State};
use crate::informer::{Facts, NodeKey, NodeTimer, PodKey, WorkQueues};
use crate::model::{Anchors, Kept, Node, NodeName, Pod, PodRef, Verdict};
use crate::observe::Recorder;
use crate::other_managers::OtherManagers;
use crate::pipeline::{Handler, TimedQueue};
use crate::taint::anchor;

/// Pods that come and go change a node's record rarely: it is looked at this long after one did.
const RECORD_AFTER_POD: Duration = Duration::from_secs(1);

/// While something is to be done about a node's drain, it is looked at this often: so a drain goes
/// on whatever a watch does not show.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Decides about nodes and pods.
pub(super) struct Decider {
    pub facts: Arc<Facts>,
    pub queues: Arc<WorkQueues>,
    pub schedule: Arc<Schedule>,
    /// Nodes whose record may have to be written.
    pub records: Arc<TimedQueue<NodeName, ()>>,
    pub drains: Option<Arc<Drains>>,
    pub others: Arc<OtherManagers>,
    pub ignored: Arc<IgnoredTaints>,
    pub recorder: Recorder,
}

impl Handler for Decider {
    type Node = NodeKey;
    type Pod = PodKey;

    fn node(&self, shard: usize, NodeKey(name): &NodeKey) {
        let timers = &self.queues.timers[shard];
        let Some(mut facts) = self.facts.view.node(name) else {
            timers.disarm(&NodeTimer::Decide(name.clone()));
            self.schedule.cancel_all_for_drain(name);
            if let Some(drains) = &self.drains {
                // It has something to forget.
                drains.due.arm(name.clone(), Instant::now(), ());
            }
            return;
        };
        if anchor::gap_deadline(&facts.anchors).is_some() {
            facts = self.grown_older(name, facts);
        }
        let drain_facts = facts.node.as_deref().and_then(|node| self.drain_facts(node));
        match [anchor::gap_deadline(&facts.anchors), drain_facts].into_iter().flatten().min() {
            Some(moment) => {
                let due = self.facts.clock.instant_of(moment);
                timers.arm(NodeTimer::Decide(name.clone()), due, ());
            }
            None => {
                timers.disarm(&NodeTimer::Decide(name.clone()));
            }
        }
        for pod in &facts.pods {
            let node = facts.node.as_deref();
            self.decide(pod, |running| verdict(&self.facts, pod, node, &facts.anchors, running));
        }
        self.ignored.look_at(name, &facts, &self.facts, &self.recorder);
        if let Some(node) = &facts.node
            && concerns_record(node, &facts.anchors, self.facts.compat)
        {
            self.records.arm(name.clone(), Instant::now(), ());
        }
    }

    fn pod(&self, _: usize, key: &PodKey) {
        let Some(facts) = self.facts.view.pod(&key.node, key.uid) else {
            self.schedule.disarm(&key.node, key.uid, CauseKind::Taint);
            self.schedule.backlog.leave(&key.node, key.uid, CauseKind::Taint);
            if self.schedule.cancel_for_drain(&key.node, key.uid) {
                self.queues.node_changed(key.node.clone());
            }
            // It may have been the last one that the record was for, and nothing else says so if a
            // new list is what tells that it is gone.
            if let Some((node, anchors)) = self.facts.view.node_alone(&key.node) {
                self.look_at_record(&key.node, &node, &anchors);
            }
            return;
        };
        self.decide(&facts.pod, |running| {
            verdict(&self.facts, &facts.pod, facts.node.as_deref(), &facts.anchors, running)
        });
        if let Some(node) = &facts.node {
            self.look_at_record(&key.node, node, &facts.anchors);
        }
    }
}

impl Decider {
    /// Has done what is to be done about a node's cordon and drain. Returns when to look again.
    fn drain_facts(&self, node: &Node) -> Option<Timestamp> {
        let drains = self.drains.as_ref()?;
        let now = self.facts.clock.now();
        let step = drains.step(&drains.rules(), node, now);
        if !drain_reconciler::evicts(&step) {
            self.schedule.cancel_all_for_drain(&node.name);
        }
        let next = match step {
            Step::Rest => None,
            Step::Wait(moment) => Some(moment),
            Step::Action(_) => {
                drains.due.arm(node.name.clone(), Instant::now(), ());
                now.saturating_add(LOOK_AGAIN).ok()
            }
        };
        [next, drains.report_orphan(node, now)].into_iter().flatten().min()
    }

    /// Has a node's record looked at in a while, since one of its pods came, changed or went.
    fn look_at_record(&self, name: &NodeName, node: &Node, anchors: &Anchors) {
        if concerns_record(node, anchors, self.facts.compat) && self.records.get(name).is_none() {
            self.records.arm(name.clone(), Instant::now() + RECORD_AFTER_POD, ());
        }
    }

    /// Advances a node's anchors by the time that has passed, and reads its facts again.
    fn grown_older(&self, name: &NodeName, facts: NodeFacts) -> NodeFacts {
        let now = self.facts.clock.now();
        let advance = |anchors: &Anchors, node: &Node| {
            anchor::advance(anchor::Past::Watched(anchors), node, now)
        };
        if self.facts.view.refresh_node(name, advance) {
            self.facts.view.node(name).unwrap_or(facts)
        } else {
            facts
        }
    }

    /// Whether this process evicts a pod for the drain of its node.
    fn is_evicted_for_drain(&self, pod: &PodRef) -> bool {
        self.schedule.backlog.get(pod, CauseKind::Drain).is_some_and(|entry| entry.is_begun())
    }

    /// Decides about a pod and arms or disarms its timer.
    fn decide(&self, known: &Pod, judge: impl FnOnce(Option<&Verdict>) -> Verdict) {
        let pod = &known.reference();
        let armed = self.schedule.armed_verdict(pod);
        let verdict = judge(armed.as_ref());
        if let Verdict::Keep(kept) = verdict {
            if armed.is_none() {
                return;
            }
            let entry = self.schedule.backlog.get(pod, CauseKind::Taint);
            let sent = entry
                .as_ref()
                .is_some_and(|entry| matches!(entry.state, State::Sent | State::WouldEvict));
            if kept == Kept::Terminating
                && let Some(entry) = entry.filter(|entry| !entry.is_begun())
                && !self.is_evicted_for_drain(pod)
            {
                self.others.deleted(known, entry.due.elapsed());
            }
            let cancelled = self.schedule.disarm(&pod.node, pod.uid, CauseKind::Taint);
            self.schedule.backlog.leave(&pod.node, pod.uid, CauseKind::Taint);
            if cancelled
                && !sent
                && matches!(kept, Kept::NoTaints | Kept::Tolerated | Kept::Ignored)
            {
                tracing::info!(%pod, uid = %pod.uid, node = %pod.node, %verdict, "eviction cancelled");
                self.recorder.cancelled(pod, &verdict);
            }
            return;
        }
        // The same verdict is under way already, possibly with a pause after a failure.
        if armed.as_ref() == Some(&verdict) {
            return;
        }
        if let Some(due) = self.schedule.due_at(&verdict) {
            if armed.is_some_and(|armed| armed.respects_budgets()) {
                // The pause after a budget's refusal does not hold for another verdict.
                self.schedule.disarm(&pod.node, pod.uid, CauseKind::Taint);
            }
            tracing::debug!(%pod, uid = %pod.uid, node = %pod.node, %verdict, "eviction armed");
            self.schedule.arm(pod, Cause::Taint(verdict), due);
        }
    }
}

/// Whether a node's record may have to be written or removed.
fn concerns_record(node: &Node, anchors: &Anchors, compat: Compat) -> bool {
    compat == Compat::None && (node.since_annotation.is_some() || *anchors != Anchors::default())
}
