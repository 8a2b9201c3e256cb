//! What the observer knows of cordons and drains. Its rules, too, are written from the promises:
//! it reads records as JSON and judges conditions by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::{Broken, SHARED, number, seconds, text, time};
use crate::drain::{AtDeadline, Limit, Policy, Undrainable};
use crate::sim::embedded::{Change, Resource};

/// Annotations of a node that are ours, and one that we may take away.
const RECORD: &str = "ostrakon.dev/drain";
const CONDITIONS: &str = "draino.planet.com/conditions";
const RETRY: &str = "draino/drain-retry";
/// cluster-autoscaler's taint of a node that it is about to remove.
pub(in crate::controller::simulation) const REMOVING: &str = "ToBeDeletedByClusterAutoscaler";
/// Annotation of a pod that must not be evicted.
pub(in crate::controller::simulation) const PROTECTED: &str = "example.com/protected";
/// Value of the label `app` of the pods that a budget is for.
pub(in crate::controller::simulation) const GUARDED: &str = "guarded";
/// How much later than it is due something may be done: times are stored in whole seconds, and a
/// node is looked at every few seconds.
const LATE: f64 = 12.0;

/// A state of a node, absent while there is none, and from when on it was stored.
type Stored = (f64, Option<Arc<Value>>);

pub(in crate::controller::simulation) struct Drains {
    policies: Vec<Policy>,
    calm: bool,
    nodes: BTreeMap<String, Vec<Stored>>,
    pods: BTreeMap<String, Arc<Value>>,
    /// The only one.
    budget: Option<Arc<Value>>,
    /// Nodes that were cordoned by a controller, and by which.
    cordoned: BTreeMap<String, String>,
    /// The pods that have gone by a controller, and when it was asked for.
    evicted: BTreeMap<String, f64>,
    /// Sessions that have come to their end.
    drained: BTreeSet<String>,
}

impl Drains {
    pub(in crate::controller::simulation) fn new(policies: Vec<Policy>, calm: bool) -> Self {
        Self {
            policies,
            calm,
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            cordoned: BTreeMap::new(),
            evicted: BTreeMap::new(),
            budget: None,
            drained: BTreeSet::new(),
        }
    }

    /// How many drains have come to their end.
    pub(in crate::controller::simulation) fn drained(&self) -> usize {
        self.drained.len()
    }

    /// Takes in a change of the store.
    pub(super) fn changed(&mut self, change: &Change) {
        let name = text(&change.current, "/metadata/name").to_owned();
        let now = (!change.deleted).then(|| Arc::clone(&change.current));
        match change.resource {
            Resource::Nodes => {
                if !now.as_deref().is_some_and(unschedulable) {
                    self.cordoned.remove(&name);
                }
                self.nodes.entry(name).or_default().push((seconds(change.at), now));
            }
            Resource::Pods => {
                let uid = text(&change.current, "/metadata/uid").to_owned();
                match now {
                    Some(pod) => drop(self.pods.insert(uid, pod)),
                    None => drop(self.pods.remove(&uid)),
                }
            }
            Resource::PodDisruptionBudgets => self.budget = now,
            _ => {}
        }
    }

    /// Takes in what a controller has changed of a node.
    pub(super) fn wrote_node(
        &mut self,
        who: &str,
        sent: f64,
        now: f64,
        change: &Change,
    ) -> Result<(), Broken> {
        let Some(before) = change.previous.as_deref() else { return Ok(()) };
        let after = &*change.current;
        let name = text(after, "/metadata/name").to_owned();
        let breach = |what: &str| {
            Err(format!("P6: {who} {what} {name} at {now:.3}: {before} became {after}"))
        };
        if stripped(before) != stripped(after) {
            return breach("changes what is not its own of");
        }
        if annotation(after, RETRY).is_some()
            && annotation(before, RETRY) != annotation(after, RETRY)
        {
            return breach("asks itself for a try on");
        }
        let (old, new) = (record(before), record(after));
        // The node's condition is set without naming a version, so that it may come late.
        if self.removed_for(&name, sent) > SHARED && !is_note(before, after) {
            return breach("writes to, which cluster-autoscaler removes,");
        }
        match (unschedulable(before), unschedulable(after)) {
            (false, true) => {
                self.cordoned.insert(name.clone(), who.to_owned());
                self.rightly_cordoned(who, now, &name, after)?;
            }
            (true, false) => self.rightly_uncordoned(who, now, &old, &new, before)?,
            (_, false)
                if old != new && matches!(text(&new, "/phase"), "scheduled" | "draining") =>
            {
                return breach("plans to drain without a cordon");
            }
            _ => {}
        }
        let session = text(&new, "/session").to_owned();
        if text(&new, "/phase") == "drained"
            && text(&old, "/phase") != "drained"
            && !self.drained.insert(session)
        {
            return breach("drains twice");
        }
        Ok(())
    }

