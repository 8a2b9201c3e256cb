//! The observer's rules of cordons and drains. They follow the promises, not the controller's code: the
//! observer reads records as JSON and evaluates conditions itself.

mod caps;
mod evictions;
mod facts;
mod settled;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ostrakon::drain::{AtDeadline, Policy, Undrainable};
use ostrakon::sim::embedded::{Change, Resource};
use serde_json::{Value, json};

use self::facts::{
    annotation, condition, has_status_taint, is_removed, is_same_mark, is_trusted, selects, since,
    stripped, unschedulable, zone,
};
use super::{Broken, SHARED, aged, seconds, text, time, words};

/// An annotation of a node that is ours, and one that we may take away.
const RECORD: &str = "ostrakon.dev/drain";
const RETRY: &str = "draino/drain-retry";
/// cluster-autoscaler's taint of a node that it is about to remove.
pub(crate) const REMOVING: &str = "ToBeDeletedByClusterAutoscaler";
/// Annotation of a pod that must not be evicted.
pub(crate) const PROTECTED: &str = "example.com/protected";
/// Label of a node by which caps count and policies select.
pub(crate) const ZONE: &str = "example.com/zone";
/// Key of the taint that policies put on with a cordon; nobody else does.
pub(crate) const STATUS_TAINT: &str = "status-taint.cluster-autoscaler.kubernetes.io/ostrakon";
/// draino's annotation of a node that it has cordoned.
pub(crate) const CONDITIONS: &str = "draino.planet.com/conditions";
/// Value of the label `app` of the pods that a budget is for.
pub(crate) const GUARDED: &str = "guarded";
/// How much later than it is due something may be done: times are stored in whole seconds, and a
/// node is looked at every few seconds.
const LATE: f64 = 12.0;
/// In a calm story a pod that was protected so long ago does not go: its node is looked at every
/// five seconds, and a look ends the order.
const SEEN_PROTECTED: f64 = 7.0;
/// In a calm story a cordon is given back for a pod that was there so short a time ago.
const GIVEN_BACK: f64 = 4.0;
/// What lies between the decision to begin a drain and its beginning, if requests are slow.
const SLOW: f64 = 30.0;
/// When a condition of a policy that there is not is over, as docs/config.md has it by default.
const CLEAR_AFTER: f64 = 300.0;

/// A state of a node, absent while there is none, and from when on it was stored.
type Stored = (f64, Option<Arc<Value>>);

pub(crate) struct Drains {
    policies: Vec<Policy>,
    calm: bool,
    nodes: BTreeMap<String, Vec<Stored>>,
    pods: BTreeMap<String, Arc<Value>>,
    budgets: BTreeMap<String, Arc<Value>>,
    /// Since when each node has borne no pod that cannot go.
    drainable: BTreeMap<String, f64>,
    /// Nodes that were cordoned by a controller, and by which.
    cordoned: BTreeMap<String, String>,
    /// The pods that were evicted for a drain, and when it was asked for.
    evicted: BTreeMap<String, f64>,
    /// Since when pods have been protected.
    protected: BTreeMap<String, f64>,
    /// Pods that were protected at some time.
    ever_protected: BTreeSet<String>,
    /// Since when nodes have had their label.
    labelled: BTreeMap<String, f64>,
    /// The drains of the records that are there and have come to their end: the node's UID, and session.
    ended: BTreeSet<(String, String)>,
    drained: usize,
    /// When a process last began a drain by a policy.
    begun: BTreeMap<(String, String), f64>,
}

impl Drains {
    pub(crate) fn new(policies: Vec<Policy>, calm: bool) -> Self {
        Self {
            policies,
            calm,
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            cordoned: BTreeMap::new(),
            evicted: BTreeMap::new(),
            protected: BTreeMap::new(),
            labelled: BTreeMap::new(),
            budgets: BTreeMap::new(),
            drainable: BTreeMap::new(),
            ever_protected: BTreeSet::new(),
            ended: BTreeSet::new(),
            drained: 0,
            begun: BTreeMap::new(),
        }
    }

    /// How many drains have come to their end.
    pub(crate) fn drained(&self) -> usize {
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
                    self.ever_protected.insert(uid.clone());
                } else {
                    self.protected.remove(&uid);
                }
                match now {
                    Some(pod) => drop(self.pods.insert(uid, pod)),
                    None => drop(self.pods.remove(&uid)),
                }
            }
            Resource::PodDisruptionBudgets => match now {
                Some(budget) => drop(self.budgets.insert(name, budget)),
                None => drop(self.budgets.remove(&name)),
            },
            _ => return,
        }
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        for name in names {
            if self.bears_what_cannot_go(&name, true) {
                self.drainable.remove(&name);
            } else {
                self.drainable.entry(name).or_insert(seconds(change.at));
            }
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
        // What draino had begun is taken over under one session for all nodes.
        let uid = text(after, "/metadata/uid");
        let drain = (uid.to_owned(), text(&new, "/session").to_owned());
        if new.is_null() {
            self.ended.retain(|(node, _)| node != uid);
        } else if text(&new, "/phase") == "drained" && text(&old, "/phase") != "drained" {
            self.drained += 1;
            if let Some(pod) = self.left_behind(&name, &new) {
                return Err(format!(
                    "P2: {who} says at {now:.3} that {name} is drained, and {pod} is on it, which \
                     may go: {new}"
                ));
            }
            if !self.ended.insert(drain) {
                return breach("drains twice");
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
        // It cannot be drained, by what was known not long ago, and is wanted in use then.
        let policy = self.policy_of(old);
        let slack = if self.calm { GIVEN_BACK } else { SLOW };
        if policy.is_some_and(|policy| policy.undrainable == Undrainable::Report)
            && self.drainable.get(name).is_none_or(|since| *since >= sent - slack)
        {
            return Ok(());
        }
        if !self.is_over(node, now + 1.0, 0.0, self.known(sent)) {
            return Err(format!("P6: {who} uncordons {name} at {now:.3}, which is bad: {node}"));
        }
        Ok(())
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
                            && since(node, kind)
                                .is_some_and(|at| aged(at, after) + more <= now + 1e-3)
                    }
                    // That it is not reported any more is written down first.
                    None => time(&record, "/vanished")
                        .is_some_and(|at| aged(at, after) + more <= now + 1e-3),
                    Some(_) => false,
                }
            })
        })
    }

    /// As of when a heartbeat that was stored is known to who sends a write, if that can be told.
    fn known(&self, sent: f64) -> f64 {
        if self.calm { sent - SHARED } else { f64::NEG_INFINITY }
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

    /// For how long cluster-autoscaler's taint has been on the node.
    fn removed_for(&self, name: &str, now: f64) -> f64 {
        let states = self.nodes.get(name).map_or(&[][..], Vec::as_slice);
        let is_on = |(_, node): &&Stored| node.as_deref().is_some_and(is_removed);
        states.iter().rev().take_while(is_on).last().map_or(0.0, |(from, _)| now - from)
    }
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
