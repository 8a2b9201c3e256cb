//! What a scenario of cordon and drain stands on: nodes with hollow kubelets, conditions put on
//! them as node-problem-detector does, and what is seen of them from outside.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node, NodeCondition};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use ostrakon::sim::hollow::{HollowKubelets, HollowNode, Options};
use serde_json::{Value, json};

use super::policies::{BROKEN, POLICY};
pub(super) use crate::ctx::SOON;
use crate::ctx::{Ctx, TooSlow};
use crate::harness::audit::Audit;
use crate::harness::cluster::{ARENA_LABEL, node, pod};
use crate::harness::workloads::{APP, Held};
use crate::harness::{Arena, Bed, NodeRef, Ostrakon, PodRef, PodSketch, User, Verb, Witness, wait};

/// How long a drain may take in which nothing is in the way any more: an eviction that its budget
/// has refused for long is tried again after a minute.
pub(super) const DRAINED: Duration = Duration::from_secs(180);

/// How long something is watched that is not to happen.
pub(super) const QUIET: Duration = Duration::from_secs(3);

/// What draino writes on a node, and what ostrakon does.
const CONDITIONS: &str = "draino.planet.com/conditions";
const RECORD: &str = "ostrakon.dev/drain";
pub(super) const RETRY: &str = "draino/drain-retry";

/// Under which name ostrakon's events about drains appear.
const REPORTER: &str = "ostrakon";

/// An arena with hollow kubelets.
pub(super) struct Stage {
    pub arena: Arena,
    pub kubelets: HollowKubelets,
    pub witness: Witness,
    client: kube::Client,
    _shared: Option<Arc<Ostrakon>>,
}

/// A node as it is stored.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub unschedulable: bool,
    /// draino's annotation.
    pub conditions: Option<String>,
    /// The annotation that ostrakon keeps the drain in; null without one.
    pub record: Value,
    /// The condition `DrainScheduled`.
    pub scheduled: Option<NodeCondition>,
    pub annotations: BTreeMap<String, String>,
}

impl Seen {
    fn of(node: &Node) -> Result<Self> {
        let annotations = node.metadata.annotations.clone().unwrap_or_default();
        let record = annotations.get(RECORD).map(|text| serde_json::from_str(text)).transpose()?;
        let status = node.status.as_ref();
        let conditions = status.and_then(|status| status.conditions.as_deref());
        let mut conditions = conditions.unwrap_or_default().iter();
        Ok(Self {
            unschedulable: is_unschedulable(node),
            conditions: annotations.get(CONDITIONS).cloned(),
            record: record.unwrap_or_default(),
            scheduled: conditions.find(|one| one.type_ == "DrainScheduled").cloned(),
            annotations,
        })
    }

    /// The phase of its drain; empty without a record.
    pub(super) fn phase(&self) -> &str {
        self.record["phase"].as_str().unwrap_or_default()
    }

    /// A time in its record.
    pub(super) fn time(&self, key: &str) -> Result<Timestamp> {
        let text = self.record[key].as_str();
        let text = text.with_context(|| format!("no {key} in {}", self.record))?;
        Ok(text.parse()?)
    }

    /// Status and message of `DrainScheduled`.
    pub(super) fn mark(&self) -> Option<(&str, &str)> {
        let mark = self.scheduled.as_ref()?;
        Some((&mark.status, mark.message.as_deref().unwrap_or_default()))
    }
}

pub(super) fn is_unschedulable(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default()
}

impl Stage {
    /// With the shared ostrakon at work beside it.
    pub(super) async fn set(ctx: &Ctx) -> Result<Self> {
        let ostrakon = ctx.ostrakon().await?;
        Ok(Self { _shared: Some(ostrakon), ..Self::alone(ctx, Options::default()).await? })
    }

    /// Without any.
    pub(super) async fn alone(ctx: &Ctx, options: Options) -> Result<Self> {
        let arena = ctx.arena().await?;
        let witness = arena.witness().await?;
        let kubelets = HollowKubelets::start(ctx.bed().client_for(User::Kubelets)?, options);
        let kubelets = kubelets.await?;
        Ok(Self { client: arena.client(), arena, kubelets, witness, _shared: None })
    }

    /// A node with a kubelet under a policy, to be added.
    pub(super) fn sketch(&self, name: &str, policy: &str) -> (NodeRef, HollowNode) {
        let arena = self.arena.namespace();
        let name = format!("{arena}-{name}");
        let node = HollowNode::new(&name).label(ARENA_LABEL, arena).label(POLICY, policy);
        (NodeRef(name), node.capacity("cpu", "64"))
    }

    /// Adds a node with a kubelet under a policy.
    pub(super) async fn node(&self, name: &str, policy: &str) -> Result<NodeRef> {
        let (node, sketch) = self.sketch(name, policy);
        self.kubelets.add_node(sketch).await?;
        Ok(node)
    }

    /// Adds a node without a kubelet: nobody writes to it, and its pods do what the scenario says.
    pub(super) async fn bare_node(&self, name: &str, policy: &str) -> Result<NodeRef> {
        self.arena.create_node(node(name).label(POLICY, policy)).await
    }