    /// P5: a condition is bad, and no cap is exceeded by it.
    fn rightly_cordoned(
        &self,
        who: &str,
        now: f64,
        name: &str,
        node: &Value,
    ) -> Result<(), Broken> {
        if !self.policies.iter().any(|policy| bad(node, policy, now + 1.0)) {
            return Err(format!("P5: {who} cordons {name} at {now:.3}, which is not bad: {node}"));
        }
        // Somebody else's cordon may be in the cluster and not yet on the way through a watch.
        let counts = |other: &str, states: &[Stored]| {
            let is_known = |from: f64| self.calm && now - from > SHARED;
            states.last().is_some_and(|(_, node)| node.as_deref().is_some_and(unschedulable))
                && (self.cordoned.get(other).is_some_and(|by| by == who)
                    || is_known(self.unschedulable_since(other)))
        };
        let out = self.nodes.iter().filter(|(other, states)| counts(other, states)).count();
        let most = self.most(if self.calm { now - SHARED } else { 0.0 });
        if out > most {
            return Err(format!(
                "P5: {who} cordons {name} at {now:.3}, so that {out} nodes are out of use, of \
                 {most} that may be"
            ));
        }
        Ok(())
    }

    /// P6: the cordon was ours, and what it was for is over.
    fn rightly_uncordoned(
        &self,
        who: &str,
        now: f64,
        old: &Value,
        new: &Value,
        node: &Value,
    ) -> Result<(), Broken> {
        let name = text(node, "/metadata/name");
        if text(old, "/cordon") != "ours" {
            return Err(format!(
                "P6: {who} uncordons {name} at {now:.3}, cordoned by others: {old}"
            ));
        }
        let failed = text(new, "/phase") == "failed";
        if failed && self.policies.iter().any(|p| p.at_deadline == AtDeadline::Uncordon) {
            return Ok(());
        }
        if !self.is_over(node, now + 1.0, 0.0) {
            return Err(format!("P6: {who} uncordons {name} at {now:.3}, which is bad: {node}"));
        }
        Ok(())
    }

    /// A pod went by a controller: its node was cordoned, bad and being drained, no filter protects
    /// it, and it goes once.
    pub(super) fn removed_pod(
        &mut self,
        who: &str,
        sent: f64,
        now: f64,
        pod: &Value,
    ) -> Result<(), Broken> {
        let (name, uid) = (text(pod, "/metadata/name"), text(pod, "/metadata/uid"));
        if let Some(why) = protection(pod) {
            return Err(format!("P1: {who} evicts {name}, which is left: {why}"));
        }
        let node = text(pod, "/spec/nodeName");
        let states = self.nodes.get(node).map_or(&[][..], Vec::as_slice);
        let was_wanted = states.iter().enumerate().any(|(i, (from, state))| {
            let until = states.get(i + 1).map(|(from, _)| *from);
            let is_recent = *from <= now && until.is_none_or(|until| until >= sent - SHARED);
            is_recent && state.as_deref().is_some_and(|state| self.drains(state, sent))
        });
        if !was_wanted {
            let last = states.last().and_then(|(_, node)| node.as_deref());
            return Err(format!(
                "P1: {who} evicts {name} at {sent:.3}, whose node is not being drained: {last:?}"
            ));
        }
        if let Some(first) = self.evicted.insert(uid.to_owned(), sent)
            && self.calm
        {
            return Err(format!(
                "P1: {who} evicts {name} ({uid}) at {first:.3} and again at {sent:.3}: {pod}"
            ));
        }
        Ok(())
    }

    /// Whether a node in this state may be drained.
    fn drains(&self, node: &Value, now: f64) -> bool {
        let record = record(node);
        let goes_on = self.policies.iter().any(|policy| !policy.stop_when_clear);
        text(&record, "/phase") == "draining"
            && unschedulable(node)
            && !is_removed(node)
            && (goes_on || self.policies.iter().any(|policy| bad(node, policy, now + 1.0)))
    }

