//! The controllers over days of paused time.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Controllers, Settings};
use crate::clock::Clock;
use crate::sim::embedded::object::{at, condition, is_true, list, meta, micro_time, set, text};
use crate::sim::embedded::{DeleteOptions, Options, Part, Patch, Resource, Selector, Store};

fn store() -> Store {
    let noon = "2026-01-01T12:00:00Z".parse().unwrap();
    Store::new(Clock::starting_at(noon), Options::default())
}

fn start(store: &Store) -> Controllers {
    Controllers::start(store, &Settings::default())
}

fn add_node(store: &Store, name: &str) {
    let node = json!({
        "metadata": {"name": name},
        "status": {
            "allocatable": {"pods": "10"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    store.insert(Resource::Nodes, node).unwrap();
    beat(store, name);
}

/// One sign of life.
fn beat(store: &Store, name: &str) {
    let renewed = micro_time(store.clock().now());
    let lease = json!({"metadata": {"name": name}, "spec": {"renewTime": renewed}});
    let old = store.get(Resource::Leases, "kube-node-lease", name);
    let mut next = lease;
    if let Ok(old) = old {
        next = (*old).clone();
        set(&mut next, &["spec", "renewTime"], renewed);
    }
    store.update(Resource::Leases, "kube-node-lease", name, Part::Whole, next, false).unwrap();
}

/// Lets these nodes live for so long.
async fn live(store: &Store, nodes: &[&str], seconds: u64) {
    for _ in 0..seconds / 5 {
        for node in nodes {
            beat(store, node);
        }
        sleep(Duration::from_secs(5)).await;
    }
}

fn say(store: &Store, node: &str, kind: &str, status: &str) {
    let condition = json!({"status": {"conditions": [{"type": kind, "status": status}]}});
    let patch = Patch::Strategic(condition);
    store.patch(Resource::Nodes, "", node, Part::Status, &patch, false).unwrap();
}

fn taints(store: &Store, node: &str) -> Vec<String> {
    let node = store.get(Resource::Nodes, "", node).unwrap();
    let short = |t: &Value| {
        let key = text(t, &["key"]).rsplit('/').next().unwrap();
        format!("{key}:{}", text(t, &["effect"]))
    };
    let mut all: Vec<_> = list(&node, &["spec", "taints"]).iter().map(short).collect();
    all.sort();
    all
}

fn add_set(store: &Store, resource: Resource, replicas: usize) {
    let set = json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    });
    store.create(resource, "default", set, false).unwrap();
}

fn pods(store: &Store) -> Vec<Value> {
    let pods = store.select(Resource::Pods, &Selector::default());
    pods.iter().map(|pod| (**pod).clone()).collect()
}

/// Plays the kubelet: the pods of `node` become ready.
fn run_pods(store: &Store, node: &str) {
    for pod in pods(store) {
        if text(&pod, &["spec", "nodeName"]) == node {
            let status =
                json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
            let patch = Patch::Strategic(json!({"status": status}));
            let name = meta(&pod, "name");
            store.patch(Resource::Pods, "default", name, Part::Status, &patch, false).unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_node_is_lost_for_the_time_in_which_the_whole_process_stood_still() {
    let store = store();
    add_node(&store, "n1");
    add_node(&store, "n2");
    let _controllers = start(&store);
    live(&store, &["n1", "n2"], 30).await;
    for _ in 0..3 {
        tokio::time::advance(Duration::from_secs(300)).await;
        live(&store, &["n1", "n2"], 30).await;
        assert_eq!(taints(&store, "n1"), Vec::<String>::new());
    }
    // Whoever is silent while others live is lost as ever.
    live(&store, &["n1"], 120).await;
    assert!(taints(&store, "n2").contains(&"unreachable:NoExecute".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_becomes_unknown_and_is_tainted_and_comes_back_clean() {
    let store = store();
    add_node(&store, "n1");
    add_node(&store, "n2");
    let _running = start(&store);
    live(&store, &["n1", "n2"], 120).await;
    assert!(taints(&store, "n1").is_empty());
    live(&store, &["n2"], 45).await;
    assert!(taints(&store, "n1").is_empty(), "too early");
    live(&store, &["n2"], 20).await;
    assert_eq!(taints(&store, "n1"), ["unreachable:NoExecute", "unreachable:NoSchedule"]);
    assert!(taints(&store, "n2").is_empty());
    let node = store.get(Resource::Nodes, "", "n1").unwrap();
    assert_eq!(condition(&node, "Ready").unwrap()["reason"], "NodeStatusUnknown");
    let taint = &list(&node, &["spec", "taints"])[0];
    assert!(!text(taint, &["timeAdded"]).is_empty());
    say(&store, "n1", "Ready", "True");
    live(&store, &["n1", "n2"], 10).await;
    assert!(taints(&store, "n1").is_empty());
}

#[tokio::test(start_paused = true)]
async fn not_ready_and_unreachable_are_swapped() {
    let store = store();
    add_node(&store, "n1");
    add_node(&store, "n2");
    let _running = start(&store);
    live(&store, &["n1", "n2"], 10).await;
    say(&store, "n1", "Ready", "False");
    live(&store, &["n2"], 10).await;
    assert_eq!(taints(&store, "n1"), ["not-ready:NoExecute", "not-ready:NoSchedule"]);
    live(&store, &["n2"], 60).await;
    assert_eq!(taints(&store, "n1"), ["unreachable:NoExecute", "unreachable:NoSchedule"]);
}

#[tokio::test(start_paused = true)]
async fn taints_that_remove_pods_come_slowly_and_not_at_all_if_every_node_is_out() {
    let store = store();
    let names: Vec<String> = (0..6).map(|n| format!("n{n}")).collect();
    for name in &names {
        add_node(&store, name);
    }
    let _running = start(&store);
    sleep(Duration::from_secs(1)).await;
    let tainted = || names.iter().filter(|n| taints(&store, n).len() == 2).count();
    for name in &names[..3] {
        say(&store, name, "Ready", "False");
    }
    sleep(Duration::from_secs(2)).await;
    assert_eq!(tainted(), 1);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(tainted(), 2);
    for name in &names[3..] {
        say(&store, name, "Ready", "False");
    }
    sleep(Duration::from_secs(2)).await;
    assert_eq!(tainted(), 0);
    assert_eq!(taints(&store, "n0"), ["not-ready:NoSchedule"]);
}

#[tokio::test(start_paused = true)]
async fn pressure_and_a_cordon_become_taints_that_keep_new_pods_away() {
    let store = store();
    add_node(&store, "n1");
    let _running = start(&store);
    say(&store, "n1", "MemoryPressure", "True");
    let cordon = Patch::Merge(json!({"spec": {
        "unschedulable": true,
        "taints": [{"key": "mine", "effect": "NoExecute"}],
    }}));
    store.patch(Resource::Nodes, "", "n1", Part::Whole, &cordon, false).unwrap();
    live(&store, &["n1"], 5).await;
    let wanted = ["memory-pressure:NoSchedule", "mine:NoExecute", "unschedulable:NoSchedule"];
    assert_eq!(taints(&store, "n1"), wanted);
    say(&store, "n1", "MemoryPressure", "False");
    let uncordon = Patch::Merge(json!({"spec": {"unschedulable": null}}));
    store.patch(Resource::Nodes, "", "n1", Part::Whole, &uncordon, false).unwrap();
    live(&store, &["n1"], 5).await;
    assert_eq!(taints(&store, "n1"), ["mine:NoExecute"]);
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_a_node_that_is_out_are_not_ready() {
    let store = store();
    add_node(&store, "n1");
    add_set(&store, Resource::ReplicaSets, 2);
    let _running = start(&store);
    live(&store, &["n1"], 5).await;
    run_pods(&store, "n1");
    assert!(pods(&store).iter().all(|pod| is_true(pod, "Ready")));
    say(&store, "n1", "Ready", "False");
    live(&store, &["n1"], 5).await;
    assert!(!pods(&store).iter().any(|pod| is_true(pod, "Ready")));
}

#[tokio::test(start_paused = true)]
async fn a_replica_set_replaces_a_pod_while_it_goes_by_one_of_another_name() {
    let store = store();
    add_node(&store, "n1");
    add_set(&store, Resource::ReplicaSets, 3);
    let _running = start(&store);
    live(&store, &["n1"], 5).await;
    let before = pods(&store);
    assert_eq!(before.len(), 3);
    assert!(before.iter().all(|pod| text(pod, &["spec", "nodeName"]) == "n1"));
    run_pods(&store, "n1");
    let name = meta(&before[0], "name");
    store.delete(Resource::Pods, "default", name, &DeleteOptions::default()).unwrap();
    live(&store, &["n1"], 5).await;
    let after = pods(&store);
    assert_eq!(after.len(), 4);
    let set = store.get(Resource::ReplicaSets, "default", "web").unwrap();
    assert_eq!(at(&set, &["status", "replicas"]), 3);
    assert_eq!(at(&set, &["status", "readyReplicas"]), 2);
}

#[tokio::test(start_paused = true)]
async fn a_stateful_set_waits_until_the_pod_is_gone_and_uses_its_name_again() {
    let store = store();
    add_node(&store, "n1");
    add_set(&store, Resource::StatefulSets, 2);
    let _running = start(&store);
    live(&store, &["n1"], 5).await;
    let uid =
        |name: &str| meta(&store.get(Resource::Pods, "default", name).unwrap(), "uid").to_owned();
    let (old, other) = (uid("web-0"), uid("web-1"));
    store.delete(Resource::Pods, "default", "web-0", &DeleteOptions::default()).unwrap();
    live(&store, &["n1"], 20).await;
    assert_eq!(uid("web-0"), old);
    store.delete(Resource::Pods, "default", "web-0", &DeleteOptions::at_once(&old)).unwrap();
    live(&store, &["n1"], 5).await;
    assert_ne!(uid("web-0"), old);
    assert_eq!(uid("web-1"), other);
}

#[tokio::test(start_paused = true)]
async fn a_smaller_set_loses_pods_and_a_deleted_one_all() {
    let store = store();
    add_set(&store, Resource::ReplicaSets, 4);
    let _running = start(&store);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(pods(&store).len(), 4);
    let fewer = Patch::Merge(json!({"spec": {"replicas": 1}}));
    store.patch(Resource::ReplicaSets, "default", "web", Part::Whole, &fewer, false).unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(pods(&store).len(), 1);
    store.delete(Resource::ReplicaSets, "default", "web", &DeleteOptions::default()).unwrap();
    sleep(Duration::from_secs(1)).await;
    assert!(pods(&store).is_empty());
}

#[tokio::test(start_paused = true)]
async fn each_node_that_a_daemon_is_for_has_one() {
    let store = store();
    for name in ["n1", "n2", "n3", "n4"] {
        add_node(&store, name);
    }
    let change = |node: &str, change: Value| {
        let patch = Patch::Merge(change);
        store.patch(Resource::Nodes, "", node, Part::Whole, &patch, false).unwrap();
    };
    let taint = |effect: &str| json!({"spec": {"taints": [{"key": "k", "effect": effect}]}});
    for node in ["n1", "n2", "n3"] {
        change(node, json!({"metadata": {"labels": {"disk": "ssd"}}}));
    }
    // A cordoned node has its daemons all the same.
    change("n2", json!({"spec": {"unschedulable": true}}));
    change("n3", taint("NoSchedule"));
    let set = json!({
        "metadata": {"name": "agent"},
        "spec": {"template": {
            "metadata": {"labels": {"app": "agent"}},
            "spec": {
                "containers": [{"name": "c", "image": "i"}],
                "nodeSelector": {"disk": "ssd"},
            },
        }},
    });
    let _running = start(&store);
    store.create(Resource::DaemonSets, "default", set, false).unwrap();
    sleep(Duration::from_secs(1)).await;
    let nodes = || {
        let mut nodes: Vec<_> = pods(&store)
            .iter()
            .filter(|pod| meta(pod, "deletionTimestamp").is_empty())
            .map(|pod| text(pod, &["spec", "nodeName"]).to_owned())
            .collect();
        nodes.sort();
        nodes
    };
    assert_eq!(nodes(), ["n1", "n2"]);
    run_pods(&store, "n1");

    // One that goes is made anew; what only keeps pods from being scheduled drives none away.
    let old = pods(&store).iter().map(|pod| meta(pod, "name").to_owned()).collect::<Vec<_>>();
    let at_once = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
    for name in &old {
        store.delete(Resource::Pods, "default", name, &at_once).unwrap();
    }
    change("n3", json!({"spec": {"taints": null}}));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(nodes(), ["n1", "n2", "n3"]);
    assert!(pods(&store).iter().all(|pod| !old.contains(&meta(pod, "name").to_owned())));
    change("n3", taint("NoSchedule"));
    run_pods(&store, "n1");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(nodes(), ["n1", "n2", "n3"]);
    let status = store.get(Resource::DaemonSets, "default", "agent").unwrap();
    let status = at(&status, &["status"]);
    assert_eq!([&status["desiredNumberScheduled"], &status["numberReady"]], [2, 1]);

    // Where it is evicted, and where it is not selected any more, it does not come back.
    change("n3", taint("NoExecute"));
    change("n1", json!({"metadata": {"labels": {"disk": null}}}));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(nodes(), ["n2"]);
}

#[tokio::test(start_paused = true)]
async fn pods_are_spread_over_the_nodes_that_take_them_and_wait_where_there_are_none() {
    let store = store();
    for name in ["n1", "n2", "n3", "n4"] {
        add_node(&store, name);
    }
    say(&store, "n3", "Ready", "False");
    let closed = Patch::Merge(json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}));
    store.patch(Resource::Nodes, "", "n4", Part::Whole, &closed, false).unwrap();
    let _running = start(&store);
    let other = json!({"metadata": {"name": "other"}, "spec": {"schedulerName": "nobody"}});
    store.create(Resource::Pods, "default", other, false).unwrap();
    add_set(&store, Resource::ReplicaSets, 25);
    sleep(Duration::from_secs(5)).await;
    let on =
        |node: &str| pods(&store).iter().filter(|p| text(p, &["spec", "nodeName"]) == node).count();
    assert_eq!([on("n1"), on("n2"), on("n3"), on("n4"), on("")], [10, 10, 0, 0, 6]);
    let waits = |pod: &Value| text(pod, &["spec", "nodeName"]).is_empty();
    let waiting = pods(&store).into_iter().find(|pod| waits(pod) && meta(pod, "name") != "other");
    let scheduled = condition(&waiting.unwrap(), "PodScheduled").unwrap().clone();
    assert_eq!(scheduled["reason"], "Unschedulable");
    let open = Patch::Merge(json!({"spec": {"taints": null}}));
    store.patch(Resource::Nodes, "", "n4", Part::Whole, &open, false).unwrap();
    sleep(Duration::from_secs(5)).await;
    assert_eq!([on("n4"), on("")], [5, 1], "the pod of another scheduler is left to that one");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_namespace_is_emptied_and_old_events_are_forgotten() {
    let store = store();
    store.ensure_namespace("x");
    let event = json!({"metadata": {"name": "e"}, "lastTimestamp": "2026-01-01T12:00:00Z"});
    store.create(Resource::Events, "default", event, false).unwrap();
    let pod = json!({"metadata": {"name": "a"}});
    store.create(Resource::Pods, "x", pod.clone(), false).unwrap();
    let _running = start(&store);
    store.delete(Resource::Namespaces, "", "x", &DeleteOptions::default()).unwrap();
    assert_eq!(store.create(Resource::Pods, "x", pod, false).unwrap_err().code, 403);
    sleep(Duration::from_secs(5)).await;
    assert!(store.get(Resource::Namespaces, "", "x").is_err());
    assert_eq!(store.count(Resource::Events), 1);
    sleep(Duration::from_hours(2)).await;
    assert_eq!(store.count(Resource::Events), 0);
}

#[tokio::test(start_paused = true)]
async fn stopped_controllers_do_nothing_more() {
    let store = store();
    let running = start(&store);
    sleep(Duration::from_secs(1)).await;
    running.stop().await;
    add_set(&store, Resource::ReplicaSets, 4);
    sleep(Duration::from_mins(5)).await;
    assert!(pods(&store).is_empty());
}
