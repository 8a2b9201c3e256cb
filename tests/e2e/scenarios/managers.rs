//! Two that evict by taints: ostrakon beside kube-controller-manager's own taint eviction, and what is
//! not to be taken for one.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use ostrakon::clock::system_time;
use serde_json::json;

use super::evidence::{SOON, Stage, seconds};
use super::outside::figure;
use crate::ctx::{Ctx, Scenario, trial};
use crate::harness::cluster::pod;
use crate::harness::ostrakon::Launch;
use crate::harness::{
    Arena, Bed, BedOptions, Ostrakon, PodRef, TaintEviction, User, http, no_execute, wait,
};

const ACTIVE: &str = "ostrakon_other_manager";
const PODS: &str = "ostrakon_other_manager_pods_total";

/// What was written in the first seconds of a term proves nothing: clocks may be apart by as much.
const SETTLED: Duration = Duration::from_secs(7);

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(the_built_in_manager_is_noticed_within_seconds).real().alone(),
        trial!(what_must_be_exclusive_holds_evictions_after_the_built_in_manager).real().alone(),
        trial!(deletions_of_others_are_not_taken_for_another_manager)
            .real()
            .alone()
            .within(Duration::from_secs(600)),
    ]
}

/// So many pods on a new node, which then gets a taint.
async fn evict(arena: &Arena, name: &str, count: usize) -> Result<Vec<PodRef>> {
    let node = arena.node(name).await?;
    let sketches = (0..count).map(|number| pod(&format!("{name}-{number}")).on(&node).running());
    let pods = arena.create_all(sketches).await?;
    arena.taint(&node, no_execute("k").added_now()).await?;
    Ok(pods)
}

/// How many pods have a condition that this client wrote.
async fn marked_by(arena: &Arena, manager: &str) -> Result<usize> {
    let list = arena.pods().list(&ListParams::default()).await?;
    let is_it = |pod: &&Pod| {
        let entries = pod.metadata.managed_fields.iter().flatten();
        let mut its = entries.filter(|entry| entry.manager.as_deref() == Some(manager));
        its.any(|it| {
            it.fields_v1.as_ref().is_some_and(|set| set.0.to_string().contains("DisruptionTarget"))
        })
    };
    Ok(list.items.iter().filter(is_it).count())
}

async fn are_going(arena: &Arena, pods: &[PodRef]) -> Result<()> {
    wait::until("the pods to be deleted", SOON, async || {
        for pod in pods {
            let stored = arena.pods().get_opt(&pod.name).await?;
            let is_going = stored.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
            ensure!(is_going, "{pod} is still there");
        }
        Ok(Some(()))
    })
    .await
}

async fn the_built_in_manager_is_noticed_within_seconds(_: &Ctx) -> Result<()> {
    let bed = Bed::start(BedOptions::default().controller_manager(TaintEviction::BuiltIn)).await?;
    let arena = bed.arena("two").await?;
    // What it evicted before ostrakon began proves nothing: it may have been switched off since.
    let before = evict(&arena, "before", 5).await?;
    are_going(&arena, &before).await?;
    let launch = Launch::new(bed.kubeconfig(User::Ostrakon)?);
    let ostrakon = launch.arg("--leader-elect=true").start(&bed).await?;
    wait::until("ostrakon to lead", SOON, async || {
        Ok((ostrakon.metrics().await?.get("ostrakon_leader") == Some(1.0)).then_some(()))
    })
    .await?;
    tokio::time::sleep(SETTLED).await;
    is_alone(&ostrakon).await?;

    let pods = evict(&arena, "both", 20).await?;
    let begin = system_time();
    are_going(&arena, &pods).await?;
    wait::until("ostrakon to notice the other manager", SOON, async || {
        let metrics = ostrakon.metrics().await?;
        if metrics.get(ACTIVE) != Some(1.0) {
            // Of a pod that ostrakon was first to mark, nothing can be told.
            let by_ostrakon = marked_by(&arena, "ostrakon").await?;
            ensure!(by_ostrakon < 20, "ostrakon marked all of the pods");
            ensure!(false, "{by_ostrakon} pods were marked by ostrakon");
        }
        Ok(Some(()))
    })
    .await?;
    let took = system_time().duration_since(begin);
    ensure!(took < seconds(20), "it took {took}");
    let seen = ostrakon.metrics().await?.sum(PODS, &[("evidence", "condition")]);
    figure(format!("the built-in manager was noticed after {took:#} by {seen:?} of 20 pods"));
    ostrakon.says(&["WARN", "kube-controller-manager evicts pods for NoExecute"], SOON).await?;
    let (code, body) = http::get(&ostrakon.url("/readyz")).await?;
    ensure!(code == 200 && body.contains("other manager: kube-controller-manager"), "{body}");
    let events: Api<Event> = Api::namespaced(bed.admin()?, "kube-system");
    wait::until("the event", SOON, async || {
        let list = events.list(&ListParams::default()).await?;
        let is_it = |event: &&Event| event.reason.as_deref() == Some("OtherTaintManager");
        let event = list.items.iter().find(is_it).context("no event")?;
        let message = event.message.clone().unwrap_or_default();
        ensure!(message.contains("-taint-eviction-controller"), "{message}");
        Ok(Some(()))
    })
    .await?;

    // Nothing more is counted once it is switched off.
    bed.set_taint_eviction(TaintEviction::Off).await?;
    let seen = ostrakon.metrics().await?.get(PODS);
    let alone = evict(&arena, "alone", 20).await?;
    are_going(&arena, &alone).await?;
    ensure!(ostrakon.metrics().await?.get(PODS) == seen, "ostrakon takes itself for another");
    ostrakon.stop().await?;
    bed.stop().await
}

