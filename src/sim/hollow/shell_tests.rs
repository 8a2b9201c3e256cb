//! Tests of hollow kubelets with a small API server in the same process, in virtual time: which requests
//! are sent, and what happens when they fail.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use http::{Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep};

use super::testing::{pod, uid};
use super::{HollowKubelets, HollowNode, Options, StaticPod, Switch};

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// An API server that stores whatever it is sent, and can be made to fail.
#[derive(Clone)]
struct FakeApi(Arc<Mutex<Store>>);

struct Store {
    version: u64,
    /// By path.
    objects: BTreeMap<String, Value>,
    /// Collection and event; closed to cut all watches.
    events: broadcast::Sender<(String, Value)>,
    /// Requests other than lists and watches, in short.
    log: Vec<String>,
    /// Lists and watches, and the lists among them.
    reads: usize,
    lists: usize,
    /// How many of the next requests fail, and how.
    faults: usize,
    fault: Fault,
    /// The path of an object that someone else deletes right before it is changed.
    vanishing: Option<String>,
}

#[derive(Clone, Copy)]
enum Fault {
    Code(u16),
    Silence,
}

impl FakeApi {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Store {
            version: 1,
            objects: BTreeMap::new(),
            events: broadcast::channel(1024).0,
            log: Vec::new(),
            reads: 0,
            lists: 0,
            faults: 0,
            fault: Fault::Silence,
            vanishing: None,
        })))
    }

    fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.answer(request).await) }
        });
        Client::new(service, "default")
    }

    fn fail(&self, times: usize, fault: Fault) {
        let mut store = self.0.lock();
        store.faults = times;
        store.fault = fault;
    }

    fn cut_watches(&self) {
        self.0.lock().events = broadcast::channel(1024).0;
    }

    fn put(&self, path: &str, object: Value) {
        self.0.lock().put(path, object);
    }

    fn get(&self, path: &str) -> Option<Value> {
        self.0.lock().objects.get(path).cloned()
    }

    /// What was sent since the last call, leases left out.
    fn log(&self) -> Vec<String> {
        let mut log = std::mem::take(&mut self.0.lock().log);
        log.retain(|line| !line.contains("/leases"));
        log
    }

    fn reads(&self) -> usize {
        self.0.lock().reads
    }

    async fn answer(&self, request: Request<Body>) -> Answer {
        let fault = {
            let mut store = self.0.lock();
            let fault = (store.faults > 0).then_some(store.fault);
            store.faults = store.faults.saturating_sub(1);
            fault
        };
        match fault {
            Some(Fault::Silence) => std::future::pending().await,
            Some(Fault::Code(code)) => return refusal(code),
            None => {}
        }
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let path = parts.uri.path();
        let query = parts.uri.query().unwrap_or_default();
        let is_collection =
            path.ends_with("/pods") || path.ends_with("/nodes") || path.ends_with("/leases");
        let mut store = self.0.lock();
        if parts.method == Method::GET && is_collection {
            store.reads += 1;
            return if query.contains("watch=true") { store.watch(path) } else { store.list(path) };
        }
        store.log.push(format!("{} {path} {}", parts.method, String::from_utf8_lossy(&body)));
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        match parts.method {
            Method::POST => store.create(path, body),
            Method::PATCH => store.change(path.trim_end_matches("/status"), &body),
            Method::DELETE => store.delete(path, &body),
            _ => refusal(405),
        }
    }
}

