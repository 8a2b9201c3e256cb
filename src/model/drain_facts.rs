//! Nodes, as far as cordon and drain are concerned.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use super::Stamp;

/// Status of a condition of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConditionStatus {
    /// It holds. Of Ready: the kubelet reports itself ready.
    True,
    /// It does not hold. Of Ready: the kubelet reports a fault.
    False,
    /// Whoever reports it was not heard of, or never reported.
    Unknown,
}

impl ConditionStatus {
    /// Reads a status as the API writes it. What the API does not know is `None`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "True" => Some(Self::True),
            "False" => Some(Self::False),
            "Unknown" => Some(Self::Unknown),
            _ => None,
        }
    }

    /// As the API writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl fmt::Display for ConditionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A condition of a node, as it is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Its type, for example `KernelDeadlock`.
    pub kind: Arc<str>,
    /// Its status.
    pub status: ConditionStatus,
    /// Its `lastTransitionTime`: since when the status is what it is. Absent where nobody wrote it.
    pub since: Option<Stamp>,
    /// Its `lastHeartbeatTime`: when it was reported last. Read only where a policy asks for it,
    /// since it changes all the time.
    pub heartbeat: Option<Stamp>,
    /// Its reason, for a program.
    pub reason: Arc<str>,
}

/// Labels, sorted by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Arc<[(Arc<str>, Arc<str>)]>);

impl Labels {
    /// The value of a label; `None` if it is absent.
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(candidate, _)| (**candidate).cmp(key)).ok()?;
        Some(&self.0[at].1)
    }

    /// All labels, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }
}

impl<K: Into<Arc<str>>, V: Into<Arc<str>>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(labels: I) -> Self {
        let mut labels: Vec<(Arc<str>, Arc<str>)> =
            labels.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        labels.sort();
        Self(labels.into())
    }
}

/// What cluster-autoscaler's taints say of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Autoscaler {
    /// Nothing.
    #[default]
    None,
    /// `DeletionCandidateOfClusterAutoscaler`: it may be removed soon.
    Candidate,
    /// `ToBeDeletedByClusterAutoscaler`: it is being removed.
    Removing,
}

impl Autoscaler {
    /// Key of the taint of a node that is being removed.
    pub const REMOVING: &str = "ToBeDeletedByClusterAutoscaler";
    /// Key of the taint of a node that may be removed soon.
    pub const CANDIDATE: &str = "DeletionCandidateOfClusterAutoscaler";
}

/// What cordon and drain depend on, beside the node's name, identity and Ready condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDrainFacts {
    /// Its labels.
    pub labels: Labels,
    /// Those of its conditions that some policy watches or that it was cordoned for, in the order in
    /// which they are reported, and `DrainScheduled`.
    pub conditions: Arc<[Condition]>,
    /// `spec.unschedulable`: it is cordoned, by whomever.
    pub unschedulable: bool,
    /// It has a deletion timestamp.
    pub terminating: bool,
    /// What cluster-autoscaler is about to do with it.
    pub autoscaler: Autoscaler,
    /// Raw text of the annotation `ostrakon.dev/drain`: where its drain stands.
    pub record: Option<Arc<str>>,
    /// Raw text of the annotation `draino.planet.com/conditions`.
    pub draino_conditions: Option<Arc<str>>,
    /// The annotation `draino/drain-retry` is `true`: someone asks for one more try.
    pub retry_asked: bool,
}

impl NodeDrainFacts {
    /// Name of the annotation that keeps where the drain stands.
    pub const RECORD_ANNOTATION: &str = "ostrakon.dev/drain";
    /// Name of the annotation that says for which conditions the node was cordoned.
    pub const DRAINO_CONDITIONS_ANNOTATION: &str = "draino.planet.com/conditions";
    /// Name of the annotation that asks for one more try.
    pub const RETRY_ANNOTATION: &str = "draino/drain-retry";
    /// Type of the condition that says when the node is drained.
    pub const SCHEDULED_CONDITION: &str = "DrainScheduled";

    /// Takes it as it counts for who reads it at `now` (see [`Stamp::seen_at`]): a condition that
    /// claims to be from the future would else never be old enough, or never old. `before` is what was
    /// known of the node.
    pub fn seen_at(&mut self, now: Timestamp, before: Option<&Self>) {
        let is_future = |stamp: Option<Stamp>| stamp.is_some_and(|stamp| stamp.written() > now);
        if !self.conditions.iter().any(|c| is_future(c.since) || is_future(c.heartbeat)) {
            return;
        }
        let seen = |condition: &Condition| {
            let known = before.and_then(|before| before.condition(&condition.kind));
            let same = known.filter(|known| known.status == condition.status);
            Condition {
                since: condition.since.map(|at| at.seen_at(now, same.and_then(|same| same.since))),
                heartbeat: condition
                    .heartbeat
                    .map(|at| at.seen_at(now, known.and_then(|known| known.heartbeat))),
                ..condition.clone()
            }
        };
        self.conditions = self.conditions.iter().map(seen).collect();
    }

    /// A condition by its type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| &*condition.kind == kind)
    }
}
