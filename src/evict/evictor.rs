//! One eviction, from "it is due" to an outcome.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::confirm::Confirmations;
use super::{Backlog, Failure, FailureKind, Metrics, State};
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::model::{Disruption, Node, NodeName, Pod, PodRef, Verdict};

/// Pause between failed tries of one pod. Two minutes is what a person who has just mended the
/// cause is willing to wait.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(250), most: Duration::from_secs(120) };
/// How long to wait for a watch to show what the API server said already, before asking again.
const UNTIL_SEEN: Duration = Duration::from_secs(30);
/// The same when the API server knew of newer facts than the view: they are on their way.
const UNTIL_CAUGHT_UP: Duration = Duration::from_secs(1);
/// For how long a written condition is taken to be there although the view does not show it yet.
/// The disruption controller takes a condition back after two minutes without a deletion.
const MARK_LASTS: Duration = Duration::from_secs(60);

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

    /// The verdict with the node as given instead (`None`: there is no such node).
    fn judge_on(&self, pod: &PodRef, armed: &Verdict, node: Option<&Node>) -> Verdict;
}

/// What the API server knows of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is there and not being deleted.
    Running {
        /// Counts the changes of its spec; 0 where the server does not keep it.
        generation: i64,
    },
    /// It is there and being deleted.
    Terminating,
    /// It is gone; its name may be taken by another pod.
    Gone,
}

/// The requests that an eviction takes.
pub trait Requests: Send + Sync {
    /// Writes the condition that says why the pod goes, and tells what the answer says of the pod.
    fn mark(
        &self,
        pod: &Pod,
        now: Timestamp,
    ) -> impl Future<Output = Result<Presence, Failure>> + Send;

    /// Deletes the pod.
    fn delete(&self, pod: &PodRef) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Whether the pod, not one of the same name, is there.
    fn presence(&self, pod: &PodRef) -> impl Future<Output = Result<Presence, Failure>> + Send;

    /// The node as it is stored; `None` if there is no such node.
    fn node(&self, name: &NodeName) -> impl Future<Output = Result<Option<Node>, Failure>> + Send;
}

/// What people are told. Must not wait.
pub trait Notices: Send + Sync {
    /// The pod is being evicted. Once per pod.
    fn evicting(&self, pod: &PodRef, verdict: &Verdict);

    /// A try failed. Once per pod and kind of failure.
    fn failing(&self, pod: &PodRef, verdict: &Verdict, kind: FailureKind, message: &str);
}

