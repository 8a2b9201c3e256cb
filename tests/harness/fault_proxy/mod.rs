//! A reverse proxy between a client and the API server that injects faults.
//!
//! It serves plain HTTP/1.1 on loopback and uses TLS to the server. It forwards the client's token, so the
//! API server sees the same user. Rules can be changed at any time and apply to later requests; only
//! requests that are being held follow the current rules.

mod rule;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use anyhow::{Context as _, Error, Result};
use http::header::{self, HeaderMap, HeaderValue};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::Connect;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::client::ConfigExt as _;
use ostrakon::cluster::wire;
use parking_lot::Mutex;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep};

pub use rule::{Answer, Fault, Match, Rule};

use super::request::RequestInfo;

type Answered = Response<UnsyncBoxBody<Bytes, Error>>;

/// Headers that concern one connection and not the message.
const HOP_BY_HOP: [header::HeaderName; 5] = [
    header::CONNECTION,
    header::HOST,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHORIZATION,
];

/// Between the last byte that is let through and the end of the connection.
const CUT_AFTER: Duration = Duration::from_millis(100);

/// Ends the connection without an answer.
#[derive(Debug, thiserror::Error)]
#[error("cut by the fault proxy")]
struct Cut;

/// A request that came by.
#[derive(Clone, Debug)]
pub struct Passed {
    pub at: Instant,
    pub request: RequestInfo,
    /// What was done to it.
    pub fault: Option<Fault>,
}

/// The proxy. It ends with this value, and all its connections with it.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    state: Arc<State>,
    acceptor: AbortHandle,
}

#[derive(Debug)]
struct State {
    rules: watch::Sender<Vec<Rule>>,
    random: Mutex<StdRng>,
    passed: Mutex<Vec<Passed>>,
    next_connection: AtomicU64,
    connections: Mutex<BTreeMap<u64, Connection>>,
}

#[derive(Debug)]
struct Connection {
    task: AbortHandle,
    /// The request that is being answered.
    request: Option<RequestInfo>,
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.acceptor.abort();
        self.cut_connections();
    }
}

impl FaultProxy {
    pub(super) async fn start(
        upstream: &kube::Config,
        token: Option<&str>,
        seed: u64,
    ) -> Result<Self> {
        let bearer = |token| HeaderValue::try_from(format!("Bearer {token}"));
        let upstream = Arc::new(Upstream {
            client: Client::builder(TokioExecutor::new()).build(upstream.rustls_https_connector()?),
            base: upstream.cluster_url.clone(),
            authorization: token.map(bearer).transpose()?,
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            rules: watch::Sender::new(Vec::new()),
            random: Mutex::new(StdRng::seed_from_u64(seed)),
            passed: Mutex::default(),
            next_connection: AtomicU64::new(0),
            connections: Mutex::default(),
        });
        let accepting = accept(listener, Arc::clone(&state), upstream);
        let acceptor = tokio::spawn(accepting).abort_handle();
        Ok(Self { address, state, acceptor })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Replaces all rules. Keep a clone of a rule to read its hits later.
    pub fn set_rules(&self, rules: Vec<Rule>) {
        self.state.rules.send_replace(rules);
    }

    /// From now on everything passes.
    pub fn clear(&self) {
        self.set_rules(Vec::new());
    }

    /// Closes all connections, whatever is going on in them.
    pub fn cut_connections(&self) {
        for connection in self.state.connections.lock().values() {
            connection.task.abort();
        }
    }

    /// Closes the connections in which such a request is being answered. Returns how many.
    pub fn cut(&self, requests: &Match) -> usize {
        let connections = self.state.connections.lock();
        let concerned = connections.values().filter(|connection| {
            connection.request.as_ref().is_some_and(|request| requests.matches(request))
        });
        concerned.map(|connection| connection.task.abort()).count()
    }

    /// How many such requests are being answered right now; for a watch, how many are open.
    pub fn open(&self, requests: &Match) -> usize {
        let connections = self.state.connections.lock();
        let open = connections.values().filter_map(|connection| connection.request.as_ref());
        open.filter(|request| requests.matches(request)).count()
    }

    /// All requests that came by, in order of arrival.
    pub fn passed(&self) -> Vec<Passed> {
        self.state.passed.lock().clone()
    }

    /// How many such requests came by.
    pub fn count(&self, requests: &Match) -> usize {
        let passed = self.state.passed.lock();
        passed.iter().filter(|passed| requests.matches(&passed.request)).count()
    }
}

async fn accept<C>(listener: TcpListener, state: Arc<State>, upstream: Arc<Upstream<C>>)
where
    C: Connect + Clone + Send + Sync + 'static,
{
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, most likely; connections are about to end.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        // Small answers must not wait for one another.
        let _ = stream.set_nodelay(true);
        let id = state.next_connection.fetch_add(1, Ordering::Relaxed);
        // The entry is there before the connection can end and remove it.
        let mut connections = state.connections.lock();
        let serving = serve(stream, id, Arc::clone(&state), Arc::clone(&upstream));
        let task = tokio::spawn(serving).abort_handle();
        connections.insert(id, Connection { task, request: None });
    }
}

