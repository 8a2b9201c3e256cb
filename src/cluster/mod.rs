//! The API server: facts come in through [`watch`], requests go out through [`Api`], and what is
//! known of nodes and pods is held in [`View`].
//!
//! Everything here translates between the wire and [`crate::model`]. Nothing is decided here:
//! whether a pod goes, whether a request is worth a retry and when, is for others to say.

mod api;
mod connect;
mod decode;
mod gate;
mod intern;
mod lease;
mod metrics;
mod owners;
mod rewind;
mod view;
pub mod watch;
pub mod wire;

pub use api::{
    Answer, Api, BudgetRefusal, Mark, Permission, RequestError, StatusCause, StoredNode,
    UpkeepPatch,
};
pub use connect::{AGENT, Cluster, ConnectError, CredentialsError, connect, open};
pub use decode::{
    DecodeError, Flaw, FlawCause, PodDecoder, Watched, decode_node, decode_node_upkeep, read_node,
};
pub use gate::{Sent, WriteGate};
pub use lease::Lease;
pub use metrics::Metrics;
pub use owners::OwnerLookup;
pub use view::{NodeFacts, NodeSeen, PodFacts, PodSeen, View};
