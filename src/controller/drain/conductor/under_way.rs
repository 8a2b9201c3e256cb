//! A drain from its beginning to its end.

use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use jiff::Timestamp;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::look::{cut, in_one_line};
use super::plan::whole_up;
use super::{Conductor, Went};
use crate::backoff::Backoff;
use crate::cluster::{RequestError, StoredNode};
use crate::drain::{AtDeadline, Change, Cordon, DrainPhase, News, Policy, Record, Survey, turn};
use crate::evict::Order;
use crate::model::{Node, NodeName, PodRef, Resident, later, second_of};

/// The pods of a node that is drained are listed this often at the most.
const LIST_EVERY: Duration = Duration::from_secs(1);

impl Conductor {
    pub(super) async fn start(
        &self,
        stored: &StoredNode,
        policy: &Policy,
        record: Record,
    ) -> Result<Went, RequestError> {
        let node = &stored.node;
        let survey = self.survey(node, policy).await?;
        let hindrances = survey.hindrances();
        if let Some(why) = in_one_line(&hindrances) {
            return self.hold(stored, record, why, &hindrances).await;
        }
        let now = second_of(self.shared.clock.now());
        let is_retry = record.phase == DrainPhase::Failed;
        if !is_retry {
            let begun = self.drains.ledger.lock().begin(&node.name, policy, now);
            if let Err(later) = begun {
                let scheduled = Some(whole_up(later));
                let record = Record { scheduled, ..record };
                return self.write(stored, Change::note(record)).await;
            }
        }
        let record = Record {
            phase: DrainPhase::Draining,
            scheduled: record.scheduled.filter(|_| !is_retry).or(Some(now)),
            started: Some(now),
            deadline: Some(deadline(policy, &survey, now)),
            ended: None,
            next: None,
            why: None,
            extended: false,
            ..record
        };
        self.trouble(&node.name, |troubles| (troubles.hindered, troubles.why) = (0, None));
        let change = Change { news: News::Started, retry_taken: true, ..Change::note(record) };
        self.write(stored, change).await
    }

    /// Has the pods evicted whose turn it is, and ends the drain if none is left.
    pub(super) async fn conduct(
        &self,
        stored: &StoredNode,
        policy: &Policy,
        record: &Record,
    ) -> Result<Went, RequestError> {
        let node = &stored.node;
        let (Some(started), Some(deadline)) = (record.started, record.deadline) else {
            return Ok(Went::Done);
        };
        self.trouble(&node.name, |troubles| {
            let is_known = |(session, _): &(Arc<str>, Instant)| *session == record.session;
            if !troubles.conducted.as_ref().is_some_and(is_known) {
                troubles.conducted = Some((Arc::clone(&record.session), Instant::now()));
            }
        });
        if let Some(pause) = self.too_soon(&node.name) {
            return Ok(Went::Later(pause));
        }
        // The evictor hears from the API server itself what the budgets allow.
        let pods = self.api.list_pods_on(&node.name).await?;
        let mut survey = self.sorted(pods, policy, &[]).await;
        survey.leave_later(started);
        let now = self.shared.clock.now();
        for ordered in self.shared.orders.on(&node.name) {
            // Somebody may have protected it since.
            let uid = ordered.pod.uid;
            if !survey.still_to_go().iter().any(|pod| pod.reference.uid == uid) {
                self.shared.cancel_order(&node.name, uid);
            }
        }
        if survey.is_drained() {
            return self.finish(stored, record.clone(), &survey).await;
        }
        for unknown in &survey.unknown {
            debug!(node = %node.name, error = %unknown, "a pod of the drain cannot be judged yet");
        }
        let present: Vec<_> = survey.go.iter().chain(&survey.going).collect();
        let turn = turn(&present, &policy.groups, started, deadline, now);
        let order = |grace: Option<i64>| {
            Arc::new(Order {
                node: node.name.clone(),
                policy: Arc::clone(&policy.name),
                session: Arc::clone(&record.session),
                grace,
                deadline,
                delete: record.forced,
            })
        };
        let capped = |pod: &Resident| policy.max_grace.filter(|most| pod.grace > *most);
        let graces: AHashMap<_, _> =
            survey.go.iter().map(|pod| (pod.reference.uid, capped(pod))).collect();
        // One that the view does not know yet could not be followed. It is there at the next look.
        let is_known = |pod: &PodRef| self.shared.view.pod(&pod.node, pod.uid).is_some();
        let (cut, whole): (Vec<_>, Vec<_>) = turn
            .evict
            .into_iter()
            .filter(is_known)
            .partition(|pod| graces.get(&pod.uid).copied().flatten().is_some());
        self.shared.order_evictions(&whole, &order(None));
        if let Some(most) = policy.max_grace
            && !cut.is_empty()
        {
            let seconds = i64::try_from(most.as_secs()).unwrap_or(i64::MAX);
            self.drains.reporter.grace_cut(node, cut.len(), most);
            self.shared.order_evictions(&cut, &order(Some(seconds)));
        }
        Ok(Went::Done)
    }

