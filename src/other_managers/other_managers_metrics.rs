//! Metrics of other managers, read when they are scraped.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, IntGauge, Opts, Registry};

use super::{OtherManagers, Standing};

struct Gauges {
    others: Arc<OtherManagers>,
    active: IntGauge,
    pods: IntCounterVec,
}

/// Registers the metrics.
pub(crate) fn register(registry: &Registry, others: &Arc<OtherManagers>) -> prometheus::Result<()> {
    registry.register(Box::new(Gauges {
        others: Arc::clone(others),
        active: IntGauge::new(
            "ostrakon_other_manager",
            "1 if another controller has evicted pods for NoExecute taints within the last 5 minutes.",
        )?,
        pods: IntCounterVec::new(
            Opts::new(
                "ostrakon_other_manager_pods_total",
                "Pods that another controller seems to have evicted for NoExecute taints, by evidence.",
            ),
            &["evidence"],
        )?,
    }))
}

impl Collector for Gauges {
    fn desc(&self) -> Vec<&Desc> {
        [self.active.desc(), self.pods.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let is_proven = matches!(self.others.standing(), Standing::Shared(_));
        self.active.set(i64::from(is_proven));
        let OtherManagers { marks, deletions, .. } = &*self.others;
        for (evidence, count) in [("condition", marks), ("deletion", deletions)] {
            let counter = self.pods.with_label_values(&[evidence]);
            counter.inc_by(count.load(Ordering::Relaxed).saturating_sub(counter.get()));
        }
        [self.active.collect(), self.pods.collect()].concat()
    }
}
