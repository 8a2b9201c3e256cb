//! From the watches into the view, and on into the queues what matters.

use std::sync::Arc;

use ahash::AHashSet;

use super::state::Shared;
use crate::cluster::watch::{Index, Source};
use crate::cluster::{DecodeError, Metrics, NodeSeen, PodDecoder, PodSeen, decode_node};
use crate::model::{Anchors, Node, Uid};
use crate::taint::{anchor, record};

/// Takes nodes in.
pub(super) struct Nodes {
    pub shared: Arc<Shared>,
    pub metrics: Metrics,
}

/// Takes pods in.
pub(super) struct Pods {
    pub shared: Arc<Shared>,
    pub metrics: Metrics,
    pub decoder: PodDecoder,
}

impl Index for Nodes {
    const RESOURCE: &str = "nodes";
    const SELECT: &str = "";

    fn apply(&mut self, json: &str, by: Source) -> Result<Uid, DecodeError> {
        let node = decode_node(json)?;
        let (name, uid) = (node.name.clone(), node.uid);
        let now = self.shared.clock.now();
        let advance = |before: Option<&Anchors>, node: &Node| match (before, by) {
            (Some(before), Source::Watch) => {
                anchor::advance(anchor::Past::Watched(before), node, now)
            }
            (Some(before), Source::List) => {
                anchor::advance(anchor::Past::Recorded(before), node, now)
            }
            (None, _) => {
                // A record that cannot be read is reported and replaced by the record lane.
                let text = node.since_annotation.as_deref();
                let recorded = text.and_then(|text| record::parse(text).ok());
                anchor::advance(anchor::Past::recorded(recorded.as_ref()), node, now)
            }
        };
        if self.shared.view.apply_node(node, advance) == NodeSeen::Changed {
            self.shared.node_changed(name);
        }
        Ok(uid)
    }

    fn delete(&mut self, json: &str) -> Result<(), DecodeError> {
        let node = decode_node(json)?;
        if self.shared.view.remove_node(&node.name, node.uid) == NodeSeen::Changed {
            self.shared.node_changed(node.name);
        }
        Ok(())
    }

    fn retain(&mut self, seen: &AHashSet<Uid>) {
        for (name, uid) in self.shared.view.nodes_other_than(seen) {
            if self.shared.view.remove_node(&name, uid) == NodeSeen::Changed {
                self.shared.node_changed(name);
            }
        }
        self.metrics.set_objects(Self::RESOURCE, self.shared.view.counts().0);
    }

    fn connected(&mut self, yes: bool) {
        self.shared.set_nodes_current(yes);
    }
}

impl Index for Pods {
    const RESOURCE: &str = "pods";
    /// Only pods that are bound to a node.
    const SELECT: &str = "&fieldSelector=spec.nodeName!%3D";

    fn apply(&mut self, json: &str, _: Source) -> Result<Uid, DecodeError> {
        let Some(pod) = self.decoder.decode(json)? else {
            return Err(DecodeError {
                object: "pod".to_owned(),
                uid: None,
                reason: "it is not bound to a node, although only such were asked for".to_owned(),
            });
        };
        let (node, uid) = (pod.node.clone(), pod.uid);
        if self.shared.view.apply_pod(pod) == PodSeen::Changed {
            self.shared.pod_changed(node, uid);
        }
        Ok(uid)
    }

    fn delete(&mut self, json: &str) -> Result<(), DecodeError> {
        if let Some(pod) = self.decoder.decode(json)? {
            self.shared.view.remove_pod(&pod.node, pod.uid);
            self.shared.pod_changed(pod.node, pod.uid);
        }
        Ok(())
    }

    fn retain(&mut self, seen: &AHashSet<Uid>) {
        for (node, uid) in self.shared.view.pods_other_than(seen) {
            self.shared.view.remove_pod(&node, uid);
            self.shared.pod_changed(node, uid);
        }
        self.decoder.prune();
        self.metrics.set_objects(Self::RESOURCE, self.shared.view.counts().1);
    }

    fn connected(&mut self, _: bool) {}
}
