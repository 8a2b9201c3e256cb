//! What `deploy/` grants is what the program asks for: no more, no less.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::flowcontrol::v1::{FlowSchema, FlowSchemaSpec};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use ostrakon::cluster::Permission;
use ostrakon::{leader, preflight};
use serde::de::DeserializeOwned;

/// Everything that a run may have to do.
const ALL: preflight::Tasks = preflight::Tasks { drains: true, evicts: true, deletes: true };

fn manifest<T: DeserializeOwned>(file: &str) -> T {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("deploy/kustomize/base").join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `VERB RESOURCE[.GROUP][/SUBRESOURCE]` for each right of a rule.
fn rights(rule: &PolicyRule) -> Vec<String> {
    let [group] = rule.api_groups.as_deref().unwrap_or_default() else {
        panic!("one group in a rule: {rule:?}")
    };
    assert_eq!(rule.non_resource_urls, None);
    let resources = rule.resources.as_deref().unwrap_or_default();
    let of_resource = |resource: &String| {
        let verbs = rule.verbs.iter();
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let dot = if group.is_empty() { "" } else { "." };
        let slash = if subresource.is_empty() { "" } else { "/" };
        verbs
            .map(|verb| format!("{verb} {resource}{dot}{group}{slash}{subresource}"))
            .collect::<Vec<_>>()
    };
    resources.iter().flat_map(of_resource).collect()
}

#[test]
fn the_cluster_role_grants_exactly_what_the_program_needs() {
    let role: ClusterRole = manifest("clusterrole.yaml");
    assert_eq!(role.aggregation_rule, None);
    let rules = role.rules.unwrap();
    for rule in &rules {
        assert_eq!(rule.resource_names, None, "a name cannot be known in advance: {rule:?}");
    }
    assert_grants_exactly(&rules, preflight::permissions());
}

#[test]
fn the_component_for_drains_grants_exactly_what_they_need_on_top_to_the_same_account() {
    let role: ClusterRole = manifest("../components/drain/clusterrole.yaml");
    let rules = role.rules.unwrap();
    assert_grants_exactly(&rules, preflight::drain_permissions());
    let both =
        preflight::drain_permissions().iter().filter(|p| preflight::permissions().contains(p));
    assert_eq!(both.count(), 0, "granted by the base already");
    let binding: ClusterRoleBinding = manifest("../components/drain/clusterrolebinding.yaml");
    assert_eq!(Some(&binding.role_ref.name), role.metadata.name.as_ref());
    let base: ClusterRoleBinding = manifest("clusterrolebinding.yaml");
    assert_eq!(binding.subjects, base.subjects);
}

#[test]
fn the_component_for_pauses_grants_the_one_lease_to_nobody_by_itself() {
    let role: Role = manifest("../components/pause/role.yaml");
    let election: Role = manifest("role.yaml");
    assert_eq!(role.metadata.namespace, election.metadata.namespace);
    let rules = role.rules.unwrap();
    assert_grants_exactly(&rules, preflight::pause_permissions());
    assert!(rules.iter().all(|rule| rule.resource_names == Some(vec![leader::LEASE.to_owned()])));
    let folder =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("deploy/kustomize/components/pause");
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 2, "there is no binding");
}

#[test]
fn the_components_for_rules_grant_exactly_what_they_need_and_evict_only_takes_deletions_away() {
    let role: ClusterRole = manifest("../components/evict/clusterrole.yaml");
    assert_grants_exactly(&role.rules.unwrap(), preflight::rule_permissions());
    let binding: ClusterRoleBinding = manifest("../components/evict/clusterrolebinding.yaml");
    assert_eq!(Some(&binding.role_ref.name), role.metadata.name.as_ref());
    let base: ClusterRoleBinding = manifest("clusterrolebinding.yaml");
    assert_eq!(binding.subjects, base.subjects);

    // A patch replaces the whole list of rules.
    let patch: ClusterRole = manifest("../components/evict-only/clusterrole.yaml");
    let base: ClusterRole = manifest("clusterrole.yaml");
    assert_eq!(patch.metadata.name, base.metadata.name);
    assert_grants_exactly(&patch.rules.unwrap(), &preflight::permissions_without_deletions());
    let deletes = preflight::permissions().iter().filter(|right| right.verb == "delete");
    assert_eq!(deletes.count(), 1);
    assert!(preflight::rule_permissions().iter().all(|right| right.verb != "delete"));
}

