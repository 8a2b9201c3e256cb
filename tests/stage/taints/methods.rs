//! Rules for taints: pods that are evicted by the Eviction API, deleted later, or left alone.

use ostrakon::taint::TaintMethod::{self, Evict, EvictThenDelete, Ignore};

use super::facts::{exists, node, pod, taint};
use super::*;
use Asked::{Deleted, Evicted, Patched};

const LATER: TaintMethod = EvictThenDelete { after: Duration::from_secs(300) };

/// A controller with a rule for each of these keys.
fn stage<const N: usize>(rules: [(&str, TaintMethod); N]) -> Stage {
    Stage::ruled(Compat::None, rules.map(rule).into())
}

fn rule((key, method): (&str, TaintMethod)) -> TaintRule {
    TaintRule { name: key.into(), key: key.into(), value: None, method, limit: None }
}

fn tainted(keys: &[&str]) -> Node {
    keys.iter().fold(node("n1"), |node, key| node.tainted(taint(key, "")))
}

impl Stage {
    /// A budget over all pods, which allows so many disruptions.
    fn budget(&self, allowed: i64) {
        let budget = json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"minAvailable": 1, "selector": {}},
            "status": {
                "observedGeneration": 1, "disruptionsAllowed": allowed, "desiredHealthy": 1,
                "currentHealthy": 1, "expectedPods": 3,
            },
        });
        self.cluster.store().insert(Resource::PodDisruptionBudgets, budget).unwrap();
    }

    fn allow_disruptions(&self, allowed: i64) {
        let (budgets, part) = (Resource::PodDisruptionBudgets, Part::Status);
        let change = |old: &Value| {
            let mut budget = old.clone();
            budget["status"]["disruptionsAllowed"] = json!(allowed);
            Ok(budget)
        };
        self.cluster.store().modify(budgets, "default", "web", part, false, change).unwrap();
    }

    /// Stores a pod that is selected by the budget, and does its work.
    async fn guarded(&self, pod: Pod) {
        let mut object = pod.object();
        object["metadata"]["labels"] = json!({"app": "web"});
        let ready = json!({"type": "Ready", "status": "True"});
        object["status"]["conditions"].as_array_mut().unwrap().push(ready);
        self.cluster.store().insert(Resource::Pods, object).unwrap();
        self.settle().await;
    }

    /// How often this was asked for.
    fn count(&self, what: Asked) -> usize {
        self.asked().iter().filter(|(asked, _)| *asked == what).count()
    }

    fn blocked(&self) -> f64 {
        self.process().metric("ostrakon_backlog_pods", &["blocked"])
    }

    fn told(&self, beginning: &str) -> usize {
        self.wire.events().iter().filter(|text| text.starts_with(beginning)).count()
    }
}

#[tokio::test(start_paused = true)]
async fn evict_waits_for_the_budget_for_as_long_as_it_takes_and_never_deletes() {
    let stage = stage([("k", Evict)]);
    stage.budget(0);
    stage.guarded(pod("a")).await;
    stage.put_node(tainted(&["k"])).await;
    stage.pass_secs(86_400.0).await;
    assert!(stage.has_pod("a"));
    assert_eq!((stage.count(Deleted), stage.count(Patched)), (0, 0));
    assert!(stage.count(Evicted) > 1000, "it asks again: {}", stage.count(Evicted));
    assert!((stage.blocked() - 1.0).abs() < f64::EPSILON);
    assert_eq!(stage.told("Marking for deletion Pod default/a"), 1);
    assert_eq!(stage.told("Cannot evict Pod default/a from node n1"), 1);
    stage.allow_disruptions(1);
    stage.pass_secs(61.0).await;
    assert!(!stage.has_pod("a"));
    assert_eq!((stage.count(Deleted), stage.backlog()), (0, 0));
    let evicted = stage.process().metric("ostrakon_evictions_total", &["evicted"]);
    assert!((evicted - 1.0).abs() < f64::EPSILON);
}

