//! Which fields of a node or a pod matter for what is decided about them.
//!
//! A version that changes none of them costs no decision. A field that a decision reads and that is missing
//! here would be noticed only by the next change of another one. So both functions name every field: a new
//! field does not compile until it is placed, and a test compares them with the decisions.

use crate::model::{Node, Pod};

/// Whether two versions of a pod have the same verdict, on whatever node.
pub fn is_pod_judged_alike(before: &Pod, after: &Pod) -> bool {
    let Pod {
        tolerations,
        bound,
        class,
        // They do not change for one UID.
        uid: _,
        namespace: _,
        name: _,
        node: _,
        // Only the patch of the condition depends on these.
        disruption: _,
        generation: _,
    } = before;
    *tolerations == after.tolerations && *bound == after.bound && *class == after.class
}

/// Whether the same is decided about two versions of a node and about its pods: their verdicts, the node's
/// record, and its drain. Its anchors, which depend on its past, are compared beside this.
pub fn is_node_judged_alike(before: &Node, after: &Node) -> bool {
    let Node {
        taints,
        since_annotation,
        drain_facts,
        // For verdicts it matters by the anchors only; `drain::next_step` reads it.
        ready,
        // It does not change for one UID.
        name: _,
        // Another node of that name is a change in any case.
        uid: _,
        version: _,
        // By the anchors only.
        created: _,
        // Limits and the breaker look it up when they need it.
        zone: _,
    } = before;
    *taints == after.taints
        && *since_annotation == after.since_annotation
        && *drain_facts == after.drain_facts
        && (after.drain_facts.is_none() || *ready == after.ready)
}

/// Whether anything is to be decided about a node that has no pods and was not known before: nothing is
/// armed without a taint, and no record is left without one.
pub fn needs_decision(node: &Node) -> bool {
    let Node {
        taints,
        since_annotation,
        drain_facts,
        ready: _,
        name: _,
        uid: _,
        version: _,
        created: _,
        zone: _,
    } = node;
    !taints.is_empty() || since_annotation.is_some() || drain_facts.is_some()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::build::{at, exists, node, pod, stamp, taint};
    use crate::model::{
        Anchors, ConditionStatus, Disruption, NodeDrainFacts, PodClass, Verdict, Version,
    };
    use crate::taint::{decide, upstream};

    /// The verdicts about a pod on a node, by both sets of rules.
    fn verdicts(pod: &Pod, node: &Node) -> [Verdict; 2] {
        [decide(pod, node, &Anchors::default()), upstream::decide(pod, node, at(0), None)]
    }

    #[test]
    fn a_pod_is_judged_anew_for_what_changes_its_verdict_and_for_nothing_else() {
        let node = node("n1").tainted(taint("k", "").added_at(-500));
        let pod = || pod("a").tolerating(exists("k").lasting(60));
        let before = verdicts(&pod(), &node);
        for (what, after) in [
            ("tolerations", pod().tolerating(exists("k").lasting(30))),
            ("bound", pod().bound_at(100)),
            ("class", pod().that_is(PodClass::Terminating)),
        ] {
            // The first toleration that matches counts, so the added one goes first.
            let tolerations = after.tolerations.iter().rev().cloned().collect();
            let after = Pod { tolerations, ..after };
            assert_ne!(verdicts(&after, &node), before, "{what}");
            assert!(!is_pod_judged_alike(&pod(), &after), "{what}");
        }
        for (what, after) in [
            ("disruption", Pod { disruption: Disruption::ByTaint, ..pod() }),
            ("generation", Pod { generation: 7, ..pod() }),
            ("namespace", Pod { namespace: "other".into(), ..pod() }),
        ] {
            assert_eq!(verdicts(&after, &node), before, "{what}");
            assert!(is_pod_judged_alike(&pod(), &after), "{what}");
        }
    }

    #[test]
    fn a_node_is_judged_anew_for_its_taints_its_record_and_its_drain_and_for_nothing_else() {
        let pod = pod("a").tolerating(exists("k").lasting(60));
        let node = || node("n1").tainted(taint("k", "").added_at(-500));
        let before = verdicts(&pod, &node());
        let tainted = node().tainted(taint("l", ""));
        assert_ne!(verdicts(&pod, &tainted), before);
        assert!(!is_node_judged_alike(&node(), &tainted));
        assert!(!is_node_judged_alike(&node(), &node().annotated(Some("{}"))));
        for (what, after) in [
            ("version", Node { version: Some(Version::Number(7)), ..node() }),
            ("created", Node { created: Some(stamp(0)), ..node() }),
            ("ready", node().ready_is(ConditionStatus::Unknown, 0)),
            ("zone", Node { zone: Some("z".into()), ..node() }),
        ] {
            assert_eq!(verdicts(&pod, &after), before, "{what}");
            assert!(is_node_judged_alike(&node(), &after), "{what}");
        }

        let watched = || Node { drain_facts: Some(Arc::default()), ..node() };
        let cordoned = NodeDrainFacts { unschedulable: true, ..NodeDrainFacts::default() };
        let cordoned = Node { drain_facts: Some(Arc::new(cordoned)), ..node() };
        assert!(is_node_judged_alike(&watched(), &watched()));
        assert!(!is_node_judged_alike(&watched(), &cordoned));
        assert!(!is_node_judged_alike(
            &watched(),
            &watched().ready_is(ConditionStatus::Unknown, 0)
        ));
    }

    #[test]
    fn a_new_node_without_taints_record_and_drain_needs_no_decision() {
        assert!(!needs_decision(&node("n1").ready_is(ConditionStatus::Unknown, 0)));
        assert!(needs_decision(&node("n1").tainted(taint("k", ""))));
        assert!(needs_decision(&node("n1").annotated(Some("{}"))));
        assert!(needs_decision(&Node { drain_facts: Some(Arc::default()), ..node("n1") }));
    }
}
