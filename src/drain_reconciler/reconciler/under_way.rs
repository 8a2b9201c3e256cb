//! A running drain, from its start to its end.

use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use jiff::Timestamp;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{DrainReconciler, StepResult};
use crate::backoff::Backoff;
use crate::cluster::{RequestError, StoredNode};
use crate::drain::{
    AtDeadline, Change, Cordon, DrainPhase, PodPlan, Policy, Record, Remaining, Report,
    Undrainable, brief, budget_blocker, sequence,
};
use crate::evict::{BacklogEntry, CauseKind, DrainEviction};
use crate::model::{Budget, DrainPod, Node, NodeName, PodRef, Uid, later, second_from, second_of};

/// Who remains on a node is said this often at the most.
const SAID_AGAIN: Duration = Duration::from_secs(60);
/// Budgets are read again when they are older, while pods of drained nodes wait for them.
pub(super) const BUDGETS_FRESH: Duration = Duration::from_secs(3);
/// The pods of a node that is drained are listed this often at the most.
const LIST_EVERY: Duration = Duration::from_secs(1);

impl DrainReconciler {
    pub(super) async fn start(
        &self,
        stored: &StoredNode,
        policy: &Policy,
        record: Record,
    ) -> Result<StepResult, RequestError> {
        let node = &stored.node;
        let pod_plan = self.plan_pods(node, policy).await?;
        let vetoes = pod_plan.vetoes(policy);
        if !vetoes.is_empty() {
            return self.hold(stored, policy, record, &vetoes).await;
        }
        let now = second_of(self.facts.clock.now());
        let is_retry = record.phase == DrainPhase::Failed;
        if !is_retry {
            let begun = self.drains.node_budget.lock().begin(&node.name, policy, now);
            if let Err(later) = begun {
                let scheduled = Some(second_from(later));
                let record = Record { scheduled, ..record };
                return self.write(stored, Change::note(record)).await;
            }
        }
        let record = Record {
            phase: DrainPhase::Draining,
            scheduled: record.scheduled.filter(|_| !is_retry).or(Some(now)),
            started: Some(now),
            deadline: Some(later(
                second_from(self.facts.clock.now()),
                policy.time_for(pod_plan.longest_grace()),
            )),
            ended: None,
            next: None,
            why: Remaining::of(&pod_plan, &AHashMap::new(), &[]).summary(),
            extended: false,
            overran: is_retry && record.overran,
            ..record
        };
        self.update_retry_state(&node.name, |retry_state| {
            (retry_state.blocked, retry_state.why, retry_state.waits) = (0, None, None);
        });
        let change = Change { report: Report::Started, retry_taken: true, ..Change::note(record) };
        self.write(stored, change).await
    }

    /// Has the pods evicted that are next in the sequence, and ends the drain if none is left.
    pub(super) async fn continue_drain(
        &self,
        stored: &StoredNode,
        policy: &Policy,
        record: &Record,
    ) -> Result<StepResult, RequestError> {
        let node = &stored.node;
        let (Some(started), Some(deadline)) = (record.started, record.deadline) else {
            return Ok(StepResult::Done);
        };
        self.update_retry_state(&node.name, |retry_state| {
            let is_known = |(session, _): &(Arc<str>, Instant)| *session == record.session;
            if !retry_state.continued.as_ref().is_some_and(is_known) {
                retry_state.continued = Some((Arc::clone(&record.session), Instant::now()));
            }
        });
        if let Some(pause) = self.too_soon(&node.name) {
            return Ok(StepResult::RetryAfter(pause));
        }
        // The evictor hears from the API server itself what the budgets allow.
        let pods = self.list_pods_on(&node.name).await?;
        let mut pod_plan = self.sorted(pods, policy, &[]).await;
        pod_plan.leave_later(started);
        let now = self.facts.clock.now();
        let mut evictions = self.schedule.backlog.on(&node.name, CauseKind::Drain);
        evictions.retain(|eviction| {
            // Somebody may have protected it since.
            let uid = eviction.pod.uid;
            let goes = pod_plan.still_to_go().iter().any(|pod| pod.reference.uid == uid);
            if !goes {
                self.schedule.cancel_for_drain(&node.name, uid);
            }
            goes
        });
        let protected = pod_plan.lasting();
        if policy.undrainable == Undrainable::Report && !protected.is_empty() {
            return self.hold(stored, policy, record.clone(), &protected).await;
        }
        if pod_plan.is_drained() {
            return self.finish(stored, policy, record.clone(), &pod_plan).await;
        }
        for unknown in &pod_plan.unknown {
            debug!(node = %node.name, error = %unknown, "cannot decide about a pod of the drain yet");
        }
        let present: Vec<_> = pod_plan.go.iter().chain(&pod_plan.going).collect();
        let sequence = sequence(&present, &policy.groups, started, deadline, now);
        let within = |grace: Option<i64>| {
            Arc::new(DrainEviction {
                policy: Arc::clone(&policy.name),
                session: Arc::clone(&record.session),
                grace,
                deadline,
                delete: record.forced,
            })
        };
        let capped = |pod: &DrainPod| policy.max_grace.filter(|most| pod.grace > *most);
        let graces: AHashMap<_, _> =
            pod_plan.go.iter().map(|pod| (pod.reference.uid, capped(pod))).collect();
        // One that the view does not know yet could not be followed. It is there at the next look.
        let is_known = |pod: &PodRef| self.facts.view.pod(&pod.node, pod.uid).is_some();
        let (cut, whole): (Vec<_>, Vec<_>) = sequence
            .evict
            .into_iter()
            .filter(is_known)
            .partition(|pod| graces.get(&pod.uid).copied().flatten().is_some());
        self.schedule.evict_for_drain(&whole, &within(None));
        if let Some(most) = policy.max_grace
            && !cut.is_empty()
        {
            let seconds = i64::try_from(most.as_secs()).unwrap_or(i64::MAX);
            self.drains.reporter.grace_cut(node, cut.len(), most);
            self.schedule.evict_for_drain(&cut, &within(Some(seconds)));
        }
        let remaining = self.remaining(&pod_plan, &evictions).await;
        self.say_who_remains(stored, record, &remaining).await
    }

