//! `kubectl` against the embedded cluster: what a newcomer types first.
//!
//! Where there is no `kubectl`, each test says so and passes.

// Helpers of tests are tests: they may fail where they stand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::path::PathBuf;
use std::process::Stdio;

use ostrakon::clock::Clock;
use ostrakon::sim::embedded::{Controllers, Embedded, Options, Resource, Served, Settings};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

/// A served cluster of two nodes and four pods, and a folder for `kubectl`'s own files.
struct Bed {
    cluster: Embedded,
    _served: Served,
    folder: TempDir,
    _controllers: Controllers,
}

impl Bed {
    async fn new() -> Option<Self> {
        if Command::new("kubectl").arg("help").stdout(Stdio::null()).status().await.is_err() {
            println!("skipped: there is no kubectl");
            return None;
        }
        let cluster = Embedded::new(Clock::system(), Options::default());
        for name in ["n1", "n2"] {
            let node = json!({
                "metadata": {"name": name},
                "status": {
                    "allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"},
                    "capacity": {"cpu": "8", "memory": "16Gi", "pods": "110"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "nodeInfo": {"kubeletVersion": "v1.36.0"},
                },
            });
            cluster.store().insert(Resource::Nodes, node).unwrap();
        }
        for (name, node) in [("a", "n1"), ("b", "n1"), ("c", "n2"), ("d", "n2")] {
            cluster.store().insert(Resource::Pods, pod(name, node)).unwrap();
        }
        let served = cluster.serve(([127, 0, 0, 1], 0).into()).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config"), served.kubeconfig()).unwrap();
        let settings = Settings { replicas: false, scheduler: false, ..Settings::default() };
        Some(Self {
            _controllers: Controllers::start(cluster.store(), &settings),
            cluster,
            _served: served,
            folder,
        })
    }

    /// Runs `kubectl` with these arguments: whether it succeeded, and all that it said.
    async fn kubectl(&self, arguments: &str) -> (bool, String) {
        let home: PathBuf = self.folder.path().into();
        let output = Command::new("kubectl")
            .args(arguments.split_whitespace())
            .env("KUBECONFIG", home.join("config"))
            .env("HOME", &home)
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(std::time::Duration::from_mins(3), output);
        let output = output.await.expect("kubectl hangs").unwrap();
        let mut said = String::from_utf8(output.stdout).unwrap();
        said.push_str(&String::from_utf8(output.stderr).unwrap());
        (output.status.success(), said)
    }

    /// Runs `kubectl`, which must succeed, and gives what it said.
    async fn ok(&self, arguments: &str) -> String {
        let (success, said) = self.kubectl(arguments).await;
        assert!(success, "kubectl {arguments}: {said}");
        said
    }

    /// Waits until the controllers have reckoned a budget.
    async fn is_reckoned(&self, name: &str) {
        let store = self.cluster.store();
        for _ in 0..600 {
            let budget = store.get(Resource::PodDisruptionBudgets, "default", name).unwrap();
            if budget["status"]["observedGeneration"] == budget["metadata"]["generation"] {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        panic!("{name} was not reckoned");
    }

    fn node(&self, name: &str) -> Value {
        (*self.cluster.store().get(Resource::Nodes, "", name).unwrap()).clone()
    }
}

/// A running pod that goes at once: there is no kubelet here to wait for.
fn pod(name: &str, node: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}, "ownerReferences": [{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "w", "controller": true,
        }]},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "i"}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "c", "ready": true, "restartCount": 0}],
        },
    })
}

#[tokio::test]
async fn objects_are_shown_as_kubectl_shows_them() {
    let Some(bed) = Bed::new().await else { return };
    let nodes = bed.ok("get nodes").await;
    assert!(nodes.starts_with("NAME"), "{nodes}");
    assert!(nodes.contains("n1") && nodes.contains("Ready"), "{nodes}");
    let pods = bed.ok("get pods -A").await;
    assert!(pods.contains("default") && pods.contains("1/1"), "{pods}");
    let wide = bed.ok("get pods -o wide --field-selector=spec.nodeName=n1").await;
    assert!(wide.contains("10.0.0.1") && !wide.contains("n2"), "{wide}");
    let described = bed.ok("describe node n1").await;
    assert!(described.contains("Non-terminated Pods:          (2 in total)"), "{described}");
    let version = bed.ok("version").await;
    assert!(version.contains("v1.36"), "{version}");
    assert_eq!(bed.ok("get --raw /readyz").await, "ok");
    let (success, said) = bed.kubectl("get node none").await;
    assert!(!success && said.contains("NotFound"), "{said}");
}

