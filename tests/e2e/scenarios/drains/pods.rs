//! Which pods a drain takes from a node, in which order, and how much time each is given.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::SignedDuration;
use kube::api::DeleteParams;
use ostrakon::sim::hollow::{StaticPod, Switch};

use super::policies::{HASTY, IN_USE, PROTECTED, QUICK, STRICT};
use super::stage::{DRAINED, QUIET, SOON, Seen, Stage, evictions, only_these_evicted, removed_at};
use crate::ctx::{Ctx, Scenario, TooSlow, trial};
use crate::harness::cluster::pod;
use crate::harness::{PodRef, User, Verb, no_execute, wait};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(daemon_pods_and_mirrors_stay_and_the_node_is_drained),
        trial!(what_must_not_be_lost_is_left_and_named_and_the_others_go),
        trial!(a_node_that_is_to_stay_in_use_is_told_of_and_not_cordoned),
        trial!(each_pod_is_given_its_own_grace),
        trial!(critical_pods_go_last),
        trial!(what_terminates_already_is_only_awaited),
        trial!(what_a_taint_condemns_meanwhile_is_deleted_and_the_drain_ends),
    ]
}

async fn daemon_pods_and_mirrors_stay_and_the_node_is_drained(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let (n, sketch) = stage.sketch("n", QUICK);
    let mirror = StaticPod::new(stage.arena.namespace(), "proxy");
    stage.kubelets.add_node(sketch.static_pod(mirror)).await?;
    let agent = pod("agent").selects(&n).tolerates_everything();
    stage.arena.daemon_set("agent", agent).await?;
    stage.arena.healthy("agent", 1).await?;
    let kept = stage.arena.create(stage.kept("kept", &n).await?).await?;
    let finished = stage.kept("finished", &n).await?.phase("Succeeded");
    let finished = stage.arena.create(finished).await?;
    let before = wait::until("four pods", SOON, async || {
        let pods = stage.arena.pods().list(&kube::api::ListParams::default()).await?.items;
        ensure!(pods.len() == 4, "{} pods", pods.len());
        Ok(Some(pods))
    })
    .await?;

    stage.breaks(&n).await?;
    stage.phase(&n, "drained", DRAINED).await?;
    let staying: Vec<PodRef> = before
        .iter()
        .map(PodRef::of)
        .filter(|pod| pod.as_ref().is_ok_and(|pod| *pod != kept && *pod != finished))
        .collect::<Result<_>>()?;
    ensure!(staying.len() == 2, "{staying:?}");
    stage.witness.never_deleted_for(&staying, Duration::from_secs(3)).await?;
    // A finished pod may go or stay; nothing is lost by it.
    let taken = evictions(ctx.bed(), &stage.arena)?.succeeded();
    let others = taken.that(|record| record.name() != kept.name && record.name() != finished.name);
    ensure!(others.is_empty(), "evicted too: {:#?}", others.records());
    Ok(())
}

async fn what_must_not_be_lost_is_left_and_named_and_the_others_go(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let mut going = Vec::new();
    let mut cases = Vec::new();
    for name in ["bare", "protected", "files"] {
        let node = stage.node(name, QUICK).await?;
        let sketch = match name {
            "protected" => stage.kept(name, &node).await?.annotation(PROTECTED, "yes"),
            "files" => stage.kept(name, &node).await?.empty_dir("scratch"),
            _ => pod(name).on(&node),
        };
        let left = stage.arena.create(sketch).await?;
        for number in 0..5 {
            let sketch = stage.kept(&format!("{name}-{number}"), &node).await?;
            going.push(stage.arena.create(sketch).await?);
        }
        cases.push((left, node));
    }
    for (_, node) in &cases {
        stage.breaks(node).await?;
    }
    for (left, node) in &cases {
        let seen = stage.phase(node, "drained", DRAINED).await?;
        ensure!(seen.unschedulable, "{seen:?}");
        let why = seen.record["why"].as_str().unwrap_or_default();
        ensure!(why.contains(&left.name), "{} is not named: {}", left.name, seen.record);
        let is_complete = |seen: &Seen| {
            seen.mark().is_some_and(|m| m.0 == "False" && m.1.contains(" | Completed: "))
        };
        stage.until(node, "marked as completed", SOON, is_complete).await?;
        let kind = stage
            .told(node, "DrainSucceeded", &["Drained node; 1 pod is left", &left.name])
            .await?;
        ensure!(kind == "Normal", "told as {kind}");
    }
    let left: Vec<PodRef> = cases.into_iter().map(|(left, _)| left).collect();
    stage.witness.never_deleted_for(&left, QUIET).await?;
    only_these_evicted(ctx.bed(), &stage.arena, &going).await
}

