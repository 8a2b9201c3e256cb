//! From a work queue to the shards' channels.
//!
//! One thread per queue takes a key, hashes its node's name and sends it to that shard's channel.
//! The channels are short, so that what waits does so in the work queue, where it is de-duplicated.
//!
//! A full channel makes the dispatcher wait, and then no other shard gets items of that kind.
//! Upstream has the same. It is mild, because workers do no I/O: a shard's channel is full for
//! microseconds. It must stay so; nothing that can block belongs into a [`Handler`](super::Handler).

use std::convert::Infallible;
use std::hash::Hash;

use crossbeam_channel::{Receiver, Sender, TrySendError, select};

use super::{SHARDS, WorkQueue, shard_of};

/// A key of a work queue that belongs to a node.
pub trait Sharded: Clone + Eq + Hash + Send + 'static {
    /// The name of the node whose shard the key belongs to. May be empty. It must be a part of the
    /// key: a key never changes its shard.
    fn node_name(&self) -> &str;
}

/// Becomes ready, by being disconnected, when the pipeline stops. Nothing is ever sent on it.
pub(super) type Stop = Receiver<Infallible>;

/// Hands the keys of `queue` to their shards until the queue is shut down or `stop` is ready.
pub(super) fn dispatch<K: Sharded>(
    queue: &WorkQueue<K>,
    shards: &[Sender<K>; SHARDS],
    stop: &Stop,
) {
    while let Some(key) = queue.get() {
        let channel = &shards[shard_of(key.node_name())];
        match channel.try_send(key) {
            Ok(()) => {}
            Err(TrySendError::Disconnected(_)) => return,
            Err(TrySendError::Full(key)) => select! {
                send(channel, key) -> sent => if sent.is_err() { return },
                recv(stop) -> _ => return,
            },
        }
    }
}
