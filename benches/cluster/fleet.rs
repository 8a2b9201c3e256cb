//! The nodes and pods of the bench: written straight into etcd, tainted, and put back.
//!
//! Not through the API server, which would take half an hour for 150,000 pods, and where fifty patches
//! would distort the beginning of what is measured.

use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::PostParams;
use kube::{Api, Client};
use ostrakon::clock::system_time;
use serde_json::json;

use crate::etcd::{Change, Etcd};
use crate::harness::wait;
use crate::objects::{self, PodTemplate, StoredPod};

/// Keys in a transaction: half a megabyte, a third of what etcd takes.
const BATCH: usize = 100;
/// Transactions under way.
const AT_ONCE: usize = 4;
/// As in the Kubernetes project's own load tests.
const NODES_PER_NAMESPACE: usize = 100;
/// For how long the API server may take to read what was written behind its back.
const CACHED: Duration = Duration::from_secs(300);

/// All nodes and pods.
pub(crate) struct Fleet {
    etcd: Etcd,
    client: Client,
    nodes: usize,
    pods_per_node: usize,
    born: String,
    template: PodTemplate,
    /// By node: how often its pods were put back. New pods have new names and UIDs.
    generations: Vec<usize>,
}

impl Fleet {
    pub(crate) fn new(etcd: Etcd, client: Client, nodes: usize, pods_per_node: usize) -> Self {
        // Bound long ago, by all standards.
        let born = system_time() - jiff::SignedDuration::from_hours(1);
        let born = format!("{born:.0}");
        Self {
            etcd,
            client,
            nodes,
            pods_per_node,
            template: PodTemplate::new(&born),
            born,
            generations: vec![0; nodes],
        }
    }

    /// Writes everything, and waits until the API server knows it.
    pub(crate) async fn load(&self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        for number in 0..self.nodes.div_ceil(NODES_PER_NAMESPACE) {
            let mut namespace = Namespace::default();
            namespace.metadata.name = Some(format!("bench-{number}"));
            namespaces.create(&PostParams::default(), &namespace).await?;
        }
        let all = (0..self.nodes).map(|node| self.put_node(node, false));
        self.write(all).await.context("load the nodes")?;
        let all = (0..self.nodes).flat_map(|node| self.put_pods(node));
        self.write(all).await.context("load the pods")?;
        let last = self.nodes.saturating_sub(1);
        self.await_cached(&[last]).await
    }

    /// The pods that are on these nodes now.
    pub(crate) fn pods(&self, nodes: &[usize]) -> Vec<StoredPod> {
        nodes.iter().flat_map(|node| self.pods_of(*node)).collect()
    }

    /// Puts a `NoExecute` taint on these nodes, all at once.
    pub(crate) async fn taint(&self, nodes: &[usize]) -> Result<()> {
        let changes = nodes.iter().map(|node| self.put_node(*node, true)).collect();
        self.etcd.commit(changes).await.map(drop)
    }

    /// Takes the taint off these nodes and gives them new pods, none of them marked.
    pub(crate) async fn restore(&mut self, nodes: &[usize]) -> Result<()> {
        let gone = nodes.iter().map(|node| {
            Change::DeletePrefix(format!("/registry/pods/{}/web-{node}-", namespace(*node)))
        });
        self.write(gone).await?;
        for node in nodes {
            self.generations[*node] += 1;
        }
        self.write(nodes.iter().map(|node| self.put_node(*node, false))).await?;
        self.write(nodes.iter().flat_map(|node| self.put_pods(*node))).await?;
        self.await_cached(nodes).await
    }

    async fn write(&self, changes: impl Iterator<Item = Change>) -> Result<()> {
        futures::stream::iter(changes)
            .chunks(BATCH)
            .map(|changes| self.etcd.commit(changes))
            .buffer_unordered(AT_ONCE)
            .try_for_each(async |_| Ok(()))
            .await
    }

    /// Waits until the API server's cache shows the pods of these nodes.
    async fn await_cached(&self, nodes: &[usize]) -> Result<()> {
        // Written and read in order, so the last one stands for all; those of one batch may still
        // be under way beside it, which is a moment.
        let pods = self.pods(nodes);
        let Some(pod) = pods.last() else {
            return Ok(());
        };
        let path =
            format!("/api/v1/namespaces/{}/pods/{}?resourceVersion=0", pod.namespace, pod.name);
        wait::until("the API server to know all pods", CACHED, async || {
            let request = http::Request::get(&path).body(Vec::new())?;
            Ok(Some(self.client.request_text(request).await?))
        })
        .await?;
        Ok(())
    }

    fn put_node(&self, node: usize, tainted: bool) -> Change {
        let name = node_name(node);
        let taint = json!({ "key": "example.com/maintenance", "effect": "NoExecute" });
        let value = objects::node(&name, &uid(node, 0, 0), &self.born, tainted.then_some(&taint));
        Change::Put { key: format!("/registry/minions/{name}"), value }
    }

    fn put_pods(&self, node: usize) -> impl Iterator<Item = Change> {
        let name = node_name(node);
        self.pods_of(node).enumerate().map(move |(number, pod)| {
            let address = format!("10.{}.{}.{number}", 2 + node / 256, node % 256);
            let value: Bytes = self.template.fill(&pod, &name, &address);
            Change::Put { key: pod.key(), value }
        })
    }

    fn pods_of(&self, node: usize) -> impl Iterator<Item = StoredPod> + use<> {
        let generation = self.generations[node] + 1;
        (0..self.pods_per_node).map(move |number| StoredPod {
            namespace: namespace(node),
            name: format!("web-{node}-{generation}-{number}"),
            uid: uid(node, generation, number),
        })
    }
}

fn node_name(node: usize) -> String {
    format!("node-{node:05}")
}

fn namespace(node: usize) -> String {
    format!("bench-{}", node / NODES_PER_NAMESPACE)
}

/// Spread over the key space as random UIDs are, and each only once.
fn uid(node: usize, generation: usize, number: usize) -> String {
    let count = ((node as u128) << 64) | ((generation as u128) << 32) | number as u128;
    let mixed = (count + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    let hex = format!("{mixed:032x}");
    format!("{}-{}-4{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
}
