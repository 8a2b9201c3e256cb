//! The verdict on a pod, by ostrakon's own rules.
//!
//! A deadline counts from what the API stores, never from the time of the decision. So the function takes
//! no time: after a restart, in another replica or a second later, the result is the same. It depends
//! only on current facts, not on earlier verdicts, so every change (an edited toleration, a replaced
//! taint, one of two taints removed) moves the deadline earlier or later. It must never evict a pod for
//! a taint that the pod tolerates forever.
//!
//! It allocates nothing unless a rule respects disruption budgets for a time: a verdict costs the matching
//! and a few reference counts.

use std::sync::Arc;

use crate::model::{
    Anchor, AnchorSource, Anchors, Budgets, Cause, Deadline, Kept, Node, Pod, PodClass, Taint,
    Tolerance, Verdict,
};

use super::anchor::since;
use super::matching::used;
use super::rules::{TaintMethod, TaintRule, rule_of};

/// The verdict on `pod` for the NoExecute taints of `node`, its node, without rules: pods are deleted.
///
/// See [`decide_by`].
pub fn decide(pod: &Pod, node: &Node, anchors: &Anchors) -> Verdict {
    decide_by(&[], pod, node, anchors)
}

/// The verdict on `pod` for the NoExecute taints of `node`, its node, by these rules.
///
/// - Mirror pods, finished pods and terminating pods are kept.
/// - A taint that a rule ignores does not count. In particular, it hides no other taint.
/// - If a taint is not tolerated, the pod is evicted now, whatever the other taints are; the verdict
///   names the first such taint.
/// - If a taint is tolerated for 0 seconds or less, the pod is evicted now.
/// - Otherwise the pod is evicted at the earliest of `max(since, bound) + seconds` over the taints that
///   are tolerated for a time. `since` is [`anchor`](super::anchor::since) and `bound` is [`Pod::bound`].
///   Of equal times, the verdict names the first taint. The sum saturates.
/// - If all taints are tolerated forever or ignored, the pod is kept.
///
/// Budgets are respected from the earliest of these times on, until the earliest at which a taint's rule
/// deletes: of all taints that are due, the strongest method counts (ADR 18). `EvictThenDelete` deletes at
/// `max(since, bound) + seconds + after`, where no toleration means 0 seconds.
///
/// `anchors` must be of this version of the node (see [`advance`](super::advance)).
pub fn decide_by(rules: &[TaintRule], pod: &Pod, node: &Node, anchors: &Anchors) -> Verdict {
    match pod.class {
        PodClass::Ordinary => {}
        PodClass::Mirror => return Verdict::Keep(Kept::Mirror),
        PodClass::Finished => return Verdict::Keep(Kept::Finished),
        PodClass::Terminating => return Verdict::Keep(Kept::Terminating),
    }
    let mut kept = Kept::NoTaints;
    let (mut eviction, mut deletion) = (None, None);
    for (taint, toleration) in used(pod, node) {
        if kept == Kept::NoTaints {
            kept = Kept::Tolerated;
        }
        let tolerance = match toleration {
            None => None,
            Some((_, toleration)) if toleration.seconds.is_none() => continue,
            Some((index, toleration)) => {
                Some(Tolerance { index, seconds: toleration.seconds.unwrap_or(0), anchor: None })
            }
        };
        let rule = rule_of(rules, taint);
        let anchor = || not_before_bound(pod, since(anchors, taint));
        let due = Due::of(taint, tolerance, rule.map(|rule| &rule.name), anchor);
        match rule.map(|rule| rule.method).unwrap_or_default() {
            TaintMethod::Ignore => kept = Kept::Ignored,
            // Nothing is earlier or stronger.
            TaintMethod::Delete if due.when == When::Untolerated => {
                return due.verdict(Budgets::NotAsked);
            }
            TaintMethod::Delete => earlier(&mut deletion, due, Budgets::NotAsked),
            TaintMethod::Evict => earlier(&mut eviction, due, Budgets::NotAsked),
            TaintMethod::EvictThenDelete { after } => {
                let later = Due { when: When::At(due.deadline(anchor).plus(after)), ..due.clone() };
                earlier(&mut deletion, later, Budgets::RespectedFor(after));
                earlier(&mut eviction, due, Budgets::NotAsked);
            }
        }
    }
    let evicted_first =
        |(eviction, deletion): (&Due<'_>, &Due<'_>)| eviction.when.is_before(deletion.when);
    match (eviction, deletion) {
        (None, None) => Verdict::Keep(kept),
        (Some((eviction, _)), None) => eviction.verdict(Budgets::Respected { until: None }),
        (Some((eviction, _)), Some((deletion, budgets)))
            if evicted_first((&eviction, &deletion)) =>
        {
            let until = Some(Box::new(deletion.verdict(budgets)));
            eviction.verdict(Budgets::Respected { until })
        }
        (_, Some((deletion, budgets))) => deletion.verdict(budgets),
    }
}