/// A patch is applied here as kustomize would: each operation adds one value.
#[test]
fn the_component_for_a_file_mounts_a_folder_so_that_changes_arrive() {
    let folder =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("deploy/kustomize/components/config");
    let text = std::fs::read_to_string(folder.join("deployment.yaml")).unwrap();
    let patch: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    let mut deployment = serde_json::to_value(manifest::<Deployment>("deployment.yaml")).unwrap();
    for operation in patch.as_array().unwrap() {
        assert_eq!(operation["op"], "add");
        let (parent, key) = operation["path"].as_str().unwrap().rsplit_once('/').unwrap();
        let parent = deployment.pointer_mut(parent).unwrap();
        match parent.as_array_mut() {
            Some(list) if key == "-" => list.push(operation["value"].clone()),
            _ => {
                assert!(parent.get(key).is_none(), "{key} would be replaced");
                parent[key] = operation["value"].clone();
            }
        }
    }
    let deployment: Deployment = serde_json::from_value(deployment).unwrap();
    let pod = deployment.spec.unwrap().template.spec.unwrap();
    let container = &pod.containers[0];
    let mounts = container.volume_mounts.as_ref().unwrap();
    let [mount] = mounts.as_slice() else { panic!("one: {mounts:?}") };
    assert_eq!(mount.sub_path, None, "with it, a pod keeps the old content for ever");
    assert_eq!(mount.read_only, Some(true));
    let args = container.args.as_ref().unwrap();
    assert!(args.contains(&format!("--config={}/config.yaml", mount.mount_path)), "{args:?}");
    assert!(args.contains(&"--listen=:8080".to_owned()), "the others stay: {args:?}");
    let volumes = pod.volumes.unwrap();
    let [volume] = volumes.as_slice() else { panic!("one: {volumes:?}") };
    assert_eq!(volume.name, mount.name);
    let map = volume.config_map.as_ref().unwrap();
    assert_eq!((map.name.as_str(), map.optional), ("ostrakon", None));
    assert_eq!(map.items, None, "the keys are the files");
}

fn assert_grants_exactly(rules: &[PolicyRule], needed: &[Permission]) {
    let granted: Vec<String> = rules.iter().flat_map(rights).collect();
    let distinct: BTreeSet<String> = granted.iter().cloned().collect();
    assert_eq!(granted.len(), distinct.len(), "a right is granted twice: {granted:?}");
    assert_eq!(distinct, needed.iter().map(ToString::to_string).collect());
}

#[test]
fn a_dry_run_has_rights_to_read_and_no_others() {
    let role: ClusterRole = manifest("../dry-run/clusterrole.yaml");
    let rules = role.rules.unwrap();
    assert_grants_exactly(&rules, &preflight::dry_run_permissions(ALL, false));
    let lease: Role = manifest("../dry-run/role.yaml");
    let leases = lease.rules.unwrap();
    for rule in rules.iter().chain(&leases) {
        let reads = |verb: &String| ["get", "list", "watch"].contains(&verb.as_str());
        assert!(rule.verbs.iter().all(reads), "{rule:?}");
    }
    let [lease_rule] = leases.as_slice() else { panic!("one rule: {leases:?}") };
    assert_eq!(lease_rule.resource_names, Some(vec!["kube-controller-manager".to_owned()]));
    let account: ServiceAccount = manifest("../dry-run/serviceaccount.yaml");
    let binding: ClusterRoleBinding = manifest("../dry-run/clusterrolebinding.yaml");
    assert_eq!(Some(&binding.role_ref.name), role.metadata.name.as_ref());
    let of_lease: RoleBinding = manifest("../dry-run/rolebinding.yaml");
    assert_eq!(of_lease.metadata.namespace, lease.metadata.namespace);
    assert_eq!(Some(&of_lease.role_ref.name), lease.metadata.name.as_ref());
    assert_eq!(of_lease.subjects, binding.subjects);
    let [subject] = binding.subjects.as_deref().unwrap() else { panic!("one subject") };
    assert_eq!(Some(&subject.name), account.metadata.name.as_ref());
    assert_eq!(subject.namespace, account.metadata.namespace);
    let deployment: Deployment = manifest("../dry-run/deployment.yaml");
    let pod = deployment.spec.unwrap().template.spec.unwrap();
    assert_eq!(pod.service_account_name, account.metadata.name);
    assert!(pod.containers[0].args.as_ref().unwrap().contains(&"--dry-run".to_owned()));
}

