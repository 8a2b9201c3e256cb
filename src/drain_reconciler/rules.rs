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
        let watched = Arc::new(watched(policies.iter()));
        Self { policies, orphans, watched }
    }

    /// These, and those of `other` that have another name. All that both need is read of nodes: a policy of
    /// `other` is in force although another one has its name here.
    fn with(&self, other: &Self) -> Self {
        let is_other = |policy: &&Policy| self.policy(&policy.name).is_none();
        let others = other.policies.iter().filter(is_other);
        Self {
            policies: self.policies.iter().chain(others).cloned().collect(),
            orphans: self.orphans,
            watched: Arc::new(watched(self.policies.iter().chain(&*other.policies))),
        }
    }

    /// The policy of this name.
    pub(crate) fn policy(&self, name: &str) -> Option<&Policy> {
        self.policies.iter().find(|policy| &*policy.name == name)
    }
}

/// What has to be read of nodes for these policies.
fn watched<'a>(policies: impl Iterator<Item = &'a Policy> + Clone) -> Watched {
    let rules = policies.flat_map(|policy| &policy.conditions);
    Watched {
        heartbeats: rules.clone().any(|rule| rule.stale_after.is_some()),
        conditions: rules.map(|rule| Arc::clone(&rule.kind)).collect(),
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
    pub(super) fn prepare(&self, policies: Arc<[Policy]>) {
        let in_force = self.in_force();
        let both = DrainRules::new(policies, in_force.orphans).with(&in_force);
        *self.read_for.write() = Arc::new(both);
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
        assert!(watches("Worse"), "the policy of the same name is still in force");
        assert!(rules.in_force().policy("a").is_some(), "nothing has changed yet");
        rules.replace(new, Orphans::Uncordon);
        assert_eq!(rules.in_force().orphans, Orphans::Uncordon);
        assert!(rules.in_force().policy("a").is_none());
        assert!(!rules.read_for().watched.conditions.contains("Bad"));
    }
}
