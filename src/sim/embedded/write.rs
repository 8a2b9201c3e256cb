//! Creates, changes and removes objects.

use std::sync::Arc;

use jiff::Timestamp;
use rand::Rng;
use serde_json::{Value, json};

use super::admission::admit;
use super::checks::{
    SERVERS_OWN, check_annotations, check_name, check_replaced, identified, reconciled, tidy,
};
use super::deletion::{self, DeleteOptions, Deletion};
use super::error::ApiError;
use super::managed;
use super::object::{meta, remove, set, set_condition, set_default, text, time};
use super::patch::Patch;
use super::resource::Resource;
use super::store::{Key, State, Store};
use crate::model::Uid;

/// Which part of an object a write is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything but the status.
    Whole,
    /// The status, and the metadata.
    Status,
}

/// What a DELETE did.
#[derive(Clone, Debug)]
pub struct Deleted {
    /// The object: as it waits, or its last state.
    pub object: Arc<Value>,
    /// Whether it is gone.
    pub gone: bool,
}

impl Store {
    /// Creates the object, with defaults and admission. `namespace` is empty for resources without
    /// namespaces.
    pub fn create(
        &self,
        resource: Resource,
        namespace: &str,
        object: Value,
        dry_run: bool,
    ) -> Result<Arc<Value>, ApiError> {
        let mut object = tidy(identified(resource, namespace, object)?);
        if !meta(&object, "resourceVersion").is_empty() {
            return Err(ApiError {
                code: 500,
                reason: "",
                message: "resourceVersion should not be set on objects to be created".to_owned(),
                details: Value::Null,
            });
        }
        for field in SERVERS_OWN {
            remove(&mut object, &["metadata"], field);
        }
        check_annotations(resource, &object)?;
        admit(resource, &mut object, self.options());
        self.transact(|state, now| state.create(resource, object, now, dry_run))
    }

    /// Stores the object as given, status included, without defaults and admission: for setting
    /// the stage. Its namespace is created if there is none of that name.
    pub fn insert(&self, resource: Resource, object: Value) -> Result<Arc<Value>, ApiError> {
        let namespace = meta(&object, "namespace").to_owned();
        let object = identified(resource, &namespace, object)?;
        if resource.spec().namespaced {
            self.ensure_namespace(&namespace);
        }
        self.transact(|state, now| state.create(resource, object, now, false))
    }

    /// Creates the namespace unless it is there.
    pub fn ensure_namespace(&self, name: &str) {
        let key = Key::new("", name);
        self.transact(|state, now| {
            if state.find(Resource::Namespaces, &key).is_none() {
                let namespace = json!({
                    "apiVersion": "v1",
                    "kind": "Namespace",
                    "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
                    "spec": {"finalizers": ["kubernetes"]},
                    "status": {"phase": "Active"},
                });
                // It cannot be refused: the name is free, and a namespace lives in none.
                let _ = state.create(Resource::Namespaces, namespace, now, false);
            }
        });
    }

    /// Replaces the object, or the part of it. A resourceVersion or UID in it must be the stored
    /// one.
    pub fn update(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        part: Part,
        object: Value,
        dry_run: bool,
    ) -> Result<Arc<Value>, ApiError> {
        if resource.spec().create_on_update
            && part == Part::Whole
            && self.get(resource, namespace, name).is_err()
        {
            // The version of one that is gone says nothing about the new one.
            let mut object = object;
            remove(&mut object, &["metadata"], "resourceVersion");
            return self.create(resource, namespace, object, dry_run);
        }
        self.modify(resource, namespace, name, part, dry_run, |current| {
            check_replaced(resource, current, &object)?;
            Ok(object.clone())
        })
    }

    /// Patches the object, or the part of it. A resourceVersion or UID that the patch sets must be
    /// the stored one.
    pub fn patch(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        part: Part,
        patch: &Patch,
        dry_run: bool,
    ) -> Result<Arc<Value>, ApiError> {
        self.patch_by("", resource, namespace, name, part, patch, dry_run)
    }

