//! Who stands between a process and its API server. Requests are marked with who sent them and when, for
//! the observer; what else is done to them makes one of the mutants.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use jiff::Timestamp;
use ostrakon::leader::RELEASED_BY;
use ostrakon::sim::embedded::{Body, Embedded, Onward, Resource};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::Broken;
use crate::observer::{SENT, WHO, seconds};

/// How long a deletion is held up that was decided: longer than what was read of a node may be used.
const DELETION_HELD_UP: Duration = Duration::from_secs(6);
/// How late a deletion is that nothing else is wrong with.
const A_LITTLE_LATE: Duration = Duration::from_millis(1_500);
/// How long an eviction is.
const EVICTION_HELD_UP: Duration = Duration::from_secs(20);
/// How long a write is held up after its leadership was checked: longer than a claim can last without
/// being renewed.
const PAST_THE_CLAIM: Duration = Duration::from_secs(12);
const RECORD: &str = "ostrakon.dev/drain";
const PAUSE: &str = "/metadata/annotations/ostrakon.dev~1pause";

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Between one process and the cluster.
pub(crate) struct Between {
    broken: Broken,
    identity: String,
    /// What a dead process has sent does not arrive.
    alive: Arc<AtomicBool>,
    cluster: Embedded,
    begun: Timestamp,
    memory: Mutex<Memory>,
}

/// What is remembered of earlier requests.
#[derive(Default)]
struct Memory {
    /// UIDs of pods about which a request has failed.
    failed: BTreeSet<String>,
    /// Names of pods that a budget has held.
    held: BTreeSet<String>,
    /// The last holder of the lease, and its last version.
    holder: String,
    version: u64,
}

impl Between {
    pub(crate) fn new(
        cluster: &Embedded,
        broken: Broken,
        identity: &str,
        alive: &Arc<AtomicBool>,
    ) -> Self {
        Self {
            broken,
            identity: identity.to_owned(),
            alive: Arc::clone(alive),
            cluster: cluster.clone(),
            begun: cluster.store().clock().now(),
            memory: Mutex::default(),
        }
    }

    /// A client for the process.
    pub(crate) fn client(self) -> kube::Client {
        let cluster = self.cluster.clone();
        let between = Arc::new(self);
        cluster.client_through(move |request, onward| {
            let between = Arc::clone(&between);
            async move { between.carry(request, onward).await }
        })
    }

