//! Decodes the fields of a node that only cordon and drain use.

use std::sync::Arc;

use ahash::AHashSet;
use bytes::Bytes;

use super::{Condition as Read, DecodeError, FlawCause, Flaws, entry, read_node, time};
use crate::cluster::wire::fields::{Value, all, fields};
use crate::model::{Autoscaler, Condition, ConditionStatus, Node, NodeDrainFacts};

/// So many types of conditions are taken from what a node was cordoned for. A policy has a few.
const MOST_RECORDED: usize = 64;
/// So many labels are read of a node, whose kubelet may write as many as an object holds. They are kept
/// for every node, and a short one takes ten times its length.
const MOST_LABELS: usize = 1_000;
/// So much is read of a condition's reason, in bytes: the API's own limit where it has one.
const LONGEST_REASON: usize = 1024;

/// What is read of a node for the sake of drain policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// Types of the conditions that some policy names. Those that a node was cordoned for are read
    /// of that node as well, whatever the policies name by now.
    pub conditions: AHashSet<Arc<str>>,
    /// Whether some policy asks when a condition was reported last. That changes all the time.
    pub heartbeats: bool,
}

/// The facts of a node in protobuf, with those that drain policies need.
///
/// # Errors
/// A field that is essential is absent or cannot be read.
pub fn decode_node_drain_facts(object: &Bytes, watched: &Watched) -> Result<Node, DecodeError> {
    read_node(object, Some(watched)).map(|(node, _)| node)
}

/// What a drain depends on. That the object can be taken apart is known.
pub(super) fn read(
    object: &[u8],
    terminating: bool,
    watched: &Watched,
    flaws: &mut Flaws,
) -> NodeDrainFacts {
    let mut drain_facts = NodeDrainFacts { terminating, ..NodeDrainFacts::default() };
    let mut labels = Vec::new();
    for (number, value) in all(object, 1).flat_map(fields).flatten() {
        let (11 | 12, Value::Bytes(message)) = (number, value) else { continue };
        let Ok((key, value)) = entry(message) else { continue };
        if number == 11 {
            if labels.len() == MOST_LABELS {
                flaws.add("metadata.labels", FlawCause::TooLong);
                continue;
            }
            let key = flaws.text(key, "metadata.labels");
            labels.extend(key.zip(flaws.text(value, "metadata.labels")));
        } else if key == NodeDrainFacts::RECORD_ANNOTATION.as_bytes() {
            drain_facts.record = Some(flaws.annotation(value));
        } else if key == NodeDrainFacts::DRAINO_CONDITIONS_ANNOTATION.as_bytes() {
            drain_facts.draino_conditions = Some(flaws.annotation(value));
        } else if key == NodeDrainFacts::RETRY_ANNOTATION.as_bytes() {
            drain_facts.retry_asked = value == b"true";
        }
    }
    drain_facts.labels = labels.into_iter().collect();
    for (number, value) in all(object, 2).flat_map(fields).flatten() {
        match (number, value) {
            (4, value) => drain_facts.unschedulable = value.number() == Some(1),
            (5, Value::Bytes(taint)) => {
                drain_facts.autoscaler = match (all(taint, 1).last(), drain_facts.autoscaler) {
                    (_, Autoscaler::Removing) => Autoscaler::Removing,
                    (Some(key), _) if key == Autoscaler::REMOVING.as_bytes() => {
                        Autoscaler::Removing
                    }
                    (Some(key), _) if key == Autoscaler::CANDIDATE.as_bytes() => {
                        Autoscaler::Candidate
                    }
                    (_, other) => other,
                };
            }
            _ => {}
        }
    }
    let mut recorded = AHashSet::new();
    for text in [&drain_facts.record, &drain_facts.draino_conditions].into_iter().flatten() {
        for kind in kinds(text) {
            if recorded.len() == MOST_RECORDED && !recorded.contains(kind) {
                flaws.add("metadata.annotations", FlawCause::TooLong);
                break;
            }
            recorded.insert(kind);
        }
    }
    let mut conditions: Vec<Condition> = Vec::new();
    for message in all(object, 3).flat_map(|status| all(status, 4)) {
        // What is wrong with a condition was said where Ready was looked for.
        let Some(condition) = Read::read(message, &mut Flaws::default()) else { continue };
        let Ok(kind) = std::str::from_utf8(condition.kind) else { continue };
        let is_wanted = watched.conditions.contains(kind)
            || kind == NodeDrainFacts::SCHEDULED_CONDITION
            || recorded.contains(kind);
        // There is one of a type; of several the first counts.
        if is_wanted && !conditions.iter().any(|other| &*other.kind == kind) {
            conditions.push(self::condition(kind, &condition, watched.heartbeats, flaws));
        }
    }
    drain_facts.conditions = conditions.into();
    drain_facts
}

/// The types of the conditions in an annotation, which are written as draino writes them:
/// `Type=Status,Duration`, in a list or as text in JSON. Each place is looked at once: the annotation may
/// be long, and a node may have many conditions.
fn kinds(annotation: &str) -> impl Iterator<Item = &str> {
    annotation.split([';', '"']).filter_map(|part| {
        let (kind, _) = part.split_once('=')?;
        (!kind.is_empty()).then_some(kind)
    })
}

