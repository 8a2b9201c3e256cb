//! What came of a story: who was removed, when and by which request, who stayed, what is written on
//! pods and nodes, which events tell of it, and what ostrakon asked for.
//!
//! Names that are made up, times, UIDs and counts that depend on them are left out or replaced, so
//! that two clusters that behave alike come to the same outcome.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use regex::Regex;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::difference::differences;
use super::stories::{LATER, Story, World};
use crate::harness::audit::{Audit, AuditRecord};
use crate::harness::cluster::ARENA_LABEL;
use crate::harness::witness::Sighting;
use crate::harness::{Verb, wait};

/// How long events and the last writes may take, on a machine that stalls.
const SOON: Duration = Duration::from_secs(90);

/// How long nothing more may happen after all that was to happen.
const QUIET: Duration = Duration::from_millis(1500);

/// How long is waited before an outcome is recorded.
const SETTLED: Duration = Duration::from_secs(8);

/// Deletions for taints are told apart by so many seconds: those of a story are due at multiples.
const CLASS: Duration = Duration::from_secs(LATER.unsigned_abs());

/// So much earlier may a deletion be seen: `timeAdded` loses up to a second.
const EARLY: Duration = Duration::from_millis(1500);

/// Who writes the events that count.
const REPORTERS: [&str; 2] = ["ostrakon", "taint-eviction-controller"];

/// Plays a story and compares what comes of it with what was recorded; or records it.
pub(crate) async fn hold(world: &World<'_>, story: Story, record: bool) -> Result<()> {
    story.play(world).await?;
    let recording = story.recording();
    if record {
        sleep(SETTLED).await;
        return recording.write(&outcome(world).await?);
    }
    let recorded = recording.read()?;
    let same = async || {
        let all = differences(&recorded, &outcome(world).await?);
        let lines = all.join("\n  ");
        ensure!(all.is_empty(), "{story:?} came out otherwise than recorded:\n  {lines}");
        anyhow::Ok(())
    };
    wait::until("the outcome", SOON, async || same().await.map(Some)).await?;
    sleep(QUIET).await;
    same().await
}

async fn outcome(world: &World<'_>) -> Result<Value> {
    let words = Words::new(world.arena.namespace())?;
    let asked = world.asked()?.that(|one| words.is_about_us(one));
    let pods = world.arena.pods().list(&ListParams::default()).await?;
    let mut left: Vec<String> = Vec::new();
    for pod in &pods.items {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let going = if pod.metadata.deletion_timestamp.is_some() { ", going" } else { "" };
        let text = format!("{} on {}{going}", pod.name_any(), node.unwrap_or("no node"));
        left.push(words.plain(&text));
    }
    left.sort();
    Ok(json!({
        "removed": removed(world, &asked, &words),
        "left": left,
        "nodes": nodes(world, &words).await?,
        "events": events(world, &words).await?,
        "requests": requests(&asked, &words),
    }))
}

