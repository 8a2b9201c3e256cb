//! The observer. It only knows what the API stored and when, and who requested it. Its rules follow the
//! promises and share no code with the controller.

mod claims;
pub(super) mod drains;
mod pauses;
pub(super) mod rules;
pub(super) mod words;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use ostrakon::sim::embedded::{Audited, Change, Operation, Resource, Verb};
use serde_json::Value;

use claims::Claims;
pub(super) use drains::Drains;
use pauses::Pauses;
use rules::{Fate as Becomes, Rules};

use super::story::hostile::{NODE, TENANT};
use crate::time::noon;

/// Header of a controller's request: who sent it, and when, in seconds since noon.
pub(super) const WHO: &str = "x-who";
pub(super) const SENT: &str = "x-sent";

/// For how long what was read of a node may be used, and a little for the clocks.
const SHARED: f64 = 1.01;
/// A gap in an outage breaks it from this length on, in seconds.
const GAP: f64 = 60.0;
/// A clock that was set by the server's `Date`, which is in whole seconds, is behind by up to this, and
/// with it the first sights of whoever has that clock.
const DATE: f64 = 1.0;
const RECORD: &str = "ostrakon.dev/noexecute-since";
const OUTAGE: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// A NoExecute taint, and from when on its seconds may be counted.
#[derive(Clone, Debug)]
struct Taint {
    key: String,
    value: String,
    /// Its `timeAdded`, or when it was stored.
    since: f64,
    /// The earliest moment; earlier than `since` where an outage began before this taint.
    earliest: f64,
    /// The latest moment; later than `since` where nobody led, so that all who had seen it come could be
    /// gone before one of them recorded it.
    latest: f64,
    /// Whether its first sight is recorded on the node, where it does not tell it itself.
    recorded: bool,
}

#[derive(Clone, Debug)]
struct Tolerated {
    stored: Value,
    seconds: Option<i64>,
}

/// What the API stored of a node, from when on.
struct NodeState {
    from: f64,
    /// Absent while there is no such node.
    taints: Option<Vec<Taint>>,
}

/// What the API stored of a pod, from when on.
struct PodState {
    from: f64,
    tolerations: Vec<Tolerated>,
    bound: f64,
    node: String,
    /// Whether it is gone, or on its way.
    going: bool,
}

#[derive(Default)]
struct Outage {
    uid: String,
    since: Option<f64>,
    gap_from: Option<f64>,
}

/// The lease as it is stored.
#[derive(Clone, Debug, Default)]
struct Lease {
    holder: String,
    /// Since when this holder has it.
    since: f64,
}

/// A pod: its name, and how many pods had the name before.
pub(super) type NthPod = (String, usize);

/// What became of a pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    /// When its deletion began, whoever asked for it.
    pub(super) end: Option<f64>,
    /// Whether a controller deleted it.
    pub(super) evicted: bool,
}

/// What went wrong: the promise, and how.
pub(super) type Broken = String;

#[derive(Default)]
pub(super) struct Observer {
    nodes: BTreeMap<String, Vec<NodeState>>,
    pods: BTreeMap<String, Vec<PodState>>,
    names: BTreeMap<String, String>,
    outages: BTreeMap<String, Outage>,
    lease: Lease,
    claims: Claims,
    pauses: Pauses,
    /// The changes that no request was told of yet, with their versions.
    unaudited: Vec<Change>,
    /// When each controller last read a pod: its identity and the pod's name.
    reads: BTreeMap<(String, String), f64>,
    /// When nothing ran for a while, the API server included.
    pause: Option<(f64, f64)>,
    /// Pods of a party that writes what others never would: what becomes of them is its own affair.
    hostile: BTreeSet<String>,
    broken: Option<Broken>,
    /// There is no lag between the cluster and the controllers.
    calm: bool,
    evicted: usize,
    /// UIDs of the pods that controllers have deleted, without those of hostile parties.
    deleted: BTreeSet<String>,
    writers: Vec<String>,
    /// How pods are evicted for taints.
    pub(super) rules: Rules,
    /// What belongs to stories of drains only.
    pub(super) drains: Option<Drains>,
}

