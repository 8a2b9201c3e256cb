//! Tests of the API with a real client, over loopback and inside the process.

use std::future::Future;
use std::time::Duration;

use ahash::AHashSet;
use bytes::Bytes;
use futures::{AsyncBufReadExt, StreamExt, TryStreamExt};
use http::Request;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::api::events::v1::Event as NewEvent;
use k8s_openapi::api::policy::v1::Eviction;
use kube::api::{
    Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent,
    WatchParams,
};
use kube::core::PartialObjectMeta;
use kube::{Client, Config, ResourceExt};
use serde_json::{Value, json};

use super::{Embedded, Fault, Options, Resource, Rule, Verb};
use crate::clock::Clock;
use crate::cluster::watch::{self, Index, Source};
use crate::cluster::{self, DecodeError, PodDecoder};
use crate::model::Uid;

fn cluster() -> Embedded {
    let noon = "2026-01-01T12:00:00Z".parse().unwrap();
    Embedded::new(Clock::starting_at(noon), Options::default())
}

fn add_pod(cluster: &Embedded, name: &str, node: &str) {
    let pod = json!({
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "c", "image": "i"}],
        },
        "status": {"phase": "Running"},
    });
    cluster.store().insert(Resource::Pods, pod).unwrap();
}

/// Runs the test twice: over loopback, and inside the process.
async fn both_ways<F: Future<Output = ()>>(test: impl Fn(Embedded, Client) -> F) {
    let inside = cluster();
    let client = inside.client();
    test(inside, client).await;
    let outside = cluster();
    let served = outside.serve(([127, 0, 0, 1], 0).into()).await.unwrap();
    let mut config = Config::new(served.url().parse().unwrap());
    config.default_retry = false;
    test(outside, Client::try_from(config).unwrap()).await;
    served.stop().await;
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, what).await.expect("nothing came")
}

async fn ask(client: &Client, path: &str, accept: &str) -> Value {
    let request = Request::get(path).header("Accept", accept).body(Vec::new());
    let text = client.request_text(request.unwrap()).await.unwrap();
    serde_json::from_str(&text).unwrap()
}

fn code<T: std::fmt::Debug>(result: kube::Result<T>) -> (u16, String) {
    match result.unwrap_err() {
        kube::Error::Api(status) => (status.code, status.reason),
        other => panic!("{other:?}"),
    }
}

fn shown<K: ResourceExt>(event: &WatchEvent<K>) -> String {
    match event {
        WatchEvent::Added(o) => format!("+{}", o.name_any()),
        WatchEvent::Modified(o) => format!("~{}", o.name_any()),
        WatchEvent::Deleted(o) => format!("-{}", o.name_any()),
        WatchEvent::Bookmark(b) if b.metadata.annotations.is_empty() => "bookmark".to_owned(),
        WatchEvent::Bookmark(_) => "end".to_owned(),
        WatchEvent::Error(status) => format!("error {}", status.code),
    }
}

#[tokio::test]
async fn a_client_creates_reads_changes_and_deletes() {
    both_ways(|cluster, client| async move {
        let pods: Api<Pod> = Api::default_namespaced(client);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
        }))
        .unwrap();
        let params = PostParams::default();
        let created = pods.create(&params, &pod).await.unwrap();
        assert_eq!(created.uid().unwrap().len(), 36);
        assert_eq!(code(pods.create(&params, &pod).await), (409, "AlreadyExists".into()));
        let patch = json!({"metadata": {"labels": {"x": "y"}}});
        let apply = PatchParams::default();
        let patched = pods.patch("a", &apply, &Patch::Strategic(patch)).await.unwrap();
        assert_eq!(patched.labels()["x"], "y");
        let stale = pods.replace("a", &params, &created).await;
        assert_eq!(code(stale), (409, "Conflict".into()));
        let wrong = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some("another".into()),
                ..Preconditions::default()
            }),
            ..DeleteParams::default()
        };
        assert_eq!(code(pods.delete("a", &wrong).await), (409, "Conflict".into()));
        let left = pods.delete("a", &DeleteParams::default()).await.unwrap().left().unwrap();
        assert_eq!(left.metadata.deletion_grace_period_seconds, Some(30));
        pods.delete("a", &DeleteParams::default().grace_period(0)).await.unwrap();
        assert_eq!(code(pods.get("a").await), (404, "NotFound".into()));
        assert_eq!(cluster.store().count(Resource::Pods), 0);
    })
    .await;
}

