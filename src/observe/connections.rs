//! Connections to the HTTP endpoints. Anyone who can reach the port can open connections, but must not be
//! able to exhaust this process's file descriptors or block its probes.
//!
//! Each connection carries one request and has a few seconds for it, so an idle or slow client only takes
//! limited time. The number of connections is limited too. At the limit, a new connection replaces the
//! oldest idle one of the client with the most connections, so that probes are answered even if another
//! client opens thousands.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tracing::warn;

/// Connections at the same time. Probes and scrapes need a handful.
const MOST: usize = 64;
/// For how long a connection may stay open: its request, the answer, and a slow reader.
const WITHIN: Duration = Duration::from_secs(10);
/// A request has no body and few headers.
const MOST_HEADERS: usize = 16 << 10;
/// Pause after a failed accept, for example when no file is left.
const PAUSE: Duration = Duration::from_millis(100);
/// Least time between two warnings about too many connections.
const QUIET: Duration = Duration::from_secs(60);
/// Connections that the system queues before they are accepted.
const BACKLOG: i32 = 1024;

/// Listens on `address`. The unspecified IPv6 address answers both families, whatever the
/// system's default; where IPv6 is off, it means IPv4.
pub(super) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    bind_by(open, address)
}

fn bind_by<T>(open: impl Fn(SocketAddr) -> io::Result<T>, address: SocketAddr) -> io::Result<T> {
    match open(address) {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && has_no_ipv6(&error) => {
            open(([0, 0, 0, 0], address.port()).into())
        }
        other => other,
    }
}

fn has_no_ipv6(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error())
}

fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Serves `routes` until `stop`; then finishes the requests in progress.
pub(super) async fn serve(listener: TcpListener, routes: Router, stop: CancellationToken) {
    let open = Arc::new(Mutex::new(Open::default()));
    let mut tasks = JoinSet::new();
    let mut warned: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = tasks.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, client) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if is_due(&mut warned) {
                    warn!(%error, "cannot accept connections to the HTTP endpoints; retrying");
                }
                sleep(PAUSE).await;
                continue;
            }
        };
        let mut entries = open.lock();
        if entries.is_full() {
            if is_due(&mut warned) {
                warn!(most = MOST, %client,
                    "too many connections to the HTTP endpoints; closing idle ones");
            }
            if !entries.close_idle() {
                continue;
            }
        }
        // The entry exists before the task can end and remove it.
        let id = entries.next_id();
        let connection = carry(stream, routes.clone(), Entry(id, Arc::clone(&open)));
        let task = tasks.spawn(connection);
        entries.add(id, client.ip(), task);
    }
    drop(listener);
    while open.lock().close_idle() {}
    while tasks.join_next().await.is_some() {}
}

/// Whether it is time for another warning.
fn is_due(warned: &mut Option<Instant>) -> bool {
    let is_due = warned.is_none_or(|warned| warned.elapsed() >= QUIET);
    if is_due {
        *warned = Some(Instant::now());
    }
    is_due
}

/// Answers the one request of a connection.
async fn carry(stream: TcpStream, routes: Router, entry: Entry) {
    let answer = service_fn(|request: http::Request<Incoming>| {
        entry.1.lock().set_busy(entry.0);
        routes.clone().oneshot(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .max_buf_size(MOST_HEADERS)
        .serve_connection(TokioIo::new(stream), answer);
    // How it ended is the client's affair.
    let _ = timeout(WITHIN, connection).await;
}

/// Removes the entry of a connection when its task ends, however it ends.
struct Entry(u64, Arc<Mutex<Open>>);

impl Drop for Entry {
    fn drop(&mut self) {
        self.1.lock().connections.remove(&self.0);
    }
}

/// The open connections, by their number, which grows.
#[derive(Default)]
struct Open {
    connections: BTreeMap<u64, Connection>,
    numbered: u64,
}

struct Connection {
    client: IpAddr,
    is_busy: bool,
    task: AbortHandle,
}

impl Open {
    fn is_full(&self) -> bool {
        self.connections.len() >= MOST
    }

    fn next_id(&mut self) -> u64 {
        self.numbered += 1;
        self.numbered
    }

    fn add(&mut self, id: u64, client: IpAddr, task: AbortHandle) {
        let client = network(client);
        self.connections.insert(id, Connection { client, is_busy: false, task });
    }

    /// A request has arrived.
    fn set_busy(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_busy = true;
        }
    }

    /// Closes the oldest idle connection of the client that has most of them; `false` if none is
    /// idle.
    fn close_idle(&mut self) -> bool {
        let idle = || self.connections.iter().filter(|(_, connection)| !connection.is_busy);
        let mut counts = BTreeMap::<IpAddr, usize>::new();
        for (_, connection) in idle() {
            *counts.entry(connection.client).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(client, _)| client);
        let oldest = idle().find(|(_, connection)| Some(connection.client) == most);
        let Some(id) = oldest.map(|(id, _)| *id) else { return false };
        if let Some(connection) = self.connections.remove(&id) {
            connection.task.abort();
        }
        true
    }
}

/// Whom an address belongs to: one machine has all addresses of an IPv6 network of 64 bits.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests;