#[test]
fn the_role_grants_the_one_lease_where_the_program_looks_for_it() {
    let role: Role = manifest("role.yaml");
    let rules = role.rules.unwrap();
    assert_grants_exactly(&rules, preflight::election_permissions());
    for rule in &rules {
        let names = (rule.verbs != ["create"]).then(|| vec![leader::LEASE.to_owned()]);
        assert_eq!(rule.resource_names, names, "{rule:?}");
    }
    let binding: RoleBinding = manifest("rolebinding.yaml");
    assert_eq!(binding.metadata.namespace, role.metadata.namespace);
    assert_eq!(binding.role_ref.kind, "Role");
    assert_eq!(Some(&binding.role_ref.name), role.metadata.name.as_ref());
    let account: ServiceAccount = manifest("serviceaccount.yaml");
    let subjects = binding.subjects.unwrap();
    let [subject] = subjects.as_slice() else { panic!("one subject: {subjects:?}") };
    assert_eq!(Some(&subject.name), account.metadata.name.as_ref());
    assert_eq!(subject.namespace, account.metadata.namespace);

    let deployment: Deployment = manifest("deployment.yaml");
    let pod = deployment.spec.unwrap().template.spec.unwrap();
    let arguments = pod.containers[0].args.clone().unwrap();
    assert!(!arguments.iter().any(|a| a.contains("leader-elect")), "the default: {arguments:?}");
    assert_eq!(role.metadata.namespace.as_deref(), Some("kube-system"), "the default");
}

#[test]
fn a_roll_out_starts_the_new_replica_before_it_ends_an_old_one_and_a_drain_takes_one() {
    let deployment: Deployment = manifest("deployment.yaml");
    let spec = deployment.spec.unwrap();
    assert_eq!(spec.replicas, Some(2));
    let update = spec.strategy.unwrap().rolling_update.unwrap();
    assert_eq!(update.max_unavailable, Some(IntOrString::Int(0)));
    let labels = spec.template.metadata.unwrap().labels.unwrap();
    let budget: PodDisruptionBudget = manifest("poddisruptionbudget.yaml");
    assert_eq!(budget.metadata.namespace, deployment.metadata.namespace);
    let budget = budget.spec.unwrap();
    assert_eq!(budget.max_unavailable, Some(IntOrString::Int(1)));
    assert_eq!(budget.selector.unwrap().match_labels, Some(labels.clone()));
    let affinity = spec.template.spec.unwrap().affinity.unwrap().pod_anti_affinity.unwrap();
    let preferred = affinity.preferred_during_scheduling_ignored_during_execution.unwrap();
    let selector = preferred[0].pod_affinity_term.label_selector.clone().unwrap();
    assert_eq!(selector.match_labels, Some(labels));
}

