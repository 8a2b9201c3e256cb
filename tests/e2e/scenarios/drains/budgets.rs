//! Disruption budgets: never exceeded, and named where they are in the way.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::SignedDuration;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::json;
use tokio::time::Instant;

use super::policies::{DELETING, IN_USE, QUICK};
use super::stage::{DRAINED, QUIET, SOON, Seen, Stage, evictions, only_these_evicted};
use crate::ctx::{Ctx, Scenario, trial};
use crate::harness::cluster::pod;
use crate::harness::webhook::Verdict;
use crate::harness::workloads::{APP, is_healthy};
use crate::harness::{EvictionWebhook, PodRef, Tally, wait};
use crate::scenarios::outside::figure;

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(a_budget_whose_room_comes_late_is_never_exceeded),
        trial!(a_pod_that_its_budget_holds_is_told_of_and_goes_when_it_may),
        trial!(what_no_budget_ever_lets_go_keeps_a_node_in_use_where_the_policy_says_so),
        trial!(what_budgets_hold_is_named_and_asked_for_until_they_change),
        trial!(a_storage_manager_that_drops_its_budget_is_not_waited_for_in_vain),
        trial!(what_is_hopeless_is_deleted_at_the_deadline_where_the_policy_says_so),
        trial!(a_webhook_that_refuses_is_asked_again_until_its_operator_moves_the_pod).real(),
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

async fn what_no_budget_ever_lets_go_keeps_a_node_in_use_where_the_policy_says_so(
    ctx: &Ctx,
) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let two = stage.node("two", IN_USE).await?;
    let never = stage.node("never", IN_USE).await?;
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

/// Removes a disruption budget of the arena.
async fn remove_budget(stage: &Stage, name: &str) -> Result<()> {
    let budgets: Api<PodDisruptionBudget> =
        Api::namespaced(stage.arena.client(), stage.arena.namespace());
    budgets.delete(name, &DeleteParams::default()).await.context("delete a budget")?;
    Ok(())
}

async fn what_budgets_hold_is_named_and_asked_for_until_they_change(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let two = stage.node("two", QUICK).await?;
    let least = stage.node("least", QUICK).await?;
    let kept = async |name: &str, node| stage.arena.create(stage.kept(name, node).await?).await;
    let twice = kept("twice", &two).await?;
    stage.arena.replica_set("web", 2, pod("web").selects(&least).grace(5)).await?;
    let web = stage.arena.healthy("web", 2).await?;
    let web: Vec<PodRef> = web.into_iter().map(|placed| placed.pod).collect();
    let mut free = Vec::new();
    for (name, node) in [("a", &two), ("b", &least), ("c", &least), ("d", &least)] {
        free.push(kept(name, node).await?);
    }
    stage.arena.budget("first-of-two", "twice", json!({ "minAvailable": 0 })).await?;
    stage.arena.budget("second-of-two", "twice", json!({ "minAvailable": 0 })).await?;
    stage.arena.budget("at-least-two", "web", json!({ "minAvailable": 2 })).await?;
    for node in [&two, &least] {
        stage.breaks(node).await?;
    }
    stage.witness.deleted_within(&free, SOON).await?;
    let both = ["first-of-two", "second-of-two", &twice.name];
    let numbers = ["at-least-two", "2 pods are held", "needs 2 healthy pods"];
    for (node, words) in [(&two, &both[..]), (&least, &numbers[..])] {
        let kind = stage.told(node, "DrainWaits", words).await?;
        ensure!(kind == "Warning", "told as {kind}");
        let is_named = |seen: &Seen| {
            let why = seen.record["why"].as_str().unwrap_or_default();
            seen.phase() == "draining" && words.iter().all(|word| why.contains(word))
        };
        stage.until(node, "named in the record", SOON, is_named).await?;
    }
    stage.told_of_pod(&twice, &both[..2]).await?;
    let held: Vec<PodRef> = web.iter().cloned().chain([twice.clone()]).collect();
    // Again and again, by the server's own word.
    ctx.bed()
        .audit_until("each is asked for twice", DRAINED, |_| {
            let is_asked_again = |pod: &PodRef| {
                let asked = evictions(ctx.bed(), &stage.arena);
                asked.is_ok_and(|asked| asked.name(&pod.name).len() >= 2)
            };
            held.iter().all(is_asked_again).then_some(())
        })
        .await?;
    stage.witness.never_deleted_for(&held, QUIET).await?;
    let begin = Instant::now();
    remove_budget(&stage, "second-of-two").await?;
    remove_budget(&stage, "at-least-two").await?;
    stage.phase(&two, "drained", DRAINED).await?;
    stage.phase(&least, "drained", DRAINED).await?;
    figure(format!("drained {:.1} s after the budgets changed", begin.elapsed().as_secs_f64()));
    let all: Vec<PodRef> = held.into_iter().chain(free).collect();
    only_these_evicted(ctx.bed(), &stage.arena, &all).await
}

