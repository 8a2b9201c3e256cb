//! Describes the pods that remain on a drained node and why, for events, the record on the node and the
//! log.

use std::fmt::{self, Display};
use std::sync::Arc;

use ahash::AHashMap;

use super::{Blocker, PodPlan, budget_blocker};
use crate::model::{Budget, PodRef, Uid};

/// Beyond this many of a kind, pods are only counted.
const NAMED: usize = 3;
/// As much as an annotation and an event can take of someone else's words.
const LONGEST: usize = 800;

/// The pods that are still on a node, by why they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remaining {
    /// Their eviction was refused, and is asked for again.
    pub held: Vec<Held>,
    /// The policy protects them, or it cannot be told whether it does.
    pub left: Vec<Blocker>,
}

/// A pod whose eviction was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The pod.
    pub pod: PodRef,
    /// By what, in words.
    pub why: String,
}

impl Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod {}: {}", self.pod, self.why)
    }
}

impl Remaining {
    /// Those of a pod plan. `refusals` is what the API server said last of the pods whose eviction it
    /// refused; `budgets` puts its words about budgets into numbers, where they are known.
    pub fn of(pod_plan: &PodPlan, refusals: &AHashMap<Uid, String>, budgets: &[Budget]) -> Self {
        let held = pod_plan.go.iter().filter_map(|pod| {
            let refusal = refusals.get(&pod.reference.uid)?;
            let foreseen =
                budget_blocker(pod, budgets).map(|budget_blocker| budget_blocker.to_string());
            let why = foreseen.unwrap_or_else(|| format!("its eviction was refused: {refusal}"));
            Some(Held { pod: pod.reference.clone(), why })
        });
        let unknown = pod_plan.unknown.iter().cloned().map(Blocker::Unknown);
        Self { held: held.collect(), left: pod_plan.lasting().into_iter().chain(unknown).collect() }
    }

    /// All of it in one line; `None` if there is nothing to say.
    pub fn summary(&self) -> Option<Arc<str>> {
        let held = listed(&self.held).map(|names| counted(self.held.len(), "held", &names));
        let left = listed(&self.left).map(|names| counted(self.left.len(), "left", &names));
        let parts: Vec<String> = held.into_iter().chain(left).collect();
        (!parts.is_empty()).then(|| brief(&parts.join("; ")))
    }
}

/// For example `2 pods are left: a, b`.
fn counted(count: usize, how: &str, names: &str) -> String {
    let pods = if count == 1 { "pod is" } else { "pods are" };
    format!("{count} {pods} {how}: {names}")
}

/// The first of them by name, the others by their number; `None` if there are none.
pub fn listed<T: Display>(all: &[T]) -> Option<String> {
    if all.is_empty() {
        return None;
    }
    let named: Vec<String> = all.iter().take(NAMED).map(ToString::to_string).collect();
    let more = match all.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    Some(format!("{}{more}", named.join("; ")))
}

/// A text of others, no longer than an annotation and an event can take.
pub fn brief(text: &str) -> Arc<str> {
    text.chars().take(LONGEST).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::budget::tests::budget;
    use crate::drain::{PodRules, plan_pods};
    use crate::model::build::drain_pod;
    use crate::model::{DrainPod, Owners};

    fn web(name: &str) -> DrainPod {
        drain_pod(name).labelled([("app", "web")])
    }

    fn refused(pods: &[&DrainPod], words: &str) -> AHashMap<Uid, String> {
        pods.iter().map(|pod| (pod.reference.uid, words.to_owned())).collect()
    }

    fn of(
        pods: impl IntoIterator<Item = DrainPod>,
        refusals: &AHashMap<Uid, String>,
        budgets: &[Budget],
    ) -> Remaining {
        Remaining::of(
            &plan_pods(pods, &PodRules::default(), &Owners::new(), &[]),
            refusals,
            budgets,
        )
    }

    #[test]
    fn a_held_pod_is_named_with_the_numbers_of_its_budget() {
        let pods = [web("a"), drain_pod("free")];
        let refusals = refused(&[&pods[0]], "429: no");
        let remaining = of(pods, &refusals, &[budget("web", 2, 2)]);
        assert_eq!(
            remaining.summary().as_deref(),
            Some(
                "1 pod is held: pod default/a: its disruption budget web allows no disruption now: \
                 it needs 2 healthy pods and has 2"
            )
        );
    }

    #[test]
    fn without_a_budget_in_the_way_the_servers_own_words_are_said() {
        let words = "429 : admission webhook \"x\" denied the request: moving";
        let pods = [web("a")];
        let refusals = refused(&[&pods[0]], words);
        let summary = of(pods, &refusals, &[budget("web", 1, 3)]).summary().unwrap();
        assert!(summary.ends_with(&format!("its eviction was refused: {words}")), "{summary}");
    }

    #[test]
    fn both_of_two_budgets_are_named() {
        let pods = [web("a")];
        let refusals = refused(&[&pods[0]], "500: more than one");
        let budgets = [budget("y", 0, 3), budget("x", 0, 3)];
        let summary = of(pods, &refusals, &budgets).summary().unwrap();
        assert!(summary.contains("(x, y)"), "{summary}");
    }

    #[test]
    fn what_was_not_refused_is_not_held_and_what_is_protected_is_left() {
        let lone = DrainPod { controller: None, ..web("lone") };
        let remaining = of([web("a"), lone], &AHashMap::new(), &[budget("web", 2, 2)]);
        assert!(remaining.held.is_empty(), "nobody asked yet: {remaining:?}");
        assert_eq!(
            remaining.summary().as_deref(),
            Some("1 pod is left: pod default/lone: no controller would recreate it")
        );
        assert_eq!(of([], &AHashMap::new(), &[]).summary(), None);
    }

    #[test]
    fn many_are_counted_and_no_text_is_endless() {
        let pods: Vec<_> = (0..9).map(|i| web(&format!("pod-{i}"))).collect();
        let refusals = refused(&pods.iter().collect::<Vec<_>>(), "no");
        let summary = of(pods.clone(), &refusals, &[]).summary().unwrap();
        assert!(summary.starts_with("9 pods are held: pod default/pod-0: "), "{summary}");
        assert!(summary.ends_with("; and 6 more") && !summary.contains("pod-3"), "{summary}");
        let refusals = refused(&pods.iter().collect::<Vec<_>>(), &"é".repeat(5000));
        assert_eq!(of(pods, &refusals, &[]).summary().unwrap().chars().count(), LONGEST);
    }
}
