//! Decodes objects into the model: the few fields that decisions use.
//!
//! An object is read part by part. Name, UID and the node that a pod is bound to are required. Any other
//! part that cannot be read is ignored, reported as a [`Flaw`], and hides no other part. Ignoring it is
//! always safe: an unreadable toleration tolerates everything, because no pod must be evicted for
//! unreadable bytes, and an unreadable taint evicts no pod.
//!
//! The author of an object decides how much there is to read. So each list has a limit, and an object takes
//! time and memory in proportion to its length.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;

use super::Mark;
use super::intern::{Lists, Texts};
use super::wire::fields::{Malformed, Value, all, fields};
use crate::model::{
    ConditionStatus, Disruption, Effect, Node, NodeName, Pod, PodClass, Ready, Stamp, Taint, Uid,
    Version,
};

mod deletion;
mod drain_facts;
mod mark_author;
mod tolerations;
mod zone;

pub use deletion::{Deletion, decode_deletion};
pub use drain_facts::{Watched, decode_node_drain_facts};
pub use mark_author::{MarkAuthor, other_mark_author};
pub use zone::Zones;

/// Marks the API's shadow of a static pod; its value does not matter.
const MIRROR_ANNOTATION: &[u8] = b"kubernetes.io/config.mirror";
/// So many NoExecute taints are read of a node, and those of an outage whatever their place: each is
/// compared with the tolerations of every pod there.
const MOST_TAINTS: usize = 128;
/// So much is read of an annotation of ours, in bytes. The longest that we write is a tenth of it.
const LONGEST_ANNOTATION: usize = 32 << 10;

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

/// A part of an object that counts as absent, though something is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// The field, for example `spec.tolerations`.
    pub field: &'static str,
    /// What is wrong with it.
    pub cause: FlawCause,
}

/// What is wrong with a part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlawCause {
    /// It is not there, though the API server always writes it.
    Absent,
    /// It is no UTF-8.
    NoText,
    /// It breaks off or is mixed up.
    Malformed,
    /// There is more of it than is read.
    TooLong,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = match self.cause {
            FlawCause::Absent => "is missing",
            FlawCause::NoText => "is not UTF-8",
            FlawCause::Malformed => "is malformed",
            FlawCause::TooLong => "is too long",
        };
        write!(f, "{} {cause}", self.field)
    }
}

/// The flaws of one object, each once.
#[derive(Debug, Default)]
struct Flaws(Vec<Flaw>);

impl Flaws {
    fn add(&mut self, field: &'static str, cause: FlawCause) {
        let flaw = Flaw { field, cause };
        if !self.0.contains(&flaw) {
            self.0.push(flaw);
        }
    }

    /// The text that these bytes are; none if they are no UTF-8.
    fn text<'a>(&mut self, bytes: &'a [u8], field: &'static str) -> Option<&'a str> {
        let text = std::str::from_utf8(bytes).ok();
        if text.is_none() {
            self.add(field, FlawCause::NoText);
        }
        text
    }

    /// The value of an annotation of ours. What is no UTF-8 in it is replaced, as the API server does
    /// where it answers in JSON, and what is too long is cut: whoever reads it finds a record that it
    /// cannot read, and replaces it.
    fn annotation(&mut self, value: &[u8]) -> Arc<str> {
        const FIELD: &str = "metadata.annotations";
        let read = &value[..value.len().min(LONGEST_ANNOTATION)];
        if read.len() < value.len() {
            self.add(FIELD, FlawCause::TooLong);
        }
        match std::str::from_utf8(read) {
            Ok(text) => Arc::from(text),
            Err(error) => {
                // A character that was cut is no fault of who wrote it.
                if read.len() == value.len() || error.error_len().is_some() {
                    self.add(FIELD, FlawCause::NoText);
                }
                Arc::from(String::from_utf8_lossy(read))
            }
        }
    }
}

/// Decodes pods, sharing what they have in common.
#[derive(Debug, Default)]
pub struct PodDecoder {
    texts: Texts,
    tolerations: Lists,
    flaws: Flaws,
}

