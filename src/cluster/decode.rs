//! From the wire to the model: the few fields that decisions are made from.

use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use prost::Message;

use super::Mark;
use super::intern::{Lists, Texts};
use super::wire;
use crate::model::{
    ConditionStatus, Disruption, Effect, Node, NodeName, Operator, Pod, PodClass, Ready, Taint,
    Toleration, Uid,
};

mod upkeep;

pub use upkeep::{Watched, decode_node_upkeep};

/// Marks the API's shadow of a static pod; its value does not matter.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

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
    /// Empty between two pods; kept for the room in its lists.
    wire: wire::Pod,
    texts: Texts,
    tolerations: Lists,
}

impl PodDecoder {
    /// The facts of a pod in protobuf, or `None` if it is not bound to a node.
    ///
    /// # Errors
    /// A field that is needed is absent or cannot be read.
    pub fn decode(&mut self, object: &Bytes) -> Result<Option<Pod>, DecodeError> {
        let mut wire = std::mem::take(&mut self.wire);
        let read = wire.merge(object.clone()).map_err(|error| error.to_string());
        let facts = read.and_then(|()| self.facts(&wire));
        wire.clear(); // Or it would hold on to the body that the object came in.
        self.wire = wire;
        facts.map_err(|reason| broken(object, reason))
    }

    /// Forgets what no pod shares any more.
    pub fn prune(&mut self) {
        self.tolerations.prune();
        self.texts.prune();
    }

    fn facts(&mut self, wire: &wire::Pod) -> Result<Option<Pod>, String> {
        let (meta, spec, status) = (&wire.metadata, &wire.spec, &wire.status);
        if spec.node_name.is_empty() {
            return Ok(None);
        }
        let scheduled =
            condition(&status.conditions, "PodScheduled").filter(|c| c.status == "True");
        let bound = scheduled
            .and_then(|c| time(c.last_transition_time))
            .or_else(|| time(meta.creation_timestamp))
            .ok_or("metadata.creationTimestamp is absent")?;
        let class = if meta.deletion_timestamp.is_some() {
            PodClass::Terminating
        } else if annotation(meta, MIRROR_ANNOTATION).is_some() {
            PodClass::Mirror
        } else if matches!(&status.phase[..], b"Succeeded" | b"Failed") {
            PodClass::Finished
        } else {
            PodClass::Ordinary
        };
        let disruption = match condition(&status.conditions, "DisruptionTarget") {
            Some(c) if c.status != "True" => Disruption::None,
            Some(c) if c.reason == Mark::REASON && c.message == Mark::MESSAGE => {
                Disruption::ByTaint
            }
            Some(_) => Disruption::Foreign,
            None => Disruption::None,
        };
        let texts = &mut self.texts;
        let tolerations = self.tolerations.get(&spec.tolerations, |messages| {
            messages.iter().map(|message| toleration(texts, message)).collect()
        })?;
        Ok(Some(Pod {
            uid: uid(meta)?,
            namespace: self.texts.get(text(&meta.namespace, "metadata.namespace")?),
            name: Arc::from(name(meta)?),
            node: NodeName(self.texts.get(text(&spec.node_name, "spec.nodeName")?)),
            tolerations,
            bound,
            class,
            disruption,
            generation: meta.generation,
        }))
    }
}

fn toleration(texts: &mut Texts, message: &Bytes) -> Result<Toleration, String> {
    let wrong = |error: prost::DecodeError| format!("spec.tolerations: {error}");
    let wire = wire::Toleration::decode(message.clone()).map_err(wrong)?;
    let effect = text(&wire.effect, "spec.tolerations.effect")?;
    Ok(Toleration {
        key: texts.get(text(&wire.key, "spec.tolerations.key")?),
        operator: Operator::parse(text(&wire.operator, "spec.tolerations.operator")?),
        value: texts.get(text(&wire.value, "spec.tolerations.value")?),
        effect: (!effect.is_empty()).then(|| Effect::parse(effect)),
        seconds: wire.toleration_seconds,
    })
}

