//! The API server, or the view of it, is gone for a while.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::try_join;
use kube::api::{ListParams, Patch, PatchParams};
use ostrakon::clock::system_time;
use serde_json::json;

use super::evidence::{
    AFTER, QUIET, SOON, only_these_evicted, only_these_evicted_of_those_tried, seconds, this_second,
};
use crate::ctx::{Ctx, Scenario, trial};
use crate::harness::cluster::pod;
use crate::harness::ostrakon::Launch;
use crate::harness::{
    Arena, Bed, Fault, How, Match, Ostrakon, PodRef, User, Verb, http, no_execute, wait,
};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(an_api_server_that_is_restarted_delays_and_changes_nothing).alone(),
        trial!(an_api_server_that_is_killed_delays_and_changes_nothing).alone(),
        trial!(a_store_that_goes_back_in_time_loses_no_eviction).alone(),
        trial!(a_start_waits_for_an_api_server_that_is_away).alone(),
        trial!(what_comes_due_after_a_silent_drop_goes_within_20_s).alone(),
        trial!(behind_a_cut_watch_only_what_is_still_condemned_goes).alone(),
        trial!(behind_a_cut_pod_watch_new_tolerations_count).alone(),
    ]
}

async fn an_api_server_that_is_restarted_delays_and_changes_nothing(ctx: &Ctx) -> Result<()> {
    the_api_server_is_away(ctx, How::Graceful).await
}

async fn an_api_server_that_is_killed_delays_and_changes_nothing(ctx: &Ctx) -> Result<()> {
    the_api_server_is_away(ctx, How::Kill).await
}

async fn the_api_server_is_away(ctx: &Ctx, how: How) -> Result<()> {
    let bed = ctx.bed();
    let arena = ctx.arena().await?;
    let ostrakon = Ostrakon::start(bed).await?;
    let witness = arena.witness().await?;
    let (n, mended, late) =
        (arena.node("n").await?, arena.node("mended").await?, arena.node("late").await?);
    let an_hour_ago = this_second() - seconds(3600);
    let counting = |name: &str, node, seconds| {
        pod(name).on(node).grace(0).scheduled_at(an_hour_ago).tolerates_for("k", seconds)
    };
    let soon = arena.create(counting("soon", &n, 5)).await?;
    let far = arena.create(counting("far", &n, 16)).await?;
    let forever = arena.create(pod("forever").on(&n).tolerates("k")).await?;
    let saved = arena.create(counting("saved", &mended, 16)).await?;
    let victim = arena.create(pod("victim").on(&late).grace(0)).await?;
    let added = this_second();
    arena.taint(&n, no_execute("k").added_at(added)).await?;
    arena.taint(&mended, no_execute("k")).await?;
    let all = [&soon, &far, &forever, &saved, &victim];
    witness.never_deleted_until(all, added + seconds(2)).await?;

    bed.stop_apiserver(how).await?;
    // One deadline passes while nobody is there.
    let soon_at = added + seconds(5);
    let left = soon_at.duration_since(system_time()).max(seconds(0));
    tokio::time::sleep(left.try_into()?).await;
    bed.start_apiserver().await?;
    let back = system_time();
    arena.untaint(&mended, "k").await?;
    arena.taint(&late, no_execute("k").added_now()).await?;

    let far_at = added + seconds(16);
    // As long as the server was away, pauses have grown; they start anew with the next pod.
    let patience = back.max(soon_at) + seconds(20);
    try_join!(
        witness.deleted_between(&soon, soon_at, patience),
        witness.deleted_between(&far, far_at, far_at.max(back) + AFTER),
        witness.deleted_within([&victim], SOON),
        witness.never_deleted_until([&forever, &saved], far_at.max(back) + AFTER),
    )?;
    only_these_evicted(bed, &arena, &[&soon, &far, &victim]).await?;
    ostrakon.stop().await?;
    Ok(())
}

