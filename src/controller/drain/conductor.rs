//! One step after the other for each node about which something is to be done.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use ahash::{AHashMap, RandomState};
use dashmap::DashMap;
use futures::FutureExt;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error, warn};

use super::{Drains, evicts};
use crate::backoff::Backoff;
use crate::cluster::{Api, OwnerLookup, RequestError, StoredNode, UpkeepPatch};
use crate::controller::state::Shared;
use crate::drain::{
    Act, AtDeadline, Change, Claim, Cordon, DrainPhase, Hindrance, News, Policy, Record, Step,
    Survey, Undrainable, owners_needed, survey, turn,
};
use crate::evict::Order;
use crate::model::{Budget, ConditionStatus, Node, NodeName, PodRef, Resident};
use crate::pipeline::Outcome;

/// Nodes that are worked on at the same time. Each holds a connection or two.
const AT_ONCE: usize = 16;
/// Steps that follow one another without looking at the queue. A node takes four at most.
const IN_A_ROW: usize = 12;
/// A node that is refused by a cap asks again after this; nothing is requested for it.
const UNTIL_ROOM: Duration = Duration::from_secs(1);
/// Pause before it is looked again at a node that cannot be drained.
const UNTIL_DRAINABLE: Backoff =
    Backoff { first: Duration::from_secs(15), most: Duration::from_secs(60) };
/// Pause between failed tries of a step.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(250), most: Duration::from_secs(30) };
/// Pause after a step that panicked.
const AFTER_PANIC: Duration = Duration::from_secs(10);
/// The pods of a node that is drained are listed this often at the most.
const LIST_EVERY: Duration = Duration::from_secs(1);
/// Budgets are read once for so long: many nodes are looked at at the same time.
const BUDGETS_LAST: Duration = Duration::from_secs(1);
/// What was found of a node's pods is used again for so long if the node has changed meanwhile.
const SURVEY_LASTS: Duration = Duration::from_secs(1);
/// Carries out steps of drains. Clones share everything.
#[derive(Clone)]
pub(in crate::controller) struct Conductor {
    shared: Arc<Shared>,
    drains: Arc<Drains>,
    api: Api,
    owners: Arc<OwnerLookup>,
    budgets: Arc<Mutex<Option<AskedBudgets>>>,
    /// What was found of a node's pods, by node, while its steps meet conflicts. A write then follows
    /// its read at once: otherwise a node that others write to all the time is never cordoned.
    surveys: Arc<DashMap<NodeName, Surveyed, RandomState>>,
    /// Failed tries in a row, and refusals in a row, by node.
    troubles: Arc<DashMap<NodeName, Troubles, RandomState>>,
}

/// When the budgets of all namespaces were asked for, and the answer.
type AskedBudgets = (Instant, Arc<OnceCell<Result<Arc<[Budget]>, RequestError>>>);

#[derive(Clone, Debug, Default)]
struct Troubles {
    failures: u32,
    /// How often it could not be drained, and why it could not the last time.
    hindered: u32,
    why: Option<Arc<str>>,
    capped: bool,
    /// The drain that this process is at, and since when.
    conducted: Option<(Arc<str>, Instant)>,
    /// When its pods were listed last while it was drained.
    listed: Option<Instant>,
}

/// What was found of a node's pods.
struct Surveyed {
    at: Instant,
    policy: Arc<str>,
    survey: Survey,
}

/// How a step went.
enum Went {
    /// The node is now like this; go on from there.
    On(StoredNode),
    /// Nothing more is to be done until something happens.
    Done,
    /// Try again after this pause.
    Later(Duration),
}

