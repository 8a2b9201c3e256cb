//! The initial objects of the cluster: nodes, the sets and daemons that own pods, and the pods.
//!
//! The scenario uses five of the nodes; the fixtures know which of their pods must be evicted. All other
//! pods are just load.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, anyhow};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::sim::embedded::{Resource, Store};
use crate::sim::hollow::HollowNode;

/// Key of the taint that the scenario puts on.
pub(super) const MAINTENANCE: &str = "maintenance";

/// How many seconds the pods of [`SESSIONS`] tolerate an outage.
pub(super) const SESSION_SECONDS: i64 = 8;

/// Minimum number of pods on each node of the scenario: one of each kind.
pub(super) const SCENARIO_NODES: usize = 10;

/// The pod that someone else deletes, and that comes back under its name.
pub(super) const NAMESAKE: (&str, &str) = ("shop", "db-0");

/// The budget that the drain has to keep: of these pods one may be missing.
pub(super) const BUDGET: (&str, &str) = ("shop", "cart");

/// Names are tried so often; two of a set may draw the same letters.
const NAME_TRIES: usize = 5;

/// How long pods tolerate the scenario's taint.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tolerated {
    Not,
    Seconds(i64),
    Always,
}

/// A kind of pod and who owns it.
struct Workload {
    owner: Resource,
    namespace: &'static str,
    name: &'static str,
    tolerated: Tolerated,
    /// Seconds for which it tolerated an outage of its node.
    outage: i64,
}

const fn workload(namespace: &'static str, name: &'static str, tolerated: Tolerated) -> Workload {
    Workload { owner: Resource::ReplicaSets, namespace, name, tolerated, outage: 300 }
}

const fn daemon(name: &'static str) -> Workload {
    let owner = Resource::DaemonSets;
    Workload { owner, ..workload("kube-system", name, Tolerated::Always) }
}

const WORKLOADS: [Workload; 14] = [
    workload("shop", "cart", Tolerated::Not),
    workload("shop", "checkout", Tolerated::Not),
    workload("shop", "search", Tolerated::Not),
    workload("shop", "catalog", Tolerated::Not),
    workload("batch", "thumbnails", Tolerated::Seconds(5)),
    workload("batch", "mailer", Tolerated::Seconds(10)),
    workload("batch", "reports", Tolerated::Seconds(15)),
    workload("batch", "backup", Tolerated::Seconds(20)),
    daemon("log-agent"),
    daemon("net-agent"),
    workload("shop", "cache", Tolerated::Always),
    workload("shop", "queue", Tolerated::Always),
    Workload { outage: SESSION_SECONDS, ..workload("shop", "session", Tolerated::Not) },
    Workload { owner: Resource::StatefulSets, ..workload("shop", "db", Tolerated::Seconds(15)) },
];
const SESSIONS: usize = 12;
const DATABASE: usize = 13;

/// The cluster's nodes and who on them is to go.
pub(super) struct Fixtures {
    /// Names of all nodes.
    pub(super) nodes: Vec<String>,
    /// Keeps its taint.
    pub(super) first: String,
    /// Loses its taint before most countdowns are over.
    pub(super) spared: String,
    /// Keeps its taint.
    pub(super) last: String,
    /// Falls silent.
    pub(super) silent: String,
    /// Reports a bad condition.
    pub(super) sick: String,
    /// UIDs of the pods that the scenario sends away.
    pub(super) to_go: BTreeSet<String>,
    /// UID of the pod that is deleted by hand.
    pub(super) namesake: String,
}

impl Fixtures {
    /// Stores owners and pods. The hollow kubelets register the nodes.
    pub(super) fn enter(store: &Store, nodes: usize, pods: usize) -> anyhow::Result<Self> {
        let names = node_names(nodes);
        let bed = [1, 3, 6, 8, 5].map(|tenth| nodes * tenth / 10);
        let places = places(nodes, pods, bed);
        let owners = enter_owners(store, &places)?;
        enter_budget(store)?;
        let mut fixtures = Self {
            first: names[bed[0]].clone(),
            spared: names[bed[1]].clone(),
            last: names[bed[2]].clone(),
            silent: names[bed[3]].clone(),
            sick: names[bed[4]].clone(),
            nodes: names,
            to_go: BTreeSet::new(),
            namesake: String::new(),
        };
        for (address, (node, workload)) in places.into_iter().enumerate() {
            let name = &fixtures.nodes[node];
            let pod = running(&WORKLOADS[workload], &owners[&workload], name, address, store);
            let uid = insert(store, pod)?;
            if workload == DATABASE {
                fixtures.namesake = uid;
            } else if goes(&WORKLOADS[workload], workload, node, bed) {
                fixtures.to_go.insert(uid);
            }
        }
        Ok(fixtures)
    }

