//! Whose a cordon is, and when it goes.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use ostrakon::clock::system_time;
use serde_json::{Value, json};

use super::policies::{CALM, CLEAR_AFTER, CORDON_ONLY, QUICK};
use super::stage::{DRAINED, QUIET, SOON, Seen, Stage, evictions, only_these_evicted, records};
use crate::ctx::{Ctx, Scenario, before, trial};
use crate::harness::NodeRef;
use crate::harness::cluster::pod;
use crate::scenarios::outside::figure;

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(what_has_cleared_for_long_enough_is_uncordoned_if_the_cordon_is_ours),
        trial!(what_a_person_uncordons_is_left_alone),
        trial!(a_drain_under_way_stops_when_a_person_uncordons),
        trial!(a_plan_is_dropped_when_the_conditions_clear),
        trial!(a_drain_under_way_stops_when_the_conditions_clear),
        trial!(a_policy_that_only_cordons_evicts_nobody),
        trial!(a_node_whose_annotations_are_full_is_cordoned_drained_and_uncordoned),
    ]
}

async fn what_has_cleared_for_long_enough_is_uncordoned_if_the_cordon_is_ours(
    ctx: &Ctx,
) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let ours = stage.node("ours", QUICK).await?;
    let foreign = stage.node("foreign", QUICK).await?;
    let flickers = stage.node("flickers", QUICK).await?;
    stage.cordon(&foreign, true).await?;
    for node in [&ours, &foreign, &flickers] {
        stage.breaks(node).await?;
    }
    for node in [&ours, &foreign, &flickers] {
        stage.phase(node, "drained", DRAINED).await?;
    }
    let seen = stage.look(&foreign).await?;
    ensure!(seen.record["cordon"] == "foreign", "{}", seen.record);
    ensure!(seen.conditions.is_none(), "draino takes it for its own: {seen:?}");

    // The API keeps whole seconds.
    let due = system_time() + SignedDuration::from_secs(CLEAR_AFTER - 1);
    let flicker = async {
        stage.recovers(&flickers).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        stage.breaks(&flickers).await
    };
    before(due, "to break a node again before it is uncordoned", flicker).await?;
    let cleared = system_time();
    stage.recovers(&ours).await?;
    stage.recovers(&foreign).await?;
    let seen = stage.until(&ours, "uncordoned", SOON, |seen| !seen.unschedulable).await?;
    let took = system_time().duration_since(cleared);
    figure(format!("uncordoned {took:#} after its condition had cleared for {CLEAR_AFTER} s"));
    ensure!(took > SignedDuration::from_secs(CLEAR_AFTER - 1), "uncordoned after {took:#}");
    ensure!(seen.record.is_null() && seen.conditions.is_none(), "left behind: {seen:?}");
    stage.told(&ours, "UncordonSucceeded", &[]).await?;

    let is_let_go = |seen: &Seen| seen.record.is_null();
    let seen = stage.until(&foreign, "without a record", SOON, is_let_go).await?;
    ensure!(seen.unschedulable, "somebody else's cordon was lifted: {seen:?}");
    stage
        .stays(&flickers, "cordoned and drained", QUIET, |seen| {
            seen.unschedulable && seen.phase() == "drained"
        })
        .await?;
    // A second time, as the first.
    stage.breaks(&ours).await?;
    stage.cordoned(&ours, SOON).await?;
    stage.phase(&ours, "drained", DRAINED).await?;
    Ok(())
}

async fn what_a_person_uncordons_is_left_alone(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", CALM).await?;
    stage.arena.replica_set("web", 2, pod("web")).await?;
    let pods = stage.arena.healthy("web", 2).await?;
    stage.breaks(&n).await?;
    let at = stage.scheduled(&n).await?;
    before(at, "to uncordon the node before its drain", stage.cordon(&n, false)).await?;
    stage.until(&n, "released", SOON, |seen| seen.phase() == "released").await?;
    stage.told(&n, "DrainCancelled", &["uncordoned"]).await?;
    let seen = stage
        .until(&n, "not marked", SOON, |seen| seen.mark().is_some_and(|mark| mark.0 == "False"))
        .await?;
    ensure!(seen.conditions.is_none(), "draino would undo it: {seen:?}");
    // Until the drain would have begun, and a little longer.
    let left = at.duration_since(system_time()).max(SignedDuration::ZERO);
    let left = Duration::try_from(left)? + QUIET;
    stage.stays(&n, "schedulable", left, |seen| !seen.unschedulable).await?;
    stage.witness.never_deleted_for(pods.iter().map(|placed| &placed.pod), QUIET).await?;
    ensure!(evictions(ctx.bed(), &stage.arena)?.is_empty(), "something was evicted");
    Ok(())
}

async fn a_drain_under_way_stops_when_a_person_uncordons(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", QUICK).await?;
    let elsewhere = stage.bare_node("elsewhere", QUICK).await?;
    let held = stage.held(&n, &elsewhere).await?;
    stage.breaks(&n).await?;
    stage.phase(&n, "draining", SOON).await?;
    stage.cordon(&n, false).await?;
    stage.phase(&n, "released", SOON).await?;
    stage.let_go(&held).await?;
    // The next try of the eviction would come within this.
    stage.witness.never_deleted_for([&held.pod], Duration::from_secs(12)).await?;
    ensure!(!stage.look(&n).await?.unschedulable, "cordoned again");
    only_these_evicted(ctx.bed(), &stage.arena, &[]).await
}

