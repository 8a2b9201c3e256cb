//! The one verdict about a pod, for the workers and for the evictor alike.

use std::sync::Arc;

use super::state::Shared;
use crate::config::Compat;
use crate::evict::{DrainJudge, Judge, Judgement, Order};
use crate::model::{Anchors, Kept, Node, Pod, PodRef, Verdict};
use crate::taint::{anchor, decide, upstream};

/// The verdict about `pod` on `node`, by the rules in force. `armed` is the verdict by which it is
/// armed, if it is.
pub(super) fn verdict(
    shared: &Shared,
    pod: &Pod,
    node: Option<&Node>,
    anchors: &Anchors,
    armed: Option<&Verdict>,
) -> Verdict {
    match (node, shared.compat) {
        (None, _) => Verdict::Keep(Kept::NodeGone),
        (Some(node), Compat::None) => decide(pod, node, anchors),
        (Some(node), Compat::Upstream) => upstream::decide(pod, node, shared.clock.now(), armed),
    }
}

/// Decides again for the evictor.
#[derive(Clone)]
pub(super) struct View {
    pub shared: Arc<Shared>,
}

impl Judge for View {
    fn judge(&self, pod: &PodRef, armed: &Verdict) -> Judgement {
        match self.shared.view.pod(&pod.node, pod.uid) {
            None => Judgement { verdict: Verdict::Keep(Kept::PodGone), pod: None },
            Some(facts) => Judgement {
                verdict: verdict(
                    &self.shared,
                    &facts.pod,
                    facts.node.as_deref(),
                    &facts.anchors,
                    Some(armed),
                ),
                pod: Some(facts.pod),
            },
        }
    }

    fn judge_on(&self, pod: &Pod, armed: &Verdict, node: Option<&Node>) -> Verdict {
        let now = self.shared.clock.now();
        let known = self.shared.view.node_version(&pod.node);
        let anchors = match (node, known) {
            (Some(node), Some(known)) if known.knows(node) => {
                anchor::advance(anchor::Past::Recorded(&known.anchors), node, now)
            }
            // The view has not seen this version. A taint that it remembers may have gone and come
            // back since, and the pod may be owed all its seconds anew. So only what the node says by
            // itself counts, until the view has caught up.
            (Some(node), _) => anchor::advance(anchor::Past::Unknown, node, now),
            (None, _) => Anchors::default(),
        };
        let mut pod = pod.clone();
        self.shared.see_pod(&mut pod);
        verdict(&self.shared, &pod, node, &anchors, Some(armed))
    }
}

impl DrainJudge for View {
    fn known(&self, pod: &PodRef) -> Option<Arc<Pod>> {
        self.shared.view.pod(&pod.node, pod.uid).map(|facts| facts.pod)
    }

