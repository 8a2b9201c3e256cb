//! Pauses, as a person sets them with `kubectl annotate`.

use std::sync::Arc;
use std::time::Duration;

use ostrakon::clock::Clock;
use ostrakon::sim::embedded::{Embedded, Options, Part, Resource};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::noon;
use crate::process::{Process, Wire};

const PAUSE: &str = "ostrakon.dev/pause";

/// Somebody annotates the lease, or removes the annotation. A lease that is not there is created.
pub(crate) fn annotate(cluster: &Embedded, value: Option<&str>) {
    let (store, leases) = (cluster.store(), Resource::Leases);
    if store.get(leases, "kube-system", "ostrakon").is_err() {
        let lease =
            json!({"metadata": {"name": "ostrakon", "namespace": "kube-system"}, "spec": {}});
        store.insert(leases, lease).unwrap();
    }
    let change = |lease: &Value| {
        let mut lease = lease.clone();
        lease["metadata"]["annotations"][PAUSE] = json!(value);
        if value.is_none() {
            lease["metadata"]["annotations"].as_object_mut().unwrap().remove(PAUSE);
        }
        Ok(lease)
    };
    store.modify(leases, "kube-system", "ostrakon", Part::Whole, false, change).unwrap();
}

/// A cluster with a node, and replicas that elect a leader.
struct Bed {
    cluster: Embedded,
    replicas: Vec<(Process, Arc<Wire>)>,
}

