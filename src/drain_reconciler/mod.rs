//! Cordon and drain: executes the decisions of [`crate::drain`].
//!
//! A node reaches its shard's worker like any other change. If the decision is to wait, the node's timer is
//! set. If there is something to do now, the node is queued for the reconciler; the queue handles a node
//! only once at a time. The reconciler reads the node from the API server, decides again, writes, and
//! continues from the stored result until there is nothing to do now. The evictor evicts the pods, in its
//! window, like all others.

mod drain_metrics;
mod orphan_reports;
mod reconciler;
mod report;
mod rules;
mod unstored;

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;

pub(crate) use drain_metrics::DrainMetrics;
use orphan_reports::OrphanReports;
pub(crate) use reconciler::{DrainReconciler, run};
pub(crate) use report::Reporter;
pub(crate) use rules::DrainRules;
use rules::Replaceable;
use unstored::Unstored;

use crate::cluster::Watched;
use crate::drain::{
    Action, Change, DrainPhase, NodeBudget, Orphans, Policy, Record, Report, Step, is_draining,
    is_removed, next_step,
};
use crate::informer::NodeListener;
use crate::model::{Node, NodeName};
use crate::pipeline::TimedQueue;

/// What cordon and drain share: the policies in force, and what concerns more than one node.
pub(crate) struct Drains {
    rules: Replaceable,
    pub node_budget: Mutex<NodeBudget>,
    pub reporter: Reporter,
    unstored: Unstored,
    orphan_reports: OrphanReports,
    /// Nodes about which something is to be done.
    pub due: Arc<TimedQueue<NodeName, ()>>,
}

impl Drains {
    pub(crate) fn new(policies: Arc<[Policy]>, orphans: Orphans, reporter: Reporter) -> Self {
        let node_budget = Mutex::new(NodeBudget::new(&policies));
        let (unstored, due) = (Unstored::default(), Arc::default());
        let orphan_reports = OrphanReports::default();
        let rules = Replaceable::new(policies, orphans);
        Self { rules, node_budget, reporter, unstored, orphan_reports, due }
    }

    /// The policies in force. A decision uses the same ones from its beginning to its end.
    pub(crate) fn rules(&self) -> Arc<DrainRules> {
        self.rules.in_force()
    }

    /// What has to be read of a node.
    pub(crate) fn watched(&self) -> Arc<Watched> {
        Arc::clone(&self.rules.read_for().watched)
    }

    /// Has nodes read for these policies too. They may be put in force when all nodes have been listed again.
    pub(crate) fn prepare(&self, policies: Arc<[Policy]>) {
        let in_force = self.rules();
        self.node_budget.lock().count_for(policies.iter().chain(&*in_force.policies));
        self.rules.prepare(policies);
    }

    /// Puts these policies in force. Records on nodes, grants and planned starts stay.
    pub(crate) fn replace(&self, policies: Arc<[Policy]>, orphans: Orphans) {
        self.node_budget.lock().count_for(&*policies);
        self.rules.replace(policies, orphans);
    }

    /// This process leads from now on.
    pub(crate) fn lead(&self, now: Timestamp) {
        self.unstored.clear();
        self.node_budget.lock().lead(Some(now));
    }

    /// This process leads no more; steps may still be under way.
    pub(crate) fn stand_by(&self) {
        self.node_budget.lock().lead(None);
    }

    /// Forgets what belongs to the work of a term. No step may be under way.
    pub(crate) fn forget_work(&self) {
        self.due.clear();
        self.unstored.clear();
        self.orphan_reports.forget_all();
        self.node_budget.lock().forget_claims();
    }

    /// What is to be done about a node.
    pub(crate) fn step(&self, rules: &DrainRules, node: &Node, now: Timestamp) -> Step {
        let Some(recalled) = self.unstored.recall(node, now) else {
            return next_step(node, &rules.policies, rules.orphans, now);
        };
        let step = next_step(&recalled, &rules.policies, rules.orphans, now);
        // A node that is being removed is left alone, and needs no record.
        if node.drain_facts.as_deref().is_some_and(is_removed) {
            return step;
        }
        match (step, self.unstored.again(&node.name)) {
            (Step::Rest | Step::Wait(_), Some(again)) if again <= now => {
                let record = recalled.drain_facts.as_deref().and_then(Record::of);
                let unschedulable = None;
                let (retry_taken, report) = (false, Report::None);
                Step::Action(Action::Write(Change { record, unschedulable, retry_taken, report }))
            }
            (Step::Rest, Some(again)) => Step::Wait(again),
            (Step::Wait(at), Some(again)) => Step::Wait(at.min(again)),
            (step, _) => step,
        }
    }

    /// Reports a node whose cordon is no policy's any more. Returns when to report it again.
    pub(crate) fn report_orphan(&self, node: &Node, now: Timestamp) -> Option<Timestamp> {
        let recalled = self.unstored.recall(node, now);
        let known = recalled.as_ref().unwrap_or(node);
        self.orphan_reports.look_at(known, &self.rules(), &self.reporter, now)
    }

    /// Takes in whether a drain has begun whose write is on its way, by the node as it is stored.
    fn settle(&self, node: &Node, now: Timestamp) {
        let recalled = self.unstored.recall(node, now);
        if let Some(drain_facts) = &recalled.as_ref().unwrap_or(node).drain_facts {
            self.node_budget.lock().settle(&node.name, drain_facts);
        }
    }

    /// Whether a drain is to go on evicting.
    pub(crate) fn is_draining(&self, node: &Node, session: &str, now: Timestamp) -> bool {
        let recalled = self.unstored.recall(node, now);
        is_draining(recalled.as_ref().unwrap_or(node), session, &self.rules().policies, now)
    }
}

impl NodeListener for Drains {
    fn watched(&self) -> Arc<Watched> {
        self.watched()
    }

    fn see(&self, node: &Node, now: Timestamp) {
        let recalled = self.unstored.recall(node, now);
        let Some(drain_facts) = &recalled.as_ref().unwrap_or(node).drain_facts else { return };
        let policies = &self.rules.read_for().policies;
        let record = Record::believed(drain_facts, policies, now);
        let plan = record.filter(|record| record.plans(drain_facts, policies));
        self.node_budget.lock().see(&node.name, drain_facts, plan.as_ref());
    }

    /// If it was being drained, it is drained now; who leads says so.
    fn gone(&self, node: &Node, now: Timestamp) {
        let leads = {
            let mut node_budget = self.node_budget.lock();
            node_budget.forget(&node.name);
            node_budget.leads()
        };
        let recalled = self.unstored.recall(node, now);
        self.unstored.forget(&node.name);
        self.orphan_reports.forget(&node.name);
        let policies = &self.rules().policies;
        if let Some(drain_facts) = recalled.as_ref().unwrap_or(node).drain_facts.as_deref()
            && let Some(record) = Record::believed(drain_facts, policies, now)
            && record.plans(drain_facts, policies)
            && record.phase == DrainPhase::Draining
            && leads
        {
            self.reporter.tell(node, &Report::Drained { cause: "node_deleted", left: None });
        }
    }
}

/// Whether this is a step of a drain under way, so that its evictions go on.
pub(crate) fn evicts(step: &Step) -> bool {
    match step {
        Step::Action(
            Action::Continue(_) | Action::Expire(_) | Action::Mark { scheduled: true, .. },
        ) => true,
        Step::Action(Action::Write(Change { record: Some(record), .. })) => {
            record.phase == DrainPhase::Draining
        }
        _ => false,
    }
}
