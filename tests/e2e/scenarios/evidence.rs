//! What a scenario holds against ostrakon: what it wrote, as the API server's audit log has it,
//! and what it told people in events.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use ostrakon::clock::system_time;
use serde_json::{Value, json};

use crate::ctx::Ctx;
pub(super) use crate::ctx::SOON;
use crate::harness::audit::{Audit, AuditRecord};
use crate::harness::cluster::{node, pod};
use crate::harness::{
    Arena, Bed, NodeRef, Ostrakon, PodRef, User, Verb, Witness, no_execute, wait,
};

/// How late a deletion may come after its deadline, on a machine that stalls. What a deadline is
/// told from is further away than that.
pub(super) const LATE: SignedDuration = SignedDuration::from_secs(30);

/// How long after a deadline that does not hold is watched that nothing happens.
pub(super) const AFTER: SignedDuration = SignedDuration::from_secs(5);

/// How long nothing more may happen after all that was to happen.
pub(super) const QUIET: Duration = Duration::from_secs(2);

/// A namespace that is watched, with the shared ostrakon at work beside it.
pub(super) struct Stage {
    pub arena: Arena,
    pub witness: Witness,
    ostrakon: Arc<Ostrakon>,
}

impl Stage {
    pub(super) async fn set(ctx: &Ctx) -> Result<Self> {
        let ostrakon = ctx.ostrakon().await?;
        let arena = ctx.arena().await?;
        let witness = arena.witness().await?;
        Ok(Self { arena, witness, ostrakon })
    }

    /// Waits until ostrakon counts down for `pod`, or is about to evict it.
    pub(super) async fn is_armed(&self, pod: &PodRef) -> Result<()> {
        self.ostrakon.says(&["eviction armed", &pod.uid], SOON).await
    }

    /// Waits until ostrakon has seen all that is stored of nodes and pods by now: both come to it in
    /// order, and it acts on what is stored after that.
    pub(super) async fn is_seen(&self, ctx: &Ctx) -> Result<()> {
        let elsewhere = ctx.arena().await?;
        let witness = elsewhere.witness().await?;
        let node = elsewhere.create_node(node("n").taint(no_execute("k"))).await?;
        let canary = elsewhere.create(pod("canary").on(&node).grace(0)).await?;
        witness.deleted_within([&canary], SOON).await.map(drop)
    }
}

