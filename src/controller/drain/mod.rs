//! Cordon and drain: carries out what [`crate::drain`] decides.
//!
//! A node reaches its shard's worker like any other change. What the decision says is to be waited
//! for becomes the node's timer; what is to be done now is handed to the conductor, through a queue
//! that works on each node once at a time. The conductor reads the node from the API server,
//! decides again, writes, and goes on with what was stored, until nothing is to be done now. Pods
//! are evicted by the evictor, in its window, like all others.

mod conductor;
mod metrics;
mod news;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use parking_lot::Mutex;

pub(super) use conductor::{Conductor, run};
pub(super) use metrics::DrainMetrics;
pub(super) use news::Reporter;

use crate::cluster::Watched;
use crate::drain::{
    Act, Change, DrainPhase, Ledger, News, Policy, Record, Step, decide, is_draining,
};
use crate::model::{Node, NodeName};
use crate::pipeline::TimedQueue;

/// What cordon and drain share: the policies, and what concerns more than one node.
pub(super) struct Drains {
    pub policies: Arc<[Policy]>,
    /// What is read of nodes for them.
    pub watched: Arc<Watched>,
    pub ledger: Mutex<Ledger>,
    pub reporter: Reporter,
    /// Nodes about which something is to be done.
    pub due: TimedQueue<NodeName, ()>,
}

impl Drains {
    pub(super) fn new(policies: Arc<[Policy]>, reporter: Reporter) -> Self {
        let rules = policies.iter().flat_map(|policy| &policy.conditions);
        let watched = Arc::new(Watched {
            heartbeats: rules.clone().any(|rule| rule.stale_after.is_some()),
            conditions: rules.map(|rule| Arc::clone(&rule.kind)).collect(),
        });
        let ledger = Mutex::new(Ledger::new(&policies));
        Self { policies, watched, ledger, reporter, due: TimedQueue::new() }
    }

    /// Takes in a version of a node.
    pub(super) fn see(&self, node: &Node) {
        if let Some(upkeep) = &node.upkeep {
            self.ledger.lock().see(&node.name, upkeep);
        }
    }

    /// Takes in that a node is gone. If it was being drained, it is drained now; who leads
    /// says so.
    pub(super) fn gone(&self, node: &Node, leads: bool) {
        self.ledger.lock().forget(&node.name);
        if let Some(record) = node.upkeep.as_deref().and_then(Record::of)
            && record.phase == DrainPhase::Draining
            && leads
        {
            self.reporter.tell(node, &News::Drained { cause: "node_deleted", left: None });
        }
    }

    /// What is to be done about a node.
    pub(super) fn step(&self, node: &Node, now: jiff::Timestamp) -> Step {
        decide(node, &self.policies, now)
    }

    /// Whether a drain is to go on evicting.
    pub(super) fn is_draining(&self, node: &Node, session: &str, now: jiff::Timestamp) -> bool {
        is_draining(node, session, &self.policies, now)
    }

    /// The policy of this name.
    pub(super) fn policy(&self, name: &str) -> Option<&Policy> {
        self.policies.iter().find(|policy| &*policy.name == name)
    }
}

/// Whether this is a step of a drain under way, so that its evictions go on.
pub(super) fn evicts(step: &Step) -> bool {
    match step {
        Step::Act(Act::Conduct(_) | Act::Expire(_) | Act::Mark { scheduled: true, .. }) => true,
        Step::Act(Act::Write(Change { record: Some(record), .. })) => {
            record.phase == DrainPhase::Draining
        }
        _ => false,
    }
}
