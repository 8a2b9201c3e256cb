//! Stories of the unchanged controller in which nothing fails. Each is told once and played on the
//! embedded cluster and on a real control plane; [`outcome`](super::outcome) says what came of it.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use jiff::SignedDuration;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::PostParams;
use ostrakon::clock::system_time;
use ostrakon::sim::hollow::{HollowKubelets, HollowNode, Options};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Recording;
use crate::harness::audit::Audit;
use crate::harness::cluster::{ARENA_LABEL, pod};
use crate::harness::workloads::{APP, Held};
use crate::harness::{Arena, Bed, NodeRef, PodRef, PodSketch, User, Witness, no_execute, wait};

/// How long something may take that is to happen soon, on a machine that stalls.
const SOON: Duration = Duration::from_secs(120);

/// The policy under which nodes are drained here, and the label by which they choose it.
const POLICY: &str = "likeness";
const POLICY_LABEL: &str = "ostrakon.test/policy";

/// Who does not go at once for a taint goes so many seconds later: stalls of a machine are shorter.
pub(crate) const LATER: i64 = 15;

/// The condition that it drains for.
const BROKEN: &str = "Broken";

/// The policy, for ostrakon's configuration.
pub(crate) fn policy() -> Value {
    json!({
        "name": POLICY,
        "nodeSelector": { POLICY_LABEL: POLICY },
        "conditions": [{ "type": BROKEN, "status": "True", "minAge": "0s", "clearAfter": "2s" }],
        "pods": { "evictUnreplicated": true },
        "pace": { "notice": "1s", "spacing": "0s", "caps": [] },
    })
}

/// A cluster on which a story is played, with an ostrakon that knows [`policy`] at work beside it.
pub(crate) struct World<'a> {
    pub bed: &'a Bed,
    pub arena: Arena,
    pub kubelets: HollowKubelets,
    pub witness: Witness,
    pub steps: Mutex<Vec<(&'static str, Instant)>>,
}

impl<'a> World<'a> {
    pub(crate) async fn new(bed: &'a Bed, arena: Arena) -> Result<Self> {
        let witness = arena.witness().await?;
        // Long enough that pods which are evicted together are still there together, although the
        // controller stalls in between.
        let options = Options { stop_time: Duration::from_secs(10), ..Options::default() };
        let kubelets = HollowKubelets::start(bed.client_for(User::Kubelets)?, options).await?;
        Ok(Self { bed, arena, kubelets, witness, steps: Mutex::default() })
    }

    /// All that ostrakon asked for up to now.
    pub(crate) fn asked(&self) -> Result<Audit> {
        Ok(self.bed.audit()?.by(User::Ostrakon))
    }

    /// What happens from here on happens after this.
    fn step(&self, name: &'static str) {
        self.steps.lock().push((name, Instant::now()));
    }

    /// A node with a kubelet.
    async fn node(&self, name: &str) -> Result<NodeRef> {
        let arena = self.arena.namespace();
        let node = NodeRef(format!("{arena}-{name}"));
        let sketch = HollowNode::new(node.name())
            .label(ARENA_LABEL, arena)
            .label(POLICY_LABEL, POLICY)
            .capacity("cpu", "64");
        self.kubelets.add_node(sketch).await?;
        let nodes: Api<Node> = self.arena.nodes();
        wait::until("the new node without a taint", SOON, async || {
            let spec = nodes.get(node.name()).await?.spec.unwrap_or_default();
            Ok(spec.taints.unwrap_or_default().is_empty().then_some(()))
        })
        .await?;
        Ok(node)
    }

