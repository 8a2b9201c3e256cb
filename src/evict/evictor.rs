//! One eviction, from "it is due" to an outcome.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::confirm::Confirmations;
use super::{Backlog, Failure, FailureKind, Metrics, Pace, State};
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::model::{Disruption, Kept, Node, NodeName, Pod, PodClass, PodRef, Verdict};

/// Pause between failed tries of one pod. Two minutes is what a person who has just mended the
/// cause is willing to wait.
pub(super) const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(250), most: Duration::from_secs(120) };
/// How long to wait for a watch to show what the API server said already, before asking again.
pub(super) const UNTIL_SEEN: Duration = Duration::from_secs(30);
/// The same when the API server knew of newer facts than the view: they are on their way.
const UNTIL_CAUGHT_UP: Duration = Duration::from_secs(1);
/// For how long a written condition is taken to be there although the view does not show it yet.
/// The disruption controller takes a condition back after two minutes without a deletion.
const MARK_LASTS: Duration = Duration::from_secs(60);

/// A webhook that denies a condition may not have been reached: so many failures are waited for.
const WEBHOOK_TRIES: u32 = 3;

/// An eviction that has come due.
#[derive(Clone, Debug)]
pub struct Job {
    /// The pod.
    pub pod: PodRef,
    /// The verdict by which it was armed.
    pub verdict: Verdict,
    /// When it came due. It was decided before.
    pub due: Instant,
}

/// What became of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is not due any more: whoever decides shall look at the pod again.
    Reconsider,
    /// It shall come again, not before the pause is over.
    Again(Duration),
}

/// What the view says of a pod now.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// The pod's facts; absent if it is gone.
    pub pod: Option<Arc<Pod>>,
}

/// Who decides.
pub trait Judge: Send + Sync {
    /// The verdict from the newest facts at hand, about a pod that was armed by `armed`.
    fn judge(&self, pod: &PodRef, armed: &Verdict) -> Judgement;

    /// The verdict by these facts of the pod and of its node (`None`: there is no such node).
    fn judge_on(&self, pod: &Pod, armed: &Verdict, node: Option<&Node>) -> Verdict;
}

/// The requests that an eviction takes.
pub trait Requests: Send + Sync {
    /// Writes the condition that says why the pod goes, and returns the pod as it is then.
    fn mark(&self, pod: &Pod, now: Timestamp) -> impl Future<Output = Result<Pod, Failure>> + Send;

    /// Deletes the pod.
    fn delete(&self, pod: &PodRef) -> impl Future<Output = Result<(), Failure>> + Send;

    /// The pod as it is stored; `None` if it is gone, whether or not another has its name.
    fn pod(&self, pod: &PodRef) -> impl Future<Output = Result<Option<Pod>, Failure>> + Send;

    /// The node as it is stored; `None` if there is no such node.
    fn node(&self, name: &NodeName) -> impl Future<Output = Result<Option<Node>, Failure>> + Send;
}

/// What people are told. Must not wait.
pub trait Notices: Send + Sync {
    /// The pod is being evicted. Once per pod.
    fn evicting(&self, pod: &PodRef, verdict: &Verdict);

    /// The condition was refused, and the pod is deleted without it. Once per pod.
    fn unmarked(&self, pod: &PodRef, verdict: &Verdict, kind: FailureKind, message: &str);

    /// A try failed. Once per pod and kind of failure.
    fn failing(&self, pod: &PodRef, verdict: &Verdict, kind: FailureKind, message: &str);
}

/// Carries out evictions.
///
/// The node is read from the API server before anything is written, and again before the deletion
/// if that comes more than a second later; the pod comes back with the answer to the patch of its
/// condition. Nodes and pods come by two watches, and either may lag or be dead without a sign of
/// it, so no verdict of the view's proves by itself that the taint is still there, or that nobody
/// has given the pod a toleration (kubernetes/kubernetes#119862). One read for all the pods of a
/// node that are due is cheap beside a wrong eviction.
#[derive(Debug)]
pub struct Evictor<J, R, N> {
    judge: J,
    requests: R,
    notices: N,
    backlog: Arc<Backlog>,
    metrics: Metrics,
    clock: Clock,
    confirmations: Confirmations,
    pace: Arc<Pace>,
}

impl<J: Judge, R: Requests, N: Notices> Evictor<J, R, N> {
    /// An evictor that asks `judge`, writes by `requests` and tells `notices`.
    pub fn new(
        judge: J,
        requests: R,
        notices: N,
        backlog: Arc<Backlog>,
        metrics: Metrics,
        clock: Clock,
        pace: Arc<Pace>,
    ) -> Self {
        let confirmations = Confirmations::default();
        Self { judge, requests, notices, backlog, metrics, clock, confirmations, pace }
    }

