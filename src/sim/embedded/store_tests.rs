//! Tests of the store from a client's point of view.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::object::{meta, set};
use super::{
    AtVersion, DeleteOptions, Embedded, Options, Page, Paging, Part, Patch, Resource, Selector,
    Store,
};
use crate::clock::Clock;

const POD: Resource = Resource::Pods;

fn store() -> Store {
    let noon: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
    Store::new(Clock::starting_at(noon), Options::default())
}

fn pod(name: &str, node: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
    })
}

fn with_pods(names: &[&str]) -> Store {
    let store = store();
    for name in names {
        store.create(POD, "default", pod(name, "n1"), false).unwrap();
    }
    store
}

fn names(page: &Page) -> Vec<&str> {
    page.items.iter().map(|o| meta(o, "name")).collect()
}

fn page(store: &Store, limit: usize, from: Option<String>, version: AtVersion) -> Page {
    let paging = Paging { limit, from, version };
    store.list(POD, &Selector::default(), &paging).unwrap()
}

fn label(store: &Store, name: &str, value: &str) {
    let patch = Patch::Merge(json!({"metadata": {"labels": {"x": value}}}));
    store.patch(POD, "default", name, Part::Whole, &patch, false).unwrap();
}

#[test]
fn a_created_object_gets_what_only_the_server_may_set() {
    let store = store();
    let mut given = pod("a", "n1");
    set(&mut given, &["metadata", "uid"], "mine");
    set(&mut given, &["metadata", "deletionTimestamp"], "2020-01-01T00:00:00Z");
    let object = store.create(POD, "default", given, false).unwrap();
    assert_ne!(meta(&object, "uid"), "mine");
    assert_eq!(meta(&object, "uid").len(), 36);
    assert_eq!(meta(&object, "creationTimestamp"), "2026-01-01T12:00:00Z");
    assert_eq!(meta(&object, "deletionTimestamp"), "");
    assert_eq!(object["metadata"]["generation"], 1);
    assert_eq!(object["metadata"]["resourceVersion"], store.version().to_string());
    assert_eq!(object["status"]["phase"], "Pending");
    assert_eq!(object["kind"], "Pod");
}

#[test]
fn the_same_seed_gives_the_same_uids() {
    let uid = || meta(&with_pods(&["a"]).get(POD, "default", "a").unwrap(), "uid").to_owned();
    assert_eq!(uid(), uid());
}

#[test]
fn a_bad_or_misplaced_object_is_not_created() {
    let store = with_pods(&["a"]);
    let refused = |object: Value, namespace: &str| {
        let error = store.create(POD, namespace, object, false).unwrap_err();
        (error.code, error.reason)
    };
    assert_eq!(refused(pod("a", ""), "default"), (409, "AlreadyExists"));
    assert_eq!(refused(pod("b", ""), "nowhere"), (404, "NotFound"));
    assert_eq!(refused(pod("B c", ""), "default"), (422, "Invalid"));
    assert_eq!(refused(json!({}), "default"), (422, "Invalid"));
    assert_eq!(refused(json!([]), "default"), (400, "BadRequest"));
    assert_eq!(refused(json!({"kind": "Node"}), "default"), (400, "BadRequest"));
    let elsewhere = json!({"metadata": {"name": "b", "namespace": "kube-system"}});
    assert_eq!(refused(elsewhere, "default"), (400, "BadRequest"));
    assert_eq!(store.count(POD), 1);
}

#[test]
fn a_dry_run_changes_nothing() {
    let store = with_pods(&["a"]);
    let before = store.version();
    store.create(POD, "default", pod("b", ""), true).unwrap();
    let patch = Patch::Merge(json!({"metadata": {"labels": {"x": "1"}}}));
    store.patch(POD, "default", "a", Part::Whole, &patch, true).unwrap();
    let options = DeleteOptions { dry_run: true, ..DeleteOptions::default() };
    store.delete(POD, "default", "a", &options).unwrap();
    assert_eq!(store.version(), before);
}

