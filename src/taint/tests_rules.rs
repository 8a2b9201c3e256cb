//! Verdicts by rules for taints.

use std::time::Duration;

use jiff::SignedDuration;

use super::rules::{TaintMethod, TaintRule};
use super::{decide, decide_by, record};
use crate::model::build::{at, exists, node, pod, stamp, taint};
use crate::model::{Anchors, Budgets, Deadline, FirstSeen, Kept, Node, Pod, Taint, Verdict};

use TaintMethod::{Delete, Evict, EvictThenDelete, Ignore};

const LATER: TaintMethod = EvictThenDelete { after: Duration::from_secs(60) };

/// A rule for each of these keys, named after it.
fn rules<const N: usize>(rules: [(&str, TaintMethod); N]) -> [TaintRule; N] {
    rules.map(|(key, method)| TaintRule {
        name: key.into(),
        key: key.into(),
        value: None,
        method,
        limit: None,
    })
}

fn tainted(taints: &[&Taint]) -> Node {
    taints.iter().fold(node("n1"), |node, taint| node.tainted((*taint).clone()))
}

fn verdict(rules: &[TaintRule], pod: &Pod, taints: &[&Taint]) -> Verdict {
    decide_by(rules, pod, &tainted(taints), &Anchors::default())
}

/// When the pod is evicted, and when it is deleted. `None` is at once.
fn deadline(verdict: &Verdict) -> Option<Deadline> {
    match verdict {
        Verdict::Keep(kept) => panic!("it stays: {kept}"),
        Verdict::EvictNow(_) => None,
        Verdict::EvictAt { deadline, .. } => Some(*deadline),
    }
}

fn key(verdict: &Verdict) -> &str {
    &verdict.cause().unwrap().taint.key
}

#[test]
fn an_ignored_taint_evicts_nothing_and_hides_no_other() {
    let (now, timed) = (taint("now", "").added_at(0), taint("timed", "").added_at(0));
    let pod = pod("a").tolerating(exists("timed").lasting(300));
    let ignored = rules([("now", Ignore)]);
    assert_eq!(verdict(&ignored, &pod, &[&now]), Verdict::Keep(Kept::Ignored));
    for taints in [[&now, &timed], [&timed, &now]] {
        let found = verdict(&ignored, &pod, &taints);
        assert_eq!(found, decide(&pod, &tainted(&[&timed]), &Anchors::default()));
        assert_eq!(verdict(&rules([("*", Ignore)]), &pod, &taints), Verdict::Keep(Kept::Ignored));
    }
}

#[test]
fn a_tolerated_taint_is_tolerated_whatever_its_rule() {
    let pod = pod("a").tolerating(exists("k"));
    for method in [Delete, Evict, LATER, Ignore] {
        let found = verdict(&rules([("k", method)]), &pod, &[&taint("k", "")]);
        assert_eq!(found, Verdict::Keep(Kept::Tolerated), "{method:?}");
    }
    let found = verdict(&rules([("k", Ignore)]), &pod, &[]);
    assert_eq!(found, Verdict::Keep(Kept::NoTaints));
}

#[test]
fn a_rule_that_evicts_never_deletes_and_is_named() {
    let found = verdict(&rules([("k", Evict)]), &pod("a"), &[&taint("k", "")]);
    assert!(found.respects_budgets() && found.deletion().is_none());
    assert_eq!(found.at(at(1_000_000_000)), &found, "however long it takes");
    assert_eq!(
        found.to_string(),
        "evict now: taint k:NoExecute is not tolerated; rule k; disruption budgets are respected"
    );
    let found = verdict(&rules([("other", Evict)]), &pod("a"), &[&taint("k", "")]);
    assert_eq!(found.to_string(), "evict now: taint k:NoExecute is not tolerated");
}

#[test]
fn evict_then_delete_counts_from_the_deadline_to_the_nanosecond() {
    let pod = pod("a").tolerating(exists("k").lasting(300));
    let found = verdict(&rules([("k", LATER)]), &pod, &[&taint("k", "").added_at(40)]);
    assert_eq!(deadline(&found), Some(Deadline(at(340))));
    let deletion = found.deletion().unwrap();
    assert_eq!(deadline(deletion), Some(Deadline(at(400))));
    assert!(found.at(at(400) - SignedDuration::from_nanos(1)).respects_budgets());
    assert_eq!(found.at(at(400)), deletion);
    assert_eq!(deletion.cause().unwrap().budgets, Budgets::RespectedFor(Duration::from_secs(60)));
    assert!(
        found.to_string().ends_with("disruption budgets are respected until 2026-01-01T12:06:40Z")
    );
    assert!(deletion.to_string().ends_with("; rule k; disruption budgets were respected for 60s"));
}

