//! The one verdict about a pod, for the workers and for the evictor's second look alike.

use std::sync::Arc;

use crate::config::Compat;
use crate::drain_reconciler::Drains;
use crate::evict::{Cause, DrainEviction, Eviction, Method, Recheck, Spared};
use crate::informer::Facts;
use crate::model::{Anchors, Kept, Node, Pod, PodClass, Verdict};
use crate::taint::{anchor, decide_by, upstream};

/// The verdict about `pod` on `node`, by the rules in force. `armed` is the verdict by which it is
/// armed, if it is.
pub(super) fn verdict(
    facts: &Facts,
    pod: &Pod,
    node: Option<&Node>,
    anchors: &Anchors,
    armed: Option<&Verdict>,
) -> Verdict {
    match (node, facts.compat) {
        (None, _) => Verdict::Keep(Kept::NodeGone),
        (Some(node), Compat::None) => decide_by(&facts.taint_rules(), pod, node, anchors),
        (Some(node), Compat::Upstream) => upstream::decide(pod, node, facts.clock.now(), armed),
    }
}

/// Looks again for the evictor, by the newest facts.
#[derive(Clone)]
pub(super) struct NewestFacts {
    pub facts: Arc<Facts>,
    pub drains: Option<Arc<Drains>>,
}

impl Recheck for NewestFacts {
    fn by_view(&self, eviction: &Eviction) -> Result<(Arc<Pod>, Cause), Spared> {
        let Eviction { pod, cause, .. } = eviction;
        let known = self.facts.view.pod(&pod.node, pod.uid);
        match cause {
            Cause::Taint(armed) => {
                let Some(facts) = known else {
                    return Err(Spared::Unwanted(Some(Verdict::Keep(Kept::PodGone))));
                };
                let (pod, node) = (facts.pod, facts.node.as_deref());
                let verdict = verdict(&self.facts, &pod, node, &facts.anchors, Some(armed));
                let now = self.facts.clock.now();
                if verdict.is_due(now) {
                    Ok((pod, Cause::Taint(verdict.at(now).clone())))
                } else {
                    Err(Spared::Unwanted(Some(verdict)))
                }
            }
            Cause::Drain(_) => {
                let pod = known.ok_or(Spared::Unwanted(None))?.pod;
                if pod.class == PodClass::Terminating {
                    // To evict it once more could only shorten its grace.
                    return Err(Spared::Going);
                }
                Ok((pod, cause.clone()))
            }
        }
    }

    fn by_server(
        &self,
        eviction: &Eviction,
        method: Method,
        pod: &Pod,
        node: Option<&Node>,
    ) -> Result<(), Spared> {
        match &eviction.cause {
            Cause::Taint(armed) => {
                let now = self.facts.clock.now();
                match self.verdict_by_server(pod, armed, node) {
                    Verdict::Keep(Kept::Terminating) => Err(Spared::Going),
                    verdict if !verdict.is_due(now) => Err(Spared::Unconfirmed(verdict)),
                    verdict if !method.asks_budgets() && verdict.at(now).respects_budgets() => {
                        Err(Spared::Unconfirmed(verdict))
                    }
                    _ => Ok(()),
                }
            }
            Cause::Drain(drain) if self.is_draining(drain, node) => Ok(()),
            Cause::Drain(_) => Err(Spared::Unwanted(None)),
        }
    }
}

impl NewestFacts {
    fn verdict_by_server(&self, pod: &Pod, armed: &Verdict, node: Option<&Node>) -> Verdict {
        let now = self.facts.clock.now();
        let known = self.facts.view.node_version(&pod.node);
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
        self.facts.see_pod(&mut pod);
        verdict(&self.facts, &pod, node, &anchors, Some(armed))
    }

