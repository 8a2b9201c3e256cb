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

/// A client whose gate is shut, and the methods and paths that it has sent.
fn shut() -> (Api, Arc<Mutex<Vec<String>>>) {
    let sent = Arc::<Mutex<Vec<String>>>::default();
    let seen = Arc::clone(&sent);
    let service = service_fn(move |request: Request<Body>| {
        seen.lock().push(format!("{} {}", request.method(), request.uri().path()));
        async { Ok::<_, Infallible>(Response::new(Body::from(b"{}".to_vec()))) }
    });
    let metrics = Metrics::register(&Registry::new()).unwrap();
    let api = Api::new(Client::new(service, "default"), metrics);
    (api.gated(WriteGate::shut(|| Timestamp::UNIX_EPOCH)), sent)
}

/// Whether a call was sent through the shut gate, and by which method.
async fn passed<T>(call: impl AsyncFnOnce(Api) -> Result<T, RequestError>) -> Option<String> {
    let (api, sent) = shut();
    let result = call(api).await;
    let method = sent.lock().first().map(|sent| sent.split(' ').next().unwrap().to_owned());
    let not_leading = matches!(result, Err(RequestError::NotLeading));
    assert_eq!(not_leading, method.is_none(), "it is refused for this reason only");
    method
}

#[tokio::test]
async fn without_the_lease_no_write_is_sent() {
    let (name, own) = (NodeName::from("n1"), pod("a"));
    let (own_ref, watched) = (own.reference(), Watched::default());
    let stored = StoredNode { node: node("n1"), version: "7".to_owned(), taints: None };
    let patch = NodeDrainPatch { unschedulable: Some(true), ..NodeDrainPatch::default() };
    let event = json!({});
    let writes = [
        passed(async |api| api.mark_pod(&own, noon()).await).await,
        passed(async |api| api.delete_pod(&own_ref).await).await,
        passed(async |api| api.delete_pod_within(&own_ref, Some(1)).await).await,
        passed(async |api| api.evict_pod(&own_ref, None).await).await,
        passed(async |api| api.annotate_node(&name, Uid(1), None, None).await).await,
        passed(async |api| api.patch_node_drain(&stored, &patch, &watched).await).await,
        passed(async |api| api.mark_scheduled(&stored, true, "", noon(), &watched).await).await,
        passed(async |api| api.create_event("default", &event).await).await,
    ];
    assert_eq!(writes, [const { None::<String> }; 8]);
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
    let put = async |version: Option<&str>| {
        let mut lease = Lease::default();
        lease.version = version.map(str::to_owned);
        passed(async |api| api.put_lease(&lease, WITHIN).await).await
    };
    assert_eq!(put(None).await.as_deref(), Some("POST"));
    assert_eq!(put(Some("7")).await.as_deref(), Some("PUT"));
}
