//! Who leads, as a metric.

use prometheus::{IntGauge, Registry};

/// Shows whether this process leads.
#[derive(Clone, Debug)]
pub struct Metrics {
    leader: IntGauge,
}

impl Metrics {
    /// Registers the gauge; `leads` is its first value.
    ///
    /// # Errors
    /// A metric of the same name is registered already.
    pub fn register(registry: &Registry, leads: bool) -> prometheus::Result<Self> {
        let leader = IntGauge::new(
            "ostrakon_leader",
            "1 while this process evicts: it holds the lease, or none is asked for.",
        )?;
        leader.set(leads.into());
        registry.register(Box::new(leader.clone()))?;
        Ok(Self { leader })
    }

    pub(super) fn set(&self, leads: bool) {
        self.leader.set(leads.into());
    }
}
