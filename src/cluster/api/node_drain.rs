//! Requests that cordon and uncordon a node and write the record of its drain.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use prost::Message;
use serde_json::{Value, json};

use super::{Api, Call, FIELD_MANAGER, REQUEST_TIMEOUT, RequestError, named, unreadable};
use crate::clock::whole_seconds;
use crate::cluster::wire::fields::all;
use crate::cluster::{Watched, decode_node_drain_facts, wire};
use crate::model::{Node, NodeDrainFacts, NodeName};

/// A node with the version that it was read in.
#[derive(Clone, Debug)]
pub struct StoredNode {
    /// Its facts.
    pub node: Node,
    /// Its `resourceVersion`: a patch that names it is refused (409) if the node has changed since.
    pub version: String,
    /// All its taints, as a patch may write them back; `None` if one has what no patch can write.
    pub taints: Option<Vec<Value>>,
}

/// What to change of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDrainPatch {
    /// The record: leave it (`None`), remove it, or set it.
    pub record: Option<Option<String>>,
    /// draino's annotation: leave it (`None`), remove it, or set it.
    pub draino_conditions: Option<Option<String>>,
    /// Cordon or uncordon.
    pub unschedulable: Option<bool>,
    /// Remove the request for one more try.
    pub retry_taken: bool,
    /// All taints that it shall have; `None` leaves them.
    pub taints: Option<Vec<Value>>,
}

impl NodeDrainPatch {
    /// What of it is no annotation.
    #[must_use]
    pub fn without_annotations(&self) -> Self {
        let Self { unschedulable, taints, .. } = self;
        Self { unschedulable: *unschedulable, taints: taints.clone(), ..Self::default() }
    }

    /// Whether it cordons the node or puts a taint on it.
    fn harms(&self, read: &StoredNode) -> bool {
        let is_new = |taint: &Value| {
            let same = |other: &Value| ["key", "effect"].iter().all(|of| taint[of] == other[of]);
            !read.taints.iter().flatten().any(same)
        };
        self.unschedulable == Some(true) || self.taints.iter().flatten().any(is_new)
    }

    /// Whether a node has the annotations that it says.
    pub fn annotations_are_on(&self, drain_facts: &NodeDrainFacts) -> bool {
        let is = |wanted: &Option<Option<String>>, stored: &Option<Arc<str>>| {
            wanted.as_ref().is_none_or(|wanted| wanted.as_deref() == stored.as_deref())
        };
        is(&self.record, &drain_facts.record)
            && is(&self.draino_conditions, &drain_facts.draino_conditions)
            && !(self.retry_taken && drain_facts.retry_asked)
    }
}

impl Api {
    /// The node as it is stored now, or `None` if there is none.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn stored_node(
        &self,
        name: &NodeName,
        watched: &Watched,
    ) -> Result<Option<StoredNode>, RequestError> {
        let call = Call::get("nodes");
        let body = match self.read(call, &format!("/api/v1/nodes/{name}")).await {
            Err(RequestError::Status(answer)) if answer.is_not_found() => return Ok(None),
            other => other?,
        };
        let stored = stored(&body, watched)?;
        let node = named(stored.node, name)?;
        Ok(Some(StoredNode { node, ..stored }))
    }

    /// Changes the node, unless it has changed since it was read (409), and returns it as it is
    /// then.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn patch_node_drain(
        &self,
        read: &StoredNode,
        patch: &NodeDrainPatch,
        watched: &Watched,
    ) -> Result<StoredNode, RequestError> {
        let mut annotations = json!({});
        if let Some(record) = &patch.record {
            annotations[NodeDrainFacts::RECORD_ANNOTATION] = json!(record);
        }
        if let Some(conditions) = &patch.draino_conditions {
            annotations[NodeDrainFacts::DRAINO_CONDITIONS_ANNOTATION] = json!(conditions);
        }
        if patch.retry_taken {
            annotations[NodeDrainFacts::RETRY_ANNOTATION] = Value::Null;
        }
        let mut body = json!({"metadata": {
            "uid": read.node.uid.to_string(),
            "resourceVersion": read.version,
            "annotations": annotations,
        }});
        if let Some(unschedulable) = patch.unschedulable {
            body["spec"]["unschedulable"] = json!(unschedulable);
        }
        if let Some(taints) = &patch.taints {
            body["spec"]["taints"] = json!(taints);
        }
        let path = format!("/api/v1/nodes/{}?fieldManager={FIELD_MANAGER}", read.node.name);
        let kind = "application/merge-patch+json";
        let call = if patch.harms(read) { Call::cordon() } else { Call::uncordon_or_annotate() };
        let request = call.request(&path, wire::MEDIA_TYPE, Some(kind), &body)?;
        let (_, answer) = self.send(request, REQUEST_TIMEOUT).await?;
        stored(&answer, watched)
    }

    /// Sets the node's condition `DrainScheduled` to another status, unless the node has changed since
    /// it was read (409), and returns it as it is then.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn mark_scheduled(
        &self,
        read: &StoredNode,
        scheduled: bool,
        message: &str,
        now: Timestamp,
        watched: &Watched,
    ) -> Result<StoredNode, RequestError> {
        let body = json!({
            "metadata": {"uid": read.node.uid.to_string(), "resourceVersion": read.version},
            "status": {"conditions": [{
                "type": NodeDrainFacts::SCHEDULED_CONDITION,
                "status": if scheduled { "True" } else { "False" },
                "reason": "Draino",
                "message": message,
                "lastHeartbeatTime": whole_seconds(now),
                "lastTransitionTime": whole_seconds(now),
            }]},
        });
        let path = format!("/api/v1/nodes/{}/status?fieldManager={FIELD_MANAGER}", read.node.name);
        let kind = "application/strategic-merge-patch+json";
        let call = Call::mark_node();
        let request = call.request(&path, wire::MEDIA_TYPE, Some(kind), &body)?;
        let (_, answer) = self.send(request, REQUEST_TIMEOUT).await?;
        stored(&answer, watched)
    }
}

