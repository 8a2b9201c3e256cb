//! Disruption budgets: which one selects a pod, and whether it would allow its eviction.
//!
//! This is a forecast by Kubernetes' rules for `pods/eviction`; the API server decides. The forecast is
//! used to describe the budget and its numbers and to time retries. It only prevents a drain if the policy
//! says so.

use std::fmt;
use std::sync::Arc;

use crate::model::{Amount, Budget, Demand, DrainPod, Phase};

/// Why a pod could not be evicted now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BudgetBlocker {
    /// The budget has nothing left, but may have later.
    Blocked {
        /// Its name.
        budget: Arc<str>,
        /// How many healthy pods it needs.
        needs: i32,
        /// How many there are.
        has: i32,
    },
    /// The budget can never be met: someone must change it, or have more pods.
    Hopeless {
        /// Its name.
        budget: Arc<str>,
        /// Why.
        why: String,
    },
    /// More than one budget guards the pod, and then Kubernetes never evicts it.
    SeveralBudgets {
        /// Their names, sorted.
        budgets: Vec<Arc<str>>,
    },
}

impl BudgetBlocker {
    /// Whether waiting does not help.
    pub fn is_lasting(&self) -> bool {
        !matches!(self, Self::Blocked { .. })
    }
}

impl fmt::Display for BudgetBlocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocked { budget, needs, has } => write!(
                f,
                "its disruption budget {budget} allows no disruption now: it needs {needs} healthy \
                 pods and has {has}"
            ),
            Self::Hopeless { budget, why } => {
                write!(f, "its disruption budget {budget} can never be met: {why}")
            }
            Self::SeveralBudgets { budgets } => {
                write!(
                    f,
                    "more than one disruption budget selects it ({}), so Kubernetes never evicts it",
                    budgets.join(", ")
                )
            }
        }
    }
}

/// What would keep the API server from evicting the pod now; `None` if nothing would.
pub fn budget_blocker(pod: &DrainPod, budgets: &[Budget]) -> Option<BudgetBlocker> {
    if pod.phase != Phase::Running || pod.terminating.is_some() {
        return None;
    }
    let mut guarding: Vec<&Budget> = budgets.iter().filter(|budget| budget.guards(pod)).collect();
    let budget = match guarding.as_slice() {
        [] => return None,
        [budget] => budget,
        _ => {
            guarding.sort_by(|a, b| a.name.cmp(&b.name));
            let budgets = guarding.iter().map(|budget| Arc::clone(&budget.name)).collect();
            return Some(BudgetBlocker::SeveralBudgets { budgets });
        }
    };
    let others_suffice = budget.desired > 0 && budget.healthy >= budget.desired;
    if !pod.ready && (budget.lets_unready_go || others_suffice) {
        return None;
    }
    if budget.observed && budget.allowed > 0 {
        return None;
    }
    let name = Arc::clone(&budget.name);
    Some(match hopeless(budget) {
        Some(why) => BudgetBlocker::Hopeless { budget: name, why },
        None => BudgetBlocker::Blocked { budget: name, needs: budget.desired, has: budget.healthy },
    })
}

