//! Many nodes that go bad at once, under a cap, with budgets that they share.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use ostrakon::clock::system_time;
use ostrakon::sim::hollow::Options;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::policies::{self, CLEAR_AFTER, CROWD, policy, with};
use super::stage::{SOON, Stage, evictions, is_unschedulable};
use crate::ctx::{Ctx, Scenario, trial};
use crate::harness::Tally;
use crate::harness::cluster::{ARENA_LABEL, pod};
use crate::harness::ostrakon::Launch;
use crate::harness::workloads::{APP, is_healthy};
use crate::harness::{Arena, Bed, NodeRef, Ostrakon, User, Verb, wait};
use crate::scenarios::outside::figure;

pub(super) fn trials() -> Vec<Scenario> {
    let long = Duration::from_secs(420);
    vec![
        trial!(under_a_cap_all_are_drained_once_although_it_is_killed_twice).alone().within(long),
        trial!(nodes_that_share_a_budget_are_all_drained_in_the_end).alone().within(long),
    ]
}

const NODES: usize = 20;
const CAP: usize = 3;
const APPS: [&str; 3] = ["web", "api", "db"];

/// An ostrakon with one policy for the nodes of the crowd.
pub(super) async fn ostrakon(bed: &Bed, settings: Value) -> Result<Ostrakon> {
    launch(bed, bed.kubeconfig(User::Ostrakon)?, settings)?.start(bed).await
}

pub(super) fn launch(bed: &Bed, kubeconfig: std::path::PathBuf, settings: Value) -> Result<Launch> {
    let file = policies::write(bed, CROWD, &[with(policy(CROWD), settings)])?;
    Ok(Launch::new(kubeconfig).arg(&format!("--config={}", file.display())))
}

/// Nodes of the crowd, by number.
pub(super) async fn nodes(stage: &Stage, count: usize) -> Result<Vec<NodeRef>> {
    let sketches: Vec<_> = (0..count).map(|n| stage.sketch(&format!("n{n}"), CROWD)).collect();
    let (nodes, sketches): (Vec<_>, Vec<_>) = sketches.into_iter().unzip();
    stage.kubelets.add_nodes(sketches).await?;
    Ok(nodes)
}

/// All go bad as fast as they can. Returns when each was.
pub(super) async fn all_break(stage: &Stage, nodes: &[NodeRef]) -> Result<Vec<jiff::Timestamp>> {
    let breaking = futures::stream::iter(nodes).map(|node| stage.breaks(node)).buffered(NODES);
    breaking.collect::<Vec<_>>().await.into_iter().collect()
}

