//! The API server's protobuf: the envelope and the fields that are used.
//!
//! Reading an object of 5 KB skips nine tenths of it. The messages contain only the fields that a decision
//! needs, with the field numbers from the `generated.proto` files of `k8s.io/api` and
//! `k8s.io/apimachinery`; other fields are skipped. Strings and nested objects are slices of the response
//! body, so reading allocates almost nothing.
//!
//! Two forms wrap an object:
//!
//! - the *envelope* ([`open`], [`seal`]): four magic bytes, then a message with the kind and the
//!   bytes of the object. Answers to lists and single reads are one envelope; errors too.
//! - the *frame* of a watch ([`Frames`], [`Event`], [`frame`]): the length in four bytes, big end
//!   first, then a message with the type of the event and an envelope.
//!
//! [`PodDecoder`](super::PodDecoder) and [`decode_node`](super::decode_node) interpret the fields.
//! The encoders are for simulated servers.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

pub(super) mod fields;

/// Media type of objects and lists.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// Media type of watches.
pub const WATCH_MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf;stream=watch";
/// What every envelope begins with. The last byte is the version of the form.
const MAGIC: [u8; 4] = *b"k8s\0";
/// An object of the API is at most 1.5 MiB (etcd's limit); what is longer is no event.
pub const LONGEST_FRAME: usize = 8 << 20;
/// So much room is kept for the next frame.
const ROOM: usize = 64 << 10;
/// Length of the length before each frame.
const PREFIX: usize = 4;

/// Bytes that are not what they should be.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum WireError {
    /// They do not begin as an envelope does.
    #[error("not Kubernetes protobuf: {0}")]
    NoEnvelope(String),
    /// They hold something else.
    #[error("a {found} instead of a {expected}")]
    OtherKind {
        /// The kind that was asked for.
        expected: String,
        /// The kind that came.
        found: String,
    },
    /// They are cut short or mixed up.
    #[error("invalid protobuf: {0}")]
    Malformed(String),
    /// Longer than any event.
    #[error("an event claims to be {length} bytes long, and {LONGEST_FRAME} is the limit: {begin}")]
    TooLong {
        /// The length that it claims.
        length: usize,
        /// The beginning of what came.
        begin: String,
    },
}

impl From<prost::DecodeError> for WireError {
    fn from(error: prost::DecodeError) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// The bytes of the object in an envelope, which must be of this kind.
///
/// # Errors
/// See [`WireError`].
pub fn open(envelope: &Bytes, kind: &str) -> Result<Bytes, WireError> {
    if !envelope.starts_with(&MAGIC) {
        return Err(WireError::NoEnvelope(excerpt(envelope)));
    }
    let Unknown { type_meta, raw } = Unknown::decode(envelope.slice(MAGIC.len()..))?;
    if type_meta.kind == kind {
        return Ok(raw);
    }
    let found = String::from_utf8_lossy(&type_meta.kind).into_owned();
    Err(WireError::OtherKind { expected: kind.to_owned(), found })
}

/// The version of an object; none if it has none that can be read.
pub(super) fn version(object: &[u8]) -> Option<&str> {
    let versions = fields::all(object, 1).flat_map(|metadata| fields::all(metadata, 6));
    versions.last().and_then(|version| std::str::from_utf8(version).ok()).filter(|v| !v.is_empty())
}

/// Puts an object into an envelope.
pub fn seal(kind: &str, object: &impl Message) -> Bytes {
    envelope(kind, object.encode_to_vec())
}

/// Puts an object that is written already into an envelope.
pub fn envelope(kind: &str, object: Vec<u8>) -> Bytes {
    let unknown = Unknown {
        type_meta: TypeMeta {
            api_version: Bytes::from_static(b"v1"),
            kind: Bytes::copy_from_slice(kind.as_bytes()),
        },
        raw: object.into(),
    };
    [&MAGIC[..], &unknown.encode_to_vec()].concat().into()
}

/// The frame of one event of a watch: its type, for example `ADDED`, and an envelope.
pub fn frame(r#type: &str, envelope: Bytes) -> Bytes {
    let r#type = Bytes::copy_from_slice(r#type.as_bytes());
    let event = Event { r#type, object: RawExtension { raw: envelope } };
    let mut frame = BytesMut::new();
    frame.put_u32(u32::try_from(event.encoded_len()).unwrap_or(u32::MAX));
    frame.extend_from_slice(&event.encode_to_vec());
    frame.freeze()
}

/// Cuts the body of a watch into frames, in whatever pieces it comes.
///
/// ```
/// use ostrakon::cluster::wire::Frames;
///
/// let mut frames = Frames::default();
/// frames.push(b"\0\0\0\x02a");
/// assert_eq!(frames.cut(), Ok(None));
/// frames.push(b"b\0");
/// assert_eq!(frames.cut().unwrap().unwrap(), "ab");
/// assert!(!frames.is_empty(), "the next one has begun");
/// ```
#[derive(Debug, Default)]
pub struct Frames {
    buffer: BytesMut,
}

impl Frames {
    /// Takes what comes next.
    pub fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// The next frame without its length, or `None` if not all of it has come.
    ///
    /// # Errors
    /// [`WireError::TooLong`], from then on: there is no way to find the next one.
    pub fn cut(&mut self) -> Result<Option<Bytes>, WireError> {
        let Some(prefix) = self.buffer.first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes(*prefix)).unwrap_or(usize::MAX);
        if length > LONGEST_FRAME {
            return Err(WireError::TooLong { length, begin: excerpt(&self.buffer) });
        }
        if self.buffer.len() < PREFIX + length {
            self.buffer.reserve(PREFIX + length - self.buffer.len());
            return Ok(None);
        }
        self.buffer.advance(PREFIX);
        let frame = self.buffer.split_to(length).freeze();
        if self.buffer.is_empty() && length > ROOM {
            // What a large event needed is not kept for the small ones that follow.
            self.buffer = BytesMut::new();
        }
        Ok(Some(frame))
    }

    /// Whether nothing is left that is not cut.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}

/// The beginning of a body, for an error message.
pub(super) fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(120)]);
    format!("{text:?}")
}

