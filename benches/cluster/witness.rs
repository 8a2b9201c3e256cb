//! When pods were marked for deletion, seen from outside.
//!
//! The witness watches etcd and not the API server: so it costs the API server nothing, is never
//! cut off by it, and is the same for all contenders, whatever encoding they speak.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use prost::Message;
use tokio::time::{Instant, timeout_at};

use crate::etcd::{Etcd, Watch};

/// What the API server's protobuf values begin with.
const MAGIC: &[u8] = b"k8s\0";

#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct Object {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
}

#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(bytes = "bytes", optional, tag = "9")]
    deletion_timestamp: Option<Bytes>,
}

/// Waits for the deletion of certain pods.
pub(crate) struct Witness {
    watch: Watch,
    /// The keys of the pods that are not marked yet.
    left: HashSet<Vec<u8>>,
}

impl Witness {
    /// Begins to watch these keys.
    pub(crate) async fn start(etcd: &Etcd, keys: impl Iterator<Item = String>) -> Result<Self> {
        let watch = etcd.watch("/registry/pods/").await?;
        Ok(Self { watch, left: keys.map(String::into_bytes).collect() })
    }

    /// Waits until all pods are marked or gone, and returns when each was, in seconds after
    /// `start`, in order.
    pub(crate) async fn deletions(
        mut self,
        start: Instant,
        patience: Duration,
    ) -> Result<Vec<f64>> {
        let end = start + patience;
        let mut moments = Vec::with_capacity(self.left.len());
        while !self.left.is_empty() {
            let Ok(events) = timeout_at(end, self.watch.next()).await else {
                bail!("{} pods are not deleted after {patience:?}", self.left.len());
            };
            let after = start.elapsed().as_secs_f64();
            for event in events? {
                let marked = event.is_deletion() || is_marked(event.value())?;
                if marked && self.left.remove(event.key()) {
                    moments.push(after);
                }
            }
        }
        Ok(moments)
    }
}

/// Whether a stored object has a `deletionTimestamp`. What the loader wrote is JSON and has none.
fn is_marked(value: &[u8]) -> Result<bool> {
    let Some(envelope) = value.strip_prefix(MAGIC) else {
        ensure!(value.starts_with(b"{"), "a stored pod is neither protobuf nor JSON");
        return Ok(false);
    };
    let envelope = Envelope::decode(envelope).context("read a stored pod")?;
    let object = Object::decode(envelope.raw).context("read a stored pod")?;
    Ok(object.metadata.is_some_and(|metadata| metadata.deletion_timestamp.is_some()))
}
