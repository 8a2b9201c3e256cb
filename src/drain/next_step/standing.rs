//! The conditions of a node: which policies match now, and the state of those that it was cordoned for.

use std::sync::Arc;

use jiff::Timestamp;

use crate::drain::belief::bounded;
use crate::drain::condition::{ConditionRule, Holding};
use crate::drain::{Claim, DrainPhase, Policy, Record};
use crate::model::{NodeDrainFacts, Stamp};

/// Which policies find the node bad.
#[derive(Debug)]
pub(super) struct Badness {
    pub(super) claims: Vec<Claim>,
    /// When some condition may stand otherwise, without any event.
    pub(super) look_again: Option<Timestamp>,
}

impl Badness {
    pub(super) fn of(drain_facts: &NodeDrainFacts, policies: &[Policy], now: Timestamp) -> Self {
        let mut badness = Self { claims: Vec::new(), look_again: None };
        for policy in policies.iter().filter(|policy| policy.selects(&drain_facts.labels)) {
            let conditions: Vec<Arc<str>> =
                policy.bad(drain_facts, now).map(|rule| Arc::from(rule.to_string())).collect();
            let look_again = policy.looks_again_at(drain_facts, now);
            badness.look_again = [badness.look_again, look_again].into_iter().flatten().min();
            if !conditions.is_empty() {
                badness.claims.push(Claim { policy: Arc::clone(&policy.name), conditions });
            }
        }
        badness.claims = bounded(badness.claims);
        badness
    }

    /// Those, and what is recorded and has not cleared.
    pub(super) fn joined(&self, record: &Record, clearing: &Clearing) -> Vec<Claim> {
        let mut claims = self.claims.clone();
        // The settings of a drain that is planned or under way do not change with each flap of some
        // other condition.
        let is_bound = record.phase != DrainPhase::Cordoned;
        if let Some(first) = record.claims.first().filter(|_| is_bound)
            && let Some(at) = claims.iter().position(|claim| claim.policy == first.policy)
        {
            claims[..=at].rotate_right(1);
        }
        for old in &clearing.remaining {
            match claims.iter_mut().find(|claim| claim.policy == old.policy) {
                Some(claim) => {
                    for condition in &old.conditions {
                        if !claim.conditions.contains(condition) {
                            claim.conditions.push(Arc::clone(condition));
                        }
                    }
                }
                None => claims.push(old.clone()),
            }
        }
        let claims = bounded(claims);
        // The same set in another order is not news.
        let is_same = claims.len() == record.claims.len()
            && claims.iter().all(|claim| {
                record.claims.iter().any(|old| {
                    old.policy == claim.policy
                        && old.conditions.len() == claim.conditions.len()
                        && old.conditions.iter().all(|c| claim.conditions.contains(c))
                })
            })
            && claims.first().map(|o| &o.policy) == record.claims.first().map(|o| &o.policy);
        if is_same { record.claims.clone() } else { claims }
    }
}

/// What has become of the conditions that a node was cordoned for.
#[derive(Debug)]
pub(super) struct Clearing {
    /// When all of them have been good for long enough; `None` while one is not good.
    pub(super) clear_at: Option<Timestamp>,
    /// One of them is not reported at all.
    pub(super) some_absent: bool,
    /// One of them, of a policy that still selects the node, is not to be trusted.
    pub(super) some_stale: bool,
    /// Owners that have not cleared, with the conditions that have not.
    remaining: Vec<Claim>,
}

impl Clearing {
    pub(super) fn of(
        record: &Record,
        drain_facts: &NodeDrainFacts,
        policies: &[Policy],
        now: Timestamp,
    ) -> Self {
        let mut clearing = Self {
            clear_at: Some(Timestamp::MIN),
            some_absent: false,
            some_stale: false,
            remaining: Vec::new(),
        };
        for claim in &record.claims {
            let policy = policies.iter().find(|policy| policy.name == claim.policy);
            let mut conditions = Vec::new();
            for condition in &claim.conditions {
                let at = clearing.one(condition, policy, record, drain_facts, now);
                clearing.clear_at = match (clearing.clear_at, at) {
                    (Some(known), Some(at)) => Some(known.max(at)),
                    _ => None,
                };
                if at.is_none_or(|at| at > now) {
                    conditions.push(Arc::clone(condition));
                }
            }
            if !conditions.is_empty() {
                let policy = Arc::clone(&claim.policy);
                clearing.remaining.push(Claim { policy, conditions });
            }
        }
        clearing
    }

    /// When one recorded condition has been good for long enough; `None` while it is not good.
    fn one(
        &mut self,
        condition: &str,
        policy: Option<&Policy>,
        record: &Record,
        drain_facts: &NodeDrainFacts,
        now: Timestamp,
    ) -> Option<Timestamp> {
        // The policy may have changed: then what is written down decides. What makes no sense is
        // left to a person.
        let Ok(recorded) = ConditionRule::parse(condition) else {
            return (record.phase == DrainPhase::Released).then_some(Timestamp::MIN);
        };
        let is_same =
            |rule: &&ConditionRule| rule.kind == recorded.kind && rule.status == recorded.status;
        let configured = policy.and_then(|policy| policy.conditions.iter().find(is_same));
        let mut rule = configured.unwrap_or(&recorded).clone();
        if record.phase == DrainPhase::Released {
            // A person has decided. What is good again may be bad again.
            rule.clear_after.get_or_insert(ConditionRule::CLEAR_AFTER);
        }
        let holding = rule.judge(drain_facts, now);
        if holding == Holding::Absent {
            self.some_absent = true;
            return Some(Stamp::of_second(record.vanished?).plus(rule.clear_after?));
        }
        let is_asked = policy.is_some_and(|policy| policy.selects(&drain_facts.labels));
        self.some_stale |= is_asked && configured.is_some() && holding == Holding::Stale;
        rule.over_from(holding)
    }
}