impl Observer {
    /// One that has seen nothing yet.
    pub(super) fn of_story(calm: bool) -> Self {
        Self { calm, ..Self::default() }
    }

    /// The first breach so far, taken out.
    pub(super) fn verdict(&mut self) -> Result<(), Broken> {
        self.broken.take().map_or(Ok(()), Err)
    }

    /// Nothing ran between these moments: what was in flight arrives only after the pause, and would
    /// have arrived at its beginning at the latest.
    pub(super) fn paused(&mut self, from: f64, to: f64) {
        self.pause = Some((from, to));
    }

    /// How many pods controllers have deleted.
    pub(super) fn evicted(&self) -> usize {
        self.evicted
    }

    /// What became of each pod that belongs to no hostile party.
    pub(super) fn fates(&self) -> BTreeMap<NthPod, Fate> {
        let created = |uid: &String| self.pods[uid].first().map_or(f64::MAX, |state| state.from);
        let mut uids: Vec<_> = self.pods.keys().collect();
        uids.sort_by(|one, other| created(one).total_cmp(&created(other)));
        let mut earlier = BTreeMap::<&str, usize>::new();
        let fate = |uid: &String| {
            let name = &self.names[uid];
            let count = earlier.entry(name).or_default();
            let nth = *count;
            *count += 1;
            let end = self.pods[uid].iter().find(|state| state.going).map(|state| state.from);
            ((name.clone(), nth), Fate { end, evicted: self.deleted.contains(uid) })
        };
        uids.into_iter().map(fate).collect()
    }

    /// How many different processes have written.
    pub(super) fn writers(&self) -> usize {
        self.writers.len()
    }

    /// How many drains have come to their end.
    pub(super) fn drained(&self) -> usize {
        self.drains.as_ref().map_or(0, Drains::drained)
    }

    /// Who holds the lease, and since when.
    pub(super) fn leader(&self) -> (&str, f64) {
        (&self.lease.holder, self.lease.since)
    }

    fn breach(&mut self, text: String) {
        self.broken.get_or_insert(text);
    }

    /// Takes in a change of the store.
    pub(super) fn changed(&mut self, change: &Change) {
        let at = seconds(change.at);
        let name = text(&change.current, "/metadata/name").to_owned();
        match change.resource {
            Resource::Nodes => {
                let taints = (!change.deleted).then(|| self.taints(&name, &change.current, at));
                self.nodes.entry(name).or_default().push(NodeState { from: at, taints });
            }
            Resource::Pods => {
                let uid = text(&change.current, "/metadata/uid").to_owned();
                if is_hostile(&change.current) {
                    self.hostile.insert(uid);
                    self.unaudited.push(change.clone());
                    return;
                }
                let going = change.deleted
                    || change.current.pointer("/metadata/deletionTimestamp").is_some();
                let first = self.pods.get(&uid).and_then(|states| states.first());
                let state = PodState {
                    from: at,
                    tolerations: tolerations(&change.current),
                    // Nobody can have seen it before it was stored.
                    bound: bound(&change.current).min(first.map_or(at, |first| first.from)),
                    node: text(&change.current, "/spec/nodeName").to_owned(),
                    going,
                };
                self.names.insert(uid.clone(), name);
                self.pods.entry(uid).or_default().push(state);
            }
            Resource::Leases => {
                let holder = text(&change.current, "/spec/holderIdentity").to_owned();
                let since = if holder == self.lease.holder { self.lease.since } else { at };
                self.lease = Lease { holder, since };
                self.pauses.changed(change);
            }
            _ => {}
        }
        if let Some(drains) = &mut self.drains {
            drains.changed(change);
        }
        self.unaudited.push(change.clone());
    }

