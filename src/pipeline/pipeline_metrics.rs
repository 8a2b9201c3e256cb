//! What is counted about the work on single objects.

use prometheus::{IntCounterVec, Opts, Registry};

/// Counts panics in the work on one object. Clones share the counter.
#[derive(Clone, Debug)]
pub struct Panics(IntCounterVec);

impl Panics {
    /// Registers the counter.
    ///
    /// # Errors
    /// A metric of the same name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counter = IntCounterVec::new(
            Opts::new(
                "ostrakon_panics_total",
                "Panics while working on one object, by kind of work: eviction, record, drain. The work \
                 is retried. Every panic is a bug; the log names the object.",
            ),
            &["work"],
        )?;
        for kind in ["eviction", "record", "drain"] {
            counter.with_label_values(&[kind]);
        }
        registry.register(Box::new(counter.clone()))?;
        Ok(Self(counter))
    }

    pub(super) fn count(&self, kind: &str) {
        self.0.with_label_values(&[kind]).inc();
    }

    #[cfg(test)]
    pub(super) fn counted(&self, kind: &str) -> u64 {
        self.0.with_label_values(&[kind]).get()
    }
}
