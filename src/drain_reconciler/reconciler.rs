//! Executes steps of cordons and drains, one after the other for each node.

use std::sync::Arc;
use std::time::Duration;

use ahash::RandomState;
use dashmap::DashMap;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use restraint::Restraints;

use super::{DrainRules, Drains, evicts};
use crate::backoff::Backoff;
use crate::cluster::{Api, OwnerLookup, RequestError, StoredNode};
use crate::drain::{Action, Change, PodPlan, Policy, Step};
use crate::evict::{Pauses, Schedule};
use crate::informer::Facts;
use crate::model::{Budget, Node, NodeName};
use crate::pipeline::{Fired, Outcome, Runner};
use crate::shared_reads::SharedReads;

mod look;
mod plan;
mod restraint;
mod stored;
mod under_way;
mod write;

/// Nodes that are worked on at the same time. Each holds a connection or two.
const AT_ONCE: usize = 16;
/// Steps that follow one another without looking at the queue. A node takes four at most.
const IN_A_ROW: usize = 12;
/// A node that is refused by a cap asks again after this; nothing is requested for it.
const UNTIL_ROOM: Duration = Duration::from_secs(1);
/// A node whose step is held by a pause asks again after this; nothing is requested for it.
const UNTIL_RESUMED: Duration = Duration::from_secs(1);
/// Pause between failed attempts of a step.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(250), most: Duration::from_secs(30) };

/// Carries out steps of drains. Clones share everything.
#[derive(Clone)]
pub(crate) struct DrainReconciler {
    facts: Arc<Facts>,
    schedule: Arc<Schedule>,
    drains: Arc<Drains>,
    pauses: Arc<Pauses>,
    api: Api,
    owners: Arc<OwnerLookup>,
    /// The budgets of all namespaces.
    budgets: Arc<SharedReads<(), BudgetsRead>>,
    /// What was found of a node's pods, by node, while its steps meet conflicts. A write then follows
    /// its read at once: otherwise a node that others write to all the time is never cordoned.
    pod_plans: Arc<DashMap<NodeName, PlannedPods, RandomState>>,
    /// Refusals in a row, and what else is known of a drain, by node.
    retry_states: Arc<DashMap<NodeName, RetryState, RandomState>>,
    /// What bounds the writes to a node, by its name. It lasts longer than its retry state: whoever undoes
    /// each write ends those.
    restraints: Arc<DashMap<NodeName, Restraints, RandomState>>,
    /// Names sessions.
    sessions: Arc<Mutex<StdRng>>,
}

#[derive(Clone, Debug, Default)]
struct RetryState {
    /// How often it could not be drained, and why it could not the last time.
    blocked: u32,
    why: Option<Arc<str>>,
    /// Until when its pods are not evaluated again, since it could not be drained. What else is to be
    /// done about the node does not wait for that.
    undrainable_until: Option<Instant>,
    capped: bool,
    /// The drain that this process is executing, and since when.
    continued: Option<(Arc<str>, Instant)>,
    /// When it was said last who remains on it.
    waits: Option<Instant>,
    /// When its pods were listed last while it was drained.
    listed: Option<Instant>,
}

/// What was found of a node's pods.
struct PlannedPods {
    at: Instant,
    policy: Arc<str>,
    pod_plan: PodPlan,
}

/// What a list of all budgets gave.
type BudgetsRead = Result<Arc<[Budget]>, RequestError>;

/// The result of a step.
#[allow(clippy::large_enum_variant, reason = "it lives for one step")]
enum StepResult {
    /// Continue with the node as it is stored now.
    Continue(StoredNode),
    /// There is nothing to do until something changes.
    Done,
    /// Retry after this pause.
    RetryAfter(Duration),
    /// The same, and it counts as a failure: others write to the node all the time.
    Busy(Duration),
}

