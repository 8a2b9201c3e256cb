//! One try of one eviction, from "it is its turn" to an outcome.

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::confirm::Confirmations;
use super::metrics::{ALREADY_GONE, BLOCKED, SEVERAL_BUDGETS, UNCONFIRMED, WITHDRAWN};
use super::{
    Backlog, BacklogEntry, Cause, CauseKind, Eviction, Failure, FailureKind, Method, Metrics,
    Recheck, Retry, Spared, State, Window,
};
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::model::{Disruption, Node, NodeName, Pod, PodClass, PodRef};

/// Pause between failed tries of one pod. Two minutes is what a person who has just fixed the
/// cause is willing to wait.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(250), most: Duration::from_secs(120) };
/// Pause between tries of a pod that its budget holds back. A budget has something left again when
/// a pod elsewhere is ready, which takes seconds to minutes. Never less than half of it.
const BUDGET: Backoff = Backoff { first: Duration::from_secs(10), most: Duration::from_secs(60) };
/// Pause between tries of a pod whose eviction an admission webhook holds back. The first request
/// may be what starts the operator behind the webhook; the next ones only learn whether it is done.
const WEBHOOK: Backoff = Backoff { first: Duration::from_secs(4), most: Duration::from_secs(60) };
/// Pause while more than one budget selects a pod. Somebody must fix that.
const UNTIL_ONE_BUDGET: Duration = Duration::from_secs(60);
/// How long to wait for a watch to show what the API server said already, before asking again.
const UNTIL_SEEN: Duration = Duration::from_secs(30);
/// The same when the API server knew of newer facts than the view: they are on their way.
const UNTIL_CAUGHT_UP: Duration = Duration::from_secs(1);
/// For how long a written condition is taken to be there although the view does not show it yet.
/// The disruption controller takes a condition back after two minutes without a deletion.
const MARK_LASTS: Duration = Duration::from_secs(60);
/// A webhook that denies a condition may not have been reached: so many failures are waited for.
const WEBHOOK_TRIES: u32 = 3;

/// What became of a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is not due any more: whoever decides shall look at the pod again.
    Reconsider,
    /// It shall come again, not before the pause is over.
    Again(Duration),
}

/// The requests that evictions take.
pub trait Requests: Send + Sync {
    /// The pod as it is stored; `None` if it is gone, whether or not another has its name.
    fn pod(&self, pod: &PodRef) -> impl Future<Output = Result<Option<Pod>, Failure>> + Send;

    /// The node as it is stored; `None` if there is no such node.
    fn node(&self, name: &NodeName) -> impl Future<Output = Result<Option<Node>, Failure>> + Send;

    /// Writes the condition that says why the pod goes, and returns the pod as it is then.
    fn mark(&self, pod: &Pod, now: Timestamp) -> impl Future<Output = Result<Pod, Failure>> + Send;

