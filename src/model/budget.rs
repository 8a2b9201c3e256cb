//! Disruption budgets, as far as forecasts need them.

use std::sync::Arc;

use super::{DrainPod, Labels};

/// A `PodDisruptionBudget`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// Which pods of its namespace it selects.
    pub selector: Selector,
    /// Its `minAvailable` or `maxUnavailable`; `None` if it has neither, or an unknown form.
    pub demand: Option<Demand>,
    /// Unready pods may always be evicted (`AlwaysAllow`); otherwise only while enough others are healthy
    /// (`IfHealthyBudget`).
    pub lets_unready_go: bool,
    /// Its status is of its newest spec.
    pub observed: bool,
    /// From its status: number of healthy pods.
    pub healthy: i32,
    /// From its status: required number of healthy pods.
    pub desired: i32,
    /// From its status: expected number of pods.
    pub expected: i32,
    /// From its status: number of pods that may be evicted now.
    pub allowed: i32,
}

/// What a budget demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// `minAvailable`.
    MinAvailable(Amount),
    /// `maxUnavailable`.
    MaxUnavailable(Amount),
}

/// A number of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// A number.
    Count(i32),
    /// A percentage, rounded up.
    Percent(i32),
}

/// Selects pods by their labels: all requirements must hold, so one without any selects all.
/// `Nothing` is the absent selector and one that cannot be read, as for Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// No pod.
    Nothing,
    /// Pods for which all these hold.
    All(Vec<Requirement>),
}

/// What must hold of one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// Its key.
    pub key: Arc<str>,
    /// What must hold.
    pub test: Test,
}

/// What must hold of a label's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// It is one of these.
    In(Vec<Arc<str>>),
    /// It is none of these, or absent.
    NotIn(Vec<Arc<str>>),
    /// It is there.
    Exists,
    /// It is absent.
    Absent,
}

impl Selector {
    /// Whether it selects a pod with these labels.
    pub fn matches(&self, labels: &Labels) -> bool {
        let Self::All(requirements) = self else { return false };
        requirements.iter().all(|Requirement { key, test }| {
            let value = labels.get(key);
            let is_among = |values: &[Arc<str>]| {
                value.is_some_and(|value| values.iter().any(|other| &**other == value))
            };
            match test {
                Test::In(values) => is_among(values),
                Test::NotIn(values) => !is_among(values),
                Test::Exists => value.is_some(),
                Test::Absent => value.is_none(),
            }
        })
    }
}

impl Budget {
    /// Whether it guards this pod. A pod without labels has no budget, whatever the selector.
    pub fn guards(&self, pod: &DrainPod) -> bool {
        self.namespace == pod.reference.namespace
            && pod.labels.iter().next().is_some()
            && self.selector.matches(&pod.labels)
    }
}
