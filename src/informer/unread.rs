//! Logs and counts parts of objects that cannot be read and are ignored: once per object, not per
//! version.

use std::fmt::Display;
use std::time::Duration;

use ahash::{AHashMap, AHashSet};
use tokio::time::Instant;

use crate::cluster::{Flaw, Metrics};
use crate::model::Uid;

/// Minimum time between two log lines, so that many such objects do not flood the log. All are counted.
const APART: Duration = Duration::from_secs(1);

/// The objects with parts that could not be read, and what was said of each.
pub(super) struct Unread {
    metrics: Metrics,
    resource: &'static str,
    known: AHashMap<Uid, Box<[Flaw]>>,
    said: Option<Instant>,
}

impl Unread {
    pub(super) fn new(metrics: Metrics, resource: &'static str) -> Self {
        Self { metrics, resource, known: AHashMap::new(), said: None }
    }

    /// Takes in what could not be read of a version of an object.
    pub(super) fn see(&mut self, uid: Uid, object: &impl Display, flaws: &[Flaw]) {
        if flaws.is_empty() {
            if !self.known.is_empty() {
                self.known.remove(&uid);
            }
            return;
        }
        let before = self.known.get(&uid).map_or(&[][..], |flaws| flaws);
        let new: Vec<_> = flaws.iter().filter(|flaw| !before.contains(flaw)).copied().collect();
        if new.is_empty() {
            return;
        }
        for flaw in new {
            self.metrics.unread(self.resource);
            if self.said.is_none_or(|said| said.elapsed() >= APART) {
                self.said = Some(Instant::now());
                tracing::warn!(
                    resource = self.resource,
                    %object,
                    %uid,
                    "{flaw}; ignoring this part of the object"
                );
            }
        }
        self.known.insert(uid, flaws.into());
    }

    pub(super) fn forget(&mut self, uid: Uid) {
        self.known.remove(&uid);
    }

    pub(super) fn retain(&mut self, seen: &AHashSet<Uid>) {
        self.known.retain(|uid, _| seen.contains(uid));
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;
    use crate::cluster::FlawCause;

    #[tokio::test(start_paused = true)]
    async fn each_flaw_of_an_object_is_counted_once_until_it_is_gone() {
        let registry = Registry::new();
        let mut unread = Unread::new(Metrics::register(&registry).unwrap(), "nodes");
        let counted = || -> f64 {
            let families = registry.gather();
            let name = "ostrakon_unread_parts_total";
            let family = families.iter().find(|family| family.name() == name);
            family.map_or(0.0, |family| family.get_metric()[0].get_counter().get_value())
        };
        let flaw = |field| Flaw { field, cause: FlawCause::NoText };
        let (one, two) = ([flaw("a")], [flaw("a"), flaw("b")]);
        for _ in 0..3 {
            unread.see(Uid(1), &"n1", &one);
        }
        assert!((counted() - 1.0).abs() < 0.1, "{}", counted());
        unread.see(Uid(1), &"n1", &two);
        unread.see(Uid(2), &"n2", &one);
        assert!((counted() - 3.0).abs() < 0.1, "{}", counted());
        unread.see(Uid(2), &"n2", &[]);
        unread.forget(Uid(1));
        assert!(unread.known.is_empty(), "what is gone or well is not remembered");
        unread.see(Uid(1), &"n1", &one);
        unread.retain(&AHashSet::new());
        assert!(unread.known.is_empty());
    }
}
