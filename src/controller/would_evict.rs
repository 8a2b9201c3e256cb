//! The evictor's requests in a dry run: what is read is read from the API server, what would be written is
//! recorded.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Shadowing;
use super::requests::{ApiRequests, failure};
use crate::drain::BudgetBlocker;
use crate::dry_run::{Forecast, Unwritten};
use crate::evict::{Cause, Failure, Requests};
use crate::model::{Budget, DrainPod, Node, NodeName, Pod, PodRef};
use crate::shared_reads::{Read, SharedReads};

/// Lists for forecasts are used again for so long: the pods of a node are evicted one after the other.
const LISTS_LAST: Duration = Duration::from_secs(1);

/// Records evictions in place of sending them.
pub(super) struct WouldEvict {
    requests: ApiRequests,
    unwritten: Arc<Unwritten>,
    shadowing: Option<Arc<Shadowing>>,
    forecast: Mutex<Forecast>,
    pods: SharedReads<NodeName, Listed<DrainPod>>,
    budgets: SharedReads<(), Listed<Budget>>,
}

type Listed<T> = Result<Arc<[T]>, Failure>;

impl WouldEvict {
    pub(super) fn new(
        requests: ApiRequests,
        unwritten: Arc<Unwritten>,
        shadowing: Option<Arc<Shadowing>>,
    ) -> Self {
        let (pods, budgets) = (SharedReads::new(LISTS_LAST), SharedReads::new(LISTS_LAST));
        Self { requests, unwritten, shadowing, forecast: Mutex::default(), pods, budgets }
    }

    /// The pods of a node and all budgets, as they were a short while ago at the most.
    async fn lists(&self, node: &NodeName) -> Result<(Arc<[DrainPod]>, Arc<[Budget]>), Failure> {
        let api = &self.requests.api;
        let pods = async { api.list_pods_on(node).await.map(Arc::from).map_err(failure) };
        let pods = self.pods.get(node, is_fresh, pods).await?;
        let budgets = async { api.list_budgets().await.map(Arc::from).map_err(failure) };
        let budgets = self.budgets.get(&(), is_fresh, budgets).await?;
        Ok((pods, budgets))
    }
}

fn is_fresh<T>(last: &Read<Listed<T>>) -> bool {
    last.begun.elapsed() < LISTS_LAST && last.answer().is_none_or(Result::is_ok)
}

impl Requests for WouldEvict {
    fn record(&self, pod: &PodRef, cause: &Cause) -> bool {
        match (cause, &self.shadowing) {
            (Cause::Drain(_), _) => self.unwritten.evicted(pod),
            (Cause::Taint(verdict), Some(shadowing)) => shadowing.would_evict(pod, verdict),
            (Cause::Taint(_), None) => {}
        }
        true
    }

    async fn pod(&self, pod: &PodRef) -> Result<Option<Pod>, Failure> {
        self.requests.pod(pod).await
    }

    async fn node(&self, name: &NodeName) -> Result<Option<Node>, Failure> {
        self.requests.node(name).await
    }

    /// The pod is read, as the response to the patch would have it.
    async fn mark(&self, pod: &Pod, _: Timestamp) -> Result<Pod, Failure> {
        self.requests.pod(&pod.reference()).await?.ok_or(Failure::Gone)
    }

    async fn delete(&self, _: &PodRef) -> Result<(), Failure> {
        Ok(())
    }

    /// Refused as the API server probably would.
    async fn evict(&self, pod: &PodRef, _: Option<i64>) -> Result<(), Failure> {
        let (pods, budgets) = self.lists(&pod.node).await?;
        let known = pods.iter().find(|known| known.reference.uid == pod.uid);
        let known = known.ok_or(Failure::Gone)?;
        let answer = self.forecast.lock().evict(known, &budgets, Instant::now());
        answer.map_err(|blocker| blocked(&blocker))
    }

    async fn delete_within(&self, _: &PodRef, _: Option<i64>) -> Result<(), Failure> {
        Ok(())
    }

    async fn hopeless_budget(&self, pod: &PodRef) -> Result<Option<String>, Failure> {
        self.requests.hopeless_budget(pod).await
    }

    async fn budgets_over(&self, pod: &PodRef) -> Result<Vec<Arc<str>>, Failure> {
        self.requests.budgets_over(pod).await
    }
}

/// What the answer of the Eviction API would mean.
fn blocked(blocker: &BudgetBlocker) -> Failure {
    let budget = match blocker {
        BudgetBlocker::SeveralBudgets { .. } => return Failure::SeveralBudgets,
        BudgetBlocker::Blocked { budget, .. } | BudgetBlocker::Hopeless { budget, .. } => budget,
    };
    let (budget, message) = (Some(budget.to_string()), blocker.to_string());
    Failure::Blocked { budget, message, after: None }
}
