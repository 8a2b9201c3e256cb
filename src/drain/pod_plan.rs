//! A plan for all pods of a node: whether it can be drained, whether it is drained, and what remains.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use super::budget::{self, BudgetBlocker};
use super::filter::{self, OwnerUnknown, PodDecision, Retention, Why};
use super::{AtDeadline, PodRules, Policy, Undrainable};
use crate::model::{Budget, DrainPod, Owners, Phase, PodRef, later};

/// How long a scheduler that has not seen the cordon may still bind pods.
const SETTLES: Duration = Duration::from_secs(10);

/// The pods of a node, by what a drain does with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodPlan {
    /// Pods to evict.
    pub go: Vec<DrainPod>,
    /// Terminating pods.
    pub going: Vec<DrainPod>,
    /// Pods that stay, and why.
    pub left: Vec<Left>,
    /// Budgets that block pods in `go` at the moment.
    pub budget_blockers: Vec<(PodRef, BudgetBlocker)>,
    /// Pods for which the decision is unknown.
    pub unknown: Vec<OwnerUnknown>,
}

/// A pod that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The pod.
    pub pod: PodRef,
    /// Why.
    pub why: Why,
    /// For how long.
    pub retention: Retention,
}

/// Why a node is not expected to be drained completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// A protected pod stays.
    Left(PodRef, Why),
    /// A pod should be evicted, but its budgets never allow it.
    Budget(PodRef, BudgetBlocker),
    /// It is unknown whether a pod stays.
    Unknown(OwnerUnknown),
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left(pod, why) => write!(f, "pod {pod}: {why}"),
            Self::Budget(pod, budget_blocker) => write!(f, "pod {pod}: {budget_blocker}"),
            Self::Unknown(unknown) => unknown.fmt(f),
        }
    }
}

/// Decides about each pod of a node.
pub fn plan_pods(
    pods: impl IntoIterator<Item = DrainPod>,
    rules: &PodRules,
    owners: &Owners,
    budgets: &[Budget],
) -> PodPlan {
    let mut pod_plan = PodPlan::default();
    for pod in pods {
        match filter::decide_pod(&pod, rules, owners) {
            Ok(PodDecision::Evict) => {
                if let Some(budget_blocker) = budget::budget_blocker(&pod, budgets) {
                    pod_plan.budget_blockers.push((pod.reference.clone(), budget_blocker));
                }
                pod_plan.go.push(pod);
            }
            Ok(PodDecision::Await) => pod_plan.going.push(pod),
            Ok(PodDecision::Leave(why, retention)) => {
                pod_plan.left.push(Left { pod: pod.reference, why, retention });
            }
            Err(unknown) => pod_plan.unknown.push(*unknown),
        }
    }
    pod_plan
}

impl PodPlan {
    /// Why the node is not expected to be drained completely; empty if it will be, sooner or later.
    ///
    /// An exhausted budget is not a blocker, because it may allow disruptions later. Nor is a pod that runs
    /// to completion.
    pub fn blockers(&self) -> Vec<Blocker> {
        let lasting =
            self.budget_blockers.iter().filter(|(_, budget_blocker)| budget_blocker.is_lasting());
        let lasting = lasting.map(|(pod, o)| Blocker::Budget(pod.clone(), o.clone()));
        let unknown = self.unknown.iter().cloned().map(Blocker::Unknown);
        self.lasting().into_iter().chain(lasting).chain(unknown).collect()
    }

    /// Why this policy does not drain the node now; empty if it does.
    ///
    /// Under [`Undrainable::DrainRest`], no forecast prevents an attempt: a budget, a webhook or an operator
    /// may answer differently once it is asked. If remaining pods are deleted at the deadline, budgets never
    /// count.
    pub fn vetoes(&self, policy: &Policy) -> Vec<Blocker> {
        if policy.undrainable == Undrainable::DrainRest {
            return Vec::new();
        }
        let mut vetoes = self.blockers();
        if policy.at_deadline == AtDeadline::DeleteRest {
            vetoes.retain(|blocker| !matches!(blocker, Blocker::Budget(..)));
        }
        vetoes
    }