/// Removes a connection's entry when its task ends, however it ends.
struct Entry(u64, Arc<State>);

impl Drop for Entry {
    fn drop(&mut self) {
        self.1.connections.lock().remove(&self.0);
    }
}

async fn serve<C>(stream: TcpStream, id: u64, state: Arc<State>, upstream: Arc<Upstream<C>>)
where
    C: Connect + Clone + Send + Sync + 'static,
{
    let entry = Entry(id, state);
    let state = &entry.1;
    let answer = service_fn(async |request: Request<Incoming>| {
        let info = RequestInfo::new(request.method(), request.uri());
        state.note_open(id, Some(info.clone()));
        let answer = state.answer(request, info, &upstream).await?;
        // Until the body is through, the request is still open.
        Ok::<_, Error>(
            answer.map(|body| UnsyncBoxBody::new(NotedBody { body, id, state: Arc::clone(state) })),
        )
    });
    // A cut is meant to be an error here.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}

impl State {
    fn note_open(&self, connection: u64, request: Option<RequestInfo>) {
        if let Some(connection) = self.connections.lock().get_mut(&connection) {
            connection.request = request;
        }
    }

    fn fault_for(&self, request: &RequestInfo) -> Option<Fault> {
        let rules = self.rules.borrow();
        rules.iter().find_map(|rule| rule.apply(request, &self.random))
    }

    async fn answer<C>(
        self: &Arc<Self>,
        request: Request<Incoming>,
        info: RequestInfo,
        upstream: &Arc<Upstream<C>>,
    ) -> Result<Answered>
    where
        C: Connect + Clone + Send + Sync + 'static,
    {
        let fault = self.fault_for(&info);
        let passed = Passed { at: Instant::now(), request: info.clone(), fault: fault.clone() };
        self.passed.lock().push(passed);
        match fault {
            None | Some(Fault::HoldBack(_) | Fault::AnyOf(_)) => {
                let answer = upstream.forward(request).await?;
                Ok(self.deliver(answer, info))
            }
            Some(Fault::Delay(duration)) => {
                tokio::time::sleep(duration).await;
                let answer = upstream.forward(request).await?;
                Ok(self.deliver(answer, info))
            }
            Some(Fault::Answer(answer)) => Ok(made_up(&answer)?),
            Some(Fault::WatchError(answer)) => Ok(watch_error(&answer, request.headers())?),
            Some(Fault::Garbage(text)) => Ok(json_response(StatusCode::OK, text.into())),
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Cut) => Err(Cut.into()),
            Some(Fault::Silence(duration)) => {
                tokio::time::sleep(duration).await;
                Err(Cut.into())
            }
            Some(Fault::CutBody(bytes)) => {
                let answer = upstream.forward(request).await?;
                Ok(answer.map(|body| UnsyncBoxBody::new(CutBody { body, left: bytes, end: None })))
            }
            Some(Fault::LoseAnswer) => {
                upstream.carry_out(request).await?;
                Err(Cut.into())
            }
            Some(Fault::WithholdAnswer) => {
                upstream.carry_out(request).await?;
                std::future::pending().await
            }
        }
    }

    /// Passes an answer on; a watch piece by piece, as the rules of the moment have it.
    fn deliver(self: &Arc<Self>, answer: Response<Incoming>, info: RequestInfo) -> Answered {
        if info.verb != super::request::Verb::Watch {
            return answer.map(|body| UnsyncBoxBody::new(body.map_err(Error::from)));
        }
        let (head, mut body) = answer.into_parts();
        let (sender, pieces) = mpsc::unbounded_channel();
        // Read at once, so that each piece is stamped with the time of its arrival.
        tokio::spawn(async move {
            loop {
                let piece = tokio::select! {
                    piece = body.frame() => piece,
                    () = sender.closed() => break,
                };
                let is_last = !matches!(piece, Some(Ok(_)));
                if sender.send((Instant::now(), piece)).is_err() || is_last {
                    break;
                }
            }
        });
        let waiting = Held { pieces, info, state: Arc::clone(self) };
        let stream = futures::stream::unfold(waiting, async |mut waiting| {
            let piece = waiting.next().await?;
            Some((piece, waiting))
        });
        Response::from_parts(head, UnsyncBoxBody::new(StreamBody::new(stream)))
    }
}

/// A part of a body, as it came; `None` is the end.
type Piece = Option<Result<Frame<Bytes>, hyper::Error>>;