fn condition(kind: &str, read: &Read<'_>, heartbeats: bool, flaws: &mut Flaws) -> Condition {
    let reason = &read.reason[..read.reason.len().min(LONGEST_REASON)];
    if std::str::from_utf8(read.reason).is_err() {
        flaws.add("status.conditions.reason", FlawCause::NoText);
    }
    Condition {
        kind: Arc::from(kind),
        // A status that the API does not know says nothing for sure.
        status: std::str::from_utf8(read.status)
            .ok()
            .and_then(ConditionStatus::parse)
            .unwrap_or(ConditionStatus::Unknown),
        since: read.transition.and_then(time),
        heartbeat: read.heartbeat.filter(|_| heartbeats).and_then(time),
        reason: Arc::from(String::from_utf8_lossy(reason)),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::cluster::decode::Flaw;
    use crate::cluster::decode::tests::{entry, scheduled, seconds, stored, wire_node};
    use crate::cluster::wire;

    #[test]
    fn a_node_keeps_what_a_drain_depends_on_and_only_watched_conditions() {
        let plain = wire_node(|node| {
            node.metadata.annotations = vec![
                entry(NodeDrainFacts::RECORD_ANNOTATION, "{}"),
                entry(NodeDrainFacts::RETRY_ANNOTATION, "true"),
                entry(NodeDrainFacts::DRAINO_CONDITIONS_ANNOTATION, "Bad=True,0s"),
            ];
            let taint = wire::Taint { key: Autoscaler::REMOVING.into(), ..wire::Taint::default() };
            node.spec.taints = vec![taint];
            let of = |kind: &'static str, status, at| wire::Condition {
                r#type: kind.into(),
                reason: "Why".into(),
                last_heartbeat_time: Some(seconds("2026-01-01T12:00:07Z")),
                ..scheduled(status, at)
            };
            node.status.conditions = vec![
                of("Ready", "True", "2026-01-01T12:00:00Z"),
                of("Bad", "True", "2026-01-01T12:00:02Z"),
            ];
        });
        let more = wire::NodeWithDrainFacts {
            metadata: wire::DrainMeta { labels: vec![entry("b", "2"), entry("a", "1")] },
            spec: wire::DrainSpec { unschedulable: true },
        };
        let object: Bytes = [plain, more.encode_to_vec().into()].concat().into();
        let mut watched = Watched::default();
        watched.conditions.insert(Arc::from("Bad"));
        let node = decode_node_drain_facts(&object, &watched).unwrap();
        let drain_facts = node.drain_facts.unwrap();
        assert_eq!(drain_facts.labels.iter().collect::<Vec<_>>(), [("a", "1"), ("b", "2")]);
        assert!(drain_facts.unschedulable && drain_facts.retry_asked && !drain_facts.terminating);
        assert_eq!(drain_facts.autoscaler, Autoscaler::Removing);
        assert_eq!(drain_facts.record.as_deref(), Some("{}"));
        assert_eq!(drain_facts.draino_conditions.as_deref(), Some("Bad=True,0s"));
        assert_eq!(drain_facts.conditions.len(), 1);
        let bad = drain_facts.condition("Bad").unwrap();
        assert_eq!((bad.status, bad.heartbeat), (ConditionStatus::True, None));
        assert_eq!(bad.since, Some(stored(2)));
        watched.heartbeats = true;
        let node = decode_node_drain_facts(&object, &watched).unwrap();
        let heartbeat = node.drain_facts.unwrap().condition("Bad").unwrap().heartbeat;
        assert_eq!(heartbeat, Some(stored(7)));
        // It was cordoned for what no policy names any more.
        let node = decode_node_drain_facts(&object, &Watched::default()).unwrap();
        let kinds: Vec<_> =
            node.drain_facts.unwrap().conditions.iter().map(|c| c.kind.clone()).collect();
        assert_eq!(kinds, ["Bad".into()]);
    }

    #[test]
    fn the_conditions_that_a_node_was_cordoned_for_are_told_from_others_by_their_whole_type() {
        let has = |text: &str, kind: &str| kinds(text).any(|found| found == kind);
        for text in
            ["Bad=True,0s", "Ready=Unknown,10m0s;Bad=True,0s", r#"{"c":["X=y","Bad=True"]}"#]
        {
            assert!(has(text, "Bad"), "{text}");
            assert!(!has(text, "Ba") && !has(text, "ad") && !has(text, "True"), "{text}");
        }
        assert!(!has("VeryBad=True,0s;Badly=True,0s", "Bad") && !has("", "Bad"));
    }

    /// A node with so many conditions, named in an annotation that is as long as one can be.
    fn busy_node(conditions: usize) -> Bytes {
        let kind = |number: usize| format!("Condition{number:06}");
        let named: Vec<_> = (0..conditions).map(|n| format!("{}=True,0s", kind(n))).collect();
        let text = format!("{};Bad=True,0s{}", named.join(";"), "x".repeat(250 << 10));
        wire_node(|node| {
            node.metadata.annotations =
                vec![entry(NodeDrainFacts::DRAINO_CONDITIONS_ANNOTATION, &text[..250 << 10])];
            let taint = wire::Taint { effect: "NoExecute".into(), ..wire::Taint::default() };
            node.spec.taints = vec![wire::Taint { key: "down".into(), ..taint }];
            let of = |kind: String| wire::Condition {
                r#type: kind.into(),
                ..scheduled("True", "2026-01-01T12:00:00Z")
            };
            node.status.conditions = (0..conditions).map(kind).map(of).collect();
            node.status.conditions.push(of("Watched".to_owned()));
            node.status.conditions.push(of("Watched".to_owned()));
        })
    }

    #[allow(clippy::disallowed_methods, reason = "this is about the time of this machine")]
    #[test]
    fn a_node_with_thousands_of_conditions_costs_no_more_than_its_length_and_hides_nothing() {
        let mut watched = Watched::default();
        watched.conditions.insert(Arc::from("Watched"));
        let object = busy_node(12_000);
        let (node, flaws) = read_node(&object, Some(&watched)).unwrap();
        let drain_facts = node.drain_facts.unwrap();
        assert_eq!(node.taints.len(), 1, "and its taint is seen");
        assert!(drain_facts.condition("Watched").is_some(), "and what policies watch");
        assert_eq!(drain_facts.conditions.len(), MOST_RECORDED + 1, "each type once");
        assert!(drain_facts.draino_conditions.as_ref().unwrap().len() <= 32 << 10);
        assert!(flaws.iter().all(|flaw| flaw.cause == FlawCause::TooLong), "{flaws:?}");
        assert!(!flaws.is_empty(), "and it is said");
    }

    #[test]
    fn of_a_nodes_labels_no_more_are_kept_than_any_node_needs_and_the_rest_is_read() {
        let plain = wire_node(|node| {
            node.metadata.annotations = vec![entry(NodeDrainFacts::RECORD_ANNOTATION, "{}")];
        });
        let labels = (0..100_000).map(|number| entry(&format!("l{number:06}"), "")).collect();
        let more = wire::NodeWithDrainFacts {
            metadata: wire::DrainMeta { labels },
            spec: wire::DrainSpec { unschedulable: true },
        };
        // The labels come first, as in an object of the API.
        let object: Bytes = [more.encode_to_vec().into(), plain].concat().into();
        let (node, flaws) = read_node(&object, Some(&Watched::default())).unwrap();
        let drain_facts = node.drain_facts.unwrap();
        assert_eq!(drain_facts.labels.iter().count(), MOST_LABELS);
        assert_eq!(drain_facts.labels.get("l000000"), Some(""));
        assert!(drain_facts.unschedulable && drain_facts.record.as_deref() == Some("{}"));
        let flaw = Flaw { field: "metadata.labels", cause: FlawCause::TooLong };
        assert_eq!(flaws, [flaw], "and it is said");
    }

    #[test]
    fn bytes_that_are_no_text_cost_a_drain_their_own_part_only() {
        let no_text =
            |key: &str| wire::MapEntry { value: (&b"{\xff}"[..]).into(), ..entry(key, "") };
        let object = wire_node(|node| {
            node.metadata.annotations = vec![
                no_text(NodeDrainFacts::RECORD_ANNOTATION),
                no_text(NodeDrainFacts::DRAINO_CONDITIONS_ANNOTATION),
                no_text(NodeDrainFacts::RETRY_ANNOTATION),
                no_text(Node::SINCE_ANNOTATION),
            ];
            node.spec.taints = vec![wire::Taint {
                key: "down".into(),
                effect: "NoExecute".into(),
                ..wire::Taint::default()
            }];
            node.status.conditions = vec![
                wire::Condition { r#type: (&b"\xff"[..]).into(), ..wire::Condition::default() },
                wire::Condition {
                    r#type: "Bad".into(),
                    reason: (&b"why\xff"[..]).into(),
                    ..scheduled("True", "2026-01-01T12:00:00Z")
                },
            ];
        });
        let mut watched = Watched::default();
        watched.conditions.insert(Arc::from("Bad"));
        let (node, flaws) = read_node(&object, Some(&watched)).unwrap();
        assert_eq!(node.taints.len(), 1);
        // What was a record is one that cannot be read, and is replaced as such.
        assert_eq!(node.since_annotation.as_deref(), Some("{\u{fffd}}"));
        let drain_facts = node.drain_facts.unwrap();
        assert_eq!(drain_facts.record.as_deref(), Some("{\u{fffd}}"));
        assert!(!drain_facts.retry_asked);
        let bad = drain_facts.condition("Bad").unwrap();
        assert_eq!((bad.status, &*bad.reason), (ConditionStatus::True, "why\u{fffd}"));
        let said: Vec<_> = flaws.iter().map(ToString::to_string).collect();
        let expected =
            ["metadata.annotations is not UTF-8", "status.conditions.reason is not UTF-8"];
        assert_eq!(said, expected);
    }
}
