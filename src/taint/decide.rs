//! The verdict on a pod, by ostrakon's own rules.
//!
//! A deadline counts from what the API stores, never from the time of the decision. So the function takes
//! no time: after a restart, in another replica or a second later, the result is the same. It depends
//! only on current facts, not on earlier verdicts, so every change (an edited toleration, a replaced
//! taint, one of two taints removed) moves the deadline earlier or later. It must never evict a pod for
//! a taint that the pod tolerates forever.
//!
//! It allocates nothing: a verdict costs the matching and two reference counts.

use crate::model::{
    Anchor, AnchorSource, Anchors, Cause, Deadline, Kept, Node, Pod, PodClass, Taint, Tolerance,
    Verdict,
};

use super::anchor::since;
use super::matching::used;

/// The verdict on `pod` for the NoExecute taints of `node`, its node.
///
/// - Mirror pods, finished pods and terminating pods are kept.
/// - If a taint is not tolerated, the pod is evicted now, whatever the other taints are; the verdict
///   names the first such taint.
/// - If a taint is tolerated for 0 seconds or less, the pod is evicted now.
/// - Otherwise the pod is evicted at the earliest of `max(since, bound) + seconds` over the taints that
///   are tolerated for a time. `since` is [`anchor`](super::anchor::since) and `bound` is [`Pod::bound`].
///   Of equal times, the verdict names the first taint. The sum saturates.
/// - If all taints are tolerated forever, the pod is kept.
///
/// `anchors` must be of this version of the node (see [`advance`](super::advance)).
pub fn decide(pod: &Pod, node: &Node, anchors: &Anchors) -> Verdict {
    match pod.class {
        PodClass::Ordinary => {}
        PodClass::Mirror => return Verdict::Keep(Kept::Mirror),
        PodClass::Finished => return Verdict::Keep(Kept::Finished),
        PodClass::Terminating => return Verdict::Keep(Kept::Terminating),
    }
    let mut kept = Kept::NoTaints;
    let mut at_once: Option<(&Taint, Tolerance)> = None;
    let mut soonest: Option<(Deadline, &Taint, Tolerance)> = None;
    for (taint, toleration) in used(pod, node) {
        kept = Kept::Tolerated;
        let Some((index, toleration)) = toleration else {
            return Verdict::EvictNow(cause(taint, None));
        };
        let Some(seconds) = toleration.seconds else {
            continue;
        };
        let mut tolerance = Tolerance { index, seconds, anchor: None };
        if seconds <= 0 {
            at_once.get_or_insert((taint, tolerance));
            continue;
        }
        let anchor = not_before_bound(pod, since(anchors, taint));
        let deadline = Deadline::after(anchor.at, seconds);
        if soonest.as_ref().is_none_or(|(least, ..)| deadline < *least) {
            tolerance.anchor = Some(anchor);
            soonest = Some((deadline, taint, tolerance));
        }
    }
    match (at_once, soonest) {
        (Some((taint, tolerance)), _) => Verdict::EvictNow(cause(taint, Some(tolerance))),
        (None, Some((deadline, taint, tolerance))) => {
            Verdict::EvictAt { deadline, cause: cause(taint, Some(tolerance)) }
        }
        (None, None) => Verdict::Keep(kept),
    }
}

/// A pod that was bound after the taint was added gets all its seconds.
fn not_before_bound(pod: &Pod, since: Anchor) -> Anchor {
    if pod.bound > since.at { Anchor { at: pod.bound, source: AnchorSource::Bound } } else { since }
}

