//! The breaker: due evictions from a large part of the nodes at once are taken for a mistake. Pure.
//!
//! It counts nodes that come to have due pods for taints: in the cluster, and in each zone. Where they are
//! too many, it trips. Then it holds evictions for taints there, but for a trickle of one node after the
//! other, so that the loss of a zone comes to an end too.
//!
//! - A node counts from when its first pod comes due until the window is over, and longer while the
//!   breaker or a pause holds its pods. Otherwise the breaker would reset by itself while the mistake is still there.
//! - A node whose taints are gone counts no more, and neither does one that is gone.
//! - Drains are neither counted nor held: the caps of drain policies limit them.
//! - A zone that has all nodes is no scope of its own.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ahash::{AHashMap, AHashSet};
use jiff::Timestamp;
use tokio::time::Instant;

use super::topology::zone_text;
use super::turns::Turns;
use super::{BreakerMode, BreakerRules, NodeCounts, Topology};
use crate::model::NodeName;

/// How long nodes still count after a pause: by then, the queue has asked about all that the pause held.
const AFTER_PAUSE: Duration = Duration::from_mins(1);

/// Where the breaker counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Scope {
    Cluster,
    Zone(Arc<str>),
}

/// Why and since when it has tripped somewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trip {
    pub(crate) since: Timestamp,
    /// How many nodes had come to have due pods,
    pub(crate) nodes: usize,
    /// of how many.
    pub(crate) of: usize,
    /// Since when the share has been low.
    calm: Option<Instant>,
}

impl Trip {
    pub(super) fn new(since: Timestamp, nodes: usize, of: usize) -> Self {
        Self { since, nodes, of, calm: None }
    }
}

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Tripped(Scope, Trip),
    /// The share has been low for long enough, or the breaker was switched off.
    Calmed(Scope),
    /// Someone has reset it.
    Reset(Scope),
}

#[derive(Debug)]
pub(super) struct Breaker {
    rules: BreakerRules,
    counted: AHashMap<NodeName, Counted>,
    /// How many of those count, by zone.
    by_zone: AHashMap<Arc<str>, usize>,
    tripped: BTreeMap<Scope, Trip>,
    /// Nodes that the trickle has let go.
    admitted: AHashSet<Arc<str>>,
    /// When the trickle lets the next one go.
    next: Option<Instant>,
    /// Nodes that wait for it, by when their first pod became due.
    turns: Turns<Instant>,
}

#[derive(Debug)]
struct Counted {
    since: Instant,
    zone: Arc<str>,
    /// When a pause was last seen in force.
    paused: Option<Instant>,
    /// Someone has reset the breaker since it came to have due pods.
    is_forgiven: bool,
}

impl Breaker {
    pub(super) fn new(rules: BreakerRules) -> Self {
        Self {
            rules: rules.cut(),
            counted: AHashMap::new(),
            by_zone: AHashMap::new(),
            tripped: BTreeMap::new(),
            admitted: AHashSet::new(),
            next: None,
            turns: Turns::default(),
        }
    }

    pub(super) fn configure(&mut self, rules: BreakerRules) {
        self.rules = rules.cut();
    }

    pub(super) fn mode(&self) -> BreakerMode {
        self.rules.mode
    }

    /// Where it has tripped.
    pub(super) fn tripped(&self) -> &BTreeMap<Scope, Trip> {
        &self.tripped
    }

    /// Whether it has to look again later without being asked.
    pub(super) fn is_active(&self) -> bool {
        !self.counted.is_empty() || !self.tripped.is_empty()
    }

    /// How many nodes count.
    pub(super) fn counted(&self, scope: &Scope) -> usize {
        match scope {
            Scope::Cluster => self.by_zone.values().sum(),
            Scope::Zone(zone) => self.by_zone.get(zone).copied().unwrap_or_default(),
        }
    }