    /// The whole decision once more: the node must be in the drain that asked for the eviction. The
    /// answer about it may have been long on its way, so its version in the view counts if that is as new.
    fn is_draining(&self, drain: &DrainEviction, node: Option<&Node>) -> bool {
        let (Some(drains), Some(node)) = (&self.drains, node) else { return false };
        let view = &self.facts.view;
        let (known, version) = (view.node_alone(&node.name), view.node_version(&node.name));
        let now = self.facts.clock.now();
        let is_draining = |node: &Node| drains.is_draining(node, &drain.session, now);
        now < drain.deadline
            && match (known, version) {
                // It is gone since, and its pods with it.
                (None, _) => false,
                (Some((known, _)), Some(version)) if version.knows(node) => is_draining(&known),
                _ => {
                    let mut node = node.clone();
                    self.facts.see_node(&mut node);
                    is_draining(&node)
                }
            }
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use prometheus::Registry;
    use tokio::time::Instant;

    use super::*;
    use crate::clock::Clock;
    use crate::cluster::watch::Source;
    use crate::controller::state::Shared;
    use crate::drain::build::{kept, policy};
    use crate::drain::{Claim, Cordon, DrainPhase, Orphans, Record};
    use crate::drain_reconciler::DrainMetrics;
    use crate::evict::{Holds, Pauses};
    use crate::model::build::{at, exists, node, noon, pod, taint};
    use crate::model::{ConditionStatus, Deadline, Stamp, Taint, Version};
    use crate::observe::{EventMetrics, Recorder};

    fn bench() -> Shared {
        let clock = Clock::starting_at(noon());
        let metrics = EventMetrics::register(&Registry::new()).unwrap();
        let (recorder, _) = Recorder::new("test", metrics, clock.clone());
        let facts = Arc::new(Facts::new(clock.clone(), Compat::None));
        Shared::new(facts, recorder, Pauses::none(clock), Holds::default())
    }

    /// What the view says of a pod.
    fn judged(view: &Shared, pod: &Pod) -> Verdict {
        let cause = Cause::Taint(Verdict::Keep(Kept::NoTaints));
        let eviction = Eviction { pod: pod.reference(), cause, due: Instant::now() };
        match view.newest_facts().by_view(&eviction) {
            Ok((_, Cause::Taint(verdict))) | Err(Spared::Unwanted(Some(verdict))) => verdict,
            other => panic!("{other:?}"),
        }
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
        view.ingest().take_node(version(7, Some(taint("k", ""))), Source::Watch);
        view.ingest().take_pod(pod.clone());
        view.facts.clock.set(at(100));
        let armed = judged(&view, &pod);
        assert!(armed.is_due(at(100)));
        view.newest_facts().verdict_by_server(&pod, &armed, Some(stored)).is_due(at(100))
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
        view.ingest().take_node(version(7, Some(taint("k", "").added_at(-500))), Source::Watch);
        view.ingest().take_pod(pod.clone());
        view.facts.clock.set(at(30));
        view.ingest().take_pod(Pod { generation: 2, ..pod.clone() });
        let verdict = judged(&view, &pod);
        assert!(
            matches!(&verdict, Verdict::EvictAt { deadline, .. } if *deadline == Deadline(at(60)))
        );
        let stored = version(7, Some(taint("k", "").added_at(-500)));
        assert_eq!(view.newest_facts().verdict_by_server(&pod, &verdict, Some(&stored)), verdict);
    }

    #[test]
    fn no_pod_goes_before_its_seconds_are_over_whenever_in_its_second_it_was_bound() {
        let view = bench();
        let tainted = Taint { time_added: Some(Stamp::of_second(at(-500))), ..taint("k", "") };
        view.ingest().take_node(version(7, Some(tainted)), Source::Watch);
        for millisecond in [1, 250, 999] {
            let bound = at(10) + SignedDuration::from_millis(millisecond);
            let stored = Stamp::of_second(crate::model::second_of(bound));
            let pod = Pod { bound: stored, ..pod("a").tolerating(exists("k").lasting(6)) };
            view.facts.clock.set(bound);
            view.ingest().take_pod(pod.clone());
            let verdict = judged(&view, &pod);
            let due = bound + SignedDuration::from_secs(6);
            assert!(!verdict.is_due(due - SignedDuration::from_millis(1)), "{millisecond}");
            assert!(verdict.is_due(due + SignedDuration::from_secs(1)), "{millisecond}");
        }
    }

    /// A version of the node, in its drain `s` or after it.
    fn drained(number: u64, phase: DrainPhase) -> Node {
        let claim = Claim { policy: "p".into(), conditions: vec!["Bad=True,0s".into()] };
        let record = Record::new("s".into(), Cordon::Ours, vec![claim]);
        let record = Record { phase, started: Some(at(0)), deadline: Some(at(600)), ..record };
        let node = kept("n1").reporting("Bad", ConditionStatus::True, 0).unschedulable(true);
        Node { version: Some(Version::Number(number)), ..node.recorded(Some(&record)) }
    }

    #[test]
    fn of_the_node_as_read_and_as_seen_the_newer_says_whether_a_drain_goes_on() {
        use DrainPhase::{Drained, Draining};
        #[allow(clippy::result_large_err, reason = "a verdict is no rare error")]
        let wanted = |read: Option<Node>, seen: Option<Node>| {
            let clock = Clock::starting_at(noon());
            let registry = Registry::new();
            let metrics = EventMetrics::register(&registry).unwrap();
            let (recorder, _) = Recorder::new("test", metrics, clock.clone());
            let facts = Arc::new(Facts::new(clock.clone(), Compat::None));
            let shared = Shared::new(facts, recorder, Pauses::none(clock), Holds::default());
            let metrics = DrainMetrics::register(&registry).unwrap();
            let shared =
                shared.draining_by(Arc::from([policy("p", &["Bad"])]), Orphans::Keep, metrics);

            if let Some(seen) = seen {
                shared.ingest().take_node(seen, Source::Watch);
            }
            shared.ingest().take_pod(pod("a"));
            let (policy, session) = ("p".into(), "s".into());
            let (grace, deadline, delete) = (None, at(600), false);
            let drain = DrainEviction { policy, session, grace, deadline, delete };
            let (pod, cause) = (pod("a"), Cause::Drain(Arc::new(drain)));
            let eviction = Eviction { pod: pod.reference(), cause, due: Instant::now() };
            let facts = shared.newest_facts();
            facts.by_view(&eviction).unwrap();
            facts.by_server(&eviction, eviction.cause.method(), &pod, read.as_ref())
        };
        let unwanted = Err(Spared::Unwanted(None));
        for (read, seen, expected) in [
            (drained(7, Draining), drained(7, Draining), Ok(())),
            (drained(8, Draining), drained(7, Drained), Ok(())),
            (drained(8, Drained), drained(7, Draining), unwanted.clone()),
            // The answer was long on its way.
            (drained(7, Draining), drained(8, Drained), unwanted.clone()),
            (drained(7, Drained), drained(8, Draining), Ok(())),
        ] {
            let said = format!("{:?} {:?}", read.version, seen.version);
            assert_eq!(wanted(Some(read), Some(seen)), expected, "{said}");
        }
        assert_eq!(wanted(None, Some(drained(7, Draining))), unwanted, "there is no such node");
        assert_eq!(wanted(Some(drained(7, Draining)), None), unwanted, "it is gone since");
    }
}
