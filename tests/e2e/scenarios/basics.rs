//! Which pods go, and when.

use anyhow::{Context as _, Result, ensure};
use futures::try_join;
use k8s_openapi::api::core::v1::Toleration;
use kube::api::{Patch, PatchParams};
use ostrakon::clock::system_time;
use serde_json::json;

use super::evidence::{
    AFTER, CANCELLING, LATE, MARKING, QUIET, SOON, Stage, only_these_evicted, seconds, this_second,
    told,
};
use crate::ctx::{Ctx, Scenario, before, trial};
use crate::harness::cluster::{no_schedule, node, pod};
use crate::harness::{Arena, PodRef, no_execute, wait};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(untolerated_pods_go_at_once_and_no_others),
        trial!(finite_tolerations_end_at_their_deadlines),
        trial!(a_taint_that_is_removed_in_time_evicts_nobody),
        trial!(a_taint_that_comes_and_goes_at_once_moves_no_countdown),
        trial!(of_two_taints_the_nearer_deadline_counts_until_its_taint_is_gone),
        trial!(a_pod_that_is_bound_to_a_tainted_node_gets_all_its_seconds),
        trial!(edited_tolerations_count),
        trial!(mirror_finished_and_terminating_pods_are_left_alone),
    ]
}

fn toleration(key: &str, operator: &str, value: &str, effect: &str) -> Toleration {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Toleration {
        key: text(key),
        operator: text(operator),
        value: text(value),
        effect: text(effect),
        toleration_seconds: None,
    }
}

/// When a pod was created, which is when it was bound if it was created with a node.
async fn created_at(arena: &Arena, pod: &PodRef) -> Result<jiff::Timestamp> {
    let object = arena.pods().get(&pod.name).await?;
    Ok(object.metadata.creation_timestamp.context("a pod without creationTimestamp")?.0)
}

async fn untolerated_pods_go_at_once_and_no_others(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let (arena, witness) = (&stage.arena, &stage.witness);
    let (tainted, other) = (arena.node("n").await?, arena.node("other").await?);
    let on = |name: &str| pod(name).on(&tainted).running();
    let tolerating = |name: &str, key: &str, operator: &str, value: &str, effect: &str| {
        on(name).toleration(toleration(key, operator, value, effect))
    };
    let goes = arena
        .create_all([
            on("bare"),
            tolerating("another-value", "k", "Equal", "w", "NoExecute"),
            tolerating("no-value", "k", "Equal", "", ""),
            tolerating("another-effect", "k", "Exists", "", "NoSchedule"),
            tolerating("another-key", "kk", "Exists", "", ""),
        ])
        .await?;
    let stays = arena
        .create_all([
            tolerating("this-value", "k", "Equal", "v", "NoExecute"),
            tolerating("no-operator", "k", "", "v", "NoExecute"),
            tolerating("any-value", "k", "Exists", "", "NoExecute"),
            tolerating("any-effect", "k", "Exists", "", ""),
            on("anything").tolerates_everything(),
            pod("elsewhere").on(&other).running(),
            // What is not bound is nobody's business.
            pod("unbound").selects(&tainted).scheduler("nobody"),
        ])
        .await?;

    arena.taint(&other, no_schedule("k").value("v")).await?;
    arena.taint(&tainted, no_execute("k").value("v").added_now()).await?;
    let sightings = witness.only_these_deleted(&goes, SOON, QUIET * 2).await?;
    for sighting in sightings {
        let (marked, deleted) = (sighting.disruption.as_ref(), sighting.deleted);
        let marked = marked.with_context(|| format!("no condition: {sighting:?}"))?.0;
        ensure!(Some(marked.at) <= deleted.map(|deleted| deleted.at), "{sighting:?}");
        ensure!(sighting.gone.is_none(), "it was not given its grace: {sighting:?}");
    }
    let goes: Vec<&PodRef> = goes.iter().collect();
    only_these_evicted(ctx.bed(), arena, &goes).await?;
    for pod in goes {
        told(arena, pod, &[MARKING]).await?;
    }
    for pod in &stays {
        told(arena, pod, &[]).await?;
    }
    Ok(())
}