impl PodDecoder {
    /// The facts of a pod in protobuf, or `None` if it is not bound to a node.
    ///
    /// # Errors
    /// A field that is essential is absent or cannot be read.
    pub fn decode(&mut self, object: &Bytes) -> Result<Option<Pod>, DecodeError> {
        self.flaws.0.clear();
        let mut meta = Meta::default();
        self.facts(object, &mut meta).map_err(|reason| meta.broken(reason))
    }

    /// What could not be read of the pod that was decoded last.
    pub fn flaws(&self) -> &[Flaw] {
        &self.flaws.0
    }

    /// Forgets what no pod shares any more.
    pub fn prune(&mut self) {
        self.tolerations.prune();
        self.texts.prune();
    }

    fn facts<'a>(&mut self, object: &'a [u8], meta: &mut Meta<'a>) -> Result<Option<Pod>, String> {
        let Self { texts, tolerations, flaws } = self;
        let mut is_mirror = false;
        let mut spec = PodSpec::default();
        let mut status = PodStatus::default();
        for field in fields(object) {
            match field.map_err(|Malformed| BROKEN)? {
                (1, Value::Bytes(message)) => meta.read(message, flaws, |key, _| {
                    is_mirror |= key == MIRROR_ANNOTATION;
                }),
                (2, Value::Bytes(message)) => spec.read(message, flaws),
                (3, Value::Bytes(message)) => status.read(message, flaws),
                _ => {}
            }
        }
        if spec.node_name.is_empty() {
            return Ok(None);
        }
        let name = meta.name()?;
        let uid = meta.uid()?;
        let namespace = essential(meta.namespace, "metadata.namespace")?;
        let node = essential(spec.node_name, "spec.nodeName")?;
        let scheduled = status.scheduled.filter(|condition| condition.status == b"True");
        let scheduled = scheduled.and_then(|condition| time(condition.transition?));
        let bound = scheduled.or(meta.created).unwrap_or_else(|| {
            // Not known is later than any stamp: no countdown may end too early for want of it.
            flaws.add("metadata.creationTimestamp", FlawCause::Absent);
            Stamp::exact(Timestamp::MAX)
        });
        let class = if meta.deleted {
            PodClass::Terminating
        } else if is_mirror {
            PodClass::Mirror
        } else if matches!(status.phase, b"Succeeded" | b"Failed") {
            PodClass::Finished
        } else {
            PodClass::Ordinary
        };
        let disruption = match status.disruption {
            Some(c) if c.status != b"True" => Disruption::None,
            Some(c)
                if c.reason == Mark::REASON.as_bytes() && c.message == Mark::MESSAGE.as_bytes() =>
            {
                Disruption::ByTaint
            }
            Some(_) => Disruption::Foreign,
            None => Disruption::None,
        };
        let messages = all(object, 2).flat_map(|spec| all(spec, 22));
        let tolerations = if spec.is_cut {
            tolerations::read(texts, messages, true, flaws)
        } else {
            tolerations.get(messages, |messages| {
                let before = flaws.0.len();
                let list = tolerations::read(texts, messages, false, flaws);
                (list, flaws.0.len() == before)
            })
        };
        Ok(Some(Pod {
            uid,
            namespace: texts.get(namespace),
            name: Arc::from(name),
            node: NodeName(texts.get(node)),
            tolerations,
            bound,
            class,
            disruption,
            generation: meta.generation,
        }))
    }
}

/// Why an object whose parts cannot be told apart is not read.
const BROKEN: &str = "it is truncated or corrupt";

/// The metadata of an object.
#[derive(Debug, Default)]
struct Meta<'a> {
    name: &'a [u8],
    namespace: &'a [u8],
    uid: &'a [u8],
    version: &'a [u8],
    generation: i64,
    created: Option<Stamp>,
    deleted: bool,
}

