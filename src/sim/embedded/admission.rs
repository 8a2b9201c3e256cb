//! Defaults that the API server sets on created objects.

use serde_json::{Value, json};

use super::object::{list, meta, set, set_default, text};
use super::resource::Resource;
use super::store::Options;

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Fills in defaults and runs the admission plugins that matter here.
pub(super) fn admit(resource: Resource, object: &mut Value, options: &Options) {
    match resource {
        Resource::Pods => pod(object, options),
        Resource::Nodes => node(object, options),
        Resource::Namespaces => {
            set_default(object, &["spec", "finalizers"], json!(["kubernetes"]));
            let name = meta(object, "name").to_owned();
            set(object, &["metadata", "labels", "kubernetes.io/metadata.name"], name);
            set(object, &["status"], json!({"phase": "Active"}));
        }
        Resource::Deployments | Resource::ReplicaSets | Resource::StatefulSets => {
            set_default(object, &["spec", "replicas"], 1);
            set(object, &["status"], json!({"replicas": 0}));
        }
        Resource::PodDisruptionBudgets => {
            let nothing_yet = json!({
                "currentHealthy": 0,
                "desiredHealthy": 0,
                "disruptionsAllowed": 0,
                "expectedPods": 0,
            });
            set(object, &["status"], nothing_yet);
        }
        _ => {}
    }
}

fn pod(pod: &mut Value, options: &Options) {
    for (field, value) in [
        ("restartPolicy", json!("Always")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("dnsPolicy", json!("ClusterFirst")),
        ("schedulerName", json!("default-scheduler")),
        ("securityContext", json!({})),
        ("enableServiceLinks", json!(true)),
        ("preemptionPolicy", json!("PreemptLowerPriority")),
    ] {
        set_default(pod, &["spec", field], value);
    }
    let priority = match text(pod, &["spec", "priorityClassName"]) {
        "system-cluster-critical" => 2_000_000_000,
        "system-node-critical" => 2_000_001_000,
        _ => 0,
    };
    set_default(pod, &["spec", "priority"], priority);
    let containers = pod.pointer_mut("/spec/containers");
    if let Some(containers) = containers.and_then(Value::as_array_mut) {
        for container in containers {
            for (field, value) in [
                ("imagePullPolicy", json!("Always")),
                ("resources", json!({})),
                ("terminationMessagePath", json!("/dev/termination-log")),
                ("terminationMessagePolicy", json!("File")),
            ] {
                set_default(container, &[field], value);
            }
        }
    }
    set(pod, &["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
    if let Some(seconds) = options.default_toleration_seconds {
        default_tolerations(pod, seconds);
    }
}

/// Tolerates an outage of the node for a while, unless the pod has a say in that itself.
fn default_tolerations(pod: &mut Value, seconds: i64) {
    let own = list(pod, &["spec", "tolerations"]);
    let has = |key: &str| {
        own.iter().any(|toleration| {
            let (its_key, effect) = (text(toleration, &["key"]), text(toleration, &["effect"]));
            (its_key.is_empty() || its_key == key) && matches!(effect, "" | "NoExecute")
        })
    };
    let mut tolerations = own.to_vec();
    for key in [NOT_READY, UNREACHABLE] {
        if !has(key) {
            tolerations.push(json!({
                "key": key,
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": seconds,
            }));
        }
    }
    if !tolerations.is_empty() {
        set(pod, &["spec", "tolerations"], tolerations);
    }
}

fn node(node: &mut Value, options: &Options) {
    if !options.taint_new_nodes {
        return;
    }
    let mut taints = list(node, &["spec", "taints"]).to_vec();
    let is_there = |taint: &Value| {
        text(taint, &["key"]) == NOT_READY && text(taint, &["effect"]) == "NoSchedule"
    };
    if !taints.iter().any(is_there) {
        taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
        set(node, &["spec", "taints"], taints);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tolerations(own: &Value) -> Vec<String> {
        let mut pod = json!({"spec": {"tolerations": own}});
        admit(Resource::Pods, &mut pod, &Options::default());
        let all = list(&pod, &["spec", "tolerations"]).iter();
        all.map(|t| format!("{}:{}", text(t, &["key"]), t["tolerationSeconds"])).collect()
    }

    #[test]
    fn a_pod_tolerates_an_outage_for_five_minutes() {
        assert_eq!(
            tolerations(&Value::Null),
            [format!("{NOT_READY}:300"), format!("{UNREACHABLE}:300")]
        );
    }

    #[test]
    fn a_pod_with_its_own_say_is_left_alone() {
        let own = json!([{"key": NOT_READY, "operator": "Exists", "effect": "NoExecute"}]);
        assert_eq!(tolerations(&own), [format!("{NOT_READY}:null"), format!("{UNREACHABLE}:300")]);
        assert_eq!(tolerations(&json!([{"operator": "Exists"}])), [":null"]);
        let other = json!([{"key": NOT_READY, "operator": "Exists", "effect": "NoSchedule"}]);
        assert_eq!(tolerations(&other).len(), 3);
    }

    #[test]
    fn a_new_node_is_kept_free_until_it_is_ready_if_so_wished() {
        let mut node = json!({"metadata": {"name": "n1"}});
        let options = Options { taint_new_nodes: false, ..Options::default() };
        admit(Resource::Nodes, &mut node, &options);
        assert!(list(&node, &["spec", "taints"]).is_empty());
        for _ in 0..2 {
            admit(Resource::Nodes, &mut node, &Options::default());
            assert_eq!(list(&node, &["spec", "taints"]).len(), 1);
        }
    }
}
