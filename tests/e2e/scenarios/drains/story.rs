//! A drain from its start to its end, as people and programs see it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use kube::api::ListParams;
use ostrakon::clock::system_time;
use tokio::process::Command;

use super::policies::{AGE, AGING, QUICK};
use super::stage::{DRAINED, SOON, Seen, Stage, evictions, is_unschedulable, only_these_evicted};
use crate::ctx::{Ctx, Scenario, before, trial};
use crate::harness::cluster::pod;
use crate::harness::{Bed, NodeRef, PodRef, User};
use crate::scenarios::outside::figure;

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(a_bad_node_is_cordoned_drained_and_told_of),
        trial!(an_age_that_passes_unseen_still_counts),
        trial!(nodes_under_no_policy_are_nobodys_business),
    ]
}

/// In the order in which things happen, as draino calls them.
const REASONS: [&str; 5] =
    ["CordonStarting", "CordonSucceeded", "DrainScheduled", "DrainStarting", "DrainSucceeded"];

async fn a_bad_node_is_cordoned_drained_and_told_of(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.node("n", QUICK).await?;
    stage.arena.replica_set("web", 3, pod("web").grace(5)).await?;
    let pods = stage.arena.healthy("web", 3).await?;
    stage.node("spare", QUICK).await?;

    let broken = system_time();
    stage.breaks(&n).await?;
    let seen = stage.cordoned(&n, SOON).await?;
    figure(format!("cordoned {:#} after its condition", system_time().duration_since(broken)));
    ensure!(seen.conditions.as_deref() == Some("Broken=True,0s"), "for draino: {seen:?}");
    ensure!(seen.record["cordon"] == "ours", "{}", seen.record);
    let seen = stage.until(&n, "marked", SOON, |seen| seen.mark().is_some()).await?;
    let at = seen.time("scheduled")?;
    ensure!(at >= broken, "scheduled for {at}, and broken at {broken}");
    if seen.phase() == "scheduled" {
        let message = format!("Drain activity scheduled {at}");
        ensure!(seen.mark() == Some(("True", &message)), "{:?}", seen.scheduled);
        let reason = seen.scheduled.as_ref().and_then(|mark| mark.reason.as_deref());
        ensure!(reason == Some("Draino"), "reason {reason:?}");
    }

    let seen = stage.phase(&n, "drained", DRAINED).await?;
    is_completed(&stage, &n, at, seen.time("ended")?).await?;
    let went: Vec<PodRef> = pods.into_iter().map(|placed| placed.pod).collect();
    only_these_evicted(ctx.bed(), &stage.arena, &went).await?;
    for record in evictions(ctx.bed(), &stage.arena)?.records() {
        let options = &record.request_object["deleteOptions"];
        ensure!(options["gracePeriodSeconds"].is_null(), "a grace of its own: {record:#?}");
    }
    // The next ones were made meanwhile, and not here.
    let next = stage.arena.healthy("web", 3).await?;
    ensure!(next.iter().all(|pod| pod.node != n.name()), "{next:?}");

    for reason in REASONS {
        let kind = stage.told(&n, reason, &[]).await?;
        ensure!(kind == "Normal", "{reason} is {kind}");
    }
    let reasons = stage.reasons(&n).await?;
    ensure!(reasons == REASONS, "told {reasons:?}");
    kubectl_describes(ctx.bed(), &n).await
}

async fn is_completed(
    stage: &Stage,
    node: &NodeRef,
    scheduled: Timestamp,
    ended: Timestamp,
) -> Result<()> {
    let message = format!("Drain activity scheduled {scheduled} | Completed: {ended}");
    let is_it = |seen: &Seen| seen.mark() == Some(("False", message.as_str()));
    let seen = stage.until(node, &message, SOON, is_it).await?;
    let mark = seen.scheduled.context("just seen")?;
    let since = mark.last_transition_time.context("no transition time")?.0;
    ensure!(since >= ended, "it turned False at {since}, and the drain ended at {ended}");
    ensure!(seen.unschedulable, "a drained node stays cordoned: {:?}", seen.record);
    Ok(())
}

/// What a person sees, where there is a kubectl.
async fn kubectl_describes(bed: &Bed, node: &NodeRef) -> Result<()> {
    let kubeconfig = bed.kubeconfig(User::Admin)?;
    let described = Command::new("kubectl")
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .args(["describe", "node", node.name()])
        .kill_on_drop(true)
        .output()
        .await;
    let Ok(output) = described else {
        figure("there is no kubectl to describe the node with");
        return Ok(());
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let (_, events) = text.rsplit_once("Events:").context("no events")?;
    for reason in REASONS {
        ensure!(events.contains(reason), "kubectl describe node has no {reason}:\n{text}");
    }
    for part in ["draino.planet.com/conditions: Broken=True,0s", "DrainScheduled", "Unschedulable"]
    {
        ensure!(text.contains(part), "kubectl describe node has no {part}:\n{text}");
    }
    Ok(())
}

/// Nobody writes to the node: no kubelet, and no lifecycle controller either.
async fn an_age_that_passes_unseen_still_counts(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let n = stage.bare_node("n", QUICK).await?;
    let begin = system_time();
    let end = stage.condition(&n, AGING, "True").await?;
    let due = |from: Timestamp| from + jiff::SignedDuration::from_secs(AGE);

    let seen = stage.cordoned(&n, SOON).await?;
    let cordoned = system_time();
    // The API keeps whole seconds.
    let early = due(begin) - jiff::SignedDuration::from_secs(1);
    ensure!(cordoned >= early, "cordoned at {cordoned}, before {early}");
    let late = cordoned.duration_since(due(end));
    figure(format!("cordoned {late:#} after its condition came of age"));
    ensure!(seen.conditions.as_deref() == Some("Aging=True,6s"), "{seen:?}");
    // Without pods it is drained at once.
    stage.phase(&n, "drained", DRAINED).await?;
    Ok(())
}

async fn nodes_under_no_policy_are_nobodys_business(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let other = stage.node("other", "no-such-policy").await?;
    let good = stage.node("good", QUICK).await?;
    let young = stage.node("young", QUICK).await?;
    stage.breaks(&other).await?;
    stage.condition(&good, "SomethingElse", "True").await?;
    stage.recovers(&good).await?;
    // The API keeps whole seconds.
    let of_age = system_time() + jiff::SignedDuration::from_secs(AGE - 1);
    let youth = async {
        stage.condition(&young, AGING, "True").await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        stage.condition(&young, AGING, "False").await
    };
    before(of_age, "to clear a condition before it is of age", youth).await?;
    tokio::time::sleep(Duration::from_secs(6)).await;
    for node in stage.nodes().list(&ListParams::default()).await? {
        let name = node.metadata.name.clone().unwrap_or_default();
        if [&other, &good, &young].iter().any(|one| one.name() == name) {
            ensure!(!is_unschedulable(&node), "{name} is cordoned: {:?}", node.metadata);
            let about = stage.events(&NodeRef(name.clone())).await?;
            ensure!(about.is_empty(), "told about {name}: {about:?}");
        }
    }
    Ok(())
}