    /// The nodes as they are to be registered.
    pub(super) fn hollow_nodes(&self) -> impl Iterator<Item = HollowNode> {
        let zones = ["a", "b", "c"].into_iter().cycle();
        self.nodes.iter().zip(zones).map(|(name, zone)| HollowNode::new(name).zone(zone))
    }

    /// The nodes that something happens to, in the order of their names.
    pub(super) fn bed(&self) -> [&str; 5] {
        [&self.first, &self.spared, &self.last, &self.silent, &self.sick].map(String::as_str)
    }
}

fn node_names(nodes: usize) -> Vec<String> {
    let width = nodes.to_string().len().max(2);
    (1..=nodes).map(|number| format!("node-{number:0width$}")).collect()
}

/// On which node each pod is, and of which workload. The nodes on bed get enough for the scenario,
/// the others what is left.
fn places(nodes: usize, pods: usize, bed: [usize; 5]) -> Vec<(usize, usize)> {
    let share = (pods / nodes).max(SCENARIO_NODES);
    let left = pods - share * bed.len();
    let others: Vec<_> = (0..nodes).filter(|node| !bed.contains(node)).collect();
    let mut counts: BTreeMap<usize, usize> = bed.map(|node| (node, share)).into();
    for (rank, node) in others.iter().enumerate() {
        let more = usize::from(rank < left % others.len());
        counts.insert(*node, left / others.len() + more);
    }
    let kind = |node: usize, rank: usize| match (rank % 10, rank) {
        (0..4, _) if node == bed[3] => SESSIONS,
        (6, 6) if node == bed[0] => DATABASE,
        // A daemon has one pod on a node.
        (slot @ 8.., 10..) => slot + 2,
        (slot, _) => slot,
    };
    counts.iter().flat_map(|(node, count)| (0..*count).map(|n| (*node, kind(*node, n)))).collect()
}

/// Whether the scenario sends a pod of that workload on that node away. The taint of the second node
/// on bed goes when only the first countdown is over.
fn goes(kind: &Workload, workload: usize, node: usize, bed: [usize; 5]) -> bool {
    let longest = match bed.iter().position(|on_stage| *on_stage == node) {
        Some(0 | 2) => 20,
        Some(1) => 5,
        Some(3) => return workload == SESSIONS,
        _ => return false,
    };
    match kind.tolerated {
        Tolerated::Not => true,
        Tolerated::Seconds(seconds) => seconds <= longest,
        Tolerated::Always => false,
    }
}

/// Stores the budget of the pods that the drain has to be careful with.
fn enter_budget(store: &Store) -> anyhow::Result<()> {
    let (namespace, name) = BUDGET;
    let budget = json!({
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": name}}},
    });
    store.insert(Resource::PodDisruptionBudgets, budget).context("cannot set the stage")?;
    Ok(())
}

/// Stores the owners, each with as many replicas as it has pods. Gives their UIDs.
fn enter_owners(
    store: &Store,
    places: &[(usize, usize)],
) -> anyhow::Result<BTreeMap<usize, String>> {
    let mut replicas: BTreeMap<usize, usize> = BTreeMap::new();
    for (_, workload) in places {
        *replicas.entry(*workload).or_default() += 1;
    }
    let mut owners = BTreeMap::new();
    for (index, replicas) in replicas {
        let kind = &WORKLOADS[index];
        let mut owner = json!({
            "metadata": {"namespace": kind.namespace, "name": kind.name},
            "spec": {
                "selector": {"matchLabels": {"app": kind.name}},
                "template": {"metadata": {"labels": {"app": kind.name}}, "spec": spec(kind)},
            },
            "status": {},
        });
        if kind.owner != Resource::DaemonSets {
            owner["spec"]["replicas"] = replicas.into();
            owner["status"] = json!({"replicas": replicas, "readyReplicas": replicas});
        }
        let stored = store.insert(kind.owner, owner).context("cannot set the stage")?;
        owners.insert(index, uid(&stored));
    }
    Ok(owners)
}