async fn under_a_cap_all_are_drained_once_although_it_is_killed_twice(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let stage = Stage::alone(ctx, Options::default()).await?;
    let arena = &stage.arena;
    let nodes = nodes(&stage, NODES).await?;
    for app in APPS {
        arena.replica_set(app, NODES, pod(app).grace(5)).await?;
    }
    for app in APPS {
        arena.healthy(app, NODES).await?;
        arena.budget(app, app, json!({ "maxUnavailable": 2 })).await?;
    }
    let (stuck, foreign) = (&nodes[7], &nodes[13]);
    arena.create(pod("bare").on(stuck)).await?;
    // It counts like any other, and is drained like any other, and stays cordoned.
    stage.cordon(foreign, true).await?;
    let mut healthy = Vec::new();
    for app in APPS {
        healthy.push(Tally::start(arena.pods(), &format!("{APP}={app}"), is_healthy).await?);
    }
    let of_arena = format!("{ARENA_LABEL}={}", arena.namespace());
    let out = Tally::start(stage.nodes(), &of_arena, is_unschedulable).await?;

    let caps = json!({ "undrainable": "Report", "pace": {
        "notice": "1s", "spacing": "0s", "caps": [{ "limit": CAP.to_string() }],
    }});
    let mut ostrakon = ostrakon(bed, caps).await?;
    all_break(&stage, &nodes).await?;
    let begin = Instant::now();
    let mut kills = [10, 35].map(Duration::from_secs).into_iter().peekable();
    let mut drained = BTreeMap::<String, Duration>::new();
    // Each is repaired once it is drained, which makes room for another.
    while drained.len() < NODES - 1 {
        ensure!(begin.elapsed() < Duration::from_secs(300), "drained in time: {drained:?}");
        if kills.next_if(|after| begin.elapsed() >= *after).is_some() {
            ostrakon = ostrakon.kill9()?.start(bed).await?;
        }
        for node in &nodes {
            let is_new = !drained.contains_key(node.name());
            if is_new && stage.look(node).await?.phase() == "drained" {
                drained.insert(node.name().to_owned(), begin.elapsed());
                stage.recovers(node).await?;
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    ensure!(!drained.contains_key(stuck.name()), "drained with a pod that must not be lost");
    ensure!(kills.peek().is_none(), "all was over before the second kill");
    let took = begin.elapsed().as_secs_f64();
    let cleared = Duration::from_secs(u64::try_from(CLEAR_AFTER)?) + SOON;
    for node in nodes.iter().filter(|node| *node != foreign) {
        stage.until(node, "uncordoned", cleared, |seen| !seen.unschedulable).await?;
    }
    let seen = stage.until(foreign, "let go", cleared, |seen| seen.record.is_null()).await?;
    ensure!(seen.unschedulable, "somebody else's cordon was lifted");
    ensure!(stage.look(stuck).await?.record.is_null(), "the stuck node has a record");
    stage.told(stuck, "DrainSchedulingFailed", &["bare"]).await?;

    let (_, most) = out.range()?;
    ensure!(most <= CAP, "{most} nodes were out of use");
    let mut least = Vec::new();
    for tally in &healthy {
        least.push(tally.range()?.0);
    }
    ensure!(least.iter().all(|least| *least >= NODES - 2), "too few were healthy: {least:?}");
    each_was_drained_once(&stage, bed, &nodes, stuck).await?;
    let evicted = none_was_evicted_twice(bed, arena)?;
    figure(format!(
        "{} nodes drained under a cap of {CAP} in {took:.0} s, at most {most} out of use, at least \
         {least:?} of {NODES} healthy, {evicted} evictions",
        drained.len()
    ));
    ostrakon.stop().await?;
    Ok(())
}

/// By what was written on the nodes, and what was told.
async fn each_was_drained_once(
    stage: &Stage,
    bed: &Bed,
    nodes: &[NodeRef],
    stuck: &NodeRef,
) -> Result<()> {
    let patches = bed.audit()?.by(User::Ostrakon).verb(Verb::Patch).resource("nodes").succeeded();
    for node in nodes {
        let records = patches.clone().name(node.name());
        let starts: Vec<Value> = records
            .records()
            .iter()
            .filter_map(|record| record_in(&record.request_object))
            .filter(|record| record["phase"] == "draining")
            .map(|record| record["started"].clone())
            .collect();
        let expected = usize::from(node != stuck);
        ensure!(starts.len() == expected, "{node} was begun to be drained at {starts:?}");
        let told = stage.reasons(node).await?;
        let told = told.iter().filter(|reason| *reason == "DrainSucceeded").count();
        // What is told in the moment of a kill is lost.
        ensure!(told <= expected, "{node} is told to be drained {told} times");
    }
    Ok(())
}

/// The record that a patch of a node writes.
pub(super) fn record_in(patch: &Value) -> Option<Value> {
    let text = patch["metadata"]["annotations"]["ostrakon.dev/drain"].as_str()?;
    serde_json::from_str(text).ok()
}

/// Checks that no pod's eviction was taken twice. Returns how many were taken.
pub(super) fn none_was_evicted_twice(bed: &Bed, arena: &Arena) -> Result<usize> {
    let taken = evictions(bed, arena)?.succeeded();
    let mut times = BTreeMap::<String, usize>::new();
    for record in taken.records() {
        let uid = &record.request_object["deleteOptions"]["preconditions"]["uid"];
        let uid = uid.as_str().context("an eviction without UID")?;
        *times.entry(format!("{} {uid}", record.name())).or_default() += 1;
    }
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    ensure!(twice.is_empty(), "evicted more than once: {twice:?}");
    Ok(times.len())
}

/// Ten nodes with room for one pod each, whose pods share one budget, and nowhere to go at first.
async fn nodes_that_share_a_budget_are_all_drained_in_the_end(ctx: &Ctx) -> Result<()> {
    const SHARED: usize = 10;
    let bed = ctx.bed();
    let stage = Stage::alone(ctx, Options::default()).await?;
    let arena = &stage.arena;
    let mut nodes = Vec::new();
    for n in 0..SHARED {
        let (node, sketch) = stage.sketch(&format!("n{n}"), CROWD);
        stage.kubelets.add_node(sketch.capacity("pods", "1")).await?;
        nodes.push(node);
    }
    arena.replica_set("web", SHARED, pod("web").grace(5)).await?;
    arena.healthy("web", SHARED).await?;
    arena.budget("web", "web", json!({ "minAvailable": SHARED - 1 })).await?;
    arena.budget_allows("web", 1).await?;
    let healthy = Tally::start(arena.pods(), &format!("{APP}=web"), is_healthy).await?;

    let ostrakon = ostrakon(bed, json!({})).await?;
    all_break(&stage, &nodes).await?;
    for node in &nodes {
        stage.cordoned(node, SOON).await?;
    }
    tokio::time::sleep(Duration::from_secs(15)).await;
    let taken = evictions(bed, arena)?.succeeded().len();
    ensure!(taken == 1, "{taken} evictions while one may be missing");
    let begin = Instant::now();
    stage.node("spare", "none").await?;
    wait::until("all to be drained", Duration::from_secs(300), async || {
        let listed = stage.nodes().list(&ListParams::default().labels(ARENA_LABEL)).await?;
        let drained = listed.items.iter().filter(|node| is_drained(node)).count();
        ensure!(drained == SHARED, "{drained} of {SHARED} are drained");
        Ok(Some(()))
    })
    .await?;
    let (least, _) = healthy.range()?;
    let refused = evictions(bed, arena)?.code(429).len();
    let evicted = none_was_evicted_twice(bed, arena)?;
    figure(format!(
        "{SHARED} nodes of one budget drained {:.0} s after there was room, {evicted} evictions, \
         {refused} refused, at least {least} of {SHARED} healthy",
        begin.elapsed().as_secs_f64()
    ));
    ensure!(least >= SHARED - 1, "only {least} were healthy");
    ensure!(evicted == SHARED, "{evicted} evictions");
    ostrakon.stop().await?;
    Ok(())
}

/// Whether a node's drain is done.
pub(super) fn is_drained(node: &Node) -> bool {
    let annotations = node.metadata.annotations.as_ref();
    let record = annotations.and_then(|all| all.get("ostrakon.dev/drain"));
    let record = record.and_then(|text| serde_json::from_str::<Value>(text).ok());
    record.is_some_and(|record| record["phase"] == "drained")
}

/// Now, for figures.
pub(super) fn seconds_since(moment: jiff::Timestamp) -> f64 {
    system_time().duration_since(moment).as_secs_f64()
}
