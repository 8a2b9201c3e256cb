//! Witness and audit log see what happens, and nothing that does not.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::Method;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use ostrakon::clock::system_time;
use serde_json::json;

use crate::ctx::{Ctx, SOON, Scenario, trial};
use crate::harness::audit::Audit;
use crate::harness::cluster::{PodRef, pod};
use crate::harness::metrics::Metrics;
use crate::harness::request::RequestInfo;
use crate::harness::{User, Verb, no_execute};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(the_audit_log_has_who_did_what_with_which_body),
        trial!(the_witness_sees_condition_deletion_and_end),
        trial!(the_witness_fails_when_the_quiet_side_is_not_quiet),
        trial!(a_successor_of_the_same_name_is_another_pod),
        trial!(pods_and_nodes_are_as_sketched),
        trial!(taints_are_edited_without_loss),
        trial!(metrics_are_read),
        trial!(requests_are_read_from_their_urls),
    ]
}

async fn the_audit_log_has_who_did_what_with_which_body(ctx: &Ctx) -> Result<()> {
    let begin = system_time();
    let arena = ctx.arena().await?;
    let node = arena.node("n").await?;
    let pod = arena.create(pod("p").on(&node)).await?;
    let pods: Api<Pod> = Api::namespaced(ctx.bed().client_for(User::Ostrakon)?, arena.namespace());

    let wrong = delete_only("0a1b2c3d-0000-4000-8000-000000000001");
    ensure!(pods.delete(&pod.name, &wrong).await.is_err(), "a wrong UID was no obstacle");
    pods.delete(&pod.name, &delete_only(&pod.uid)).await?;

    let ours = |audit: Audit| audit.namespace(arena.namespace()).resource("pods").since(begin);
    let deletes = ctx
        .bed()
        .audit_until("two deletes in the audit log", SOON, |audit| {
            let deletes = ours(audit).by(User::Ostrakon).verb(Verb::Delete).name(&pod.name);
            (deletes.len() == 2).then_some(deletes)
        })
        .await?;
    let [refused, done] = deletes.records() else { anyhow::bail!("two, but not two") };
    ensure!(refused.code() == 409 && !refused.succeeded(), "{refused:?}");
    ensure!(done.code() == 200 && done.succeeded(), "{done:?}");
    ensure!(done.uid_precondition() == Some(pod.uid.as_str()), "{done:?}");

    let audit = ctx.bed().audit()?;
    let by_admin = ours(audit.clone()).by(User::Admin).verb(Verb::Create);
    let created = by_admin.records().first().context("the admin's create is missing")?;
    ensure!(created.request_object["spec"]["nodeName"] == json!(node.name()), "{created:?}");
    ensure!(ours(audit.clone()).by(User::Admin).verb(Verb::Delete).is_empty());
    ensure!(ours(audit).by(User::Stranger).is_empty());
    Ok(())
}

fn delete_only(uid: &str) -> DeleteParams {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }
}

async fn the_witness_sees_condition_deletion_and_end(ctx: &Ctx) -> Result<()> {
    let arena = ctx.arena().await?;
    let node = arena.node("n").await?;
    let early = arena.create(pod("early").on(&node)).await?;
    let witness = arena.witness().await?;
    let late = arena.create(pod("late").on(&node).grace(0)).await?;
    let quiet = arena.create(pod("quiet").on(&node)).await?;
    ensure!(witness.seen(&late).await?.touched().is_none());
    ensure!(witness.seen(&early).await?.node == node.name());

    let patch = Patch::Strategic(json!({ "status": { "conditions": [{
        "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
    }]}}));
    let pods = arena.pods();
    pods.patch_status(&early.name, &PatchParams::default(), &patch).await?;
    let before = system_time();
    tokio::time::sleep(Duration::from_millis(300)).await;
    pods.delete(&early.name, &DeleteParams::default()).await?;
    pods.delete(&late.name, &DeleteParams::default()).await?;

    let sightings = witness.deleted_within([&early, &late], SOON).await?;
    let (marked, deleted) = (&sightings[0].disruption, sightings[0].deleted);
    let (marked, condition) = marked.as_ref().context("no condition seen")?;
    let deleted = deleted.context("no deletion seen")?;
    ensure!(condition.reason.as_deref() == Some("DeletionByTaintManager"));
    ensure!(marked.at < deleted.at && deleted.wall > before, "{sightings:?}");

    // A grace of 30 s and no kubelet: it stays. A grace of 0: it is gone.
    witness.gone_within([&late], SOON).await?;
    ensure!(witness.sighting(&early).is_some_and(|sighting| sighting.gone.is_none()));
    arena.remove(&early).await?;
    witness.gone_within([&early, &late], SOON).await?;
    witness.never_deleted_for([&quiet], Duration::from_millis(200)).await?;
    Ok(())
}

