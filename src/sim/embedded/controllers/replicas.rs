//! Replicas: creates pods until each set has as many as it wants.
//!
//! A `ReplicaSet` replaces a terminating pod at once, under another name. A `StatefulSet` waits until
//! the pod is gone, and then creates one with the same name. Either way the new pod has a new UID. A
//! controller that deletes by name gets this wrong.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::{Value, json};

use super::feed::{Feed, News};
use crate::sim::embedded::deletion::DeleteOptions;
use crate::sim::embedded::object::{
    at, controller, is_finished, is_terminating, meta, number, set, text,
};
use crate::sim::embedded::resource::Resource;
use crate::sim::embedded::store::Store;

const KINDS: [Resource; 2] = [Resource::ReplicaSets, Resource::StatefulSets];

/// How a pod counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Active,
    Terminating,
    Finished,
}

/// The controller.
pub(super) struct Replicas {
    store: Store,
    pods: Feed,
    sets: [Feed; 2],
    /// The pods of each owner, by its UID and their names.
    owned: HashMap<String, BTreeMap<String, Life>>,
    /// Whose pod each is.
    owners: HashMap<(String, String), String>,
    /// Sets by UID.
    known: HashMap<String, (Resource, Arc<Value>)>,
    /// UIDs of the sets that are to be looked at.
    due: BTreeSet<String>,
}

impl Replicas {
    pub(super) fn new(store: Store) -> Self {
        Self {
            store,
            pods: Feed::new(Resource::Pods),
            sets: KINDS.map(Feed::new),
            owned: HashMap::new(),
            owners: HashMap::new(),
            known: HashMap::new(),
            due: BTreeSet::new(),
        }
    }

    /// Fills up the sets that something happened to.
    pub(super) fn step(&mut self) {
        for (index, resource) in KINDS.into_iter().enumerate() {
            match self.sets[index].news(&self.store) {
                News::All(sets) => {
                    self.known.retain(|_, (kind, _)| *kind != resource);
                    for set in sets {
                        self.see_set(resource, set, false);
                    }
                }
                News::Some(news) => {
                    for (set, gone) in news {
                        self.see_set(resource, set, gone);
                    }
                }
            }
        }
        match self.pods.news(&self.store) {
            News::All(pods) => {
                self.owned.clear();
                self.owners.clear();
                self.due.extend(self.known.keys().cloned());
                for pod in pods {
                    self.see_pod(&pod, false);
                }
            }
            News::Some(news) => {
                for (pod, gone) in news {
                    self.see_pod(&pod, gone);
                }
            }
        }
        for uid in std::mem::take(&mut self.due) {
            let Some((resource, set)) = self.known.get(&uid).cloned() else {
                continue;
            };
            if is_terminating(&set) {
                continue;
            }
            match resource {
                Resource::StatefulSets => self.fill_by_ordinal(&set),
                _ => self.fill(&set),
            }
        }
    }

    fn see_set(&mut self, resource: Resource, set: Arc<Value>, gone: bool) {
        let uid = meta(&set, "uid").to_owned();
        if gone {
            self.known.remove(&uid);
        } else {
            self.due.insert(uid.clone());
            self.known.insert(uid, (resource, set));
        }
    }

    fn see_pod(&mut self, pod: &Value, gone: bool) {
        let name = meta(pod, "name").to_owned();
        let key = (meta(pod, "namespace").to_owned(), name.clone());
        if let Some(owner) = self.owners.remove(&key) {
            if let Some(pods) = self.owned.get_mut(&owner) {
                pods.remove(&name);
            }
            self.due.insert(owner);
        }
        let owner = controller(pod).map(|owner| text(owner, &["uid"]).to_owned());
        if let Some(owner) = owner.filter(|_| !gone) {
            let life = if is_finished(pod) {
                Life::Finished
            } else if is_terminating(pod) {
                Life::Terminating
            } else {
                Life::Active
            };
            self.owned.entry(owner.clone()).or_default().insert(name, life);
            self.owners.insert(key, owner.clone());
            self.due.insert(owner);
        }
    }

