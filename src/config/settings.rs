//! What a configuration file sets, besides what only flags set.

use std::sync::Arc;

use super::Compat;
pub use crate::drain::Orphans;
use crate::drain::Policy;
use crate::evict::{BreakerRules, EvictionLimits, TaintRule, ZONE_LABEL};

/// Group and version of a configuration file. The group is its own, so that nobody takes the file for a
/// resource of the API server.
pub const API_VERSION: &str = "config.ostrakon.dev/v1alpha1";
/// Kind of a configuration file.
pub const KIND: &str = "OstrakonConfiguration";

/// The settings of a configuration file, or those of flags and defaults without one.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How pods are evicted for taints. Without a matching rule they are deleted.
    pub taint_rules: Vec<TaintRule>,
    /// Which nodes are cordoned and drained. If empty, none is.
    pub policies: Vec<Policy>,
    /// What happens to the cordons of a policy that is configured no longer.
    pub orphans: Orphans,
    /// Limits on evictions.
    pub limits: EvictionLimits,
    /// When evictions from many nodes are taken for a mistake.
    pub breaker: BreakerRules,
    /// The node label that names a node's zone, for limits and the breaker.
    pub zone_label: Arc<str>,
}

impl Settings {
    /// Why they cannot be used with these rules of taint eviction, with the remedy.
    pub fn conflict_with(&self, compat: Compat) -> Option<&'static str> {
        (compat == Compat::Upstream && !self.taint_rules.is_empty()).then_some(
            "--compat upstream knows no taint rules, because kube-controller-manager has none; remove \
             taintEviction.rules from the configuration, or run without --compat upstream",
        )
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            taint_rules: Vec::new(),
            policies: Vec::new(),
            orphans: Orphans::default(),
            limits: EvictionLimits::default(),
            breaker: BreakerRules::default(),
            zone_label: ZONE_LABEL.into(),
        }
    }
}

impl From<Vec<Policy>> for Settings {
    /// The defaults, with these drain policies.
    fn from(policies: Vec<Policy>) -> Self {
        Self { policies, ..Self::default() }
    }
}