/// Why a budget will never let a pod go as things are; `None` if it may.
fn hopeless(budget: &Budget) -> Option<String> {
    match budget.demand? {
        Demand::MaxUnavailable(Amount::Count(0) | Amount::Percent(0)) => {
            return Some("its maxUnavailable is 0".to_owned());
        }
        Demand::MinAvailable(Amount::Percent(100..)) => {
            return Some("its minAvailable is 100 %".to_owned());
        }
        _ => {}
    }
    // Without pods that are expected nothing is known of what would be enough.
    (budget.observed && budget.expected > 0 && budget.desired >= budget.expected).then(|| {
        format!("it needs {} healthy pods, but only {} exist", budget.desired, budget.expected)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::model::build::drain_pod;
    use crate::model::{Labels, Requirement, Selector, Test};

    /// A budget over all pods of the namespace `default`, with this status.
    pub(crate) fn budget(name: &str, desired: i32, healthy: i32) -> Budget {
        Budget {
            namespace: "default".into(),
            name: name.into(),
            selector: Selector::All(Vec::new()),
            demand: Some(Demand::MinAvailable(Amount::Count(desired))),
            lets_unready_go: false,
            observed: true,
            healthy,
            desired,
            expected: desired.max(healthy) + 1,
            allowed: (healthy - desired).max(0),
        }
    }

    fn web(name: &str) -> DrainPod {
        drain_pod(name).labelled([("app", "web")])
    }

    /// Fails unless this budget holds the pod for now, by its own numbers.
    fn assert_blocked(pod: &DrainPod, budget: &Budget) {
        let found = budget_blocker(pod, std::slice::from_ref(budget));
        let (needs, has) = (budget.desired, budget.healthy);
        assert_eq!(
            found,
            Some(BudgetBlocker::Blocked { budget: "web".into(), needs, has }),
            "{budget:?}"
        );
    }

    fn requiring(key: &str, test: Test) -> Selector {
        Selector::All(vec![Requirement { key: key.into(), test }])
    }

    #[test]
    fn a_selector_selects_as_kubernetes_has_it() {
        let labels: Labels = [("app", "web"), ("tier", "")].into_iter().collect();
        let some = |value: &str| vec![Arc::from(value), Arc::from("other")];
        let cases = [
            (Selector::Nothing, false),
            (Selector::All(Vec::new()), true),
            (requiring("app", Test::In(some("web"))), true),
            (requiring("app", Test::In(some("api"))), false),
            (requiring("absent", Test::In(some("web"))), false),
            (requiring("app", Test::NotIn(some("web"))), false),
            (requiring("app", Test::NotIn(some("api"))), true),
            (requiring("absent", Test::NotIn(some("web"))), true),
            (requiring("tier", Test::Exists), true),
            (requiring("absent", Test::Exists), false),
            (requiring("tier", Test::Absent), false),
            (requiring("absent", Test::Absent), true),
        ];
        for (selector, expected) in cases {
            assert_eq!(selector.matches(&labels), expected, "{selector:?}");
        }
        let app = Requirement { key: "app".into(), test: Test::Exists };
        let absent = Requirement { key: "absent".into(), test: Test::Exists };
        assert!(!Selector::All(vec![app, absent]).matches(&labels), "all must hold");
    }

    #[test]
    fn a_budget_is_for_the_labelled_pods_of_its_own_namespace() {
        let budget = budget("web", 1, 1);
        assert!(budget.guards(&web("a")));
        assert!(!budget.guards(&web("a").in_namespace("shop")));
        assert!(!budget.guards(&drain_pod("a")), "a pod without labels has no budget");
    }

    #[test]
    fn a_ready_pod_goes_while_more_are_healthy_than_must_be() {
        assert_eq!(budget_blocker(&web("a"), &[]), None);
        assert_eq!(budget_blocker(&web("a"), &[budget("web", 1, 3)]), None);
        assert_blocked(&web("a"), &budget("web", 2, 1));
        assert_blocked(&web("a"), &budget("web", 1, 0));
        let elsewhere = Budget { namespace: "shop".into(), ..budget("web", 2, 1) };
        assert_eq!(budget_blocker(&web("a"), &[elsewhere]), None);
    }

    #[test]
    fn a_pod_that_is_not_ready_goes_if_the_others_suffice_or_if_it_always_may() {
        let unready = web("a").unready();
        assert_eq!(budget_blocker(&unready, &[budget("web", 1, 1)]), None, "it holds no share");
        assert_blocked(&web("a"), &budget("web", 1, 1));
        assert_blocked(&unready, &budget("web", 2, 1));
        let always = Budget { lets_unready_go: true, ..budget("web", 2, 1) };
        assert_eq!(budget_blocker(&unready, std::slice::from_ref(&always)), None);
        assert_blocked(&web("a"), &always);
        let none_desired = Budget { allowed: 0, ..budget("web", 0, 0) };
        assert_blocked(&unready, &none_desired);
    }

    #[test]
    fn two_budgets_hold_a_pod_for_ever_even_if_both_have_room() {
        let budgets = [budget("web-b", 1, 3), budget("web-a", 1, 3)];
        let found = budget_blocker(&web("a"), &budgets).unwrap();
        let expected =
            BudgetBlocker::SeveralBudgets { budgets: vec!["web-a".into(), "web-b".into()] };
        assert_eq!(found, expected);
        assert!(found.is_lasting());
        assert!(found.to_string().contains("web-a, web-b"), "{found}");
    }

    #[test]
    fn what_does_no_work_is_not_held() {
        let budgets = [budget("web", 2, 1), budget("more", 2, 1)];
        let pending = DrainPod { phase: Phase::Pending, ..web("a").unready() };
        assert_eq!(budget_blocker(&pending, &budgets), None);
        assert_eq!(budget_blocker(&web("a").finished(), &budgets), None);
        assert_eq!(budget_blocker(&web("a").going_until(30), &budgets), None);
        assert!(budget_blocker(&web("a"), &budgets).is_some());
    }

    #[test]
    fn a_budget_that_can_never_be_met_is_told_from_one_that_is_used_up() {
        let of = |demand, expected, desired, healthy| Budget {
            demand: Some(demand),
            expected,
            desired,
            ..budget("web", desired, healthy)
        };
        let hopeless = [
            of(Demand::MaxUnavailable(Amount::Count(0)), 3, 3, 3),
            of(Demand::MaxUnavailable(Amount::Percent(0)), 3, 3, 3),
            of(Demand::MinAvailable(Amount::Percent(100)), 3, 3, 2),
            of(Demand::MinAvailable(Amount::Count(3)), 3, 3, 3),
            of(Demand::MinAvailable(Amount::Count(5)), 3, 5, 3),
            // A budget of 80 % over one pod: rounded up it is all of them.
            of(Demand::MinAvailable(Amount::Percent(80)), 1, 1, 1),
        ];
        for budget in hopeless {
            let found = budget_blocker(&web("a"), std::slice::from_ref(&budget)).unwrap();
            assert!(matches!(found, BudgetBlocker::Hopeless { .. }), "{budget:?}: {found:?}");
            assert!(found.is_lasting());
        }
        let used_up = [
            of(Demand::MaxUnavailable(Amount::Count(1)), 3, 2, 2),
            of(Demand::MinAvailable(Amount::Count(2)), 3, 2, 2),
            of(Demand::MinAvailable(Amount::Percent(50)), 4, 2, 1),
            // Nothing that could be told from the status, yet.
            Budget { observed: false, ..of(Demand::MinAvailable(Amount::Count(3)), 3, 3, 3) },
            of(Demand::MinAvailable(Amount::Count(3)), 0, 3, 0),
        ];
        for budget in used_up {
            assert_blocked(&web("a"), &budget);
        }
    }

    #[test]
    fn a_surge_may_let_a_pod_go_that_would_have_been_held_for_ever() {
        let surge = Budget {
            demand: Some(Demand::MaxUnavailable(Amount::Count(0))),
            expected: 3,
            ..budget("web", 3, 4)
        };
        assert_eq!(budget_blocker(&web("a"), &[surge]), None);
    }

    #[test]
    fn a_status_that_is_about_an_older_spec_allows_nothing() {
        let stale = Budget { observed: false, ..budget("web", 1, 3) };
        assert_blocked(&web("a"), &stale);
    }
}
