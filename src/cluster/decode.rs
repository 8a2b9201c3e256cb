//! From the wire to the model: the few fields that decisions are made from.
//!
//! Strings and toleration lists that many pods share are interned: a cluster of 150,000 pods has
//! a few thousand node names and a handful of different toleration lists.

use std::borrow::Cow;
use std::sync::Arc;

use ahash::AHashSet;
use jiff::Timestamp;
use serde::Deserialize;

use crate::model::{
    Disruption, Effect, Node, NodeName, Operator, Pod, PodClass, Ready, ReadyStatus, Taint,
    Toleration, Uid,
};

/// An object that cannot be turned into facts.
#[derive(Debug, thiserror::Error)]
#[error("{object}: {reason}")]
pub struct DecodeError {
    /// Namespace and name of the object as far as they could be read.
    pub object: String,
    /// Its UID, if that could be read.
    pub uid: Option<Uid>,
    /// What is wrong.
    pub reason: String,
}

/// Decodes pods, sharing what they have in common.
#[derive(Debug, Default)]
pub struct PodDecoder {
    texts: AHashSet<Arc<str>>,
    tolerations: AHashSet<Arc<[Toleration]>>,
}

/// Decodes nodes.
#[derive(Debug, Default)]
pub struct NodeDecoder;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: Cow<'a, str>,
    #[serde(borrow)]
    uid: Cow<'a, str>,
    creation_timestamp: Option<Timestamp>,
    deletion_timestamp: Option<Timestamp>,
    #[serde(default)]
    generation: i64,
    #[serde(borrow, default)]
    annotations: Option<Annotations<'a>>,
}

#[derive(Default, Deserialize)]
struct Annotations<'a> {
    /// Marks the API's shadow of a static pod; its value does not matter.
    #[serde(borrow, rename = "kubernetes.io/config.mirror")]
    mirror: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "ostrakon.dev/noexecute-since")]
    since: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct WirePod<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
    #[serde(borrow)]
    spec: WirePodSpec<'a>,
    #[serde(borrow, default)]
    status: WirePodStatus<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WirePodSpec<'a> {
    #[serde(borrow, default)]
    node_name: Cow<'a, str>,
    #[serde(borrow, default)]
    tolerations: Option<Vec<WireToleration<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireToleration<'a> {
    #[serde(borrow, default)]
    key: Cow<'a, str>,
    #[serde(borrow, default)]
    operator: Cow<'a, str>,
    #[serde(borrow, default)]
    value: Cow<'a, str>,
    #[serde(borrow, default)]
    effect: Cow<'a, str>,
    toleration_seconds: Option<i64>,
}

#[derive(Default, Deserialize)]
struct WirePodStatus<'a> {
    #[serde(borrow, default)]
    phase: Cow<'a, str>,
    #[serde(borrow, default)]
    conditions: Option<Vec<WireCondition<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireCondition<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    status: Cow<'a, str>,
    #[serde(borrow, default)]
    reason: Cow<'a, str>,
    #[serde(borrow, default)]
    message: Cow<'a, str>,
    last_transition_time: Option<Timestamp>,
}

#[derive(Deserialize)]
struct WireNode<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
    #[serde(borrow, default)]
    spec: WireNodeSpec<'a>,
    #[serde(borrow, default)]
    status: WireNodeStatus<'a>,
}

#[derive(Default, Deserialize)]
struct WireNodeSpec<'a> {
    #[serde(borrow, default)]
    taints: Option<Vec<WireTaint<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireTaint<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(borrow, default)]
    value: Cow<'a, str>,
    #[serde(borrow)]
    effect: Cow<'a, str>,
    time_added: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
struct WireNodeStatus<'a> {
    #[serde(borrow, default)]
    conditions: Option<Vec<WireCondition<'a>>>,
}

