//! Metrics of pauses, read when they are scraped.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGauge, Registry};

use crate::evict::Pauses;

/// Reads at each scrape whether there is a pause.
struct Gauges {
    pauses: Arc<Pauses>,
    paused: IntGauge,
    seconds: IntGauge,
}

/// Registers the metrics of pauses.
pub(super) fn register(registry: &Registry, pauses: &Arc<Pauses>) -> prometheus::Result<()> {
    registry.register(Box::new(Gauges {
        pauses: Arc::clone(pauses),
        paused: IntGauge::new(
            "ostrakon_paused",
            "1 while evictions, cordons and starts of drains are paused.",
        )?,
        seconds: IntGauge::new(
            "ostrakon_pause_seconds",
            "For how long the present pause has lasted; 0 without one.",
        )?,
    }))
}

impl Collector for Gauges {
    fn desc(&self) -> Vec<&Desc> {
        [self.paused.desc(), self.seconds.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.paused.set(self.pauses.is_on().into());
        self.seconds.set(self.pauses.seconds());
        [self.paused.collect(), self.seconds.collect()].concat()
    }
}
