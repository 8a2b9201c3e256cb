//! The drained node, observed from outside through the cluster's history.
//!
//! Like the observations it takes nothing from the controller: who goes, and what the budget allows, is
//! known from the cluster.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::Value;

use super::fixtures::BUDGET;
use crate::sim::embedded::{Change, Resource};

/// Kinds of controllers whose pods a policy leaves unless it says otherwise.
const LEFT: [&str; 2] = ["DaemonSet", "StatefulSet"];

/// What was seen of the drain.
#[derive(Debug, Default)]
pub(super) struct Drain {
    node: String,
    /// Names of the pods that must go, by UID.
    to_go: BTreeMap<String, String>,
    /// UIDs of those that were asked to go.
    going: BTreeSet<String>,
    /// UIDs of those that are gone.
    gone: BTreeSet<String>,
    /// When it was first seen to be cordoned.
    pub(super) cordoned: Option<Timestamp>,
    /// When the last of its pods was gone.
    pub(super) drained: Option<Timestamp>,
    /// When it was seen to be in use again, after that.
    pub(super) uncordoned: Option<Timestamp>,
    /// Pods that the budget had to spare at the worst moment; below zero it was broken.
    pub(super) least_spare: Option<i64>,
    wrong: Vec<String>,
}

impl Drain {
    /// Of this node.
    pub(super) fn of(node: &str) -> Self {
        Self { node: node.to_owned(), ..Self::default() }
    }

    /// From now on these pods must go, all that the node has but those that the policy leaves.
    pub(super) fn begin<'a>(&mut self, pods: impl Iterator<Item = &'a Value>) {
        let to_go = pods.filter(|pod| text(pod, "/spec/nodeName") == self.node).filter(|pod| {
            !LEFT.contains(&text(pod, "/metadata/ownerReferences/0/kind"))
                && pod.pointer("/metadata/deletionTimestamp").is_none()
        });
        let of = |field: &str, pod| text(pod, &format!("/metadata/{field}")).to_owned();
        self.to_go = to_go
            .map(|pod| (of("uid", pod), format!("{}/{}", of("namespace", pod), of("name", pod))))
            .collect();
    }

    /// Takes a change in.
    pub(super) fn take(&mut self, change: &Change) {
        match change.resource {
            Resource::Pods => self.take_pod(change),
            Resource::Nodes if text(&change.current, "/metadata/name") == self.node => {
                let cordoned = change.current.pointer("/spec/unschedulable") == Some(&true.into());
                if cordoned {
                    self.cordoned.get_or_insert(change.at);
                } else if self.drained.is_some() {
                    self.uncordoned.get_or_insert(change.at);
                } else if self.cordoned.is_some() {
                    self.wrong.push(format!("{} was uncordoned before it was drained", self.node));
                }
            }
            Resource::PodDisruptionBudgets if !self.going.is_empty() => {
                let number = |field: &str| {
                    change.current.pointer(&format!("/status/{field}")).and_then(Value::as_i64)
                };
                let is_ours = (
                    text(&change.current, "/metadata/namespace"),
                    text(&change.current, "/metadata/name"),
                ) == BUDGET;
                if let (true, Some(healthy), Some(desired)) =
                    (is_ours, number("currentHealthy"), number("desiredHealthy"))
                {
                    let spare = healthy - desired;
                    self.least_spare =
                        Some(self.least_spare.map_or(spare, |least| least.min(spare)));
                }
            }
            _ => {}
        }
    }

    fn take_pod(&mut self, change: &Change) {
        let uid = text(&change.current, "/metadata/uid");
        let Some(name) = self.to_go.get(uid) else { return };
        let is_going = change.current.pointer("/metadata/deletionTimestamp").is_some();
        if is_going && self.going.insert(uid.to_owned()) && self.cordoned.is_none() {
            self.wrong.push(format!("{name} was evicted before {} was cordoned", self.node));
        }
        if change.deleted {
            self.gone.insert(uid.to_owned());
            if self.gone.len() == self.to_go.len() {
                self.drained.get_or_insert(change.at);
            }
        }
    }

    /// UIDs of the pods that must go.
    pub(super) fn to_go(&self) -> impl Iterator<Item = &str> {
        self.to_go.keys().map(String::as_str)
    }

    /// How many pods were evicted.
    pub(super) fn evicted(&self) -> usize {
        self.going.len()
    }

    /// What was not as it must be.
    pub(super) fn failures(&self) -> Vec<String> {
        let mut failures = self.wrong.clone();
        if self.cordoned.is_none() {
            failures.push(format!("{} was not cordoned", self.node));
        }
        let left = self.to_go.len() - self.gone.len();
        if left > 0 {
            let all = self.to_go.len();
            failures.push(format!("{left} of {all} pods were not evicted from {}", self.node));
        } else if self.uncordoned.is_none() {
            failures.push(format!("{} was not uncordoned", self.node));
        }
        if let Some(spare) = self.least_spare.filter(|spare| *spare < 0) {
            let (namespace, name) = BUDGET;
            let short = -spare;
            failures.push(format!("the budget {namespace}/{name} was violated by {short} pods"));
        }
        failures
    }
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
