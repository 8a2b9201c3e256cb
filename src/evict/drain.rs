//! One eviction that a drain has ordered, from "it is due" to an outcome.
//!
//! It shares window, turns and timers with the evictions of taints, and differs in what is asked and
//! sent: whether the drain still wants the pod gone, by its node as just read; then one request, the
//! Eviction API's, which asks the pod's disruption budget and marks the pod itself. A pod that its
//! budget holds back waits outside the window. A pod that is being deleted is awaited and never
//! evicted again: a second eviction could only shorten its grace.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::confirm::Confirmations;
use super::evictor::{BACKOFF, UNTIL_SEEN};
use super::{Failure, FailureKind, Outcome, Pace, Requests};
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::model::{Node, Pod, PodClass, PodRef};

mod metrics;
mod order;

pub use metrics::OrderMetrics;
pub use order::{Order, OrderState, Ordered, OrderedJob, Orders};

use metrics::Counted;

/// Pause between tries of a pod that its budget holds back. A budget has something left again when
/// a pod elsewhere is ready, which takes seconds to minutes. Never less than half of it.
const BLOCKED: Backoff = Backoff { first: Duration::from_secs(10), most: Duration::from_secs(60) };
/// Pause between tries of a pod that an admission webhook holds back. The first request may be what
/// starts the operator behind the webhook; the next ones only learn whether it is done.
const WEBHOOK: Backoff = Backoff { first: Duration::from_secs(4), most: Duration::from_secs(60) };
/// Pause while more than one budget selects a pod. Somebody must mend that.
const SEVERAL_BUDGETS: Duration = Duration::from_secs(60);

/// Why an eviction was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The pod's disruption budget has nothing left.
    Blocked {
        /// The budget's name, if the server tells it.
        budget: Option<String>,
        /// The server's words.
        message: String,
        /// The least pause that the server asked for.
        after: Option<Duration>,
    },
    /// More than one budget selects the pod, which the API server does not support.
    SeveralBudgets,
    /// Anything else.
    Other(Failure),
}

/// Who knows what a drain wants.
pub trait DrainJudge: Send + Sync {
    /// The pod's facts, if it is there by what is known.
    fn known(&self, pod: &PodRef) -> Option<Arc<Pod>>;

    /// Whether the drain that gave the order still wants the pod gone, by its node as just read
    /// (`None`: there is no such node).
    fn still_wanted(&self, pod: &PodRef, order: &Order, node: Option<&Node>) -> bool;
}

/// The requests that an ordered eviction takes, beside those to look at pod and node.
pub trait DrainRequests: Requests {
    /// Evicts the pod by the Eviction API, with this grace in seconds instead of its own.
    fn evict(
        &self,
        pod: &PodRef,
        grace: Option<i64>,
    ) -> impl Future<Output = Result<(), Refused>> + Send;

    /// Deletes the pod, whatever its budgets say.
    fn delete_within(
        &self,
        pod: &PodRef,
        grace: Option<i64>,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Names of the budgets that select the pod.
    fn budgets_over(
        &self,
        pod: &PodRef,
    ) -> impl Future<Output = Result<Vec<Arc<str>>, Failure>> + Send;
}

/// What people are told of a drain's pods. Must not wait.
pub trait DrainNotices: Send + Sync {
    /// The pod is being evicted. Once per pod.
    fn evicting(&self, pod: &PodRef, order: &Order);

    /// A budget holds the pod back. Once per pod and budget.
    fn blocked(&self, pod: &PodRef, order: &Order, message: &str);

    /// These budgets select the pod, which therefore is never evicted; they are not named if they
    /// could not be found out. Once per pod.
    fn several_budgets(&self, pod: &PodRef, order: &Order, budgets: &[Arc<str>]);

    /// A try failed. Once per pod and kind of failure.
    fn failing(&self, pod: &PodRef, order: &Order, kind: FailureKind, message: &str);
}

/// Carries out the evictions that drains order.
#[derive(Debug)]
pub struct Drainer<J, R, N> {
    judge: J,
    requests: R,
    notices: N,
    orders: Arc<Orders>,
    metrics: OrderMetrics,
    clock: Clock,
    confirmations: Confirmations,
    pace: Arc<Pace>,
}

impl<J: DrainJudge, R: DrainRequests, N: DrainNotices> Drainer<J, R, N> {
    /// A drainer that asks `judge`, writes by `requests` and tells `notices`.
    pub fn new(
        judge: J,
        requests: R,
        notices: N,
        orders: Arc<Orders>,
        metrics: OrderMetrics,
        clock: Clock,
        pace: Arc<Pace>,
    ) -> Self {
        let confirmations = Confirmations::default();
        Self { judge, requests, notices, orders, metrics, clock, confirmations, pace }
    }

