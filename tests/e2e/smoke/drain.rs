//! The API server answers the requests of a drain as they are understood.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use ostrakon::cluster::{Answer, Api, BudgetRefusal, Metrics, RequestError};
use ostrakon::drain::{BudgetBlocker, budget_blocker};
use ostrakon::model::{DrainPod, NodeName, Owner, Phase, PodRef, Uid};
use prometheus::Registry;
use serde_json::json;

use crate::ctx::{Ctx, SOON, Scenario, trial};
use crate::harness::arena::Arena;
use crate::harness::cluster::pod;
use crate::harness::wait;

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(a_drain_sees_the_pods_of_its_node_and_evicts_the_right_ones),
        trial!(a_budget_and_two_budgets_refuse_as_foreseen),
        trial!(an_owner_exists_if_it_is_the_same_one),
    ]
}

fn api(ctx: &Ctx) -> Result<Api> {
    Ok(Api::new(ctx.bed().admin()?, Metrics::register(&Registry::new())?))
}

async fn drain_pods(api: &Api, node: &str) -> Result<Vec<DrainPod>> {
    let mut pods = api.list_pods_on(&NodeName::from(node)).await?;
    pods.sort_by(|a, b| a.reference.name.cmp(&b.reference.name));
    Ok(pods)
}

fn refusal(result: Result<(), RequestError>) -> Result<Answer> {
    match result {
        Err(RequestError::Status(answer)) => Ok(answer),
        other => bail!("not refused: {other:?}"),
    }
}

async fn make_ready(arena: &Arena, name: &str) -> Result<()> {
    let ready = json!({"status": {
        "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
    }});
    let parameters = PatchParams::default();
    arena.pods().patch_status(name, &parameters, &Patch::Strategic(ready)).await?;
    Ok(())
}

async fn a_drain_sees_the_pods_of_its_node_and_evicts_the_right_ones(ctx: &Ctx) -> Result<()> {
    let (arena, api) = (ctx.arena().await?, api(ctx)?);
    let (node, other) = (arena.node("n").await?, arena.node("other").await?);
    arena.create(pod("a").on(&node).label("app", "web").annotation("k", "v").grace(40)).await?;
    arena.create(pod("b").on(&node).mirror()).await?;
    arena.create(pod("c").on(&other)).await?;
    make_ready(&arena, "a").await?;
    let pods = drain_pods(&api, node.name()).await?;
    let [a, b] = pods.as_slice() else { bail!("{pods:?}") };
    ensure!(a.ready && a.phase == Phase::Running && !a.mirror && a.terminating.is_none(), "{a:?}");
    ensure!(a.grace == Duration::from_secs(40) && a.labels.get("app") == Some("web"), "{a:?}");
    ensure!(a.annotations.get("k") == Some("v") && a.controller.is_none(), "{a:?}");
    ensure!(b.mirror && !b.ready, "{b:?}");

    let wrong = PodRef { uid: Uid(1), ..a.reference.clone() };
    ensure!(refusal(api.evict_pod(&wrong, None).await)?.code == 409);
    ensure!(refusal(api.delete_pod_within(&wrong, None).await)?.code == 409);
    api.evict_pod(&a.reference, Some(7)).await?;
    let stored = arena.pods().get("a").await?;
    ensure!(stored.metadata.deletion_grace_period_seconds == Some(7), "{:?}", stored.metadata);
    ensure!(drain_pods(&api, node.name()).await?[0].terminating.is_some());
    let absent = PodRef { name: "absent".into(), ..wrong };
    ensure!(refusal(api.evict_pod(&absent, None).await)?.is_not_found());
    Ok(())
}

async fn a_budget_and_two_budgets_refuse_as_foreseen(ctx: &Ctx) -> Result<()> {
    let (arena, api) = (ctx.arena().await?, api(ctx)?);
    let node = arena.node("n").await?;
    arena.create(pod("a").on(&node).label("app", "web")).await?;
    make_ready(&arena, "a").await?;
    let budgets: kube::Api<PodDisruptionBudget> =
        kube::Api::namespaced(arena.client(), arena.namespace());
    let budget = |name: &str| {
        serde_json::from_value::<PodDisruptionBudget>(json!({
            "metadata": {"name": name},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        }))
    };
    budgets.create(&PostParams::default(), &budget("web")?).await?;
    let seen = wait::until("the budget's status", SOON, async || {
        let all = api.list_budgets().await?;
        let ours = all.into_iter().find(|budget| *budget.namespace == *arena.namespace());
        Ok(ours.filter(|budget| budget.observed && budget.healthy == 1))
    })
    .await?;
    let a = drain_pods(&api, node.name()).await?.pop().context("no pod")?;
    let foreseen = budget_blocker(&a, &[seen]);
    ensure!(matches!(&foreseen, Some(BudgetBlocker::Hopeless { .. })), "{foreseen:?}");
    let answer = refusal(api.evict_pod(&a.reference, None).await)?;
    let Some(BudgetRefusal::UsedUp { budget: Some(name), .. }) = answer.by_budget() else {
        bail!("{answer:?}")
    };
    ensure!(answer.code == 429 && name == "web", "{answer:?}");

    budgets.create(&PostParams::default(), &budget("more")?).await?;
    let answer = refusal(api.evict_pod(&a.reference, None).await)?;
    ensure!(answer.by_budget() == Some(BudgetRefusal::Several), "{answer:?}");
    let names = api.budgets_over(&a.reference).await?;
    ensure!(names.iter().map(|name| &**name).eq(["more", "web"]), "{names:?}");

    for name in ["web", "more"] {
        budgets.delete(name, &DeleteParams::default()).await?;
    }
    api.evict_pod(&a.reference, None).await?;
    Ok(())
}

async fn an_owner_exists_if_it_is_the_same_one(ctx: &Ctx) -> Result<()> {
    let (arena, api) = (ctx.arena().await?, api(ctx)?);
    let sets: kube::Api<DaemonSet> = kube::Api::namespaced(arena.client(), arena.namespace());
    let set = serde_json::from_value(json!({
        "metadata": {"name": "agent"},
        "spec": {
            "selector": {"matchLabels": {"app": "agent"}},
            "template": {
                "metadata": {"labels": {"app": "agent"}},
                "spec": {
                    "nodeSelector": {"no": "node"}, "containers": [{"name": "c", "image": "i"}],
                },
            },
        },
    }))?;
    let set = sets.create(&PostParams::default(), &set).await?;
    let uid = set.metadata.uid.context("no UID")?;
    let owner = |kind: &str, name: &str, uid: &str| Owner {
        api_version: "apps/v1".into(),
        kind: kind.into(),
        name: name.into(),
        uid: uid.into(),
    };
    let namespace = arena.namespace();
    ensure!(api.owner_exists(namespace, &owner("DaemonSet", "agent", &uid)).await?);
    ensure!(!api.owner_exists(namespace, &owner("DaemonSet", "agent", "another")).await?);
    ensure!(!api.owner_exists(namespace, &owner("DaemonSet", "absent", &uid)).await?);
    // The name of this kind in paths is looked up.
    ensure!(!api.owner_exists(namespace, &owner("Deployment", "absent", &uid)).await?);
    ensure!(api.owner_exists(namespace, &owner("Rollout", "absent", &uid)).await.is_err());
    sets.delete("agent", &DeleteParams::default()).await?;
    Ok(())
}
