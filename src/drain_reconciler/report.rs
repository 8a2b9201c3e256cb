//! Reports what happens to a node: events with draino's reasons, counters and logs.

use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use super::drain_metrics::DrainMetrics;
use crate::cluster::RequestError;
use crate::drain::{Blocker, Capped, Claim, Orphans, Report};
use crate::dry_run::DrainStories;
use crate::model::Node;
use crate::observe::{NodeEvent, Reason, Recorder};

/// Reports through events, metrics and logs.
#[derive(Clone)]
pub(crate) struct Reporter {
    pub recorder: Recorder,
    pub metrics: DrainMetrics,
    /// In a dry run, where it is kept what would have been done.
    pub stories: Option<Arc<DrainStories>>,
}

impl Reporter {
    /// Reports a stored change.
    pub(super) fn tell(&self, node: &Node, report: &Report) {
        match report {
            Report::None => {}
            Report::Cordoned => {
                self.metrics.cordoned("succeeded");
                self.event(node, Reason::CordonSucceeded, "Cordoned node");
            }
            Report::CordonedAgain => {
                self.metrics.cordoned("succeeded");
                let message = "Cordoned node again: cluster-autoscaler made it schedulable while a \
                               condition is bad";
                self.event(node, Reason::CordonSucceeded, message);
            }
            Report::Uncordoned => {
                self.metrics.uncordoned("succeeded");
                self.event(node, Reason::UncordonSucceeded, "Uncordoned node");
            }
            Report::Scheduled(at) => {
                self.metrics.scheduled("succeeded");
                self.event(node, Reason::DrainScheduled, &format!("Will drain node after {at}"));
            }
            Report::Cancelled(why) => {
                self.event(node, Reason::DrainCancelled, &format!("Drain cancelled: {why}"));
            }
            Report::Started => self.event(node, Reason::DrainStarting, "Draining node"),
            Report::Drained { cause, left } => {
                self.metrics.drained("succeeded", cause);
                let left = left.as_ref().map(|left| format!("; {left}")).unwrap_or_default();
                self.event(node, Reason::DrainSucceeded, &format!("Drained node{left}"));
            }
            Report::Waits(why) => {
                let message = format!("Drain is waiting; retrying evictions: {why}");
                self.event(node, Reason::DrainWaits, &message);
            }
            Report::Failed { cause, why } => {
                self.metrics.drained("failed", cause);
                self.event(node, Reason::DrainFailed, &format!("Draining failed: {why}"));
            }
            Report::Held(why) => {
                if self.recorder.is_news(node.uid, "drain held") {
                    self.metrics.scheduled("failed");
                    let message = format!("Drain scheduling failed: {why}");
                    self.event(node, Reason::DrainSchedulingFailed, &message);
                }
            }
            Report::Lingers => {
                let message = "The node was drained but still exists; check what should remove it, \
                               for example whether its node group is at its minimum size";
                self.event(node, Reason::DrainedNodeLingers, message);
            }
            Report::Unreadable(error) => {
                let message = format!(
                    "{error}; replacing it. If the node is cordoned, ostrakon treats the cordon as \
                    someone else's and does not remove it"
                );
                self.event(node, Reason::DrainRecordUnreadable, &message);
            }
        }
    }

    /// The node is about to be cordoned.
    pub(super) fn cordoning(&self, node: &Node) {
        if self.recorder.is_news(node.uid, "cordon starting") {
            self.event(node, Reason::CordonStarting, "Cordoning node");
        }
    }

    /// In a dry run: which policies want the node cordoned, and since when its conditions are bad.
    pub(super) fn wanted_by(&self, node: &Node, claims: &[Claim]) {
        let Some(stories) = &self.stories else { return };
        let since = |condition: &Arc<str>| {
            let kind = condition.split('=').next().unwrap_or_default();
            let known = node.drain_facts.as_deref().and_then(|facts| facts.condition(kind));
            match known.and_then(|known| known.since) {
                Some(since) => format!("{condition} since {}", since.written()),
                None => condition.to_string(),
            }
        };
        for Claim { policy, conditions } in claims {
            let conditions: Vec<_> = conditions.iter().map(since).collect();
            let message = format!("policy {policy}: {}", conditions.join(", "));
            stories.note(&node.name, self.recorder.now(), "PolicyMatches", &message);
        }
    }

    /// The node is about to be uncordoned.
    pub(super) fn uncordoning(&self, node: &Node) {
        if self.recorder.is_news(node.uid, "uncordon starting") {
            self.event(node, Reason::UncordonStarting, "Uncordoning node");
        }
    }

    /// The cordon is deferred: too many nodes are unavailable.
    pub(super) fn capped(&self, node: &Node, capped: &Capped) {
        if self.recorder.is_news(node.uid, "cordon capped") {
            self.event(node, Reason::CordonDeferred, &format!("Cordon deferred: {capped}"));
        }
    }

    /// The policy that cordoned the node is configured no longer.
    pub(super) fn orphaned(&self, node: &Node, policy: &str, orphans: Orphans) {
        let what = match orphans {
            Orphans::Keep => {
                "so it stays cordoned. Uncordon it, configure the policy again, or set orphans: Uncordon"
            }
            Orphans::Uncordon => "so it is uncordoned",
        };
        let message =
            format!("Policy {policy} cordoned the node and is not configured any more, {what}");
        self.event(node, Reason::CordonOrphaned, &message);
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
            self.event(node, Reason::GracePeriodCut, &message);
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
            (Reason::DrainConditionRefused, message)
        } else {
            let message = format!(
                "Cannot store annotation ostrakon.dev/drain ({error}). Cordon and drain continue, but \
                 after a restart ostrakon treats the cordon as someone else's and does not remove it. \
                 Allow ostrakon to write the annotation"
            );
            (Reason::DrainRecordRefused, message)
        };
        self.event(node, reason, &message);
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
                self.event(node, Reason::CordonFailed, &format!("Cordoning failed: {error}"));
            }
            "uncordon" => {
                self.metrics.uncordoned("failed");
                self.event(node, Reason::UncordonFailed, &format!("Uncordoning failed: {error}"));
            }
            "schedule" | "mark" => {
                self.metrics.scheduled("failed");
                let message = format!("Drain scheduling failed: {error}");
                self.event(node, Reason::DrainSchedulingFailed, &message);
            }
            // No end of the drain, which is what draino's DrainFailed tells of.
            "drain" => {
                let message = format!("Drain stalled; retrying: {error}");
                self.event(node, Reason::DrainStalled, &message);
            }
            _ => {}
        }
    }

    fn event(&self, node: &Node, reason: Reason, message: &str) {
        let dry_run = self.recorder.is_dry_run().then_some(true);
        let would = if dry_run.is_some() { "would report: " } else { "" };
        if reason.severity() == "Warning" {
            warn!(node = %node.name, ?reason, dry_run, "{would}{message}");
        } else {
            info!(node = %node.name, ?reason, dry_run, "{would}{message}");
        }
        if let Some(stories) = &self.stories {
            stories.note(&node.name, self.recorder.now(), &format!("{reason:?}"), message);
        }
        self.recorder.about_node(&NodeEvent { name: &node.name, uid: node.uid, reason, message });
    }
}
