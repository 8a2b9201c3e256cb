//! Pods that are condemned, due, and not yet gone.
//!
//! A record for people and metrics: it decides nothing. The timed queue is what brings a pod
//! again.

use ahash::{AHashSet, RandomState};
use dashmap::DashMap;
use jiff::Timestamp;
use tokio::time::Instant;

use super::FailureKind;
use crate::model::{PodRef, Uid, Verdict};

/// Where the removal of a pod stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Due, and waiting for its turn or being carried out.
    Due,
    /// Not sent: what is known of the node was not confirmed by the API server.
    Unconfirmed,
    /// The last try failed; waiting for the next.
    Failing(FailureKind),
    /// The API server took the deletion, or has no such pod; waiting to see it.
    Sent,
}

impl State {
    /// Its name as a metric label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Due => "due",
            Self::Unconfirmed => "unconfirmed",
            Self::Failing(kind) => kind.label(),
            Self::Sent => "sent",
        }
    }
}

/// One pod of the backlog.
#[derive(Clone, Debug)]
pub struct Condemned {
    /// The pod.
    pub pod: PodRef,
    /// Why it goes.
    pub verdict: Verdict,
    /// Where its removal stands.
    pub state: State,
    /// Failed tries so far.
    pub failures: u32,
    /// What the last failure said.
    pub last_error: Option<String>,
    /// When the next try comes, while one is waited for.
    pub next_try: Option<Timestamp>,
    /// When it came due the first time.
    pub due: Instant,
    /// When its condition was written.
    pub(super) marked: Option<Instant>,
    /// Its condition was refused, which was reported.
    pub(super) unmarked: bool,
    /// Its going was announced.
    pub(super) announced: bool,
    /// Kinds of failure that were reported.
    pub(super) reported: AHashSet<FailureKind>,
}

/// The pods that are condemned, due, and not yet gone, by UID.
#[derive(Debug, Default)]
pub struct Backlog {
    pods: DashMap<Uid, Condemned, RandomState>,
}

impl Backlog {
    /// Takes a pod in, or notes that one that is in has come due again.
    pub fn enter(&self, pod: &PodRef, verdict: &Verdict, due: Instant) {
        let mut entry = self.pods.entry(pod.uid).or_insert_with(|| Condemned {
            pod: pod.clone(),
            verdict: verdict.clone(),
            state: State::Due,
            failures: 0,
            last_error: None,
            next_try: None,
            due,
            marked: None,
            unmarked: false,
            announced: false,
            reported: AHashSet::new(),
        });
        entry.verdict = verdict.clone();
        entry.next_try = None;
    }

    /// Takes a pod out: it is gone, or no longer condemned.
    pub fn leave(&self, uid: Uid) {
        self.pods.remove(&uid);
    }

    /// Takes all pods out: this process does not evict any more.
    pub fn clear(&self) {
        self.pods.clear();
    }

    /// What is known of a pod in the backlog.
    pub fn get(&self, uid: Uid) -> Option<Condemned> {
        self.pods.get(&uid).map(|entry| entry.clone())
    }

    /// Changes what is known of a pod, if it is in.
    pub(super) fn update<T>(
        &self,
        uid: Uid,
        change: impl FnOnce(&mut Condemned) -> T,
    ) -> Option<T> {
        self.pods.get_mut(&uid).map(|mut entry| change(&mut entry))
    }

    /// How many pods are in.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// How many pods are in each state, by its label.
    pub fn counts(&self) -> ahash::AHashMap<&'static str, usize> {
        let mut counts = ahash::AHashMap::new();
        for entry in &self.pods {
            *counts.entry(entry.state.label()).or_default() += 1;
        }
        counts
    }
}
