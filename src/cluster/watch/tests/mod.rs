//! The watch against a server that answers by a script, in virtual time.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use futures::stream::{self, StreamExt};
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{Request, Response};
use http_body_util::StreamBody;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Frame;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::time::{Instant, timeout};
use tower::service_fn;

use super::*;

mod bad_input;
mod paged;
mod rewound;
mod streamed;

/// What the server does with one request.
enum Reply {
    /// Answers with this code and body.
    Answer(u16, Bytes),
    /// Refuses with this code, and asks to wait for so many seconds.
    Wait(u16, u32),
    /// Answers 200 with a body of this content type.
    Other(&'static str, Bytes),
    /// Answers 200 and sends these pieces, then ends the stream.
    Pieces(Vec<Bytes>),
    /// Sends these pieces, then goes silent.
    Silence(Vec<Bytes>),
    /// Sends these pieces, then breaks the connection.
    Break(Vec<Bytes>),
    /// Never answers.
    Hang,
}

#[derive(Debug, thiserror::Error)]
#[error("the connection broke")]
struct Broken;

/// What is answered to a request, by its path and query.
type Script = Box<dyn FnMut(&str) -> Reply + Send>;

/// A server that answers by a script and, at its end, never again. Which version its store is at, it says
/// at any time.
struct Server {
    script: Mutex<Script>,
    stored: &'static str,
    requests: Mutex<Vec<(String, Instant)>>,
}

/// Writes down what comes in. It says that it knows something even before that, unless it is `new`.
#[derive(Clone, Default)]
struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    new: bool,
}

impl Log {
    fn add(&self, line: String) {
        self.lines.lock().push(line);
    }

    /// A thing's UID is a number; of one that cannot be read, it is known if it is `named`.
    fn read(object: &Bytes) -> Result<(String, Uid), DecodeError> {
        let meta = metadata(object);
        let name = String::from_utf8_lossy(&meta.name).into_owned();
        match String::from_utf8_lossy(&meta.uid).parse() {
            Ok(uid) => Ok((name, Uid(uid))),
            Err(_) => Err(DecodeError {
                uid: (name == "named").then_some(Uid(0xbad)),
                object: name,
                reason: "no number".to_owned(),
            }),
        }
    }
}

impl Index for Log {
    const RESOURCE: &str = "things";
    const KIND: &str = "Thing";
    const SELECT: &str = "&fieldSelector=x";

    fn apply(&mut self, object: &Bytes, by: Source) -> Result<Uid, DecodeError> {
        let (name, uid) = Self::read(object)?;
        self.add(format!("{name} by {by:?}"));
        Ok(uid)
    }

    fn delete(&mut self, object: &Bytes) -> Result<(), DecodeError> {
        let (name, _) = Self::read(object)?;
        self.add(format!("{name} gone"));
        Ok(())
    }

    fn forget(&mut self, uid: Uid) {
        self.add(format!("{} forgotten", uid.0));
    }

    fn retain(&mut self, seen: &AHashSet<Uid>) {
        let mut uids: Vec<_> = seen.iter().map(|uid| uid.0).collect();
        uids.sort_unstable();
        self.add(format!("only {uids:?}"));
    }

    fn is_empty(&self) -> bool {
        self.new && self.lines.lock().is_empty()
    }
}

fn respond(reply: Reply, watch: bool) -> Response<UnsyncBoxBody<Bytes, Broken>> {
    let form = if watch { wire::WATCH_MEDIA_TYPE } else { wire::MEDIA_TYPE };
    let wait = if let Reply::Wait(_, seconds) = &reply { *seconds } else { 0 };
    let (code, form, pieces, silent, broken) = match reply {
        Reply::Answer(code, body) => (code, form, vec![body], false, false),
        Reply::Wait(code, _) => (code, form, vec![], false, false),
        Reply::Other(form, body) => (200, form, vec![body], false, false),
        Reply::Pieces(pieces) => (200, form, pieces, false, false),
        Reply::Silence(pieces) => (200, form, pieces, true, false),
        Reply::Break(pieces) => (200, form, pieces, false, true),
        Reply::Hang => unreachable!("answered nowhere"),
    };
    let pieces = stream::iter(pieces).map(|piece| Ok(Frame::data(piece)));
    let end = stream::iter(broken.then_some(Err(Broken)));
    let frames =
        if silent { pieces.chain(stream::pending()).boxed() } else { pieces.chain(end).boxed() };
    let mut answer = Response::builder().status(code).header(CONTENT_TYPE, form);
    if wait > 0 {
        answer = answer.header(RETRY_AFTER, wait);
    }
    answer.body(UnsyncBoxBody::new(StreamBody::new(frames))).unwrap()
}

/// What came of a script.
struct Played {
    /// What the index was told.
    log: Vec<String>,
    /// What the server was asked, and at which second since the start.
    requests: Vec<(String, u64)>,
    /// How many complete lists were taken.
    lists: u32,
}

impl Played {
    fn asked(&self, number: usize) -> &str {
        &self.requests[number].0
    }

    fn second(&self, number: usize) -> u64 {
        self.requests[number].1
    }

    fn told(&self, line: &str) -> usize {
        self.log.iter().filter(|told| *told == line).count()
    }
}

/// Runs the stream against the script for so many seconds.
async fn play(script: impl IntoIterator<Item = Reply>, seconds: u64) -> Played {
    play_to(Log::default(), script, seconds).await
}

/// The same, and tells this log.
async fn play_to(log: Log, script: impl IntoIterator<Item = Reply>, seconds: u64) -> Played {
    play_at(log, "1000000", script, seconds, |_| std::future::ready(())).await
}

