//! Validated drain policies: which nodes, for which conditions, how fast, and which pods stay.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::condition::{ConditionRule, Holding};
use super::expr::LabelExpr;
use super::window::Window;
use crate::model::{Labels, NodeDrainFacts};

/// A drain policy. Every policy that selects a node is evaluated; a drain uses the settings of the first
/// one with a matching condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its name, unique in the configuration; used in logs, events, metrics and the record on a node.
    pub name: Arc<str>,
    /// Which nodes it selects.
    pub nodes: NodeSelector,
    /// Conditions that make a node bad; one is enough. Never empty.
    pub conditions: Vec<ConditionRule>,
    /// When drains may start. Empty: always.
    pub windows: Vec<Window>,
    /// Drain cordoned nodes. If `false`, nodes are only cordoned (draino's `--skip-drain`).
    pub drain: bool,
    /// Which pods are evicted.
    pub pods: PodRules,
    /// When drains start, and how many nodes at a time.
    pub pace: Limits,
    /// Maximum grace period of a pod. `None`: each pod keeps its own.
    pub max_grace: Option<Duration>,
    /// Time that a drain may take beyond the longest grace period of the node's pods.
    pub headroom: Duration,
    /// How long a drain may take. `None`: the longest grace period of the node's pods, up to
    /// [`LONGEST_GRACE`](Self::LONGEST_GRACE), plus the headroom.
    pub deadline: Option<Duration>,
    /// What happens to a node that is not drained by the deadline.
    pub at_deadline: AtDeadline,
    /// When a failed drain is retried.
    pub retry: Retry,
    /// Stop a running drain when the conditions have cleared.
    pub stop_when_clear: bool,
    /// What happens to a bad node with pods that cannot be evicted.
    pub undrainable: Undrainable,
    /// The order of evictions: groups by priority, with ascending bounds.
    pub groups: Vec<PriorityGroup>,
    /// A node that still exists this long after its drain is reported.
    pub lingering: Duration,
    /// Key of a NoSchedule taint that is added with the cordon, with the prefix
    /// `status-taint.cluster-autoscaler.kubernetes.io/`.
    pub status_taint: Option<Arc<str>>,
    /// `Ready=True`, which every healthy node has, is meant.
    pub allow_majority: bool,
}

impl Policy {
    /// A policy for every node with all defaults.
    ///
    /// `docs/config.md` explains each default.
    pub fn new(name: impl Into<Arc<str>>, conditions: Vec<ConditionRule>) -> Self {
        Self {
            name: name.into(),
            nodes: NodeSelector::default(),
            conditions,
            windows: Vec::new(),
            drain: true,
            pods: PodRules::default(),
            pace: Limits::default(),
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
            allow_majority: false,
        }
    }

    /// Maximum grace period that counts for a drain's deadline if the policy sets neither. Tenants choose
    /// the grace period of their pods, and must not be able to keep a node unavailable for years.
    pub const LONGEST_GRACE: Duration = Duration::from_secs(4 * 3600);

    /// The part of the longest grace period of a node's pods that counts for the deadline.
    pub fn counted_grace(&self, longest: Duration) -> Duration {
        self.max_grace.unwrap_or_else(|| longest.min(Self::LONGEST_GRACE))
    }

    /// How long a drain may take with this longest grace period of the node's pods.
    pub fn time_for(&self, longest_grace: Duration) -> Duration {
        let needed = self.counted_grace(longest_grace).saturating_add(self.headroom);
        self.deadline.unwrap_or(needed)
    }

    /// The maximum duration of any drain with this policy, also if its deadline was not set until a moment
    /// ago.
    pub fn longest_drain(&self) -> Duration {
        let needed = Self::LONGEST_GRACE.saturating_add(self.headroom);
        self.time_for(Duration::MAX).max(needed)
    }

    /// Whether it selects a node with these labels.
    pub fn selects(&self, labels: &Labels) -> bool {
        self.nodes.selects(labels)
    }

    /// The conditions of the policy that are bad, in order.
    pub fn bad(
        &self,
        drain_facts: &NodeDrainFacts,
        now: Timestamp,
    ) -> impl Iterator<Item = &ConditionRule> {
        self.conditions.iter().filter(move |rule| rule.judge(drain_facts, now) == Holding::Bad)
    }

    /// When the node must be evaluated again even without an update; `None` if never.
    pub fn looks_again_at(
        &self,
        drain_facts: &NodeDrainFacts,
        now: Timestamp,
    ) -> Option<Timestamp> {
        self.conditions.iter().filter_map(|rule| rule.looks_again_at(drain_facts, now)).min()
    }

    /// The next time at which a drain may start, which may be now.
    pub fn next_opening(&self, now: Timestamp) -> Option<Timestamp> {
        if self.windows.is_empty() {
            return Some(now);
        }
        self.windows.iter().filter_map(|window| window.next_opening(now)).min()
    }
}