/// The facts of a node in protobuf.
///
/// # Errors
/// A field that is needed is absent or cannot be read.
pub fn decode_node(object: &Bytes) -> Result<Node, DecodeError> {
    let read = wire::Node::decode(object.clone()).map_err(|error| error.to_string());
    read.and_then(|wire| node(&wire)).map_err(|reason| broken(object, reason))
}

fn node(wire: &wire::Node) -> Result<Node, String> {
    let ready = condition(&wire.status.conditions, "Ready");
    let record = annotation(&wire.metadata, Node::SINCE_ANNOTATION);
    let removing = wire.spec.taints.iter().filter(|taint| taint.effect == "NoExecute");
    Ok(Node {
        name: NodeName::from(name(&wire.metadata)?),
        uid: uid(&wire.metadata)?,
        taints: removing.map(taint).collect::<Result<_, _>>()?,
        ready: Ready {
            status: match ready.map(|c| &c.status[..]) {
                Some(b"True") => ConditionStatus::True,
                Some(b"False") => ConditionStatus::False,
                _ => ConditionStatus::Unknown,
            },
            since: ready.and_then(|c| time(c.last_transition_time)),
        },
        since_annotation: match record {
            Some(record) => Some(Arc::from(text(record, "metadata.annotations")?)),
            None => None,
        },
        upkeep: None,
    })
}

fn taint(wire: &wire::Taint) -> Result<Taint, String> {
    Ok(Taint {
        key: Arc::from(text(&wire.key, "spec.taints.key")?),
        value: Arc::from(text(&wire.value, "spec.taints.value")?),
        effect: Effect::NoExecute,
        time_added: time(wire.time_added),
    })
}

fn uid(meta: &wire::ObjectMeta) -> Result<Uid, String> {
    let wrong = |error: crate::model::ParseUidError| format!("metadata.uid: {error}");
    text(&meta.uid, "metadata.uid")?.parse().map_err(wrong)
}

fn name(meta: &wire::ObjectMeta) -> Result<&str, String> {
    match text(&meta.name, "metadata.name")? {
        "" => Err("metadata.name is absent".to_owned()),
        name => Ok(name),
    }
}

fn condition<'a>(conditions: &'a [wire::Condition], kind: &str) -> Option<&'a wire::Condition> {
    conditions.iter().find(|condition| condition.r#type == kind)
}

fn annotation<'a>(meta: &'a wire::ObjectMeta, key: &str) -> Option<&'a Bytes> {
    meta.annotations.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
}

fn text<'a>(bytes: &'a Bytes, field: &str) -> Result<&'a str, String> {
    std::str::from_utf8(bytes).map_err(|error| format!("{field}: {error}"))
}

/// The server knows whole seconds only, and a time without them is none. One that is beyond the end
/// of time (some write the last second of the year 9999 for "never") is that end: an object is not
/// to be lost for it.
fn time(wire: Option<wire::Time>) -> Option<Timestamp> {
    let seconds = wire?.seconds?;
    let end = if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Some(Timestamp::from_second(seconds).unwrap_or(end))
}

