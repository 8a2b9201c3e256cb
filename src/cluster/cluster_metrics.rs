//! Metrics of requests and watches.

use std::time::Duration;

use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, core::Collector,
};

use super::watch::End;
use crate::observe::{Readiness, Sign};

/// Counters of requests and watches. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Whether each resource is being watched, for readiness.
    signs: Vec<(&'static str, Sign)>,
    requests: IntCounterVec,
    latency: HistogramVec,
    relists: IntCounterVec,
    watch_restarts: IntCounterVec,
    undecodable: IntCounterVec,
    unread: IntCounterVec,
    connected: IntGaugeVec,
}

impl Metrics {
    /// Registers the counters.
    ///
    /// # Errors
    /// A metric of the same name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self {
            signs: Vec::new(),
            requests: kept(
                registry,
                IntCounterVec::new(
                    Opts::new(
                        "ostrakon_api_requests_total",
                        "Requests to the API server by verb, resource and status code; code is \
                         'timeout' or 'error' when there was no answer.",
                    ),
                    &["verb", "resource", "code"],
                )?,
            )?,
            latency: kept(
                registry,
                HistogramVec::new(
                    HistogramOpts::new(
                        "ostrakon_api_request_duration_seconds",
                        "Time from sending a request to the end of its response.",
                    )
                    .buckets(vec![
                        0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0,
                    ]),
                    &["verb", "resource"],
                )?,
            )?,
            relists: kept(
                registry,
                IntCounterVec::new(
                    Opts::new("ostrakon_watch_lists_total", "Complete lists taken, by resource."),
                    &["resource"],
                )?,
            )?,
            watch_restarts: kept(
                registry,
                IntCounterVec::new(
                    Opts::new(
                        "ostrakon_watch_ends_total",
                        "Watch streams that ended, by resource and cause; each is resumed.",
                    ),
                    &["resource", "cause"],
                )?,
            )?,
            undecodable: kept(
                registry,
                IntCounterVec::new(
                    Opts::new(
                        "ostrakon_undecodable_objects_total",
                        "Objects that could not be decoded and were skipped, by resource. Every one is \
                         a bug; the log names the object.",
                    ),
                    &["resource"],
                )?,
            )?,
            unread: kept(
                registry,
                IntCounterVec::new(
                    Opts::new(
                        "ostrakon_unread_parts_total",
                        "Parts of objects that are ignored because they are unreadable or too long, by \
                         resource; each is counted once per object. The log names object and part.",
                    ),
                    &["resource"],
                )?,
            )?,
            connected: kept(
                registry,
                IntGaugeVec::new(
                    Opts::new(
                        "ostrakon_watch_connected",
                        "Whether the watch is connected, by resource. If it stays 0, evictions are \
                         based on old data: the API server is unreachable.",
                    ),
                    &["resource"],
                )?,
            )?,
        };
        for resource in ["nodes", "pods"] {
            for cause in End::LABELS {
                metrics.watch_restarts.with_label_values(&[resource, cause]);
            }
        }
        Ok(metrics)
    }

    /// Tells `readiness` too whether nodes and pods are being watched.
    pub fn telling(mut self, readiness: &Readiness) -> Self {
        self.signs = vec![
            ("nodes", readiness.sign("watch of nodes")),
            ("pods", readiness.sign("watch of pods")),
        ];
        self
    }

    fn sign(&self, resource: &str) -> Option<&Sign> {
        self.signs.iter().find_map(|(of, sign)| (*of == resource).then_some(sign))
    }

    /// A list failed, or a watch ended, for this reason.
    pub(super) fn lost_sight(&self, resource: &str, cause: &str) {
        if let Some(sign) = self.sign(resource) {
            sign.bad(&cause);
        }
    }

    pub(super) fn request(&self, verb: &str, resource: &str, code: &str, took: Duration) {
        self.requests.with_label_values(&[verb, resource, code]).inc();
        self.latency.with_label_values(&[verb, resource]).observe(took.as_secs_f64());
    }

    pub(super) fn listed(&self, resource: &str) {
        self.relists.with_label_values(&[resource]).inc();
    }

    pub(super) fn watch_ended(&self, resource: &str, cause: &str) {
        self.watch_restarts.with_label_values(&[resource, cause]).inc();
    }

    pub(super) fn connected(&self, resource: &str, yes: bool) {
        self.connected.with_label_values(&[resource]).set(i64::from(yes));
        if yes && let Some(sign) = self.sign(resource) {
            sign.good();
        }
    }

    /// A part of an object counts as absent.
    pub fn unread(&self, resource: &str) {
        self.unread.with_label_values(&[resource]).inc();
    }

    pub(super) fn undecodable(&self, resource: &str) {
        self.undecodable.with_label_values(&[resource]).inc();
    }
}

fn kept<C: Collector + Clone + 'static>(registry: &Registry, metric: C) -> prometheus::Result<C> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}