/// Which nodes a policy selects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSelector {
    /// Labels that a node must have with these values, sorted by key.
    pub labels: Vec<(Arc<str>, Arc<str>)>,
    /// An expression about its labels that must also be true.
    pub expression: LabelExpr,
}

impl NodeSelector {
    /// Whether it selects every node that `other` selects; `false` if that cannot be determined.
    pub fn covers(&self, other: &Self) -> bool {
        self.labels.iter().all(|label| other.labels.contains(label))
            && (other.expression.implies(&self.expression)
                || self.expression.always(&other.labels) == Some(true))
    }

    /// Whether it selects a node with these labels.
    pub fn selects(&self, labels: &Labels) -> bool {
        self.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.expression.admits(labels)
    }
}

/// Which pods are evicted, and which stay on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct PodRules {
    /// Evict pods of a DaemonSet, which recreates them at once.
    pub evict_daemonset: bool,
    /// Evict pods of a StatefulSet.
    pub evict_statefulset: bool,
    /// Evict pods with an `emptyDir` volume.
    pub evict_local_storage: bool,
    /// Evict pods without a controller, which nothing recreates.
    pub evict_unreplicated: bool,
    /// Kinds of controllers whose pods stay.
    pub left_controllers: Vec<GroupKind>,
    /// Annotations of pods that stay.
    pub protections: Vec<Protection>,
    /// Honour cluster-autoscaler's annotations of pods (`safe-to-evict` and related ones).
    pub honour_safe_to_evict: bool,
}

impl Default for PodRules {
    /// Draino's defaults: only pods without local data that a controller recreates elsewhere are evicted.
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

/// A kind of object, in one API group or in any.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupKind {
    /// API group; `None` for any.
    pub group: Option<Arc<str>>,
    /// Kind, for example `DaemonSet`.
    pub kind: Arc<str>,
}

/// An annotation of pods that stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protection {
    /// Annotation key.
    pub key: Arc<str>,
    /// The value that it must have; `None` for any.
    pub value: Option<Arc<str>>,
}

/// When drains start, and how many nodes at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Minimum time between a node's cordon and its drain.
    pub notice: Duration,
    /// Minimum time between the starts of two drains of the policy.
    pub spacing: Duration,
    /// Limits on unavailable nodes: cordoned by anyone, draining, or drained.
    pub caps: Vec<Cap>,
}

impl Default for Limits {
    /// Draino's defaults, plus a cap: if more than a quarter of all nodes are bad, the nodes are rarely the
    /// cause.
    fn default() -> Self {
        Self {
            notice: Duration::from_secs(10),
            spacing: Duration::from_secs(600),
            caps: vec![Cap { scope: CapScope::Cluster, limit: Limit::Percent(25) }],
        }
    }
}

/// A limit on unavailable nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cap {
    /// The nodes to which it applies.
    pub scope: CapScope,
    /// How many may be unavailable.
    pub limit: Limit,
}

/// The nodes to which a cap applies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CapScope {
    /// All nodes.
    Cluster,
    /// The nodes with the same value of this label. Nodes without the label form a group.
    Label(Arc<str>),
}

/// A number of nodes of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A count.
    Count(u32),
    /// Percentage of the scope, rounded down, but at least one node.
    Percent(u8),
}

/// What happens to a node that is not drained by the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtDeadline {
    /// It stays cordoned, and the drain is retried later.
    GiveUp,
    /// It is uncordoned, and the drain is retried later.
    Uncordon,
    /// The remaining pods are deleted, even against disruption budgets.
    DeleteRest,
}

/// When a failed drain is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Delay after the first failure; doubles with each further one.
    pub first: Duration,
    /// Maximum delay.
    pub most: Duration,
    /// Maximum number of attempts, including the first. Further ones only on request.
    pub attempts: u32,
}

impl Default for Retry {
    /// Eight attempts in about nine hours; beyond a working day, another attempt helps nobody.
    fn default() -> Self {
        Self { first: Duration::from_secs(600), most: Duration::from_secs(7200), attempts: 8 }
    }
}

/// What happens to a bad node with pods that cannot be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undrainable {
    /// It is cordoned and drained. Protected pods stay and are reported; eviction is attempted for all
    /// others, even if a budget is expected to refuse it.
    DrainRest,
    /// It is cordoned and reported, but not drained.
    Cordon,
    /// It is reported but not cordoned. If it was cordoned already, it is uncordoned.
    Report,
}

/// A group of pods that are evicted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityGroup {
    /// Upper bound: pods with a lower priority that are in no earlier group. `None`: all others.
    pub below: Option<i32>,
    /// Its share of the time until the deadline, in percent; then the next group starts.
    pub share: u8,
}

impl PriorityGroup {
    /// The lowest priority of system pods (`system-cluster-critical`).
    pub const CRITICAL: i32 = 2_000_000_000;

    /// Ordinary pods first, with most of the time; system pods last.
    pub fn defaults() -> Vec<Self> {
        vec![Self { below: Some(Self::CRITICAL), share: 80 }, Self { below: None, share: 20 }]
    }
}
