//! A minimal scheduler: binds each pod to the node with the fewest pods on which it may run.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::{Value, json};

use super::feed::{Feed, News};
use super::taints::repelling;
use crate::sim::embedded::object::{
    at, condition, is_finished, is_terminating, is_true, list, meta, set_condition, text, time,
};
use crate::sim::embedded::resource::Resource;
use crate::sim::embedded::store::Store;
use crate::sim::embedded::write::Part;

/// How many pods a node takes if it does not say.
const PODS_PER_NODE: u64 = 110;

type PodKey = (String, String);

/// The controller.
pub(super) struct Scheduler {
    store: Store,
    nodes: Feed,
    pods: Feed,
    known: HashMap<String, Arc<Value>>,
    /// Where each pod that takes room is.
    places: HashMap<PodKey, String>,
    /// Nodes by how many pods they have.
    by_load: BTreeSet<(u64, String)>,
    loads: HashMap<String, u64>,
    pending: BTreeMap<PodKey, Arc<Value>>,
}

impl Scheduler {
    pub(super) fn new(store: Store) -> Self {
        Self {
            store,
            nodes: Feed::new(Resource::Nodes),
            pods: Feed::new(Resource::Pods),
            known: HashMap::new(),
            places: HashMap::new(),
            by_load: BTreeSet::new(),
            loads: HashMap::new(),
            pending: BTreeMap::new(),
        }
    }

    /// Places the pods that wait, as far as there is room.
    pub(super) fn step(&mut self) {
        match self.nodes.news(&self.store) {
            News::All(nodes) => {
                self.known.clear();
                self.by_load.clear();
                for node in nodes {
                    self.see_node(node, false);
                }
            }
            News::Some(news) => {
                for (node, gone) in news {
                    self.see_node(node, gone);
                }
            }
        }
        match self.pods.news(&self.store) {
            News::All(pods) => {
                self.pending.clear();
                for place in std::mem::take(&mut self.places).into_values() {
                    self.change_load(&place, |_| 0);
                }
                for pod in pods {
                    self.see_pod(pod, false);
                }
            }
            News::Some(news) => {
                for (pod, gone) in news {
                    self.see_pod(pod, gone);
                }
            }
        }
        let waiting: Vec<_> = self.pending.values().cloned().collect();
        for pod in waiting {
            self.place(&pod);
        }
    }

    fn see_node(&mut self, node: Arc<Value>, gone: bool) {
        let name = meta(&node, "name").to_owned();
        let load = self.loads.get(&name).copied().unwrap_or(0);
        if gone {
            self.by_load.remove(&(load, name.clone()));
            self.known.remove(&name);
        } else {
            self.by_load.insert((load, name.clone()));
            self.known.insert(name, node);
        }
    }

    fn see_pod(&mut self, pod: Arc<Value>, gone: bool) {
        let key = (meta(&pod, "namespace").to_owned(), meta(&pod, "name").to_owned());
        let node = text(&pod, &["spec", "nodeName"]).to_owned();
        let takes_room = !gone && !node.is_empty() && !is_finished(&pod);
        let place = takes_room.then_some(node.clone());
        if let Some(old) = self.places.remove(&key) {
            self.change_load(&old, |load| load.saturating_sub(1));
        }
        if let Some(place) = place {
            self.change_load(&place, |load| load + 1);
            self.places.insert(key.clone(), place);
        }
        let waits = !gone
            && node.is_empty()
            && !is_terminating(&pod)
            && !is_finished(&pod)
            && is_ours(&pod)
            && list(&pod, &["spec", "schedulingGates"]).is_empty();
        if waits {
            self.pending.insert(key, pod);
        } else {
            self.pending.remove(&key);
        }
    }

    fn change_load(&mut self, node: &str, change: impl Fn(u64) -> u64) {
        let load = self.loads.entry(node.to_owned()).or_default();
        let old = (*load, node.to_owned());
        *load = change(*load);
        let new = (*load, old.1.clone());
        if self.by_load.remove(&old) {
            self.by_load.insert(new);
        }
    }

    fn place(&mut self, pod: &Value) {
        let (namespace, name) = (meta(pod, "namespace"), meta(pod, "name"));
        let fits = |(load, node): &&(u64, String)| {
            self.known.get(node).is_some_and(|node| fits(node, pod, *load))
        };
        if let Some((_, node)) = self.by_load.iter().find(fits).cloned() {
            // It may be gone or bound by now; either way it need not be placed any more. That it
            // takes room is seen here at the next step, and counted now.
            if self.store.bind(namespace, name, &node).is_ok() {
                self.change_load(&node, |load| load + 1);
                self.places.insert((namespace.to_owned(), name.to_owned()), node);
            }
            self.pending.remove(&(namespace.to_owned(), name.to_owned()));
            return;
        }
        if condition(pod, "PodScheduled").is_some() {
            return;
        }
        let now = time(self.store.clock().now());
        let nodes = self.known.len();
        let unschedulable = |pod: &Value| {
            let mut next = pod.clone();
            let condition = json!({
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": format!("0/{nodes} nodes are available"),
                "lastProbeTime": null,
                "lastTransitionTime": now,
            });
            set_condition(&mut next, condition);
            Ok(next)
        };
        // It may be gone by now.
        let _ =
            self.store.modify(Resource::Pods, namespace, name, Part::Status, false, unschedulable);
    }
}

/// Whether no other scheduler is to place the pod.
fn is_ours(pod: &Value) -> bool {
    matches!(text(pod, &["spec", "schedulerName"]), "" | "default-scheduler")
}

/// Whether the pod may run on the node, which has `load` pods.
fn fits(node: &Value, pod: &Value, load: u64) -> bool {
    let most = at(node, &["status", "allocatable", "pods"]);
    let most = most.as_u64().or_else(|| most.as_str()?.parse().ok());
    is_true(node, "Ready")
        && at(node, &["spec", "unschedulable"]) != &Value::Bool(true)
        && !is_terminating(node)
        && load < most.unwrap_or(PODS_PER_NODE)
        && repelling(node, pod).is_none()
        && is_selected(node, pod)
}

/// Whether the node has the labels that the pod asks for.
pub(super) fn is_selected(node: &Value, pod: &Value) -> bool {
    let labels = at(node, &["metadata", "labels"]);
    let wanted = at(pod, &["spec", "nodeSelector"]).as_object();
    wanted.into_iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
}
