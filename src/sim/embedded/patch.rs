//! The four kinds of patch.

use serde_json::{Map, Value};

use super::error::ApiError;

/// A patch, as its content type says.
#[derive(Clone, Debug)]
pub enum Patch {
    /// RFC 7386.
    Merge(Value),
    /// RFC 6902.
    Json(Value),
    /// Merge by the keys of the API's lists.
    Strategic(Value),
    /// Server-side apply, in a simple form: merged like a strategic patch, and creates the object
    /// if there is none. Field owners are not kept, so nothing conflicts and nothing is pruned.
    Apply(Value),
}

impl Patch {
    /// `object` with the patch applied. Knows nothing of versions and identities: whoever stores
    /// the result checks those.
    pub fn apply_to(&self, object: &Value) -> Result<Value, ApiError> {
        let mut object = object.clone();
        match self {
            Self::Merge(patch) => merge(&mut object, patch),
            Self::Strategic(patch) | Self::Apply(patch) => strategic(&mut object, patch),
            Self::Json(patch) => {
                let operations: json_patch::Patch = serde_json::from_value(patch.clone())
                    .map_err(|e| ApiError::bad_request(format!("error decoding patch: {e}")))?;
                json_patch::patch(&mut object, &operations).map_err(|e| ApiError {
                    code: 422,
                    reason: "Invalid",
                    message: format!(
                        "the server rejected our request due to an error in our request: {e}"
                    ),
                    details: serde_json::json!({}),
                })?;
            }
        }
        Ok(object)
    }
}

fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *object = patch.clone();
        return;
    };
    let fields = as_fields(object);
    for (field, change) in changes {
        if change.is_null() {
            fields.remove(field);
        } else {
            merge(fields.entry(field.clone()).or_insert(Value::Null), change);
        }
    }
}

/// The object's fields; whatever was there before, if it is not an object, is dropped.
fn as_fields(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(fields) => fields,
        _ => unreachable!("it was made an object just now"),
    }
}

/// How a list is merged.
enum Merge {
    /// Replaced as a whole. What a list is unless its field is named in [`list_merge`].
    Atomic,
    /// Entries with the same value of this field are merged.
    By(&'static str),
    /// A set of texts: united.
    Set,
}

/// How the API's types have the list `field` merged (their `patchMergeKey`). Taints and
/// tolerations have none. Names suffice: none of them means two things in the types served here.
fn list_merge(field: &str) -> Merge {
    match field {
        "conditions" | "addresses" => Merge::By("type"),
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "schedulingGates"
        | "resourceClaims" => Merge::By("name"),
        "ports" => Merge::By("containerPort"),
        "volumeMounts" => Merge::By("mountPath"),
        "volumeDevices" => Merge::By("devicePath"),
        "ownerReferences" => Merge::By("uid"),
        "hostAliases" | "podIPs" => Merge::By("ip"),
        "topologySpreadConstraints" => Merge::By("topologyKey"),
        "finalizers" | "podCIDRs" => Merge::Set,
        _ => Merge::Atomic,
    }
}

fn strategic(object: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *object = patch.clone();
        return;
    };
    let directive = changes.get("$patch").and_then(Value::as_str);
    if matches!(directive, Some("replace" | "delete")) {
        *object = Value::Object(Map::new());
        if directive == Some("delete") {
            return;
        }
    }
    let fields = as_fields(object);
    for (field, change) in changes {
        if let Some(list) = field.strip_prefix("$deleteFromPrimitiveList/") {
            if let Some(Value::Array(entries)) = fields.get_mut(list) {
                let gone = change.as_array().map_or(&[][..], Vec::as_slice);
                entries.retain(|entry| !gone.contains(entry));
            }
        } else if field.starts_with('$') {
            // `$patch` was looked at above; the order of lists and retained keys do not matter to
            // anyone here.
        } else if change.is_null() || change.get("$patch").is_some_and(|d| d == "delete") {
            fields.remove(field);
        } else if let Value::Array(changes) = change {
            let list = fields.entry(field.clone()).or_insert(Value::Null);
            strategic_list(list, changes, &list_merge(field));
        } else {
            strategic(fields.entry(field.clone()).or_insert(Value::Null), change);
        }
    }
}

