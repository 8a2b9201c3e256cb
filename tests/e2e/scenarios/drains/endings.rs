//! Drains that do not end as planned: dead kubelets, nodes that vanish, deadlines.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::SignedDuration;
use ostrakon::sim::hollow::Switch;
use serde_json::json;

use super::policies::{DEAD, DEADLINE, DELETING, LIFTING, QUICK, SHORT};
use super::stage::{AT_ONCE, DRAINED, QUIET, RETRY, SOON, Seen, Stage, only_these_evicted};
use crate::ctx::{Ctx, Scenario, trial};
use crate::harness::{User, Verb};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(a_dead_node_is_cordoned_and_not_drained),
        trial!(a_node_that_vanishes_is_drained),
        trial!(a_node_that_is_made_anew_midway_is_not_drained),
        trial!(a_drain_that_fails_is_tried_again_and_once_more_on_request),
        trial!(at_the_deadline_a_node_is_uncordoned_where_the_policy_says_so),
        trial!(at_the_deadline_the_rest_is_deleted_where_the_policy_says_so),
    ]
}

async fn a_dead_node_is_cordoned_and_not_drained(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.bare_node("n", DEAD).await?;
    let kept = stage.arena.create(stage.kept("kept", &n).await?.running()).await?;
    stage.arena.set_ready(&n, "Unknown").await?;
    let seen = stage.cordoned(&n, AT_ONCE).await?;
    ensure!(seen.conditions.as_deref() == Some("Ready=Unknown,0s"), "{seen:?}");
    stage.told(&n, "DrainSchedulingFailed", &["kubelet"]).await?;
    stage.witness.never_deleted_for([&kept], Duration::from_secs(5)).await?;
    let seen = stage.look(&n).await?;
    ensure!(seen.phase() == "cordoned" && seen.mark().is_none(), "{seen:?}");
    ensure!(seen.record["why"].as_str().is_some_and(|why| why.contains("kubelet")), "{seen:?}");
    only_these_evicted(ctx.bed(), &stage.arena, &[]).await?;
    // Alive again, and good.
    stage.arena.set_ready(&n, "True").await?;
    stage.until(&n, "uncordoned", SOON, |seen| !seen.unschedulable).await?;
    only_these_evicted(ctx.bed(), &stage.arena, &[]).await
}

async fn a_node_that_vanishes_is_drained(ctx: &Ctx) -> Result<()> {
    let ostrakon = ctx.ostrakon().await?;
    let stage = Stage::set(ctx).await?;
    let ended = async || {
        let labels = [("result", "succeeded"), ("cause", "node_deleted")];
        let ended = ostrakon.metrics().await?.sum("ostrakon_drains_ended_total", &labels);
        anyhow::Ok(ended.unwrap_or_default())
    };
    let before = ended().await?;
    let n = stage.node("n", QUICK).await?;
    stage.kubelets.set(n.name(), Switch::IgnoreTerm(true)).await?;
    let slow = stage.arena.create(stage.kept("slow", &n).await?.grace(120)).await?;
    stage.arena.healthy("slow", 1).await?;
    stage.breaks(&n).await?;
    stage.witness.deleted_within([&slow], SOON).await?;
    stage.phase(&n, "draining", SOON).await?;
    stage.kubelets.remove_node(n.name()).await?;
    let kind = stage.told(&n, "DrainSucceeded", &[]).await?;
    ensure!(kind == "Normal", "told as {kind}");
    let after = ended().await?;
    ensure!(after > before, "{after} drains ended with their nodes, as before");
    only_these_evicted(ctx.bed(), &stage.arena, &[slow]).await
}

/// What has the name of a node that was being drained is another node.
async fn a_node_that_is_made_anew_midway_is_not_drained(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", QUICK).await?;
    stage.kubelets.set(n.name(), Switch::IgnoreTerm(true)).await?;
    let slow = stage.arena.create(stage.kept("slow", &n).await?.grace(20)).await?;
    stage.arena.healthy("slow", 1).await?;
    stage.breaks(&n).await?;
    stage.witness.deleted_within([&slow], SOON).await?;
    stage.kubelets.remove_node(n.name()).await?;
    stage.node("n", QUICK).await?;
    let next = stage.arena.create(stage.kept("next", &n).await?).await?;
    stage
        .stays(&n, "untouched", Duration::from_secs(6), |seen| {
            !seen.unschedulable && seen.record.is_null() && seen.mark().is_none()
        })
        .await?;
    stage.witness.never_deleted_for([&next], AT_ONCE).await?;
    // It can be bad like any other.
    stage.breaks(&n).await?;
    stage.phase(&n, "drained", DRAINED).await?;
    only_these_evicted(ctx.bed(), &stage.arena, &[slow, next]).await
}

