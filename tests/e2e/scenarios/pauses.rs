//! A person stops evictions, with the program or with `kubectl annotate`, and lets them go on.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams};
use ostrakon::leader::LEASE;
use serde_json::json;
use tokio::time::sleep;

use super::evidence::{SOON, only_these_evicted};
use crate::ctx::{Ctx, Scenario, trial};
use crate::harness::cluster::pod;
use crate::harness::ostrakon::Launch;
use crate::harness::program::{self, Run};
use crate::harness::{Ostrakon, User, no_execute, wait};

pub(super) fn trials() -> Vec<Scenario> {
    vec![trial!(a_person_pauses_spares_some_and_resumes).alone()]
}

/// Until the leader has seen what was annotated.
const SEEN: Duration = Duration::from_millis(1500);
/// How long nothing may be evicted.
const HELD: Duration = Duration::from_secs(5);

/// Runs the program as this user.
async fn ostrakon(ctx: &Ctx, user: User, args: &[&str]) -> Result<Run> {
    let kubeconfig = format!("--kubeconfig={}", ctx.bed().kubeconfig(user)?.display());
    let args: Vec<_> = args.iter().copied().chain([kubeconfig.as_str()]).collect();
    program::run(ctx.bed().folder(), &args, &[], SOON).await
}

/// As `kubectl annotate` does.
async fn kubectl_annotate(ctx: &Ctx, value: Option<&str>) -> Result<()> {
    let leases = Api::<Lease>::namespaced(ctx.bed().admin()?, "kube-system");
    let patch = json!({"metadata": {"annotations": {"ostrakon.dev/pause": value}}});
    let params =
        PatchParams { field_manager: Some("kubectl-annotate".into()), ..PatchParams::default() };
    leases.patch(LEASE, &params, &Patch::Merge(patch)).await?;
    Ok(())
}

async fn is_paused(ostrakon: &Ostrakon) -> Result<bool> {
    Ok(ostrakon.metrics().await?.get("ostrakon_paused") == Some(1.0))
}

fn says(run: &Run, code: i32, words: &[&str]) -> Result<()> {
    let text = format!("{}{}", run.stdout, run.stderr);
    ensure!(run.code() == Some(code), "{run:?}");
    for word in words {
        ensure!(text.contains(word), "no {word:?} in {text}");
    }
    Ok(())
}

async fn a_person_pauses_spares_some_and_resumes(ctx: &Ctx) -> Result<()> {
    let (bed, arena) = (ctx.bed(), ctx.arena().await?);
    let (wrong, right) = (arena.node("wrong").await?, arena.node("right").await?);
    let spared = arena.create(pod("spared").on(&wrong)).await?;
    let evicted = arena.create(pod("evicted").on(&right)).await?;
    let witness = arena.witness().await?;
    let launch = Launch::new(bed.kubeconfig(User::Ostrakon)?).arg("--leader-elect");
    let leader = launch.start(bed).await?;
    wait::until("the replica to lead", SOON, async || {
        ensure!(leader.metrics().await?.get("ostrakon_leader") == Some(1.0), "it stands by");
        Ok(Some(()))
    })
    .await?;

    let stranger = ostrakon(ctx, User::Stranger, &["pause", "--reason=x"]).await?;
    says(&stranger, 1, &["missing permission: patch leases", "components/pause"])?;
    let elsewhere =
        ostrakon(ctx, User::Admin, &["pause", "--reason=x", "--leader-elect-namespace=default"]);
    says(&elsewhere.await?, 1, &["there is no lease default/ostrakon", "is installed"])?;
    says(&ostrakon(ctx, User::Admin, &["resume"]).await?, 0, &["nothing is paused"])?;
    ensure!(!is_paused(&leader).await?, "by a command that failed");

    let paused =
        ostrakon(ctx, User::Admin, &["pause", "--reason=wrong taint", "--for=10m"]).await?;
    says(&paused, 0, &["paused by ", "until ", ": wrong taint", "reads it within a second"])?;
    sleep(SEEN).await;
    ensure!(is_paused(&leader).await?, "not seen");
    for node in [&wrong, &right] {
        arena.taint(node, no_execute("k").added_now()).await?;
    }
    witness.never_deleted_for([&spared, &evicted], HELD).await?;
    // By hand, over the one with an end.
    kubectl_annotate(ctx, Some("still looking")).await?;
    witness.never_deleted_for([&spared, &evicted], HELD).await?;
    leader.says(&["paused", "still looking"], SOON).await?;
    arena.untaint(&wrong, "k").await?;
    let resumed = ostrakon(ctx, User::Admin, &["resume", "--reason=fixed"]).await?;
    says(&resumed, 0, &["resumed", "still looking"])?;
    witness.deleted_within([&evicted], SOON).await?;
    ensure!(!is_paused(&leader).await?, "still paused");
    leader.says(&["the pause is over", "resumed by", "fixed"], SOON).await?;

    kubectl_annotate(ctx, Some("once more")).await?;
    sleep(SEEN).await;
    ensure!(is_paused(&leader).await?, "not seen");
    kubectl_annotate(ctx, None).await?;
    sleep(SEEN).await;
    ensure!(!is_paused(&leader).await?, "still paused");
    leader.stop().await?;
    only_these_evicted(bed, &arena, &[&evicted]).await
}
