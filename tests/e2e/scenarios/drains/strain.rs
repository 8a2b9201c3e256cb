//! Much at once, and much that goes wrong: still every node is cordoned and drained, and nothing
//! else is touched.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use ostrakon::clock::system_time;
use ostrakon::sim::hollow::Options;
use serde_json::json;
use tokio::time::Instant;

use super::crowds::{
    all_break, launch, nodes, none_was_evicted_twice, ostrakon, record_in, seconds_since,
};
use super::policies::CROWD;
use super::stage::{SOON, Stage, evictions, only_these_evicted};
use crate::ctx::{Ctx, Scenario, trial};
use crate::harness::cluster::pod;
use crate::harness::workloads::APP;
use crate::harness::{Bed, How, Match, NodeRef, PodRef, User, Verb};
use crate::scenarios::faults::most_fail;
use crate::scenarios::outside::figure;

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(many_nodes_without_a_cap_are_cordoned_at_once).alone(),
        trial!(a_node_with_many_slow_pods_is_drained).alone(),
        trial!(although_half_of_all_writes_fail_all_are_cordoned_and_drained).alone(),
        trial!(an_api_server_that_is_killed_midway_delays_and_changes_nothing).alone(),
        trial!(a_node_that_others_write_to_all_the_time_is_cordoned).alone(),
    ]
}

/// When ostrakon's cordon of each node was stored.
fn cordons(bed: &Bed) -> Result<BTreeMap<String, Timestamp>> {
    let patches = bed.audit()?.by(User::Ostrakon).verb(Verb::Patch).resource("nodes").succeeded();
    let mut cordons = BTreeMap::new();
    for record in patches.records() {
        if record.request_object["spec"]["unschedulable"] == true {
            cordons.entry(record.name().to_owned()).or_insert(record.stage_timestamp);
        }
    }
    Ok(cordons)
}

/// Pods on nodes, so many on each, that count as replicated.
async fn fill(stage: &Stage, nodes: &[NodeRef], each: usize) -> Result<Vec<PodRef>> {
    let keeper = stage.arena.keeper("keeper").await?;
    let mut sketches = Vec::new();
    for (n, node) in nodes.iter().enumerate() {
        for p in 0..each {
            let sketch = pod(&format!("p{n}-{p}")).on(node).owned_by(&keeper).grace(5);
            sketches.push(sketch.label(APP, "all"));
        }
    }
    let count = sketches.len();
    let pods = stage.arena.create_all(sketches).await?;
    stage.arena.healthy("all", count).await?;
    Ok(pods)
}

async fn all_drained(stage: &Stage, nodes: &[NodeRef], patience: Duration) -> Result<()> {
    let end = Instant::now() + patience;
    for node in nodes {
        let left = end.saturating_duration_since(Instant::now());
        let seen = stage.phase(node, "drained", left).await?;
        ensure!(seen.unschedulable, "{node} is drained and not cordoned: {seen:?}");
    }
    Ok(())
}

async fn many_nodes_without_a_cap_are_cordoned_at_once(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let stage = Stage::alone(ctx, Options::default()).await?;
    let nodes = nodes(&stage, 20).await?;
    let pods = fill(&stage, &nodes, 3).await?;
    let ostrakon = ostrakon(bed, json!({})).await?;
    let begin = system_time();
    let broken = all_break(&stage, &nodes).await?;
    let last = broken.iter().max().context("no nodes")?;
    for node in &nodes {
        stage.cordoned(node, SOON).await?;
    }
    let cordons = cordons(bed)?;
    let mut late = Vec::new();
    for (node, broken) in nodes.iter().zip(&broken) {
        let cordoned = cordons.get(node.name()).with_context(|| format!("no cordon of {node}"))?;
        late.push(cordoned.duration_since(*broken).as_secs_f64().max(0.0));
    }
    late.sort_by(f64::total_cmp);
    let spread = last.duration_since(begin).as_secs_f64();
    figure(format!(
        "20 nodes went bad within {spread:.2} s; cordoned after median {:.2}, max {:.2} s",
        late[10], late[19]
    ));
    ensure!(late[19] <= 2.0, "the last was cordoned after {:.2} s", late[19]);
    all_drained(&stage, &nodes, Duration::from_secs(90)).await?;
    figure(format!("all are drained {:.0} s after the first went bad", seconds_since(begin)));
    only_these_evicted(bed, &stage.arena, &pods).await?;
    ostrakon.stop().await?;
    Ok(())
}

