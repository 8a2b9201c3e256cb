//! A pod is its UID, and a node is too: names come back.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::Api;
use kube::api::PostParams;
use ostrakon::clock::system_time;
use serde_json::json;

use super::evidence::{
    LATE, MARKING, QUIET, SOON, Stage, only_these_evicted, seconds, this_second, told,
};
use crate::ctx::{Ctx, Scenario, trial};
use crate::harness::cluster::{node, pod};
use crate::harness::{PodRef, User, Verb, no_execute, wait};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(a_successor_is_not_touched_by_its_predecessors_countdown),
        trial!(a_stateful_set_on_a_tainted_node_loses_each_of_its_pods_once),
        trial!(with_its_node_gone_a_pod_is_left_to_the_garbage_collector),
    ]
}

async fn a_successor_is_not_touched_by_its_predecessors_countdown(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let (arena, witness) = (&stage.arena, &stage.witness);
    let (n, other) = (arena.node("n").await?, arena.node("other").await?);
    let web = |number: u32, node, seconds| {
        pod(&format!("web-{number}")).on(node).grace(0).tolerates_for("k", seconds)
    };
    let first = arena.create_all([web(0, &n, 6), web(1, &n, 6), web(2, &n, 6)]).await?;
    let added = this_second();
    arena.taint(&n, no_execute("k").added_at(added)).await?;
    let old_deadline = system_time() + seconds(6);
    witness.never_deleted_until(&first, system_time() + seconds(2)).await?;

    for pod in &first {
        arena.remove(pod).await?;
    }
    // The same name on the same node with seconds of its own, on another node, and for ever.
    let here = arena.create(web(0, &n, 12)).await?;
    let elsewhere = arena.create(web(1, &other, 6)).await?;
    let forever = arena.create(pod("web-2").on(&n).grace(0).tolerates("k")).await?;
    let object = arena.pods().get(&here.name).await?;
    let bound = object.metadata.creation_timestamp.context("no creationTimestamp")?.0;
    let deadline = bound + seconds(12);
    ensure!(deadline > old_deadline + seconds(2), "this proves nothing on so slow a machine");
    let all = [&here, &elsewhere, &forever];
    witness.never_deleted_until(all, old_deadline + seconds(2)).await?;
    witness.deleted_between(&here, deadline, deadline + LATE).await?;
    witness.never_deleted_for([&elsewhere, &forever], QUIET).await?;

    only_these_evicted(ctx.bed(), arena, &[&here]).await?;
    told(arena, &here, &[MARKING]).await?;
    for pod in first.iter().chain([&elsewhere, &forever]) {
        told(arena, pod, &[]).await?;
    }
    Ok(())
}