/// `k8s.io.apimachinery.pkg.runtime.Unknown`: the envelope's message.
#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(message, required, tag = "1")]
    type_meta: TypeMeta,
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(bytes = "bytes", tag = "1")]
    api_version: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    kind: Bytes,
}

/// `meta.v1.WatchEvent`.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
    #[prost(bytes = "bytes", tag = "1")]
    pub r#type: Bytes,
    /// The object.
    #[prost(message, required, tag = "2")]
    pub object: RawExtension,
}

/// `k8s.io.apimachinery.pkg.runtime.RawExtension`.
#[derive(Clone, PartialEq, Message)]
pub struct RawExtension {
    /// An envelope.
    #[prost(bytes = "bytes", tag = "1")]
    pub raw: Bytes,
}

/// Any list, its items unread: one that cannot be read must not take the others with it.
#[derive(Clone, PartialEq, Message)]
pub struct List {
    /// Version and rest of the list.
    #[prost(message, required, tag = "1")]
    pub metadata: ListMeta,
    /// The objects.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub items: Vec<Bytes>,
}

/// `meta.v1.ListMeta`.
#[derive(Clone, PartialEq, Message)]
pub struct ListMeta {
    /// The version that the list is of.
    #[prost(string, tag = "2")]
    pub resource_version: String,
    /// Token of the next page; empty on the last one.
    #[prost(string, tag = "3")]
    pub r#continue: String,
}

/// `meta.v1.Status`: why a request was refused or a watch ended.
#[derive(Clone, PartialEq, Message)]
pub struct Status {
    /// For a person.
    #[prost(string, tag = "3")]
    pub message: String,
    /// For a program, for example `Expired`.
    #[prost(string, tag = "4")]
    pub reason: String,
    /// HTTP status code.
    #[prost(int32, tag = "6")]
    pub code: i32,
}

/// Any object, of which only the metadata is read.
#[derive(Clone, PartialEq, Message)]
pub struct Object {
    /// Names, identity, version.
    #[prost(message, required, tag = "1")]
    pub metadata: ObjectMeta,
}

/// `meta.v1.ObjectMeta`.
#[derive(Clone, PartialEq, Message)]
pub struct ObjectMeta {
    /// Name.
    #[prost(bytes = "bytes", tag = "1")]
    pub name: Bytes,
    /// Namespace; empty for nodes.
    #[prost(bytes = "bytes", tag = "3")]
    pub namespace: Bytes,
    /// UID as text.
    #[prost(bytes = "bytes", tag = "5")]
    pub uid: Bytes,
    /// The version to go on watching from.
    #[prost(bytes = "bytes", tag = "6")]
    pub resource_version: Bytes,
    /// Number of the version of the spec.
    #[prost(int64, tag = "7")]
    pub generation: i64,
    /// When it was created.
    #[prost(message, optional, tag = "8")]
    pub creation_timestamp: Option<Time>,
    /// The deletion timestamp, if it has been deleted.
    #[prost(message, optional, tag = "9")]
    pub deletion_timestamp: Option<Time>,
    /// Annotations, in no order.
    #[prost(message, repeated, tag = "12")]
    pub annotations: Vec<MapEntry>,
}

