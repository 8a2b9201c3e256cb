//! Drains that do not end as planned: dead kubelets, nodes that vanish, deadlines.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use ostrakon::sim::hollow::Switch;
use serde_json::{Value, json};

use super::policies::{DEAD, DEADLINE, DELETING, LIFTING, QUICK, SHORT};
use super::stage::{DRAINED, QUIET, RETRY, SOON, Seen, Stage, only_these_evicted, records};
use crate::ctx::{Ctx, Scenario, TooSlow, before, trial};
use crate::harness::{NodeRef, User, Verb};

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
    let seen = stage.cordoned(&n, SOON).await?;
    ensure!(seen.conditions.as_deref() == Some("Ready=Unknown,0s"), "{seen:?}");
    stage.told(&n, "DrainSchedulingFailed", &["the node is unreachable"]).await?;
    stage.witness.never_deleted_for([&kept], Duration::from_secs(5)).await?;
    let seen = stage.look(&n).await?;
    ensure!(seen.phase() == "cordoned" && seen.mark().is_none(), "{seen:?}");
    ensure!(
        seen.record["why"].as_str().is_some_and(|why| why.contains("the node is unreachable")),
        "{seen:?}"
    );
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
    stage.witness.never_deleted_for([&next], QUIET).await?;
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
    let seen = stage.until(&n, "failed twice", SOON, failed(2)).await?;
    ensure!(seen.unschedulable && seen.record["next"].is_null(), "a third time: {seen:?}");
    let kind = stage.told(&n, "DrainFailed", &[&held.pod.name, &held.budget]).await?;
    ensure!(kind == "Warning", "told as {kind}");
    let is_failed =
        |seen: &Seen| seen.mark().is_some_and(|m| m.0 == "False" && m.1.contains(" | Failed: "));
    stage.until(&n, "marked as failed", SOON, is_failed).await?;
    was_tried_twice(ctx, &n).await?;
    stage.let_go(&held).await?;
    let quiet = Duration::from_secs(6);
    stage.stays(&n, "failed", quiet, |seen| seen.phase() == "failed").await?;

    let request = json!({ "metadata": { "annotations": { RETRY: "true" } } });
    stage.patch(&n, request).await?;
    let is_over = |seen: &Seen| {
        !seen.annotations.contains_key(RETRY) && matches!(seen.phase(), "drained" | "failed")
    };
    let seen = stage.until(&n, "tried as it was requested", DRAINED, is_over).await?;
    if seen.phase() == "failed" {
        return Err(TooSlow::error("to drain a node within its policy's deadline"));
    }
    only_these_evicted(ctx.bed(), &stage.arena, &[held.pod]).await
}

/// By all that was recorded: each phase lasts for some seconds only.
async fn was_tried_twice(ctx: &Ctx, n: &NodeRef) -> Result<()> {
    let of = async |phase: &str, failures: u64| {
        let find = |_| {
            let failures_of = |record: &Value| record["failures"].as_u64().unwrap_or_default();
            let is_it =
                |record: &Value| record["phase"] == phase && failures_of(record) == failures;
            records(ctx.bed(), n).ok()?.into_iter().find(is_it)
        };
        ctx.bed().audit_until("the record", SOON, find).await
    };
    let (first, failed) = (of("draining", 0).await?, of("failed", 1).await?);
    let (again, failed_again) = (of("draining", 1).await?, of("failed", 2).await?);
    let time = |record: &Value, key: &str| -> Result<Timestamp> {
        Ok(record[key].as_str().with_context(|| format!("no {key} in {record}"))?.parse()?)
    };
    for (start, end) in [(&first, &failed), (&again, &failed_again)] {
        let lasted = time(end, "ended")?.duration_since(time(start, "started")?);
        // No sooner, and not as long as it would otherwise.
        let allowed = SignedDuration::from_secs(DEADLINE)..SignedDuration::from_secs(60);
        ensure!(allowed.contains(&lasted), "the drain lasted {lasted:#}: {start}, {end}");
    }
    let next = time(&failed, "next")?;
    ensure!(next > time(&failed, "ended")?, "without a pause: {failed}");
    // The record keeps whole seconds.
    let early = next.duration_since(time(&again, "started")?);
    ensure!(early < SignedDuration::from_secs(1), "{early:#} too soon: {again}");
    Ok(())
}

async fn at_the_deadline_a_node_is_uncordoned_where_the_policy_says_so(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", LIFTING).await?;
    let elsewhere = stage.bare_node("elsewhere", QUICK).await?;
    let held = stage.held(&n, &elsewhere).await?;
    stage.breaks(&n).await?;
    let has_failed = |seen: &Seen| seen.record["failures"].as_u64() >= Some(1);
    let seen = stage.until(&n, "failed", SOON, has_failed).await?;
    if seen.phase() != "failed" {
        return Err(TooSlow::error("to see the pause between two tries"));
    }
    ensure!(!seen.unschedulable, "{seen:?}");
    ensure!(seen.conditions.is_none(), "draino would take it for its own: {seen:?}");
    let pause = async {
        let quiet = Duration::from_secs(2);
        stage.stays(&n, "uncordoned", quiet, |seen| !seen.unschedulable).await?;
        stage.let_go(&held).await
    };
    before(seen.time("next")?, "to make room before the second try", pause).await?;
    let is_over = |seen: &Seen| seen.phase() == "drained" || seen.record["failures"] == 2;
    let seen = stage.until(&n, "drained", DRAINED, is_over).await?;
    if seen.record["failures"] == 2 {
        return Err(TooSlow::error("to drain a node within its policy's deadline"));
    }
    ensure!(seen.unschedulable && seen.record["cordon"] == "ours", "{seen:?}");
    only_these_evicted(ctx.bed(), &stage.arena, &[held.pod]).await
}

async fn at_the_deadline_the_rest_is_deleted_where_the_policy_says_so(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", DELETING).await?;
    let elsewhere = stage.bare_node("elsewhere", QUICK).await?;
    let held = stage.held(&n, &elsewhere).await?;
    stage.breaks(&n).await?;
    let has_begun = |seen: &Seen| !seen.record["deadline"].is_null();
    let seen = stage.until(&n, "being drained", SOON, has_begun).await?;
    let deadline = seen.time("deadline")?;
    let latest = deadline + SignedDuration::try_from(SOON)?;
    stage.witness.deleted_between(&held.pod, deadline, latest).await?;
    stage.phase(&n, "drained", DRAINED).await?;
    let deletes = ctx.bed().audit()?.by(User::Ostrakon).namespace(stage.arena.namespace());
    let deletes = deletes.verb(Verb::Delete).resource("pods").succeeded();
    let [delete] = deletes.records() else {
        anyhow::bail!("{} deletes", deletes.len());
    };
    let uid = delete.uid_precondition().context("no UID")?;
    ensure!(uid == held.pod.uid, "another pod: {delete:#?}");
    let grace = &delete.request_object["gracePeriodSeconds"];
    ensure!(grace.is_null(), "it was not given its own grace: {delete:#?}");
    ensure!(delete.request_received_timestamp >= deadline, "before {deadline}: {delete:#?}");
    stage.witness.gone_within([&held.pod], SOON).await?;
    Ok(())
}
