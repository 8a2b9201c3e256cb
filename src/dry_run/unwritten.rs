//! What a dry run would have written to nodes, and which pods its drains would have evicted.
//!
//! Nodes are read as if it had been written, so that the story goes on: a cordon is followed by a drain, and
//! the drain by its end. It is kept in memory: a dry run that is started again begins anew. What others
//! write to the node counts as ever. An end of the cordon by a person cannot be seen, since there is none.

use std::sync::Arc;

use ahash::{AHashSet, RandomState};
use dashmap::DashMap;

use crate::cluster::NodeDrainPatch;
use crate::model::{
    Condition, ConditionStatus, DrainPod, Node, NodeDrainFacts, NodeName, PodRef, Uid,
};

/// The changes of nodes that were not written.
#[derive(Debug, Default)]
pub(crate) struct Unwritten {
    nodes: DashMap<NodeName, Changes, RandomState>,
    /// Pods that drains would have evicted, by node.
    evicted: DashMap<NodeName, AHashSet<Uid>, RandomState>,
}

#[derive(Debug)]
#[allow(clippy::option_option, reason = "unchanged, removed, or set")]
struct Changes {
    uid: Uid,
    cordoned: bool,
    /// A cordon that is really there was taken back.
    uncordoned: bool,
    record: Option<Option<Arc<str>>>,
    draino_conditions: Option<Option<Arc<str>>>,
    retry_taken: bool,
    scheduled: Option<bool>,
}

impl Changes {
    fn none(uid: Uid) -> Self {
        Self {
            uid,
            cordoned: false,
            uncordoned: false,
            record: None,
            draino_conditions: None,
            retry_taken: false,
            scheduled: None,
        }
    }

    fn apply(&mut self, facts: &mut NodeDrainFacts) {
        self.uncordoned &= facts.unschedulable;
        facts.unschedulable = facts.unschedulable && !self.uncordoned || self.cordoned;
        if let Some(record) = &self.record {
            facts.record.clone_from(record);
        }
        if let Some(conditions) = &self.draino_conditions {
            facts.draino_conditions.clone_from(conditions);
        }
        facts.retry_asked &= !self.retry_taken;
        if let Some(scheduled) = self.scheduled {
            let status = if scheduled { ConditionStatus::True } else { ConditionStatus::False };
            let kind: Arc<str> = Arc::from(NodeDrainFacts::SCHEDULED_CONDITION);
            let others = facts.conditions.iter().filter(|condition| condition.kind != kind);
            let others: Vec<_> = others.cloned().collect();
            let reason = Arc::from("");
            let mark = Condition { kind, status, since: None, heartbeat: None, reason };
            facts.conditions = others.into_iter().chain([mark]).collect();
        }
    }
}

impl Unwritten {
    /// Has a node as it is stored count as if everything had been written to it.
    pub(crate) fn apply(&self, node: &mut Node) {
        if self.nodes.is_empty() {
            return;
        }
        let Some(mut changes) = self.nodes.get_mut(&node.name) else { return };
        if changes.uid != node.uid {
            return;
        }
        if let Some(facts) = &node.drain_facts {
            let mut facts = NodeDrainFacts::clone(facts);
            changes.apply(&mut facts);
            node.drain_facts = Some(Arc::new(facts));
        }
    }

    /// Takes in a patch of a node, which counts as written already as far as others are. Returns the node
    /// after it.
    pub(crate) fn patch(&self, node: &Node, patch: &NodeDrainPatch) -> Node {
        let text = |text: &Option<String>| text.as_deref().map(Arc::from);
        if patch.record == Some(None) {
            self.evicted.remove(&node.name);
        }
        self.change(node, |changes| {
            match patch.unschedulable {
                Some(true) => (changes.cordoned, changes.uncordoned) = (true, false),
                Some(false) => (changes.cordoned, changes.uncordoned) = (false, true),
                None => {}
            }
            if let Some(record) = &patch.record {
                changes.record = Some(text(record));
            }
            if let Some(conditions) = &patch.draino_conditions {
                changes.draino_conditions = Some(text(conditions));
            }
            changes.retry_taken |= patch.retry_taken;
        })
    }

    /// Takes in that the condition `DrainScheduled` of a node would be set. Returns the node after it.
    pub(crate) fn mark(&self, node: &Node, scheduled: bool) -> Node {
        self.change(node, |changes| changes.scheduled = Some(scheduled))
    }