/// When it is back it refuses everything at first, until it has read the roles.
async fn a_start_waits_for_an_api_server_that_is_away(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let arena = ctx.arena().await?;
    let witness = arena.witness().await?;
    let n = arena.node("n").await?;
    let victim = arena.create(pod("victim").on(&n).grace(0)).await?;
    arena.create(pod("guest").on(&n).tolerates("k")).await?;
    arena.taint(&n, no_execute("k").added_now()).await?;

    bed.stop_apiserver(How::Kill).await?;
    let mut ostrakon = Launch::new(bed.kubeconfig(User::Ostrakon)?).spawn(bed)?;
    let readyz = ostrakon.url("/readyz");
    wait::until("it to wait for the API server", SOON, async || {
        let (code, body) = http::get(&readyz).await?;
        ensure!(code == 503 && body.contains("API server"), "/readyz says {code}: {body}");
        Ok(Some(()))
    })
    .await?;
    bed.start_apiserver().await?;
    ostrakon.ready().await?;
    witness.only_these_deleted([&victim], SOON, QUIET).await?;
    only_these_evicted(bed, &arena, &[&victim]).await?;
    let log = ostrakon.log()?;
    ensure!(log.contains("the API server answers"), "{log}");
    ostrakon.stop().await?;
    Ok(())
}

async fn behind_a_cut_watch_only_what_is_still_condemned_goes(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let arena = ctx.arena().await?;
    let proxy = bed.fault_proxy(1).await?;
    let kubeconfig = bed.kubeconfig_via(&proxy, User::Ostrakon)?;
    let ostrakon = Launch::new(kubeconfig).start(bed).await?;
    let witness = arena.witness().await?;
    let (n, mended, late) =
        (arena.node("n").await?, arena.node("mended").await?, arena.node("late").await?);
    let counting = |name: &str, node| pod(name).on(node).grace(0).tolerates_for("k", 6);
    let condemned = arena.create(counting("condemned", &n)).await?;
    let forever = arena.create(pod("forever").on(&n).tolerates("k")).await?;
    let first = arena.create(counting("reborn", &n)).await?;
    let saved = arena.create(counting("saved", &mended)).await?;
    let victim = arena.create(pod("victim").on(&late).grace(0)).await?;
    for node in [&n, &mended] {
        arena.taint(node, no_execute("k").added_now()).await?;
    }
    let deadline = system_time() + seconds(6);
    let all = [&condemned, &forever, &first, &saved, &victim];
    witness.never_deleted_for(all, Duration::from_secs(1)).await?;

    let looks = [Verb::Watch, Verb::List];
    let watches = Match::verbs([Verb::Watch]);
    proxy.set_rules(vec![Match::verbs(looks).then(Fault::status(503))]);
    ensure!(proxy.cut(&watches) == 2, "one watch of nodes, one of pods");
    wait::until("the watches to be known as cut", SOON, async || {
        let metrics = ostrakon.metrics().await?;
        Ok((metrics.get("ostrakon_watch_connected") == Some(0.0)).then_some(()))
    })
    .await?;
    arena.untaint(&mended, "k").await?;
    arena.taint(&late, no_execute("k").added_now()).await?;
    arena.remove(&first).await?;
    let second = arena.create(pod("reborn").on(&n).grace(0).tolerates("k")).await?;

    // It knows what it knew, asks the API server before it acts, and that one answers.
    witness.deleted_within([&condemned], (seconds(6) + AFTER).try_into()?).await?;
    witness.never_deleted_until([&forever, &second, &saved], deadline + seconds(3)).await?;
    let metrics = ostrakon.metrics().await?;
    let unconfirmed = metrics.sum("ostrakon_evictions_total", &[("result", "unconfirmed")]);
    ensure!(unconfirmed >= Some(1.0), "nothing was put off: {unconfirmed:?}");

    proxy.clear();
    witness.deleted_within([&victim], SOON).await?;
    witness.never_deleted_for([&forever, &second, &saved], QUIET * 2).await?;
    only_these_evicted_of_those_tried(bed, &arena, &[&condemned, &victim]).await?;
    let metrics = ostrakon.metrics().await?;
    ensure!(metrics.get("ostrakon_watch_connected") == Some(2.0), "{metrics:?}");
    ensure!(metrics.get("ostrakon_backlog_pods") == Some(0.0), "{metrics:?}");
    ostrakon.stop().await?;
    Ok(())
}