    /// Carries out one ordered eviction as far as it goes now. [`Outcome::Reconsider`] says that
    /// nothing is left to do for this order.
    pub async fn carry_out(&self, job: &OrderedJob) -> Outcome {
        let uid = job.pod.uid;
        let state = self.orders.get(uid).map_or(OrderState::Due, |ordered| ordered.state);
        match self.attempt(job, state == OrderState::Sent).await {
            Ok(End::Withdrawn) => {
                debug!(pod = %job.pod, %uid, node = %job.pod.node, "ordered eviction withdrawn");
                self.metrics.ended(Counted::Withdrawn);
                Outcome::Reconsider
            }
            Ok(End::Going) => self.wait(job, OrderState::Sent, UNTIL_SEEN),
            Ok(End::AlreadyGone) => {
                if state != OrderState::Sent {
                    debug!(pod = %job.pod, %uid, "pod was gone already");
                    self.metrics.ended(Counted::AlreadyGone);
                }
                self.wait(job, OrderState::Sent, UNTIL_SEEN)
            }
            Ok(End::Sent) => {
                let how = if job.order.delete { Counted::Deleted } else { Counted::Evicted };
                info!(pod = %job.pod, %uid, node = %job.pod.node, policy = %job.order.policy,
                    deleted = job.order.delete, "pod of a drained node is going");
                self.metrics.ended(how);
                self.wait(job, OrderState::Sent, UNTIL_SEEN)
            }
            Err(Refused::Blocked { budget, message, after }) => {
                self.blocked(job, budget, &message, after)
            }
            Err(Refused::SeveralBudgets) => self.several_budgets(job).await,
            Err(Refused::Other(failure)) => self.fail(job, &failure),
        }
    }

    async fn attempt(&self, job: &OrderedJob, sent: bool) -> Result<End, Refused> {
        let Some(pod) = self.judge.known(&job.pod) else { return Ok(End::Withdrawn) };
        if pod.class == PodClass::Terminating {
            return Ok(End::Going);
        }
        if sent {
            // The watch is slow to show what the server took. Look before evicting twice.
            match self.requests.pod(&job.pod).await.map_err(Refused::Other)? {
                None => return Ok(End::AlreadyGone),
                Some(pod) if pod.class == PodClass::Terminating => return Ok(End::Going),
                Some(_) => warn!(pod = %job.pod, uid = %job.pod.uid,
                    "the API server took the eviction but the pod is still there; evicting again"),
            }
        }
        let node = self.confirmations.node(&job.pod.node, job.due, &self.requests).await;
        let node = node.map_err(Refused::Other)?;
        if !self.judge.still_wanted(&job.pod, &job.order, node.as_deref()) {
            return Ok(End::Withdrawn);
        }
        self.announce(job);
        let start = Instant::now();
        match self.send(job).await {
            Ok(()) => {
                self.pace.went_well(start.elapsed());
                Ok(End::Sent)
            }
            Err(Refused::Other(Failure::Gone)) => Ok(End::AlreadyGone),
            Err(Refused::Other(Failure::Doubtful { kind, message })) => {
                match self.requests.pod(&job.pod).await {
                    Ok(None) => Ok(End::AlreadyGone),
                    _ => Err(Refused::Other(Failure::Retry { kind, message, after: None })),
                }
            }
            Err(refused) => Err(refused),
        }
    }

    async fn send(&self, job: &OrderedJob) -> Result<(), Refused> {
        let grace = job.order.grace;
        if job.order.delete {
            self.requests.delete_within(&job.pod, grace).await.map_err(Refused::Other)
        } else {
            self.requests.evict(&job.pod, grace).await
        }
    }

    fn announce(&self, job: &OrderedJob) {
        let uid = job.pod.uid;
        let first =
            self.orders.update(uid, |ordered| !std::mem::replace(&mut ordered.announced, true));
        if first == Some(true) {
            self.notices.evicting(&job.pod, &job.order);
        }
    }

