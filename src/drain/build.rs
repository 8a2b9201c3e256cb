//! Short forms of nodes and policies, for tests.

use std::sync::Arc;
use std::time::Duration;

use super::{ConditionRule, Limits, Policy, Record};
use crate::model::build::{node, stamp};
use crate::model::{Autoscaler, Condition, ConditionStatus, Labels, Node, NodeDrainFacts};

/// A policy for every node, without caps, notice or spacing; its rules in draino's form.
pub(crate) fn policy(name: &str, rules: &[&str]) -> Policy {
    let rules = rules.iter().map(|text| ConditionRule::parse(text).unwrap()).collect();
    let pace = Limits { notice: Duration::ZERO, spacing: Duration::ZERO, caps: Vec::new() };
    Policy { pace, ..Policy::new(name, rules) }
}

/// A schedulable node without labels or conditions.
pub(crate) fn kept(name: &str) -> Node {
    Node { drain_facts: Some(Arc::default()), ..node(name) }
}

impl Node {
    fn with_drain_facts(mut self, change: impl FnOnce(&mut NodeDrainFacts)) -> Self {
        let mut drain_facts = self.drain_facts.as_deref().cloned().unwrap_or_default();
        change(&mut drain_facts);
        self.drain_facts = Some(Arc::new(drain_facts));
        self
    }

    /// With this condition, since so many seconds after noon, instead of the one that it had.
    pub(crate) fn reporting(self, kind: &str, status: ConditionStatus, since: i64) -> Self {
        self.silent_on(kind).with_drain_facts(|drain_facts| {
            let condition = Condition {
                kind: Arc::from(kind),
                status,
                since: Some(stamp(since)),
                heartbeat: None,
                reason: Arc::from(""),
            };
            drain_facts.conditions =
                drain_facts.conditions.iter().cloned().chain([condition]).collect();
        })
    }

    /// Without this condition.
    pub(crate) fn silent_on(self, kind: &str) -> Self {
        self.with_drain_facts(|drain_facts| {
            let others = drain_facts.conditions.iter().filter(|condition| &*condition.kind != kind);
            drain_facts.conditions = others.cloned().collect();
        })
    }

    pub(crate) fn labelled(self, labels: &[(&str, &str)]) -> Self {
        let labels: Labels = labels.iter().copied().collect();
        self.with_drain_facts(|drain_facts| drain_facts.labels = labels)
    }

    pub(crate) fn unschedulable(self, unschedulable: bool) -> Self {
        self.with_drain_facts(|drain_facts| drain_facts.unschedulable = unschedulable)
    }

    pub(crate) fn recorded(self, record: Option<&Record>) -> Self {
        let text = record.map(|record| Arc::from(record.format()));
        self.with_drain_facts(|drain_facts| drain_facts.record = text)
    }

    /// With this text as its record.
    pub(crate) fn with_record(self, text: &str) -> Self {
        self.with_drain_facts(|drain_facts| drain_facts.record = Some(Arc::from(text)))
    }

    pub(crate) fn autoscaled(self, autoscaler: Autoscaler) -> Self {
        self.with_drain_facts(|drain_facts| drain_facts.autoscaler = autoscaler)
    }

    pub(crate) fn marked_by_draino(self, conditions: &str) -> Self {
        self.with_draino_conditions(Some(conditions.to_owned()))
    }

    pub(crate) fn with_draino_conditions(self, conditions: Option<String>) -> Self {
        self.with_drain_facts(|drain_facts| {
            drain_facts.draino_conditions = conditions.map(Arc::from)
        })
    }

    pub(crate) fn asking_for_retry(self) -> Self {
        self.with_drain_facts(|drain_facts| drain_facts.retry_asked = true)
    }

    pub(crate) fn being_deleted(self) -> Self {
        self.with_drain_facts(|drain_facts| drain_facts.terminating = true)
    }
}
