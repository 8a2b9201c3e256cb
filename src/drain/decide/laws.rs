//! What holds of every decision, whatever the node looks like.

use proptest::prelude::*;

use super::tests::{claim, record};
use super::*;
use crate::drain::DrainPhase;
use crate::drain::build::{kept, policy};
use crate::model::Condition;
use crate::model::ConditionStatus::{False, True, Unknown};
use crate::model::build::at;

const KINDS: [&str; 2] = ["Bad", "Worse"];

fn status() -> impl Strategy<Value = Option<ConditionStatus>> {
    prop_oneof![Just(None), Just(Some(True)), Just(Some(False)), Just(Some(Unknown))]
}

prop_compose! {
    fn some_record()(
        phase in prop::sample::select(DrainPhase::ALL.to_vec()),
        cordon in prop::sample::select(vec![Cordon::Ours, Cordon::Foreign, Cordon::Lifted]),
        kinds in prop::sample::subsequence(KINDS.to_vec(), 0..=2),
        vanished in prop::option::of(-900_i64..900),
        (autoscaler, forced, lingers, is_last) in any::<(bool, bool, bool, bool)>(),
    ) -> Record {
        let claims = kinds.iter().map(|kind| claim("p", &[&format!("{kind}=True,0s")])).collect();
        let vanished = vanished.map(at);
        let record = record(phase);
        let next = record.next.filter(|_| !is_last);
        Record { cordon, claims, next, vanished, autoscaler, forced, lingers, ..record }
    }
}

prop_compose! {
    fn some_node()(
        statuses in [status(), status()],
        sinces in [-900_i64..900, -900_i64..900],
        record in prop::option::of(some_record()),
        ready in prop::sample::select(vec![True, False, Unknown]),
        autoscaler in prop::sample::select(vec![
            Autoscaler::None, Autoscaler::None, Autoscaler::Candidate, Autoscaler::Removing,
        ]),
        (cordoned, marked, retry, deleted) in any::<(bool, bool, bool, bool)>(),
    ) -> Node {
        let mut node = kept("n1")
            .unschedulable(cordoned)
            .recorded(record.as_ref())
            .autoscaled(autoscaler)
            .ready_is(ready, -900);
        for ((kind, status), since) in KINDS.iter().zip(statuses).zip(sinces) {
            if let Some(status) = status {
                node = node.reporting(kind, status, since);
            }
        }
        if marked {
            node = node.reporting("DrainScheduled", True, -900);
        }
        if retry {
            node = node.asking_for_retry();
        }
        if deleted { node.being_deleted() } else { node }
    }
}

/// The node after a change was stored.
fn stored(node: &Node, act: &Act) -> Option<Node> {
    match act {
        Act::Write(change) => {
            let written = node.clone().recorded(change.record.as_ref());
            Some(match change.unschedulable {
                Some(unschedulable) => written.unschedulable(unschedulable),
                None => written,
            })
        }
        Act::Mark { scheduled, .. } => {
            let status = if *scheduled { True } else { False };
            Some(node.clone().reporting("DrainScheduled", status, 900))
        }
        _ => None,
    }
}

fn read(node: &Node) -> Option<Record> {
    Record::parse(node.upkeep.as_ref()?.record.as_deref()?).ok()
}

fn is_bad(node: &Node, now: i64) -> bool {
    let upkeep = node.upkeep.as_deref().unwrap();
    let is_bad = |c: &Condition| c.status == True && c.since.is_none_or(|since| since <= at(now));
    KINDS.iter().any(|kind| upkeep.condition(kind).is_some_and(is_bad))
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, cases: 4096, ..ProptestConfig::default()
    })]

    /// Only a cordon of ours is ever lifted, and only a node that somebody finds bad is cordoned.
    #[test]
    fn nothing_of_others_is_undone(node in some_node(), now in 0_i64..2000) {
        let Step::Act(act) = decide(&node, &[policy("p", &KINDS)], at(now)) else { return Ok(()) };
        if let Act::Write(change) = &act {
            match change.unschedulable {
                Some(false) => {
                    prop_assert_eq!(read(&node).map(|record| record.cordon), Some(Cordon::Ours));
                    prop_assert!(!is_bad(&node, now));
                }
                Some(true) => prop_assert!(is_bad(&node, now)),
                None => {}
            }
        }
        if matches!(act, Act::Begin { .. } | Act::Schedule(_) | Act::Start(_)) {
            prop_assert!(is_bad(&node, now), "{:?}", act);
        }
    }

    /// No drain is begun, or goes on, on a node that is schedulable, dead, being deleted or removed.
    #[test]
    fn only_a_cordoned_living_node_is_drained(node in some_node(), now in 0_i64..2000) {
        let step = decide(&node, &[policy("p", &KINDS)], at(now));
        if let Step::Act(Act::Start(_) | Act::Conduct(_) | Act::Expire(_)) = step {
            let upkeep = node.upkeep.as_deref().unwrap();
            prop_assert!(upkeep.unschedulable && !upkeep.terminating);
            prop_assert!(upkeep.autoscaler != Autoscaler::Removing);
            prop_assert!(node.ready.status != Unknown);
        }
    }

    /// What is written leads somewhere: after a few writes there is something else to do, or nothing.
    #[test]
    fn no_write_follows_itself_for_ever(node in some_node(), now in 0_i64..2000) {
        let policies = [policy("p", &KINDS)];
        let mut node = node;
        let mut steps = Vec::new();
        for _ in 0..8 {
            let Step::Act(act) = decide(&node, &policies, at(now)) else { return Ok(()) };
            let Some(next) = stored(&node, &act) else { return Ok(()) };
            prop_assert_ne!(&next, &node, "{:?} changes nothing", act);
            steps.push(act);
            node = next;
        }
        prop_assert!(false, "it goes on and on: {:#?}", steps);
    }

    /// What is waited for lies ahead.
    #[test]
    fn a_wait_is_for_a_later_moment(node in some_node(), now in 0_i64..2000) {
        if let Step::Wait(moment) = decide(&node, &[policy("p", &KINDS)], at(now)) {
            prop_assert!(moment > at(now));
        }
    }
}
