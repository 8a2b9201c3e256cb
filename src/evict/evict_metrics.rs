//! Metrics of evictions: upstream's two under their own names, and ours, separately for taints and
//! drains.

use std::sync::Arc;
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
};

use super::{Backlog, CauseKind, FailureKind, State};

/// Counters of evictions. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    deletions: IntCounter,
    duration: Histogram,
    unmarked: IntCounterVec,
    taints: Counters,
    drains: Counters,
}

/// Counters of one kind of cause.
#[derive(Clone, Debug)]
struct Counters {
    results: IntCounterVec,
    failures: IntCounterVec,
}

impl Counters {
    fn register(
        registry: &Registry,
        (name, help): (&str, &str),
        results: &[&str],
        (failures_name, failures_help): (&str, &str),
    ) -> prometheus::Result<Self> {
        let counters = Self {
            results: IntCounterVec::new(Opts::new(name, help), &["result"])?,
            failures: IntCounterVec::new(Opts::new(failures_name, failures_help), &["cause"])?,
        };
        for result in results {
            counters.results.with_label_values(&[result]);
        }
        for kind in FailureKind::ALL {
            counters.failures.with_label_values(&[kind.label()]);
        }
        registry.register(Box::new(counters.results.clone()))?;
        registry.register(Box::new(counters.failures.clone()))?;
        Ok(counters)
    }
}

impl Metrics {
    /// Registers the counters, and gauges of the `backlog`.
    ///
    /// # Errors
    /// A metric of the same name is already registered.
    pub fn register(registry: &Registry, backlog: &Arc<Backlog>) -> prometheus::Result<Self> {
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
            unmarked: IntCounterVec::new(
                Opts::new(
                    "ostrakon_evictions_unmarked_total",
                    "Attempts to evict a pod in which its condition DisruptionTarget was refused, by \
                     cause; the pod is deleted without it.",
                ),
                &["cause"],
            )?,
            taints: Counters::register(
                registry,
                (
                    "ostrakon_evictions_total",
                    "Ends of evictions: deleted (the API server accepted the deletion), evicted (the \
                     Eviction API accepted it), already_gone (the pod no longer existed), withdrawn \
                     (no longer due when checked again), unconfirmed (postponed because the API server \
                     has newer data), blocked (a disruption budget allows no disruption), \
                     several_budgets (more than one budget selects the pod), paused (not sent because a \
                     pause had begun).",
                ),
                &[
                    "deleted",
                    "evicted",
                    ALREADY_GONE,
                    WITHDRAWN,
                    UNCONFIRMED,
                    BLOCKED,
                    SEVERAL_BUDGETS,
                    PAUSED,
                ],
                (
                    "ostrakon_eviction_failures_total",
                    "Failed attempts to evict a pod, by cause; each is retried.",
                ),
            )?,
            drains: Counters::register(
                registry,
                (
                    "ostrakon_drain_evictions_total",
                    "Evictions for drains: evicted (the API server accepted it), deleted (as a last \
                     resort), already_gone (the pod no longer existed), withdrawn (no longer \
                     needed), blocked (a disruption budget allows no disruption), several_budgets \
                     (more than one budget selects the pod), paused (not sent because a pause had \
                     begun).",
                ),
                &["evicted", "deleted", ALREADY_GONE, WITHDRAWN, BLOCKED, SEVERAL_BUDGETS, PAUSED],
                (
                    "ostrakon_drain_eviction_failures_total",
                    "Failed attempts to evict a pod for a drain, by cause; each is retried.",
                ),
            )?,
        };
        for kind in FailureKind::ALL {
            if kind.is_definite() || kind == FailureKind::Webhook {
                metrics.unmarked.with_label_values(&[kind.label()]);
            }
        }
        registry.register(Box::new(metrics.deletions.clone()))?;
        registry.register(Box::new(metrics.duration.clone()))?;
        registry.register(Box::new(metrics.unmarked.clone()))?;
        let taints = BacklogGauge::new(
            backlog,
            CauseKind::Taint,
            "ostrakon_backlog_pods",
            "Pods that are due by a taint and not yet gone, by state: due, held (by a limit or a pause), \
             unconfirmed, blocked (by a disruption budget), several_budgets, sent, or the cause of \
             the last failure.",
            &[State::Due, State::Unconfirmed, State::Blocked, State::SeveralBudgets, State::Sent],
        );
        registry.register(Box::new(taints?))?;
        let drains = BacklogGauge::new(
            backlog,
            CauseKind::Drain,
            "ostrakon_drain_backlog_pods",
            "Pods that drains are evicting and that are not yet gone, by state: due, held (by a \
             limit or a pause), blocked, several_budgets, sent, or the cause of the last failure.",
            &[State::Due, State::Blocked, State::SeveralBudgets, State::Sent],
        );
        registry.register(Box::new(drains?))?;
        Ok(metrics)
    }

    /// Counts an attempt that did not fail.
    pub(super) fn ended(&self, kind: CauseKind, result: &str) {
        self.of(kind).results.with_label_values(&[result]).inc();
    }

    /// Counts a deletion for a taint that the API server accepted this long after it became due.
    pub(super) fn deleted_by_taint(&self, after: Duration) {
        self.deletions.inc();
        self.duration.observe(after.as_secs_f64());
    }

    pub(super) fn unmarked(&self, kind: FailureKind) {
        self.unmarked.with_label_values(&[kind.label()]).inc();
    }

    pub(super) fn failed(&self, kind: CauseKind, failure: FailureKind) {
        self.of(kind).failures.with_label_values(&[failure.label()]).inc();
    }

    fn of(&self, kind: CauseKind) -> &Counters {
        match kind {
            CauseKind::Taint => &self.taints,
            CauseKind::Drain => &self.drains,
        }
    }
}

/// Results, as labels. The label of a success depends on the [method](super::Method).
pub(super) const ALREADY_GONE: &str = "already_gone";
pub(super) const WITHDRAWN: &str = "withdrawn";
pub(super) const UNCONFIRMED: &str = "unconfirmed";
/// Passed the queue before a pause began, and was not sent.
pub(super) const PAUSED: &str = "paused";
pub(super) const BLOCKED: &str = "blocked";
pub(super) const SEVERAL_BUDGETS: &str = "several_budgets";

/// Counts the backlog at each scrape, so that no code path can forget an update.
struct BacklogGauge {
    backlog: Arc<Backlog>,
    kind: CauseKind,
    /// States that are exported even at zero.
    states: Vec<State>,
    gauge: IntGaugeVec,
}

impl BacklogGauge {
    fn new(
        backlog: &Arc<Backlog>,
        kind: CauseKind,
        name: &str,
        help: &str,
        states: &[State],
    ) -> prometheus::Result<Self> {
        let gauge = IntGaugeVec::new(Opts::new(name, help), &["state"])?;
        let failing = FailureKind::ALL.map(State::Failing);
        let states = states.iter().copied().chain(failing).collect();
        Ok(Self { backlog: Arc::clone(backlog), kind, states, gauge })
    }
}

impl Collector for BacklogGauge {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let counts = self.backlog.counts(self.kind);
        self.gauge.reset();
        let labels = self.states.iter().map(|state| state.label()).chain(["held"]);
        let none = labels.map(|label| (label, 0));
        for (state, count) in none.chain(counts) {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.gauge.with_label_values(&[state]).set(count);
        }
        self.gauge.collect()
    }
}
