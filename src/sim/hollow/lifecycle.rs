//! The life of a pod on its node, as a pure function: what is the next step for this pod, at this
//! time, on a node that behaves like this?
//!
//! Nearly everything is read from the pod itself, so a kubelet that restarts goes on where it
//! was. [`Worker`] holds the little that only the kubelet knows. A step that was taken is seen in
//! the pod's next version; a step that failed is simply the next step again.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::objects::{Phase, Pod};
use super::shutdown::Shutdown;
use super::switches::{Conduct, Rejection};

/// Times that hold for all nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// How long an ordinary pod takes to stop.
    pub(super) stop_time: Duration,
    /// How long somebody else's change of a status stands before it is put right.
    pub(super) sync_interval: Duration,
}

/// What the kubelet does next with a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing, until the pod or the node changes.
    Rest,
    /// Nothing before that time.
    Wait(Timestamp),
    /// This.
    Act(Action),
}

/// One request to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Report that it runs, and whether it is ready.
    Run { ready: bool },
    /// Report how it ended.
    Finish(Ending),
    /// Report that it is not taken.
    Reject(Rejection),
    /// Delete it with no grace: it has ended and somebody asked for its deletion.
    Remove,
}

/// How a pod ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Its containers stopped when asked to.
    Stopped,
    /// Its containers were killed at the end of their grace.
    Killed,
    /// Its containers never ran.
    NeverRan,
    /// The node's shutdown ended it.
    ShutDown,
}

/// What a kubelet remembers of a pod, beyond what the API server stores.
#[derive(Clone, Debug, Default)]
pub(super) struct Worker {
    /// When it first saw that the pod is to stop.
    stopping: Option<Timestamp>,
    /// Whether its deletion was carried out. The watch tells later than the answer.
    pub(super) removed: bool,
}

impl Worker {
    /// The next step. Called again whenever the pod, the node or the time has changed.
    pub(super) fn next_step(
        &mut self,
        pod: &Pod,
        conduct: &Conduct,
        rules: Rules,
        now: Timestamp,
    ) -> Step {
        if conduct.is_silent() || self.removed {
            return Step::Rest;
        }
        let deletion = pod.deletion();
        if pod.is_finished() || (pod.is_mirror() && deletion.is_some()) {
            // Once the grace is down to zero, only finalizers keep the object.
            let due = deletion.is_some_and(|deletion| !deletion.grace.is_zero());
            return if due {
                Step::Act(Action::Remove)
            } else {
                Step::Rest
            };
        }
        if pod.status.phase == Phase::Pending {
            return Step::Act(arrival(pod, conduct));
        }
        let shutdown = conduct.shutdown.as_ref();
        let shutdown = shutdown.and_then(|shutdown| shutdown.grace(pod.spec.priority));
        let grace = match (deletion, shutdown) {
            (None, None) => {
                self.stopping = None;
                return readiness(pod, rules, now);
            }
            (Some(deletion), None) => deletion.grace,
            (None, Some(period)) => period.min(pod.own_grace()),
            (Some(deletion), Some(period)) => deletion.grace.min(period),
        };
        self.stop(grace, shutdown.is_some(), conduct, rules, now)
    }

    /// Stops the containers, then reports the end.
    fn stop(
        &mut self,
        grace: Duration,
        by_shutdown: bool,
        conduct: &Conduct,
        rules: Rules,
        now: Timestamp,
    ) -> Step {
        // A kubelet gives a second even where none was asked for.
        let grace = grace.max(Duration::from_secs(1));
        let wanted = rules.stop_time.saturating_add(conduct.slow_stop);
        let killed = conduct.ignore_term || wanted > grace;
        let since = *self.stopping.get_or_insert(now);
        let due = later(since, if killed { grace } else { wanted });
        if now < due {
            return Step::Wait(due);
        }
        Step::Act(Action::Finish(match (by_shutdown, killed) {
            (true, _) => Ending::ShutDown,
            (false, true) => Ending::Killed,
            (false, false) => Ending::Stopped,
        }))
    }
}

/// What becomes of a pod that was bound and not yet started.
fn arrival(pod: &Pod, conduct: &Conduct) -> Action {
    if pod.deletion().is_some() {
        return Action::Finish(Ending::NeverRan);
    }
    if conduct.shutdown.is_some() {
        return Action::Reject(Shutdown::rejection());
    }
    if let Some(rejection) = &conduct.reject {
        return Action::Reject(rejection.clone());
    }
    Action::Run {
        ready: pod.readiness_delay().is_zero(),
    }
}

/// Whether a running pod is to be reported ready.
fn readiness(pod: &Pod, rules: Rules, now: Timestamp) -> Step {
    if pod.is_true("Ready") {
        return Step::Rest;
    }
    let due = match pod.condition("Ready") {
        // Its containers are ready and yet it is not: the node lifecycle controller said so while
        // the node was away. Status is synced from time to time.
        Some(ready) if pod.is_true("ContainersReady") => ready
            .last_transition_time
            .map(|since| later(since, rules.sync_interval)),
        _ => pod
            .status
            .start_time
            .map(|start| later(start, pod.readiness_delay())),
    };
    match due {
        Some(due) if now < due => Step::Wait(due),
        _ => Step::Act(Action::Run { ready: true }),
    }
}

/// That time and so much more.
pub(super) fn later(time: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    time.saturating_add(by).unwrap_or(Timestamp::MAX)
}