/// A watch whose pieces may have to wait.
struct Held {
    pieces: mpsc::UnboundedReceiver<(Instant, Piece)>,
    info: RequestInfo,
    state: Arc<State>,
}

impl Held {
    async fn next(&mut self) -> Option<Result<Frame<Bytes>>> {
        let (arrival, piece) = self.pieces.recv().await?;
        let mut rules = self.state.rules.subscribe();
        let mut counted = false;
        loop {
            let rule = rules
                .borrow_and_update()
                .iter()
                .find_map(|rule| rule.hold(&self.info).map(|duration| (duration, rule.clone())));
            let Some((duration, rule)) = rule else { break };
            counted = counted || rule.count();
            let due = arrival + duration;
            tokio::select! {
                () = tokio::time::sleep_until(due) => break,
                changed = rules.changed() => if changed.is_err() { break },
            }
        }
        piece.map(|piece| piece.map_err(Error::from))
    }
}

#[derive(Debug)]
struct Upstream<C> {
    client: Client<C, Full<Bytes>>,
    base: Uri,
    /// For requests that have none.
    authorization: Option<HeaderValue>,
}

impl<C> Upstream<C>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    /// Passes a request on and returns the answer as soon as its head is there.
    async fn forward(&self, request: Request<Incoming>) -> Result<Response<Incoming>> {
        let (mut head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let mut uri = self.base.clone().into_parts();
        uri.path_and_query = head.uri.into_parts().path_and_query;
        head.uri = Uri::from_parts(uri)?;
        strip(&mut head.headers);
        if let (false, Some(ours)) =
            (head.headers.contains_key(header::AUTHORIZATION), &self.authorization)
        {
            head.headers.insert(header::AUTHORIZATION, ours.clone());
        }
        // The body is whole now, and its length is known.
        head.headers.remove(header::CONTENT_LENGTH);
        let mut answer = self.client.request(Request::from_parts(head, Full::new(body))).await?;
        strip(answer.headers_mut());
        Ok(answer)
    }

    /// Passes a request on and waits until it is answered in full, whether or not the client is
    /// still there.
    async fn carry_out(self: &Arc<Self>, request: Request<Incoming>) -> Result<()> {
        let this = Arc::clone(self);
        let carried_out = tokio::spawn(async move {
            let answer = this.forward(request).await?;
            answer.into_body().collect().await?;
            Ok(())
        });
        carried_out.await?
    }
}

fn strip(headers: &mut HeaderMap) {
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

fn made_up(answer: &Answer) -> Result<Answered> {
    let mut response = json_response(StatusCode::from_u16(answer.code())?, answer.body());
    if let Some(seconds) = answer.retry_after_seconds() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    Ok(response)
}

/// A watch that begins with an error event, in the form that the client asked for.
fn watch_error(answer: &Answer, asked: &HeaderMap) -> Result<Answered> {
    let accept = asked.get(header::ACCEPT).map_or("".as_bytes(), HeaderValue::as_bytes);
    if accept == wire::WATCH_MEDIA_TYPE.as_bytes() {
        let status = wire::seal("Status", &answer.wire_status());
        let event = wire::frame("ERROR", status);
        return Ok(response_of(wire::WATCH_MEDIA_TYPE, StatusCode::OK, event));
    }
    let event = json!({ "type": "ERROR", "object": answer.status() });
    let line = serde_json::to_string(&event).context("write a watch event")? + "\n";
    Ok(json_response(StatusCode::OK, line.into()))
}

fn json_response(status: StatusCode, body: Bytes) -> Answered {
    response_of("application/json", status, body)
}

fn response_of(form: &'static str, status: StatusCode, body: Bytes) -> Answered {
    let body = Full::new(body).map_err(|never: Infallible| match never {});
    let mut response = Response::new(UnsyncBoxBody::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(form));
    response
}

/// A body that ends in the middle.
struct CutBody {
    body: Incoming,
    left: usize,
    /// The end comes a little later, or what was sent before would never leave this process.
    end: Option<Pin<Box<Sleep>>>,
}

impl Body for CutBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>>>> {
        if self.left == 0 {
            let end = || Box::pin(tokio::time::sleep(CUT_AFTER));
            ready!(self.end.get_or_insert_with(end).as_mut().poll(context));
            return Poll::Ready(Some(Err(Cut.into())));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let left = &mut self.left;
        Poll::Ready(frame.map(|frame| {
            Ok(frame?.map_data(|mut data| {
                data.truncate(*left);
                *left -= data.len();
                data
            }))
        }))
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Tells the connection's entry when the answer is through.
struct NotedBody {
    body: UnsyncBoxBody<Bytes, Error>,
    id: u64,
    state: Arc<State>,
}

impl Drop for NotedBody {
    fn drop(&mut self) {
        self.state.note_open(self.id, None);
    }
}

impl Body for NotedBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