    /// Creates these pods and waits until they run.
    async fn run(&self, sketches: impl IntoIterator<Item = PodSketch>) -> Result<Vec<PodRef>> {
        let pods = self.arena.create_all(sketches).await?;
        wait::until("all pods running", SOON, async || {
            for pod in &pods {
                let object = self.arena.pods().get(&pod.name).await?;
                let phase = object.status.and_then(|status| status.phase);
                if phase.as_deref() != Some("Running") {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        })
        .await?;
        Ok(pods)
    }

    async fn breaks(&self, node: &NodeRef) -> Result<()> {
        self.arena.set_condition(node, BROKEN, "True").await.map(drop)
    }

    /// Waits until the drain of a node has come so far; the empty phase is that of no drain.
    async fn phase(&self, node: &NodeRef, wanted: &str) -> Result<()> {
        wait::until(&format!("{node} {wanted:?}"), SOON, async || {
            let mut annotations = self.arena.annotations(node).await?;
            let record = annotations.remove("ostrakon.dev/drain").unwrap_or_default();
            let record: Value = serde_json::from_str(&record).unwrap_or_default();
            let phase = record["phase"].as_str().unwrap_or_default();
            if phase != wanted {
                bail!("it is {phase:?}");
            }
            Ok(Some(()))
        })
        .await
    }

    /// Waits until the eviction of a pod was refused.
    async fn refused(&self, pod: &PodRef) -> Result<()> {
        wait::until(&format!("a refusal for {pod}"), SOON, async || {
            let evictions = self.asked()?.resource("pods/eviction").code(429);
            let refused = evictions.namespace(&pod.namespace).name(&pod.name);
            Ok((!refused.is_empty()).then_some(()))
        })
        .await
    }

    /// A pod on `node` that its budget holds until [`Arena::let_go`].
    async fn held(&self, node: &NodeRef) -> Result<Held> {
        // Without a kubelet, so that its pod is ready when the story says so.
        let elsewhere = self.arena.node("elsewhere").await?;
        self.arena.held("held", node, &elsewhere, pod).await
    }
}

/// A story.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Story {
    /// Taints with and without a time, tolerations of all kinds, a taint that is gone in time.
    Taints,
    /// A drain in groups, beside what it leaves, until the node is good again.
    Drain,
    /// Budgets: one that refuses and later allows, and two over one pod.
    Budgets,
    /// A `NoExecute` taint on a node that is being drained.
    Both,
}

impl Story {
    /// What came of it on a real control plane.
    pub(crate) fn recording(self) -> Recording {
        Recording(match self {
            Self::Taints => "stories/taints",
            Self::Drain => "stories/drain",
            Self::Budgets => "stories/budgets",
            Self::Both => "stories/both",
        })
    }

