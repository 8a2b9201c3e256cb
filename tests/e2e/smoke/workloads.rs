//! Workloads, budgets and tallies are what they say.

use anyhow::{Result, ensure};
use kube::api::PostParams;
use ostrakon::sim::hollow::{HollowKubelets, HollowNode, Options, Switch};
use serde_json::{Value, json};

use crate::ctx::{Ctx, SOON, Scenario, trial};
use crate::harness::cluster::{ARENA_LABEL, pod};
use crate::harness::workloads::{APP, is_healthy};
use crate::harness::{Tally, User, wait};

pub(super) fn trials() -> Vec<Scenario> {
    vec![trial!(a_budget_holds_the_pods_of_a_set_and_a_tally_sees_it)]
}

async fn a_budget_holds_the_pods_of_a_set_and_a_tally_sees_it(ctx: &Ctx) -> Result<()> {
    let arena = ctx.arena().await?;
    let client = ctx.bed().client_for(User::Kubelets)?;
    let kubelets = HollowKubelets::start(client, Options::default()).await?;
    let name = format!("{}-n", arena.namespace());
    let node = HollowNode::new(&name).label(ARENA_LABEL, arena.namespace());
    kubelets.add_node(node).await?;
    arena.replica_set("web", 3, pod("web").grace(5)).await?;
    let pods = arena.healthy("web", 3).await?;
    ensure!(pods.iter().all(|one| one.node == name), "on other nodes: {pods:?}");
    arena.budget("web", "web", json!({ "maxUnavailable": 1 })).await?;
    arena.budget_allows("web", 1).await?;
    let healthy = Tally::start(arena.pods(), &format!("{APP}=web"), is_healthy).await?;
    ensure!(healthy.range()? == (3, 3), "{:?}", healthy.range());

    // The pod that the set makes anew is not Ready yet: it would give the budget room for the second.
    kubelets.set(&name, Switch::Silent(true)).await?;
    let evict = async |at: usize| {
        let name = &pods[at].pod.name;
        let eviction = json!({ "metadata": { "name": name } });
        let params = PostParams::default();
        arena.pods().create_subresource::<Value, Value>("eviction", name, &params, &eviction).await
    };
    evict(0).await?;
    match evict(1).await {
        Err(kube::Error::Api(status)) if status.code == 429 => {}
        other => anyhow::bail!("the budget did not hold the second: {other:?}"),
    }
    kubelets.set(&name, Switch::Silent(false)).await?;
    let next = arena.healthy("web", 3).await?;
    ensure!(next.iter().all(|one| one.pod != pods[0].pod), "it is still there: {next:?}");
    wait::until("the tally to see it", SOON, async || {
        ensure!(healthy.range()? == (2, 3), "{:?}", healthy.range());
        Ok(Some(()))
    })
    .await?;
    kubelets.stop().await;
    Ok(())
}