    /// Takes in a request and its answer.
    pub(super) fn audited(&mut self, audited: &Audited, now: f64) {
        let mut changes = std::mem::take(&mut self.unaudited);
        changes.retain(|change| audited.versions.contains(&change.version));
        let header = |name| {
            let value = audited.request.headers().get(name)?.to_str().ok()?;
            Some(value.to_owned())
        };
        let (Some(who), Some(sent)) = (header(WHO), header(SENT)) else { return };
        let sent: f64 = sent.parse().unwrap_or(f64::NAN);
        let operation = &audited.operation;
        let is_pod = operation.resource == Some(Resource::Pods);
        let done = (200..300).contains(&audited.code);
        if is_pod && done && matches!(operation.verb, Verb::Get | Verb::Patch) {
            // What is read here is known no earlier than it was sent.
            self.reads.insert((who.clone(), operation.name.clone()), sent);
        }
        let body: Value = serde_json::from_slice(audited.request.body()).unwrap_or_default();
        if done {
            self.claims.stored(&who, operation, &body, now);
        }
        let reads_only = matches!(operation.verb, Verb::Get | Verb::List | Verb::Watch);
        let of_election =
            operation.resource.is_none() || operation.resource == Some(Resource::Leases);
        if let Some(change) = changes.iter().find(|change| pauses::ends(change)) {
            let (before, after) = (&change.previous, &change.current);
            self.breach(format!("P6: {who} removes a pause: {before:?} became {after}"));
        }
        if reads_only || of_election {
            return;
        }
        self.one_writer(&who, sent, now, operation);
        self.no_harm_in_a_pause(&who, sent, operation, &changes);
        match (operation.resource, operation.verb) {
            (Some(Resource::Pods), Verb::Delete) => {
                self.rightly_deleted(&who, sent, now, operation, &changes);
            }
            (Some(Resource::Pods), Verb::Create) => {
                self.rightly_evicted(&who, sent, now, operation, &changes);
            }
            (Some(Resource::Pods), Verb::Patch) => self.as_upstream_marks(&body),
            (Some(Resource::Events), _) if !words::is_known_event(&body) => {
                self.breach(format!("P7: an event with other words: {body}"));
            }
            _ => {}
        }
        for change in &changes {
            match &mut self.drains {
                Some(drains) if change.resource == Resource::Nodes => {
                    if let Err(text) = drains.wrote_node(&who, sent, now, change) {
                        self.breach(text);
                    }
                }
                // What a budget has left is counted by the API server, with the eviction.
                _ if change.resource == Resource::PodDisruptionBudgets => {}
                _ => self.nothing_foreign(&who, change),
            }
        }
    }

    /// P1: what a drain evicts it may evict, and what is evicted for a taint is due.
    fn rightly_evicted(
        &mut self,
        who: &str,
        sent: f64,
        now: f64,
        operation: &Operation,
        changes: &[Change],
    ) {
        let Some(change) = result(changes) else { return };
        self.evicted += 1;
        let uid = text(&change.current, "/metadata/uid");
        if self.drains.is_none() && !self.rules.0.is_empty() {
            self.deleted.insert(uid.to_owned());
            if !self.is_right(Becomes::Due, who, uid, sent, operation) {
                self.breach(format!(
                    "P1: {who} evicts {} ({uid}), which was not due at {sent:.3}",
                    operation.name
                ));
            }
            return;
        }
        let right = match &mut self.drains {
            Some(drains) => drains.evicted_pod(who, sent, now, &change.current),
            None => Err(format!("P1: {who} drains, and no policy asks for it")),
        };
        if let Err(text) = right {
            self.breach(text);
        }
    }

    /// P4: who writes has a valid claim to the lease.
    fn one_writer(&mut self, who: &str, sent: f64, now: f64, operation: &Operation) {
        if !self.writers.iter().any(|writer| writer == who) {
            self.writers.push(who.to_owned());
        }
        if let Err(text) = self.claims.wrote(who, sent, now, self.pause, operation) {
            self.breach(text);
        }
    }