    fn blocked(
        &self,
        job: &OrderedJob,
        budget: Option<String>,
        message: &str,
        after: Option<Duration>,
    ) -> Outcome {
        self.metrics.ended(Counted::Blocked);
        let what = format!("budget {}", budget.unwrap_or_default());
        let (refusals, new) = self.refused(job, message, what);
        let pause = BLOCKED.pause_asked(refusals, job.pod.uid.0, after);
        if new {
            info!(pod = %job.pod, uid = %job.pod.uid, node = %job.pod.node, reason = message,
                ?pause, "a disruption budget holds a pod of a drained node back");
            self.notices.blocked(&job.pod, &job.order, message);
        }
        let asked = after.and_then(|after| self.in_a_while(after));
        self.orders.update(job.pod.uid, |ordered| ordered.not_before = asked);
        self.wait(job, OrderState::Blocked, pause)
    }

    async fn several_budgets(&self, job: &OrderedJob) -> Outcome {
        self.metrics.ended(Counted::SeveralBudgets);
        let uid = job.pod.uid;
        let is_known =
            self.orders.get(uid).is_some_and(|ordered| ordered.state == OrderState::SeveralBudgets);
        if !is_known {
            // Their names are for people; without them it is said all the same.
            let budgets = self.requests.budgets_over(&job.pod).await.unwrap_or_default();
            let names = budgets.join(", ");
            let message = format!("more than one disruption budget selects the pod ({names})");
            let (_, new) = self.refused(job, &message, "several budgets".to_owned());
            if new {
                warn!(pod = %job.pod, %uid, node = %job.pod.node, budgets = names,
                    "more than one disruption budget selects a pod, so it cannot be evicted: leave \
                     it one");
                self.notices.several_budgets(&job.pod, &job.order, &budgets);
            }
        }
        self.wait(job, OrderState::SeveralBudgets, SEVERAL_BUDGETS)
    }

    /// Notes a refusal by budgets. Returns how many there were, and whether this one is news.
    fn refused(&self, job: &OrderedJob, message: &str, what: String) -> (u32, bool) {
        let noted = self.orders.update(job.pod.uid, |ordered| {
            ordered.refusals += 1;
            ordered.last_error = Some(message.to_owned());
            (ordered.refusals, ordered.reported.insert(what))
        });
        noted.unwrap_or((1, false))
    }

    fn fail(&self, job: &OrderedJob, failure: &Failure) -> Outcome {
        let (kind, after) = match failure {
            Failure::Retry { kind, after, .. } => (*kind, *after),
            Failure::Doubtful { kind, .. } => (*kind, None),
            Failure::Gone => return self.wait(job, OrderState::Sent, UNTIL_SEEN),
        };
        let message = failure.to_string();
        self.metrics.failed(kind);
        if matches!(kind, FailureKind::Throttled | FailureKind::Timeout) {
            self.pace.overloaded();
        }
        let noted = self.orders.update(job.pod.uid, |ordered| {
            ordered.failures += 1;
            ordered.last_error = Some(message.clone());
            (ordered.failures, ordered.reported.insert(kind.label().to_owned()))
        });
        let (failures, new) = noted.unwrap_or((1, false));
        let backoff = if kind == FailureKind::Webhook { WEBHOOK } else { BACKOFF };
        let pause = backoff.pause_asked(failures, job.pod.uid.0, after);
        if new {
            warn!(pod = %job.pod, uid = %job.pod.uid, cause = kind.label(), error = message,
                ?pause, "eviction for a drain failed; it will be tried again");
            self.notices.failing(&job.pod, &job.order, kind, &message);
        } else {
            debug!(pod = %job.pod, uid = %job.pod.uid, cause = kind.label(), error = message,
                tries = failures, ?pause, "eviction for a drain failed again");
        }
        self.wait(job, OrderState::Failing(kind), pause)
    }

    fn wait(&self, job: &OrderedJob, state: OrderState, pause: Duration) -> Outcome {
        let next = self.in_a_while(pause);
        self.orders.update(job.pod.uid, |ordered| {
            ordered.state = state;
            ordered.next_try = next;
        });
        Outcome::Again(pause)
    }

    fn in_a_while(&self, pause: Duration) -> Option<Timestamp> {
        let pause = SignedDuration::try_from(pause).ok()?;
        self.clock.now().saturating_add(pause).ok()
    }
}

/// How far an attempt came.
enum End {
    /// The drain does not want it any more, or the pod is seen to be gone.
    Withdrawn,
    /// The pod is being deleted.
    Going,
    /// The API server has no such pod any more.
    AlreadyGone,
    /// The API server took the request.
    Sent,
}

#[cfg(test)]
mod tests;
