//! Reads nodes from the API server. Pods of a node that are due at the same time share one read.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Failure, Requests};
use crate::model::{Node, NodeName};
use crate::shared_reads::SharedReads;

/// How long after the start of its request a response may be shared, also by those who wait for it: a
/// request that hangs must not delay the pods that become due later. Pods of one node become due together,
/// and get their place in the window within about this time.
const SHARED_FOR: Duration = Duration::from_secs(1);

type Answer = Result<Option<Arc<Node>>, Failure>;

/// Shared reads of nodes from the API server.
#[derive(Debug)]
pub(super) struct Confirmations {
    reads: SharedReads<NodeName, Answer>,
}

impl Default for Confirmations {
    fn default() -> Self {
        Self { reads: SharedReads::new(SHARED_FOR) }
    }
}

impl Confirmations {
    /// The node as stored by the API server; `None` if there is no such node.
    ///
    /// A response is shared if its request began less than a second ago, and not before `since`: an
    /// older response proves nothing about this eviction. For example, a pod that was bound after a taint
    /// was removed must not be evicted because of a read from before the removal.
    pub(super) async fn node(
        &self,
        name: &NodeName,
        since: Instant,
        requests: &impl Requests,
    ) -> Answer {
        let read = async { Ok(requests.node(name).await?.map(Arc::new)) };
        self.reads
            .get(name, |last| last.begun >= since && last.begun.elapsed() < SHARED_FOR, read)
            .await
    }
}
