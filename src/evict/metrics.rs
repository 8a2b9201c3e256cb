//! What is counted about evictions: upstream's two metrics under their names, and our own.

use std::sync::Arc;
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
};

use super::{Backlog, FailureKind, State};

/// Counters of evictions. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    deletions: IntCounter,
    duration: Histogram,
    results: IntCounterVec,
    failures: IntCounterVec,
    unmarked: IntCounterVec,
}

impl Metrics {
    /// Registers the counters, and a gauge of what is in `backlog`.
    ///
    /// # Errors
    /// A metric of the same name is registered already.
    pub fn register(registry: &Registry, backlog: Arc<Backlog>) -> prometheus::Result<Self> {
        let metrics = Self {
            deletions: IntCounter::new(
                "taint_eviction_controller_pod_deletions_total",
                "Total number of Pods deleted by TaintEvictionController since its start.",
            )?,
            duration: Histogram::with_opts(
                HistogramOpts::new(
                    "taint_eviction_controller_pod_deletion_duration_seconds",
                    "Latency, in seconds, between the time when a taint effect has been activated \
                     for the Pod and its deletion via TaintEvictionController.",
                )
                .buckets(vec![
                    0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0,
                ]),
            )?,
            results: IntCounterVec::new(
                Opts::new(
                    "ostrakon_evictions_total",
                    "Ends of evictions: deleted (the API server took the deletion), already_gone \
                     (there was no such pod any more), withdrawn (no longer condemned when asked \
                     again), unconfirmed (put off because the API server knew better).",
                ),
                &["result"],
            )?,
            failures: IntCounterVec::new(
                Opts::new(
                    "ostrakon_eviction_failures_total",
                    "Failed tries to evict a pod, by cause; each is tried again.",
                ),
                &["cause"],
            )?,
            unmarked: IntCounterVec::new(
                Opts::new(
                    "ostrakon_evictions_unmarked_total",
                    "Tries to evict a pod in which its condition DisruptionTarget was refused, by \
                     cause; the pod is deleted without it.",
                ),
                &["cause"],
            )?,
        };
        for result in ["deleted", "already_gone", "withdrawn", "unconfirmed"] {
            metrics.results.with_label_values(&[result]);
        }
        for kind in FailureKind::ALL {
            metrics.failures.with_label_values(&[kind.label()]);
            if kind.is_definite() || kind == FailureKind::Webhook {
                metrics.unmarked.with_label_values(&[kind.label()]);
            }
        }
        registry.register(Box::new(metrics.deletions.clone()))?;
        registry.register(Box::new(metrics.duration.clone()))?;
        registry.register(Box::new(metrics.results.clone()))?;
        registry.register(Box::new(metrics.failures.clone()))?;
        registry.register(Box::new(metrics.unmarked.clone()))?;
        registry.register(Box::new(BacklogGauge::new(backlog)?))?;
        Ok(metrics)
    }

    pub(super) fn deleted(&self, after: Duration) {
        self.deletions.inc();
        self.duration.observe(after.as_secs_f64());
        self.results.with_label_values(&["deleted"]).inc();
    }

    pub(super) fn ended(&self, result: &str) {
        self.results.with_label_values(&[result]).inc();
    }

    pub(super) fn unmarked(&self, kind: FailureKind) {
        self.unmarked.with_label_values(&[kind.label()]).inc();
    }

    pub(super) fn failed(&self, kind: FailureKind) {
        self.failures.with_label_values(&[kind.label()]).inc();
    }
}

/// Counts the backlog when it is asked to, so that no path can forget to.
struct BacklogGauge {
    backlog: Arc<Backlog>,
    gauge: IntGaugeVec,
}

impl BacklogGauge {
    fn new(backlog: Arc<Backlog>) -> prometheus::Result<Self> {
        let gauge = IntGaugeVec::new(
            Opts::new(
                "ostrakon_backlog_pods",
                "Pods that are condemned, due, and not yet gone, by state: due, unconfirmed, sent, \
                 or the cause of the last failure.",
            ),
            &["state"],
        )?;
        Ok(Self { backlog, gauge })
    }
}

impl Collector for BacklogGauge {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let counts = self.backlog.counts();
        let failing = FailureKind::ALL.map(State::Failing);
        for state in [State::Due, State::Unconfirmed, State::Sent].into_iter().chain(failing) {
            let count = counts.get(state.label()).copied().unwrap_or_default();
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.gauge.with_label_values(&[state.label()]).set(count);
        }
        self.gauge.collect()
    }
}