/// The controller of the set puts each successor under the same name onto the same node, within
/// moments; kube-controller-manager loses one of them sooner or later (kubernetes#107543).
async fn a_stateful_set_on_a_tainted_node_loses_each_of_its_pods_once(ctx: &Ctx) -> Result<()> {
    const ROUNDS: usize = 4;
    let stage = Stage::set(ctx).await?;
    let (arena, witness, bed) = (&stage.arena, &stage.witness, ctx.bed());
    let n = arena.node("n").await?;
    let labels = json!({ "app": "web" });
    let set: StatefulSet = serde_json::from_value(json!({
        "metadata": { "name": "web" },
        "spec": {
            "replicas": 2,
            "podManagementPolicy": "Parallel",
            "serviceName": "web",
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "nodeName": n.name(),
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{ "name": "main", "image": "pause" }],
                },
            },
        },
    }))?;
    let sets: Api<StatefulSet> = Api::namespaced(arena.client(), arena.namespace());
    sets.create(&PostParams::default(), &set).await?;
    let alive = || {
        let sightings = witness.sightings().into_iter();
        let alive = sightings.filter(|sighting| sighting.deleted.is_none());
        alive.map(|sighting| sighting.pod).collect::<Vec<PodRef>>()
    };
    let wait = async |what: &str, done: &dyn Fn() -> bool| {
        wait::until(what, Duration::from_secs(60), async || Ok(done().then_some(()))).await
    };
    wait("the set's first pods", &|| alive().len() == 2).await?;
    tokio::time::sleep(QUIET).await;
    ensure!(alive().len() == 2 && witness.sightings().len() == 2, "without a taint they stay");

    arena.taint(&n, no_execute("k").added_now()).await?;
    wait("some generations of pods", &|| witness.sightings().len() >= 2 * ROUNDS).await?;
    arena.untaint(&n, "k").await?;
    wait("two pods that stay", &|| alive().len() == 2).await?;
    // What was on its way when the taint went has had its time.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let last = alive();
    tokio::time::sleep(QUIET).await;
    ensure!(last.len() == 2 && alive() == last, "{last:?}, then {:?}", alive());

    let writes = bed.audit()?.by(User::Ostrakon).namespace(arena.namespace()).writes();
    let writes = writes.that(|record| record.resource() == "pods");
    let mut by_uid: BTreeMap<String, Vec<Verb>> = BTreeMap::new();
    for record in writes.succeeded().records() {
        let uid = record.uid_precondition().with_context(|| format!("no UID: {record:?}"))?;
        by_uid.entry(uid.to_owned()).or_default().push(record.verb);
    }
    for sighting in witness.sightings() {
        let verbs = by_uid.remove(&sighting.pod.uid).unwrap_or_default();
        // One that stays may have been marked when the taint went.
        let is_right = match sighting.deleted {
            Some(_) => verbs == [Verb::Patch, Verb::Delete],
            None => verbs.is_empty() || verbs == [Verb::Patch],
        };
        ensure!(is_right, "{}: {verbs:?}", sighting.pod);
    }
    if let Some((uid, verbs)) = by_uid.into_iter().next() {
        bail!("a pod that nobody saw, {uid}: {verbs:?}");
    }
    Ok(())
}

async fn with_its_node_gone_a_pod_is_left_to_the_garbage_collector(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let (arena, witness) = (&stage.arena, &stage.witness);
    let an_hour_ago = this_second() - seconds(3600);
    let tainted = |name: &str| node(name).taint(no_execute("k").added_at(an_hour_ago));
    let (returns, mended) = (arena.node("returns").await?, arena.node("mended").await?);
    let counting = |name: &str, node| pod(name).on(node).grace(0).tolerates_for("k", 5);
    let settled = |name: &str, node| counting(name, node).scheduled_at(an_hour_ago);
    let condemned = arena.create(settled("condemned", &returns)).await?;
    let spared = arena.create(settled("spared", &mended)).await?;
    let tolerant = arena.create(pod("tolerant").on(&returns).tolerates("k")).await?;
    let all = [&condemned, &spared, &tolerant];
    let added = this_second();
    for node in [&returns, &mended] {
        arena.taint(node, no_execute("k").added_at(added)).await?;
    }
    for node in [&returns, &mended] {
        arena.delete_node(node).await?;
    }
    let gone_at = system_time();
    // Kubernetes' garbage collector of pods waits for 40 s, so this is about ostrakon alone.
    witness.never_deleted_until(all, added + seconds(5) + LATE).await?;
    only_these_evicted(ctx.bed(), arena, &[]).await?;

    let back = arena.create_node(tainted("returns")).await?;
    let clean = arena.node("mended").await?;
    ensure!(back == returns && clean == mended, "the names are to be the old ones");
    witness.only_these_deleted([&condemned], SOON, QUIET).await?;
    witness.never_deleted_for([&spared, &tolerant], QUIET).await?;
    let spent = system_time().duration_since(gone_at);
    ensure!(spent < seconds(38), "the garbage collector may have been quicker: {spent}");
    only_these_evicted(ctx.bed(), arena, &[&condemned]).await?;
    told(arena, &condemned, &[MARKING]).await?;
    Ok(())
}