/// Works on nodes until `stop`, once all nodes and pods are `known`: before that no cap could be
/// told, and no record of a drain be missed.
pub(in crate::controller) async fn run(
    conductor: Conductor,
    known: [CancellationToken; 2],
    stop: CancellationToken,
    tasks: TaskTracker,
) {
    for known in known {
        tokio::select! {
            () = stop.cancelled() => return,
            () = known.cancelled() => {}
        }
    }
    let slots = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let fired = tokio::select! {
            () = stop.cancelled() => return,
            fired = conductor.drains.due.next() => fired,
        };
        let slot = tokio::select! {
            () = stop.cancelled() => return,
            slot = Arc::clone(&slots).acquire_owned() => slot,
        };
        let Ok(slot) = slot else { return };
        let conductor = conductor.clone();
        tasks.spawn(async move {
            let advance = AssertUnwindSafe(conductor.advance(&fired.key));
            let outcome = advance.catch_unwind().await.unwrap_or_else(|_| {
                error!(node = %fired.key, "a step of the node's drain panicked; it will be tried again");
                again(AFTER_PANIC)
            });
            conductor.drains.due.complete(&fired.key, fired.token, outcome);
            drop(slot);
        });
    }
}

impl Conductor {
    pub(in crate::controller) fn new(shared: Arc<Shared>, drains: Arc<Drains>, api: Api) -> Self {
        let owners = Arc::new(OwnerLookup::new(api.clone()));
        let (budgets, surveys, troubles) = <(Arc<_>, Arc<_>, Arc<_>)>::default();
        Self { shared, drains, api, owners, budgets, surveys, troubles }
    }

    /// Brings a node as far as it goes now.
    async fn advance(&self, name: &NodeName) -> Outcome<()> {
        match self.steps(name).await {
            Ok(Went::Later(pause)) => again(pause),
            Ok(Went::On(_) | Went::Done) => {
                self.trouble(name, |troubles| troubles.failures = 0);
                Outcome::Done
            }
            Err(error) => {
                let tries = self.trouble(name, |troubles| {
                    troubles.failures += 1;
                    troubles.failures
                });
                let who = self.troubles.hasher().hash_one(name);
                let pause = BACKOFF.pause(tries, who.into());
                if tries == 1 {
                    warn!(node = %name, %error, ?pause, "a step of the node's drain failed; it \
                        will be tried again until it succeeds");
                } else {
                    debug!(node = %name, %error, tries, ?pause, "a step failed again");
                }
                again(pause)
            }
        }
    }

    fn trouble<T>(&self, name: &NodeName, change: impl FnOnce(&mut Troubles) -> T) -> T {
        change(&mut self.troubles.entry(name.clone()).or_default())
    }

    async fn steps(&self, name: &NodeName) -> Result<Went, RequestError> {
        let Some((known, _)) = self.shared.view.node_alone(name) else {
            self.troubles.remove(name);
            self.surveys.remove(name);
            return Ok(Went::Done);
        };
        // By what is known nothing may be requested at all: most nodes that wait for a cap end here.
        match self.drains.step(&known, self.shared.clock.now()) {
            Step::Rest | Step::Wait(_) => {
                self.drains.ledger.lock().withdraw(name);
                return Ok(Went::Done);
            }
            Step::Act(Act::Begin { claims, .. }) => {
                if !self.is_granted(&known, &claims) {
                    return Ok(Went::Later(UNTIL_ROOM));
                }
            }
            Step::Act(_) => {}
        }
        let Some(mut stored) = self.api.stored_node(name, &self.drains.watched).await? else {
            self.drains.ledger.lock().give_back(name);
            return Ok(Went::Done);
        };
        for _ in 0..IN_A_ROW {
            let step = self.drains.step(&stored.node, self.shared.clock.now());
            if !evicts(&step) {
                self.shared.cancel_orders(name);
            }
            let Step::Act(act) = step else {
                // A grant that was made use of counts until the watch shows it.
                if !is_unschedulable(&stored.node) {
                    self.drains.ledger.lock().give_back(name);
                    self.troubles.remove(name);
                }
                return Ok(Went::Done);
            };
            let what = act_name(&act);
            let went = self.act(&stored, act).await;
            let is_conflict =
                matches!(&went, Err(RequestError::Status(answer)) if answer.code == 409);
            if !is_conflict {
                self.surveys.remove(name);
            }
            stored = match went {
                Ok(Went::On(stored)) => stored,
                Ok(went) => return Ok(went),
                // Somebody else has written to it: look again at once.
                Err(_) if is_conflict => {
                    match self.api.stored_node(name, &self.drains.watched).await? {
                        Some(stored) => stored,
                        None => return Ok(Went::Done),
                    }
                }
                Err(error) => {
                    // Only a refusal for good says that it is not cordoned by now; else the grant is
                    // used by the next try, or runs out.
                    if is_refused(&error) && !is_unschedulable(&stored.node) {
                        self.drains.ledger.lock().give_back(name);
                    }
                    self.drains.reporter.step_failed(&stored.node, what, &error.to_string());
                    return Err(error);
                }
            };
        }
        Ok(Went::Later(BACKOFF.first))
    }