    /// Ends a drain that has nothing left to evict.
    async fn finish(
        &self,
        stored: &StoredNode,
        record: Record,
        survey: &Survey,
    ) -> Result<Went, RequestError> {
        let hindrances = survey.lasting();
        if let Some(why) = in_one_line(&hindrances) {
            return self.hold(stored, record, why, &hindrances).await;
        }
        let record = Record {
            phase: DrainPhase::Drained,
            ended: Some(second_of(self.shared.clock.now())),
            next: None,
            why: None,
            ..record
        };
        let news = News::Drained { cause: "evicted" };
        self.write(stored, Change { news, ..Change::note(record) }).await
    }

    /// How long to wait until the pods of a node are listed again: each one that goes asks for it.
    pub(super) fn too_soon(&self, name: &NodeName) -> Option<Duration> {
        let now = Instant::now();
        self.trouble(name, |troubles| match troubles.listed {
            Some(at) if now < at + LIST_EVERY => Some(at + LIST_EVERY - now),
            _ => {
                troubles.listed = Some(now);
                None
            }
        })
    }

    pub(super) async fn expire(
        &self,
        stored: &StoredNode,
        policy: &Policy,
        record: Record,
    ) -> Result<Went, RequestError> {
        let node = &stored.node;
        let survey = self.survey(node, policy).await?;
        if survey.is_drained() {
            return self.finish(stored, record, &survey).await;
        }
        let now = second_of(self.shared.clock.now());
        if let Some(record) = self.extended(node, &record, now) {
            return self.write(stored, Change::note(record)).await;
        }
        let left: Arc<str> = cut(&left(&survey));
        if policy.at_deadline == AtDeadline::DeleteRest && !record.forced {
            warn!(node = %node.name, %left, "the drain's deadline is over; what is left is deleted");
            let record = Record {
                forced: true,
                deadline: Some(later(now, survey.longest_grace() + policy.headroom)),
                why: Some(left),
                ..record
            };
            return self.write(stored, Change::note(record)).await;
        }
        self.shared.cancel_orders(&node.name);
        let lifts = policy.at_deadline == AtDeadline::Uncordon && record.cordon == Cordon::Ours;
        let failures = record.failures.saturating_add(1);
        let retry = Backoff { first: policy.retry.first, most: policy.retry.most };
        let who = self.troubles.hasher().hash_one(&node.name);
        let next = (failures < policy.retry.attempts)
            .then(|| second_of(later(now, retry.pause(failures, who.into()))));
        let record = Record {
            phase: DrainPhase::Failed,
            cordon: if lifts { Cordon::Lifted } else { record.cordon },
            ended: Some(now),
            failures,
            next,
            why: Some(Arc::clone(&left)),
            forced: false,
            ..record
        };
        let change = Change {
            record: Some(record),
            unschedulable: lifts.then_some(false),
            retry_taken: false,
            news: News::Failed { cause: "deadline", why: left },
        };
        self.write(stored, change).await
    }

    /// Gives a drain its time once more if this process has not been at it for half of it: nothing
    /// of what is left had its chance.
    pub(super) fn extended(&self, node: &Node, record: &Record, now: Timestamp) -> Option<Record> {
        let span = match (record.started, record.deadline) {
            (Some(started), Some(deadline)) => deadline.duration_since(started),
            _ => return None,
        };
        let span = Duration::try_from(span).ok()?;
        let conducted = self.trouble(&node.name, |troubles| {
            let (session, since) = troubles.conducted.as_ref()?;
            (**session == *record.session).then(|| since.elapsed())
        });
        if record.extended || conducted.is_some_and(|conducted| conducted >= span / 2) {
            return None;
        }
        warn!(node = %node.name, ?span, "the drain's deadline is over, but nobody was at it; it is \
            given its time once more");
        let (started, deadline) = (Some(now), Some(later(now, span)));
        Some(Record { started, deadline, extended: true, ..record.clone() })
    }
}

/// What a drain has left, in one line.
fn left(survey: &Survey) -> String {
    const NAMED: usize = 3;
    let pods: Vec<_> = survey.go.iter().chain(&survey.going).collect();
    let named: Vec<String> = pods.iter().take(NAMED).map(|pod| pod.reference.to_string()).collect();
    let obstacles: Vec<String> = survey
        .obstacles
        .iter()
        .take(NAMED)
        .map(|(pod, obstacle)| format!("{pod}: {obstacle}"))
        .collect();
    let count = pods.len() + survey.unknown.len();
    if obstacles.is_empty() {
        format!("{count} pods are left: {}", named.join(", "))
    } else {
        format!("{count} pods are left: {}; {}", named.join(", "), obstacles.join("; "))
    }
}

fn deadline(policy: &Policy, survey: &Survey, now: Timestamp) -> Timestamp {
    let grace = policy.max_grace.unwrap_or_else(|| survey.longest_grace());
    later(now, policy.deadline.unwrap_or(grace + policy.headroom))
}
