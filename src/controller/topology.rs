//! What limits and the breaker know of nodes: the view.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::evict::{NodeCounts, Topology};
use crate::informer::Facts;
use crate::model::NodeName;

/// Nodes are counted at most this often: there may be tens of thousands, and few questions need the last one.
const COUNTED_EVERY: Duration = Duration::from_secs(1);

/// The nodes in the view.
pub(super) struct NodesInView {
    facts: Arc<Facts>,
    counted: Mutex<Option<(Instant, Arc<NodeCounts>)>>,
    /// The zone of nodes that have none.
    no_zone: Arc<str>,
}

impl NodesInView {
    pub(super) fn new(facts: Arc<Facts>) -> Self {
        Self { facts, counted: Mutex::default(), no_zone: Arc::from("") }
    }

    fn count(&self) -> NodeCounts {
        let mut counts = NodeCounts::default();
        self.facts.view.each_node(|node| {
            counts.total += 1;
            let zone = node.zone.as_ref().unwrap_or(&self.no_zone);
            if let Some(count) = counts.by_zone.get_mut(zone) {
                *count += 1;
            } else {
                counts.by_zone.insert(Arc::clone(zone), 1);
            }
        });
        counts
    }
}

impl Topology for NodesInView {
    fn zone(&self, node: &NodeName) -> Arc<str> {
        let node = self.facts.view.node_alone(node);
        let zone = node.and_then(|(node, _)| node.zone.clone());
        zone.unwrap_or_else(|| Arc::clone(&self.no_zone))
    }

    fn is_tainted(&self, node: &NodeName) -> bool {
        self.facts.view.node_alone(node).is_some_and(|(node, _)| !node.taints.is_empty())
    }

    fn counts(&self) -> Arc<NodeCounts> {
        let mut counted = self.counted.lock();
        if let Some((at, counts)) = &*counted
            && at.elapsed() < COUNTED_EVERY
        {
            return Arc::clone(counts);
        }
        let counts = Arc::new(self.count());
        *counted = Some((Instant::now(), Arc::clone(&counts)));
        counts
    }
}
