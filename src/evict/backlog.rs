//! The backlog: due evictions whose pods are not yet gone.
//!
//! It is a record for people, drains and metrics, and decides nothing. The timed queue schedules the next
//! attempt.

use std::borrow::Cow;

use ahash::{AHashMap, AHashSet, RandomState};
use dashmap::DashMap;
use jiff::Timestamp;
use tokio::time::Instant;

use super::{Cause, CauseKind, Eviction, FailureKind, Held, Key};
use crate::model::{NodeName, PodRef, Uid};

/// What an eviction is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Waiting for its turn, or in flight.
    Due,
    /// Not sent, because the API server did not confirm it. Waiting for the view to catch up.
    Unconfirmed,
    /// The last attempt failed. Waiting for the next one.
    Failing(FailureKind),
    /// The pod's disruption budget allows no disruption now. Waiting for the next attempt.
    Blocked,
    /// More than one disruption budget selects the pod, which a person must fix.
    SeveralBudgets,
    /// The API server accepted the request, or has no such pod. Waiting for the watch to show it.
    Sent,
    /// A dry run: it would have been sent, and was not.
    WouldEvict,
}

impl State {
    /// Its name as a metric label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Due => "due",
            Self::Unconfirmed => "unconfirmed",
            Self::Failing(kind) => kind.label(),
            Self::Blocked => "blocked",
            Self::SeveralBudgets => "several_budgets",
            Self::Sent => "sent",
            Self::WouldEvict => "would_evict",
        }
    }
}

/// Failures and refusals of an eviction so far.
#[derive(Clone, Debug, Default)]
pub struct Retry {
    /// Number of failed attempts, without refusals by budgets.
    pub failures: u32,
    /// Number of refusals by disruption budgets.
    pub refusals: u32,
    /// The message of the last failure or refusal.
    pub last_error: Option<String>,
    /// When the next attempt is scheduled.
    pub next: Option<Timestamp>,
    /// The server requested no attempt before this time.
    pub not_before: Option<Timestamp>,
    /// What has been reported: kinds of failures and names of budgets.
    pub(super) reported: AHashSet<Cow<'static, str>>,
}

/// An eviction in the backlog.
#[derive(Clone, Debug)]
pub struct BacklogEntry {
    /// The pod.
    pub pod: PodRef,
    /// Why it is evicted.
    pub cause: Cause,
    /// What its eviction is waiting for.
    pub state: State,
    /// The hold that holds it, in addition to `state`.
    pub held: Option<Held>,
    /// Whether it was handed out for this cause, so that limits have counted it.
    pub(super) admitted: bool,
    /// Failures and refusals so far.
    pub retry: Retry,
    /// When it first became due.
    pub due: Instant,
    /// When the condition was written.
    pub(super) marked: Option<Instant>,
    /// Whether a refusal of the condition was reported.
    pub(super) unmarked: bool,
    /// Whether the eviction was announced by an event, and whether budgets were asked then. It is
    /// announced again when they are no longer asked.
    pub(super) announced: Option<bool>,
}

impl BacklogEntry {
    pub(super) fn new(pod: PodRef, cause: Cause, due: Instant) -> Self {
        Self {
            pod,
            cause,
            state: State::Due,
            held: None,
            admitted: false,
            retry: Retry::default(),
            due,
            marked: None,
            unmarked: false,
            announced: None,
        }
    }

    /// Whether any request of it was sent, or is about to be.
    pub fn is_begun(&self) -> bool {
        self.announced.is_some() || self.state != State::Due
    }

    /// The last error, if the eviction is blocked or failing.
    pub fn refusal(&self) -> Option<&str> {
        let is_refused =
            matches!(self.state, State::Blocked | State::SeveralBudgets | State::Failing(_));
        self.retry.last_error.as_deref().filter(|_| is_refused)
    }

    /// Whether disruption budgets block the eviction.
    pub fn is_blocked(&self) -> bool {
        matches!(self.state, State::Blocked | State::SeveralBudgets)
    }

    /// Whether it waits for a disruption budget, and may be attempted before its pause is over.
    pub fn waits_for_budget(&self, now: Timestamp) -> bool {
        self.is_blocked()
            && self.retry.next.is_some_and(|next| next > now)
            && self.retry.not_before.is_none_or(|at| at <= now)
    }

    fn label(&self) -> &'static str {
        if self.held.is_some() { "held" } else { self.state.label() }
    }
}

/// Due evictions whose pods are not yet gone, by node. A pod has at most one entry per kind of cause.
#[derive(Debug, Default)]
pub struct Backlog {
    nodes: DashMap<NodeName, AHashMap<Key, BacklogEntry>, RandomState>,
}

impl Backlog {
    /// Adds an eviction, or updates the cause of an existing one.
    pub fn enter(&self, pod: &PodRef, cause: &Cause, due: Instant) {
        let key = Key { uid: pod.uid, kind: cause.kind() };
        let mut node = self.nodes.entry(pod.node.clone()).or_default();
        let entry =
            node.entry(key).or_insert_with(|| BacklogEntry::new(pod.clone(), cause.clone(), due));
        if entry.cause != *cause {
            (entry.retry.next, entry.retry.not_before) = (None, None);
            // A drain that resorts to deletion is still the same drain.
            entry.admitted &= cause.kind() == CauseKind::Drain;
            entry.cause = cause.clone();
        }
    }

