//! Who asked for what, and what came of it: for observers that must know whose change it was.

use std::ops::RangeInclusive;
use std::sync::Arc;

use http::Request;
use hyper::body::Bytes;
use parking_lot::Mutex;

use super::operation::Operation;

/// A request that was carried out or refused by the API itself, not by a fault.
#[derive(Debug)]
pub struct Audited<'a> {
    /// The request as it came in.
    pub request: &'a Request<Bytes>,
    /// What it asked for.
    pub operation: &'a Operation,
    /// Status code of the answer.
    pub code: u16,
    /// The versions that the store got by it; empty if it changed nothing.
    pub versions: RangeInclusive<u64>,
}

type Auditor = Box<dyn Fn(&Audited<'_>) + Send + Sync>;

/// Those who are told. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Audit {
    auditors: Arc<Mutex<Vec<Auditor>>>,
}

impl Audit {
    pub(super) fn add(&self, auditor: impl Fn(&Audited<'_>) + Send + Sync + 'static) {
        self.auditors.lock().push(Box::new(auditor));
    }

    pub(super) fn tell(&self, audited: &Audited<'_>) {
        for auditor in self.auditors.lock().iter() {
            auditor(audited);
        }
    }
}