impl Bed {
    /// A cluster with a leader that has been at work for a while.
    async fn new() -> Self {
        let options = Options { default_toleration_seconds: None, ..Options::default() };
        let cluster = Embedded::new(Clock::starting_at(noon()), options);
        let node = json!({
            "metadata": {"name": "n1"}, "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        cluster.store().insert(Resource::Nodes, node).unwrap();
        let mut bed = Self { cluster, replicas: Vec::new() };
        bed.start("a");
        bed.pass(10.0).await;
        bed
    }

    fn start(&mut self, identity: &str) {
        let clock = Clock::starting_at(self.cluster.store().clock().now());
        let wire = Arc::default();
        self.replicas.push((Process::replica(&self.cluster, clock, identity, &wire), wire));
    }

    /// The replica that was started first dies.
    fn kill(&mut self) {
        self.replicas.remove(0);
    }

    fn pod(&self, name: &str, seconds: Option<i64>) {
        let toleration = |seconds| {
            json!([{"key": "k", "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": seconds}])
        };
        let pod = json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "nodeName": "n1", "terminationGracePeriodSeconds": 0,
                "tolerations": seconds.map_or(json!([]), toleration),
            },
            "status": {"phase": "Running"},
        });
        self.cluster.store().insert(Resource::Pods, pod).unwrap();
    }

    fn has_pod(&self, name: &str) -> bool {
        self.cluster.store().get(Resource::Pods, "default", name).is_ok()
    }

    fn taint(&self, tainted: bool) {
        let now = self.cluster.store().clock().now().to_string();
        let change = |node: &Value| {
            let mut node = node.clone();
            let taint = json!({"key": "k", "effect": "NoExecute", "timeAdded": now});
            node["spec"]["taints"] = if tainted { json!([taint]) } else { json!([]) };
            Ok(node)
        };
        let store = self.cluster.store();
        store.modify(Resource::Nodes, "", "n1", Part::Whole, false, change).unwrap();
    }

    fn pause(&self, text: &str) {
        annotate(&self.cluster, Some(text));
    }

    fn resume(&self) {
        annotate(&self.cluster, None);
    }

    async fn pass(&self, seconds: f64) {
        sleep(Duration::from_secs_f64(seconds)).await;
    }

    fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        self.replicas[0].0.metric(name, labels)
    }

    fn events(&self, words: &str) -> usize {
        let events = self.replicas.iter().flat_map(|(_, wire)| wire.events());
        events.filter(|message| message.contains(words)).count()
    }

    fn lease(&self) -> Arc<Value> {
        self.cluster.store().get(Resource::Leases, "kube-system", "ostrakon").unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_in_mid_countdown_holds_what_comes_due_until_it_is_over() {
    let bed = Bed::new().await;
    bed.pod("a", Some(10));
    bed.taint(true);
    bed.pass(5.0).await;
    bed.pause("wrong taint");
    bed.pass(3600.0).await;
    assert!(bed.has_pod("a"), "an hour overdue");
    assert!((bed.metric("ostrakon_backlog_pods", &["held"]) - 1.0).abs() < 0.1);
    assert!((bed.metric("ostrakon_paused", &[]) - 1.0).abs() < 0.1);
    assert!(bed.metric("ostrakon_pause_seconds", &[]) > 3590.0);
    let (process, _) = &bed.replicas[0];
    assert!(process.not_ready().is_empty(), "a pause is no failure");
    assert!(process.notes().iter().any(|note| note.contains("wrong taint")));
    bed.resume();
    bed.pass(1.5).await;
    assert!(!bed.has_pod("a"));
    assert!(bed.metric("ostrakon_paused", &[]).abs() < 0.1);
    assert!(bed.replicas[0].0.notes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_seen_within_a_second_and_renewals_keep_it() {
    let bed = Bed::new().await;
    bed.pause("x");
    bed.pass(1.05).await;
    bed.taint(true);
    bed.pod("a", None);
    bed.pass(60.0).await;
    assert!(bed.has_pod("a"));
    assert_eq!(bed.lease()["metadata"]["annotations"][PAUSE], "x");
}

#[tokio::test(start_paused = true)]
async fn a_taint_that_is_removed_during_a_pause_spares_its_pods() {
    let bed = Bed::new().await;
    bed.pod("counting", Some(100));
    bed.pod("due", None);
    bed.pause("wrong taint");
    bed.pass(1.5).await;
    bed.taint(true);
    bed.pass(10.0).await;
    assert!((bed.metric("ostrakon_backlog_pods", &[]) - 1.0).abs() < 0.1);
    bed.taint(false);
    bed.pass(0.5).await;
    assert!(bed.metric("ostrakon_backlog_pods", &[]).abs() < 0.1, "cancelled during the pause");
    assert!(bed.events("Cancelling deletion of Pod default/counting") == 1);
    bed.resume();
    bed.pass(3600.0).await;
    assert!(bed.has_pod("due") && bed.has_pod("counting"));
}

#[tokio::test(start_paused = true)]
async fn a_pause_for_a_time_ends_by_itself() {
    let bed = Bed::new().await;
    bed.pause(r#"{"reason":"x","by":"jane","until":"2026-01-01T12:30:00Z"}"#);
    bed.pass(1.5).await;
    bed.pod("a", None);
    bed.taint(true);
    let left = Duration::try_from(
        "2026-01-01T12:29:59.9Z".parse::<jiff::Timestamp>().unwrap()
            - bed.cluster.store().clock().now(),
    );
    sleep(left.unwrap()).await;
    assert!(bed.has_pod("a"));
    bed.pass(0.7).await;
    assert!(!bed.has_pod("a"));
    assert_eq!(bed.events("paused by jane"), 2, "at the beginning and at the end");
    assert_eq!(bed.events("still"), 0, "it has an end");
    assert!(bed.lease()["metadata"]["annotations"][PAUSE].is_string());
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_knows_a_pause_before_it_writes_anything() {
    let mut bed = Bed::new().await;
    bed.start("b");
    bed.pass(5.0).await;
    bed.kill();
    // Nobody reads the lease now but the one that stands by.
    bed.pod("a", None);
    bed.taint(true);
    bed.pass(0.1).await;
    bed.pause("x");
    bed.pass(60.0).await;
    assert!((bed.metric("ostrakon_leader", &[]) - 1.0).abs() < 0.1, "b leads");
    assert!(bed.has_pod("a"));
    // Another one, which has never seen the cluster without a pause.
    bed.start("c");
    bed.kill();
    bed.pass(60.0).await;
    assert!((bed.metric("ostrakon_leader", &[]) - 1.0).abs() < 0.1, "c leads");
    assert!(bed.has_pod("a"));
    bed.resume();
    bed.pass(1.5).await;
    assert!(!bed.has_pod("a"));
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_reported_at_its_beginning_and_end_and_each_hour() {
    let bed = Bed::new().await;
    bed.pause("wrong\u{1b}[31m taint\nfake log line");
    bed.pass(1800.0).await;
    assert_eq!(bed.events("wrong [31m taint fake log line"), 1);
    assert_eq!(bed.events("still"), 0);
    bed.pass(3.0 * 3600.0).await;
    assert_eq!(bed.events("still paused"), 3);
    assert_eq!(bed.events("The pause is over"), 0);
    bed.resume();
    bed.pass(3600.0 * 2.0).await;
    assert_eq!(bed.events("The pause is over"), 1);
    assert_eq!(bed.events("still paused"), 3, "not any more");
}