    /// Whether the caps let a node be cordoned. It is told once that it has to wait.
    fn is_granted(&self, node: &Node, claims: &[Claim]) -> bool {
        let Some(upkeep) = &node.upkeep else { return false };
        let Some(policy) = claims.first().and_then(|claim| self.drains.policy(&claim.policy))
        else {
            return false;
        };
        if upkeep.unschedulable {
            return true;
        }
        let now = self.shared.clock.now();
        let granted =
            self.drains.ledger.lock().grant(&node.name, upkeep.autoscaler, &policy.pace.caps, now);
        let was_capped = self.trouble(&node.name, |troubles| {
            std::mem::replace(&mut troubles.capped, granted.is_err())
        });
        if let Err(capped) = &granted
            && !was_capped
        {
            self.drains.reporter.capped(node, capped);
        }
        granted.is_ok()
    }

    async fn act(&self, stored: &StoredNode, act: Act) -> Result<Went, RequestError> {
        match act {
            Act::Begin { claims, failures } => self.begin(stored, claims, failures).await,
            Act::Schedule(record) => self.schedule(stored, record).await,
            Act::Start(record) => self.start(stored, record).await,
            Act::Conduct(record) => self.conduct(stored, &record).await,
            Act::Expire(record) => self.expire(stored, record).await,
            Act::Write(change) => self.write(stored, change).await,
            Act::Mark { scheduled, message } => {
                let now = self.shared.clock.now();
                let watched = &self.drains.watched;
                let marked = self
                    .api
                    .mark_scheduled(&stored.node, scheduled, &message, now, watched)
                    .await?;
                Ok(Went::On(marked))
            }
        }
    }

    async fn begin(
        &self,
        stored: &StoredNode,
        claims: Vec<Claim>,
        failures: u32,
    ) -> Result<Went, RequestError> {
        let node = &stored.node;
        let Some(policy) = claims.first().and_then(|claim| self.drains.policy(&claim.policy))
        else {
            return Ok(Went::Done);
        };
        if !self.is_granted(node, &claims) {
            return Ok(Went::Later(UNTIL_ROOM));
        }
        let is_foreign = is_unschedulable(node);
        let cordon = if is_foreign { Cordon::Foreign } else { Cordon::Ours };
        let mut record = Record::new(session(), cordon, claims);
        record.failures = failures;
        let mut scheduled = None;
        if policy.drain && node.ready.status != ConditionStatus::Unknown {
            let hindrances = self.survey(node, policy).await?.hindrances();
            match in_one_line(&hindrances) {
                None => scheduled = Some(self.slot(&node.name, policy)),
                Some(why) => {
                    let pause = self.hindered(node, &why, &hindrances);
                    if !is_foreign && policy.undrainable == Undrainable::Report {
                        let mut ledger = self.drains.ledger.lock();
                        ledger.give_back(&node.name);
                        ledger.withdraw(&node.name);
                        return Ok(Went::Later(pause));
                    }
                    record.next = Some(whole(self.after(pause)));
                    record.why = Some(why);
                }
            }
        }
        if let Some(at) = scheduled {
            record.phase = DrainPhase::Scheduled;
            record.scheduled = Some(at);
        }
        let news = if is_foreign { News::None } else { News::Cordoned };
        if !is_foreign {
            self.drains.reporter.cordoning(node);
        }
        let change = Change {
            record: Some(record),
            unschedulable: (!is_foreign).then_some(true),
            retry_taken: false,
            news,
        };
        let went = self.write(stored, change).await?;
        if let Some(at) = scheduled {
            self.drains.reporter.tell(node, &News::Scheduled(at));
        }
        Ok(went)
    }

