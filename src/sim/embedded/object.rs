//! Reads and writes fields of objects that are stored as JSON.

use jiff::Timestamp;
use serde_json::{Map, Value};

/// The value at `path`, or null.
pub(super) fn at<'a>(object: &'a Value, path: &[&str]) -> &'a Value {
    let mut value = object;
    for step in path {
        value = value.get(step).unwrap_or(&Value::Null);
    }
    value
}

/// The text at `path`, or the empty text.
pub(super) fn text<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    at(object, path).as_str().unwrap_or_default()
}

/// The whole number at `path`.
pub(super) fn number(object: &Value, path: &[&str]) -> Option<i64> {
    at(object, path).as_i64()
}

/// The list at `path`, or an empty one.
pub(super) fn list<'a>(object: &'a Value, path: &[&str]) -> &'a [Value] {
    at(object, path).as_array().map_or(&[], Vec::as_slice)
}

/// A field of the metadata, as text.
pub(super) fn meta<'a>(object: &'a Value, field: &str) -> &'a str {
    text(object, &["metadata", field])
}

/// Sets the value at `path`; objects on the way are made where they are missing.
pub(super) fn set(object: &mut Value, path: &[&str], new: impl Into<Value>) {
    let mut value = object;
    for step in path {
        if !value.is_object() {
            *value = Value::Object(Map::new());
        }
        value = &mut value[*step];
    }
    *value = new.into();
}

/// Sets the value at `path` if there is none.
pub(super) fn set_default(object: &mut Value, path: &[&str], new: impl Into<Value>) {
    if at(object, path).is_null() {
        set(object, path, new);
    }
}

/// Takes the field off, if it is there.
pub(super) fn remove(object: &mut Value, parent: &[&str], field: &str) -> Option<Value> {
    let mut value = object;
    for step in parent {
        value = value.get_mut(step)?;
    }
    value.as_object_mut()?.remove(field)
}

/// The entry of `status.conditions` with this type.
pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = list(object, &["status", "conditions"]);
    conditions.iter().find(|c| text(c, &["type"]) == kind)
}

/// Whether the condition has status True.
pub(super) fn is_true(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|c| text(c, &["status"]) == "True")
}

/// Puts a condition into `status.conditions`, in place of the one with the same type.
pub(super) fn set_condition(object: &mut Value, condition: Value) {
    let kind = text(&condition, &["type"]).to_owned();
    if !at(object, &["status", "conditions"]).is_array() {
        set(object, &["status", "conditions"], Value::Array(Vec::new()));
    }
    let Some(all) = object["status"]["conditions"].as_array_mut() else {
        return;
    };
    match all.iter_mut().find(|c| text(c, &["type"]) == kind) {
        Some(old) => *old = condition,
        None => all.push(condition),
    }
}

/// The owner with `controller: true`.
pub(super) fn controller(object: &Value) -> Option<&Value> {
    let owners = list(object, &["metadata", "ownerReferences"]);
    owners.iter().find(|o| at(o, &["controller"]) == &Value::Bool(true))
}

/// Whether the pod has ended: phase Succeeded or Failed.
pub(super) fn is_finished(pod: &Value) -> bool {
    matches!(text(pod, &["status", "phase"]), "Succeeded" | "Failed")
}

/// Whether someone asked for the object to go.
pub(super) fn is_terminating(object: &Value) -> bool {
    !at(object, &["metadata", "deletionTimestamp"]).is_null()
}

/// A moment as the API writes it: whole seconds.
pub(super) fn time(moment: Timestamp) -> String {
    moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A moment as the API writes it where microseconds count: leases and events.
#[cfg(test)]
pub(super) fn micro_time(moment: Timestamp) -> String {
    moment.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

/// The moment at `path`, if there is one.
pub(super) fn moment(object: &Value, path: &[&str]) -> Option<Timestamp> {
    text(object, path).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_missing_field_reads_as_nothing() {
        let object = json!({"spec": {"nodeName": "a"}});
        assert_eq!(text(&object, &["spec", "nodeName"]), "a");
        assert_eq!(text(&object, &["status", "phase"]), "");
        assert_eq!(number(&object, &["spec", "nodeName"]), None);
        assert!(list(&object, &["spec"]).is_empty());
    }

    #[test]
    fn setting_makes_what_is_missing_on_the_way() {
        let mut object = json!({"spec": null});
        set(&mut object, &["spec", "a", "b"], 1);
        set_default(&mut object, &["spec", "a", "b"], 2);
        assert_eq!(object, json!({"spec": {"a": {"b": 1}}}));
        assert_eq!(remove(&mut object, &["spec", "a"], "b"), Some(json!(1)));
        assert_eq!(remove(&mut object, &["none"], "b"), None);
    }

    #[test]
    fn a_condition_takes_the_place_of_the_one_with_its_type() {
        let mut object = json!({});
        set_condition(&mut object, json!({"type": "Ready", "status": "False"}));
        set_condition(&mut object, json!({"type": "Other", "status": "True"}));
        set_condition(&mut object, json!({"type": "Ready", "status": "True"}));
        assert!(is_true(&object, "Ready"));
        assert_eq!(list(&object, &["status", "conditions"]).len(), 2);
        assert!(!is_true(&object, "Absent"));
    }

    #[test]
    fn times_are_written_as_the_api_writes_them() {
        let at: Timestamp = "2026-01-01T12:00:00.123456789Z".parse().unwrap();
        assert_eq!(time(at), "2026-01-01T12:00:00Z");
        assert_eq!(micro_time(at), "2026-01-01T12:00:00.123456Z");
    }
}
