//! A server that writes down who asks it, and refuses those whom it does not know.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use super::*;

/// A request that came in.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) path: String,
    pub(super) headers: BTreeMap<String, Vec<String>>,
    /// The client's certificate, if it showed one.
    pub(super) certificate: Option<CertificateDer<'static>>,
}

impl Seen {
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|values| values.join(",")).unwrap_or_default().leak()
    }
}

/// With which certificate a server shows itself, and whose clients it demands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Certified {
    pub(super) by: &'static str,
    pub(super) clients_of: Option<&'static str>,
}

#[derive(Default)]
struct State {
    seen: Vec<Seen>,
    /// Authorization that is accepted; anything if there is none.
    accepts: Option<String>,
    certified: Option<Certified>,
}

pub(super) struct TestServer {
    pub(super) address: SocketAddr,
    state: Arc<Mutex<State>>,
    _accepting: AbortOnDropHandle<()>,
}

impl TestServer {
    pub(super) async fn plain() -> Self {
        Self::at("127.0.0.1:0", None).await.unwrap()
    }

    pub(super) async fn tls(by: &'static str) -> Self {
        Self::at("127.0.0.1:0", Some(Certified { by, clients_of: None })).await.unwrap()
    }

    pub(super) async fn at(address: &str, certified: Option<Certified>) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State { certified, ..State::default() }));
        let shared = Arc::clone(&state);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                let tls = state.lock().certified.map(acceptor);
                tokio::spawn(async move {
                    match tls {
                        None => answer(stream, state, None).await,
                        Some(tls) => {
                            let Ok(stream) = tls.accept(stream).await else { return };
                            let shown = stream.get_ref().1.peer_certificates();
                            let shown = shown.and_then(|all| all.first()).cloned();
                            let shown = shown.map(CertificateDer::into_owned);
                            answer(stream, state, shown).await;
                        }
                    }
                });
            }
        });
        Ok(Self { address, state, _accepting: AbortOnDropHandle::new(accepting) })
    }

    pub(super) fn url(&self) -> String {
        let scheme = if self.state.lock().certified.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Accepts no other `Authorization` from now on.
    pub(super) fn accept_only(&self, authorization: &str) {
        self.state.lock().accepts = Some(authorization.to_owned());
    }

    /// New connections see this certificate.
    pub(super) fn certify(&self, certified: Certified) {
        self.state.lock().certified = Some(certified);
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.state.lock().seen.clone()
    }

    pub(super) fn last(&self) -> Seen {
        self.seen().pop().unwrap()
    }

    /// `Authorization` of each request.
    pub(super) fn authorizations(&self) -> Vec<String> {
        self.seen().iter().map(|seen| seen.header("authorization").to_owned()).collect()
    }
}

async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    state: Arc<Mutex<State>>,
    certificate: Option<CertificateDer<'static>>,
) {
    let answer = service_fn(async |request: Request<Incoming>| {
        let mut headers = BTreeMap::<String, Vec<String>>::new();
        for (name, value) in request.headers() {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            headers.entry(name.to_string()).or_default().push(value);
        }
        let path = request.uri().to_string();
        let seen = Seen { path, headers, certificate: certificate.clone() };
        let mut state = state.lock();
        let is_known =
            state.accepts.as_ref().is_none_or(|accepts| seen.header("authorization") == accepts);
        state.seen.push(seen);
        let code = if is_known { 200 } else { 401 };
        let body = r#"{"kind":"Status","reason":"","message":"you are nobody"}"#.to_owned();
        Response::builder().status(code).body(body)
    });
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
}

fn acceptor(certified: Certified) -> TlsAcceptor {
    let text = pem(certified.by);
    let chain = CertificateDer::pem_slice_iter(text.as_bytes()).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).unwrap();
    let builder = match certified.clients_of {
        None => ServerConfig::builder().with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            let text = pem(authority);
            roots.add(CertificateDer::from_pem_slice(text.as_bytes()).unwrap()).unwrap();
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
            ServerConfig::builder().with_client_cert_verifier(verifier)
        }
    };
    TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap()))
}