async fn a_node_that_is_to_stay_in_use_is_told_of_and_not_cordoned(ctx: &Ctx) -> Result<()> {
    const SAFE: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
    let stage = Stage::set(ctx).await?;
    let mut cases = Vec::new();
    for name in ["bare", "protected", "unsafe", "strict"] {
        let node = stage.node(name, if name == "strict" { STRICT } else { IN_USE }).await?;
        let sketch = match name {
            "protected" => stage.kept(name, &node).await?.annotation(PROTECTED, "yes"),
            "unsafe" => stage.kept(name, &node).await?.annotation(SAFE, "false"),
            _ => pod(name).on(&node),
        };
        cases.push((name, stage.arena.create(sketch).await?, node));
    }
    for (_, _, node) in &cases {
        stage.breaks(node).await?;
    }
    for (name, pod, node) in &cases {
        let kind = stage.told(node, "DrainSchedulingFailed", &[&pod.name]).await?;
        ensure!(kind == "Warning", "{name} is told as {kind}");
    }
    let (_, pod, strict) = cases.last().context("cases")?;
    stage.cordoned(strict, SOON).await?;
    tokio::time::sleep(QUIET).await;
    for (name, _, node) in &cases {
        let seen = stage.look(node).await?;
        ensure!(seen.unschedulable == (*name == "strict"), "{name}: {seen:?}");
        ensure!(seen.mark().is_none(), "{name} is planned: {seen:?}");
    }
    only_these_evicted(ctx.bed(), &stage.arena, &[]).await?;
    // The pod goes, and with it what was in the way.
    stage.arena.remove(pod).await?;
    stage.phase(strict, "drained", DRAINED).await?;
    Ok(())
}

/// How long a pod was terminating that was evicted, by the requests.
async fn took(ctx: &Ctx, stage: &Stage, pod: &PodRef) -> Result<SignedDuration> {
    let taken = evictions(ctx.bed(), &stage.arena)?.succeeded().name(&pod.name);
    let evicted = taken.records().first().context("no eviction")?.request_received_timestamp;
    Ok(removed_at(ctx.bed(), pod).await?.duration_since(evicted))
}

async fn each_pod_is_given_its_own_grace(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let patient = stage.node("patient", QUICK).await?;
    let hasty = stage.node("hasty", HASTY).await?;
    let mut pods = Vec::new();
    for (name, node, grace) in
        [("long", &patient, 9), ("short", &patient, 3), ("cut", &hasty, 60), ("brief", &hasty, 1)]
    {
        pods.push(stage.arena.create(stage.kept(name, node).await?.grace(grace)).await?);
    }
    for node in [&patient, &hasty] {
        stage.kubelets.set(node.name(), Switch::IgnoreTerm(true)).await?;
    }
    for pod in &pods {
        stage.arena.healthy(&pod.name, 1).await?;
    }
    for node in [&patient, &hasty] {
        stage.breaks(node).await?;
    }
    let seen = stage.phase(&patient, "drained", DRAINED).await?;
    stage.phase(&hasty, "drained", DRAINED).await?;
    stage.witness.gone_within(&pods, SOON).await?;
    let mut times = Vec::new();
    for pod in &pods {
        times.push(took(ctx, &stage, pod).await?);
    }
    // A kubelet counts whole seconds, and the machine may be slow.
    let at_least = [8, 2, 1, 0].map(SignedDuration::from_secs);
    let is_cut = times.iter().zip(at_least).any(|(took, least)| *took < least);
    ensure!(!is_cut, "9, 3, 2 and 1 s: {times:?}");
    ensure!(times[2] < SignedDuration::from_secs(50), "2 of its 60 s: {times:?}");
    let last = removed_at(ctx.bed(), &pods[0]).await?;
    let early = last.duration_since(seen.time("ended")?) > SignedDuration::from_secs(1);
    ensure!(!early, "called drained at {}, and the last went at {last}", seen.record);
    stage.told(&hasty, "GracePeriodCut", &[]).await?;
    for record in evictions(ctx.bed(), &stage.arena)?.succeeded().records() {
        let grace = record.request_object["deleteOptions"]["gracePeriodSeconds"].as_i64();
        let expected = (record.name() == "cut").then_some(2);
        ensure!(grace == expected, "{} is given {grace:?}", record.name());
    }
    only_these_evicted(ctx.bed(), &stage.arena, &pods).await
}