impl<'a> Meta<'a> {
    /// Reads `meta.v1.ObjectMeta`, and hands over each annotation.
    fn read(
        &mut self,
        message: &'a [u8],
        flaws: &mut Flaws,
        mut annotation: impl FnMut(&'a [u8], &'a [u8]),
    ) {
        for field in fields(message) {
            match field {
                Ok((1, Value::Bytes(name))) => self.name = name,
                Ok((3, Value::Bytes(namespace))) => self.namespace = namespace,
                Ok((5, Value::Bytes(uid))) => self.uid = uid,
                Ok((6, Value::Bytes(version))) => self.version = version,
                Ok((7, value)) => self.generation = value.number().unwrap_or_default(),
                Ok((8, Value::Bytes(moment))) => self.created = time(moment),
                Ok((9, _)) => self.deleted = true,
                Ok((12, Value::Bytes(message))) => match entry(message) {
                    Ok((key, value)) => annotation(key, value),
                    Err(Malformed) => flaws.add("metadata.annotations", FlawCause::Malformed),
                },
                Ok(_) => {}
                Err(Malformed) => flaws.add("metadata", FlawCause::Malformed),
            }
        }
    }

    fn name(&self) -> Result<&'a str, String> {
        match essential(self.name, "metadata.name")? {
            "" => Err("metadata.name is missing".to_owned()),
            name => Ok(name),
        }
    }

    fn uid(&self) -> Result<Uid, String> {
        let wrong = |error: crate::model::ParseUidError| format!("metadata.uid: {error}");
        essential(self.uid, "metadata.uid")?.parse().map_err(wrong)
    }

    /// Says which object it was that cannot be read for this reason.
    fn broken(&self, reason: String) -> DecodeError {
        let name = String::from_utf8_lossy(self.name);
        let name = if name.is_empty() { "(no name)" } else { &name };
        DecodeError {
            object: if self.namespace.is_empty() {
                name.to_owned()
            } else {
                format!("{}/{name}", String::from_utf8_lossy(self.namespace))
            },
            uid: self.uid().ok(),
            reason,
        }
    }
}

/// What is read of `core.v1.PodSpec`, but for the tolerations.
#[derive(Debug, Default)]
struct PodSpec<'a> {
    node_name: &'a [u8],
    /// It breaks off, and with it perhaps the tolerations.
    is_cut: bool,
}

impl<'a> PodSpec<'a> {
    fn read(&mut self, message: &'a [u8], flaws: &mut Flaws) {
        for field in fields(message) {
            match field {
                Ok((10, Value::Bytes(name))) => self.node_name = name,
                Ok(_) => {}
                Err(Malformed) => {
                    self.is_cut = true;
                    flaws.add("spec", FlawCause::Malformed);
                }
            }
        }
    }
}

/// What is read of `core.v1.PodStatus`.
#[derive(Debug, Default)]
struct PodStatus<'a> {
    phase: &'a [u8],
    scheduled: Option<Condition<'a>>,
    disruption: Option<Condition<'a>>,
}

impl<'a> PodStatus<'a> {
    fn read(&mut self, message: &'a [u8], flaws: &mut Flaws) {
        for field in fields(message) {
            match field {
                Ok((1, Value::Bytes(phase))) => self.phase = phase,
                Ok((2, Value::Bytes(message))) => {
                    let Some(condition) = Condition::read(message, flaws) else { continue };
                    let place = match condition.kind {
                        b"PodScheduled" => &mut self.scheduled,
                        b"DisruptionTarget" => &mut self.disruption,
                        _ => continue,
                    };
                    place.get_or_insert(condition);
                }
                Ok(_) => {}
                Err(Malformed) => flaws.add("status", FlawCause::Malformed),
            }
        }
    }
}

/// `core.v1.PodCondition` or `core.v1.NodeCondition`: what is read of them has the same numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Condition<'a> {
    kind: &'a [u8],
    status: &'a [u8],
    heartbeat: Option<&'a [u8]>,
    transition: Option<&'a [u8]>,
    reason: &'a [u8],
    message: &'a [u8],
}

