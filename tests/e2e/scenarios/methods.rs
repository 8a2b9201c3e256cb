//! Rules for taints: budgets that are respected, deletions that follow, and taints that are ignored.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::Api;
use kube::api::ListParams;
use ostrakon::clock::system_time;
use serde_json::json;

use super::outside::{LATE, figure};
use super::start::{Account, complains, run};
use crate::ctx::{Ctx, Scenario, TooSlow, trial};
use crate::harness::audit::Audit;
use crate::harness::cluster::pod;
use crate::harness::ostrakon::Launch;
use crate::harness::workloads::APP;
use crate::harness::{Arena, Bed, NodeRef, PodRef, User, Verb, no_execute, wait};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(the_evict_only_account_suffices_and_no_pod_is_deleted).real().alone(),
        trial!(a_blocked_eviction_ends_with_a_deletion_at_its_moment).alone(),
        trial!(an_ignored_taint_is_reported_and_evicts_nothing).alone(),
    ]
}

const SOON: Duration = Duration::from_secs(30);
/// A refused eviction is retried after a minute at the most.
const RETRIED: Duration = Duration::from_secs(90);
const KEY: &str = "example.com/maintenance";

/// A configuration file with these rules.
fn config(bed: &Bed, name: &str, rules: &str) -> Result<PathBuf> {
    let path = bed.folder().join(format!("{name}.yaml"));
    let text = format!(
        "apiVersion: config.ostrakon.dev/v1alpha1\nkind: OstrakonConfiguration\n\
         taintEviction:\n  rules:\n{rules}"
    );
    std::fs::write(&path, text)?;
    Ok(path)
}

/// The permissions in a file of `deploy/kustomize/components`.
fn granted_by(file: &str) -> Result<Vec<PolicyRule>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("deploy/kustomize/components");
    let text = std::fs::read_to_string(folder.join(file))?;
    let role: ClusterRole = serde_saphyr::from_str(&text)?;
    role.rules.context("a role without rules")
}

/// A pod that its budget holds, and the other pod of the budget, which is not ready.
struct Held {
    pod: PodRef,
    other: PodRef,
}

const BUDGET: &str = "held";

/// A pod on a node that its budget holds. No kubelet looks after either pod.
async fn held(arena: &Arena) -> Result<(NodeRef, Held)> {
    let (n, elsewhere) = (arena.node("n").await?, arena.node("elsewhere").await?);
    let keeper = arena.keeper("held").await?;
    let like = |name: &str, node: &NodeRef| {
        pod(name).label(APP, BUDGET).on(node).owned_by(&keeper).grace(5)
    };
    let pod = arena.create(like("held", &n)).await?;
    let other = arena.create(like("other", &elsewhere)).await?;
    arena.make_ready(&pod).await?;
    arena.budget(BUDGET, BUDGET, json!({ "minAvailable": 1 })).await?;
    arena.budget_allows(BUDGET, 0).await?;
    Ok((n, Held { pod, other }))
}

/// Waits for an event about a pod.
async fn told(arena: &Arena, pod: &PodRef, reason: &str, words: &[&str]) -> Result<Event> {
    let about = ListParams::default().fields(&format!("involvedObject.uid={}", pod.uid));
    wait::until(&format!("{reason} about {pod} with {words:?}"), SOON, async || {
        let events = arena.events().list(&about).await?.items;
        let fits = |event: &Event| {
            let message = event.message.as_deref().unwrap_or_default();
            event.reason.as_deref() == Some(reason) && words.iter().all(|it| message.contains(it))
        };
        let all: Vec<_> = events.iter().map(|e| (e.reason.clone(), e.message.clone())).collect();
        let found = events.into_iter().find(fits);
        Ok(Some(found.with_context(|| format!("only {all:?}"))?))
    })
    .await
}

/// The verdict that an event has beside its message.
fn verdict(event: &Event) -> String {
    let annotations = event.metadata.annotations.clone().unwrap_or_default();
    annotations.get("ostrakon.dev/verdict").cloned().unwrap_or_default()
}

