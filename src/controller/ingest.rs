//! Stores watched objects in the view and queues relevant changes.

use std::sync::Arc;

use ahash::AHashSet;
use bytes::Bytes;
use jiff::Timestamp;

mod rates;
mod unread;

pub(super) use rates::Rates;

use self::unread::Unread;
use super::state::Shared;
use crate::cluster::watch::{Index, Source};
use crate::cluster::{DecodeError, Metrics, NodeSeen, PodDecoder, PodSeen, decode_node, read_node};
use crate::model::{Anchors, Node, NodeName, Pod, Uid};
use crate::taint::anchor::{self, Past};
use crate::taint::record;

/// Takes nodes in.
pub(super) struct Nodes {
    shared: Arc<Shared>,
    unread: Unread,
}

/// Takes pods in.
pub(super) struct Pods {
    shared: Arc<Shared>,
    decoder: PodDecoder,
    unread: Unread,
}

impl Nodes {
    pub(super) fn new(shared: Arc<Shared>, metrics: Metrics) -> Self {
        Self { shared, unread: Unread::new(metrics, Self::RESOURCE) }
    }
}

impl Pods {
    pub(super) fn new(shared: Arc<Shared>, metrics: Metrics) -> Self {
        let decoder = PodDecoder::default();
        Self { shared, decoder, unread: Unread::new(metrics, Self::RESOURCE) }
    }
}

impl Index for Nodes {
    const RESOURCE: &str = "nodes";
    const KIND: &str = "Node";
    const SELECT: &str = "";

    fn apply(&mut self, object: &Bytes, by: Source) -> Result<Uid, DecodeError> {
        let watched = self.shared.drains.as_ref().map(|drains| &*drains.watched);
        let (node, flaws) = read_node(object, watched)?;
        let uid = node.uid;
        self.unread.see(uid, &node.name, &flaws);
        take_node(&self.shared, node, by);
        Ok(uid)
    }

    fn delete(&mut self, object: &Bytes) -> Result<(), DecodeError> {
        let node = decode_node(object)?;
        self.unread.forget(node.uid);
        drop_node(&self.shared, &node.name, node.uid);
        Ok(())
    }

    fn forget(&mut self, uid: Uid) {
        self.unread.forget(uid);
        if let Some(name) = self.shared.view.node_with(uid) {
            drop_node(&self.shared, &name, uid);
        }
    }

    fn retain(&mut self, seen: &AHashSet<Uid>) {
        let mut gone = self.shared.view.nodes_other_than(seen);
        gone.sort_unstable();
        for (name, uid) in gone {
            drop_node(&self.shared, &name, uid);
        }
        self.unread.retain(seen);
    }

    fn is_empty(&self) -> bool {
        self.shared.view.counts().0 == 0
    }
}

impl Index for Pods {
    const RESOURCE: &str = "pods";
    const KIND: &str = "Pod";
    /// Only pods that are bound to a node.
    const SELECT: &str = "&fieldSelector=spec.nodeName!%3D";

    fn apply(&mut self, object: &Bytes, _: Source) -> Result<Uid, DecodeError> {
        let Some(pod) = self.decoder.decode(object)? else {
            return Err(DecodeError {
                object: "pod".to_owned(),
                uid: None,
                reason: "it is not bound to a node, although only such were asked for".to_owned(),
            });
        };
        let uid = pod.uid;
        self.unread.see(uid, &pod.reference(), self.decoder.flaws());
        take_pod(&self.shared, pod);
        Ok(uid)
    }

    fn delete(&mut self, object: &Bytes) -> Result<(), DecodeError> {
        if let Some(pod) = self.decoder.decode(object)? {
            self.unread.forget(pod.uid);
            drop_pod(&self.shared, &pod.node, pod.uid);
        }
        Ok(())
    }

    fn forget(&mut self, uid: Uid) {
        self.unread.forget(uid);
        if let Some(node) = self.shared.view.node_of_pod(uid) {
            drop_pod(&self.shared, &node, uid);
        }
    }

    fn retain(&mut self, seen: &AHashSet<Uid>) {
        retain_pods(&self.shared, seen);
        self.unread.retain(seen);
        self.decoder.prune();
    }

    fn is_empty(&self) -> bool {
        self.shared.view.counts().1 == 0
    }
}

/// Takes in a version of a node.
pub(super) fn take_node(shared: &Shared, mut node: Node, by: Source) {
    let name = node.name.clone();
    let now = shared.clock.now();
    shared.see_node(&mut node);
    let news = (!shared.leads()).then(|| new_record(shared, &node, now)).flatten();
    let advance = |before: Option<&Anchors>, node: &Node| match (before, &news, by) {
        (Some(before), Some(record), _) => {
            anchor::advance(Past::Recorded(&anchor::adopted(before, record)), node, now)
        }
        (Some(before), None, Source::Watch) => anchor::advance(Past::Watched(before), node, now),
        (Some(before), None, Source::List) => anchor::advance(Past::Recorded(before), node, now),
        (None, ..) => anchor::advance(Past::recorded(recorded(node, now).as_ref()), node, now),
    };
    if let Some(drains) = &shared.drains {
        drains.see(&node, shared.leads(), now);
    }
    if shared.view.apply_node(node, advance) == NodeSeen::Changed {
        shared.node_written(name);
    }
}

/// What the node's record says, as far as it can be believed. One that cannot be read is reported
/// and replaced by the record lane.
pub(super) fn recorded(node: &Node, now: Timestamp) -> Option<Anchors> {
    record::believed(node, now).ok().flatten()
}

/// What a version of a node says that the leader has recorded since the version before.
fn new_record(shared: &Shared, node: &Node, now: Timestamp) -> Option<Anchors> {
    let (before, _) = shared.view.node_alone(&node.name)?;
    let is_new = before.uid == node.uid && before.since_annotation != node.since_annotation;
    is_new.then(|| recorded(node, now)).flatten()
}

/// Takes in that a node is gone.
pub(super) fn drop_node(shared: &Shared, name: &NodeName, uid: Uid) {
    let before = shared.view.node_alone(name).filter(|(node, _)| node.uid == uid);
    if shared.view.remove_node(name, uid) == NodeSeen::Changed {
        shared.node_changed(name.clone());
    }
    if let (Some(drains), Some((node, _))) = (&shared.drains, before) {
        drains.gone(&node, shared.leads(), shared.clock.now());
        shared.node_changed(name.clone());
    }
}

/// Takes in a version of a pod.
pub(super) fn take_pod(shared: &Shared, mut pod: Pod) {
    shared.see_pod(&mut pod);
    let (node, uid) = (pod.node.clone(), pod.uid);
    if shared.view.apply_pod(pod) == PodSeen::Changed {
        shared.pod_changed(node, uid);
    }
}

/// Takes in that a pod is gone.
pub(super) fn drop_pod(shared: &Shared, node: &NodeName, uid: Uid) {
    shared.view.remove_pod(node, uid);
    shared.pod_changed(node.clone(), uid);
}

/// Takes in that all pods but these are gone.
pub(super) fn retain_pods(shared: &Shared, seen: &AHashSet<Uid>) {
    let mut gone = shared.view.pods_other_than(seen);
    gone.sort_unstable();
    for (node, uid) in gone {
        drop_pod(shared, &node, uid);
    }
}
