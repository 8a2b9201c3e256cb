//! Builders of nodes, taints and pods: `pod("web").on(&node).tolerates_for("gpu", 5)`.
//!
//! These are bare objects without a kubelet, unless a test runs one. A deleted pod stays terminating
//! until something removes it. A pod with `grace(0)` is removed at once.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, Node, NodeSpec, Pod, PodSpec, Taint, Toleration, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use ostrakon::clock::system_time;
use serde_json::{Value, json};

/// A node, by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeRef(pub String);

impl NodeRef {
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A pod: this very one, and not its successor of the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl PodRef {
    /// The identity of an object that the API returned.
    pub fn of(pod: &Pod) -> Result<Self> {
        let metadata = &pod.metadata;
        Ok(Self {
            namespace: metadata.namespace.clone().context("a pod without namespace")?,
            name: metadata.name.clone().context("a pod without name")?,
            uid: metadata.uid.clone().context("a pod without UID")?,
        })
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod {}/{} ({})", self.namespace, self.name, self.uid)
    }
}

/// A taint to be put on a node.
#[derive(Clone, Debug)]
pub struct TaintSketch(pub(super) Taint);

/// A `NoExecute` taint without value and without `timeAdded`.
pub fn no_execute(key: &str) -> TaintSketch {
    taint(key, "NoExecute")
}

/// A `NoSchedule` taint, which evicts nobody.
pub fn no_schedule(key: &str) -> TaintSketch {
    taint(key, "NoSchedule")
}

fn taint(key: &str, effect: &str) -> TaintSketch {
    TaintSketch(Taint { key: key.to_owned(), effect: effect.to_owned(), ..Taint::default() })
}

impl TaintSketch {
    pub fn value(mut self, value: &str) -> Self {
        self.0.value = Some(value.to_owned());
        self
    }

    /// Sets `timeAdded`, which the API keeps to the second.
    pub fn added_at(mut self, moment: Timestamp) -> Self {
        self.0.time_added = Some(Time(moment));
        self
    }

    pub fn added_now(self) -> Self {
        self.added_at(system_time())
    }
}

/// A node to be created: Ready, without taints, hostname label set.
#[derive(Clone, Debug)]
pub struct NodeSketch {
    name: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    taints: Vec<Taint>,
    ready: &'static str,
}

/// A node whose name starts with the arena's.
pub fn node(name: &str) -> NodeSketch {
    NodeSketch {
        name: name.to_owned(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        taints: Vec::new(),
        ready: "True",
    }
}

impl NodeSketch {
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    pub fn taint(mut self, taint: TaintSketch) -> Self {
        self.taints.push(taint.0);
        self
    }

    /// `True`, `False` or `Unknown`.
    pub fn ready(mut self, status: &'static str) -> Self {
        self.ready = status;
        self
    }

    pub(super) async fn create(mut self, client: &Client, arena: &str) -> Result<NodeRef> {
        let name = format!("{arena}-{}", self.name);
        self.labels.insert(HOSTNAME.to_owned(), name.clone());
        self.labels.insert(ARENA_LABEL.to_owned(), arena.to_owned());
        let node = Node {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: Some(self.labels),
                annotations: Some(self.annotations),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec { taints: Some(self.taints.clone()), ..NodeSpec::default() }),
            status: None,
        };
        let nodes: Api<Node> = Api::all(client.clone());
        let created = async {
            nodes.create(&PostParams::default(), &node).await?;
            let node = NodeRef(name.clone());
            set_ready(client, &node, self.ready).await?;
            // Admission taints a new node as not ready, and only a lifecycle controller would
            // take that off again.
            set_taints(client, &node, self.taints).await?;
            anyhow::Ok(node)
        };
        created.await.with_context(|| format!("create node {name}"))
    }
}

const HOSTNAME: &str = "kubernetes.io/hostname";

/// Which arena a node belongs to.
pub const ARENA_LABEL: &str = "ostrakon.dev/test-arena";

/// Sets the node's Ready condition to `True`, `False` or `Unknown`.
pub(super) async fn set_ready(client: &Client, node: &NodeRef, status: &str) -> Result<()> {
    let status = json!({ "status": {
        "conditions": [condition("Ready", status)],
        "capacity": { "cpu": "64", "memory": "256Gi", "pods": "1000" },
        "allocatable": { "cpu": "64", "memory": "256Gi", "pods": "1000" },
    }});
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.patch_status(node.name(), &PatchParams::default(), &Patch::Strategic(status)).await?;
    Ok(())
}

/// A node's condition, with a transition now.
pub(super) fn condition(kind: &str, status: &str) -> Value {
    let now = system_time();
    json!({
        "type": kind,
        "status": status,
        "reason": "SetByTest",
        "message": "set by a test",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    })
}

/// Replaces all taints.
pub(super) async fn set_taints(client: &Client, node: &NodeRef, taints: Vec<Taint>) -> Result<()> {
    edit_taints(client, node, |all| all.clone_from(&taints)).await
}

/// Changes the taints as they are at that moment, and loses nobody else's change: a replace with
/// the resource version that was read, again and again until it fits.
pub(super) async fn edit_taints(
    client: &Client,
    node: &NodeRef,
    edit: impl Fn(&mut Vec<Taint>),
) -> Result<()> {
    const TRIES: usize = 20;
    let nodes: Api<Node> = Api::all(client.clone());
    let mut outcome = Ok(());
    for _ in 0..TRIES {
        let mut object = nodes.get(node.name()).await?;
        let taints = object.spec.get_or_insert_default().taints.get_or_insert_default();
        let before = taints.clone();
        edit(taints);
        if *taints == before {
            return Ok(());
        }
        match nodes.replace(node.name(), &PostParams::default(), &object).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.is_conflict() => {
                outcome = Err(kube::Error::Api(status));
            }
            Err(error) => return Err(error.into()),
        }
    }
    outcome.with_context(|| format!("change the taints of {node}: {TRIES} conflicts"))
}

