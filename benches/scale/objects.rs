//! Nodes and pods made when they are asked for, so that a million of them need no memory.
//!
//! Each is an object that a real API server answered with, 3.5 KB of a pod, and behind it the few
//! fields that tell it from the others: two messages of protobuf one after the other are one, in which
//! the later value of a field counts.

use std::fmt;

use bytes::{BufMut as _, Bytes, BytesMut};
use ostrakon::cluster::wire;
use prost::Message as _;

const POD: &[u8] = include_bytes!("../../tests/data/pod.pb");
const NODE: &[u8] = include_bytes!("../../tests/data/node.pb");
const NAMESPACES: usize = 50;

/// How many nodes and pods there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) nodes: usize,
    pub(crate) pods: usize,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} nodes, {} pods", self.nodes, self.pods)
    }
}

/// Makes the objects of a cluster of this size.
pub(crate) struct Objects {
    pub(crate) size: Size,
    pod: Bytes,
    node: Bytes,
}

/// What has happened to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodState {
    Running,
    Marked,
    Deleted,
}

/// A node without its spec, which has taints of its own.
#[derive(Clone, PartialEq, prost::Message)]
struct Untainted {
    #[prost(bytes = "bytes", tag = "1")]
    metadata: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    status: Bytes,
}

#[allow(dead_code, reason = "another bench uses the rest of it")]
impl Objects {
    pub(crate) fn new(size: Size) -> Self {
        let open = |bytes, kind| wire::open(&Bytes::from_static(bytes), kind).unwrap_or_default();
        let node = Untainted::decode(open(NODE, "Node")).unwrap_or_default();
        Self { size, pod: open(POD, "Pod"), node: node.encode_to_vec().into() }
    }

    /// The same with next to nothing in them: what costs little to read shows what else costs.
    pub(crate) fn slim(size: Size) -> Self {
        let toleration = |key: &'static str| wire::Toleration {
            key: key.into(),
            operator: "Exists".into(),
            effect: "NoExecute".into(),
            toleration_seconds: Some(300),
            ..wire::Toleration::default()
        };
        let keys = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
        let tolerations = keys.map(|key| toleration(key).encode_to_vec().into()).into();
        let created = Some(wire::Time { seconds: Some(1_790_000_000) });
        let pod = wire::Pod {
            metadata: wire::ObjectMeta { creation_timestamp: created, ..Default::default() },
            spec: wire::PodSpec { tolerations, ..Default::default() },
            ..Default::default()
        };
        Self { size, pod: pod.encode_to_vec().into(), node: Bytes::new() }
    }

    /// The nodes that fail together: each third.
    pub(crate) fn zone(&self) -> impl Iterator<Item = usize> {
        (0..self.size.nodes).step_by(3)
    }

    /// How many pods are in the zone.
    pub(crate) fn pods_in_zone(&self) -> usize {
        let Size { nodes, pods } = self.size;
        // Pod p is on node p modulo the number of nodes.
        self.zone().map(|node| pods / nodes + usize::from(node < pods % nodes)).sum()
    }

    /// The envelope of a node.
    pub(crate) fn node(&self, number: usize, is_tainted: bool, version: u64) -> Bytes {
        let metadata = wire::ObjectMeta {
            name: node_name(number).into(),
            uid: uid(number, 'a').into(),
            resource_version: version.to_string().into(),
            ..wire::ObjectMeta::default()
        };
        let taint = wire::Taint {
            key: "zone-failure".into(),
            effect: "NoExecute".into(),
            ..wire::Taint::default()
        };
        let spec = wire::NodeSpec { taints: is_tainted.then_some(taint).into_iter().collect() };
        let own = wire::Node { metadata, spec, ..wire::Node::default() };
        wire::envelope("Node", [&self.node[..], &own.encode_to_vec()].concat())
    }

    /// The envelope of a pod.
    pub(crate) fn pod(&self, number: usize, state: PodState, version: u64) -> Bytes {
        let condition = wire::Condition {
            r#type: "DisruptionTarget".into(),
            status: "True".into(),
            reason: "DeletionByTaintManager".into(),
            message: "Taint manager: deleting due to NoExecute taint".into(),
            ..wire::Condition::default()
        };
        let is_marked = state != PodState::Running;
        let own = wire::Pod {
            metadata: wire::ObjectMeta {
                name: pod_name(number).into(),
                namespace: namespace(number).into(),
                uid: uid(number, '8').into(),
                resource_version: version.to_string().into(),
                deletion_timestamp: (state == PodState::Deleted)
                    .then_some(wire::Time { seconds: Some(1_790_000_000) }),
                ..wire::ObjectMeta::default()
            },
            spec: wire::PodSpec {
                node_name: node_name(number % self.size.nodes).into(),
                ..wire::PodSpec::default()
            },
            status: wire::PodStatus {
                conditions: is_marked.then_some(condition).into_iter().collect(),
                ..wire::PodStatus::default()
            },
        };
        wire::envelope("Pod", [&self.pod[..], &own.encode_to_vec()].concat())
    }
}

/// A bookmark that only tells a version, or that the list before it is complete.
pub(crate) fn bookmark(kind: &str, version: u64, ends_list: bool) -> Bytes {
    let end =
        wire::MapEntry { key: "k8s.io/initial-events-end".into(), value: Bytes::from("true") };
    let metadata = wire::ObjectMeta {
        resource_version: version.to_string().into(),
        annotations: ends_list.then_some(end).into_iter().collect(),
        ..wire::ObjectMeta::default()
    };
    wire::frame("BOOKMARK", wire::seal(kind, &wire::Object { metadata }))
}

/// Frames put together until they are worth a write.
#[derive(Default)]
pub(crate) struct Chunk(BytesMut);

impl Chunk {
    /// Some frames of 4 KB.
    const FULL: usize = 64 << 10;

    pub(crate) fn add(&mut self, frame: &Bytes) {
        self.0.put_slice(frame);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= Self::FULL
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        self.0.freeze()
    }
}

/// The path of a pod, without what comes before the namespace.
pub(crate) fn number_of_pod(name: &str) -> Option<usize> {
    name.rsplit('-').next()?.parse().ok()
}

pub(crate) fn number_of_node(name: &str) -> Option<usize> {
    name.strip_prefix("node-")?.split('.').next()?.parse().ok()
}

fn node_name(number: usize) -> String {
    format!("node-{number}.eu-1.compute.internal")
}

fn pod_name(number: usize) -> String {
    format!("checkout-6c5b9d8f7d-{number:08}")
}

fn namespace(number: usize) -> String {
    format!("team-{}", number % NAMESPACES)
}

/// Both ends look random, as all of a UID is.
fn uid(number: usize, variant: char) -> String {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!(
        "{:08x}-{:04x}-4000-{variant}000-{:012x}",
        mixed >> 32,
        number >> 16,
        mixed & 0xffff_ffff_ffff
    )
}