    async fn schedule(&self, stored: &StoredNode, record: Record) -> Result<Went, RequestError> {
        let node = &stored.node;
        let Some(policy) = self.drains.policy(record.policy()) else { return Ok(Went::Done) };
        let hindrances = self.survey(node, policy).await?.hindrances();
        if let Some(why) = in_one_line(&hindrances) {
            return self.hold(stored, record, why, &hindrances).await;
        }
        let at = self.slot(&node.name, policy);
        let record = Record {
            phase: DrainPhase::Scheduled,
            scheduled: Some(at),
            next: None,
            why: None,
            ..record
        };
        self.write(stored, Change { news: News::Scheduled(at), ..Change::note(record) }).await
    }

    async fn start(&self, stored: &StoredNode, record: Record) -> Result<Went, RequestError> {
        let node = &stored.node;
        let Some(policy) = self.drains.policy(record.policy()) else { return Ok(Went::Done) };
        let survey = self.survey(node, policy).await?;
        let hindrances = survey.hindrances();
        if let Some(why) = in_one_line(&hindrances) {
            return self.hold(stored, record, why, &hindrances).await;
        }
        let now = whole(self.shared.clock.now());
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
    async fn conduct(&self, stored: &StoredNode, record: &Record) -> Result<Went, RequestError> {
        let node = &stored.node;
        let Some(policy) = self.drains.policy(record.policy()) else { return Ok(Went::Done) };
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
            let hindrances = survey.lasting();
            if let Some(why) = in_one_line(&hindrances) {
                return self.hold(stored, record.clone(), why, &hindrances).await;
            }
            let record = Record {
                phase: DrainPhase::Drained,
                ended: Some(whole(now)),
                next: None,
                why: None,
                ..record.clone()
            };
            let news = News::Drained { cause: "evicted" };
            return self.write(stored, Change { news, ..Change::note(record) }).await;
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

    /// How long to wait until the pods of a node are listed again: each one that goes asks for it.
    fn too_soon(&self, name: &NodeName) -> Option<Duration> {
        let now = Instant::now();
        self.trouble(name, |troubles| match troubles.listed {
            Some(at) if now < at + LIST_EVERY => Some(at + LIST_EVERY - now),
            _ => {
                troubles.listed = Some(now);
                None
            }
        })
    }

    async fn expire(&self, stored: &StoredNode, record: Record) -> Result<Went, RequestError> {
        let node = &stored.node;
        let Some(policy) = self.drains.policy(record.policy()) else { return Ok(Went::Done) };
        let survey = self.survey(node, policy).await?;
        if survey.is_drained() {
            return self.conduct(stored, &record).await;
        }
        let now = whole(self.shared.clock.now());
        if let Some(record) = self.extended(node, &record, now) {
            return self.write(stored, Change::note(record)).await;
        }
        let left: Arc<str> = cut(&left(&survey));
        if policy.at_deadline == AtDeadline::DeleteRest && !record.forced {
            warn!(node = %node.name, %left, "the drain's deadline is over; what is left is deleted");
            let record = Record {
                forced: true,
                deadline: Some(after(now, survey.longest_grace() + policy.headroom)),
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
            .then(|| whole(after(now, retry.pause(failures, who.into()))));
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
    fn extended(&self, node: &Node, record: &Record, now: Timestamp) -> Option<Record> {
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
        let (started, deadline) = (Some(now), Some(after(now, span)));
        Some(Record { started, deadline, extended: true, ..record.clone() })
    }

    /// Keeps a node cordoned that cannot be drained now.
    async fn hold(
        &self,
        stored: &StoredNode,
        record: Record,
        why: Arc<str>,
        hindrances: &[Hindrance],
    ) -> Result<Went, RequestError> {
        let pause = self.hindered(&stored.node, &why, hindrances);
        if record.why.as_deref() == Some(&*why) && record.phase == DrainPhase::Cordoned {
            return Ok(Went::Later(pause));
        }
        let next = Some(whole(self.after(pause)));
        let record = Record { phase: DrainPhase::Cordoned, next, why: Some(why), ..record };
        self.write(stored, Change::note(record)).await
    }

    /// Reports why a node cannot be drained, and says when to look again.
    fn hindered(&self, node: &Node, why: &Arc<str>, hindrances: &[Hindrance]) -> Duration {
        let (times, is_news) = self.trouble(&node.name, |troubles| {
            troubles.hindered += 1;
            let is_news = troubles.why.as_deref() != Some(why);
            troubles.why = Some(Arc::clone(why));
            (troubles.hindered, is_news)
        });
        // Said again with growing pauses: an hour of it is a handful of events, not a hundred.
        if is_news || times.is_power_of_two() {
            self.drains.reporter.tell(node, &News::Held(Arc::clone(why)));
            self.drains.reporter.hindering(hindrances);
        }
        let who = self.troubles.hasher().hash_one(&node.name);
        UNTIL_DRAINABLE.pause(times, who.into())
    }

    async fn write(&self, stored: &StoredNode, mut change: Change) -> Result<Went, RequestError> {
        let taints = self.taints(stored, &mut change);
        let was_ours = stored
            .node
            .upkeep
            .as_ref()
            .is_some_and(|upkeep| upkeep.draino_conditions.is_some() && is_ours(upkeep));
        let draino_conditions = match &change.record {
            Some(record) if record.cordon == Cordon::Ours => Some(Some(record.draino_conditions())),
            _ if was_ours => Some(None),
            _ => None,
        };
        let patch = UpkeepPatch {
            record: change.record.as_ref().map(Record::format),
            draino_conditions,
            unschedulable: change.unschedulable,
            retry_taken: change.retry_taken,
            taints,
        };
        let written = self.api.patch_upkeep(stored, &patch, &self.drains.watched).await?;
        self.drains.reporter.tell(&stored.node, &change.news);
        Ok(Went::On(written))
    }

    /// All taints that the node is to have, if those change: ours comes and goes with our cordon.
    fn taints(&self, stored: &StoredNode, change: &mut Change) -> Option<Vec<Value>> {
        let record = stored.node.upkeep.as_ref().and_then(|upkeep| upkeep.record.as_deref());
        let had = record.and_then(|text| Record::parse(text).ok()).and_then(|record| record.taint);
        let wanted = match &mut change.record {
            Some(record) if record.cordon == Cordon::Ours => {
                if change.unschedulable == Some(true) {
                    let policy = self.drains.policy(record.policy());
                    record.taint = policy.and_then(|policy| policy.status_taint.clone());
                }
                record.taint.clone()
            }
            Some(record) => {
                record.taint = None;
                None
            }
            None => None,
        };
        if wanted == had {
            return None;
        }
        let is_ours = |taint: &Value, key: &Option<Arc<str>>| {
            taint["effect"] == "NoSchedule" && key.as_deref().is_some_and(|key| taint["key"] == key)
        };
        let others = |taint: &&Value| !is_ours(taint, &had) && !is_ours(taint, &wanted);
        let mut taints: Vec<Value> = stored.taints.iter().filter(others).cloned().collect();
        if let Some(key) = &wanted {
            let now = whole(self.shared.clock.now());
            taints.push(json!({"key": &**key, "effect": "NoSchedule", "timeAdded": now}));
        }
        Some(taints)
    }

    /// The pods of a node, sorted by what a drain does with them.
    async fn survey(&self, node: &Node, policy: &Policy) -> Result<Survey, RequestError> {
        if let Some(known) = self.surveys.get(&node.name)
            && known.policy == policy.name
            && known.at.elapsed() < SURVEY_LASTS
        {
            return Ok(known.survey.clone());
        }
        let at = Instant::now();
        let pods = self.api.list_pods_on(&node.name).await?;
        let budgets = self.budgets().await?;
        let survey = self.sorted(pods, policy, &budgets).await;
        let known = Surveyed { at, policy: Arc::clone(&policy.name), survey: survey.clone() };
        self.surveys.insert(node.name.clone(), known);
        Ok(survey)
    }

    async fn sorted(&self, pods: Vec<Resident>, policy: &Policy, budgets: &[Budget]) -> Survey {
        let needed = owners_needed(&pods, &policy.pods);
        let owners = self.owners.existence(&needed).await;
        survey(pods, &policy.pods, &owners, budgets)
    }

    /// The budgets of all namespaces. Who asks at the same time shares one answer, also a bad one.
    async fn budgets(&self) -> Result<Arc<[Budget]>, RequestError> {
        let answer = {
            let mut asked = self.budgets.lock();
            match &*asked {
                Some((begun, answer))
                    if begun.elapsed() < BUDGETS_LAST || !answer.initialized() =>
                {
                    Arc::clone(answer)
                }
                _ => {
                    let answer = Arc::default();
                    *asked = Some((Instant::now(), Arc::clone(&answer)));
                    answer
                }
            }
        };
        answer.get_or_init(|| async { Ok(self.api.list_budgets().await?.into()) }).await.clone()
    }

    fn slot(&self, name: &NodeName, policy: &Policy) -> Timestamp {
        let slot = self.drains.ledger.lock().slot(name, policy, self.shared.clock.now());
        whole_up(slot)
    }

    fn after(&self, pause: Duration) -> Timestamp {
        after(self.shared.clock.now(), pause)
    }
}

fn is_unschedulable(node: &Node) -> bool {
    node.upkeep.as_ref().is_some_and(|upkeep| upkeep.unschedulable)
}

/// Whether the server has refused, and so has not done what was asked for.
fn is_refused(error: &RequestError) -> bool {
    matches!(error, RequestError::Status(answer)
        if (400..500).contains(&answer.code) && !matches!(answer.code, 408 | 429))
}

fn is_ours(upkeep: &crate::model::Upkeep) -> bool {
    match upkeep.record.as_deref().map(Record::parse) {
        Some(Ok(record)) => record.cordon == Cordon::Ours,
        Some(Err(_)) => false,
        // draino's own, taken over.
        None => upkeep.unschedulable,
    }
}

/// Why a node cannot be drained, in one line; `None` if it can.
fn in_one_line(all: &[Hindrance]) -> Option<Arc<str>> {
    /// More are counted only.
    const NAMED: usize = 3;
    if all.is_empty() {
        return None;
    }
    let named: Vec<String> = all.iter().take(NAMED).map(ToString::to_string).collect();
    let more = match all.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    Some(cut(&format!("{}{more}", named.join("; "))))
}

/// As much as an annotation and an event can take of somebody else's words.
fn cut(text: &str) -> Arc<str> {
    const MOST: usize = 800;
    text.chars().take(MOST).collect::<String>().into()
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
    after(now, policy.deadline.unwrap_or(grace + policy.headroom))
}

fn act_name(act: &Act) -> &'static str {
    match act {
        Act::Begin { .. } => "cordon",
        Act::Schedule(_) => "schedule",
        Act::Start(_) | Act::Conduct(_) | Act::Expire(_) => "drain",
        Act::Write(Change { unschedulable: Some(false), .. }) => "uncordon",
        Act::Write(_) => "record",
        Act::Mark { .. } => "mark",
    }
}

fn again(pause: Duration) -> Outcome<()> {
    Outcome::Retry { not_before: Instant::now() + pause, value: () }
}

fn after(moment: Timestamp, time: Duration) -> Timestamp {
    moment.saturating_add(time).unwrap_or(Timestamp::MAX)
}

/// As the API stores times: whole seconds.
fn whole(moment: Timestamp) -> Timestamp {
    Timestamp::from_second(moment.as_second()).unwrap_or(moment)
}

/// The same, and not earlier.
fn whole_up(moment: Timestamp) -> Timestamp {
    whole(after(moment, Duration::from_nanos(999_999_999)))
}

/// A name for a session that no other has.
fn session() -> Arc<str> {
    format!("{:016x}", rand::random::<u64>()).into()
}