/// Works on nodes until `stop`, once all nodes and pods are `known`: before that no cap could be
/// told, and no record of a drain be missed.
pub(crate) async fn run(
    reconciler: DrainReconciler,
    known: [CancellationToken; 2],
    stop: CancellationToken,
    runner: Runner,
) {
    for known in known {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = known.cancelled() => {}
        }
    }
    let queue = Arc::clone(&reconciler.drains.due);
    let work = move |fired: &Fired<NodeName, ()>| {
        let (reconciler, name, failures) = (reconciler.clone(), fired.key.clone(), fired.failures);
        async move { Box::pin(reconciler.advance(&name, failures)).await }
    };
    runner.run_due("drain", queue, AT_ONCE, stop, work).await;
}

impl DrainReconciler {
    /// One whose jitter and sessions are a function of `seed`.
    pub(crate) fn new(
        facts: Arc<Facts>,
        schedule: Arc<Schedule>,
        drains: Arc<Drains>,
        pauses: Arc<Pauses>,
        api: Api,
        seed: u128,
    ) -> Self {
        let owners = Arc::new(OwnerLookup::new(api.clone()));
        let budgets = Arc::new(SharedReads::new(under_way::BUDGETS_FRESH));
        let pod_plans = Arc::default();
        let mut sessions = StdRng::from_seed(wide(seed));
        // The pauses of a node are told from those of others by this hash.
        let [a, b, c, d] = sessions.random();
        let retry_states = Arc::new(DashMap::with_hasher(RandomState::with_seeds(a, b, c, d)));
        let sessions = Arc::new(Mutex::new(sessions));
        Self {
            facts,
            schedule,
            drains,
            pauses,
            api,
            owners,
            budgets,
            pod_plans,
            retry_states,
            restraints: Arc::default(),
            sessions,
        }
    }

    /// A name for a session that no other has.
    fn session(&self) -> Arc<str> {
        format!("{:016x}", self.sessions.lock().random::<u64>()).into()
    }

    /// Brings a node as far as it goes now, after so many failed attempts in a row.
    async fn advance(&self, name: &NodeName, failures: u32) -> Outcome<()> {
        let attempts = failures + 1;
        match Box::pin(self.steps(name, attempts)).await {
            Ok(StepResult::RetryAfter(pause)) => again(pause, failures),
            Ok(StepResult::Busy(pause)) => again(pause, attempts),
            Ok(StepResult::Continue(_) | StepResult::Done) => Outcome::Done,
            Err(error) => {
                let who = self.retry_states.hasher().hash_one(name);
                let pause = BACKOFF.pause(attempts, who.into());
                if attempts == 1 {
                    warn!(node = %name, %error, ?pause, "a step of the node's drain failed; \
                        retrying until it succeeds");
                } else {
                    debug!(node = %name, %error, attempts, ?pause, "a step failed again");
                }
                again(pause, attempts)
            }
        }
    }

    fn update_retry_state<T>(
        &self,
        name: &NodeName,
        change: impl FnOnce(&mut RetryState) -> T,
    ) -> T {
        change(&mut self.retry_states.entry(name.clone()).or_default())
    }

