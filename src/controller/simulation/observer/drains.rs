//! What the observer knows of cordons and drains. Its rules, too, are written from the promises:
//! it reads records as JSON and judges conditions by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::{Broken, SHARED, number, seconds, text, time, words};
use crate::drain::{AtDeadline, Cap, CapScope, ConditionRule, Limit, Policy, Undrainable};
use crate::model::build::noon;
use crate::sim::embedded::{Change, Resource};

/// An annotation of a node that is ours, and one that we may take away.
const RECORD: &str = "ostrakon.dev/drain";
const RETRY: &str = "draino/drain-retry";
/// cluster-autoscaler's taint of a node that it is about to remove.
pub(in crate::controller::simulation) const REMOVING: &str = "ToBeDeletedByClusterAutoscaler";
/// Annotation of a pod that must not be evicted.
pub(in crate::controller::simulation) const PROTECTED: &str = "example.com/protected";
/// Label of a node by which caps count and policies select.
pub(in crate::controller::simulation) const ZONE: &str = "example.com/zone";
/// Key of the taint that policies put on with a cordon; nobody else does.
pub(in crate::controller::simulation) const STATUS_TAINT: &str =
    "status-taint.cluster-autoscaler.kubernetes.io/ostrakon";
/// draino's annotation of a node that it has cordoned.
pub(in crate::controller::simulation) const CONDITIONS: &str = "draino.planet.com/conditions";
/// Value of the label `app` of the pods that a budget is for.
pub(in crate::controller::simulation) const GUARDED: &str = "guarded";
/// How much later than it is due something may be done: times are stored in whole seconds, and a
/// node is looked at every few seconds.
const LATE: f64 = 12.0;
/// In a calm story a pod that was protected so long ago does not go: its node is looked at every
/// five seconds, and a look ends the order.
const SEEN_PROTECTED: f64 = 7.0;
/// What lies between the decision to begin a drain and its beginning, if requests are slow.
const SLOW: f64 = 30.0;
/// When a condition of a policy that there is not is over, as docs/config.md has it by default.
const CLEAR_AFTER: f64 = 300.0;

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
    /// The pods that were evicted for a drain, and when it was asked for.
    evicted: BTreeMap<String, f64>,
    /// Since when pods have been protected.
    protected: BTreeMap<String, f64>,
    /// Since when nodes have had their label.
    labelled: BTreeMap<String, f64>,
    /// The drains of the records that are there and have come to their end: node and session.
    ended: BTreeSet<(String, String)>,
    drained: usize,
    /// When a process last began a drain by a policy.
    begun: BTreeMap<(String, String), f64>,
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
            protected: BTreeMap::new(),
            labelled: BTreeMap::new(),
            budget: None,
            ended: BTreeSet::new(),
            drained: 0,
            begun: BTreeMap::new(),
        }
    }

    /// How many drains have come to their end.
    pub(in crate::controller::simulation) fn drained(&self) -> usize {
        self.drained
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
                let before = change.previous.as_deref().and_then(zone);
                if before != now.as_deref().and_then(zone) {
                    self.labelled.insert(name.clone(), seconds(change.at));
                }
                self.nodes.entry(name).or_default().push((seconds(change.at), now));
            }
            Resource::Pods => {
                let uid = text(&change.current, "/metadata/uid").to_owned();
                if annotation(&change.current, PROTECTED).is_some() {
                    let is_old = change.previous.is_none();
                    let since = if is_old { f64::NEG_INFINITY } else { seconds(change.at) };
                    self.protected.entry(uid.clone()).or_insert(since);
                }
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
        let (old, new) = (self.record(before), self.record(after));
        // The node's condition is set without naming a version, so that it may come late.
        if self.removed_for(&name, sent) > SHARED && !self.is_note(before, after) {
            return breach("writes to, which cluster-autoscaler removes,");
        }
        if let Some(what) = other_words(before, after, &new) {
            return Err(format!("P7: {who} writes {what} on {name} at {now:.3}: {after}"));
        }
        if has_status_taint(after) && text(&new, "/cordon") != "ours" {
            return breach("leaves its taint without its cordon on");
        }
        match (unschedulable(before), unschedulable(after)) {
            (false, true) => {
                self.cordoned.insert(name.clone(), who.to_owned());
                let is_again = text(&old, "/cordon") == "ours" && text(&old, "/phase") != "failed";
                if self.calm && is_again && !self.uncordoned_by_autoscaler(&name) {
                    return breach("cordons again what a person has uncordoned,");
                }
                self.rightly_cordoned(who, sent, now, &name, after)?;
            }
            (true, false) => self.rightly_uncordoned(who, sent, now, &old, &new, before)?,
            (_, false)
                if !self.is_note(before, after)
                    && matches!(text(&new, "/phase"), "scheduled" | "draining") =>
            {
                return breach("plans to drain without a cordon");
            }
            _ => {}
        }
        if text(&new, "/phase") == "draining" && text(&old, "/phase") != "draining" {
            self.rightly_begun(who, sent, before, &old, &new)?;
        }
        let drain = (name.clone(), text(&new, "/session").to_owned());
        if new.is_null() {
            self.ended.retain(|(node, _)| *node != name);
        } else if text(&new, "/phase") == "drained" && text(&old, "/phase") != "drained" {
            self.drained += 1;
            if !self.ended.insert(drain) {
                return breach("drains twice");
            }
        }
        Ok(())
    }

    /// P5: a drain begins in a window of its policy, and so long after another one as it asks for.
    /// A person's request waits for neither.
    fn rightly_begun(
        &mut self,
        who: &str,
        sent: f64,
        before: &Value,
        old: &Value,
        new: &Value,
    ) -> Result<(), Broken> {
        let Some(policy) = self.policy_of(new).cloned() else { return Ok(()) };
        let is_asked = annotation(before, RETRY).is_some() && text(old, "/phase") == "failed";
        let slack = if self.calm { SHARED } else { SLOW };
        let name = text(before, "/metadata/name");
        if !is_asked && !is_open(&policy, sent - slack, sent + 1.0) {
            return Err(format!(
                "P5: {who} begins to drain {name} at {sent:.3}, outside of the windows: {new}"
            ));
        }
        if text(old, "/phase") != "failed" {
            let key = (who.to_owned(), policy.name.to_string());
            let last = self.begun.insert(key, sent);
            let spacing = policy.pace.spacing.as_secs_f64();
            if self.calm && last.is_some_and(|last| sent + SHARED < last + spacing) {
                return Err(format!(
                    "P5: {who} begins to drain {name} at {sent:.3}, and another one at {last:?}"
                ));
            }
        }
        Ok(())
    }

    /// P5: a condition is bad, and no cap is exceeded by it.
    fn rightly_cordoned(
        &self,
        who: &str,
        sent: f64,
        now: f64,
        name: &str,
        node: &Value,
    ) -> Result<(), Broken> {
        let trusted = self.known(sent);
        if !self.policies.iter().any(|policy| bad(node, policy, now + 1.0, trusted)) {
            return Err(format!("P5: {who} cordons {name} at {now:.3}, which is not bad: {node}"));
        }
        let record = self.record(node);
        let Some(policy) = self.policy_of(&record) else { return Ok(()) };
        if policy.status_taint.is_some() != has_status_taint(node) {
            return Err(format!(
                "P6: {who} cordons {name} at {now:.3}, and its taint is another: {node}"
            ));
        }
        for cap in &policy.pace.caps {
            // A label that has just changed may not be known yet.
            let is_fresh = self.labelled.values().any(|at| now - at <= SHARED);
            if cap.scope != CapScope::Cluster && is_fresh {
                continue;
            }
            // Somebody else's cordon may be in the cluster and not yet on the way through a watch.
            let counts = |other: &str| {
                let is_known = |from: f64| self.calm && now - from > SHARED;
                self.cordoned.get(other).is_some_and(|by| by == who)
                    || is_known(self.unschedulable_since(other))
            };
            let out = self.out_of_use(cap, node).filter(|other| counts(other)).count();
            let most = self.most(cap, node, if self.calm { now - SHARED } else { 0.0 });
            if out > most {
                return Err(format!(
                    "P5: {who} cordons {name} at {now:.3}, so that {out} nodes are out of use, of \
                     {most} that may be by {cap:?}"
                ));
            }
        }
        Ok(())
    }

    /// P6: the cordon was ours, and what it was for is over.
    fn rightly_uncordoned(
        &self,
        who: &str,
        sent: f64,
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
        if !self.is_over(node, now + 1.0, 0.0, self.known(sent)) {
            return Err(format!("P6: {who} uncordons {name} at {now:.3}, which is bad: {node}"));
        }
        Ok(())
    }

    /// A pod was evicted by a controller: its node was cordoned, bad and being drained, no filter
    /// protects it, and it goes once.
    pub(super) fn evicted_pod(
        &mut self,
        who: &str,
        sent: f64,
        now: f64,
        pod: &Value,
    ) -> Result<(), Broken> {
        let (name, uid) = (text(pod, "/metadata/name"), text(pod, "/metadata/uid"));
        self.rightly_gone(who, sent, now, pod, false)?;
        if let Some(first) = self.evicted.insert(uid.to_owned(), sent)
            && self.calm
        {
            return Err(format!(
                "P1: {who} evicts {name} ({uid}) at {first:.3} and again at {sent:.3}: {pod}"
            ));
        }
        Ok(())
    }

    /// A pod was deleted, since the deadline of a drain is over and the policy says so.
    pub(super) fn deleted_pod(
        &self,
        who: &str,
        sent: f64,
        now: f64,
        pod: &Value,
    ) -> Result<(), Broken> {
        self.rightly_gone(who, sent, now, pod, true)
    }

    fn rightly_gone(
        &self,
        who: &str,
        sent: f64,
        now: f64,
        pod: &Value,
        at_last: bool,
    ) -> Result<(), Broken> {
        let (name, uid) = (text(pod, "/metadata/name"), text(pod, "/metadata/uid"));
        let is_known = self.protected.get(uid).is_some_and(|since| {
            *since == f64::NEG_INFINITY || self.calm && sent - since > SEEN_PROTECTED
        });
        if let Some(why) = unowned(pod).or(is_known.then_some("an annotation protects it")) {
            return Err(format!("P1: {who} evicts {name} at {sent:.3}, which is left: {why}"));
        }
        let node = text(pod, "/spec/nodeName");
        let states = self.nodes.get(node).map_or(&[][..], Vec::as_slice);
        let was_wanted = states.iter().enumerate().any(|(i, (from, state))| {
            let until = states.get(i + 1).map(|(from, _)| *from);
            let is_recent = *from <= now && until.is_none_or(|until| until >= sent - SHARED);
            is_recent && state.as_deref().is_some_and(|state| self.drains(state, sent, at_last))
        });
        if !was_wanted {
            let last = states.last().and_then(|(_, node)| node.as_deref());
            return Err(format!(
                "P1: {who} evicts {name} at {sent:.3}, whose node is not being drained: {last:?}"
            ));
        }
        Ok(())
    }

    /// Whether a node in this state may be drained; `at_last`, whether by deletions. What is not
    /// known, or not to be trusted, does not end a drain.
    fn drains(&self, node: &Value, now: f64, at_last: bool) -> bool {
        let record = self.record(node);
        let goes_on = self.policies.iter().any(|policy| !policy.stop_when_clear);
        let is_in_doubt = |policy: &Policy| {
            policy.conditions.iter().any(|rule| {
                status(node, &rule.kind) == Some("Unknown")
                    || condition(node, &rule.kind).is_some_and(|c| !is_trusted(c, rule, now + 1.0))
            })
        };
        text(&record, "/phase") == "draining"
            && (!at_last || record["forced"] == true)
            && unschedulable(node)
            && !is_removed(node)
            && (goes_on
                || self.policies.iter().any(|policy| {
                    selects(node, policy)
                        && (bad(node, policy, now + 1.0, f64::NEG_INFINITY) || is_in_doubt(policy))
                }))
    }

    /// The first node that is not what it has to be by now, if nothing happens any more: P2.
    pub(in crate::controller::simulation) fn unsettled(&self, now: f64) -> Option<String> {
        self.nodes.iter().find_map(|(name, states)| {
            let (_, node) = states.last()?;
            let node = node.as_deref()?;
            let why = self.unsettled_node(node, now)?;
            Some(format!("node {name} {why}: {}", annotation(node, RECORD).unwrap_or_default()))
        })
    }

    fn unsettled_node(&self, node: &Value, now: f64) -> Option<&'static str> {
        if is_removed(node) {
            return None;
        }
        let name = text(node, "/metadata/name");
        let record = self.record(node);
        let phase = text(&record, "/phase");
        let is_ours = text(&record, "/cordon") == "ours";
        if has_status_taint(node) && !is_ours {
            return Some("bears our taint and is not cordoned by us");
        }
        if is_ours && self.is_over(node, now, LATE, now) {
            return Some("has recovered and is still cordoned");
        }
        let policy = self.policies.iter().find(|policy| bad(node, policy, now - LATE, now))?;
        let is_dead = status(node, "Ready") == Some("Unknown");
        let held = !policy.drain || is_dead || self.is_undrainable(name);
        let is_late = |field: &str| time(&record, field).is_none_or(|at| at < now - LATE);
        let may_begin = || {
            let policy = self.policy_of(&record).unwrap_or(policy);
            is_open(policy, now, now) && is_open(policy, now - LATE, now - LATE)
        };
        let has_room = || {
            let has_room =
                |cap: &Cap| self.out_of_use(cap, node).count() < self.most(cap, node, now);
            policy.pace.caps.iter().all(has_room)
        };
        if is_ours && !unschedulable(node) {
            // cluster-autoscaler has uncordoned it, and to cordon it again may be too much.
            return has_room().then_some("is bad and is not cordoned again");
        }
        match phase {
            "" if unschedulable(node) => Some("is bad, and nobody took note of its cordon"),
            "" => {
                let is_left = policy.drain
                    && !is_dead
                    && policy.undrainable == Undrainable::Report
                    && self.is_undrainable(name);
                (has_room() && !is_left).then_some("is bad and is not cordoned")
            }
            "cordoned" if !held => Some("could be drained, and no drain is planned"),
            "scheduled" if is_late("/scheduled") && !held && may_begin() => {
                Some("was to be drained")
            }
            "draining" if is_late("/deadline") && !is_dead => Some("is past its deadline"),
            "failed" if !unschedulable(node) && !has_room() => None,
            "failed"
                if record.get("next").is_some() && is_late("/next") && !held && may_begin() =>
            {
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
            owner(pod) != Some("DaemonSet")
                && (owner(pod).is_none() || annotation(pod, PROTECTED).is_some() || is_held)
        })
    }

    /// Whether all that a node was cordoned for has been over for so long as the policies ask, and
    /// `more`, by conditions that were heard of at `trusted`.
    fn is_over(&self, node: &Value, now: f64, more: f64, trusted: f64) -> bool {
        let record = self.record(node);
        let claims = record.get("claims").and_then(Value::as_array);
        claims.into_iter().flatten().all(|claim| {
            let policy =
                self.policies.iter().find(|policy| *policy.name == *text(claim, "/policy"));
            let recorded = claim.get("conditions").and_then(Value::as_array);
            recorded.into_iter().flatten().all(|recorded| {
                let kind = recorded.as_str().and_then(|c| c.split_once('=')).map_or("", |c| c.0);
                let rule =
                    policy.and_then(|policy| policy.conditions.iter().find(|r| &*r.kind == kind));
                let after = match rule {
                    Some(rule) => rule.clear_after.map(|after| after.as_secs_f64()),
                    None => Some(CLEAR_AFTER),
                };
                let Some(after) = after else { return false };
                match condition(node, kind) {
                    Some(reported) if text(reported, "/status") == "False" => {
                        rule.is_none_or(|rule| is_trusted(reported, rule, trusted))
                            && since(node, kind).is_some_and(|at| at + after + more <= now)
                    }
                    // That it is not reported any more is written down first.
                    None => time(&record, "/vanished").is_some_and(|at| at + after + more <= now),
                    Some(_) => false,
                }
            })
        })
    }

    /// As of when a heartbeat that was stored is known to who sends a write, if that can be told.
    fn known(&self, sent: f64) -> f64 {
        if self.calm { sent - SHARED } else { f64::NEG_INFINITY }
    }

    /// The nodes that are out of use of those among which the cap counts for this one.
    fn out_of_use<'a>(&'a self, cap: &Cap, node: &'a Value) -> impl Iterator<Item = &'a str> {
        let by_label = cap.scope != CapScope::Cluster;
        self.nodes.iter().filter_map(move |(name, states)| {
            let (_, other) = states.last()?;
            let other = other.as_deref().filter(|other| unschedulable(other))?;
            (!by_label || zone(other) == zone(node)).then_some(&**name)
        })
    }

    /// How many nodes may be out of use, by all those that were there at some time since `from`.
    fn most(&self, cap: &Cap, node: &Value, from: f64) -> usize {
        let by_label = cap.scope != CapScope::Cluster;
        let there = |states: &&Vec<Stored>| {
            states.iter().enumerate().any(|(i, (_, other))| {
                other.as_deref().is_some_and(|other| !by_label || zone(other) == zone(node))
                    && states.get(i + 1).is_none_or(|(until, _)| *until >= from)
            })
        };
        match cap.limit {
            Limit::Count(most) => most as usize,
            Limit::Percent(part) => {
                let total = self.nodes.values().filter(there).count();
                (total * usize::from(part) / 100).max(1)
            }
        }
    }

    /// The policy whose settings are those of the drain.
    fn policy_of(&self, record: &Value) -> Option<&Policy> {
        let name = text(record, "/claims/0/policy");
        self.policies.iter().find(|policy| *policy.name == *name)
    }

    /// The record of a node; null if it has none. A node that draino has cordoned has one of that.
    fn record(&self, node: &Value) -> Value {
        if let Some(record) = annotation(node, RECORD) {
            return serde_json::from_str(record).unwrap_or_default();
        }
        let draino = annotation(node, CONDITIONS).filter(|_| unschedulable(node));
        let policy = self.policies.iter().find(|policy| selects(node, policy));
        let (Some(draino), Some(policy)) = (draino, policy) else { return Value::Null };
        let conditions: Vec<_> = draino.split(';').collect();
        json!({
            "session": "draino", "phase": "cordoned", "cordon": "ours",
            "claims": [{"policy": &*policy.name, "conditions": conditions}],
        })
    }

    /// Whether nothing is written but that an uncordon from now on may be cluster-autoscaler's.
    fn is_note(&self, before: &Value, after: &Value) -> bool {
        let (mut old, mut new) = (self.record(before), self.record(after));
        for record in [&mut old, &mut new] {
            if let Some(record) = record.as_object_mut() {
                record.remove("autoscaler");
            }
        }
        old == new && unschedulable(before) == unschedulable(after) && is_same_mark(before, after)
    }

    /// Whether the node's latest uncordon came with the end of its removal by cluster-autoscaler.
    fn uncordoned_by_autoscaler(&self, name: &str) -> bool {
        let states = self.nodes.get(name).map_or(&[][..], Vec::as_slice);
        let uncordons = states.windows(2).rev().filter_map(|pair| {
            let [(_, Some(before)), (_, Some(after))] = pair else { return None };
            let lifts = unschedulable(before) && !unschedulable(after);
            lifts.then(|| is_removed(before) && !is_removed(after))
        });
        uncordons.into_iter().next().unwrap_or(false)
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

/// Why a drain leaves the pod by the stories' policies, for whom it belongs to.
fn unowned(pod: &Value) -> Option<&'static str> {
    match owner(pod) {
        Some("DaemonSet") => Some("it is a DaemonSet's"),
        None => Some("nobody would create it anew"),
        Some(_) => None,
    }
}

