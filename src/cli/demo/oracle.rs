//! When a pod has to go, computed from the stored objects alone.
//!
//! This is the rule as Kubernetes documents it, written a second time: what the controller decides
//! is held against it, so it must not share a line with the controller.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::sim::tolerations::{self, Due, Tolerance};

/// A NoExecute taint of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Taint {
    pub(super) key: String,
    pub(super) value: String,
    /// Its `timeAdded`.
    stamp: Option<Timestamp>,
    /// From when tolerated seconds count: its `timeAdded`, but no later than when it was stored.
    pub(super) since: Timestamp,
}

/// The NoExecute taints of the node at this version; `before`: those that it had. One without
/// `timeAdded` that was there before counts on.
pub(super) fn taints(node: &Value, before: &[Taint], stored: Timestamp) -> Vec<Taint> {
    let all = node.pointer("/spec/taints").and_then(Value::as_array);
    let no_execute = all.into_iter().flatten().filter(|taint| text(taint, "effect") == "NoExecute");
    no_execute
        .map(|taint| {
            let (key, value) = (text(taint, "key"), text(taint, "value"));
            let known = before.iter().find(|old| old.key == key && old.value == value);
            let stamp: Option<Timestamp> = text(taint, "timeAdded").parse().ok();
            let since = match known {
                Some(old) if stamp.is_none() || stamp == old.stamp => old.since,
                _ => stamp.map_or(stored, |stamp| stamp.min(stored)),
            };
            Taint { key: key.to_owned(), value: value.to_owned(), stamp, since }
        })
        .collect()
}

/// Whether taints are nothing to the pod: it has finished, or the API only shows it.
pub(super) fn is_left_alone(pod: &Value) -> bool {
    let phase = pod.get("status").map_or("", |status| text(status, "phase"));
    let is_mirror = pod.pointer("/metadata/annotations/kubernetes.io~1config.mirror").is_some();
    is_mirror || matches!(phase, "Succeeded" | "Failed")
}

/// A toleration of a NoExecute taint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Toleration {
    key: String,
    operator: String,
    value: String,
    /// `None`: for ever.
    seconds: Option<i64>,
}

impl Toleration {
    /// Those of the pod, in their order.
    pub(super) fn all_of(pod: &Value) -> Vec<Self> {
        let all = pod.pointer("/spec/tolerations").and_then(Value::as_array);
        let relevant =
            all.into_iter().flatten().filter(|t| matches!(text(t, "effect"), "" | "NoExecute"));
        relevant
            .map(|t| Self {
                key: text(t, "key").to_owned(),
                operator: text(t, "operator").to_owned(),
                value: text(t, "value").to_owned(),
                seconds: t["tolerationSeconds"].as_i64(),
            })
            .collect()
    }

    /// One of all taints, forever.
    pub(super) fn of_everything() -> Vec<Self> {
        let (key, value) = Default::default();
        vec![Self { key, operator: "Exists".to_owned(), value, seconds: None }]
    }

    fn as_stored(&self) -> (tolerations::Toleration<'_>, Option<i64>) {
        let Self { key, operator, value, seconds } = self;
        (tolerations::Toleration { key, operator, value, effect: "" }, *seconds)
    }
}

/// For how long a pod tolerated the taints of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tolerated {
    /// For ever.
    Always,
    /// Until then.
    Until {
        /// When it has to go.
        due: Timestamp,
        /// The taint for which it has to.
        key: String,
        /// How many seconds it tolerates that; `None`: not at all.
        seconds: Option<i64>,
    },
}