async fn a_plan_is_dropped_when_the_conditions_clear(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", CALM).await?;
    stage.arena.replica_set("web", 2, pod("web")).await?;
    stage.arena.healthy("web", 2).await?;
    stage.breaks(&n).await?;
    let at = stage.scheduled(&n).await?;
    let cleared = system_time();
    before(at, "to clear the condition before the drain", stage.recovers(&n)).await?;
    stage.told(&n, "DrainCancelled", &[]).await?;
    uncordoned_and_not_drained(ctx, &stage, &n, cleared).await?;
    let left = at.duration_since(system_time()).max(SignedDuration::ZERO);
    tokio::time::sleep(Duration::try_from(left)? + QUIET).await;
    ensure!(
        !records(ctx.bed(), &n)?.iter().any(|record| record["phase"] == "draining"),
        "it was begun"
    );
    only_these_evicted(ctx.bed(), &stage.arena, &[]).await
}

/// It is cordoned for as long as the condition must be good, and no more after that.
async fn uncordoned_and_not_drained(
    ctx: &Ctx,
    stage: &Stage,
    n: &NodeRef,
    cleared: Timestamp,
) -> Result<()> {
    stage.until(n, "uncordoned", SOON, |seen| !seen.unschedulable).await?;
    let took = system_time().duration_since(cleared);
    ensure!(took > SignedDuration::from_secs(CLEAR_AFTER - 1), "uncordoned after {took:#}");
    ctx.bed()
        .audit_until("the end of the record", SOON, |_| {
            let records = records(ctx.bed(), n).ok()?;
            records.last().is_some_and(Value::is_null).then_some(())
        })
        .await?;
    let records = records(ctx.bed(), n)?;
    let [.., last, _] = &records[..] else { bail!("{} records", records.len()) };
    ensure!(last["phase"] == "cordoned", "uncordoned out of {last}");
    Ok(())
}

async fn a_drain_under_way_stops_when_the_conditions_clear(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", QUICK).await?;
    let elsewhere = stage.bare_node("elsewhere", QUICK).await?;
    let held = stage.held(&n, &elsewhere).await?;
    stage.breaks(&n).await?;
    stage.phase(&n, "draining", SOON).await?;
    let cleared = system_time();
    stage.recovers(&n).await?;
    let has_stopped = |seen: &Seen| seen.phase() != "draining";
    stage.until(&n, "not being drained", SOON, has_stopped).await?;
    stage.let_go(&held).await?;
    uncordoned_and_not_drained(ctx, &stage, &n, cleared).await?;
    stage.witness.never_deleted_for([&held.pod], Duration::from_secs(10)).await?;
    only_these_evicted(ctx.bed(), &stage.arena, &[]).await
}

async fn a_policy_that_only_cordons_evicts_nobody(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", CORDON_ONLY).await?;
    let kept = stage.kept("kept", &n).await?;
    let kept = stage.arena.create(kept).await?;
    // It could not be drained, which is of no interest here.
    let bare = stage.arena.create(pod("bare").on(&n)).await?;
    stage.breaks(&n).await?;
    let seen = stage.cordoned(&n, SOON).await?;
    ensure!(seen.conditions.as_deref() == Some("Broken=True,0s"), "{seen:?}");
    stage.witness.never_deleted_for([&kept, &bare], Duration::from_secs(5)).await?;
    let seen = stage.look(&n).await?;
    ensure!(seen.phase() == "cordoned" && seen.mark().is_none(), "{seen:?}");
    only_these_evicted(ctx.bed(), &stage.arena, &[]).await
}

async fn a_node_whose_annotations_are_full_is_cordoned_drained_and_uncordoned(
    ctx: &Ctx,
) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", QUICK).await?;
    let kept = stage.kept("kept", &n).await?;
    let kept = stage.arena.create(kept).await?;
    // All annotations of an object may have 256 KiB, and a record has more than 60 bytes.
    let is_full = async || -> Result<bool> {
        let annotations = stage.look(&n).await?.annotations;
        let length: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
        let left = (256_usize << 10).saturating_sub(length + "filler".len() + 60);
        let filler = annotations.get("filler").map_or(0, String::len) + left;
        let patch = json!({"metadata": {"annotations": {"filler": "x".repeat(filler)}}});
        stage.patch(&n, patch).await?;
        Ok(left < 60)
    };
    ensure!(!is_full().await?, "it was full before");
    stage.breaks(&n).await?;
    let seen = stage.cordoned(&n, SOON).await?;
    ensure!(seen.record.is_null() && seen.conditions.is_none(), "there was room: {seen:?}");
    let kind = stage.told(&n, "DrainRecordRefused", &["Too long", "ostrakon.dev/drain"]).await?;
    ensure!(kind == "Warning", "{kind}");
    let is_done =
        |seen: &Seen| seen.mark().is_some_and(|(_, message)| message.contains("Completed"));
    stage.until(&n, "drained", DRAINED, is_done).await?;
    only_these_evicted(ctx.bed(), &stage.arena, &[kept]).await?;
    let cleared = system_time();
    stage.recovers(&n).await?;
    stage.until(&n, "uncordoned", SOON, |seen| !seen.unschedulable).await?;
    let took = system_time().duration_since(cleared);
    ensure!(took > SignedDuration::from_secs(CLEAR_AFTER - 1), "uncordoned after {took:#}");
    stage.told(&n, "UncordonSucceeded", &[]).await?;
    Ok(())
}
