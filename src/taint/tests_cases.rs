//! The case tables of the built-in controller, decided by both profiles side by side.
//!
//! Where the default profile has an expectation of its own, the test's name says what it does.

use super::{Past, advance, decide, upstream};
use crate::model::build::{at, exists, node, not_ready, pod, taint, unreachable};
use crate::model::{Anchors, Effect, Node, Pod, Taint, Toleration, Verdict};
use When::{At, Never, Now};

/// When a pod goes, in seconds after noon.
#[derive(Debug, PartialEq)]
enum When {
    Never,
    Now,
    At(i64),
}

impl From<&Verdict> for When {
    fn from(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Keep(_) => Never,
            Verdict::EvictNow(_) => Now,
            Verdict::EvictAt { deadline, .. } => At(deadline.0.duration_since(at(0)).as_secs()),
        }
    }
}

/// A pod under the eyes of both profiles, as its node and its tolerations change.
#[derive(Default)]
struct Eyes {
    anchors: Option<Anchors>,
    running: Option<Verdict>,
}

impl Eyes {
    /// What the default profile and the upstream profile say at `now`.
    fn see(&mut self, now: i64, pod: &Pod, node: &Node) -> (When, When) {
        let past = self.anchors.as_ref().map_or(Past::Unknown, Past::Watched);
        let anchors = advance(past, node, at(now));
        let ours = decide(pod, node, &anchors);
        let theirs = upstream::decide(pod, node, at(now), self.running.as_ref());
        let seen = (When::from(&ours), When::from(&theirs));
        self.anchors = Some(anchors);
        self.running = Some(theirs);
        seen
    }
}

/// At first sight, at noon.
fn both(pod: &Pod, node: &Node) -> (When, When) {
    Eyes::default().see(0, pod, node)
}

/// Test taint of upstream's tables: `testTaint1=test1`, put on at noon.
fn t(number: u8) -> Taint {
    taint(&format!("testTaint{number}"), &format!("test{number}")).added_at(0)
}

/// Toleration of that taint alone.
fn tolerates(number: u8) -> Toleration {
    let taint = t(number);
    crate::model::build::equal(&taint.key, &taint.value)
}

fn n() -> Node {
    node("n1")
}

mod minimum_toleration_time {
    use super::*;

    /// A pod that tolerates taint 1, 2, ... for the given times, on a node with all of them.
    fn of(seconds: &[Option<i64>]) -> (When, When) {
        let (mut pod, mut node) = (pod("a"), n());
        for (number, seconds) in (1..).zip(seconds) {
            let forever = tolerates(number);
            pod = pod.tolerating(match seconds {
                Some(seconds) => forever.lasting(*seconds),
                None => forever,
            });
            node = node.tainted(t(number));
        }
        both(&pod, &node)
    }

    #[test]
    fn no_taint_is_no_eviction_and_not_zero_seconds() {
        assert_eq!(of(&[]), (Never, Never));
    }

    #[test]
    fn one_entry_of_zero_or_less_is_at_once() {
        assert_eq!(of(&[Some(5), Some(0)]), (Now, Now));
        assert_eq!(of(&[None, Some(-3), Some(5)]), (Now, Now));
    }

    #[test]
    fn the_smallest_finite_entry_counts() {
        assert_eq!(of(&[Some(1), Some(2)]), (At(1), At(1)));
        assert_eq!(of(&[Some(2), Some(1)]), (At(1), At(1)));
    }

    #[test]
    fn unlimited_entries_neither_shorten_nor_lengthen() {
        assert_eq!(of(&[Some(1), None]), (At(1), At(1)));
        assert_eq!(of(&[None, Some(1)]), (At(1), At(1)));
    }

    #[test]
    fn all_unlimited_is_for_ever() {
        assert_eq!(of(&[None]), (Never, Never));
        assert_eq!(of(&[None, None]), (Never, Never));
    }

    #[test]
    fn the_greatest_number_is_for_ever_upstream_and_the_end_of_time_here() {
        let (ours, theirs) = of(&[Some(i64::MAX)]);
        assert!(matches!(ours, At(seconds) if seconds > 200_000_000_000));
        assert_eq!(theirs, Never);
        assert_eq!(of(&[Some(i64::MAX), Some(9)]), (At(9), At(9)));
    }
}

mod with_a_countdown_of_300_s {
    use super::*;

    /// Eyes that have seen the pod, tolerating taint 1 for 300 s, at noon.
    fn eyes() -> Eyes {
        let mut eyes = Eyes::default();
        let seen = eyes.see(0, &a(300), &n().tainted(t(1)));
        assert_eq!(seen, (At(300), At(300)));
        eyes
    }

    fn a(seconds: i64) -> Pod {
        pod("a").tolerating(tolerates(1).lasting(seconds))
    }

    #[test]
    fn removing_the_toleration_evicts_at_once() {
        assert_eq!(eyes().see(5, &pod("a"), &n().tainted(t(1))), (Now, Now));
    }