async fn a_node_with_many_slow_pods_is_drained(ctx: &Ctx) -> Result<()> {
    const PODS: usize = 60;
    let bed = ctx.bed();
    let options = Options { stop_time: Duration::from_secs(15), ..Options::default() };
    let stage = Stage::alone(ctx, options).await?;
    let n = stage.node("n", CROWD).await?;
    stage.arena.replica_set("slow", PODS, pod("slow").grace(60)).await?;
    let pods = stage.arena.healthy("slow", PODS).await?;
    stage.node("spare", "none").await?;
    let ostrakon = ostrakon(bed, json!({})).await?;
    let broken = stage.breaks(&n).await?;
    stage.phase(&n, "drained", Duration::from_secs(120)).await?;
    figure(format!(
        "{PODS} pods that take 15 s were drained within {:.0} s",
        seconds_since(broken)
    ));
    let pods: Vec<PodRef> = pods.into_iter().map(|placed| placed.pod).collect();
    stage.witness.gone_within(&pods, SOON).await?;
    only_these_evicted(bed, &stage.arena, &pods).await?;
    let asked = evictions(bed, &stage.arena)?.len();
    ensure!(asked == PODS, "{asked} evictions were asked for");
    ostrakon.stop().await?;
    Ok(())
}

async fn although_half_of_all_writes_fail_all_are_cordoned_and_drained(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let stage = Stage::alone(ctx, Options::default()).await?;
    let nodes = nodes(&stage, 12).await?;
    let pods = fill(&stage, &nodes, 4).await?;
    let bad = &nodes[..8];
    let (going, staying) = pods.split_at(8 * 4);
    let proxy = bed.fault_proxy(11).await?;
    let kubeconfig = bed.kubeconfig_via(&proxy, User::Ostrakon)?;
    let ostrakon = launch(bed, kubeconfig, json!({}))?.start(bed).await?;
    let half = Match::writes().then(most_fail()).chance(0.5);
    proxy.set_rules(vec![half.clone()]);
    all_break(&stage, bad).await?;
    stage.witness.never_deleted_for(staying, Duration::from_secs(20)).await?;
    proxy.clear();
    let cleared = system_time();
    all_drained(&stage, bad, Duration::from_secs(90)).await?;
    figure(format!(
        "{} of {} writes failed; all 8 nodes are drained {:.0} s later",
        half.hits(),
        proxy.count(&Match::writes()),
        seconds_since(cleared)
    ));
    ensure!(half.hits() > 30, "only {} writes failed", half.hits());
    stage.witness.never_deleted_for(staying, Duration::from_secs(3)).await?;
    none_was_evicted_twice(bed, &stage.arena)?;
    stage.witness.gone_within(going, SOON).await?;
    for node in &nodes[8..] {
        let seen = stage.look(node).await?;
        ensure!(!seen.unschedulable && seen.record.is_null(), "{node} was touched: {seen:?}");
    }
    evicted_after_the_cordon(bed, &stage, &nodes, 4, going)?;
    ostrakon.stop().await?;
    Ok(())
}

/// No pod was evicted before its node was cordoned. There are `pods` on `nodes`, so many on each.
fn evicted_after_the_cordon(
    bed: &Bed,
    stage: &Stage,
    nodes: &[NodeRef],
    each: usize,
    pods: &[PodRef],
) -> Result<()> {
    let cordons = cordons(bed)?;
    let on: BTreeMap<String, &NodeRef> =
        pods.iter().enumerate().map(|(p, pod)| (pod.name.clone(), &nodes[p / each])).collect();
    let asked = evictions(bed, &stage.arena)?;
    for record in asked.records() {
        let node = on.get(record.name()).context("the eviction of another pod")?;
        let cordoned = cordons.get(node.name()).context("evicted off a node without a cordon")?;
        ensure!(
            record.request_received_timestamp >= *cordoned,
            "{} was evicted before {node} was cordoned at {cordoned}",
            record.name()
        );
    }
    Ok(())
}

