//! The limits of the API server itself: a client that does nothing but ask.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures::future::try_join_all;
use http::Request;
use http::header::{ACCEPT, CONTENT_TYPE};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use ostrakon::clock::system_time;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::harness::{Bed, User};
use crate::objects::StoredPod;

/// As ostrakon asks for small answers.
const SMALL: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
/// As ostrakon and the reference ask for objects.
const PROTOBUF: &str =
    "application/vnd.kubernetes.protobuf;stream=watch,application/vnd.kubernetes.protobuf";
/// The annotation of the bookmark behind the last object.
const LAST: &[u8] = b"k8s.io/initial-events-end";
/// More than the bookmark with that annotation is long.
const TAIL: usize = 1024;
const FETCH: Duration = Duration::from_secs(300);

/// What it took to fetch everything and throw it away.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Fetch {
    pub(crate) seconds: f64,
    pub(crate) bytes: u64,
}

/// Fetches all nodes and all bound pods at the same time, as one stream of protobuf each.
pub(crate) async fn fetch(bed: &Bed) -> Result<Fetch> {
    let start = Instant::now();
    let client = bed.client_for(User::Ostrakon)?;
    let stream = async |selected: &str| {
        let path = format!(
            "/api/v1/{selected}watch=true&sendInitialEvents=true&allowWatchBookmarks=true\
             &resourceVersionMatch=NotOlderThan"
        );
        let request = Request::get(path).header(ACCEPT, PROTOBUF).body(Body::empty())?;
        timeout(FETCH, drain(&client, request)).await.context("the list takes too long")?
    };
    let (nodes, pods) =
        tokio::try_join!(stream("nodes?"), stream("pods?fieldSelector=spec.nodeName!%3D&"))?;
    Ok(Fetch { seconds: start.elapsed().as_secs_f64(), bytes: nodes + pods })
}

/// Reads until the last object has come, and returns how many bytes that were.
async fn drain(client: &Client, request: Request<Body>) -> Result<u64> {
    let response = client.send(request).await?;
    ensure!(response.status().is_success(), "the API server says {}", response.status());
    let mut body = pin!(response.into_body());
    let (mut bytes, mut tail) = (0, Vec::new());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.context("read the list")?.into_data() else {
            continue;
        };
        bytes += data.len() as u64;
        tail.extend_from_slice(&data[data.len().saturating_sub(TAIL)..]);
        tail.drain(..tail.len().saturating_sub(TAIL));
        if tail.windows(LAST.len()).any(|window| window == LAST) {
            return Ok(bytes);
        }
    }
    bail!("the list ended before its last object")
}

/// Marks and deletes, over so many connections, one pod after the other on each.
pub(crate) struct Bare {
    clients: Vec<Client>,
}

impl Bare {
    /// Opens the connections.
    pub(crate) async fn connect(bed: &Bed, connections: usize) -> Result<Self> {
        let mut clients = Vec::with_capacity(connections);
        for _ in 0..connections {
            let client = bed.client_for(User::Ostrakon)?;
            client.apiserver_version().await?;
            clients.push(client);
        }
        Ok(Self { clients })
    }

    /// Evicts `pods` in their order.
    pub(crate) async fn evict(&self, pods: Vec<StoredPod>) -> Result<()> {
        let pods = Arc::new(pods);
        let next = Arc::new(AtomicUsize::new(0));
        let workers = self.clients.iter().map(|client| {
            let (client, pods, next) = (client.clone(), Arc::clone(&pods), Arc::clone(&next));
            tokio::spawn(async move {
                while let Some(pod) = pods.get(next.fetch_add(1, Ordering::Relaxed)) {
                    evict(&client, pod).await?;
                }
                anyhow::Ok(())
            })
        });
        for worker in try_join_all(workers).await? {
            worker?;
        }
        Ok(())
    }
}

async fn evict(client: &Client, pod: &StoredPod) -> Result<()> {
    let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name);
    let condition = json!({
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "DeletionByTaintManager",
        "message": "Taint manager: deleting due to NoExecute taint",
        "lastTransitionTime": format!("{:.0}", system_time()),
        "observedGeneration": 1,
    });
    let mark = json!({
        "metadata": { "uid": pod.uid },
        "status": { "conditions": [condition] },
    });
    let patch = Request::patch(format!("{path}/status?fieldManager=bare"))
        .header(CONTENT_TYPE, "application/strategic-merge-patch+json");
    send(client, patch, &mark).await?;
    let delete = json!({
        "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": pod.uid },
    });
    let request = Request::delete(path).header(CONTENT_TYPE, "application/json");
    send(client, request, &delete).await
}

async fn send(client: &Client, request: http::request::Builder, body: &Value) -> Result<()> {
    let request = request.header(ACCEPT, SMALL).body(Body::from(body.to_string().into_bytes()))?;
    let response = client.send(request).await?;
    let status = response.status();
    // Read to its end, or the connection could not be used again.
    let body = response.into_body().collect().await?.to_bytes();
    ensure!(
        status.is_success(),
        "the API server says {status}: {}",
        String::from_utf8_lossy(&body)
    );
    Ok(())
}