/// When a pod is due for a taint. Ordered by what a verdict names first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum When {
    /// At once: it does not tolerate the taint.
    Untolerated,
    /// At once: it tolerates the taint for 0 seconds or less.
    AtOnce,
    /// At this time.
    At(Deadline),
}

impl When {
    /// Whether it is at an earlier time than `other`.
    fn is_before(self, other: Self) -> bool {
        matches!((self, other), (Self::Untolerated | Self::AtOnce, Self::At(_)))
            || matches!((self, other), (Self::At(own), Self::At(other)) if own < other)
    }
}

/// A taint for which a pod is due at some time.
#[derive(Clone)]
struct Due<'a> {
    when: When,
    taint: &'a Taint,
    tolerance: Option<Tolerance>,
    rule: Option<&'a Arc<str>>,
}

impl<'a> Due<'a> {
    fn of(
        taint: &'a Taint,
        tolerance: Option<Tolerance>,
        rule: Option<&'a Arc<str>>,
        anchor: impl FnOnce() -> Anchor,
    ) -> Self {
        let Some(mut tolerance) = tolerance else {
            return Self { when: When::Untolerated, taint, tolerance, rule };
        };
        let mut when = When::AtOnce;
        if tolerance.seconds > 0 {
            let anchor = anchor();
            when = When::At(Deadline::after(anchor.at, tolerance.seconds));
            tolerance.anchor = Some(anchor);
        }
        Self { when, taint, tolerance: Some(tolerance), rule }
    }

    /// The time at which it is due. One that is due at once is due since `anchor`.
    fn deadline(&self, anchor: impl FnOnce() -> Anchor) -> Deadline {
        match self.when {
            When::At(deadline) => deadline,
            When::Untolerated | When::AtOnce => Deadline::after(anchor().at, 0),
        }
    }

    fn verdict(self, budgets: Budgets) -> Verdict {
        let rule = self.rule.map(Arc::clone);
        let cause = Cause { rule, budgets, ..cause(self.taint, self.tolerance) };
        match self.when {
            When::Untolerated | When::AtOnce => Verdict::EvictNow(cause),
            When::At(deadline) => Verdict::EvictAt { deadline, cause },
        }
    }
}

/// Keeps the one that comes first; of equal ones, the one that is known already.
fn earlier<'a>(least: &mut Option<(Due<'a>, Budgets)>, due: Due<'a>, budgets: Budgets) {
    if least.as_ref().is_none_or(|(least, _)| due.when < least.when) {
        *least = Some((due, budgets));
    }
}

/// A pod that was bound after the taint was added gets all its seconds.
fn not_before_bound(pod: &Pod, since: Anchor) -> Anchor {
    if pod.bound > since.at { Anchor { at: pod.bound, source: AnchorSource::Bound } } else { since }
}

pub(super) fn cause(taint: &Taint, tolerance: Option<Tolerance>) -> Cause {
    Cause::new(taint.clone(), tolerance)
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
