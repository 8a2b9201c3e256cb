//! The observations on a store: what counts as right, wrong and cancelled.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;

use super::*;
use crate::clock::Clock;
use crate::sim::embedded::{DeleteOptions, Options, Part, Store};

struct Bed {
    store: Store,
    changes: Mutex<UnboundedReceiver<Arc<Change>>>,
    observations: Mutex<Observations>,
}

impl Bed {
    /// A node `n1`, and on it a pod that tolerates nothing, one that tolerated `k` for 5 s and one that
    /// tolerated it forever.
    fn new() -> Self {
        let store = Store::new(Clock::system(), Options::default());
        let (changes, observations) = (Mutex::new(store.follow()), Mutex::default());
        store.insert(Resource::Nodes, json!({"metadata": {"name": "n1"}})).unwrap();
        let bed = Self { store, changes, observations };
        let tolerates = |seconds: Value| json!([{"key": "k", "tolerationSeconds": seconds}]);
        bed.pod("none", &Value::Null);
        bed.pod("five", &tolerates(5.into()));
        bed.pod("ever", &tolerates(Value::Null));
        bed.observations().begin();
        bed
    }

    /// What the observations has by what is stored up to now.
    fn observations(&self) -> MutexGuard<'_, Observations> {
        let mut observations = self.observations.lock();
        let mut changes = self.changes.lock();
        while let Ok(change) = changes.try_recv() {
            observations.take(&change);
        }
        observations
    }

    fn pod(&self, name: &str, tolerations: &Value) {
        let pod = json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": "n1", "tolerations": tolerations, "terminationGracePeriodSeconds": 30},
            "status": {"phase": "Running"},
        });
        self.store.insert(Resource::Pods, pod).unwrap();
    }

    fn taint(&self, taints: &Value) {
        let change = |node: &Value| {
            let mut node = node.clone();
            node["spec"]["taints"] = taints.clone();
            Ok(node)
        };
        self.store.modify(Resource::Nodes, "", "n1", Part::Whole, false, change).unwrap();
    }

    fn delete(&self, name: &str) {
        let options = DeleteOptions::default();
        self.store.delete(Resource::Pods, "default", name, &options).unwrap();
    }

    fn counts(&self) -> [usize; 4] {
        let counts = self.observations().counts(self.store.clock().now());
        [counts.pods, counts.overdue, counts.evicted, counts.cancelled]
    }

    fn wrong(&self) -> Vec<String> {
        self.observations().wrong().to_vec()
    }
}

fn k() -> Value {
    json!([{"key": "k", "effect": "NoExecute"}])
}