async fn the_witness_fails_when_the_quiet_side_is_not_quiet(ctx: &Ctx) -> Result<()> {
    let arena = ctx.arena().await?;
    let node = arena.node("n").await?;
    let sketches = ["a", "b", "c"].map(|name| pod(name).on(&node).grace(0));
    let pods = arena.create_all(sketches).await?;
    let witness = arena.witness().await?;
    let (a, b, c) = (&pods[0], &pods[1], &pods[2]);
    let now = system_time;
    let after = |seconds| now() + SignedDuration::from_secs(seconds);

    let nothing = witness.deleted_within([a], Duration::from_millis(300)).await;
    ensure!(nothing.is_err(), "{nothing:?}");
    let not_yet = witness.deleted_between(a, now(), now() + SignedDuration::from_millis(300)).await;
    ensure!(not_yet.is_err(), "{not_yet:?}");

    let too_soon = {
        let delete = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            arena.remove(a).await
        };
        let (checked, deleted) =
            tokio::join!(witness.deleted_between(a, after(600), after(900)), delete);
        deleted?;
        checked
    };
    ensure!(too_soon.is_err(), "deleted before its time, and that passed: {too_soon:?}");

    arena.remove(b).await?;
    let others = witness.only_these_deleted([c], SOON, Duration::ZERO).await;
    ensure!(others.is_err(), "{others:?}");
    let touched = witness.never_deleted_until([b, c], after(600)).await;
    ensure!(touched.is_err());
    witness.never_deleted_until([c], Timestamp::MIN).await?;
    witness.only_these_deleted([a, b], SOON, Duration::from_millis(300)).await?;
    Ok(())
}

async fn a_successor_of_the_same_name_is_another_pod(ctx: &Ctx) -> Result<()> {
    let arena = ctx.arena().await?;
    let node = arena.node("n").await?;
    let witness = arena.witness().await?;
    let first = arena.create(pod("same").on(&node).grace(0)).await?;
    arena.remove(&first).await?;
    let second = arena.create(pod("same").on(&node).grace(0)).await?;
    witness.gone_within([&first], SOON).await?;
    witness.seen(&second).await?;
    witness.never_deleted_for([&second], Duration::from_millis(300)).await?;
    ensure!(first.uid != second.uid && first.name == second.name);
    ensure!(arena.remove(&first).await.is_err(), "the successor was removed instead");
    Ok(())
}

async fn pods_and_nodes_are_as_sketched(ctx: &Ctx) -> Result<()> {
    let arena = ctx.arena().await?;
    let node = arena
        .create_node(
            crate::harness::cluster::node("n")
                .label("zone", "a")
                .taint(no_execute("k").value("v").added_at("2026-01-01T00:00:00Z".parse()?)),
        )
        .await?;
    let object = arena.nodes().get(node.name()).await?;
    let taints = object.spec.and_then(|spec| spec.taints).unwrap_or_default();
    ensure!(taints.len() == 1 && taints[0].value.as_deref() == Some("v"), "{taints:?}");
    let added = taints[0].time_added.as_ref().context("no timeAdded")?;
    ensure!(added.0 == "2026-01-01T00:00:00Z".parse()?);
    ensure!(object.metadata.labels.is_some_and(|labels| labels["zone"] == "a"));

    let sketch = pod("p")
        .on(&node)
        .tolerates_for("k", 7)
        .tolerates("j")
        .grace(3)
        .finalizer("ostrakon.dev/test")
        .mirror()
        .scheduled_at("2026-01-02T00:00:00Z".parse()?)
        .running();
    let created: PodRef = arena.create(sketch).await?;
    let object = arena.pods().get(&created.name).await?;
    let (spec, status) = (object.spec.context("no spec")?, object.status.context("no status")?);
    let tolerations = spec.tolerations.unwrap_or_default();
    ensure!(tolerations[0].toleration_seconds == Some(7), "{tolerations:?}");
    ensure!(tolerations[1].toleration_seconds.is_none(), "{tolerations:?}");
    ensure!(spec.node_name.as_deref() == Some(node.name()));
    ensure!(spec.termination_grace_period_seconds == Some(3));
    ensure!(status.phase.as_deref() == Some("Running"));
    let conditions = status.conditions.unwrap_or_default();
    let scheduled = conditions.iter().find(|condition| condition.type_ == "PodScheduled");
    let scheduled = scheduled.and_then(|condition| condition.last_transition_time.as_ref());
    ensure!(scheduled.is_some_and(|time| time.0.to_string() == "2026-01-02T00:00:00Z"));

    let finished = arena.create(pod("finished").on(&node).phase("Succeeded")).await?;
    let object = arena.pods().get(&finished.name).await?;
    ensure!(object.status.and_then(|status| status.phase).as_deref() == Some("Succeeded"));
    Ok(())
}