#[test]
fn a_generated_name_begins_as_wished() {
    let store = store();
    let object = json!({"metadata": {"generateName": "web-"}});
    let one = store.create(POD, "default", object.clone(), false).unwrap();
    let two = store.create(POD, "default", object, false).unwrap();
    assert!(meta(&one, "name").starts_with("web-"));
    assert_ne!(meta(&one, "name"), meta(&two, "name"));
}

#[test]
fn an_update_of_an_older_version_is_a_conflict() {
    let store = with_pods(&["a"]);
    let old = store.get(POD, "default", "a").unwrap();
    label(&store, "a", "1");
    let mut late = (*old).clone();
    set(&mut late, &["metadata", "labels", "y"], "1");
    let error = store.update(POD, "default", "a", Part::Whole, late, false).unwrap_err();
    assert_eq!((error.code, error.reason), (409, "Conflict"));
    assert!(error.message.contains("has been modified"), "{error}");
    let unversioned = pod("a", "n1");
    store.update(POD, "default", "a", Part::Whole, unversioned, false).unwrap();
}

#[test]
fn an_update_that_changes_nothing_gets_no_version() {
    let store = with_pods(&["a"]);
    let before = store.version();
    let same = store.get(POD, "default", "a").unwrap();
    store.update(POD, "default", "a", Part::Whole, (*same).clone(), false).unwrap();
    assert_eq!(store.version(), before);
}

#[test]
fn another_uid_in_a_patch_is_invalid_and_the_right_one_is_taken() {
    let store = with_pods(&["a"]);
    let patch = |metadata: Value| {
        let body = json!({"metadata": metadata, "status": {"reason": "x"}});
        store.patch(POD, "default", "a", Part::Status, &Patch::Strategic(body), false)
    };
    let other = "00000000-0000-4000-8000-000000000000";
    let error = patch(json!({"uid": other})).unwrap_err();
    assert_eq!((error.code, error.reason), (422, "Invalid"));
    assert!(error.message.contains("metadata.uid"), "{error}");
    let error = patch(json!({"uid": other, "resourceVersion": "1"})).unwrap_err();
    assert_eq!((error.code, error.reason), (409, "Conflict"));
    let uid = meta(&store.get(POD, "default", "a").unwrap(), "uid").to_owned();
    assert_eq!(patch(json!({"uid": uid})).unwrap()["status"]["reason"], "x");
}

#[test]
fn an_object_of_another_uid_is_not_replaced() {
    let store = with_pods(&["a"]);
    let mut other = (*store.get(POD, "default", "a").unwrap()).clone();
    set(&mut other, &["metadata", "uid"], "00000000-0000-4000-8000-000000000000");
    let error = store.update(POD, "default", "a", Part::Whole, other, false).unwrap_err();
    assert_eq!((error.code, error.reason), (409, "Conflict"));
    assert!(error.message.contains("UID in precondition: 0"), "{error}");
}

#[test]
fn spec_and_status_are_written_separately() {
    let store = with_pods(&["a"]);
    let both = json!({"spec": {"priority": 7}, "status": {"phase": "Running"}});
    let whole =
        store.patch(POD, "default", "a", Part::Whole, &Patch::Merge(both.clone()), false).unwrap();
    assert_eq!(whole["spec"]["priority"], 7);
    assert_eq!(whole["status"]["phase"], "Pending");
    assert_eq!(whole["metadata"]["generation"], 2);
    let other = json!({"spec": {"priority": 9}, "status": {"phase": "Running"}});
    let status =
        store.patch(POD, "default", "a", Part::Status, &Patch::Merge(other), false).unwrap();
    assert_eq!(status["spec"]["priority"], 7);
    assert_eq!(status["status"]["phase"], "Running");
    assert_eq!(status["metadata"]["generation"], 2);
}

#[test]
fn a_pod_cannot_be_moved_and_a_taint_needs_a_known_effect() {
    let store = with_pods(&["a"]);
    let patch = Patch::Merge(json!({"spec": {"nodeName": "n2"}}));
    let error = store.patch(POD, "default", "a", Part::Whole, &patch, false).unwrap_err();
    assert_eq!(error.code, 422);
    let node = json!({"metadata": {"name": "n1"}});
    store.create(Resource::Nodes, "", node, false).unwrap();
    for taints in [
        json!([{"key": "a", "effect": "NoSuchEffect"}]),
        json!([{"effect": "NoExecute"}]),
        json!([{"key": "a", "effect": "NoExecute"}, {"key": "a", "effect": "NoExecute"}]),
    ] {
        let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
        let answer = store.patch(Resource::Nodes, "", "n1", Part::Whole, &patch, false);
        assert_eq!(answer.unwrap_err().code, 422);
    }
}