    /// P5: nothing is evicted or cordoned while a pause is stored.
    fn no_harm_in_a_pause(
        &mut self,
        who: &str,
        sent: f64,
        operation: &Operation,
        changes: &[Change],
    ) {
        let cordons = |change: &&Change| {
            let is_unschedulable =
                |node: &Value| node.pointer("/spec/unschedulable") == Some(&true.into());
            let before = change.previous.as_deref().is_some_and(is_unschedulable);
            change.resource == Resource::Nodes && !before && is_unschedulable(&change.current)
        };
        let what = match (operation.resource, operation.verb) {
            (Some(Resource::Pods), _) => format!("evicts {}", operation.name),
            _ if changes.iter().any(|change| cordons(&change)) => "cordons a node".to_owned(),
            _ => return,
        };
        if let Err(text) = self.pauses.allow(who, sent, &what, self.calm) {
            self.breach(text);
        }
    }

    /// Whether a pause is in force, or was within this time before `now`.
    pub(super) fn was_paused(&self, now: f64, within: f64) -> bool {
        self.pauses.was_on(now, within)
    }

    /// How many pauses there were.
    pub(super) fn pauses(&self) -> usize {
        self.pauses.count()
    }

    /// P1: what a controller deletes was condemned when it sent the request, by all that it can
    /// have known of the pod and of its node, or is the last resort of a drain.
    fn rightly_deleted(
        &mut self,
        who: &str,
        sent: f64,
        now: f64,
        operation: &Operation,
        changes: &[Change],
    ) {
        let Some(change) = result(changes) else { return };
        let uid = text(&change.current, "/metadata/uid");
        self.evicted += 1;
        if self.hostile.contains(uid) {
            return;
        }
        self.deleted.insert(uid.to_owned());
        if self.is_right(Becomes::Deleted, who, uid, sent, operation) {
            return;
        }
        let of_a_drain = match &mut self.drains {
            Some(drains) => drains.deleted_pod(who, sent, now, &change.current),
            None => Err(String::new()),
        };
        if let Err(text) = of_a_drain {
            self.breach(format!(
                "P1: {who} deletes {} ({uid}), which was not condemned at {sent:.3}. {text}",
                operation.name
            ));
        }
    }

    /// Whether this could become of the pod when the request was sent, by all that can have been known.
    fn is_right(
        &self,
        fate: Becomes,
        who: &str,
        uid: &str,
        sent: f64,
        operation: &Operation,
    ) -> bool {
        let read = self.reads.get(&(who.to_owned(), operation.name.clone())).copied();
        // Who sees everything at once has no excuse.
        let shared = if self.calm { 0.0 } else { SHARED };
        let pod_window = (sent - read.unwrap_or(sent)).max(shared);
        self.condemned(fate, uid, sent, pod_window, shared)
    }

