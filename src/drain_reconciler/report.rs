//! Reports what happens to a node: events with draino's reasons, counters and logs.

use std::time::Duration;

use tracing::{info, warn};

use super::drain_metrics::DrainMetrics;
use crate::cluster::RequestError;
use crate::drain::{Blocker, Capped, Report};
use crate::model::Node;
use crate::observe::{NodeEvent, Recorder};

/// Reports through events, metrics and logs.
#[derive(Clone)]
pub(crate) struct Reporter {
    pub recorder: Recorder,
    pub metrics: DrainMetrics,
}

impl Reporter {
    /// Reports a stored change.
    pub(super) fn tell(&self, node: &Node, report: &Report) {
        match report {
            Report::None => {}
            Report::Cordoned => {
                self.metrics.cordoned("succeeded");
                self.normal(node, "CordonSucceeded", "Cordoned node");
            }
            Report::CordonedAgain => {
                self.metrics.cordoned("succeeded");
                let message = "Cordoned node again: cluster-autoscaler made it schedulable while a \
                               condition is bad";
                self.normal(node, "CordonSucceeded", message);
            }
            Report::Uncordoned => {
                self.metrics.uncordoned("succeeded");
                self.normal(node, "UncordonSucceeded", "Uncordoned node");
            }
            Report::Scheduled(at) => {
                self.metrics.scheduled("succeeded");
                self.normal(node, "DrainScheduled", &format!("Will drain node after {at}"));
            }
            Report::Cancelled(why) => {
                self.normal(node, "DrainCancelled", &format!("Drain cancelled: {why}"));
            }
            Report::Started => self.normal(node, "DrainStarting", "Draining node"),
            Report::Drained { cause, left } => {
                self.metrics.drained("succeeded", cause);
                let left = left.as_ref().map(|left| format!("; {left}")).unwrap_or_default();
                self.normal(node, "DrainSucceeded", &format!("Drained node{left}"));
            }
            Report::Waits(why) => {
                let message = format!("Drain is waiting; retrying evictions: {why}");
                self.warning(node, "DrainWaits", &message);
            }
            Report::Failed { cause, why } => {
                self.metrics.drained("failed", cause);
                self.warning(node, "DrainFailed", &format!("Draining failed: {why}"));
            }
            Report::Held(why) => {
                if self.recorder.is_news(node.uid, "drain held") {
                    self.metrics.scheduled("failed");
                    let message = format!("Drain scheduling failed: {why}");
                    self.warning(node, "DrainSchedulingFailed", &message);
                }
            }
            Report::Lingers => {
                let message = "The node was drained but still exists; check what should remove it, \
                               for example whether its node group is at its minimum size";
                self.warning(node, "DrainedNodeLingers", message);
            }
            Report::Unreadable(error) => {
                let message = format!(
                    "{error}; replacing it. If the node is cordoned, ostrakon treats the cordon as \
                    someone else's and does not remove it"
                );
                self.warning(node, "DrainRecordUnreadable", &message);
            }
        }
    }

    /// The node is about to be cordoned.
    pub(super) fn cordoning(&self, node: &Node) {
        if self.recorder.is_news(node.uid, "cordon starting") {
            self.normal(node, "CordonStarting", "Cordoning node");
        }
    }

    /// The node is about to be uncordoned.
    pub(super) fn uncordoning(&self, node: &Node) {
        if self.recorder.is_news(node.uid, "uncordon starting") {
            self.normal(node, "UncordonStarting", "Uncordoning node");
        }
    }

    /// The cordon is deferred: too many nodes are unavailable.
    pub(super) fn capped(&self, node: &Node, capped: &Capped) {
        if self.recorder.is_news(node.uid, "cordon capped") {
            self.normal(node, "CordonDeferred", &format!("Cordon deferred: {capped}"));
        }
    }