impl Store {
    fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let kind = if self.objects.contains_key(path) { "MODIFIED" } else { "ADDED" };
        self.objects.insert(path.to_owned(), object.clone());
        self.tell(path, kind, &object);
        object
    }

    fn remove(&mut self, path: &str) -> Value {
        let object = self.objects.remove(path).unwrap();
        self.tell(path, "DELETED", &object);
        object
    }

    fn tell(&self, path: &str, kind: &str, object: &Value) {
        let plural = path.rsplit('/').nth(1).unwrap();
        let event = (format!("/api/v1/{plural}"), json!({"type": kind, "object": object}));
        // Nobody need be watching.
        let _ = self.events.send(event);
    }

    fn list(&mut self, path: &str) -> Answer {
        self.lists += 1;
        let plural = path.rsplit('/').next().unwrap();
        let of = |path: &str| path.rsplit('/').nth(1) == Some(plural);
        let items: Vec<_> =
            self.objects.iter().filter(|(path, _)| of(path)).map(|(_, o)| o).collect();
        let version = self.version.to_string();
        answer(200, &json!({"metadata": {"resourceVersion": version}, "items": items}))
    }

    fn watch(&self, path: &str) -> Answer {
        let path = path.to_owned();
        let events = stream::unfold(self.events.subscribe(), |mut events| async {
            events.recv().await.ok().map(|event| (event, events))
        });
        let events = events.filter_map(move |(collection, event)| {
            let line = Bytes::from(format!("{event}\n"));
            let frame = (collection == path).then(|| Ok(Frame::data(line)));
            std::future::ready(frame)
        });
        Response::new(StreamBody::new(events).boxed_unsync())
    }

    fn create(&mut self, path: &str, mut object: Value) -> Answer {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let path = format!("{path}/{name}");
        if self.objects.contains_key(&path) {
            return refusal(409);
        }
        object["metadata"]["uid"] = json!(uid(&format!("{name} {}", self.version)));
        answer(201, &self.put(&path, object))
    }

    fn change(&mut self, path: &str, by: &Value) -> Answer {
        if self.vanishing.take_if(|vanishing| vanishing.as_str() == path).is_some() {
            self.remove(path);
        }
        let Some(mut object) = self.objects.get(path).cloned() else {
            return refusal(404);
        };
        merge(&mut object, by);
        answer(200, &self.put(path, object))
    }

    fn delete(&mut self, path: &str, options: &Value) -> Answer {
        let Some(object) = self.objects.get(path) else {
            return refusal(404);
        };
        if let Some(uid) = options["preconditions"]["uid"].as_str()
            && object["metadata"]["uid"] != uid
        {
            return refusal(409);
        }
        answer(200, &self.remove(path))
    }
}

/// A merge patch; the conditions of a strategic one are merged by type.
fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(patch))
            if patch.iter().any(|item| item["type"].is_string()) =>
        {
            for item in patch {
                into.retain(|old| old["type"] != item["type"]);
                into.push(item.clone());
            }
        }
        (into, patch) => *into = patch.clone(),
    }
}

fn answer(code: u16, body: &Value) -> Answer {
    let body = Full::new(Bytes::from(body.to_string())).boxed_unsync();
    Response::builder().status(code).body(body).unwrap()
}

fn refusal(code: u16) -> Answer {
    let reason = match code {
        404 => "NotFound",
        409 => "AlreadyExists",
        _ => "",
    };
    answer(code, &json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code}))
}

const POD: &str = "/api/v1/namespaces/default/pods/a";

fn options() -> Options {
    Options { seed: 1, ..Options::default() }
}

async fn kubelets(api: &FakeApi) -> HollowKubelets {
    let kubelets = HollowKubelets::start(api.client(), options()).await.unwrap();
    kubelets.add_node(HollowNode::new("n1")).await.unwrap();
    kubelets
}

/// Waits for at most that long, in virtual time.
async fn within(seconds: u64, what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(seconds);
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within {seconds} s");
        sleep(Duration::from_millis(50)).await;
    }
}