    /// Carries out one eviction as far as it goes now.
    pub async fn carry_out(&self, job: &Job) -> Outcome {
        let uid = job.pod.uid;
        self.backlog.enter(&job.pod, &job.verdict, job.due);
        let past = self.backlog.get(uid).map_or_else(Past::default, |condemned| Past {
            sent: condemned.state == State::Sent,
            unconfirmed: condemned.state == State::Unconfirmed,
            marked: condemned.marked.is_some_and(|at| at.elapsed() < MARK_LASTS),
        });
        match self.attempt(job, past).await {
            Ok(End::Withdrawn(verdict)) => {
                debug!(pod = %job.pod, %uid, %verdict, "eviction withdrawn");
                self.metrics.ended("withdrawn");
                self.backlog.leave(uid);
                Outcome::Reconsider
            }
            Ok(End::Unconfirmed(verdict)) => {
                // While a watch is down it comes again every second, and says so once.
                if past.unconfirmed {
                    debug!(pod = %job.pod, %uid, %verdict, "eviction put off again");
                } else {
                    info!(pod = %job.pod, %uid, %verdict,
                        "eviction put off: the API server has newer facts of the pod or its node");
                }
                self.metrics.ended("unconfirmed");
                self.wait(job, State::Unconfirmed, UNTIL_CAUGHT_UP)
            }
            Ok(End::Deleted(verdict)) => {
                info!(pod = %job.pod, %uid, node = %job.pod.node, %verdict, "pod deleted");
                let due = self.backlog.get(uid).map_or(job.due, |condemned| condemned.due);
                self.metrics.deleted(due.elapsed());
                self.wait(job, State::Sent, UNTIL_SEEN)
            }
            Ok(End::AlreadyGone) => {
                debug!(pod = %job.pod, %uid, "pod was gone already");
                if !past.sent {
                    self.metrics.ended("already_gone");
                }
                self.wait(job, State::Sent, UNTIL_SEEN)
            }
            Err((kind, message, after)) => self.fail(job, kind, &message, after),
        }
    }

    async fn attempt(&self, job: &Job, past: Past) -> Result<End, Trouble> {
        let judgement = self.judge.judge(&job.pod, &job.verdict);
        let (Some(pod), true) = (judgement.pod, judgement.verdict.is_due(self.clock.now())) else {
            return Ok(End::Withdrawn(judgement.verdict));
        };
        match self.carry_on(job, past, &pod, judgement.verdict).await {
            Ok(end) => Ok(end),
            Err(Failure::Gone) => Ok(End::AlreadyGone),
            Err(Failure::Doubtful { kind, message }) => match self.requests.pod(&job.pod).await {
                Ok(None) => Ok(End::AlreadyGone),
                _ => Err((kind, message, None)),
            },
            Err(Failure::Retry { kind, message, after }) => Err((kind, message, after)),
        }
    }

    /// The requests of one attempt, with the newest facts asked for before each write.
    async fn carry_on(
        &self,
        job: &Job,
        past: Past,
        pod: &Pod,
        verdict: Verdict,
    ) -> Result<End, Failure> {
        let mut stored = None;
        if past.sent {
            // The watch is slow to show what the server took. Look before deleting twice.
            match self.requests.pod(&job.pod).await? {
                Some(pod) if pod.class != PodClass::Terminating => stored = Some(pod),
                _ => return Ok(End::AlreadyGone),
            }
            warn!(pod = %job.pod, uid = %job.pod.uid,
                "the API server took the deletion but the pod is still there; deleting again");
        }
        if let Some(end) = self.spared(job, stored.as_ref().unwrap_or(pod)).await? {
            return Ok(end);
        }
        self.announce(job, &verdict);
        let start = Instant::now();
        let is_marked = past.marked || pod.disruption == Disruption::ByTaint;
        let stored = match stored {
            // Both the answer to the patch and a read have the pod as it is now.
            _ if !is_marked => match self.mark(job, pod, &verdict).await? {
                Some(stored) => stored,
                None => return Ok(End::AlreadyGone),
            },
            Some(stored) => stored,
            None => match self.requests.pod(&job.pod).await? {
                Some(stored) => stored,
                None => return Ok(End::AlreadyGone),
            },
        };
        if let Some(end) = self.spared(job, &stored).await? {
            return Ok(end);
        }
        self.requests.delete(&job.pod).await?;
        self.pace.went_well(start.elapsed());
        Ok(End::Deleted(verdict))
    }