impl PodDecoder {
    /// The facts of a pod in JSON, or `None` if it is not bound to a node.
    ///
    /// # Errors
    /// A field that is needed is absent or has the wrong type.
    pub fn decode(&mut self, json: &str) -> Result<Option<Pod>, DecodeError> {
        let wire: WirePod<'_> = serde_json::from_str(json).map_err(|e| unreadable(json, &e))?;
        if wire.spec.node_name.is_empty() {
            return Ok(None);
        }
        let uid = identity(json, &wire.metadata)?;
        let conditions = wire.status.conditions.unwrap_or_default();
        let scheduled = conditions.iter().find(|c| c.kind == "PodScheduled" && c.status == "True");
        let bound = scheduled
            .and_then(|c| c.last_transition_time)
            .or(wire.metadata.creation_timestamp)
            .ok_or_else(|| broken(json, "metadata.creationTimestamp is absent"))?;
        let class = if wire.metadata.annotations.is_some_and(|a| a.mirror.is_some()) {
            PodClass::Mirror
        } else if wire.metadata.deletion_timestamp.is_some() {
            PodClass::Terminating
        } else if matches!(&*wire.status.phase, "Succeeded" | "Failed") {
            PodClass::Finished
        } else {
            PodClass::Ordinary
        };
        let disruption = conditions.iter().find(|c| c.kind == "DisruptionTarget");
        let disruption = match disruption {
            Some(c) if c.status != "True" => Disruption::None,
            Some(c) if c.reason == super::Mark::REASON && c.message == super::Mark::MESSAGE => {
                Disruption::ByTaint
            }
            Some(_) => Disruption::Foreign,
            None => Disruption::None,
        };
        Ok(Some(Pod {
            uid,
            namespace: self.text(&wire.metadata.namespace),
            name: Arc::from(&*wire.metadata.name),
            node: NodeName(self.text(&wire.spec.node_name)),
            tolerations: self.tolerations(wire.spec.tolerations.unwrap_or_default()),
            bound,
            class,
            disruption,
            generation: wire.metadata.generation,
        }))
    }

    /// Forgets what no pod shares any more.
    pub fn prune(&mut self) {
        self.texts.retain(|text| Arc::strong_count(text) > 1);
        self.tolerations.retain(|list| Arc::strong_count(list) > 1);
    }

    fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        let new: Arc<str> = Arc::from(text);
        self.texts.insert(Arc::clone(&new));
        new
    }

    fn tolerations(&mut self, wire: Vec<WireToleration<'_>>) -> Arc<[Toleration]> {
        let list: Vec<Toleration> = wire
            .into_iter()
            .map(|t| Toleration {
                key: self.text(&t.key),
                operator: Operator::parse(&t.operator),
                value: self.text(&t.value),
                effect: (!t.effect.is_empty()).then(|| Effect::parse(&t.effect)),
                seconds: t.toleration_seconds,
            })
            .collect();
        if let Some(known) = self.tolerations.get(list.as_slice()) {
            return Arc::clone(known);
        }
        let new: Arc<[Toleration]> = list.into();
        self.tolerations.insert(Arc::clone(&new));
        new
    }
}

/// The facts of a node in JSON.
///
/// # Errors
/// A field that is needed is absent or has the wrong type.
pub fn decode_node(json: &str) -> Result<Node, DecodeError> {
    let wire: WireNode<'_> = serde_json::from_str(json).map_err(|e| unreadable(json, &e))?;
    let uid = identity(json, &wire.metadata)?;
    let taints = wire.spec.taints.unwrap_or_default();
    let taints: Arc<[Taint]> = taints
        .into_iter()
        .filter(|t| Effect::parse(&t.effect) == Effect::NoExecute)
        .map(|t| Taint {
            key: Arc::from(&*t.key),
            value: Arc::from(&*t.value),
            effect: Effect::NoExecute,
            time_added: t.time_added,
        })
        .collect();
    let conditions = wire.status.conditions.unwrap_or_default();
    let ready = conditions.iter().find(|c| c.kind == "Ready");
    Ok(Node {
        name: NodeName::from(&*wire.metadata.name),
        uid,
        taints,
        ready: Ready {
            status: match ready.map(|c| &*c.status) {
                Some("True") => ReadyStatus::True,
                Some("False") => ReadyStatus::False,
                _ => ReadyStatus::Unknown,
            },
            since: ready.and_then(|c| c.last_transition_time),
        },
        since_annotation: wire.metadata.annotations.and_then(|a| a.since).map(|s| Arc::from(&*s)),
    })
}