/// Who was deleted, by which request, and when: after which step, and by a taint so many seconds
/// after it, by a drain in which of its waves. A wave begins when all before it are gone.
fn removed(world: &World<'_>, asked: &Audit, words: &Words<'_>) -> Vec<String> {
    let mut gone: Vec<(Instant, Sighting)> = world
        .witness
        .sightings()
        .into_iter()
        .filter_map(|sighting| Some((sighting.deleted?.at, sighting)))
        .collect();
    gone.sort_by_key(|(at, _)| *at);
    let steps = world.steps.lock();
    let (mut wave, mut ends): (usize, Option<Instant>) = (0, None);
    let mut all = Vec::new();
    for (at, sighting) in &gone {
        let step = steps.iter().rev().find(|(_, begin)| begin <= at);
        let (step, begin) = step.map_or(("the beginning", *at), |(step, begin)| (*step, *begin));
        let is_it = |one: &&Arc<AuditRecord>| {
            let uid = &sighting.pod.uid;
            let body = &one.request_object;
            one.succeeded()
                && (body["preconditions"]["uid"] == **uid
                    || body["deleteOptions"]["preconditions"]["uid"] == **uid)
        };
        let by = asked.records().iter().find(is_it);
        let when = match by {
            Some(by) if by.subresource() == "eviction" => {
                if ends.is_none_or(|ends| *at >= ends) {
                    wave += 1;
                }
                // While one is still there, who goes goes with it.
                let end = sighting.gone.map_or(*at + SOON, |gone| gone.at);
                ends = Some(ends.map_or(end, |ends| ends.max(end)));
                format!("evicted in wave {wave}")
            }
            Some(_) => {
                let classes = (at.duration_since(begin) + EARLY).as_secs() / CLASS.as_secs();
                format!("deleted in second {}", classes * CLASS.as_secs())
            }
            None => "removed by somebody else".to_owned(),
        };
        let mark = sighting.disruption.as_ref().map_or("no mark".to_owned(), |(_, mark)| {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            format!("{}: {}", text(&mark.reason), text(&mark.message))
        });
        let gone = if sighting.gone.is_some() { "gone" } else { "going" };
        let text = format!("{}: after {step}, {when}; {mark}; {gone}", sighting.pod.name);
        all.push(words.plain(&text));
    }
    all.sort();
    all
}

async fn nodes(world: &World<'_>, words: &Words<'_>) -> Result<Value> {
    let ours = ListParams::default().labels(&format!("{ARENA_LABEL}={}", words.namespace));
    let mut all = BTreeMap::new();
    for node in world.arena.nodes().list(&ours).await? {
        all.insert(words.plain(&node.name_any()), node_as_told(&node, words));
    }
    Ok(json!(all))
}

fn node_as_told(node: &Node, words: &Words<'_>) -> Value {
    let annotation = |key: &str| node.annotations().get(key).map(|text| words.plain(text));
    let record = node.annotations().get("ostrakon.dev/drain");
    let record: Value = record.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let status = node.status.clone().unwrap_or_default();
    let mark = status.conditions.unwrap_or_default().into_iter();
    let mark = mark.filter(|condition| condition.type_ == "DrainScheduled").map(|mark| {
        let text = format!(
            "{} {}: {}",
            mark.status,
            mark.reason.unwrap_or_default(),
            mark.message.unwrap_or_default()
        );
        words.plain(&text)
    });
    json!({
        "unschedulable": node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false),
        "phase": record["phase"],
        "cordon": record["cordon"],
        "draino.planet.com/conditions": annotation("draino.planet.com/conditions"),
        "DrainScheduled": mark.collect::<Vec<_>>(),
        "ostrakon.dev/noexecute-since": annotation("ostrakon.dev/noexecute-since"),
    })
}

async fn events(world: &World<'_>, words: &Words<'_>) -> Result<Vec<String>> {
    let of_nodes: Api<Event> = Api::namespaced(world.arena.client(), "default");
    let mut all = world.arena.events().list(&ListParams::default()).await?.items;
    all.extend(of_nodes.list(&ListParams::default()).await?.items);
    let mut told: Vec<String> = Vec::new();
    for event in all {
        let by = event.reporting_component.clone().unwrap_or_default();
        let about = &event.involved_object;
        let name = about.name.clone().unwrap_or_default();
        let is_ours = about.namespace.as_deref() == Some(words.namespace)
            || name.starts_with(words.namespace);
        if REPORTERS.contains(&&*by) && is_ours {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            told.push(words.plain(&format!(
                "{} {} about {} {name}: {} ({by}, {} times)",
                text(&event.type_),
                text(&event.reason),
                text(&about.kind),
                text(&event.message),
                event.count.unwrap_or_default(),
            )));
        }
    }
    told.sort();
    Ok(told)
}

