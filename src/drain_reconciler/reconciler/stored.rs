//! Reads and writes nodes and their pods; in a dry run, writes are kept in memory, and read back.

use super::DrainReconciler;
use crate::cluster::watch::Source;
use crate::cluster::{NodeDrainPatch, RequestError, StoredNode};
use crate::informer::NodeListener;
use crate::model::{DrainPod, Node, NodeName};

impl DrainReconciler {
    /// The pods of a node that were not evicted.
    pub(super) async fn list_pods_on(
        &self,
        name: &NodeName,
    ) -> Result<Vec<DrainPod>, RequestError> {
        let pods = self.api.list_pods_on(name).await?;
        Ok(match &self.facts.unwritten {
            Some(unwritten) => unwritten.remaining(name, pods),
            None => pods,
        })
    }

    pub(super) async fn patch_node(
        &self,
        stored: &StoredNode,
        patch: &NodeDrainPatch,
    ) -> Result<StoredNode, RequestError> {
        match &self.facts.unwritten {
            Some(unwritten) => Ok(self.seen(stored, unwritten.patch(&stored.node, patch))),
            None => self.api.patch_node_drain(stored, patch, &self.drains.watched()).await,
        }
    }

    pub(super) async fn mark_scheduled(
        &self,
        stored: &StoredNode,
        scheduled: bool,
        message: &str,
    ) -> Result<StoredNode, RequestError> {
        match &self.facts.unwritten {
            Some(unwritten) => Ok(self.seen(stored, unwritten.mark(&stored.node, scheduled))),
            None => {
                let (now, watched) = (self.facts.clock.now(), &self.drains.watched());
                self.api.mark_scheduled(stored, scheduled, message, now, watched).await
            }
        }
    }

    /// Takes in a node as if the watch had shown it.
    fn seen(&self, stored: &StoredNode, node: Node) -> StoredNode {
        self.drains.see(&node, self.facts.clock.now());
        self.facts.store_node(node.clone(), Source::Watch, true);
        self.schedule.node_changed(&node.name);
        StoredNode { node, ..stored.clone() }
    }
}
