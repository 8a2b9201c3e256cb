//! Reports nodes whose cordon is no policy's any more: when the process begins to lead, and then each hour.

use std::time::Duration;

use ahash::AHashMap;
use jiff::Timestamp;
use parking_lot::Mutex;

use super::{DrainRules, Reporter};
use crate::drain::orphan;
use crate::model::{Node, NodeName, Uid, later};

/// How often an orphan is reported: rarely enough for nodes that nobody minds, and always within the life of
/// an event.
const EACH: Duration = Duration::from_secs(3600);

/// What was reported in this term, and when.
#[derive(Default)]
pub(super) struct OrphanReports(Mutex<AHashMap<NodeName, (Uid, Timestamp)>>);

impl OrphanReports {
    /// Reports a node if it is an orphan and it is time to. Returns when to report it again.
    pub(super) fn look_at(
        &self,
        node: &Node,
        rules: &DrainRules,
        reporter: &Reporter,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let drain_facts = node.drain_facts.as_deref()?;
        let Some(record) = orphan(drain_facts, &rules.policies, now) else {
            self.forget(&node.name);
            return None;
        };
        let mut reported = self.0.lock();
        let before = reported.get(&node.name).filter(|(uid, _)| *uid == node.uid);
        if let Some(again) = before.map(|(_, at)| later(*at, EACH)).filter(|again| *again > now) {
            return Some(again);
        }
        reported.insert(node.name.clone(), (node.uid, now));
        drop(reported);
        reporter.orphaned(node, record.policy(), rules.orphans);
        Some(later(now, EACH))
    }

    /// The node is gone, or no orphan any more.
    pub(super) fn forget(&self, name: &NodeName) {
        self.0.lock().remove(name);
    }

    /// The term has ended.
    pub(super) fn forget_all(&self) {
        self.0.lock().clear();
    }
}