fn phase(api: &FakeApi) -> Option<String> {
    Some(api.get(POD)?["status"]["phase"].as_str()?.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_node_is_registered_with_its_status_and_a_lease_that_it_owns() {
    let api = FakeApi::new();
    let kubelets = kubelets(&api).await;
    let node = api.get("/api/v1/nodes/n1").unwrap();
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "n1");
    assert_eq!(node["status"]["allocatable"]["pods"], "110");
    assert_eq!(node["status"]["conditions"][3]["type"], "Ready");
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";
    let before = api.get(lease).unwrap();
    assert_eq!(before["metadata"]["ownerReferences"][0]["uid"], node["metadata"]["uid"]);
    sleep(Duration::from_secs(11)).await;
    let after = api.get(lease).unwrap();
    assert_ne!(before["spec"]["renewTime"], after["spec"]["renewTime"]);
    kubelets.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_silent_from_the_beginning_is_nothing_but_an_object() {
    let api = FakeApi::new();
    let kubelets = HollowKubelets::start(api.client(), options()).await.unwrap();
    let node = HollowNode::new("n1").with(Switch::Silent(true));
    kubelets.add_node(node).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(api.get("/api/v1/nodes/n1").unwrap().get("status"), None);
    assert_eq!(api.0.lock().log.len(), 1, "no status and no lease");
    kubelets.set("n1", Switch::Silent(false)).await.unwrap();
    within(1, "reported", || api.get("/api/v1/nodes/n1").unwrap().get("status").is_some()).await;
    kubelets.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_lives_and_its_deletion_is_carried_out_in_two_writes() {
    let api = FakeApi::new();
    let kubelets = kubelets(&api).await;
    api.log();
    api.put(POD, pod("a").0);
    within(1, "running", || phase(&api).as_deref() == Some("Running")).await;
    let mut deleted = api.get(POD).unwrap();
    merge(&mut deleted, &json!({"metadata": pod("a").deleted(30).0["metadata"]}));
    api.put(POD, deleted);
    within(2, "gone", || api.get(POD).is_none()).await;
    let log = api.log();
    assert_eq!(log.len(), 3, "{log:#?}");
    assert!(log[0].starts_with(&format!("PATCH {POD}/status")));
    assert!(log[1].starts_with(&format!("PATCH {POD}/status")) && log[1].contains("Succeeded"));
    assert!(log[2].starts_with(&format!("DELETE {POD}")));
    let options: Value = serde_json::from_str(log[2].splitn(3, ' ').nth(2).unwrap()).unwrap();
    assert_eq!(options["gracePeriodSeconds"], 0);
    assert_eq!(options["preconditions"], json!({"uid": uid("a")}));
    kubelets.stop().await;
}

#[tokio::test(start_paused = true)]
async fn errors_and_requests_without_answer_delay_the_work_and_lose_nothing() {
    for fault in [Fault::Code(500), Fault::Code(429), Fault::Silence] {
        let api = FakeApi::new();
        let kubelets = kubelets(&api).await;
        api.fail(3, fault);
        api.put(POD, pod("a").0);
        within(60, "running", || phase(&api).as_deref() == Some("Running")).await;
        kubelets.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_registration_survives_errors_too_but_not_a_refusal() {
    let api = FakeApi::new();
    let kubelets = HollowKubelets::start(api.client(), options()).await.unwrap();
    api.fail(4, Fault::Code(503));
    kubelets.add_node(HollowNode::new("n1")).await.unwrap();
    api.fail(1, Fault::Code(403));
    let refused = kubelets.add_node(HollowNode::new("n2")).await.unwrap_err().to_string();
    assert!(refused.starts_with("node n2 could not be registered: "), "{refused}");
    kubelets.add_node(HollowNode::new("n1")).await.unwrap();
    kubelets.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_collected_during_the_registration_is_made_anew() {
    let api = FakeApi::new();
    let kubelets = kubelets(&api).await;
    kubelets.remove_node("n1").await.unwrap();
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";
    api.0.lock().vanishing = Some(lease.to_owned());
    kubelets.add_node(HollowNode::new("n1")).await.unwrap();
    let node = api.get("/api/v1/nodes/n1").unwrap();
    let owner = &api.get(lease).unwrap()["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], node["metadata"]["uid"]);
    kubelets.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_happens_while_the_watch_is_cut_is_made_up_for() {
    let api = FakeApi::new();
    let kubelets = kubelets(&api).await;
    let reads = api.reads();
    api.fail(6, Fault::Code(500));
    api.cut_watches();
    api.put(POD, pod("a").0);
    // This fake has no history to resume from; what the new watch brings is what comes after it.
    within(30, "watched again", || api.reads() >= reads + 2).await;
    api.put(POD, pod("a").0);
    within(30, "running", || phase(&api).as_deref() == Some("Running")).await;
    kubelets.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_falls_silent_is_begun_afresh_with_a_list() {
    let api = FakeApi::new();
    let kubelets = kubelets(&api).await;
    // The next watches get no answer; nothing tells but the lack of news.
    api.fail(2, Fault::Silence);
    api.cut_watches();
    sleep(Duration::from_millis(10)).await;
    api.put(POD, pod("a").0);
    within(200, "running", || phase(&api).as_deref() == Some("Running")).await;
    sleep(Duration::from_secs(5)).await;
    // A watch that was answered may be without news for longer.
    let lists = api.0.lock().lists;
    sleep(Duration::from_secs(100)).await;
    assert_eq!(api.0.lock().lists, lists);
    kubelets.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_sends_nothing_once_the_switch_is_set() {
    let api = FakeApi::new();
    let kubelets = kubelets(&api).await;
    kubelets.set("n1", Switch::Silent(true)).await.unwrap();
    api.0.lock().log.clear();
    api.put(POD, pod("a").0);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(api.0.lock().log, Vec::<String>::new());
    kubelets.set("n1", Switch::Silent(false)).await.unwrap();
    within(1, "running", || phase(&api).as_deref() == Some("Running")).await;
    let unknown = kubelets.set("n2", Switch::Silent(true)).await.unwrap_err();
    assert_eq!(unknown.to_string(), "there is no hollow node n2; add it first");
    kubelets.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_mirror_pod_that_is_deleted_comes_back_as_another() {
    const MIRROR: &str = "/api/v1/namespaces/kube-system/pods/proxy-n1";
    let api = FakeApi::new();
    let kubelets = HollowKubelets::start(api.client(), options()).await.unwrap();
    let node = HollowNode::new("n1").static_pod(StaticPod::new("kube-system", "proxy"));
    kubelets.add_node(node).await.unwrap();
    within(1, "published", || api.get(MIRROR).is_some()).await;
    let first = api.0.lock().remove(MIRROR);
    within(2, "published again", || api.get(MIRROR).is_some()).await;
    let second = api.get(MIRROR).unwrap();
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
    assert_eq!(first["metadata"]["name"], second["metadata"]["name"]);
    kubelets.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_removed_node_is_deleted_and_not_served_any_more() {
    let api = FakeApi::new();
    let kubelets = kubelets(&api).await;
    kubelets.remove_node("n1").await.unwrap();
    assert_eq!(api.get("/api/v1/nodes/n1"), None);
    api.log();
    api.put(POD, pod("a").0);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(api.log(), Vec::<String>::new());
    assert!(kubelets.set("n1", Switch::Silent(true)).await.is_err());
    kubelets.stop().await;
}

#[tokio::test(start_paused = true)]
async fn after_the_stop_nothing_is_read_or_written() {
    let api = FakeApi::new();
    let kubelets = kubelets(&api).await;
    kubelets.stop().await;
    let reads = api.reads();
    api.0.lock().log.clear();
    api.cut_watches();
    api.put(POD, pod("a").0);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(api.reads(), reads);
    assert_eq!(api.0.lock().log, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_a_request_on_its_way_no_longer_than_its_timeout() {
    let api = FakeApi::new();
    let kubelets = kubelets(&api).await;
    api.fail(1, Fault::Silence);
    api.put(POD, pod("a").0);
    sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    kubelets.stop().await;
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(9) && took <= Duration::from_secs(10), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_start_without_api_server_says_so() {
    let api = FakeApi::new();
    api.fail(usize::MAX, Fault::Code(503));
    let error = HollowKubelets::start(api.client(), options()).await.err().unwrap();
    assert!(error.to_string().contains("is the API server up"), "{error}");
    // And its tasks are gone.
    let reads = api.reads();
    api.fail(0, Fault::Silence);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(api.reads(), reads);
}
