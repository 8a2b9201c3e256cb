//! Strategic merge patches: lists are merged by the keys that the API's types name.

use serde_json::{Map, Value};

use super::patch::as_fields;

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

/// Merges the patch into the object.
pub(super) fn strategic(object: &mut Value, patch: &Value) {
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
    let order_of = changes;
    let fields = as_fields(object);
    for (field, change) in changes {
        if let Some(list) = field.strip_prefix("$deleteFromPrimitiveList/") {
            if let Some(Value::Array(entries)) = fields.get_mut(list) {
                let gone = change.as_array().map_or(&[][..], Vec::as_slice);
                entries.retain(|entry| !gone.contains(entry));
            }
        } else if field.starts_with('$') {
            // `$patch` was looked at above, orders are looked at with their lists, and retained keys
            // matter to nobody here.
        } else if change.is_null() || change.get("$patch").is_some_and(|d| d == "delete") {
            fields.remove(field);
        } else if let Value::Array(changes) = change {
            let before = fields.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
            let list = fields.entry(field.clone()).or_insert(Value::Null);
            strategic_list(list, changes, &list_merge(field));
            if let Merge::By(key) = list_merge(field) {
                let order = order_of.get(&format!("$setElementOrder/{field}"));
                let order = order.and_then(Value::as_array).unwrap_or(changes);
                arrange(list, &before, order, key);
            }
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

/// Puts the entries into the order that the API server gives them: those that the patch is about
/// in the patch's order, the others in theirs, and between the two the order of before where both
/// were there, else the patch's first.
fn arrange(list: &mut Value, before: &[Value], order: &[Value], key: &str) {
    let Value::Array(entries) = list else {
        return;
    };
    let place = |all: &[Value], entry: &Value| {
        let is_it = |other: &Value| other.get(key).is_some() && other.get(key) == entry.get(key);
        all.iter().position(is_it)
    };
    let all = std::mem::take(entries);
    let (mut ours, theirs): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|entry| place(order, entry).is_some());
    ours.sort_by_key(|entry| place(order, entry));
    let mut ours = ours.into_iter().peekable();
    for other in theirs {
        let there = place(before, &other);
        let goes_first = |entry: &Value| place(before, entry).is_none_or(|at| Some(at) < there);
        entries.extend(std::iter::from_fn(|| ours.next_if(goes_first)));
        entries.push(other);
    }
    entries.extend(ours);
}

#[cfg(test)]
mod tests {
    use super::super::patch::Patch;
    use serde_json::Value;
    use serde_json::json;

    fn patched(object: &Value, patch: &Patch) -> Value {
        patch.apply_to(object).unwrap()
    }

    #[test]
    fn conditions_are_merged_by_type() {
        let object = json!({"status": {"conditions": [
            {"type": "Ready", "status": "True", "reason": "x"},
            {"type": "PodScheduled", "status": "True"},
        ]}});
        let patch = json!({"status": {
            "$setElementOrder/conditions": [{"type": "Ready"}, {"type": "DisruptionTarget"}],
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
    #[test]
    fn new_entries_come_first_and_old_ones_keep_their_places() {
        let object = json!({"conditions": [{"type": "a"}, {"type": "b"}, {"type": "c"}]});
        let merged = |patch: Value| {
            let merged = patched(&object, &Patch::Strategic(patch));
            let all = merged["conditions"].as_array().unwrap().clone();
            let names = all.iter().map(|c| c["type"].as_str().unwrap().to_owned());
            names.collect::<String>()
        };
        assert_eq!(merged(json!({"conditions": [{"type": "x"}]})), "xabc");
        assert_eq!(merged(json!({"conditions": [{"type": "b", "s": 1}]})), "abc");
        assert_eq!(merged(json!({"conditions": [{"type": "b"}, {"type": "x"}]})), "abxc");
        let ordered = json!({
            "$setElementOrder/conditions": [{"type": "c"}, {"type": "a"}],
            "conditions": [{"type": "c", "s": 1}],
        });
        assert_eq!(merged(ordered), "bca");
    }
}
