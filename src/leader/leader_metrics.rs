//! Metrics of leadership.

use prometheus::{IntCounterVec, IntGauge, Opts, Registry};

use super::Lost;

/// Shows whether this process leads, and how often it lost the lease.
#[derive(Clone, Debug)]
pub struct Metrics {
    leader: IntGauge,
    lost: IntCounterVec,
}

impl Metrics {
    /// Registers the metrics; `leads` says whether this process leads from the start.
    ///
    /// # Errors
    /// A metric of the same name is registered already.
    pub fn register(registry: &Registry, leads: bool) -> prometheus::Result<Self> {
        let leader = IntGauge::new(
            "ostrakon_leader",
            "1 while this process works: it holds the lease, or runs without leader election.",
        )?;
        leader.set(leads.into());
        registry.register(Box::new(leader.clone()))?;
        let lost = IntCounterVec::new(
            Opts::new(
                "ostrakon_leader_lost_total",
                "How often this process lost the lease, by cause: taken (another process holds it), \
                 not_renewed (it was not renewed in time).",
            ),
            &["cause"],
        )?;
        for cause in ["taken", "not_renewed"] {
            lost.with_label_values(&[cause]);
        }
        registry.register(Box::new(lost.clone()))?;
        Ok(Self { leader, lost })
    }

    pub(super) fn set(&self, leads: bool) {
        self.leader.set(leads.into());
    }

    pub(super) fn lost(&self, lost: &Lost) {
        let cause = match lost {
            Lost::Taken { .. } => "taken",
            Lost::NotRenewed { .. } => "not_renewed",
        };
        self.lost.with_label_values(&[cause]).inc();
    }
}
