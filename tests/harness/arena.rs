//! The part of a cluster that belongs to one test: a namespace, and nodes named after it.
//!
//! Tests share a control plane and run in parallel, each in its own arena. ostrakon watches all arenas, so
//! a test that breaks it needs a bed of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Namespace, Node, Pod, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use ostrakon::clock::system_time;
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::AbortHandle;

use super::bed::Bed;
use super::cluster::{self, ARENA_LABEL, NodeRef, NodeSketch, PodRef, PodSketch, TaintSketch};
use super::wait;
use super::witness::Witness;

/// How many requests are made at a time when there are many to make.
const AT_ONCE: usize = 16;

/// The controllers make a namespace's account within a second, on a busy machine later.
const ACCOUNT: Duration = Duration::from_secs(120);

/// A namespace and nodes. Clones are the same arena.
#[derive(Clone)]
pub struct Arena(Arc<Inner>);

struct Inner {
    client: Client,
    namespace: String,
    /// Nodes whose leases are renewed.
    alive: Arc<Mutex<BTreeSet<String>>>,
    heart: Mutex<Option<AbortHandle>>,
    lease_interval: Option<Duration>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(heart) = self.heart.lock().take() {
            heart.abort();
        }
    }
}

impl Arena {
    pub(super) async fn open(bed: &Bed, name: &str) -> Result<Self> {
        let lease_interval = bed.has_controllers().then(|| bed.lease_interval());
        let arena = Self::within(bed.admin()?, name, lease_interval).await?;
        if bed.makes_accounts() {
            let accounts: Api<ServiceAccount> = Api::namespaced(arena.client(), arena.namespace());
            wait::until("the namespace's default ServiceAccount", ACCOUNT, async || {
                Ok(accounts.get_opt("default").await?)
            })
            .await?;
        }
        Ok(arena)
    }

    /// An arena in any cluster. The leases of its nodes are renewed if an interval is given.
    pub async fn within(
        client: Client,
        name: &str,
        lease_interval: Option<Duration>,
    ) -> Result<Self> {
        let namespace = namespace_name(name);
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let mut object = Namespace::default();
        object.metadata.name = Some(namespace.clone());
        namespaces
            .create(&PostParams::default(), &object)
            .await
            .with_context(|| format!("create namespace {namespace}"))?;
        Ok(Self(Arc::new(Inner {
            client,
            namespace,
            alive: Arc::default(),
            heart: Mutex::new(None),
            lease_interval,
        })))
    }

    /// The namespace, which is also what the names of the arena's nodes start with.
    pub fn namespace(&self) -> &str {
        &self.0.namespace
    }

    pub fn client(&self) -> Client {
        self.0.client.clone()
    }

