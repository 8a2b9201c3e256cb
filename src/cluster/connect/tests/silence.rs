//! Connections that die without a sign.

use http::Request;
use http_body_util::BodyExt as _;
use tokio::time::Instant;

use super::silent_proxy::SilentProxy;
use super::*;
use crate::clock::Clock;
use crate::model::NodeName;
use crate::sim::embedded::{Embedded, Options, Served};

/// An embedded cluster behind a proxy that can fall silent, and a client of it whose connections
/// are not young any more.
async fn behind_a_proxy() -> (Served, SilentProxy, Cluster) {
    let cluster = Embedded::new(Clock::system(), Options::default());
    let served = cluster.serve("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = served.url().parse::<http::Uri>().unwrap();
    let address = format!("127.0.0.1:{}", address.port_u16().unwrap()).parse().unwrap();
    let proxy = SilentProxy::start(address).await.unwrap();
    let url = format!("http://{}", proxy.address()).parse().unwrap();
    let client = open(Config::new(url)).unwrap();
    read(&api(&client)).await.unwrap();
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    (served, proxy, client)
}

/// A request whose connection is kept for the next one.
async fn read(api: &Api) -> Result<(), RequestError> {
    api.node(&NodeName::from("n")).await.map(drop)
}

#[tokio::test]
async fn a_read_at_a_dead_connection_is_answered_by_a_new_one_within_seconds() {
    let (_served, proxy, client) = behind_a_proxy().await;
    let api = api(&client);
    // Several connections are pooled.
    let (one, two, three) = tokio::join!(read(&api), read(&api), read(&api));
    assert!(one.is_ok() && two.is_ok() && three.is_ok());
    proxy.fall_silent();
    let begin = Instant::now();
    for _ in 0..3 {
        let node = api.node(&NodeName::from("n")).await.unwrap();
        assert_eq!(node, None);
    }
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(14), "each dead connection cost its time-out: {took:?}");
}

#[tokio::test]
async fn a_write_that_had_no_answer_makes_the_other_connections_suspect() {
    let (_served, proxy, client) = behind_a_proxy().await;
    let api = api(&client);
    let (one, two) = tokio::join!(read(&api), read(&api));
    assert!(one.is_ok() && two.is_ok());
    proxy.fall_silent();
    let lease = crate::cluster::Lease::default();
    let error = api.put_lease(&lease, Duration::from_secs(2)).await.unwrap_err();
    assert!(matches!(error, RequestError::Timeout(_)), "it is not sent twice: {error:?}");
    let begin = Instant::now();
    let error = api.put_lease(&lease, Duration::from_secs(60)).await.unwrap_err();
    assert!(matches!(error, RequestError::Status(_)), "{error:?}");
    assert!(begin.elapsed() < Duration::from_secs(30));
}

#[tokio::test]
async fn a_silent_watch_ends_when_another_request_has_no_answer() {
    let (_served, proxy, client) = behind_a_proxy().await;
    let watch = Request::get("/api/v1/nodes?watch=true").body(Body::empty()).unwrap();
    let watch = client.client.send(watch).await.unwrap();
    read(&api(&client)).await.unwrap();
    proxy.fall_silent();
    let begin = Instant::now();
    let api = api(&client);
    let (end, asked) = tokio::join!(watch.into_body().collect(), read(&api));
    let error = end.map(drop).unwrap_err().to_string();
    assert!(error.contains("no answer"), "{error}");
    asked.unwrap();
    assert!(begin.elapsed() < Duration::from_secs(30), "it waited for its own time-out");
}
