//! Nodes, as far as taint eviction needs them.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use super::{ConditionStatus, NodeDrainFacts, Stamp, Taint, Uid};

/// The name of a node: cheap to clone, and the sharding key.
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
    /// A version that is comparable with others of the same resource, as in Kubernetes 1.35 and later.
    Number(u64),
    /// A version that can only be tested for equality.
    Text(Arc<str>),
}

impl Version {
    /// Parses a `resourceVersion`; `None` if it is empty.
    pub fn parse(text: &str) -> Option<Self> {
        match text.parse() {
            Ok(number) => Some(Self::Number(number)),
            Err(_) if text.is_empty() => None,
            Err(_) => Some(Self::Text(Arc::from(text))),
        }
    }

    /// Whether `newer` may contain changes that this version does not.
    pub fn is_behind(&self, newer: &Self) -> bool {
        match (self, newer) {
            (Self::Number(own), Self::Number(newer)) => own < newer,
            _ => self != newer,
        }
    }
}

impl fmt::Display for Version {
    /// As the API writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
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
    /// Its UID: a node that is deleted and registered again gets a new one.
    pub uid: Uid,
    /// Its `resourceVersion`, if the server sent one.
    pub version: Option<Version>,
    /// When it was registered.
    pub created: Option<Stamp>,
    /// Its taints with effect NoExecute, in spec order. All others are left out.
    pub taints: Arc<[Taint]>,
    /// Its Ready condition.
    pub ready: Ready,
    /// Raw text of the annotation `ostrakon.dev/noexecute-since`, if it has one.
    pub since_annotation: Option<Arc<str>>,
    /// The value of the label that names its zone, if it has one.
    pub zone: Option<Arc<str>>,
    /// What cordon and drain depend on; read only where a drain policy is configured.
    pub drain_facts: Option<Arc<NodeDrainFacts>>,
}

impl Node {
    /// Name of the annotation that stores anchors across restarts.
    pub const SINCE_ANNOTATION: &str = "ostrakon.dev/noexecute-since";

    /// Corrects times in the future, with `before` as the previous version: see [`NodeDrainFacts::seen_at`].
    /// Taints are handled by their anchors. Ready is not changed: its time can only prove that an outage
    /// continues, and a time in the future proves nothing.
    pub fn seen_at(&mut self, now: Timestamp, before: Option<&Self>) {
        let before = before.filter(|before| before.uid == self.uid);
        if let Some(drain_facts) = &mut self.drain_facts {
            Arc::make_mut(drain_facts)
                .seen_at(now, before.and_then(|before| before.drain_facts.as_deref()));
        }
    }
}

/// The times from which a node's taints count, where the taints do not contain them.
///
/// Advanced with each version of the node (see `taint::anchor`), and stored in an annotation of the node
/// while a pod's deadline depends on it, so that it survives a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Anchors {
    /// When taints without `timeAdded`, or with one in the future, were first seen.
    pub first_seen: Vec<FirstSeen>,
    /// The node's current outage, by its not-ready and unreachable taints.
    pub outage: Option<Outage>,
}

/// When a taint without a usable `timeAdded` was first seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstSeen {
    /// Taint key.
    pub key: Arc<str>,
    /// Taint value.
    pub value: Arc<str>,
    /// Its `timeAdded`, if it has one. A taint with another `timeAdded` is another taint.
    pub added: Option<Stamp>,
    /// When it was first seen.
    pub since: Stamp,
}

/// An unbroken period in which the node is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Earliest anchor of the outage's taints, from which `tolerationSeconds` count.
    pub since: Stamp,
    /// Latest anchor (`timeAdded`) that is known to belong to this outage.
    pub through: Stamp,
    /// Since when neither taint is present while the node is still not ready; `None` while one is present.
    pub gap_from: Option<Timestamp>,
}
