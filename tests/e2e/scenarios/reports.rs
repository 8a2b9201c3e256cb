//! What people and other programs find: condition, events, metrics, the record on the node.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod, PodCondition};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use ostrakon::clock::system_time;
use serde_json::{Value, json};

use super::evidence::{
    CANCELLING, LATE, MARKING, QUIET, SOON, Stage, node_patches, only_these_evicted, seconds,
    this_second, told,
};
use crate::ctx::{Ctx, Scenario, trial};
use crate::harness::cluster::{node, pod};
use crate::harness::metrics::Metrics;
use crate::harness::{Arena, NodeRef, Ostrakon, no_execute, wait};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(the_condition_is_upstreams_to_the_letter),
        trial!(a_condition_of_other_origin_is_taken_over_with_its_transition_time),
        trial!(the_events_are_upstreams_and_name_the_very_pod),
        trial!(the_record_is_on_the_node_while_a_deadline_depends_on_it),
        trial!(a_record_that_cannot_be_read_is_replaced_and_reported),
        trial!(the_metrics_count_each_deletion_once_and_its_latency_in_seconds).alone(),
    ]
}

fn condition(pod: &Pod, kind: &str) -> Option<PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind).cloned()
}

async fn the_condition_is_upstreams_to_the_letter(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let (arena, witness) = (&stage.arena, &stage.witness);
    let node = arena.node("n").await?;
    let edited = arena.create(pod("edited").on(&node).running()).await?;
    let before = arena.pods().get(&edited.name).await?;
    // Another spec is another generation, and the condition says which one it was about.
    let image = json!({ "spec": { "containers": [{ "name": "main", "image": "pause:2" }] } });
    let patch = Patch::Strategic(image);
    let patched = arena.pods().patch(&edited.name, &PatchParams::default(), &patch).await?;
    let generation = patched.metadata.generation.context("no generation")?;
    ensure!(generation > before.metadata.generation.context("no generation")?);

    let begin = this_second();
    arena.taint(&node, no_execute("k")).await?;
    witness.deleted_within([&edited], SOON).await?;
    let after = arena.pods().get(&edited.name).await?;
    let found = condition(&after, "DisruptionTarget").context("no condition")?;
    let at = found.last_transition_time.clone().context("no transition time")?;
    ensure!(begin <= at.0 && at.0 <= system_time(), "{found:?}");
    let expected = PodCondition {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
        reason: Some("DeletionByTaintManager".to_owned()),
        message: Some("Taint manager: deleting due to NoExecute taint".to_owned()),
        observed_generation: Some(generation),
        last_transition_time: Some(at),
        last_probe_time: None,
    };
    ensure!(found == expected, "{found:?}");
    for kind in ["Ready", "PodScheduled"] {
        ensure!(condition(&after, kind) == condition(&before, kind), "{kind} was changed");
    }
    let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
    ensure!(phase(&after) == phase(&before));
    ensure!(after.metadata.deletion_grace_period_seconds == Some(30), "its grace was cut");
    only_these_evicted(ctx.bed(), arena, &[&edited]).await
}

async fn a_condition_of_other_origin_is_taken_over_with_its_transition_time(
    ctx: &Ctx,
) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let (arena, witness) = (&stage.arena, &stage.witness);
    let node = arena.node("n").await?;
    let pods = ["other-cause", "over"].map(|name| pod(name).on(&node).running());
    let pods = arena.create_all(pods).await?;
    let (other_cause, over) = (&pods[0], &pods[1]);
    // After two minutes without a deletion the disruption controller takes it back.
    let before = this_second() - seconds(30);
    let set = async |name: &str, status: &str, reason: &str| {
        let status = json!({ "status": { "conditions": [{
            "type": "DisruptionTarget", "status": status, "reason": reason,
            "message": "m", "lastTransitionTime": before,
        }]}});
        let patch = Patch::Strategic(status);
        arena.pods().patch_status(name, &PatchParams::default(), &patch).await
    };
    set(&other_cause.name, "True", "PreemptionByScheduler").await?;
    set(&over.name, "False", "DeletionByTaintManager").await?;
    // Until its watch has shown them.
    stage.is_seen(ctx).await?;
    arena.taint(&node, no_execute("k")).await?;
    witness.deleted_within(&pods, SOON).await?;

    let found = async |name: &str| {
        let object = arena.pods().get(name).await?;
        let found = condition(&object, "DisruptionTarget").context("no condition")?;
        ensure!(found.status == "True", "{found:?}");
        ensure!(found.reason.as_deref() == Some("DeletionByTaintManager"), "{found:?}");
        Ok(found.last_transition_time.context("no transition time")?.0)
    };
    // It was True and is True: that is no transition.
    ensure!(found(&other_cause.name).await? == before);
    ensure!(found(&over.name).await? > before);
    Ok(())
}