async fn critical_pods_go_last(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", QUICK).await?;
    let critical = stage.kept("dns", &n).await?.priority_class("system-cluster-critical");
    let critical = stage.arena.create(critical).await?;
    let mut ordinary = Vec::new();
    for name in ["a", "b"] {
        ordinary.push(stage.arena.create(stage.kept(name, &n).await?).await?);
    }
    stage.kubelets.set(n.name(), Switch::IgnoreTerm(true)).await?;
    for pod in ordinary.iter().chain([&critical]) {
        stage.arena.healthy(&pod.name, 1).await?;
    }
    stage.breaks(&n).await?;
    stage.phase(&n, "drained", DRAINED).await?;
    let last = stage.witness.gone_within(&ordinary, SOON).await?;
    let last = last.iter().filter_map(|sighting| sighting.gone).map(|moment| moment.at).max();
    let critical_went = stage.witness.gone_within([&critical], SOON).await?[0].deleted;
    let critical_went = critical_went.context("deleted")?.at;
    ensure!(Some(critical_went) >= last, "a critical pod went before the ordinary ones were gone");
    let all: Vec<PodRef> = ordinary.into_iter().chain([critical]).collect();
    only_these_evicted(ctx.bed(), &stage.arena, &all).await
}

async fn what_terminates_already_is_only_awaited(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", QUICK).await?;
    stage.kubelets.set(n.name(), Switch::IgnoreTerm(true)).await?;
    let going = stage.arena.create(stage.kept("going", &n).await?.grace(12)).await?;
    stage.arena.healthy("going", 1).await?;
    stage.arena.pods().delete(&going.name, &DeleteParams::default()).await?;
    stage.breaks(&n).await?;
    let seen = stage.phase(&n, "drained", DRAINED).await?;
    let gone = removed_at(ctx.bed(), &going).await?;
    if seen.time("started")? >= gone {
        return Err(TooSlow::error("to begin the drain while the pod terminates"));
    }
    let early = gone.duration_since(seen.time("ended")?) > SignedDuration::from_secs(1);
    ensure!(!early, "called drained before {gone}: {}", seen.record);
    let asked = evictions(ctx.bed(), &stage.arena)?;
    ensure!(asked.is_empty(), "evicted again: {:#?}", asked.records());
    let deletes = ctx.bed().audit()?.by(User::Ostrakon).namespace(stage.arena.namespace());
    ensure!(deletes.verb(Verb::Delete).is_empty(), "deleted again");
    Ok(())
}

/// Its `NoExecute` taint is not held up by the budget, and the drain waits for what it deletes.
async fn what_a_taint_condemns_meanwhile_is_deleted_and_the_drain_ends(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", QUICK).await?;
    let elsewhere = stage.bare_node("elsewhere", QUICK).await?;
    let held = stage.held(&n, &elsewhere).await?;
    stage.breaks(&n).await?;
    stage.told_of_pod(&held.pod, &[&held.budget]).await?;
    stage.arena.taint(&n, no_execute("ostrakon.test/away").added_now()).await?;
    stage.witness.deleted_within([&held.pod], SOON).await?;
    stage.phase(&n, "drained", DRAINED).await?;
    stage.witness.gone_within([&held.pod], SOON).await?;
    let taken = evictions(ctx.bed(), &stage.arena)?.succeeded();
    ensure!(taken.is_empty(), "evicted as well: {:#?}", taken.records());
    let deletes = ctx.bed().audit()?.by(User::Ostrakon).namespace(stage.arena.namespace());
    let deletes = deletes.verb(Verb::Delete).resource("pods").succeeded().len();
    ensure!(deletes == 1, "{deletes} deletes");
    Ok(())
}
