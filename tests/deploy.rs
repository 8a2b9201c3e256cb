//! What `deploy/` grants is what the program asks for: no more, no less.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule};
use ostrakon::controller;
use serde::de::DeserializeOwned;

fn manifest<T: DeserializeOwned>(file: &str) -> T {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("deploy/kustomize/base").join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `VERB RESOURCE[/SUBRESOURCE]` for each right of a rule.
fn rights(rule: &PolicyRule) -> Vec<String> {
    assert_eq!(rule.api_groups.as_deref(), Some(&[String::new()][..]), "only the core group");
    assert_eq!(rule.resource_names, None, "a name cannot be known in advance");
    assert_eq!(rule.non_resource_urls, None);
    let resources = rule.resources.as_deref().unwrap_or_default();
    let of_resource = |resource: &String| {
        let verbs = rule.verbs.iter();
        verbs.map(|verb| format!("{verb} {resource}")).collect::<Vec<_>>()
    };
    resources.iter().flat_map(of_resource).collect()
}

#[test]
fn the_cluster_role_grants_exactly_what_the_program_needs() {
    let role: ClusterRole = manifest("clusterrole.yaml");
    assert_eq!(role.aggregation_rule, None);
    let rules = role.rules.unwrap();
    let granted: Vec<String> = rules.iter().flat_map(rights).collect();
    let distinct: BTreeSet<String> = granted.iter().cloned().collect();
    assert_eq!(granted.len(), distinct.len(), "a right is granted twice: {granted:?}");
    let needed = controller::permissions().iter().map(ToString::to_string).collect();
    assert_eq!(distinct, needed);
}

#[test]
fn the_role_is_bound_to_the_account_that_the_pod_runs_as_and_to_nobody_else() {
    let role: ClusterRole = manifest("clusterrole.yaml");
    let binding: ClusterRoleBinding = manifest("clusterrolebinding.yaml");
    assert_eq!(binding.role_ref.kind, "ClusterRole");
    assert_eq!(Some(&binding.role_ref.name), role.metadata.name.as_ref());

    let account: ServiceAccount = manifest("serviceaccount.yaml");
    let deployment: Deployment = manifest("deployment.yaml");
    assert_eq!(account.metadata.namespace, deployment.metadata.namespace);
    let pod = deployment.spec.unwrap().template.spec.unwrap();
    assert_eq!(pod.service_account_name, account.metadata.name);

    let subjects = binding.subjects.unwrap();
    let [subject] = subjects.as_slice() else { panic!("one subject: {subjects:?}") };
    assert_eq!(subject.kind, "ServiceAccount");
    assert_eq!(Some(&subject.name), account.metadata.name.as_ref());
    assert_eq!(subject.namespace, account.metadata.namespace);
}