async fn the_events_are_upstreams_and_name_the_very_pod(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let (arena, witness) = (&stage.arena, &stage.witness);
    let (node, mended) = (arena.node("n").await?, arena.node("mended").await?);
    let bare = arena.create(pod("bare").on(&node)).await?;
    let timed = arena.create(pod("timed").on(&node).tolerates_for("k", 3)).await?;
    let saved = arena.create(pod("saved").on(&mended).tolerates_for("k", 60)).await?;
    let begin = this_second();
    arena.taint(&node, no_execute("k").value("v").added_now()).await?;
    arena.taint(&mended, no_execute("k").added_now()).await?;
    // What is scheduled is not announced; what happens is.
    witness.deleted_within([&bare], SOON).await?;
    stage.is_armed(&saved).await?;
    told(arena, &saved, &[]).await?;
    arena.untaint(&mended, "k").await?;
    witness.deleted_within([&bare, &timed], SOON).await?;

    let verdict = |event: &Event| -> String {
        let annotations: BTreeMap<String, String> =
            event.metadata.annotations.clone().unwrap_or_default();
        annotations.get("ostrakon.dev/verdict").cloned().unwrap_or_default()
    };
    for (pod, message, node, said) in [
        (&bare, MARKING, &node, "evict now: taint k=v:NoExecute is not tolerated"),
        (&timed, MARKING, &node, "is tolerated for 3 s by toleration 0, counted from the"),
        (&saved, CANCELLING, &mended, "keep: its node has no NoExecute taint"),
    ] {
        let events = told(arena, pod, &[message]).await?;
        let event = events.first().context("told one")?;
        let object = &event.involved_object;
        ensure!(event.type_.as_deref() == Some("Normal"), "{event:?}");
        ensure!(event.reason.as_deref() == Some("TaintManagerEviction"), "{event:?}");
        let source = event.source.as_ref().and_then(|source| source.component.as_deref());
        ensure!(source == Some("taint-eviction-controller"), "{event:?}");
        ensure!(event.reporting_component.as_deref() == Some("taint-eviction-controller"));
        ensure!(object.kind.as_deref() == Some("Pod"), "{object:?}");
        ensure!(object.api_version.as_deref() == Some("v1"), "{object:?}");
        ensure!(object.uid.as_ref() == Some(&pod.uid), "{object:?}");
        ensure!(object.name.as_ref() == Some(&pod.name), "{object:?}");
        ensure!(object.namespace.as_ref() == Some(&pod.namespace), "{object:?}");
        let related = event.related.as_ref().and_then(|related| related.name.as_deref());
        ensure!(related == Some(node.name()), "{event:?}");
        ensure!(event.count == Some(1), "{event:?}");
        let first = event.first_timestamp.as_ref().context("no time")?;
        ensure!(first.0 >= begin && event.last_timestamp.as_ref() == Some(first), "{event:?}");
        ensure!(verdict(event).contains(said), "{event:?}");
    }
    Ok(())
}

const RECORD: &str = "ostrakon.dev/noexecute-since";

async fn record(arena: &Arena, node: &NodeRef) -> Result<Option<String>> {
    Ok(arena.annotations(node).await?.remove(RECORD))
}

async fn record_appears(arena: &Arena, node: &NodeRef) -> Result<String> {
    wait::until("the record on the node", SOON, async || record(arena, node).await).await
}

async fn record_disappears(arena: &Arena, node: &NodeRef) -> Result<()> {
    wait::until("the record to be gone", SOON, async || {
        Ok(record(arena, node).await?.is_none().then_some(()))
    })
    .await
}