    /// The first node that is not what it has to be by now, if nothing happens any more: P2.
    pub(in crate::controller::simulation) fn unsettled(&self, now: f64) -> Option<String> {
        self.nodes.iter().find_map(|(name, states)| {
            let (_, node) = states.last()?;
            let node = node.as_deref()?;
            let why = self.unsettled_node(name, node, now)?;
            Some(format!("node {name} {why}: {}", annotation(node, RECORD).unwrap_or_default()))
        })
    }

    fn unsettled_node(&self, name: &str, node: &Value, now: f64) -> Option<&'static str> {
        if is_removed(node) {
            return None;
        }
        let record = record(node);
        let phase = text(&record, "/phase");
        let is_ours = text(&record, "/cordon") == "ours";
        if is_ours && self.is_over(node, now, LATE) {
            return Some("has recovered and is still cordoned");
        }
        let policy = self.policies.iter().find(|policy| bad(node, policy, now - LATE))?;
        let is_dead = status(node, "Ready") == Some("Unknown");
        let held = !policy.drain || is_dead || self.is_undrainable(name);
        let is_late = |field: &str| time(&record, field).is_none_or(|at| at < now - LATE);
        match phase {
            "" if unschedulable(node) => Some("is bad, and nobody took note of its cordon"),
            "" => {
                let out = self.nodes.values().filter(|states| {
                    states.last().is_some_and(|(_, n)| n.as_deref().is_some_and(unschedulable))
                });
                let is_left = policy.drain
                    && !is_dead
                    && policy.undrainable == Undrainable::Report
                    && self.is_undrainable(name);
                (out.count() < self.most(now) && !is_left).then_some("is bad and is not cordoned")
            }
            "cordoned" if !held => Some("could be drained, and no drain is planned"),
            "scheduled" if is_late("/scheduled") && !held => Some("was to be drained"),
            "draining" if is_late("/deadline") && !is_dead => Some("is past its deadline"),
            "failed" if record.get("next").is_some() && is_late("/next") && !held => {
                Some("was to be tried again")
            }
            _ => None,
        }
    }

    /// Whether a pod is on the node that must not be lost with it, or that the budget never lets go.
    fn is_undrainable(&self, name: &str) -> bool {
        let expected = self.budget.as_deref().map_or(0.0, |b| number(b, "/status/expectedPods"));
        let desired = self.budget.as_deref().map_or(0.0, |b| number(b, "/status/desiredHealthy"));
        self.pods.values().filter(|pod| text(pod, "/spec/nodeName") == name).any(|pod| {
            let is_held = text(pod, "/metadata/labels/app") == GUARDED && expected <= desired;
            owner(pod) != Some("DaemonSet") && (protection(pod).is_some() || is_held)
        })
    }

    /// Whether all that a node was cordoned for has been over for so long as the policies ask, and
    /// `more`.
    fn is_over(&self, node: &Value, now: f64, more: f64) -> bool {
        let record = record(node);
        let claims = record.get("claims").and_then(Value::as_array);
        claims.into_iter().flatten().all(|claim| {
            let recorded = claim.get("conditions").and_then(Value::as_array);
            recorded.into_iter().flatten().all(|condition| {
                let kind = condition.as_str().and_then(|c| c.split_once('=')).map_or("", |c| c.0);
                let rules = self.policies.iter().flat_map(|policy| &policy.conditions);
                let mut after = rules.filter(|r| &*r.kind == kind).filter_map(|r| r.clear_after);
                let after = after.next().map_or(0.0, |after| after.as_secs_f64());
                match status(node, kind) {
                    Some("False") => since(node, kind).is_some_and(|at| at + after + more <= now),
                    // That it is not reported any more is written down first.
                    None => time(&record, "/vanished").is_some_and(|at| at + after + more <= now),
                    Some(_) => false,
                }
            })
        })
    }

    /// How many nodes may be out of use, by all those that were there at some time since `from`.
    fn most(&self, from: f64) -> usize {
        let there = |states: &&Vec<Stored>| {
            states.iter().enumerate().any(|(i, (_, node))| {
                node.is_some() && states.get(i + 1).is_none_or(|(until, _)| *until >= from)
            })
        };
        let total = self.nodes.values().filter(there).count();
        let caps = self.policies.iter().flat_map(|policy| &policy.pace.caps);
        let most = caps.map(|cap| match cap.limit {
            Limit::Count(most) => most as usize,
            Limit::Percent(part) => (total * usize::from(part) / 100).max(1),
        });
        most.min().unwrap_or(usize::MAX)
    }

    fn unschedulable_since(&self, name: &str) -> f64 {
        let states = self.nodes.get(name).map_or(&[][..], Vec::as_slice);
        let is_out = |(_, node): &&Stored| node.as_deref().is_some_and(unschedulable);
        states.iter().rev().take_while(is_out).last().map_or(f64::INFINITY, |(from, _)| *from)
    }

    /// For how long cluster-autoscaler's taint has been on the node.
    fn removed_for(&self, name: &str, now: f64) -> f64 {
        let states = self.nodes.get(name).map_or(&[][..], Vec::as_slice);
        let is_on = |(_, node): &&Stored| node.as_deref().is_some_and(is_removed);
        states.iter().rev().take_while(is_on).last().map_or(0.0, |(from, _)| now - from)
    }
}

