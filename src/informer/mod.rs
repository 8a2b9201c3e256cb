//! Current facts about nodes and pods, and the queues of those to evaluate again.
//!
//! - [`Facts`]: the view, and how its contents count at the current time.
//! - [`WorkQueues`]: the names that the workers handle next, and whether this process works at all.
//! - [`Nodes`] and [`Pods`]: take in what the watches bring; they store it, and queue what changed.
//!
//! It decides nothing and sends nothing.

mod facts;
mod ingest;
mod queues;
mod rates;
mod unread;

pub(crate) use facts::{Facts, recorded};
pub(crate) use ingest::{DeletionListener, Ingest, NodeListener, Nodes, PodListener, Pods};
pub(crate) use queues::{NodeKey, NodeTimer, PodKey, WorkQueues};
