//! Brings what is due to where it is handled: evictions to the queue of evictions, nodes to the node queue.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::evict::{Eviction, Schedule};
use crate::informer::{NodeTimer, WorkQueues};
use crate::pipeline::{Fired, Outcome};

/// Takes what is due in one shard, until `stop`.
pub(super) async fn take_due(
    queues: Arc<WorkQueues>,
    schedule: Arc<Schedule>,
    shard: usize,
    stop: CancellationToken,
) {
    let (nodes, evictions) = (&queues.timers[shard], &schedule.timers[shard]);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            Fired { key, token, .. } = nodes.next() => {
                nodes.complete(&key, token, Outcome::Done);
                let (NodeTimer::Decide(name) | NodeTimer::Noisy(name)) = key;
                queues.node_changed(name);
            }
            fired = schedule.next_eviction(evictions) => {
                let Fired { token, value: (pod, cause), due, failures, .. } = fired;
                schedule.due.push(Eviction { pod, cause, due }, token, failures > 0);
            }
        }
    }
}

#[cfg(test)]
mod tests;
