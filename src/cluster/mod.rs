//! The API server: facts arrive through [`watch`], requests are sent through [`Api`], and [`View`] holds
//! the known nodes and pods.
//!
//! This module translates between the wire and [`crate::model`]. It makes no decisions: whether a pod is
//! evicted, and whether and when a request is retried, is decided elsewhere.

mod api;
mod cluster_metrics;
mod connect;
mod decode;
mod gate;
mod intern;
mod lease;
mod owners;
mod rewind;
mod view;
pub mod watch;
pub mod wire;

pub use api::{
    Answer, Api, BudgetRefusal, Mark, NodeDrainPatch, Permission, RequestError, StatusCause,
    StoredNode,
};
pub use cluster_metrics::Metrics;
pub use connect::{AGENT, Cluster, ConnectError, CredentialsError, connect, open};
pub use decode::{
    DecodeError, Deletion, Flaw, FlawCause, MarkAuthor, PodDecoder, Watched, Zones,
    decode_deletion, decode_node, decode_node_drain_facts, other_mark_author, read_node,
};
pub use gate::{Sent, WriteGate};
pub use lease::Lease;
pub use owners::OwnerLookup;
pub use view::{NodeFacts, NodeSeen, PodFacts, PodSeen, View};