fn strategic_list(list: &mut Value, changes: &[Value], how: &Merge) {
    let is_replace = |change: &Value| change.get("$patch").is_some_and(|d| d == "replace");
    let anew = changes.iter().any(is_replace);
    let mut entries = match list {
        Value::Array(entries) if !anew => std::mem::take(entries),
        _ => Vec::new(),
    };
    match how {
        _ if anew => entries.extend(changes.iter().filter(|c| !is_replace(c)).cloned()),
        Merge::Atomic => entries = changes.to_vec(),
        Merge::Set => {
            for change in changes {
                if !entries.contains(change) {
                    entries.push(change.clone());
                }
            }
        }
        Merge::By(key) => {
            for change in changes {
                let place = entries.iter().position(|entry| {
                    entry.get(key).is_some() && entry.get(key) == change.get(key)
                });
                let deletes = change.get("$patch").is_some_and(|d| d == "delete");
                match (place, deletes) {
                    (Some(place), true) => drop(entries.remove(place)),
                    (Some(place), false) => strategic(&mut entries[place], change),
                    (None, true) => {}
                    (None, false) => {
                        let mut entry = Value::Null;
                        strategic(&mut entry, change);
                        entries.push(entry);
                    }
                }
            }
        }
    }
    *list = Value::Array(entries);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn patched(object: &Value, patch: &Patch) -> Value {
        patch.apply_to(object).unwrap()
    }

    #[test]
    fn a_merge_patch_replaces_lists_and_null_removes() {
        let object = json!({"a": 1, "b": [1, 2], "c": {"d": 1, "e": 2}});
        let patch = json!({"a": null, "b": [3], "c": {"d": null, "f": {"g": null}}});
        assert_eq!(
            patched(&object, &Patch::Merge(patch)),
            json!({"b": [3], "c": {"e": 2, "f": {}}})
        );
    }

    #[test]
    fn a_json_patch_whose_test_fails_changes_nothing() {
        let object = json!({"spec": {"taints": [{"key": "a"}]}});
        let good = json!([
            {"op": "test", "path": "/spec/taints/0/key", "value": "a"},
            {"op": "remove", "path": "/spec/taints/0"},
        ]);
        assert_eq!(
            patched(&object, &Patch::Json(good)),
            json!({"spec": {"taints": []}})
        );
        let stale = json!([
            {"op": "test", "path": "/spec/taints/0/key", "value": "b"},
            {"op": "remove", "path": "/spec/taints/0"},
        ]);
        let error = Patch::Json(stale).apply_to(&object).unwrap_err();
        assert_eq!(error.code, 422);
        let error = Patch::Json(json!({"no": "list"}))
            .apply_to(&object)
            .unwrap_err();
        assert_eq!(error.code, 400);
    }

    #[test]
    fn conditions_are_merged_by_type() {
        let object = json!({"status": {"conditions": [
            {"type": "Ready", "status": "True", "reason": "x"},
            {"type": "PodScheduled", "status": "True"},
        ]}});
        let patch = json!({"status": {
            "$setElementOrder/conditions": [{"type": "Ready"}],
            "conditions": [
                {"type": "Ready", "status": "False"},
                {"type": "DisruptionTarget", "status": "True"},
                {"type": "PodScheduled", "$patch": "delete"},
            ],
        }});
        assert_eq!(
            patched(&object, &Patch::Strategic(patch)),
            json!({"status": {"conditions": [
                {"type": "Ready", "status": "False", "reason": "x"},
                {"type": "DisruptionTarget", "status": "True"},
            ]}})
        );
    }

    #[test]
    fn taints_and_tolerations_are_replaced_as_a_whole() {
        let object = json!({"spec": {"taints": [{"key": "a"}, {"key": "b"}]}});
        let patch = json!({"spec": {"taints": [{"key": "c"}]}});
        let result = patched(&object, &Patch::Strategic(patch.clone()));
        assert_eq!(result, patch);
    }

    #[test]
    fn finalizers_are_a_set_and_owners_go_by_uid() {
        let object = json!({"metadata": {
            "finalizers": ["a", "b"],
            "ownerReferences": [{"uid": "1", "name": "x"}],
        }});
        let patch = json!({"metadata": {
            "finalizers": ["b", "c"],
            "$deleteFromPrimitiveList/finalizers": ["a"],
            "ownerReferences": [{"uid": "2"}, {"uid": "1", "$patch": "delete"}],
        }});
        assert_eq!(
            patched(&object, &Patch::Strategic(patch)),
            json!({"metadata": {"finalizers": ["b", "c"], "ownerReferences": [{"uid": "2"}]}})
        );
    }

    #[test]
    fn a_directive_replaces_a_map_or_a_list() {
        let object = json!({"a": {"b": 1}, "conditions": [{"type": "x"}], "c": {"d": 1}});
        let patch = json!({
            "a": {"$patch": "replace", "e": 1},
            "conditions": [{"type": "y"}, {"$patch": "replace"}],
            "c": {"$patch": "delete"},
        });
        assert_eq!(
            patched(&object, &Patch::Strategic(patch)),
            json!({"a": {"e": 1}, "conditions": [{"type": "y"}]})
        );
    }
}
