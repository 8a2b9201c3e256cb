//! Creating, changing and removing objects.

use std::sync::Arc;

use jiff::Timestamp;
use rand::Rng;
use serde_json::{Value, json};

use super::admission::admit;
use super::deletion::{self, DeleteOptions, Deletion};
use super::error::ApiError;
use super::object::{at, list, meta, number, remove, set, set_condition, set_default, text, time};
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

/// Metadata that only the server may set.
const SERVERS_OWN: [&str; 7] = [
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
];

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
        let mut object = identified(resource, namespace, object)?;
        if !meta(&object, "resourceVersion").is_empty() {
            return Err(ApiError::bad_request(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        for field in SERVERS_OWN {
            remove(&mut object, &["metadata"], field);
        }
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
            return self.create(resource, namespace, object, dry_run);
        }
        self.modify(resource, namespace, name, part, dry_run, |_| Ok(object))
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
        if let Patch::Apply(object) = patch
            && self.get(resource, namespace, name).is_err()
        {
            let mut object = object.clone();
            set(&mut object, &["metadata", "name"], name);
            return self.create(resource, namespace, object, dry_run);
        }
        let change = |object: &Value| patch.apply_to(object);
        self.modify(resource, namespace, name, part, dry_run, change)
    }

    /// Replaces the object by what `change` makes of it, as one step.
    pub fn modify(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        part: Part,
        dry_run: bool,
        change: impl FnOnce(&Value) -> Result<Value, ApiError>,
    ) -> Result<Arc<Value>, ApiError> {
        self.transact(|state, now| {
            let current = state.get(resource, namespace, name)?;
            let proposed = change(&current)?;
            let next = reconciled(resource, &current, proposed, part)?;
            if next == *current {
                return Ok(current);
            }
            if dry_run {
                return Ok(Arc::new(next));
            }
            if deletion::is_over(&next) {
                let key = Key::new(namespace, name);
                return Ok(state.take(resource, &key, now).unwrap_or(current));
            }
            Ok(state.put(resource, next, now))
        })
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
                return Err(ApiError::invalid(
                    resource,
                    "",
                    field,
                    "FieldValueRequired",
                    text,
                ));
            }
            let prefix: String = prefix.chars().take(58).collect();
            let name = format!("{prefix}{}", self.suffix());
            set(object, &["metadata", "name"], name);
        }
        let name = meta(object, "name");
        let is_edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let valid = name.len() <= 253
            && name.starts_with(is_edge)
            && name.ends_with(is_edge)
            && name.chars().all(|c| is_edge(c) || c == '-' || c == '.');
        if valid {
            return Ok(());
        }
        let text = format!(
            "Invalid value: {name:?}: a lowercase RFC 1123 subdomain must consist of lower case \
             alphanumeric characters, '-' or '.', and must start and end with an alphanumeric \
             character"
        );
        Err(ApiError::invalid(
            resource,
            name,
            "metadata.name",
            "FieldValueInvalid",
            &text,
        ))
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
        let error = ApiError::forbidden(resource, name, &cause);
        let message = format!("namespace {namespace} is being terminated");
        Err(error.caused_by("NamespaceTerminating", &message))
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
        (0..5)
            .map(|_| char::from(LETTERS[self.rng.random_range(0..LETTERS.len())]))
            .collect()
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
        let waits = |object| Deleted {
            object,
            gone: false,
        };
        Ok(match deletion::delete(resource, &object, options, now) {
            Deletion::Unchanged => waits(object),
            Deletion::Waits(next) if options.dry_run => waits(Arc::new(next)),
            Deletion::Waits(next) => waits(self.put(resource, next, now)),
            Deletion::Gone(_) if options.dry_run => Deleted { object, gone: true },
            Deletion::Gone(last) => {
                let last = last.map(|last| self.put(resource, last, now));
                self.take(resource, &Key::new(namespace, name), now);
                Deleted {
                    object: last.unwrap_or(object),
                    gone: true,
                }
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
        Deleted {
            object,
            gone: false,
        }
    }
}

/// The object with its type and namespace; refused if it is of another type or for another
/// namespace.
fn identified(resource: Resource, namespace: &str, mut object: Value) -> Result<Value, ApiError> {
    check_type(resource, &object)?;
    let own = meta(&object, "namespace");
    if !own.is_empty() && own != namespace {
        return Err(ApiError::bad_request(format!(
            "the namespace of the provided object does not match the namespace sent on the \
             request: {own:?} and {namespace:?}"
        )));
    }
    set(&mut object, &["apiVersion"], resource.api_version());
    set(&mut object, &["kind"], resource.spec().kind);
    if resource.spec().namespaced {
        set(&mut object, &["metadata", "namespace"], namespace);
    }
    Ok(object)
}

fn check_type(resource: Resource, object: &Value) -> Result<(), ApiError> {
    if !object.is_object() {
        return Err(ApiError::bad_request(
            "the body of the request is not an object",
        ));
    }
    let (kind, version) = (text(object, &["kind"]), text(object, &["apiVersion"]));
    let wanted = (resource.spec().kind, resource.api_version());
    if (kind.is_empty() || kind == wanted.0) && (version.is_empty() || version == wanted.1) {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "{kind} in version {version:?} cannot be handled as a {}",
        wanted.0
    )))
}

