//! Who wrote a pod's `DisruptionTarget` condition.
//!
//! The API server records in `metadata.managedFields` which client wrote which field last. That is long, so
//! it is only read of a pod whose condition has just appeared.

use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::time;
use crate::cluster::api::FIELD_MANAGER;
use crate::cluster::wire::fields::{Value, all, fields};
use crate::model::Stamp;

/// So much is kept of the name of a field manager, in characters: the API server's own limit.
const LONGEST_NAME: usize = 128;

/// The client that wrote the condition, as it calls itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkAuthor {
    /// Its field manager, for example `kube-controller-manager`.
    pub manager: String,
    /// When it last wrote a field that it owns, by the API server's clock; cut to the second.
    pub written: Option<Timestamp>,
}

/// Who other than ostrakon wrote the reason of the condition `DisruptionTarget` of a pod in protobuf. `None`
/// if it was ostrakon, or if nobody is recorded.
pub fn other_mark_author(object: &Bytes) -> Option<MarkAuthor> {
    let mut other = None;
    for entry in all(object, 1).flat_map(|metadata| all(metadata, 17)) {
        let entry = Entry::read(entry);
        if entry.subresource != b"status" || !owns_reason(entry.fields) {
            continue;
        }
        if entry.manager == FIELD_MANAGER.as_bytes() {
            return None;
        }
        other.get_or_insert_with(|| MarkAuthor {
            manager: String::from_utf8_lossy(entry.manager).chars().take(LONGEST_NAME).collect(),
            written: entry.time.and_then(time).map(Stamp::written),
        });
    }
    other
}

/// `meta.v1.ManagedFieldsEntry`.
#[derive(Default)]
struct Entry<'a> {
    manager: &'a [u8],
    time: Option<&'a [u8]>,
    /// JSON.
    fields: &'a [u8],
    subresource: &'a [u8],
}

impl<'a> Entry<'a> {
    fn read(message: &'a [u8]) -> Self {
        let mut entry = Self::default();
        for field in fields(message) {
            match field {
                Ok((1, Value::Bytes(manager))) => entry.manager = manager,
                Ok((4, Value::Bytes(time))) => entry.time = Some(time),
                Ok((7, Value::Bytes(set))) => entry.fields = all(set, 1).last().unwrap_or_default(),
                Ok((8, Value::Bytes(subresource))) => entry.subresource = subresource,
                _ => {}
            }
        }
        entry
    }
}

/// Whether the reason of the condition is in a set of fields, which is JSON. What cannot be read owns
/// nothing.
fn owns_reason(set: &[u8]) -> bool {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Set {
        #[serde(rename = "f:status")]
        status: Status,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        #[serde(rename = "f:conditions")]
        conditions: Conditions,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Conditions {
        #[serde(rename = r#"k:{"type":"DisruptionTarget"}"#)]
        mark: Condition,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Condition {
        #[serde(rename = "f:reason")]
        reason: Option<IgnoredAny>,
    }
    serde_json::from_slice::<Set>(set).is_ok_and(|set| set.status.conditions.mark.reason.is_some())
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::cluster::decode::tests::{seconds, wire_pod};
    use crate::cluster::wire;

    const NOON: &str = "2026-01-01T12:00:00Z";
    /// What kube-controller-manager 1.36 writes.
    const MARK: &str = r#"{"f:status":{"f:conditions":{"k:{\"type\":\"DisruptionTarget\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:message":{},"f:observedGeneration":{},"f:reason":{},"f:status":{},"f:type":{}}}}}"#;

    fn entry(manager: &str, subresource: &str, set: &str) -> wire::ManagedFieldsEntry {
        wire::ManagedFieldsEntry {
            manager: manager.to_owned().into(),
            time: Some(seconds(NOON)),
            fields: Some(wire::FieldsV1 { raw: set.to_owned().into() }),
            subresource: subresource.to_owned().into(),
        }
    }

    fn pod(entries: &[wire::ManagedFieldsEntry]) -> Vec<u8> {
        let metadata = wire::ManagedMeta { managed_fields: entries.to_vec() };
        [&wire_pod(|_| ())[..], &wire::WithManagedFields { metadata }.encode_to_vec()].concat()
    }

    fn author(entries: &[wire::ManagedFieldsEntry]) -> Option<MarkAuthor> {
        other_mark_author(&pod(entries).into())
    }

    fn author_name(entries: &[wire::ManagedFieldsEntry]) -> Option<String> {
        author(entries).map(|author| author.manager)
    }

    #[test]
    fn who_wrote_the_reason_of_the_condition_is_its_author() {
        let own = || entry("kube-scheduler", "status", r#"{"f:status":{"f:phase":{}}}"#);
        let built_in = entry("kube-controller-manager", "status", MARK);
        let expected = MarkAuthor {
            manager: "kube-controller-manager".to_owned(),
            written: Some(NOON.parse().unwrap()),
        };
        assert_eq!(author(&[own(), built_in]), Some(expected));
        assert_eq!(author(&[own()]), None);
        assert_eq!(author(&[]), None);
    }

    #[test]
    fn a_condition_that_ostrakon_wrote_has_no_other_author() {
        let ours = || entry(FIELD_MANAGER, "status", MARK);
        assert_eq!(author(&[ours()]), None);
        // The disruption controller resets an old condition, and owns what it wrote then.
        let reset = r#"{"f:status":{"f:conditions":{"k:{\"type\":\"DisruptionTarget\"}":{"f:lastTransitionTime":{},"f:status":{}}}}}"#;
        let reset = || entry("kube-controller-manager", "status", reset);
        assert_eq!(author(&[reset(), ours()]), None);
        assert_eq!(author(&[reset()]), None, "it wrote no reason");
        let shared = entry("kube-controller-manager", "status", MARK);
        assert_eq!(author(&[shared, ours()]), None, "if both own it, ostrakon wrote it too");
    }

    #[test]
    fn what_is_about_other_fields_or_cannot_be_read_names_nobody() {
        let other = MARK.replace("DisruptionTarget", "PodScheduled");
        for entry in [
            entry("a", "", MARK),
            entry("a", "resize", MARK),
            entry("a", "status", &other),
            entry("a", "status", &MARK[..MARK.len() - 1]),
            entry("a", "status", r#"{"f:status":"f:reason"}"#),
            entry("a", "status", ""),
            wire::ManagedFieldsEntry { fields: None, ..entry("a", "status", MARK) },
        ] {
            assert_eq!(author(std::slice::from_ref(&entry)), None, "{entry:?}");
        }
        assert_eq!(author_name(&[entry("a", "status", MARK)]).as_deref(), Some("a"));
        let mut bytes = pod(&[entry("a", "status", MARK)]);
        bytes.truncate(bytes.len() - 20);
        assert_eq!(other_mark_author(&bytes.into()), None);
    }

    #[test]
    fn a_name_is_cut_and_a_deep_set_costs_no_stack() {
        let long = entry(&"é".repeat(10_000), "status", MARK);
        assert_eq!(author_name(&[long]).unwrap().chars().count(), LONGEST_NAME);
        let deep = [r#"{"f:spec":"#, &"[".repeat(1 << 20)].concat();
        assert_eq!(author_name(&[entry("a", "status", &deep)]), None);
        let no_time = wire::ManagedFieldsEntry { time: None, ..entry("a", "status", MARK) };
        assert_eq!(author(&[no_time]).unwrap().written, None);
    }
}