#[test]
fn a_lease_is_created_by_an_update_and_not_overwritten_blindly() {
    let store = store();
    let lease = |holder: &str| {
        let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": holder}});
        store.update(Resource::Leases, "default", "l", Part::Whole, lease, false)
    };
    lease("a").unwrap();
    assert_eq!(lease("b").unwrap_err().code, 422);
}

#[test]
fn deletion_is_seen_step_by_step() {
    let store = with_pods(&["a"]);
    let start = store.version();
    let uid = meta(&store.get(POD, "default", "a").unwrap(), "uid").to_owned();
    let first = store.delete(POD, "default", "a", &DeleteOptions::default()).unwrap();
    assert!(!first.gone);
    assert_eq!(meta(&first.object, "deletionTimestamp"), "2026-01-01T12:00:30Z");
    let again = store.delete(POD, "default", "a", &DeleteOptions::default()).unwrap();
    assert_eq!(again.object, first.object);
    let last = store.delete(POD, "default", "a", &DeleteOptions::at_once(&uid)).unwrap();
    assert!(last.gone);
    let (changes, _) = store.changes(POD, start, 10).unwrap();
    let deleted: Vec<_> = changes.iter().map(|c| c.deleted).collect();
    assert_eq!(deleted, [false, false, true]);
    assert!(changes.is_sorted_by_key(|c| c.version));
    assert_eq!(store.get(POD, "default", "a").unwrap_err().code, 404);
    let error = store.delete(POD, "default", "a", &DeleteOptions::default()).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (404, "pods \"a\" not found"));
}

#[test]
fn the_last_finalizer_takes_the_pod_with_it() {
    let store = store();
    let mut object = pod("a", "n1");
    set(&mut object, &["metadata", "finalizers"], json!(["x", "y"]));
    let uid = meta(&store.create(POD, "default", object, false).unwrap(), "uid").to_owned();
    store.delete(POD, "default", "a", &DeleteOptions::at_once(&uid)).unwrap();
    let keep = |finalizers: Value| {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
        store.patch(POD, "default", "a", Part::Whole, &patch, false)
    };
    assert_eq!(keep(json!(["x", "y", "z"])).unwrap_err().code, 422);
    keep(json!(["x"])).unwrap();
    assert_eq!(store.count(POD), 1);
    keep(json!([])).unwrap();
    assert_eq!(store.count(POD), 0);
}

#[test]
fn pages_are_of_one_version_whatever_happens_in_between() {
    let store = with_pods(&["a", "b", "c", "d"]);
    let first = page(&store, 2, None, AtVersion::Newest);
    assert_eq!((names(&first), first.remaining), (vec!["a", "b"], Some(2)));
    let uid = meta(&store.get(POD, "default", "c").unwrap(), "uid").to_owned();
    store.delete(POD, "default", "c", &DeleteOptions::at_once(&uid)).unwrap();
    store.create(POD, "default", pod("bb", ""), false).unwrap();
    label(&store, "d", "new");
    let second = page(&store, 2, first.next, AtVersion::Newest);
    assert_eq!(names(&second), ["c", "d"]);
    assert_eq!(second.items[1]["metadata"]["labels"].get("x"), None);
    assert_eq!((second.version, second.next), (first.version, None));
    let exact = page(&store, 0, None, AtVersion::Exactly(first.version));
    assert_eq!(names(&exact), ["a", "b", "c", "d"]);
    let now = page(&store, 0, None, AtVersion::Newest);
    assert_eq!(names(&now), ["a", "b", "bb", "d"]);
}

