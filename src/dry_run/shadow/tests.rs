use super::*;
use crate::model::PodClass;
use crate::model::build::{at, exists, node, pod, taint};
use crate::taint::{anchor, decide};

/// A pod on a node with the taint `k`, added at noon, which it tolerates for a minute.
fn minute(name: &str) -> Arc<Pod> {
    Arc::new(pod(name).tolerating(exists("k").lasting(60)))
}

/// The verdict about a pod on a node that has had the taint `k` since noon, or has none.
fn judged(pod: &Pod, is_tainted: bool) -> Verdict {
    let mut node = node("n1");
    if is_tainted {
        node = node.tainted(taint("k", "").added_at(0));
    }
    let anchors = anchor::advance(anchor::Past::Unknown, &node, at(0));
    decide(pod, &node, &anchors)
}

fn by_taint(second: i64) -> Deleted {
    Deleted { requested: at(second), marked: Some(at(second)), by: Some("kcm".into()) }
}

fn by_others(second: i64) -> Deleted {
    Deleted { requested: at(second), marked: None, by: None }
}

#[derive(Default)]
struct Bench {
    shadow: Shadow,
    found: Vec<Finding>,
}

impl Bench {
    /// Ostrakon would evict the pod in that second.
    fn would(&mut self, pod: &Pod, second: i64) {
        let verdict = judged(pod, true);
        self.found.extend(self.shadow.would_evict(&pod.reference(), &verdict, at(second)));
    }

    fn deleted(&mut self, pod: &Arc<Pod>, deleted: Deleted) {
        self.deleted_knowing(pod, deleted, true);
    }

    fn deleted_knowing(&mut self, pod: &Arc<Pod>, deleted: Deleted, is_tainted: bool) {
        let (verdict, now) = (judged(pod, is_tainted), deleted.requested);
        self.found.extend(self.shadow.deleted(pod, &verdict, deleted, now));
        self.shadow.gone(pod.uid);
    }

    fn tick(&mut self, second: i64, pods: &[&Arc<Pod>], is_tainted: bool) {
        let known = |of: &PodRef| {
            let pod = pods.iter().find(|pod| pod.uid == of.uid)?;
            Some(judged(pod, is_tainted))
        };
        let early = |pod: &Arc<Pod>| judged(pod, is_tainted);
        self.found.extend(self.shadow.tick(at(second), known, early));
    }

    fn end(&mut self, second: i64) {
        self.found.extend(self.shadow.end(at(second), |pod| judged(pod, true)));
    }

    /// What was found since this was asked last: kinds, by how many seconds, and reasons.
    fn found(&mut self) -> Vec<(Kind, Option<i64>, String)> {
        let found = std::mem::take(&mut self.found).into_iter();
        #[allow(clippy::cast_possible_truncation)]
        let seconds = |finding: &Finding| finding.seconds().map(|it| it.round() as i64);
        found
            .map(|it| {
                (it.kind, seconds(&it), it.reason.map_or_else(String::new, |reason| reason.text))
            })
            .collect()
    }

    /// The only thing found.
    fn only(&mut self) -> (Kind, Option<i64>, String) {
        let found = self.found();
        let [one] = found.as_slice() else { panic!("{found:?}") };
        one.clone()
    }
}

#[test]
fn a_deletion_that_is_seen_right_before_ostrakon_would_evict_is_compared_once() {
    let mut bench = Bench::default();
    let (both, person) = (minute("a"), minute("b"));
    bench.deleted(&both, by_taint(61));
    assert_eq!(bench.only().0, Kind::Same);
    bench.deleted(&person, by_others(61));
    for pod in [&both, &person] {
        bench.would(pod, 61);
    }
    assert_eq!(bench.shadow.waiting(), (0, 0), "they are gone, and nobody tells it again");
    bench.tick(700, &[], true);
    bench.end(800);
    assert_eq!(bench.found(), []);
}

#[test]
fn a_pod_that_both_evict_at_its_deadline_is_no_difference_whoever_is_first() {
    let mut bench = Bench::default();
    let (a, b, c) = (minute("a"), minute("b"), minute("c"));
    bench.would(&a, 61);
    assert_eq!(bench.shadow.waiting(), (1, 0));
    bench.deleted(&a, by_taint(62));
    assert_eq!(bench.only().0, Kind::Same);
    bench.deleted(&b, by_taint(59));
    assert_eq!(bench.only().0, Kind::Same, "as good as due");
    // The taint is still on its way to us.
    bench.deleted_knowing(&c, by_taint(60), false);
    bench.tick(61, &[], false);
    assert_eq!(bench.found(), []);
    bench.would(&c, 62);
    assert_eq!(bench.only().0, Kind::Same);
    bench.tick(600, &[], true);
    bench.end(600);
    assert_eq!(bench.found(), []);
    assert_eq!(bench.shadow.count(Kind::Same), 3);
    assert_eq!(bench.shadow.differences(), (&[][..], 0));
    assert_eq!(bench.shadow.waiting(), (0, 0));
}

