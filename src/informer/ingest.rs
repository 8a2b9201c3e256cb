//! Stores watched objects in the view and queues relevant changes.

use std::sync::Arc;

use ahash::AHashSet;
use bytes::Bytes;
use jiff::Timestamp;

use super::unread::Unread;
use super::{Facts, WorkQueues};
use crate::cluster::watch::{Index, Source};
use crate::cluster::{
    DecodeError, MarkAuthor, Metrics, NodeSeen, PodDecoder, PodFacts, PodSeen, Watched, Zones,
    decode_node, other_mark_author, read_node,
};
use crate::model::{Disruption, Node, NodeName, Pod, PodRef, Uid};

/// Who has to know of every version of a node, in order: where drain policies are configured, the drains.
pub(crate) trait NodeListener: Send + Sync {
    /// What it has to have read of a node.
    fn watched(&self) -> Arc<Watched>;
    /// Takes in a version of a node, before it is stored.
    fn see(&self, node: &Node, now: Timestamp);
    /// Takes in that a node is gone.
    fn gone(&self, node: &Node, now: Timestamp);
}

/// Who has to know of pods that others evict.
pub(crate) trait PodListener: Send + Sync {
    /// The condition of an eviction for taints has appeared on a pod of a tainted node, and another client
    /// wrote it.
    fn marked(&self, pod: &PodRef, author: &MarkAuthor);
}

/// Who has to know of pods that are deleted, and of what happens to pods of tainted nodes.
pub(crate) trait DeletionListener: Send + Sync {
    /// Takes in a version of a pod before it is stored; `before` is the one that is stored, if there is one.
    fn seen(&self, before: Option<&PodFacts>, pod: &Pod, object: &Bytes);
    /// Takes in that a pod is gone, before it is removed.
    fn gone(&self, before: &PodFacts);
}

/// Where watched objects go: into the facts, and their names into the work queues.
#[derive(Clone)]
pub(crate) struct Ingest {
    pub facts: Arc<Facts>,
    pub queues: Arc<WorkQueues>,
    pub listener: Option<Arc<dyn NodeListener>>,
    pub pod_listener: Arc<dyn PodListener>,
    /// In a dry run, who compares.
    pub deletions: Option<Arc<dyn DeletionListener>>,
}

/// Takes nodes in.
pub(crate) struct Nodes {
    ingest: Ingest,
    zones: Zones,
    unread: Unread,
}

/// Takes pods in.
pub(crate) struct Pods {
    ingest: Ingest,
    decoder: PodDecoder,
    unread: Unread,
}

impl Nodes {
    /// Nodes whose zones are named by this label.
    pub(crate) fn new(ingest: Ingest, metrics: Metrics, zone_label: Arc<str>) -> Self {
        let zones = Zones::by(zone_label);
        Self { ingest, zones, unread: Unread::new(metrics, Self::RESOURCE) }
    }
}

impl Pods {
    pub(crate) fn new(ingest: Ingest, metrics: Metrics) -> Self {
        let decoder = PodDecoder::default();
        Self { ingest, decoder, unread: Unread::new(metrics, Self::RESOURCE) }
    }
}

impl Index for Nodes {
    const RESOURCE: &str = "nodes";
    const KIND: &str = "Node";
    const SELECT: &str = "";

    fn apply(&mut self, object: &Bytes, by: Source) -> Result<Uid, DecodeError> {
        let watched = self.ingest.listener.as_ref().map(|listener| listener.watched());
        let (mut node, flaws) = read_node(object, watched.as_deref())?;
        node.zone = self.zones.read(object);
        let uid = node.uid;
        self.unread.see(uid, &node.name, &flaws);
        self.ingest.take_node(node, by);
        Ok(uid)
    }

    fn delete(&mut self, object: &Bytes) -> Result<(), DecodeError> {
        let node = decode_node(object)?;
        self.unread.forget(node.uid);
        self.ingest.drop_node(&node.name, node.uid);
        Ok(())
    }

    fn forget(&mut self, uid: Uid) {
        self.unread.forget(uid);
        if let Some(name) = self.ingest.facts.view.node_with(uid) {
            self.ingest.drop_node(&name, uid);
        }
    }

    fn retain(&mut self, seen: &AHashSet<Uid>) {
        let mut gone = self.ingest.facts.view.nodes_other_than(seen);
        gone.sort_unstable();
        for (name, uid) in gone {
            self.ingest.drop_node(&name, uid);
        }
        self.unread.retain(seen);
    }

