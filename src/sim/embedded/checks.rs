//! Validation of objects before they are stored.

use serde_json::Value;

use super::error::ApiError;
use super::object::{at, is_terminating, list, meta, number, remove, set, text};
use super::resource::Resource;
use super::write::Part;

/// Metadata that only the server may set.
pub(super) const SERVERS_OWN: [&str; 7] = [
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
];

/// Refuses a name that is not one.
pub(super) fn check_name(resource: Resource, name: &str) -> Result<(), ApiError> {
    let is_edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_label = |label: &str| {
        label.starts_with(is_edge)
            && label.ends_with(is_edge)
            && label.chars().all(|c| is_edge(c) || c == '-')
    };
    if name.len() <= 253 && name.split('.').all(is_label) {
        return Ok(());
    }
    let text = format!(
        "Invalid value: {name:?}: a lowercase RFC 1123 subdomain must consist of lower case \
         alphanumeric characters, '-' or '.', and must start and end with an alphanumeric \
         character (e.g. 'example.com', regex used for validation is \
         '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
    );
    Err(ApiError::invalid(resource, name, "metadata.name", "FieldValueInvalid", &text))
}

/// The longest that all annotations of an object may be, keys and values together.
const LONGEST_ANNOTATIONS: usize = 256 << 10;

/// Refuses an object with more annotations than fit.
pub(super) fn check_annotations(resource: Resource, object: &Value) -> Result<(), ApiError> {
    let annotations = at(object, &["metadata", "annotations"]).as_object();
    let length = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
    let length: usize = annotations.into_iter().flatten().map(length).sum();
    if length <= LONGEST_ANNOTATIONS {
        return Ok(());
    }
    let text = format!("Too long: may not be more than {LONGEST_ANNOTATIONS} bytes");
    let (name, field) = (meta(object, "name"), "metadata.annotations");
    Err(ApiError::invalid(resource, name, field, "FieldValueTooLong", &text))
}

/// Refuses to replace an object by one with another UID.
pub(super) fn check_replaced(
    resource: Resource,
    current: &Value,
    object: &Value,
) -> Result<(), ApiError> {
    let (given, stored) = (meta(object, "uid"), meta(current, "uid"));
    if given.is_empty() || given == stored {
        return Ok(());
    }
    let (namespace, name) = (meta(current, "namespace"), meta(current, "name"));
    let folder = match resource {
        Resource::Nodes => "minions",
        resource => resource.spec().plural,
    };
    let key = match namespace {
        "" => format!("/registry/{folder}/{name}"),
        namespace => format!("/registry/{folder}/{namespace}/{name}"),
    };
    let cause = format!(
        "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, \
         AdditionalErrorMsg: Precondition failed: UID in precondition: {given}, UID in object \
         meta: {stored}"
    );
    Err(ApiError::conflict(resource, name, &cause))
}

/// The object without fields that say nothing: the API's types leave those out.
pub(super) fn tidy(mut object: Value) -> Value {
    const LEFT_OUT: [(&str, &str); 10] = [
        ("metadata", "labels"),
        ("metadata", "annotations"),
        ("metadata", "finalizers"),
        ("metadata", "ownerReferences"),
        ("metadata", "generateName"),
        ("spec", "nodeName"),
        ("spec", "taints"),
        ("spec", "tolerations"),
        ("spec", "unschedulable"),
        ("spec", "nodeSelector"),
    ];
    for (parent, field) in LEFT_OUT {
        let says_nothing = match at(&object, &[parent, field]) {
            Value::Null | Value::Bool(false) => true,
            Value::String(text) => text.is_empty(),
            Value::Array(entries) => entries.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            _ => false,
        };
        if says_nothing {
            remove(&mut object, &[parent], field);
        }
    }
    object
}

/// The object with its type and namespace; refused if it is of another type or for another
/// namespace.
pub(super) fn identified(
    resource: Resource,
    namespace: &str,
    mut object: Value,
) -> Result<Value, ApiError> {
    check_type(resource, &object)?;
    let own = meta(&object, "namespace");
    if !own.is_empty() && own != namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the \
             request",
        ));
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
        return Err(ApiError::bad_request("the body of the request is not an object"));
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
pub(super) fn reconciled(
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
    let version = meta(&proposed, "resourceVersion");
    if version.is_empty() && !resource.spec().unconditional {
        return Err(ApiError::unversioned(resource, name));
    }
    if !version.is_empty() && version != meta(current, "resourceVersion") {
        return Err(ApiError::modified(resource, name));
    }
    let uid = meta(&proposed, "uid");
    if !uid.is_empty() && uid != meta(current, "uid") {
        let text = format!("Invalid value: {uid:?}: field is immutable");
        let error = ApiError::invalid(resource, name, "metadata.uid", "FieldValueInvalid", &text);
        return Err(error.twice());
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
    let mut next = tidy(next);
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
        return Err(ApiError::invalid(resource, name, "spec", "FieldValueForbidden", text));
    }
    let old = list(current, &["metadata", "finalizers"]);
    let new = list(next, &["metadata", "finalizers"]).iter();
    let new: Vec<_> = new.filter(|f| !old.contains(f)).map(Value::to_string).collect();
    if is_terminating(current) && !new.is_empty() {
        let text = format!(
            "Forbidden: no new finalizers can be added if the object is being deleted, found new \
             finalizers []string{{{}}}",
            new.join(", ")
        );
        let field = "metadata.finalizers";
        let error = ApiError::invalid(resource, name, field, "FieldValueForbidden", &text);
        return Err(error.twice());
    }
    if resource == Resource::Nodes {
        check_taints(name, list(next, &["spec", "taints"]))?;
    }
    Ok(())
}

fn check_taints(node: &str, taints: &[Value]) -> Result<(), ApiError> {
    let refuse = |index: usize, field: &str, cause: &'static str, text: &str| {
        let field = format!("metadata.taints[{index}]{field}");
        Err(ApiError::invalid(Resource::Nodes, node, &field, cause, text).twice())
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
            let shown = format!(
                "{{\"Key\":{key:?},\"Value\":{:?},\"Effect\":{effect:?},\"TimeAdded\":null}}",
                text(taint, &["value"])
            );
            let text =
                format!("Duplicate value: {shown}: taints must be unique by key and effect pair");
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