    /// The arena's pods.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client(), self.namespace())
    }

    /// All nodes of the cluster.
    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client())
    }

    /// The events of the arena's pods.
    pub fn events(&self) -> Api<Event> {
        Api::namespaced(self.client(), self.namespace())
    }

    /// Begins to watch the arena's pods.
    pub async fn witness(&self) -> Result<Witness> {
        Witness::start(self.client(), self.namespace()).await
    }

    /// Creates a node that is Ready and stays so.
    pub async fn node(&self, name: &str) -> Result<NodeRef> {
        self.create_node(cluster::node(name)).await
    }

    /// Creates a node. Where there is a lifecycle controller, its lease is renewed from now on.
    pub async fn create_node(&self, sketch: NodeSketch) -> Result<NodeRef> {
        let node = sketch.create(&self.0.client, self.namespace()).await?;
        self.revive(&node).await?;
        Ok(node)
    }

    /// Stops renewing the node's lease: its kubelet has gone silent.
    pub fn silence(&self, node: &NodeRef) {
        self.0.alive.lock().remove(node.name());
    }

    /// Renews the node's lease, now and from now on.
    pub async fn revive(&self, node: &NodeRef) -> Result<()> {
        let Some(interval) = self.0.lease_interval else {
            return Ok(());
        };
        renew_lease(&self.0.client, node.name()).await?;
        self.0.alive.lock().insert(node.name().to_owned());
        let mut heart = self.0.heart.lock();
        if heart.is_none() {
            let beating = beat(self.0.client.clone(), Arc::clone(&self.0.alive), interval);
            *heart = Some(tokio::spawn(beating).abort_handle());
        }
        Ok(())
    }

    /// Sets the node's Ready condition to `True`, `False` or `Unknown`.
    pub async fn set_ready(&self, node: &NodeRef, status: &str) -> Result<()> {
        cluster::set_ready(&self.0.client, node, status).await
    }

    /// Sets a condition on a node, with a transition now. Returns when it was there.
    pub async fn set_condition(
        &self,
        node: &NodeRef,
        kind: &str,
        status: &str,
    ) -> Result<Timestamp> {
        let conditions = json!([cluster::condition(kind, status)]);
        let patch = Patch::Strategic(json!({ "status": { "conditions": conditions } }));
        self.nodes().patch_status(node.name(), &PatchParams::default(), &patch).await?;
        Ok(system_time())
    }

    /// Puts a taint on a node, in place of one with the same key and effect. Returns the time at
    /// which it was there.
    pub async fn taint(&self, node: &NodeRef, taint: TaintSketch) -> Result<Timestamp> {
        cluster::edit_taints(&self.0.client, node, |taints| {
            let wanted = &taint.0;
            taints.retain(|old| old.key != wanted.key || old.effect != wanted.effect);
            taints.push(wanted.clone());
        })
        .await?;
        Ok(system_time())
    }

    /// Takes all taints with this key off a node. Returns the time at which they were gone.
    pub async fn untaint(&self, node: &NodeRef, key: &str) -> Result<Timestamp> {
        cluster::edit_taints(&self.0.client, node, |taints| {
            taints.retain(|old| old.key != key);
        })
        .await?;
        Ok(system_time())
    }

    /// Replaces all of a node's taints.
    pub async fn set_taints(&self, node: &NodeRef, taints: Vec<TaintSketch>) -> Result<()> {
        let taints = taints.into_iter().map(|taint| taint.0).collect();
        cluster::set_taints(&self.0.client, node, taints).await
    }

    /// The node's annotations.
    pub async fn annotations(&self, node: &NodeRef) -> Result<BTreeMap<String, String>> {
        let object = self.nodes().get(node.name()).await?;
        Ok(object.metadata.annotations.unwrap_or_default())
    }

    pub async fn delete_node(&self, node: &NodeRef) -> Result<()> {
        self.silence(node);
        self.nodes().delete(node.name(), &DeleteParams::default()).await?;
        Ok(())
    }

    /// Creates a pod.
    pub async fn create(&self, sketch: PodSketch) -> Result<PodRef> {
        sketch.create(&self.0.client, self.namespace()).await
    }

    /// Creates many pods, several at a time; returned in the order given.
    pub async fn create_all(
        &self,
        sketches: impl IntoIterator<Item = PodSketch>,
    ) -> Result<Vec<PodRef>> {
        futures::stream::iter(sketches)
            .map(|sketch| self.create(sketch))
            .buffered(AT_ONCE)
            .try_collect()
            .await
    }

    /// Removes a pod at once, as a kubelet does when all its containers have ended.
    pub async fn remove(&self, pod: &PodRef) -> Result<()> {
        let uid = Some(pod.uid.clone());
        let preconditions = Some(kube::api::Preconditions { uid, resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::default() }.grace_period(0);
        self.pods().delete(&pod.name, &params).await?;
        Ok(())
    }

    /// Removes everything that belongs to the arena, as far as that goes.
    pub async fn clean_up(&self) -> Result<()> {
        self.0.alive.lock().clear();
        let pods = self.pods();
        for pod in pods.list(&ListParams::default()).await? {
            let Some(name) = pod.metadata.name else {
                continue;
            };
            if pod.metadata.finalizers.is_some_and(|finalizers| !finalizers.is_empty()) {
                let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
                let _ = pods.patch(&name, &PatchParams::default(), &patch).await;
            }
        }
        let at_once = DeleteParams::default().grace_period(0);
        pods.delete_collection(&at_once, &ListParams::default()).await?;
        let ours = ListParams::default().labels(&format!("{ARENA_LABEL}={}", self.namespace()));
        self.nodes().delete_collection(&DeleteParams::default(), &ours).await?;
        let namespaces: Api<Namespace> = Api::all(self.client());
        namespaces.delete(self.namespace(), &DeleteParams::default()).await?;
        Ok(())
    }
}

/// Room is left for the names of nodes, which are labels too.
fn namespace_name(name: &str) -> String {
    const LONGEST: usize = 40;
    let clean: String = name
        .chars()
        .map(
            |letter| {
                if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' }
            },
        )
        .take(LONGEST)
        .collect();
    let unique: u32 = rand::random();
    format!("{}-{unique:08x}", clean.trim_matches('-'))
}

async fn beat(client: Client, alive: Arc<Mutex<BTreeSet<String>>>, interval: Duration) {
    let mut ticks = tokio::time::interval(interval);
    loop {
        ticks.tick().await;
        let nodes: Vec<String> = alive.lock().iter().cloned().collect();
        futures::stream::iter(nodes)
            .for_each_concurrent(AT_ONCE, async |node| {
                // A lost beat is made good by the next one.
                let _ = renew_lease(&client, &node).await;
            })
            .await;
    }
}

async fn renew_lease(client: &Client, node: &str) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": node },
        "spec": {
            "holderIdentity": node,
            "leaseDurationSeconds": 40,
            "renewTime": MicroTime(system_time()),
        },
    });
    leases
        .patch(node, &PatchParams::apply("harness").force(), &Patch::Apply(lease))
        .await
        .with_context(|| format!("renew the lease of {node}"))?;
    Ok(())
}