/// How often each request was carried out. Of reads and refusals, which depend on how fast things
/// go, only that there were any; not even that of writes that somebody else's came before.
fn requests(asked: &Audit, words: &Words<'_>) -> Value {
    let mut all: BTreeMap<String, Value> = BTreeMap::new();
    let counts = |one: &&Arc<AuditRecord>| one.resource() != "nodes" || one.code() != 409;
    for one in asked.records().iter().filter(counts) {
        let body = &one.request_object;
        let name = match one.name() {
            "" => body["metadata"]["name"].as_str().unwrap_or_default(),
            name => name,
        };
        let (about, slash) = match one.resource() {
            "events" => (body["involvedObject"]["name"].as_str().unwrap_or_default(), ""),
            _ => (name, if one.subresource().is_empty() { "" } else { "/" }),
        };
        let resource = format!("{}{slash}{}", one.resource(), one.subresource());
        let verb = one.verb.as_str();
        let mut text = format!("{verb} {resource}");
        for part in [about, &details(one, words)].into_iter().filter(|part| !part.is_empty()) {
            text = format!("{text} {part}");
        }
        text = format!("{text}: {}", one.code());
        let text = words.plain(&text);
        if one.succeeded() && Verb::WRITES.contains(&one.verb) {
            let count = all.get(&text).and_then(Value::as_u64).unwrap_or_default();
            all.insert(text, json!(count + 1));
        } else {
            all.insert(text, json!("some"));
        }
    }
    json!(all)
}

/// What a write says, as far as others act on it.
fn details(asked: &AuditRecord, words: &Words<'_>) -> String {
    let body = &asked.request_object;
    let mut said = Vec::new();
    for condition in body["status"]["conditions"].as_array().into_iter().flatten() {
        let text = |key: &str| condition[key].as_str().unwrap_or_default();
        let (kind, status) = (text("type"), text("status"));
        said.push(format!("{kind} {status} {}: {}", text("reason"), text("message")));
    }
    for (key, value) in body["metadata"]["annotations"].as_object().into_iter().flatten() {
        let text = match value.as_str() {
            _ if asked.resource() == "events" => continue,
            None => "none".to_owned(),
            Some(text) => match serde_json::from_str::<Value>(text) {
                Ok(record) if record["phase"].is_string() => {
                    record["phase"].as_str().unwrap_or_default().to_owned()
                }
                _ => words.plain(text),
            },
        };
        said.push(format!("{key} {text}"));
    }
    if !body["spec"]["unschedulable"].is_null() {
        said.push(format!("unschedulable {}", body["spec"]["unschedulable"]));
    }
    for options in [body, &body["deleteOptions"]] {
        if options["preconditions"]["uid"].is_string() {
            said.push("for its UID".to_owned());
        }
        if !options["gracePeriodSeconds"].is_null() {
            said.push(format!("with a grace of {} s", options["gracePeriodSeconds"]));
        }
    }
    if asked.verb == Verb::List {
        said.push("of a node".to_owned());
    }
    if said.is_empty() { String::new() } else { format!("({})", said.join(", ")) }
}

/// What stands for what is made up anew for each run.
struct Words<'a> {
    namespace: &'a str,
    made_up: Vec<(Regex, &'static str)>,
}

impl<'a> Words<'a> {
    fn new(namespace: &'a str) -> Result<Self> {
        let time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z";
        let uid = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";
        let made_up = vec![
            (Regex::new(time)?, "TIME"),
            (Regex::new(uid)?, "UID"),
            (Regex::new(&format!("{namespace}-"))?, ""),
            (Regex::new(namespace)?, "NAMESPACE"),
            (Regex::new(r"\bweb-[a-z0-9]{5}\b")?, "web-*"),
        ];
        Ok(Self { namespace, made_up })
    }

    fn plain(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (from, to) in &self.made_up {
            text = from.replace_all(&text, *to).into_owned();
        }
        text
    }

    /// Whether a request is about this story, and not about another that is told beside it.
    fn is_about_us(&self, asked: &AuditRecord) -> bool {
        let about = asked.request_object["involvedObject"]["name"].as_str().unwrap_or_default();
        asked.namespace() == self.namespace
            || asked.name().starts_with(self.namespace)
            || about.starts_with(self.namespace)
            || asked.request_uri.contains(self.namespace)
    }
}
