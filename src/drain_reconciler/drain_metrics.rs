//! Metrics of cordons and drains, with draino's names, and the number of nodes by state.

use std::sync::{Arc, Weak};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use super::Drains;
use crate::drain::{DrainPhase, Record, orphan};
use crate::informer::Facts;

/// Counters of what was done. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct DrainMetrics {
    cordoned: IntCounterVec,
    uncordoned: IntCounterVec,
    scheduled: IntCounterVec,
    drained: IntCounterVec,
    causes: IntCounterVec,
}

impl DrainMetrics {
    /// Registers the counters.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str| {
            let counter = IntCounterVec::new(Opts::new(name, help), &["result"])?;
            for result in ["succeeded", "failed"] {
                counter.with_label_values(&[result]);
            }
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let metrics = Self {
            cordoned: counter("draino_cordoned_nodes_total", "Nodes cordoned.")?,
            uncordoned: counter("draino_uncordoned_nodes_total", "Nodes uncordoned.")?,
            scheduled: counter(
                "draino_drain_scheduled_nodes_total",
                "Drains scheduled; failed: a node cannot be drained at the moment.",
            )?,
            drained: counter("draino_drained_nodes_total", "Nodes drained.")?,
            causes: IntCounterVec::new(
                Opts::new(
                    "ostrakon_drains_ended_total",
                    "Drains that ended, by result and cause: evicted, node_deleted, deadline.",
                ),
                &["result", "cause"],
            )?,
        };
        let ends =
            [("succeeded", "evicted"), ("succeeded", "node_deleted"), ("failed", "deadline")];
        for (result, cause) in ends {
            metrics.causes.with_label_values(&[result, cause]);
        }
        registry.register(Box::new(metrics.causes.clone()))?;
        Ok(metrics)
    }

    /// Registers gauges of how the nodes stand, which are read when they are scraped.
    pub(crate) fn register_gauges(
        registry: &Registry,
        facts: &Arc<Facts>,
        drains: &Arc<Drains>,
    ) -> prometheus::Result<()> {
        registry.register(Box::new(Nodes {
            facts: Arc::downgrade(facts),
            drains: Arc::clone(drains),
            phases: IntGaugeVec::new(
                Opts::new(
                    "ostrakon_drain_nodes",
                    "Nodes with the annotation ostrakon.dev/drain, by phase of the drain.",
                ),
                &["phase"],
            )?,
            waiting: IntGauge::new(
                "ostrakon_drain_capped_nodes",
                "Bad nodes that are not cordoned because too many nodes are unavailable.",
            )?,
            orphaned: IntGauge::new(
                "ostrakon_drain_orphaned_nodes",
                "Nodes that a policy cordoned that is configured no longer.",
            )?,
            out: IntGauge::new(
                "ostrakon_nodes_out_of_use",
                "Nodes that are cordoned, by anyone, or about to be.",
            )?,
        }))
    }

    pub(super) fn cordoned(&self, result: &str) {
        self.cordoned.with_label_values(&[result]).inc();
    }

    pub(super) fn uncordoned(&self, result: &str) {
        self.uncordoned.with_label_values(&[result]).inc();
    }

    pub(super) fn scheduled(&self, result: &str) {
        self.scheduled.with_label_values(&[result]).inc();
    }

    pub(super) fn drained(&self, result: &str, cause: &str) {
        self.drained.with_label_values(&[result]).inc();
        self.causes.with_label_values(&[result, cause]).inc();
    }
}

/// Reads how the nodes stand.
struct Nodes {
    facts: Weak<Facts>,
    drains: Arc<Drains>,
    phases: IntGaugeVec,
    waiting: IntGauge,
    orphaned: IntGauge,
    out: IntGauge,
}

impl Collector for Nodes {
    fn desc(&self) -> Vec<&Desc> {
        let mut desc = self.phases.desc();
        desc.extend(self.waiting.desc());
        desc.extend(self.orphaned.desc());
        desc.extend(self.out.desc());
        desc
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut counts = [0; DrainPhase::ALL.len()];
        let (rules, mut orphaned) = (self.drains.rules(), 0);
        if let Some(facts) = self.facts.upgrade() {
            let now = facts.clock.now();
            facts.view.each_node(|node| {
                if let Some(record) = node.drain_facts.as_deref().and_then(Record::of) {
                    counts[record.phase as usize] += 1;
                }
                let drain_facts = node.drain_facts.as_deref();
                let is_orphan = |facts| orphan(facts, &rules.policies, now).is_some();
                orphaned += i64::from(drain_facts.is_some_and(is_orphan));
            });
        }
        for phase in DrainPhase::ALL {
            self.phases.with_label_values(&[phase.label()]).set(counts[phase as usize]);
        }
        self.orphaned.set(orphaned);
        let node_budget = self.drains.node_budget.lock();
        self.waiting.set(i64::try_from(node_budget.waiting()).unwrap_or(i64::MAX));
        self.out.set(node_budget.unavailable().0.into());
        drop(node_budget);
        let mut families = self.phases.collect();
        families.extend(self.waiting.collect());
        families.extend(self.orphaned.collect());
        families.extend(self.out.collect());
        families
    }
}
