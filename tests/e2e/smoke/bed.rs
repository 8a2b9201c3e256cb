//! The control plane: up, down, and up again.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use tokio::time::timeout;

use crate::ctx::{Ctx, SOON, Scenario, trial};
use crate::harness::cluster::{no_schedule, pod};
use crate::harness::{Bed, BedOptions, How, TaintEviction, no_execute, wait};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(everything_is_up).real(),
        trial!(a_pod_is_bound_to_the_node_it_selects),
        trial!(a_silent_node_is_tainted_and_a_living_one_is_not).real(),
        trial!(an_unknown_component_is_not_made_up).real(),
        trial!(the_api_server_comes_back_with_all_it_had).alone(),
        trial!(the_built_in_taint_eviction_can_be_switched_on_and_off).alone(),
    ]
}

async fn everything_is_up(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let version = bed.admin()?.apiserver_version().await?;
    ensure!(version.major == "1", "version {version:?}");
    for component in [bed.etcd()?, bed.apiserver()?, bed.controller_manager()?, bed.scheduler()?] {
        ensure!(component.is_running().await, "{component:?} does not run");
    }
    Ok(())
}

async fn a_pod_is_bound_to_the_node_it_selects(ctx: &Ctx) -> Result<()> {
    let arena = ctx.arena().await?;
    let node = arena.node("n").await?;
    let _other = arena.node("other").await?;
    let pod = arena.create(pod("scheduled").selects(&node)).await?;
    let bound = wait::until("the pod to be bound", SOON, async || {
        let object = arena.pods().get(&pod.name).await?;
        Ok(object.spec.and_then(|spec| spec.node_name))
    })
    .await?;
    ensure!(bound == node.name(), "bound to {bound}");
    Ok(())
}

async fn a_silent_node_is_tainted_and_a_living_one_is_not(_: &Ctx) -> Result<()> {
    // Its own bed: the others' nodes are not meant to be taken for lost so soon. The living one must
    // not be either, though all may stall.
    let options = BedOptions::default().controller_manager(TaintEviction::Off);
    let options = options.node_monitor(Duration::from_secs(20));
    let bed = Bed::start(options).await?;
    let arena = bed.arena("silence").await?;
    let silent = arena.node("silent").await?;
    let alive = arena.node("alive").await?;
    arena.silence(&silent);
    let keys = async |node| {
        let object = arena.nodes().get(node).await?;
        let taints = object.spec.and_then(|spec| spec.taints).unwrap_or_default();
        anyhow::Ok(taints.into_iter().map(|taint| (taint.key, taint.effect)).collect::<Vec<_>>())
    };
    let lost = ("node.kubernetes.io/unreachable".to_owned(), "NoExecute".to_owned());
    wait::until("the silent node to be unreachable", SOON * 2, async || {
        Ok(keys(silent.name()).await?.contains(&lost).then_some(()))
    })
    .await?;
    let found = keys(alive.name()).await?;
    ensure!(found.is_empty(), "the living node has taints: {found:?}");
    arena.revive(&silent).await?;
    arena.set_ready(&silent, "True").await?;
    wait::until("the node to be back", SOON, async || {
        Ok(keys(silent.name()).await?.is_empty().then_some(()))
    })
    .await?;
    bed.stop().await
}

async fn an_unknown_component_is_not_made_up(_: &Ctx) -> Result<()> {
    let bed = Bed::start(BedOptions::default()).await?;
    ensure!(bed.controller_manager().is_err() && bed.scheduler().is_err());
    // Without controllers nobody makes accounts, and pods are created all the same.
    let arena = bed.arena("bare").await?;
    let node = arena.node("n").await?;
    arena.create(pod("p").on(&node)).await?;
    // Dropped, not stopped: that has to work as well.
    let folder = bed.folder().to_owned();
    tokio::task::spawn_blocking(move || drop(bed)).await?;
    ensure!(!folder.exists(), "{} is still there", folder.display());
    Ok(())
}

async fn the_api_server_comes_back_with_all_it_had(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let arena = ctx.arena().await?;
    let node = arena.node("n").await?;
    let stays = arena.create(pod("stays").on(&node)).await?;
    let goes = arena.create(pod("goes").on(&node).grace(0)).await?;
    let witness = arena.witness().await?;
    let kubeconfig = bed.kubeconfig(crate::harness::User::Admin)?;

    for how in [How::Graceful, How::Kill] {
        bed.restart_apiserver(how).await?;
        let found: Pod = arena.pods().get(&stays.name).await?;
        ensure!(found.metadata.uid.as_ref() == Some(&stays.uid), "{stays} is another one now");
    }
    ensure!(kubeconfig == bed.kubeconfig(crate::harness::User::Admin)?);

    bed.stop_apiserver(How::Graceful).await?;
    ensure!(!bed.apiserver()?.is_running().await);
    ensure!(arena.pods().get(&stays.name).await.is_err(), "an API server that is down answers");
    bed.start_apiserver().await?;

    // The witness has found its way back, and has not taken the outage for deletions.
    arena.remove(&goes).await?;
    witness.only_these_deleted([&goes], Duration::from_secs(30), Duration::from_secs(1)).await?;

    bed.apiserver()?.freeze().await?;
    let pods = arena.pods();
    let answer = timeout(Duration::from_secs(1), pods.get(&stays.name)).await;
    bed.apiserver()?.thaw().await?;
    ensure!(answer.is_err(), "a frozen API server answered");
    timeout(Duration::from_secs(30), pods.get(&stays.name)).await.context("no answer")??;
    Ok(())
}

async fn the_built_in_taint_eviction_can_be_switched_on_and_off(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let arena = ctx.arena().await?;
    let (node, other) = (arena.node("n").await?, arena.node("other").await?);
    let victim = arena.create(pod("victim").on(&node).grace(0)).await?;
    let tolerates = arena.create(pod("tolerates").on(&node).tolerates("gone")).await?;
    let elsewhere = arena.create(pod("elsewhere").on(&other)).await?;
    let witness = arena.witness().await?;

    arena.taint(&node, no_execute("gone").added_now()).await?;
    arena.taint(&other, no_schedule("gone")).await?;
    let all = [&victim, &tolerates, &elsewhere];
    witness.never_deleted_for(all, Duration::from_secs(3)).await?;

    bed.set_taint_eviction(TaintEviction::BuiltIn).await?;
    let outcome = witness
        .only_these_deleted([&victim], Duration::from_secs(60), Duration::from_secs(2))
        .await;
    bed.set_taint_eviction(TaintEviction::Off).await?;
    let sightings = outcome?;
    ensure!(sightings[0].disruption.is_some(), "no condition: {sightings:?}");
    Ok(())
}
