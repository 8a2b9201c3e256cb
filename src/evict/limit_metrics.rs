//! Metrics of holds and limits, read at each scrape.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGauge, IntGaugeVec, Opts, Registry};

use super::rate_limit::LimitId;
use super::topology::{CLUSTER_LABEL, MOST_ZONES, zone_label};
use super::{Queue, RampHold, RateLimits};
use crate::pipeline::Token;

struct Gauges {
    due: Arc<Queue<Token>>,
    rates: Arc<RateLimits>,
    ramp: Arc<RampHold>,
    held: IntGaugeVec,
    tokens: IntGaugeVec,
    admitted: IntGauge,
    waiting: IntGauge,
}

/// Registers them.
pub(crate) fn register(
    registry: &Registry,
    due: &Arc<Queue<Token>>,
    rates: &Arc<RateLimits>,
    ramp: &Arc<RampHold>,
) -> prometheus::Result<()> {
    registry.register(Box::new(Gauges {
        due: Arc::clone(due),
        rates: Arc::clone(rates),
        ramp: Arc::clone(ramp),
        held: IntGaugeVec::new(
            Opts::new("ostrakon_held_pods", "Due pods that are held, by what holds them."),
            &["hold"],
        )?,
        tokens: IntGaugeVec::new(
            Opts::new(
                "ostrakon_limit_tokens",
                "How many pods may be evicted at once under each limit: cluster, rule/NAME, zone/NAME.",
            ),
            &["limit"],
        )?,
        admitted: IntGauge::new(
            "ostrakon_ramp_admitted_nodes",
            "Nodes that count for the ramp, because they have lost pods for taints within its time.",
        )?,
        waiting: IntGauge::new(
            "ostrakon_ramp_waiting_nodes",
            "Nodes with due pods that the ramp holds.",
        )?,
    }))
}

impl Collector for Gauges {
    fn desc(&self) -> Vec<&Desc> {
        let gauges =
            [self.held.desc(), self.tokens.desc(), self.admitted.desc(), self.waiting.desc()];
        gauges.concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let as_value = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for (hold, count) in self.due.held() {
            self.held.with_label_values(&[&*hold.replace(' ', "_")]).set(as_value(count));
        }
        self.tokens.reset();
        let mut zones = 0;
        for tokens in self.rates.tokens() {
            let limit = match &tokens.id {
                LimitId::Cluster => CLUSTER_LABEL.to_owned(),
                LimitId::Rule(name) => format!("rule/{name}"),
                LimitId::Zone(_) if zones == MOST_ZONES => continue,
                LimitId::Zone(zone) => {
                    zones += 1;
                    zone_label(zone)
                }
            };
            self.tokens.with_label_values(&[&*limit]).set(tokens.left.into());
        }
        let (admitted, waiting) = self.ramp.nodes();
        self.admitted.set(as_value(admitted));
        self.waiting.set(as_value(waiting));
        let families = [
            self.held.collect(),
            self.tokens.collect(),
            self.admitted.collect(),
            self.waiting.collect(),
        ];
        families.concat()
    }
}