    fn change(&self, node: &Node, change: impl FnOnce(&mut Changes)) -> Node {
        let mut changes =
            self.nodes.entry(node.name.clone()).or_insert_with(|| Changes::none(node.uid));
        if changes.uid != node.uid {
            *changes = Changes::none(node.uid);
        }
        change(&mut changes);
        let mut facts = node.drain_facts.as_deref().cloned().unwrap_or_default();
        // The node that is given has the cordon of a change before, so only the new one tells.
        if !changes.cordoned && changes.uncordoned {
            facts.unschedulable = false;
        }
        let uncordoned = changes.uncordoned;
        changes.apply(&mut facts);
        changes.uncordoned = uncordoned;
        Node { drain_facts: Some(Arc::new(facts)), ..node.clone() }
    }

    /// The node is gone.
    pub(crate) fn forget(&self, name: &NodeName) {
        self.nodes.remove(name);
        self.evicted.remove(name);
    }

    /// A drain would have evicted the pod.
    pub(crate) fn evicted(&self, pod: &PodRef) {
        self.evicted.entry(pod.node.clone()).or_default().insert(pod.uid);
    }

    /// The pods of a node without those that drains would have evicted.
    pub(crate) fn remaining(&self, node: &NodeName, mut pods: Vec<DrainPod>) -> Vec<DrainPod> {
        if let Some(mut evicted) = self.evicted.get_mut(node) {
            // Those that are really gone need not be remembered.
            let present: AHashSet<Uid> = pods.iter().map(|pod| pod.reference.uid).collect();
            evicted.retain(|uid| present.contains(uid));
            pods.retain(|pod| !evicted.contains(&pod.reference.uid));
        }
        pods
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::build::kept;
    use crate::model::build::drain_pod;

    fn facts(node: &Node) -> &NodeDrainFacts {
        node.drain_facts.as_deref().unwrap()
    }

    /// The node as it counts.
    fn seen(unwritten: &Unwritten, mut node: Node) -> Node {
        unwritten.apply(&mut node);
        node
    }

    fn cordon(on: bool) -> NodeDrainPatch {
        let record = Some(on.then(|| "r".to_owned()));
        NodeDrainPatch { record, unschedulable: Some(on), ..NodeDrainPatch::default() }
    }

    #[test]
    fn what_was_not_written_counts_as_if_it_were_until_it_is_taken_back() {
        let unwritten = Unwritten::default();
        let node = kept("n1");
        assert!(!facts(&seen(&unwritten, node.clone())).unschedulable);
        let patched = unwritten.patch(&node, &cordon(true));
        let marked = unwritten.mark(&patched, true);
        for node in [&marked, &seen(&unwritten, node.clone())] {
            assert!(facts(node).unschedulable);
            assert_eq!(facts(node).record.as_deref(), Some("r"));
            let mark = facts(node).condition(NodeDrainFacts::SCHEDULED_CONDITION);
            assert_eq!(mark.map(|mark| mark.status), Some(ConditionStatus::True));
        }
        let other = Node { uid: Uid(99), ..node.clone() };
        assert!(!facts(&seen(&unwritten, other)).unschedulable, "another node of this name");
        let patched = unwritten.patch(&marked, &cordon(false));
        for node in [&patched, &seen(&unwritten, node.clone())] {
            assert!(!facts(node).unschedulable);
            assert_eq!(facts(node).record, None);
        }
        unwritten.forget(&node.name);
        assert_eq!(seen(&unwritten, node.clone()), node);
    }

    #[test]
    fn a_cordon_of_others_counts_whatever_was_taken_back_before() {
        let unwritten = Unwritten::default();
        let (free, mut foreign) = (kept("n1"), kept("n1"));
        let mut cordoned = facts(&foreign).clone();
        cordoned.unschedulable = true;
        foreign.drain_facts = Some(Arc::new(cordoned));
        unwritten.patch(&foreign, &cordon(false));
        assert!(!facts(&seen(&unwritten, foreign.clone())).unschedulable, "its cordon was ours");
        assert!(!facts(&seen(&unwritten, free)).unschedulable);
        assert!(facts(&seen(&unwritten, foreign)).unschedulable, "this one is new");
    }

    #[test]
    fn pods_that_a_drain_would_have_evicted_are_gone_until_it_is_over() {
        let unwritten = Unwritten::default();
        let node = kept("n1");
        let (a, b) = (drain_pod("a"), drain_pod("b"));
        unwritten.evicted(&a.reference);
        let left = |pods: &[&DrainPod]| {
            let pods = pods.iter().map(|pod| (*pod).clone()).collect();
            let left = unwritten.remaining(&node.name, pods);
            left.iter().map(|pod| pod.reference.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(left(&[&a, &b]), ["b"]);
        unwritten.patch(&node, &cordon(true));
        assert_eq!(left(&[&a, &b]), ["b"]);
        unwritten.patch(&node, &cordon(false));
        assert_eq!(left(&[&a, &b]), ["a", "b"], "the node is in use again");
    }
}
