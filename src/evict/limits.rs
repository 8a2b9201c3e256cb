//! How many pods may be evicted at a time, and from how many nodes, as configured.

use std::time::Duration;

pub use crate::model::RateLimit;

/// Longer times are cut, so that none overflows. Nobody waits for so long.
pub(super) const LONGEST: Duration = Duration::from_hours(24 * 365 * 10);

/// The node label that names a zone.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// Limits on evictions. They delay, and never drop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionLimits {
    /// For all evictions; `None` for no limit.
    pub cluster: Option<RateLimit>,
    /// For the evictions from the nodes of each zone; `None` for no limit.
    pub zone: Option<RateLimit>,
    /// How many nodes lose their pods for taints at full speed; `None` for any number.
    pub ramp: Option<Ramp>,
}

/// How many nodes lose their pods for taints at full speed. Further ones follow one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ramp {
    /// So many nodes, or [`share`](Self::share) if that is more.
    pub nodes: u32,
    /// So many percent of all nodes, or [`nodes`](Self::nodes) if that is more.
    pub share: u8,
    /// The time within which nodes are counted.
    pub within: Duration,
    /// Time from one further node to the next.
    pub interval: Duration,
}

impl Ramp {
    /// The same, with times that do not overflow.
    pub(super) fn cut(self) -> Self {
        let (within, interval) = (self.within.min(LONGEST), self.interval.min(LONGEST));
        Self { within, interval, ..self }
    }
}

impl Default for EvictionLimits {
    fn default() -> Self {
        Self { cluster: None, zone: None, ramp: Some(Ramp::default()) }
    }
}

impl Default for Ramp {
    fn default() -> Self {
        Self {
            nodes: 10,
            share: 5,
            within: Duration::from_secs(600),
            interval: Duration::from_secs(1),
        }
    }
}

/// When evictions from many nodes at once are taken for a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerRules {
    /// What it does.
    pub mode: BreakerMode,
    /// It trips when more than so many percent of the nodes of the cluster or of a zone have come to have due
    /// pods within [`window`](Self::window),
    pub share: u8,
    /// and more than so many nodes.
    pub at_least: u32,
    /// The time within which nodes are counted.
    pub window: Duration,
    /// It resets after the share has been below half of [`share`](Self::share) for so long.
    pub calm: Duration,
    /// While it has tripped, one node after the other goes on, with this time in between.
    pub trickle: Duration,
}

/// What the breaker does when it trips.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BreakerMode {
    /// It reports what it would hold, and holds nothing.
    #[default]
    Observe,
    /// It holds evictions.
    Enforce,
    /// Nothing.
    Off,
}

impl BreakerRules {
    /// The same, with times that do not overflow.
    pub(super) fn cut(self) -> Self {
        let (window, calm) = (self.window.min(LONGEST), self.calm.min(LONGEST));
        Self { window, calm, trickle: self.trickle.min(LONGEST), ..self }
    }
}

impl Default for BreakerRules {
    fn default() -> Self {
        Self {
            mode: BreakerMode::default(),
            share: 30,
            at_least: 5,
            window: Duration::from_secs(600),
            calm: Duration::from_secs(300),
            // kube-controller-manager taints a node each 10 s, and one each 100 s or none in a zone of which
            // most nodes are unhealthy.
            trickle: Duration::from_mins(1),
        }
    }
}
