//! etcd's own interface, as far as it is needed here: transactions and a watch.
//!
//! gRPC over HTTP/2 without TLS, by hand: five bytes before each message, and a status in the
//! trailers. Field numbers are those of etcd's published `rpc.proto` and `kv.proto`.

use std::convert::Infallible;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use futures::StreamExt as _;
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpStream;

/// Room for what comes in while this side is busy: the events of a whole round.
const WINDOW: u32 = 32 << 20;

/// Length of what precedes a message: a flag and four bytes of length.
const PREFIX: usize = 5;

/// A change in a transaction.
pub(crate) enum Change {
    /// Stores a value.
    Put { key: String, value: Bytes },
    /// Removes every key that begins with this.
    DeletePrefix(String),
}

#[derive(Clone, PartialEq, Message)]
struct PutRequest {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct DeleteRangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    range_end: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct RequestOp {
    #[prost(message, optional, tag = "2")]
    put: Option<PutRequest>,
    #[prost(message, optional, tag = "3")]
    delete_range: Option<DeleteRangeRequest>,
}

#[derive(Clone, PartialEq, Message)]
struct TxnRequest {
    #[prost(message, repeated, tag = "2")]
    success: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
struct ResponseHeader {
    #[prost(int64, tag = "3")]
    revision: i64,
}

#[derive(Clone, PartialEq, Message)]
struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    succeeded: bool,
}

#[derive(Clone, PartialEq, Message)]
struct WatchCreateRequest {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    range_end: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    create: Option<WatchCreateRequest>,
}

#[derive(Clone, PartialEq, Message)]
struct WatchResponse {
    #[prost(bool, tag = "3")]
    created: bool,
    #[prost(bool, tag = "4")]
    canceled: bool,
    #[prost(message, repeated, tag = "11")]
    events: Vec<Event>,
}

/// A change that a watch shows.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Event {
    /// 0 is a put, 1 a deletion.
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(message, optional, tag = "2")]
    kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    value: Bytes,
}

impl Event {
    pub(crate) fn is_deletion(&self) -> bool {
        self.kind == 1
    }

    pub(crate) fn key(&self) -> &[u8] {
        self.kv.as_ref().map_or(&[], |kv| &kv.key)
    }

    pub(crate) fn value(&self) -> &[u8] {
        self.kv.as_ref().map_or(&[], |kv| &kv.value)
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A connection to etcd. Clones share it.
#[derive(Clone)]
pub(crate) struct Etcd {
    sender: SendRequest<Body>,
    port: u16,
}

impl Etcd {
    /// Connects to etcd on this port of 127.0.0.1.
    pub(crate) async fn connect(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .handshake(TokioIo::new(stream))
            .await?;
        tokio::spawn(connection);
        Ok(Self { sender, port })
    }

    /// Makes all changes at once, or none, and returns the store's revision.
    pub(crate) async fn commit(&self, changes: Vec<Change>) -> Result<i64> {
        let success = changes.into_iter().map(operation).collect();
        let body = Full::new(framed(&TxnRequest { success })).boxed_unsync();
        let response = self.send("/etcdserverpb.KV/Txn", body).await?;
        let (head, body) = response.into_parts();
        let collected = body.collect().await.context("read etcd's answer")?;
        let trailers = collected.trailers().cloned().unwrap_or_default();
        must_be_ok(&head.headers, &trailers)?;
        let mut buffer = BytesMut::from(collected.to_bytes().as_ref());
        let answer: TxnResponse = take(&mut buffer)?.context("etcd's answer is cut short")?;
        ensure!(answer.succeeded, "etcd did not carry out the transaction");
        Ok(answer.header.map_or(0, |header| header.revision))
    }

    /// Watches every key that begins with `prefix`, from now on.
    pub(crate) async fn watch(&self, prefix: &str) -> Result<Watch> {
        let (key, range_end) = range(prefix);
        let create = Some(WatchCreateRequest { key, range_end });
        let first = Frame::data(framed(&WatchRequest { create }));
        // The request stays open for as long as the watch is wanted.
        let frames = futures::stream::iter([Ok(first)]).chain(futures::stream::pending());
        let body = StreamBody::new(frames).boxed_unsync();
        let response = self.send("/etcdserverpb.Watch/Watch", body).await?;
        must_be_ok(response.headers(), &HeaderMap::new())?;
        let mut watch = Watch { body: response.into_body(), buffer: BytesMut::new() };
        let answer = watch.response().await?;
        ensure!(answer.created, "etcd did not open the watch");
        Ok(watch)
    }

    async fn send(&self, path: &str, body: Body) -> Result<Response<Incoming>> {
        let request = Request::post(format!("http://127.0.0.1:{}{path}", self.port))
            .header(CONTENT_TYPE, "application/grpc")
            .header(TE, "trailers")
            .body(body)?;
        self.sender.clone().send_request(request).await.context("ask etcd")
    }
}

/// A running watch.
pub(crate) struct Watch {
    body: Incoming,
    buffer: BytesMut,
}

impl Watch {
    /// The next events, in order.
    pub(crate) async fn next(&mut self) -> Result<Vec<Event>> {
        let answer = self.response().await?;
        ensure!(!answer.canceled, "etcd ended the watch");
        Ok(answer.events)
    }

    async fn response(&mut self) -> Result<WatchResponse> {
        loop {
            if let Some(response) = take(&mut self.buffer)? {
                return Ok(response);
            }
            let Some(frame) = self.body.frame().await else {
                bail!("etcd closed the watch");
            };
            if let Ok(data) = frame.context("read etcd's watch")?.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }
}

fn operation(change: Change) -> RequestOp {
    match change {
        Change::Put { key, value } => {
            RequestOp { put: Some(PutRequest { key: key.into(), value }), delete_range: None }
        }
        Change::DeletePrefix(prefix) => {
            let (key, range_end) = range(&prefix);
            RequestOp { put: None, delete_range: Some(DeleteRangeRequest { key, range_end }) }
        }
    }
}

/// The keys that begin with `prefix`: from the first to the one after the last.
fn range(prefix: &str) -> (Bytes, Bytes) {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1; // ASCII, so it does not overflow.
    }
    (Bytes::copy_from_slice(prefix.as_bytes()), end.into())
}

fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut buffer = BytesMut::with_capacity(PREFIX + length);
    buffer.put_u8(0);
    buffer.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    buffer.extend_from_slice(&message.encode_to_vec());
    buffer.freeze()
}

/// Takes one message off the front of `buffer`, if all of it is there.
fn take<M: Message + Default>(buffer: &mut BytesMut) -> Result<Option<M>> {
    let Some(mut prefix) = buffer.get(..PREFIX) else {
        return Ok(None);
    };
    ensure!(prefix.get_u8() == 0, "etcd compresses its answers");
    let length = prefix.get_u32() as usize;
    if buffer.len() < PREFIX + length {
        return Ok(None);
    }
    buffer.advance(PREFIX);
    Ok(Some(M::decode(buffer.split_to(length).freeze())?))
}

fn must_be_ok(headers: &HeaderMap, trailers: &HeaderMap) -> Result<()> {
    let of = |name: &str| {
        let value = trailers.get(name).or_else(|| headers.get(name))?;
        value.to_str().ok().map(str::to_owned)
    };
    match of("grpc-status").as_deref() {
        None | Some("0") => Ok(()),
        Some(code) => bail!("etcd refused ({code}): {}", of("grpc-message").unwrap_or_default()),
    }
}