/// Says which object it was, reading its metadata alone and up to where it breaks.
fn broken(object: &Bytes, reason: impl Display) -> DecodeError {
    let mut wire = wire::Object::default();
    let _ = wire.merge(object.clone());
    let meta = wire.metadata;
    let name = String::from_utf8_lossy(&meta.name);
    let name = if name.is_empty() { "(no name)" } else { &name };
    DecodeError {
        object: if meta.namespace.is_empty() {
            name.to_owned()
        } else {
            format!("{}/{name}", String::from_utf8_lossy(&meta.namespace))
        },
        uid: uid(&meta).ok(),
        reason: reason.to_string(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const UID: &str = "0a1b2c3d-4e5f-4677-8899-aabbccddeeff";

    pub(super) fn seconds(text: &str) -> wire::Time {
        wire::Time { seconds: Some(text.parse::<Timestamp>().unwrap().as_second()) }
    }

    pub(super) fn entry(key: &str, value: &str) -> wire::MapEntry {
        wire::MapEntry { key: Bytes::from(key.to_owned()), value: Bytes::from(value.to_owned()) }
    }

    /// A pod `shop/web-0` on `n1`, created at noon, with these changes.
    fn wire_pod(change: impl FnOnce(&mut wire::Pod)) -> Bytes {
        let mut pod = wire::Pod::default();
        pod.metadata.name = "web-0".into();
        pod.metadata.namespace = "shop".into();
        pod.metadata.uid = UID.into();
        pod.metadata.creation_timestamp = Some(seconds("2026-01-01T12:00:00Z"));
        pod.spec.node_name = "n1".into();
        change(&mut pod);
        pod.encode_to_vec().into()
    }

    fn pod(change: impl FnOnce(&mut wire::Pod)) -> Pod {
        PodDecoder::default().decode(&wire_pod(change)).unwrap().expect("bound to a node")
    }

    pub(super) fn scheduled(status: &'static str, at: &str) -> wire::Condition {
        wire::Condition {
            r#type: "PodScheduled".into(),
            status: status.into(),
            last_transition_time: Some(seconds(at)),
            ..wire::Condition::default()
        }
    }

    fn tolerating(pod: &mut wire::Pod, toleration: &wire::Toleration) {
        pod.spec.tolerations.push(toleration.encode_to_vec().into());
    }

    #[test]
    fn a_bound_pod_keeps_what_decisions_need() {
        let pod = pod(|pod| {
            pod.metadata.generation = 3;
            let exists = wire::Toleration { operator: "Exists".into(), ..Default::default() };
            let some = wire::Toleration {
                key: "a".into(),
                effect: "NoExecute".into(),
                toleration_seconds: Some(300),
                ..exists.clone()
            };
            tolerating(pod, &some);
            tolerating(pod, &exists);
            pod.status.phase = "Running".into();
            pod.status.conditions.push(scheduled("True", "2026-01-01T12:00:05Z"));
        });
        assert_eq!(pod.uid.to_string(), UID);
        assert_eq!(pod.reference().to_string(), "shop/web-0");
        assert_eq!(pod.node.as_str(), "n1");
        assert_eq!(pod.bound, "2026-01-01T12:00:05Z".parse().unwrap());
        assert_eq!(pod.class, PodClass::Ordinary);
        assert_eq!(pod.generation, 3);
        assert_eq!(pod.tolerations.len(), 2);
        assert_eq!(&*pod.tolerations[0].key, "a");
        assert_eq!(pod.tolerations[0].seconds, Some(300));
        assert_eq!(pod.tolerations[0].effect, Some(Effect::NoExecute));
        assert_eq!(pod.tolerations[1].effect, None);
        assert_eq!(pod.tolerations[1].operator, Operator::Exists);
        assert_eq!(pod.tolerations[1].seconds, None);
    }

    #[test]
    fn tolerated_seconds_of_zero_are_not_for_ever() {
        let pod = pod(|pod| {
            let zero = wire::Toleration { toleration_seconds: Some(0), ..Default::default() };
            tolerating(pod, &zero);
        });
        assert_eq!(pod.tolerations[0].seconds, Some(0));
    }

    #[test]
    fn without_a_scheduling_time_the_creation_counts() {
        let noon = "2026-01-01T12:00:00Z".parse().unwrap();
        assert_eq!(pod(|_| ()).bound, noon);
        let with = |condition| pod(|pod| pod.status.conditions.push(condition)).bound;
        assert_eq!(with(scheduled("False", "2026-01-01T12:09:00Z")), noon);
        // A time that was never set is a message without seconds.
        let never = Some(wire::Time { seconds: None });
        let mut condition = scheduled("True", "2026-01-01T12:09:00Z");
        condition.last_transition_time = never;
        assert_eq!(with(condition), noon);
    }

    #[test]
    fn classes_are_told_apart() {
        let mirror = pod(|pod| {
            pod.metadata.annotations = vec![entry("other", "x"), entry(MIRROR_ANNOTATION, "abc")];
        });
        assert_eq!(mirror.class, PodClass::Mirror);
        let deleted = pod(|pod| {
            pod.metadata.deletion_timestamp = Some(seconds("2026-01-01T12:00:30Z"));
        });
        assert_eq!(deleted.class, PodClass::Terminating);
        let in_phase = |phase: &'static str| pod(|pod| pod.status.phase = phase.into()).class;
        assert_eq!(in_phase("Succeeded"), PodClass::Finished);
        assert_eq!(in_phase("Failed"), PodClass::Finished);
        assert_eq!(in_phase("Pending"), PodClass::Ordinary);
    }

    #[test]
    fn a_disruption_condition_is_ours_only_with_our_reason_and_message() {
        let with = |status: &'static str, reason: &'static str, message: &'static str| {
            pod(|pod| {
                pod.status.conditions.push(wire::Condition {
                    r#type: "DisruptionTarget".into(),
                    status: status.into(),
                    reason: reason.into(),
                    message: message.into(),
                    ..wire::Condition::default()
                });
            })
            .disruption
        };
        let (reason, message) = (Mark::REASON, Mark::MESSAGE);
        assert_eq!(with("True", reason, message), Disruption::ByTaint);
        assert_eq!(with("False", reason, message), Disruption::None);
        assert_eq!(with("True", "EvictionByEvictionAPI", "x"), Disruption::Foreign);
        assert_eq!(with("True", reason, "x"), Disruption::Foreign);
    }

    #[test]
    fn a_pod_without_a_node_is_no_business_of_ours() {
        let unbound = wire_pod(|pod| pod.spec.node_name = Bytes::new());
        assert_eq!(PodDecoder::default().decode(&unbound).unwrap(), None);
    }

    #[test]
    fn equal_toleration_lists_are_shared_and_forgotten_with_the_last_pod() {
        let mut decoder = PodDecoder::default();
        let wire = wire_pod(|pod| tolerating(pod, &wire::Toleration::default()));
        let one = decoder.decode(&wire).unwrap().unwrap();
        let two = decoder.decode(&wire).unwrap().unwrap();
        assert!(Arc::ptr_eq(&one.tolerations, &two.tolerations));
        assert!(Arc::ptr_eq(&one.node.0, &two.node.0));
        decoder.prune();
        assert_eq!(decoder.tolerations.len(), 1);
        drop((one, two));
        decoder.prune();
        assert_eq!((decoder.tolerations.len(), decoder.texts.len()), (0, 0));
    }

    #[test]
    fn nothing_of_one_pod_shows_in_the_next() {
        let mut decoder = PodDecoder::default();
        let rich = wire_pod(|pod| {
            pod.metadata.annotations = vec![entry(MIRROR_ANNOTATION, "abc")];
            pod.metadata.generation = 9;
            tolerating(pod, &wire::Toleration::default());
            pod.status.conditions.push(scheduled("True", "2026-01-01T12:09:00Z"));
        });
        let broken = wire_pod(|pod| {
            pod.metadata.generation = 9;
            pod.metadata.uid = "web-0".into();
        });
        decoder.decode(&rich).unwrap();
        decoder.decode(&broken).unwrap_err();
        assert_eq!(decoder.decode(&wire_pod(|_| ())).unwrap().unwrap(), pod(|_| ()));
    }

    pub(super) fn wire_node(change: impl FnOnce(&mut wire::Node)) -> Bytes {
        let mut node = wire::Node::default();
        node.metadata.name = "n1".into();
        node.metadata.uid = UID.into();
        change(&mut node);
        node.encode_to_vec().into()
    }

    #[test]
    fn a_node_keeps_its_no_execute_taints_and_the_record() {
        let node = decode_node(&wire_node(|node| {
            node.metadata.annotations = vec![entry(Node::SINCE_ANNOTATION, "{}")];
            let harmless = wire::Taint {
                key: "a".into(),
                effect: "NoSchedule".into(),
                ..wire::Taint::default()
            };
            let taint = wire::Taint {
                key: "b".into(),
                value: "v".into(),
                effect: "NoExecute".into(),
                time_added: Some(seconds("2026-01-01T12:00:01Z")),
            };
            node.spec.taints = vec![harmless, taint];
            node.status.conditions.push(wire::Condition {
                r#type: "Ready".into(),
                ..scheduled("False", "2026-01-01T12:00:02Z")
            });
        }))
        .unwrap();
        assert_eq!(node.taints.len(), 1);
        assert_eq!(node.taints[0].to_string(), "b=v:NoExecute");
        assert_eq!(node.taints[0].time_added, Some("2026-01-01T12:00:01Z".parse().unwrap()));
        assert_eq!(node.ready.status, ConditionStatus::False);
        assert_eq!(node.ready.since, Some("2026-01-01T12:00:02Z".parse().unwrap()));
        assert_eq!(node.since_annotation.as_deref(), Some("{}"));
        let plain = decode_node(&wire_node(|_| ())).unwrap();
        assert!(plain.taints.is_empty() && plain.since_annotation.is_none());
        assert_eq!(plain.ready, Ready { status: ConditionStatus::Unknown, since: None });
    }

    #[test]
    fn a_time_beyond_the_end_of_time_hides_no_object() {
        // 9999-12-31T23:59:59Z, which means "never" to some, and a time that the API cannot hold.
        for (seconds, read) in [(253_402_300_799, Timestamp::MAX), (i64::MIN, Timestamp::MIN)] {
            let never = Some(wire::Time { seconds: Some(seconds) });
            let node = decode_node(&wire_node(|node| {
                let taint = wire::Taint { time_added: never, ..wire::Taint::default() };
                node.spec.taints = vec![wire::Taint { effect: "NoExecute".into(), ..taint }];
                let condition = wire::Condition { r#type: "Ready".into(), ..Default::default() };
                node.status.conditions =
                    vec![wire::Condition { last_transition_time: never, ..condition }];
            }))
            .unwrap();
            assert_eq!((node.taints[0].time_added, node.ready.since), (Some(read), Some(read)));
            assert_eq!(pod(|pod| pod.metadata.creation_timestamp = never).bound, read);
        }
    }

    #[test]
    fn a_broken_object_is_named_with_its_uid() {
        let mut decoder = PodDecoder::default();
        // The spec claims to be longer than the object is.
        let whole = wire_pod(|_| ());
        let cut = whole.slice(..whole.len() - 3);
        let not_a_text = wire_pod(|pod| pod.spec.node_name = Bytes::from_static(b"\xff"));
        let not_a_list = wire_pod(|pod| pod.spec.tolerations = vec![Bytes::from_static(b"\x0a")]);
        for bad in [cut, not_a_text, not_a_list] {
            let error = decoder.decode(&bad).unwrap_err();
            assert_eq!(error.object, "shop/web-0", "{error}");
            assert_eq!(error.uid, Some(UID.parse().unwrap()), "{error}");
        }
        let nameless = wire_pod(|pod| pod.metadata.name = Bytes::new());
        assert_eq!(decoder.decode(&nameless).unwrap_err().object, "shop/(no name)");
        let error = decode_node(&Bytes::new()).unwrap_err();
        assert_eq!((error.object.as_str(), error.uid), ("(no name)", None));
        let error = decode_node(&wire_node(|node| node.metadata.uid = "n1".into())).unwrap_err();
        assert!(error.to_string().contains("not a UID"), "{error}");
    }
}