    #[allow(clippy::too_many_lines, reason = "one step after the other")]
    async fn steps(&self, name: &NodeName, attempts: u32) -> Result<StepResult, RequestError> {
        let Some((known, _)) = self.facts.view.node_alone(name) else {
            self.retry_states.remove(name);
            self.restraints.remove(name);
            self.pod_plans.remove(name);
            return Ok(StepResult::Done);
        };
        // By what is known nothing may be requested at all: most nodes that wait for a cap end here.
        let rules = self.drains.rules();
        match self.drains.step(&rules, &known, self.facts.clock.now()) {
            Step::Rest | Step::Wait(_) => {
                self.drains.node_budget.lock().withdraw(name);
                return Ok(StepResult::Done);
            }
            Step::Action(action) if self.is_paused(&action) => {
                return Ok(StepResult::RetryAfter(UNTIL_RESUMED));
            }
            Step::Action(action @ Action::Begin { .. }) => {
                let policy = rules.policy(action.policy());
                if !policy.is_some_and(|policy| self.is_granted(&known, policy)) {
                    return Ok(StepResult::RetryAfter(UNTIL_ROOM));
                }
            }
            Step::Action(Action::Schedule(_)) if self.is_undrainable(name) => {
                return Ok(StepResult::Done);
            }
            Step::Action(action) => {
                if let Some(pause) = self.restrained(name, &action) {
                    return Ok(StepResult::RetryAfter(pause));
                }
            }
        }
        let Some(mut stored) = self.api.stored_node(name, &self.drains.watched()).await? else {
            self.drains.node_budget.lock().give_back(name);
            return Ok(StepResult::Done);
        };
        for _ in 0..IN_A_ROW {
            self.facts.see_node(&mut stored.node);
            self.drains.settle(&stored.node, self.facts.clock.now());
            let rules = self.drains.rules();
            let step = self.drains.step(&rules, &stored.node, self.facts.clock.now());
            if !evicts(&step) {
                self.schedule.cancel_all_for_drain(name);
            }
            let Step::Action(action) = step else {
                let mut node_budget = self.drains.node_budget.lock();
                // The view may not know yet that it waits for nothing any more, and once it does
                // nobody asks.
                node_budget.withdraw(name);
                // A grant that was made use of counts until the watch shows it.
                if !is_unschedulable(&stored.node) {
                    node_budget.give_back(name);
                    self.retry_states.remove(name);
                }
                return Ok(StepResult::Done);
            };
            if self.is_paused(&action) {
                return Ok(StepResult::RetryAfter(UNTIL_RESUMED));
            }
            if let Some(pause) = self.restrained(name, &action) {
                return Ok(StepResult::RetryAfter(pause));
            }
            let what = action_name(&action);
            let counts = action.clone();
            let result = self.execute(&rules, &stored, action).await;
            if matches!(result, Ok(StepResult::Continue(_))) {
                let now = Instant::now();
                let mut restraints = self.restraints.entry(name.clone()).or_default();
                if let Some(restraint) = restraints.on(&counts) {
                    restraint.count(now);
                }
            }
            let is_conflict =
                matches!(&result, Err(RequestError::Status(answer)) if answer.is_conflict());
            if !is_conflict {
                self.pod_plans.remove(name);
            }
            stored = match result {
                Ok(StepResult::Continue(stored)) => stored,
                Ok(result) => return Ok(result),
                // A pause began meanwhile.
                Err(RequestError::Paused) => {
                    if !is_unschedulable(&stored.node) {
                        self.drains.node_budget.lock().give_back(name);
                    }
                    return Ok(StepResult::RetryAfter(UNTIL_RESUMED));
                }
                // Someone else has written to it: look again at once.
                Err(_) if is_conflict => {
                    match self.api.stored_node(name, &self.drains.watched()).await? {
                        Some(stored) => stored,
                        None => return Ok(StepResult::Done),
                    }
                }
                Err(error) => {
                    // Only a refusal for good says that it is not cordoned by now; else the grant is
                    // used by the next try, or runs out.
                    if is_refused(&error) && !is_unschedulable(&stored.node) {
                        self.drains.node_budget.lock().give_back(name);
                    }
                    let is_beginning = self.drains.node_budget.lock().is_beginning(name);
                    // Others of the policy do not wait for the next try.
                    if is_beginning
                        && let Ok(Some(stored)) =
                            self.api.stored_node(name, &self.drains.watched()).await
                    {
                        self.drains.settle(&stored.node, self.facts.clock.now());
                    }
                    self.drains.reporter.step_failed(&stored.node, what, &error, attempts);
                    return Err(error);
                }
            };
        }
        // Somebody writes to it all the time.
        let who = self.retry_states.hasher().hash_one(name);
        Ok(StepResult::Busy(BACKOFF.pause(attempts, who.into())))
    }

