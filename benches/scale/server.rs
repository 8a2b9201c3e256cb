//! An API server that remembers next to nothing: which nodes are tainted, which pods are gone.
//!
//! It streams lists and answers each request as an API server would, in the forms that ostrakon asks
//! for, and as fast as it can: what is measured is the controller.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures::stream;
use http::header::CONTENT_TYPE;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use ostrakon::cluster::wire;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::objects::{self, Chunk, Objects, PodState, Size};

/// A quiet watch gets a bookmark this often, as from an API server.
const BOOKMARK: Duration = Duration::from_secs(60);

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The server. It ends with its value.
pub(crate) struct Server {
    state: Arc<State>,
    port: u16,
    task: AbortHandle,
}

struct State {
    objects: Objects,
    version: AtomicU64,
    is_tainted: AtomicBool,
    watches: Mutex<Watches>,
    /// When pods were deleted.
    deletions: Mutex<Vec<Instant>>,
    /// Requests other than lists, by method.
    requests: [AtomicU64; 4],
}

/// Who is told of changes. There is one controller, so there is one watch of each.
#[derive(Default)]
struct Watches {
    nodes: Option<UnboundedSender<Change>>,
    pods: Option<UnboundedSender<Change>>,
}

#[derive(Clone, Copy)]
enum Change {
    Node(usize),
    Pod(usize, PodState),
}

/// Requests up to now.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Requests {
    pub(crate) get: u64,
    pub(crate) patch: u64,
    pub(crate) delete: u64,
    pub(crate) post: u64,
}