    #[test]
    fn adding_an_untolerated_taint_evicts_at_once() {
        let node = n().tainted(t(1)).tainted(t(2));
        assert_eq!(eyes().see(5, &a(300), &node), (Now, Now));
    }

    #[test]
    fn tolerating_for_ever_cancels() {
        let pod = pod("a").tolerating(tolerates(1));
        assert_eq!(eyes().see(5, &pod, &n().tainted(t(1))), (Never, Never));
    }

    #[test]
    fn removing_all_no_execute_taints_cancels() {
        assert_eq!(eyes().see(5, &a(300), &n()), (Never, Never));
        let harmless = t(1).with(Effect::NoSchedule);
        assert_eq!(eyes().see(5, &a(300), &n().tainted(harmless)), (Never, Never));
    }

    #[test]
    fn a_shorter_toleration_is_obeyed_here_and_ignored_upstream() {
        let node = n().tainted(t(1));
        assert_eq!(eyes().see(5, &a(10), &node), (At(10), At(300)));
        assert_eq!(eyes().see(5, &a(0), &node), (Now, At(300)));
    }

    #[test]
    fn a_longer_toleration_is_obeyed_here_and_ignored_upstream() {
        let node = n().tainted(t(1));
        assert_eq!(eyes().see(5, &a(3000), &node), (At(3000), At(300)));
    }

    #[test]
    fn a_moved_time_added_is_obeyed_here_and_ignored_upstream() {
        // It cannot have been put on later than it was seen: then its first sight counts.
        for (moved, since) in [(-100, -100), (100, 5)] {
            let node = n().tainted(t(1).added_at(moved));
            assert_eq!(eyes().see(5, &a(300), &node), (At(since + 300), At(300)));
        }
    }

    #[test]
    fn a_swap_of_not_ready_and_unreachable_keeps_the_countdown() {
        for swap in [[not_ready(0), unreachable(50)], [unreachable(0), not_ready(50)]] {
            let [first, second] = swap;
            let pod = pod("a")
                .tolerating(exists(Taint::NOT_READY).lasting(300))
                .tolerating(exists(Taint::UNREACHABLE).lasting(300));
            let mut eyes = Eyes::default();
            let kept = || (At(300), At(300));
            assert_eq!(eyes.see(0, &pod, &n().tainted(first.clone())), kept());
            let both = n().tainted(first).tainted(second.clone());
            assert_eq!(eyes.see(50, &pod, &both), kept());
            assert_eq!(eyes.see(51, &pod, &n().tainted(second)), kept());
        }
    }
}

mod as_taints_come_and_go {
    use super::*;

    #[test]
    fn a_second_taint_with_fewer_seconds_shortens_here_and_not_upstream() {
        let pod =
            pod("a").tolerating(tolerates(1).lasting(3600)).tolerating(tolerates(2).lasting(10));
        let mut eyes = Eyes::default();
        let seen = eyes.see(0, &pod, &n().tainted(t(1)));
        assert_eq!(seen, (At(3600), At(3600)));
        let seen = eyes.see(50, &pod, &n().tainted(t(1)).tainted(t(2).added_at(50)));
        assert_eq!(seen, (At(60), At(3600)));
    }

    #[test]
    fn removing_the_stricter_of_two_taints_lengthens_here_and_not_upstream() {
        let pod =
            pod("a").tolerating(tolerates(1).lasting(10)).tolerating(tolerates(2).lasting(300));
        let mut eyes = Eyes::default();
        let seen = eyes.see(0, &pod, &n().tainted(t(1)).tainted(t(2)));
        assert_eq!(seen, (At(10), At(10)));
        assert_eq!(eyes.see(5, &pod, &n().tainted(t(2))), (At(300), At(10)));
    }

    #[test]
    fn replacing_a_taint_counts_the_new_one_here_and_not_upstream() {
        let pod =
            pod("a").tolerating(tolerates(1).lasting(10)).tolerating(tolerates(2).lasting(300));
        let mut eyes = Eyes::default();
        assert_eq!(eyes.see(0, &pod, &n().tainted(t(1))), (At(10), At(10)));
        let replaced = n().tainted(t(2).added_at(5));
        assert_eq!(eyes.see(5, &pod, &replaced), (At(305), At(10)));
    }

    #[test]
    fn an_old_time_added_is_counted_here_and_ignored_upstream() {
        let pod = pod("a").tolerating(tolerates(1).lasting(300));
        let seen = Eyes::default().see(0, &pod, &n().tainted(t(1).added_at(-4000)));
        assert_eq!(seen, (At(-3700), At(300)));
    }

    #[test]
    fn a_restart_in_mid_countdown_changes_nothing_here_and_begins_anew_upstream() {
        let pod = pod("a").tolerating(tolerates(1).lasting(300));
        let node = n().tainted(t(1));
        let _ = Eyes::default().see(0, &pod, &node);
        assert_eq!(Eyes::default().see(240, &pod, &node), (At(300), At(540)));
    }

