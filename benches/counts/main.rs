//! Work to count instructions and misses of the cache in, where times say nothing because other work
//! runs on the machine: under valgrind the same binary counts the same whatever else runs.
//!
//! `cargo bench --bench counts --no-run` builds it and says where. Then, for example,
//! `valgrind --tool=callgrind --cache-sim=yes '--toggle-collect=*make_chunk*' counts-… sync 5000/150000`.
//!
//! - `sync NODES/PODS`: the streamed lists of a cluster of that size go through the watch, the decoder and
//!   the view, until both are complete. What comes is made by `make_chunk`, which is not to be counted.
//! - `slim NODES/PODS`: the same with objects of 150 bytes instead of 3.5 KB. What is there to be read costs
//!   the same for each object however many there are; this is the rest.
//! - `timed COUNT`: so many countdowns are put into a timed queue.

#[path = "../scale/objects.rs"]
#[allow(dead_code, reason = "the other bench uses all of it")]
mod objects;

use std::convert::Infallible;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ahash::AHashSet;
use bytes::Bytes;
use futures::stream;
use http::header::CONTENT_TYPE;
use http::{Request, Response};
use http_body_util::StreamBody;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Frame;
use kube::Client;
use kube::client::Body;
use ostrakon::cluster::watch::{self, Index, Relist, Source};
use ostrakon::cluster::{Api, DecodeError, Metrics, PodDecoder, View, decode_node, wire};
use ostrakon::model::{Anchors, Uid};
use ostrakon::pipeline::TimedQueue;
use prometheus::Registry;
use tokio::sync::Notify;
use tokio::time::Instant;
use tower::service_fn;

use crate::objects::{Chunk, Objects, PodState, Size};

const USAGE: &str = "counts sync NODES/PODS, counts slim NODES/PODS, or counts timed COUNT";