async fn the_record_is_on_the_node_while_a_deadline_depends_on_it(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let (arena, bed) = (&stage.arena, ctx.bed());
    let sketch = || node("n").annotation("example.com/mine", "stays");
    let n = arena.create_node(sketch()).await?;
    let (timed, empty) = (arena.node("timed").await?, arena.node("empty").await?);
    let an_hour = |name: &str, node: &NodeRef| pod(name).on(node).grace(0).tolerates_for("k", 3600);
    arena.create(pod("forever").on(&n).tolerates("k")).await?;
    arena.create(an_hour("no-need", &timed)).await?;
    arena.create(an_hour("not-concerned", &empty)).await?;

    let before = system_time();
    arena.taint(&n, no_execute("k").value("v")).await?;
    let after = system_time();
    arena.taint(&timed, no_execute("k").added_now()).await?;
    stage.is_seen(ctx).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    ensure!(record(arena, &n).await?.is_none(), "no deadline depends on it yet");

    let first = arena.create(an_hour("first", &n)).await?;
    let text = record_appears(arena, &n).await?;
    let content: Value = serde_json::from_str(&text)?;
    let since: Timestamp = serde_json::from_value(content["taints"][0]["since"].clone())?;
    ensure!(content == json!({ "taints": [{ "key": "k", "value": "v", "since": since }] }));
    ensure!(before <= since && since <= after + LATE, "first seen at {since}, put on at {before}");

    // Each of these by itself must make it think of the record: the pod goes; a pod comes; the
    // taint goes. The pause is longer than it looks after a record that it has just written.
    tokio::time::sleep(Duration::from_secs(7)).await;
    arena.remove(&first).await?;
    record_disappears(arena, &n).await?;
    arena.create(an_hour("second", &n)).await?;
    ensure!(record_appears(arena, &n).await? == text, "the time was forgotten");
    arena.untaint(&n, "k").await?;
    record_disappears(arena, &n).await?;

    ensure!(arena.annotations(&n).await?["example.com/mine"] == "stays");
    let object = arena.nodes().get(n.name()).await?;
    let uid = object.metadata.uid.context("a node without UID")?;
    let expected = |record: Option<&str>| json!({ "metadata": { "uid": uid, "annotations": { RECORD: record } } });
    let (set, removed) = (expected(Some(&text)), expected(None));
    let expected = [set.clone(), removed.clone(), set, removed];
    wait::until("the patches in the audit log", SOON, async || {
        let mut patches = node_patches(bed, &n)?;
        for patch in &mut patches {
            // Only the version of the node from which the record was computed.
            let version =
                patch["metadata"].as_object_mut().and_then(|m| m.remove("resourceVersion"));
            ensure!(version.is_some_and(|version| version.is_string()), "{patch:#?}");
        }
        // What its watch is slow to show it may write again.
        patches.dedup();
        ensure!(patches == expected, "{patches:#?}");
        Ok(Some(()))
    })
    .await?;
    for quiet in [&timed, &empty] {
        let patches = node_patches(bed, quiet)?;
        ensure!(patches.is_empty(), "{quiet} needed no record: {patches:?}");
    }
    only_these_evicted(bed, arena, &[]).await
}

async fn a_record_that_cannot_be_read_is_replaced_and_reported(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let arena = &stage.arena;
    let sketch = node("n").annotation(RECORD, "{\"taints\": 7}").taint(no_execute("k"));
    let n = arena.create_node(sketch).await?;
    let counting = arena.create(pod("counting").on(&n).tolerates_for("k", 3600)).await?;
    wait::until("another record", SOON, async || {
        let text = record(arena, &n).await?.unwrap_or_default();
        let content: Value = serde_json::from_str(&text).unwrap_or_default();
        Ok(content["taints"].is_array().then_some(()))
    })
    .await?;
    let events: Api<Event> = Api::namespaced(arena.client(), "default");
    let about = ListParams::default().fields(&format!("involvedObject.name={n}"));
    let event = wait::until("an event about the node", SOON, async || {
        let events = events.list(&about).await?.items.into_iter();
        let mut ours =
            events.filter(|event| event.reason.as_deref() == Some("TaintRecordUnreadable"));
        Ok(ours.next())
    })
    .await?;
    ensure!(event.type_.as_deref() == Some("Warning"), "{event:?}");
    ensure!(event.message.as_deref().is_some_and(|text| text.contains(RECORD)), "{event:?}");
    stage.witness.never_deleted_for([&counting], QUIET).await?;
    // One without taints is an orphan, and simply removed.
    let orphan = arena.create_node(node("orphan").annotation(RECORD, "{}")).await?;
    record_disappears(arena, &orphan).await
}

