//! Which nodes there are, and in which zones: what limits and the breaker need to know.

use std::sync::Arc;

use ahash::AHashMap;

use crate::model::NodeName;

/// What is known of the cluster's nodes. Called under locks: must not block.
pub trait Topology: Send + Sync {
    /// The zone of a node; empty if the node has none, or is not known. Nodes without one form a zone.
    fn zone(&self, node: &NodeName) -> Arc<str>;

    /// Whether a node exists and has a NoExecute taint.
    fn is_tainted(&self, node: &NodeName) -> bool;

    /// How many nodes there are. May be a second old.
    fn counts(&self) -> Arc<NodeCounts>;
}

/// How many nodes there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCounts {
    /// In the cluster.
    pub total: usize,
    /// In each zone.
    pub by_zone: AHashMap<Arc<str>, usize>,
}

/// So many zones have series of their own in metrics. Kubelets name them.
pub(super) const MOST_ZONES: usize = 50;
/// The whole cluster as the value of a metric's label.
pub(super) const CLUSTER_LABEL: &str = "cluster";

/// A zone as the value of a metric's label.
pub(super) fn zone_label(zone: &str) -> String {
    format!("zone/{zone}")
}

/// A zone as people read it.
pub(super) fn zone_text(zone: &str) -> String {
    if zone.is_empty() { "nodes without a zone".to_owned() } else { format!("zone {zone}") }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;

    use parking_lot::Mutex;

    use super::*;

    /// Nodes that are named `ZONE-NUMBER`.
    #[derive(Debug, Default)]
    pub(in crate::evict) struct Named {
        pub(in crate::evict) counts: Mutex<Arc<NodeCounts>>,
        pub(in crate::evict) untainted: Mutex<BTreeSet<NodeName>>,
    }

    impl Named {
        pub(in crate::evict) fn with(zones: &[(&str, usize)]) -> Arc<Self> {
            let by_zone = zones.iter().map(|(zone, nodes)| (Arc::from(*zone), *nodes)).collect();
            let total = zones.iter().map(|(_, nodes)| nodes).sum();
            let named = Self::default();
            *named.counts.lock() = Arc::new(NodeCounts { total, by_zone });
            Arc::new(named)
        }
    }

    impl Topology for Named {
        fn zone(&self, node: &NodeName) -> Arc<str> {
            Arc::from(node.as_str().split_once('-').map_or("", |(zone, _)| zone))
        }

        fn is_tainted(&self, node: &NodeName) -> bool {
            !self.untainted.lock().contains(node)
        }

        fn counts(&self) -> Arc<NodeCounts> {
            Arc::clone(&self.counts.lock())
        }
    }
}
