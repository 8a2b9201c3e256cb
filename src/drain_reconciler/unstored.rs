//! Keeps state that cannot be written to a node.
//!
//! The record of a drain, draino's annotation and the condition `DrainScheduled` tell others, and a later
//! process, what is being done about a node. They may be refused or removed, because the node's annotations
//! are full, or by a policy or a webhook. Cordon and drain do not depend on that: the refused state is kept
//! here, decisions treat it as stored, and writing it is retried with growing pauses. A restart loses
//! it, and the cordon then counts as someone else's.

use std::sync::Arc;
use std::time::Duration;

use ahash::RandomState;
use dashmap::DashMap;
use jiff::Timestamp;

use crate::backoff::Backoff;
use crate::model::{Condition, ConditionStatus, Node, NodeDrainFacts, NodeName, Uid, later};

/// Pause before what was refused is retried.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(20), most: Duration::from_secs(600) };

/// Nodes with what is missing on them.
#[derive(Debug, Default)]
pub(super) struct Unstored {
    nodes: DashMap<NodeName, Missing, RandomState>,
}

/// The annotations of a node as they should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Annotations {
    pub record: Option<Arc<str>>,
    pub draino_conditions: Option<Arc<str>>,
    /// A request for one more try was taken.
    pub retry_taken: bool,
}

#[derive(Debug)]
struct Missing {
    uid: Uid,
    annotations: Option<Annotations>,
    /// Whether `DrainScheduled` should be `True`.
    scheduled: Option<bool>,
    attempts: u32,
    /// When they are retried.
    again: Timestamp,
}

impl Unstored {
    /// The node as it should be stored; `None` if nothing is missing on it. A condition that is due to
    /// be retried is left as it is stored.
    pub(super) fn recall(&self, node: &Node, now: Timestamp) -> Option<Node> {
        if self.nodes.is_empty() {
            return None;
        }
        let missing = self.nodes.get(&node.name).filter(|missing| missing.uid == node.uid)?;
        let mut drain_facts = node.drain_facts.as_deref()?.clone();
        if let Some(annotations) = &missing.annotations {
            drain_facts.record.clone_from(&annotations.record);
            drain_facts.draino_conditions.clone_from(&annotations.draino_conditions);
            drain_facts.retry_asked &= !annotations.retry_taken;
        }
        if let Some(scheduled) = missing.scheduled.filter(|_| missing.again > now) {
            let status = if scheduled { ConditionStatus::True } else { ConditionStatus::False };
            let kind: Arc<str> = Arc::from(NodeDrainFacts::SCHEDULED_CONDITION);
            let reason = Arc::from("");
            let mark = Condition { kind, status, since: None, heartbeat: None, reason };
            let others =
                drain_facts.conditions.iter().filter(|condition| condition.kind != mark.kind);
            drain_facts.conditions = others.cloned().chain([mark.clone()]).collect();
        }
        Some(Node { drain_facts: Some(Arc::new(drain_facts)), ..node.clone() })
    }

    /// When the annotations are retried; `None` if none is missing.
    pub(super) fn again(&self, name: &NodeName) -> Option<Timestamp> {
        let missing = self.nodes.get(name)?;
        missing.annotations.as_ref().map(|_| missing.again)
    }

    /// Keeps annotations that were refused, or that it is too early to try again. Returns how often
    /// they have been refused.
    pub(super) fn keep(
        &self,
        node: &Node,
        annotations: Annotations,
        was_refused: bool,
        now: Timestamp,
    ) -> u32 {
        self.note(node, was_refused, now, |missing| missing.annotations = Some(annotations))
    }

    /// Keeps the status of the condition, which was refused.
    pub(super) fn keep_mark(&self, node: &Node, scheduled: bool, now: Timestamp) -> u32 {
        self.note(node, true, now, |missing| missing.scheduled = Some(scheduled))
    }

    fn note(
        &self,
        node: &Node,
        was_refused: bool,
        now: Timestamp,
        change: impl FnOnce(&mut Missing),
    ) -> u32 {
        let fresh = || Missing {
            uid: node.uid,
            annotations: None,
            scheduled: None,
            attempts: 0,
            again: now,
        };
        let mut missing = self.nodes.entry(node.name.clone()).or_insert_with(fresh);
        if missing.uid != node.uid {
            *missing = fresh();
        }
        if was_refused {
            missing.attempts = missing.attempts.saturating_add(1);
            missing.again = later(now, BACKOFF.pause(missing.attempts, node.uid.0));
        }
        change(&mut missing);
        missing.attempts
    }