    /// As [`patch`](Self::patch); the API server records this field manager as the writer.
    #[allow(clippy::too_many_arguments, reason = "a request has as many parts")]
    pub fn patch_by(
        &self,
        manager: &str,
        resource: Resource,
        namespace: &str,
        name: &str,
        part: Part,
        patch: &Patch,
        dry_run: bool,
    ) -> Result<Arc<Value>, ApiError> {
        if let Patch::Apply(object) = patch
            && self.get(resource, namespace, name).is_err()
        {
            let mut object = object.clone();
            set(&mut object, &["metadata", "name"], name);
            return self.create(resource, namespace, object, dry_run);
        }
        let change = |object: &Value| patch.apply_to(object);
        self.modify_by(manager, resource, namespace, name, part, dry_run, change)
    }

    /// Replaces the object by what `change` makes of it, as one step. `change` runs without the
    /// store's lock, and again if someone else changed the object meanwhile.
    pub fn modify(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        part: Part,
        dry_run: bool,
        change: impl FnMut(&Value) -> Result<Value, ApiError>,
    ) -> Result<Arc<Value>, ApiError> {
        self.modify_by("", resource, namespace, name, part, dry_run, change)
    }

    #[allow(clippy::too_many_arguments, reason = "a request has as many parts")]
    fn modify_by(
        &self,
        manager: &str,
        resource: Resource,
        namespace: &str,
        name: &str,
        part: Part,
        dry_run: bool,
        mut change: impl FnMut(&Value) -> Result<Value, ApiError>,
    ) -> Result<Arc<Value>, ApiError> {
        let key = Key::new(namespace, name);
        loop {
            let current = self.get(resource, namespace, name)?;
            let mut next = reconciled(resource, &current, change(&current)?, part)?;
            if resource == Resource::Pods && part == Part::Status && !manager.is_empty() {
                managed::note(&current, &mut next, manager, self.clock().now());
            }
            check_annotations(resource, &next)?;
            if next == *current {
                return Ok(current);
            }
            if dry_run {
                return Ok(Arc::new(next));
            }
            let replace =
                |state: &mut State, now| state.replace(resource, &key, &current, next, now);
            if let Some(stored) = self.transact(replace) {
                return Ok(stored);
            }
        }
    }

    /// Deletes the object: at once, or step by step.
    pub fn delete(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, ApiError> {
        self.transact(|state, now| state.delete(resource, namespace, name, options, now))
    }

    /// Removes a namespace that is terminating and empty.
    pub(super) fn remove_namespace(&self, name: &str) {
        self.transact(|state, now| state.take(Resource::Namespaces, &Key::new("", name), now));
    }

    /// Binds the pod to a node, as the scheduler does.
    pub fn bind(&self, namespace: &str, name: &str, node: &str) -> Result<(), ApiError> {
        self.transact(|state, now| {
            let pod = state.get(Resource::Pods, namespace, name)?;
            let bound = text(&pod, &["spec", "nodeName"]);
            if !bound.is_empty() {
                let cause = format!("pod {name} is already assigned to node {bound:?}");
                return Err(ApiError::conflict(Resource::Pods, name, &cause));
            }
            let mut pod = (*pod).clone();
            set(&mut pod, &["spec", "nodeName"], node);
            let scheduled = json!({
                "type": "PodScheduled",
                "status": "True",
                "lastProbeTime": null,
                "lastTransitionTime": time(now),
            });
            set_condition(&mut pod, scheduled);
            state.put(Resource::Pods, pod, now);
            Ok(())
        })
    }
}

impl State {
    /// Stores `next` in the place of `current`; `None` if that is not what is stored any more.
    fn replace(
        &mut self,
        resource: Resource,
        key: &Key,
        current: &Arc<Value>,
        next: Value,
        now: Timestamp,
    ) -> Option<Arc<Value>> {
        if !Arc::ptr_eq(current, &self.find(resource, key)?) {
            return None;
        }
        if deletion::is_over(&next) {
            return self.take(resource, key, now);
        }
        Some(self.put(resource, next, now))
    }