#[test]
fn a_page_that_is_too_old_is_refused_and_one_from_the_future_as_well() {
    let store = with_pods(&["a", "b"]);
    let first = page(&store, 1, None, AtVersion::Newest);
    label(&store, "a", "1");
    store.compact(POD);
    let list = |from: Option<String>, version| {
        let paging = Paging { limit: 1, from, version };
        store.list(POD, &Selector::default(), &paging).unwrap_err()
    };
    assert_eq!(list(first.next, AtVersion::Newest).code, 410);
    assert_eq!(list(None, AtVersion::NotOlderThan(999)).code, 504);
    assert_eq!(list(Some("nonsense".to_owned()), AtVersion::Newest).code, 400);
}

#[test]
fn a_list_is_confined_to_its_namespace() {
    let store = with_pods(&["a"]);
    store.ensure_namespace("defaults");
    store.create(POD, "defaults", pod("b", ""), false).unwrap();
    let selector = Selector::parse(POD, Some("default"), "", "").unwrap();
    let page = store.list(POD, &selector, &Paging::default()).unwrap();
    assert_eq!(names(&page), ["a"]);
}

#[tokio::test]
async fn who_waits_for_a_resource_is_woken_by_it_and_by_no_other() {
    let store = store();
    let (mut pods, nodes) = (store.signal(POD), store.signal(Resource::Nodes));
    store.create(POD, "default", pod("a", ""), false).unwrap();
    pods.changed().await;
    assert!(!nodes.has_changed());
}

#[test]
fn a_follower_sees_every_change_in_order_and_none_from_before() {
    let store = store();
    store.create(POD, "default", pod("before", ""), false).unwrap();
    let mut changes = store.follow();
    let start = store.version();
    let node = json!({"metadata": {"name": "n1"}});
    store.create(Resource::Nodes, "", node, false).unwrap();
    store.delete(Resource::Nodes, "", "n1", &DeleteOptions::default()).unwrap();
    let seen: Vec<_> =
        std::iter::from_fn(|| changes.try_recv().ok()).map(|c| (c.version, c.deleted)).collect();
    assert_eq!(seen, [(start + 1, false), (start + 2, true)]);
    drop(changes);
    // Nobody is left to tell, which hinders nobody.
    store.create(POD, "default", pod("after", ""), false).unwrap();
}

/// Runs `work` on a thread of its own. A deadlock fails the test instead of hanging it.
fn ends<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    let outcome = ended.recv_timeout(std::time::Duration::from_secs(60));
    outcome.expect("the work ends; it waits for itself")
}

#[test]
fn a_follower_may_ask_and_write_the_store_while_it_holds_what_another_writer_wants() {
    let store = store();
    let mut changes = store.follow();
    let notes = Arc::new(Mutex::new(Vec::new()));
    let writer = {
        let (store, notes) = (store.clone(), Arc::clone(&notes));
        std::thread::spawn(move || {
            for number in 0..200 {
                store.create(POD, "default", pod(&format!("a{number}"), ""), false).unwrap();
                notes.lock().push(format!("a{number}"));
            }
        })
    };
    let seen = ends(move || {
        let mut seen = Vec::new();
        while seen.len() < 200 {
            let Some(change) = changes.blocking_recv() else { break };
            let name = change.current["metadata"]["name"].as_str().unwrap().to_owned();
            if let Some(number) = name.strip_prefix('a') {
                let _held = notes.lock();
                assert!(store.get(POD, "default", &name).is_ok());
                let answer = pod(&format!("b{number}"), "");
                store.create(POD, "default", answer, false).unwrap();
                seen.push(name);
            }
        }
        seen
    });
    writer.join().unwrap();
    let expected: Vec<_> = (0..200).map(|number| format!("a{number}")).collect();
    assert_eq!(seen, expected);
}

#[test]
fn a_change_may_ask_and_write_the_store_from_within() {
    let store = store();
    store.create(POD, "default", pod("a", ""), false).unwrap();
    let stored = ends(move || {
        let change = |old: &Value| {
            assert!(store.get(POD, "default", "a").is_ok());
            // It is there already the second time.
            let _ = store.create(POD, "default", pod("b", ""), false);
            let mut next = old.clone();
            next["metadata"]["labels"]["seen"] = json!("true");
            Ok(next)
        };
        store.modify(POD, "default", "a", Part::Whole, false, change).unwrap()
    });
    assert_eq!(stored["metadata"]["labels"]["seen"], "true");
}