    /// Takes over what was stored by who led before.
    pub(super) fn adopt(&mut self, tripped: BTreeMap<Scope, Trip>, now: Instant) {
        self.next = Some(now + self.rules.trickle);
        self.tripped = tripped;
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.rules);
    }

    /// Whether it changes nothing that a pod of this node comes due: the node has been counted, or none is.
    pub(super) fn disregards(&self, node: &NodeName) -> bool {
        self.rules.mode == BreakerMode::Off || self.counted.contains_key(node)
    }

    /// A pod of a node has come due for a taint.
    pub(super) fn came_due(
        &mut self,
        node: &NodeName,
        zone: Arc<str>,
        nodes: &NodeCounts,
        now: Instant,
        wall: Timestamp,
    ) -> Vec<Change> {
        if self.disregards(node) {
            return Vec::new();
        }
        *self.by_zone.entry(Arc::clone(&zone)).or_default() += 1;
        let scopes = [Scope::Cluster, Scope::Zone(Arc::clone(&zone))];
        self.counted
            .insert(node.clone(), Counted { since: now, zone, paused: None, is_forgiven: false });
        scopes.into_iter().filter_map(|scope| self.trip(scope, nodes, now, wall)).collect()
    }

    /// Looks at all nodes that count, as time has passed.
    pub(super) fn look(
        &mut self,
        topology: &dyn Topology,
        is_paused: bool,
        now: Instant,
        wall: Timestamp,
    ) -> Vec<Change> {
        if self.rules.mode == BreakerMode::Off {
            let tripped = std::mem::take(&mut self.tripped);
            self.clear();
            return tripped.into_keys().map(Change::Calmed).collect();
        }
        let Self { rules, counted, turns, by_zone, .. } = self;
        counted.retain(|node, it| {
            let is_recent = now < it.since + rules.window;
            if is_paused {
                it.paused = Some(now);
            }
            let was_paused = it.paused.is_some_and(|at| now < at + AFTER_PAUSE);
            let counts = is_recent || was_paused || turns.has(node.as_str());
            counts && topology.is_tainted(node)
        });
        by_zone.clear();
        for it in counted.values().filter(|it| !it.is_forgiven) {
            *by_zone.entry(Arc::clone(&it.zone)).or_default() += 1;
        }
        let nodes = topology.counts();
        let zones = self.by_zone.keys().cloned().map(Scope::Zone);
        let scopes: Vec<_> = zones.chain([Scope::Cluster]).collect();
        let tripped = scopes.into_iter().filter_map(|scope| self.trip(scope, &nodes, now, wall));
        let mut changes: Vec<_> = tripped.collect();
        let tripped: Vec<_> = self.tripped.keys().cloned().collect();
        for scope in tripped {
            let is_low = self.is_low(&scope, &nodes);
            let Some(trip) = self.tripped.get_mut(&scope) else { continue };
            if !is_low {
                trip.calm = None;
            } else if *trip.calm.get_or_insert(now) + self.rules.calm <= now {
                self.tripped.remove(&scope);
                changes.push(Change::Calmed(scope));
            }
        }
        self.forget_trickle();
        changes
    }

    /// Someone has reset it: what has come due until now does not count any more.
    pub(super) fn reset(&mut self) -> Vec<Change> {
        for it in self.counted.values_mut() {
            it.is_forgiven = true;
        }
        self.by_zone.clear();
        let tripped = std::mem::take(&mut self.tripped);
        self.forget_trickle();
        tripped.into_keys().map(Change::Reset).collect()
    }

    fn forget_trickle(&mut self) {
        if self.tripped.is_empty() {
            (self.admitted, self.turns) = <(AHashSet<_>, Turns<_>)>::default();
            self.next = None;
        }
    }

    fn of(scope: &Scope, nodes: &NodeCounts) -> usize {
        match scope {
            Scope::Cluster => nodes.total,
            Scope::Zone(zone) => nodes.by_zone.get(zone).copied().unwrap_or_default(),
        }
    }

    fn trip(
        &mut self,
        scope: Scope,
        nodes: &NodeCounts,
        now: Instant,
        wall: Timestamp,
    ) -> Option<Change> {
        let (count, of) = (self.counted(&scope), Self::of(&scope, nodes));
        let is_all = scope != Scope::Cluster && of >= nodes.total;
        let at_least = usize::try_from(self.rules.at_least).unwrap_or(usize::MAX);
        let trips = count > at_least && count * 100 > usize::from(self.rules.share) * of;
        if is_all || !trips || self.tripped.contains_key(&scope) {
            return None;
        }
        if self.tripped.is_empty() {
            self.next = Some(now + self.rules.trickle);
        }
        let trip = Trip::new(wall, count, of);
        self.tripped.insert(scope.clone(), trip.clone());
        Some(Change::Tripped(scope, trip))
    }

    /// Whether the share is below half of what it trips at.
    fn is_low(&self, scope: &Scope, nodes: &NodeCounts) -> bool {
        let (count, of) = (self.counted(scope), Self::of(scope, nodes));
        count == 0 || count * 200 < usize::from(self.rules.share) * of
    }

    /// Whether it has tripped for a node of this zone.
    pub(super) fn concerns(&self, zone: &Arc<str>) -> bool {
        self.tripped.contains_key(&Scope::Cluster)
            || self.tripped.contains_key(&Scope::Zone(Arc::clone(zone)))
    }

    /// Until when a node waits for the trickle, where it has tripped; `None` if it may go. `due` is when its
    /// pod became due.
    pub(super) fn holds(&mut self, node: &str, due: Instant, now: Instant) -> Option<Instant> {
        if self.admitted.contains(node) {
            return None;
        }
        let ahead = self.turns.join(node, due);
        let until = self.until(ahead, now);
        if until.is_none() {
            self.turns.leave(node);
        }
        until
    }

    fn until(&self, ahead: usize, now: Instant) -> Option<Instant> {
        let slot = self.next.map_or(now, |next| next.max(now));
        if ahead == 0 && slot <= now {
            return None;
        }
        let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
        Some(slot + self.rules.trickle.saturating_mul(ahead).min(Duration::from_hours(24)))
    }

    /// When a node may go, if nothing changes.
    pub(super) fn turn(&self, node: &str, now: Instant) -> Option<Instant> {
        self.until(self.turns.ahead(node), now)
    }

    /// A pod of a node where it has tripped was handed out.
    pub(super) fn passed(&mut self, node: &str, now: Instant) {
        self.turns.leave(node);
        if self.admitted.insert(Arc::from(node)) {
            self.next = Some(now + self.rules.trickle);
        }
    }

    /// A pod of a node goes where it has tripped, because the breaker only observes. Returns whether it would
    /// have been held. The trickle goes on as if the others were held.
    pub(super) fn would_hold(&mut self, node: &str, now: Instant) -> bool {
        self.turns.leave(node);
        let is_held = !self.admitted.contains(node) && self.until(0, now).is_some();
        if !is_held {
            self.passed(node, now);
        }
        is_held
    }

    /// A node has no held pod any more. Returns whether others wait.
    pub(super) fn left(&mut self, node: &str) -> bool {
        self.turns.leave(node).is_some() && self.turns.len() > 0
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster => f.write_str("the cluster"),
            Self::Zone(zone) => f.write_str(&zone_text(zone)),
        }
    }
}

#[cfg(test)]
mod tests;
