//! Reads nodes from the API server. Pods of a node that are due at the same time share one read.

use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::{Failure, Requests};
use crate::model::{Node, NodeName};

/// How long after the start of its request a response may be shared. Pods of one node become due
/// together, and get their place in the window within about this time.
const SHARED_FOR: Duration = Duration::from_secs(1);

type Answer = Result<Option<Arc<Node>>, Failure>;

/// A read of a node, in flight or just finished.
#[derive(Debug)]
struct Question {
    begun: Instant,
    answer: Arc<OnceCell<Answer>>,
}

/// Shared reads of nodes from the API server.
#[derive(Debug, Default)]
pub(super) struct Confirmations {
    asked: Mutex<AHashMap<NodeName, Question>>,
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
        let answer = {
            let mut asked = self.asked.lock();
            let now = Instant::now();
            asked.retain(|_, question| now - question.begun < SHARED_FOR);
            match asked.get(name) {
                Some(question) if question.begun >= since => Arc::clone(&question.answer),
                _ => {
                    let answer = Arc::default();
                    let question = Question { begun: now, answer: Arc::clone(&answer) };
                    asked.insert(name.clone(), question);
                    answer
                }
            }
        };
        answer.get_or_init(|| async { Ok(requests.node(name).await?.map(Arc::new)) }).await.clone()
    }
}
