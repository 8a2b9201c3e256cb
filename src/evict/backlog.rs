//! Evictions that are due and whose pods are not yet gone.
//!
//! A record for people, for drains and for metrics: it decides nothing. The timed queue is what brings
//! an eviction again.

use std::borrow::Cow;

use ahash::{AHashMap, AHashSet, RandomState};
use dashmap::DashMap;
use jiff::Timestamp;
use tokio::time::Instant;

use super::{Cause, CauseKind, Eviction, FailureKind, Held, Key};
use crate::model::{NodeName, PodRef, Uid};

/// Where an eviction stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Waiting for its turn, or being carried out.
    Due,
    /// Not sent: what is known of the node was not confirmed by the API server.
    Unconfirmed,
    /// The last try failed; waiting for the next.
    Failing(FailureKind),
    /// The pod's disruption budget has nothing left; waiting for the next try.
    Blocked,
    /// More than one disruption budget selects the pod: somebody must fix that.
    SeveralBudgets,
    /// The API server took the request, or has no such pod; waiting to see it go.
    Sent,
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
        }
    }
}

/// What earlier tries of an eviction came to.
#[derive(Clone, Debug, Default)]
pub struct Retry {
    /// Failed tries so far; refusals by budgets are counted apart.
    pub failures: u32,
    /// Refusals by disruption budgets so far.
    pub refusals: u32,
    /// What the last failure or refusal said.
    pub last_error: Option<String>,
    /// When the next try comes, while one is waited for.
    pub next: Option<Timestamp>,
    /// The server asked not to be asked again before this.
    pub not_before: Option<Timestamp>,
    /// What was reported: kinds of failures and names of budgets.
    pub(super) reported: AHashSet<Cow<'static, str>>,
}

/// An eviction in the backlog.
#[derive(Clone, Debug)]
pub struct BacklogEntry {
    /// The pod.
    pub pod: PodRef,
    /// Why it goes.
    pub cause: Cause,
    /// Where its eviction stands.
    pub state: State,
    /// What holds it back, apart from that.
    pub held: Option<Held>,
    /// What earlier tries came to.
    pub retry: Retry,
    /// When it came due the first time.
    pub due: Instant,
    /// When its condition was written.
    pub(super) marked: Option<Instant>,
    /// Its condition was refused, which was reported.
    pub(super) unmarked: bool,
    /// Its going was announced.
    pub(super) announced: bool,
}

impl BacklogEntry {
    pub(super) fn new(pod: PodRef, cause: Cause, due: Instant) -> Self {
        Self {
            pod,
            cause,
            state: State::Due,
            held: None,
            retry: Retry::default(),
            due,
            marked: None,
            unmarked: false,
            announced: false,
        }
    }

    /// What the API server said last, if it did not take the eviction.
    pub fn refusal(&self) -> Option<&str> {
        let is_refused =
            matches!(self.state, State::Blocked | State::SeveralBudgets | State::Failing(_));
        self.retry.last_error.as_deref().filter(|_| is_refused)
    }

    /// Whether disruption budgets hold the pod back.
    pub fn is_held_by_budgets(&self) -> bool {
        matches!(self.state, State::Blocked | State::SeveralBudgets)
    }

    /// Whether it waits for a disruption budget, and may be asked again for before its pause is over.
    pub fn waits_for_budget(&self, now: Timestamp) -> bool {
        self.is_held_by_budgets()
            && self.retry.next.is_some_and(|next| next > now)
            && self.retry.not_before.is_none_or(|at| at <= now)
    }

    fn label(&self) -> &'static str {
        if self.held.is_some() { "held" } else { self.state.label() }
    }
}

/// The evictions that are due and whose pods are not yet gone, by node. A pod may be in for each kind of
/// cause.
#[derive(Debug, Default)]
pub struct Backlog {
    nodes: DashMap<NodeName, AHashMap<Key, BacklogEntry>, RandomState>,
}

impl Backlog {
    /// Takes an eviction in. One that is in gets its newest cause.
    pub fn enter(&self, pod: &PodRef, cause: &Cause, due: Instant) {
        let key = Key { uid: pod.uid, kind: cause.kind() };
        let mut node = self.nodes.entry(pod.node.clone()).or_default();
        let entry =
            node.entry(key).or_insert_with(|| BacklogEntry::new(pod.clone(), cause.clone(), due));
        if entry.cause != *cause {
            let budgets = |cause: &Cause| cause.method().asks_budgets();
            // That budgets are not asked any more is news.
            entry.announced &= budgets(&entry.cause) == budgets(cause);
            (entry.retry.next, entry.retry.not_before) = (None, None);
            entry.cause = cause.clone();
        }
    }

    /// Takes an eviction out. Returns whether it was in.
    pub fn leave(&self, node: &NodeName, uid: Uid, kind: CauseKind) -> bool {
        self.remove_if(node, Key { uid, kind }, |_| true)
    }

    /// Takes an eviction out, unless the pod goes for another cause of the kind by now.
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

    /// Takes all out: this process does not evict any more.
    pub fn clear(&self) {
        self.nodes.clear();
    }

    /// What is known of a pod's eviction, if it is in.
    pub fn get(&self, pod: &PodRef, kind: CauseKind) -> Option<BacklogEntry> {
        self.nodes.get(&pod.node)?.get(&Key { uid: pod.uid, kind }).cloned()
    }

    /// Changes what is known of an eviction, if it is in.
    pub(super) fn update<T>(
        &self,
        eviction: &Eviction,
        change: impl FnOnce(&mut BacklogEntry) -> T,
    ) -> Option<T> {
        self.nodes.get_mut(&eviction.pod.node)?.get_mut(&eviction.key()).map(change)
    }

    /// Those of one node's pods for one kind of cause, in no order.
    pub fn on(&self, node: &NodeName, kind: CauseKind) -> Vec<BacklogEntry> {
        let entries = self.nodes.get(node);
        let entries = entries.iter().flat_map(|entries| entries.iter());
        entries.filter(|(key, _)| key.kind == kind).map(|(_, entry)| entry.clone()).collect()
    }

    /// How many are in.
    pub fn len(&self) -> usize {
        self.nodes.iter().map(|entries| entries.len()).sum()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// How many of one kind of cause are in each state, by its label.
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
