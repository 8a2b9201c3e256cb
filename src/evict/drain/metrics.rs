//! What is counted about the evictions of drains.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

use super::{OrderState, Orders};
use crate::evict::FailureKind;

/// How a try ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    Evicted,
    Deleted,
    AlreadyGone,
    Withdrawn,
    Blocked,
    SeveralBudgets,
}

impl Counted {
    const ALL: [Self; 6] = [
        Self::Evicted,
        Self::Deleted,
        Self::AlreadyGone,
        Self::Withdrawn,
        Self::Blocked,
        Self::SeveralBudgets,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Evicted => "evicted",
            Self::Deleted => "deleted",
            Self::AlreadyGone => "already_gone",
            Self::Withdrawn => "withdrawn",
            Self::Blocked => "blocked",
            Self::SeveralBudgets => "several_budgets",
        }
    }
}

/// Counters of the evictions of drains. Clones share them.
#[derive(Clone, Debug)]
pub struct OrderMetrics {
    results: IntCounterVec,
    failures: IntCounterVec,
}

impl OrderMetrics {
    /// Registers the counters, and a gauge of what is in `orders`.
    ///
    /// # Errors
    /// A metric of the same name is registered already.
    pub fn register(registry: &Registry, orders: Arc<Orders>) -> prometheus::Result<Self> {
        let metrics = Self {
            results: IntCounterVec::new(
                Opts::new(
                    "ostrakon_drain_evictions_total",
                    "Tries to evict pods of nodes that are drained: evicted (the API server took \
                     it), deleted (the last resort), already_gone (there was no such pod any more), \
                     withdrawn (no longer wanted), blocked (the disruption budget has nothing \
                     left), several_budgets (more than one selects the pod).",
                ),
                &["result"],
            )?,
            failures: IntCounterVec::new(
                Opts::new(
                    "ostrakon_drain_eviction_failures_total",
                    "Failed tries to evict a pod of a node that is drained, by cause; each is tried \
                     again.",
                ),
                &["cause"],
            )?,
        };
        for result in Counted::ALL {
            metrics.results.with_label_values(&[result.label()]);
        }
        for kind in FailureKind::ALL {
            metrics.failures.with_label_values(&[kind.label()]);
        }
        registry.register(Box::new(metrics.results.clone()))?;
        registry.register(Box::new(metrics.failures.clone()))?;
        let gauge = IntGaugeVec::new(
            Opts::new(
                "ostrakon_drain_backlog_pods",
                "Pods that drains have ordered to go and that are not yet gone, by state: due, \
                 blocked, several_budgets, sent, or the cause of the last failure.",
            ),
            &["state"],
        )?;
        registry.register(Box::new(OrdersGauge { orders, gauge }))?;
        Ok(metrics)
    }

    pub(super) fn ended(&self, result: Counted) {
        self.results.with_label_values(&[result.label()]).inc();
    }

    pub(super) fn failed(&self, kind: FailureKind) {
        self.failures.with_label_values(&[kind.label()]).inc();
    }
}

/// Counts the orders when it is asked to, so that no path can forget to.
struct OrdersGauge {
    orders: Arc<Orders>,
    gauge: IntGaugeVec,
}

impl Collector for OrdersGauge {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let counts = self.orders.counts();
        let failing = FailureKind::ALL.map(OrderState::Failing);
        let others =
            [OrderState::Due, OrderState::Blocked, OrderState::SeveralBudgets, OrderState::Sent];
        for state in others.into_iter().chain(failing) {
            let count = counts.get(state.label()).copied().unwrap_or_default();
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.gauge.with_label_values(&[state.label()]).set(count);
        }
        self.gauge.collect()
    }
}
