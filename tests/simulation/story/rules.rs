//! Stories with rules for taints: a budget comes and goes, and which taints respect it depends on the seed.

use std::time::Duration;

use ostrakon::sim::embedded::{DeleteOptions, Resource};
use ostrakon::taint::{TaintMethod, TaintRule};
use rand::Rng;
use serde_json::json;

use super::super::observer::rules::{How, Rules};
use super::Story;

/// How long after its deadline a pod is deleted where a rule says so.
const AFTER: Duration = Duration::from_secs(7);

/// The rules of a story.
pub(super) fn rules(seed: u64) -> Rules {
    let after = How::DeletedAfter(AFTER.as_secs_f64());
    let of = |methods: [How; 3], seed: u64| methods[usize::try_from(seed % 3).unwrap_or_default()];
    Rules(vec![
        ("a", of([How::Evicted, after, How::Left], seed)),
        ("u", of([after, How::Evicted, How::Deleted], seed / 3)),
        ("b", of([How::Deleted, How::Left, How::Evicted], seed / 9)),
    ])
}

/// The same as the controller has them.
pub(crate) fn as_configured(rules: &Rules) -> Vec<TaintRule> {
    let rule = |(beginning, how): &(&'static str, How)| TaintRule {
        name: (*beginning).into(),
        key: format!("{beginning}*").into(),
        value: None,
        method: match how {
            How::Deleted => TaintMethod::Delete,
            How::Evicted => TaintMethod::Evict,
            How::DeletedAfter(after) => {
                TaintMethod::EvictThenDelete { after: Duration::from_secs_f64(*after) }
            }
            How::Left => TaintMethod::Ignore,
        },
        limit: None,
    };
    rules.0.iter().map(rule).collect()
}

impl Story {
    /// A budget that allows nothing comes, or goes.
    pub(super) fn rules_step(&mut self) {
        if !self.random.random_bool(0.15) {
            return self.step();
        }
        let budget = json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
            "status": {
                "observedGeneration": 1, "disruptionsAllowed": 0, "desiredHealthy": 1,
                "currentHealthy": 0, "expectedPods": 1,
            },
        });
        if self.cluster.store().insert(Resource::PodDisruptionBudgets, budget).is_err() {
            self.remove_budget();
        }
    }

    pub(super) fn remove_budget(&self) {
        let (budgets, options) = (Resource::PodDisruptionBudgets, DeleteOptions::default());
        let _ = self.cluster.store().delete(budgets, "default", "web", &options);
    }
}