#[tokio::test(start_paused = true)]
async fn who_goes_in_time_is_right() {
    let bed = Bed::new();
    bed.taint(&k());
    assert_eq!(bed.counts(), [3, 1, 0, 0]);
    bed.delete("none");
    tokio::time::advance(Duration::from_millis(5040)).await;
    assert_eq!(bed.counts(), [2, 1, 1, 0]);
    bed.delete("five");
    assert_eq!(bed.counts(), [1, 0, 2, 0]);
    assert!(bed.wrong().is_empty());
    let observations = bed.observations();
    assert_eq!(observations.evicted()[1].1, Duration::from_millis(40));
    assert_eq!(observations.kept(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_goes_too_early_or_for_no_reason_is_wrong() {
    let bed = Bed::new();
    bed.delete("none");
    bed.taint(&k());
    tokio::time::advance(Duration::from_secs(4)).await;
    bed.delete("five");
    bed.delete("ever");
    let wrong = bed.wrong();
    assert_eq!(wrong.len(), 3, "{wrong:?}");
    assert!(wrong[1].contains("1.0 s too early"), "{wrong:?}");
    assert_eq!(bed.counts(), [0, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_taint_that_goes_takes_the_countdown_with_it() {
    let bed = Bed::new();
    bed.taint(&k());
    bed.delete("none");
    bed.taint(&json!([]));
    assert_eq!(bed.counts(), [2, 0, 1, 1]);
    tokio::time::advance(Duration::from_secs(9)).await;
    assert_eq!(bed.counts(), [2, 0, 1, 1]);
    bed.delete("five");
    assert_eq!(bed.wrong().len(), 1);
    let new_observations = bed.observations().new_observations();
    assert!(
        matches!(&new_observations[0].1, Observation::Tainted { outlook, .. } if outlook.at_once == 1)
    );
    assert!(
        matches!(&new_observations[2].1, Observation::Untainted { cancelled: 1, .. }),
        "{new_observations:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_the_same_name_is_another_pod() {
    let bed = Bed::new();
    bed.taint(&k());
    let uid = bed.store.get(Resource::Pods, "default", "none").unwrap()["metadata"]["uid"].clone();
    bed.observations().expect_by_hand(uid.as_str().unwrap());
    let at_once = DeleteOptions::at_once(uid.as_str().unwrap());
    bed.store.delete(Resource::Pods, "default", "none", &at_once).unwrap();
    bed.pod("none", &json!([{"operator": "Exists"}]));
    assert!(bed.wrong().is_empty());
    bed.delete("none");
    assert_eq!(bed.wrong().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_row_shows_who_is_left_and_when_the_next_goes() {
    let bed = Bed::new();
    let now = bed.store.clock().now();
    bed.taint(&k());
    bed.delete("none");
    let observations = bed.observations();
    let row = observations.row("n1");
    assert_eq!((row.pods, row.counting, row.going), (2, 1, 1));
    assert_eq!(row.next.unwrap().duration_since(now), SignedDuration::from_secs(5));
    assert_eq!(observations.tainted().into_iter().collect::<Vec<_>>(), ["n1"]);
}

#[tokio::test(start_paused = true)]
async fn after_the_story_others_may_delete() {
    let bed = Bed::new();
    bed.observations().end();
    bed.delete("none");
    assert!(bed.wrong().is_empty());
    let mark = |pod: &Value| {
        let mut pod = pod.clone();
        pod["status"]["conditions"] = json!([{"reason": "DeletionByTaintManager"}]);
        Ok(pod)
    };
    bed.store.modify(Resource::Pods, "default", "ever", Part::Status, false, mark).unwrap();
    bed.delete("ever");
    assert_eq!(bed.wrong().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_toleration_that_a_pod_is_given_counts_from_then_on() {
    let bed = Bed::new();
    bed.taint(&k());
    assert_eq!(bed.counts(), [3, 1, 0, 0]);
    let tolerate = |pod: &Value| {
        let mut pod = pod.clone();
        pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
        Ok(pod)
    };
    bed.store.modify(Resource::Pods, "default", "none", Part::Whole, false, tolerate).unwrap();
    assert_eq!(bed.counts(), [3, 0, 0, 0]);
    bed.delete("none");
    assert_eq!(bed.wrong().len(), 1, "it must not go any more");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_has_finished_is_not_overdue_and_none_is_on_a_node_that_is_gone() {
    let bed = Bed::new();
    let finish = |pod: &Value| {
        let mut pod = pod.clone();
        pod["status"]["phase"] = "Succeeded".into();
        Ok(pod)
    };
    bed.store.modify(Resource::Pods, "default", "none", Part::Status, false, finish).unwrap();
    bed.taint(&k());
    assert_eq!(bed.counts(), [3, 0, 0, 0]);
    bed.store.delete(Resource::Nodes, "", "n1", &DeleteOptions::default()).unwrap();
    tokio::time::advance(Duration::from_secs(9)).await;
    assert_eq!(bed.counts(), [3, 0, 0, 0]);
    let mut observations = bed.observations();
    let new_observations = observations.new_observations();
    let untainted = new_observations
        .iter()
        .filter(|(_, new_observations)| matches!(new_observations, Observation::Untainted { .. }));
    assert_eq!(untainted.count(), 0, "nobody took the taint off: {new_observations:?}");
}

#[tokio::test(start_paused = true)]
async fn taints_put_on_by_hand_are_told_as_they_are() {
    let bed = Bed::new();
    let new_observations = || bed.observations().new_observations();
    new_observations();
    tokio::time::advance(Duration::from_secs(10)).await;
    // Put on an hour ago, by its stamp: who tolerates it for 5 s goes now.
    let ago = bed.store.clock().now() - SignedDuration::from_hours(1);
    bed.taint(&json!([{"key": "k", "effect": "NoExecute", "timeAdded": ago.to_string()}]));
    let told = new_observations();
    let [(_, Observation::Tainted { outlook, .. })] = &told[..] else { panic!("{told:?}") };
    assert_eq!((outlook.at_once, outlook.counting.len(), outlook.staying), (2, 0, 1));
    // Another value is another taint.
    bed.taint(&json!([{"key": "k", "value": "v", "effect": "NoExecute"}]));
    let told = new_observations();
    assert!(matches!(&told[..], [(_, Observation::Tainted { .. })]), "{told:?}");
    // Two go at once: the countdowns that end are counted once.
    bed.taint(&json!([{"key": "k", "effect": "NoExecute"}, {"key": "j", "effect": "NoExecute"}]));
    new_observations();
    bed.taint(&json!([]));
    let cancelled = new_observations()
        .iter()
        .map(|(_, new_observations)| match new_observations {
            Observation::Untainted { cancelled, .. } => *cancelled,
            other => panic!("{other:?}"),
        })
        .collect::<Vec<_>>();
    assert_eq!(cancelled, [3, 0]);
}