async fn finite_tolerations_end_at_their_deadlines(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let (arena, witness) = (&stage.arena, &stage.witness);
    let node = arena.node("n").await?;
    let an_hour_ago = this_second() - seconds(3600);
    let settled = |name: &str| pod(name).on(&node).running().scheduled_at(an_hour_ago);
    let by_taint = arena.create(settled("by-taint").tolerates_for("k", 307)).await?;
    let by_binding = arena.create(pod("by-binding").on(&node).tolerates_for("k", 9)).await?;
    let overdue = arena.create(settled("overdue").tolerates_for("k", 300)).await?;
    let zero = arena.create(settled("zero").tolerates_for("k", 0)).await?;
    let negative = arena.create(settled("negative").tolerates_for("k", -7)).await?;
    let forever = arena.create(settled("forever").tolerates("k")).await?;
    let long = arena.create(settled("long").tolerates_for("k", 3600)).await?;
    let longest = arena.create(settled("longest").tolerates_for("k", i64::MAX)).await?;

    // It was put on a while ago and nobody noticed.
    let added = this_second() - seconds(301);
    let tainted = arena.taint(&node, no_execute("k").added_at(added)).await?;
    let at = added + seconds(307);
    let bound = created_at(arena, &by_binding).await? + seconds(9);
    let latest = |at: jiff::Timestamp| at.max(tainted) + LATE;
    try_join!(
        witness.deleted_within([&overdue, &zero, &negative], SOON),
        witness.deleted_between(&by_taint, at, latest(at)),
        witness.deleted_between(&by_binding, bound, latest(bound)),
        witness.never_deleted_until([&forever, &long, &longest], at.max(bound) + AFTER),
    )?;

    let evicted = [&by_taint, &by_binding, &overdue, &zero, &negative];
    only_these_evicted(ctx.bed(), arena, &evicted).await?;
    for pod in evicted {
        told(arena, pod, &[MARKING]).await?;
    }
    Ok(())
}

async fn a_taint_that_is_removed_in_time_evicts_nobody(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let (arena, witness) = (&stage.arena, &stage.witness);
    let (mended, replaced) = (arena.node("mended").await?, arena.node("replaced").await?);
    let tolerated = ctx.seconds(6);
    let counting = |name: &str, node| pod(name).on(node).tolerates_for("k", tolerated);
    let saved = arena.create(counting("saved", &mended)).await?;
    let other = arena.create(counting("other", &replaced)).await?;
    let relieved = arena.create(counting("relieved", &replaced).tolerates("j")).await?;

    // One with its time on it and one without: they are remembered in different ways.
    let deadline = this_second() + seconds(tolerated);
    let relief = async {
        arena.taint(&mended, no_execute("k")).await?;
        arena.taint(&replaced, no_execute("k").added_now()).await?;
        try_join!(stage.is_armed(&saved), stage.is_armed(&other), stage.is_armed(&relieved))?;
        witness.never_deleted_for([&saved, &other, &relieved], QUIET).await?;
        arena.untaint(&mended, "k").await?;
        // One taint for another in a single write.
        arena.set_taints(&replaced, vec![no_execute("j").added_now()]).await
    };
    before(deadline, "to take the taints off in time", relief).await?;

    witness.only_these_deleted([&other], SOON, QUIET).await?;
    witness.never_deleted_until([&saved, &relieved], deadline + AFTER).await?;
    only_these_evicted(ctx.bed(), arena, &[&other]).await?;
    told(arena, &saved, &[CANCELLING]).await?;
    told(arena, &relieved, &[CANCELLING]).await?;
    told(arena, &other, &[MARKING]).await?;
    Ok(())
}

async fn a_taint_that_comes_and_goes_at_once_moves_no_countdown(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let (arena, witness) = (&stage.arena, &stage.witness);
    let node = arena.node("n").await?;
    let flickering = arena.create(pod("flickering").on(&node).tolerates_for("k", 4)).await?;
    let steady = arena.create(pod("steady").on(&node).tolerates("k").tolerates_for("j", 8)).await?;
    let added = this_second();
    arena.taint(&node, no_execute("j").added_at(added)).await?;
    for _ in 0..10 {
        arena.taint(&node, no_execute("k").added_now()).await?;
        arena.untaint(&node, "k").await?;
    }
    // The first of these pods does not tolerate the other taint at all.
    let at = added.max(created_at(arena, &steady).await?) + seconds(8);
    try_join!(
        witness.deleted_within([&flickering], SOON),
        witness.deleted_between(&steady, at, at + LATE),
    )?;
    only_these_evicted(ctx.bed(), arena, &[&flickering, &steady]).await?;

    let calm = arena.node("calm").await?;
    let tolerated = ctx.seconds(3);
    let untouched = arena.create(pod("untouched").on(&calm).tolerates_for("k", tolerated)).await?;
    for _ in 0..10 {
        let flicker = async {
            arena.taint(&calm, no_execute("k").added_now()).await?;
            arena.untaint(&calm, "k").await
        };
        let deadline = this_second() + seconds(tolerated);
        before(deadline, "to take a taint off at once", flicker).await?;
    }
    witness.never_deleted_for([&untouched], (seconds(tolerated) + AFTER).try_into()?).await?;
    only_these_evicted(ctx.bed(), arena, &[&flickering, &steady]).await
}

