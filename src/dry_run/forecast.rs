//! What the Eviction API would probably answer, from the disruption budgets as they are.
//!
//! An eviction with `dryRun=All` needs the right to evict, which a dry run does not have. So the budgets are
//! read, and what would have been evicted lately is subtracted from what they allow: the real server
//! would count it too, until the pod is replaced.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use tokio::time::Instant;

use crate::drain::{BudgetBlocker, budget_blocker};
use crate::model::{Budget, DrainPod};

/// For how long a pod that would have been evicted counts as not replaced yet.
const REPLACED_AFTER: Duration = Duration::from_secs(60);

/// The evictions that budgets would have granted lately.
#[derive(Debug, Default)]
pub(crate) struct Forecast {
    /// By namespace and name of the budget.
    granted: AHashMap<(Arc<str>, Arc<str>), VecDeque<Instant>>,
}

impl Forecast {
    /// Whether the pod would be evicted at `now`. If so it counts against its budget.
    ///
    /// # Errors
    /// What would keep it from being evicted.
    pub(crate) fn evict(
        &mut self,
        pod: &DrainPod,
        budgets: &[Budget],
        now: Instant,
    ) -> Result<(), BudgetBlocker> {
        self.granted.retain(|_, granted| {
            while granted.front().is_some_and(|at| now.duration_since(*at) >= REPLACED_AFTER) {
                granted.pop_front();
            }
            !granted.is_empty()
        });
        let guarding = budgets.iter().filter(|budget| budget.guards(pod));
        let left: Vec<Budget> = guarding.map(|budget| self.left(budget)).collect();
        if let Some(blocker) = budget_blocker(pod, &left) {
            return Err(blocker);
        }
        if let Some(budget) = left.first() {
            let key = (Arc::clone(&budget.namespace), Arc::clone(&budget.name));
            self.granted.entry(key).or_default().push_back(now);
        }
        Ok(())
    }

    /// A budget as it would be after what it has granted lately.
    fn left(&self, budget: &Budget) -> Budget {
        let key = (Arc::clone(&budget.namespace), Arc::clone(&budget.name));
        let granted = self.granted.get(&key).map_or(0, VecDeque::len);
        let granted = i32::try_from(granted).unwrap_or(i32::MAX);
        let (healthy, allowed) =
            (budget.healthy.saturating_sub(granted), budget.allowed.saturating_sub(granted));
        Budget { healthy, allowed, ..budget.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::build::drain_pod;
    use crate::model::{Amount, Demand, Selector};

    /// A budget that needs two pods of the three that there are.
    fn budget() -> Budget {
        Budget {
            namespace: "default".into(),
            name: "web".into(),
            selector: Selector::All(Vec::new()),
            demand: Some(Demand::MinAvailable(Amount::Count(2))),
            lets_unready_go: false,
            observed: true,
            healthy: 3,
            desired: 2,
            expected: 3,
            allowed: 1,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_would_have_been_evicted_lately_counts_against_its_budget() {
        let mut forecast = Forecast::default();
        let (pod, budgets) = (drain_pod("a").labelled([("app", "web")]), [budget()]);
        assert_eq!(forecast.evict(&pod, &budgets, Instant::now()), Ok(()));
        let blocked = forecast.evict(&pod, &budgets, Instant::now());
        let numbers = BudgetBlocker::Blocked { budget: "web".into(), needs: 2, has: 2 };
        assert_eq!(blocked, Err(numbers));
        assert_eq!(forecast.evict(&pod, &[], Instant::now()), Ok(()), "no budget");
        tokio::time::advance(REPLACED_AFTER).await;
        assert_eq!(forecast.evict(&pod, &budgets, Instant::now()), Ok(()));
        assert!(forecast.granted.len() == 1);
    }
}