async fn a_storage_manager_that_drops_its_budget_is_not_waited_for_in_vain(
    ctx: &Ctx,
) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", QUICK).await?;
    let manager = stage.arena.create(stage.kept("manager", &n).await?).await?;
    let user = stage.arena.create(stage.kept("user", &n).await?).await?;
    stage.arena.healthy("manager", 1).await?;
    stage.arena.budget("manager", "manager", json!({ "minAvailable": 1 })).await?;
    stage.breaks(&n).await?;
    // As the manager does: once the node is cordoned and nobody uses its volumes any more.
    stage.cordoned(&n, SOON).await?;
    stage.witness.gone_within([&user], DRAINED).await?;
    ensure!(stage.witness.sighting(&manager).is_some_and(|one| one.deleted.is_none()), "it went");
    let begin = Instant::now();
    remove_budget(&stage, "manager").await?;
    stage.phase(&n, "drained", DRAINED).await?;
    figure(format!("drained {:.1} s after the budget went", begin.elapsed().as_secs_f64()));
    only_these_evicted(ctx.bed(), &stage.arena, &[manager, user]).await
}

async fn what_is_hopeless_is_deleted_at_the_deadline_where_the_policy_says_so(
    ctx: &Ctx,
) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", DELETING).await?;
    let twice = stage.arena.create(stage.kept("twice", &n).await?).await?;
    stage.arena.replica_set("strict", 1, pod("strict").selects(&n).grace(5)).await?;
    let strict = stage.arena.healthy("strict", 1).await?.remove(0).pod;
    stage.arena.budget("first-of-two", "twice", json!({ "minAvailable": 0 })).await?;
    stage.arena.budget("second-of-two", "twice", json!({ "minAvailable": 0 })).await?;
    stage.arena.budget("no-one-ever", "strict", json!({ "maxUnavailable": 0 })).await?;
    stage.breaks(&n).await?;
    let has_begun = |seen: &Seen| !seen.record["deadline"].is_null();
    let seen = stage.until(&n, "being drained", SOON, has_begun).await?;
    let deadline = seen.time("deadline")?;
    let latest = deadline + SignedDuration::try_from(SOON)?;
    for pod in [&twice, &strict] {
        stage.witness.deleted_between(pod, deadline, latest).await?;
    }
    stage.phase(&n, "drained", DRAINED).await?;
    let taken = evictions(ctx.bed(), &stage.arena)?.succeeded();
    ensure!(taken.is_empty(), "budgets were not asked: {:#?}", taken.records());
    Ok(())
}

async fn a_webhook_that_refuses_is_asked_again_until_its_operator_moves_the_pod(
    ctx: &Ctx,
) -> Result<()> {
    let ostrakon = ctx.ostrakon().await?;
    let stage = Stage::set(ctx).await?;
    let verdicts = [
        ("denied-429", Verdict::Deny(429)),
        ("denied-500", Verdict::Deny(500)),
        ("failed-500", Verdict::Fail(500)),
    ];
    let mut cases = Vec::new();
    for (name, _) in verdicts {
        let node = stage.node(name, QUICK).await?;
        stage.arena.replica_set(name, 1, pod(name).selects(&node).grace(5)).await?;
        let pod = stage.arena.healthy(name, 1).await?.remove(0).pod;
        stage.arena.budget(name, name, json!({ "maxUnavailable": 0 })).await?;
        cases.push((pod, node));
    }
    // A set gives its pods names of its own.
    let verdicts: Vec<_> = verdicts.iter().zip(&cases).collect();
    let verdicts: Vec<_> = verdicts.iter().map(|((_, v), (pod, _))| (&*pod.name, *v)).collect();
    let webhook = EvictionWebhook::start(ctx.bed(), &stage.arena, &verdicts).await?;
    let failures = async |cause: &str| {
        let name = "ostrakon_drain_eviction_failures_total";
        let failures = ostrakon.metrics().await?.sum(name, &[("cause", cause)]);
        anyhow::Ok(failures.unwrap_or_default())
    };
    let before = failures("webhook").await?;
    for (_, node) in &cases {
        stage.breaks(node).await?;
    }
    for (pod, node) in &cases {
        // The first request is what starts the operator. It is sent again, and not all the time.
        wait::until(&format!("three requests for {pod}"), DRAINED, async || {
            Ok((webhook.asked(pod) >= 3).then_some(()))
        })
        .await?;
        stage.told_of_pod(pod, &["webhook", &webhook.name]).await?;
        stage.told(node, "DrainWaits", &[&pod.name, &webhook.name]).await?;
        let seen = stage.look(node).await?;
        ensure!(seen.phase() == "draining" && seen.unschedulable, "{seen:?}");
    }
    wait::until("all of them to be counted as a webhook's", SOON, async || {
        Ok((failures("webhook").await? >= before + 9.0).then_some(()))
    })
    .await?;
    let begin = Instant::now();
    // The node is cordoned: what the set makes anew waits for room elsewhere.
    for (pod, _) in &cases {
        stage.arena.remove(pod).await?;
    }
    for (_, node) in &cases {
        stage.phase(node, "drained", DRAINED).await?;
    }
    figure(format!("drained {:.1} s after the pods moved", begin.elapsed().as_secs_f64()));
    let asked = cases.iter().map(|(pod, _)| webhook.asked(pod)).collect::<Vec<_>>();
    figure(format!("the webhook was asked {asked:?} times"));
    webhook.lift().await
}
