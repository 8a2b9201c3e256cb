//! Lists the pods of a node and determines why it cannot be drained.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{DrainReconciler, PlannedPods, StepResult};
use crate::backoff::Backoff;
use crate::cluster::{RequestError, StoredNode};
use crate::drain::{
    Blocker, Change, Cordon, DrainPhase, PodPlan, Policy, Record, Report, Undrainable, brief,
    given_back, listed, owners_needed, plan_pods,
};
use crate::model::{Budget, DrainPod, Node, NodeName, second_from};

/// Pause before it is looked again at a node that cannot be drained.
const UNTIL_DRAINABLE: Backoff =
    Backoff { first: Duration::from_secs(15), most: Duration::from_secs(60) };
/// Budgets are read once for so long: many nodes are looked at at the same time.
const BUDGETS_LAST: Duration = Duration::from_secs(1);
/// What was found of a node's pods is used again for so long if the node has changed meanwhile.
const SURVEY_LASTS: Duration = Duration::from_secs(1);

impl DrainReconciler {
    /// Leaves a node alone that the policy does not drain as it is now: our cordon is taken back if
    /// the policy wants such nodes in use, and stays otherwise.
    pub(super) async fn hold(
        &self,
        stored: &StoredNode,
        policy: &Policy,
        record: Record,
        vetoes: &[Blocker],
    ) -> Result<StepResult, RequestError> {
        let why = in_one_line(vetoes);
        let pause = self.blocked(&stored.node, &why, vetoes);
        if policy.undrainable == Undrainable::Report
            && record.cordon == Cordon::Ours
            && let Some(drain_facts) = stored.node.drain_facts.as_deref()
        {
            self.schedule.cancel_all_for_drain(&stored.node.name);
            return self.write(stored, given_back(record, drain_facts)).await;
        }
        if record.why.as_deref() == Some(&*why) && record.phase == DrainPhase::Cordoned {
            let until = Instant::now() + pause;
            self.update_retry_state(&stored.node.name, |retry_state| {
                retry_state.undrainable_until = Some(until)
            });
            return Ok(StepResult::Done);
        }
        let next = Some(second_from(self.after(pause)));
        let record =
            Record { phase: DrainPhase::Cordoned, next, why: Some(why), forced: false, ..record };
        self.write(stored, Change::note(record)).await
    }

    /// Whether a node could not be drained a short while ago.
    pub(super) fn is_undrainable(&self, name: &NodeName) -> bool {
        let until = self.update_retry_state(name, |retry_state| retry_state.undrainable_until);
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Reports why a node cannot be drained, and says when to look again.
    pub(super) fn blocked(&self, node: &Node, why: &Arc<str>, blockers: &[Blocker]) -> Duration {
        let (times, is_news) = self.update_retry_state(&node.name, |retry_state| {
            retry_state.blocked += 1;
            let is_news = retry_state.why.as_deref() != Some(why);
            retry_state.why = Some(Arc::clone(why));
            (retry_state.blocked, is_news)
        });
        // Said again with growing pauses: an hour of it is a handful of events, not a hundred.
        if is_news || times.is_power_of_two() {
            self.drains.reporter.tell(node, &Report::Held(Arc::clone(why)));
            self.drains.reporter.report_blockers(blockers);
        }
        let who = self.retry_states.hasher().hash_one(&node.name);
        UNTIL_DRAINABLE.pause(times, who.into())
    }

    /// Why the policy does not drain the node as it is now. Where it does in any case, nothing is
    /// asked: neither the list of the pods nor that of the budgets may hold a cordon back.
    pub(super) async fn vetoes(
        &self,
        node: &Node,
        policy: &Policy,
    ) -> Result<Vec<Blocker>, RequestError> {
        if policy.undrainable == Undrainable::DrainRest {
            return Ok(Vec::new());
        }
        Ok(self.plan_pods(node, policy).await?.vetoes(policy))
    }

    /// The pods of a node, sorted by what a drain does with them; and what stands in their way, if the
    /// policy goes by that.
    pub(super) async fn plan_pods(
        &self,
        node: &Node,
        policy: &Policy,
    ) -> Result<PodPlan, RequestError> {
        if let Some(known) = self.pod_plans.get(&node.name)
            && known.policy == policy.name
            && known.at.elapsed() < SURVEY_LASTS
        {
            return Ok(known.pod_plan.clone());
        }
        let at = Instant::now();
        let pods = self.list_pods_on(&node.name).await?;
        let budgets = match policy.undrainable {
            Undrainable::DrainRest => Arc::default(),
            Undrainable::Cordon | Undrainable::Report => self.budgets(BUDGETS_LAST).await?,
        };
        let pod_plan = self.sorted(pods, policy, &budgets).await;
        let known =
            PlannedPods { at, policy: Arc::clone(&policy.name), pod_plan: pod_plan.clone() };
        self.pod_plans.insert(node.name.clone(), known);
        Ok(pod_plan)
    }

    pub(super) async fn sorted(
        &self,
        pods: Vec<DrainPod>,
        policy: &Policy,
        budgets: &[Budget],
    ) -> PodPlan {
        let rules = &policy.pods;
        let needed = owners_needed(&pods, rules);
        let owners = self.owners.existence(&needed).await;
        plan_pods(pods, rules, &owners, budgets)
    }

    /// The budgets of all namespaces, no older than this. Who asks at the same time shares one answer,
    /// also a bad one.
    pub(super) async fn budgets(&self, no_older: Duration) -> Result<Arc<[Budget]>, RequestError> {
        let read = async { Ok(self.api.list_budgets().await?.into()) };
        self.budgets
            .get(&(), |last| last.begun.elapsed() < no_older || last.answer().is_none(), read)
            .await
    }
}

/// Why a node is not drained, in one line.
pub(super) fn in_one_line(vetoes: &[Blocker]) -> Arc<str> {
    brief(&listed(vetoes).unwrap_or_default())
}