pub(super) fn cause(taint: &Taint, tolerance: Option<Tolerance>) -> Cause {
    Cause { taint: taint.clone(), tolerance }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::build::{at, exists, node, not_ready, pod, stamp, taint};
    use crate::model::{FirstSeen, Outage};
    use jiff::Timestamp;

    fn first_seen(key: &str, seconds: i64) -> Anchors {
        Anchors {
            first_seen: vec![FirstSeen {
                key: key.into(),
                value: "".into(),
                added: None,
                since: stamp(seconds),
            }],
            outage: None,
        }
    }

    fn outage_since(seconds: i64) -> Anchors {
        Anchors {
            outage: Some(Outage { since: stamp(seconds), through: stamp(seconds), gap_from: None }),
            ..Anchors::default()
        }
    }

    /// The verdict of a pod that goes at `deadline` by the only toleration for the only taint.
    fn goes_at(
        deadline: i64,
        taint: &Taint,
        seconds: i64,
        anchor: i64,
        from: AnchorSource,
    ) -> Verdict {
        let anchor = Some(Anchor { at: stamp(anchor), source: from });
        Verdict::EvictAt {
            deadline: Deadline(at(deadline)),
            cause: cause(taint, tolerated(0, seconds, anchor)),
        }
    }

    #[allow(clippy::unnecessary_wraps)]
    fn tolerated(index: usize, seconds: i64, anchor: Option<Anchor>) -> Option<Tolerance> {
        Some(Tolerance { index, seconds, anchor })
    }

    #[test]
    fn mirror_finished_and_terminating_pods_are_left_alone_and_no_others() {
        let node = node("n1").tainted(taint("k", ""));
        for (class, kept) in [
            (PodClass::Mirror, Kept::Mirror),
            (PodClass::Finished, Kept::Finished),
            (PodClass::Terminating, Kept::Terminating),
        ] {
            let pod = pod("a").that_is(class);
            let verdict = decide(&pod, &node, &Anchors::default());
            assert_eq!(verdict, Verdict::Keep(kept));
        }
        let verdict = decide(&pod("a"), &node, &Anchors::default());
        assert_eq!(verdict, Verdict::EvictNow(cause(&taint("k", ""), None)));
    }

    #[test]
    fn the_anchor_is_time_added_where_the_taint_has_one() {
        let tainted = taint("k", "").added_at(40);
        let verdict = decide(
            &pod("a").tolerating(exists("k").lasting(300)),
            &node("n1").tainted(tainted.clone()),
            &first_seen("k", -1000),
        );
        assert_eq!(verdict, goes_at(340, &tainted, 300, 40, AnchorSource::TimeAdded));
    }

    #[test]
    fn the_anchor_is_the_first_sight_where_the_taint_has_no_time_added() {
        let verdict = decide(
            &pod("a").tolerating(exists("k").lasting(300)),
            &node("n1").tainted(taint("k", "")),
            &first_seen("k", 7),
        );
        assert_eq!(verdict, goes_at(307, &taint("k", ""), 300, 7, AnchorSource::FirstSeen));
    }

    #[test]
    fn the_anchor_is_the_beginning_of_the_outage_for_its_two_taints_only() {
        let tolerating = pod("a").tolerating(exists("").lasting(300));
        let anchors = outage_since(10);
        let verdict = decide(&tolerating, &node("n1").tainted(not_ready(90)), &anchors);
        assert_eq!(verdict, goes_at(310, &not_ready(90), 300, 10, AnchorSource::Outage));

        let other = taint("k", "").added_at(90);
        let verdict = decide(&tolerating, &node("n1").tainted(other.clone()), &anchors);
        assert_eq!(verdict, goes_at(390, &other, 300, 90, AnchorSource::TimeAdded));
    }

    #[test]
    fn a_pod_that_came_after_the_taint_counts_from_its_binding() {
        let tainted = taint("k", "").added_at(40);
        let node = node("n1").tainted(tainted.clone());
        let tolerating = pod("a").tolerating(exists("k").lasting(300));
        let verdict =
            |bound| decide(&tolerating.clone().bound_at(bound), &node, &Anchors::default());
        let by_taint = goes_at(340, &tainted, 300, 40, AnchorSource::TimeAdded);
        assert_eq!(verdict(39), by_taint);
        assert_eq!(verdict(40), by_taint);
        assert_eq!(verdict(41), goes_at(341, &tainted, 300, 41, AnchorSource::Bound));
    }

    #[test]
    fn a_taint_that_was_not_looked_at_yet_removes_nothing() {
        let node = node("n1").tainted(taint("k", ""));
        let pod = pod("a").tolerating(exists("k").lasting(1));
        let Verdict::EvictAt { deadline, .. } = decide(&pod, &node, &first_seen("another", 0))
        else {
            panic!("it has a deadline");
        };
        assert_eq!(deadline, Deadline(Timestamp::MAX));
    }

    #[test]
    fn an_untolerated_taint_outdoes_all_others_wherever_it_stands() {
        let tolerating =
            pod("a").tolerating(exists("zero").lasting(0)).tolerating(exists("timed").lasting(5));
        let node = node("n1")
            .tainted(taint("timed", "").added_at(0))
            .tainted(taint("zero", "").added_at(0))
            .tainted(taint("b", "").added_at(50))
            .tainted(taint("c", "").added_at(0));
        let verdict = decide(&tolerating, &node, &Anchors::default());
        let first = taint("b", "").added_at(50);
        assert_eq!(verdict, Verdict::EvictNow(cause(&first, None)));
    }

    #[test]
    fn zero_and_negative_seconds_are_at_once_and_count_from_nothing() {
        for seconds in [0, -1, i64::MIN] {
            let tolerating = pod("a")
                .tolerating(exists("timed").lasting(5))
                .tolerating(exists("k").lasting(seconds));
            let node = node("n1").tainted(taint("timed", "").added_at(0)).tainted(taint("k", ""));
            let verdict = decide(&tolerating, &node, &Anchors::default());
            let expected = cause(&taint("k", ""), tolerated(1, seconds, None));
            assert_eq!(verdict, Verdict::EvictNow(expected));
        }
    }

    #[test]
    fn of_several_taints_tolerated_for_no_time_the_first_is_named() {
        let tolerating = pod("a").tolerating(exists("").lasting(0));
        let node = node("n1").tainted(taint("z", "")).tainted(taint("a", ""));
        let verdict = decide(&tolerating, &node, &Anchors::default());
        let expected = cause(&taint("z", ""), tolerated(0, 0, None));
        assert_eq!(verdict, Verdict::EvictNow(expected));
    }

    #[test]
    fn the_earliest_deadline_wins_though_its_seconds_are_more() {
        let tolerating =
            pod("a").tolerating(exists("late").lasting(10)).tolerating(exists("early").lasting(60));
        let early = taint("early", "").added_at(0);
        let node = node("n1").tainted(taint("late", "").added_at(100)).tainted(early.clone());
        let Verdict::EvictAt { deadline, cause } = decide(&tolerating, &node, &Anchors::default())
        else {
            panic!("it has a deadline");
        };
        assert_eq!((deadline, cause.taint), (Deadline(at(60)), early));
        assert_eq!(cause.tolerance.map(|tolerance| tolerance.index), Some(1));
    }

    #[test]
    fn of_equal_deadlines_the_first_taint_is_named() {
        let tolerating = pod("a").tolerating(exists("").lasting(10));
        let first = taint("z", "").added_at(0);
        let node = node("n1").tainted(first.clone()).tainted(taint("a", "").added_at(0));
        let verdict = decide(&tolerating, &node, &Anchors::default());
        assert_eq!(verdict.cause().map(|cause| &cause.taint), Some(&first));
    }

    #[test]
    fn a_blanket_timed_toleration_before_an_unlimited_one_shadows_it() {
        let node = node("n1").tainted(taint("k", "").added_at(0));
        let blanket = pod("a").tolerating(exists("").lasting(300));
        let verdict = decide(&blanket.tolerating(exists("k")), &node, &Anchors::default());
        let Verdict::EvictAt { deadline, cause } = verdict else {
            panic!("it has a deadline");
        };
        assert_eq!(deadline, Deadline(at(300)));
        assert_eq!(cause.tolerance.map(|tolerance| tolerance.index), Some(0));

        let specific = pod("a").tolerating(exists("k"));
        let swapped = specific.tolerating(exists("").lasting(300));
        let verdict = decide(&swapped, &node, &Anchors::default());
        assert_eq!(verdict, Verdict::Keep(Kept::Tolerated));
    }

    #[test]
    fn a_toleration_that_no_taint_uses_has_no_say() {
        let tolerating = pod("a").tolerating(exists("absent").lasting(0)).tolerating(exists("k"));
        let tainted = node("n1").tainted(taint("k", ""));
        let verdict = decide(&tolerating, &tainted, &Anchors::default());
        assert_eq!(verdict, Verdict::Keep(Kept::Tolerated));
        let verdict = decide(&tolerating, &node("n1"), &Anchors::default());
        assert_eq!(verdict, Verdict::Keep(Kept::NoTaints));
    }

    #[test]
    fn huge_seconds_never_wrap_into_the_past_or_into_an_earlier_deadline() {
        let node = node("n1").tainted(taint("k", "").added_at(0));
        for (seconds, expected) in [
            (9_223_372_036, "2318-04-13T11:47:16Z"),
            (9_223_372_037, "2318-04-13T11:47:17Z"),
            (10_000_000_000, "2342-11-22T05:46:40Z"),
            (20_000_000_000, "2659-10-11T23:33:20Z"),
            (i64::MAX, "9999-12-30T22:00:00.999999999Z"),
        ] {
            let pod = pod("a").tolerating(exists("k").lasting(seconds));
            let Verdict::EvictAt { deadline, .. } = decide(&pod, &node, &Anchors::default()) else {
                panic!("{seconds} s are a time");
            };
            assert_eq!(deadline.to_string(), expected, "{seconds} s");
        }
    }
}
