//! A minimal `OpenAPI` document. It says that patches accept the parameter `fieldValidation`, so that
//! `kubectl` leaves validation to the server. It has no schemas.

use serde_json::{Map, Value, json};

use super::discovery::resources;
use crate::sim::embedded::resource::Resource;

/// The groups, by the paths below `/openapi/v3` that their documents have.
fn documents() -> Vec<(String, &'static str)> {
    let mut all: Vec<(String, &'static str)> = Vec::new();
    for resource in Resource::ALL {
        let group = resource.spec().group;
        let path = match group {
            "" => "api/v1".to_owned(),
            group => format!("apis/{group}/v1"),
        };
        if !all.iter().any(|(known, _)| *known == path) {
            all.push((path, group));
        }
    }
    all
}

/// The document at `path`, if there is one. Version 2 has none: `kubectl` does without.
pub(super) fn document(path: &str) -> Option<Value> {
    let wanted = path.strip_prefix("/openapi/v3")?.trim_matches('/');
    if wanted.is_empty() {
        let entry = |(path, _): (String, _)| {
            let url = format!("/openapi/v3/{path}");
            (path, json!({"serverRelativeURL": url}))
        };
        let paths: Map<String, Value> = documents().into_iter().map(entry).collect();
        return Some(json!({"paths": paths}));
    }
    let (path, group) = documents().into_iter().find(|(path, _)| path == wanted)?;
    let list = resources(group)?;
    let mut paths = Map::new();
    for resource in list["resources"].as_array().into_iter().flatten() {
        let name = resource["name"].as_str().unwrap_or_default();
        if name.contains('/') {
            continue;
        }
        let below = if resource["namespaced"] == Value::Bool(true) {
            "namespaces/{namespace}/"
        } else {
            ""
        };
        let operation = json!({
            "parameters": [
                {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}},
                {"name": "dryRun", "in": "query", "schema": {"type": "string"}},
            ],
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-group-version-kind": {
                "group": group,
                "version": "v1",
                "kind": resource["kind"],
            },
        });
        paths.insert(format!("/{path}/{below}{name}/{{name}}"), json!({"patch": operation}));
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "ostrakon embedded cluster", "version": "v1.36.0"},
        "paths": paths,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_document_that_is_named_is_there() {
        let root = document("/openapi/v3").unwrap();
        for entry in root["paths"].as_object().unwrap().values() {
            let url = entry["serverRelativeURL"].as_str().unwrap();
            assert_eq!(document(url).unwrap()["openapi"], "3.0.0");
        }
        let core = document("/openapi/v3/api/v1").unwrap();
        let path = "/api/v1/namespaces/{namespace}/pods/{name}";
        assert!(core["paths"].get(path).is_some());
        assert_eq!(document("/openapi/v2"), None);
        assert_eq!(document("/openapi/v3/apis/none/v1"), None);
    }
}