#[test]
fn without_a_toleration_evict_then_delete_counts_from_the_taint_or_the_binding() {
    let later = rules([("k", LATER)]);
    let when = |pod: &Pod, taint: &Taint, anchors: &Anchors| {
        let found = decide_by(&later, pod, &tainted(&[taint]), anchors);
        assert_eq!(deadline(&found), None, "evicted at once");
        deadline(found.deletion().unwrap())
    };
    let stamped = taint("k", "").added_at(40);
    let none = Anchors::default();
    assert_eq!(when(&pod("a"), &stamped, &none), Some(Deadline(at(100))));
    assert_eq!(when(&pod("a").bound_at(50), &stamped, &none), Some(Deadline(at(110))));
    let zero = pod("a").tolerating(exists("k").lasting(0));
    assert_eq!(when(&zero, &stamped, &none), Some(Deadline(at(100))));
    let seen = FirstSeen { key: "k".into(), value: "".into(), added: None, since: stamp(7) };
    let seen = Anchors { first_seen: vec![seen], outage: None };
    assert_eq!(when(&pod("a"), &taint("k", ""), &seen), Some(Deadline(at(67))));
}

#[test]
fn of_the_taints_that_are_due_the_strongest_method_counts() {
    let pod =
        pod("a").tolerating(exists("mild").lasting(50)).tolerating(exists("hard").lasting(90));
    let (mild, hard) = (taint("mild", "").added_at(0), taint("hard", "").added_at(0));
    let soft = rules([("mild", Evict)]);
    for taints in [[&mild, &hard], [&hard, &mild]] {
        let found = verdict(&soft, &pod, &taints);
        assert_eq!((key(&found), deadline(&found)), ("mild", Some(Deadline(at(50)))));
        assert!(found.at(at(89)).respects_budgets());
        let then = found.at(at(90));
        assert_eq!((key(then), deadline(then)), ("hard", Some(Deadline(at(90)))));
        assert!(!then.respects_budgets());
        // It is deleted before the milder one is due: then nothing is left to evict.
        let swapped = verdict(&rules([("hard", Evict)]), &pod, &taints);
        assert_eq!((key(&swapped), deadline(&swapped)), ("mild", Some(Deadline(at(50)))));
        assert!(!swapped.respects_budgets() && swapped.deletion().is_none());
        // The earlier of both deletions.
        let both = verdict(&rules([("mild", LATER)]), &pod, &taints);
        assert_eq!(key(both.at(at(90))), "hard");
        let both = verdict(&rules([("mild", LATER), ("hard", LATER)]), &pod, &taints);
        assert_eq!(key(both.at(at(110))), "mild");
        assert!(both.at(at(109)).respects_budgets());
    }
}

#[test]
fn at_the_same_time_the_stronger_method_counts_from_the_beginning() {
    let (mild, hard) = (taint("mild", ""), taint("hard", ""));
    let soft = rules([("mild", Evict)]);
    let zero = pod("a").tolerating(exists("hard").lasting(0));
    for pod in [pod("a"), zero] {
        for taints in [[&mild, &hard], [&hard, &mild]] {
            let found = verdict(&soft, &pod, &taints);
            assert_eq!((key(&found), deadline(&found)), ("hard", None));
            assert!(!found.respects_budgets());
        }
    }
}

#[test]
fn an_untolerated_taint_is_recorded_only_if_a_deletion_counts_from_it() {
    let node = tainted(&[&taint("k", "")]);
    let seen = FirstSeen { key: "k".into(), value: "".into(), added: None, since: stamp(7) };
    let anchors = Anchors { first_seen: vec![seen], outage: None };
    let recorded = |method, pod: &Pod| {
        record::wanted(&anchors, &node, [pod], &rules([("k", method)])).is_some()
    };
    assert!(recorded(LATER, &pod("a")));
    assert!(!recorded(Delete, &pod("a")));
    assert!(!recorded(Evict, &pod("a")));
    assert!(!recorded(Ignore, &pod("a")));
    for method in [Delete, Evict, LATER, Ignore] {
        assert!(recorded(method, &pod("a").tolerating(exists("k").lasting(9))), "{method:?}");
        assert!(!recorded(method, &pod("a").tolerating(exists("k"))), "{method:?}");
    }
    // It is evicted at once for one taint, and deleted for the other, which it tolerates for a time.
    let node = tainted(&[&taint("mild", ""), &taint("k", "")]);
    let pod = pod("a").tolerating(exists("k").lasting(9));
    let wanted = |method| record::wanted(&anchors, &node, [&pod], &rules([("mild", method)]));
    assert!(wanted(Evict).is_some());
    assert_eq!(wanted(Delete), None);
}