/// The same against a server whose store is at this version (by the script, if it is empty), while something is done with the client.
async fn play_at<D: Future<Output = ()>>(
    log: Log,
    stored: &'static str,
    script: impl IntoIterator<Item = Reply>,
    seconds: u64,
    does: impl FnOnce(Api) -> D,
) -> Played {
    let mut script: VecDeque<_> = script.into_iter().collect();
    let next = move |_: &str| script.pop_front().unwrap_or(Reply::Hang);
    play_while(log, stored, next, seconds, does).await
}

/// The same against a server that answers each request by its address.
async fn play_by(
    log: Log,
    stored: &'static str,
    answer: impl FnMut(&str) -> Reply + Send + 'static,
    seconds: u64,
) -> Played {
    play_while(log, stored, answer, seconds, |_| std::future::ready(())).await
}

async fn play_while<D: Future<Output = ()>>(
    log: Log,
    stored: &'static str,
    answer: impl FnMut(&str) -> Reply + Send + 'static,
    seconds: u64,
    does: impl FnOnce(Api) -> D,
) -> Played {
    let script: Box<dyn FnMut(&str) -> Reply + Send> = Box::new(answer);
    let (script, requests) = (Mutex::new(script), Mutex::default());
    let server = Arc::new(Server { script, stored, requests });
    let behind = Arc::clone(&server);
    let service = service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&behind);
        async move {
            let uri = request.uri().to_string();
            let watch = uri.contains("watch=true");
            let accept = if watch { wire::WATCH_MEDIA_TYPE } else { wire::MEDIA_TYPE };
            assert_eq!(request.headers()[ACCEPT], accept);
            if uri.contains("limit=1&") && !server.stored.is_empty() {
                return Ok::<_, Infallible>(respond(page(server.stored, "", &[]), false));
            }
            let reply = (server.script.lock())(&uri);
            server.requests.lock().push((uri, Instant::now()));
            if matches!(reply, Reply::Hang) {
                std::future::pending::<()>().await;
            }
            Ok(respond(reply, watch))
        }
    });
    let metrics = Metrics::register(&Registry::new()).unwrap();
    let api = Api::new(Client::new(service, "default"), metrics.clone());
    let synced = Arc::new(Mutex::new(0));
    let count = Arc::clone(&synced);
    let start = Instant::now();
    let done = does(api.clone());
    let running = run(api, metrics, log.clone(), 1, Relist::default(), move || *count.lock() += 1);
    let _ = timeout(Duration::from_secs(seconds), futures::future::join(done, running)).await;
    let requests = server.requests.lock();
    let since_start = |when: &Instant| (*when - start).as_secs();
    Played {
        log: log.lines.lock().clone(),
        requests: requests.iter().map(|(uri, when)| (uri.clone(), since_start(when))).collect(),
        lists: *synced.lock(),
    }
}

/// A thing in protobuf: its name, its UID, its version.
fn thing(name: &str, uid: &str, version: &str) -> wire::Object {
    let bytes = |text: &str| Bytes::from(text.to_owned());
    let metadata = wire::ObjectMeta {
        name: bytes(name),
        uid: bytes(uid),
        resource_version: bytes(version),
        ..wire::ObjectMeta::default()
    };
    wire::Object { metadata }
}

fn status(code: i32, message: &str) -> Bytes {
    let status = wire::Status { code, message: message.to_owned(), ..wire::Status::default() };
    wire::seal("Status", &status)
}

fn event(r#type: &str, name: &str, uid: &str, version: &str) -> Bytes {
    wire::frame(r#type, wire::seal("Thing", &thing(name, uid, version)))
}

/// A page of a list; the last one if there is no token of a next.
fn page(version: &str, next: &str, things: &[(&str, u32)]) -> Reply {
    let things = things.iter().map(|(name, uid)| thing(name, &uid.to_string(), "1"));
    page_of(version, next, things)
}

fn page_of(version: &str, next: &str, things: impl IntoIterator<Item = wire::Object>) -> Reply {
    let metadata =
        wire::ListMeta { resource_version: version.to_owned(), r#continue: next.to_owned() };
    let items = things.into_iter().map(|thing| thing.encode_to_vec().into()).collect();
    Reply::Answer(200, wire::seal("ThingList", &wire::List { metadata, items }))
}

/// The answer of a server that does not stream lists.
fn refused() -> Reply {
    let message = "ListOptions is invalid: sendInitialEvents: Forbidden";
    Reply::Answer(422, status(422, message))
}

/// The bookmark that ends a streamed list.
fn list_end_at(version: &str) -> Bytes {
    let mut bookmark = thing("", "", version);
    let entry = wire::MapEntry { key: INITIAL_EVENTS_END.into(), value: "true".into() };
    bookmark.metadata.annotations.push(entry);
    wire::frame("BOOKMARK", wire::seal("Thing", &bookmark))
}

/// A complete streamed list, its events all in one piece.
fn streamed(version: &str, things: &[(&str, u32)]) -> Vec<Bytes> {
    let added = things.iter().map(|(name, uid)| event("ADDED", name, &uid.to_string(), "1"));
    let frames: Vec<_> = added.chain([list_end_at(version)]).collect();
    vec![frames.concat().into()]
}

fn added_b() -> Bytes {
    event("ADDED", "b", "2", "11")
}

fn deleted_a() -> Bytes {
    event("DELETED", "a", "1", "12")
}

fn bookmark() -> Bytes {
    event("BOOKMARK", "", "", "20")
}

fn error(code: i32, message: &str) -> Bytes {
    wire::frame("ERROR", status(code, message))
}