/// A pod to be created. It tolerates nothing but what admission adds (not-ready and unreachable
/// for 300 s), is bound to nothing, and has a grace of 30 s.
#[derive(Clone, Debug)]
pub struct PodSketch {
    name: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    finalizers: Vec<String>,
    owner: Option<OwnerReference>,
    priority_class: Option<String>,
    node: Option<String>,
    selected: Option<String>,
    scheduler: Option<String>,
    tolerations: Vec<Toleration>,
    grace: i64,
    phase: Option<&'static str>,
    scheduled: Option<Timestamp>,
    empty_dir: Option<String>,
}

/// A pod with this name.
pub fn pod(name: &str) -> PodSketch {
    PodSketch {
        name: name.to_owned(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        finalizers: Vec::new(),
        owner: None,
        priority_class: None,
        node: None,
        selected: None,
        scheduler: None,
        tolerations: Vec::new(),
        grace: 30,
        phase: None,
        scheduled: None,
        empty_dir: None,
    }
}

impl PodSketch {
    /// Bound from the start; no scheduler takes part.
    pub fn on(mut self, node: &NodeRef) -> Self {
        self.node = Some(node.name().to_owned());
        self
    }

    /// To be bound to this node by the scheduler.
    pub fn selects(mut self, node: &NodeRef) -> Self {
        self.selected = Some(node.name().to_owned());
        self
    }

    /// To be bound by this scheduler; by none if it does not exist.
    pub fn scheduler(mut self, name: &str) -> Self {
        self.scheduler = Some(name.to_owned());
        self
    }

    /// Tolerates `NoExecute` taints with this key for ever.
    pub fn tolerates(self, key: &str) -> Self {
        self.toleration(no_execute_toleration(key, None))
    }

    /// Tolerates `NoExecute` taints with this key for so many seconds.
    pub fn tolerates_for(self, key: &str, seconds: i64) -> Self {
        self.toleration(no_execute_toleration(key, Some(seconds)))
    }

    /// Tolerates everything for ever.
    pub fn tolerates_everything(self) -> Self {
        self.toleration(Toleration { operator: Some("Exists".to_owned()), ..Toleration::default() })
    }

    pub fn toleration(mut self, toleration: Toleration) -> Self {
        self.tolerations.push(toleration);
        self
    }

    /// `terminationGracePeriodSeconds`. With 0 a deleted pod is gone at once.
    pub fn grace(mut self, seconds: i64) -> Self {
        self.grace = seconds;
        self
    }

    pub fn finalizer(mut self, name: &str) -> Self {
        self.finalizers.push(name.to_owned());
        self
    }

    /// With an `emptyDir` volume of this name.
    pub fn empty_dir(mut self, name: &str) -> Self {
        self.empty_dir = Some(name.to_owned());
        self
    }

    /// Belongs to this object.
    pub fn owned_by(mut self, owner: &OwnerReference) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// Has the priority of this class, such as `system-cluster-critical`.
    pub fn priority_class(mut self, name: &str) -> Self {
        self.priority_class = Some(name.to_owned());
        self
    }

    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    /// A static pod's image in the API.
    pub fn mirror(self) -> Self {
        self.annotation("kubernetes.io/config.mirror", "harness")
    }

    /// Running and Ready, as a kubelet would report it.
    pub fn running(self) -> Self {
        self.phase("Running")
    }

    /// `Running`, `Succeeded`, `Failed`.
    pub fn phase(mut self, phase: &'static str) -> Self {
        self.phase = Some(phase);
        self
    }

    /// Adds the condition `PodScheduled` with this transition time.
    pub fn scheduled_at(mut self, moment: Timestamp) -> Self {
        self.scheduled = Some(moment);
        self
    }

    pub(super) async fn create(self, client: &Client, namespace: &str) -> Result<PodRef> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let name = self.name.clone();
        let created = async {
            let pod = pods.create(&PostParams::default(), &self.object()).await?;
            let pod = PodRef::of(&pod)?;
            if let Some(status) = self.status() {
                let patch = Patch::Strategic(json!({ "status": status }));
                pods.patch_status(&pod.name, &PatchParams::default(), &patch).await?;
            }
            anyhow::Ok(pod)
        };
        created.await.with_context(|| format!("create pod {namespace}/{name}"))
    }

    pub fn object(&self) -> Pod {
        Pod {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some(self.labels.clone()),
                annotations: Some(self.annotations.clone()),
                finalizers: Some(self.finalizers.clone()),
                owner_references: self.owner.clone().map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec {
                containers: vec![Container {
                    name: "main".to_owned(),
                    image: Some("pause".to_owned()),
                    ..Container::default()
                }],
                node_name: self.node.clone(),
                node_selector: self
                    .selected
                    .clone()
                    .map(|node| BTreeMap::from([(HOSTNAME.to_owned(), node)])),
                scheduler_name: self.scheduler.clone(),
                priority_class_name: self.priority_class.clone(),
                tolerations: Some(self.tolerations.clone()),
                termination_grace_period_seconds: Some(self.grace),
                automount_service_account_token: Some(false),
                volumes: self.empty_dir.clone().map(|name| {
                    let empty_dir = Some(EmptyDirVolumeSource::default());
                    vec![Volume { name, empty_dir, ..Volume::default() }]
                }),
                ..PodSpec::default()
            }),
            status: None,
        }
    }

    fn status(&self) -> Option<Value> {
        if self.phase.is_none() && self.scheduled.is_none() {
            return None;
        }
        let now = system_time();
        let mut conditions = Vec::new();
        let scheduled = self.scheduled.or(self.phase.map(|_| now));
        if let Some(moment) = scheduled {
            conditions.push(
                json!({ "type": "PodScheduled", "status": "True", "lastTransitionTime": moment }),
            );
        }
        if let Some(phase) = self.phase {
            let ready = if phase == "Running" { "True" } else { "False" };
            conditions.push(json!({ "type": "Ready", "status": ready, "lastTransitionTime": now }));
        }
        let phase = self.phase.unwrap_or("Pending");
        Some(json!({ "phase": phase, "conditions": conditions, "startTime": now }))
    }
}

fn no_execute_toleration(key: &str, seconds: Option<i64>) -> Toleration {
    Toleration {
        key: Some(key.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        toleration_seconds: seconds,
        ..Toleration::default()
    }
}
