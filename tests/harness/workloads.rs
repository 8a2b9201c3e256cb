//! Workloads that recreate pods (`ReplicaSet`, `DaemonSet`), and disruption budgets. The controllers are
//! Kubernetes' own.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::{DaemonSet, ReplicaSet};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::arena::Arena;
use super::cluster::{ARENA_LABEL, NodeRef, PodRef, PodSketch};
use super::wait;

/// Label by which the pods of a workload are told.
pub const APP: &str = "app";

/// How long pods may take until they are placed and Ready, and a budget until it is reckoned, on
/// a machine that stalls. A disruption that was granted counts for up to two minutes in a budget.
const SETTLED: Duration = Duration::from_secs(200);

/// A pod of a workload, as it is at a moment.
#[derive(Clone, Debug)]
pub struct Placed {
    pub pod: PodRef,
    /// Empty while it is not bound.
    pub node: String,
    pub ready: bool,
    pub terminating: bool,
}

impl Placed {
    fn of(pod: &Pod) -> Result<Self> {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        Ok(Self {
            pod: PodRef::of(pod)?,
            node: node.unwrap_or_default(),
            ready: is_ready(pod),
            terminating: pod.metadata.deletion_timestamp.is_some(),
        })
    }

    /// Whether a disruption budget counts it.
    pub fn is_healthy(&self) -> bool {
        self.ready && !self.terminating
    }
}

/// See [`Arena::held`].
#[derive(Debug)]
pub struct Held {
    pub pod: PodRef,
    pub budget: String,
    other: PodRef,
}

/// Whether a pod's Ready condition holds.
fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref());
    let mut conditions = conditions.unwrap_or_default().iter();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whether a disruption budget counts the pod as healthy.
pub fn is_healthy(pod: &Pod) -> bool {
    is_ready(pod) && pod.metadata.deletion_timestamp.is_none()
}

impl Arena {
    /// Has so many pods like `sketch` kept running on the arena's nodes, wherever there is room.
    pub async fn replica_set(&self, name: &str, replicas: usize, sketch: PodSketch) -> Result<()> {
        let sets: Api<ReplicaSet> = Api::namespaced(self.client(), self.namespace());
        let mut template = template(name, sketch)?;
        template["spec"]["nodeSelector"][ARENA_LABEL] = json!(self.namespace());
        let set = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": { APP: name } },
                "template": template,
            },
        }))?;
        sets.create(&PostParams::default(), &set).await.context("create a ReplicaSet")?;
        Ok(())
    }

    /// Has one pod like `sketch` kept running on each node that `sketch` selects.
    pub async fn daemon_set(&self, name: &str, sketch: PodSketch) -> Result<()> {
        let sets: Api<DaemonSet> = Api::namespaced(self.client(), self.namespace());
        let set = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "selector": { "matchLabels": { APP: name } },
                "template": template(name, sketch)?,
            },
        }))?;
        sets.create(&PostParams::default(), &set).await.context("create a DaemonSet")?;
        Ok(())
    }

    /// Guards the pods of an app: `demand` is `{"minAvailable": 2}` or its like. Returns when the
    /// disruption controller has reckoned it.
    pub async fn budget(&self, name: &str, app: &str, demand: Value) -> Result<()> {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.client(), self.namespace());
        let mut spec = demand;
        spec["selector"] = json!({ "matchLabels": { APP: app } });
        let budget = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec }))?;
        budgets.create(&PostParams::default(), &budget).await.context("create a budget")?;
        wait::until("the budget to be reckoned", SETTLED, async || {
            let budget = budgets.get(name).await?;
            let status = budget.status.context("a budget without status")?;
            Ok((status.observed_generation == budget.metadata.generation).then_some(()))
        })
        .await
    }

    /// Waits until a budget allows so many disruptions.
    pub async fn budget_allows(&self, name: &str, disruptions: i32) -> Result<()> {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.client(), self.namespace());
        wait::until("the budget's room", SETTLED, async || {
            let status = budgets.get(name).await?.status;
            let allowed = status.and_then(|status| status.disruptions_allowed);
            ensure!(allowed == Some(disruptions), "it allows {allowed:?}");
            Ok(Some(()))
        })
        .await
    }

    /// Something that bare pods can belong to, so that they count as replicated: no controller of
    /// Kubernetes' acts upon it.
    pub async fn keeper(&self, name: &str) -> Result<OwnerReference> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client(), self.namespace());
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.to_owned());
        let map = maps.create(&PostParams::default(), &map).await.context("create a keeper")?;
        Ok(OwnerReference {
            api_version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            name: name.to_owned(),
            uid: map.metadata.uid.context("an object without UID")?,
            controller: Some(true),
            block_owner_deletion: None,
        })
    }

    /// A pod of `app` on `node` that its budget holds until the other pod of the app, elsewhere, is
    /// made ready. `elsewhere` has no kubelet that would do so.
    pub async fn held(
        &self,
        app: &str,
        node: &NodeRef,
        elsewhere: &NodeRef,
        like: impl Fn(&str) -> PodSketch,
    ) -> Result<Held> {
        let like = |name: &str| like(name).label(APP, app);
        let pod = self.create(like(app).on(node)).await?;
        let other = self.create(like(&format!("{app}-other")).on(elsewhere)).await?;
        wait::until("the held pod to run", SETTLED, async || {
            let pods = self.app(app).await?;
            Ok(pods.iter().any(|one| one.ready && one.pod == pod).then_some(()))
        })
        .await?;
        self.budget(app, app, json!({ "minAvailable": 1 })).await?;
        Ok(Held { pod, other, budget: app.to_owned() })
    }

    /// Makes room in the budget that holds a pod.
    pub async fn let_go(&self, held: &Held) -> Result<()> {
        self.make_ready(&held.other).await?;
        self.budget_allows(&held.budget, 1).await
    }

    /// The pods of an app as they are now.
    pub async fn app(&self, app: &str) -> Result<Vec<Placed>> {
        let pods = self.pods().list(&ListParams::default().labels(&format!("{APP}={app}"))).await?;
        pods.items.iter().map(Placed::of).collect()
    }

    /// Waits until an app has so many healthy pods, on whichever nodes, and no others.
    pub async fn healthy(&self, app: &str, count: usize) -> Result<Vec<Placed>> {
        wait::until(&format!("{count} healthy pods of {app}"), SETTLED, async || {
            let pods = self.app(app).await?;
            let healthy = pods.iter().filter(|pod| pod.is_healthy()).count();
            ensure!(healthy == count && pods.len() == count, "{pods:?}");
            Ok(Some(pods))
        })
        .await
    }

    /// Has a bare pod that no kubelet looks after appear Running and Ready.
    pub async fn make_ready(&self, pod: &PodRef) -> Result<()> {
        let status = json!({ "status": {
            "phase": "Running",
            "conditions": [{ "type": "Ready", "status": "True" }],
        }});
        let patch = Patch::Strategic(status);
        self.pods().patch_status(&pod.name, &PatchParams::default(), &patch).await?;
        Ok(())
    }
}

fn template(app: &str, sketch: PodSketch) -> Result<Value> {
    let pod = sketch.label(APP, app).object();
    let mut spec = serde_json::to_value(pod.spec)?;
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("nodeName");
    }
    let labels: BTreeMap<_, _> = pod.metadata.labels.unwrap_or_default();
    Ok(json!({
        "metadata": { "labels": labels, "annotations": pod.metadata.annotations },
        "spec": spec,
    }))
}