async fn of_two_taints_the_nearer_deadline_counts_until_its_taint_is_gone(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let (arena, witness) = (&stage.arena, &stage.witness);
    let (both, one_goes) = (arena.node("both").await?, arena.node("one-goes").await?);
    let on = |name: &str, node| pod(name).on(node);
    let nearer = arena.create(on("nearer", &both).tolerates_for("a", 3600).tolerates_for("b", 6));
    let nearer = nearer.await?;
    let only_one = arena.create(on("only-one", &both).tolerates("a")).await?;
    let half = arena.create(on("half", &both).tolerates("a").tolerates_for("b", 8)).await?;
    let neither = arena.create(on("neither", &both).tolerates("a").tolerates("b")).await?;
    let (near, far) = (ctx.seconds(5), ctx.seconds(5) + 5);
    let freed =
        arena.create(on("freed", &one_goes).tolerates_for("a", near).tolerates_for("b", far));
    let freed = freed.await?;

    let added = this_second();
    let taints = || vec![no_execute("a").added_at(added), no_execute("b").added_at(added)];
    let relief = async {
        arena.set_taints(&one_goes, taints()).await?;
        arena.untaint(&one_goes, "a").await
    };
    before(added + seconds(near), "to take one taint off in time", relief).await?;
    let tainted = system_time();
    arena.set_taints(&both, taints()).await?;
    // Bound in the second of the taint or before it.
    let bound = async |pod: &PodRef| anyhow::Ok(created_at(arena, pod).await?.max(added));
    let nearer_at = bound(&nearer).await? + seconds(6);
    let half_at = bound(&half).await? + seconds(8);
    let freed_at = bound(&freed).await? + seconds(far);
    let latest = |at: jiff::Timestamp| at.max(tainted) + LATE;
    try_join!(
        witness.deleted_within([&only_one], SOON),
        witness.deleted_between(&nearer, nearer_at, latest(nearer_at)),
        witness.deleted_between(&half, half_at, latest(half_at)),
        witness.deleted_between(&freed, freed_at, latest(freed_at)),
        witness.never_deleted_until([&neither], freed_at + AFTER),
    )?;
    only_these_evicted(ctx.bed(), arena, &[&only_one, &nearer, &half, &freed]).await
}

async fn a_pod_that_is_bound_to_a_tainted_node_gets_all_its_seconds(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let (arena, witness) = (&stage.arena, &stage.witness);
    let old = this_second() - seconds(3600);
    let node = arena.create_node(node("n").taint(no_execute("k").added_at(old))).await?;
    let scheduled = arena.create(pod("scheduled").selects(&node).tolerates_for("k", 8)).await?;
    let placed = arena.create(pod("placed").on(&node).tolerates_for("k", 6)).await?;
    let intruder = arena.create(pod("intruder").on(&node)).await?;
    let guest = arena.create(pod("guest").on(&node).tolerates("k")).await?;

    let bound = wait::until("the scheduler to bind it", SOON, async || {
        let status = arena.pods().get(&scheduled.name).await?.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default().into_iter();
        let mut bound = conditions
            .filter(|condition| condition.type_ == "PodScheduled" && condition.status == "True");
        Ok(bound.next().and_then(|condition| condition.last_transition_time))
    })
    .await?;
    let scheduled_at = bound.0 + seconds(8);
    let placed_at = created_at(arena, &placed).await? + seconds(6);
    try_join!(
        witness.deleted_within([&intruder], SOON),
        witness.deleted_between(&scheduled, scheduled_at, scheduled_at + LATE),
        witness.deleted_between(&placed, placed_at, placed_at + LATE),
        witness.never_deleted_until([&guest], scheduled_at + AFTER),
    )?;
    only_these_evicted(ctx.bed(), arena, &[&intruder, &scheduled, &placed]).await
}

