//! Beside cluster-autoscaler, which marks nodes by taints and uncordons without asking.

use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::SignedDuration;
use ostrakon::clock::system_time;
use serde_json::json;

use super::policies::{CALM, QUICK};
use super::stage::{DRAINED, QUIET, SOON, Stage, only_these_evicted};
use crate::ctx::{Ctx, Scenario, before, trial};
use crate::harness::TaintSketch;
use crate::harness::cluster::no_schedule;

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(a_node_that_it_removes_is_left_to_it),
        trial!(a_plan_waits_while_it_removes_the_node),
        trial!(its_blind_uncordon_is_undone_while_the_node_is_bad),
    ]
}

fn removing() -> TaintSketch {
    no_schedule("ToBeDeletedByClusterAutoscaler").value("1700000000")
}

async fn a_node_that_it_removes_is_left_to_it(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", QUICK).await?;
    let kept = stage.arena.create(stage.kept("kept", &n).await?).await?;
    stage.arena.taint(&n, removing()).await?;
    stage.breaks(&n).await?;
    stage
        .stays(&n, "untouched", Duration::from_secs(5), |seen| {
            !seen.unschedulable && seen.record.is_null() && seen.mark().is_none()
        })
        .await?;
    // It changes its mind, and the node is as bad as before.
    stage.arena.untaint(&n, "ToBeDeletedByClusterAutoscaler").await?;
    stage.cordoned(&n, SOON).await?;
    stage.phase(&n, "drained", DRAINED).await?;
    only_these_evicted(ctx.bed(), &stage.arena, &[kept]).await
}

async fn a_plan_waits_while_it_removes_the_node(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", CALM).await?;
    let kept = stage.arena.create(stage.kept("kept", &n).await?).await?;
    stage.breaks(&n).await?;
    let at = stage.scheduled(&n).await?;
    let tainting = stage.arena.taint(&n, removing());
    before(at, "to mark the node before its drain", tainting).await?;
    let left = at.duration_since(system_time()).max(SignedDuration::ZERO);
    stage.witness.never_deleted_for([&kept], Duration::try_from(left)? + QUIET).await?;
    only_these_evicted(ctx.bed(), &stage.arena, &[]).await?;
    stage.arena.untaint(&n, "ToBeDeletedByClusterAutoscaler").await?;
    stage.phase(&n, "drained", DRAINED).await?;
    only_these_evicted(ctx.bed(), &stage.arena, &[kept]).await
}

async fn its_blind_uncordon_is_undone_while_the_node_is_bad(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", QUICK).await?;
    stage.breaks(&n).await?;
    stage.phase(&n, "drained", DRAINED).await?;
    stage.arena.taint(&n, removing()).await?;
    let is_noted = |seen: &super::stage::Seen| seen.record["autoscaler"] == true;
    stage.until(&n, "noted as being removed", SOON, is_noted).await?;
    // As it does it: both at once, whoever's the cordon was.
    stage.patch(&n, json!({ "spec": { "unschedulable": null, "taints": null } })).await?;
    let seen = stage.cordoned(&n, SOON).await?;
    ensure!(seen.phase() == "drained", "a second drain: {seen:?}");
    stage.told(&n, "CordonSucceeded", &["again"]).await?;
    let stays = |seen: &super::stage::Seen| seen.unschedulable && seen.phase() == "drained";
    stage.stays(&n, "cordoned and drained", QUIET, stays).await?;
    // A person is obeyed, also after that.
    stage.cordon(&n, false).await?;
    stage.phase(&n, "released", SOON).await?;
    stage.stays(&n, "schedulable", QUIET, |seen| !seen.unschedulable).await
}
