//! With Kubernetes' node lifecycle controller, which taints the nodes: the cases of its own
//! integration test (`test/integration/node/lifecycle_test.go`) against ostrakon.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::try_join;

use super::evidence::{CANCELLING, MARKING, QUIET, SOON, only_these_evicted, told};
use crate::ctx::{Ctx, Scenario, trial};
use crate::harness::cluster::{node, pod};
use crate::harness::{
    Arena, Bed, BedOptions, NodeRef, Ostrakon, PodRef, TaintEviction, no_execute, wait,
};

pub(super) fn trials() -> Vec<Scenario> {
    vec![trial!(upstreams_integration_cases_hold).real()]
}

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// After how much silence a node is taken for lost. Other nodes must not be, though all may stall.
const GRACE: Duration = Duration::from_secs(20);

/// The longest that the lifecycle controller may take to see what is wrong with a node.
const NOTICED: Duration = Duration::from_secs(120);

/// Upstream looks for so long.
const WATCHED: Duration = Duration::from_secs(15);

/// A bed of its own: the others' nodes are not meant to be taken for lost so soon.
async fn upstreams_integration_cases_hold(_: &Ctx) -> Result<()> {
    let options = BedOptions::default().controller_manager(TaintEviction::Off).node_monitor(GRACE);
    let bed = Bed::start(options).await?;
    let by_user = taint_by_user_evicts_nobody_without_ostrakon(&bed).await?;
    let ostrakon = Ostrakon::start(&bed).await?;
    try_join!(
        taint_by_user_evicts_with_ostrakon(&bed, by_user),
        not_ready_node_evicts_by_each_pods_seconds(&bed),
        unreachable_node_evicts_by_each_pods_seconds(&bed),
    )?;
    ostrakon.stop().await?;
    bed.stop().await
}

struct ByUser {
    arena: Arena,
    victim: PodRef,
    bystander: PodRef,
}

async fn taint_by_user_evicts_nobody_without_ostrakon(bed: &Bed) -> Result<ByUser> {
    let arena = bed.arena("by-user").await?;
    let (node, other) = (in_no_zone(&arena, "n").await?, in_no_zone(&arena, "other").await?);
    let victim = arena.create(pod("victim").on(&node).running()).await?;
    let bystander = arena.create(pod("bystander").on(&other).running()).await?;
    let witness = arena.witness().await?;
    // As kubectl does it: without timeAdded.
    arena.taint(&node, no_execute("CustomTaintByUser")).await?;
    witness.never_deleted_for([&victim, &bystander], Duration::from_secs(5)).await?;
    Ok(ByUser { arena, victim, bystander })
}

async fn taint_by_user_evicts_with_ostrakon(bed: &Bed, by_user: ByUser) -> Result<()> {
    let ByUser { arena, victim, bystander } = by_user;
    let witness = arena.witness().await?;
    witness.only_these_deleted([&victim], SOON, QUIET).await?;
    ensure!(witness.sighting(&bystander).is_some_and(|sighting| sighting.touched().is_none()));
    only_these_evicted(bed, &arena, &[&victim]).await
}

async fn not_ready_node_evicts_by_each_pods_seconds(bed: &Bed) -> Result<()> {
    let arena = bed.arena("not-ready").await?;
    let (node, other) = (in_no_zone(&arena, "n").await?, in_no_zone(&arena, "other").await?);
    let witness = arena.witness().await?;
    let on = |name: &str| pod(name).on(&node).grace(1).running();
    let zero = arena.create(on("zero").tolerates_for(NOT_READY, 0)).await?;
    let two_hundred = arena.create(on("two-hundred").tolerates_for(NOT_READY, 200)).await?;
    let default = arena.create(on("default")).await?;
    let daemon = arena.create(on("daemon").tolerates(NOT_READY)).await?;
    let elsewhere = arena.create(pod("elsewhere").on(&other).tolerates_for(NOT_READY, 0)).await?;
    witness.never_deleted_for([&zero], QUIET).await?;

    arena.set_ready(&node, "False").await?;
    is_tainted(&arena, &node, NOT_READY).await?;
    witness.deleted_within([&zero], SOON).await?;
    for (pod, expected) in [(&zero, Some(0)), (&two_hundred, Some(200)), (&default, Some(300))] {
        ensure!(tolerated_seconds(&arena, pod, NOT_READY).await? == expected, "{pod}");
    }
    ensure!(tolerated_seconds(&arena, &daemon, NOT_READY).await?.is_none());
    let stay = [&two_hundred, &default, &daemon, &elsewhere];
    witness.never_deleted_for(stay, WATCHED).await?;
    // The outage is on record: its taints come and go, its beginning does not.
    let record = "ostrakon.dev/noexecute-since";
    wait::until("the outage to be on record", SOON, async || {
        Ok(arena.annotations(&node).await?.contains_key(record).then_some(()))
    })
    .await?;

    arena.set_ready(&node, "True").await?;
    is_untainted(&arena, &node).await?;
    for pod in [&two_hundred, &default] {
        told(&arena, pod, &[CANCELLING]).await?;
    }
    told(&arena, &zero, &[MARKING]).await?;
    wait::until("the record of the outage to go", SOON, async || {
        Ok((!arena.annotations(&node).await?.contains_key(record)).then_some(()))
    })
    .await?;
    witness.never_deleted_for(stay, QUIET).await?;
    only_these_evicted(bed, &arena, &[&zero]).await
}