    fn create(
        &mut self,
        resource: Resource,
        mut object: Value,
        now: Timestamp,
        dry_run: bool,
    ) -> Result<Arc<Value>, ApiError> {
        let namespace = meta(&object, "namespace").to_owned();
        self.name(resource, &mut object)?;
        let name = meta(&object, "name").to_owned();
        self.check_namespace(resource, &namespace, &name)?;
        if self.find(resource, &Key::new(&namespace, &name)).is_some() {
            return Err(ApiError::already_exists(resource, &name));
        }
        set_default(&mut object, &["metadata", "uid"], self.uid());
        set_default(&mut object, &["metadata", "creationTimestamp"], time(now));
        if resource.spec().generation {
            set_default(&mut object, &["metadata", "generation"], 1);
        }
        if dry_run {
            return Ok(Arc::new(object));
        }
        Ok(self.put(resource, object, now))
    }

    fn name(&mut self, resource: Resource, object: &mut Value) -> Result<(), ApiError> {
        if meta(object, "name").is_empty() {
            let prefix = meta(object, "generateName");
            if prefix.is_empty() {
                let text = "Required value: name or generateName is required";
                let field = "metadata.name";
                return Err(ApiError::invalid(resource, "", field, "FieldValueRequired", text));
            }
            let prefix: String = prefix.chars().take(58).collect();
            let name = format!("{prefix}{}", self.suffix());
            set(object, &["metadata", "name"], name);
        }
        check_name(resource, meta(object, "name"))
    }

    fn check_namespace(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
    ) -> Result<(), ApiError> {
        if !resource.spec().namespaced {
            return Ok(());
        }
        let home = self.get(Resource::Namespaces, "", namespace)?;
        if text(&home, &["status", "phase"]) != "Terminating" {
            return Ok(());
        }
        let cause = format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        );
        let mut error = ApiError::forbidden(resource, name, &cause);
        error.details["causes"] = json!([{
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        }]);
        Err(error)
    }

    /// A random UUID, version 4.
    fn uid(&mut self) -> String {
        let random: u128 = self.rng.random();
        let version = random & !(0xf << 76) | 4 << 76;
        Uid(version & !(0b11 << 62) | 0b10 << 62).to_string()
    }

    /// Five letters, of those that make no words.
    fn suffix(&mut self) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        (0..5).map(|_| char::from(LETTERS[self.rng.random_range(0..LETTERS.len())])).collect()
    }

    pub(super) fn delete(
        &mut self,
        resource: Resource,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
        now: Timestamp,
    ) -> Result<Deleted, ApiError> {
        let object = self.get(resource, namespace, name)?;
        options.check(resource, &object)?;
        if resource == Resource::Namespaces {
            return Ok(self.terminate(&object, now, options.dry_run));
        }
        let waits = |object| Deleted { object, gone: false };
        Ok(match deletion::delete(resource, &object, options, now) {
            Deletion::Unchanged => waits(object),
            Deletion::Waits(next) if options.dry_run => waits(Arc::new(next)),
            Deletion::Waits(next) => waits(self.put(resource, next, now)),
            Deletion::Gone(_) if options.dry_run => Deleted { object, gone: true },
            Deletion::Gone(last) => {
                let last = last.map(|last| self.put(resource, last, now));
                self.take(resource, &Key::new(namespace, name), now);
                Deleted { object: last.unwrap_or(object), gone: true }
            }
        })
    }

    /// Marks a namespace as terminating; what is in it is removed by `controllers`.
    fn terminate(&mut self, namespace: &Arc<Value>, now: Timestamp, dry_run: bool) -> Deleted {
        let mut next = (**namespace).clone();
        set_default(&mut next, &["metadata", "deletionTimestamp"], time(now));
        set(&mut next, &["status", "phase"], "Terminating");
        let object = if dry_run || next == **namespace {
            Arc::new(next)
        } else {
            self.put(Resource::Namespaces, next, now)
        };
        Deleted { object, gone: false }
    }
}