async fn what_must_be_exclusive_holds_evictions_after_the_built_in_manager(_: &Ctx) -> Result<()> {
    let bed = Bed::start(BedOptions::default().controller_manager(TaintEviction::BuiltIn)).await?;
    let mut arenas = Vec::new();
    for number in 0..4 {
        arenas.push(bed.arena(&format!("of-{number}")).await?);
    }
    let launch = Launch::new(bed.kubeconfig(User::Ostrakon)?).arg("--require-exclusive");
    let ostrakon = launch.start(&bed).await?;
    tokio::time::sleep(SETTLED).await;
    // Which of the two is first is chance, but not twenty times.
    for arena in &arenas[..3] {
        let pods = evict(arena, "both", 20).await?;
        are_going(arena, &pods).await?;
    }
    ensure!(ostrakon.metrics().await?.get(ACTIVE) == Some(1.0), "it was not noticed");
    bed.set_taint_eviction(TaintEviction::Off).await?;
    let held = evict(&arenas[3], "held", 20).await?;
    wait::until("the evictions to be held", SOON, async || {
        let held = ostrakon.metrics().await?.sum("ostrakon_backlog_pods", &[("state", "held")]);
        ensure!(held == Some(20.0), "{held:?} are held");
        Ok(Some(()))
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(20)).await;
    for pod in &held {
        let stored = arenas[3].pods().get(&pod.name).await?;
        ensure!(stored.metadata.deletion_timestamp.is_none(), "{pod} was evicted");
    }
    ostrakon.stop().await?;
    bed.stop().await
}

/// A person deletes pods that are due, a Job is deleted with its pods, and pod GC deletes those of a
/// node that is gone.
async fn deletions_of_others_are_not_taken_for_another_manager(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let arena = &stage.arena;
    let ostrakon = ctx.ostrakon().await?;
    tokio::time::sleep(SETTLED).await;

    // Due at the same moment as a person deletes them, one after the other.
    let node = arena.node("person").await?;
    let after = ctx.seconds(5);
    let sketch = |number| pod(&format!("person-{number}")).on(&node).tolerates_for("k", after);
    let pods = arena.create_all((0..20).map(sketch)).await?;
    arena.taint(&node, no_execute("k").added_now()).await?;
    for pod in &pods {
        tokio::time::sleep(Duration::from_millis(400)).await;
        arena.pods().delete(&pod.name, &DeleteParams::default()).await?;
    }
    are_going(arena, &pods).await?;

    let node = arena.node("job").await?;
    let template = pod("job").on(&node).tolerates_for("k", ctx.seconds(10)).object();
    let mut spec = serde_json::to_value(template.spec)?;
    spec["restartPolicy"] = json!("Never");
    let job: Job = serde_json::from_value(json!({
        "metadata": {"name": "job"},
        "spec": {"parallelism": 5, "completions": 5, "template": {"spec": spec}},
    }))?;
    let jobs: Api<Job> = Api::namespaced(arena.client(), arena.namespace());
    jobs.create(&PostParams::default(), &job).await?;
    let of_job = ListParams::default().labels("job-name=job");
    let pods = wait::until("the pods of the job", SOON, async || {
        let list = arena.pods().list(&of_job).await?;
        ensure!(list.items.len() == 5, "{} pods", list.items.len());
        list.items.iter().map(PodRef::of).collect::<Result<Vec<_>>>().map(Some)
    })
    .await?;
    arena.taint(&node, no_execute("k").added_now()).await?;
    jobs.delete("job", &DeleteParams::background()).await?;
    are_going(arena, &pods).await?;

    let node = arena.node("gone").await?;
    let sketch = |number| pod(&format!("gone-{number}")).on(&node).running().tolerates_for("k", 30);
    let pods = arena.create_all((0..5).map(sketch)).await?;
    arena.taint(&node, no_execute("k").added_now()).await?;
    arena.delete_node(&node).await?;
    wait::until("pod GC", SOON * 3, async || {
        let list = arena.pods().list(&ListParams::default()).await?;
        let is_left =
            |one: &&Pod| pods.iter().any(|pod| one.metadata.name.as_ref() == Some(&pod.name));
        let left = list.items.iter().filter(is_left).count();
        ensure!(left == 0, "{left} are left");
        Ok(Some(()))
    })
    .await?;
    is_alone(&ostrakon).await
}

/// Fails if `ostrakon` has taken anyone for another manager.
async fn is_alone(ostrakon: &Ostrakon) -> Result<()> {
    let metrics = ostrakon.metrics().await?;
    for name in [ACTIVE, PODS] {
        ensure!(metrics.get(name).is_none_or(|value| value == 0.0), "{name}: {metrics:?}");
    }
    Ok(())
}
