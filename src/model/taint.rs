//! Node taints.

use std::fmt;
use std::sync::Arc;

use super::Stamp;

/// What a taint does to pods that do not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// New pods are not scheduled onto the node.
    NoSchedule,
    /// New pods are scheduled elsewhere if possible.
    PreferNoSchedule,
    /// Running pods are evicted: the only effect that this program acts on.
    NoExecute,
    /// An effect that this version does not know; matches nothing.
    Unknown,
}

impl Effect {
    /// The effect that the API spells `text`.
    pub fn parse(text: &str) -> Self {
        match text {
            "NoSchedule" => Self::NoSchedule,
            "PreferNoSchedule" => Self::PreferNoSchedule,
            "NoExecute" => Self::NoExecute,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
            Self::Unknown => "Unknown",
        })
    }
}

/// A taint of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Taint {
    /// Taint key, for example `node.kubernetes.io/unreachable`.
    pub key: Arc<str>,
    /// Taint value; empty when there is none.
    pub value: Arc<str>,
    /// What it does.
    pub effect: Effect,
    /// When it was added, if stored: the node lifecycle controller sets it, `kubectl taint` does not.
    pub time_added: Option<Stamp>,
}

impl Taint {
    /// Key of the taint that stands for Ready=False.
    pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
    /// Key of the taint that stands for Ready=Unknown.
    pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

    /// Whether it is one of the two taints with which the node lifecycle controller reports an outage of
    /// the node, and which it removes, adds and swaps by itself.
    pub fn is_outage(&self) -> bool {
        self.effect == Effect::NoExecute
            && (&*self.key == Self::NOT_READY || &*self.key == Self::UNREACHABLE)
    }
}

/// As `kubectl taint` writes it: `key=value:Effect`, or `key:Effect` without a value.
impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.value.is_empty() {
            write!(f, "{}:{}", self.key, self.effect)
        } else {
            write!(f, "{}={}:{}", self.key, self.value, self.effect)
        }
    }
}
