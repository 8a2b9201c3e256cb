//! Metrics of the breaker, read at each scrape.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntGaugeVec, Opts, Registry};

use super::BreakerHold;
use super::breaker::Scope;
use super::topology::{CLUSTER_LABEL, MOST_ZONES, zone_label};

struct Gauges {
    breaker: Arc<BreakerHold>,
    tripped: IntGaugeVec,
    nodes: IntGaugeVec,
    would_hold: IntCounter,
    trips: IntCounter,
}

/// Registers them.
pub(crate) fn register(registry: &Registry, breaker: &Arc<BreakerHold>) -> prometheus::Result<()> {
    registry.register(Box::new(Gauges {
        breaker: Arc::clone(breaker),
        tripped: IntGaugeVec::new(
            Opts::new(
                "ostrakon_breaker_tripped",
                "1 where the breaker has tripped: cluster, zone/NAME. With mode Observe it holds nothing.",
            ),
            &["scope"],
        )?,
        nodes: IntGaugeVec::new(
            Opts::new(
                "ostrakon_breaker_nodes",
                "Nodes that the breaker counts, because they came to have due pods for taints.",
            ),
            &["scope"],
        )?,
        would_hold: IntCounter::new(
            "ostrakon_breaker_would_hold_pods_total",
            "Evictions that the breaker would have held with mode Enforce.",
        )?,
        trips: IntCounter::new("ostrakon_breaker_trips_total", "How often the breaker has tripped.")?,
    }))
}

impl Collector for Gauges {
    fn desc(&self) -> Vec<&Desc> {
        let own =
            [self.tripped.desc(), self.nodes.desc(), self.would_hold.desc(), self.trips.desc()];
        own.concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.tripped.reset();
        self.nodes.reset();
        // The cluster comes first.
        for (scope, count, has_tripped) in self.breaker.scopes().into_iter().take(1 + MOST_ZONES) {
            let scope = match scope {
                Scope::Cluster => CLUSTER_LABEL.to_owned(),
                Scope::Zone(zone) => zone_label(&zone),
            };
            self.tripped.with_label_values(&[&*scope]).set(has_tripped.into());
            self.nodes.with_label_values(&[&*scope]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let (would_hold, trips) = self.breaker.totals();
        self.would_hold.inc_by(would_hold.saturating_sub(self.would_hold.get()));
        self.trips.inc_by(trips.saturating_sub(self.trips.get()));
        let families = [
            self.tripped.collect(),
            self.nodes.collect(),
            self.would_hold.collect(),
            self.trips.collect(),
        ];
        families.concat()
    }
}
