//! Cordons of policies that are configured no longer.
//!
//! A policy that is renamed or removed leaves its cordons behind. Nobody reads their conditions any more, so
//! nothing tells that a node has recovered. A node that a configured policy finds bad is no orphan for long:
//! the policy takes over the cordon.

use super::{Cordon, DrainPhase, Policy, Record};

/// What happens to the cordons of a policy that is configured no longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Orphans {
    /// They stay, and are reported.
    #[default]
    Keep,
    /// They are taken back.
    Uncordon,
}

impl Record {
    /// Whether the cordon is ours, and none of the policies that asked for it is configured any more.
    pub fn is_orphaned(&self, policies: &[Policy]) -> bool {
        let is_configured = |name: &str| policies.iter().any(|policy| *policy.name == *name);
        self.cordon == Cordon::Ours
            && self.phase != DrainPhase::Released
            && !self.claims.is_empty()
            && !self.claims.iter().any(|claim| is_configured(&claim.policy))
    }
}