    fn fill(&mut self, set: &Value) {
        let pods = self.owned.get(meta(set, "uid"));
        let active = pods.into_iter().flatten().filter(|(_, life)| **life == Life::Active);
        let active: Vec<String> = active.map(|(name, _)| name.clone()).collect();
        let wanted = wanted(set);
        for _ in active.len()..wanted {
            let mut pod = from_template(set, "ReplicaSet");
            set_name(&mut pod, "generateName", &format!("{}-", meta(set, "name")));
            self.create(set, pod);
        }
        for name in active.iter().skip(wanted) {
            self.remove(set, name);
        }
        self.report(Resource::ReplicaSets, set, active.len().min(wanted));
    }

    fn fill_by_ordinal(&mut self, set: &Value) {
        let wanted = wanted(set);
        let pods = self.owned.get(meta(set, "uid")).cloned().unwrap_or_default();
        let names: Vec<_> = (0..wanted).map(|n| format!("{}-{n}", meta(set, "name"))).collect();
        for name in &names {
            match pods.get(name) {
                None => {
                    let mut pod = from_template(set, "StatefulSet");
                    set_name(&mut pod, "name", name);
                    self.create(set, pod);
                }
                Some(Life::Finished) => self.remove(set, name),
                Some(Life::Active | Life::Terminating) => {}
            }
        }
        for (name, life) in &pods {
            if *life == Life::Active && !names.contains(name) {
                self.remove(set, name);
            }
        }
        self.report(Resource::StatefulSets, set, wanted);
    }

    fn create(&mut self, set: &Value, pod: Value) {
        // Refused when the name is still taken or the namespace is going: the next change of
        // either brings us back here.
        if let Ok(pod) = self.store.create(Resource::Pods, meta(set, "namespace"), pod, false) {
            self.see_pod(&pod, false);
            self.due.remove(meta(set, "uid"));
        }
    }

    fn remove(&self, set: &Value, name: &str) {
        let options = DeleteOptions::default();
        // It may be gone by now.
        let _ = self.store.delete(Resource::Pods, meta(set, "namespace"), name, &options);
    }

    /// Writes into the status how many pods there are.
    fn report(&self, resource: Resource, owner: &Value, pods: usize) {
        let ready = self.ready(owner);
        let reported = |old: &Value| {
            let mut next = old.clone();
            set(&mut next, &["status", "replicas"], pods);
            set(&mut next, &["status", "readyReplicas"], ready);
            set(
                &mut next,
                &["status", "observedGeneration"],
                at(old, &["metadata", "generation"]).clone(),
            );
            Ok(next)
        };
        let (namespace, name) = (meta(owner, "namespace"), meta(owner, "name"));
        let part = crate::sim::embedded::write::Part::Status;
        // It may be gone by now.
        let _ = self.store.modify(resource, namespace, name, part, false, reported);
    }

    fn ready(&self, owner: &Value) -> usize {
        let pods = self.owned.get(meta(owner, "uid"));
        let names = pods.into_iter().flatten().filter(|(_, life)| **life == Life::Active);
        let is_ready = |name: &str| {
            let pod = self.store.get(Resource::Pods, meta(owner, "namespace"), name);
            pod.is_ok_and(|pod| crate::sim::embedded::object::is_true(&pod, "Ready"))
        };
        names.filter(|(name, _)| is_ready(name)).count()
    }
}

fn wanted(set: &Value) -> usize {
    let replicas = number(set, &["spec", "replicas"]).unwrap_or(1);
    usize::try_from(replicas).unwrap_or(0)
}

fn set_name(pod: &mut Value, field: &str, name: &str) {
    set(pod, &["metadata", field], name);
}

/// A pod as the set wants it, without a name.
pub(super) fn from_template(set_: &Value, kind: &str) -> Value {
    let template = at(set_, &["spec", "template"]);
    json!({
        "metadata": {
            "labels": at(template, &["metadata", "labels"]),
            "annotations": at(template, &["metadata", "annotations"]),
            "ownerReferences": [{
                "apiVersion": "apps/v1",
                "kind": kind,
                "name": meta(set_, "name"),
                "uid": meta(set_, "uid"),
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": at(template, &["spec"]),
    })
}
