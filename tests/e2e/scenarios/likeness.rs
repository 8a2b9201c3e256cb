//! What the recordings say is what the API server says, so that the embedded one can be compared
//! with them where there is no control plane.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::ctx::{Ctx, Scenario, trial};
use crate::script;

pub(super) fn trials() -> Vec<Scenario> {
    vec![trial!(the_recordings_are_true)]
}

async fn the_recordings_are_true(ctx: &Ctx) -> Result<()> {
    let arena = ctx.arena().await?;
    let node = arena.node("n").await?;
    let played = script::play(&arena.client(), arena.namespace(), node.name()).await?;
    let path = script::recording();
    if std::env::var_os("OSTRAKON_RECORD").is_some() {
        std::fs::write(&path, format!("{}\n", serde_json::to_string_pretty(&played)?))?;
    }
    let recorded = std::fs::read_to_string(&path).context("make recordings")?;
    let recorded: Vec<Value> = serde_json::from_str(&recorded)?;
    let differences = script::differences(&recorded, &played);
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    Ok(())
}
