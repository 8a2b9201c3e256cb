//! Drain policies, validated: which nodes, by which conditions, how fast, and what is left alone.

use std::sync::Arc;
use std::time::Duration;

/// Everything that one drain policy says. A node is under the first policy that selects it.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Its name, unique in the configuration: for logs, events, metrics and the record on a node.
    pub name: Arc<str>,
    /// Drain a cordoned node. Off: nodes are cordoned and no more (draino's `--skip-drain`).
    pub drain: bool,
    /// What it does with pods.
    pub pods: PodRules,
    /// When drains begin, and how many nodes at a time.
    pub pace: Pace,
    /// The longest grace that a pod is given. `None`: each pod has its own.
    pub max_grace: Option<Duration>,
    /// What a drain may take beyond the longest grace of the node's pods.
    pub headroom: Duration,
    /// How long a drain may take. `None`: the longest grace of the node's pods, and the headroom.
    pub deadline: Option<Duration>,
    /// What becomes of a node that is not drained by its deadline.
    pub at_deadline: AtDeadline,
    /// When a drain that failed is tried again.
    pub retry: Retry,
    /// Stop a running drain when the conditions have cleared.
    pub stop_when_clear: bool,
    /// What becomes of a bad node that cannot be drained.
    pub undrainable: Undrainable,
    /// In which order pods go: groups by priority, ascending by their bounds.
    pub groups: Vec<PriorityGroup>,
    /// A node that is still there so long after its drain is reported.
    pub lingering: Duration,
    /// Key of a NoSchedule taint put on with the cordon, under
    /// `status-taint.cluster-autoscaler.kubernetes.io/`.
    pub status_taint: Option<Arc<str>>,
}

/// Which pods are left on a node, and which go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRules {
    /// Evict pods of DaemonSets, which come back at once.
    pub evict_daemonset: bool,
    /// Evict pods of StatefulSets.
    pub evict_statefulset: bool,
    /// Evict pods with an `emptyDir` volume.
    pub evict_local_storage: bool,
    /// Evict pods that no controller would create anew.
    pub evict_unreplicated: bool,
    /// Kinds of controllers whose pods are left.
    pub left_controllers: Vec<GroupKind>,
    /// Annotations by which a pod is left.
    pub protections: Vec<Protection>,
    /// Honour cluster-autoscaler's annotations of pods (`safe-to-evict` and its relatives).
    pub honour_safe_to_evict: bool,
}

/// A kind of object, in one group or in any.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupKind {
    /// API group; `None` for any.
    pub group: Option<Arc<str>>,
    /// Kind, for example `DaemonSet`.
    pub kind: Arc<str>,
}

/// An annotation by which a pod is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protection {
    /// Annotation key.
    pub key: Arc<str>,
    /// The value that it must have; `None` for any.
    pub value: Option<Arc<str>>,
}

/// When drains begin, and how many nodes at a time.
#[derive(Clone, Debug)]
pub struct Pace {
    /// At least so long after its cordon a node's drain begins.
    pub notice: Duration,
    /// At least so long after another drain of the same policy has begun.
    pub spacing: Duration,
    /// Bounds on nodes that are out of use: cordoned by anybody, draining, or drained.
    pub caps: Vec<Cap>,
}

/// A bound on the nodes that are out of use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cap {
    /// Among which nodes they are counted.
    pub scope: CapScope,
    /// How many there may be.
    pub limit: Limit,
}

/// Among which nodes a cap counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CapScope {
    /// All nodes.
    Cluster,
    /// The nodes that have the same value of this label as the node in question. A node without
    /// the label is in a group of its own kind.
    Label(Arc<str>),
}

/// How many nodes of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So many.
    Count(u32),
    /// So many of a hundred, rounded down; but the first node of a scope may always.
    Percent(u8),
}

/// What becomes of a node that is not drained by its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtDeadline {
    /// It stays cordoned, and its drain is tried again later.
    GiveUp,
    /// It is uncordoned, and tried again later.
    Uncordon,
    /// The pods that are left are deleted, budgets or not.
    DeleteRest,
}

/// When a drain that failed is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Pause after the first failure; it doubles with each one.
    pub first: Duration,
    /// The longest pause.
    pub most: Duration,
    /// How often a drain is tried at all, the first time included. After that only on request.
    pub attempts: u32,
}

/// What becomes of a bad node that cannot be drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undrainable {
    /// It is reported and left as it is.
    Report,
    /// It is reported, and cordoned all the same.
    Cordon,
}

/// A group of pods that go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityGroup {
    /// Pods with a priority below this, and not below that of the group before. `None`: all others.
    pub below: Option<i32>,
    /// Its share of the time until the deadline, in percent; the next group begins when it is over.
    pub share: u8,
}