    pub(crate) async fn play(self, world: &World<'_>) -> Result<()> {
        match self {
            Self::Taints => taints(world).await,
            Self::Drain => drain(world).await,
            Self::Budgets => budgets(world).await,
            Self::Both => both(world).await,
        }
    }
}

async fn taints(world: &World<'_>) -> Result<()> {
    let arena = &world.arena;
    let (n, mended, old) =
        (world.node("n").await?, world.node("mended").await?, world.node("old").await?);
    let pods = world
        .run([
            pod("bare").on(&n),
            pod("zero").on(&n).tolerates_for("k", 0),
            pod("other-key").on(&n).tolerates("kk"),
            pod("timed").on(&n).tolerates_for("k", LATER),
            pod("system").on(&n).tolerates_for("k", LATER).priority_class("system-node-critical"),
            pod("long").on(&n).tolerates_for("k", 3600),
            pod("forever").on(&n).tolerates("k"),
            pod("anything").on(&n).tolerates_everything(),
            pod("saved").on(&mended).tolerates_for("k", 60),
            pod("not-saved").on(&mended),
            pod("overdue").on(&old).tolerates_for("k", 2),
            // It is older than the taint says, but was not there so long.
            pod("patient").on(&old).tolerates_for("k", 3600),
        ])
        .await?;
    // Until the seconds of the one that is to be overdue are over, counted from its binding.
    tokio::time::sleep(Duration::from_secs(4)).await;
    world.step("the taints");
    let hours = SignedDuration::from_hours(2);
    arena.taint(&n, no_execute("k").value("v").added_now()).await?;
    arena.taint(&old, no_execute("k").added_at(system_time() - hours)).await?;
    arena.taint(&mended, no_execute("k")).await?;
    wait::until("the time of the taint without one", SOON, async || {
        Ok(arena
            .annotations(&mended)
            .await?
            .contains_key("ostrakon.dev/noexecute-since")
            .then_some(()))
    })
    .await?;
    let not_saved = pods.iter().filter(|pod| pod.name == "not-saved");
    world.witness.deleted_within(not_saved, SOON).await?;
    arena.untaint(&mended, "k").await?;
    let goes = ["bare", "zero", "other-key", "timed", "system", "not-saved", "overdue"];
    let goes = pods.iter().filter(|pod| goes.contains(&&*pod.name));
    world.witness.gone_within(goes, SOON).await?;
    Ok(())
}

async fn drain(world: &World<'_>) -> Result<()> {
    let arena = &world.arena;
    let n = world.node("n").await?;
    arena.replica_set("web", 2, pod("web")).await?;
    stateful_set(arena, "db").await?;
    let system = pod("system").on(&n).priority_class("system-cluster-critical");
    world.run([pod("plain").on(&n), system]).await?;
    arena.healthy("web", 2).await?;
    arena.healthy("db", 1).await?;
    world.node("spare").await?;
    world.step("broken");
    world.breaks(&n).await?;
    world.phase(&n, "drained").await?;
    arena.healthy("web", 2).await?;
    world.step("good again");
    arena.set_condition(&n, BROKEN, "False").await?;
    world.phase(&n, "").await
}

async fn budgets(world: &World<'_>) -> Result<()> {
    let arena = &world.arena;
    let (n, never) = (world.node("n").await?, world.node("never").await?);
    let held = world.held(&n).await?;
    let pods = world.run([pod("free").on(&n), pod("twice").on(&never).label(APP, "twice")]);
    let pods = pods.await?;
    for name in ["first", "second"] {
        arena.budget(name, "twice", json!({ "minAvailable": 0 })).await?;
    }
    // Budgets are read once for all nodes that are looked at within a second.
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.step("broken");
    world.breaks(&n).await?;
    world.breaks(&never).await?;
    world.witness.gone_within(pods.first(), SOON).await?;
    world.refused(&held.pod).await?;
    world.step("room in the budget");
    arena.let_go(&held).await?;
    world.phase(&n, "drained").await
}

async fn both(world: &World<'_>) -> Result<()> {
    let n = world.node("n").await?;
    let held = world.held(&n).await?;
    let pods = world.run([
        pod("tolerating").on(&n).tolerates("k"),
        pod("free").on(&n),
        // Going when the taint comes, and for longer than the story: nobody's business any more.
        pod("slow").on(&n).finalizer("ostrakon.test/slow"),
    ]);
    let pods = pods.await?;
    world.step("broken");
    world.breaks(&n).await?;
    world.witness.gone_within(&pods[..2], SOON).await?;
    world.refused(&held.pod).await?;
    world.step("the taint");
    world.arena.taint(&n, no_execute("k").value("v").added_now()).await?;
    world.witness.gone_within([&held.pod], SOON).await?;
    Ok(())
}

/// A set of one pod, wherever there is room in the arena.
async fn stateful_set(arena: &Arena, name: &str) -> Result<()> {
    let sets: Api<StatefulSet> = Api::namespaced(arena.client(), arena.namespace());
    let set = serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "replicas": 1,
            "serviceName": name,
            "selector": { "matchLabels": { APP: name } },
            "template": {
                "metadata": { "labels": { APP: name } },
                "spec": {
                    "nodeSelector": { ARENA_LABEL: arena.namespace() },
                    "automountServiceAccountToken": false,
                    "containers": [{ "name": "main", "image": "pause" }],
                },
            },
        },
    }))?;
    sets.create(&PostParams::default(), &set).await.context("create a StatefulSet")?;
    Ok(())
}