#[tokio::test(start_paused = true)]
async fn a_taint_that_goes_while_a_budget_blocks_cancels_the_eviction() {
    for method in [Evict, LATER] {
        let stage = stage([("k", method)]);
        stage.budget(0);
        stage.guarded(pod("a")).await;
        stage.put_node(tainted(&["k"])).await;
        stage.pass_secs(100.0).await;
        assert_eq!(stage.backlog(), 1);
        stage.put_node(tainted(&[])).await;
        let evicted = stage.count(Evicted);
        stage.allow_disruptions(1);
        stage.pass_secs(1000.0).await;
        assert!(stage.has_pod("a"));
        assert_eq!((stage.backlog(), stage.armed(), stage.count(Evicted)), (0, 0, evicted));
        assert_eq!(stage.told("Cancelling deletion of Pod default/a"), 1);
        assert_eq!(stage.count(Deleted), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn evict_then_delete_deletes_at_the_moment_and_not_before() {
    for seconds in [None, Some(60)] {
        let stage = stage([("k", LATER)]);
        stage.budget(0);
        let tolerant = |seconds| pod("a").tolerating(exists("k").lasting(seconds));
        stage.guarded(seconds.map_or(pod("a"), tolerant)).await;
        stage.put_node(tainted(&["k"])).await;
        let due = 300.0 + seconds.map_or(0.0, |_| 60.0);
        stage.pass_secs(due - 0.1).await;
        assert!(stage.has_pod("a") && stage.count(Evicted) > 3);
        assert_eq!((stage.count(Deleted), stage.count(Patched)), (0, 0));
        stage.pass_secs(0.3).await;
        assert!(!stage.has_pod("a"), "{seconds:?}");
        let [at] = stage.deletions("a")[..] else { panic!("once") };
        // The taint was first seen some milliseconds after noon.
        assert!((due..due + 0.1).contains(&at), "{at}");
        assert_eq!(stage.told("Marking for deletion Pod default/a"), 2, "evicted, then deleted");
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_on_the_way_moves_the_deletion_by_nothing() {
    for seconds in [None, Some(60)] {
        let mut stage = stage([("k", LATER)]);
        stage.budget(0);
        let tolerant = |seconds| pod("a").tolerating(exists("k").lasting(seconds));
        stage.guarded(seconds.map_or(pod("a"), tolerant)).await;
        stage.put_node(tainted(&["k"])).await;
        for _ in 0..5 {
            stage.pass_secs(50.0).await;
            stage.restart().await;
        }
        assert_eq!(stage.count(Deleted), 0);
        stage.pass_secs(400.0).await;
        let [at] = stage.deletions("a")[..] else { panic!("once") };
        let due = 300.0 + seconds.map_or(0.0, |_| 60.0);
        assert!((due..due + 0.1).contains(&at), "{seconds:?}: {at}");
        assert!(stage.record().is_none(), "nothing depends on it any more");
    }
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_opens_in_time_prevents_the_deletion() {
    let stage = stage([("k", LATER)]);
    stage.budget(0);
    stage.guarded(pod("a")).await;
    stage.put_node(tainted(&["k"])).await;
    stage.pass_secs(200.0).await;
    stage.allow_disruptions(1);
    stage.pass_secs(61.0).await;
    assert!(!stage.has_pod("a"));
    stage.pass_secs(600.0).await;
    assert_eq!((stage.count(Deleted), stage.backlog()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_ignored_taint_is_reported_once_and_evicts_nothing() {
    let stage = stage([("k", Ignore)]);
    stage.put_pod(pod("a")).await;
    stage.put_pod(pod("b").tolerating(exists("k"))).await;
    stage.put_node(tainted(&["k"])).await;
    stage.pass_secs(3600.0).await;
    assert!(stage.asked().is_empty());
    assert_eq!((stage.backlog(), stage.armed()), (0, 0));
    let message = "Evicting no pods for taint k:NoExecute: rule k ignores it; pods that stay: 1";
    assert_eq!(stage.wire.events(), [message]);
    let gauge = |name| stage.process().metric(name, &[]);
    assert!((gauge("ostrakon_ignored_taints") - 1.0).abs() < f64::EPSILON);
    assert!((gauge("ostrakon_ignored_taint_pods") - 1.0).abs() < f64::EPSILON);

    // It hides no other taint, and that one's end leaves nothing behind.
    stage.put_pod(pod("c").tolerating(exists("other").lasting(60))).await;
    stage.put_node(tainted(&["k", "other"])).await;
    stage.pass_secs(1.0).await;
    assert!(!stage.has_pod("a") && stage.has_pod("c"));
    stage.put_node(tainted(&["k"])).await;
    stage.pass_secs(600.0).await;
    assert!(stage.has_pod("c"));
    assert_eq!(stage.told("Evicting no pods"), 1, "not again");
    stage.put_node(tainted(&[])).await;
    stage.put_node(tainted(&["k"])).await;
    assert_eq!(stage.told("Evicting no pods"), 2, "it came back");
}

#[tokio::test(start_paused = true)]
async fn a_stronger_taint_deletes_at_its_deadline_what_a_budget_holds_for_another() {
    let stage = stage([("mild", Evict)]);
    stage.budget(0);
    stage.guarded(pod("a").tolerating(exists("hard").lasting(100))).await;
    stage.put_node(tainted(&["mild", "hard"])).await;
    stage.pass_secs(99.5).await;
    assert!(stage.has_pod("a") && stage.count(Evicted) > 1);
    assert_eq!(stage.count(Deleted), 0);
    stage.pass_secs(1.0).await;
    assert!(!stage.has_pod("a"));
    let [at] = stage.deletions("a")[..] else { panic!("once") };
    assert!((100.0..100.1).contains(&at), "{at}");
}

#[tokio::test(start_paused = true)]
async fn a_new_taint_that_deletes_waits_for_no_pause_after_a_budgets_refusal() {
    let stage = stage([("mild", Evict)]);
    stage.budget(0);
    stage.guarded(pod("a")).await;
    stage.put_node(tainted(&["mild"])).await;
    stage.pass_secs(300.0).await;
    assert!(stage.has_pod("a") && stage.count(Deleted) == 0);
    let before = stage.count(Evicted);
    stage.put_node(tainted(&["mild", "hard"])).await;
    stage.pass_secs(0.2).await;
    assert!(!stage.has_pod("a"));
    assert_eq!((stage.count(Deleted), stage.count(Evicted)), (1, before));
}

#[tokio::test(start_paused = true)]
async fn the_condition_of_an_evicted_pod_tells_the_taint() {
    let stage = stage([("k", Evict)]);
    let mut object = pod("a").object();
    object["spec"]["terminationGracePeriodSeconds"] = json!(30);
    stage.cluster.store().insert(Resource::Pods, object).unwrap();
    stage.put_node(tainted(&["k"])).await;
    assert_eq!(stage.asked(), [(Evicted, "a".to_owned()), (Patched, "a".to_owned())]);
    let stored = stage.cluster.store().get(Resource::Pods, "default", "a").unwrap();
    let conditions = stored["status"]["conditions"].as_array().unwrap();
    let marks: Vec<_> = conditions.iter().filter(|it| it["type"] == "DisruptionTarget").collect();
    let [mark] = marks[..] else { panic!("{conditions:?}") };
    assert_eq!(
        (&mark["status"], &mark["reason"]),
        (&json!("True"), &json!("DeletionByTaintManager"))
    );
}
