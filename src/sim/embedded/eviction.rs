//! The eviction subresource: a deletion that asks the pod's disruption budget first.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::budget::allowed_condition;
use super::deletion::DeleteOptions;
use super::error::ApiError;
use super::object::{
    at, condition, is_finished, is_terminating, is_true, meta, number, set, set_condition, text,
    time,
};
use super::resource::Resource;
use super::selector::Selector;
use super::store::{State, Store};

/// With more pods than this on their way the budget is not to be trusted.
const MOST_DISRUPTED: usize = 2000;

const REFUSAL: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

impl Store {
    /// Evicts the pod, as a POST of `eviction` to its subresource does.
    ///
    /// Refused with 404 if there is no such pod, 409 if it is not the one that the preconditions
    /// are about, 429 if its budget has nothing left or is not up to date, and 500 if it has more
    /// than one budget.
    pub fn evict(
        &self,
        namespace: &str,
        name: &str,
        eviction: &Value,
        dry_run: bool,
    ) -> Result<(), ApiError> {
        let own = meta(eviction, "name");
        if !own.is_empty() && own != name {
            return Err(ApiError::bad_request(
                "name in URL does not match name in Eviction object",
            ));
        }
        let mut options = DeleteOptions::from_value(at(eviction, &["deleteOptions"]));
        options.dry_run |= dry_run;
        self.transact(|state, now| {
            let pod = state.get(Resource::Pods, namespace, name)?;
            if !goes_anyway(&pod) {
                state.spend(&pod, now, options.dry_run)?;
            }
            options.check(Resource::Pods, &pod)?;
            options.resource_version = None;
            if !options.dry_run {
                state.mark_evicted(&pod, now);
            }
            state.delete(Resource::Pods, namespace, name, &options, now)?;
            Ok(())
        })
    }
}

/// Whether the pod does no work that a budget could be about.
fn goes_anyway(pod: &Value) -> bool {
    is_finished(pod) || is_terminating(pod) || text(pod, &["status", "phase"]) == "Pending"
}

impl State {
    /// Takes one disruption from the pod's budget, if it has one.
    fn spend(&mut self, pod: &Value, now: Timestamp, dry_run: bool) -> Result<(), ApiError> {
        let namespace = meta(pod, "namespace");
        let has_labels =
            at(pod, &["metadata", "labels"]).as_object().is_some_and(|l| !l.is_empty());
        if !has_labels {
            return Ok(());
        }
        let guards = |budget: &&std::sync::Arc<Value>| {
            let selector = Selector::from_object(namespace, at(budget, &["spec", "selector"]));
            selector.is_some_and(|selector| selector.matches(pod))
        };
        let budgets = self.in_namespace(Resource::PodDisruptionBudgets, Some(namespace));
        let budgets: Vec<_> = budgets.filter(guards).cloned().collect();
        let budget = match budgets.as_slice() {
            [] => return Ok(()),
            [budget] => budget,
            _ => {
                return Err(ApiError {
                    code: 500,
                    reason: "",
                    message: "This pod has more than one PodDisruptionBudget, which the eviction \
                              subresource does not support."
                        .to_owned(),
                    details: Value::Null,
                });
            }
        };
        if !is_true(pod, "Ready") && lets_unhealthy_go(budget) {
            return Ok(());
        }
        let allowed = check(budget)?;
        if dry_run {
            return Ok(());
        }
        let mut next = (**budget).clone();
        set(&mut next, &["status", "disruptionsAllowed"], allowed - 1);
        set(&mut next, &["status", "disruptedPods", meta(pod, "name")], time(now));
        let generation = number(&next, &["metadata", "generation"]).unwrap_or(0);
        if allowed == 1 {
            let condition = allowed_condition(&next, 0, generation, now);
            set_condition(&mut next, condition);
        }
        self.put(Resource::PodDisruptionBudgets, next, now);
        Ok(())
    }

    fn mark_evicted(&mut self, pod: &Value, now: Timestamp) {
        let old = condition(pod, "DisruptionTarget");
        let since = match old {
            Some(old) if text(old, &["status"]) == "True" => {
                text(old, &["lastTransitionTime"]).to_owned()
            }
            _ => time(now),
        };
        let mark = json!({
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastProbeTime": null,
            "lastTransitionTime": since,
        });
        if old != Some(&mark) {
            let mut next = pod.clone();
            set_condition(&mut next, mark);
            self.put(Resource::Pods, next, now);
        }
    }
}

/// Whether the budget does not hold back a pod that is not healthy.
fn lets_unhealthy_go(budget: &Value) -> bool {
    if text(budget, &["spec", "unhealthyPodEvictionPolicy"]) == "AlwaysAllow" {
        return true;
    }
    let desired = number(budget, &["status", "desiredHealthy"]).unwrap_or(0);
    desired > 0 && number(budget, &["status", "currentHealthy"]).unwrap_or(0) >= desired
}

