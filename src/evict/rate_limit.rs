//! Limits on the rate of evictions: of each rule for taints, of each zone, and of the cluster.
//!
//! An eviction needs a token of each limit that applies to it. These limits are one hold, because evictions
//! that wait for two limits would otherwise move between their lines with each token. Evictions with the
//! same rule and zone form a line. Lines that wait for the same limit take turns.
//!
//! An eviction takes its tokens when it is handed out for the first time. A retry takes none.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::token_bucket::TokenBucket;
use super::topology::zone_text;
use super::turns::Turns;
use super::{Cause, Eviction, EvictionLimits, Hold, RateLimit, TaintRule, Topology, Wait};
use crate::drain::format_duration;

/// So many buckets and lines are kept before those are dropped that a new one would replace. Zones are
/// named by kubelets.
const MANY: usize = 10_000;

/// The limits of rules, zones and the cluster.
pub struct RateLimits {
    topology: Arc<dyn Topology>,
    state: Mutex<State>,
    changed: Arc<Notify>,
}

/// Whose limit it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum LimitId {
    Cluster,
    Rule(Arc<str>),
    Zone(Arc<str>),
}

/// How many tokens a limit has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tokens {
    pub(super) id: LimitId,
    pub(super) left: u32,
}

#[derive(Default)]
struct State {
    rules: Vec<TaintRule>,
    zone: Option<RateLimit>,
    cluster: Option<RateLimit>,
    buckets: AHashMap<LimitId, Bucket>,
    /// Names of lines, by rule and zone.
    names: AHashMap<[Option<LimitId>; 2], Arc<str>>,
    /// Which limits apply to a line.
    lines: AHashMap<Arc<str>, Vec<LimitId>>,
    /// The limit that a line waits for.
    waiting: AHashMap<Arc<str>, (LimitId, u64)>,
    tickets: u64,
}

struct Bucket {
    tokens: TokenBucket,
    /// Lines that wait for a token, in the order of their tickets.
    turns: Turns<u64>,
}

impl RateLimits {
    /// Limits with full buckets. Tells `changed` when a line may go earlier than it was told.
    pub fn new(topology: Arc<dyn Topology>, changed: Arc<Notify>) -> Self {
        Self { topology, state: Mutex::default(), changed }
    }

    /// Has these limits count from now on. What was counted stays counted.
    pub fn configure(&self, rules: &[TaintRule], limits: &EvictionLimits) {
        self.state.lock().configure(rules, limits, Instant::now());
        self.changed.notify_one();
    }

    /// The tokens that are left, of each limit that is configured for the cluster or a rule, and of each
    /// zone that has spent some.
    pub(super) fn tokens(&self) -> Vec<Tokens> {
        let (now, state) = (Instant::now(), self.state.lock());
        let full = |limit: &RateLimit| limit.burst;
        let cluster = state.cluster.as_ref().map(|limit| (LimitId::Cluster, full(limit)));
        let rules = state.rules.iter().filter_map(|rule| {
            Some((LimitId::Rule(Arc::clone(&rule.name)), full(rule.limit.as_ref()?)))
        });
        let mut tokens: std::collections::BTreeMap<_, _> =
            cluster.into_iter().chain(rules).collect();
        tokens.extend(state.buckets.iter().map(|(id, it)| (id.clone(), it.tokens.tokens(now))));
        tokens.into_iter().map(|(id, left)| Tokens { id, left }).collect()
    }
}

impl Hold for RateLimits {
    fn name(&self) -> &'static str {
        "rate limit"
    }

    fn applies_to_retries(&self) -> bool {
        false
    }

    fn line(&self, eviction: &Eviction) -> Option<Arc<str>> {
        let mut state = self.state.lock();
        let zone = state.zone.is_some().then(|| self.topology.zone(&eviction.pod.node));
        state.line(eviction, zone)
    }

    fn holds(&self, line: &str, _: Instant, now: Instant) -> Option<Wait> {
        self.state.lock().holds(line, now)
    }

    fn passed(&self, line: &str, now: Instant) {
        let mut state = self.state.lock();
        state.stop_waiting(line);
        for id in state.limits_of(line) {
            if let Some(bucket) = state.bucket(&id, now) {
                bucket.tokens.take(now);
            }
        }
    }

    fn left(&self, line: &str, _: Instant) {
        if self.state.lock().stop_waiting(line) {
            self.changed.notify_one();
        }
    }

    fn clear(&self) {
        let mut state = self.state.lock();
        // Another process may have counted meanwhile. Starting with full buckets at each term would let
        // a burst go with each change of the leader, so what this one has counted stays.
        state.waiting.clear();
        for bucket in state.buckets.values_mut() {
            bucket.turns = Turns::default();
        }
    }

    fn why(&self, line: &str) -> String {
        let state = self.state.lock();
        let waits_for = state.waiting.get(line).map(|(id, _)| id);
        let limit = waits_for.and_then(|id| Some((id, state.buckets.get(id)?.tokens.limit())));
        match limit {
            Some((id, RateLimit { pods, per, .. })) => {
                format!("waits for the limit of {id}: {pods} pods each {}", format_duration(per))
            }
            None => format!("waits for a limit ({line})"),
        }
    }

    fn turn(&self, line: &str, ahead: usize, now: Instant) -> Option<Instant> {
        let mut state = self.state.lock();
        let limits = state.limits_of(line);
        let turns = limits.iter().filter_map(|id| {
            let bucket = state.bucket(id, now)?;
            // The other lines take turns with this one.
            let before = ahead.saturating_mul(bucket.turns.len().max(1));
            later(bucket.tokens.next(now), bucket.tokens.each(), before)
        });
        turns.max()
    }
}