async fn behind_a_cut_pod_watch_new_tolerations_count(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let arena = ctx.arena().await?;
    let proxy = bed.fault_proxy(1).await?;
    let kubeconfig = bed.kubeconfig_via(&proxy, User::Ostrakon)?;
    let ostrakon = Launch::new(kubeconfig).start(bed).await?;
    let witness = arena.witness().await?;
    let n = arena.node("n").await?;
    let counting = |name: &str| pod(name).on(&n).grace(0).tolerates_for("k", 6);
    let spared = arena.create(counting("spared")).await?;
    let condemned = arena.create(counting("condemned")).await?;
    arena.taint(&n, no_execute("k").added_now()).await?;
    let deadline = system_time() + seconds(6);
    witness.never_deleted_for([&spared, &condemned], Duration::from_secs(1)).await?;

    let of_pods = Match::verbs([Verb::Watch, Verb::List]).resource("pods");
    proxy.set_rules(vec![of_pods.then(Fault::status(503))]);
    ensure!(proxy.cut(&Match::watch("pods")) == 1);
    let mut object = arena.pods().get(&spared.name).await?;
    let tolerations = object.spec.get_or_insert_default().tolerations.get_or_insert_default();
    tolerations[0].toleration_seconds = None;
    let patch = Patch::Merge(json!({ "spec": { "tolerations": tolerations } }));
    arena.pods().patch(&spared.name, &PatchParams::default(), &patch).await?;

    witness.deleted_within([&condemned], (seconds(6) + AFTER).try_into()?).await?;
    let left = (deadline + AFTER).duration_since(system_time()).max(seconds(0));
    tokio::time::sleep(left.try_into()?).await;
    proxy.clear();
    tokio::time::sleep(QUIET).await;
    // It learns of the toleration by the answer to its patch, so the condition is there.
    let sighting = witness.seen(&spared).await?;
    ensure!(sighting.deleted.is_none(), "deleted although it tolerates the taint: {sighting:?}");
    let deletes = bed.audit()?.by(User::Ostrakon).verb(Verb::Delete).name(&spared.name);
    ensure!(deletes.namespace(arena.namespace()).is_empty());
    ostrakon.stop().await?;
    Ok(())
}

/// How soon what is due must go after a drop that nobody was told of.
const AFTER_A_DROP: Duration = Duration::from_secs(20);
/// For how long connections are in use before the drop.
const IN_USE: Duration = Duration::from_secs(12);

async fn what_comes_due_after_a_silent_drop_goes_within_20_s(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let arena = ctx.arena().await?;
    let (proxy, kubeconfig) = bed.silent_proxy(User::Ostrakon).await?;
    let ostrakon = Launch::new(kubeconfig).start(bed).await?;
    let witness = arena.witness().await?;
    let (first, second) = (arena.node("first").await?, arena.node("second").await?);
    let going = |name: &str, node, seconds| pod(name).on(node).grace(0).tolerates_for("k", seconds);
    // Evictions before the drop leave connections in the pool.
    let before = arena.create_all((0..8).map(|n| going(&format!("before-{n}"), &first, 2))).await?;
    arena.taint(&first, no_execute("k").added_now()).await?;
    witness.deleted_within(&before, SOON).await?;
    let due = i64::try_from(IN_USE.as_secs()).unwrap_or_default();
    let after =
        arena.create_all((0..8).map(|n| going(&format!("after-{n}"), &second, due))).await?;
    let forever = arena.create(pod("forever").on(&second).tolerates("k")).await?;
    arena.taint(&second, no_execute("k").added_now()).await?;
    let deadline = system_time() + seconds(due);
    witness.never_deleted_until(&after, deadline - seconds(2)).await?;
    proxy.fall_silent();
    // From the drop on: the deadline is two seconds later.
    witness.deleted_within(&after, AFTER_A_DROP).await?;
    witness.never_deleted_for([&forever], QUIET).await?;
    let all: Vec<_> = before.iter().chain(&after).collect();
    only_these_evicted_of_those_tried(bed, &arena, &all).await?;
    ostrakon.stop().await?;
    Ok(())
}

