//! The arithmetic of disruption budgets.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use super::object::{
    at, condition, controller, is_terminating, is_true, meta, number, set, text, time,
};
use super::resource::Resource;
use super::selector::Selector;
use super::store::{Key, State, Store};

/// For how long a pod that was allowed to go counts as gone, while it is still there.
const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_mins(2);

impl Store {
    /// Brings the status of every disruption budget up to date, as the disruption controller does.
    pub fn update_budgets(&self) {
        self.transact(|state, now| {
            let all = state.in_namespace(Resource::PodDisruptionBudgets, None);
            let budgets: Vec<_> = all.cloned().collect();
            for budget in budgets {
                let status = status(state, &budget, now);
                if status != *at(&budget, &["status"]) {
                    let mut next = (*budget).clone();
                    set(&mut next, &["status"], status);
                    state.put(Resource::PodDisruptionBudgets, next, now);
                }
            }
        });
    }
}

/// The pods that the budget is for.
fn guarded(state: &State, budget: &Value) -> Vec<Arc<Value>> {
    let namespace = meta(budget, "namespace");
    let selector = Selector::from_object(namespace, at(budget, &["spec", "selector"]));
    let Some(selector) = selector else {
        return Vec::new();
    };
    let pods = state.in_namespace(Resource::Pods, Some(namespace));
    pods.filter(|pod| selector.matches(pod)).cloned().collect()
}

fn status(state: &State, budget: &Value, now: Timestamp) -> Value {
    let pods = guarded(state, budget);
    let disrupted = still_disrupted(budget, &pods, now);
    let healthy = pods.iter().filter(|pod| {
        is_true(pod, "Ready") && !is_terminating(pod) && !disrupted.contains_key(meta(pod, "name"))
    });
    let healthy = as_count(healthy.count());
    let (expected, desired) = expectation(state, budget, &pods);
    let allowed = if expected > 0 { (healthy - desired).max(0) } else { 0 };
    let generation = number(budget, &["metadata", "generation"]).unwrap_or(0);
    let mut status = json!({
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "disruptionsAllowed": allowed,
        "observedGeneration": generation,
        "conditions": [allowed_condition(budget, allowed, generation, now)],
    });
    if !disrupted.is_empty() {
        status["disruptedPods"] = disrupted.into();
    }
    status
}

/// How many pods there should be, and how many of them healthy.
fn expectation(state: &State, budget: &Value, pods: &[Arc<Value>]) -> (i64, i64) {
    let unavailable = at(budget, &["spec", "maxUnavailable"]);
    let available = at(budget, &["spec", "minAvailable"]);
    if !unavailable.is_null() {
        let expected = scale(state, pods);
        return (expected, (expected - share(unavailable, expected)).max(0));
    }
    if available.is_string() {
        let expected = scale(state, pods);
        return (expected, share(available, expected));
    }
    (as_count(pods.len()), share(available, 0))
}

/// A number, or that percentage of `whole`, rounded up.
fn share(value: &Value, whole: i64) -> i64 {
    let percent = value.as_str().and_then(|text| text.strip_suffix('%')?.parse::<i64>().ok());
    match percent {
        Some(percent) => (whole.saturating_mul(percent) + 99).div_euclid(100),
        None => value.as_i64().unwrap_or(0),
    }
}

/// How many replicas the owners of the pods want. A pod without an owner counts for nothing.
fn scale(state: &State, pods: &[Arc<Value>]) -> i64 {
    let mut owners = BTreeMap::new();
    for pod in pods {
        if let Some(owner) = controller(pod) {
            let count = owners.entry(text(owner, &["uid"])).or_insert((pod, owner, 0));
            count.2 += 1;
        }
    }
    let wanted = |(pod, owner, count): &(&Arc<Value>, &Value, i64)| {
        let kind = Resource::of_kind(text(owner, &["apiVersion"]), text(owner, &["kind"]));
        let key = Key::new(meta(pod, "namespace"), text(owner, &["name"]));
        let found = kind.and_then(|kind| state.find(kind, &key));
        found.and_then(|owner| number(&owner, &["spec", "replicas"])).unwrap_or(*count)
    };
    owners.values().map(wanted).sum()
}

/// The pods that were allowed to go and are, for all we know, about to.
fn still_disrupted(budget: &Value, pods: &[Arc<Value>], now: Timestamp) -> Map<String, Value> {
    let Some(disrupted) = at(budget, &["status", "disruptedPods"]).as_object() else {
        return Map::new();
    };
    let is_due = |since: &Value| {
        let since = since.as_str().and_then(|text| text.parse::<Timestamp>().ok());
        since.is_some_and(|since| now.duration_since(since) <= DELETION_TIMEOUT)
    };
    let waits =
        |name: &str| pods.iter().any(|pod| meta(pod, "name") == name && !is_terminating(pod));
    let kept = disrupted.iter().filter(|(name, since)| is_due(since) && waits(name));
    kept.map(|(name, since)| (name.clone(), since.clone())).collect()
}

/// The condition that tells whether one more pod may go.
pub(super) fn allowed_condition(
    budget: &Value,
    allowed: i64,
    generation: i64,
    now: Timestamp,
) -> Value {
    let (status, reason) =
        if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let old = condition(budget, "DisruptionAllowed");
    let since = match old {
        Some(old) if text(old, &["status"]) == status => {
            text(old, &["lastTransitionTime"]).to_owned()
        }
        _ => time(now),
    };
    json!({
        "type": "DisruptionAllowed",
        "status": status,
        "reason": reason,
        "message": "",
        "lastTransitionTime": since,
        "observedGeneration": generation,
    })
}

fn as_count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_number_or_a_percentage_rounded_up() {
        assert_eq!(share(&json!(3), 10), 3);
        assert_eq!(share(&json!("50%"), 5), 3);
        assert_eq!(share(&json!("100%"), 7), 7);
        assert_eq!(share(&json!("0%"), 7), 0);
        assert_eq!(share(&Value::Null, 7), 0);
    }
}