#[test]
fn a_countdown_that_began_anew_at_a_restart_is_named() {
    let mut bench = Bench::default();
    let (a, b) = (minute("a"), minute("b"));
    bench.would(&a, 61);
    bench.would(&b, 61);
    bench.shadow.restarted(at(40));
    bench.deleted(&a, by_taint(102));
    let (kind, seconds, reason) = bench.only();
    assert_eq!((kind, seconds), (Kind::Later, Some(42)));
    assert_eq!(
        reason,
        "kube-controller-manager restarted at 2026-01-01T12:00:40Z and counted anew"
    );
    // Long after the restart something else must have been the reason.
    bench.deleted(&b, by_taint(190));
    let (kind, _, reason) = bench.only();
    assert_eq!(kind, Kind::Later);
    assert!(reason.starts_with("it counted from 2026-01-01T12:02:10Z, and not from"), "{reason}");
}

#[test]
fn an_edited_toleration_is_named_in_both_directions() {
    let mut bench = Bench::default();
    let a = minute("a");
    bench.shadow.edited(a.uid, at(10));
    bench.would(&a, 61);
    bench.deleted(&a, by_taint(300));
    let (kind, _, reason) = bench.only();
    assert_eq!(kind, Kind::Later);
    assert!(reason.starts_with("its tolerations were edited at 2026-01-01T12:00:10Z"), "{reason}");
    let b = minute("b");
    bench.shadow.edited(b.uid, at(10));
    bench.deleted(&b, by_taint(20));
    assert_eq!(bench.found(), [], "the node may have another taint that is not known yet");
    bench.tick(30, &[], true);
    let (kind, seconds, reason) = bench.only();
    assert_eq!((kind, seconds), (Kind::Earlier, Some(-40)));
    assert!(reason.contains("does not change a countdown that runs"), "{reason}");
    let c = Arc::new(pod("c").tolerating(exists("k")));
    bench.shadow.edited(c.uid, at(10));
    bench.deleted(&c, by_taint(20));
    bench.tick(30, &[], true);
    let (kind, seconds, reason) = bench.only();
    assert_eq!((kind, seconds), (Kind::OnlyOther, None));
    assert!(reason.contains("were edited at"), "{reason}");
}

#[test]
fn what_only_the_other_one_evicts_is_named_with_its_rule() {
    let mut bench = Bench::default();
    let only_other = |bench: &mut Bench, pod: Pod, is_tainted: bool| {
        bench.deleted_knowing(&Arc::new(pod), by_taint(100), is_tainted);
        bench.tick(111, &[], is_tainted);
        let (kind, _, reason) = bench.only();
        assert_eq!(kind, Kind::OnlyOther);
        reason
    };
    let finished = only_other(&mut bench, pod("a").that_is(PodClass::Finished), true);
    assert!(finished.contains("deletes finished pods too"), "{finished}");
    let untainted = only_other(&mut bench, pod("b"), false);
    assert!(untainted.contains("no NoExecute taint"), "{untainted}");
    let tolerated = only_other(&mut bench, pod("c").tolerating(exists("k")), true);
    assert_eq!(tolerated, "it tolerates every NoExecute taint forever");
    // A StatefulSet's pod comes back under its name.
    bench.would(&pod("web-0"), 1);
    bench.deleted(&Arc::new(pod("web-0")), by_taint(2));
    assert_eq!(bench.only().0, Kind::Same);
    let again = Pod { uid: Uid(77), ..pod("web-0").tolerating(exists("k")) };
    let recreated = only_other(&mut bench, again, true);
    assert!(recreated.starts_with("an earlier pod of this name was due (UID "), "{recreated}");
    assert_eq!(bench.shadow.count(Kind::OnlyOther), 4);
}

