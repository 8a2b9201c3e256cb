//! Watches: the current state, or a version to start from, and every later change until the client
//! disconnects.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::form::Encoder;
use super::query::From;
use crate::signal::Follower;
use crate::sim::embedded::error::ApiError;
use crate::sim::embedded::faults::{Faults, Gate};
use crate::sim::embedded::history::Seen;
use crate::sim::embedded::listing::Paging;
use crate::sim::embedded::selector::Selector;
use crate::sim::embedded::store::Store;

/// How often a client that asked for bookmarks gets one, when nothing else happens either.
const BOOKMARK_EVERY: Duration = Duration::from_mins(1);

/// For how long a watch lasts if the client names no time.
const TIMEOUT: Duration = Duration::from_mins(30);

/// How many changes are taken from the history at a time.
const BATCH: usize = 512;

/// At about this size a piece of the answer is sent.
const CHUNK: usize = 32 * 1024;

/// What a client wants to watch.
pub(super) struct Wanted {
    pub(super) encoder: Encoder,
    pub(super) selector: Selector,
    pub(super) from: From,
    pub(super) bookmarks: bool,
    pub(super) timeout: Option<Duration>,
}

/// What is to be sent.
enum Pending {
    Event(&'static str, Arc<Value>),
    Bookmark { ends_state: bool, version: u64 },
    Error(ApiError),
}

/// An open watch.
struct Watch {
    store: Store,
    /// Keeps the sender of `gate` alive.
    _faults: Faults,
    wanted: Wanted,
    pending: VecDeque<Pending>,
    version: u64,
    signal: Follower<u64>,
    gate: Follower<Gate>,
    cuts: u64,
    bookmark_at: Instant,
    ends_at: Instant,
    ended: bool,
}

/// Opens a watch. The frames are those of the answer's body; an error breaks the connection.
pub(super) fn open(
    store: &Store,
    faults: &Faults,
    wanted: Wanted,
) -> Result<impl Stream<Item = io::Result<Frame<Bytes>>> + Send + 'static, ApiError> {
    let resource = wanted.encoder.view.resource;
    let signal = store.signal(resource);
    let mut gate = faults.gate();
    let cuts = gate.see().cuts(resource);
    let now = Instant::now();
    let mut watch = Watch {
        store: store.clone(),
        _faults: faults.clone(),
        pending: VecDeque::new(),
        version: 0,
        signal,
        gate,
        cuts,
        bookmark_at: now + BOOKMARK_EVERY,
        ends_at: now + wanted.timeout.unwrap_or(TIMEOUT),
        ended: false,
        wanted,
    };
    watch.begin()?;
    Ok(futures::stream::unfold(watch, |mut watch| async move {
        let frame = watch.next().await?;
        Some((frame, watch))
    }))
}

impl Watch {
    fn begin(&mut self) -> Result<(), ApiError> {
        let resource = self.wanted.encoder.view.resource;
        match self.wanted.from {
            From::After(version) => self.version = version,
            From::Now => self.version = self.store.version(),
            From::State { marked } => {
                let paging = Paging::default();
                let page = self.store.list(resource, &self.wanted.selector, &paging)?;
                let added = page.items.into_iter().map(|o| Pending::Event("ADDED", o));
                self.pending.extend(added);
                self.version = page.version;
                if marked {
                    self.pending
                        .push_back(Pending::Bookmark { ends_state: true, version: page.version });
                }
            }
        }
        Ok(())
    }

    async fn next(&mut self) -> Option<io::Result<Frame<Bytes>>> {
        let resource = self.wanted.encoder.view.resource;
        loop {
            if !self.pending.is_empty() {
                return Some(Ok(Frame::data(self.chunk())));
            }
            if self.ended {
                return None;
            }
            let gate = self.gate.see();
            if gate.cuts(resource) != self.cuts {
                self.ended = true;
                return Some(Err(io::Error::other("the watch was cut by a fault")));
            }
            if !gate.holds(resource) {
                self.signal.see();
                self.collect();
                if !self.pending.is_empty() {
                    continue;
                }
            }
            let now = Instant::now();
            if now >= self.ends_at {
                self.ended = true;
                self.bookmark();
                continue;
            }
            if now >= self.bookmark_at {
                self.bookmark_at = now + BOOKMARK_EVERY;
                self.bookmark();
                continue;
            }
            tokio::select! {
                biased;
                () = self.gate.changed() => {}
                () = self.signal.changed(), if !gate.holds(resource) => {}
                () = sleep_until(self.ends_at.min(self.bookmark_at)) => {}
            }
        }
    }

    /// Takes the next changes from the history.
    fn collect(&mut self) {
        let resource = self.wanted.encoder.view.resource;
        match self.store.changes(resource, self.version, BATCH) {
            Ok((changes, through)) => {
                self.version = through;
                for change in changes {
                    let event = match change.seen_by(&self.wanted.selector) {
                        None => continue,
                        Some(Seen::Added(object)) => Pending::Event("ADDED", object),
                        Some(Seen::Modified(object)) => Pending::Event("MODIFIED", object),
                        Some(Seen::Deleted(object)) => Pending::Event("DELETED", object),
                    };
                    self.pending.push_back(event);
                }
            }
            // A version from the future: nothing happens until it has come.
            Err(error) if error.code == 504 => {}
            Err(error) => {
                self.pending.push_back(Pending::Error(error));
                self.ended = true;
            }
        }
    }

    fn bookmark(&mut self) {
        // A watch from the future is silent until its version has come.
        if self.wanted.bookmarks && self.version <= self.store.version() {
            self.pending.push_back(Pending::Bookmark { ends_state: false, version: self.version });
        }
    }

    /// The pending events, as many as make a chunk.
    fn chunk(&mut self) -> Bytes {
        let mut out = Vec::new();
        while out.len() < CHUNK
            && let Some(pending) = self.pending.pop_front()
        {
            self.encode(&pending, &mut out);
            self.wanted.encoder.columns = false;
        }
        Bytes::from(out)
    }

    fn encode(&self, pending: &Pending, out: &mut Vec<u8>) {
        let mut encoder = self.wanted.encoder;
        match pending {
            Pending::Event(kind, object) => {
                encoder.now = self.store.clock().now();
                encoder.event(kind, object, out);
            }
            Pending::Bookmark { ends_state, version } => {
                let mut metadata = json!({"resourceVersion": version.to_string()});
                if *ends_state {
                    metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
                }
                encoder.bookmark_event(metadata, out);
            }
            Pending::Error(error) => encoder.error_event(error, out),
        }
    }
}