impl Server {
    pub(crate) async fn start(size: Size) -> Result<Self> {
        let state = Arc::new(State {
            objects: Objects::new(size),
            version: AtomicU64::new(1),
            is_tainted: AtomicBool::new(false),
            watches: Mutex::default(),
            deletions: Mutex::default(),
            requests: Default::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listen on loopback")?;
        let port = listener.local_addr()?.port();
        let task = tokio::spawn(accept(listener, Arc::clone(&state))).abort_handle();
        Ok(Self { state, port, task })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn objects(&self) -> &Objects {
        &self.state.objects
    }

    /// Taints all nodes of the zone.
    pub(crate) fn taint_zone(&self) {
        self.state.is_tainted.store(true, Ordering::SeqCst);
        let watches = self.state.watches.lock();
        for node in self.state.objects.zone() {
            tell(watches.nodes.as_ref(), Change::Node(node));
        }
    }

    /// When pods were deleted, in order.
    pub(crate) fn deletions(&self) -> Vec<Instant> {
        self.state.deletions.lock().clone()
    }

    pub(crate) fn deleted(&self) -> usize {
        self.state.deletions.lock().len()
    }

    pub(crate) fn requests(&self) -> Requests {
        let [get, patch, delete, post] =
            [0, 1, 2, 3].map(|kind: usize| self.state.requests[kind].load(Ordering::Relaxed));
        Requests { get, patch, delete, post }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(Arc::clone(&state), request));
            // An error is a client that has gone.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(
    state: Arc<State>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    // Read to its end, or the connection could not be used again.
    let _ = body.collect().await;
    let path = head.uri.path();
    let asks_for = |what| head.uri.query().is_some_and(|query| query.contains(what));
    let (is_watch, is_list) = (asks_for("watch=true"), asks_for("sendInitialEvents=true"));
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    if !is_watch {
        state.count(&head.method);
    }
    Ok(match (&head.method, segments.as_slice()) {
        (&Method::GET, ["version"]) => json("{}"),
        (&Method::POST, [.., "selfsubjectaccessreviews"]) => json(r#"{"status":{"allowed":true}}"#),
        (&Method::POST, [.., "events"]) => json(r#"{"kind":"Event"}"#),
        (&Method::GET, ["api", "v1", "nodes"]) if is_watch => watch(state, "Node", is_list),
        (&Method::GET, ["api", "v1", "pods"]) if is_watch => watch(state, "Pod", is_list),
        (&Method::GET, ["api", "v1", "nodes", name]) => match objects::number_of_node(name) {
            Some(number) => protobuf(state.node(number)),
            None => nothing(),
        },
        (&Method::PATCH, ["api", "v1", "nodes", _]) => json(r#"{"kind":"PartialObjectMetadata"}"#),
        (&Method::PATCH, ["api", "v1", "namespaces", _, "pods", name, "status"]) => {
            match objects::number_of_pod(name) {
                Some(number) => {
                    state.pod_changed(number, PodState::Marked);
                    let version = state.version.load(Ordering::Relaxed);
                    protobuf(state.objects.pod(number, PodState::Marked, version))
                }
                None => nothing(),
            }
        }
        (&Method::DELETE, ["api", "v1", "namespaces", _, "pods", name]) => {
            match objects::number_of_pod(name) {
                Some(number) => {
                    state.deletions.lock().push(Instant::now());
                    state.pod_changed(number, PodState::Deleted);
                    json(r#"{"kind":"PartialObjectMetadata"}"#)
                }
                None => nothing(),
            }
        }
        _ => nothing(),
    })
}

impl State {
    fn count(&self, method: &Method) {
        let kind = match *method {
            Method::GET => 0,
            Method::PATCH => 1,
            Method::DELETE => 2,
            _ => 3,
        };
        self.requests[kind].fetch_add(1, Ordering::Relaxed);
    }

    fn node(&self, number: usize) -> Bytes {
        let is_tainted = self.is_tainted.load(Ordering::SeqCst) && number.is_multiple_of(3);
        self.objects.node(number, is_tainted, self.version.load(Ordering::Relaxed))
    }

    fn pod_changed(&self, number: usize, state: PodState) {
        tell(self.watches.lock().pods.as_ref(), Change::Pod(number, state));
    }

    fn frame(&self, change: Change) -> Bytes {
        let version = self.version.fetch_add(1, Ordering::Relaxed);
        match change {
            Change::Node(number) => wire::frame("MODIFIED", self.node(number)),
            Change::Pod(number, state) => {
                wire::frame("MODIFIED", self.objects.pod(number, state, version))
            }
        }
    }
}

/// Whoever has gone is not told.
fn tell(watch: Option<&UnboundedSender<Change>>, change: Change) {
    if let Some(watch) = watch {
        let _ = watch.send(change);
    }
}

/// What changes from now on; before it, if a list is asked for, all objects and the bookmark that ends
/// them.
fn watch(state: Arc<State>, kind: &'static str, is_list: bool) -> Response<Body> {
    let (sender, changes) = unbounded_channel();
    let (count, sender) = {
        let mut watches = state.watches.lock();
        let Size { nodes, pods } = state.objects.size;
        if kind == "Node" {
            (nodes, watches.nodes.replace(sender))
        } else {
            (pods, watches.pods.replace(sender))
        }
    };
    // An older watch ends.
    drop(sender);
    let begin = if is_list { Stage::List { next: 0, count } } else { Stage::Changes };
    let body =
        stream::unfold((state, begin, changes), move |(state, stage, mut changes)| async move {
            let (chunk, stage) = match stage {
                Stage::List { next, count } => list(&state, kind, next, count),
                Stage::Changes => (next_changes(&state, kind, &mut changes).await?, Stage::Changes),
            };
            Some((Ok(Frame::data(chunk)), (state, stage, changes)))
        });
    let body = StreamBody::new(body);
    respond(wire::WATCH_MEDIA_TYPE, UnsyncBoxBody::new(body))
}

enum Stage {
    List { next: usize, count: usize },
    Changes,
}

/// Objects of a list from `next` on.
fn list(state: &State, kind: &str, mut next: usize, count: usize) -> (Bytes, Stage) {
    let mut chunk = Chunk::default();
    while next < count && !chunk.is_full() {
        let object = if kind == "Node" {
            state.node(next)
        } else {
            state.objects.pod(next, PodState::Running, 1)
        };
        chunk.add(&wire::frame("ADDED", object));
        next += 1;
    }
    if next < count {
        return (chunk.into_bytes(), Stage::List { next, count });
    }
    chunk.add(&objects::bookmark(kind, state.version.load(Ordering::Relaxed), true));
    (chunk.into_bytes(), Stage::Changes)
}

/// What has changed, or a bookmark if nothing does for a while; `None` if the watch is over.
async fn next_changes(
    state: &State,
    kind: &str,
    changes: &mut UnboundedReceiver<Change>,
) -> Option<Bytes> {
    let mut chunk = Chunk::default();
    match timeout(BOOKMARK, changes.recv()).await {
        Ok(change) => chunk.add(&state.frame(change?)),
        Err(_) => {
            chunk.add(&objects::bookmark(kind, state.version.load(Ordering::Relaxed), false));
        }
    }
    while !chunk.is_full()
        && let Ok(change) = changes.try_recv()
    {
        chunk.add(&state.frame(change));
    }
    Some(chunk.into_bytes())
}

fn json(text: &'static str) -> Response<Body> {
    respond("application/json", full(Bytes::from_static(text.as_bytes())))
}

fn protobuf(envelope: Bytes) -> Response<Body> {
    respond(wire::MEDIA_TYPE, full(envelope))
}

fn nothing() -> Response<Body> {
    let mut response = json(r#"{"kind":"Status","reason":"NotFound"}"#);
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

fn full(bytes: Bytes) -> Body {
    UnsyncBoxBody::new(Full::new(bytes))
}

fn respond(kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}
