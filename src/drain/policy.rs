//! Validated drain policies: which nodes, for which conditions, how fast, and which pods stay.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::condition::{ConditionRule, Holding};
use super::expr::LabelExpr;
use super::window::Window;
use crate::model::{Labels, NodeDrainFacts};

/// Everything that one drain policy says. Every policy that selects a node judges it; a drain goes
/// by the settings of the first that finds it bad.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Its name, unique in the configuration: for logs, events, metrics and the record on a node.
    pub name: Arc<str>,
    /// Which nodes it is for.
    pub nodes: NodeSelector,
    /// What makes a node bad: any of these. At least one.
    pub conditions: Vec<ConditionRule>,
    /// When drains may begin. Empty: always.
    pub windows: Vec<Window>,
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
    /// How long a drain may take. `None`: the longest grace of the node's pods, of which no more than
    /// [`LONGEST_GRACE`](Self::LONGEST_GRACE) counts, and the headroom.
    pub deadline: Option<Duration>,
    /// What becomes of a node that is not drained by its deadline.
    pub at_deadline: AtDeadline,
    /// When a drain that failed is retried.
    pub retry: Retry,
    /// Stop a running drain when the conditions have cleared.
    pub stop_when_clear: bool,
    /// What becomes of a bad node with pods that are not expected to go.
    pub undrainable: Undrainable,
    /// In which order pods go: groups by priority, ascending by their bounds.
    pub groups: Vec<PriorityGroup>,
    /// A node that is still there so long after its drain is reported.
    pub lingering: Duration,
    /// Key of a NoSchedule taint put on with the cordon, under
    /// `status-taint.cluster-autoscaler.kubernetes.io/`.
    pub status_taint: Option<Arc<str>>,
}

impl Policy {
    /// A policy for every node, with the defaults of all that can be left out.
    ///
    /// `docs/config.md` has the reason for each.
    pub fn new(name: impl Into<Arc<str>>, conditions: Vec<ConditionRule>) -> Self {
        Self {
            name: name.into(),
            nodes: NodeSelector::default(),
            conditions,
            windows: Vec::new(),
            drain: true,
            pods: PodRules::default(),
            pace: Pace::default(),
            max_grace: None,
            headroom: Duration::from_secs(600),
            deadline: None,
            at_deadline: AtDeadline::GiveUp,
            retry: Retry::default(),
            stop_when_clear: true,
            undrainable: Undrainable::DrainRest,
            groups: PriorityGroup::defaults(),
            lingering: Duration::from_secs(3600),
            status_taint: None,
        }
    }

    /// The longest grace of a node's pods that a deadline of a drain counts if the policy bounds
    /// neither. Tenants choose the grace of their pods: one that asks for centuries must not keep a
    /// node unavailable for so long.
    pub const LONGEST_GRACE: Duration = Duration::from_secs(4 * 3600);

    /// As much of the longest grace of a node's pods as a deadline counts.
    pub fn counted_grace(&self, longest: Duration) -> Duration {
        self.max_grace.unwrap_or_else(|| longest.min(Self::LONGEST_GRACE))
    }

    /// How long a drain may take if this is the longest grace of the node's pods.
    pub fn time_for(&self, longest_grace: Duration) -> Duration {
        let needed = self.counted_grace(longest_grace).saturating_add(self.headroom);
        self.deadline.unwrap_or(needed)
    }

    /// The longest that any drain may take, with this policy or with one that leaves its deadline to
    /// the pods, as this one may have done until a moment ago.
    pub fn longest_drain(&self) -> Duration {
        let needed = Self::LONGEST_GRACE.saturating_add(self.headroom);
        self.time_for(Duration::MAX).max(needed)
    }

    /// Whether it is for a node with these labels.
    pub fn selects(&self, labels: &Labels) -> bool {
        self.nodes.selects(labels)
    }

    /// Those of its conditions that are bad, in their order.
    pub fn bad(
        &self,
        drain_facts: &NodeDrainFacts,
        now: Timestamp,
    ) -> impl Iterator<Item = &ConditionRule> {
        self.conditions.iter().filter(move |rule| rule.judge(drain_facts, now) == Holding::Bad)
    }

