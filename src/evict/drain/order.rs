//! What a drain orders of a pod, and the ordered pods that are not yet gone.

use std::sync::Arc;

use ahash::{AHashMap, AHashSet, RandomState};
use dashmap::DashMap;
use jiff::Timestamp;
use tokio::time::Instant;

use crate::evict::FailureKind;
use crate::model::{NodeName, PodRef, Uid};

/// What one drain says of some of its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The node that is drained.
    pub node: NodeName,
    /// The policy by which it is.
    pub policy: Arc<str>,
    /// The drain: a node that is drained again has another.
    pub session: Arc<str>,
    /// Grace in seconds instead of the pod's own.
    pub grace: Option<i64>,
    /// When the drain is over.
    pub deadline: Timestamp,
    /// Delete the pod whatever its budgets say: the last resort.
    pub delete: bool,
}

/// An ordered eviction that has come due.
#[derive(Clone, Debug)]
pub struct OrderedJob {
    /// The pod.
    pub pod: PodRef,
    /// What is ordered.
    pub order: Arc<Order>,
    /// When it came due.
    pub due: Instant,
}

/// Where an ordered eviction stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderState {
    /// Waiting for its turn, or being carried out.
    Due,
    /// The last try failed; waiting for the next.
    Failing(FailureKind),
    /// The pod's disruption budget has nothing left; waiting for the next try.
    Blocked,
    /// More than one disruption budget selects the pod: somebody must mend that.
    SeveralBudgets,
    /// The pod is being deleted, or gone from the API server; waiting to see it go.
    Sent,
}

impl OrderState {
    /// Its name as a metric label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Due => "due",
            Self::Failing(kind) => kind.label(),
            Self::Blocked => "blocked",
            Self::SeveralBudgets => "several_budgets",
            Self::Sent => "sent",
        }
    }
}

/// A pod that is ordered to go.
#[derive(Clone, Debug)]
pub struct Ordered {
    /// The pod.
    pub pod: PodRef,
    /// What is ordered.
    pub order: Arc<Order>,
    /// Where its eviction stands.
    pub state: OrderState,
    /// Failed tries so far; refusals by budgets are counted apart.
    pub failures: u32,
    /// Refusals by disruption budgets so far.
    pub refusals: u32,
    /// What the last failure or refusal said.
    pub last_error: Option<String>,
    /// When the next try comes, while one is waited for.
    pub next_try: Option<Timestamp>,
    /// The server asked not to be asked again before this.
    pub not_before: Option<Timestamp>,
    /// Its going was announced.
    pub(super) announced: bool,
    /// What was reported: kinds of failures and names of budgets.
    pub(super) reported: AHashSet<String>,
}

impl Ordered {
    /// What the API server said last, if it did not take the eviction.
    pub fn refusal(&self) -> Option<&str> {
        let is_refused = matches!(
            self.state,
            OrderState::Blocked | OrderState::SeveralBudgets | OrderState::Failing(_)
        );
        self.last_error.as_deref().filter(|_| is_refused)
    }

    /// Whether it waits for a disruption budget, and may be asked again for before its pause is over.
    pub fn waits_for_budget(&self, now: Timestamp) -> bool {
        matches!(self.state, OrderState::Blocked | OrderState::SeveralBudgets)
            && self.next_try.is_some_and(|next| next > now)
            && self.not_before.is_none_or(|at| at <= now)
    }
}

/// The pods that are ordered to go and not yet gone, by UID: a record for people, for the drain and
/// for metrics, beside the backlog of what taints condemn. A pod may be in both.
#[derive(Debug, Default)]
pub struct Orders {
    pods: DashMap<Uid, Ordered, RandomState>,
}

impl Orders {
    /// Takes a pod in, or gives one that is in its newest order.
    pub fn enter(&self, pod: &PodRef, order: &Arc<Order>) {
        let mut entry = self.pods.entry(pod.uid).or_insert_with(|| Ordered {
            pod: pod.clone(),
            order: Arc::clone(order),
            state: OrderState::Due,
            failures: 0,
            refusals: 0,
            last_error: None,
            next_try: None,
            not_before: None,
            announced: false,
            reported: AHashSet::new(),
        });
        // That budgets are not asked any more is news.
        entry.announced &= entry.order.delete == order.delete;
        if entry.order != *order {
            (entry.next_try, entry.not_before) = (None, None);
        }
        entry.order = Arc::clone(order);
    }

    /// Takes a pod out. Returns whether it was in.
    pub fn leave(&self, uid: Uid) -> bool {
        self.pods.remove(&uid).is_some()
    }

    /// Takes all pods out: this process does not evict any more.
    pub fn clear(&self) {
        self.pods.clear();
    }

    /// What is known of a pod, if it is in.
    pub fn get(&self, uid: Uid) -> Option<Ordered> {
        self.pods.get(&uid).map(|entry| entry.clone())
    }

    /// Changes what is known of a pod, if it is in.
    pub(super) fn update<T>(&self, uid: Uid, change: impl FnOnce(&mut Ordered) -> T) -> Option<T> {
        self.pods.get_mut(&uid).map(|mut entry| change(&mut entry))
    }

    /// The pods of one node, in no order.
    pub fn on(&self, node: &NodeName) -> Vec<Ordered> {
        let here = self.pods.iter().filter(|entry| entry.pod.node == *node);
        here.map(|entry| entry.value().clone()).collect()
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
    pub fn counts(&self) -> AHashMap<&'static str, usize> {
        let mut counts = AHashMap::new();
        for entry in &self.pods {
            *counts.entry(entry.state.label()).or_default() += 1;
        }
        counts
    }
}