fn owner(pod: &Value) -> Option<&str> {
    pod.pointer("/metadata/ownerReferences/0/kind").and_then(Value::as_str)
}

/// Whether a condition of the policy is bad by `now`, by a heartbeat that counts at `trusted`.
fn bad(node: &Value, policy: &Policy, now: f64, trusted: f64) -> bool {
    selects(node, policy)
        && policy.conditions.iter().any(|rule| {
            let Some(reported) = condition(node, &rule.kind) else { return false };
            text(reported, "/status") == "True"
                && is_trusted(reported, rule, trusted)
                && since(node, &rule.kind).is_some_and(|at| at + rule.min_age.as_secs_f64() <= now)
        })
}

/// Whether the condition was heard of within what the rule asks for before this moment.
fn is_trusted(condition: &Value, rule: &ConditionRule, moment: f64) -> bool {
    rule.stale_after.is_none_or(|after| {
        time(condition, "/lastHeartbeatTime").is_some_and(|at| at + after.as_secs_f64() > moment)
    })
}

fn selects(node: &Value, policy: &Policy) -> bool {
    policy.nodes.labels.iter().all(|(key, value)| **key == *ZONE && zone(node) == Some(value))
}

fn zone(node: &Value) -> Option<&str> {
    node.get("metadata")?.get("labels")?.get(ZONE)?.as_str()
}

