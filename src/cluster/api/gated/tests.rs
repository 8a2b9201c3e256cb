use std::convert::Infallible;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::Registry;
use serde_json::json;
use tower::service_fn;

use super::*;
use crate::cluster::{Api, Lease, Metrics, NodeDrainPatch, Permission, StoredNode, Watched};
use crate::model::build::{node, noon, pod};
use crate::model::{NodeName, Owner, Uid};

const WITHIN: Duration = Duration::from_secs(1);

/// A client behind a gate, and the methods and paths that it has sent.
fn behind(gate: WriteGate) -> (Api, Arc<Mutex<Vec<String>>>) {
    let sent = Arc::<Mutex<Vec<String>>>::default();
    let seen = Arc::clone(&sent);
    let service = service_fn(move |request: Request<Body>| {
        seen.lock().push(format!("{} {}", request.method(), request.uri().path()));
        async { Ok::<_, Infallible>(Response::new(Body::from(b"{}".to_vec()))) }
    });
    let metrics = Metrics::register(&Registry::new()).unwrap();
    let api = Api::new(Client::new(service, "default"), metrics);
    (api.gated(gate), sent)
}

/// The method by which a call was sent through a gate, if it was sent; it is refused for `cause` only.
async fn through<T>(
    gate: WriteGate,
    cause: RequestError,
    call: impl AsyncFnOnce(Api) -> Result<T, RequestError>,
) -> Option<String> {
    let (api, sent) = behind(gate);
    let refused = call(api).await.err().is_some_and(|error| error == cause);
    let method = sent.lock().first().map(|sent| sent.split(' ').next().unwrap().to_owned());
    assert_eq!(refused, method.is_none(), "it is refused for this reason only");
    method
}

/// The method by which a call was sent through a shut gate, if it was sent.
async fn passed<T>(call: impl AsyncFnOnce(Api) -> Result<T, RequestError>) -> Option<String> {
    let shut = WriteGate::shut(|| Timestamp::UNIX_EPOCH);
    through(shut, RequestError::NotLeading, call).await
}

/// The method by which a call was sent during a pause, if it was sent.
async fn paused<T>(call: impl AsyncFnOnce(Api) -> Result<T, RequestError>) -> Option<String> {
    through(WriteGate::open().pausing(|| true), RequestError::Paused, call).await
}

fn stored(taints: Option<Vec<Value>>) -> StoredNode {
    StoredNode { node: node("n1"), version: "7".to_owned(), taints }
}

#[tokio::test]
async fn without_the_lease_no_write_is_sent() {
    let (name, own) = (NodeName::from("n1"), pod("a"));
    let (own_ref, watched) = (own.reference(), Watched::default());
    let stored = stored(None);
    let [cordon, uncordon] = [true, false].map(|cordoned| NodeDrainPatch {
        unschedulable: Some(cordoned),
        ..NodeDrainPatch::default()
    });
    let event = json!({});
    let writes = [
        passed(async |api| api.mark_pod(&own, noon()).await).await,
        passed(async |api| api.delete_pod(&own_ref).await).await,
        passed(async |api| api.delete_pod_within(&own_ref, Some(1)).await).await,
        passed(async |api| api.evict_pod(&own_ref, None).await).await,
        passed(async |api| api.annotate_node(&name, Uid(1), None, None).await).await,
        passed(async |api| api.patch_node_drain(&stored, &cordon, &watched).await).await,
        passed(async |api| api.patch_node_drain(&stored, &uncordon, &watched).await).await,
        passed(async |api| api.mark_scheduled(&stored, true, "", noon(), &watched).await).await,
        passed(async |api| api.create_event("default", &event).await).await,
        passed(async |api| api.annotate_lease("default", "a", "k", None, WITHIN).await).await,
    ];
    assert_eq!(writes, [const { None::<String> }; 10]);
}

/// The method by which a call was sent in a dry run, if it was sent.
async fn dry_run<T>(
    events: bool,
    call: impl AsyncFnOnce(Api) -> Result<T, RequestError>,
) -> Option<String> {
    through(WriteGate::read_only(events), RequestError::DryRun, call).await
}

#[tokio::test]
async fn a_dry_run_sends_no_write_but_events_if_they_are_asked_for() {
    let (name, own) = (NodeName::from("n1"), pod("a"));
    let (own_ref, watched) = (own.reference(), Watched::default());
    let stored = stored(None);
    let [cordon, uncordon] = [true, false].map(|cordoned| NodeDrainPatch {
        unschedulable: Some(cordoned),
        ..NodeDrainPatch::default()
    });
    let event = json!({});
    for events in [false, true] {
        let lease = async |api: Api| api.put_lease(&Lease::default(), WITHIN).await;
        let note = async |api: Api| api.annotate_lease("default", "a", "k", None, WITHIN).await;
        let mark = async |api: Api| api.mark_scheduled(&stored, true, "", noon(), &watched).await;
        let patch = async |api: Api| api.patch_node_drain(&stored, &cordon, &watched).await;
        let undo = async |api: Api| api.patch_node_drain(&stored, &uncordon, &watched).await;
        let writes = [
            dry_run(events, async |api| api.mark_pod(&own, noon()).await).await,
            dry_run(events, async |api| api.delete_pod(&own_ref).await).await,
            dry_run(events, async |api| api.delete_pod_within(&own_ref, Some(1)).await).await,
            dry_run(events, async |api| api.evict_pod(&own_ref, None).await).await,
            dry_run(events, async |api| api.annotate_node(&name, Uid(1), None, None).await).await,
            dry_run(events, patch).await,
            dry_run(events, undo).await,
            dry_run(events, mark).await,
            dry_run(events, note).await,
            dry_run(events, lease).await,
        ];
        assert_eq!(writes, [const { None::<String> }; 10]);
        let create = async |api: Api| api.create_event("default", &event).await;
        assert_eq!(dry_run(events, create).await.is_some(), events);
        let read = async |api: Api| api.pod(&own_ref).await;
        assert_eq!(dry_run(events, read).await.as_deref(), Some("GET"));
        let right = Permission { verb: "get", group: "", resource: "nodes", subresource: "" };
        let ask = async |api: Api| api.is_allowed(right, "", "").await;
        assert_eq!(dry_run(events, ask).await.as_deref(), Some("POST"), "it stores nothing");
    }
}