impl<'a> Condition<'a> {
    fn read(message: &'a [u8], flaws: &mut Flaws) -> Option<Self> {
        let mut condition = Self::default();
        for field in fields(message) {
            let Ok((number, value)) = field else {
                flaws.add("status.conditions", FlawCause::Malformed);
                return None;
            };
            let Some(bytes) = value.bytes() else { continue };
            match number {
                1 => condition.kind = bytes,
                2 => condition.status = bytes,
                3 => condition.heartbeat = Some(bytes),
                4 => condition.transition = Some(bytes),
                5 => condition.reason = bytes,
                6 => condition.message = bytes,
                _ => {}
            }
        }
        Some(condition)
    }
}

/// The facts of a node in protobuf.
///
/// # Errors
/// A field that is essential is absent or cannot be read.
pub fn decode_node(object: &Bytes) -> Result<Node, DecodeError> {
    read_node(object, None).map(|(node, _)| node)
}

/// The facts of a node in protobuf, with those that drain policies need where something is `watched`,
/// and what could not be read of it.
///
/// # Errors
/// A field that is essential is absent or cannot be read.
pub fn read_node(
    object: &Bytes,
    watched: Option<&Watched>,
) -> Result<(Node, Vec<Flaw>), DecodeError> {
    let (mut meta, mut flaws) = (Meta::default(), Flaws::default());
    let mut node = node(object, &mut meta, &mut flaws).map_err(|reason| meta.broken(reason))?;
    if let Some(watched) = watched {
        node.drain_facts =
            Some(Arc::new(drain_facts::read(object, meta.deleted, watched, &mut flaws)));
    }
    Ok((node, flaws.0))
}

fn node<'a>(object: &'a [u8], meta: &mut Meta<'a>, flaws: &mut Flaws) -> Result<Node, String> {
    let mut record = None;
    let mut taints = Vec::new();
    let mut ready = None;
    for field in fields(object) {
        match field.map_err(|Malformed| BROKEN)? {
            (1, Value::Bytes(message)) => meta.read(message, flaws, |key, value| {
                if key == Node::SINCE_ANNOTATION.as_bytes() {
                    record.get_or_insert(value);
                }
            }),
            (2, Value::Bytes(spec)) => read_taints(spec, &mut taints, flaws),
            (3, Value::Bytes(status)) => {
                for field in fields(status) {
                    match field {
                        Ok((4, Value::Bytes(message))) if ready.is_none() => {
                            let condition = Condition::read(message, flaws);
                            ready = condition.filter(|condition| condition.kind == b"Ready");
                        }
                        Ok(_) => {}
                        Err(Malformed) => flaws.add("status", FlawCause::Malformed),
                    }
                }
            }
            _ => {}
        }
    }
    Ok(Node {
        name: NodeName::from(meta.name()?),
        uid: meta.uid()?,
        version: Version::parse(&String::from_utf8_lossy(meta.version)),
        created: meta.created,
        taints: taints.into(),
        ready: Ready {
            status: match ready.map(|condition| condition.status) {
                Some(b"True") => ConditionStatus::True,
                Some(b"False") => ConditionStatus::False,
                _ => ConditionStatus::Unknown,
            },
            since: ready.and_then(|condition| time(condition.transition?)),
        },
        since_annotation: record.map(|record| flaws.annotation(record)),
        zone: None,
        drain_facts: None,
    })
}

/// The NoExecute taints of a `core.v1.NodeSpec`, after those that are there.
fn read_taints(spec: &[u8], taints: &mut Vec<Taint>, flaws: &mut Flaws) {
    for field in fields(spec) {
        match field {
            Ok((5, Value::Bytes(message))) => {
                let Some(taint) = taint(message, flaws) else { continue };
                if taints.len() < MOST_TAINTS || taint.is_outage() {
                    taints.push(taint);
                } else {
                    flaws.add("spec.taints", FlawCause::TooLong);
                }
            }
            Ok(_) => {}
            Err(Malformed) => flaws.add("spec", FlawCause::Malformed),
        }
    }
}

