//! Connections to the API server: sockets that detect a dead peer, proxies, and TLS.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::client::legacy::{Builder, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::Body;
use rustls::ClientConfig;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service};

use super::kubeconfig::Settings;
use super::proxy::{Kind, Proxy};
use super::tls::{Identity, Trust, client_config};

/// How long a connection may take until it can be used, TLS included.
const CONNECT: Duration = Duration::from_secs(5);
/// A silent connection is asked after this time whether its peer is there, and then again and again.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVE_AGAIN: Duration = Duration::from_secs(2);
/// What is not acknowledged for this long ends the connection.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);
/// For how long a connection is kept that is not used. Shorter than what load balancers forget after.
const IDLE: Duration = Duration::from_secs(20);
/// Connections that are kept: as many as evictions can be in flight.
const KEPT: usize = 32;

/// Sends a request and receives its answer.
pub(super) type Exchange = BoxCloneSyncService<Request<Body>, Response<Incoming>, Error>;

/// The settings of connections. As long as they are the same, the pool can stay.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Secured {
    is_https: bool,
    trust: Trust,
    server_name: Option<String>,
    proxy: Option<Proxy>,
    identity: Option<Arc<Identity>>,
}

impl Secured {
    pub(super) fn of(settings: &Settings, identity: Option<Arc<Identity>>) -> Self {
        Self {
            is_https: settings.server.scheme_str() == Some("https"),
            trust: settings.trust.clone(),
            server_name: settings.server_name.clone(),
            proxy: settings.proxy.clone(),
            identity,
        }
    }
}

/// A pool of such connections. Must be called inside a tokio runtime.
///
/// # Errors
/// What is configured cannot be used.
pub(super) fn exchange_of(secured: &Secured) -> Result<Exchange, String> {
    // Where there is no TLS, what it would need may be missing.
    let tls = if secured.is_https {
        client_config(&secured.trust, secured.identity.as_deref())?
    } else {
        client_config(&Trust::Anybody, None)?
    };
    let socket = socket();
    let Some(proxy) = &secured.proxy else { return over(socket, tls, secured) };
    let url = proxy.url.clone();
    match proxy.kind {
        Kind::Socks => {
            let socks = SocksV5::new(url, socket);
            let socks = match proxy.user.clone() {
                Some((name, password)) => socks.with_auth(name, password),
                None => socks,
            };
            over(socks, tls, secured)
        }
        Kind::Http => over(tunnel(proxy, url, socket), tls, secured),
        Kind::Https => {
            // The proxy shows its own certificate, of an authority that this machine trusts.
            let own = client_config(&Trust::System, None)?;
            let outer =
                HttpsConnectorBuilder::new().with_tls_config(own).https_or_http().enable_http1();
            over(tunnel(proxy, url, outer.wrap_connector(socket)), tls, secured)
        }
    }
}

fn socket() -> HttpConnector {
    let mut socket = HttpConnector::new();
    socket.enforce_http(false);
    socket.set_nodelay(true);
    socket.set_keepalive(Some(KEEPALIVE));
    socket.set_keepalive_interval(Some(KEEPALIVE_AGAIN));
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    socket
}

fn tunnel<C>(proxy: &Proxy, url: Uri, inner: C) -> Tunnel<C> {
    let tunnel = Tunnel::new(url, inner);
    match proxy.authorization() {
        Some(authorization) => tunnel.with_auth(authorization),
        None => tunnel,
    }
}

/// TLS over `inner`, and a pool of such connections.
fn over<C>(inner: C, tls: ClientConfig, secured: &Secured) -> Result<Exchange, String>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &secured.server_name {
        let name = name.clone().try_into();
        let name =
            name.map_err(|_| "tls-server-name is neither a DNS name nor an IP address".to_owned())?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let mut connector = TimeoutConnector::new(builder.enable_http1().wrap_connector(inner));
    connector.set_connect_timeout(Some(CONNECT));
    let client = Builder::new(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(KEPT)
        .build(connector);
    Ok(BoxCloneSyncService::new(client))
}