    /// P6: of a node a controller changes one annotation, of a pod one condition and that it goes.
    fn nothing_foreign(&mut self, who: &str, change: &Change) {
        let Some(previous) = &change.previous else { return };
        let (mut before, mut after) = ((**previous).clone(), (*change.current).clone());
        for object in [&mut before, &mut after] {
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                for field in ["resourceVersion", "managedFields", "generation"] {
                    metadata.remove(field);
                }
            }
            match change.resource {
                Resource::Nodes => without_record(object),
                Resource::Pods => without_ours(object),
                _ => {}
            }
        }
        if before != after {
            self.breach(format!(
                "P6: {who} changes what is not its own of {:?} {}: {before} became {after}",
                change.resource,
                text(&change.current, "/metadata/name")
            ));
        }
    }

    /// P7: the condition that Job failure policies match on.
    fn as_upstream_marks(&mut self, body: &Value) {
        let conditions = body.pointer("/status/conditions").and_then(Value::as_array);
        let Some([condition]) = conditions.map(Vec::as_slice) else {
            return self.breach(format!("P7: a patch of a pod's status that is no mark: {body}"));
        };
        for (field, wanted) in [
            ("/type", "DisruptionTarget"),
            ("/status", "True"),
            ("/reason", "DeletionByTaintManager"),
            ("/message", "Taint manager: deleting due to NoExecute taint"),
        ] {
            if text(condition, field) != wanted {
                return self.breach(format!("P7: a condition with another {field}: {condition}"));
            }
        }
    }

    /// Whether any state of the pod within `pod_window` before `now`, on any state of its node
    /// within a second, condemned it.
    fn condemned(
        &self,
        fate: Becomes,
        uid: &str,
        now: f64,
        pod_window: f64,
        node_window: f64,
    ) -> bool {
        let Some(pods) = self.pods.get(uid) else { return false };
        let recent = |from: f64, next: Option<f64>, window: f64| {
            from <= now && next.is_none_or(|next| next >= now - window)
        };
        pods.iter().enumerate().any(|(i, pod)| {
            let nodes = self.nodes.get(&pod.node).map_or(&[][..], Vec::as_slice);
            recent(pod.from, pods.get(i + 1).map(|next| next.from), pod_window)
                && nodes.iter().enumerate().any(|(j, node)| {
                    recent(node.from, nodes.get(j + 1).map(|next| next.from), node_window)
                        && node
                            .taints
                            .as_ref()
                            .and_then(|taints| {
                                self.rules.moment(fate, taints, pod, |taint| taint.earliest)
                            })
                            .is_some_and(|deadline| deadline <= now + 1e-3)
                })
        })
    }

    /// The pods that are there although they had to go before `moment`, by what is stored: P2 and
    /// P3. Returns the first of them. Those that only wait for their budgets count if it is `Due` that is
    /// asked.
    pub(super) fn overdue(&self, fate: Becomes, moment: f64) -> Option<String> {
        self.pods.iter().find_map(|(uid, states)| {
            let pod = states.last().filter(|pod| !pod.going)?;
            let taints = self.nodes.get(&pod.node)?.last()?.taints.as_ref()?;
            let from = self.nodes[&pod.node].last()?.from.max(pod.from);
            let due = self.rules.moment(fate, taints, pod, |taint| taint.latest)?.max(from);
            (due < moment).then(|| format!("pod {} ({uid}) was due at {due:.3}", self.names[uid]))
        })
    }

    /// The node's taints, with from when on each counts.
    fn taints(&mut self, name: &str, node: &Value, at: f64) -> Vec<Taint> {
        let last = self.nodes.get(name).and_then(|states| states.last());
        let before = last.and_then(|state| state.taints.clone()).unwrap_or_default();
        let listed = node.pointer("/spec/taints").and_then(Value::as_array);
        let no_execute =
            listed.into_iter().flatten().filter(|taint| text(taint, "/effect") == "NoExecute");
        let mut taints: Vec<_> = no_execute
            .map(|taint| {
                let (key, value) =
                    (text(taint, "/key").to_owned(), text(taint, "/value").to_owned());
                if let Some(latest) = time(taint, "/timeAdded").map(end) {
                    let same = |t: &&Taint| (&t.key, &t.value, t.latest) == (&key, &value, latest);
                    // Whose clock is behind takes the stamp for one from the future, and counts from when
                    // it saw the taint, which is after it was stored.
                    let since = before.iter().find(same).map_or(latest.min(at), |t| t.since);
                    let earliest = since;
                    return Taint { key, value, since, earliest, latest, recorded: false };
                }
                let known = before.iter().find(|known| known.key == key && known.value == value);
                let since = known.map_or(at, |known| known.since);
                let record = recorded(node, &key, &value);
                let latest = match (record, known) {
                    (Some(_), Some(known)) if known.recorded => known.latest,
                    (Some(first), _) if first <= self.lease.since => first.max(since),
                    _ => since,
                };
                let (earliest, recorded) = (since - DATE, record.is_some());
                Taint { key, value, since, earliest, latest, recorded }
            })
            .collect();
        let since = self.outage(name, node, &taints, at);
        for taint in &mut taints {
            if OUTAGE.contains(&&*taint.key) {
                taint.earliest = since.map_or(taint.earliest, |since| since.min(taint.earliest));
            }
        }
        taints
    }

    /// Since when the node is in an unbroken outage.
    fn outage(&mut self, name: &str, node: &Value, taints: &[Taint], at: f64) -> Option<f64> {
        let uid = text(node, "/metadata/uid");
        let outage = self.outages.entry(name.to_owned()).or_default();
        if outage.uid != uid {
            *outage = Outage { uid: uid.to_owned(), ..Outage::default() };
        }
        let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
        let ready = conditions
            .into_iter()
            .flatten()
            .any(|c| text(c, "/type") == "Ready" && text(c, "/status") == "True");
        let present = taints.iter().filter(|taint| OUTAGE.contains(&&*taint.key));
        let first = present.map(|taint| taint.since).min_by(f64::total_cmp);
        if outage.gap_from.is_some_and(|from| ready || at - from >= GAP) {
            outage.since = None;
            outage.gap_from = None;
        }
        match first {
            Some(first) => {
                outage.since = Some(outage.since.map_or(first, |since| since.min(first)));
                outage.gap_from = None;
            }
            None if ready => outage.since = None,
            None if outage.since.is_some() => {
                outage.gap_from.get_or_insert(at);
            }
            None => {}
        }
        outage.since
    }
}

