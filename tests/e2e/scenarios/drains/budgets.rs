//! Disruption budgets: never exceeded, and named where they are in the way.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use tokio::time::Instant;

use super::policies::QUICK;
use super::stage::{DRAINED, SOON, Stage, evictions, only_these_evicted};
use crate::ctx::{Ctx, Scenario, trial};
use crate::harness::PodRef;
use crate::harness::Tally;
use crate::harness::cluster::pod;
use crate::harness::workloads::{APP, is_healthy};
use crate::scenarios::outside::figure;

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(a_budget_whose_room_comes_late_is_never_exceeded),
        trial!(a_pod_that_its_budget_holds_is_told_of_and_goes_when_it_may),
        trial!(what_no_budget_ever_lets_go_is_named_and_others_go_on),
    ]
}

async fn a_budget_whose_room_comes_late_is_never_exceeded(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", QUICK).await?;
    stage.arena.replica_set("web", 3, pod("web").grace(5)).await?;
    let pods = stage.arena.healthy("web", 3).await?;
    stage.arena.budget("web", "web", json!({ "minAvailable": 2 })).await?;
    stage.arena.budget_allows("web", 1).await?;
    let healthy = Tally::start(stage.arena.pods(), &format!("{APP}=web"), is_healthy).await?;

    stage.breaks(&n).await?;
    let pods: Vec<PodRef> = pods.into_iter().map(|placed| placed.pod).collect();
    stage.phase(&n, "draining", SOON).await?;
    ctx.bed()
        .audit_until("a refused eviction", SOON, |_| {
            let refused = evictions(ctx.bed(), &stage.arena).ok()?.code(429);
            (!refused.is_empty()).then_some(())
        })
        .await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let gone = pods.iter().filter(|pod| {
        stage.witness.sighting(pod).is_some_and(|sighting| sighting.deleted.is_some())
    });
    let gone = gone.count();
    ensure!(gone == 1, "{gone} went while there was no room for another");
    stage.node("spare", QUICK).await?;
    stage.phase(&n, "drained", DRAINED).await?;
    only_these_evicted(ctx.bed(), &stage.arena, &pods).await?;
    let (least, _) = healthy.range()?;
    let refused = evictions(ctx.bed(), &stage.arena)?.code(429).len();
    figure(format!("never fewer than {least} healthy pods of 3; {refused} refused evictions"));
    ensure!(least == 2, "only {least} were healthy");
    Ok(())
}

async fn a_pod_that_its_budget_holds_is_told_of_and_goes_when_it_may(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", QUICK).await?;
    let elsewhere = stage.bare_node("elsewhere", QUICK).await?;
    let held = stage.held(&n, &elsewhere).await?;
    let free = stage.arena.create(stage.kept("free", &n).await?).await?;
    let begin = Instant::now();
    stage.breaks(&n).await?;
    // It does not keep the others waiting.
    stage.witness.deleted_within([&free], SOON).await?;
    stage.told_of_pod(&held.pod, &[&held.budget]).await?;
    let seen = stage.look(&n).await?;
    ensure!(seen.phase() == "draining", "{seen:?}");
    ensure!(stage.witness.sighting(&held.pod).is_some_and(|one| one.deleted.is_none()), "it went");
    stage.let_go(&held).await?;
    stage.phase(&n, "drained", DRAINED).await?;
    let refused = evictions(ctx.bed(), &stage.arena)?.code(429).len();
    // Each is at least 5 s after the one before it.
    let most = 2 + begin.elapsed().as_secs() / 5;
    ensure!((1..=most).contains(&(refused as u64)), "{refused} refused evictions");
    only_these_evicted(ctx.bed(), &stage.arena, &[free, held.pod]).await
}

async fn what_no_budget_ever_lets_go_is_named_and_others_go_on(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let two = stage.node("two", QUICK).await?;
    let never = stage.node("never", QUICK).await?;
    let fine = stage.node("fine", QUICK).await?;
    let kept = async |name: &str, node| stage.arena.create(stage.kept(name, node).await?).await;
    let twice = kept("twice", &two).await?;
    // Such a budget is reckoned only where a set says how many pods there are to be.
    let strict = pod("strict").selects(&never).grace(5);
    stage.arena.replica_set("strict", 1, strict).await?;
    let strict = stage.arena.healthy("strict", 1).await?.remove(0).pod;
    let free = kept("free", &fine).await?;
    stage.arena.budget("first-of-two", "twice", json!({ "minAvailable": 0 })).await?;
    stage.arena.budget("second-of-two", "twice", json!({ "minAvailable": 0 })).await?;
    stage.arena.budget("no-one-ever", "strict", json!({ "maxUnavailable": 0 })).await?;
    // Budgets are read once for all nodes that are looked at within a second.
    tokio::time::sleep(Duration::from_secs(2)).await;
    for node in [&two, &never, &fine] {
        stage.breaks(node).await?;
    }
    stage.phase(&fine, "drained", DRAINED).await?;
    let both = ["first-of-two", "second-of-two", &twice.name];
    let one = ["no-one-ever", &strict.name];
    let kind = stage.told(&two, "DrainSchedulingFailed", &both).await?;
    ensure!(kind == "Warning", "told as {kind}");
    let kind = stage.told(&never, "DrainSchedulingFailed", &one).await?;
    ensure!(kind == "Warning", "told as {kind}");
    stage.told_of_pod(&twice, &both[..2]).await?;
    stage.told_of_pod(&strict, &one[..1]).await?;
    for node in [&two, &never] {
        let seen = stage.look(node).await?;
        ensure!(!seen.unschedulable && seen.record.is_null(), "{node} was touched: {seen:?}");
    }
    only_these_evicted(ctx.bed(), &stage.arena, &[free]).await
}
