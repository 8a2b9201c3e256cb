//! Metrics of the comparison with who really goes.

use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

use super::shadow::{Kind, Shadow};

/// Counters and gauges of a dry run's comparison.
#[derive(Debug)]
pub(crate) struct ShadowMetrics {
    pods: IntCounterVec,
    waiting: IntGaugeVec,
}

impl ShadowMetrics {
    /// Registers them.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let pods = IntCounterVec::new(
            Opts::new(
                "ostrakon_shadow_pods_total",
                "Pods due for taints in a dry run, by how the other manager compares: same, later, \
                 earlier, only_ostrakon (it has not evicted the pod), only_other (ostrakon would not \
                 have), deleted_by_others (for another reason), undecided.",
            ),
            &["result"],
        )?;
        for kind in Kind::ALL {
            pods.with_label_values(&[kind.label()]);
        }
        registry.register(Box::new(pods.clone()))?;
        let waiting = IntGaugeVec::new(
            Opts::new(
                "ostrakon_shadow_waiting_pods",
                "Pods that a dry run would have evicted and that are still there: waiting, or overdue \
                 for five minutes.",
            ),
            &["state"],
        )?;
        registry.register(Box::new(waiting.clone()))?;
        let metrics = Self { pods, waiting };
        metrics.update(&Shadow::default());
        Ok(metrics)
    }

    /// Shows what the comparison has come to.
    pub(crate) fn update(&self, shadow: &Shadow) {
        for kind in Kind::ALL {
            let counter = self.pods.with_label_values(&[kind.label()]);
            counter.inc_by(shadow.count(kind).saturating_sub(counter.get()));
        }
        let (open, overdue) = shadow.waiting();
        for (state, count) in [("waiting", open - overdue), ("overdue", overdue)] {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.waiting.with_label_values(&[state]).set(count);
        }
    }
}