    #[test]
    fn multiple_taints_step_by_step() {
        let pod = pod("a").tolerating(exists(&t(1).key)).tolerating(exists(&t(2).key).lasting(60));
        let mut eyes = Eyes::default();
        assert_eq!(eyes.see(0, &pod, &n()), (Never, Never));
        assert_eq!(eyes.see(1, &pod, &n().tainted(t(1))), (Never, Never));
        let two = n().tainted(t(1)).tainted(t(2).added_at(2));
        assert_eq!(eyes.see(2, &pod, &two), (At(62), At(62)));
        assert_eq!(eyes.see(3, &pod, &n().tainted(t(1))), (Never, Never));
    }

    #[test]
    fn a_removed_taint_cancels() {
        let pod = pod("a").tolerating(tolerates(1).lasting(1));
        let mut eyes = Eyes::default();
        assert_eq!(eyes.see(0, &pod, &n().tainted(t(1))), (At(1), At(1)));
        assert_eq!(eyes.see(0, &pod, &n()), (Never, Never));
        assert_eq!(eyes.see(2, &pod, &n()), (Never, Never));
    }
}

mod at_first_sight {
    use super::*;

    #[test]
    fn a_pod_on_an_untainted_node_stays() {
        assert_eq!(both(&pod("a"), &n()), (Never, Never));
        let tolerating = pod("a").tolerating(tolerates(1).lasting(0));
        assert_eq!(both(&tolerating, &n()), (Never, Never));
    }

    #[test]
    fn a_pod_without_tolerations_goes_at_once() {
        assert_eq!(both(&pod("a"), &n().tainted(t(1))), (Now, Now));
    }

    #[test]
    fn a_finite_toleration_is_a_countdown() {
        let pod = pod("a").tolerating(tolerates(1).lasting(100));
        assert_eq!(both(&pod, &n().tainted(t(1))), (At(100), At(100)));
    }

    #[test]
    fn an_infinite_toleration_keeps_the_pod() {
        let pod = pod("a").tolerating(tolerates(1));
        assert_eq!(both(&pod, &n().tainted(t(1))), (Never, Never));
    }

    #[test]
    fn an_infinite_toleration_of_another_taint_does_not() {
        let pod = pod("a").tolerating(tolerates(2));
        assert_eq!(both(&pod, &n().tainted(t(1))), (Now, Now));
    }

    #[test]
    fn one_tolerated_taint_of_two_does_not_either() {
        let pod = pod("a").tolerating(tolerates(1).lasting(100));
        assert_eq!(both(&pod, &n().tainted(t(1)).tainted(t(2))), (Now, Now));
    }

    #[test]
    fn of_two_countdowns_the_first_to_run_out_counts() {
        let pod =
            pod("a").tolerating(tolerates(1).lasting(1)).tolerating(tolerates(2).lasting(100));
        let node = n().tainted(t(1)).tainted(t(2));
        assert_eq!(both(&pod, &node), (At(1), At(1)));
    }

    #[test]
    fn the_pods_of_a_node_go_at_different_times() {
        let pods = [
            pod("a"),
            pod("b").tolerating(tolerates(1).lasting(1)),
            pod("c").tolerating(tolerates(1)),
        ];
        let when = |node: &Node| pods.each_ref().map(|pod| both(pod, node));
        let apart = [(Now, Now), (At(1), At(1)), (Never, Never)];
        assert_eq!(when(&n().tainted(t(1))), apart);
        let together = [(Now, Now), (Now, Now), (Now, Now)];
        assert_eq!(when(&n().tainted(t(1)).tainted(t(2))), together);
    }

    #[test]
    fn a_pod_that_turns_up_later_on_a_tainted_node_is_judged_as_well() {
        let node = n().tainted(t(1));
        let late = pod("b").bound_at(50);
        let mut eyes = Eyes::default();
        assert_eq!(eyes.see(50, &late, &node), (Now, Now));
        let tolerating = late.tolerating(tolerates(1).lasting(100));
        let mut eyes = Eyes::default();
        assert_eq!(eyes.see(50, &tolerating, &node), (At(150), At(150)));
    }

    #[test]
    fn no_schedule_taints_remove_nobody() {
        let node =
            n().tainted(t(1).with(Effect::NoSchedule)).tainted(t(2).with(Effect::PreferNoSchedule));
        assert_eq!(both(&pod("a"), &node), (Never, Never));
    }
}

mod while_it_counts_down {
    use super::*;

    #[test]
    fn removing_the_toleration_evicts_at_once() {
        let node = n().tainted(t(1));
        let mut eyes = Eyes::default();
        let _ = eyes.see(0, &pod("a").tolerating(tolerates(1).lasting(100)), &node);
        assert_eq!(eyes.see(1, &pod("a"), &node), (Now, Now));
    }

    #[test]
    fn lengthening_works_here_and_should_not_work_upstream() {
        let node = n().tainted(t(1));
        let mut eyes = Eyes::default();
        let short = pod("a").tolerating(tolerates(1).lasting(1));
        assert_eq!(eyes.see(0, &short, &node), (At(1), At(1)));
        let long = pod("a").tolerating(tolerates(1).lasting(100));
        assert_eq!(eyes.see(0, &long, &node), (At(100), At(1)));
    }
}