/// A taint with effect NoExecute.
fn taint(message: &[u8], flaws: &mut Flaws) -> Option<Taint> {
    let (mut key, mut value, mut effect, mut added) = (&[][..], &[][..], &[][..], None);
    for field in fields(message) {
        match field {
            Ok((1, Value::Bytes(bytes))) => key = bytes,
            Ok((2, Value::Bytes(bytes))) => value = bytes,
            Ok((3, Value::Bytes(bytes))) => effect = bytes,
            Ok((4, Value::Bytes(moment))) => added = time(moment),
            Ok(_) => {}
            Err(Malformed) => {
                flaws.add("spec.taints", FlawCause::Malformed);
                return None;
            }
        }
    }
    if effect != b"NoExecute" {
        return None;
    }
    Some(Taint {
        key: Arc::from(flaws.text(key, "spec.taints.key")?),
        value: Arc::from(flaws.text(value, "spec.taints.value")?),
        effect: Effect::NoExecute,
        time_added: added,
    })
}

/// An entry of a map of texts.
fn entry(message: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let (mut key, mut value) = (&[][..], &[][..]);
    for field in fields(message) {
        match field? {
            (1, Value::Bytes(bytes)) => key = bytes,
            (2, Value::Bytes(bytes)) => value = bytes,
            _ => {}
        }
    }
    Ok((key, value))
}

/// A text that nothing can be done without.
fn essential<'a>(bytes: &'a [u8], field: &str) -> Result<&'a str, String> {
    std::str::from_utf8(bytes).map_err(|error| format!("{field}: {error}"))
}

/// A `meta.v1.Time`. The server knows whole seconds only, and a time without them is none. One that is
/// beyond the end of time (some write the last second of the year 9999 for "never") is that end: an
/// object is not to be lost for it.
fn time(message: &[u8]) -> Option<Stamp> {
    let mut seconds = None;
    for field in fields(message) {
        if let (1, value) = field.ok()? {
            seconds = value.number();
        }
    }
    let seconds = seconds?;
    let end = if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Some(Timestamp::from_second(seconds).map_or(Stamp::exact(end), Stamp::of_second))
}

#[cfg(test)]
pub(super) mod tests {
    use prost::Message;

    use super::*;
    use crate::cluster::wire;
    use crate::model::Operator;
    use crate::model::build::at;

    const UID: &str = "0a1b2c3d-4e5f-4677-8899-aabbccddeeff";
    const MIRROR: &str = "kubernetes.io/config.mirror";

    /// What is stored of what happened in this second after noon.
    pub(in crate::cluster) fn stored(second: i64) -> Stamp {
        Stamp::of_second(at(second))
    }

    pub(super) fn seconds(text: &str) -> wire::Time {
        wire::Time { seconds: Some(text.parse::<Timestamp>().unwrap().as_second()) }
    }

    pub(super) fn entry(key: &str, value: &str) -> wire::MapEntry {
        wire::MapEntry { key: Bytes::from(key.to_owned()), value: Bytes::from(value.to_owned()) }
    }

    /// A pod `shop/web-0` on `n1`, created at noon, with these changes.
    pub(super) fn wire_pod(change: impl FnOnce(&mut wire::Pod)) -> Bytes {
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
        assert_eq!(pod.bound, stored(5));
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
        let noon = stored(0);
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
            pod.metadata.annotations = vec![entry("other", "x"), entry(MIRROR, "abc")];
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
            pod.metadata.annotations = vec![entry(MIRROR, "abc")];
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
        assert_eq!(node.taints[0].time_added, Some(stored(1)));
        assert_eq!(node.ready.status, ConditionStatus::False);
        assert_eq!(node.ready.since, Some(stored(2)));
        assert_eq!(node.since_annotation.as_deref(), Some("{}"));
        let plain = decode_node(&wire_node(|_| ())).unwrap();
        assert!(plain.taints.is_empty() && plain.since_annotation.is_none());
        assert_eq!(plain.ready, Ready { status: ConditionStatus::Unknown, since: None });
    }