/// Whether a drain may begin by the policy at one of these moments, both since noon.
fn is_open(policy: &Policy, from: f64, to: f64) -> bool {
    let moment = |seconds| noon() + SignedDuration::from_secs_f64(seconds);
    // The windows are parsed and tested elsewhere, and here no more than asked.
    policy.windows.is_empty()
        || [from, to].into_iter().any(|at| policy.windows.iter().any(|w| w.is_open(moment(at))))
}

/// What a controller has written in other words than draino's.
fn other_words(before: &Value, after: &Value, record: &Value) -> Option<&'static str> {
    let mark = condition(after, "DrainScheduled");
    if !is_same_mark(before, after) && !mark.is_some_and(words::is_known_mark) {
        return Some("another DrainScheduled");
    }
    let is_ours = text(record, "/cordon") == "ours";
    let is_new = annotation(before, RECORD) != annotation(after, RECORD);
    match annotation(after, CONDITIONS) {
        Some(list) if is_ours && is_new && !words::is_known_list(list, record) => {
            Some("other conditions")
        }
        None if is_ours => Some("no conditions"),
        _ => None,
    }
}

fn has_status_taint(node: &Value) -> bool {
    let taints = node.pointer("/spec/taints").and_then(Value::as_array);
    taints.into_iter().flatten().any(is_status_taint)
}

fn is_status_taint(taint: &Value) -> bool {
    taint["key"] == STATUS_TAINT && taint["effect"] == "NoSchedule"
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

fn unschedulable(node: &Value) -> bool {
    node.pointer("/spec/unschedulable").and_then(Value::as_bool) == Some(true)
}

fn is_removed(node: &Value) -> bool {
    let taints = node.pointer("/spec/taints").and_then(Value::as_array);
    taints.into_iter().flatten().any(|taint| taint["key"] == REMOVING)
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
        if let Some(Value::Array(taints)) = spec.get_mut("taints") {
            taints.retain(|taint| !is_status_taint(taint));
        }
        if spec.get("taints").and_then(Value::as_array).is_some_and(Vec::is_empty) {
            spec.remove("taints");
        }
    }
    if let Some(Value::Array(conditions)) = node.pointer_mut("/status/conditions") {
        conditions.retain(|condition| condition["type"] != "DrainScheduled");
    }
    node
}
