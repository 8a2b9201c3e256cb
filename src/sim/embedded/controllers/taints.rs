//! Taints and tolerations, for the scheduler and the node lifecycle controller.

use serde_json::{Value, json};

use crate::sim::embedded::object::{at, list, text};
use crate::sim::tolerations::{Taint, Toleration};

/// The first taint that keeps the pod from being scheduled onto the node.
pub(super) fn repelling<'a>(node: &'a Value, pod: &Value) -> Option<&'a Value> {
    untolerated(node, pod, &["NoSchedule", "NoExecute"])
}

/// The first taint for which the pod cannot stay on the node.
pub(super) fn evicting<'a>(node: &'a Value, pod: &Value) -> Option<&'a Value> {
    untolerated(node, pod, &["NoExecute"])
}

fn untolerated<'a>(node: &'a Value, pod: &Value, effects: &[&str]) -> Option<&'a Value> {
    let tolerations = list(pod, &["spec", "tolerations"]);
    list(node, &["spec", "taints"]).iter().find(|taint| {
        effects.contains(&text(taint, &["effect"]))
            && !tolerations.iter().any(|it| Toleration::of(it).is_for(&Taint::of(taint)))
    })
}

/// Whether the node has a taint with this key and effect.
pub(super) fn has(node: &Value, key: &str, effect: &str) -> bool {
    list(node, &["spec", "taints"]).iter().any(|taint| is(taint, key, effect))
}

/// Whether the taint has this key and effect.
pub(super) fn is(taint: &Value, key: &str, effect: &str) -> bool {
    text(taint, &["key"]) == key && text(taint, &["effect"]) == effect
}

/// A taint that is put on at `since`.
pub(super) fn taint(key: &str, effect: &str, since: &str) -> Value {
    json!({"key": key, "effect": effect, "timeAdded": since})
}

/// The taints of a node, to be changed.
pub(super) fn taints(node: &Value) -> Vec<Value> {
    at(node, &["spec", "taints"]).as_array().cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repels(toleration: &Value) -> bool {
        let taint = json!({"key": "k", "value": "5", "effect": "NoExecute"});
        let node = json!({"spec": {"taints": [taint]}});
        repelling(&node, &json!({"spec": {"tolerations": [toleration]}})).is_some()
    }

    #[test]
    fn a_toleration_is_for_the_taints_that_it_names() {
        for toleration in [
            json!({"operator": "Exists"}),
            json!({"key": "k", "operator": "Exists"}),
            json!({"key": "k", "value": "5"}),
            // No API server stores it; the scheduler would take it for any key.
            json!({"value": "5"}),
            json!({"key": "k", "operator": "Equal", "value": "5", "effect": "NoExecute"}),
            json!({"key": "k", "operator": "Lt", "value": "6"}),
            json!({"key": "k", "operator": "Gt", "value": "4"}),
        ] {
            assert!(!repels(&toleration), "{toleration}");
        }
    }

    #[test]
    fn a_toleration_is_not_for_others() {
        for toleration in [
            json!({"key": "j", "operator": "Exists"}),
            json!({"key": "k", "value": "6"}),
            json!({"key": "k", "operator": "Exists", "effect": "NoSchedule"}),
            json!({"key": "k", "operator": "Lt", "value": "5"}),
            json!({"key": "k", "operator": "Gt", "value": "many"}),
            json!({"key": "k", "operator": "Near", "value": "5"}),
        ] {
            assert!(repels(&toleration), "{toleration}");
        }
    }

    #[test]
    fn a_preference_does_not_repel() {
        let node = json!({"spec": {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}});
        assert_eq!(repelling(&node, &json!({})), None);
    }
}