/// Why a drain leaves the pod by the stories' policies.
fn protection(pod: &Value) -> Option<&'static str> {
    match owner(pod) {
        Some("DaemonSet") => Some("it is a DaemonSet's"),
        None => Some("nobody would create it anew"),
        Some(_) => annotation(pod, PROTECTED).map(|_| "an annotation protects it"),
    }
}

fn owner(pod: &Value) -> Option<&str> {
    pod.pointer("/metadata/ownerReferences/0/kind").and_then(Value::as_str)
}

fn bad(node: &Value, policy: &Policy, now: f64) -> bool {
    policy.conditions.iter().any(|rule| {
        status(node, &rule.kind) == Some("True")
            && since(node, &rule.kind).is_some_and(|at| at + rule.min_age.as_secs_f64() <= now)
    })
}

fn condition<'a>(node: &'a Value, kind: &str) -> Option<&'a Value> {
    let all = node.pointer("/status/conditions").and_then(Value::as_array);
    all.into_iter().flatten().find(|condition| condition["type"] == kind)
}

fn status<'a>(node: &'a Value, kind: &str) -> Option<&'a str> {
    condition(node, kind).map(|condition| text(condition, "/status"))
}

fn since(node: &Value, kind: &str) -> Option<f64> {
    time(condition(node, kind)?, "/lastTransitionTime")
}

fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get("metadata")?.get("annotations")?.get(key)?.as_str()
}

/// The record of a node; null if it has none.
fn record(node: &Value) -> Value {
    annotation(node, RECORD).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

fn unschedulable(node: &Value) -> bool {
    node.pointer("/spec/unschedulable").and_then(Value::as_bool) == Some(true)
}

fn is_removed(node: &Value) -> bool {
    let taints = node.pointer("/spec/taints").and_then(Value::as_array);
    taints.into_iter().flatten().any(|taint| taint["key"] == REMOVING)
}

/// Whether nothing is written but that an uncordon from now on may be cluster-autoscaler's.
fn is_note(before: &Value, after: &Value) -> bool {
    let (mut old, mut new) = (record(before), record(after));
    for record in [&mut old, &mut new] {
        if let Some(record) = record.as_object_mut() {
            record.remove("autoscaler");
        }
    }
    old == new && unschedulable(before) == unschedulable(after) && is_same_mark(before, after)
}

/// Whether the condition `DrainScheduled` is the same.
fn is_same_mark(before: &Value, after: &Value) -> bool {
    condition(before, "DrainScheduled") == condition(after, "DrainScheduled")
}

/// The node without what is ours.
fn stripped(node: &Value) -> Value {
    let mut node = node.clone();
    if let Some(metadata) = node.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["resourceVersion", "managedFields", "generation"] {
            metadata.remove(field);
        }
    }
    if let Some(annotations) =
        node.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
    {
        for key in [RECORD, CONDITIONS, RETRY, super::RECORD] {
            annotations.remove(key);
        }
    }
    if let Some(spec) = node.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("unschedulable");
    }
    if let Some(Value::Array(conditions)) = node.pointer_mut("/status/conditions") {
        conditions.retain(|condition| condition["type"] != "DrainScheduled");
    }
    node
}