async fn edited_tolerations_count(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let (arena, witness) = (&stage.arena, &stage.witness);
    let node = arena.node("n").await?;
    let counting = |name: &str, seconds| pod(name).on(&node).tolerates_for("k", seconds);
    let (short, long) = (ctx.seconds(5), ctx.seconds(5) + 5);
    let longer = arena.create(counting("longer", short)).await?;
    let shorter = arena.create(counting("shorter", 3600)).await?;
    let forever = arena.create(counting("forever", short)).await?;
    let added = this_second();

    // All that the API lets anyone change about a pod's tolerations is their seconds, and their
    // number upwards.
    let edit = async |pod: &PodRef, seconds: Option<i64>| {
        let mut object = arena.pods().get(&pod.name).await?;
        let tolerations = object.spec.get_or_insert_default().tolerations.get_or_insert_default();
        tolerations[0].toleration_seconds = seconds;
        let tolerations = json!({ "spec": { "tolerations": tolerations } });
        arena.pods().patch(&pod.name, &PatchParams::default(), &Patch::Merge(tolerations)).await?;
        anyhow::Ok(())
    };
    let edits = async {
        arena.taint(&node, no_execute("k").added_at(added)).await?;
        try_join!(stage.is_armed(&longer), stage.is_armed(&shorter), stage.is_armed(&forever))?;
        edit(&longer, Some(long)).await?;
        edit(&shorter, Some(long)).await?;
        edit(&forever, None).await?;
        // Not only stored: it would ask for the mark and learn by the answer that it came too late.
        stage.is_seen(ctx).await
    };
    before(added + seconds(short), "to edit in time", edits).await?;
    let anchor = async |pod: &PodRef| anyhow::Ok(created_at(arena, pod).await?.max(added));
    let longer_at = anchor(&longer).await? + seconds(long);
    let shorter_at = anchor(&shorter).await? + seconds(long);
    try_join!(
        witness.deleted_between(&longer, longer_at, longer_at + LATE),
        witness.deleted_between(&shorter, shorter_at, shorter_at + LATE),
        witness.never_deleted_until([&forever], longer_at + AFTER),
    )?;
    only_these_evicted(ctx.bed(), arena, &[&longer, &shorter]).await?;
    told(arena, &forever, &[CANCELLING]).await?;
    Ok(())
}

async fn mirror_finished_and_terminating_pods_are_left_alone(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let (arena, witness) = (&stage.arena, &stage.witness);
    let node = arena.node("n").await?;
    let mirror = arena.create(pod("mirror").on(&node).mirror().running()).await?;
    let done = arena.create(pod("done").on(&node).phase("Succeeded")).await?;
    let failed = arena.create(pod("failed").on(&node).phase("Failed")).await?;
    let tolerated = ctx.seconds(6);
    let counting = |name: &str| pod(name).on(&node).running().tolerates_for("k", tolerated);
    let finishing = arena.create(counting("finishing")).await?;
    let going = arena.create(pod("going").on(&node).running()).await?;
    let leaving = arena.create(counting("leaving")).await?;
    let victim = arena.create(pod("victim").on(&node).running()).await?;
    arena.pods().delete(&going.name, &kube::api::DeleteParams::default()).await?;
    witness.deleted_within([&going], SOON).await?;
    stage.is_seen(ctx).await?;

    let deadline = this_second() + seconds(tolerated);
    let endings = async {
        arena.taint(&node, no_execute("k").added_now()).await?;
        witness.deleted_within([&victim], SOON).await?;
        // One finishes, and one is deleted by somebody else, while their seconds run.
        let finished = Patch::Strategic(json!({ "status": { "phase": "Succeeded" } }));
        arena.pods().patch_status(&finishing.name, &PatchParams::default(), &finished).await?;
        arena.pods().delete(&leaving.name, &kube::api::DeleteParams::default()).await?;
        stage.is_seen(ctx).await
    };
    before(deadline, "to end two pods in time", endings).await?;

    let untouched = [&mirror, &done, &failed, &finishing];
    witness.never_deleted_until(untouched, deadline + AFTER).await?;
    only_these_evicted(ctx.bed(), arena, &[&victim]).await?;
    for pod in [&mirror, &done, &failed, &finishing, &going, &leaving] {
        told(arena, pod, &[]).await?;
    }
    Ok(())
}
