//! Another manager that evicts for taints too, and what is not to be taken for one. The other one writes as
//! kube-controller-manager's own does.

use ostrakon::sim::embedded::Patch;

use super::facts::{exists, node, pod, taint};
use super::*;

const ACTIVE: &str = "ostrakon_other_manager";
const PODS: &str = "ostrakon_other_manager_pods_total";
const BUILT_IN: &str = "kube-controller-manager";

impl Stage {
    /// A stage whose controller evicts only while nobody else does.
    async fn exclusive() -> Self {
        let mut stage = Self::new();
        let clock = Clock::starting_at(stage.cluster.store().clock().now());
        stage.process = Some(Process::exclusive(&stage.cluster, clock, &stage.wire));
        stage.pass_secs(10.0).await;
        stage
    }

    /// Pods of this name in these namespaces, one in each, on `n1`.
    fn pods_in(&self, name: &str, namespaces: &[&str], tolerated: i64) {
        self.pods_on("n1", name, namespaces, tolerated);
    }

    fn pods_on(&self, node: &str, name: &str, namespaces: &[&str], tolerated: i64) {
        for namespace in namespaces {
            let mut object = pod(name).on(node).tolerating(exists("k").lasting(tolerated)).object();
            object["metadata"]["namespace"] = json!(namespace);
            object["spec"]["terminationGracePeriodSeconds"] = json!(30);
            self.cluster.store().insert(Resource::Pods, object).unwrap();
        }
    }

