//! The budget of nodes: how many are unavailable, which one is cordoned next, and when the next drain
//! starts. This is the only state that concerns several nodes.
//!
//! It is derived from the stored nodes, plus grants that are not visible yet, so a restart reconstructs
//! it. It is not stored anywhere.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use jiff::Timestamp;

use super::{Cap, CapScope, DrainPhase, Limit, Policy, Record};
use crate::model::{Autoscaler, NodeDrainFacts, NodeName, later};

/// How long a grant counts that is not visible on the node: the write may have failed without a response,
/// or the watch may be late.
const GRANT_LASTS: Duration = Duration::from_secs(120);

/// The nodes of the cluster, as far as they affect drains of other nodes.
#[derive(Debug, Default)]
pub struct NodeBudget {
    nodes: AHashMap<NodeName, Entry>,
    scopes: AHashMap<Scope, Tally>,
    /// Labels used by caps.
    keys: Vec<Arc<str>>,
    granted: AHashMap<NodeName, Timestamp>,
    waiting: BTreeSet<Waiting>,
    /// The queue position of each waiting node, and the scope that refused it last.
    places: AHashMap<NodeName, (Waiting, Option<Scope>)>,
    /// Since when this process leads. It knows which drains it has started since then; records with later
    /// starts are not trusted.
    leads_since: Option<Timestamp>,
    /// When the latest drain of each policy started.
    begun: AHashMap<Arc<str>, Timestamp>,
    /// Drains whose start is being written: the policy, and when.
    beginning: AHashMap<NodeName, (Arc<str>, Timestamp)>,
    /// When the drain of each node is scheduled to start.
    slots: AHashMap<NodeName, Slot>,
}

/// A scheduled start and its policy.
#[derive(Debug)]
struct Slot {
    policy: Arc<str>,
    at: Timestamp,
    /// Whether it is stored on the node.
    stored: bool,
}

/// A set of nodes to which a cap applies.
type Scope = Option<(Arc<str>, Option<Arc<str>>)>;

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    total: u32,
    out: u32,
    /// Those of them that do not count.
    overran: u32,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    unschedulable: bool,
    /// Counted as unavailable: cordoned, or granted.
    out: bool,
    /// Its drain [has overrun](Record::overran).
    overran: bool,
    scopes: Vec<Scope>,
}

/// A node that waits for a cap, ordered by who is next.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    /// cluster-autoscaler's scale-down candidates first: they will be removed anyway.
    rank: u8,
    since: Timestamp,
    node: NodeName,
}

/// Why a node may not be cordoned now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{out} of {total} nodes{scope} are unavailable; the limit is {most}")]
pub struct Capped {
    out: u32,
    total: u32,
    scope: String,
    most: u32,
}

impl NodeBudget {
    /// For these policies.
    pub fn new(policies: &[Policy]) -> Self {
        Self { keys: keys(policies), ..Self::default() }
    }