    /// Keeps pods that were created after the drain started: they tolerate the cordon, and so would their
    /// replacements.
    pub fn leave_later(&mut self, started: Timestamp) {
        let came_later = |pod: &DrainPod| {
            let is_daemon = pod.controller.as_ref().is_some_and(filter::is_daemon_set);
            let settled = if is_daemon { started } else { later(started, SETTLES) };
            pod.created.is_some_and(|created| created > settled)
        };
        let (later, go): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.go).into_iter().partition(came_later);
        self.go = go;
        for DrainPod { reference: pod, .. } in later {
            self.budget_blockers.retain(|(other, _)| other.uid != pod.uid);
            self.left.push(Left { pod, why: Why::CameLater, retention: Retention::Expected });
        }
    }

    /// Protected pods, which stay when all others are gone.
    pub fn lasting(&self) -> Vec<Blocker> {
        let left = self.left.iter().filter(|left| left.retention == Retention::Permanent);
        left.map(|left| Blocker::Left(left.pod.clone(), left.why.clone())).collect()
    }

    /// Whether nothing remains to be done: no pod to evict, terminating, running to completion or unknown.
    /// Protected pods do not count: they are [`blockers`](Self::blockers).
    pub fn is_drained(&self) -> bool {
        let waits = self.left.iter().any(|left| left.retention == Retention::UntilFinished);
        self.go.is_empty() && self.going.is_empty() && self.unknown.is_empty() && !waits
    }

    /// Whether only terminating pods remain that exceed their grace period, or have a longer one than a drain
    /// `counts`. More time would not help.
    pub fn has_overrun(&self, counts: Duration, now: Timestamp) -> bool {
        let takes_long = |pod: &DrainPod| {
            pod.grace > counts || pod.terminating.is_some_and(|until| until <= now)
        };
        let waits = self.left.iter().any(|left| left.retention == Retention::UntilFinished);
        let is_all = self.go.is_empty() && self.unknown.is_empty() && !waits;
        is_all && !self.going.is_empty() && self.going.iter().all(takes_long)
    }

    /// All pods that still have to disappear, including terminating ones.
    pub fn still_to_go(&self) -> Vec<&DrainPod> {
        self.go.iter().chain(&self.going).collect()
    }

    /// The longest grace period of the pods to evict, without finished ones.
    pub fn longest_grace(&self) -> Duration {
        let pods = self.go.iter().chain(&self.going).filter(|pod| pod.phase != Phase::Finished);
        pods.map(|pod| pod.grace).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::budget::tests::budget;
    use crate::model::build::{at, drain_pod, owner};
    use crate::model::{Amount, Demand, Existence, LocalVolumeKind};

    fn rules() -> PodRules {
        PodRules::default()
    }

    #[test]
    fn only_pods_that_are_going_and_take_longer_than_they_should_have_overrun() {
        let hours = |count: u64| Duration::from_secs(count * 3600);
        let going = |until: i64, grace: Duration| DrainPod {
            terminating: Some(at(until)),
            grace,
            ..drain_pod("a")
        };
        let overran = |pods: Vec<DrainPod>| of(pods, &[]).has_overrun(hours(4), at(0));
        assert!(overran(vec![going(-60, hours(0))]), "a finalizer holds it");
        assert!(overran(vec![going(9000, hours(5))]), "it asks for more than a drain counts");
        assert!(!overran(vec![going(60, hours(1))]), "it still has its time");
        assert!(!overran(vec![going(-60, hours(0)), going(60, hours(1))]));
        assert!(!overran(vec![going(-60, hours(0)), drain_pod("b")]), "a budget may hold that one");
        assert!(!overran(Vec::new()));
    }

    fn of(pods: impl IntoIterator<Item = DrainPod>, budgets: &[Budget]) -> PodPlan {
        plan_pods(pods, &rules(), &Owners::new(), budgets)
    }

    fn web(name: &str) -> DrainPod {
        drain_pod(name).labelled([("app", "web")])
    }

    fn texts(pod_plan: &PodPlan) -> Vec<String> {
        pod_plan.blockers().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_empty_node_is_drained() {
        let empty = of([], &[budget("web", 2, 1)]);
        assert!(empty.is_drained() && empty.blockers().is_empty());
        assert_eq!(empty.longest_grace(), Duration::ZERO);
    }

    #[test]
    fn a_used_up_budget_blocks_a_pod_but_not_the_node() {
        let pod_plan = of([web("a"), web("b"), drain_pod("c")], &[budget("web", 2, 1)]);
        assert_eq!(pod_plan.go.len(), 3);
        let held: Vec<_> = pod_plan.budget_blockers.iter().map(|(pod, _)| &*pod.name).collect();
        assert_eq!(held, ["a", "b"], "one for each pod, and none for the pod without a budget");
        assert!(pod_plan.blockers().is_empty() && !pod_plan.is_drained());
    }

    #[test]
    fn a_budget_that_is_never_met_blocks_and_so_do_two_with_room() {
        let never = Budget {
            demand: Some(Demand::MaxUnavailable(Amount::Count(0))),
            ..budget("strict", 1, 1)
        };
        assert_eq!(
            texts(&of([web("a")], &[never])),
            [
                "pod default/a: its disruption budget strict can never be met: its maxUnavailable is 0"
            ]
        );
        let two = of([web("a")], &[budget("x", 1, 3), budget("y", 1, 3)]);
        assert_eq!(two.blockers().len(), 1);
    }

    #[test]
    fn a_pod_that_a_filter_leaves_meets_no_budget() {
        let never = Budget {
            demand: Some(Demand::MaxUnavailable(Amount::Count(0))),
            ..budget("strict", 1, 1)
        };
        let pod = web("a").with_volume("tmp", LocalVolumeKind::EmptyDir);
        let pod_plan = of([pod], &[never]);
        assert!(pod_plan.budget_blockers.is_empty());
        assert_eq!(texts(&pod_plan), ["pod default/a: its emptyDir volume tmp would be lost"]);
    }

    #[test]
    fn what_is_left_on_purpose_neither_blocks_nor_delays() {
        let agent = owner("apps/v1", "DaemonSet", "agent");
        let of = ("default".into(), agent.clone());
        let owners = [(of, Existence::Exists)].into_iter().collect();
        let pods = [drain_pod("a").owned_by(agent), DrainPod { mirror: true, ..drain_pod("b") }];
        let pod_plan = plan_pods(pods, &rules(), &owners, &[]);
        assert_eq!(pod_plan.left.len(), 2);
        assert!(pod_plan.is_drained() && pod_plan.blockers().is_empty());
    }

    #[test]
    fn a_pod_that_is_going_or_has_to_finish_delays_but_does_not_block() {
        let to_the_end = ("cluster-autoscaler.kubernetes.io/safe-to-evict", "on-completion");
        for pod in [drain_pod("a").going_until(30), drain_pod("a").annotated_with([to_the_end])] {
            let pod_plan = of([pod], &[]);
            assert!(!pod_plan.is_drained() && pod_plan.blockers().is_empty());
        }
    }

    #[test]
    fn an_unknown_owner_blocks_and_the_others_are_still_sorted() {
        let agent = owner("apps/v1", "DaemonSet", "agent");
        let of = ("default".into(), agent.clone());
        let owners = [(of, Existence::Unknown("kaboom".into()))];
        let pods = [drain_pod("a").owned_by(agent), drain_pod("b")];
        let pod_plan = plan_pods(pods, &rules(), &owners.into_iter().collect(), &[]);
        assert_eq!(pod_plan.go.len(), 1);
        assert!(!pod_plan.is_drained());
        assert!(texts(&pod_plan)[0].contains("kaboom"), "{:?}", texts(&pod_plan));
    }

    #[test]
    fn the_longest_grace_is_that_of_what_runs_and_goes() {
        let with = |name: &str, seconds| DrainPod {
            grace: Duration::from_secs(seconds),
            ..drain_pod(name)
        };
        let pods = [with("a", 20), with("b", 90).going_until(5), with("c", 999).finished()];
        assert_eq!(of(pods, &[]).longest_grace(), Duration::from_secs(90));
    }

    #[test]
    fn pods_that_came_after_the_drain_had_begun_are_left() {
        let begun = at(100);
        let created = |name: &str, seconds| DrainPod { created: Some(at(seconds)), ..web(name) };
        let daemon = |name: &str, seconds| {
            let owner = owner("apps/v1", "DaemonSet", "agent");
            DrainPod { created: Some(at(seconds)), ..web(name).owned_by(owner) }
        };
        let rules = PodRules { evict_daemonset: true, ..rules() };
        let pods = [
            created("old", 0),
            created("raced", 105),
            created("late", 111),
            daemon("agent-old", 99),
            daemon("agent-late", 101),
        ];
        let mut pod_plan = plan_pods(pods, &rules, &Owners::default(), &[]);
        pod_plan.leave_later(begun);
        let names: Vec<_> = pod_plan.go.iter().map(|pod| &*pod.reference.name).collect();
        assert_eq!(names, ["old", "raced", "agent-old"]);
        assert!(pod_plan.left.iter().all(|left| left.why == Why::CameLater));
        pod_plan.go.clear();
        assert!(pod_plan.is_drained() && pod_plan.lasting().is_empty());
    }
}