#[tokio::test]
async fn pages_and_selectors_reach_the_store() {
    both_ways(|cluster, client| async move {
        for name in ["a", "b", "c"] {
            add_pod(&cluster, name, if name == "b" { "n2" } else { "n1" });
        }
        let pods: Api<Pod> = Api::all(client);
        let on_node = ListParams::default().fields("spec.nodeName=n1").limit(1);
        let first = pods.list(&on_node).await.unwrap();
        assert_eq!(first.items[0].name_any(), "a");
        let next = on_node.clone().continue_token(&first.metadata.continue_.unwrap());
        let second = pods.list(&next).await.unwrap();
        assert_eq!(second.items[0].name_any(), "c");
        assert_eq!(second.metadata.continue_, None);
        let labelled = ListParams::default().labels("app in (b,c)");
        assert_eq!(pods.list(&labelled).await.unwrap().items.len(), 2);
        let unknown = ListParams::default().fields("spec.colour=red");
        assert_eq!(code(pods.list(&unknown).await).0, 400);
    })
    .await;
}

#[tokio::test]
async fn a_page_of_a_forgotten_version_is_gone() {
    both_ways(|cluster, client| async move {
        for name in ["a", "b"] {
            add_pod(&cluster, name, "n1");
        }
        let pods: Api<Pod> = Api::all(client);
        let params = ListParams::default().limit(1);
        let token = pods.list(&params).await.unwrap().metadata.continue_.unwrap();
        add_pod(&cluster, "c", "n1");
        cluster.store().compact(Resource::Pods);
        let late = pods.list(&params.clone().continue_token(&token)).await;
        assert_eq!(code(late), (410, "Expired".into()));
    })
    .await;
}

#[tokio::test]
async fn a_watch_shows_the_state_and_then_every_change() {
    both_ways(|cluster, client| async move {
        add_pod(&cluster, "a", "n1");
        add_pod(&cluster, "other", "n2");
        let pods: Api<Pod> = Api::all(client);
        let params = WatchParams::default().fields("spec.nodeName=n1");
        let mut watch = pods.watch(&params, "0").await.unwrap().boxed();
        let mut next = async || shown(&soon(watch.try_next()).await.unwrap().unwrap());
        assert_eq!(next().await, "+a");
        assert_eq!(next().await, "end");
        add_pod(&cluster, "b", "n1");
        add_pod(&cluster, "c", "n2");
        assert_eq!(next().await, "+b");
        pods_patch(&cluster, "a");
        assert_eq!(next().await, "~a");
        let options = super::DeleteOptions::default();
        cluster.store().delete(Resource::Pods, "default", "a", &options).unwrap();
        assert_eq!(next().await, "~a");
        let now = super::DeleteOptions { grace_period_seconds: Some(0), ..options };
        cluster.store().delete(Resource::Pods, "default", "a", &now).unwrap();
        assert_eq!(next().await, "~a");
        assert_eq!(next().await, "-a");
    })
    .await;
}