    /// Counts for these policies from now on. A node is counted by their labels when it is
    /// [seen](Self::see) the next time. Grants, waiting nodes and planned starts stay.
    pub fn count_for<'a>(&mut self, policies: impl IntoIterator<Item = &'a Policy>) {
        self.keys = keys(policies);
    }

    /// This process leads from now on, or is a standby (`None`).
    pub fn lead(&mut self, since: Option<Timestamp>) {
        self.leads_since = since;
    }

    /// Whether this process leads.
    pub fn leads(&self) -> bool {
        self.leads_since.is_some()
    }

    /// Updates a node, with its record if it [plans a drain](Record::plans) that affects others.
    pub fn see(&mut self, name: &NodeName, drain_facts: &NodeDrainFacts, plan: Option<&Record>) {
        self.plan(name, plan);
        if drain_facts.unschedulable {
            self.granted.remove(name);
            self.withdraw(name);
        }
        let scopes = std::iter::once(None).chain(
            self.keys
                .iter()
                .map(|key| Some((Arc::clone(key), drain_facts.labels.get(key).map(Arc::from)))),
        );
        let entry = Entry {
            unschedulable: drain_facts.unschedulable,
            out: drain_facts.unschedulable || self.granted.contains_key(name),
            overran: plan.is_some_and(|record| record.overran),
            scopes: scopes.collect(),
        };
        self.put(name, Some(entry));
    }

    /// Removes a node.
    pub fn forget(&mut self, name: &NodeName) {
        self.granted.remove(name);
        self.slots.remove(name);
        // It may have begun.
        if let Some((policy, at)) = self.beginning.remove(name) {
            self.note_begun(policy, at);
        }
        self.withdraw(name);
        self.put(name, None);
    }

    /// Drops everything that is not stored on nodes: grants, waiting nodes and unstored times. Another
    /// replica may have led meanwhile.
    pub fn forget_claims(&mut self) {
        let granted: Vec<NodeName> = self.granted.keys().cloned().collect();
        for name in granted {
            self.give_back(&name);
        }
        self.waiting.clear();
        self.places.clear();
        self.beginning.clear();
        self.slots.retain(|_, slot| slot.stored);
    }

    /// Grants a cordon if the caps allow one more and no other waiting node is first. Otherwise the node waits
    /// from now on. A grant counts until the node is seen cordoned, or the grant is
    /// [given back](Self::give_back).
    ///
    /// # Errors
    /// The cap that has been reached.
    pub fn grant(
        &mut self,
        name: &NodeName,
        autoscaler: Autoscaler,
        caps: &[Cap],
        now: Timestamp,
    ) -> Result<(), Capped> {
        self.expire(now);
        if self.nodes.get(name).is_some_and(|entry| entry.out) {
            self.withdraw(name);
            return Ok(());
        }
        let place = self.wait(name, autoscaler, now);
        for cap in caps {
            if let Err((scope, capped)) = self.room(&place, cap) {
                self.places.insert(name.clone(), (place, Some(scope)));
                return Err(capped);
            }
        }
        self.withdraw(name);
        self.granted.insert(name.clone(), now);
        self.count(name, true);
        Ok(())
    }

    /// Returns a grant: the node is not cordoned after all.
    pub fn give_back(&mut self, name: &NodeName) {
        if self.granted.remove(name).is_some() {
            self.count(name, false);
        }
    }

    /// The node no longer waits for a cap.
    pub fn withdraw(&mut self, name: &NodeName) {
        if let Some((place, _)) = self.places.remove(name) {
            self.waiting.remove(&place);
        }
    }

    /// When the drain of this node starts: after its notice, with the spacing to other drains of the policy,
    /// and in a window. Repeated calls for the same node return the same time.
    pub fn slot(&mut self, name: &NodeName, policy: &Policy, now: Timestamp) -> Timestamp {
        if let Some(slot) = self.slots.get(name).filter(|slot| slot.at > now) {
            return slot.at;
        }
        self.slots.remove(name);
        let others = self.slots.values().filter(|slot| slot.policy == policy.name);
        let others = others.map(|slot| slot.at);
        let mut others: Vec<_> = others.chain(self.latest_beginning(policy)).collect();
        others.sort_unstable();
        let opens = |from| policy.next_opening(from).unwrap_or(from);
        let mut slot = opens(later(now, policy.pace.notice));
        // The first gap, not the end: whatever a node says of its own plan, it takes up no more than
        // one slot.
        for other in others {
            if slot < later(other, policy.pace.spacing) && other < later(slot, policy.pace.spacing)
            {
                slot = opens(later(other, policy.pace.spacing));
            }
        }
        let of = Arc::clone(&policy.name);
        self.slots.insert(name.clone(), Slot { policy: of, at: slot, stored: false });
        slot
    }

    /// Starts the drain of this node now, unless another drain of the policy started too recently, for example
    /// because many were due while none could start. The others wait from now on; whether they continue to
    /// wait is decided when the stored node [shows](Self::settle) whether the drain started.
    ///
    /// # Errors
    /// The time at which it may start instead.
    pub fn begin(
        &mut self,
        name: &NodeName,
        policy: &Policy,
        now: Timestamp,
    ) -> Result<(), Timestamp> {
        let latest = self.latest_beginning(policy);
        if latest.is_some_and(|latest| later(latest, policy.pace.spacing) > now) {
            self.slots.remove(name);
            return Err(self.slot(name, policy, now));
        }
        self.beginning.insert(name.clone(), (Arc::clone(&policy.name), now));
        Ok(())
    }

    /// Whether it is unknown yet if the drain of this node has started.
    pub fn is_beginning(&self, name: &NodeName) -> bool {
        self.beginning.contains_key(name)
    }

    /// Checks on the stored node whether its drain has started. If the write failed, no other drain waits for
    /// it, and its next attempt starts at once.
    pub fn settle(&mut self, name: &NodeName, drain_facts: &NodeDrainFacts) {
        let Some((policy, at)) = self.beginning.remove(name) else { return };
        if Record::of(drain_facts).is_some_and(|record| record.started == Some(at)) {
            self.slots.remove(name);
            self.note_begun(policy, at);
        }
    }

    /// This process has started the time of a running drain again.
    pub fn begun_again(&mut self, record: &Record) {
        if let Some(started) = record.started.filter(|_| record.failures == 0) {
            self.note_begun(Arc::from(record.policy()), started);
        }
    }

    fn latest_beginning(&self, policy: &Policy) -> Option<Timestamp> {
        let on_their_way = self.beginning.values().filter(|(of, _)| *of == policy.name);
        on_their_way.map(|(_, at)| *at).chain(self.begun.get(&policy.name).copied()).max()
    }

    fn note_begun(&mut self, policy: Arc<str>, at: Timestamp) {
        let begun = self.begun.entry(policy).or_insert(at);
        *begun = at.max(*begun);
    }

    /// Takes in what a node's record says of beginnings, as far as it concerns others. Drains that failed are not spaced: they must
    /// not hold up the others.
    fn plan(&mut self, name: &NodeName, record: Option<&Record>) {
        let Some(record) = record.filter(|record| record.failures == 0) else {
            self.slots.remove(name);
            return;
        };
        let policy: Arc<str> = Arc::from(record.policy());
        let is_before = |at: &Timestamp| self.leads_since.is_none_or(|since| *at <= since);
        if let Some(started) = record.started.filter(is_before) {
            self.note_begun(Arc::clone(&policy), started);
        }
        match record.scheduled {
            Some(at) if record.phase == DrainPhase::Scheduled => {
                self.slots.insert(name.clone(), Slot { policy, at, stored: true });
            }
            _ => {
                self.slots.remove(name);
            }
        }
    }

    /// Number of nodes that wait for a cap.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of unavailable nodes, and of all nodes.
    pub fn unavailable(&self) -> (u32, u32) {
        self.scopes.get(&None).map_or((0, 0), |tally| (tally.out, tally.total))
    }

    fn wait(&mut self, name: &NodeName, autoscaler: Autoscaler, now: Timestamp) -> Waiting {
        let rank = u8::from(autoscaler != Autoscaler::Candidate);
        let known = self.places.get(name);
        let since = known.map_or(now, |(known, _)| known.since);
        let refused = known.and_then(|(_, refused)| refused.clone());
        let place = Waiting { rank, since, node: name.clone() };
        self.withdraw(name);
        self.waiting.insert(place.clone());
        self.places.insert(name.clone(), (place.clone(), refused));
        place
    }

    /// Whether a cap allows the node at this queue position.
    fn room(&self, place: &Waiting, cap: &Cap) -> Result<(), (Scope, Capped)> {
        let Some(entry) = self.nodes.get(&place.node) else {
            return Ok(());
        };
        let scope = entry.scopes.iter().find(|scope| match (&cap.scope, scope) {
            (CapScope::Cluster, None) => true,
            (CapScope::Label(key), Some((found, _))) => key == found,
            _ => false,
        });
        let Some(scope) = scope else {
            return Ok(());
        };
        let tally = self.scopes.get(scope).copied().unwrap_or_default();
        let (out, total) = (tally.out, tally.total);
        let most = match cap.limit {
            Limit::Count(most) => most,
            Limit::Percent(part) => (total * u32::from(part) / 100).max(1),
        };
        // Whoever makes a pod that never ends must not take a place for good. But no more give theirs
        // back than there are: the cap is what keeps a cluster in use when many nodes look bad.
        let out = out - tally.overran.min(most);
        // A node that waits for something else does not block.
        let is_ahead = |waiting: &&Waiting| {
            self.places
                .get(&waiting.node)
                .is_some_and(|(_, refused)| refused.as_ref() == Some(scope))
        };
        let free = most.saturating_sub(out) as usize;
        let ahead = self.waiting.range(..place.clone()).filter(is_ahead).take(free).count();
        if ahead < free {
            return Ok(());
        }
        let among = match scope {
            None => String::new(),
            Some((key, Some(value))) => format!(" with {key}={value}"),
            Some((key, None)) => format!(" without label {key}"),
        };
        Err((scope.clone(), Capped { out, total, scope: among, most }))
    }

    fn expire(&mut self, now: Timestamp) {
        let old = |at: &Timestamp| later(*at, GRANT_LASTS) < now;
        let expired: Vec<NodeName> =
            self.granted.iter().filter(|(_, at)| old(at)).map(|(name, _)| name.clone()).collect();
        for name in expired {
            self.give_back(&name);
        }
    }

    /// Counts a known node as unavailable because of a grant, or removes that.
    fn count(&mut self, name: &NodeName, granted: bool) {
        if let Some(entry) = self.nodes.get(name) {
            let out = entry.unschedulable || granted;
            let (unschedulable, overran) = (entry.unschedulable, entry.overran);
            let entry = Entry { unschedulable, out, overran, scopes: entry.scopes.clone() };
            self.put(name, Some(entry));
        }
    }

    fn put(&mut self, name: &NodeName, entry: Option<Entry>) {
        let before = match entry {
            Some(entry) => {
                if self.nodes.get(name) == Some(&entry) {
                    return;
                }
                for scope in &entry.scopes {
                    let tally = self.scopes.entry(scope.clone()).or_default();
                    tally.total += 1;
                    tally.out += u32::from(entry.out);
                    tally.overran += u32::from(entry.out && entry.overran);
                }
                self.nodes.insert(name.clone(), entry)
            }
            None => self.nodes.remove(name),
        };
        for scope in before.iter().flat_map(|before| &before.scopes) {
            if let Some(tally) = self.scopes.get_mut(scope) {
                tally.total -= 1;
                let counts = |is: fn(&Entry) -> bool| u32::from(before.as_ref().is_some_and(is));
                tally.out -= counts(|before| before.out);
                tally.overran -= counts(|before| before.out && before.overran);
                if tally.total == 0 {
                    self.scopes.remove(scope);
                }
            }
        }
    }
}

/// The labels by which the caps of these policies count.
fn keys<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> Vec<Arc<str>> {
    let caps = policies.into_iter().flat_map(|policy| &policy.pace.caps);
    let keys: BTreeSet<Arc<str>> = caps
        .filter_map(|cap| match &cap.scope {
            CapScope::Cluster => None,
            CapScope::Label(key) => Some(Arc::clone(key)),
        })
        .collect();
    keys.into_iter().collect()
}

#[cfg(test)]
mod tests;
