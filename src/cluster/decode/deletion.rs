//! When the deletion of a pod was requested, and since when it has the condition of taint eviction.

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};

use super::time;
use crate::cluster::Mark;
use crate::cluster::wire::fields::{Value, all, fields};
use crate::model::Stamp;

/// What a pod in protobuf says of its deletion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deletion {
    /// When it was requested, by the API server's clock: the deletion timestamp without the grace period. Cut to
    /// the second; `None` if the pod is not being deleted.
    pub requested: Option<Timestamp>,
    /// Since when it has the condition `DisruptionTarget` with taint eviction's reason; `None` if it has not.
    pub marked: Option<Timestamp>,
}

/// What a pod in protobuf says of its deletion. What cannot be read is left out.
pub fn decode_deletion(object: &Bytes) -> Deletion {
    let (mut at, mut grace) = (None, 0);
    for field in all(object, 1).flat_map(fields) {
        match field {
            Ok((9, Value::Bytes(moment))) => at = time(moment).map(Stamp::written),
            Ok((10, value)) => grace = value.number().unwrap_or_default(),
            _ => {}
        }
    }
    let before = |at: Timestamp| at.checked_sub(SignedDuration::from_secs(grace)).ok();
    let mut conditions = all(object, 3).flat_map(|status| all(status, 2));
    Deletion { requested: at.and_then(before), marked: conditions.find_map(marked) }
}

fn marked(condition: &[u8]) -> Option<Timestamp> {
    let field = |number| all(condition, number).last().unwrap_or_default();
    let is_mark = field(1) == b"DisruptionTarget"
        && field(2) == b"True"
        && field(5) == Mark::REASON.as_bytes();
    is_mark.then(|| time(field(4)).map(Stamp::written)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::decode::tests::{seconds, wire_pod};
    use crate::cluster::wire;

    #[test]
    fn a_deletion_was_requested_its_grace_before_its_timestamp() {
        let object = wire_pod(|pod| {
            pod.metadata.deletion_timestamp = Some(seconds("2026-01-01T12:00:30Z"));
        });
        let at = "2026-01-01T12:00:30Z".parse().ok();
        assert_eq!(decode_deletion(&object), Deletion { requested: at, marked: None });
        // deletionGracePeriodSeconds: 30, in metadata once more.
        let grace = [&object[..], &[10, 2, 10 << 3, 30]].concat();
        let at = "2026-01-01T12:00:00Z".parse().ok();
        assert_eq!(decode_deletion(&grace.into()).requested, at);
    }

    #[test]
    fn only_taint_evictions_own_condition_counts() {
        let marked = |kind: &str, reason: &str, status: &str| {
            let object = wire_pod(|pod| {
                let condition = wire::Condition {
                    r#type: kind.to_owned().into(),
                    status: status.to_owned().into(),
                    last_transition_time: Some(seconds("2026-01-01T12:00:00Z")),
                    reason: reason.to_owned().into(),
                    ..wire::Condition::default()
                };
                pod.status.conditions.push(condition);
            });
            decode_deletion(&object).marked.is_some()
        };
        assert!(marked("DisruptionTarget", Mark::REASON, "True"));
        assert!(!marked("DisruptionTarget", Mark::REASON, "False"));
        assert!(!marked("DisruptionTarget", "EvictionByEvictionAPI", "True"));
        assert!(!marked("Ready", Mark::REASON, "True"));
        assert_eq!(decode_deletion(&Bytes::from_static(b"\xff")), Deletion::default());
    }
}