#[tokio::test]
async fn nodes_are_tainted_cordoned_and_labelled() {
    let Some(bed) = Bed::new().await else { return };
    bed.ok("taint nodes n1 dedicated=gpu:NoExecute").await;
    assert_eq!(bed.node("n1")["spec"]["taints"][0]["value"], "gpu");
    bed.ok("taint nodes n1 dedicated-").await;
    bed.ok("cordon n1").await;
    assert_eq!(bed.node("n1")["spec"]["unschedulable"], true);
    assert!(bed.ok("get nodes").await.contains("SchedulingDisabled"));
    bed.ok("uncordon n1").await;
    assert_eq!(bed.node("n1")["spec"].get("unschedulable"), None);
    bed.ok("label node n1 zone=a").await;
    assert!(bed.ok("get nodes -l zone=a").await.contains("n1"));
    let (success, said) = bed.kubectl("taint nodes n1 a=b:NoSuchEffect").await;
    assert!(!success, "{said}");
}

#[tokio::test]
async fn a_node_is_drained_within_its_budget() {
    let Some(bed) = Bed::new().await else { return };
    let budget = json!({
        "metadata": {"name": "web", "namespace": "default", "generation": 1},
        "spec": {"minAvailable": 3, "selector": {"matchLabels": {"app": "web"}}},
    });
    bed.cluster.store().insert(Resource::PodDisruptionBudgets, budget).unwrap();
    bed.is_reckoned("web").await;
    assert!(bed.ok("get pdb").await.contains("web"));
    // Where the machine is slow, the time is over before the budget has refused anything.
    let mut said = String::new();
    for seconds in [2, 10, 40] {
        let drain = bed.kubectl(&format!("drain n1 --force --timeout={seconds}s")).await;
        assert!(!drain.0, "{}", drain.1);
        said = drain.1;
        if said.contains("disruption budget") {
            break;
        }
    }
    assert!(said.contains("disruption budget"), "{said}");
    assert_eq!(bed.cluster.store().count(Resource::Pods), 3);
    bed.cluster.store().insert(Resource::Pods, pod("e", "n2")).unwrap();
    let said = bed.ok("drain n1 --force --timeout=120s").await;
    assert!(said.contains("node/n1 drained"), "{said}");
    assert_eq!(bed.cluster.store().count(Resource::Pods), 3);
}

#[tokio::test]
async fn pods_are_created_applied_and_deleted() {
    let Some(bed) = Bed::new().await else { return };
    let file = bed.folder.path().join("pod.yaml");
    let yaml = "apiVersion: v1\nkind: Pod\nmetadata: {name: z}\n\
                spec: {nodeName: n1, terminationGracePeriodSeconds: 0, containers: [{name: c, image: i}]}\n";
    std::fs::write(&file, yaml).unwrap();
    let file = file.to_str().unwrap();
    bed.ok(&format!("apply -f {file}")).await;
    bed.ok(&format!("apply -f {file}")).await;
    bed.ok("annotate pod z a=b").await;
    let uid =
        bed.cluster.store().get(Resource::Pods, "default", "z").unwrap()["metadata"]["uid"].clone();
    let event = json!({
        "metadata": {"name": "z.1", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": "z", "namespace": "default", "uid": uid},
        "reason": "TaintManagerEviction",
        "message": "Marking for deletion Pod default/z",
        "type": "Normal",
        "count": 1,
    });
    bed.cluster.store().insert(Resource::Events, event).unwrap();
    assert!(bed.ok("get events").await.contains("TaintManagerEviction"));
    assert!(bed.ok("describe pod z").await.contains("Marking for deletion"));
    bed.ok("delete pod z").await;
    assert!(!bed.kubectl("get pod z").await.0);
}
