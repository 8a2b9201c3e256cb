//! Distributes work: work queues, shards, workers and the timed queue.
//!
//! ```text
//!   node queue          pod queue          WorkQueue: names, each at most once
//!       │ 1 thread          │ 1 thread     dispatch: FNV-1a(node name) mod 8
//!   8 × channel (10)    8 × channel (1)    bounded
//!       └──────► 8 workers ◄┘              8 threads: a node's items one after the other
//!                    │ arm · disarm
//!               8 × TimedQueue             countdowns; one consumer each
//! ```
//!
//! Queues contain names, not facts. The handler of a name reads the newest facts, so ten changes cost one
//! decision, and dropping an item at shutdown loses nothing.
//!
//! It is independent of taints, pods and the API server. It must never do I/O, never hold back a key that
//! was added, and never have the same key handled twice at once.

mod dispatch;
mod inline;
mod pipeline_metrics;
mod runner;
mod shard;
mod timed;
mod work_queue;
mod workers;

pub use dispatch::Sharded;
pub use inline::work_inline;
pub use pipeline_metrics::Panics;
pub use runner::{AFTER_PANIC, Panicked, Runner};
pub use shard::{SHARDS, shard_of};
pub use timed::{Armed, Fired, Outcome, Scheduled, TimedQueue, Token};
pub use work_queue::WorkQueue;
pub use workers::{Failure, Handler, Pipeline};