    /// This field manager writes the condition of an eviction, or of something else, on a pod.
    fn mark(&self, by: &str, namespace: &str, name: &str, reason: &str) {
        let patch = Patch::Strategic(json!({"status": {"conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": reason,
            "message": "Taint manager: deleting due to NoExecute taint",
        }]}}));
        let store = self.cluster.store();
        store.patch_by(by, Resource::Pods, namespace, name, Part::Status, &patch, false).unwrap();
    }

    fn delete_in(&self, namespace: &str, name: &str) {
        let options = DeleteOptions::default();
        self.cluster.store().delete(Resource::Pods, namespace, name, &options).unwrap();
    }

    /// The other manager evicts a pod.
    fn evict_by_other(&self, namespace: &str, name: &str) {
        self.mark(BUILT_IN, namespace, name, "DeletionByTaintManager");
        self.delete_in(namespace, name);
    }

    fn is_going(&self, namespace: &str, name: &str) -> bool {
        let stored = self.cluster.store().get(Resource::Pods, namespace, name);
        stored.is_err() || stored.is_ok_and(|pod| pod["metadata"]["deletionTimestamp"].is_string())
    }

    fn seen(&self, evidence: &str) -> f64 {
        self.process().metric(PODS, &[evidence])
    }
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_another_client_writes_is_reported_at_once_until_five_minutes_later() {
    let stage = Stage::new();
    stage.pass_secs(10.0).await;
    stage.put_node(node("n1").tainted(taint("k", "").added_at(0))).await;
    stage.pods_in("a", &["shop", "web"], 3600);
    stage.pass_secs(1.0).await;
    assert!(stage.process().notes().is_empty());
    stage.evict_by_other("shop", "a");
    stage.settle().await;
    assert_eq!((stage.gauge(ACTIVE), stage.seen("condition")), (1, 1.0));
    let notes = stage.process().notes();
    assert!(notes[0].starts_with("other manager: kube-controller-manager evicts"), "{notes:?}");
    let told = || stage.wire.events().into_iter().filter(|it| it.contains(BUILT_IN)).count();
    stage.pass_secs(60.0).await;
    assert_eq!((told(), stage.process().not_ready().len()), (1, 0));
    stage.pass_secs(250.0).await;
    assert_eq!((stage.gauge(ACTIVE), stage.process().notes().len(), told()), (0, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn conditions_of_ostrakon_of_other_causes_and_of_before_the_term_are_no_proof() {
    let mut stage = Stage::new();
    stage.put_node(node("n1").tainted(taint("k", "").added_at(0))).await;
    stage.put_node(node("n2")).await;
    stage.pods_in("before", &["shop", "web"], 7200);
    stage.settle().await;
    stage.die();
    stage.evict_by_other("shop", "before");
    stage.mark(BUILT_IN, "web", "before", "DeletionByTaintManager");
    stage.restart().await;
    stage.pass_secs(10.0).await;
    // A change of a pod that bears the old condition.
    stage.delete_in("web", "before");
    stage.pods_in("ours", &["shop", "web", "mail", "db"], 0);
    stage.pods_in("other", &["shop", "web", "mail", "db"], 7200);
    stage.put_pod(pod("elsewhere").on("n2")).await;
    stage.pass_secs(1.0).await;
    assert!(stage.is_going("db", "ours"));
    for (namespace, reason) in [
        ("shop", "EvictionByEvictionAPI"),
        ("web", "DeletionByPodGC"),
        ("mail", "PreemptionByScheduler"),
    ] {
        stage.mark(BUILT_IN, namespace, "other", reason);
    }
    // Another replica, of whatever version.
    stage.mark("ostrakon", "db", "other", "DeletionByTaintManager");
    // There is no taint for which it could be evicted.
    stage.mark(BUILT_IN, "default", "elsewhere", "DeletionByTaintManager");
    stage.pass_secs(1.0).await;
    assert_eq!(
        (stage.gauge(ACTIVE), stage.seen("condition"), stage.seen("deletion")),
        (0, 0.0, 0.0)
    );
    assert!(stage.process().notes().is_empty());
    assert_eq!(stage.gauge("ostrakon_evictions_total"), 4, "its own evictions went on");
}

#[tokio::test(start_paused = true)]
async fn deletions_by_persons_and_owners_are_no_suspicion() {
    let stage = Stage::new();
    stage.pass_secs(10.0).await;
    stage.put_node(node("n1").tainted(taint("k", ""))).await;
    // Held up, so that they stay due: nobody else's deletion is at their deadline.
    stage.deny(500);
    let namespaces = ["shop", "web", "mail", "db", "ci"];
    stage.pods_in("due", &namespaces, 0);
    stage.pods_in("waits", &namespaces, 60);
    stage.pass_secs(30.0).await;
    for namespace in namespaces {
        stage.delete_in(namespace, "due");
        stage.delete_in(namespace, "waits");
    }
    stage.pass_secs(60.0).await;
    assert_eq!((stage.seen("deletion"), stage.gauge(ACTIVE)), (0.0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_must_be_exclusive_evicts_five_minutes_after_the_last_sign_of_another() {
    let stage = Stage::exclusive().await;
    let namespaces = ["shop", "web", "mail"];
    stage.put_node(node("n1").tainted(taint("k", "").added_at(0))).await;
    stage.put_node(node("n2").tainted(taint("k", "").added_at(0))).await;
    stage.pods_in("a", &namespaces[..2], 7200);
    stage.pods_on("n2", "a", &namespaces[2..], 7200);
    stage.settle().await;
    for namespace in namespaces {
        stage.evict_by_other(namespace, "a");
    }
    stage.settle().await;
    stage.pods_in("b", &["shop", "elsewhere"], 0);
    // Not for its own sake: cancelling is never held.
    stage.pods_in("c", &["elsewhere"], 100);
    stage.pass_secs(290.0).await;
    assert!(!stage.is_going("shop", "b") && !stage.is_going("elsewhere", "b"));
    assert_eq!(stage.process().metric("ostrakon_backlog_pods", &["held"]), 3.0);
    let change = |stored: &Value| {
        let mut stored = stored.clone();
        stored["spec"]["tolerations"] = json!([{"key": "k", "operator": "Exists"}]);
        Ok(stored)
    };
    let (store, part) = (stage.cluster.store(), Part::Whole);
    store.modify(Resource::Pods, "elsewhere", "c", part, false, change).unwrap();
    stage.settle().await;
    assert_eq!(stage.process().metric("ostrakon_backlog_pods", &["held"]), 2.0);
    stage.pass_secs(15.0).await;
    assert!(stage.is_going("shop", "b") && stage.is_going("elsewhere", "b"));
    assert!(!stage.is_going("elsewhere", "c"));
}

#[tokio::test(start_paused = true)]
async fn one_tenant_that_plays_another_manager_holds_only_its_own_evictions() {
    let stage = Stage::exclusive().await;
    stage.put_node(node("n1").tainted(taint("k", ""))).await;
    stage.pods_in("decoy", &["tenant", "tenant2"], 7200);
    stage.settle().await;
    stage.mark(BUILT_IN, "tenant", "decoy", "DeletionByTaintManager");
    stage.mark(BUILT_IN, "tenant2", "decoy", "DeletionByTaintManager");
    stage.settle().await;
    stage.pods_in("b", &["tenant", "shop", "web"], 0);
    stage.pass_secs(5.0).await;
    assert!(stage.is_going("shop", "b") && stage.is_going("web", "b"));
    assert!(!stage.is_going("tenant", "b"));
    stage.pass_secs(300.0).await;
    assert!(stage.is_going("tenant", "b"));
}

/// While its own evictions are held, another one that finds conditions written is known by its deletions.
#[tokio::test(start_paused = true)]
async fn deletions_at_the_deadline_in_several_namespaces_and_nodes_are_a_suspicion() {
    let stage = Stage::exclusive().await;
    let namespaces = ["shop", "web", "mail", "db", "ci"];
    stage.put_node(node("n1").tainted(taint("k", ""))).await;
    stage.put_node(node("n2").tainted(taint("k", ""))).await;
    stage.pods_in("a", &namespaces, 7200);
    stage.settle().await;
    for namespace in namespaces {
        stage.evict_by_other(namespace, "a");
    }
    stage.settle().await;
    for (number, namespace) in namespaces.into_iter().enumerate() {
        let mut object = pod("b").on(["n1", "n2"][number % 2]).object();
        object["metadata"]["namespace"] = json!(namespace);
        object["spec"]["terminationGracePeriodSeconds"] = json!(30);
        stage.cluster.store().insert(Resource::Pods, object).unwrap();
    }
    stage.pass_secs(1.0).await;
    for namespace in namespaces {
        stage.delete_in(namespace, "b");
    }
    stage.settle().await;
    assert_eq!(stage.seen("deletion"), 5.0);
    stage.pass_secs(320.0).await;
    let notes = stage.process().notes();
    assert!(notes[0].contains("someone may evict pods for NoExecute taints too"), "{notes:?}");
    assert_eq!(stage.gauge(ACTIVE), 0, "a suspicion is no proof");
}
