//! Nodes, as far as the removal of their pods is concerned.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use super::{ConditionStatus, Stamp, Taint, Uid, Upkeep};

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

/// A version of an object: its `resourceVersion`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// One that can be compared with others of the same resource, as from Kubernetes 1.35 on.
    Number(u64),
    /// One of which it can only be told whether it is the same.
    Text(Arc<str>),
}

impl Version {
    /// The version that the API writes like this; `None` if it is empty.
    pub fn parse(text: &str) -> Option<Self> {
        match text.parse() {
            Ok(number) => Some(Self::Number(number)),
            Err(_) if text.is_empty() => None,
            Err(_) => Some(Self::Text(Arc::from(text))),
        }
    }

    /// Whether `newer` may tell of changes that are not known at this version.
    pub fn is_behind(&self, newer: &Self) -> bool {
        match (self, newer) {
            (Self::Number(own), Self::Number(newer)) => own < newer,
            _ => self != newer,
        }
    }
}

/// The node's Ready condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ready {
    /// Its status; `Unknown` when the condition is absent.
    pub status: ConditionStatus,
    /// Its `lastTransitionTime`: since when the status is what it is.
    pub since: Option<Stamp>,
}

/// The facts of a node, as the API stores them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// Its identity: a node that is deleted and registered again gets a new one.
    pub uid: Uid,
    /// Which version of it this is; absent where the server does not say.
    pub version: Option<Version>,
    /// When it was registered.
    pub created: Option<Stamp>,
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

    /// Takes it as it counts for who reads it at `now`, where `before` is what was known of it: see
    /// [`Upkeep::seen_at`]. Its taints are looked at with their anchors. Ready is left as it is
    /// reported: since when it is so can only prove that an outage goes on, and the future proves
    /// nothing.
    pub fn seen_at(&mut self, now: Timestamp, before: Option<&Self>) {
        let before = before.filter(|before| before.uid == self.uid);
        if let Some(upkeep) = &mut self.upkeep {
            Arc::make_mut(upkeep).seen_at(now, before.and_then(|before| before.upkeep.as_deref()));
        }
    }
}

/// From when the tolerated seconds of a node's taints are counted, beyond what the taints say
/// themselves.
///
/// Advanced with each version of the node that is seen (see `taint::anchor`), and kept on the
/// node in an annotation while some pod's deadline depends on it, so that a restart counts on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Anchors {
    /// For taints without `timeAdded`, or whose `timeAdded` lay in the future: when each was first
    /// seen.
    pub first_seen: Vec<FirstSeen>,
    /// The outage that the node is in, if its not-ready and unreachable taints tell of one.
    pub outage: Option<Outage>,
}

/// When a taint was first seen that does not say by itself from when on it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstSeen {
    /// Taint key.
    pub key: Arc<str>,
    /// Taint value.
    pub value: Arc<str>,
    /// Its `timeAdded`, if it has one. Another one makes another taint of it.
    pub added: Option<Stamp>,
    /// First sight of it.
    pub since: Stamp,
}

/// An unbroken time in which the node was not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Earliest anchor of the outage's taints: what tolerated seconds are counted from.
    pub since: Stamp,
    /// Latest anchor (`timeAdded`) that is known to belong to this outage.
    pub through: Stamp,
    /// Since when neither taint is present, while the node is still not ready; `None` while one
    /// of them is.
    pub gap_from: Option<Timestamp>,
}