    #[test]
    fn a_time_beyond_the_end_of_time_hides_no_object() {
        // 9999-12-31T23:59:59Z, which means "never" to some, and a time that the API cannot hold.
        for (seconds, read) in [(253_402_300_799, Timestamp::MAX), (i64::MIN, Timestamp::MIN)] {
            let read = Stamp::exact(read);
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
        for bad in [cut, not_a_text] {
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

    /// The pod, and what could not be read of it.
    fn flawed(change: impl FnOnce(&mut wire::Pod)) -> (Pod, Vec<String>) {
        let mut decoder = PodDecoder::default();
        let pod = decoder.decode(&wire_pod(change)).unwrap().expect("bound to a node");
        (pod, decoder.flaws().iter().map(ToString::to_string).collect())
    }

    #[test]
    fn no_part_that_can_be_done_without_hides_a_pod() {
        let no_text = || Bytes::from_static(b"\xff");
        let (pod, flaws) = flawed(|pod| {
            pod.status.phase = no_text();
            pod.metadata.annotations = vec![wire::MapEntry { key: no_text(), value: no_text() }];
            let condition = || wire::Condition { r#type: no_text(), ..Default::default() };
            pod.status.conditions = vec![
                condition(),
                wire::Condition { r#type: "PodScheduled".into(), reason: no_text(), ..condition() },
            ];
        });
        assert_eq!((pod.class, flaws), (PodClass::Ordinary, vec![]), "nobody needs any of it");
        let (pod, flaws) = flawed(|pod| pod.metadata.creation_timestamp = None);
        assert_eq!(pod.bound, Stamp::exact(Timestamp::MAX), "no countdown of it ends too early");
        assert_eq!(flaws, ["metadata.creationTimestamp is missing"]);
    }

    #[test]
    fn a_part_that_breaks_off_costs_itself_and_never_evicts_early() {
        let whole = wire::Pod::decode(wire_pod(|pod| {
            pod.metadata.deletion_timestamp = Some(seconds("2026-01-01T12:00:30Z"));
            tolerating(pod, &no_execute("a"));
        }));
        let whole = whole.unwrap();
        let part = |number: u8, bytes: Vec<u8>| {
            let length = u8::try_from(bytes.len()).unwrap();
            [vec![number << 3 | 2, length], bytes].concat()
        };
        let broken_off = |mut bytes: Vec<u8>| {
            bytes.extend([0x0a, 9]);
            bytes
        };
        let (meta, spec) = (whole.metadata.encode_to_vec(), whole.spec.encode_to_vec());
        let object = [
            part(1, broken_off(meta)),
            part(2, broken_off(spec)),
            part(3, broken_off(b"\x0a\x06Failed".to_vec())),
        ];
        let mut decoder = PodDecoder::default();
        let pod = decoder.decode(&object.concat().into()).unwrap().expect("bound to a node");
        assert_eq!(pod.class, PodClass::Terminating);
        let keys: Vec<_> = pod.tolerations.iter().map(|t| (&*t.key, t.seconds)).collect();
        assert_eq!(keys, [("a", None), ("", None)], "what may have followed tolerates everything");
        let said: Vec<_> = decoder.flaws().iter().map(ToString::to_string).collect();
        assert_eq!(said, ["metadata is malformed", "spec is malformed", "status is malformed"]);
    }

    fn no_execute(key: &str) -> wire::Toleration {
        wire::Toleration {
            key: key.to_owned().into(),
            operator: "Exists".into(),
            effect: "NoExecute".into(),
            ..Default::default()
        }
    }

    #[test]
    fn an_unreadable_toleration_tolerates_everything_and_those_before_it_count_first() {
        let no_text = wire::Toleration { value: Bytes::from_static(b"\xff"), ..no_execute("b") };
        for bad in [Bytes::from_static(b"\x0a"), no_text.encode_to_vec().into()] {
            let mut decoder = PodDecoder::default();
            let object = wire_pod(|pod| {
                let some = wire::Toleration { toleration_seconds: Some(5), ..no_execute("a") };
                tolerating(pod, &some);
                pod.spec.tolerations.push(bad);
                tolerating(pod, &no_execute("c"));
            });
            for _ in 0..2 {
                let pod = decoder.decode(&object).unwrap().unwrap();
                let [first, rest] = &*pod.tolerations else { panic!("{:?}", pod.tolerations) };
                assert_eq!((&*first.key, first.seconds), ("a", Some(5)));
                assert_eq!((&*rest.key, rest.operator, rest.seconds), ("", Operator::Exists, None));
                assert_eq!((rest.effect, rest.index), (None, 1));
                assert_eq!(decoder.flaws().len(), 1, "said of each pod that has it");
            }
        }
    }

    #[test]
    fn tolerations_that_cannot_count_are_not_kept_and_the_others_keep_their_place() {
        let (pod, flaws) = flawed(|pod| {
            let other = |effect: &'static str| wire::Toleration {
                effect: effect.into(),
                ..no_execute("other")
            };
            for effect in ["NoSchedule", "PreferNoSchedule", "Strange"] {
                tolerating(pod, &other(effect));
            }
            let strange = wire::Toleration { operator: "Like".into(), ..no_execute("x") };
            tolerating(pod, &strange);
            tolerating(pod, &no_execute("a"));
            let again = wire::Toleration { toleration_seconds: Some(9), ..no_execute("a") };
            tolerating(pod, &again);
            tolerating(pod, &wire::Toleration { effect: "".into(), ..no_execute("b") });
            tolerating(pod, &wire::Toleration { toleration_seconds: Some(7), ..no_execute("") });
            tolerating(pod, &no_execute("hidden"));
        });
        let kept: Vec<_> = pod.tolerations.iter().map(|t| (t.index, &*t.key, t.seconds)).collect();
        assert_eq!(kept, [(4, "a", None), (6, "b", None), (7, "", Some(7))]);
        assert!(flaws.is_empty(), "{flaws:?}");
    }

    #[test]
    fn of_more_tolerations_than_anybody_needs_the_first_count_and_the_rest_tolerates_everything() {
        let many = |length: usize| {
            flawed(|pod| {
                for number in 0..10_000 {
                    let key = format!("{number:0length$}");
                    tolerating(pod, &no_execute(&key));
                }
            })
        };
        for (length, most) in [(5, 64), (300, 13)] {
            let (pod, flaws) = many(length);
            assert_eq!(pod.tolerations.len(), most + 1);
            let rest = pod.tolerations.last().unwrap();
            assert_eq!((&*rest.key, rest.seconds, rest.index as usize), ("", None, most));
            assert_eq!(flaws, ["spec.tolerations is too long"]);
        }
    }

    #[test]
    fn of_more_taints_than_anybody_needs_the_first_count_and_those_of_an_outage() {
        let object = wire_node(|node| {
            let taint = |key: String| wire::Taint {
                key: key.into(),
                effect: "NoExecute".into(),
                ..wire::Taint::default()
            };
            node.spec.taints = (0..10_000).map(|number| taint(number.to_string())).collect();
            node.spec.taints.push(taint(Taint::UNREACHABLE.to_owned()));
            node.spec.taints.insert(
                0,
                wire::Taint { key: Bytes::from_static(b"\xff"), ..taint(String::new()) },
            );
        });
        let (node, flaws) = read_node(&object, None).unwrap();
        assert_eq!(node.taints.len(), MOST_TAINTS + 1);
        assert!(node.taints.last().unwrap().is_outage());
        assert_eq!(&*node.taints[0].key, "0", "one that cannot be read removes nobody");
        let said: Vec<_> = flaws.iter().map(ToString::to_string).collect();
        let expected = ["spec.taints.key is not UTF-8", "spec.taints is too long"];
        assert_eq!(said, expected);
    }

    #[test]
    fn an_annotation_of_ours_is_read_up_to_its_bound_and_cut_between_characters() {
        let long = "é".repeat(LONGEST_ANNOTATION);
        let object = wire_node(|node| {
            node.metadata.annotations = vec![entry(Node::SINCE_ANNOTATION, &format!("x{long}"))];
        });
        let (node, flaws) = read_node(&object, None).unwrap();
        let record = node.since_annotation.unwrap();
        assert!(record.len() <= LONGEST_ANNOTATION + 2, "{}", record.len());
        let said: Vec<_> = flaws.iter().map(ToString::to_string).collect();
        assert_eq!(said, ["metadata.annotations is too long"]);
    }
}
