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
    AFTER, LATE, MARKING, QUIET, SOON, Stage, only_these_evicted, seconds, this_second, told,
};
use crate::ctx::{Ctx, Scenario, before, trial};
use crate::harness::audit::Audit;
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
    let (old, new) = (ctx.seconds(6), ctx.seconds(6) + 6);
    let first = arena.create_all([web(0, &n, old), web(1, &n, old), web(2, &n, old)]).await?;
    let added = this_second();
    let old_deadline = added + seconds(old);
    let (mut successors, mut bound) = (Vec::new(), None);
    let succession = async {
        arena.taint(&n, no_execute("k").added_at(added)).await?;
        for pod in &first {
            stage.is_armed(pod).await?;
        }
        witness.never_deleted_for(&first, Duration::from_secs(1)).await?;
        for pod in &first {
            arena.remove(pod).await?;
        }
        // The same name on the same node with seconds of its own, on another node, and for ever.
        successors.push(arena.create(web(0, &n, new)).await?);
        successors.push(arena.create(web(1, &other, old)).await?);
        successors.push(arena.create(pod("web-2").on(&n).grace(0).tolerates("k")).await?);
        bound = arena.pods().get("web-0").await?.metadata.creation_timestamp;
        Ok(())
    };
    before(old_deadline, "to replace the pods in time", succession).await?;
    let [here, elsewhere, forever] = &successors[..] else { bail!("three successors") };
    let deadline = bound.context("no creationTimestamp")?.0 + seconds(new);
    witness.never_deleted_until(&successors, old_deadline + seconds(2)).await?;
    witness.deleted_between(here, deadline, deadline + LATE).await?;
    witness.never_deleted_for([elsewhere, forever], QUIET).await?;

    only_these_evicted(ctx.bed(), arena, &[here]).await?;
    told(arena, here, &[MARKING]).await?;
    for pod in first.iter().chain([elsewhere, forever]) {
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
        wait::until(what, SOON, async || Ok(done().then_some(()))).await
    };
    wait("the set's first pods", &|| alive().len() == 2).await?;
    tokio::time::sleep(QUIET).await;
    ensure!(alive().len() == 2 && witness.sightings().len() == 2, "without a taint they stay");

    arena.taint(&n, no_execute("k").added_now()).await?;
    wait("some generations of pods", &|| witness.sightings().len() >= 2 * ROUNDS).await?;
    arena.untaint(&n, "k").await?;
    // What was on its way when the taint went has its time.
    wait::until("two pods that stay", SOON, async || {
        let last = alive();
        tokio::time::sleep(Duration::from_secs(5)).await;
        ensure!(last.len() == 2 && alive() == last, "{last:?}, then {:?}", alive());
        Ok(Some(()))
    })
    .await?;
    let gone = witness.sightings().len() - alive().len();
    let writes = |audit: Audit| {
        let writes = audit.by(User::Ostrakon).namespace(arena.namespace()).writes();
        writes.that(|record| record.resource() == "pods")
    };
    let writes = bed
        .audit_until("the deletes in the audit log", SOON, |audit| {
            let writes = writes(audit);
            (writes.clone().verb(Verb::Delete).succeeded().len() >= gone).then_some(writes)
        })
        .await?;
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
    let tolerated = ctx.seconds(5).min(15);
    let settled = |name: &str, node| {
        pod(name).on(node).grace(0).tolerates_for("k", tolerated).scheduled_at(an_hour_ago)
    };
    let condemned = arena.create(settled("condemned", &returns)).await?;
    let spared = arena.create(settled("spared", &mended)).await?;
    let tolerant = arena.create(pod("tolerant").on(&returns).tolerates("k")).await?;
    let all = [&condemned, &spared, &tolerant];
    let added = this_second();
    let deadline = added + seconds(tolerated);
    let mut gone = added;
    let vanishing = async {
        for node in [&returns, &mended] {
            arena.taint(node, no_execute("k").added_at(added)).await?;
        }
        for pod in [&condemned, &spared] {
            stage.is_armed(pod).await?;
        }
        gone = system_time();
        for node in [&returns, &mended] {
            arena.delete_node(node).await?;
        }
        Ok(())
    };
    before(deadline, "to remove the nodes in time", vanishing).await?;
    // Kubernetes' garbage collector of pods waits for 40 s, so this is about ostrakon alone.
    let collected = gone + seconds(38);
    let return_of_the_nodes = async {
        witness.never_deleted_until(all, deadline + AFTER).await?;
        only_these_evicted(ctx.bed(), arena, &[]).await?;
        let back = arena.create_node(tainted("returns")).await?;
        let clean = arena.node("mended").await?;
        ensure!(back == returns && clean == mended, "the names are to be the old ones");
        witness.only_these_deleted([&condemned], SOON, QUIET).await?;
        witness.never_deleted_for([&spared, &tolerant], QUIET).await
    };
    before(collected, "to be quicker than the garbage collector", return_of_the_nodes).await?;
    only_these_evicted(ctx.bed(), arena, &[&condemned]).await?;
    told(arena, &condemned, &[MARKING]).await?;
    Ok(())
}