/// What is stored if `proposed` is written in place of `current`: the part that the write is
/// about, with what only the server may set as it was.
fn reconciled(
    resource: Resource,
    current: &Value,
    proposed: Value,
    part: Part,
) -> Result<Value, ApiError> {
    check_type(resource, &proposed)?;
    let name = meta(current, "name");
    if meta(&proposed, "name") != name && !meta(&proposed, "name").is_empty() {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({name})",
            meta(&proposed, "name")
        )));
    }
    let (given, stored) = (meta(&proposed, "uid"), meta(current, "uid"));
    if !given.is_empty() && given != stored {
        let cause = format!(
            "Precondition failed: UID in precondition: {given}, UID in object meta: {stored}"
        );
        return Err(ApiError::conflict(resource, name, &cause));
    }
    let version = meta(&proposed, "resourceVersion");
    if version.is_empty() && !resource.spec().unconditional {
        let text = "Invalid value: 0x0: must be specified for an update";
        let field = "metadata.resourceVersion";
        return Err(ApiError::invalid(
            resource,
            name,
            field,
            "FieldValueInvalid",
            text,
        ));
    }
    if !version.is_empty() && version != meta(current, "resourceVersion") {
        return Err(ApiError::modified(resource, name));
    }
    let mut next = match part {
        Part::Whole => proposed,
        Part::Status => {
            let mut next = current.clone();
            next["metadata"] = at(&proposed, &["metadata"]).clone();
            next["status"] = at(&proposed, &["status"]).clone();
            next
        }
    };
    if part == Part::Whole && resource.spec().status {
        copy(current, &mut next, &[], "status");
    }
    for field in ["apiVersion", "kind"] {
        copy(current, &mut next, &[], field);
    }
    let names = ["name", "namespace", "generateName", "resourceVersion"];
    for field in names.into_iter().chain(SERVERS_OWN) {
        copy(current, &mut next, &["metadata"], field);
    }
    check_change(resource, current, &next)?;
    if resource.spec().generation && at(current, &["spec"]) != at(&next, &["spec"]) {
        let generation = number(current, &["metadata", "generation"]).unwrap_or(0) + 1;
        set(&mut next, &["metadata", "generation"], generation);
    }
    Ok(next)
}

/// Refuses changes that the API does not allow.
fn check_change(resource: Resource, current: &Value, next: &Value) -> Result<(), ApiError> {
    let name = meta(current, "name");
    if resource == Resource::Pods
        && at(current, &["spec", "nodeName"]) != at(next, &["spec", "nodeName"])
    {
        let text = "Forbidden: pod updates may not change fields other than \
                    `spec.containers[*].image`,`spec.initContainers[*].image`,\
                    `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
                    tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if \
                    it was previously negative)";
        return Err(ApiError::invalid(
            resource,
            name,
            "spec",
            "FieldValueForbidden",
            text,
        ));
    }
    let old = list(current, &["metadata", "finalizers"]);
    let new = list(next, &["metadata", "finalizers"]);
    if super::object::is_terminating(current) && new.iter().any(|f| !old.contains(f)) {
        let text = "Forbidden: no new finalizers can be added if the object is being deleted";
        return Err(ApiError::invalid(
            resource,
            name,
            "metadata.finalizers",
            "FieldValueForbidden",
            text,
        ));
    }
    if resource == Resource::Nodes {
        check_taints(name, list(next, &["spec", "taints"]))?;
    }
    Ok(())
}

fn check_taints(node: &str, taints: &[Value]) -> Result<(), ApiError> {
    let refuse = |index: usize, field: &str, cause: &'static str, text: &str| {
        let field = format!("metadata.taints[{index}]{field}");
        Err(ApiError::invalid(
            Resource::Nodes,
            node,
            &field,
            cause,
            text,
        ))
    };
    for (index, taint) in taints.iter().enumerate() {
        let (key, effect) = (text(taint, &["key"]), text(taint, &["effect"]));
        if key.is_empty() {
            let text = "Required value: a taint needs a key";
            return refuse(index, ".key", "FieldValueRequired", text);
        }
        if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
            let text = format!(
                "Unsupported value: {effect:?}: supported values: \"NoSchedule\", \
                 \"PreferNoSchedule\", \"NoExecute\""
            );
            return refuse(index, ".effect", "FieldValueNotSupported", &text);
        }
        let same =
            |other: &Value| text(other, &["key"]) == key && text(other, &["effect"]) == effect;
        if taints[..index].iter().any(same) {
            let text = format!("Duplicate value: {key}:{effect}");
            return refuse(index, "", "FieldValueDuplicate", &text);
        }
    }
    Ok(())
}

/// Makes the field what it is in `from`, also if that is absent.
fn copy(from: &Value, to: &mut Value, parent: &[&str], field: &str) {
    let path: Vec<&str> = parent.iter().copied().chain([field]).collect();
    match at(from, &path) {
        Value::Null => drop(remove(to, parent, field)),
        value => set(to, &path, value.clone()),
    }
}
