//! What cordon and drain read of a node, beside what everybody reads.

use std::sync::Arc;

use ahash::AHashSet;
use bytes::Bytes;
use prost::Message;

use super::{DecodeError, broken, decode_node, text, time};
use crate::cluster::wire;
use crate::model::{Autoscaler, Condition, ConditionStatus, Labels, Node, Upkeep};

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
/// A field that is needed is absent or cannot be read.
pub fn decode_node_upkeep(object: &Bytes, watched: &Watched) -> Result<Node, DecodeError> {
    let mut node = decode_node(object)?;
    let upkeep = upkeep(object, watched).map_err(|reason| broken(object, reason))?;
    node.upkeep = Some(Arc::new(upkeep));
    Ok(node)
}

fn upkeep(object: &Bytes, watched: &Watched) -> Result<Upkeep, String> {
    let node = wire::Node::decode(object.clone()).map_err(|error| error.to_string())?;
    let more = wire::NodeUpkeep::decode(object.clone()).map_err(|error| error.to_string())?;
    let meta = &node.metadata;
    let annotation = |key| {
        let value = super::annotation(meta, key).map(|value| text(value, "metadata.annotations"));
        value.transpose()
    };
    let has_taint = |key: &str| node.spec.taints.iter().any(|taint| taint.key == key);
    let labels = more.metadata.labels.iter().map(|entry| {
        Ok((text(&entry.key, "metadata.labels")?, text(&entry.value, "metadata.labels")?))
    });
    let record = annotation(Upkeep::RECORD_ANNOTATION)?;
    let draino_conditions = annotation(Upkeep::DRAINO_CONDITIONS_ANNOTATION)?;
    let conditions = node.status.conditions.iter().filter_map(|condition| {
        let kind = std::str::from_utf8(&condition.r#type).ok()?;
        let is_recorded =
            || [record, draino_conditions].into_iter().flatten().any(|t| names(t, kind));
        let is_watched = watched.conditions.contains(kind)
            || kind == Upkeep::SCHEDULED_CONDITION
            || is_recorded();
        is_watched.then(|| self::condition(kind, condition, watched.heartbeats))
    });
    Ok(Upkeep {
        labels: labels.collect::<Result<Labels, String>>()?,
        conditions: conditions.collect::<Result<_, String>>()?,
        unschedulable: more.spec.unschedulable,
        terminating: meta.deletion_timestamp.is_some(),
        autoscaler: if has_taint(Autoscaler::REMOVING) {
            Autoscaler::Removing
        } else if has_taint(Autoscaler::CANDIDATE) {
            Autoscaler::Candidate
        } else {
            Autoscaler::None
        },
        record: record.map(Arc::from),
        draino_conditions: draino_conditions.map(Arc::from),
        retry_asked: annotation(Upkeep::RETRY_ANNOTATION)? == Some("true"),
    })
}

/// Whether an annotation has this type in one of its conditions, which are written as draino writes
/// them: `Type=Status,Duration`, in a list or as text in JSON.
fn names(annotation: &str, kind: &str) -> bool {
    annotation.match_indices(kind).any(|(at, _)| {
        let before = annotation[..at].chars().next_back();
        matches!(before, None | Some(';' | '"')) && annotation[at + kind.len()..].starts_with('=')
    })
}

fn condition(kind: &str, wire: &wire::Condition, heartbeats: bool) -> Result<Condition, String> {
    Ok(Condition {
        kind: Arc::from(kind),
        // A status that the API does not know says nothing for sure.
        status: std::str::from_utf8(&wire.status)
            .ok()
            .and_then(ConditionStatus::parse)
            .unwrap_or(ConditionStatus::Unknown),
        since: time(wire.last_transition_time),
        heartbeat: time(wire.last_heartbeat_time.filter(|_| heartbeats)),
        reason: Arc::from(text(&wire.reason, "status.conditions.reason")?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::decode::tests::{entry, scheduled, seconds, wire_node};

    #[test]
    fn a_node_keeps_what_a_drain_depends_on_and_only_watched_conditions() {
        let plain = wire_node(|node| {
            node.metadata.annotations = vec![
                entry(Upkeep::RECORD_ANNOTATION, "{}"),
                entry(Upkeep::RETRY_ANNOTATION, "true"),
                entry(Upkeep::DRAINO_CONDITIONS_ANNOTATION, "Bad=True,0s"),
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
        let more = wire::NodeUpkeep {
            metadata: wire::UpkeepMeta { labels: vec![entry("b", "2"), entry("a", "1")] },
            spec: wire::UpkeepSpec { unschedulable: true },
        };
        let object: Bytes = [plain, more.encode_to_vec().into()].concat().into();
        let mut watched = Watched::default();
        watched.conditions.insert(Arc::from("Bad"));
        let node = decode_node_upkeep(&object, &watched).unwrap();
        let upkeep = node.upkeep.unwrap();
        assert_eq!(upkeep.labels.iter().collect::<Vec<_>>(), [("a", "1"), ("b", "2")]);
        assert!(upkeep.unschedulable && upkeep.retry_asked && !upkeep.terminating);
        assert_eq!(upkeep.autoscaler, Autoscaler::Removing);
        assert_eq!(upkeep.record.as_deref(), Some("{}"));
        assert_eq!(upkeep.draino_conditions.as_deref(), Some("Bad=True,0s"));
        assert_eq!(upkeep.conditions.len(), 1);
        let bad = upkeep.condition("Bad").unwrap();
        assert_eq!((bad.status, bad.heartbeat), (ConditionStatus::True, None));
        assert_eq!(bad.since, Some("2026-01-01T12:00:02Z".parse().unwrap()));
        watched.heartbeats = true;
        let node = decode_node_upkeep(&object, &watched).unwrap();
        let heartbeat = node.upkeep.unwrap().condition("Bad").unwrap().heartbeat;
        assert_eq!(heartbeat, Some("2026-01-01T12:00:07Z".parse().unwrap()));
        // It was cordoned for what no policy names any more.
        let node = decode_node_upkeep(&object, &Watched::default()).unwrap();
        let kinds: Vec<_> =
            node.upkeep.unwrap().conditions.iter().map(|c| c.kind.clone()).collect();
        assert_eq!(kinds, ["Bad".into()]);
    }

    #[test]
    fn the_conditions_that_a_node_was_cordoned_for_are_told_from_others_by_their_whole_type() {
        for text in
            ["Bad=True,0s", "Ready=Unknown,10m0s;Bad=True,0s", r#"{"c":["X=y","Bad=True"]}"#]
        {
            assert!(names(text, "Bad"), "{text}");
            assert!(!names(text, "Ba") && !names(text, "ad") && !names(text, "True"), "{text}");
        }
        assert!(!names("VeryBad=True,0s;Badly=True,0s", "Bad") && !names("", "Bad"));
    }
}
