//! The record lane: keeps the beginnings of taints on the nodes, so that a restart counts on.
//!
//! It is written by the way: no eviction waits for it, and it is never a reason to fail.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::state::Shared;
use crate::backoff::Backoff;
use crate::cluster::{Api, RequestError};
use crate::model::NodeName;
use crate::pipeline::Outcome;
use crate::taint::record;

/// Records written at the same time. Few: evictions matter more.
const AT_ONCE: usize = 4;
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(500), most: Duration::from_secs(60) };
/// How long the watch may take to show a record that was written, before it is looked at again.
const UNTIL_SEEN: Duration = Duration::from_secs(5);

/// Writes and removes records until `stop`.
pub(super) async fn run(
    shared: Arc<Shared>,
    api: Api,
    stop: CancellationToken,
    tasks: TaskTracker,
) {
    let slots = Arc::new(Semaphore::new(AT_ONCE));
    let failures = Arc::new(dashmap::DashMap::<NodeName, u32, ahash::RandomState>::default());
    loop {
        let fired = tokio::select! {
            () = stop.cancelled() => return,
            fired = shared.records.next() => fired,
        };
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
            return;
        };
        let (shared, api, failures) = (Arc::clone(&shared), api.clone(), Arc::clone(&failures));
        tasks.spawn(async move {
            let outcome = match write(&shared, &api, &fired.key).await {
                Ok(written) => {
                    failures.remove(&fired.key);
                    if written { again(UNTIL_SEEN) } else { Outcome::Done }
                }
                Err(error) => {
                    let tries = {
                        let mut tries = failures.entry(fired.key.clone()).or_default();
                        *tries += 1;
                        *tries
                    };
                    let pause = BACKOFF.pause(tries);
                    if tries == 1 {
                        warn!(node = %fired.key, %error, ?pause, "cannot write the node's record \
                            of when its taints began; a restart now would count anew");
                    }
                    again(pause)
                }
            };
            shared.records.complete(&fired.key, fired.token, outcome);
            drop(slot);
        });
    }
}

fn again(pause: Duration) -> Outcome<()> {
    Outcome::Retry { not_before: Instant::now() + pause, value: () }
}

/// Brings the node's annotation to what it should be. Returns whether it was written.
async fn write(shared: &Shared, api: &Api, name: &NodeName) -> Result<bool, RequestError> {
    let Some(facts) = shared.view.node(name) else {
        return Ok(false);
    };
    let Some(node) = facts.node else {
        return Ok(false);
    };
    let wanted = record::wanted(&facts.anchors, &node, facts.pods.iter().map(|pod| &**pod));
    if wanted.as_deref() == node.since_annotation.as_deref() {
        return Ok(false);
    }
    if let Some(text) = &node.since_annotation
        && let Err(error) = record::parse(text)
    {
        warn!(node = %name, %error, "the node's record of when its taints began cannot be read \
            and is replaced");
        shared.recorder.record_unreadable(name, node.uid, &error.to_string());
    }
    match api.annotate_node(name, node.uid, wanted.as_deref()).await {
        // The node is gone, or is another one by now: its watch will say so.
        Err(RequestError::Status(answer)) if matches!(answer.code, 404 | 409) => Ok(true),
        other => {
            other?;
            debug!(node = %name, record = wanted.as_deref().unwrap_or("none"), "record written");
            Ok(true)
        }
    }
}
