//! One attempt of an eviction, from the second check to the outcome.

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::confirm::Confirmations;
use super::evict_metrics::{
    ALREADY_GONE, BLOCKED, PAUSED, SEVERAL_BUDGETS, UNCONFIRMED, WITHDRAWN,
};
use super::{
    Backlog, BacklogEntry, Cause, CauseKind, Eviction, Failure, FailureKind, Method, Metrics,
    Recheck, Retry, Spared, State, Window,
};
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::model::{Disruption, Node, NodeName, Pod, PodClass, PodRef, Verdict};

/// Pause between failed attempts. Two minutes is how long a person who has just fixed the cause is
/// willing to wait.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(250), most: Duration::from_secs(120) };
/// Pause between attempts for a pod that its budget blocks. A budget allows a disruption again when a pod
/// elsewhere becomes ready, which takes seconds to minutes. Jitter cuts the pause by at most half.
const BUDGET: Backoff = Backoff { first: Duration::from_secs(10), most: Duration::from_secs(60) };
/// Pause between attempts for a pod whose eviction an admission webhook denies. The first request may
/// trigger the operator behind the webhook; further ones only find out whether it has finished.
const WEBHOOK: Backoff = Backoff { first: Duration::from_secs(4), most: Duration::from_secs(60) };
/// Pause while more than one budget selects a pod. A person must fix that.
const UNTIL_ONE_BUDGET: Duration = Duration::from_secs(60);
/// How long to wait for the watch to show an accepted eviction before the pod is read.
const UNTIL_SEEN: Duration = Duration::from_secs(30);
/// How often a dry run looks again at a pod that it would have evicted. The watch shows when it is gone.
const UNTIL_LOOKED_AGAIN: Duration = Duration::from_secs(600);
/// How long to wait for the view if the API server has newer data.
const UNTIL_CAUGHT_UP: Duration = Duration::from_secs(1);
/// How long an eviction that a pause stopped on its way waits before it is queued again.
const UNTIL_HELD: Duration = Duration::from_millis(100);
/// How long a written condition is assumed to exist although the view does not show it yet. The
/// disruption controller removes the condition after two minutes without a deletion.
const MARK_LASTS: Duration = Duration::from_secs(60);
/// After this many failures, a webhook's refusal of the condition is final. Before that, the webhook may
/// only have been unreachable.
const WEBHOOK_ATTEMPTS: u32 = 3;

/// The outcome of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No longer due: the pod is to be evaluated again.
    Reconsider,
    /// To be attempted again after this pause.
    Again(Duration),
}

/// The requests of evictions.
pub trait Requests: Send + Sync {
    /// Called at the end of an eviction. A dry run, which has sent nothing, records it here and returns
    /// true.
    fn record(&self, _pod: &PodRef, _cause: &Cause) -> bool {
        false
    }

    /// Reads the pod; `None` if it is gone, even if another pod has its name.
    fn pod(&self, pod: &PodRef) -> impl Future<Output = Result<Option<Pod>, Failure>> + Send;

    /// Reads the node; `None` if there is no such node.
    fn node(&self, name: &NodeName) -> impl Future<Output = Result<Option<Node>, Failure>> + Send;

    /// Writes the condition `DisruptionTarget`, and returns the pod from the response.
    fn mark(&self, pod: &Pod, now: Timestamp) -> impl Future<Output = Result<Pod, Failure>> + Send;

