//! API discovery.

use serde_json::{Value, json};

use super::route::EVENTS_GROUP;
use crate::sim::embedded::resource::{Resource, Spec};

const VERBS: [&str; 8] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// `/version`. The release whose behaviour is followed.
pub(super) fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "gitVersion": "v1.36.0+ostrakon",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "linux/amd64",
    })
}

/// `/api`.
pub(super) fn core_versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
}

/// Every group but the core group, in the order of the table.
fn group_names() -> Vec<&'static str> {
    let mut names = vec!["authorization.k8s.io", EVENTS_GROUP];
    for resource in Resource::ALL {
        let group = resource.spec().group;
        if !group.is_empty() && !names.contains(&group) {
            names.push(group);
        }
    }
    names
}

/// `/apis`.
pub(super) fn groups() -> Value {
    let groups: Vec<_> = group_names().into_iter().filter_map(group).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/<name>`, if there is that group.
pub(super) fn group(name: &str) -> Option<Value> {
    let version = json!({"groupVersion": format!("{name}/v1"), "version": "v1"});
    group_names().contains(&name).then(|| {
        json!({
            "kind": "APIGroup",
            "apiVersion": "v1",
            "name": name,
            "versions": [version],
            "preferredVersion": version,
        })
    })
}

/// `/api/v1` or `/apis/<group>/v1`, if there is that group.
pub(super) fn resources(group: &str) -> Option<Value> {
    let mut resources = Vec::new();
    for resource in Resource::ALL {
        let spec = resource.spec();
        let here = spec.group == group || (resource == Resource::Events && group == EVENTS_GROUP);
        if here {
            resources.push(main(spec));
            if spec.status {
                resources.push(sub(spec, "status", &["get", "patch", "update"]));
            }
        }
        if here && resource == Resource::Pods {
            let mut eviction = sub(spec, "eviction", &["create"]);
            eviction["kind"] = "Eviction".into();
            eviction["group"] = "policy".into();
            eviction["version"] = "v1".into();
            resources.push(eviction);
            let mut binding = sub(spec, "binding", &["create"]);
            binding["kind"] = "Binding".into();
            resources.push(binding);
        }
    }
    if group == "authorization.k8s.io" {
        resources.push(json!({
            "name": "selfsubjectaccessreviews",
            "singularName": "selfsubjectaccessreview",
            "namespaced": false,
            "kind": "SelfSubjectAccessReview",
            "verbs": ["create"],
        }));
    }
    let version = match group {
        "" => "v1".to_owned(),
        group => format!("{group}/v1"),
    };
    let list = json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": resources,
    });
    (!resources.is_empty()).then_some(list)
}

fn main(spec: &Spec) -> Value {
    json!({
        "name": spec.plural,
        "singularName": spec.singular,
        "namespaced": spec.namespaced,
        "kind": spec.kind,
        "shortNames": spec.short,
        "verbs": VERBS,
    })
}

fn sub(spec: &Spec, name: &str, verbs: &[&str]) -> Value {
    json!({
        "name": format!("{}/{name}", spec.plural),
        "singularName": "",
        "namespaced": spec.namespaced,
        "kind": spec.kind,
        "verbs": verbs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resource_is_found_under_its_group() {
        for resource in Resource::ALL {
            let spec = resource.spec();
            let list = resources(spec.group).unwrap();
            let all = list["resources"].as_array().unwrap();
            assert!(all.iter().any(|r| r["name"] == spec.plural), "{resource:?}");
            assert!(spec.group.is_empty() || group(spec.group).is_some());
        }
        assert_eq!(resources("no.such.group"), None);
        assert_eq!(group("no.such.group"), None);
    }

    #[test]
    fn kubectl_learns_that_pods_can_be_evicted() {
        let core = resources("").unwrap();
        let all = core["resources"].as_array().unwrap();
        let eviction = all.iter().find(|r| r["name"] == "pods/eviction").unwrap();
        assert_eq!((&eviction["group"], &eviction["version"]), (&json!("policy"), &json!("v1")));
    }
}
