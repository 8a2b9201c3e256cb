//! Current facts about nodes and pods, and the queues of those to evaluate again.
//!
//! - [`Facts`]: the view, and how its contents count at the current time.
//! - [`WorkQueues`]: the names that the workers handle next, and whether this process works at all.
//!
//! It decides nothing and sends nothing.

mod facts;
mod queues;
mod rates;

pub(crate) use facts::{Facts, recorded};
pub(crate) use queues::{NodeKey, NodeTimer, PodKey, WorkQueues};
