//! A fair queue of evictions.
//!
//! Nodes take turns, so that a node with many pods does not delay the others. A turn is a few pods long,
//! because these share one read of their node. First attempts come before retries, so that pods whose
//! deletion hangs at a webhook do not delay pods whose deletion would succeed. Every fourth item is a
//! retry, so that retries are not starved.
//!
//! Where evictions wait for a hold, namespaces take turns as well: a namespace with a thousand pods does not
//! make one with three wait.

use std::collections::VecDeque;
use std::sync::Arc;

use ahash::AHashMap;

use crate::model::NodeName;

/// Every so many items, a retry comes first.
const RETRY_TURN: u32 = 4;
/// Pods of one node in a row. If many nodes wait, the node's next turn comes too late to share the read,
/// so this is how many pods share one. It is less than the window's initial size: a node whose pods hang
/// at a webhook must not fill the window in one turn.
const NODE_TURN: u32 = 4;

/// Items that wait for their turn. Bounded by the number of pods and causes: one entry each.
#[derive(Debug)]
pub(super) struct FairQueue<T> {
    first_attempts: Round<T>,
    retries: Round<T>,
    turn: u32,
}

/// One queue per node; the nodes take turns.
#[derive(Debug)]
struct Round<T> {
    /// The first node has the turn.
    nodes: VecDeque<NodeName>,
    /// How many of its items were taken in this turn.
    given: u32,
    waiting: AHashMap<NodeName, VecDeque<T>>,
}

impl<T> Default for Round<T> {
    fn default() -> Self {
        Self { nodes: VecDeque::new(), given: 0, waiting: AHashMap::new() }
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { first_attempts: Round::default(), retries: Round::default(), turn: 0 }
    }
}

impl<T> FairQueue<T> {
    /// Queues `item` of `node`.
    pub(super) fn push(&mut self, node: &NodeName, is_retry: bool, item: T) {
        let round = if is_retry { &mut self.retries } else { &mut self.first_attempts };
        round.push(node, item);
    }

    /// Takes the next item.
    pub(super) fn pop(&mut self) -> Option<T> {
        self.turn = (self.turn + 1) % RETRY_TURN;
        if self.turn == 0 {
            self.retries.pop().or_else(|| self.first_attempts.pop())
        } else {
            self.first_attempts.pop().or_else(|| self.retries.pop())
        }
    }

    /// Removes an item of `node` before its turn.
    pub(super) fn remove(&mut self, node: &NodeName, is_it: impl Fn(&T) -> bool) -> Option<T> {
        let first = self.first_attempts.remove(node, &is_it);
        first.or_else(|| self.retries.remove(node, &is_it))
    }

    fn is_empty(&self) -> bool {
        self.first_attempts.nodes.is_empty() && self.retries.nodes.is_empty()
    }
}

/// Items of which namespaces take turns, and within a namespace nodes.
#[derive(Debug)]
pub(super) struct ByNamespace<T> {
    /// The first namespace has the turn. One whose items were all taken stays until its turn comes.
    turns: VecDeque<Arc<str>>,
    waiting: AHashMap<Arc<str>, FairQueue<T>>,
    len: usize,
}

impl<T> Default for ByNamespace<T> {
    fn default() -> Self {
        Self { turns: VecDeque::new(), waiting: AHashMap::new(), len: 0 }
    }
}

impl<T> ByNamespace<T> {
    /// Queues `item` of a namespace and a node.
    pub(super) fn push(&mut self, namespace: &Arc<str>, node: &NodeName, is_retry: bool, item: T) {
        let queue = self.waiting.entry(Arc::clone(namespace)).or_insert_with(|| {
            self.turns.push_back(Arc::clone(namespace));
            FairQueue::default()
        });
        queue.push(node, is_retry, item);
        self.len += 1;
    }

    /// Takes the next item.
    pub(super) fn pop(&mut self) -> Option<T> {
        while let Some(namespace) = self.turns.pop_front() {
            let Some(item) = self.waiting.get_mut(&namespace).and_then(FairQueue::pop) else {
                self.waiting.remove(&namespace);
                continue;
            };
            self.turns.push_back(namespace);
            self.len -= 1;
            return Some(item);
        }
        None
    }

    /// Removes an item of a namespace and a node before its turn.
    pub(super) fn remove(
        &mut self,
        namespace: &Arc<str>,
        node: &NodeName,
        is_it: impl Fn(&T) -> bool,
    ) -> Option<T> {
        let queue = self.waiting.get_mut(namespace)?;
        let item = queue.remove(node, is_it)?;
        self.len -= 1;
        // A line may be held for days while namespaces come and go.
        if queue.is_empty() {
            self.waiting.remove(namespace);
            self.turns.retain(|other| other != namespace);
        }
        Some(item)
    }

    /// The number of items.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl<T> Round<T> {
    fn push(&mut self, node: &NodeName, item: T) {
        if let Some(queue) = self.waiting.get_mut(node) {
            queue.push_back(item);
        } else {
            self.waiting.insert(node.clone(), VecDeque::from([item]));
            self.nodes.push_back(node.clone());
        }
    }

    fn pop(&mut self) -> Option<T> {
        let node = self.nodes.front()?;
        let queue = self.waiting.get_mut(node)?;
        let item = queue.pop_front();
        self.given += 1;
        if queue.is_empty() {
            self.waiting.remove(node);
            self.nodes.pop_front();
            self.given = 0;
        } else if self.given == NODE_TURN {
            self.nodes.rotate_left(1);
            self.given = 0;
        }
        item
    }

