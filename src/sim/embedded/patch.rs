//! The four kinds of patch.

use serde_json::{Map, Value};

use super::error::ApiError;
use super::strategic::strategic;

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
                json_patch::patch(&mut object, &operations)
                    .map_err(|_| ApiError::unprocessable())?;
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
pub(super) fn as_fields(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(fields) => fields,
        _ => unreachable!("it was made an object just now"),
    }
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
        assert_eq!(patched(&object, &Patch::Json(good)), json!({"spec": {"taints": []}}));
        let stale = json!([
            {"op": "test", "path": "/spec/taints/0/key", "value": "b"},
            {"op": "remove", "path": "/spec/taints/0"},
        ]);
        let error = Patch::Json(stale).apply_to(&object).unwrap_err();
        assert_eq!(error.code, 422);
        let error = Patch::Json(json!({"no": "list"})).apply_to(&object).unwrap_err();
        assert_eq!(error.code, 400);
    }
}
