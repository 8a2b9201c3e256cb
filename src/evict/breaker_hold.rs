//! The breaker as a hold. Its lines are nodes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::breaker::{Breaker, Change, Scope};
use super::breaker_record::{BreakerRecord, digest};
use super::{BreakerMode, BreakerRules, Cause, Eviction, Hold, Pauses, Topology, Wait};
use crate::clock::Clock;
use crate::drain::format_duration;
use crate::model::{NodeName, Pause};

/// Annotations of the lease.
type Stored = watch::Receiver<Arc<BTreeMap<String, String>>>;

/// Holds evictions for taints where they concern a large part of the nodes.
pub struct BreakerHold {
    topology: Arc<dyn Topology>,
    pauses: Arc<Pauses>,
    clock: Clock,
    stored: Stored,
    state: Mutex<State>,
    /// It has tripped somewhere. Spares most questions.
    has_tripped: AtomicBool,
    /// Notified when a held eviction may go earlier than it was told.
    changed: Arc<Notify>,
    /// Notified when there is something to report or to look at.
    news: Notify,
    would_hold: AtomicU64,
    trips: AtomicU64,
}

struct State {
    breaker: Breaker,
    rules: BreakerRules,
    leads: bool,
    /// Identifies the last request to reset that was heard.
    heard: Option<String>,
    /// What the reporter has not taken yet.
    changes: Vec<Change>,
    unreadable: Option<String>,
}

/// What there is to report and to store.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) changes: Vec<Change>,
    /// Who has reset it, and why.
    pub(crate) reset: Option<Pause>,
    /// Why the stored state was ignored.
    pub(crate) unreadable: Option<String>,
    /// The annotation as it should be stored; `None` for none.
    pub(crate) record: Option<String>,
}

impl BreakerHold {
    /// The annotation of the lease that holds where it has tripped.
    pub(crate) const ANNOTATION: &str = BreakerRecord::ANNOTATION;
    /// The annotation of the lease by which people reset it.
    pub(crate) const RESET: &str = BreakerRecord::RESET;

    /// Nothing has tripped, and nobody leads.
    pub fn new(
        topology: Arc<dyn Topology>,
        pauses: Arc<Pauses>,
        clock: Clock,
        changed: Arc<Notify>,
    ) -> Self {
        let rules = BreakerRules::default();
        let state = State {
            breaker: Breaker::new(rules),
            rules,
            leads: false,
            heard: None,
            changes: Vec::new(),
            unreadable: None,
        };
        Self {
            topology,
            stored: pauses.subscribe(),
            pauses,
            clock,
            state: Mutex::new(state),
            has_tripped: AtomicBool::new(false),
            changed,
            news: Notify::new(),
            would_hold: AtomicU64::new(0),
            trips: AtomicU64::new(0),
        }
    }

    /// Has these rules count from now on. What was counted stays counted.
    pub fn configure(&self, rules: BreakerRules) {
        let mut state = self.state.lock();
        state.rules = rules;
        state.breaker.configure(rules);
        self.changed.notify_one();
        self.news.notify_one();
    }

    /// This process begins to lead: what is stored counts.
    pub(crate) fn lead(&self) {
        let stored = Arc::clone(&self.stored.borrow());
        let reset = stored.get(BreakerRecord::RESET).map(|text| digest(text));
        let mut state = self.state.lock();
        state.leads = true;
        let record = stored.get(BreakerRecord::ANNOTATION).map(|text| BreakerRecord::parse(text));
        match record {
            Some(Ok(record)) => {
                state.heard = record.heard;
                state.breaker.adopt(record.tripped, Instant::now());
            }
            Some(Err(error)) => {
                state.heard = reset;
                state.unreadable = Some(error);
            }
            None => state.heard = reset,
        }
        self.set_tripped(&state);
        self.news.notify_one();
    }

    /// Completes when there may be news.
    pub(crate) async fn has_news(&self) {
        self.news.notified().await;
    }

    /// Changes when the stored annotations do.
    pub(crate) fn subscribe(&self) -> Stored {
        self.stored.clone()
    }

    /// Whether it has to look again in a second.
    pub(crate) fn is_active(&self) -> bool {
        self.state.lock().breaker.is_active()
    }

    /// What it does when it trips.
    pub(crate) fn rules(&self) -> BreakerRules {
        self.state.lock().rules
    }

    /// Looks at what has changed; `None` if this process does not lead.
    pub(crate) fn look(&self) -> Option<News> {
        let stored = Arc::clone(&self.stored.borrow());
        let mut state = self.state.lock();
        if !state.leads {
            return None;
        }
        let mut news = News { unreadable: state.unreadable.take(), ..News::default() };
        if let Some(text) = stored.get(BreakerRecord::RESET) {
            let digest = digest(text);
            if state.heard.as_ref() != Some(&digest) {
                state.heard = Some(digest);
                let reset = state.breaker.reset();
                state.changes.extend(reset);
                news.reset = Pause::parse(text);
            }
        }
        let changes = state.breaker.look(
            &*self.topology,
            self.pauses.is_on(),
            Instant::now(),
            self.clock.now(),
        );
        self.count(&changes);
        state.changes.extend(changes);
        news.changes = std::mem::take(&mut state.changes);
        let tripped = state.breaker.tripped();
        if !tripped.is_empty() {
            let (tripped, heard) = (tripped.clone(), state.heard.clone());
            news.record = Some(BreakerRecord { tripped, heard }.format());
        }
        self.set_tripped(&state);
        if !news.changes.is_empty() {
            self.changed.notify_one();
        }
        Some(news)
    }

