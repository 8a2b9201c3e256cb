//! Nodes, as far as the removal of their pods is concerned.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use super::{ConditionStatus, Taint, Uid, Upkeep};

/// The name of a node: cheap to clone, and the key by which work is sharded.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(pub Arc<str>);

impl NodeName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for NodeName {
    fn from(name: &str) -> Self {
        Self(Arc::from(name))
    }
}

impl Borrow<str> for NodeName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// The node's Ready condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ready {
    /// Its status; `Unknown` when the condition is absent.
    pub status: ConditionStatus,
    /// Its `lastTransitionTime`: since when the status is what it is.
    pub since: Option<Timestamp>,
}

/// The facts of a node, as the API stores them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// Its identity: a node that is deleted and registered again gets a new one.
    pub uid: Uid,
    /// Its taints with effect NoExecute, in spec order. All others are left out.
    pub taints: Arc<[Taint]>,
    /// Its Ready condition.
    pub ready: Ready,
    /// Raw text of the annotation `ostrakon.dev/noexecute-since`, if it has one.
    pub since_annotation: Option<Arc<str>>,
    /// What cordon and drain depend on; read only where a drain policy is configured.
    pub upkeep: Option<Arc<Upkeep>>,
}

impl Node {
    /// Name of the annotation that keeps the beginnings of taints across restarts.
    pub const SINCE_ANNOTATION: &str = "ostrakon.dev/noexecute-since";
}

/// From when the tolerated seconds of a node's taints are counted, beyond what the taints say
/// themselves.
///
/// Advanced with each version of the node that is seen (see `taint::anchor`), and kept on the
/// node in an annotation while some pod's deadline depends on it, so that a restart counts on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Anchors {
    /// For taints without `timeAdded`: when each was first seen.
    pub first_seen: Vec<FirstSeen>,
    /// The outage that the node is in, if its not-ready and unreachable taints tell of one.
    pub outage: Option<Outage>,
}

/// When a taint without `timeAdded` was first seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstSeen {
    /// Taint key.
    pub key: Arc<str>,
    /// Taint value.
    pub value: Arc<str>,
    /// First sight of it.
    pub since: Timestamp,
}

/// An unbroken time in which the node was not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Earliest anchor of the outage's taints: what tolerated seconds are counted from.
    pub since: Timestamp,
    /// Latest anchor (`timeAdded`) that is known to belong to this outage.
    pub through: Timestamp,
    /// Since when neither taint is present, while the node is still not ready; `None` while one
    /// of them is.
    pub gap_from: Option<Timestamp>,
}