    fn remove(&mut self, node: &NodeName, is_it: impl Fn(&T) -> bool) -> Option<T> {
        let queue = self.waiting.get_mut(node)?;
        let item = queue.iter().position(is_it).and_then(|index| queue.remove(index));
        if queue.is_empty() {
            self.waiting.remove(node);
            if self.nodes.front() == Some(node) {
                self.given = 0;
            }
            self.nodes.retain(|other| other != node);
        }
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(queue: &mut FairQueue<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn nodes_take_turns_and_each_keeps_its_order() {
        let mut queue = FairQueue::default();
        let (a, b) = (NodeName::from("a"), NodeName::from("b"));
        for item in ["a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9"] {
            queue.push(&a, false, item);
        }
        for item in ["b1", "b2", "b3", "b4", "b5"] {
            queue.push(&b, false, item);
        }
        let (first, second) = (["a1", "a2", "a3", "a4"], ["b1", "b2", "b3", "b4"]);
        let rest = ["a5", "a6", "a7", "a8", "b5", "a9"];
        assert_eq!(all(&mut queue), [&first[..], &second, &rest].concat());
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn a_turn_that_ends_early_is_not_added_to_the_next_ones() {
        let mut queue = FairQueue::default();
        let (a, b) = (NodeName::from("a"), NodeName::from("b"));
        queue.push(&a, false, "a1");
        for item in ["b1", "b2", "b3", "b4", "b5"] {
            queue.push(&b, false, item);
        }
        assert_eq!(queue.pop(), Some("a1"));
        queue.push(&a, false, "a2");
        assert_eq!(all(&mut queue), ["b1", "b2", "b3", "b4", "a2", "b5"]);
    }

    #[test]
    fn first_attempts_come_first_and_every_fourth_item_is_a_retry() {
        let mut queue = FairQueue::default();
        let node = NodeName::from("a");
        for item in ["r1", "r2", "r3"] {
            queue.push(&node, true, item);
        }
        for item in ["f1", "f2", "f3", "f4"] {
            queue.push(&node, false, item);
        }
        assert_eq!(all(&mut queue), ["f1", "f2", "f3", "r1", "f4", "r2", "r3"]);
    }

    #[test]
    fn a_node_that_comes_back_queues_behind_the_others() {
        let mut queue = FairQueue::default();
        let (a, b) = (NodeName::from("a"), NodeName::from("b"));
        queue.push(&a, false, "a1");
        assert_eq!(queue.pop(), Some("a1"));
        queue.push(&b, false, "b1");
        queue.push(&a, false, "a2");
        assert_eq!(all(&mut queue), ["b1", "a2"]);
    }

    #[test]
    fn removing_items_does_not_change_the_turns_of_others() {
        let mut queue = FairQueue::default();
        let (a, b) = (NodeName::from("a"), NodeName::from("b"));
        queue.push(&a, false, "a1");
        queue.push(&a, true, "a2");
        queue.push(&b, false, "b1");
        queue.push(&b, false, "b2");
        assert_eq!(queue.remove(&a, |item| *item == "b1"), None, "it is another node's");
        assert_eq!(queue.remove(&a, |item| *item == "a1"), Some("a1"));
        assert_eq!(queue.remove(&b, |item| *item == "b1"), Some("b1"));
        assert!(!queue.is_empty());
        assert_eq!(all(&mut queue), ["b2", "a2"]);
        assert!(queue.is_empty());
    }

    #[test]
    fn namespaces_take_turns_and_within_one_the_nodes_do() {
        let mut queue = ByNamespace::default();
        let (large, small) = (Arc::from("large"), Arc::from("small"));
        let (a, b) = (NodeName::from("a"), NodeName::from("b"));
        for item in ["l1", "l2", "l3", "l4", "l5"] {
            queue.push(&large, &a, false, item);
        }
        queue.push(&large, &b, false, "other");
        for item in ["s1", "s2", "s3"] {
            queue.push(&small, &a, false, item);
        }
        assert_eq!(queue.len(), 9);
        assert_eq!(queue.remove(&large, &b, |item| *item == "s2"), None, "it is another one's");
        assert_eq!(queue.remove(&small, &a, |item| *item == "s2"), Some("s2"));
        let all: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(all, ["l1", "s1", "l2", "s3", "l3", "l4", "other", "l5"]);
        assert_eq!(queue.len(), 0);
        // A namespace that was emptied by removals has one turn, not two.
        queue.push(&small, &a, false, "s4");
        queue.remove(&small, &a, |_| true);
        for item in ["s5", "s6"] {
            queue.push(&small, &a, false, item);
        }
        queue.push(&large, &a, false, "l6");
        let all: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(all, ["s5", "l6", "s6"]);
    }

    #[test]
    fn namespaces_whose_items_were_removed_take_no_memory() {
        let mut queue = ByNamespace::default();
        let node = NodeName::from("a");
        queue.push(&Arc::from("held"), &node, false, "held");
        for number in 0..1_000 {
            let namespace = Arc::from(format!("n{number}"));
            queue.push(&namespace, &node, false, "x");
            assert_eq!(queue.remove(&namespace, &node, |_| true), Some("x"));
        }
        assert_eq!((queue.turns.len(), queue.waiting.len(), queue.len()), (1, 1, 1));
        assert_eq!((queue.pop(), queue.pop()), (Some("held"), None));
    }
}