/// What the pods of a workload are to be.
fn spec(kind: &Workload) -> Value {
    let outage = |key: &str| {
        json!({
            "key": format!("node.kubernetes.io/{key}"),
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": kind.outage,
        })
    };
    let own = |seconds: Value| {
        json!({
            "key": MAINTENANCE,
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": seconds,
        })
    };
    let mut tolerations = match kind.tolerated {
        _ if kind.owner == Resource::DaemonSets => vec![json!({"operator": "Exists"})],
        Tolerated::Not => Vec::new(),
        Tolerated::Seconds(seconds) => vec![own(seconds.into())],
        Tolerated::Always => vec![own(Value::Null)],
    };
    if kind.owner != Resource::DaemonSets {
        tolerations.extend([outage("not-ready"), outage("unreachable")]);
    }
    json!({
        "containers": [{"name": kind.name, "image": "registry.k8s.io/pause:3.10"}],
        "tolerations": tolerations,
        "terminationGracePeriodSeconds": 30,
    })
}

/// A pod that has been running since now.
fn running(kind: &Workload, owner: &str, node: &str, address: usize, store: &Store) -> Value {
    let now = whole_seconds(store.clock().now());
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
    let mut spec = spec(kind);
    spec["nodeName"] = node.into();
    let [.., b, c, d] = address.wrapping_add(1).to_be_bytes();
    let ip = format!("10.{b}.{c}.{d}");
    let mut metadata = json!({
        "namespace": kind.namespace,
        "labels": {"app": kind.name},
        "ownerReferences": [{
            "apiVersion": kind.owner.api_version(),
            "kind": kind.owner.spec().kind,
            "name": kind.name,
            "uid": owner,
            "controller": true,
            "blockOwnerDeletion": true,
        }],
    });
    if kind.owner == Resource::StatefulSets {
        metadata["name"] = format!("{}-0", kind.name).into();
    } else {
        metadata["generateName"] = format!("{}-", kind.name).into();
    }
    json!({
        "metadata": metadata,
        "spec": spec,
        "status": {
            "phase": "Running",
            "startTime": now,
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": conditions,
            "containerStatuses": [{
                "name": kind.name,
                "image": "registry.k8s.io/pause:3.10",
                "imageID": "",
                "ready": true,
                "started": true,
                "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            }],
        },
    })
}

fn insert(store: &Store, pod: Value) -> anyhow::Result<String> {
    for _ in 1..NAME_TRIES {
        match store.insert(Resource::Pods, pod.clone()) {
            Ok(stored) => return Ok(uid(&stored)),
            Err(error) if error.code == 409 => {}
            Err(error) => return Err(anyhow!(error).context("cannot set the stage")),
        }
    }
    let stored = store.insert(Resource::Pods, pod).context("cannot set the stage")?;
    Ok(uid(&stored))
}

/// UID of a stored object.
pub(super) fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

fn whole_seconds(moment: Timestamp) -> String {
    moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::sim::embedded::Options;

    #[test]
    fn every_size_gives_all_pods_and_a_whole_stage() {
        for (nodes, pods) in [(5, 50), (10, 100), (7, 123), (200, 6000), (300, 60)] {
            let store = Store::new(Clock::system(), Options::default());
            let fixtures = Fixtures::enter(&store, nodes, pods).unwrap();
            assert_eq!(store.count(Resource::Pods), pods);
            assert_eq!(BTreeSet::from(fixtures.bed()).len(), 5);
            let names: BTreeSet<_> = fixtures.nodes.iter().collect();
            assert_eq!((names.len(), fixtures.hollow_nodes().count()), (nodes, nodes));
            let namesake = store.get(Resource::Pods, NAMESAKE.0, NAMESAKE.1).unwrap();
            assert_eq!(uid(&namesake), fixtures.namesake);
            assert!(!fixtures.to_go.contains(&fixtures.namesake) && fixtures.to_go.len() < pods);
        }
    }

    #[test]
    fn it_is_known_who_goes() {
        let store = Store::new(Clock::system(), Options::default());
        let fixtures = Fixtures::enter(&store, 10, 100).unwrap();
        // 4 without toleration and 3 with seconds (the fourth is the namesake); 4 and 1; 4 and 4;
        // 4 sessions.
        assert_eq!(fixtures.to_go.len(), 7 + 5 + 8 + 4);
    }
}