#[allow(clippy::float_cmp, reason = "whole numbers")]
async fn the_metrics_count_each_deletion_once_and_its_latency_in_seconds(ctx: &Ctx) -> Result<()> {
    const DELETIONS: &str = "taint_eviction_controller_pod_deletions_total";
    const DURATION: &str = "taint_eviction_controller_pod_deletion_duration_seconds";
    let bed = ctx.bed();
    let arena = ctx.arena().await?;
    let ostrakon = Ostrakon::start(bed).await?;
    let witness = arena.witness().await?;
    let (n, mended) = (arena.node("n").await?, arena.node("mended").await?);
    let at_once = ["a", "b", "c"].map(|name| pod(name).on(&n).running());
    let mut evicted = arena.create_all(at_once).await?;
    evicted.push(arena.create(pod("timed").on(&n).grace(0).tolerates_for("k", 4)).await?);
    let saved = arena.create(pod("saved").on(&mended).tolerates_for("k", 60)).await?;
    let forever = arena.create(pod("forever").on(&n).tolerates("k")).await?;

    let count = |metrics: &Metrics, name: &str| metrics.get(name).unwrap_or(-1.0);
    let metrics = ostrakon.metrics().await?;
    ensure!(count(&metrics, DELETIONS) == 0.0, "they are there before there is one to count");
    ensure!(count(&metrics, &format!("{DURATION}_count")) == 0.0);

    arena.taint(&n, no_execute("k").added_now()).await?;
    arena.taint(&mended, no_execute("k").added_now()).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    arena.untaint(&mended, "k").await?;
    witness.deleted_within(&evicted, SOON).await?;
    witness.never_deleted_for([&saved, &forever], QUIET).await?;

    let metrics = ostrakon.metrics().await?;
    ensure!(count(&metrics, DELETIONS) == 4.0, "{metrics:?}");
    ensure!(count(&metrics, &format!("{DURATION}_count")) == 4.0, "{metrics:?}");
    let sum = count(&metrics, &format!("{DURATION}_sum"));
    // From the moment that a pod may be deleted, not from the taint: none took its 4 s.
    ensure!(sum > 0.0 && sum < 4.0, "{sum} s for 4 pods");
    let bounds =
        ["0.005", "0.025", "0.1", "0.5", "1", "2.5", "10", "30", "60", "120", "180", "240"];
    for bound in bounds.into_iter().chain(["+Inf"]) {
        let below = metrics.sum(&format!("{DURATION}_bucket"), &[("le", bound)]);
        ensure!(below.is_some(), "no bucket {bound}");
    }
    ensure!(metrics.sum(&format!("{DURATION}_bucket"), &[("le", "10")]) == Some(4.0));
    let ended = |result| metrics.sum("ostrakon_evictions_total", &[("result", result)]);
    ensure!(ended("deleted") == Some(4.0));
    ensure!(ended("already_gone") == Some(0.0) && ended("withdrawn") == Some(0.0), "{metrics:?}");
    // Its requests, seen from its own side: one each, and no read of a pod in between.
    let requests = |verb, resource| {
        metrics.sum("ostrakon_api_requests_total", &[("verb", verb), ("resource", resource)])
    };
    ensure!(requests("patch", "pods/status") == Some(4.0), "{metrics:?}");
    ensure!(requests("delete", "pods") == Some(4.0), "{metrics:?}");
    ensure!(requests("get", "pods").is_none(), "{metrics:?}");
    ensure!(requests("create", "events") == Some(5.0), "{metrics:?}");

    // With the deletions seen, nothing is left to do.
    wait::until("an empty backlog", SOON, async || {
        let metrics = ostrakon.metrics().await?;
        let backlog = metrics.get("ostrakon_backlog_pods").context("no backlog")?;
        let timers = metrics.get("ostrakon_timers").context("no timers")?;
        Ok((backlog == 0.0 && timers == 0.0).then_some(()))
    })
    .await?;
    for queue in ["noexec_taint_node", "noexec_taint_pod"] {
        let depth = metrics.sum("workqueue_depth", &[("name", queue)]);
        ensure!(depth == Some(0.0), "{queue}: {depth:?}");
    }
    ensure!(metrics.get("ostrakon_build_info") == Some(1.0));
    ostrakon.stop().await?;
    Ok(())
}