fn identity(json: &str, meta: &Meta<'_>) -> Result<Uid, DecodeError> {
    meta.uid.parse().map_err(|e| broken(json, format!("metadata.uid: {e}")))
}

fn unreadable(json: &str, error: &serde_json::Error) -> DecodeError {
    broken(json, error.to_string())
}

/// Says which object it was, reading its metadata alone and as leniently as possible.
fn broken(json: &str, reason: impl Into<String>) -> DecodeError {
    let value: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
    let text = |pointer| value.pointer(pointer).and_then(serde_json::Value::as_str);
    let name = text("/metadata/name").unwrap_or("(no name)");
    DecodeError {
        object: match text("/metadata/namespace") {
            Some(namespace) => format!("{namespace}/{name}"),
            None => name.to_owned(),
        },
        uid: text("/metadata/uid").and_then(|uid| uid.parse().ok()),
        reason: reason.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0a1b2c3d-4e5f-4677-8899-aabbccddeeff";

    fn pod_json(extra_meta: &str, spec: &str, status: &str) -> String {
        format!(
            r#"{{"metadata":{{"name":"web-0","namespace":"shop","uid":"{UID}",
               "creationTimestamp":"2026-01-01T12:00:00Z"{extra_meta}}},
               "spec":{{"nodeName":"n1"{spec}}},"status":{{{status}}}}}"#
        )
    }

    fn pod(extra_meta: &str, spec: &str, status: &str) -> Pod {
        PodDecoder::default()
            .decode(&pod_json(extra_meta, spec, status))
            .unwrap()
            .expect("bound to a node")
    }

    #[test]
    fn a_bound_pod_keeps_what_decisions_need() {
        let pod = pod(
            r#","generation":3"#,
            r#","tolerations":[{"key":"a","operator":"Exists","effect":"NoExecute","tolerationSeconds":300},{"operator":"Exists"}]"#,
            r#""phase":"Running","conditions":[{"type":"PodScheduled","status":"True","lastTransitionTime":"2026-01-01T12:00:05Z"}]"#,
        );
        assert_eq!(pod.uid.to_string(), UID);
        assert_eq!(pod.reference().to_string(), "shop/web-0");
        assert_eq!(pod.node.as_str(), "n1");
        assert_eq!(pod.bound, "2026-01-01T12:00:05Z".parse().unwrap());
        assert_eq!(pod.class, PodClass::Ordinary);
        assert_eq!(pod.generation, 3);
        assert_eq!(pod.tolerations.len(), 2);
        assert_eq!(pod.tolerations[0].seconds, Some(300));
        assert_eq!(pod.tolerations[0].effect, Some(Effect::NoExecute));
        assert_eq!(pod.tolerations[1].effect, None);
        assert_eq!(pod.tolerations[1].operator, Operator::Exists);
    }

    #[test]
    fn without_a_scheduling_time_the_creation_counts() {
        assert_eq!(pod("", "", "").bound, "2026-01-01T12:00:00Z".parse().unwrap());
        let unscheduled = r#""conditions":[{"type":"PodScheduled","status":"False","lastTransitionTime":"2026-01-01T12:09:00Z"}]"#;
        assert_eq!(pod("", "", unscheduled).bound, "2026-01-01T12:00:00Z".parse().unwrap());
    }

    #[test]
    fn classes_are_told_apart() {
        let mirror = r#","annotations":{"kubernetes.io/config.mirror":"abc","other":"x"}"#;
        assert_eq!(pod(mirror, "", "").class, PodClass::Mirror);
        let deleted = r#","deletionTimestamp":"2026-01-01T12:00:30Z""#;
        assert_eq!(pod(deleted, "", "").class, PodClass::Terminating);
        assert_eq!(pod("", "", r#""phase":"Succeeded""#).class, PodClass::Finished);
        assert_eq!(pod("", "", r#""phase":"Failed""#).class, PodClass::Finished);
        assert_eq!(pod("", "", r#""phase":"Pending""#).class, PodClass::Ordinary);
    }

    #[test]
    fn a_disruption_condition_is_ours_only_with_our_reason_and_message() {
        let with = |status: &str, reason: &str, message: &str| {
            let condition = serde_json::json!({"type": "DisruptionTarget", "status": status,
                "reason": reason, "message": message});
            pod("", "", &format!(r#""conditions":[{condition}]"#)).disruption
        };
        let (reason, message) = (super::super::Mark::REASON, super::super::Mark::MESSAGE);
        assert_eq!(with("True", reason, message), Disruption::ByTaint);
        assert_eq!(with("False", reason, message), Disruption::None);
        assert_eq!(with("True", "EvictionByEvictionAPI", "x"), Disruption::Foreign);
        assert_eq!(with("True", reason, "x"), Disruption::Foreign);
    }

    #[test]
    fn a_pod_without_a_node_is_no_business_of_ours() {
        let json = pod_json("", "", "").replace("\"nodeName\":\"n1\"", "");
        assert_eq!(PodDecoder::default().decode(&json).unwrap(), None);
    }

    #[test]
    fn equal_toleration_lists_are_shared_and_forgotten_with_the_last_pod() {
        let mut decoder = PodDecoder::default();
        let json = pod_json("", r#","tolerations":[{"key":"a","operator":"Exists"}]"#, "");
        let one = decoder.decode(&json).unwrap().unwrap();
        let two = decoder.decode(&json).unwrap().unwrap();
        assert!(Arc::ptr_eq(&one.tolerations, &two.tolerations));
        assert!(Arc::ptr_eq(&one.node.0, &two.node.0));
        decoder.prune();
        assert_eq!(decoder.tolerations.len(), 1);
        drop((one, two));
        decoder.prune();
        decoder.prune(); // The texts that the forgotten list held go in the second round.
        assert_eq!((decoder.tolerations.len(), decoder.texts.len()), (0, 0));
    }

    #[test]
    fn a_node_keeps_its_no_execute_taints_and_the_record() {
        let json = format!(
            r#"{{"metadata":{{"name":"n1","uid":"{UID}","creationTimestamp":"2026-01-01T12:00:00Z",
            "annotations":{{"{}":"{{}}"}}}},"spec":{{"taints":[
            {{"key":"a","effect":"NoSchedule"}},
            {{"key":"b","value":"v","effect":"NoExecute","timeAdded":"2026-01-01T12:00:01Z"}}]}},
            "status":{{"conditions":[{{"type":"Ready","status":"False","lastTransitionTime":"2026-01-01T12:00:02Z"}}]}}}}"#,
            Node::SINCE_ANNOTATION,
        );
        let node = decode_node(&json).unwrap();
        assert_eq!(node.taints.len(), 1);
        assert_eq!(node.taints[0].to_string(), "b=v:NoExecute");
        assert_eq!(node.taints[0].time_added, Some("2026-01-01T12:00:01Z".parse().unwrap()));
        assert_eq!(node.ready.status, ReadyStatus::False);
        assert_eq!(node.since_annotation.as_deref(), Some("{}"));
    }

    #[test]
    fn a_broken_object_is_named_with_its_uid() {
        let json = pod_json("", r#","tolerations":"everything""#, "");
        let error = PodDecoder::default().decode(&json).unwrap_err();
        assert_eq!(error.object, "shop/web-0");
        assert_eq!(error.uid, Some(UID.parse().unwrap()));
        let error = PodDecoder::default().decode("{}").unwrap_err();
        assert_eq!((error.object.as_str(), error.uid), ("(no name)", None));
        let error = decode_node(&json.replace(UID, "web-0")).unwrap_err();
        assert!(error.to_string().contains("not a UID"), "{error}");
    }
}