    /// How many nodes count and whether it has tripped, in the cluster and in each zone.
    pub(super) fn scopes(&self) -> Vec<(Scope, usize, bool)> {
        let nodes = self.topology.counts();
        let state = self.state.lock();
        let zones = nodes.by_zone.keys().filter(|_| nodes.by_zone.len() > 1);
        let scopes = zones.cloned().map(Scope::Zone).chain([Scope::Cluster]);
        let tripped = state.breaker.tripped();
        let scopes: std::collections::BTreeSet<_> = scopes.chain(tripped.keys().cloned()).collect();
        let seen = |scope: Scope| {
            let (count, has_tripped) =
                (state.breaker.counted(&scope), tripped.contains_key(&scope));
            (scope, count, has_tripped)
        };
        scopes.into_iter().map(seen).collect()
    }

    /// How many evictions it would have held, and how often it has tripped.
    pub(super) fn totals(&self) -> (u64, u64) {
        (self.would_hold.load(Ordering::Relaxed), self.trips.load(Ordering::Relaxed))
    }

    fn count(&self, changes: &[Change]) {
        let trips = changes.iter().filter(|change| matches!(change, Change::Tripped(..))).count();
        self.trips.fetch_add(trips.try_into().unwrap_or_default(), Ordering::Relaxed);
    }

    fn set_tripped(&self, state: &State) {
        self.has_tripped.store(!state.breaker.tripped().is_empty(), Ordering::Relaxed);
    }
}

impl Hold for BreakerHold {
    fn name(&self) -> &'static str {
        "breaker"
    }

    fn came_due(&self, eviction: &Eviction, now: Instant) {
        let Cause::Taint(_) = eviction.cause else { return };
        let node = &eviction.pod.node;
        // Most pods come due on a node that another pod came due on before.
        if self.state.lock().breaker.disregards(node) {
            return;
        }
        let (zone, nodes) = (self.topology.zone(node), self.topology.counts());
        let mut state = self.state.lock();
        let was_active = state.breaker.is_active();
        let changes = state.breaker.came_due(node, zone, &nodes, now, self.clock.now());
        if !changes.is_empty() || !was_active {
            self.news.notify_one();
        }
        self.count(&changes);
        state.changes.extend(changes);
        self.set_tripped(&state);
    }

    fn line(&self, eviction: &Eviction) -> Option<Arc<str>> {
        let Cause::Taint(_) = eviction.cause else { return None };
        if !self.has_tripped.load(Ordering::Relaxed) {
            return None;
        }
        let zone = self.topology.zone(&eviction.pod.node);
        let concerned = self.state.lock().breaker.concerns(&zone);
        concerned.then(|| Arc::clone(&eviction.pod.node.0))
    }

    fn holds(&self, line: &str, due: Instant, now: Instant) -> Option<Wait> {
        let mut state = self.state.lock();
        // Who only observes counts what goes, once.
        if state.breaker.mode() != BreakerMode::Enforce {
            return None;
        }
        state.breaker.holds(line, due, now).map(Wait::Until)
    }

    fn passed(&self, line: &str, now: Instant) {
        let mut state = self.state.lock();
        if state.breaker.mode() == BreakerMode::Enforce {
            state.breaker.passed(line, now);
        } else if state.breaker.would_hold(line, now) {
            self.would_hold.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn left(&self, line: &str, _: Instant) {
        if self.state.lock().breaker.left(line) {
            self.changed.notify_one();
        }
    }

    fn clear(&self) {
        let mut state = self.state.lock();
        state.breaker.clear();
        state.changes.clear();
        (state.leads, state.heard) = (false, None);
        self.set_tripped(&state);
    }

    fn why(&self, line: &str) -> String {
        let zone = self.topology.zone(&NodeName::from(line));
        let state = self.state.lock();
        let trickle = format_duration(state.rules.trickle);
        let concerned = |scope: &&Scope| match scope {
            Scope::Cluster => true,
            Scope::Zone(tripped) => *tripped == zone,
        };
        let scopes: Vec<_> =
            state.breaker.tripped().keys().filter(concerned).map(ToString::to_string).collect();
        format!(
            "the breaker has tripped for {}; one node goes each {trickle}; see ostrakon resume --breaker",
            scopes.join(" and ")
        )
    }

    fn turn(&self, line: &str, _: usize, now: Instant) -> Option<Instant> {
        // Once the node goes, all its pods do.
        self.state.lock().breaker.turn(line, now)
    }
}

impl fmt::Debug for BreakerHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BreakerHold").finish_non_exhaustive()
    }
}