#[test]
fn the_flow_schemas_are_of_the_account_that_the_pod_runs_as_and_of_nobody_else() {
    let account: ServiceAccount = manifest("serviceaccount.yaml");
    let role: Role = manifest("role.yaml");
    let [lease, rest] = ["flowschema-leader-election.yaml", "flowschema.yaml"]
        .map(|file| manifest::<FlowSchema>(file).spec.unwrap());
    assert_eq!(lease.priority_level_configuration.name, "leader-election");
    assert_eq!(rest.priority_level_configuration.name, "workload-high");
    // The lower is asked first. The built-in schema for all ServiceAccounts is at 9000.
    let precedence = |spec: &FlowSchemaSpec| spec.matching_precedence.unwrap();
    assert!(precedence(&lease) < precedence(&rest) && precedence(&rest) < 9000);
    for spec in [&lease, &rest] {
        let [rule] = spec.rules.as_deref().unwrap() else { panic!("one rule: {spec:?}") };
        let [subject] = rule.subjects.as_slice() else { panic!("one subject: {rule:?}") };
        let subject = subject.service_account.as_ref().unwrap();
        assert_eq!(Some(&subject.name), account.metadata.name.as_ref());
        assert_eq!(Some(&subject.namespace), account.metadata.namespace.as_ref());
    }
    // All that the program does with the lease, where it lies, and nothing else.
    let rules = lease.rules.unwrap();
    let [rule] = rules[0].resource_rules.as_deref().unwrap() else { panic!("one: {rules:?}") };
    assert_eq!(rule.namespaces, Some(vec![role.metadata.namespace.unwrap()]));
    let verbs: BTreeSet<_> = rule.verbs.iter().cloned().collect();
    assert_eq!(verbs, role.rules.unwrap().into_iter().flat_map(|rule| rule.verbs).collect());
    assert_eq!(
        (&rule.api_groups, &rule.resources),
        (&vec!["coordination.k8s.io".to_owned()], &vec!["leases".to_owned()])
    );
}

#[test]
fn only_namespaces_with_the_label_reach_the_port_of_the_pods() {
    let deployment: Deployment = manifest("deployment.yaml");
    let policy: NetworkPolicy = manifest("networkpolicy.yaml");
    assert_eq!(policy.metadata.namespace, deployment.metadata.namespace);
    let policy = policy.spec.unwrap();
    let template = deployment.spec.unwrap().template;
    let labels = template.metadata.unwrap().labels;
    assert_eq!(policy.pod_selector.unwrap().match_labels, labels);
    // It must reach the API server, wherever that is.
    assert_eq!(policy.policy_types, Some(vec!["Ingress".to_owned()]));
    let rules = policy.ingress.unwrap();
    let [rule] = rules.as_slice() else { panic!("one rule: {rules:?}") };
    let [peer] = rule.from.as_deref().unwrap() else { panic!("one peer: {rule:?}") };
    let label = peer.namespace_selector.clone().unwrap().match_labels.unwrap();
    assert_eq!(label, [("metrics".to_owned(), "enabled".to_owned())].into());
    assert_eq!((&peer.pod_selector, &peer.ip_block), (&None, &None));
    let port = rule.ports.as_deref().unwrap()[0].port.clone();
    let ports = template.spec.unwrap().containers[0].ports.clone().unwrap();
    assert_eq!(port, ports[0].name.clone().map(IntOrString::String));
}

#[test]
fn every_manifest_is_named_in_its_kustomization() {
    for folder in ["base", "components/drain", "components/pause", "dry-run"] {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("deploy/kustomize").join(folder);
        let text = std::fs::read_to_string(path.join("kustomization.yaml")).unwrap();
        for file in std::fs::read_dir(path).unwrap() {
            let file = file.unwrap().file_name().into_string().unwrap();
            let named = text.lines().any(|line| line.trim() == format!("- {file}"));
            assert!(named || file == "kustomization.yaml", "{folder}/{file} is applied by nobody");
        }
    }
}

#[test]
fn the_pod_knows_its_uid_and_only_one_of_its_containers_runs_the_program() {
    let deployment: Deployment = manifest("deployment.yaml");
    let pod = deployment.spec.unwrap().template.spec.unwrap();
    assert_eq!(pod.containers.len(), 1, "two would take the lease from one another");
    let env = pod.containers[0].env.clone().unwrap();
    let uid = env.iter().find(|variable| variable.name == "POD_UID").unwrap();
    let source = uid.value_from.as_ref().and_then(|source| source.field_ref.as_ref()).unwrap();
    assert_eq!(source.field_path, "metadata.uid");
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

#[test]
fn the_endpoints_answer_in_clusters_of_either_ip_family() {
    let deployment: Deployment = manifest("deployment.yaml");
    let pod = deployment.spec.unwrap().template.spec.unwrap();
    let arguments = pod.containers[0].args.clone().unwrap();
    assert!(arguments.iter().any(|a| a == "--listen=:8080"), "no address: {arguments:?}");
    let ports = pod.containers[0].ports.clone().unwrap();
    assert_eq!(ports[0].container_port, 8080);
}