#[test]
fn of_changes_made_at_the_same_time_none_is_lost() {
    let store = store();
    store.create(POD, "default", pod("a", ""), false).unwrap();
    let count = |value: &Value| {
        value["metadata"]["annotations"]["n"].as_str().map_or(0, |n| n.parse().unwrap())
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let change = |old: &Value| {
                        let mut next = old.clone();
                        let n: u32 = count(old);
                        std::thread::yield_now();
                        next["metadata"]["annotations"]["n"] = (n + 1).to_string().into();
                        Ok(next)
                    };
                    store.modify(POD, "default", "a", Part::Whole, false, change).unwrap();
                }
            });
        }
    });
    assert_eq!(count(&store.get(POD, "default", "a").unwrap()), 400);
}

#[test]
fn a_pod_is_bound_once() {
    let store = store();
    store.create(POD, "default", pod("a", ""), false).unwrap();
    store.bind("default", "a", "n1").unwrap();
    assert_eq!(store.get(POD, "default", "a").unwrap()["spec"]["nodeName"], "n1");
    assert_eq!(store.bind("default", "a", "n2").unwrap_err().code, 409);
}

#[test]
fn apply_creates_what_is_not_there() {
    let store = store();
    let patch = Patch::Apply(pod("a", "n1"));
    store.patch(POD, "default", "a", Part::Whole, &patch, false).unwrap();
    store.patch(POD, "default", "a", Part::Whole, &patch, false).unwrap();
    assert_eq!(store.count(POD), 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_goes_back_has_lower_versions_and_forgets_what_lay_between() {
    let cluster = Embedded::new(Clock::system(), Options::default());
    let store = cluster.store();
    for name in ["kept", "lost", "changed"] {
        store.create(POD, "default", pod(name, "n1"), false).unwrap();
    }
    let snapshot = store.snapshot();
    let then = store.version();
    label(store, "changed", "later");
    let at_once = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
    store.delete(POD, "default", "lost", &at_once).unwrap();
    store.create(POD, "default", pod("new", "n1"), false).unwrap();
    let later = store.version();
    let mut told = store.follow();

    cluster.go_back_to(&snapshot);
    assert_eq!(store.version(), then);
    let listed = page(store, 0, None, AtVersion::Newest);
    assert_eq!(names(&listed), ["changed", "kept", "lost"]);
    assert!(listed.items[0].pointer("/metadata/labels/x").is_none());
    let mut changes = Vec::new();
    while let Ok(change) = told.try_recv() {
        changes.push((meta(&change.current, "name").to_owned(), change.deleted));
    }
    let expected = [("new", true), ("changed", false), ("lost", false)];
    assert_eq!(changes, expected.map(|(name, deleted)| (name.to_owned(), deleted)));

    assert!(store.changes(POD, later, 10).is_err(), "of the future nothing is known");
    for number in 0..5 {
        label(store, "kept", &number.to_string());
    }
    let (changes, _) = store.changes(POD, later, 10).unwrap();
    let after: Vec<_> = changes.iter().map(|change| change.version).collect();
    assert_eq!(after, (later + 1..=then + 5).collect::<Vec<_>>(), "and then what comes after");
    assert!(!after.is_empty());
    assert!(store.changes(POD, then - 1, 10).is_err(), "what lies before is expired");
}

#[test]
fn annotations_that_are_too_long_are_refused_and_others_stay_as_they_are() {
    let store = with_pods(&["a"]);
    let patch = |text: String| Patch::Merge(json!({"metadata": {"annotations": {"k": text}}}));
    let write = |text| store.patch(POD, "default", "a", Part::Whole, &patch(text), false);
    write("x".repeat((256 << 10) - 1)).unwrap();
    let error = write("x".repeat(256 << 10)).unwrap_err();
    assert_eq!((error.code, error.reason), (422, "Invalid"));
    assert!(error.message.contains("metadata.annotations: Too long"), "{}", error.message);
    let stored = store.get(POD, "default", "a").unwrap();
    assert_eq!(
        stored["metadata"]["annotations"]["k"].as_str().map(str::len),
        Some((256 << 10) - 1)
    );
}