/// An entry of a map of texts.
#[derive(Clone, PartialEq, Message)]
pub struct MapEntry {
    /// Key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Value.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// `meta.v1.Time`. The server knows whole seconds only; a message without them is no time at all.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Time {
    /// Seconds since 1970.
    #[prost(int64, optional, tag = "1")]
    pub seconds: Option<i64>,
}

/// `core.v1.Pod`.
#[derive(Clone, PartialEq, Message)]
pub struct Pod {
    /// Names, identity, version.
    #[prost(message, required, tag = "1")]
    pub metadata: ObjectMeta,
    /// What was asked for.
    #[prost(message, required, tag = "2")]
    pub spec: PodSpec,
    /// What is.
    #[prost(message, required, tag = "3")]
    pub status: PodStatus,
}

/// `core.v1.PodSpec`.
#[derive(Clone, PartialEq, Message)]
pub struct PodSpec {
    /// The node that it is bound to; empty while it is not.
    #[prost(bytes = "bytes", tag = "10")]
    pub node_name: Bytes,
    /// A [`Toleration`] each, unread: nearly all pods have the same few lists of them.
    #[prost(bytes = "bytes", repeated, tag = "22")]
    pub tolerations: Vec<Bytes>,
}

/// `core.v1.Toleration`.
#[derive(Clone, PartialEq, Message)]
pub struct Toleration {
    /// Taint key; empty for every key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// How values are compared.
    #[prost(bytes = "bytes", tag = "2")]
    pub operator: Bytes,
    /// Taint value.
    #[prost(bytes = "bytes", tag = "3")]
    pub value: Bytes,
    /// Taint effect; empty for every effect.
    #[prost(bytes = "bytes", tag = "4")]
    pub effect: Bytes,
    /// For how long; absent forever.
    #[prost(int64, optional, tag = "5")]
    pub toleration_seconds: Option<i64>,
}

/// `core.v1.PodStatus`.
#[derive(Clone, PartialEq, Message)]
pub struct PodStatus {
    /// For example `Running`.
    #[prost(bytes = "bytes", tag = "1")]
    pub phase: Bytes,
    /// Conditions, one of a type.
    #[prost(message, repeated, tag = "2")]
    pub conditions: Vec<Condition>,
}

/// `core.v1.PodCondition` and `core.v1.NodeCondition`: what is read of them has the same numbers.
#[derive(Clone, PartialEq, Message)]
pub struct Condition {
    /// For example `PodScheduled`.
    #[prost(bytes = "bytes", tag = "1")]
    pub r#type: Bytes,
    /// `True`, `False` or `Unknown`.
    #[prost(bytes = "bytes", tag = "2")]
    pub status: Bytes,
    /// Of a node: when it was reported last. Of a pod: when it was probed last.
    #[prost(message, optional, tag = "3")]
    pub last_heartbeat_time: Option<Time>,
    /// Since when the status is what it is.
    #[prost(message, optional, tag = "4")]
    pub last_transition_time: Option<Time>,
    /// For a program.
    #[prost(bytes = "bytes", tag = "5")]
    pub reason: Bytes,
    /// For a person.
    #[prost(bytes = "bytes", tag = "6")]
    pub message: Bytes,
}

/// `core.v1.Node`.
#[derive(Clone, PartialEq, Message)]
pub struct Node {
    /// Names, identity, version.
    #[prost(message, required, tag = "1")]
    pub metadata: ObjectMeta,
    /// What was asked for.
    #[prost(message, required, tag = "2")]
    pub spec: NodeSpec,
    /// What is.
    #[prost(message, required, tag = "3")]
    pub status: NodeStatus,
}

/// `core.v1.NodeSpec`.
#[derive(Clone, PartialEq, Message)]
pub struct NodeSpec {
    /// Taints, in their order.
    #[prost(message, repeated, tag = "5")]
    pub taints: Vec<Taint>,
}

/// `core.v1.Taint`.
#[derive(Clone, PartialEq, Message)]
pub struct Taint {
    /// Key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Value; may be empty.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
    /// For example `NoExecute`.
    #[prost(bytes = "bytes", tag = "3")]
    pub effect: Bytes,
    /// When it was added, if stored.
    #[prost(message, optional, tag = "4")]
    pub time_added: Option<Time>,
}

/// `core.v1.NodeStatus`.
#[derive(Clone, PartialEq, Message)]
pub struct NodeStatus {
    /// Conditions, one of a type.
    #[prost(message, repeated, tag = "4")]
    pub conditions: Vec<Condition>,
}