    async fn carry(
        self: Arc<Self>,
        mut request: Request<Bytes>,
        onward: Onward,
    ) -> Result<Response<Body>, Failed> {
        let path = request.uri().path().to_owned();
        let method = request.method().clone();
        let is_write = matches!(method, Method::PATCH | Method::DELETE | Method::POST);
        let is_pod = path.contains("/pods/");
        let is_eviction = path.ends_with("/eviction");
        match self.broken {
            Broken::IgnoresUid if is_pod && is_write => edit(&mut request, |body| {
                if let Some(body) = body.as_object_mut() {
                    body.remove("preconditions");
                }
                if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
                    metadata.remove("uid");
                }
            }),
            Broken::UndoesForeign if path.contains("/nodes/") && is_write => {
                edit(&mut request, |body| {
                    body["metadata"]["annotations"]["example.com/owner"] = Value::Null;
                });
            }
            Broken::OtherWords if is_pod && is_write => edit(&mut request, |body| {
                if let Some(condition) = body.pointer_mut("/status/conditions/0") {
                    condition["reason"] = json!("DeletionByOstrakon");
                }
            }),
            Broken::OtherDrainWords if path.ends_with("/events") && is_write => {
                edit(&mut request, |body| {
                    if body["reason"] == "DrainStarting" {
                        body["reason"] = json!("DrainBegins");
                    }
                });
            }
            Broken::UncordonsForeign if path.contains("/nodes/") && is_write => {
                edit(&mut request, |body| {
                    if body["metadata"]["annotations"].get(RECORD) == Some(&Value::Null) {
                        body["spec"]["unschedulable"] = json!(false);
                    }
                });
            }
            Broken::TrustsTimers if is_pod && method == Method::DELETE => {
                return self.later(request, onward, DELETION_HELD_UP);
            }
            Broken::ActsLate if is_pod && method == Method::DELETE => {
                return self.later(request, onward, A_LITTLE_LATE);
            }
            Broken::WritesUngated if is_pod && method == Method::DELETE => {
                return self.later(request, onward, PAST_THE_CLAIM);
            }
            Broken::TrustsOrders if is_eviction => {
                return self.later(request, onward, EVICTION_HELD_UP);
            }
            Broken::ForgetsFailures if is_pod && is_write => {
                return self.once(request, &onward).await;
            }
            Broken::ForgetsDrains if is_eviction && self.is_earlier_drain(self.node_of(&path)) => {
                return self.is_alive().map(|()| success());
            }
            Broken::ForgetsDrains
                if method == Method::PATCH
                    && self.is_earlier_drain(path.split('/').nth(4).map(str::to_owned)) =>
            {
                return self.is_alive().map(|()| status(500, "InternalError"));
            }
            Broken::ForgetsHeld if is_eviction => {
                let answer = self.send(request, &onward).await?;
                if answer.status() == 429 {
                    self.memory.lock().held.extend(path.split('/').nth(6).map(str::to_owned));
                }
                return Ok(answer);
            }
            Broken::ForgetsHeld if path == "/api/v1/pods" => self.hide_held(&mut request),
            Broken::IgnoresPause | Broken::IgnoresPauseOfDrains if path.contains("/leases") => {
                return self.without_pause(request, &onward).await;
            }
            Broken::TakesDeletedLease | Broken::TakesEmptiedLease if path.contains("/leases") => {
                return self.about_lease(request, &onward).await;
            }
            _ => {}
        }
        self.send(request, &onward).await
    }

    fn is_alive(&self) -> Result<(), Failed> {
        if self.alive.load(Ordering::Relaxed) { Ok(()) } else { Err("the process is dead".into()) }
    }

    /// Passes a request on, marked with who sends it and when.
    async fn send(
        &self,
        mut request: Request<Bytes>,
        onward: &Onward,
    ) -> Result<Response<Body>, Failed> {
        self.is_alive()?;
        let value = |text: &str| HeaderValue::from_str(text).unwrap();
        let now = seconds(self.cluster.store().clock().now()).to_string();
        let headers = request.headers_mut();
        headers.insert(HeaderName::from_static(WHO), value(&self.identity));
        headers.insert(HeaderName::from_static(SENT), value(&now));
        onward.answer(request).await
    }

    /// Says that it was done, and does it after a while.
    fn later(
        self: Arc<Self>,
        request: Request<Bytes>,
        onward: Onward,
        after: Duration,
    ) -> Result<Response<Body>, Failed> {
        self.is_alive()?;
        tokio::spawn(async move {
            sleep(after).await;
            // It may fail by then: nobody is told.
            let _ = self.send(request, &onward).await;
        });
        Ok(success())
    }

    /// After a request about a pod has failed, says of its deletions that they were done.
    async fn once(
        &self,
        request: Request<Bytes>,
        onward: &Onward,
    ) -> Result<Response<Body>, Failed> {
        let body: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        let uid = body.pointer("/preconditions/uid").or_else(|| body.pointer("/metadata/uid"));
        let uid = uid.and_then(Value::as_str).unwrap_or_default().to_owned();
        if request.method() == Method::DELETE && self.memory.lock().failed.contains(&uid) {
            self.is_alive()?;
            return Ok(success());
        }
        // Also if its answer is not awaited.
        self.memory.lock().failed.insert(uid.clone());
        let answer = self.send(request, onward).await?;
        if answer.status().is_success() || matches!(answer.status().as_u16(), 404 | 409 | 422) {
            self.memory.lock().failed.remove(&uid);
        }
        Ok(answer)
    }

    /// The node of the pod that a request is about.
    fn node_of(&self, path: &str) -> Option<String> {
        let mut parts = path.split('/').skip(4);
        let (namespace, name) = (parts.next()?, parts.nth(1)?);
        let pod = self.cluster.store().get(Resource::Pods, namespace, name).ok()?;
        pod["spec"]["nodeName"].as_str().map(str::to_owned)
    }

    /// Whether the node is being drained since before this process began.
    fn is_earlier_drain(&self, node: Option<String>) -> bool {
        let started = || {
            let node = self.cluster.store().get(Resource::Nodes, "", &node?).ok()?;
            let record = node["metadata"]["annotations"][RECORD].as_str()?;
            let record: Value = serde_json::from_str(record).ok()?;
            let is_draining = record["phase"] == "draining";
            is_draining.then(|| record["started"].as_str()?.parse::<Timestamp>().ok())?
        };
        started().is_some_and(|started| started < self.begun)
    }

    /// A list of pods lacks those that a budget has held.
    fn hide_held(&self, request: &mut Request<Bytes>) {
        let names: Vec<String> = self.memory.lock().held.iter().cloned().collect();
        if names.is_empty() {
            return;
        }
        let hidden = format!("%2Cmetadata.name%21%3D{}", names.join("%2Cmetadata.name%21%3D"));
        let uri = request.uri().to_string();
        if let Some((before, after)) = uri.split_once("fieldSelector=spec.nodeName%3D") {
            let (node, rest) = after.split_at(after.find('&').unwrap_or(after.len()));
            let uri = format!("{before}fieldSelector=spec.nodeName%3D{node}{hidden}{rest}");
            *request.uri_mut() = uri.parse::<Uri>().unwrap();
        }
    }

    /// Has a lease look as if nobody had paused. What is stored stays.
    async fn without_pause(
        &self,
        mut request: Request<Bytes>,
        onward: &Onward,
    ) -> Result<Response<Body>, Failed> {
        let stored = self.cluster.store().get(Resource::Leases, "kube-system", "ostrakon");
        let pause = stored.ok().and_then(|lease| lease.pointer(PAUSE).cloned());
        if let Some(pause) = pause.filter(|_| request.method() == Method::PUT) {
            edit(&mut request, |lease| {
                lease["metadata"]["annotations"]["ostrakon.dev/pause"] = pause
            });
        }
        let (parts, body) = self.send(request, onward).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        let mut lease: Value = serde_json::from_slice(&body).unwrap_or_default();
        if let Some(all) = lease.pointer_mut("/metadata/annotations") {
            all.as_object_mut().map(|all| all.remove("ostrakon.dev/pause"));
        }
        let body = Full::new(Bytes::from(lease.to_string()));
        Ok(Response::from_parts(parts, body.map_err(|never| match never {}).boxed_unsync()))
    }

    /// Has a lease that was deleted, or emptied by another hand, look as if its holder had released it.
    async fn about_lease(
        &self,
        mut request: Request<Bytes>,
        onward: &Onward,
    ) -> Result<Response<Body>, Failed> {
        let is_read = request.method() == Method::GET;
        let is_forged = self.broken == Broken::TakesDeletedLease
            && request.method() == Method::PUT
            && self.cluster.store().count(Resource::Leases) == 0;
        if is_forged {
            // It is created, since there is none.
            edit(&mut request, |body| {
                body["metadata"].as_object_mut().unwrap().remove("resourceVersion");
            });
            *request.method_mut() = Method::POST;
            let uri = request.uri().to_string().replace("/leases/ostrakon", "/leases");
            *request.uri_mut() = uri.parse::<Uri>().unwrap();
        }
        let answer = self.send(request, onward).await?;
        let (parts, body) = answer.into_parts();
        let body = body.collect().await?.to_bytes();
        let mut lease: Value = serde_json::from_slice(&body).unwrap_or_default();
        let mut memory = self.memory.lock();
        if parts.status == 404 && is_read && self.broken == Broken::TakesDeletedLease {
            return Ok(answered(
                200,
                &json!({
                    "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": {
                        "name": "ostrakon", "namespace": "kube-system",
                        "resourceVersion": (memory.version + 1).to_string(),
                        "annotations": {RELEASED_BY: memory.released_by()},
                    },
                    "spec": {"holderIdentity": "", "leaseDurationSeconds": 1},
                }),
            ));
        }
        if parts.status.is_success() {
            let version = lease["metadata"]["resourceVersion"].as_str();
            memory.version = version.and_then(|text| text.parse().ok()).unwrap_or(memory.version);
            let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
            if !holder.is_empty() {
                holder.clone_into(&mut memory.holder);
            } else if is_read && self.broken == Broken::TakesEmptiedLease {
                lease["metadata"]["annotations"][RELEASED_BY] = json!(memory.released_by());
                return Ok(answered(200, &lease));
            }
        }
        let body = Full::new(body).map_err(|never| match never {}).boxed_unsync();
        Ok(Response::from_parts(parts, body))
    }
}

impl Memory {
    /// Who is said to have released the lease.
    fn released_by(&self) -> &str {
        if self.holder.is_empty() { "somebody" } else { &self.holder }
    }
}

fn edit(request: &mut Request<Bytes>, change: impl FnOnce(&mut Value)) {
    if let Ok(mut body) = serde_json::from_slice(request.body()) {
        change(&mut body);
        *request.body_mut() = Bytes::from(body.to_string());
    }
}

fn success() -> Response<Body> {
    answered(200, &json!({"apiVersion": "v1", "kind": "Status", "status": "Success"}))
}

fn status(code: u16, reason: &str) -> Response<Body> {
    answered(
        code,
        &json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "code": code,
            "message": "refused by the story",
        }),
    )
}

fn answered(code: u16, body: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {});
    let answer = Response::builder().status(code).header("content-type", "application/json");
    answer.body(body.boxed_unsync()).unwrap()
}