    /// Sets a condition on a node, with a transition now. Returns when it was there.
    pub(super) async fn condition(
        &self,
        node: &NodeRef,
        kind: &str,
        status: &str,
    ) -> Result<Timestamp> {
        self.arena.set_condition(node, kind, status).await
    }

    /// Makes a node bad. Returns when it was.
    pub(super) async fn breaks(&self, node: &NodeRef) -> Result<Timestamp> {
        self.condition(node, BROKEN, "True").await
    }

    /// Makes it good again. Returns when it was.
    pub(super) async fn recovers(&self, node: &NodeRef) -> Result<Timestamp> {
        self.condition(node, BROKEN, "False").await
    }

    /// As `kubectl cordon` and `kubectl uncordon`.
    pub(super) async fn cordon(&self, node: &NodeRef, cordoned: bool) -> Result<()> {
        let unschedulable = if cordoned { json!(true) } else { Value::Null };
        self.patch(node, json!({ "spec": { "unschedulable": unschedulable } })).await
    }

    /// A merge patch of a node, by a person.
    pub(super) async fn patch(&self, node: &NodeRef, patch: Value) -> Result<()> {
        let params = PatchParams::default();
        self.nodes().patch(node.name(), &params, &Patch::Merge(patch)).await?;
        Ok(())
    }

    pub(super) fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// A node as it is stored now.
    pub(super) async fn look(&self, node: &NodeRef) -> Result<Seen> {
        Seen::of(&self.nodes().get(node.name()).await?)
    }

    /// Waits until a node is as wanted.
    pub(super) async fn until(
        &self,
        node: &NodeRef,
        what: &str,
        patience: Duration,
        wanted: impl Fn(&Seen) -> bool,
    ) -> Result<Seen> {
        wait::until(&format!("{node}: {what}"), patience, async || {
            let seen = self.look(node).await?;
            ensure!(wanted(&seen), "it is {seen:?}");
            Ok(Some(seen))
        })
        .await
    }

    /// Waits until a node is cordoned.
    pub(super) async fn cordoned(&self, node: &NodeRef, patience: Duration) -> Result<Seen> {
        self.until(node, "cordoned", patience, |seen| seen.unschedulable).await
    }

    /// Waits until the drain of a node has come so far.
    pub(super) async fn phase(
        &self,
        node: &NodeRef,
        phase: &str,
        patience: Duration,
    ) -> Result<Seen> {
        self.until(node, phase, patience, |seen| seen.phase() == phase).await
    }

    /// Waits until the drain of a node is planned and marked, and before it begins: what it is to
    /// begin at.
    pub(super) async fn scheduled(&self, node: &NodeRef) -> Result<Timestamp> {
        let is_marked = |seen: &Seen| seen.mark().is_some() && !seen.record["scheduled"].is_null();
        let seen = self.until(node, "scheduled", SOON, is_marked).await?;
        if seen.phase() != "scheduled" {
            return Err(TooSlow::error("to see the drain before it began"));
        }
        seen.time("scheduled")
    }

    /// Fails if a node is not as wanted at any time from now on for `duration`.
    pub(super) async fn stays(
        &self,
        node: &NodeRef,
        what: &str,
        duration: Duration,
        wanted: impl Fn(&Seen) -> bool,
    ) -> Result<()> {
        let broken = self.until(node, what, duration, |seen| !wanted(seen)).await;
        match broken {
            Ok(seen) => bail!("{node} was to stay {what}: {seen:?}"),
            Err(_) => Ok(()),
        }
    }

