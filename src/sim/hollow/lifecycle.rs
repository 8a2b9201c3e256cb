//! The life of a pod on its node, as a pure function: the next step for a pod, given the time and the
//! node's behaviour.
//!
//! Nearly everything is read from the pod itself, so a restarted kubelet continues where it was.
//! [`Worker`] holds the little that only the kubelet knows. A step that succeeded shows in the pod's next
//! version; a step that failed is returned again.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::admission::{self, Taint};
use super::objects::{Phase, Pod};
use super::switches::{Conduct, Rejection};

/// Times that hold for all nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// How long an ordinary pod takes to stop.
    pub(super) stop_time: Duration,
    /// How long someone else's change of a status stands before it is put right.
    pub(super) sync_interval: Duration,
}

/// The node of a pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'a> {
    /// How it behaves.
    pub(super) conduct: &'a Conduct,
    /// Its taints.
    pub(super) taints: &'a [Taint],
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
    /// Delete it with no grace: it has ended and someone asked for its deletion.
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
        site: Site<'_>,
        rules: Rules,
        now: Timestamp,
    ) -> Step {
        let conduct = site.conduct;
        if conduct.is_silent() || self.removed {
            return Step::Rest;
        }
        let deletion = pod.deletion();
        if pod.is_finished() || (pod.is_mirror() && deletion.is_some()) {
            // Once the grace is down to zero, only finalizers keep the object.
            let due = deletion.is_some_and(|deletion| !deletion.grace.is_zero());
            return if due { Step::Act(Action::Remove) } else { Step::Rest };
        }
        if pod.status.phase == Phase::Pending {
            return Step::Act(arrival(pod, site));
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
fn arrival(pod: &Pod, site: Site<'_>) -> Action {
    if pod.deletion().is_some() {
        return Action::Finish(Ending::NeverRan);
    }
    match admission::refusal(pod, site.conduct, site.taints) {
        Some(rejection) => Action::Reject(rejection),
        None => Action::Run { ready: pod.readiness_delay().is_zero() },
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
        Some(ready) if pod.is_true("ContainersReady") => {
            ready.last_transition_time.map(|since| later(since, rules.sync_interval))
        }
        _ => pod.status.start_time.map(|start| later(start, pod.readiness_delay())),
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

#[cfg(test)]
mod tests {
    use super::super::shutdown::{Shutdown, ShutdownPlan};
    use super::super::switches::Switch;
    use super::super::testing::{PodBuilder, at, pod};
    use super::*;

    const RULES: Rules =
        Rules { stop_time: Duration::from_secs(3), sync_interval: Duration::from_secs(10) };

    const CRITICAL: i32 = 2_000_000_000;

    fn node(switches: impl IntoIterator<Item = Switch>) -> Conduct {
        let mut conduct = Conduct::default();
        for switch in switches {
            conduct.apply(switch, at(0));
        }
        conduct
    }

    fn untainted(conduct: &Conduct) -> Site<'_> {
        Site { conduct, taints: &[] }
    }

    /// The step of a fresh worker, at a time.
    fn step(pod: PodBuilder, conduct: &Conduct, seconds: i64) -> Step {
        Worker::default().next_step(&pod.build(), untainted(conduct), RULES, at(seconds))
    }

    fn run(ready: bool) -> Step {
        Step::Act(Action::Run { ready })
    }

    fn finish(ending: Ending) -> Step {
        Step::Act(Action::Finish(ending))
    }

    #[test]
    fn what_is_done_at_once() {
        let remove = || Step::Act(Action::Remove);
        let reject = Rejection::new("OutOfcpu", "too little of it");
        let rejecting = || Switch::Reject(Some(reject.clone()));
        let shutdown = || Switch::Shutdown(Some(ShutdownPlan::default()));
        let up = || pod("a").running("True", "True");
        let done = |phase| pod("a").phase(phase);
        #[rustfmt::skip]
        let table = [
            ("bound", pod("a"), vec![], run(true)),
            ("bound, probed", pod("a").ready_after(5), vec![], run(false)),
            ("bound, probed without delay", pod("a").ready_after(0), vec![], run(true)),
            ("bound, rejected", pod("a"), vec![rejecting()], Step::Act(Action::Reject(reject.clone()))),
            ("bound, on a silent node", pod("a"), vec![Switch::Silent(true)], Step::Rest),
            ("bound, on a node that is not ready", pod("a"), vec![Switch::NotReady(true)], run(true)),
            ("bound, shutdown", pod("a"), vec![shutdown()], Step::Act(Action::Reject(Shutdown::rejection()))),
            ("bound, deleted", pod("a").deleted(30), vec![], finish(Ending::NeverRan)),
            ("bound, deleted, rejected", pod("a").deleted(30), vec![rejecting()], finish(Ending::NeverRan)),
            ("bound, deleted by force, finalizer", pod("a").deleted(0), vec![], finish(Ending::NeverRan)),
            ("running and ready", up(), vec![], Step::Rest),
            ("running on a rejecting node", up(), vec![rejecting()], Step::Rest),
            ("running, silent", up().deleted(30), vec![Switch::Silent(true)], Step::Rest),
            ("ended well", done("Succeeded"), vec![], Step::Rest),
            ("ended badly", done("Failed"), vec![], Step::Rest),
            ("ended, shutdown", done("Succeeded"), vec![shutdown()], Step::Rest),
            ("ended, deleted", done("Succeeded").deleted(30), vec![], remove()),
            ("ended, deleted, silent", done("Succeeded").deleted(30), vec![Switch::Silent(true)], Step::Rest),
            ("ended, held by a finalizer", done("Failed").deleted(0), vec![], Step::Rest),
            ("mirror", pod("a").mirror(), vec![], run(true)),
            ("mirror, running", up().mirror(), vec![], Step::Rest),
            ("mirror, deleted", up().mirror().deleted(30), vec![Switch::SlowStop(Duration::from_secs(60))], remove()),
            ("mirror, held by a finalizer", up().mirror().deleted(0), vec![], Step::Rest),
            ("unknown phase", pod("a").phase("Unknown"), vec![], run(true)),
        ];
        for (case, pod, switches, expected) in table {
            assert_eq!(step(pod, &node(switches), 0), expected, "{case}");
        }
    }

    #[test]
    fn how_long_a_pod_takes_to_stop_and_how_it_ends() {
        let slow = |seconds| Switch::SlowStop(Duration::from_secs(seconds));
        #[rustfmt::skip]
        let table = [
            ("as usual", 30, vec![], 3, Ending::Stopped),
            ("grace as long as the stop", 3, vec![], 3, Ending::Stopped),
            ("grace too short", 2, vec![], 2, Ending::Killed),
            ("by force, held by a finalizer", 0, vec![], 1, Ending::Killed),
            ("slow", 30, vec![slow(20)], 23, Ending::Stopped),
            ("too slow", 30, vec![slow(60)], 30, Ending::Killed),
            ("deaf", 30, vec![Switch::IgnoreTerm(true)], 30, Ending::Killed),
            ("not ready", 30, vec![Switch::NotReady(true)], 3, Ending::Stopped),
        ];
        for (case, grace, switches, seconds, ending) in table {
            let conduct = node(switches);
            let pod = pod("a").running("True", "True").deleted(grace).build();
            let mut worker = Worker::default();
            let mut next = |now| worker.next_step(&pod, untainted(&conduct), RULES, at(now));
            assert_eq!(next(100), Step::Wait(at(100 + seconds)), "{case}");
            assert_eq!(next(99 + seconds), Step::Wait(at(100 + seconds)), "{case}");
            assert_eq!(next(100 + seconds), finish(ending), "{case}");
        }
    }

    #[test]
    fn a_second_deletion_with_less_grace_ends_a_slow_pod_sooner() {
        let conduct = node([Switch::IgnoreTerm(true)]);
        let up = || pod("a").running("True", "True");
        let mut worker = Worker::default();
        let first = worker.next_step(&up().deleted(30).build(), untainted(&conduct), RULES, at(0));
        assert_eq!(first, Step::Wait(at(30)));
        let second = worker.next_step(&up().deleted(5).build(), untainted(&conduct), RULES, at(4));
        assert_eq!(second, Step::Wait(at(5)));
    }

    #[test]
    fn the_stop_begins_when_a_silent_node_comes_back() {
        let mut conduct = node([Switch::Silent(true)]);
        let pod = pod("a").running("True", "True").deleted(30).build();
        let mut worker = Worker::default();
        assert_eq!(worker.next_step(&pod, untainted(&conduct), RULES, at(0)), Step::Rest);
        conduct.apply(Switch::Silent(false), at(500));
        let back = worker.next_step(&pod, untainted(&conduct), RULES, at(500));
        assert_eq!(back, Step::Wait(at(503)));
    }

    #[test]
    fn nothing_is_done_with_a_pod_that_was_removed() {
        let mut worker = Worker { removed: true, ..Worker::default() };
        let pod = pod("a").phase("Failed").deleted(30).build();
        assert_eq!(worker.next_step(&pod, untainted(&node([])), RULES, at(0)), Step::Rest);
    }

    #[test]
    fn a_probed_pod_becomes_ready_after_its_delay_and_not_before() {
        let pod = || pod("a").ready_after(7).running("False", "False");
        assert_eq!(step(pod(), &node([]), 6), Step::Wait(at(7)));
        assert_eq!(step(pod(), &node([]), 7), run(true));
    }

    #[test]
    fn readiness_that_somebody_else_took_away_comes_back_with_the_next_sync() {
        let pod = || pod("a").running("True", "False").build();
        let mut worker = Worker::default();
        let mut conduct = node([]);
        assert_eq!(worker.next_step(&pod(), untainted(&conduct), RULES, at(9)), Step::Wait(at(10)));
        assert_eq!(worker.next_step(&pod(), untainted(&conduct), RULES, at(10)), run(true));
        conduct.apply(Switch::Silent(true), at(10));
        assert_eq!(worker.next_step(&pod(), untainted(&conduct), RULES, at(60)), Step::Rest);
    }

    #[test]
    fn a_shutdown_kills_ordinary_pods_first_and_caps_their_grace() {
        let conduct =
            node([Switch::Shutdown(Some(ShutdownPlan::default())), Switch::IgnoreTerm(true)]);
        let up = || pod("a").running("True", "True");
        assert_eq!(step(up(), &conduct, 0), Step::Wait(at(20)));
        assert_eq!(step(up().grace(4), &conduct, 0), Step::Wait(at(4)));
        assert_eq!(step(up().deleted(6), &conduct, 0), Step::Wait(at(6)));
        assert_eq!(step(up().priority(CRITICAL), &conduct, 0), Step::Rest);
        assert_eq!(step(up().priority(CRITICAL).deleted(6), &conduct, 0), Step::Wait(at(6)));

        let conduct = node([Switch::Shutdown(Some(ShutdownPlan::default()))]);
        let mut worker = Worker::default();
        let pod = up().build();
        assert_eq!(worker.next_step(&pod, untainted(&conduct), RULES, at(0)), Step::Wait(at(3)));
        let end = worker.next_step(&pod, untainted(&conduct), RULES, at(3));
        assert_eq!(end, finish(Ending::ShutDown));
    }

    #[test]
    fn a_shutdown_that_is_cancelled_kills_nothing_more() {
        let mut conduct = node([Switch::Shutdown(Some(ShutdownPlan::default()))]);
        let mut worker = Worker::default();
        let pod = pod("a").running("True", "True").build();
        assert_eq!(worker.next_step(&pod, untainted(&conduct), RULES, at(0)), Step::Wait(at(3)));
        conduct.apply(Switch::Shutdown(None), at(1));
        assert_eq!(worker.next_step(&pod, untainted(&conduct), RULES, at(3)), Step::Rest);
        conduct.apply(Switch::Shutdown(Some(ShutdownPlan::default())), at(50));
        let again = worker.next_step(&pod, untainted(&conduct), RULES, at(50));
        assert_eq!(again, Step::Wait(at(53)), "the time counts anew");
    }
}
