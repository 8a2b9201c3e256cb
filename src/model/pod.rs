//! Pods, as far as taint eviction needs them.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use super::{NodeName, Stamp, Toleration, Uid};

/// The kind of a pod. Taint eviction makes no other distinctions: owners, priorities and volumes do not
/// matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PodClass {
    /// An ordinary pod, to which tolerations apply.
    Ordinary,
    /// The mirror of a static pod (annotation `kubernetes.io/config.mirror`). Deleting it stops nothing:
    /// the kubelet creates it again.
    Mirror,
    /// Phase Succeeded or Failed: nothing runs any more, but its logs and result still matter.
    Finished,
    /// It has a deletion timestamp.
    Terminating,
}

/// The state of the pod's `DisruptionTarget` condition, as far as a patch depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Disruption {
    /// Absent, or not `True`.
    None,
    /// `True`, set by someone else.
    Foreign,
    /// `True` with the reason and message of taint eviction: a patch would change nothing.
    ByTaint,
}

/// The facts of a pod that is bound to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its UID.
    pub uid: Uid,
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name; unique in the namespace, but reused over time.
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
    /// Corrects a binding time in the future, with `before` as the previous version (see
    /// [`Stamp::seen_at`]).
    pub fn seen_at(&mut self, now: Timestamp, before: Option<&Self>) {
        self.bound = self.bound.seen_at(now, before.map(|before| before.bound));
    }

    /// Its names and UID, as requests need them.
    pub fn reference(&self) -> PodRef {
        PodRef {
            uid: self.uid,
            namespace: Arc::clone(&self.namespace),
            name: Arc::clone(&self.name),
            node: self.node.clone(),
        }
    }
}

/// A pod's names and UID, for timers and requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodRef {
    /// Its UID.
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
