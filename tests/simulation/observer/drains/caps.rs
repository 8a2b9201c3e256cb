//! P5: which nodes may be cordoned, by conditions and caps, and when a drain may start.

use ostrakon::drain::{Cap, CapScope, Limit};
use serde_json::Value;

use super::super::{Broken, SHARED, text};
use super::facts::{annotation, bad, has_status_taint, is_open, unschedulable, zone};
use super::{Drains, RETRY, SLOW, Stored};

impl Drains {
    /// P5: a drain begins in a window of its policy, and so long after another one as it asks for.
    /// A person's request waits for neither.
    pub(super) fn rightly_begun(
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
    pub(super) fn rightly_cordoned(
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
            let out = self.unavailable(cap, node).filter(|other| counts(other)).count();
            let most = self.most(cap, node, if self.calm { now - SHARED } else { 0.0 });
            if out > most {
                return Err(format!(
                    "P5: {who} cordons {name} at {now:.3}, so that {out} nodes are unavailable, of \
                     {most} that may be by {cap:?}"
                ));
            }
        }
        Ok(())
    }

    /// The nodes that are unavailable of those among which the cap counts for this one.
    pub(super) fn unavailable<'a>(
        &'a self,
        cap: &Cap,
        node: &'a Value,
    ) -> impl Iterator<Item = &'a str> {
        let by_label = cap.scope != CapScope::Cluster;
        self.nodes.iter().filter_map(move |(name, states)| {
            let (_, other) = states.last()?;
            let other = other.as_deref().filter(|other| unschedulable(other))?;
            (!by_label || zone(other) == zone(node)).then_some(&**name)
        })
    }

    /// How many nodes may be unavailable, by all those that were there at some time since `from`.
    pub(super) fn most(&self, cap: &Cap, node: &Value, from: f64) -> usize {
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

    fn unschedulable_since(&self, name: &str) -> f64 {
        let states = self.nodes.get(name).map_or(&[][..], Vec::as_slice);
        let is_out = |(_, node): &&Stored| node.as_deref().is_some_and(unschedulable);
        states.iter().rev().take_while(is_out).last().map_or(f64::INFINITY, |(from, _)| *from)
    }
}
