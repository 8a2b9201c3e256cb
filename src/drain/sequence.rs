//! The order in which the pods of a node are evicted.
//!
//! Pods are evicted in groups by priority, as in the kubelet's graceful shutdown: pods that others depend
//! on come last. A group that does not finish must not use up the time of the next ones, so each has a
//! share of it. Within a group, unready pods come first: they cost a budget nothing, and may be what
//! exhausts it.

use jiff::{SignedDuration, Timestamp};

use super::PriorityGroup;
use crate::model::{DrainPod, PodRef};

/// Which pods may be evicted now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Index of the current group. Earlier ones are gone, or their time is over.
    pub group: usize,
    /// The pods of all groups up to this one, in the order of eviction. Terminating ones
    /// are left out.
    pub evict: Vec<PodRef>,
    /// When the next group begins at the latest; `None` if there is none with pods. It begins
    /// earlier if all pods up to this group are gone.
    pub next: Option<Timestamp>,
}

/// The pods to evict at `now`, in a drain from `started` until `deadline`.
///
/// `going` are all pods that are still to go, those that are being deleted among them. It depends on
/// nothing else, so a restart comes to the same answer. Shares are percents of the time between
/// `started` and `deadline`, counted from the beginning; what they leave is the last group's, and
/// what they have too much is not there. Without groups all pods are one.
pub fn sequence(
    going: &[&DrainPod],
    groups: &[PriorityGroup],
    started: Timestamp,
    deadline: Timestamp,
    now: Timestamp,
) -> Sequence {
    let last = groups.len().saturating_sub(1);
    let group_of = |pod: &DrainPod| {
        let is_in = |group: &PriorityGroup| group.below.is_none_or(|below| pod.priority < below);
        groups.iter().position(is_in).unwrap_or(last)
    };
    let mut pods: Vec<_> = going.iter().map(|pod| (group_of(pod), *pod)).collect();
    pods.sort_by_key(|(group, pod)| {
        let PodRef { namespace, name, uid, .. } = &pod.reference;
        (*group, pod.ready, pod.priority, pod.grace, namespace, name, uid)
    });
    let ends = ends(groups, started, deadline);
    let is_at_work = |group: &usize| {
        let has_pods = pods.iter().any(|(of, _)| of == group);
        has_pods && ends.get(*group).is_none_or(|end| now < *end)
    };
    let group = (0..last).find(is_at_work).unwrap_or(last);
    let has_later = pods.iter().any(|(of, _)| *of > group);
    let released = pods.iter().filter(|(of, pod)| *of <= group && pod.terminating.is_none());
    Sequence {
        group,
        evict: released.map(|(_, pod)| pod.reference.clone()).collect(),
        next: has_later.then(|| ends.get(group).copied()).flatten(),
    }
}

