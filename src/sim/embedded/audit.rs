//! The audit log: who requested what, with which result. It attributes each change to a client.

use std::ops::RangeInclusive;
use std::sync::Arc;

use http::Request;
use hyper::body::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::history::Change;
use super::operation::Operation;

/// A request that was carried out or refused by the API itself, not by a fault.
#[derive(Debug)]
pub struct Audited {
    /// When it was answered.
    pub at: Timestamp,
    /// The request as it came in.
    pub request: Request<Bytes>,
    /// What it asked for.
    pub operation: Operation,
    /// Status code of the answer.
    pub code: u16,
    /// The versions that the store got by it; empty if it changed nothing.
    pub versions: RangeInclusive<u64>,
}

/// What is seen of a cluster from outside.
#[derive(Clone, Debug)]
pub enum Observed {
    /// A change was stored.
    Changed(Arc<Change>),
    /// A request was answered. The changes that it made come before it.
    Answered(Arc<Audited>),
}

/// Those who are told of requests. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Audit {
    feeds: Arc<Mutex<Vec<mpsc::UnboundedSender<Observed>>>>,
}

impl Audit {
    pub(super) fn add(&self, feed: mpsc::UnboundedSender<Observed>) {
        self.feeds.lock().push(feed);
    }

    /// Tells of a request, which is only put together if someone reads it.
    pub(super) fn tell(&self, audited: impl FnOnce() -> Audited) {
        let feeds = self.feeds.lock().clone();
        if feeds.is_empty() {
            return;
        }
        let audited = Arc::new(audited());
        let gone = |feed: &mpsc::UnboundedSender<Observed>| {
            feed.send(Observed::Answered(Arc::clone(&audited))).is_err()
        };
        if feeds.iter().filter(|feed| gone(feed)).count() > 0 {
            self.feeds.lock().retain(|feed| !feed.is_closed());
        }
    }
}
