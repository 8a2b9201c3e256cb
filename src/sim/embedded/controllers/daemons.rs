//! Daemons: each node that a `DaemonSet` selects has one of its pods.
//!
//! Pods are created with a node. In Kubernetes the scheduler binds them; the result is the same, because
//! these pods request no resources.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::{Value, json};

use super::feed::{Feed, News};
use super::replicas::from_template;
use super::scheduler::is_selected;
use super::taints::{evicting, repelling};
use crate::sim::embedded::deletion::DeleteOptions;
use crate::sim::embedded::object::{
    at, controller, is_finished, is_terminating, is_true, list, meta, set, text,
};
use crate::sim::embedded::resource::Resource;
use crate::sim::embedded::store::Store;
use crate::sim::embedded::write::Part;

/// Namespace and name.
type Key = (String, String);

/// What a daemon tolerates whatever its template says.
const TOLERATED: [(&str, &str); 6] = [
    ("not-ready", "NoExecute"),
    ("unreachable", "NoExecute"),
    ("disk-pressure", "NoSchedule"),
    ("memory-pressure", "NoSchedule"),
    ("pid-pressure", "NoSchedule"),
    ("unschedulable", "NoSchedule"),
];

/// The controller.
pub(super) struct Daemons {
    store: Store,
    /// Sets, nodes and pods.
    feeds: [Feed; 3],
    sets: BTreeMap<Key, Arc<Value>>,
    nodes: BTreeMap<Key, Arc<Value>>,
    /// Pods of any `DaemonSet`.
    pods: BTreeMap<Key, Arc<Value>>,
}

impl Daemons {
    pub(super) fn new(store: Store) -> Self {
        let feeds = [Resource::DaemonSets, Resource::Nodes, Resource::Pods].map(Feed::new);
        let (sets, nodes, pods) = <(BTreeMap<_, _>, BTreeMap<_, _>, BTreeMap<_, _>)>::default();
        Self { store, feeds, sets, nodes, pods }
    }

    /// Gives each node its daemons, and takes away those that it is not to have.
    pub(super) fn step(&mut self) {
        let [sets, nodes, pods] = &mut self.feeds;
        keep(&mut self.sets, sets.news(&self.store), |_| true);
        keep(&mut self.nodes, nodes.news(&self.store), |_| true);
        keep(&mut self.pods, pods.news(&self.store), is_daemon);
        let sets: Vec<_> = self.sets.values().filter(|set| !is_terminating(set)).cloned().collect();
        for set in sets {
            self.spread(&set);
        }
    }

    fn spread(&mut self, set: &Value) {
        let mut running = HashMap::<&str, &Value>::new();
        let mut superfluous = Vec::new();
        for pod in self.pods.values().filter(|pod| is_of(pod, set)) {
            let node = text(pod, &["spec", "nodeName"]);
            let is_wanted = || {
                let node = self.nodes.get(&(String::new(), node.to_owned()));
                node.is_some_and(|node| may_stay(node, pod))
            };
            if is_finished(pod) || !is_terminating(pod) && !is_wanted() {
                superfluous.push(meta(pod, "name").to_owned());
            } else {
                running.insert(node, pod);
            }
        }
        let pod = template(set);
        let wanted = self.nodes.values().filter(|node| is_for(node, &pod)).map(|n| meta(n, "name"));
        let (here, missing): (Vec<_>, Vec<_>) = wanted.partition(|node| running.contains_key(node));
        let is_ready = |pod: &&&Value| is_true(pod, "Ready") && !is_terminating(pod);
        let ready = here.iter().filter_map(|node| running.get(node)).filter(is_ready).count();
        self.report(set, here.len(), here.len() + missing.len(), ready);

        let namespace = meta(set, "namespace");
        for node in missing {
            let mut pod = pod.clone();
            pod["spec"]["nodeName"] = node.into();
            // What is refused, as in a namespace that goes, is retried when something changes.
            let _ = self.store.create(Resource::Pods, namespace, pod, false);
        }
        for name in superfluous {
            // It may be gone by now.
            let options = DeleteOptions::default();
            let _ = self.store.delete(Resource::Pods, namespace, &name, &options);
        }
    }

    fn report(&self, owner: &Value, here: usize, wanted: usize, ready: usize) {
        let reported = |old: &Value| {
            let mut next = old.clone();
            set(&mut next, &["status", "currentNumberScheduled"], here);
            set(&mut next, &["status", "desiredNumberScheduled"], wanted);
            set(&mut next, &["status", "numberReady"], ready);
            let generation = at(old, &["metadata", "generation"]).clone();
            set(&mut next, &["status", "observedGeneration"], generation);
            Ok(next)
        };
        let (namespace, name) = (meta(owner, "namespace"), meta(owner, "name"));
        // It may be gone by now.
        let _ =
            self.store.modify(Resource::DaemonSets, namespace, name, Part::Status, false, reported);
    }
}

/// Brings a copy of some objects up to date.
fn keep(copy: &mut BTreeMap<Key, Arc<Value>>, news: News, wanted: fn(&Value) -> bool) {
    let key =
        |object: &Value| (meta(object, "namespace").to_owned(), meta(object, "name").to_owned());
    let news = match news {
        News::All(all) => {
            copy.clear();
            all.into_iter().map(|object| (object, false)).collect()
        }
        News::Some(news) => news,
    };
    for (object, gone) in news {
        if gone || !wanted(&object) {
            copy.remove(&key(&object));
        } else {
            copy.insert(key(&object), object);
        }
    }
}

fn is_daemon(pod: &Value) -> bool {
    controller(pod).is_some_and(|owner| text(owner, &["kind"]) == "DaemonSet")
}

fn is_of(pod: &Value, set: &Value) -> bool {
    controller(pod).is_some_and(|owner| text(owner, &["uid"]) == meta(set, "uid"))
}

/// A pod of the set, without a node.
fn template(set_: &Value) -> Value {
    let mut pod = from_template(set_, "DaemonSet");
    set(&mut pod, &["metadata", "generateName"], format!("{}-", meta(set_, "name")));
    let mut tolerations = list(&pod, &["spec", "tolerations"]).to_vec();
    tolerations.extend(TOLERATED.map(|(key, effect)| {
        let key = format!("node.kubernetes.io/{key}");
        json!({ "key": key, "operator": "Exists", "effect": effect })
    }));
    set(&mut pod, &["spec", "tolerations"], tolerations);
    pod
}

/// Whether the node is to have the pod, be it cordoned or not.
fn is_for(node: &Value, pod: &Value) -> bool {
    repelling(node, pod).is_none() && is_selected(node, pod) && !is_terminating(node)
}

/// Whether the pod may stay where it is: what only keeps pods from being scheduled does not count.
fn may_stay(node: &Value, pod: &Value) -> bool {
    is_selected(node, pod) && evicting(node, pod).is_none()
}