async fn a_node_that_others_write_to_all_the_time_is_cordoned(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let stage = Stage::alone(ctx, Options::default()).await?;
    let nodes = nodes(&stage, 1).await?;
    let n = &nodes[0];
    let pods = fill(&stage, &nodes, 5).await?;
    let ostrakon = ostrakon(bed, json!({})).await?;
    let writing = async || {
        let mut ticks = tokio::time::interval(Duration::from_millis(20));
        let mut writes = 0_u32;
        loop {
            ticks.tick().await;
            let patch =
                json!({ "metadata": { "annotations": { "test/write": writes.to_string() } } });
            let params = PatchParams::default();
            stage.nodes().patch(n.name(), &params, &Patch::Merge(patch)).await?;
            writes += 1;
            if writes == u32::MAX {
                return anyhow::Ok(());
            }
        }
    };
    let drained = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (from, begin) = (written(&stage, n).await?, Instant::now());
        let broken = stage.breaks(n).await?;
        stage.cordoned(n, SOON).await?;
        let cordon = cordons(bed)?.get(n.name()).copied().context("no cordon")?;
        let late = cordon.duration_since(broken).as_secs_f64();
        stage.phase(n, "drained", Duration::from_secs(60)).await?;
        let rate = (written(&stage, n).await? - from) / begin.elapsed().as_secs_f64();
        anyhow::Ok((late, rate, seconds_since(broken)))
    };
    let (late, rate, drained) = tokio::select! {
        outcome = drained => outcome?,
        outcome = writing() => {
            outcome?;
            anyhow::bail!("the writing ended")
        }
    };
    let patches = bed.audit()?.by(User::Ostrakon).verb(Verb::Patch).resource("nodes");
    let patches = patches.name(n.name());
    let conflicts = patches.clone().code(409).len();
    let records = patches.succeeded();
    let records = records.records().iter().filter_map(|one| record_in(&one.request_object)).count();
    figure(format!(
        "at {rate:.0} foreign writes per second: cordoned after {late:.2} s, drained after \
         {drained:.1} s, {records} records written, {conflicts} conflicts"
    ));
    ensure!(rate > 25.0, "only {rate:.0} foreign writes per second");
    ensure!(late <= 2.0, "cordoned after {late:.2} s");
    only_these_evicted(bed, &stage.arena, &pods).await?;
    ostrakon.stop().await?;
    Ok(())
}

/// How many foreign writes a node has seen.
async fn written(stage: &Stage, node: &NodeRef) -> Result<f64> {
    let seen = stage.look(node).await?;
    let text = seen.annotations.get("test/write").context("nothing is written")?;
    Ok(text.parse()?)
}

/// Killed while some pods are going and others are ordered to.
async fn an_api_server_that_is_killed_midway_delays_and_changes_nothing(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let options = Options { stop_time: Duration::from_secs(4), ..Options::default() };
    let stage = Stage::alone(ctx, options).await?;
    let nodes = nodes(&stage, 6).await?;
    let pods = fill(&stage, &nodes, 10).await?;
    let (going, staying) = pods.split_at(5 * 10);
    let ostrakon = ostrakon(bed, json!({})).await?;
    all_break(&stage, &nodes[..5]).await?;
    stage.witness.deleted_within(&going[..3], SOON).await?;
    bed.restart_apiserver(How::Kill).await?;
    let back = system_time();
    all_drained(&stage, &nodes[..5], Duration::from_secs(90)).await?;
    figure(format!("5 nodes are drained {:.0} s after the return", seconds_since(back)));
    none_was_evicted_twice(bed, &stage.arena)?;
    evicted_after_the_cordon(bed, &stage, &nodes, 10, going)?;
    stage.witness.gone_within(going, SOON).await?;
    stage.witness.never_deleted_for(staying, Duration::from_secs(3)).await?;
    ostrakon.stop().await?;
    Ok(())
}
