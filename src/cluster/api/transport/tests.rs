//! Real sockets and handshakes: how an error is wrapped is up to four libraries.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use kube::Config;
use prometheus::Registry;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;
use tower::BoxError;

use super::*;
use crate::cluster::{Api, Metrics, open};

const ELSEWHERE: &[u8] = include_bytes!("../../../../tests/data/elsewhere.pem");

/// Of the server, and of someone who has nothing to do with it.
fn certificates() -> [CertificateDer<'static>; 2] {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(ELSEWHERE).collect();
    all.unwrap().try_into().unwrap()
}

/// Does this with every connection.
async fn serve<F: Future<Output = ()> + Send>(
    with: impl Fn(TcpStream) -> F + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            with(connection).await;
        }
    });
    address
}

/// Says this, whatever it hears.
async fn saying(answer: &'static [u8]) -> SocketAddr {
    serve(move |mut connection| async move {
        let _ = connection.read(&mut [0; 4096]).await;
        let _ = connection.write_all(answer).await;
    })
    .await
}

/// Speaks TLS, with the certificate of elsewhere.
async fn with_tls() -> SocketAddr {
    let key = PrivateKeyDer::from_pem_slice(ELSEWHERE).unwrap();
    let [own, _] = certificates();
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![own], key);
    let acceptor = TlsAcceptor::from(Arc::new(config.unwrap()));
    serve(move |connection| {
        let acceptor = acceptor.clone();
        async move { drop(acceptor.accept(connection).await) }
    })
    .await
}

/// What comes of a request to there by a client that trusts this authority.
async fn asked(url: &str, authority: CertificateDer<'_>) -> RequestError {
    let mut config = Config::new(url.parse().unwrap());
    config.root_cert = Some(vec![authority.to_vec()]);
    let client = open(config).unwrap().client;
    let api = Api::new(client, Metrics::register(&Registry::new()).unwrap());
    api.server_time().await.unwrap_err()
}

fn assert_wrong(error: &RequestError, words: &str) {
    assert!(matches!(error, RequestError::WrongPeer(_)), "{error:?}");
    assert!(error.to_string().contains(words), "{error}");
}

#[tokio::test]
async fn who_shows_a_wrong_certificate_is_the_wrong_one() {
    let address = with_tls().await;
    let [own, stranger] = certificates();
    let url = format!("https://{address}");
    assert_wrong(&asked(&url, stranger).await, "UnknownIssuer");
    assert_wrong(&asked(&url, own).await, "not valid for name");
}

#[tokio::test]
async fn who_speaks_another_protocol_is_the_wrong_one() {
    let [own, _] = certificates();
    let web = saying(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
    assert_wrong(&asked(&format!("https://{web}"), own.clone()).await, "corrupt message");
    let ssh = saying(b"SSH-2.0-OpenSSH_9.9\r\n").await;
    assert_wrong(&asked(&format!("http://{ssh}"), own.clone()).await, "invalid HTTP version");
    assert_wrong(&asked("https://not..a.name:6443", own).await, "invalid dns name");
}

#[tokio::test]
async fn nobody_there_is_not_the_wrong_one() {
    let [own, _] = certificates();
    // Bound, so that it is nobody else's, and not listened on.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let closed = socket.local_addr().unwrap();
    let hanging_up = serve(|connection| async { drop(connection) }).await;
    for address in [closed, hanging_up] {
        for scheme in ["http", "https"] {
            let error = asked(&format!("{scheme}://{address}"), own.clone()).await;
            assert!(matches!(error, RequestError::Transport(_)), "{scheme} {address}: {error:?}");
        }
    }
    let error = asked("https://no-such-host.invalid:6443", own).await;
    assert!(matches!(error, RequestError::Transport(_)), "{error:?}");
}

#[test]
fn a_handshake_that_may_succeed_later_is_not_with_the_wrong_one() {
    let failed = |error: rustls::Error| {
        let handshake = io::Error::new(io::ErrorKind::InvalidData, error);
        transport(kube::Error::Service(BoxError::from(io::Error::other(handshake))))
    };
    for error in [
        rustls::Error::InvalidCertificate(CertificateError::NotValidYet),
        rustls::Error::InvalidCertificate(CertificateError::Expired),
        rustls::Error::AlertReceived(AlertDescription::InternalError),
    ] {
        assert!(matches!(failed(error.clone()), RequestError::Transport(_)), "{error}");
    }
    let refused = rustls::Error::AlertReceived(AlertDescription::BadCertificate);
    assert!(matches!(failed(refused), RequestError::WrongPeer(_)));
}