    /// The events about a node, oldest first.
    pub(super) async fn events(&self, node: &NodeRef) -> Result<Vec<Event>> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let about = format!("involvedObject.kind=Node,involvedObject.name={}", node.name());
        let mut events = events.list(&ListParams::default().fields(&about)).await?.items;
        events.retain(|event| event.reporting_component.as_deref() == Some(REPORTER));
        // Within a second, by the name, which has the time in it.
        events.sort_by_key(|event| (event.first_timestamp.clone(), event.metadata.name.clone()));
        Ok(events)
    }

    /// Waits for an event of this reason about a node whose message has all of `words`. Returns
    /// its type.
    pub(super) async fn told(
        &self,
        node: &NodeRef,
        reason: &str,
        words: &[&str],
    ) -> Result<String> {
        wait::until(&format!("{reason} about {node} with {words:?}"), SOON, async || {
            let events = self.events(node).await?;
            let fits = |event: &&Event| {
                let message = event.message.as_deref().unwrap_or_default();
                event.reason.as_deref() == Some(reason)
                    && words.iter().all(|word| message.contains(word))
            };
            let all = || events.iter().map(|e| (e.reason.clone(), e.message.clone()));
            let event = events.iter().find(fits);
            let event = event.with_context(|| format!("only {:?}", all().collect::<Vec<_>>()))?;
            Ok(Some(event.type_.clone().unwrap_or_default()))
        })
        .await
    }

    /// Waits for a warning about a pod whose message has all of `words`.
    pub(super) async fn told_of_pod(&self, pod: &PodRef, words: &[&str]) -> Result<()> {
        let about = ListParams::default().fields(&format!("involvedObject.uid={}", pod.uid));
        wait::until(&format!("a warning about {pod} with {words:?}"), SOON, async || {
            let events = self.arena.events().list(&about).await?.items;
            let fits = |event: &Event| {
                let message = event.message.as_deref().unwrap_or_default();
                event.reporting_component.as_deref() == Some(REPORTER)
                    && event.type_.as_deref() == Some("Warning")
                    && words.iter().all(|word| message.contains(word))
            };
            let all = || events.iter().map(|e| (e.reason.clone(), e.message.clone()));
            ensure!(events.iter().any(fits), "only {:?}", all().collect::<Vec<_>>());
            Ok(Some(()))
        })
        .await
    }

    /// Which reasons of events about a node there are, in order.
    pub(super) async fn reasons(&self, node: &NodeRef) -> Result<Vec<String>> {
        Ok(self.events(node).await?.into_iter().filter_map(|event| event.reason).collect())
    }

    /// A pod on a node that belongs to something, which no controller makes anew.
    pub(super) async fn kept(&self, name: &str, node: &NodeRef) -> Result<PodSketch> {
        let keeper = self.arena.keeper(&format!("{name}-keeper")).await?;
        Ok(pod(name).label(APP, name).on(node).owned_by(&keeper).grace(5))
    }

    /// A pod on `node` that its budget holds until the other pod, elsewhere, is made ready.
    pub(super) async fn held(&self, node: &NodeRef, elsewhere: &NodeRef) -> Result<Held> {
        let app = format!("held-on-{}", &node.name()[self.arena.namespace().len() + 1..]);
        let keeper = self.arena.keeper(&app).await?;
        let like = |name: &str| pod(name).owned_by(&keeper).grace(5);
        self.arena.held(&app, node, elsewhere, like).await
    }

    /// Lets a held pod go.
    pub(super) async fn let_go(&self, held: &Held) -> Result<()> {
        self.arena.let_go(held).await
    }
}

/// The records that ostrakon wrote on a node, in order; null where it took one off. No phase is
/// missed, however short it was.
pub(super) fn records(bed: &Bed, node: &NodeRef) -> Result<Vec<Value>> {
    let patches = bed.audit()?.by(User::Ostrakon).verb(Verb::Patch).resource("nodes").succeeded();
    let patches = patches.name(node.name());
    let records = patches.records().iter().filter_map(|patch| {
        let annotations = patch.request_object["metadata"]["annotations"].as_object()?;
        let text = annotations.get(RECORD)?.as_str();
        Some(text.map_or(Ok(Value::Null), serde_json::from_str))
    });
    Ok(records.collect::<serde_json::Result<_>>()?)
}

/// When a pod that was being deleted was taken away by its kubelet.
pub(super) async fn removed_at(bed: &Bed, pod: &PodRef) -> Result<Timestamp> {
    let what = format!("the kubelet's removal of {pod}");
    bed.audit_until(&what, SOON, |audit| {
        let removals = audit.by(User::Kubelets).verb(Verb::Delete).resource("pods").succeeded();
        let removals = removals.namespace(&pod.namespace).name(&pod.name);
        removals.records().first().map(|removal| removal.stage_timestamp)
    })
    .await
}

/// The evictions that ostrakon asked for in an arena.
pub(super) fn evictions(bed: &Bed, arena: &Arena) -> Result<Audit> {
    let audit = bed.audit()?.by(User::Ostrakon).namespace(arena.namespace());
    Ok(audit.verb(Verb::Create).resource("pods/eviction"))
}

/// Fails unless each of `pods` was evicted once by ostrakon, by its UID, no other pod of the arena
/// was, and none was deleted.
pub(super) async fn only_these_evicted(bed: &Bed, arena: &Arena, pods: &[PodRef]) -> Result<()> {
    bed.audit_until("the evictions in the audit log", SOON, |_| {
        let taken = evictions(bed, arena).ok()?.succeeded();
        (taken.len() >= pods.len()).then_some(())
    })
    .await?;
    let taken = evictions(bed, arena)?.succeeded();
    let mut found: Vec<_> = taken
        .records()
        .iter()
        .map(|record| (record.name().to_owned(), uid_of(&record.request_object)))
        .collect();
    let mut expected: Vec<_> = pods.iter().map(|pod| (pod.name.clone(), pod.uid.clone())).collect();
    found.sort_unstable();
    expected.sort_unstable();
    ensure!(found == expected, "evicted {found:?}, and not {expected:?}");
    let deletes = bed.audit()?.by(User::Ostrakon).namespace(arena.namespace()).verb(Verb::Delete);
    ensure!(deletes.is_empty(), "deleted: {:#?}", deletes.records());
    Ok(())
}

/// Which pod an eviction insists on.
fn uid_of(body: &Value) -> String {
    body["deleteOptions"]["preconditions"]["uid"].as_str().unwrap_or_default().to_owned()
}