    /// Deletes the pod.
    fn delete(&self, pod: &PodRef) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Evicts the pod with the Eviction API. `grace`, in seconds, replaces the pod's own grace period.
    fn evict(
        &self,
        pod: &PodRef,
        grace: Option<i64>,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Deletes the pod without asking its budgets. `grace` is as for [`evict`](Self::evict).
    fn delete_within(
        &self,
        pod: &PodRef,
        grace: Option<i64>,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// The names of the budgets that select the pod.
    fn budgets_over(
        &self,
        pod: &PodRef,
    ) -> impl Future<Output = Result<Vec<Arc<str>>, Failure>> + Send;

    /// Why the pod's budget can never be met as things are, with its numbers; `None` if it can be.
    fn hopeless_budget(
        &self,
        pod: &PodRef,
    ) -> impl Future<Output = Result<Option<String>, Failure>> + Send;
}

/// Kubernetes events about evictions. Must not block.
pub trait Notices: Send + Sync {
    /// The pod is being evicted. Once per pod.
    fn evicting(&self, pod: &PodRef, cause: &Cause);

    /// The condition was refused, and the pod is deleted without it. Once per pod.
    fn unmarked(&self, pod: &PodRef, cause: &Cause, kind: FailureKind, message: &str);

    /// An attempt failed. Once per pod and kind of failure.
    fn failing(&self, pod: &PodRef, cause: &Cause, kind: FailureKind, message: &str);

    /// A budget blocks the eviction. Once per pod and budget.
    fn blocked(&self, pod: &PodRef, cause: &Cause, message: &str);

    /// Several budgets select the pod, so the API server refuses to evict it. `budgets` is empty if their
    /// names could not be read. Once per pod.
    fn several_budgets(&self, pod: &PodRef, cause: &Cause, budgets: &[Arc<str>]);
}

/// Carries out evictions.
///
/// The node is read from the API server before anything is written, and again before a deletion that comes
/// more than a second later. The response to the patch of the condition contains the current pod. Both
/// are needed: nodes and pods come from two watches, and either may lag or be silently dead. So the view
/// alone does not prove that the taint still exists, or that the pod has no new toleration
/// (kubernetes/kubernetes#119862). One read for all due pods of a node is cheap compared with a wrong
/// eviction.
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
    /// An evictor that decides with `recheck`, sends `requests` and reports to `notices`.
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

    /// The window of evictions in flight.
    pub(super) fn window(&self) -> &Arc<Window> {
        &self.window
    }

    /// Records that an eviction was cancelled while it waited.
    pub(super) fn cancelled(&self, eviction: &Eviction) {
        self.metrics.ended(eviction.cause.kind(), WITHDRAWN);
        self.backlog.leave_unless_newer(eviction);
    }

    /// Makes one attempt.
    pub async fn carry_out(&self, eviction: &Eviction) -> Outcome {
        let Eviction { pod, cause, due } = eviction;
        let kind = cause.kind();
        let past = self.backlog.get(pod, kind);
        let past = past.unwrap_or_else(|| BacklogEntry::new(pod.clone(), cause.clone(), *due));
        match self.attempt(eviction, &past).await {
            Ok(End::Spared(Spared::Unwanted(verdict))) => {
                debug!(%pod, uid = %pod.uid, node = %pod.node, verdict = verdict.map(display),
                    "eviction no longer wanted");
                self.cancelled(eviction);
                Outcome::Reconsider
            }
            Ok(End::Spared(Spared::Unconfirmed(verdict))) => {
                // While a watch is down, this happens every second. It is logged once.
                if past.state == State::Unconfirmed {
                    debug!(%pod, uid = %pod.uid, %verdict, "eviction postponed again");
                } else {
                    info!(%pod, uid = %pod.uid, %verdict,
                        "eviction postponed: the API server has newer data about the pod or its node");
                }
                self.metrics.ended(kind, UNCONFIRMED);
                self.wait(eviction, State::Unconfirmed, UNTIL_CAUGHT_UP)
            }
            Ok(End::Spared(Spared::Going)) => self.wait(eviction, State::Sent, UNTIL_SEEN),
            Ok(End::AlreadyGone) | Err(Failure::Gone) => {
                if past.state != State::Sent {
                    debug!(%pod, uid = %pod.uid, "pod was already gone");
                    self.metrics.ended(kind, ALREADY_GONE);
                }
                self.wait(eviction, State::Sent, UNTIL_SEEN)
            }
            Ok(End::Recorded) => self.wait(eviction, State::WouldEvict, UNTIL_LOOKED_AGAIN),
            Ok(End::Sent(cause)) if self.requests.record(pod, &cause) => {
                let result = cause.method().result();
                info!(%pod, uid = %pod.uid, node = %pod.node, %cause, result, dry_run = true,
                    "would evict");
                self.metrics.ended(kind, result);
                if kind == CauseKind::Taint {
                    self.metrics.deleted_by_taint(past.due.elapsed());
                }
                self.wait(eviction, State::WouldEvict, UNTIL_LOOKED_AGAIN)
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
                self.blocked(eviction, budget, &message, after).await
            }
            Err(Failure::SeveralBudgets) => self.several_budgets(eviction, past.state).await,
            Err(Failure::Paused) => {
                // A pause began after it had passed the queue. There it is held from now on.
                debug!(%pod, uid = %pod.uid, "eviction not sent: evictions are paused");
                self.metrics.ended(kind, PAUSED);
                let is_sent = past.state == State::Sent;
                let pause = if is_sent { UNTIL_SEEN } else { UNTIL_HELD };
                self.wait(eviction, past.state, pause)
            }
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

    /// The requests of one attempt. The newest facts are checked before each write.
    async fn evict(&self, eviction: &Eviction, past: &BacklogEntry) -> Result<End, Failure> {
        let (known, cause) = match self.recheck.by_view(eviction) {
            Ok(wanted) => wanted,
            Err(spared) => return Ok(End::Spared(spared)),
        };
        if past.state == State::WouldEvict {
            return Ok(End::Recorded);
        }
        let mut stored = None;
        if past.state == State::Sent {
            // The watch has not shown the accepted eviction yet. Read the pod before sending it twice.
            match self.requests.pod(&eviction.pod).await? {
                Some(pod) if pod.class != PodClass::Terminating => stored = Some(pod),
                _ => return Ok(End::AlreadyGone),
            }
            warn!(pod = %eviction.pod, uid = %eviction.pod.uid,
                "the API server accepted the eviction, but the pod is still there; evicting it again");
        }
        let method = cause.method();
        if cause.kind() == CauseKind::Taint && method.asks_budgets() && stored.is_none() {
            // There is no patch of the condition from which the current pod would be known.
            stored = self.requests.pod(&eviction.pod).await?;
            if stored.is_none() {
                return Ok(End::AlreadyGone);
            }
        }
        let pod = stored.as_ref().unwrap_or(&known);
        if let Some(end) = self.confirm(eviction, method, pod).await? {
            return Ok(end);
        }
        self.announce(eviction, &cause);
        let start = Instant::now();
        match method {
            Method::Delete => {
                let is_marked = past.marked.is_some_and(|at| at.elapsed() < MARK_LASTS)
                    || known.disruption == Disruption::ByTaint;
                // The response to the patch has the current pod; without a patch, it is read.
                let stored = match stored {
                    _ if !is_marked => self.mark(eviction, past, &known, &cause).await?,
                    Some(stored) => Some(stored),
                    None => self.requests.pod(&eviction.pod).await?,
                };
                let Some(stored) = stored else { return Ok(End::AlreadyGone) };
                if let Some(end) = self.confirm(eviction, method, &stored).await? {
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
        if let (CauseKind::Taint, Method::Evict { .. }) = (cause.kind(), method) {
            // The API server has set the condition, with a reason that does not tell the taint. The pod
            // is terminating, or gone already: then there is nothing to tell.
            let known = Pod { disruption: Disruption::Foreign, ..Pod::clone(&known) };
            if let Err(error) = self.requests.mark(&known, self.clock.now()).await {
                debug!(pod = %eviction.pod, uid = %eviction.pod.uid, %error,
                    "the condition DisruptionTarget does not tell the taint");
            }
        }
        Ok(End::Sent(cause))
    }

    /// Checks again whether the pod is to be evicted: first by the view, then by `pod` and by its node, which
    /// is read from the API server unless a read is less than a second old. Returns how the attempt ends
    /// if not. The view is checked after the read, because the response may have been delayed. Both must
    /// also agree to the `method`: if budgets are to be asked after all, the attempt ends.
    async fn confirm(
        &self,
        eviction: &Eviction,
        method: Method,
        pod: &Pod,
    ) -> Result<Option<End>, Failure> {
        let name = &eviction.pod.node;
        let node = self.confirmations.node(name, eviction.due, &self.requests).await?;
        match self.recheck.by_view(eviction) {
            Err(spared) => return Ok(Some(End::Spared(spared))),
            Ok((_, Cause::Taint(verdict)))
                if verdict.respects_budgets() && !method.asks_budgets() =>
            {
                return Ok(Some(End::Spared(Spared::Unconfirmed(verdict))));
            }
            Ok(_) => {}
        }
        Ok(match self.recheck.by_server(eviction, method, pod, node.as_deref()) {
            Ok(()) => None,
            Err(Spared::Going) => Some(End::AlreadyGone),
            Err(spared) => Some(End::Spared(spared)),
        })
    }

    /// Writes the condition, and returns the current pod; `None` if it is gone.
    ///
    /// The condition tells others why the pod is evicted. If it is refused, for example by a policy, the
    /// pod is evicted anyway. It is then read instead, which also shows whether the patch was refused
    /// because another pod has the name by now. The next attempt writes the condition again.
    async fn mark(
        &self,
        eviction: &Eviction,
        past: &BacklogEntry,
        known: &Pod,
        cause: &Cause,
    ) -> Result<Option<Pod>, Failure> {
        let is_final = |kind: FailureKind| {
            let waited_for_webhook = past.retry.failures >= WEBHOOK_ATTEMPTS;
            kind.is_definite() || kind == FailureKind::Webhook && waited_for_webhook
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
        let asks = Some(cause.method().asks_budgets());
        let was =
            self.backlog.update(eviction, |entry| std::mem::replace(&mut entry.announced, asks));
        if was.is_some_and(|was| was != asks) {
            self.notices.evicting(&eviction.pod, cause);
        }
    }

    fn is_first(&self, eviction: &Eviction, mark: fn(&mut BacklogEntry) -> &mut bool) -> bool {
        let was = self.backlog.update(eviction, |entry| std::mem::replace(mark(entry), true));
        was == Some(false)
    }

    async fn blocked(
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
                "a disruption budget blocks the eviction");
            // A drain says itself what its budgets forbid.
            let hopeless = match eviction.cause.kind() {
                CauseKind::Taint => self.requests.hopeless_budget(pod).await.ok().flatten(),
                CauseKind::Drain => None,
            };
            if let Some(hopeless) = &hopeless {
                warn!(%pod, uid = %pod.uid, node = %pod.node, reason = hopeless,
                    "the eviction waits for a disruption budget that can never be met; change the budget, \
                     or have more pods");
            }
            self.notices.blocked(pod, &eviction.cause, hopeless.as_deref().unwrap_or(message));
        }
        let asked = after.and_then(|after| self.in_a_while(after));
        self.backlog.update(eviction, |entry| entry.retry.not_before = asked);
        self.wait(eviction, State::Blocked, pause)
    }

    async fn several_budgets(&self, eviction: &Eviction, past: State) -> Outcome {
        let pod = &eviction.pod;
        self.metrics.ended(eviction.cause.kind(), SEVERAL_BUDGETS);
        if past != State::SeveralBudgets {
            // The names are for people. Without them, it is reported anyway.
            let budgets = self.requests.budgets_over(pod).await.unwrap_or_default();
            let names = budgets.join(", ");
            let message = format!("more than one disruption budget selects the pod ({names})");
            let what = "several budgets".into();
            let (_, is_news) = self.refused(eviction, &message, what, |retry| &mut retry.refusals);
            if is_news {
                warn!(%pod, uid = %pod.uid, node = %pod.node, budgets = names,
                    "more than one disruption budget selects the pod, so it cannot be evicted; keep \
                     only one");
                self.notices.several_budgets(pod, &eviction.cause, &budgets);
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
        let backoff = match (cause.at(self.clock.now()).method(), kind) {
            (Method::Evict { .. } | Method::DeleteWithin { .. }, FailureKind::Webhook) => WEBHOOK,
            _ => BACKOFF,
        };
        let pause = backoff.pause_asked(failures, pod.uid.0, after);
        if is_news {
            warn!(%pod, uid = %pod.uid, cause = kind.label(), error = message, ?pause,
                "eviction failed; retrying until it succeeds");
            self.notices.failing(pod, cause, kind, message);
        } else {
            debug!(%pod, uid = %pod.uid, cause = kind.label(), error = message,
                attempts = failures, ?pause, "eviction failed again");
        }
        self.wait(eviction, State::Failing(kind), pause)
    }

    /// Records a refused or failed attempt. Returns the number of these, and whether `what` is new.
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
        // Without an entry, the eviction was cancelled meanwhile.
        noted.unwrap_or((1, false))
    }

    fn wait(&self, eviction: &Eviction, state: State, pause: Duration) -> Outcome {
        let pause = if state == State::Sent { pause } else { self.until_deletion(eviction, pause) };
        let next = self.in_a_while(pause);
        self.backlog.update(eviction, |entry| {
            entry.state = state;
            entry.retry.next = next;
        });
        Outcome::Again(pause)
    }

    /// The pause, but no longer than until the pod may be deleted without asking its budgets.
    fn until_deletion(&self, eviction: &Eviction, pause: Duration) -> Duration {
        let Cause::Taint(verdict) = &eviction.cause else { return pause };
        let Some(Verdict::EvictAt { deadline, .. }) = verdict.deletion() else { return pause };
        let left = deadline.0.duration_since(self.clock.now());
        match Duration::try_from(left) {
            Ok(left) if !left.is_zero() => pause.min(left),
            _ => pause,
        }
    }

    fn in_a_while(&self, pause: Duration) -> Option<Timestamp> {
        let pause = SignedDuration::try_from(pause).ok()?;
        self.clock.now().saturating_add(pause).ok()
    }
}

/// How an attempt ended, if it did not fail.
enum End {
    /// The pod must not be evicted now.
    Spared(Spared),
    /// The pod is gone or terminating.
    AlreadyGone,
    /// The API server accepted the request, for this cause.
    Sent(Cause),
    /// A dry run has recorded it already.
    Recorded,
}

#[cfg(test)]
mod tests;
