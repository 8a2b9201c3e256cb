//! The drain policies, and what is read of nodes for them. They may be replaced while drains are under way.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::cluster::Watched;
use crate::drain::{Orphans, Policy};

/// Drain policies that belong together: a decision uses one set of them from its beginning to its end.
#[derive(Debug)]
pub(crate) struct DrainRules {
    pub policies: Arc<[Policy]>,
    /// What happens to the cordons of other policies.
    pub orphans: Orphans,
    /// What is read of nodes for them.
    pub watched: Arc<Watched>,
}

impl DrainRules {
    pub(crate) fn new(policies: Arc<[Policy]>, orphans: Orphans) -> Self {
        let rules = policies.iter().flat_map(|policy| &policy.conditions);
        let watched = Arc::new(Watched {
            heartbeats: rules.clone().any(|rule| rule.stale_after.is_some()),
            conditions: rules.map(|rule| Arc::clone(&rule.kind)).collect(),
        });
        Self { policies, orphans, watched }
    }

    /// These, and those of `other` that have another name.
    fn with(&self, other: &Self) -> Self {
        let is_other = |policy: &&Policy| self.policy(&policy.name).is_none();
        let others = other.policies.iter().filter(is_other);
        Self::new(self.policies.iter().chain(others).cloned().collect(), self.orphans)
    }

    /// The policy of this name.
    pub(crate) fn policy(&self, name: &str) -> Option<&Policy> {
        self.policies.iter().find(|policy| &*policy.name == name)
    }
}

/// The policies in force, and those that nodes are read for.
///
/// Policies that are to be in force are read for first: until a list has brought what they need to know of
/// every node, a condition could be missing that a node has, and a cap count too few nodes.
#[derive(Debug)]
pub(super) struct Replaceable {
    in_force: RwLock<Arc<DrainRules>>,
    read_for: RwLock<Arc<DrainRules>>,
}

impl Replaceable {
    pub(super) fn new(policies: Arc<[Policy]>, orphans: Orphans) -> Self {
        let rules = Arc::new(DrainRules::new(policies, orphans));
        Self { in_force: RwLock::new(Arc::clone(&rules)), read_for: RwLock::new(rules) }
    }

    /// The policies by which decisions are made.
    pub(super) fn in_force(&self) -> Arc<DrainRules> {
        Arc::clone(&self.in_force.read())
    }

    /// The policies that nodes are read for: those in force, and those that will be.
    pub(super) fn read_for(&self) -> Arc<DrainRules> {
        Arc::clone(&self.read_for.read())
    }

    /// Has nodes read for these policies too.
    pub(super) fn prepare(&self, policies: Arc<[Policy]>) -> Arc<DrainRules> {
        let in_force = self.in_force();
        let both = Arc::new(DrainRules::new(policies, in_force.orphans).with(&in_force));
        *self.read_for.write() = Arc::clone(&both);
        both
    }

    /// Puts these policies in force.
    pub(super) fn replace(&self, policies: Arc<[Policy]>, orphans: Orphans) {
        let rules = Arc::new(DrainRules::new(policies, orphans));
        *self.in_force.write() = Arc::clone(&rules);
        *self.read_for.write() = rules;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::build::policy;

    #[test]
    fn nodes_are_read_for_old_and_new_policies_until_the_new_ones_are_in_force() {
        let old = [policy("a", &["Bad"]), policy("b", &["Worse"])];
        let rules = Replaceable::new(Arc::from(old), Orphans::Keep);
        let new: Arc<[Policy]> = Arc::from([policy("b", &["Hot"])]);
        rules.prepare(Arc::clone(&new));
        let read = rules.read_for();
        let names: Vec<_> = read.policies.iter().map(|policy| &*policy.name).collect();
        assert_eq!(names, ["b", "a"]);
        let watches = |kind: &str| read.watched.conditions.contains(kind);
        assert!(watches("Bad") && watches("Hot"));
        assert!(rules.in_force().policy("a").is_some(), "nothing has changed yet");
        rules.replace(new, Orphans::Uncordon);
        assert_eq!(rules.in_force().orphans, Orphans::Uncordon);
        assert!(rules.in_force().policy("a").is_none());
        assert!(!rules.read_for().watched.conditions.contains("Bad"));
    }
}