/// Any object once more: who wrote which of its fields, so that nobody else pays for it. Two messages of
/// one object, one after the other, are one message with the fields of both.
#[derive(Clone, PartialEq, Message)]
pub struct WithManagedFields {
    /// Who wrote what.
    #[prost(message, required, tag = "1")]
    pub metadata: ManagedMeta,
}

/// `meta.v1.ObjectMeta`, as far as it says who wrote what.
#[derive(Clone, PartialEq, Message)]
pub struct ManagedMeta {
    /// An entry for each writer and way of writing.
    #[prost(message, repeated, tag = "17")]
    pub managed_fields: Vec<ManagedFieldsEntry>,
}

/// `meta.v1.ManagedFieldsEntry`.
#[derive(Clone, PartialEq, Message)]
pub struct ManagedFieldsEntry {
    /// The writer, as it calls itself.
    #[prost(bytes = "bytes", tag = "1")]
    pub manager: Bytes,
    /// When it wrote last.
    #[prost(message, optional, tag = "4")]
    pub time: Option<Time>,
    /// The fields that it wrote.
    #[prost(message, optional, tag = "7")]
    pub fields: Option<FieldsV1>,
    /// For example `status`.
    #[prost(bytes = "bytes", tag = "8")]
    pub subresource: Bytes,
}

/// `meta.v1.FieldsV1`.
#[derive(Clone, PartialEq, Message)]
pub struct FieldsV1 {
    /// JSON.
    #[prost(bytes = "bytes", tag = "1")]
    pub raw: Bytes,
}

/// `core.v1.Node` once more: the fields that only cordon and drain read, so that nobody else pays
/// for them. Two messages of one object, one after the other, are one message with the fields of
/// both.
#[derive(Clone, PartialEq, Message)]
pub struct NodeWithDrainFacts {
    /// Labels.
    #[prost(message, required, tag = "1")]
    pub metadata: DrainMeta,
    /// What was asked for.
    #[prost(message, required, tag = "2")]
    pub spec: DrainSpec,
}

/// The part of [`NodeWithDrainFacts`] in `meta.v1.ObjectMeta`.
#[derive(Clone, PartialEq, Message)]
pub struct DrainMeta {
    /// Labels, in no order.
    #[prost(message, repeated, tag = "11")]
    pub labels: Vec<MapEntry>,
}

/// The part of [`NodeWithDrainFacts`] in `core.v1.NodeSpec`.
#[derive(Clone, PartialEq, Message)]
pub struct DrainSpec {
    /// Whether it is cordoned.
    #[prost(bool, tag = "4")]
    pub unschedulable: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &'static str) -> Object {
        Object { metadata: ObjectMeta { name: name.into(), ..ObjectMeta::default() } }
    }

    #[test]
    fn what_is_sealed_opens_as_its_kind_and_as_no_other() {
        let sealed = seal("Pod", &object("a"));
        let opened = Object::decode(open(&sealed, "Pod").unwrap()).unwrap();
        assert_eq!(opened, object("a"));
        let error = open(&sealed, "Node").unwrap_err();
        assert_eq!(error.to_string(), "a Pod instead of a Node");
    }

    #[test]
    fn what_is_no_envelope_is_quoted() {
        let error = open(&Bytes::from_static(b"<html>"), "Pod").unwrap_err();
        assert_eq!(error.to_string(), r#"not Kubernetes protobuf: "<html>""#);
        assert!(open(&Bytes::new(), "Pod").is_err());
        let cut = seal("Pod", &object("a"));
        let error = open(&cut.slice(..cut.len() - 1), "Pod").unwrap_err();
        assert!(matches!(error, WireError::Malformed(_)), "{error}");
    }

    #[test]
    fn the_bytes_are_those_that_the_published_numbers_say() {
        let pod = Pod {
            metadata: ObjectMeta {
                name: "p".into(),
                creation_timestamp: Some(Time { seconds: Some(1) }),
                ..ObjectMeta::default()
            },
            spec: PodSpec { node_name: "n".into(), tolerations: vec![] },
            status: PodStatus { phase: "R".into(), conditions: vec![] },
        };
        let bytes = [
            &[0x0a, 7][..], // metadata
            &[0x0a, 1, b'p', 0x42, 2, 0x08, 1],
            &[0x12, 3], // spec
            &[0x52, 1, b'n'],
            &[0x1a, 3], // status
            &[0x0a, 1, b'R'],
        ];
        assert_eq!(pod.encode_to_vec(), bytes.concat());
        let event = frame("ADDED", Bytes::from_static(b"xy"));
        assert_eq!(&event[..], b"\0\0\0\x0d\x0a\x05ADDED\x12\x04\x0a\x02xy");
    }
}