/// etcd starts on an older copy of its folder, as after a restore from a backup.
async fn a_store_that_goes_back_in_time_loses_no_eviction(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let arena = ctx.arena().await?;
    let ostrakon = Ostrakon::start(bed).await?;
    let (n, well) = (arena.node("n").await?, arena.node("well").await?);
    let forever = arena.create(pod("forever").on(&n).tolerates("k")).await?;
    arena.taint(&n, no_execute("k").added_now()).await?;
    let version = async || {
        let nodes = arena.nodes().list(&ListParams::default().limit(1)).await?;
        anyhow::Ok(nodes.metadata.resource_version.unwrap_or_default().parse::<u64>()?)
    };

    let (folder, copy) = (bed.etcd_folder(), bed.etcd_folder().with_extension("backup"));
    restart_around(bed, || copy_folder(&folder, &copy)).await?;
    let backup = version().await?;
    for number in 0..150 {
        let patch =
            json!({"metadata": {"annotations": {"example.com/number": number.to_string()}}});
        let params = PatchParams::default();
        arena.nodes().patch(well.name(), &params, &Patch::Merge(patch)).await?;
    }
    let lost = arena.create(pod("lost").on(&n).tolerates("k")).await?;
    // It has seen all of that.
    let first = arena.create(pod("first").on(&n).grace(0)).await?;
    gone_within(&arena, &first, SOON).await?;
    let before = version().await?;
    ensure!(before > backup + 150, "{backup}, then {before}");

    restart_around(bed, || {
        std::fs::remove_dir_all(&folder)?;
        copy_folder(&copy, &folder)
    })
    .await?;
    let late = arena.create(pod("late").on(&n).grace(0)).await?;
    let bound = version().await?;
    ensure!(bound < before, "the store is at {bound} and was at {before}");
    gone_within(&arena, &late, Duration::from_secs(90)).await?;

    tokio::time::sleep(QUIET).await;
    let left = arena.pods().get(&forever.name).await?;
    ensure!(left.metadata.deletion_timestamp.is_none(), "a pod that tolerates the taint goes");
    ensure!(arena.pods().get_opt(&lost.name).await?.is_none(), "the past has no such pod");
    let lists = ostrakon.metrics().await?.sum("ostrakon_watch_lists_total", &[]);
    ensure!(lists >= Some(4.0), "nodes and pods were not listed anew: {lists:?}");
    ostrakon.stop().await?;
    // Their own watches are silent as well, and they do not notice.
    bed.controller_manager()?.restart(How::Kill).await?;
    bed.scheduler()?.restart(How::Kill).await
}

/// Stops API server and etcd, does something to what is stored, and starts them again.
async fn restart_around(bed: &Bed, act: impl FnOnce() -> Result<()>) -> Result<()> {
    bed.stop_apiserver(How::Kill).await?;
    bed.etcd()?.stop(How::Graceful).await?;
    act()?;
    bed.etcd()?.start().await?;
    bed.start_apiserver().await
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Asked for again and again: a watch would be silent itself.
async fn gone_within(arena: &Arena, pod: &PodRef, within: Duration) -> Result<()> {
    wait::until(&format!("{} to be gone", pod.name), within, async || {
        Ok(arena.pods().get_opt(&pod.name).await?.is_none().then_some(()))
    })
    .await
}
