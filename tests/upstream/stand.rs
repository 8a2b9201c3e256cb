//! What the cases run on: a control plane without its own taint eviction, hollow nodes, and
//! ostrakon or not.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, Client};
use ostrakon::sim::hollow::{HollowKubelets, HollowNode, Options, StaticPod};

use crate::harness::audit::Audit;
use crate::harness::{Bed, BedOptions, StartError, TaintEviction, User, Verb, wait};

/// One case pins two pods to one node, another lets the scheduler spread them.
const NODES: usize = 3;

/// What the suite expects on each node. Without them it waits a minute before each case.
const ON_EACH_NODE: [&str; 3] = ["kube-proxy", "fluentd-elasticsearch", "node-problem-detector"];

/// How long the nodes and their pods may take to be ready.
const READY: Duration = Duration::from_secs(120);

pub(crate) struct Stand {
    pub bed: Bed,
    kubelets: HollowKubelets,
}

impl Stand {
    pub(crate) async fn set_up() -> Result<Self, StartError> {
        let options = BedOptions::default().controller_manager(TaintEviction::Off).scheduler();
        let bed = Bed::start(options).await?;
        Ok(Self::with_nodes(bed).await?)
    }

    async fn with_nodes(bed: Bed) -> Result<Self> {
        let client = bed.client_for(User::Kubelets)?;
        let kubelets = HollowKubelets::start(client.clone(), Options::default()).await?;
        for number in 0..NODES {
            let node = HollowNode::new(&format!("node-{number}"));
            let node = ON_EACH_NODE
                .iter()
                .fold(node, |node, name| node.static_pod(StaticPod::new("kube-system", name)));
            kubelets.add_node(node).await?;
        }
        let stand = Self { bed, kubelets };
        wait::until("nodes and their pods to be ready", READY, async || {
            Ok(is_ready(&client).await?.then_some(()))
        })
        .await?;
        Ok(stand)
    }

    /// Fails unless the suite's pods were deleted by ostrakon, each by its UID, among others by
    /// the one that made them and by kubelets that finished them.
    pub(crate) async fn was_ostrakons_work(&self) -> Result<()> {
        let deletes =
            |audit: Audit| audit.by(User::Ostrakon).verb(Verb::Delete).resource("pods").succeeded();
        // One each of four cases, and two of the last: the rest are to stay.
        let all = |audit| Some(deletes(audit)).filter(|deletes| deletes.len() >= 6);
        let deletes = self.bed.audit_until("six evictions", READY, all).await?;
        ensure!(deletes.len() == 6, "{} evictions: {:#?}", deletes.len(), deletes.records());
        for record in deletes.records() {
            ensure!(record.uid_precondition().is_some(), "without a UID: {record:#?}");
        }
        Ok(())
    }

    pub(crate) async fn tear_down(self) -> Result<()> {
        self.kubelets.stop().await;
        self.bed.stop().await
    }
}

async fn is_ready(client: &Client) -> Result<bool> {
    let nodes: Api<Node> = Api::all(client.clone());
    let pods: Api<Pod> = Api::namespaced(client.clone(), "kube-system");
    let nodes = nodes.list(&ListParams::default()).await?.items;
    let is_ready = |node: &Node| {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref());
        let mut conditions = conditions.unwrap_or_default().iter();
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
        conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
            && taints.unwrap_or_default().is_empty()
    };
    let running = pods.list(&ListParams::default()).await?.items.into_iter().filter(|pod| {
        pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
    });
    let (nodes, pods) = (nodes.iter().filter(|node| is_ready(node)).count(), running.count());
    if pods > NODES * ON_EACH_NODE.len() {
        bail!("{pods} pods in kube-system");
    }
    Ok(nodes == NODES && pods == NODES * ON_EACH_NODE.len())
}