    /// Deletes the pod.
    fn delete(&self, pod: &PodRef) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Evicts the pod by the Eviction API, with this grace in seconds instead of its own.
    fn evict(
        &self,
        pod: &PodRef,
        grace: Option<i64>,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Deletes the pod, whatever its budgets say, with this grace in seconds instead of its own.
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

/// What people are told. Must not wait.
pub trait Notices: Send + Sync {
    /// The pod is being evicted. Once per pod.
    fn evicting(&self, pod: &PodRef, cause: &Cause);

    /// The condition was refused, and the pod is deleted without it. Once per pod.
    fn unmarked(&self, pod: &PodRef, cause: &Cause, kind: FailureKind, message: &str);

    /// A try failed. Once per pod and kind of failure.
    fn failing(&self, pod: &PodRef, cause: &Cause, kind: FailureKind, message: &str);

    /// A budget holds the pod back. Once per pod and budget.
    fn blocked(&self, pod: &PodRef, message: &str);

    /// These budgets select the pod, which therefore is never evicted; they are not named if they
    /// could not be found out. Once per pod.
    fn several_budgets(&self, pod: &PodRef, budgets: &[Arc<str>]);
}

/// Carries out evictions.
///
/// The node is read from the API server before anything is written, and again before a deletion
/// that comes more than a second later; the pod comes back with the answer to the patch of its
/// condition. Nodes and pods come by two watches, and either may lag or be dead without a sign of
/// it, so no facts of the view prove by themselves that the taint is still there, or that nobody
/// has given the pod a toleration (kubernetes/kubernetes#119862). One read for all the pods of a
/// node that are due is cheap beside a wrong eviction.
#[derive(Debug)]
pub struct Evictor<R, A, N> {
    recheck: R,
    requests: A,
    notices: N,
    backlog: Arc<Backlog>,
    metrics: Metrics,
    clock: Clock,
    confirmations: Confirmations,
    window: Arc<Window>,
}

impl<R: Recheck, A: Requests, N: Notices> Evictor<R, A, N> {
    /// An evictor that asks `recheck`, writes by `requests` and tells `notices`.
    pub fn new(
        recheck: R,
        requests: A,
        notices: N,
        backlog: Arc<Backlog>,
        metrics: Metrics,
        clock: Clock,
        window: Arc<Window>,
    ) -> Self {
        let confirmations = Confirmations::default();
        Self { recheck, requests, notices, backlog, metrics, clock, confirmations, window }
    }

    /// How many evictions may be carried out at the same time.
    pub(super) fn window(&self) -> &Arc<Window> {
        &self.window
    }

    /// Takes in that an eviction was cancelled while it waited.
    pub(super) fn cancelled(&self, eviction: &Eviction) {
        self.metrics.ended(eviction.cause.kind(), WITHDRAWN);
        self.backlog.leave_unless_newer(eviction);
    }

    /// Carries out one eviction as far as it goes now.
    pub async fn carry_out(&self, eviction: &Eviction) -> Outcome {
        let Eviction { pod, cause, due } = eviction;
        let kind = cause.kind();
        let past = self.backlog.get(pod, kind);
        let past = past.unwrap_or_else(|| BacklogEntry::new(pod.clone(), cause.clone(), *due));
        match self.attempt(eviction, &past).await {
            Ok(End::Spared(Spared::Unwanted(verdict))) => {
                debug!(%pod, uid = %pod.uid, node = %pod.node, verdict = verdict.map(display),
                    "eviction not wanted any more");
                self.cancelled(eviction);
                Outcome::Reconsider
            }
            Ok(End::Spared(Spared::Unconfirmed(verdict))) => {
                // While a watch is down it comes again every second, and says so once.
                if past.state == State::Unconfirmed {
                    debug!(%pod, uid = %pod.uid, %verdict, "eviction put off again");
                } else {
                    info!(%pod, uid = %pod.uid, %verdict,
                        "eviction put off: the API server has newer facts of the pod or its node");
                }
                self.metrics.ended(kind, UNCONFIRMED);
                self.wait(eviction, State::Unconfirmed, UNTIL_CAUGHT_UP)
            }
            Ok(End::Spared(Spared::Going)) => self.wait(eviction, State::Sent, UNTIL_SEEN),
            Ok(End::AlreadyGone) | Err(Failure::Gone) => {
                if past.state != State::Sent {
                    debug!(%pod, uid = %pod.uid, "pod was gone already");
                    self.metrics.ended(kind, ALREADY_GONE);
                }
                self.wait(eviction, State::Sent, UNTIL_SEEN)
            }
            Ok(End::Sent(cause)) => {
                let result = cause.method().result();
                info!(%pod, uid = %pod.uid, node = %pod.node, %cause, "pod {result}");
                self.metrics.ended(kind, result);
                if kind == CauseKind::Taint {
                    self.metrics.deleted_by_taint(past.due.elapsed());
                }
                self.wait(eviction, State::Sent, UNTIL_SEEN)
            }
            Err(Failure::Blocked { budget, message, after }) => {
                self.blocked(eviction, budget, &message, after)
            }
            Err(Failure::SeveralBudgets) => self.several_budgets(eviction, past.state).await,
            Err(Failure::Doubtful { kind, message }) => self.fail(eviction, kind, &message, None),
            Err(Failure::Retry { kind, message, after }) => {
                self.fail(eviction, kind, &message, after)
            }
        }
    }

    async fn attempt(&self, eviction: &Eviction, past: &BacklogEntry) -> Result<End, Failure> {
        let ended = self.evict(eviction, past).await;
        if let Err(Failure::Doubtful { .. }) = &ended
            && let Ok(None) = self.requests.pod(&eviction.pod).await
        {
            return Ok(End::AlreadyGone);
        }
        ended
    }

    /// The requests of one attempt, with the newest facts asked for before each write.
    async fn evict(&self, eviction: &Eviction, past: &BacklogEntry) -> Result<End, Failure> {
        let (known, cause) = match self.recheck.by_view(eviction) {
            Ok(wanted) => wanted,
            Err(spared) => return Ok(End::Spared(spared)),
        };
        let mut stored = None;
        if past.state == State::Sent {
            // The watch is slow to show what the server took. Look before asking for it twice.
            match self.requests.pod(&eviction.pod).await? {
                Some(pod) if pod.class != PodClass::Terminating => stored = Some(pod),
                _ => return Ok(End::AlreadyGone),
            }
            warn!(pod = %eviction.pod, uid = %eviction.pod.uid,
                "the API server took the eviction but the pod is still there; evicting again");
        }
        if let Some(end) = self.confirm(eviction, stored.as_ref().unwrap_or(&known)).await? {
            return Ok(end);
        }
        self.announce(eviction, &cause);
        let start = Instant::now();
        match cause.method() {
            Method::Delete => {
                let is_marked = past.marked.is_some_and(|at| at.elapsed() < MARK_LASTS)
                    || known.disruption == Disruption::ByTaint;
                // Both the answer to the patch and a read have the pod as it is now.
                let stored = match stored {
                    _ if !is_marked => self.mark(eviction, past, &known, &cause).await?,
                    Some(stored) => Some(stored),
                    None => self.requests.pod(&eviction.pod).await?,
                };
                let Some(stored) = stored else { return Ok(End::AlreadyGone) };
                if let Some(end) = self.confirm(eviction, &stored).await? {
                    return Ok(end);
                }
                self.requests.delete(&eviction.pod).await?;
            }
            Method::Evict { grace } => self.requests.evict(&eviction.pod, grace).await?,
            Method::DeleteWithin { grace } => {
                self.requests.delete_within(&eviction.pod, grace).await?;
            }
        }
        self.window.went_well(start.elapsed());
        Ok(End::Sent(cause))
    }

    /// How the attempt ends if the pod is to stay, by these facts of it and by its node as the API
    /// server has it. That is read anew only if what is known of it is older than a second. The view has
    /// the last word: the answer may have been long on its way.
    async fn confirm(&self, eviction: &Eviction, pod: &Pod) -> Result<Option<End>, Failure> {
        let name = &eviction.pod.node;
        let node = self.confirmations.node(name, eviction.due, &self.requests).await?;
        if let Err(spared) = self.recheck.by_view(eviction) {
            return Ok(Some(End::Spared(spared)));
        }
        Ok(match self.recheck.by_server(eviction, pod, node.as_deref()) {
            Ok(()) => None,
            Err(Spared::Going) => Some(End::AlreadyGone),
            Err(spared) => Some(End::Spared(spared)),
        })
    }

    /// Writes the condition, and returns the pod as it is stored then; `None` if it is gone.
    ///
    /// The condition tells others why the pod goes. Whoever refuses it, a policy for example, does not
    /// decide whether the pod goes: then it is read instead, which also tells a refusal of the condition
    /// from one since the name is another pod's by now. The next try asks for the condition again.
    async fn mark(
        &self,
        eviction: &Eviction,
        past: &BacklogEntry,
        known: &Pod,
        cause: &Cause,
    ) -> Result<Option<Pod>, Failure> {
        let is_final = |kind: FailureKind| {
            let had_its_tries = past.retry.failures >= WEBHOOK_TRIES;
            kind.is_definite() || kind == FailureKind::Webhook && had_its_tries
        };
        let (kind, message) = match self.requests.mark(known, self.clock.now()).await {
            Ok(stored) => {
                self.backlog.update(eviction, |entry| entry.marked = Some(Instant::now()));
                return Ok(Some(stored));
            }
            Err(Failure::Doubtful { kind, message } | Failure::Retry { kind, message, .. })
                if is_final(kind) =>
            {
                (kind, message)
            }
            Err(failure) => return Err(failure),
        };
        let pod = &eviction.pod;
        let stored = self.requests.pod(pod).await?;
        if stored.as_ref().is_some_and(|stored| stored.class != PodClass::Terminating) {
            self.metrics.unmarked(kind);
            if self.is_first(eviction, |entry| &mut entry.unmarked) {
                warn!(%pod, uid = %pod.uid, cause = kind.label(), error = message,
                    "the condition DisruptionTarget was refused; the pod is deleted without it");
                self.notices.unmarked(pod, cause, kind, &message);
            }
        }
        Ok(stored)
    }

    fn announce(&self, eviction: &Eviction, cause: &Cause) {
        if self.is_first(eviction, |entry| &mut entry.announced) {
            self.notices.evicting(&eviction.pod, cause);
        }
    }

    fn is_first(&self, eviction: &Eviction, mark: fn(&mut BacklogEntry) -> &mut bool) -> bool {
        let was = self.backlog.update(eviction, |entry| std::mem::replace(mark(entry), true));
        was == Some(false)
    }

    fn blocked(
        &self,
        eviction: &Eviction,
        budget: Option<String>,
        message: &str,
        after: Option<Duration>,
    ) -> Outcome {
        let pod = &eviction.pod;
        self.metrics.ended(eviction.cause.kind(), BLOCKED);
        let what = format!("budget {}", budget.unwrap_or_default()).into();
        let (refusals, is_news) =
            self.refused(eviction, message, what, |retry| &mut retry.refusals);
        let pause = BUDGET.pause_asked(refusals, pod.uid.0, after);
        if is_news {
            info!(%pod, uid = %pod.uid, node = %pod.node, reason = message, ?pause,
                "a disruption budget holds the pod back");
            self.notices.blocked(pod, message);
        }
        let asked = after.and_then(|after| self.in_a_while(after));
        self.backlog.update(eviction, |entry| entry.retry.not_before = asked);
        self.wait(eviction, State::Blocked, pause)
    }

    async fn several_budgets(&self, eviction: &Eviction, past: State) -> Outcome {
        let pod = &eviction.pod;
        self.metrics.ended(eviction.cause.kind(), SEVERAL_BUDGETS);
        if past != State::SeveralBudgets {
            // Their names are for people; without them it is said all the same.
            let budgets = self.requests.budgets_over(pod).await.unwrap_or_default();
            let names = budgets.join(", ");
            let message = format!("more than one disruption budget selects the pod ({names})");
            let what = "several budgets".into();
            let (_, is_news) = self.refused(eviction, &message, what, |retry| &mut retry.refusals);
            if is_news {
                warn!(%pod, uid = %pod.uid, node = %pod.node, budgets = names,
                    "more than one disruption budget selects a pod, so it cannot be evicted: leave \
                     it one");
                self.notices.several_budgets(pod, &budgets);
            }
        }
        self.wait(eviction, State::SeveralBudgets, UNTIL_ONE_BUDGET)
    }

    fn fail(
        &self,
        eviction: &Eviction,
        kind: FailureKind,
        message: &str,
        after: Option<Duration>,
    ) -> Outcome {
        let Eviction { pod, cause, .. } = eviction;
        self.metrics.failed(cause.kind(), kind);
        if matches!(kind, FailureKind::Throttled | FailureKind::Timeout) {
            self.window.overloaded();
        }
        let (failures, is_news) =
            self.refused(eviction, message, kind.label().into(), |retry| &mut retry.failures);
        let backoff = match (cause.method(), kind) {
            (Method::Evict { .. } | Method::DeleteWithin { .. }, FailureKind::Webhook) => WEBHOOK,
            _ => BACKOFF,
        };
        let pause = backoff.pause_asked(failures, pod.uid.0, after);
        if is_news {
            warn!(%pod, uid = %pod.uid, cause = kind.label(), error = message, ?pause,
                "eviction failed; it will be tried again until it succeeds");
            self.notices.failing(pod, cause, kind, message);
        } else {
            debug!(%pod, uid = %pod.uid, cause = kind.label(), error = message,
                tries = failures, ?pause, "eviction failed again");
        }
        self.wait(eviction, State::Failing(kind), pause)
    }

    /// Notes that a try was refused or failed. Returns how many were, and whether `what` is news.
    fn refused(
        &self,
        eviction: &Eviction,
        message: &str,
        what: Cow<'static, str>,
        counter: fn(&mut Retry) -> &mut u32,
    ) -> (u32, bool) {
        let noted = self.backlog.update(eviction, |entry| {
            entry.retry.last_error = Some(message.to_owned());
            *counter(&mut entry.retry) += 1;
            (*counter(&mut entry.retry), entry.retry.reported.insert(what))
        });
        // It was cancelled meanwhile, so nobody waits for it.
        noted.unwrap_or((1, false))
    }

    fn wait(&self, eviction: &Eviction, state: State, pause: Duration) -> Outcome {
        let next = self.in_a_while(pause);
        self.backlog.update(eviction, |entry| {
            entry.state = state;
            entry.retry.next = next;
        });
        Outcome::Again(pause)
    }

    fn in_a_while(&self, pause: Duration) -> Option<Timestamp> {
        let pause = SignedDuration::try_from(pause).ok()?;
        self.clock.now().saturating_add(pause).ok()
    }
}

/// How far an attempt came, if it did not fail.
enum End {
    /// It is not to go now.
    Spared(Spared),
    /// The API server has no such pod any more, or one that is going.
    AlreadyGone,
    /// The API server took the request, for this cause.
    Sent(Cause),
}

#[cfg(test)]
mod tests;
