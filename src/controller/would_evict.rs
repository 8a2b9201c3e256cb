//! The evictor's requests in a dry run: what is read is read from the API server, what would be written is
//! recorded.

use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Shadowing;
use super::requests::{ApiRequests, failure};
use crate::cluster::Api;
use crate::drain::BudgetBlocker;
use crate::dry_run::{Forecast, Unwritten};
use crate::evict::{Cause, Failure, Requests};
use crate::model::{Budget, DrainPod, Node, NodeName, Pod, PodRef};

/// Lists for forecasts are used again for so long: the pods of a node are evicted one after the other.
const LISTS_LAST: Duration = Duration::from_secs(1);

/// Records evictions in place of sending them.
pub(super) struct WouldEvict {
    requests: ApiRequests,
    api: Api,
    unwritten: Arc<Unwritten>,
    shadowing: Option<Arc<Shadowing>>,
    forecast: Mutex<Forecast>,
    lists: tokio::sync::Mutex<Lists>,
}

/// What was listed for forecasts, and when.
#[derive(Default)]
struct Lists {
    pods: AHashMap<NodeName, (Instant, Arc<[DrainPod]>)>,
    budgets: Option<(Instant, Arc<[Budget]>)>,
}

impl WouldEvict {
    pub(super) fn new(
        requests: ApiRequests,
        unwritten: Arc<Unwritten>,
        shadowing: Option<Arc<Shadowing>>,
    ) -> Self {
        let (api, forecast) = (requests.api.clone(), Mutex::default());
        Self { requests, api, unwritten, shadowing, forecast, lists: tokio::sync::Mutex::default() }
    }

    /// The pods of a node and all budgets, as they were a short while ago at the most. One asks at a time.
    async fn lists(&self, node: &NodeName) -> Result<(Arc<[DrainPod]>, Arc<[Budget]>), Failure> {
        let mut lists = self.lists.lock().await;
        lists.pods.retain(|_, (at, _)| at.elapsed() < LISTS_LAST);
        lists.budgets = lists.budgets.take().filter(|(at, _)| at.elapsed() < LISTS_LAST);
        let pods = match lists.pods.get(node) {
            Some((_, pods)) => Arc::clone(pods),
            None => {
                let now = Instant::now();
                let pods: Arc<[_]> = self.api.list_pods_on(node).await.map_err(failure)?.into();
                lists.pods.insert(node.clone(), (now, Arc::clone(&pods)));
                pods
            }
        };
        let budgets = match &lists.budgets {
            Some((_, budgets)) => Arc::clone(budgets),
            None => {
                let now = Instant::now();
                let budgets: Arc<[_]> = self.api.list_budgets().await.map_err(failure)?.into();
                lists.budgets = Some((now, Arc::clone(&budgets)));
                budgets
            }
        };
        Ok((pods, budgets))
    }
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
