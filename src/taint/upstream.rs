//! The rules of kube-controller-manager's own taint-eviction controller: `--compat upstream`.
//!
//! For users who need identical behaviour more than correct behaviour. Seconds count from when the
//! controller sees the taint, so a restart starts again. Another finite toleration never moves a running
//! countdown, neither earlier nor later. `timeAdded`, binding time, phase and the mirror annotation are
//! ignored. Two bugs are not reproduced, because nobody can depend on them: seconds saturate instead of
//! wrapping around (from 9,223,372,037 on), and a terminating pod is not deleted again.

use jiff::Timestamp;

use crate::model::{
    Anchor, AnchorSource, Cause, Deadline, Kept, Node, Pod, PodClass, Stamp, Taint, Tolerance,
    Verdict,
};

use super::decide::cause;
use super::matching::used;

/// The verdict of upstream on `pod` at `now`, with the `running` verdict of its countdown.
///
/// A `running` verdict with a deadline is returned unchanged while the pod would get another deadline (or
/// 0 seconds). The caller drops it when the verdict is to keep the pod.
///
/// `i64::MAX` seconds mean forever, as in upstream.
pub fn decide(pod: &Pod, node: &Node, now: Timestamp, running: Option<&Verdict>) -> Verdict {
    if pod.class == PodClass::Terminating {
        return Verdict::Keep(Kept::Terminating);
    }
    let mut kept = Kept::NoTaints;
    let mut least: Option<(i64, &Taint, usize)> = None;
    for (taint, toleration) in used(pod, node) {
        kept = Kept::Tolerated;
        let Some((index, toleration)) = toleration else {
            return Verdict::EvictNow(cause(taint, None));
        };
        let Some(seconds) = toleration.seconds.filter(|seconds| *seconds != i64::MAX) else {
            continue;
        };
        if least.is_none_or(|(least, ..)| seconds.max(0) < least.max(0)) {
            least = Some((seconds, taint, index));
        }
    }
    match (least, running) {
        (None, _) => Verdict::Keep(kept),
        (Some(_), Some(running @ Verdict::EvictAt { .. })) => running.clone(),
        (Some((seconds, taint, index)), _) => counted_from(now, seconds, taint, index),
    }
}

fn counted_from(now: Timestamp, seconds: i64, taint: &Taint, index: usize) -> Verdict {
    let observed = Anchor { at: Stamp::exact(now), source: AnchorSource::Observed };
    let anchor = (seconds > 0).then_some(observed);
    let cause: Cause = cause(taint, Some(Tolerance { index, seconds, anchor }));
    match anchor {
        None => Verdict::EvictNow(cause),
        Some(_) => Verdict::EvictAt { deadline: Deadline::exactly(now, seconds), cause },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::build::{at, exists, node, pod, stamp, taint};

    fn deadline(verdict: &Verdict) -> Deadline {
        match verdict {
            Verdict::EvictAt { deadline, .. } => *deadline,
            other => panic!("{other} has no deadline"),
        }
    }

    #[test]
    fn seconds_count_from_the_decision_whatever_the_stamps_say() {
        let node = node("n1").tainted(taint("k", "").added_at(-4000));
        let pod = pod("a").tolerating(exists("k").lasting(300)).bound_at(20);
        let verdict = decide(&pod, &node, at(30), None);
        assert_eq!(deadline(&verdict), Deadline(at(330)));
        let anchor = verdict.cause().and_then(|cause| cause.tolerance?.anchor);
        let observed = Anchor { at: stamp(30), source: AnchorSource::Observed };
        assert_eq!(anchor, Some(observed));
    }

    #[test]
    fn only_terminating_pods_are_left_alone() {
        let node = node("n1").tainted(taint("k", ""));
        for class in [PodClass::Ordinary, PodClass::Mirror, PodClass::Finished] {
            let verdict = decide(&pod("a").that_is(class), &node, at(0), None);
            assert_eq!(verdict, Verdict::EvictNow(cause(&taint("k", ""), None)));
            let tolerating = pod("a").that_is(class).tolerating(exists(""));
            let verdict = decide(&tolerating, &node, at(0), None);
            assert_eq!(verdict, Verdict::Keep(Kept::Tolerated));
        }
        let verdict = decide(&pod("a").that_is(PodClass::Terminating), &node, at(0), None);
        assert_eq!(verdict, Verdict::Keep(Kept::Terminating));
    }

    #[test]
    fn a_running_countdown_is_kept_though_the_new_one_would_be_zero() {
        let node = node("n1").tainted(taint("k", ""));
        let before = pod("a").tolerating(exists("k").lasting(300));
        let running = decide(&before, &node, at(0), None);
        let zero = pod("a").tolerating(exists("k").lasting(0));
        assert_eq!(decide(&zero, &node, at(10), Some(&running)), running);
        let fresh = decide(&zero, &node, at(10), None);
        assert!(matches!(fresh, Verdict::EvictNow(_)));
    }

    #[test]
    fn only_a_countdown_counts_as_running() {
        let node = node("n1").tainted(taint("k", ""));
        let pod = pod("a").tolerating(exists("k").lasting(300));
        for running in
            [Verdict::Keep(Kept::Tolerated), Verdict::EvictNow(cause(&taint("k", ""), None))]
        {
            let verdict = decide(&pod, &node, at(10), Some(&running));
            assert_eq!(deadline(&verdict), Deadline(at(310)));
        }
    }

    #[test]
    fn the_greatest_number_of_seconds_is_for_ever_and_others_saturate() {
        let node = node("n1").tainted(taint("k", ""));
        let verdict = |seconds| {
            let pod = pod("a").tolerating(exists("k").lasting(seconds));
            decide(&pod, &node, at(0), None)
        };
        assert_eq!(verdict(i64::MAX), Verdict::Keep(Kept::Tolerated));
        assert_eq!(deadline(&verdict(i64::MAX - 1)), Deadline(Timestamp::MAX));
        for (seconds, year) in
            [(9_223_372_037, "2318"), (10_000_000_000, "2342"), (20_000_000_000, "2659")]
        {
            let deadline = deadline(&verdict(seconds)).to_string();
            assert!(deadline.starts_with(year), "{seconds} s: {deadline}");
        }
    }
}