impl State {
    fn configure(&mut self, rules: &[TaintRule], limits: &EvictionLimits, now: Instant) {
        self.rules = rules.to_vec();
        (self.zone, self.cluster) = (limits.zone, limits.cluster);
        let mut buckets = std::mem::take(&mut self.buckets);
        buckets.retain(|id, bucket| {
            let limit = self.limit(id);
            if let Some(limit) = limit {
                bucket.tokens.configure(limit, now);
            }
            bucket.turns = Turns::default();
            limit.is_some()
        });
        self.buckets = buckets;
        self.names.clear();
        self.lines.clear();
        self.waiting.clear();
    }

    fn limit(&self, id: &LimitId) -> Option<RateLimit> {
        match id {
            LimitId::Cluster => self.cluster,
            LimitId::Zone(_) => self.zone,
            LimitId::Rule(name) => self.rules.iter().find(|rule| rule.name == *name)?.limit,
        }
    }

    fn bucket(&mut self, id: &LimitId, now: Instant) -> Option<&mut Bucket> {
        let limit = self.limit(id)?;
        if self.buckets.len() >= MANY && !self.buckets.contains_key(id) {
            self.buckets.retain(|_, it| it.turns.len() > 0 || !it.tokens.is_full(now));
        }
        let new = || Bucket { tokens: TokenBucket::new(limit, now), turns: Turns::default() };
        Some(self.buckets.entry(id.clone()).or_insert_with(new))
    }

    /// The line of an eviction; `None` if no limit applies to it.
    fn line(&mut self, eviction: &Eviction, zone: Option<Arc<str>>) -> Option<Arc<str>> {
        let rule = match &eviction.cause {
            Cause::Taint(verdict) => verdict.cause().and_then(|cause| cause.rule.clone()),
            Cause::Drain(_) => None,
        };
        let rule = rule.map(LimitId::Rule).filter(|rule| self.limit(rule).is_some());
        let ids = [rule, zone.map(LimitId::Zone)];
        if ids == [None, None] && self.cluster.is_none() {
            return None;
        }
        if let Some(name) = self.names.get(&ids) {
            return Some(Arc::clone(name));
        }
        if self.names.len() >= MANY {
            // Each is made again when it is asked about.
            self.names.clear();
            self.lines.clear();
        }
        let cluster = self.cluster.map(|_| LimitId::Cluster);
        let limits: Vec<_> = ids.iter().cloned().chain([cluster]).flatten().collect();
        let name: Vec<_> = limits.iter().map(ToString::to_string).collect();
        let name: Arc<str> = name.join(", ").into();
        self.names.insert(ids, Arc::clone(&name));
        self.lines.insert(Arc::clone(&name), limits);
        Some(name)
    }

    fn limits_of(&self, line: &str) -> Vec<LimitId> {
        self.lines.get(line).cloned().unwrap_or_default()
    }

    fn holds(&mut self, line: &str, now: Instant) -> Option<Wait> {
        let mut latest = None;
        for id in self.limits_of(line) {
            let Some(bucket) = self.bucket(&id, now) else { continue };
            let next = bucket.tokens.next(now);
            // Of two that have a token at the same time, more lines share the later one in this list.
            if next > now && latest.as_ref().is_none_or(|(latest, _)| *latest <= next) {
                latest = Some((next, id));
            }
        }
        let (next, id) = latest?;
        let ticket = match self.waiting.get(line) {
            Some((before, ticket)) => {
                let (before, ticket) = (before.clone(), *ticket);
                if before != id
                    && let Some(bucket) = self.buckets.get_mut(&before)
                {
                    bucket.turns.leave(line);
                }
                ticket
            }
            None => {
                self.tickets += 1;
                self.tickets
            }
        };
        self.waiting.insert(Arc::from(line), (id.clone(), ticket));
        let bucket = self.bucket(&id, now)?;
        let ahead = bucket.turns.join(line, ticket);
        let each = bucket.tokens.each();
        Some(Wait::Until(later(next, each, ahead).unwrap_or(next)))
    }

    /// The line waits no more, or begins anew. Returns whether it waited.
    fn stop_waiting(&mut self, line: &str) -> bool {
        let Some((id, _)) = self.waiting.remove(line) else { return false };
        if let Some(bucket) = self.buckets.get_mut(&id) {
            bucket.turns.leave(line);
        }
        true
    }
}

/// So many times `each` after `from`; `None` if nobody will live to see it.
fn later(from: Instant, each: Duration, times: usize) -> Option<Instant> {
    from.checked_add(each.checked_mul(u32::try_from(times).ok()?)?)
}

impl fmt::Display for LimitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster => f.write_str("the cluster"),
            Self::Rule(name) => write!(f, "rule {name}"),
            Self::Zone(zone) => f.write_str(&zone_text(zone)),
        }
    }
}

impl fmt::Debug for RateLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimits").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