    fn is_empty(&self) -> bool {
        self.ingest.facts.view.counts().0 == 0
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
        self.ingest.see_mark(&pod, object);
        self.ingest.see_deletion(&pod, object);
        self.ingest.take_pod(pod);
        Ok(uid)
    }

    fn delete(&mut self, object: &Bytes) -> Result<(), DecodeError> {
        if let Some(pod) = self.decoder.decode(object)? {
            self.unread.forget(pod.uid);
            self.ingest.see_deletion(&pod, object);
            if self.ingest.deletions.is_some() {
                // What was seen of its deletion must not be seen once more.
                self.ingest.facts.store_pod(pod.clone());
            }
            self.ingest.drop_pod(&pod.node, pod.uid);
        }
        Ok(())
    }

    fn forget(&mut self, uid: Uid) {
        self.unread.forget(uid);
        if let Some(node) = self.ingest.facts.view.node_of_pod(uid) {
            self.ingest.drop_pod(&node, uid);
        }
    }

    fn retain(&mut self, seen: &AHashSet<Uid>) {
        self.ingest.retain_pods(seen);
        self.unread.retain(seen);
        self.decoder.prune();
    }

    fn is_empty(&self) -> bool {
        self.ingest.facts.view.counts().1 == 0
    }
}

impl Ingest {
    /// Takes in a version of a node.
    pub(crate) fn take_node(&self, mut node: Node, by: Source) {
        let name = node.name.clone();
        self.facts.see_node(&mut node);
        if let Some(listener) = &self.listener {
            listener.see(&node, self.facts.clock.now());
        }
        if self.facts.store_node(node, by, self.queues.leads()) == NodeSeen::Changed {
            self.queues.node_written(name);
        }
    }

    /// Takes in that a node is gone.
    pub(crate) fn drop_node(&self, name: &NodeName, uid: Uid) {
        let view = &self.facts.view;
        let before = view.node_alone(name).filter(|(node, _)| node.uid == uid);
        if view.remove_node(name, uid) == NodeSeen::Changed {
            self.queues.node_changed(name.clone());
        }
        if let Some(unwritten) = self.facts.unwritten.as_ref().filter(|_| before.is_some()) {
            unwritten.forget(name);
        }
        if let (Some(listener), Some((node, _))) = (&self.listener, before) {
            listener.gone(&node, self.facts.clock.now());
            self.queues.node_changed(name.clone());
        }
    }

    /// Reports who wrote the condition that this version of a pod has, if it is of an eviction for taints,
    /// the version before did not have it, and it was another client. Only then is it read who did.
    fn see_mark(&self, pod: &Pod, object: &Bytes) {
        if pod.disruption != Disruption::ByTaint || !self.queues.leads() {
            return;
        }
        let Some(before) = self.facts.view.pod(&pod.node, pod.uid) else { return };
        let is_tainted = before.node.is_some_and(|node| !node.taints.is_empty());
        if is_tainted
            && before.pod.disruption != Disruption::ByTaint
            && let Some(author) = other_mark_author(object)
        {
            self.pod_listener.marked(&pod.reference(), &author);
        }
    }

    fn see_deletion(&self, pod: &Pod, object: &Bytes) {
        if let Some(listener) = &self.deletions {
            let before = self.facts.view.pod(&pod.node, pod.uid);
            listener.seen(before.as_ref(), pod, object);
        }
    }

    /// Takes in a version of a pod.
    pub(crate) fn take_pod(&self, pod: Pod) {
        let (node, uid) = (pod.node.clone(), pod.uid);
        if self.facts.store_pod(pod) == PodSeen::Changed {
            self.queues.pod_changed(node, uid);
        }
    }

    /// Takes in that a pod is gone.
    pub(crate) fn drop_pod(&self, node: &NodeName, uid: Uid) {
        if let Some(listener) = &self.deletions
            && let Some(before) = self.facts.view.pod(node, uid)
        {
            listener.gone(&before);
        }
        self.facts.view.remove_pod(node, uid);
        self.queues.pod_changed(node.clone(), uid);
    }

    /// Takes in that all pods but these are gone.
    pub(crate) fn retain_pods(&self, seen: &AHashSet<Uid>) {
        let mut gone = self.facts.view.pods_other_than(seen);
        gone.sort_unstable();
        for (node, uid) in gone {
            self.drop_pod(&node, uid);
        }
    }
}