/// For how long a pod with these tolerations tolerated these taints, if it has been on the node since
/// `bound`.
pub(super) fn tolerated(
    tolerations: &[Toleration],
    taints: &[Taint],
    bound: Timestamp,
) -> Tolerated {
    let mut soonest = BTreeMap::new();
    for taint in taints {
        let Taint { key, value, since, .. } = taint;
        let as_stored = tolerations::Taint { key, value, effect: "NoExecute" };
        let tolerance = Tolerance::of(tolerations.iter().map(Toleration::as_stored), &as_stored);
        let plus = |from: Timestamp, seconds| {
            from.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
        };
        let due = match tolerance.due(*since, bound, plus) {
            Due::Never => continue,
            Due::AtOnce => bound.max(*since),
            Due::At(due) => due,
        };
        let seconds = match tolerance {
            Tolerance::For { seconds, .. } => Some(seconds),
            Tolerance::None | Tolerance::Forever => None,
        };
        soonest.entry(due).or_insert((key, seconds));
    }
    match soonest.pop_first() {
        None => Tolerated::Always,
        Some((due, (key, seconds))) => Tolerated::Until { due, key: key.clone(), seconds },
    }
}

/// A text field, or the empty text.
pub(super) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn taint(key: &str, since: i64) -> Taint {
        Taint { key: key.to_owned(), value: String::new(), stamp: None, since: at(since) }
    }

    fn due(tolerations: &Value, taints: &[Taint], bound: i64) -> Option<i64> {
        let pod = json!({"spec": {"tolerations": tolerations}});
        match tolerated(&Toleration::all_of(&pod), taints, at(bound)) {
            Tolerated::Always => None,
            Tolerated::Until { due, .. } => Some(due.as_second()),
        }
    }

    #[test]
    fn a_pod_goes_when_its_seconds_are_over_and_not_for_what_it_tolerates() {
        let five = json!([{"key": "k", "operator": "Exists", "tolerationSeconds": 5}]);
        let ever = json!([{"operator": "Exists"}]);
        assert_eq!(due(&Value::Null, &[], 0), None);
        assert_eq!(due(&Value::Null, &[taint("k", 10)], 0), Some(10));
        assert_eq!(due(&five, &[taint("k", 10)], 0), Some(15));
        assert_eq!(due(&five, &[taint("k", 10)], 12), Some(17));
        assert_eq!(due(&five, &[taint("k", 10), taint("j", 11)], 0), Some(11));
        assert_eq!(due(&ever, &[taint("k", 10)], 0), None);
        let other = json!([{"key": "k", "operator": "Exists", "effect": "NoSchedule"}]);
        assert_eq!(due(&other, &[taint("k", 10)], 0), Some(10));
        let equal = json!([{"key": "k", "value": "x"}]);
        assert_eq!(due(&equal, &[taint("k", 10)], 0), Some(10));
    }

    #[test]
    fn a_taint_counts_from_its_stamp_else_from_when_it_was_stored() {
        let bare = json!({"key": "a", "effect": "NoExecute"});
        let stamped =
            json!({"key": "b", "effect": "NoExecute", "timeAdded": "1970-01-01T00:00:07Z"});
        let passive = json!({"key": "c", "effect": "NoSchedule"});
        let node = json!({"spec": {"taints": [bare, stamped, passive]}});
        let first = taints(&node, &[], at(9));
        let since = |taints: &[Taint]| taints.iter().map(|t| t.since).collect::<Vec<_>>();
        assert_eq!(since(&first), [at(9), at(7)]);
        assert_eq!(taints(&node, &first, at(20)), first);
    }

    #[test]
    fn a_taint_counts_from_no_later_than_it_was_stored() {
        let stamped = |second: i64| {
            json!({"spec": {"taints": [
                {"key": "k", "effect": "NoExecute", "timeAdded": at(second).to_string()},
            ]}})
        };
        let first = taints(&stamped(900), &[], at(9));
        assert_eq!(first[0].since, at(9));
        assert_eq!(taints(&stamped(900), &first, at(20))[0].since, at(9));
        assert_eq!(taints(&stamped(15), &first, at(20))[0].since, at(15));
    }

    #[test]
    fn finished_pods_and_mirror_pods_are_left_alone() {
        for phase in ["Succeeded", "Failed"] {
            assert!(is_left_alone(&json!({"status": {"phase": phase}})));
        }
        let mirror = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}});
        assert!(is_left_alone(&mirror));
        assert!(!is_left_alone(&json!({"status": {"phase": "Running"}})));
        assert!(!is_left_alone(&json!({})));
    }
}