#[tokio::test]
async fn during_a_pause_no_harm_is_sent() {
    let own = pod("a");
    let (own_ref, watched) = (own.reference(), Watched::default());
    let taint = |key: &str| json!({"key": key, "effect": "NoSchedule"});
    let stored = stored(Some(vec![taint("others")]));
    let cordon = NodeDrainPatch { unschedulable: Some(true), ..NodeDrainPatch::default() };
    let with_taint = NodeDrainPatch {
        taints: Some(vec![taint("others"), taint("ours")]),
        ..NodeDrainPatch::default()
    };
    let with_record = NodeDrainPatch { record: Some(Some("{}".to_owned())), ..cordon.clone() };
    let harm = [
        paused(async |api| api.mark_pod(&own, noon()).await).await,
        paused(async |api| api.delete_pod(&own_ref).await).await,
        paused(async |api| api.delete_pod_within(&own_ref, Some(1)).await).await,
        paused(async |api| api.evict_pod(&own_ref, None).await).await,
        paused(async |api| api.patch_node_drain(&stored, &cordon, &watched).await).await,
        paused(async |api| api.patch_node_drain(&stored, &with_record, &watched).await).await,
        paused(async |api| api.patch_node_drain(&stored, &with_taint, &watched).await).await,
    ];
    assert_eq!(harm, [const { None::<String> }; 7]);
}

#[tokio::test]
async fn a_pause_holds_up_neither_recovery_nor_reports() {
    let (name, watched) = (NodeName::from("n1"), Watched::default());
    let taint = |key: &str| json!({"key": key, "effect": "NoSchedule"});
    let stored = stored(Some(vec![taint("others"), taint("ours")]));
    let uncordon = NodeDrainPatch {
        unschedulable: Some(false),
        taints: Some(vec![taint("others")]),
        record: Some(None),
        ..NodeDrainPatch::default()
    };
    let record = NodeDrainPatch { record: Some(None), ..NodeDrainPatch::default() };
    let event = json!({});
    let sent = [
        paused(async |api| api.patch_node_drain(&stored, &uncordon, &watched).await).await,
        paused(async |api| api.patch_node_drain(&stored, &record, &watched).await).await,
        paused(async |api| api.annotate_node(&name, Uid(1), None, None).await).await,
        paused(async |api| api.mark_scheduled(&stored, true, "", noon(), &watched).await).await,
        paused(async |api| api.annotate_lease("default", "a", "k", None, WITHIN).await).await,
        paused(async |api| api.create_event("default", &event).await).await,
    ];
    let sent = sent.map(|method| method.unwrap());
    assert_eq!(sent, ["PATCH", "PATCH", "PATCH", "PATCH", "PATCH", "POST"]);
}

#[tokio::test]
async fn reads_and_the_lease_need_no_lease() {
    let (name, own) = (NodeName::from("n1"), pod("a").reference());
    let watched = Watched::default();
    let owner = Owner {
        api_version: "apps/v1".into(),
        kind: "ReplicaSet".into(),
        name: "web".into(),
        uid: "u".into(),
    };
    let reads = [
        passed(async |api| api.pod(&own).await).await,
        passed(async |api| api.node(&name).await).await,
        passed(async |api| api.stored_node(&name, &watched).await).await,
        passed(async |api| api.list_pods_on(&name).await).await,
        passed(async |api| api.list_budgets().await).await,
        passed(async |api| api.budgets_over(&own).await).await,
        passed(async |api| api.owner_exists("default", &owner).await).await,
        passed(async |api| api.server_time().await).await,
        passed(async |api| api.list_page("nodes", "", WITHIN, 1 << 20).await).await,
        passed(async |api| api.open_watch("nodes", "", WITHIN).await).await,
        passed(async |api| api.lease("default", "a", WITHIN).await).await,
        passed(async |api| Ok(api.is_ready().await)).await,
    ];
    assert_eq!(reads.map(|method| method.unwrap()), ["GET"; 12]);
    let right = Permission { verb: "get", group: "", resource: "nodes", subresource: "" };
    let asks = passed(async |api| api.is_allowed(right, "", "").await).await;
    assert_eq!(asks.as_deref(), Some("POST"));
    let who = passed(async |api| api.who_am_i().await).await;
    assert_eq!(who.as_deref(), Some("POST"));
    let put = async |version: Option<&str>| {
        let mut lease = Lease::default();
        lease.version = version.map(str::to_owned);
        passed(async |api| api.put_lease(&lease, WITHIN).await).await
    };
    assert_eq!(put(None).await.as_deref(), Some("POST"));
    assert_eq!(put(Some("7")).await.as_deref(), Some("PUT"));
}
