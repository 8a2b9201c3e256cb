//! Dispatches keys from a work queue to the channels of the shards.
//!
//! One thread per queue takes a key, hashes its node's name and sends it to that shard's channel. The
//! channels are short, so that keys wait in the work queue, where they are de-duplicated.
//!
//! While a channel is full, the dispatcher waits, and no other shard gets keys of that kind, as in
//! upstream. This is harmless because workers do no I/O, so a channel is only full for microseconds. So a
//! [`Handler`](super::Handler) must never block.

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
            Err(TrySendError::Full(key)) => {
                queue.count_full_channel();
                select! {
                    send(channel, key) -> sent => if sent.is_err() { return },
                    recv(stop) -> _ => return,
                }
            }
        }
    }
}
