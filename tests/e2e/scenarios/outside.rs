//! What scenarios know of a run from outside: deadlines by what the API stores, and what the audit
//! log has. Nothing of the program under test is asked.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use ostrakon::clock::system_time;
use serde_json::Value;

use crate::harness::audit::Audit;
use crate::harness::ostrakon::Launch;
use crate::harness::{Arena, Bed, FaultProxy, Ostrakon, PodRef, User, Verb, Witness};

/// Annotation in which the beginnings of taints are kept.
pub(super) const RECORD: &str = "ostrakon.dev/noexecute-since";

/// How late a deletion may be while a process is up.
pub(super) const LATE: SignedDuration = SignedDuration::from_secs(2);

/// ostrakon with all its requests going through `proxy`.
pub(super) async fn ostrakon_behind(bed: &Bed, proxy: &FaultProxy) -> Result<Ostrakon> {
    Launch::new(bed.kubeconfig_via(proxy, User::Ostrakon)?).start(bed).await
}

/// Waits for a moment.
pub(super) async fn until(moment: Timestamp) {
    let left = moment.duration_since(system_time());
    if let Ok(left) = Duration::try_from(left) {
        tokio::time::sleep(left).await;
    }
}

/// A pod, and when it is to go.
#[derive(Clone, Debug)]
pub(super) struct Due {
    pub pod: PodRef,
    pub at: Timestamp,
}

/// When the arena's pods are to go that tolerate the taint `key` for a time, by what the API
/// stores of them and their nodes now. In the order of their deadlines.
pub(super) async fn due_by(arena: &Arena, key: &str) -> Result<Vec<Due>> {
    let mut since = BTreeMap::new();
    for node in arena.nodes().list(&ListParams::default()).await? {
        if let Some(begin) = taint_begin(&node, key)? {
            since.insert(node.metadata.name.clone().unwrap_or_default(), begin);
        }
    }
    let mut due = Vec::new();
    for pod in arena.pods().list(&ListParams::default()).await? {
        let Some(seconds) = tolerated_for(&pod, key) else {
            continue;
        };
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        if let Some(begin) = node.and_then(|node| since.get(node)) {
            let from = bound(&pod)?.max(*begin);
            due.push(Due { pod: PodRef::of(&pod)?, at: from + SignedDuration::from_secs(seconds) });
        }
    }
    due.sort_by_key(|due| due.at);
    Ok(due)
}

/// Since when the taint is there: its own stamp, or what the record on the node says.
fn taint_begin(node: &Node, key: &str) -> Result<Option<Timestamp>> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let Some(taint) = taints.iter().find(|taint| taint.key == key && taint.effect == "NoExecute")
    else {
        return Ok(None);
    };
    if let Some(stamp) = &taint.time_added {
        return Ok(Some(stamp.0));
    }
    let record: Value = serde_json::from_str(&record_of(node).context("no record")?)?;
    let entries = record["taints"].as_array().context("a record without taints")?;
    let entry = entries.iter().find(|entry| entry["key"] == key).context("not in the record")?;
    Ok(Some(entry["since"].as_str().context("an entry without a beginning")?.parse()?))
}

/// The record on a node.
pub(super) fn record_of(node: &Node) -> Option<String> {
    node.metadata.annotations.as_ref()?.get(RECORD).cloned()
}

fn tolerated_for(pod: &Pod, key: &str) -> Option<i64> {
    let tolerations = pod.spec.as_ref()?.tolerations.as_ref()?;
    tolerations.iter().find(|one| one.key.as_deref() == Some(key))?.toleration_seconds
}

fn bound(pod: &Pod) -> Result<Timestamp> {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref());
    let scheduled = conditions
        .unwrap_or_default()
        .iter()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "True")
        .and_then(|condition| condition.last_transition_time.as_ref());
    let stamp = scheduled.or(pod.metadata.creation_timestamp.as_ref());
    Ok(stamp.context("a pod without creation time")?.0)
}

/// Times in which nothing could be evicted, each with its end.
#[derive(Clone, Debug, Default)]
pub(super) struct Downtimes(Vec<(Timestamp, Timestamp)>);

impl Downtimes {
    pub(super) fn add(&mut self, from: Timestamp, until: Timestamp) {
        self.0.push((from, until));
    }

    /// From when on lateness counts for a deadline. One shortly before a downtime may have been
    /// cut off by it.
    fn excuse(&self, deadline: Timestamp) -> Timestamp {
        let mut from = deadline;
        for (begin, end) in &self.0 {
            if deadline <= *end && from + LATE >= *begin {
                from = from.max(*end);
            }
        }
        from
    }
}

/// How late things were, sorted.
#[derive(Debug)]
pub(super) struct Lateness(Vec<SignedDuration>);

impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = &self.0;
        let (Some(least), Some(most)) = (all.first(), all.last()) else {
            return f.write_str("none");
        };
        let seconds = SignedDuration::as_secs_f64;
        let (least, middle, most) = (seconds(least), seconds(&all[all.len() / 2]), seconds(most));
        let count = all.len();
        write!(f, "{count} pods late by min {least:.3} median {middle:.3} max {most:.3} s")
    }
}