    /// Writes the condition, and returns the pod as it is stored then; `None` if it is gone.
    ///
    /// The condition tells others why the pod goes. Whoever refuses it, a policy for example, does not
    /// decide whether the pod goes: then it is read instead, which also tells a refusal of the condition
    /// from one since the name is another pod's by now. The next try asks for the condition again.
    async fn mark(&self, job: &Job, pod: &Pod, verdict: &Verdict) -> Result<Option<Pod>, Failure> {
        let (kind, message) = match self.requests.mark(pod, self.clock.now()).await {
            Ok(stored) => {
                self.backlog.update(job.pod.uid, |condemned| {
                    condemned.marked = Some(Instant::now());
                });
                return Ok(Some(stored));
            }
            Err(Failure::Doubtful { kind, message } | Failure::Retry { kind, message, .. })
                if self.is_final(job, kind) =>
            {
                (kind, message)
            }
            Err(failure) => return Err(failure),
        };
        let stored = self.requests.pod(&job.pod).await?;
        if stored.as_ref().is_some_and(|stored| stored.class != PodClass::Terminating) {
            self.metrics.unmarked(kind);
            let first = self
                .backlog
                .update(job.pod.uid, |condemned| !std::mem::replace(&mut condemned.unmarked, true));
            if first == Some(true) {
                warn!(pod = %job.pod, uid = %job.pod.uid, cause = kind.label(), error = message,
                    "the condition DisruptionTarget was refused; the pod is deleted without it");
                self.notices.unmarked(&job.pod, verdict, kind, &message);
            }
        }
        Ok(stored)
    }

    /// Whether a condition that was refused so is not waited for any more.
    fn is_final(&self, job: &Job, kind: FailureKind) -> bool {
        let failures = || self.backlog.get(job.pod.uid).map_or(0, |condemned| condemned.failures);
        kind.is_definite() || kind == FailureKind::Webhook && failures() >= WEBHOOK_TRIES
    }

    /// How the attempt ends if the pod is to stay, by these facts of it and by its node as the API
    /// server has it. That is read anew only if what is known of it is older than a second. The view has
    /// the last word: the answer may have been long on its way.
    async fn spared(&self, job: &Job, pod: &Pod) -> Result<Option<End>, Failure> {
        let node = self.confirmations.node(&job.pod.node, job.due, &self.requests).await?;
        let judgement = self.judge.judge(&job.pod, &job.verdict);
        if judgement.pod.is_none() || !judgement.verdict.is_due(self.clock.now()) {
            return Ok(Some(End::Withdrawn(judgement.verdict)));
        }
        let verdict = self.judge.judge_on(pod, &job.verdict, node.as_deref());
        Ok(if verdict == Verdict::Keep(Kept::Terminating) {
            Some(End::AlreadyGone)
        } else if verdict.is_due(self.clock.now()) {
            None
        } else {
            Some(End::Unconfirmed(verdict))
        })
    }

    fn announce(&self, job: &Job, verdict: &Verdict) {
        let first = self
            .backlog
            .update(job.pod.uid, |condemned| !std::mem::replace(&mut condemned.announced, true));
        if first == Some(true) {
            self.notices.evicting(&job.pod, verdict);
        }
    }

    fn fail(
        &self,
        job: &Job,
        kind: FailureKind,
        message: &str,
        after: Option<Duration>,
    ) -> Outcome {
        self.metrics.failed(kind);
        if matches!(kind, FailureKind::Throttled | FailureKind::Timeout) {
            self.pace.overloaded();
        }
        let (failures, new) = self
            .backlog
            .update(job.pod.uid, |condemned| {
                condemned.failures += 1;
                condemned.last_error = Some(message.to_owned());
                (condemned.failures, condemned.reported.insert(kind))
            })
            .unwrap_or((1, true));
        let pause = BACKOFF.pause_asked(failures, job.pod.uid.0, after);
        if new {
            warn!(pod = %job.pod, uid = %job.pod.uid, cause = kind.label(), error = message,
                ?pause, "eviction failed; it will be tried again until it succeeds");
            self.notices.failing(&job.pod, &job.verdict, kind, message);
        } else {
            debug!(pod = %job.pod, uid = %job.pod.uid, cause = kind.label(), error = message,
                tries = failures, ?pause, "eviction failed again");
        }
        self.wait(job, State::Failing(kind), pause)
    }

    fn wait(&self, job: &Job, state: State, pause: Duration) -> Outcome {
        let next = SignedDuration::try_from(pause)
            .ok()
            .and_then(|pause| self.clock.now().saturating_add(pause).ok());
        self.backlog.update(job.pod.uid, |condemned| {
            condemned.state = state;
            condemned.next_try = next;
        });
        Outcome::Again(pause)
    }
}

/// What earlier attempts came to.
#[derive(Clone, Copy, Default)]
struct Past {
    sent: bool,
    unconfirmed: bool,
    marked: bool,
}

/// How far an attempt came.
enum End {
    Withdrawn(Verdict),
    Unconfirmed(Verdict),
    Deleted(Verdict),
    AlreadyGone,
}

type Trouble = (FailureKind, String, Option<Duration>);

#[cfg(test)]
mod tests;