async fn unreachable_node_evicts_by_each_pods_seconds(bed: &Bed) -> Result<()> {
    let arena = bed.arena("unreachable").await?;
    let (node, other) = (in_no_zone(&arena, "n").await?, in_no_zone(&arena, "other").await?);
    let witness = arena.witness().await?;
    let on = |name: &str| pod(name).on(&node).running();
    let zero = arena.create(on("zero").tolerates_for(UNREACHABLE, 0)).await?;
    let default = arena.create(on("default")).await?;
    let daemon = arena.create(on("daemon").tolerates(UNREACHABLE)).await?;
    let elsewhere = arena.create(pod("elsewhere").on(&other).tolerates_for(UNREACHABLE, 0)).await?;

    arena.silence(&node);
    is_tainted(&arena, &node, UNREACHABLE).await?;
    witness.deleted_within([&zero], SOON).await?;
    ensure!(tolerated_seconds(&arena, &default, UNREACHABLE).await? == Some(300));
    let stay = [&default, &daemon, &elsewhere];
    witness.never_deleted_for(stay, QUIET).await?;
    // Nobody is there to stop the pod.
    let sighting = witness.sighting(&zero).context("seen above")?;
    ensure!(sighting.gone.is_none(), "{sighting:?}");

    arena.revive(&node).await?;
    arena.set_ready(&node, "True").await?;
    is_untainted(&arena, &node).await?;
    told(&arena, &default, &[CANCELLING]).await?;
    witness.never_deleted_for(stay, QUIET).await?;
    only_these_evicted(bed, &arena, &[&zero]).await
}

/// A node that does not count when the lifecycle controller asks how much of a zone is lost.
async fn in_no_zone(arena: &Arena, name: &str) -> Result<NodeRef> {
    let label = "node.kubernetes.io/exclude-disruption";
    arena.create_node(node(name).label(label, "true")).await
}

async fn no_execute_keys(arena: &Arena, node: &NodeRef) -> Result<Vec<String>> {
    let object = arena.nodes().get(node.name()).await?;
    let taints = object.spec.and_then(|spec| spec.taints).unwrap_or_default().into_iter();
    Ok(taints.filter(|taint| taint.effect == "NoExecute").map(|taint| taint.key).collect())
}

async fn is_tainted(arena: &Arena, node: &NodeRef, key: &str) -> Result<()> {
    wait::until(&format!("{node} to be {key}"), NOTICED, async || {
        Ok(no_execute_keys(arena, node).await?.contains(&key.to_owned()).then_some(()))
    })
    .await
}

async fn is_untainted(arena: &Arena, node: &NodeRef) -> Result<()> {
    wait::until(&format!("{node} to be fine"), NOTICED, async || {
        Ok(no_execute_keys(arena, node).await?.is_empty().then_some(()))
    })
    .await
}

/// For how many seconds the pod tolerates the taint; `None` if for ever.
async fn tolerated_seconds(arena: &Arena, pod: &PodRef, key: &str) -> Result<Option<i64>> {
    let object = arena.pods().get(&pod.name).await?;
    let tolerations = object.spec.and_then(|spec| spec.tolerations).unwrap_or_default();
    let toleration = tolerations.iter().find(|toleration| toleration.key.as_deref() == Some(key));
    Ok(toleration.with_context(|| format!("{pod} does not tolerate {key}"))?.toleration_seconds)
}