async fn taints_are_edited_without_loss(ctx: &Ctx) -> Result<()> {
    let arena = ctx.arena().await?;
    let node = arena.node("n").await?;
    let keys: Vec<String> = (0..8).map(|number| format!("k{number}")).collect();
    let edits = keys.iter().map(|key| arena.taint(&node, no_execute(key)));
    futures::future::try_join_all(edits).await?;
    arena.untaint(&node, "k0").await?;
    arena.taint(&node, no_execute("k1").value("again")).await?;
    let object = arena.nodes().get(node.name()).await?;
    let mut found = object.spec.and_then(|spec| spec.taints).unwrap_or_default();
    found.sort_by(|a, b| a.key.cmp(&b.key));
    ensure!(found.iter().map(|taint| &taint.key).eq(&keys[1..]), "{found:?}");
    ensure!(found[0].value.as_deref() == Some("again"), "{found:?}");
    arena.set_taints(&node, vec![no_execute("only")]).await?;
    let object = arena.nodes().get(node.name()).await?;
    ensure!(object.spec.and_then(|spec| spec.taints).is_some_and(|taints| taints.len() == 1));
    arena.delete_node(&node).await
}

#[allow(clippy::float_cmp, reason = "whole numbers")]
async fn metrics_are_read(_: &Ctx) -> Result<()> {
    let text = "# HELP a counts.\n# TYPE a counter\n\
        a{code=\"200\",path=\"/x}\\\"y\"} 3\na{code=\"500\"} 4 1700000000\nb 1.5e3\nc NaN\n";
    let metrics = Metrics::parse(text);
    ensure!(metrics.get("a") == Some(7.0), "{metrics:?}");
    ensure!(metrics.sum("a", &[("code", "200"), ("path", "/x}\"y")]) == Some(3.0), "{metrics:?}");
    ensure!(metrics.sum("a", &[("code", "404")]).is_none());
    ensure!(metrics.get("b") == Some(1500.0));
    ensure!(metrics.names() == ["a", "b", "c"]);
    Ok(())
}

async fn requests_are_read_from_their_urls(_: &Ctx) -> Result<()> {
    let read = |method: Method, url: &str| {
        let info = RequestInfo::new(&method, &url.parse()?);
        let subject = [&info.resource, &info.subresource, &info.namespace, &info.name];
        anyhow::Ok((info.verb.as_str(), subject.map(String::as_str).join(" ")))
    };
    let expect = |method, url: &str, verb: &str, subject: &str| {
        let found = read(method, url)?;
        ensure!(found == (verb, subject.to_owned()), "{url}: {found:?}");
        Ok(())
    };
    expect(Method::GET, "/api/v1/pods?limit=500", "list", "pods   ")?;
    expect(Method::GET, "/api/v1/nodes?watch=true&x=y", "watch", "nodes   ")?;
    expect(Method::GET, "/api/v1/nodes/n1", "get", "nodes   n1")?;
    expect(Method::PATCH, "/api/v1/namespaces/a/pods/p/status", "patch", "pods status a p")?;
    expect(Method::DELETE, "/api/v1/namespaces/a/pods/p", "delete", "pods  a p")?;
    expect(Method::DELETE, "/api/v1/namespaces/a/pods", "deletecollection", "pods  a ")?;
    expect(Method::POST, "/apis/events.k8s.io/v1/namespaces/a/events", "create", "events  a ")?;
    expect(Method::PUT, "/api/v1/namespaces/a", "update", "namespaces   a")?;
    expect(Method::GET, "/readyz", "other", "   ")
}