    /// Whether a pause holds a step: a cordon, the start of a drain, and what happens at a deadline, which is
    /// no worse for a pause. Recovery and records are not held, and neither is a drain under way, whose
    /// evictions are held one by one.
    fn is_paused(&self, action: &Action) -> bool {
        let is_held = match action {
            Action::Begin { .. } | Action::Start(_) | Action::Expire(_) => true,
            Action::Write(change) => change.unschedulable == Some(true),
            Action::Schedule(_) | Action::Continue(_) | Action::Mark { .. } => false,
        };
        is_held && self.pauses.is_on()
    }

    /// How long a write has to wait since the node is written to too often.
    fn restrained(&self, name: &NodeName, action: &Action) -> Option<Duration> {
        let now = Instant::now();
        self.restraints.get_mut(name)?.on(action)?.pause(now)
    }

    /// Whether the caps of the policy let a node be cordoned. It is told once that it has to wait.
    fn is_granted(&self, node: &Node, policy: &Policy) -> bool {
        let Some(drain_facts) = &node.drain_facts else { return false };
        if drain_facts.unschedulable {
            return true;
        }
        let now = self.facts.clock.now();
        let granted = self.drains.node_budget.lock().grant(
            &node.name,
            drain_facts.autoscaler,
            &policy.pace.caps,
            now,
        );
        let was_capped = self.update_retry_state(&node.name, |retry_state| {
            std::mem::replace(&mut retry_state.capped, granted.is_err())
        });
        if let Err(capped) = &granted
            && !was_capped
        {
            self.drains.reporter.capped(node, capped);
        }
        granted.is_ok()
    }

    async fn execute(
        &self,
        rules: &DrainRules,
        stored: &StoredNode,
        action: Action,
    ) -> Result<StepResult, RequestError> {
        let policy = rules.policy(action.policy());
        match (action, policy) {
            (Action::Begin { claims, failures }, Some(policy)) => {
                self.begin(stored, policy, claims, failures).await
            }
            (Action::Schedule(record), Some(policy)) => self.schedule(stored, policy, record).await,
            (Action::Start(record), Some(policy)) => self.start(stored, policy, record).await,
            (Action::Continue(record), Some(policy)) => {
                self.continue_drain(stored, policy, &record).await
            }
            (Action::Expire(record), Some(policy)) => self.expire(stored, policy, record).await,
            (Action::Write(change), policy) => {
                let cordons = change.unschedulable == Some(true);
                let is_granted = |policy| self.is_granted(&stored.node, policy);
                if cordons && !policy.is_some_and(is_granted) {
                    return Ok(StepResult::RetryAfter(UNTIL_ROOM));
                }
                self.write(stored, change).await
            }
            (Action::Mark { scheduled, message }, _) => {
                self.mark(stored, scheduled, &message).await
            }
            // There is no such policy any more, and so nothing to go by.
            (_, None) => Ok(StepResult::Done),
        }
    }
}

fn is_unschedulable(node: &Node) -> bool {
    node.drain_facts.as_ref().is_some_and(|drain_facts| drain_facts.unschedulable)
}

/// Whether the server has refused, and so has not done what was asked for.
fn is_refused(error: &RequestError) -> bool {
    matches!(error, RequestError::Status(answer)
        if (400..500).contains(&answer.code) && !matches!(answer.code, 408 | 429))
}

fn action_name(action: &Action) -> &'static str {
    match action {
        Action::Begin { .. } | Action::Write(Change { unschedulable: Some(true), .. }) => "cordon",
        Action::Schedule(_) => "schedule",
        Action::Start(_) | Action::Continue(_) | Action::Expire(_) => "drain",
        Action::Write(Change { unschedulable: Some(false), .. }) => "uncordon",
        Action::Write(_) => "record",
        Action::Mark { .. } => "mark",
    }
}

fn again(pause: Duration, failures: u32) -> Outcome<()> {
    Outcome::Retry { not_before: Instant::now() + pause, value: (), failures }
}

/// As much of a seed as a generator takes.
fn wide(seed: u128) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&seed.to_le_bytes());
    bytes
}