    /// When the node is to be judged again though nobody writes to it; `None` if never.
    pub fn looks_again_at(
        &self,
        drain_facts: &NodeDrainFacts,
        now: Timestamp,
    ) -> Option<Timestamp> {
        self.conditions.iter().filter_map(|rule| rule.looks_again_at(drain_facts, now)).min()
    }

    /// Whether a drain may begin now, as far as windows go.
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.windows.is_empty() || self.windows.iter().any(|window| window.is_open(now))
    }

    /// The first moment from now on at which a drain may begin; now itself if it may now.
    pub fn next_opening(&self, now: Timestamp) -> Option<Timestamp> {
        if self.windows.is_empty() {
            return Some(now);
        }
        self.windows.iter().filter_map(|window| window.next_opening(now)).min()
    }
}

/// Which nodes a policy is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSelector {
    /// Labels that a node must have with these values, sorted by key.
    pub labels: Vec<(Arc<str>, Arc<str>)>,
    /// What must be true of its labels, too.
    pub expression: LabelExpr,
}

impl NodeSelector {
    /// Whether it selects every node that `other` does. `false` where that cannot be told from how
    /// they are written.
    pub fn covers(&self, other: &Self) -> bool {
        self.labels.iter().all(|label| other.labels.contains(label))
            && (other.expression.implies(&self.expression)
                || self.expression.always(&other.labels) == Some(true))
    }

    /// Whether it is for a node with these labels.
    pub fn selects(&self, labels: &Labels) -> bool {
        self.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.expression.admits(labels)
    }
}

/// Which pods are left on a node, and which go.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct PodRules {
    /// Evict pods of a DaemonSet, which come back at once.
    pub evict_daemonset: bool,
    /// Evict pods of a StatefulSet.
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

impl Default for PodRules {
    /// Draino's: only pods that a controller creates anew elsewhere go, without data of their own.
    fn default() -> Self {
        Self {
            evict_daemonset: false,
            evict_statefulset: false,
            evict_local_storage: false,
            evict_unreplicated: false,
            left_controllers: Vec::new(),
            protections: Vec::new(),
            honour_safe_to_evict: true,
        }
    }
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
    /// Bounds on nodes that are unavailable: cordoned by anyone, draining, or drained.
    pub caps: Vec<Cap>,
}

impl Default for Pace {
    /// Draino's, and a cap: what makes more than a quarter of all nodes bad is seldom the nodes.
    fn default() -> Self {
        Self {
            notice: Duration::from_secs(10),
            spacing: Duration::from_secs(600),
            caps: vec![Cap { scope: CapScope::Cluster, limit: Limit::Percent(25) }],
        }
    }
}

/// A bound on the nodes that are unavailable.
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
    /// It stays cordoned, and its drain is retried later.
    GiveUp,
    /// It is uncordoned, and retried later.
    Uncordon,
    /// The pods that are left are deleted, budgets or not.
    DeleteRest,
}

/// When a drain that failed is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Pause after the first failure; it doubles with each one.
    pub first: Duration,
    /// The longest pause.
    pub most: Duration,
    /// How often a drain is tried at all, the first time included. After that only on request.
    pub attempts: u32,
}

impl Default for Retry {
    /// Eight tries in some nine hours: past a working day nobody is helped by one more.
    fn default() -> Self {
        Self { first: Duration::from_secs(600), most: Duration::from_secs(7200), attempts: 8 }
    }
}

/// What becomes of a bad node with pods that are not expected to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undrainable {
    /// It is cordoned and drained all the same: what the policy protects is left and named, and
    /// eviction is tried for everything else, whatever is expected of budgets.
    DrainRest,
    /// It is cordoned and reported, and not drained.
    Cordon,
    /// It is reported and left in use. If it was cordoned already, the cordon is taken back.
    Report,
}

/// A group of pods that go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityGroup {
    /// Pods with a priority below this, and not below that of the group before. `None`: all others.
    pub below: Option<i32>,
    /// Its share of the time until the deadline, in percent; the next group begins when it is over.
    pub share: u8,
}

impl PriorityGroup {
    /// Where the priorities of system pods begin (`system-cluster-critical`).
    pub const CRITICAL: i32 = 2_000_000_000;

    /// Ordinary pods first, which get most of the time; what the system needs last.
    pub fn defaults() -> Vec<Self> {
        vec![Self { below: Some(Self::CRITICAL), share: 80 }, Self { below: None, share: 20 }]
    }
}
