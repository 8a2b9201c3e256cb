//! What the recordings say is what a real control plane does, so that the embedded cluster can be
//! compared with them where there is none. With `OSTRAKON_RECORD=1` they are taken anew.

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::ctx::{Ctx, Scenario, trial};
use crate::harness::How;
use crate::likeness::difference::differences;
use crate::likeness::stories::{Story, World};
use crate::likeness::{ANSWERS, EXPIRED, Recording, WATCHES, outcome, script, watches};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(the_recorded_answers_are_true).real(),
        trial!(the_recorded_watches_are_true).real(),
        trial!(the_recorded_end_of_a_watch_is_true).real().alone(),
        trial!(the_recorded_outcome_of_taints_is_true).real(),
        trial!(the_recorded_outcome_of_a_drain_is_true).real(),
        trial!(the_recorded_outcome_of_budgets_is_true).real(),
        trial!(the_recorded_outcome_of_a_taint_beside_a_drain_is_true).real(),
    ]
}

fn is_recording() -> bool {
    std::env::var_os("OSTRAKON_RECORD").is_some()
}

fn hold(recording: Recording, played: &Value) -> Result<()> {
    if is_recording() {
        recording.write(played)?;
    }
    let differences = differences(&recording.read()?, played);
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    Ok(())
}

async fn the_recorded_answers_are_true(ctx: &Ctx) -> Result<()> {
    let arena = ctx.arena().await?;
    let node = arena.node("n").await?;
    hold(ANSWERS, &script::play(&arena.client(), arena.namespace(), node.name()).await?)
}

async fn the_recorded_watches_are_true(ctx: &Ctx) -> Result<()> {
    let arena = ctx.arena().await?;
    let node = arena.node("n").await?;
    hold(WATCHES, &watches::play(&arena.client(), arena.namespace(), node.name()).await?)
}

async fn the_recorded_end_of_a_watch_is_true(ctx: &Ctx) -> Result<()> {
    let arena = ctx.arena().await?;
    ctx.bed().restart_apiserver(How::Graceful).await?;
    hold(EXPIRED, &watches::expired(&arena.client(), arena.namespace()).await?)
}

async fn the_recorded_outcome_of_taints_is_true(ctx: &Ctx) -> Result<()> {
    tell(ctx, Story::Taints).await
}

async fn the_recorded_outcome_of_a_drain_is_true(ctx: &Ctx) -> Result<()> {
    tell(ctx, Story::Drain).await
}

async fn the_recorded_outcome_of_budgets_is_true(ctx: &Ctx) -> Result<()> {
    tell(ctx, Story::Budgets).await
}

async fn the_recorded_outcome_of_a_taint_beside_a_drain_is_true(ctx: &Ctx) -> Result<()> {
    tell(ctx, Story::Both).await
}

async fn tell(ctx: &Ctx, story: Story) -> Result<()> {
    let _ostrakon = ctx.ostrakon().await?;
    let world = World::new(ctx.bed(), ctx.arena().await?).await?;
    outcome::hold(&world, story, is_recording()).await
}