    /// Removes an eviction. Returns whether it existed.
    pub fn leave(&self, node: &NodeName, uid: Uid, kind: CauseKind) -> bool {
        self.remove_if(node, Key { uid, kind }, |_| true)
    }

    /// Removes an eviction, unless its cause has been replaced.
    pub(super) fn leave_unless_newer(&self, eviction: &Eviction) {
        let is_same = |entry: &BacklogEntry| entry.cause == eviction.cause;
        self.remove_if(&eviction.pod.node, eviction.key(), is_same);
    }

    fn remove_if(
        &self,
        node: &NodeName,
        key: Key,
        condition: impl FnOnce(&BacklogEntry) -> bool,
    ) -> bool {
        let Some(mut entries) = self.nodes.get_mut(node) else { return false };
        let was_in = entries.get(&key).is_some_and(condition) && entries.remove(&key).is_some();
        if entries.is_empty() {
            drop(entries);
            self.nodes.remove_if(node, |_, entries| entries.is_empty());
        }
        was_in
    }

    /// Removes everything, at the end of a term.
    pub fn clear(&self) {
        self.nodes.clear();
    }

    /// The entry of a pod's eviction, if there is one.
    pub fn get(&self, pod: &PodRef, kind: CauseKind) -> Option<BacklogEntry> {
        self.nodes.get(&pod.node)?.get(&Key { uid: pod.uid, kind }).cloned()
    }

    /// Changes the entry of an eviction, if there is one.
    pub(super) fn update<T>(
        &self,
        eviction: &Eviction,
        change: impl FnOnce(&mut BacklogEntry) -> T,
    ) -> Option<T> {
        self.nodes.get_mut(&eviction.pod.node)?.get_mut(&eviction.key()).map(change)
    }

    /// The evictions of one node's pods for one kind of cause, in no order.
    pub fn on(&self, node: &NodeName, kind: CauseKind) -> Vec<BacklogEntry> {
        let entries = self.nodes.get(node);
        let entries = entries.iter().flat_map(|entries| entries.iter());
        entries.filter(|(key, _)| key.kind == kind).map(|(_, entry)| entry.clone()).collect()
    }

    /// The number of evictions.
    pub fn len(&self) -> usize {
        self.nodes.iter().map(|entries| entries.len()).sum()
    }

    /// Whether there are no evictions.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The number of evictions of one kind of cause in each state, by label.
    pub fn counts(&self, kind: CauseKind) -> AHashMap<&'static str, usize> {
        let mut counts = AHashMap::new();
        for node in &self.nodes {
            for (_, entry) in node.iter().filter(|(key, _)| key.kind == kind) {
                *counts.entry(entry.label()).or_default() += 1;
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::evict::DrainEviction;
    use crate::model::build::{at, pod};
    use crate::model::{Kept, Verdict};

    fn drain(delete: bool) -> Cause {
        let (policy, session) = ("p".into(), "s".into());
        let drain = DrainEviction { policy, session, grace: None, deadline: at(600), delete };
        Cause::Drain(Arc::new(drain))
    }

    #[tokio::test]
    async fn evictions_are_listed_by_node_and_counted_by_kind_and_state() {
        let backlog = Backlog::default();
        let (a, b) = (pod("a").reference(), pod("b").on("n2").reference());
        let taint = Cause::Taint(Verdict::Keep(Kept::NoTaints));
        let now = Instant::now();
        backlog.enter(&a, &drain(false), now);
        backlog.enter(&a, &taint, now);
        backlog.enter(&b, &drain(false), now);
        let of_a = Eviction { pod: a.clone(), cause: drain(false), due: now };
        backlog.update(&of_a, |entry| entry.state = State::Blocked);
        backlog.enter(&a, &drain(true), now);
        let here = backlog.on(&"n1".into(), CauseKind::Drain);
        assert_eq!((here.len(), &*here[0].pod.name, &here[0].cause), (1, "a", &drain(true)));
        let counts = backlog.counts(CauseKind::Drain);
        assert_eq!((counts["blocked"], counts["due"]), (1, 1));
        assert_eq!(backlog.counts(CauseKind::Taint)["due"], 1);
        backlog.leave_unless_newer(&of_a);
        assert_eq!(backlog.len(), 3, "another cause is not taken out for this one");
        assert!(backlog.leave(&a.node, a.uid, CauseKind::Drain));
        assert!(!backlog.leave(&a.node, a.uid, CauseKind::Drain));
        assert!(backlog.get(&a, CauseKind::Taint).is_some(), "the taint's goes on");
        assert!(backlog.leave(&a.node, a.uid, CauseKind::Taint));
        assert!(backlog.leave(&b.node, b.uid, CauseKind::Drain) && backlog.is_empty());
    }
}