#[allow(clippy::print_stderr, reason = "a person waits for this")]
fn main() -> ExitCode {
    // cargo adds a flag of its own.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let said = run(&words);
    eprintln!("counts: {}", said.as_deref().unwrap_or(USAGE));
    if said.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Does what the words say, and says what came of it; `None` if they make no sense.
fn run(words: &[&str]) -> Option<String> {
    match words {
        [form @ ("sync" | "slim"), size] => {
            let (nodes, pods) = size.split_once('/')?;
            let size = Size { nodes: nodes.parse().ok()?, pods: pods.parse().ok()? };
            let objects = if *form == "slim" { Objects::slim(size) } else { Objects::new(size) };
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().build().ok()?;
            let (nodes, pods) = runtime.block_on(sync(objects))?;
            Some(format!("{nodes} nodes and {pods} pods are known"))
        }
        ["timed", count] => {
            let queue = timed(count.parse().ok()?);
            let said = format!("{} countdowns", queue.len());
            // To take it apart is not to be counted.
            std::mem::forget(queue);
            Some(said)
        }
        _ => None,
    }
}

/// Deadlines from 1 ms to 300 s away, in no order, of keys spread as random UIDs are.
fn timed(count: u64) -> TimedQueue<u128, u64> {
    let queue = TimedQueue::new();
    let now = Instant::now();
    for number in 0..count {
        let key = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let delay = Duration::from_millis(1 + number.wrapping_mul(7_919) % 300_000);
        queue.arm(key, now + delay, number);
    }
    queue
}

/// Takes the lists of nodes and pods, and returns how many of each are known then.
async fn sync(objects: Objects) -> Option<(usize, usize)> {
    let objects = Arc::new(objects);
    let service = service_fn(move |request: Request<Body>| {
        let objects = Arc::clone(&objects);
        async move { Ok::<_, Infallible>(answer(objects, &request)) }
    });
    let metrics = Metrics::register(&Registry::new()).ok()?;
    let api = Api::new(Client::new(service, "default"), metrics.clone());
    let view = Arc::new(View::default());
    let listed = [Notify::new(), Notify::new()];
    let [nodes_listed, pods_listed] = &listed;
    let nodes = Nodes { view: Arc::clone(&view) };
    let pods = Pods { view: Arc::clone(&view), decoder: PodDecoder::default() };
    tokio::select! {
        () = watch::run(api.clone(), metrics.clone(), nodes, 1, Relist::default(), || nodes_listed.notify_one()) => {}
        () = watch::run(api, metrics, pods, 2, Relist::default(), || pods_listed.notify_one()) => {}
        () = async { nodes_listed.notified().await; pods_listed.notified().await } => {}
    }
    let counts = view.counts();
    // To take it apart is not to be counted.
    std::mem::forget(view);
    Some(counts)
}

struct Nodes {
    view: Arc<View>,
}

impl Index for Nodes {
    const RESOURCE: &str = "nodes";
    const KIND: &str = "Node";
    const SELECT: &str = "";

    fn apply(&mut self, object: &Bytes, _: Source) -> Result<Uid, DecodeError> {
        let node = decode_node(object)?;
        let uid = node.uid;
        self.view
            .apply_node(node, |before: Option<&Anchors>, _| before.cloned().unwrap_or_default());
        Ok(uid)
    }

    fn delete(&mut self, _: &Bytes) -> Result<(), DecodeError> {
        Ok(())
    }

    fn forget(&mut self, _: Uid) {}

    fn retain(&mut self, seen: &AHashSet<Uid>) {
        self.view.nodes_other_than(seen);
    }

    fn is_empty(&self) -> bool {
        self.view.counts().0 == 0
    }
}

struct Pods {
    view: Arc<View>,
    decoder: PodDecoder,
}

impl Index for Pods {
    const RESOURCE: &str = "pods";
    const KIND: &str = "Pod";
    const SELECT: &str = "";

    fn apply(&mut self, object: &Bytes, _: Source) -> Result<Uid, DecodeError> {
        let pod = self.decoder.decode(object)?;
        let pod = pod.ok_or_else(|| DecodeError {
            object: "pod".to_owned(),
            uid: None,
            reason: "it is not bound".to_owned(),
        })?;
        let uid = pod.uid;
        self.view.apply_pod(pod);
        Ok(uid)
    }

    fn delete(&mut self, _: &Bytes) -> Result<(), DecodeError> {
        Ok(())
    }

    fn forget(&mut self, _: Uid) {}

    fn retain(&mut self, seen: &AHashSet<Uid>) {
        self.view.pods_other_than(seen);
        self.decoder.prune();
    }

    fn is_empty(&self) -> bool {
        self.view.counts().1 == 0
    }
}

/// A streamed list of nodes or pods, and then silence.
fn answer(
    objects: Arc<Objects>,
    request: &Request<Body>,
) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
    let kind = if request.uri().path().ends_with("/nodes") { "Node" } else { "Pod" };
    let count = if kind == "Node" { objects.size.nodes } else { objects.size.pods };
    let chunks = stream::unfold(Some(0), move |next| {
        let objects = Arc::clone(&objects);
        async move {
            let Some(next) = next else { std::future::pending().await };
            let (chunk, next) = make_chunk(&objects, kind, next, count);
            Some((Ok::<_, Infallible>(Frame::data(chunk)), next))
        }
    });
    let mut response = Response::new(UnsyncBoxBody::new(StreamBody::new(chunks)));
    let form = http::HeaderValue::from_static(wire::WATCH_MEDIA_TYPE);
    response.headers_mut().insert(CONTENT_TYPE, form);
    response
}

/// Objects of a list from `next` on, and where to go on; behind the last one the bookmark that ends it.
#[inline(never)]
fn make_chunk(
    objects: &Objects,
    kind: &str,
    mut next: usize,
    count: usize,
) -> (Bytes, Option<usize>) {
    let mut chunk = Chunk::default();
    while next < count && !chunk.is_full() {
        let object = if kind == "Node" {
            objects.node(next, false, 1)
        } else {
            objects.pod(next, PodState::Running, 1)
        };
        chunk.add(&wire::frame("ADDED", object));
        next += 1;
    }
    if next < count {
        return (chunk.into_bytes(), Some(next));
    }
    chunk.add(&objects::bookmark(kind, 1, true));
    (chunk.into_bytes(), None)
}