async fn a_drain_that_fails_is_tried_again_and_once_more_on_request(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", SHORT).await?;
    let elsewhere = stage.bare_node("elsewhere", QUICK).await?;
    let held = stage.held(&n, &elsewhere).await?;
    stage.breaks(&n).await?;
    let failed = |times: u64| {
        move |seen: &Seen| seen.phase() == "failed" && seen.record["failures"] == times
    };
    let seen = stage.until(&n, "failed once", SOON, failed(1)).await?;
    let (started, ended) = (seen.time("started")?, seen.time("ended")?);
    let lasted = ended.duration_since(started).as_secs();
    ensure!((DEADLINE..DEADLINE + 4).contains(&lasted), "the drain lasted {lasted} s");
    ensure!(seen.unschedulable && seen.time("next")? > ended, "{seen:?}");
    let kind = stage.told(&n, "DrainFailed", &[&held.pod.name, &held.budget]).await?;
    ensure!(kind == "Warning", "told as {kind}");
    let is_failed =
        |seen: &Seen| seen.mark().is_some_and(|m| m.0 == "False" && m.1.contains(" | Failed: "));
    stage.until(&n, "marked as failed", SOON, is_failed).await?;

    let again = stage.phase(&n, "draining", SOON).await?;
    // The record keeps whole seconds.
    let early = seen.time("next")?.duration_since(again.time("started")?);
    ensure!(early < SignedDuration::from_secs(1), "{early:#} too soon: {again:?}");
    let seen = stage.until(&n, "failed twice", SOON, failed(2)).await?;
    ensure!(seen.record["next"].is_null(), "a third time: {}", seen.record);
    stage.let_go(&held).await?;
    let quiet = Duration::from_secs(6);
    stage.stays(&n, "failed", quiet, |seen| seen.phase() == "failed").await?;

    stage.patch(&n, json!({ "metadata": { "annotations": { RETRY: "true" } } })).await?;
    let seen = stage.phase(&n, "drained", SOON).await?;
    ensure!(!seen.annotations.contains_key(RETRY), "the request is left: {seen:?}");
    only_these_evicted(ctx.bed(), &stage.arena, &[held.pod]).await
}

async fn at_the_deadline_a_node_is_uncordoned_where_the_policy_says_so(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", LIFTING).await?;
    let elsewhere = stage.bare_node("elsewhere", QUICK).await?;
    let held = stage.held(&n, &elsewhere).await?;
    stage.breaks(&n).await?;
    stage.cordoned(&n, AT_ONCE).await?;
    let seen = stage.phase(&n, "failed", SOON).await?;
    ensure!(!seen.unschedulable, "{seen:?}");
    ensure!(seen.conditions.is_none(), "draino would take it for its own: {seen:?}");
    let quiet = Duration::from_secs(2);
    stage.stays(&n, "uncordoned", quiet, |seen| !seen.unschedulable).await?;
    stage.let_go(&held).await?;
    let seen = stage.phase(&n, "drained", DRAINED).await?;
    ensure!(seen.unschedulable && seen.record["cordon"] == "ours", "{seen:?}");
    only_these_evicted(ctx.bed(), &stage.arena, &[held.pod]).await
}

async fn at_the_deadline_the_rest_is_deleted_where_the_policy_says_so(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", DELETING).await?;
    let elsewhere = stage.bare_node("elsewhere", QUICK).await?;
    let held = stage.held(&n, &elsewhere).await?;
    stage.breaks(&n).await?;
    let seen = stage.phase(&n, "draining", SOON).await?;
    let deadline = seen.time("deadline")?;
    let sighting = stage
        .witness
        .deleted_between(&held.pod, deadline, deadline + SignedDuration::from_secs(10))
        .await?;
    ensure!(sighting.gone.is_none(), "it was not given its grace: {sighting:?}");
    stage.phase(&n, "drained", DRAINED).await?;
    let deletes = ctx.bed().audit()?.by(User::Ostrakon).namespace(stage.arena.namespace());
    let deletes = deletes.verb(Verb::Delete).resource("pods").succeeded();
    let [delete] = deletes.records() else {
        anyhow::bail!("{} deletes", deletes.len());
    };
    let uid = delete.uid_precondition().context("no UID")?;
    ensure!(uid == held.pod.uid, "another pod: {delete:#?}");
    stage.witness.gone_within([&held.pod], QUIET).await?;
    Ok(())
}