/// How many disruptions the budget allows: at least one, or it refuses.
fn check(budget: &Value) -> Result<i64, ApiError> {
    let name = meta(budget, "name");
    let generation = number(budget, &["metadata", "generation"]).unwrap_or(0);
    if number(budget, &["status", "observedGeneration"]).unwrap_or(0) < generation {
        let text = format!("The disruption budget {name} is still being processed by the server.");
        let error = ApiError::too_many_requests(REFUSAL, Some(10));
        return Err(error.caused_by("DisruptionBudget", &text));
    }
    let refuse = |cause| Err(ApiError::forbidden(Resource::PodDisruptionBudgets, name, cause));
    let disrupted =
        at(budget, &["status", "disruptedPods"]).as_object().map_or(0, serde_json::Map::len);
    if disrupted > MOST_DISRUPTED {
        return refuse(
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        );
    }
    let allowed = number(budget, &["status", "disruptionsAllowed"]).unwrap_or(0);
    if allowed < 0 {
        return refuse("pdb disruptions allowed is negative");
    }
    if allowed > 0 {
        return Ok(allowed);
    }
    let healthy = number(budget, &["status", "currentHealthy"]).unwrap_or(0);
    let desired = number(budget, &["status", "desiredHealthy"]).unwrap_or(0);
    let text = if healthy <= desired {
        format!(
            "The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
        )
    } else {
        let cause = condition(budget, "DisruptionAllowed").map_or("", |c| text(c, &["reason"]));
        format!("The disruption budget {name} does not allow evicting pods currently ({cause}): ")
    };
    let error = ApiError::too_many_requests(REFUSAL, None);
    Err(error.caused_by("DisruptionBudget", &text))
}

#[cfg(test)]
mod tests {
    use super::super::store::Options;
    use super::*;
    use crate::clock::Clock;
    use std::time::Duration;

    fn store() -> Store {
        let noon = "2026-01-01T12:00:00Z".parse().unwrap();
        Store::new(Clock::starting_at(noon), Options::default())
    }

    fn with_pods(names: &[&str]) -> Store {
        let store = store();
        for name in names {
            add_pod(&store, name, "Running", "True");
        }
        store
    }

    fn add_pod(store: &Store, name: &str, phase: &str, ready: &str) {
        let pod = json!({
            "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}},
            "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 30},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
        });
        store.insert(Resource::Pods, pod).unwrap();
    }

    fn add_budget(store: &Store, name: &str, spec: &Value) {
        let mut budget = json!({"metadata": {"name": name}, "spec": spec});
        set(&mut budget, &["spec", "selector"], json!({"matchLabels": {"app": "web"}}));
        store.create(Resource::PodDisruptionBudgets, "default", budget, false).unwrap();
    }

    fn status(store: &Store) -> Value {
        store.update_budgets();
        let budget = store.get(Resource::PodDisruptionBudgets, "default", "b").unwrap();
        budget["status"].clone()
    }

    fn numbers(store: &Store) -> [i64; 4] {
        let status = status(store);
        ["expectedPods", "currentHealthy", "desiredHealthy", "disruptionsAllowed"]
            .map(|field| status[field].as_i64().unwrap())
    }

    fn evict(store: &Store, name: &str) -> Result<(), ApiError> {
        store.evict("default", name, &json!({}), false)
    }

    fn uid(store: &Store, name: &str) -> String {
        meta(&store.get(Resource::Pods, "default", name).unwrap(), "uid").to_owned()
    }

    #[test]
    fn without_a_budget_the_pod_is_marked_and_then_deleted() {
        let store = with_pods(&["a"]);
        evict(&store, "a").unwrap();
        let pod = store.get(Resource::Pods, "default", "a").unwrap();
        assert_eq!(meta(&pod, "deletionTimestamp"), "2026-01-01T12:00:30Z");
        let mark = condition(&pod, "DisruptionTarget").unwrap();
        assert_eq!(mark["reason"], "EvictionByEvictionAPI");
        assert_eq!(evict(&store, "none").unwrap_err().code, 404);
    }

    #[test]
    fn the_grace_and_the_uid_of_the_eviction_count() {
        let store = with_pods(&["a"]);
        let eviction = |uid: &str| {
            let options = json!({"gracePeriodSeconds": 7, "preconditions": {"uid": uid}});
            store.evict("default", "a", &json!({"deleteOptions": options}), false)
        };
        let error = eviction("another").unwrap_err();
        assert_eq!((error.code, error.reason), (409, "Conflict"));
        let pod = store.get(Resource::Pods, "default", "a").unwrap();
        assert!(!is_terminating(&pod) && condition(&pod, "DisruptionTarget").is_none());
        eviction(&uid(&store, "a")).unwrap();
        let pod = store.get(Resource::Pods, "default", "a").unwrap();
        assert_eq!(meta(&pod, "deletionTimestamp"), "2026-01-01T12:00:07Z");
    }

    #[test]
    fn a_budget_that_was_not_counted_yet_asks_to_come_back_in_ten_seconds() {
        let store = with_pods(&["a", "b"]);
        add_budget(&store, "b", &json!({"minAvailable": 1}));
        let error = evict(&store, "a").unwrap_err();
        assert_eq!((error.code, error.retry_after()), (429, Some(10)));
        let cause = &error.details["causes"][0];
        assert_eq!(cause["reason"], "DisruptionBudget");
        assert!(text(cause, &["message"]).contains("still being processed"));
        store.update_budgets();
        evict(&store, "a").unwrap();
    }