async fn the_evict_only_account_suffices_and_no_pod_is_deleted(ctx: &Ctx) -> Result<()> {
    let (bed, arena) = (ctx.bed(), ctx.arena().await?);
    let rules = [granted_by("evict-only/clusterrole.yaml")?, granted_by("evict/clusterrole.yaml")?];
    let account = Account::granted(bed, &arena, "evict-only", rules.concat()).await?;
    let by_account = |audit: Audit| audit.that(|it| it.username().ends_with(":evict-only"));
    let config = config(bed, "evict", "    - {name: all, key: '*', method: Evict}\n")?;
    // Without the rules it is not enough.
    let refused = wait::until("the rights to count", SOON, async || {
        let refused = run(bed, &account.kubeconfig, &["--leader-elect=false"]).await?;
        complains(&refused, &["missing permission: delete pods;"])?;
        Ok(Some(()))
    });
    refused.await?;

    let (n, held) = held(&arena).await?;
    let free = arena.create(pod("free").on(&n)).await?;
    let witness = arena.witness().await?;
    let launch = Launch::new(account.kubeconfig.clone());
    let launch = launch.arg(&format!("--config={}", config.display()));
    let ostrakon = launch.start(bed).await?;
    arena.taint(&n, no_execute(KEY)).await?;
    witness.deleted_within([&free], SOON).await?;
    let event = told(&arena, &held.pod, "TaintManagerEvictionBlocked", &[BUDGET]).await?;
    ensure!(verdict(&event).contains(KEY), "{event:?}");
    let event = told(&arena, &held.pod, "TaintManagerEviction", &["Marking for deletion"]).await?;
    ensure!(verdict(&event).contains("rule all; disruption budgets are respected"), "{event:?}");
    witness.never_deleted_for([&held.pod], Duration::from_secs(12)).await?;
    let blocked = ostrakon.metrics().await?;
    let blocked = blocked.sum("ostrakon_backlog_pods", &[("state", "blocked")]);
    ensure!(blocked == Some(1.0), "{blocked:?}");

    arena.make_ready(&held.other).await?;
    arena.budget_allows(BUDGET, 1).await?;
    witness.deleted_within([&held.pod], RETRIED).await?;
    for pod in [&free, &held.pod] {
        let condition = wait::until("a condition that tells the taint", SOON, async || {
            let seen = witness.sighting(pod).and_then(|seen| seen.disruption);
            let (_, condition) = seen.context("no condition")?;
            let reason = condition.reason.clone().unwrap_or_default();
            ensure!(reason == "DeletionByTaintManager", "{condition:?}");
            Ok(Some(condition))
        })
        .await?;
        figure(format!("{pod}: {:?}, {:?}", condition.reason, condition.message));
    }
    ostrakon.stop().await?;
    let all = by_account(bed.audit()?);
    let denied = by_account(bed.audit()?).code(403).that(|it| it.resource() != "");
    ensure!(denied.is_empty(), "refused: {:#?}", denied.records());
    let deletions = all.verb(Verb::Delete);
    ensure!(deletions.is_empty(), "deleted: {:#?}", deletions.records());
    let evictions = by_account(bed.audit()?).verb(Verb::Create).resource("pods/eviction");
    figure(format!("{} evictions asked for", evictions.len()));
    ensure!(evictions.succeeded().len() == 2, "each once");
    account.remove(bed).await
}