    /// Which pods are still on a node, and why, for people. An eviction that no budget holds any more
    /// is tried again at once: a budget's change reaches a drain within two looks at its node.
    async fn remaining(&self, pod_plan: &PodPlan, evictions: &[BacklogEntry]) -> Remaining {
        let refusal = |entry: &BacklogEntry| Some((entry.pod.uid, entry.refusal()?.to_owned()));
        let refusals: AHashMap<Uid, String> = evictions.iter().filter_map(refusal).collect();
        let mut budgets: Arc<[Budget]> = Arc::default();
        if evictions.iter().any(BacklogEntry::is_blocked) {
            match self.budgets(BUDGETS_FRESH).await {
                Ok(known) => {
                    budgets = known;
                    self.retry_released(pod_plan, evictions, &budgets);
                }
                // The API server asks them at the next try in any case.
                Err(error) => debug!(%error, "cannot list the disruption budgets"),
            }
        }
        Remaining::of(pod_plan, &refusals, &budgets)
    }

    fn retry_released(&self, pod_plan: &PodPlan, evictions: &[BacklogEntry], budgets: &[Budget]) {
        let now = self.facts.clock.now();
        for waiting in evictions.iter().filter(|entry| entry.waits_for_budget(now)) {
            let uid = waiting.pod.uid;
            let pod = pod_plan.go.iter().find(|pod| pod.reference.uid == uid);
            if pod.is_some_and(|pod| budget_blocker(pod, budgets).is_none()) {
                debug!(pod = %waiting.pod, "no disruption budget blocks the pod any more");
                self.schedule.retry_at_once(waiting);
            }
        }
    }

    /// Records on the node which pods remain while it is drained, if that has changed and not too often.
    async fn say_who_remains(
        &self,
        stored: &StoredNode,
        record: &Record,
        remaining: &Remaining,
    ) -> Result<StepResult, RequestError> {
        // Who is left was said at the beginning, and a process that has just started was refused nothing
        // yet. What was left at a deadline stays written down.
        let Some(why) = remaining.summary().filter(|_| !remaining.held.is_empty()) else {
            return Ok(StepResult::Done);
        };
        if record.forced || record.why.as_ref() == Some(&why) {
            return Ok(StepResult::Done);
        }
        let now = Instant::now();
        let is_due = self.update_retry_state(&stored.node.name, |retry_state| {
            let is_due = retry_state.waits.is_none_or(|at| now >= at + SAID_AGAIN);
            if is_due {
                retry_state.waits = Some(now);
            }
            is_due
        });
        if !is_due {
            return Ok(StepResult::Done);
        }
        let report = Report::Waits(Arc::clone(&why));
        let record = Record { why: Some(why), ..record.clone() };
        self.write(stored, Change { report, ..Change::note(record) }).await?;
        Ok(StepResult::Done)
    }

    /// Ends a drain that has nothing left to evict. What the policy protects is no part of it, unless
    /// the policy says so.
    async fn finish(
        &self,
        stored: &StoredNode,
        policy: &Policy,
        record: Record,
        pod_plan: &PodPlan,
    ) -> Result<StepResult, RequestError> {
        let protected = pod_plan.lasting();
        if policy.undrainable != Undrainable::DrainRest && !protected.is_empty() {
            return self.hold(stored, policy, record, &protected).await;
        }
        let left = Remaining::of(pod_plan, &AHashMap::new(), &[]).summary();
        let record = Record {
            phase: DrainPhase::Drained,
            forced: false,
            overran: false,
            ended: Some(second_of(self.facts.clock.now())),
            next: None,
            why: left.clone(),
            ..record
        };
        self.drains.reporter.report_blockers(&protected);
        let report = Report::Drained { cause: "evicted", left };
        self.write(stored, Change { report, ..Change::note(record) }).await
    }