    #[test]
    fn a_budget_that_is_used_up_names_no_time() {
        let store = with_pods(&["a", "b"]);
        add_budget(&store, "b", &json!({"minAvailable": 1}));
        store.update_budgets();
        evict(&store, "a").unwrap();
        for counted in [false, true] {
            if counted {
                store.update_budgets();
            }
            let error = evict(&store, "b").unwrap_err();
            assert_eq!((error.code, error.retry_after()), (429, None));
            assert_eq!(error.details["causes"][0]["reason"], "DisruptionBudget");
            assert!(!is_terminating(&store.get(Resource::Pods, "default", "b").unwrap()));
        }
    }

    #[test]
    fn a_pod_with_two_budgets_cannot_be_evicted() {
        let store = with_pods(&["a"]);
        add_budget(&store, "b", &json!({"minAvailable": 0}));
        add_budget(&store, "c", &json!({"minAvailable": 0}));
        store.update_budgets();
        let error = evict(&store, "a").unwrap_err();
        assert_eq!((error.code, error.reason), (500, ""));
    }

    #[test]
    fn a_pod_that_does_no_work_needs_no_budget() {
        let store = with_pods(&["a"]);
        add_budget(&store, "b", &json!({"minAvailable": 5}));
        store.update_budgets();
        for phase in ["Pending", "Failed", "Succeeded"] {
            let name = phase.to_lowercase();
            add_pod(&store, &name, phase, "False");
            evict(&store, &name).unwrap();
        }
        assert_eq!(evict(&store, "a").unwrap_err().code, 429);
    }

    #[test]
    fn an_unready_pod_goes_when_the_budget_is_met_or_does_not_mind() {
        let store = with_pods(&["a"]);
        add_pod(&store, "sick", "Running", "False");
        add_budget(&store, "b", &json!({"minAvailable": 1}));
        store.update_budgets();
        evict(&store, "sick").unwrap();
        let store = with_pods(&["a"]);
        add_pod(&store, "sick", "Running", "False");
        add_budget(&store, "b", &json!({"minAvailable": 2}));
        store.update_budgets();
        assert_eq!(evict(&store, "sick").unwrap_err().code, 429);
        let policy = json!({"minAvailable": 2, "unhealthyPodEvictionPolicy": "AlwaysAllow"});
        let store = with_pods(&["a"]);
        add_pod(&store, "sick", "Running", "False");
        add_budget(&store, "b", &policy);
        store.update_budgets();
        evict(&store, "sick").unwrap();
    }

    #[test]
    fn numbers_and_percentages_are_counted() {
        let store = with_pods(&["a", "b", "c"]);
        add_pod(&store, "sick", "Running", "False");
        add_budget(&store, "b", &json!({"minAvailable": 2}));
        assert_eq!(numbers(&store), [4, 3, 2, 1]);
        assert_eq!(status(&store)["conditions"][0]["status"], "True");
    }

    #[test]
    fn percentages_are_of_what_the_owners_want() {
        for (spec, wanted) in [
            (json!({"maxUnavailable": "25%"}), [6, 3, 4, 0]),
            (json!({"maxUnavailable": 4}), [6, 3, 2, 1]),
            (json!({"minAvailable": "50%"}), [6, 3, 3, 0]),
        ] {
            let store = store();
            let set = json!({"metadata": {"name": "web"}, "spec": {"replicas": 6}});
            store.create(Resource::ReplicaSets, "default", set, false).unwrap();
            for name in ["x", "y", "z"] {
                let owner = json!({
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web",
                    "uid": "u", "controller": true,
                });
                let pod = json!({
                    "metadata": {
                        "name": name, "namespace": "default", "labels": {"app": "web"},
                        "ownerReferences": [owner],
                    },
                    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
                });
                store.insert(Resource::Pods, pod).unwrap();
            }
            add_budget(&store, "b", &spec);
            assert_eq!(numbers(&store), wanted, "{spec}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_was_let_go_and_stays_counts_again_after_two_minutes() {
        let store = with_pods(&["a", "b"]);
        add_budget(&store, "b", &json!({"minAvailable": 1}));
        store.update_budgets();
        let wrong = json!({"deleteOptions": {"preconditions": {"uid": "another"}}});
        assert_eq!(store.evict("default", "a", &wrong, false).unwrap_err().code, 409);
        assert_eq!(numbers(&store), [2, 1, 1, 0]);
        tokio::time::advance(Duration::from_secs(121)).await;
        assert_eq!(numbers(&store), [2, 2, 1, 1]);
    }

    #[test]
    fn a_dry_run_spends_nothing() {
        let store = with_pods(&["a", "b"]);
        add_budget(&store, "b", &json!({"minAvailable": 1}));
        store.update_budgets();
        let before = store.version();
        store.evict("default", "a", &json!({}), true).unwrap();
        assert_eq!(store.version(), before);
    }
}