/// Checks that each pod was deleted at its time: not before its deadline, to the nanosecond and by
/// the requests themselves, and not more than 2 s later, downtimes aside.
pub(super) async fn each_went_in_time(
    bed: &Bed,
    witness: &Witness,
    due: &[Due],
    down: &Downtimes,
) -> Result<Lateness> {
    let pods = || due.iter().map(|due| &due.pod);
    let sightings = witness.deleted_within(pods(), Duration::from_secs(1)).await?;
    none_was_early(bed, due)?;
    let mut lateness = Vec::new();
    for (due, sighting) in due.iter().zip(sightings) {
        let deleted = sighting.deleted.context("a deleted pod")?.wall;
        ensure!(deleted >= due.at, "{} went at {deleted}, before {}", due.pod, due.at);
        let late = deleted.duration_since(due.at);
        // One that was excused counts from the end of its excuse.
        let excused = deleted.duration_since(down.excuse(due.at));
        let late = if late <= LATE { late } else { excused.max(SignedDuration::ZERO) };
        ensure!(late <= LATE, "{} went at {deleted}, {late:#} after {}", due.pod, due.at);
        lateness.push(late);
    }
    lateness.sort_unstable();
    Ok(Lateness(lateness))
}

/// Checks that no write was sent for a pod before its deadline, and that each pod's deletion was
/// taken once.
pub(super) fn none_was_early(bed: &Bed, due: &[Due]) -> Result<()> {
    let deadlines: BTreeMap<&str, &Due> =
        due.iter().map(|due| (due.pod.name.as_str(), due)).collect();
    let namespace = &due.first().context("no pods")?.pod.namespace;
    let writes = bed.audit()?.by(User::Ostrakon).writes().namespace(namespace);
    for record in writes.records().iter().filter(|record| record.resource() == "pods") {
        let Some(due) = deadlines.get(record.name()) else {
            continue;
        };
        if record.uid_precondition() != Some(&due.pod.uid) {
            // It is about an earlier pod of that name, and the API server has to refuse it.
            ensure!(!record.succeeded(), "{record:?} hit {}", due.pod);
            continue;
        }
        let sent = record.request_received_timestamp;
        ensure!(sent >= due.at, "{:?} of {} at {sent}, before {}", record.verb, due.pod, due.at);
    }
    Ok(())
}

/// Checks that no pod's deletion was taken twice. Returns how many were taken.
pub(super) fn none_was_deleted_twice(bed: &Bed, namespace: &str, user: User) -> Result<usize> {
    let deletes = bed.audit()?.by(user).verb(Verb::Delete).resource("pods").namespace(namespace);
    let mut taken = BTreeMap::<String, usize>::new();
    let for_real = deletes.succeeded().that(|record| record.request_object["dryRun"].is_null());
    for record in for_real.records() {
        let uid = record.uid_precondition().unwrap_or_default();
        *taken.entry(format!("{} {uid}", record.name())).or_default() += 1;
    }
    let twice: Vec<_> = taken.iter().filter(|(_, times)| **times > 1).collect();
    ensure!(twice.is_empty(), "deleted more than once: {twice:?}");
    Ok(taken.len())
}

/// Checks that ostrakon sent no write about these pods.
pub(super) fn nothing_was_written_about<'a>(
    bed: &Bed,
    pods: impl IntoIterator<Item = &'a PodRef>,
) -> Result<()> {
    let writes = writes_about_pods(bed)?;
    for pod in pods {
        let touched = about(&writes, pod);
        ensure!(touched.is_empty(), "{pod} was to be left alone: {:?}", touched.records());
    }
    Ok(())
}

/// Checks that no write of ostrakon's about these pods was taken, since they were gone.
pub(super) fn nothing_was_taken_about<'a>(
    bed: &Bed,
    pods: impl IntoIterator<Item = &'a PodRef>,
) -> Result<()> {
    let writes = writes_about_pods(bed)?.succeeded();
    for pod in pods {
        let taken = about(&writes, pod);
        ensure!(taken.is_empty(), "{pod} was gone: {:?}", taken.records());
    }
    Ok(())
}

fn writes_about_pods(bed: &Bed) -> Result<Audit> {
    let writes = bed.audit()?.by(User::Ostrakon).writes();
    Ok(writes.that(|record| record.resource() == "pods"))
}

/// Those that are about this very pod, or do not say about which.
fn about(writes: &Audit, pod: &PodRef) -> Audit {
    let named = writes.clone().namespace(&pod.namespace).name(&pod.name);
    named.that(|record| record.uid_precondition().is_none_or(|uid| uid == pod.uid))
}

/// Waits until ostrakon has nothing condemned left.
pub(super) async fn backlog_is_empty(ostrakon: &Ostrakon) -> Result<()> {
    crate::harness::wait::until("an empty backlog", Duration::from_secs(40), async || {
        let left = ostrakon.metrics().await?.get("ostrakon_backlog_pods");
        ensure!(left == Some(0.0), "{left:?} pods are in the backlog");
        Ok(Some(()))
    })
    .await
}

/// Says a figure that a person wants to see beside the outcome.
#[allow(clippy::print_stderr, reason = "figures are for the reader of the run")]
pub(super) fn figure(what: impl fmt::Display) {
    eprintln!("  figure: {what}");
}
