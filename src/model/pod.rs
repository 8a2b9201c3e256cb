//! Pods, as far as their removal is concerned.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use super::{NodeName, Stamp, Toleration, Uid};

/// What kind of pod it is, as far as taint eviction makes a difference.
///
/// Taint eviction makes no other difference: an owner, a priority or a volume changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PodClass {
    /// An ordinary pod, judged by its tolerations.
    Ordinary,
    /// The API's shadow of a static pod (annotation `kubernetes.io/config.mirror`). Deleting it
    /// stops nothing: the kubelet publishes it again.
    Mirror,
    /// Phase Succeeded or Failed: nothing runs any more, but its logs and result still count.
    Finished,
    /// Has a deletion timestamp: somebody removed it already.
    Terminating,
}

/// What the pod's `DisruptionTarget` condition says, as far as a new patch depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Disruption {
    /// Absent, or not `True`.
    None,
    /// `True`, set by somebody else.
    Foreign,
    /// `True` with the reason and message of taint eviction: a patch would change nothing.
    ByTaint,
}

/// The facts of a pod that is bound to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its identity.
    pub uid: Uid,
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name; unique in the namespace at one time, re-used over time.
    pub name: Arc<str>,
    /// The node that it is bound to. Never changes for one UID.
    pub node: NodeName,
    /// Those of `spec.tolerations` that can match a NoExecute taint, in spec order.
    pub tolerations: Arc<[Toleration]>,
    /// When it was bound: the transition time of PodScheduled, else its creation time.
    pub bound: Stamp,
    /// What kind of pod it is.
    pub class: PodClass,
    /// State of its `DisruptionTarget` condition.
    pub disruption: Disruption,
    /// `metadata.generation`; 0 where the server does not keep it.
    pub generation: i64,
}

impl Pod {
    /// Takes it as it counts for who reads it at `now`, where `before` is what was known of it: it
    /// cannot have been bound later than it is seen (see [`Stamp::seen_at`]).
    pub fn seen_at(&mut self, now: Timestamp, before: Option<&Self>) {
        self.bound = self.bound.seen_at(now, before.map(|before| before.bound));
    }

    /// The names by which a request reaches it.
    pub fn reference(&self) -> PodRef {
        PodRef {
            uid: self.uid,
            namespace: Arc::clone(&self.namespace),
            name: Arc::clone(&self.name),
            node: self.node.clone(),
        }
    }
}

/// A pod's names and identity, without its facts: what a timer and a request carry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodRef {
    /// Its identity.
    pub uid: Uid,
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// The node that it is bound to.
    pub node: NodeName,
}

/// `namespace/name`.
impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