async fn a_blocked_eviction_ends_with_a_deletion_at_its_moment(ctx: &Ctx) -> Result<()> {
    let (bed, arena) = (ctx.bed(), ctx.arena().await?);
    let after = ctx.seconds(20);
    let rules = format!(
        "    - {{name: soft, key: {KEY}, method: EvictThenDelete, deleteAfter: {after}s}}\n"
    );
    let config = config(bed, "then-delete", &rules)?;
    let (n, held) = held(&arena).await?;
    let witness = arena.witness().await?;
    let launch = Launch::new(bed.kubeconfig(User::Ostrakon)?);
    let launch = launch.arg(&format!("--config={}", config.display()));
    let ostrakon = launch.start(bed).await?;
    let tainted = system_time();
    arena.taint(&n, no_execute(KEY)).await?;
    told(&arena, &held.pod, "TaintManagerEvictionBlocked", &[BUDGET]).await?;
    // A restart on the way does not begin anew: the first sight is recorded.
    wait::until("the record", SOON, async || {
        let recorded = arena.annotations(&n).await?;
        Ok(recorded.get(super::outside::RECORD).map(|_| ()))
    })
    .await?;
    let ostrakon = ostrakon.kill9()?.start(bed).await?;
    let due = tainted + SignedDuration::from_secs(after);
    if system_time() + SignedDuration::from_secs(2) > due {
        return Err(TooSlow::error("to restart before the deletion is due"));
    }
    witness.deleted_within([&held.pod], Duration::from_secs(60)).await?;
    let seen = witness.sighting(&held.pod).context("never seen")?;
    let at = seen.deleted.context("never deleted")?.wall;
    let late = at.duration_since(due);
    figure(format!("deleted {late:#} after the moment counted from before the taint was set"));
    ensure!(!late.is_negative(), "{late:#} too early");
    ensure!(late < LATE + SignedDuration::from_secs(3), "{late:#} late");
    let (_, condition) = seen.disruption.context("no condition")?;
    ensure!(condition.reason.as_deref() == Some("DeletionByTaintManager"), "{condition:?}");
    let told = wait::until("the event of the deletion", SOON, async || {
        let about = ListParams::default().fields(&format!("involvedObject.uid={}", held.pod.uid));
        let events = arena.events().list(&about).await?.items;
        let verdicts: Vec<_> = events.iter().map(verdict).collect();
        let is_it = |text: &&String| text.contains("disruption budgets were respected for");
        let found = verdicts.iter().find(is_it).cloned();
        Ok(Some(found.with_context(|| format!("only {verdicts:?}"))?))
    });
    figure(told.await?);
    ostrakon.stop().await?;
    Ok(())
}

async fn an_ignored_taint_is_reported_and_evicts_nothing(ctx: &Ctx) -> Result<()> {
    let (bed, arena) = (ctx.bed(), ctx.arena().await?);
    let rules = format!("    - {{name: leave, key: {KEY}, method: Ignore}}\n");
    let config = config(bed, "ignore", &rules)?;
    let (n, m) = (arena.node("n").await?, arena.node("m").await?);
    let stays = arena.create(pod("stays").on(&n)).await?;
    let goes = arena.create(pod("goes").on(&m)).await?;
    let witness = arena.witness().await?;
    let launch = Launch::new(bed.kubeconfig(User::Ostrakon)?);
    let ostrakon = launch.arg(&format!("--config={}", config.display())).start(bed).await?;
    arena.taint(&n, no_execute(KEY)).await?;
    arena.set_taints(&m, vec![no_execute(KEY), no_execute("example.com/other")]).await?;
    witness.deleted_within([&goes], SOON).await?;
    let events: Api<Event> = Api::namespaced(arena.client(), "default");
    let about = ListParams::default().fields(&format!("involvedObject.name={}", n.name()));
    let message = wait::until("an event about the node", SOON, async || {
        let events = events.list(&about).await?.items;
        let it = events.into_iter().find(|it| it.reason.as_deref() == Some("TaintIgnored"));
        Ok(it.and_then(|it| it.message))
    })
    .await?;
    ensure!(message.contains("rule leave ignores it; pods that stay: 1"), "{message}");
    witness.never_deleted_for([&stays], Duration::from_secs(5)).await?;
    let metrics = ostrakon.metrics().await?;
    ensure!(metrics.get("ostrakon_ignored_taints") == Some(2.0), "{metrics:?}");
    ensure!(metrics.get("ostrakon_ignored_taint_pods") == Some(1.0), "{metrics:?}");
    ensure!(metrics.sum("ostrakon_backlog_pods", &[]) == Some(0.0), "{metrics:?}");
    ostrakon.stop().await?;
    Ok(())
}