/// Carries out evictions.
///
/// The node is read from the API server before anything is written, and again before the deletion
/// if that comes more than a second later. Nodes and pods come by two watches, and either may lag
/// or be dead without a sign of it, so no verdict of the view's proves by itself that the taint is
/// still there (kubernetes/kubernetes#119862). One read for all the pods of a node that are due is
/// cheap beside a wrong eviction.
///
/// What is known of the pod may be old as well. The answer to the patch tells without another
/// request whether its spec was changed since; where there is nothing to patch, the pod is read.
#[derive(Debug)]
pub struct Evictor<J, R, N> {
    judge: J,
    requests: R,
    notices: N,
    backlog: Arc<Backlog>,
    metrics: Metrics,
    clock: Clock,
    confirmations: Confirmations,
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
    ) -> Self {
        let confirmations = Confirmations::default();
        Self { judge, requests, notices, backlog, metrics, clock, confirmations }
    }

    /// Carries out one eviction as far as it goes now.
    pub async fn carry_out(&self, job: &Job) -> Outcome {
        let uid = job.pod.uid;
        self.backlog.enter(&job.pod, &job.verdict, job.due);
        let past = self.backlog.get(uid).map_or_else(Past::default, |condemned| Past {
            sent: condemned.state == State::Sent,
            in_doubt: condemned.state.is_in_doubt(),
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
                info!(pod = %job.pod, %uid, %verdict,
                    "eviction put off: the API server has newer facts");
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
        let now = self.clock.now();
        let judgement = self.judge.judge(&job.pod, &job.verdict);
        let (Some(pod), true) = (judgement.pod, judgement.verdict.is_due(now)) else {
            return Ok(End::Withdrawn(judgement.verdict));
        };
        let verdict = judgement.verdict;
        let mut presence = None;
        if past.sent || past.in_doubt {
            // The watch is slow to show what the server took. Look before deleting twice.
            match self.requests.presence(&job.pod).await {
                Ok(Presence::Terminating | Presence::Gone) => return Ok(End::AlreadyGone),
                Ok(running) => presence = Some(running),
                Err(failure) => return self.settle(job, failure).await,
            }
            if past.sent {
                warn!(pod = %job.pod, uid = %job.pod.uid,
                    "the API server took the deletion but the pod is still there; deleting again");
            }
        }
        match self.unconfirmed(job).await {
            Ok(None) => {}
            Ok(Some(verdict)) => return Ok(End::Unconfirmed(verdict)),
            Err(failure) => return self.settle(job, failure).await,
        }
        self.announce(job, &verdict);
        if !past.marked && pod.disruption != Disruption::ByTaint {
            match self.requests.mark(&pod, now).await {
                Ok(answer) => presence = Some(answer),
                Err(failure) => return self.settle(job, failure).await,
            }
            self.backlog.update(job.pod.uid, |condemned| {
                condemned.marked = Some(Instant::now());
            });
        }
        let presence = match presence {
            Some(presence) => presence,
            None => match self.requests.presence(&job.pod).await {
                Ok(presence) => presence,
                Err(failure) => return self.settle(job, failure).await,
            },
        };
        let Presence::Running { generation } = presence else {
            return Ok(End::AlreadyGone);
        };
        let judgement = self.judge.judge(&job.pod, &job.verdict);
        let (Some(pod), true) = (judgement.pod, judgement.verdict.is_due(self.clock.now())) else {
            return Ok(End::Withdrawn(judgement.verdict));
        };
        if generation > pod.generation {
            return Ok(End::Unconfirmed(judgement.verdict));
        }
        // No request, unless the one before took long.
        match self.unconfirmed(job).await {
            Ok(None) => {}
            Ok(Some(verdict)) => return Ok(End::Unconfirmed(verdict)),
            Err(failure) => return self.settle(job, failure).await,
        }
        match self.requests.delete(&job.pod).await {
            Ok(()) => Ok(End::Deleted(verdict)),
            Err(failure) => self.settle(job, failure).await,
        }
    }

    /// The verdict by the node as the API server has it, if that keeps the pod.
    async fn unconfirmed(&self, job: &Job) -> Result<Option<Verdict>, Failure> {
        let node = self.confirmations.node(&job.pod.node, job.due, &self.requests).await?;
        let verdict = self.judge.judge_on(&job.pod, &job.verdict, node.as_deref());
        Ok((!verdict.is_due(self.clock.now())).then_some(verdict))
    }

    /// What a failed request comes to.
    async fn settle(&self, job: &Job, failure: Failure) -> Result<End, Trouble> {
        match failure {
            Failure::Gone => Ok(End::AlreadyGone),
            // A UID that does not fit any more and a write that lost a race look alike.
            Failure::Conflict(message) => match self.requests.presence(&job.pod).await {
                Ok(Presence::Gone) => Ok(End::AlreadyGone),
                _ => Err((FailureKind::Conflict, message, None)),
            },
            Failure::Retry { kind, message, after } => Err((kind, message, after)),
        }
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
        let (failures, new) = self
            .backlog
            .update(job.pod.uid, |condemned| {
                condemned.failures += 1;
                condemned.last_error = Some(message.to_owned());
                (condemned.failures, condemned.reported.insert(kind))
            })
            .unwrap_or((1, true));
        // Whoever asks for more is not waited for: some proxies ask for hours.
        let asked = after.unwrap_or_default().min(BACKOFF.most);
        let pause = BACKOFF.pause(failures).max(asked);
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
        let next = jiff::SignedDuration::try_from(pause)
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
    /// The last request may have been carried out, although there was no answer to it.
    in_doubt: bool,
    sent: bool,
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