/// Now, as the API stores times: in whole seconds.
pub(super) fn this_second() -> Timestamp {
    let now = system_time();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

pub(super) fn seconds(seconds: i64) -> SignedDuration {
    SignedDuration::from_secs(seconds)
}

/// Fails unless what ostrakon wrote in `arena` is this and nothing else: for each pod in `evicted`
/// one patch of its status and then one delete, both for its UID and both carried out; and new
/// events.
pub(super) async fn only_these_evicted(
    bed: &Bed,
    arena: &Arena,
    evicted: &[&PodRef],
) -> Result<()> {
    let written = written(bed, arena, evicted.len()).await?;
    let count = written.len();
    let carried_out = written.succeeded();
    ensure!(carried_out.len() == count, "some were refused: {:#?}", carried_out.records());
    each_once(&carried_out, evicted)
}

/// As [`only_these_evicted`], where some of the writes may have been refused because another pod
/// had the name by then.
pub(super) async fn only_these_evicted_of_those_tried(
    bed: &Bed,
    arena: &Arena,
    evicted: &[&PodRef],
) -> Result<()> {
    let written = written(bed, arena, evicted.len()).await?;
    for record in written.records() {
        // What a patch and a delete for another UID than the present one are answered with.
        let is_refused = record.code() == 422 || record.code() == 409;
        ensure!(record.succeeded() || is_refused, "refused otherwise: {record:#?}");
        ensure!(record.uid_precondition().is_some(), "whichever had the name: {record:#?}");
    }
    each_once(&written.succeeded(), evicted)
}

/// What ostrakon wrote about the pods of `arena`, once there are so many deletes. Fails if it
/// wrote about anything else, but for new events.
async fn written(bed: &Bed, arena: &Arena, deletes: usize) -> Result<Audit> {
    let all = |audit: Audit| audit.by(User::Ostrakon).namespace(arena.namespace()).writes();
    bed.audit_until("the deletes in the audit log", SOON, |audit| {
        let done = all(audit).verb(Verb::Delete).resource("pods").succeeded();
        (done.len() >= deletes).then_some(())
    })
    .await?;
    // What the API server was too slow or too busy for was tried again.
    let was_heard = |record: &AuditRecord| record.code() != 429 && record.code() < 500;
    let written = all(bed.audit()?).that(was_heard);
    for record in written.clone().that(|record| record.resource() != "pods").records() {
        let is_new_event = record.resource() == "events" && record.verb == Verb::Create;
        ensure!(is_new_event, "ostrakon wrote something else: {record:#?}");
    }
    Ok(written.that(|record| record.resource() == "pods"))
}

fn each_once(written: &Audit, evicted: &[&PodRef]) -> Result<()> {
    for pod in evicted {
        let concerned = written.records().iter().filter(|record| {
            record.name() == pod.name && record.uid_precondition() == Some(&pod.uid)
        });
        match concerned.collect::<Vec<_>>().as_slice() {
            [mark, delete] => {
                is_the_mark(mark, pod)?;
                is_the_delete(delete, pod)?;
            }
            other => bail!("{pod} was to be patched once and deleted once: {other:#?}"),
        }
    }
    let (count, expected) = (written.len(), 2 * evicted.len());
    ensure!(count == expected, "{count} writes for {evicted:?}: {:#?}", written.records());
    Ok(())
}

fn is_the_mark(record: &AuditRecord, pod: &PodRef) -> Result<()> {
    let is_patch = record.verb == Verb::Patch && record.subresource() == "status";
    ensure!(is_patch && record.succeeded(), "no patch of the status: {record:#?}");
    let mut body = record.request_object.clone();
    let condition = &mut body["status"]["conditions"][0];
    let at = condition["lastTransitionTime"].take();
    let at: Timestamp = serde_json::from_value(at).context("no transition time")?;
    // The API server may have been slow to take the request.
    let age = record.request_received_timestamp.duration_since(at);
    ensure!(-seconds(3) < age && age < LATE, "a transition {age} before the request: {record:#?}");
    let generation = condition["observedGeneration"].take();
    ensure!(generation.as_i64() >= Some(1), "of generation {generation}: {record:#?}");
    let expected = json!({
        "metadata": { "uid": pod.uid },
        "status": { "conditions": [{
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint",
            "lastTransitionTime": null,
            "observedGeneration": null,
        }]},
    });
    ensure!(body == expected, "another patch: {record:#?}");
    Ok(())
}

fn is_the_delete(record: &AuditRecord, pod: &PodRef) -> Result<()> {
    let is_delete = record.verb == Verb::Delete && record.subresource().is_empty();
    ensure!(is_delete && record.succeeded(), "no delete: {record:#?}");
    let body = &record.request_object;
    ensure!(body["preconditions"] == json!({ "uid": pod.uid }), "other preconditions: {record:#?}");
    for option in ["gracePeriodSeconds", "propagationPolicy", "orphanDependents", "dryRun"] {
        ensure!(body[option] == Value::Null, "{option} is not ostrakon's to choose: {record:#?}");
    }
    Ok(())
}

/// What ostrakon wrote on `node`, in order: bodies of patches. Fails if it did anything else to it.
pub(super) fn node_patches(bed: &Bed, node: &NodeRef) -> Result<Vec<Value>> {
    let written = bed.audit()?.by(User::Ostrakon).writes().name(node.name());
    let on_node = written.that(|record| record.resource() == "nodes");
    let body = |record: &Arc<AuditRecord>| {
        let is_patch = record.verb == Verb::Patch && record.subresource().is_empty();
        ensure!(is_patch && record.succeeded(), "not a patch of a node: {record:#?}");
        Ok(record.request_object.clone())
    };
    on_node.records().iter().map(body).collect()
}

/// Why an eviction may fail that the API server did not refuse.
const TOO_SLOW: [&str; 4] = ["(timeout: ", "(connection: ", "(throttled: ", "(server_error: "];

/// The events about `pod`, oldest first.
pub(super) async fn events(arena: &Arena, pod: &PodRef) -> Result<Vec<Event>> {
    let about = ListParams::default().fields(&format!("involvedObject.uid={}", pod.uid));
    let mut events = arena.events().list(&about).await?.items;
    // Kubernetes' own components have something to say too, about binding for example. And where the
    // API server is too slow, ostrakon says so.
    events.retain(|event| {
        let message = event.message.as_deref().unwrap_or_default();
        event.reason.as_deref().is_some_and(|reason| reason.starts_with("TaintManager"))
            && !TOO_SLOW.iter().any(|cause| message.contains(cause))
    });
    events.sort_by_key(|event| event.first_timestamp.clone());
    Ok(events)
}

/// Waits for the events about `pod` and fails unless they say these things, in any order.
pub(super) async fn told(arena: &Arena, pod: &PodRef, messages: &[&str]) -> Result<Vec<Event>> {
    let events = wait::until(&format!("the events about {pod}"), SOON, async || {
        let events = events(arena, pod).await?;
        Ok((events.len() >= messages.len()).then_some(events))
    })
    .await?;
    let mut found: Vec<&str> =
        events.iter().map(|event| event.message.as_deref().unwrap_or_default()).collect();
    let mut expected: Vec<String> = messages
        .iter()
        .map(|message| format!("{message} Pod {}/{}", pod.namespace, pod.name))
        .collect();
    found.sort_unstable();
    expected.sort_unstable();
    ensure!(found == expected, "other events about {pod}: {found:?}");
    Ok(events)
}

/// What the one event about a pod says that is evicted.
pub(super) const MARKING: &str = "Marking for deletion";
/// What the one event about a pod says whose countdown is over before its end.
pub(super) const CANCELLING: &str = "Cancelling deletion of";
