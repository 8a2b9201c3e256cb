//! P1: which pods a drain may evict.

use ostrakon::drain::Policy;
use serde_json::Value;

use super::super::{Broken, SHARED, text};
use super::facts::{bad, condition, is_removed, is_trusted, owner, selects, status, unschedulable};
use super::{Drains, SEEN_PROTECTED};

impl Drains {
    /// A pod was evicted by a controller: its node was cordoned, bad and being drained, no filter
    /// protects it, and it goes once.
    pub(in super::super) fn evicted_pod(
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
    pub(in super::super) fn deleted_pod(
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
}

/// Why a drain leaves the pod by the stories' policies, for whom it belongs to.
fn unowned(pod: &Value) -> Option<&'static str> {
    match owner(pod) {
        Some("DaemonSet") => Some("it is a DaemonSet's"),
        None => Some("nobody would create it anew"),
        Some(_) => None,
    }
}