#[test]
fn a_lost_eviction_is_told_from_one_that_was_never_tried() {
    let mut bench = Bench::default();
    let (a, b) = (minute("a"), minute("b"));
    for pod in [&a, &b] {
        bench.would(pod, 61);
    }
    bench.shadow.marked(a.uid, at(62));
    bench.tick(300, &[&a, &b], true);
    assert_eq!(bench.found(), [], "it may only be slow");
    bench.tick(362, &[&a, &b], true);
    let found = bench.found();
    assert!(found.iter().all(|(kind, ..)| *kind == Kind::OnlyOstrakon), "{found:?}");
    assert_eq!(bench.shadow.waiting(), (2, 2));
    bench.tick(400, &[&a, &b], true);
    assert_eq!(bench.found(), [], "said once");
    bench.end(500);
    assert_eq!(bench.found(), [], "said already");
    assert_eq!(bench.shadow.count(Kind::OnlyOstrakon), 2);
    let (differences, omitted) = bench.shadow.differences();
    let reasons: Vec<_> = differences.iter().map(|it| it.reason.clone().unwrap().text).collect();
    assert_eq!(omitted, 0);
    assert!(reasons[0].contains("gives up after five attempts"), "{reasons:?}");
    assert_eq!(reasons[1], "no sign that it tried");
}

#[test]
fn at_the_end_a_pod_that_has_just_become_due_is_undecided_and_a_countdown_that_goes_on_is_named() {
    let mut bench = Bench::default();
    let (a, b) = (minute("a"), Arc::new(pod("b")));
    bench.shadow.restarted(at(90));
    bench.would(&a, 61);
    bench.would(&b, 100);
    bench.end(130);
    let found = bench.found();
    assert_eq!(found[0].0, Kind::OnlyOstrakon);
    assert!(found[0].2.ends_with("counts anew, until about 2026-01-01T12:02:30Z"), "{found:?}");
    assert_eq!(found[1].0, Kind::Undecided);
    assert_eq!(bench.shadow.differences().0.len(), 1);
}

#[test]
fn pods_that_others_delete_are_no_difference_unless_they_were_lost_before() {
    let mut bench = Bench::default();
    let (a, b, c) = (minute("a"), minute("b"), minute("c"));
    bench.deleted(&a, by_others(30));
    bench.tick(60, &[], true);
    assert_eq!(bench.found(), [], "it was not due");
    bench.would(&b, 61);
    bench.deleted(&b, by_others(90));
    assert_eq!(bench.only().0, Kind::DeletedByOthers);
    bench.would(&c, 61);
    bench.shadow.marked(c.uid, at(62));
    // The condition is an hour old: somebody cleans up.
    let deleted = Deleted { marked: Some(at(62)), ..by_others(3662) };
    bench.deleted(&c, deleted);
    let (kind, _, reason) = bench.only();
    assert_eq!(kind, Kind::OnlyOstrakon);
    assert!(reason.contains("five attempts; someone else deleted it 3602 s later"), "{reason}");
    assert_eq!(bench.shadow.count(Kind::DeletedByOthers), 1);
}

#[test]
fn a_pod_that_is_due_no_more_was_only_evicted_by_us_unless_nobody_could_have_been_faster() {
    let mut bench = Bench::default();
    let (a, b) = (minute("a"), minute("b"));
    bench.would(&a, 61);
    bench.tick(80, &[&a], false);
    let (kind, _, reason) = bench.only();
    assert_eq!(kind, Kind::OnlyOstrakon);
    assert_eq!(reason, "no longer due 20 s later: its node has no NoExecute taint");
    bench.would(&b, 61);
    bench.tick(62, &[&b], false);
    assert_eq!(bench.only().0, Kind::Undecided);
    bench.tick(600, &[&a, &b], true);
    assert_eq!(bench.found(), []);
}

#[test]
fn memory_is_bounded_by_the_pods_that_exist_and_by_constants() {
    let mut bench = Bench::default();
    for number in 0..(LISTED + 10) as u128 {
        let pod = Arc::new(Pod { uid: Uid(number), ..pod("a").that_is(PodClass::Finished) });
        bench.shadow.edited(pod.uid, at(0));
        bench.deleted(&pod, by_taint(0));
        if number % 1000 == 0 {
            bench.tick(20, &[], true);
        }
    }
    bench.end(20);
    let (listed, omitted) = bench.shadow.differences();
    assert_eq!((listed.len(), omitted), (LISTED, 10));
    assert_eq!(bench.shadow.count(Kind::OnlyOther), LISTED as u64 + 10);
    assert!(bench.shadow.early.is_empty() && bench.shadow.open.is_empty());
}
