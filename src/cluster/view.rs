//! The view: the newest facts about nodes and pods from the watches.
//!
//! One entry per node holds the node and its pods, so that a node's taints and its pods are always read
//! and written together. This makes "store the taints, then list the pods" safe: a pod that is missing
//! from the list when a node is evaluated is inserted later, sees the taints stored by then, and is
//! evaluated itself.
//!
//! Most updates contain nothing new (heartbeats, container statuses). They do not replace the stored
//! facts, so that they neither allocate nor move memory.
//!
//! No guard of the map leaves this module; everything handed out is a shared copy.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use ahash::{AHashSet, RandomState};
use dashmap::DashMap;
use dashmap::mapref::one::RefMut;

use crate::model::{Anchors, Node, NodeName, Pod, Uid, Version};
use crate::taint::inputs;

/// The newest known facts of all nodes and of all pods that are bound to one.
#[derive(Debug, Default)]
pub struct View {
    nodes: DashMap<NodeName, Entry, RandomState>,
    /// The anchors of all nodes that have none.
    no_anchors: Arc<Anchors>,
}

#[derive(Debug)]
struct Entry {
    /// Absent while pods are known of a node that is not.
    node: Option<Arc<Node>>,
    /// The newest version of the node that came in. That of `node` is older if nothing that is kept
    /// of it has changed since.
    version: Option<Version>,
    anchors: Arc<Anchors>,
    pods: HashSet<ByUid, BuildHasherDefault<Fold>>,
}

/// A pod in a set in which its UID finds it: a map would hold each UID twice.
#[derive(Debug)]
struct ByUid(Arc<Pod>);

impl Borrow<Uid> for ByUid {
    fn borrow(&self) -> &Uid {
        &self.0.uid
    }
}

impl Hash for ByUid {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.uid.hash(state);
    }
}

impl PartialEq for ByUid {
    fn eq(&self, other: &Self) -> bool {
        self.0.uid == other.0.uid
    }
}

impl Eq for ByUid {}

/// A UID is random already, and the API server's own choice: folded, it is its hash. A seed for
/// each node's set would cost more than it protects.
#[derive(Debug, Default)]
struct Fold(u64);

impl Hasher for Fold {
    #[allow(clippy::cast_possible_truncation)] // Both halves are used.
    fn write_u128(&mut self, uid: u128) {
        self.0 = uid as u64 ^ (uid >> 64) as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A node with all its pods.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// The node; absent if only its pods are known.
    pub node: Option<Arc<Node>>,
    /// The newest version of the node that came in: all of this is known up to it.
    pub version: Option<Version>,
    /// When its taints began.
    pub anchors: Arc<Anchors>,
    /// Its pods, in no order.
    pub pods: Vec<Arc<Pod>>,
}

/// How far a node is known.
#[derive(Clone, Debug)]
pub struct NodeVersion {
    uid: Uid,
    version: Option<Version>,
    /// When its taints began, by all its versions up to this one.
    pub anchors: Arc<Anchors>,
}

impl NodeVersion {
    /// Whether everything is known that has become of the node up to this version of it.
    pub fn knows(&self, node: &Node) -> bool {
        let is_behind = match (&self.version, &node.version) {
            (Some(own), Some(newer)) => own.is_behind(newer),
            (own, newer) => own != newer,
        };
        self.uid == node.uid && !is_behind
    }
}

/// A pod with its node.
#[derive(Clone, Debug)]
pub struct PodFacts {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Its node; absent if it is not known.
    pub node: Option<Arc<Node>>,
    /// When the node's taints began.
    pub anchors: Arc<Anchors>,
}

/// What a new version of a node changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeSeen {
    /// Nothing that a verdict or the record on the node depends on.
    Unimportant,
    /// Something that they do.
    Changed,
}

/// What a new version of a pod changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodSeen {
    /// Nothing that a verdict depends on, or its node has no NoExecute taint.
    Unimportant,
    /// Its verdict may be another one now.
    Changed,
}