/// When the time of each group is over.
fn ends(groups: &[PriorityGroup], started: Timestamp, deadline: Timestamp) -> Vec<Timestamp> {
    let whole = deadline.duration_since(started).max(SignedDuration::ZERO).as_millis();
    let mut percent = 0u32;
    let end = |group: &PriorityGroup| {
        percent = (percent + u32::from(group.share)).min(100);
        let part = i64::try_from(whole * i128::from(percent) / 100).unwrap_or(i64::MAX);
        started.saturating_add(SignedDuration::from_millis(part)).unwrap_or(Timestamp::MAX)
    };
    groups.iter().map(end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::build::at;
    use crate::model::build::drain_pod;

    const CRITICAL: i32 = 2_000_000_000;

    /// Ordinary pods have 75 of 100 s, critical ones the rest.
    const TWO: [PriorityGroup; 2] = [
        PriorityGroup { below: Some(CRITICAL), share: 75 },
        PriorityGroup { below: None, share: 25 },
    ];

    fn sequence_of(pods: &[DrainPod], groups: &[PriorityGroup], now: i64) -> Sequence {
        let pods: Vec<_> = pods.iter().collect();
        sequence(&pods, groups, at(0), at(100), at(now))
    }

    fn names(sequence: &Sequence) -> Vec<&str> {
        sequence.evict.iter().map(|pod| &*pod.name).collect()
    }

    #[test]
    fn critical_pods_wait_until_the_ordinary_ones_are_gone() {
        let pods = [drain_pod("dns").of_priority(CRITICAL), drain_pod("web")];
        let sequence = sequence_of(&pods, &TWO, 0);
        assert_eq!((sequence.group, names(&sequence)), (0, vec!["web"]));
        assert_eq!(sequence.next, Some(at(75)));
        let sequence = sequence_of(&pods[..1], &TWO, 10);
        assert_eq!((sequence.group, names(&sequence), sequence.next), (1, vec!["dns"], None));
    }

    #[test]
    fn a_pod_that_is_being_deleted_holds_its_group_and_is_not_evicted_again() {
        let pods = [drain_pod("dns").of_priority(CRITICAL), drain_pod("web").going_until(30)];
        let sequence = sequence_of(&pods, &TWO, 20);
        assert_eq!((sequence.group, names(&sequence)), (0, vec![]));
        assert_eq!(sequence.next, Some(at(75)));
    }

    #[test]
    fn a_group_whose_share_is_over_lets_the_next_begin_and_goes_on_itself() {
        let pods = [drain_pod("dns").of_priority(CRITICAL), drain_pod("web")];
        assert_eq!(sequence_of(&pods, &TWO, 74).group, 0);
        let sequence = sequence_of(&pods, &TWO, 75);
        assert_eq!(
            (sequence.group, names(&sequence), sequence.next),
            (1, vec!["web", "dns"], None)
        );
        assert_eq!(names(&sequence_of(&pods, &TWO, 500)), ["web", "dns"], "past the deadline too");
    }

    #[test]
    fn a_group_without_pods_takes_no_time() {
        let three = [
            PriorityGroup { below: Some(0), share: 40 },
            PriorityGroup { below: Some(1000), share: 40 },
            PriorityGroup { below: None, share: 20 },
        ];
        let pods = [drain_pod("low").of_priority(-1), drain_pod("high").of_priority(1000)];
        let sequence = sequence_of(&pods, &three, 0);
        assert_eq!((names(&sequence), sequence.next), (vec!["low"], Some(at(40))));
        let sequence = sequence_of(&pods, &three, 40);
        assert_eq!((sequence.group, names(&sequence)), (2, vec!["low", "high"]));
    }

    #[test]
    fn within_a_group_unready_pods_go_first_then_by_priority_grace_and_name() {
        let slow = DrainPod { grace: std::time::Duration::from_secs(60), ..drain_pod("a-slow") };
        let pods = [
            slow,
            drain_pod("c"),
            drain_pod("b"),
            drain_pod("important").of_priority(5),
            drain_pod("unready").of_priority(9).unready(),
        ];
        let expected = ["unready", "b", "c", "a-slow", "important"];
        assert_eq!(names(&sequence_of(&pods, &TWO, 0)), expected);
        let mut reversed = pods.clone();
        reversed.reverse();
        assert_eq!(names(&sequence_of(&reversed, &TWO, 0)), expected, "whatever the list's order");
    }

    #[test]
    fn shares_that_do_not_add_up_lose_no_pod_and_end_at_the_deadline() {
        let greedy = [
            PriorityGroup { below: Some(0), share: 90 },
            PriorityGroup { below: Some(10), share: 90 },
            PriorityGroup { below: Some(20), share: 90 },
        ];
        let pods = [drain_pod("a").of_priority(5), drain_pod("b").of_priority(99)];
        let sequence = sequence_of(&pods, &greedy, 0);
        assert_eq!((names(&sequence), sequence.next), (vec!["a"], Some(at(100))));
        assert_eq!(
            names(&sequence_of(&pods, &greedy, 100)),
            ["a", "b"],
            "b is in no group but goes"
        );
        assert_eq!(names(&sequence_of(&pods, &[], 0)), ["a", "b"]);
        assert_eq!(sequence_of(&[], &[], 0), Sequence { group: 0, evict: vec![], next: None });
        let backwards = super::sequence(&[&pods[0]], &TWO, at(0), at(-5), at(0));
        assert_eq!(names(&backwards), ["a"]);
    }
}