fn stored(body: &bytes::Bytes, watched: &Watched) -> Result<StoredNode, RequestError> {
    let object = wire::open(body, "Node").map_err(unreadable)?;
    let node = decode_node_drain_facts(&object, watched).map_err(unreadable)?;
    let version = wire::version(&object).unwrap_or_default().to_owned();
    // The rest of the object, of which its kubelet writes most, is not taken apart.
    let messages = all(&object, 2).flat_map(|spec| all(spec, 5));
    let taints = messages.map(|message| taint(&wire::Taint::decode(message).ok()?)).collect();
    Ok(StoredNode { node, version, taints })
}

/// A taint with all that it has, or `None` if that cannot be written in JSON. A list of taints is
/// written as a whole, and others' must not change with it.
fn taint(taint: &wire::Taint) -> Option<Value> {
    let text = |bytes: &bytes::Bytes| String::from_utf8_lossy(bytes).into_owned();
    let mut object = json!({"key": text(&taint.key), "effect": text(&taint.effect)});
    if !taint.value.is_empty() {
        object["value"] = json!(text(&taint.value));
    }
    if let Some(seconds) = taint.time_added.and_then(|time| time.seconds) {
        object["timeAdded"] = json!(written(seconds)?);
    }
    Some(object)
}

/// A time as the API writes it: to the very end of the year 9999, which is beyond [`Timestamp::MAX`].
fn written(seconds: i64) -> Option<String> {
    let epoch = jiff::civil::date(1970, 1, 1).at(0, 0, 0, 0);
    let moment = epoch.checked_add(SignedDuration::from_secs(seconds)).ok()?;
    (moment.year() >= 0).then(|| format!("{moment}Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kubelet_has_in_its_nodes_status_hides_neither_version_nor_taints() {
        let mut node = wire::Node::default();
        node.metadata.name = "n1".into();
        node.metadata.uid = "0a1b2c3d-4e5f-4677-8899-aabbccddeeff".into();
        node.metadata.resource_version = "17".into();
        let key = |key: &'static str| wire::Taint {
            key: key.into(),
            effect: "NoSchedule".into(),
            ..wire::Taint::default()
        };
        node.spec.taints = vec![key("a"), key("b")];
        // A condition that claims to be longer than it is, and very many that are empty.
        let odd: &[&[u8]] = &[&[0x22, 3, 0x0a, 9, 0], &[0x22, 0].repeat(500_000)];
        for status in odd {
            let mut object = node.encode_to_vec();
            object.push(0x1a);
            prost::encode_length_delimiter(status.len(), &mut object).unwrap();
            object.extend_from_slice(status);
            let body = wire::envelope("Node", object);
            let stored = stored(&body, &Watched::default()).unwrap();
            let taints = stored.taints.unwrap();
            let keys: Vec<_> = taints.iter().map(|taint| taint["key"].as_str().unwrap()).collect();
            assert_eq!((&*stored.version, keys), ("17", vec!["a", "b"]));
        }
    }

    #[test]
    fn a_taint_is_written_back_with_all_that_it_has() {
        let bare =
            wire::Taint { key: "k".into(), effect: "NoSchedule".into(), ..wire::Taint::default() };
        let plain = json!({"key": "k", "effect": "NoSchedule"});
        assert_eq!(taint(&bare), Some(plain));
        let whole = wire::Taint {
            value: "v".into(),
            time_added: Some(wire::Time { seconds: Some(1_767_268_800) }),
            ..bare
        };
        let expected = json!({
            "key": "k", "effect": "NoSchedule", "value": "v", "timeAdded": "2026-01-01T12:00:00Z",
        });
        assert_eq!(taint(&whole), Some(expected));
    }

    #[test]
    fn a_time_is_written_back_to_the_very_end_of_what_the_api_can_write() {
        for (seconds, text) in [
            (0, Some("1970-01-01T00:00:00Z")),
            (253_402_300_799, Some("9999-12-31T23:59:59Z")),
            (253_402_300_800, None),
            (-62_135_596_799, Some("0001-01-01T00:00:01Z")),
            (i64::MAX, None),
            (i64::MIN, None),
        ] {
            assert_eq!(written(seconds).as_deref(), text, "{seconds}");
            let added = wire::Taint {
                time_added: Some(wire::Time { seconds: Some(seconds) }),
                ..wire::Taint::default()
            };
            let whole = taint(&added);
            assert_eq!(whole.as_ref().and_then(|taint| taint["timeAdded"].as_str()), text);
            assert_eq!(whole.is_none(), text.is_none(), "never without its time");
        }
    }
}