    /// The whole decision once more, by the node as it is stored: it must be in the drain that gave
    /// the order.
    fn still_wanted(&self, _: &PodRef, order: &Order, node: Option<&Node>) -> bool {
        let (Some(drains), Some(node)) = (&self.shared.drains, node) else { return false };
        let now = self.shared.clock.now();
        let mut node = node.clone();
        self.shared.see_node(&mut node);
        now < order.deadline && drains.is_draining(&node, &order.session, now)
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use prometheus::Registry;

    use super::*;
    use crate::clock::Clock;
    use crate::cluster::watch::Source;
    use crate::controller::ingest::{take_node, take_pod};
    use crate::model::build::{at, exists, node, noon, pod, taint};
    use crate::model::{Deadline, Stamp, Taint, Version};
    use crate::observe::{EventMetrics, Recorder};

    fn bench() -> View {
        let clock = Clock::starting_at(noon());
        let metrics = EventMetrics::register(&Registry::new()).unwrap();
        let (recorder, _) = Recorder::new("test", metrics, clock.clone());
        View { shared: Arc::new(Shared::new(clock, Compat::None, recorder)) }
    }

    fn version(number: u64, tainted: Option<Taint>) -> Node {
        let node = node("n1");
        let node = tainted.into_iter().fold(node, Node::tainted);
        Node { version: Some(Version::Number(number)), ..node }
    }

    /// Whether the pod may go, by this version of its node as it was read from the API server at 100 s,
    /// where the watch has shown version 7 only, at noon.
    fn goes(stored: &Node, seconds: Option<i64>) -> bool {
        let view = bench();
        let mut pod = pod("a");
        if let Some(seconds) = seconds {
            pod = pod.tolerating(exists("k").lasting(seconds));
        }
        take_node(&view.shared, version(7, Some(taint("k", ""))), Source::Watch);
        take_pod(&view.shared, pod.clone());
        view.shared.clock.set(at(100));
        let armed = view.judge(&pod.reference(), &Verdict::Keep(Kept::NoTaints)).verdict;
        assert!(armed.is_due(at(100)));
        view.judge_on(&pod, &armed, Some(stored)).is_due(at(100))
    }

    #[test]
    fn a_first_sight_counts_only_while_the_view_knows_the_newest_version_of_the_node() {
        let bare = || Some(taint("k", ""));
        assert!(goes(&version(7, bare()), Some(60)));
        assert!(goes(&version(6, bare()), Some(60)), "read a moment before the watch showed it");
        assert!(!goes(&version(8, bare()), Some(60)), "it may have gone and come back");
        assert!(!goes(&version(8, None), Some(60)));
        let of_text = Node { version: Version::parse("x8"), ..version(8, bare()) };
        assert!(!goes(&of_text, Some(60)), "which is newer cannot be told");
    }

    #[test]
    fn what_the_node_says_by_itself_needs_no_view() {
        assert!(goes(&version(8, Some(taint("k", ""))), None), "it is not tolerated at all");
        assert!(!goes(&version(8, None), None));
        let stamped = |seconds| Some(taint("k", "").added_at(seconds));
        assert!(goes(&version(8, stamped(0)), Some(60)));
        assert!(!goes(&version(8, stamped(50)), Some(60)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_claims_to_be_bound_in_the_future_was_bound_when_it_was_seen_first() {
        let view = bench();
        let claims = Stamp::of_second(at(2_000_000_000));
        let pod = Pod { bound: claims, ..pod("a").tolerating(exists("k").lasting(60)) };
        take_node(&view.shared, version(7, Some(taint("k", "").added_at(-500))), Source::Watch);
        take_pod(&view.shared, pod.clone());
        view.shared.clock.set(at(30));
        take_pod(&view.shared, Pod { generation: 2, ..pod.clone() });
        let Judgement { verdict, .. } =
            view.judge(&pod.reference(), &Verdict::Keep(Kept::NoTaints));
        assert!(
            matches!(&verdict, Verdict::EvictAt { deadline, .. } if *deadline == Deadline(at(60)))
        );
        let stored = version(7, Some(taint("k", "").added_at(-500)));
        assert_eq!(view.judge_on(&pod, &verdict, Some(&stored)), verdict);
    }

    #[test]
    fn no_pod_goes_before_its_seconds_are_over_whenever_in_its_second_it_was_bound() {
        let view = bench();
        let tainted = Taint { time_added: Some(Stamp::of_second(at(-500))), ..taint("k", "") };
        take_node(&view.shared, version(7, Some(tainted)), Source::Watch);
        for millisecond in [1, 250, 999] {
            let bound = at(10) + SignedDuration::from_millis(millisecond);
            let stored = Stamp::of_second(crate::model::second_of(bound));
            let pod = Pod { bound: stored, ..pod("a").tolerating(exists("k").lasting(6)) };
            view.shared.clock.set(bound);
            take_pod(&view.shared, pod.clone());
            let verdict = view.judge(&pod.reference(), &Verdict::Keep(Kept::NoTaints)).verdict;
            let due = bound + SignedDuration::from_secs(6);
            assert!(!verdict.is_due(due - SignedDuration::from_millis(1)), "{millisecond}");
            assert!(verdict.is_due(due + SignedDuration::from_secs(1)), "{millisecond}");
        }
    }
}
