//! `metadata.managedFields`, as far as ostrakon reads it: who wrote a pod's condition `DisruptionTarget`.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::object::{list, set, text, time};

/// Records that `manager` wrote the condition, if its reason in `next` is another than in `current`.
pub(super) fn note(current: &Value, next: &mut Value, manager: &str, now: Timestamp) {
    if reason(current) == reason(next) {
        return;
    }
    let entry = json!({
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": time(now),
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:status": {"f:conditions": {r#"k:{"type":"DisruptionTarget"}"#: {
            ".": {}, "f:message": {}, "f:reason": {}, "f:status": {}, "f:type": {},
        }}}},
        "subresource": "status",
    });
    let entries = if reason(next).is_empty() { json!([]) } else { json!([entry]) };
    set(next, &["metadata", "managedFields"], entries);
}

fn reason(pod: &Value) -> &str {
    let conditions = list(pod, &["status", "conditions"]).iter();
    let mut marks = conditions.filter(|it| text(it, &["type"]) == "DisruptionTarget");
    marks.next().map_or("", |mark| text(mark, &["reason"]))
}