fn pods_patch(cluster: &Embedded, name: &str) -> String {
    let version = cluster.store().version();
    let patch = super::Patch::Merge(json!({"metadata": {"labels": {"x": version.to_string()}}}));
    let part = super::Part::Whole;
    let pod = cluster.store().patch(Resource::Pods, "default", name, part, &patch, false).unwrap();
    pod["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_watch_resumes_after_the_version_it_is_given() {
    both_ways(|cluster, client| async move {
        add_pod(&cluster, "a", "n1");
        let version = pods_patch(&cluster, "a");
        pods_patch(&cluster, "a");
        add_pod(&cluster, "b", "n1");
        let pods: Api<Pod> = Api::all(client);
        let watch = pods.watch(&WatchParams::default(), &version).await.unwrap();
        let events: Vec<_> = soon(watch.take(2).try_collect()).await.unwrap();
        assert_eq!(events.iter().map(shown).collect::<Vec<_>>(), ["~a", "+b"]);
    })
    .await;
}

#[tokio::test]
async fn a_watch_from_a_forgotten_version_ends_with_an_error_in_the_stream() {
    both_ways(|cluster, client| async move {
        add_pod(&cluster, "a", "n1");
        let version = pods_patch(&cluster, "a");
        pods_patch(&cluster, "a");
        cluster.store().compact(Resource::Pods);
        let pods: Api<Pod> = Api::all(client);
        let watch = pods.watch(&WatchParams::default(), &version).await.unwrap();
        let events: Vec<_> = soon(watch.try_collect()).await.unwrap();
        assert_eq!(events.iter().map(shown).collect::<Vec<_>>(), ["error 410"]);
    })
    .await;
}

#[tokio::test]
async fn a_streamed_list_says_where_it_ends() {
    both_ways(|cluster, client| async move {
        add_pod(&cluster, "a", "n1");
        let pods: Api<Pod> = Api::all(client);
        let params = WatchParams::default().initial_events();
        let mut watch = pods.watch(&params, "0").await.unwrap().boxed();
        let mut next = async || shown(&soon(watch.try_next()).await.unwrap().unwrap());
        assert_eq!(next().await, "+a");
        assert_eq!(next().await, "end");
        add_pod(&cluster, "b", "n1");
        assert_eq!(next().await, "+b");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_quiet_watch_sends_bookmarks_and_ends_when_its_time_is_over() {
    let cluster = cluster();
    add_pod(&cluster, "a", "n1");
    let pods: Api<Pod> = Api::all(cluster.client());
    let params = WatchParams::default().timeout(150);
    let watch = pods.watch(&params, "0").await.unwrap();
    let start = tokio::time::Instant::now();
    let events: Vec<_> = watch.try_collect().await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(150));
    let events: Vec<_> = events.iter().map(shown).collect();
    assert_eq!(events, ["+a", "end", "bookmark", "bookmark", "bookmark"]);
}

#[tokio::test]
async fn an_eviction_carries_its_options() {
    both_ways(|cluster, client| async move {
        add_pod(&cluster, "a", "n1");
        let pods: Api<Pod> = Api::default_namespaced(client);
        let evict = async |uid: &str| {
            let body: Eviction = serde_json::from_value(json!({
                "metadata": {"name": "a"},
                "deleteOptions": {"gracePeriodSeconds": 7, "preconditions": {"uid": uid}},
            }))
            .unwrap();
            let params = PostParams::default();
            pods.create_subresource::<Eviction, Value>("eviction", "a", &params, &body).await
        };
        assert_eq!(code(evict("another").await), (409, "Conflict".into()));
        let uid = pods.get("a").await.unwrap().uid().unwrap();
        assert_eq!(evict(&uid).await.unwrap()["status"], "Success");
        let pod = pods.get("a").await.unwrap();
        assert_eq!(pod.metadata.deletion_grace_period_seconds, Some(7));
    })
    .await;
}

#[tokio::test]
async fn a_refused_eviction_says_when_to_come_back() {
    both_ways(|cluster, client| async move {
        add_pod(&cluster, "a", "n1");
        let budget = json!({
            "metadata": {"name": "b", "namespace": "default", "generation": 1},
            "spec": {"minAvailable": 1, "selector": {}},
        });
        cluster.store().insert(Resource::PodDisruptionBudgets, budget).unwrap();
        let path = "/api/v1/namespaces/default/pods/a/eviction";
        let request = Request::post(path).body(b"{}".to_vec().into()).unwrap();
        let answer = client.send(request).await.unwrap();
        assert_eq!(answer.status(), 429);
        assert_eq!(answer.headers()["retry-after"], "10");
    })
    .await;
}

#[tokio::test]
async fn nodes_are_tainted_and_their_status_is_written_apart() {
    both_ways(|cluster, client| async move {
        let nodes: Api<Node> = Api::all(client);
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
        let params = PatchParams::default();
        let taints = json!({"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}});
        nodes.patch("n1", &params, &Patch::Merge(taints)).await.unwrap();
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        nodes.patch_status("n1", &params, &Patch::Strategic(ready)).await.unwrap();
        let stored = cluster.store().get(Resource::Nodes, "", "n1").unwrap();
        assert_eq!(stored["spec"]["taints"][0]["key"], "k");
        assert_eq!(stored["status"]["conditions"][0]["status"], "True");
        let gone = nodes.delete("n1", &DeleteParams::default()).await.unwrap().right().unwrap();
        assert_eq!(gone.details.unwrap().name, "n1");
    })
    .await;
}

#[tokio::test]
async fn events_are_the_same_under_both_groups() {
    both_ways(|_, client| async move {
        let new: Api<NewEvent> = Api::default_namespaced(client.clone());
        let event: NewEvent = serde_json::from_value(json!({
            "metadata": {"name": "e"},
            "eventTime": "2026-01-01T12:00:00.000000Z",
            "regarding": {"kind": "Pod", "name": "a"},
            "note": "text",
            "reason": "TaintManagerEviction",
            "reportingController": "ostrakon",
        }))
        .unwrap();
        new.create(&PostParams::default(), &event).await.unwrap();
        let core: Api<Event> = Api::default_namespaced(client);
        let params = ListParams::default().fields("involvedObject.name=a");
        let found = core.list(&params).await.unwrap().items.remove(0);
        assert_eq!(found.message.as_deref(), Some("text"));
        let series =
            json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T12:01:00.000000Z"}});
        let patched = new.patch("e", &PatchParams::default(), &Patch::Merge(series)).await.unwrap();
        assert_eq!((patched.note.as_deref(), patched.series.unwrap().count), (Some("text"), 2));
        let params = ListParams::default().fields("regarding.name=b");
        assert!(new.list(&params).await.unwrap().items.is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_lease_is_taken_by_whoever_knows_its_version() {
    both_ways(|_, client| async move {
        let leases: Api<Lease> = Api::default_namespaced(client);
        let lease: Lease = serde_json::from_value(json!({
            "metadata": {"name": "l"},
            "spec": {"holderIdentity": "a", "renewTime": "2026-01-01T12:00:00.000000Z"},
        }))
        .unwrap();
        let params = PostParams::default();
        let mine = leases.create(&params, &lease).await.unwrap();
        let mut next = mine.clone();
        next.spec.as_mut().unwrap().holder_identity = Some("b".into());
        leases.replace("l", &params, &next).await.unwrap();
        next.spec.as_mut().unwrap().holder_identity = Some("c".into());
        assert_eq!(code(leases.replace("l", &params, &next).await), (409, "Conflict".into()));
    })
    .await;
}

#[tokio::test]
async fn metadata_and_tables_are_given_to_who_asks_for_them() {
    both_ways(|cluster, client| async move {
        add_pod(&cluster, "a", "n1");
        let metadata: Api<PartialObjectMeta<Pod>> = Api::default_namespaced(client.clone());
        let list = metadata.list_metadata(&ListParams::default()).await.unwrap();
        assert_eq!(list.items[0].name_any(), "a");
        let partial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        let one = ask(&client, "/api/v1/namespaces/default/pods/a", partial).await;
        assert_eq!(one["kind"], "PartialObjectMetadata");
        assert_eq!(one.get("spec"), None);
        let table = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json";
        let table = ask(&client, "/api/v1/pods", table).await;
        assert_eq!(table["kind"], "Table");
        assert_eq!(table["rows"][0]["cells"][2], "Running");
    })
    .await;
}

#[tokio::test]
async fn bad_requests_are_told_what_is_wrong() {
    both_ways(|_, client| async move {
        let status = async |method: &str, path: &str, media: &str, body: &str| {
            let request = Request::builder().method(method).uri(path);
            let request = request.header("Content-Type", media).body(body.as_bytes().to_vec());
            code(client.request_text(request.unwrap()).await).0
        };
        let json = "application/json";
        assert_eq!(status("GET", "/api/v1/secrets", json, "").await, 404);
        assert_eq!(status("PUT", "/api/v1/nodes", json, "{}").await, 405);
        assert_eq!(status("POST", "/api/v1/nodes", json, "{").await, 400);
        let protobuf = "application/vnd.kubernetes.protobuf";
        assert_eq!(status("POST", "/api/v1/nodes", protobuf, "").await, 415);
        assert_eq!(status("POST", "/api/v1/pods", json, "{}").await, 405);
        assert_eq!(status("GET", "/api/v1/nodes?limit=x", json, "").await, 400);
        let huge = "x".repeat(4 << 20);
        let got = status("POST", "/api/v1/nodes", json, &huge).await;
        assert!(matches!(got, 400 | 413), "{got}");
    })
    .await;
}

#[tokio::test]
async fn a_broken_connection_is_no_answer_whether_or_not_the_request_was_carried_out() {
    both_ways(|cluster, client| async move {
        let nodes: Api<Node> = Api::all(client);
        let create = async |name: &str| {
            let node: Node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
            nodes.create(&PostParams::default(), &node).await
        };
        let creating = |fault| Rule::always(fault).on(Verb::Create).of(Resource::Nodes).times(1);
        cluster.faults().add(creating(Fault::Cut));
        assert!(!matches!(create("n1").await, Err(kube::Error::Api(_)) | Ok(_)));
        assert_eq!(cluster.store().count(Resource::Nodes), 0);
        cluster.faults().add(creating(Fault::LoseAnswer));
        assert!(!matches!(create("n1").await, Err(kube::Error::Api(_)) | Ok(_)));
        assert_eq!(cluster.store().count(Resource::Nodes), 1);
        let refused = Fault::Refuse { code: 503, retry_after: Some(3) };
        cluster.faults().add(creating(refused));
        assert_eq!(code(create("n2").await), (503, "ServiceUnavailable".into()));
        create("n2").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn watches_are_held_cut_and_lost_on_demand() {
    both_ways(|cluster, client| async move {
        let pods: Api<Pod> = Api::all(client);
        let open = async || pods.watch(&WatchParams::default(), "0").await.unwrap().boxed();
        let mut watch = open().await;
        let mut next = async || shown(&soon(watch.try_next()).await.unwrap().unwrap());
        assert_eq!(next().await, "end");
        cluster.faults().hold_watches(Resource::Pods, true);
        add_pod(&cluster, "a", "n1");
        let quiet = tokio::time::timeout(Duration::from_millis(50), next()).await;
        assert!(quiet.is_err(), "{quiet:?}");
        cluster.faults().hold_watches(Resource::Pods, false);
        assert_eq!(next().await, "+a");
        cluster.faults().hold_watches(Resource::Pods, true);
        add_pod(&cluster, "b", "n1");
        cluster.store().compact(Resource::Pods);
        cluster.faults().hold_watches(Resource::Pods, false);
        assert_eq!(next().await, "error 410");
        let mut watch = open().await;
        for _ in ["+a", "+b", "end"] {
            soon(watch.try_next()).await.unwrap().unwrap();
        }
        cluster.faults().cut_watches(Resource::Pods);
        // kube takes a connection that breaks off for the end of the watch.
        assert!(!matches!(soon(watch.try_next()).await, Ok(Some(_))));
    })
    .await;
}

#[tokio::test]
async fn a_watch_from_the_future_waits_until_that_has_come() {
    both_ways(|cluster, client| async move {
        add_pod(&cluster, "a", "n1");
        let future = (cluster.store().version() + 1).to_string();
        let pods: Api<Pod> = Api::all(client);
        let mut watch = pods.watch(&WatchParams::default(), &future).await.unwrap().boxed();
        pods_patch(&cluster, "a");
        add_pod(&cluster, "b", "n1");
        let event = soon(watch.try_next()).await.unwrap().unwrap();
        assert_eq!(shown(&event), "+b");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_is_late_by_the_clock_of_the_test() {
    let cluster = cluster();
    let nodes: Api<Node> = Api::all(cluster.client());
    cluster.faults().add(Rule::always(Fault::Latency(Duration::from_secs(40))));
    let start = tokio::time::Instant::now();
    nodes.list(&ListParams::default()).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(40));
    cluster.faults().clear();
    cluster.faults().add(Rule::always(Fault::Hang));
    let hours = Duration::from_hours(9);
    assert!(tokio::time::timeout(hours, nodes.get("a")).await.is_err());
}

#[tokio::test]
async fn a_stopped_server_frees_its_port_and_breaks_its_watches() {
    let cluster = cluster();
    let served = cluster.serve(([127, 0, 0, 1], 0).into()).await.unwrap();
    let address = served.address();
    let client = Client::try_from(Config::new(served.url().parse().unwrap())).unwrap();
    let request = Request::get("/api/v1/pods?watch=1").body(Vec::new()).unwrap();
    let mut lines = client.request_stream(request).await.unwrap().lines();
    served.stop().await;
    assert!(!matches!(soon(lines.next()).await, Some(Ok(_))));
    let again = cluster.serve(address).await.unwrap();
    assert!(cluster.serve(again.address()).await.is_err());
}

#[tokio::test]
async fn the_kubeconfig_leads_to_the_cluster() {
    let cluster = cluster();
    let served = cluster.serve(([127, 0, 0, 1], 0).into()).await.unwrap();
    let kubeconfig = kube::config::Kubeconfig::from_yaml(&served.kubeconfig()).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    let client = Client::try_from(config).unwrap();
    assert_eq!(client.apiserver_version().await.unwrap().minor, "36");
}

/// Tells what ostrakon's own watch brings in.
struct Told {
    decoder: PodDecoder,
    tell: tokio::sync::mpsc::UnboundedSender<String>,
}

impl Told {
    fn pod(&mut self, object: &Bytes, event: &str) -> Result<Uid, DecodeError> {
        let pod = self.decoder.decode(object)?.expect("bound to a node");
        self.tell.send(format!("{event} {} on {}", pod.reference(), pod.node)).unwrap();
        Ok(pod.uid)
    }
}

impl Index for Told {
    const RESOURCE: &str = "pods";
    const KIND: &str = "Pod";
    const SELECT: &str = "&fieldSelector=spec.nodeName!%3D";

    fn apply(&mut self, object: &Bytes, by: Source) -> Result<Uid, DecodeError> {
        self.pod(object, &format!("{by:?}:"))
    }

    fn delete(&mut self, object: &Bytes) -> Result<(), DecodeError> {
        self.pod(object, "gone:").map(drop)
    }

    fn forget(&mut self, uid: Uid) {
        self.tell.send(format!("forgotten: {uid}")).unwrap();
    }

    fn retain(&mut self, seen: &AHashSet<Uid>) {
        self.tell.send(format!("{} in all", seen.len())).unwrap();
    }

    fn is_empty(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn ostrakon_lists_and_watches_in_protobuf_streamed_and_in_pages() {
    for streaming_lists in [true, false] {
        let options = Options { streaming_lists, ..Options::default() };
        let cluster = Embedded::new(Clock::system(), options);
        add_pod(&cluster, "a", "n1");
        add_pod(&cluster, "unbound", "");
        let metrics = cluster::Metrics::register(&prometheus::Registry::new()).unwrap();
        let api = cluster::Api::new(cluster.client(), metrics.clone());
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let index = Told { decoder: PodDecoder::default(), tell };
        let watching =
            tokio::spawn(watch::run(api, metrics, index, 1, watch::Relist::default(), || ()));
        let mut next = async || soon(told.recv()).await.expect("the watch ended");
        assert_eq!(next().await, "List: default/a on n1");
        assert_eq!(next().await, "1 in all");
        add_pod(&cluster, "b", "n2");
        assert_eq!(next().await, "Watch: default/b on n2");
        let options = super::DeleteOptions { grace_period_seconds: Some(0), ..Default::default() };
        cluster.store().delete(Resource::Pods, "default", "a", &options).unwrap();
        assert_eq!(next().await, "Watch: default/a on n1", "it is terminating");
        assert_eq!(next().await, "gone: default/a on n1");
        watching.abort();
    }
}
