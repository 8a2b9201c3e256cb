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
        by_draino in any::<bool>(),
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
        if by_draino {
            node = node.marked_by_draino("Bad=True,0s");
        }
        if deleted { node.being_deleted() } else { node }
    }
}

/// The node after a change was stored.
fn stored(node: &Node, action: &Action) -> Option<Node> {
    match action {
        Action::Write(change) => {
            let mut written = node.clone().recorded(change.record.as_ref());
            if let Some(conditions) = change.draino_conditions(node.drain_facts.as_deref()?) {
                written = written.with_draino_conditions(conditions);
            }
            Some(match change.unschedulable {
                Some(unschedulable) => written.unschedulable(unschedulable),
                None => written,
            })
        }
        Action::Mark { scheduled, .. } => {
            let status = if *scheduled { True } else { False };
            Some(node.clone().reporting("DrainScheduled", status, 900))
        }
        _ => None,
    }
}

fn read(node: &Node) -> Option<Record> {
    Record::parse(node.drain_facts.as_ref()?.record.as_deref()?).ok()
}

/// What the node comes to when each write is stored, until there is none.
fn settled(mut node: Node, now: i64) -> Node {
    for _ in 0..8 {
        let step = next_step(&node, &[policy("p", &KINDS)], Orphans::Keep, at(now));
        let next = match &step {
            Step::Action(action) => stored(&node, action),
            _ => None,
        };
        let Some(next) = next else { return node };
        assert_ne!(next, node, "{step:?} changes nothing");
        node = next;
    }
    panic!("it goes on and on: {node:?}");
}

fn is_bad(node: &Node, now: i64) -> bool {
    let drain_facts = node.drain_facts.as_deref().unwrap();
    let is_bad =
        |c: &Condition| c.status == True && c.since.is_none_or(|since| since.written() <= at(now));
    KINDS.iter().any(|kind| drain_facts.condition(kind).is_some_and(is_bad))
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, cases: 4096, ..ProptestConfig::default()
    })]

    /// Only a cordon of ours is ever lifted, and only a node that someone finds bad is cordoned.
    #[test]
    fn nothing_of_others_is_undone(node in some_node(), now in 0_i64..2000) {
        let Step::Action(action) = next_step(&node, &[policy("p", &KINDS)], Orphans::Keep, at(now)) else { return Ok(()) };
        if let Action::Write(change) = &action {
            match change.unschedulable {
                Some(false) => {
                    let drain_facts = node.drain_facts.as_deref().unwrap();
                    let is_ours = match read(&node) {
                        Some(record) => record.cordon == Cordon::Ours,
                        None => drain_facts.unschedulable && drain_facts.draino_conditions.is_some(),
                    };
                    prop_assert!(is_ours && !is_bad(&node, now));
                }
                Some(true) => prop_assert!(is_bad(&node, now)),
                None => {}
            }
        }
        if matches!(action, Action::Begin { .. } | Action::Schedule(_) | Action::Start(_)) {
            prop_assert!(is_bad(&node, now), "{:?}", action);
        }
    }

    /// No drain is begun, or goes on, on a node that is schedulable, dead, being deleted or removed.
    #[test]
    fn only_a_cordoned_living_node_is_drained(node in some_node(), now in 0_i64..2000) {
        let step = next_step(&node, &[policy("p", &KINDS)], Orphans::Keep, at(now));
        if let Step::Action(Action::Start(_) | Action::Continue(_) | Action::Expire(_)) = step {
            let drain_facts = node.drain_facts.as_deref().unwrap();
            prop_assert!(drain_facts.unschedulable && !drain_facts.terminating);
            prop_assert!(drain_facts.autoscaler != Autoscaler::Removing);
            prop_assert!(node.ready.status != Unknown);
        }
    }

    /// A node that is on its way out is left alone, but for one note.
    #[test]
    fn a_node_that_is_removed_is_left_alone(node in some_node(), now in 0_i64..2000) {
        let is_out = node.drain_facts.as_deref().is_some_and(is_removed);
        let node = if is_out { node } else { node.autoscaled(Autoscaler::Removing) };
        let drain_facts = node.drain_facts.as_deref().unwrap();
        match next_step(&node, &[policy("p", &KINDS)], Orphans::Keep, at(now)) {
            Step::Rest => {}
            Step::Action(Action::Write(change)) => {
                prop_assert!(change.unschedulable.is_none() && !change.retry_taken);
                let noted = change.record.unwrap();
                prop_assert_eq!(noted.autoscaler, drain_facts.unschedulable);
                if let Some(record) = read(&node) {
                    let autoscaler = noted.autoscaler;
                    prop_assert_eq!(noted, Record { autoscaler, ..record });
                }
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    /// What is written leads somewhere: after a few writes there is something else to do, or nothing.
    #[test]
    fn no_write_follows_itself_for_ever(node in some_node(), now in 0_i64..2000) {
        settled(node, now);
    }

    /// Neither does draino's annotation stay on a node in use, where it would make a person's next
    /// cordon look like draino's, nor a plan in the condition when the record has gone.
    #[test]
    fn no_mark_outlives_what_it_stands_for(node in some_node(), now in 0_i64..2000) {
        let had = read(&node);
        let node = settled(node, now);
        let drain_facts = node.drain_facts.as_deref().unwrap();
        if drain_facts.terminating || drain_facts.autoscaler == Autoscaler::Removing {
            return Ok(());
        }
        prop_assert!(drain_facts.unschedulable || drain_facts.draino_conditions.is_none());
        if had.is_some_and(|record| record.scheduled.is_some()) && read(&node).is_none() {
            let mark = drain_facts.condition(NodeDrainFacts::SCHEDULED_CONDITION);
            prop_assert!(mark.is_none_or(|condition| condition.status != True));
        }
    }

    /// What is waited for lies ahead.
    #[test]
    fn a_wait_is_for_a_later_moment(node in some_node(), now in 0_i64..2000) {
        if let Step::Wait(moment) = next_step(&node, &[policy("p", &KINDS)], Orphans::Keep, at(now)) {
            prop_assert!(moment > at(now));
        }
    }
}
