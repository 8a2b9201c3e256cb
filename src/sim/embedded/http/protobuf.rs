//! Pods and nodes in protobuf, as ostrakon requests them.
//!
//! An object is encoded with only the fields that ostrakon reads. A client that also accepts JSON gets
//! complete objects in JSON.
//!
//! Clients may store bytes that are not UTF-8. JSON shows them as U+FFFD. So U+FFFD stands for such a byte
//! in the store, and is encoded as an invalid byte in protobuf.

use hyper::body::Bytes;
use jiff::Timestamp;
use prost::Message;
use serde_json::Value;

use crate::cluster::wire;
use crate::sim::embedded::error::ApiError;
use crate::sim::embedded::object::{at, list, meta, number, text};
use crate::sim::embedded::resource::Resource;

/// Whether objects of this resource can be written in protobuf.
pub(super) fn serves(resource: Resource) -> bool {
    matches!(resource, Resource::Pods | Resource::Nodes)
}

/// The envelope of an object.
pub(super) fn object(resource: Resource, object: &Value) -> Bytes {
    let written = if resource == Resource::Pods { pod(object) } else { node(object) };
    wire::envelope(resource.spec().kind, written)
}

/// The envelope of a list of them. `list` is its metadata.
pub(super) fn page<'a>(
    resource: Resource,
    list: &Value,
    items: impl Iterator<Item = &'a Value>,
) -> Bytes {
    let read = |object| {
        if resource == Resource::Pods { pod(object).into() } else { node(object).into() }
    };
    let metadata = wire::ListMeta {
        resource_version: text(list, &["resourceVersion"]).to_owned(),
        r#continue: text(list, &["continue"]).to_owned(),
    };
    let list = wire::List { metadata, items: items.map(read).collect() };
    wire::seal(&format!("{}List", resource.spec().kind), &list)
}

/// The envelope of a refusal.
pub(super) fn status(error: &ApiError) -> Bytes {
    let status = wire::Status {
        message: error.message.clone(),
        reason: error.reason.to_owned(),
        code: error.code.into(),
    };
    wire::seal("Status", &status)
}

fn pod(object: &Value) -> Vec<u8> {
    let toleration = |toleration: &Value| {
        let toleration = wire::Toleration {
            key: bytes(toleration, &["key"]),
            operator: bytes(toleration, &["operator"]),
            value: bytes(toleration, &["value"]),
            effect: bytes(toleration, &["effect"]),
            toleration_seconds: number(toleration, &["tolerationSeconds"]),
        };
        toleration.encode_to_vec().into()
    };
    let pod = wire::Pod {
        metadata: metadata(object),
        spec: wire::PodSpec {
            node_name: bytes(object, &["spec", "nodeName"]),
            tolerations: list(object, &["spec", "tolerations"]).iter().map(toleration).collect(),
        },
        status: wire::PodStatus {
            phase: bytes(object, &["status", "phase"]),
            conditions: conditions(object),
        },
    };
    let managed_fields = list(object, &["metadata", "managedFields"]).iter().map(managed).collect();
    let managed = wire::WithManagedFields { metadata: wire::ManagedMeta { managed_fields } };
    [pod.encode_to_vec(), managed.encode_to_vec()].concat()
}

fn managed(entry: &Value) -> wire::ManagedFieldsEntry {
    wire::ManagedFieldsEntry {
        manager: bytes(entry, &["manager"]),
        time: time(entry, &["time"]),
        fields: Some(wire::FieldsV1 { raw: at(entry, &["fieldsV1"]).to_string().into() }),
        subresource: bytes(entry, &["subresource"]),
    }
}

fn node(object: &Value) -> Vec<u8> {
    let taint = |taint: &Value| wire::Taint {
        key: bytes(taint, &["key"]),
        value: bytes(taint, &["value"]),
        effect: bytes(taint, &["effect"]),
        time_added: time(taint, &["timeAdded"]),
    };
    let labels = at(object, &["metadata", "labels"]).as_object().into_iter().flatten();
    let unschedulable = at(object, &["spec", "unschedulable"]).as_bool().unwrap_or(false);
    let node = wire::Node {
        metadata: metadata(object),
        spec: wire::NodeSpec {
            taints: list(object, &["spec", "taints"]).iter().map(taint).collect(),
        },
        status: wire::NodeStatus { conditions: conditions(object) },
    };
    let drain_facts = wire::NodeWithDrainFacts {
        metadata: wire::DrainMeta { labels: labels.map(entry).collect() },
        spec: wire::DrainSpec { unschedulable },
    };
    [node.encode_to_vec(), drain_facts.encode_to_vec()].concat()
}

fn metadata(object: &Value) -> wire::ObjectMeta {
    let field = |name| Bytes::from(meta(object, name).to_owned());
    let annotations = at(object, &["metadata", "annotations"]).as_object().into_iter().flatten();
    wire::ObjectMeta {
        name: field("name"),
        namespace: field("namespace"),
        uid: field("uid"),
        resource_version: field("resourceVersion"),
        generation: number(object, &["metadata", "generation"]).unwrap_or(0),
        creation_timestamp: time(object, &["metadata", "creationTimestamp"]),
        deletion_timestamp: time(object, &["metadata", "deletionTimestamp"]),
        annotations: annotations.map(entry).collect(),
    }
}

fn entry((key, value): (&String, &Value)) -> wire::MapEntry {
    wire::MapEntry { key: key.clone().into(), value: raw(value.as_str().unwrap_or_default()) }
}

/// The bytes of a text, with one that is no text wherever JSON shows that there is.
fn raw(text: &str) -> Bytes {
    if !text.contains(char::REPLACEMENT_CHARACTER) {
        return text.to_owned().into();
    }
    let mut bytes = Vec::new();
    for part in text.split_inclusive(char::REPLACEMENT_CHARACTER) {
        match part.strip_suffix(char::REPLACEMENT_CHARACTER) {
            Some(part) => bytes.extend(part.bytes().chain([0xff])),
            None => bytes.extend(part.bytes()),
        }
    }
    bytes.into()
}

fn conditions(object: &Value) -> Vec<wire::Condition> {
    let condition = |condition: &Value| wire::Condition {
        r#type: bytes(condition, &["type"]),
        status: bytes(condition, &["status"]),
        last_heartbeat_time: time(condition, &["lastHeartbeatTime"]),
        last_transition_time: time(condition, &["lastTransitionTime"]),
        reason: bytes(condition, &["reason"]),
        message: bytes(condition, &["message"]),
    };
    list(object, &["status", "conditions"]).iter().map(condition).collect()
}

fn bytes(object: &Value, path: &[&str]) -> Bytes {
    raw(text(object, path))
}

fn time(object: &Value, path: &[&str]) -> Option<wire::Time> {
    let moment: Timestamp = text(object, path).parse().ok()?;
    Some(wire::Time { seconds: Some(moment.as_second()) })
}