impl View {
    /// The entry of a node, made if there is none.
    fn entry(&self, name: &NodeName) -> RefMut<'_, NodeName, Entry> {
        if let Some(entry) = self.nodes.get_mut(name) {
            return entry;
        }
        self.nodes.entry(name.clone()).or_insert_with(|| Entry {
            node: None,
            version: None,
            anchors: Arc::clone(&self.no_anchors),
            pods: HashSet::default(),
        })
    }

    fn shared(&self, anchors: Anchors) -> Arc<Anchors> {
        if anchors == *self.no_anchors { Arc::clone(&self.no_anchors) } else { Arc::new(anchors) }
    }

    /// Stores a version of a node.
    ///
    /// `advance` computes when the taints began, from what was known before (`None` at the first
    /// sight of this node, or of a new node under an old name).
    pub fn apply_node(
        &self,
        mut node: Node,
        advance: impl FnOnce(Option<&Anchors>, &Node) -> Anchors,
    ) -> NodeSeen {
        let mut entry = self.entry(&node.name);
        let before = entry.node.take().filter(|before| before.uid == node.uid);
        let anchors = advance(before.as_ref().map(|_| &*entry.anchors), &node);
        let anchors_same = *entry.anchors == anchors;
        let is_alike = match &before {
            Some(before) => anchors_same && inputs::is_node_judged_alike(before, &node),
            // Pods are left of an earlier node of this name, or were seen first.
            None => entry.pods.is_empty() && !inputs::needs_decision(&node),
        };
        let seen = if is_alike { NodeSeen::Unimportant } else { NodeSeen::Changed };
        if !anchors_same {
            entry.anchors = self.shared(anchors);
        }
        entry.version.clone_from(&node.version);
        if let Some(before) = &before {
            node.version.clone_from(&before.version);
        }
        let unchanged = before.filter(|before| **before == node);
        node.version.clone_from(&entry.version);
        entry.node = Some(unchanged.unwrap_or_else(|| Arc::new(node)));
        seen
    }

    /// Computes anew when a node's taints began, without a new version of it. Returns whether
    /// anything changed.
    pub fn refresh_node(
        &self,
        name: &NodeName,
        advance: impl FnOnce(&Anchors, &Node) -> Anchors,
    ) -> bool {
        let Some(mut entry) = self.nodes.get_mut(name) else {
            return false;
        };
        let Some(node) = entry.node.clone() else {
            return false;
        };
        let anchors = advance(&entry.anchors, &node);
        let changed = *entry.anchors != anchors;
        if changed {
            entry.anchors = self.shared(anchors);
        }
        changed
    }

    /// Forgets a node, if it is still the one with this UID; its pods stay known until they are
    /// removed themselves.
    pub fn remove_node(&self, name: &NodeName, uid: Uid) -> NodeSeen {
        let Some(mut entry) = self.nodes.get_mut(name) else {
            return NodeSeen::Unimportant;
        };
        if entry.node.as_ref().is_none_or(|node| node.uid != uid) {
            return NodeSeen::Unimportant;
        }
        entry.node = None;
        entry.version = None;
        entry.anchors = Arc::clone(&self.no_anchors);
        let empty = entry.pods.is_empty();
        drop(entry);
        if empty {
            self.remove_if_empty(name);
            return NodeSeen::Unimportant;
        }
        NodeSeen::Changed
    }

    /// Stores a version of a pod.
    pub fn apply_pod(&self, pod: Pod) -> PodSeen {
        let mut entry = self.entry(&pod.node);
        let tainted = entry.node.as_ref().is_some_and(|node| !node.taints.is_empty());
        let mut judged_alike = false;
        if let Some(ByUid(before)) = entry.pods.get(&pod.uid) {
            if **before == pod {
                return PodSeen::Unimportant;
            }
            judged_alike = inputs::is_pod_judged_alike(before, &pod);
        }
        entry.pods.replace(ByUid(Arc::new(pod)));
        if tainted && !judged_alike { PodSeen::Changed } else { PodSeen::Unimportant }
    }

    /// Forgets a pod. Returns whether it was known.
    pub fn remove_pod(&self, node: &NodeName, uid: Uid) -> bool {
        let Some(mut entry) = self.nodes.get_mut(node) else {
            return false;
        };
        let known = entry.pods.remove(&uid);
        let empty = entry.pods.is_empty() && entry.node.is_none();
        drop(entry);
        if empty {
            self.remove_if_empty(node);
        }
        known
    }

    /// A node with its pods, or `None` if neither is known.
    pub fn node(&self, name: &NodeName) -> Option<NodeFacts> {
        self.nodes.get(name).map(|entry| NodeFacts {
            node: entry.node.clone(),
            version: entry.version.clone(),
            anchors: Arc::clone(&entry.anchors),
            pods: entry.pods.iter().map(|ByUid(pod)| Arc::clone(pod)).collect(),
        })
    }

    /// A node without its pods, and when its taints began; `None` if the node itself is not known.
    pub fn node_alone(&self, name: &NodeName) -> Option<(Arc<Node>, Arc<Anchors>)> {
        let entry = self.nodes.get(name)?;
        Some((entry.node.clone()?, Arc::clone(&entry.anchors)))
    }

    /// How far a node is known; `None` if it is not known at all.
    pub fn node_version(&self, name: &NodeName) -> Option<NodeVersion> {
        let entry = self.nodes.get(name)?;
        Some(NodeVersion {
            uid: entry.node.as_ref()?.uid,
            version: entry.version.clone(),
            anchors: Arc::clone(&entry.anchors),
        })
    }

    /// A pod with its node, or `None` if that pod is not known on that node.
    pub fn pod(&self, node: &NodeName, uid: Uid) -> Option<PodFacts> {
        self.nodes.get(node).and_then(|entry| {
            entry.pods.get(&uid).map(|ByUid(pod)| PodFacts {
                pod: Arc::clone(pod),
                node: entry.node.clone(),
                anchors: Arc::clone(&entry.anchors),
            })
        })
    }

    /// Nodes whose UID is not in `seen`: after a complete list, those that are gone.
    pub fn nodes_other_than(&self, seen: &AHashSet<Uid>) -> Vec<(NodeName, Uid)> {
        self.nodes
            .iter()
            .filter_map(|entry| entry.node.as_ref().map(|node| (entry.key().clone(), node.uid)))
            .filter(|(_, uid)| !seen.contains(uid))
            .collect()
    }

    /// Pods whose UID is not in `seen`: after a complete list, those that are gone.
    pub fn pods_other_than(&self, seen: &AHashSet<Uid>) -> Vec<(NodeName, Uid)> {
        self.nodes
            .iter()
            .flat_map(|entry| {
                let node = entry.key().clone();
                let uids = entry.pods.iter().map(|ByUid(pod)| pod.uid);
                let gone = uids.filter(|uid| !seen.contains(uid));
                gone.map(|uid| (node.clone(), uid)).collect::<Vec<_>>()
            })
            .collect()
    }

    /// The name of the node with this UID. Looks at all nodes.
    pub fn node_with(&self, uid: Uid) -> Option<NodeName> {
        let is_it = |entry: &Entry| entry.node.as_ref().is_some_and(|node| node.uid == uid);
        self.nodes.iter().find(|entry| is_it(entry)).map(|entry| entry.key().clone())
    }

    /// The name of the node that the pod with this UID is bound to. Looks at all nodes.
    pub fn node_of_pod(&self, uid: Uid) -> Option<NodeName> {
        let entry = self.nodes.iter().find(|entry| entry.pods.contains(&uid))?;
        Some(entry.key().clone())
    }

    /// Names of all nodes that are known, or of which pods are.
    pub fn node_names(&self) -> Vec<NodeName> {
        self.nodes.iter().map(|entry| entry.key().clone()).collect()
    }

    /// Hands each known node to `look`, in no order.
    pub fn each_node(&self, mut look: impl FnMut(&Node)) {
        for entry in &self.nodes {
            if let Some(node) = &entry.node {
                look(node);
            }
        }
    }

    /// Numbers of known nodes and pods.
    pub fn counts(&self) -> (usize, usize) {
        self.nodes.iter().fold((0, 0), |(nodes, pods), entry| {
            (nodes + usize::from(entry.node.is_some()), pods + entry.pods.len())
        })
    }

    fn remove_if_empty(&self, name: &NodeName) {
        self.nodes.remove_if(name, |_, entry| entry.node.is_none() && entry.pods.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ConditionStatus, Disruption, Effect, PodClass, Ready, Stamp, Taint};

    fn node(uid: u128, taints: &[&str]) -> Node {
        Node {
            name: "n1".into(),
            uid: Uid(uid),
            version: None,
            created: None,
            taints: taints
                .iter()
                .map(|key| Taint {
                    key: Arc::from(*key),
                    value: Arc::from(""),
                    effect: Effect::NoExecute,
                    time_added: None,
                })
                .collect(),
            ready: Ready { status: ConditionStatus::True, since: None },
            since_annotation: None,
            zone: None,
            drain_facts: None,
        }
    }

    fn pod(uid: u128) -> Pod {
        Pod {
            uid: Uid(uid),
            namespace: Arc::from("shop"),
            name: Arc::from("web-0"),
            node: "n1".into(),
            tolerations: Arc::from([]),
            bound: Stamp::exact("2026-01-01T12:00:00Z".parse().unwrap()),
            class: PodClass::Ordinary,
            disruption: Disruption::None,
            generation: 1,
        }
    }

    fn same(before: Option<&Anchors>, _: &Node) -> Anchors {
        before.cloned().unwrap_or_default()
    }

    #[test]
    fn only_changed_taints_and_records_make_a_node_worth_a_look() {
        let view = View::default();
        assert_eq!(view.apply_node(node(1, &[]), same), NodeSeen::Unimportant);
        assert_eq!(view.apply_node(node(1, &["a"]), same), NodeSeen::Changed);
        assert_eq!(view.apply_node(node(1, &["a"]), same), NodeSeen::Unimportant);
        let mut annotated = node(1, &["a"]);
        annotated.since_annotation = Some(Arc::from("{}"));
        assert_eq!(view.apply_node(annotated, same), NodeSeen::Changed);
        assert_eq!(view.apply_node(node(1, &[]), same), NodeSeen::Changed);
    }

    #[test]
    fn a_pod_is_worth_a_look_only_on_a_tainted_node_and_only_when_it_changed() {
        let view = View::default();
        assert_eq!(view.apply_pod(pod(7)), PodSeen::Unimportant);
        assert_eq!(view.apply_node(node(1, &["a"]), same), NodeSeen::Changed);
        assert_eq!(view.apply_pod(pod(7)), PodSeen::Unimportant);
        let terminating = Pod { class: PodClass::Terminating, ..pod(7) };
        assert_eq!(view.apply_pod(terminating), PodSeen::Changed);
        let marked = Pod { disruption: Disruption::ByTaint, generation: 2, ..pod(8) };
        assert_eq!(view.apply_pod(pod(8)), PodSeen::Changed);
        assert_eq!(view.apply_pod(marked), PodSeen::Unimportant);
    }

    #[test]
    fn a_version_that_says_nothing_new_leaves_what_is_stored_as_it_is() {
        let view = View::default();
        let name = NodeName::from("n1");
        view.apply_node(node(1, &["a"]), same);
        view.apply_pod(pod(7));
        let before = view.node(&name).unwrap();
        view.apply_node(node(1, &["a"]), same);
        view.apply_pod(pod(7));
        let after = view.node(&name).unwrap();
        assert!(Arc::ptr_eq(&before.node.unwrap(), &after.node.unwrap()));
        assert!(Arc::ptr_eq(&before.anchors, &after.anchors));
        assert!(Arc::ptr_eq(&before.pods[0], &after.pods[0]));
        // What no verdict depends on, but a request does, is stored all the same.
        view.apply_pod(Pod { disruption: Disruption::ByTaint, generation: 2, ..pod(7) });
        let stored = view.pod(&name, Uid(7)).unwrap().pod;
        assert_eq!((stored.disruption, stored.generation), (Disruption::ByTaint, 2));
        let ready = Ready { status: ConditionStatus::False, since: None };
        view.apply_node(Node { ready, ..node(1, &["a"]) }, same);
        assert_eq!(view.node(&name).unwrap().node.unwrap().ready, ready);
    }

    #[test]
    fn pods_outlive_their_node_and_meet_the_one_that_returns() {
        let view = View::default();
        let name = NodeName::from("n1");
        view.apply_node(node(1, &["a"]), same);
        view.apply_pod(pod(7));
        assert_eq!(view.remove_node(&name, Uid(2)), NodeSeen::Unimportant, "not that node");
        assert!(view.node(&name).unwrap().node.is_some());
        assert_eq!(view.remove_node(&name, Uid(1)), NodeSeen::Changed);
        assert!(view.pod(&name, Uid(7)).unwrap().node.is_none());
        let anchors = |before: Option<&Anchors>, _: &Node| {
            assert!(before.is_none(), "the new node knows nothing of the old one");
            Anchors::default()
        };
        assert_eq!(view.apply_node(node(2, &["a"]), anchors), NodeSeen::Changed);
        assert_eq!(view.node(&name).unwrap().pods.len(), 1);
    }

    #[test]
    fn a_new_untainted_node_under_an_old_name_is_worth_a_look() {
        let view = View::default();
        view.apply_node(node(1, &["a"]), same);
        view.apply_pod(pod(7));
        assert_eq!(view.apply_node(node(2, &[]), same), NodeSeen::Changed);
    }

    #[test]
    fn pods_of_one_name_are_told_apart_by_uid() {
        let view = View::default();
        let name = NodeName::from("n1");
        view.apply_pod(pod(7));
        view.apply_pod(pod(8));
        assert!(view.remove_pod(&name, Uid(7)));
        assert!(!view.remove_pod(&name, Uid(7)));
        assert!(view.pod(&name, Uid(7)).is_none());
        assert!(view.pod(&name, Uid(8)).is_some());
    }

    #[test]
    fn what_a_complete_list_lacks_is_named_and_empty_entries_go() {
        let view = View::default();
        let name = NodeName::from("n1");
        view.apply_node(node(1, &[]), same);
        view.apply_pod(pod(7));
        view.apply_pod(pod(8));
        let seen = AHashSet::from_iter([Uid(8)]);
        assert_eq!(view.pods_other_than(&seen), vec![(name.clone(), Uid(7))]);
        assert_eq!(view.nodes_other_than(&seen), vec![(name.clone(), Uid(1))]);
        assert_eq!(view.counts(), (1, 2));
        assert_eq!((view.node_with(Uid(1)), view.node_with(Uid(7))), (Some(name.clone()), None));
        assert_eq!(
            (view.node_of_pod(Uid(7)), view.node_of_pod(Uid(1))),
            (Some(name.clone()), None)
        );
        view.remove_node(&name, Uid(1));
        view.remove_pod(&name, Uid(7));
        view.remove_pod(&name, Uid(8));
        assert!(view.node_names().is_empty());
    }
}