    /// The annotations of the node were stored.
    pub(super) fn annotated(&self, name: &NodeName) {
        self.stored(name, |missing| missing.annotations = None);
    }

    /// The condition of the node was stored.
    pub(super) fn marked(&self, name: &NodeName) {
        self.stored(name, |missing| missing.scheduled = None);
    }

    fn stored(&self, name: &NodeName, change: impl FnOnce(&mut Missing)) {
        if self.nodes.is_empty() {
            return;
        }
        if let Some(mut missing) = self.nodes.get_mut(name) {
            change(&mut missing);
        }
        let is_nothing = |_: &NodeName, missing: &Missing| {
            missing.annotations.is_none() && missing.scheduled.is_none()
        };
        self.nodes.remove_if(name, is_nothing);
    }

    /// The node is gone.
    pub(super) fn forget(&self, name: &NodeName) {
        self.nodes.remove(name);
    }

    /// Another process may have written to all nodes.
    pub(super) fn clear(&self) {
        if !self.nodes.is_empty() {
            self.nodes.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::build::kept;
    use crate::model::build::at;

    fn annotations(record: &str) -> Annotations {
        Annotations { record: Some(Arc::from(record)), ..Annotations::default() }
    }

    fn record(node: &Node) -> Option<&str> {
        node.drain_facts.as_ref()?.record.as_deref()
    }

    #[test]
    fn what_is_missing_is_taken_as_if_it_were_stored_until_it_is() {
        let unstored = Unstored::default();
        let node = kept("n1").with_record("old").asking_for_retry();
        assert!(unstored.recall(&node, at(0)).is_none());
        let wanted = Annotations { retry_taken: true, ..annotations("new") };
        assert_eq!(unstored.keep(&node, wanted, true, at(0)), 1);
        let recalled = unstored.recall(&node, at(0)).unwrap();
        assert_eq!(record(&recalled), Some("new"));
        assert!(!recalled.drain_facts.unwrap().retry_asked);
        assert!(unstored.recall(&kept("n2"), at(0)).is_none(), "another node");
        let anew = Node { uid: Uid(99), ..node.clone() };
        assert!(unstored.recall(&anew, at(0)).is_none(), "another node of this name");
        unstored.annotated(&node.name);
        assert!(unstored.recall(&node, at(0)).is_none() && unstored.nodes.is_empty());
    }

    #[test]
    fn it_is_tried_again_with_a_pause_that_grows_to_ten_minutes() {
        let unstored = Unstored::default();
        let node = kept("n1");
        let mut longest = Duration::ZERO;
        for n in 1..=20 {
            assert_eq!(unstored.keep(&node, annotations("r"), true, at(0)), n);
            let pause = unstored.again(&node.name).unwrap().duration_since(at(0));
            longest = longest.max(Duration::try_from(pause).unwrap());
        }
        assert!(longest > Duration::from_secs(200) && longest <= BACKOFF.most, "{longest:?}");
        let again = unstored.again(&node.name);
        assert_eq!(unstored.keep(&node, annotations("newer"), false, at(1)), 20);
        assert_eq!(unstored.again(&node.name), again, "what was not tried changes no pause");
        assert_eq!(record(&unstored.recall(&node, at(1)).unwrap()), Some("newer"));
    }

    #[test]
    fn a_condition_counts_as_set_until_it_is_tried_again() {
        let unstored = Unstored::default();
        let node = kept("n1").reporting("DrainScheduled", ConditionStatus::False, 0);
        unstored.keep_mark(&node, true, at(0));
        let status = |now: i64| {
            let node = unstored.recall(&node, at(now)).unwrap();
            node.drain_facts.unwrap().condition("DrainScheduled").unwrap().status
        };
        assert_eq!(status(1), ConditionStatus::True);
        assert_eq!(status(3600), ConditionStatus::False);
        unstored.marked(&node.name);
        assert!(unstored.recall(&node, at(1)).is_none());
    }
}
