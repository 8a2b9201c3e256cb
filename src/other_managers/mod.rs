//! Notices another controller that evicts pods for NoExecute taints too, for example the one built into
//! kube-controller-manager. Two of them evict by different rules, and otherwise nobody notices.
//!
//! - [`Sightings`]: what was seen, and what follows from it. Pure.
//! - [`OtherManagers`]: the sightings of this process; the watch of pods adds to them.
//! - [`RequireExclusive`]: holds evictions while another manager is at work, if that is asked for.
//! - [`Reporter`]: reports it by log, event, metric and a note beside readiness.
//!
//! Nothing is requested from the API server for this: the evidence is in the pods that the watch brings.

mod exclusive;
mod other_managers_metrics;
mod reporter;
mod sightings;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

pub(crate) use exclusive::RequireExclusive;
pub(crate) use other_managers_metrics::register;
pub(crate) use reporter::Reporter;
use sightings::{Now, PROMPT, Sightings};
pub(crate) use sightings::{Proof, Standing};

use crate::clock::Clock;
use crate::cluster::MarkAuthor;
use crate::informer::PodListener;
use crate::model::{Disruption, Pod, PodRef};

/// What this process has seen of other managers while it leads.
#[derive(Debug)]
pub(crate) struct OtherManagers {
    clock: Clock,
    sightings: Mutex<Sightings>,
    /// Pods whose condition another manager wrote, through all terms.
    marks: AtomicU64,
    /// Pods that someone else deleted right when they were due, through all terms.
    deletions: AtomicU64,
    /// Notified when there may be something new to report.
    changed: Notify,
}

impl OtherManagers {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            sightings: Mutex::default(),
            marks: AtomicU64::new(0),
            deletions: AtomicU64::new(0),
            changed: Notify::new(),
        }
    }

    /// This process begins to lead: what others did before proves nothing.
    pub(crate) fn lead(&self) {
        *self.sightings.lock() = Sightings::since(self.clock.now());
        self.changed.notify_one();
    }

    /// This process leads no more.
    pub(crate) fn stand_by(&self) {
        *self.sightings.lock() = Sightings::default();
        self.changed.notify_one();
    }

    /// Someone deletes a pod that is due, and ostrakon has not asked for it.
    pub(crate) fn deleted(&self, pod: &Pod, since_due: Duration) {
        // A condition says who deletes it.
        let is_explained = pod.disruption == Disruption::Foreign;
        if !is_explained
            && since_due < PROMPT
            && self.sightings.lock().deleted(&pod.reference(), self.now())
        {
            self.deletions.fetch_add(1, Ordering::Relaxed);
            self.changed.notify_one();
        }
    }

    /// Whether another manager is at work.
    pub(crate) fn standing(&self) -> Standing {
        self.sightings.lock().standing(self.now())
    }

    /// Until when evictions in a namespace are to be held, if ostrakon must be exclusive.
    fn held_until(&self, namespace: &str, now: Instant) -> Option<Instant> {
        self.sightings.lock().held_until(namespace, now)
    }

    fn now(&self) -> Now {
        Now { wall: self.clock.now(), instant: Instant::now() }
    }
}

impl PodListener for OtherManagers {
    fn marked(&self, pod: &PodRef, author: &MarkAuthor) {
        if self.sightings.lock().marked(pod, author, self.now()) {
            self.marks.fetch_add(1, Ordering::Relaxed);
            self.changed.notify_one();
        }
    }
}