    /// These pods stay on their node, or block its drain.
    pub(super) fn report_blockers(&self, blockers: &[Blocker]) {
        // A few examples show what to fix; a hundred such pods must not cause a hundred events.
        const MOST: usize = 10;
        for blocker in blockers.iter().take(MOST) {
            let (pod, why) = match blocker {
                Blocker::Left(pod, why) => (pod, why.to_string()),
                Blocker::Budget(pod, budget_blocker) => (pod, budget_blocker.to_string()),
                Blocker::Unknown(unknown) => (&unknown.pod, unknown.to_string()),
            };
            self.recorder.drain_blocked(pod, "blocker", &why);
        }
    }

    /// The policy shortens the grace period of some pods.
    pub(super) fn grace_cut(&self, node: &Node, pods: usize, most: Duration) {
        if self.recorder.is_news(node.uid, "grace cut") {
            let message = format!(
                "{pods} pods have a longer grace period than the policy allows; it is cut to {most:?}"
            );
            self.warning(node, "GracePeriodCut", &message);
        }
    }

    /// What tells others of the drain was refused for the `attempts`th time, and is kept in memory: its
    /// `record`, or its `mark`.
    pub(super) fn unstored(&self, node: &Node, what: &'static str, error: &str, attempts: u32) {
        if !attempts.is_power_of_two() || !self.recorder.is_news(node.uid, what) {
            return;
        }
        let (reason, message) = if what == "mark" {
            let message = format!(
                "Cannot set condition DrainScheduled ({error}); cordon and drain continue without it"
            );
            ("DrainConditionRefused", message)
        } else {
            let message = format!(
                "Cannot store annotation ostrakon.dev/drain ({error}). Cordon and drain continue, but \
                 after a restart ostrakon treats the cordon as someone else's and does not remove it. \
                 Allow ostrakon to write the annotation"
            );
            ("DrainRecordRefused", message)
        };
        self.warning(node, reason, &message);
    }

    /// A request for the node was refused or not answered, so many times in a row. At most once a
    /// minute for a node and a kind of step.
    pub(super) fn step_failed(
        &self,
        node: &Node,
        what: &'static str,
        error: &RequestError,
        attempts: u32,
    ) {
        // A drain takes long, and its attempts are many: with growing pauses there is always an event of
        // the last hour, and never a hundred.
        if what == "drain" && !attempts.is_power_of_two() || !self.recorder.is_news(node.uid, what)
        {
            return;
        }
        match what {
            "cordon" => {
                self.metrics.cordoned("failed");
                self.warning(node, "CordonFailed", &format!("Cordoning failed: {error}"));
            }
            "uncordon" => {
                self.metrics.uncordoned("failed");
                self.warning(node, "UncordonFailed", &format!("Uncordoning failed: {error}"));
            }
            "schedule" | "mark" => {
                self.metrics.scheduled("failed");
                let message = format!("Drain scheduling failed: {error}");
                self.warning(node, "DrainSchedulingFailed", &message);
            }
            // No end of the drain, which is what draino's DrainFailed tells of.
            "drain" => {
                let message = format!("Drain stalled; retrying: {error}");
                self.warning(node, "DrainStalled", &message);
            }
            _ => {}
        }
    }

    fn normal(&self, node: &Node, reason: &'static str, message: &str) {
        if self.recorder.is_dry_run() {
            info!(node = %node.name, reason, dry_run = true, "would report: {message}");
        } else {
            info!(node = %node.name, reason, "{message}");
        }
        self.send(node, "Normal", reason, message);
    }

    fn warning(&self, node: &Node, reason: &'static str, message: &str) {
        if self.recorder.is_dry_run() {
            warn!(node = %node.name, reason, dry_run = true, "would report: {message}");
        } else {
            warn!(node = %node.name, reason, "{message}");
        }
        self.send(node, "Warning", reason, message);
    }

    fn send(&self, node: &Node, kind: &'static str, reason: &'static str, message: &str) {
        self.recorder.about_node(&NodeEvent {
            name: &node.name,
            uid: node.uid,
            kind,
            reason,
            message,
        });
    }
}