fn is_hostile(pod: &Value) -> bool {
    text(pod, "/metadata/namespace") == TENANT || text(pod, "/spec/nodeName") == NODE
}

/// The change by which a pod is gone or going. Marked and then removed: that is one.
fn result(changes: &[Change]) -> Option<&Change> {
    changes.iter().find(|change| {
        change.resource == Resource::Pods
            && (change.deleted || change.current.pointer("/metadata/deletionTimestamp").is_some())
    })
}

/// The first sight of a taint, as the node's record has it.
fn recorded(node: &Value, key: &str, value: &str) -> Option<f64> {
    let record = node.pointer("/metadata/annotations")?.get(RECORD)?.as_str()?;
    let record: Value = serde_json::from_str(record).ok()?;
    let mut taints = record.get("taints")?.as_array()?.iter();
    let taint = taints.find(|one| text(one, "/key") == key && text(one, "/value") == value)?;
    time(taint, "/since")
}

fn tolerations(pod: &Value) -> Vec<Tolerated> {
    let listed = pod.pointer("/spec/tolerations").and_then(Value::as_array);
    let read = |toleration: &Value| Tolerated {
        stored: toleration.clone(),
        seconds: toleration.get("tolerationSeconds").and_then(Value::as_i64),
    };
    listed.into_iter().flatten().map(read).collect()
}

fn bound(pod: &Value) -> f64 {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    let scheduled = conditions.into_iter().flatten().find(|c| text(c, "/type") == "PodScheduled");
    let bound = scheduled.and_then(|condition| time(condition, "/lastTransitionTime"));
    let bound = bound.or_else(|| time(pod, "/metadata/creationTimestamp"));
    bound.map(end).unwrap_or_default()
}

fn without_record(node: &mut Value) {
    let annotations = node.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    let is_empty = annotations.is_some_and(|annotations| {
        annotations.remove(RECORD);
        annotations.is_empty()
    });
    if is_empty && let Some(metadata) = node.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("annotations");
    }
}

fn without_ours(pod: &mut Value) {
    if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("deletionTimestamp");
        metadata.remove("deletionGracePeriodSeconds");
    }
    if let Some(Value::Array(conditions)) = pod.pointer_mut("/status/conditions") {
        conditions.retain(|condition| text(condition, "/type") != "DisruptionTarget");
    }
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn number(value: &Value, pointer: &str) -> f64 {
    value.pointer(pointer).and_then(Value::as_f64).unwrap_or_default()
}

/// The end of the second that a stamp of the API tells: what it counts as.
fn end(second: f64) -> f64 {
    second + 1.0
}

/// When so much time has passed for certain since what was stored with this stamp; no time passes at
/// once.
fn aged(second: f64, age: f64) -> f64 {
    if age > 0.0 { end(second) + age } else { second }
}

fn time(value: &Value, pointer: &str) -> Option<f64> {
    text(value, pointer).parse::<Timestamp>().ok().map(seconds)
}

/// Seconds since noon, at which each story begins.
pub(super) fn seconds(moment: Timestamp) -> f64 {
    moment.duration_since(noon()).as_secs_f64()
}
