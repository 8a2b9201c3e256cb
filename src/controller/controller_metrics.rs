//! Metrics of queues, read when they are scraped.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use crate::evict::{Schedule, Window};
use crate::informer::{Facts, WorkQueues};

/// Reads the queues of a running controller.
struct Gauges {
    facts: Arc<Facts>,
    queues: Arc<WorkQueues>,
    schedule: Arc<Schedule>,
    evictions: Arc<Window>,
    depth: IntGaugeVec,
    adds: IntCounterVec,
    full: IntCounterVec,
    timers: IntGaugeVec,
    in_flight: IntGauge,
    window: IntGauge,
    objects: IntGaugeVec,
}

/// Registers the queues' metrics and the build's.
pub(super) fn register(
    registry: &Registry,
    facts: &Arc<Facts>,
    queues: &Arc<WorkQueues>,
    schedule: &Arc<Schedule>,
    evictions: &Arc<Window>,
) -> prometheus::Result<()> {
    let build = IntGaugeVec::new(
        Opts::new("ostrakon_build_info", "Always 1; the label is the version."),
        &["version"],
    )?;
    build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    registry.register(Box::new(build))?;
    registry.register(Box::new(Gauges {
        facts: Arc::clone(facts),
        queues: Arc::clone(queues),
        schedule: Arc::clone(schedule),
        evictions: Arc::clone(evictions),
        depth: IntGaugeVec::new(
            // Names as client-go's work queue metrics have them, so that dashboards go on working.
            Opts::new("workqueue_depth", "Current depth of workqueue"),
            &["name"],
        )?,
        adds: IntCounterVec::new(
            Opts::new("workqueue_adds_total", "Total number of adds handled by workqueue"),
            &["name"],
        )?,
        full: IntCounterVec::new(
            Opts::new(
                "ostrakon_shard_channel_full_total",
                "How often a queued item had to wait because the channel of its shard was full, by \
                 work queue.",
            ),
            &["name"],
        )?,
        timers: IntGaugeVec::new(
            Opts::new(
                "ostrakon_timers",
                "Entries of the timed worker queue by shard: countdowns and retries of evictions, and \
                 nodes to re-evaluate.",
            ),
            &["shard"],
        )?,
        in_flight: IntGauge::new(
            "ostrakon_evictions_in_flight",
            "Evictions in flight.",
        )?,
        window: IntGauge::new(
            "ostrakon_evictions_window",
            "How many evictions may be in flight; adapts to the API server's answers.",
        )?,
        objects: IntGaugeVec::new(
            Opts::new("ostrakon_objects", "Objects in the view, by resource."),
            &["resource"],
        )?,
    }))
}

impl Collector for Gauges {
    fn desc(&self) -> Vec<&Desc> {
        let mut desc = self.depth.desc();
        desc.extend(self.adds.desc());
        desc.extend(self.full.desc());
        desc.extend(self.timers.desc());
        desc.extend(self.in_flight.desc());
        desc.extend(self.window.desc());
        desc.extend(self.objects.desc());
        desc
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let (nodes, pods) = (&self.queues.nodes, &self.queues.pods);
        for (name, depth, adds, full) in [
            ("noexec_taint_node", nodes.len(), nodes.adds(), nodes.full_channels()),
            ("noexec_taint_pod", pods.len(), pods.adds(), pods.full_channels()),
        ] {
            self.depth.with_label_values(&[name]).set(signed(depth));
            for (counters, count) in [(&self.adds, adds), (&self.full, full)] {
                let counter = counters.with_label_values(&[name]);
                counter.inc_by(count.saturating_sub(counter.get()));
            }
        }
        let timers = self.queues.timers.iter().zip(&self.schedule.timers);
        for (shard, (nodes, evictions)) in timers.enumerate() {
            let count = nodes.len() + evictions.len();
            self.timers.with_label_values(&[&shard.to_string()]).set(signed(count));
        }
        self.in_flight.set(signed(self.evictions.in_flight()));
        self.window.set(signed(self.evictions.window()));
        let (nodes, pods) = self.facts.view.counts();
        self.objects.with_label_values(&["nodes"]).set(signed(nodes));
        self.objects.with_label_values(&["pods"]).set(signed(pods));
        let mut families = self.depth.collect();
        families.extend(self.adds.collect());
        families.extend(self.full.collect());
        families.extend(self.timers.collect());
        families.extend(self.in_flight.collect());
        families.extend(self.window.collect());
        families.extend(self.objects.collect());
        families
    }
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