    /// How long to wait until the pods of a node are listed again: each one that goes asks for it.
    pub(super) fn too_soon(&self, name: &NodeName) -> Option<Duration> {
        let now = Instant::now();
        self.update_retry_state(name, |retry_state| match retry_state.listed {
            Some(at) if now < at + LIST_EVERY => Some(at + LIST_EVERY - now),
            _ => {
                retry_state.listed = Some(now);
                None
            }
        })
    }

    pub(super) async fn expire(
        &self,
        stored: &StoredNode,
        policy: &Policy,
        record: Record,
    ) -> Result<StepResult, RequestError> {
        let node = &stored.node;
        let pod_plan = self.plan_pods(node, policy).await?;
        if pod_plan.is_drained() {
            return self.finish(stored, policy, record, &pod_plan).await;
        }
        let now = second_of(self.facts.clock.now());
        if let Some(record) = self.extended(node, &record, now) {
            let result = self.write(stored, Change::note(record.clone())).await?;
            self.drains.node_budget.lock().begun_again(&record);
            return Ok(result);
        }
        let remaining = self
            .remaining(&pod_plan, &self.schedule.backlog.on(&node.name, CauseKind::Drain))
            .await;
        let left = brief(&left(&pod_plan, &remaining));
        if policy.at_deadline == AtDeadline::DeleteRest && !record.forced {
            warn!(node = %node.name, %left, "the drain's deadline has passed; deleting the remaining pods");
            let record = Record {
                forced: true,
                deadline: Some(later(
                    now,
                    policy.counted_grace(pod_plan.longest_grace()).saturating_add(policy.headroom),
                )),
                why: Some(left),
                ..record
            };
            return self.write(stored, Change::note(record)).await;
        }
        self.schedule.cancel_all_for_drain(&node.name);
        let lifts = policy.at_deadline == AtDeadline::Uncordon && record.cordon == Cordon::Ours;
        let failures = record.failures.saturating_add(1);
        let retry = Backoff { first: policy.retry.first, most: policy.retry.most };
        let who = self.retry_states.hasher().hash_one(&node.name);
        let next = (failures < policy.retry.attempts)
            .then(|| second_from(later(self.facts.clock.now(), retry.pause(failures, who.into()))));
        let record = Record {
            phase: DrainPhase::Failed,
            cordon: if lifts { Cordon::Lifted } else { record.cordon },
            ended: Some(now),
            failures,
            next,
            why: Some(Arc::clone(&left)),
            forced: false,
            overran: pod_plan.has_overrun(policy.counted_grace(Duration::MAX), now),
            ..record
        };
        let change = Change {
            record: Some(record),
            unschedulable: lifts.then_some(false),
            retry_taken: false,
            report: Report::Failed { cause: "deadline", why: left },
        };
        self.write(stored, change).await
    }

    /// Gives a drain its time once more if nothing of what is left had its chance: if this process has not
    /// been at it for half of its time, or since a pause ended that held its evictions.
    pub(super) fn extended(&self, node: &Node, record: &Record, now: Timestamp) -> Option<Record> {
        let span = match (record.started, record.deadline) {
            (Some(started), Some(deadline)) => deadline.duration_since(started),
            _ => return None,
        };
        let span = Duration::try_from(span).ok()?;
        let resumed = self.pauses.last().map(second_of);
        if let Some(resumed) =
            resumed.filter(|resumed| record.started.is_some_and(|at| at < *resumed))
            && now < later(resumed, span)
        {
            info!(node = %node.name, ?span, %resumed, "the drain was paused; starting its time again");
            let (started, deadline) = (Some(resumed), Some(later(resumed, span)));
            return Some(Record { started, deadline, ..record.clone() });
        }
        let continued = self.update_retry_state(&node.name, |retry_state| {
            let (session, since) = retry_state.continued.as_ref()?;
            (**session == *record.session).then(|| since.elapsed())
        });
        if record.extended || continued.is_some_and(|continued| continued >= span / 2) {
            return None;
        }
        warn!(node = %node.name, ?span, "the drain's deadline passed while no leader was working; \
            starting its time again");
        let (started, deadline) = (Some(now), Some(later(now, span)));
        Some(Record { started, deadline, extended: true, ..record.clone() })
    }
}

/// What a drain has left at its deadline, in one line.
fn left(pod_plan: &PodPlan, remaining: &Remaining) -> String {
    const NAMED: usize = 3;
    let pods: Vec<_> = pod_plan.go.iter().chain(&pod_plan.going).collect();
    let named: Vec<String> = pods.iter().take(NAMED).map(|pod| pod.reference.to_string()).collect();
    let count = pods.len() + pod_plan.unknown.len();
    let why = remaining.summary().map(|why| format!("; {why}")).unwrap_or_default();
    let pods = if count == 1 { "1 pod is".to_owned() } else { format!("{count} pods are") };
    format!("{pods} not gone: {}{why}", named.join(", "))
}
