//! Reads nodes from the API server, once for all pods of a node that ask at the same time.

use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::{Failure, Requests};
use crate::model::{Node, NodeName};

/// For how long after its request began an answer may be used by others. The pods of one node come
/// due together and pass the window within about this time.
const SHARED_FOR: Duration = Duration::from_secs(1);

type Answer = Result<Option<Arc<Node>>, Failure>;

/// A node that is being asked for, or was just now.
#[derive(Debug)]
struct Question {
    begun: Instant,
    answer: Arc<OnceCell<Answer>>,
}

/// Questions to the API server about nodes.
#[derive(Debug, Default)]
pub(super) struct Confirmations {
    asked: Mutex<AHashMap<NodeName, Question>>,
}

impl Confirmations {
    /// The node as the API server has it; `None` if there is no such node.
    ///
    /// An answer is shared if its request began less than a second ago and not before `since`:
    /// one that is older than what it is asked for says nothing about it. A pod that was bound
    /// after a taint went must not meet what was read for another pod while it was there.
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
