//! Short forms of nodes and policies, for tests.

use std::sync::Arc;
use std::time::Duration;

use super::{ConditionRule, Pace, Policy, Record};
use crate::model::build::{node, stamp};
use crate::model::{Autoscaler, Condition, ConditionStatus, Labels, Node, Upkeep};

/// A policy for every node, without caps, notice or spacing; its rules in draino's form.
pub(crate) fn policy(name: &str, rules: &[&str]) -> Policy {
    let rules = rules.iter().map(|text| ConditionRule::parse(text).unwrap()).collect();
    let pace = Pace { notice: Duration::ZERO, spacing: Duration::ZERO, caps: Vec::new() };
    Policy { pace, ..Policy::new(name, rules) }
}

/// A schedulable node without labels or conditions.
pub(crate) fn kept(name: &str) -> Node {
    Node { upkeep: Some(Arc::default()), ..node(name) }
}

impl Node {
    fn with_upkeep(mut self, change: impl FnOnce(&mut Upkeep)) -> Self {
        let mut upkeep = self.upkeep.as_deref().cloned().unwrap_or_default();
        change(&mut upkeep);
        self.upkeep = Some(Arc::new(upkeep));
        self
    }

    /// With this condition, since so many seconds after noon, instead of the one that it had.
    pub(crate) fn reporting(self, kind: &str, status: ConditionStatus, since: i64) -> Self {
        self.silent_on(kind).with_upkeep(|upkeep| {
            let condition = Condition {
                kind: Arc::from(kind),
                status,
                since: Some(stamp(since)),
                heartbeat: None,
                reason: Arc::from(""),
            };
            upkeep.conditions = upkeep.conditions.iter().cloned().chain([condition]).collect();
        })
    }

    /// Without this condition.
    pub(crate) fn silent_on(self, kind: &str) -> Self {
        self.with_upkeep(|upkeep| {
            let others = upkeep.conditions.iter().filter(|condition| &*condition.kind != kind);
            upkeep.conditions = others.cloned().collect();
        })
    }

    pub(crate) fn labelled(self, labels: &[(&str, &str)]) -> Self {
        let labels: Labels = labels.iter().copied().collect();
        self.with_upkeep(|upkeep| upkeep.labels = labels)
    }

    pub(crate) fn unschedulable(self, unschedulable: bool) -> Self {
        self.with_upkeep(|upkeep| upkeep.unschedulable = unschedulable)
    }

    pub(crate) fn recorded(self, record: Option<&Record>) -> Self {
        let text = record.map(|record| Arc::from(record.format()));
        self.with_upkeep(|upkeep| upkeep.record = text)
    }

    /// With this text as its record.
    pub(crate) fn with_record(self, text: &str) -> Self {
        self.with_upkeep(|upkeep| upkeep.record = Some(Arc::from(text)))
    }

    pub(crate) fn autoscaled(self, autoscaler: Autoscaler) -> Self {
        self.with_upkeep(|upkeep| upkeep.autoscaler = autoscaler)
    }

    pub(crate) fn marked_by_draino(self, conditions: &str) -> Self {
        self.with_draino_conditions(Some(conditions.to_owned()))
    }

    pub(crate) fn with_draino_conditions(self, conditions: Option<String>) -> Self {
        self.with_upkeep(|upkeep| upkeep.draino_conditions = conditions.map(Arc::from))
    }

    pub(crate) fn asking_for_retry(self) -> Self {
        self.with_upkeep(|upkeep| upkeep.retry_asked = true)
    }

    pub(crate) fn being_deleted(self) -> Self {
        self.with_upkeep(|upkeep| upkeep.terminating = true)
    }
}
