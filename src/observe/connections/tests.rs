use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::task::AbortOnDropHandle;

use super::*;

fn served(address: &str) -> (SocketAddr, AbortOnDropHandle<()>) {
    let listener = bind(address.parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let routes = Router::new().route("/livez", get(|| async { "ok\n" }));
    let task = tokio::spawn(serve(listener, routes, CancellationToken::new()));
    (address, AbortOnDropHandle::new(task))
}

/// The whole answer to a request for `/livez`.
async fn asked(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: here\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn a_probe_is_answered_while_a_stranger_holds_1100_idle_connections() {
    let (address, _serving) = served("127.0.0.1:0");
    let mut idle = Vec::new();
    for number in 0..1_100 {
        idle.push(TcpStream::connect(address).await.unwrap());
        if number % 100 == 99 {
            let answer = asked(address).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "after {number}: {answer}");
        }
    }
    // Those that were let go know it; the last are still open.
    let mut closed = 0;
    for stream in &mut idle[..1_000] {
        closed += usize::from(matches!(stream.read(&mut [0]).await, Ok(0) | Err(_)));
    }
    assert_eq!(closed, 1_000);
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_let_go_after_a_while_and_a_slow_one_too() {
    for begin in ["", "GET /livez HTTP/1.1\r\nHost:"] {
        let (address, _serving) = served("127.0.0.1:0");
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(begin.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert_eq!(String::from_utf8_lossy(&answer), "", "{begin}");
    }
}

#[tokio::test]
async fn the_unspecified_ipv6_address_answers_both_families() {
    // Where the machine has no IPv6, this listens on IPv4 alone.
    let (address, _serving) = served("[::]:0");
    let families = if address.is_ipv6() { &["127.0.0.1", "::1"][..] } else { &["127.0.0.1"] };
    for ip in families {
        let answer = asked((ip.parse::<IpAddr>().unwrap(), address.port()).into()).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{ip}: {answer}");
    }
}

#[test]
fn where_ipv6_is_off_its_unspecified_address_means_ipv4_and_no_other_does() {
    let off = |address: SocketAddr| match address {
        SocketAddr::V6(_) => Err(io::Error::from_raw_os_error(Errno::AFNOSUPPORT.raw_os_error())),
        SocketAddr::V4(_) => Ok(address.to_string()),
    };
    let bound = |address: &str| bind_by(off, address.parse().unwrap());
    assert_eq!(bound("[::]:8080").unwrap(), "0.0.0.0:8080");
    assert_eq!(bound("127.0.0.1:8080").unwrap(), "127.0.0.1:8080");
    bound("[::1]:8080").unwrap_err();
    let used = |_| Err::<(), _>(io::Error::from(io::ErrorKind::AddrInUse));
    let error = bind_by(used, "[::]:8080".parse().unwrap()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}

#[tokio::test]
async fn who_holds_most_idle_connections_loses_the_oldest_and_a_busy_one_stays() {
    let mut tasks = JoinSet::new();
    let mut open = Open::default();
    let mut add = |client: &str, is_busy| {
        let id = open.next_id();
        open.add(id, client.parse().unwrap(), tasks.spawn(std::future::pending::<()>()));
        if is_busy {
            open.set_busy(id);
        }
    };
    for (client, is_busy) in [
        ("10.0.0.1", false),
        ("2001:db8::1", true),
        ("2001:db8::2", false),
        ("2001:db8::ffff", false),
        ("::ffff:10.0.0.2", false),
    ] {
        add(client, is_busy);
    }
    let mut closed = Vec::new();
    loop {
        let before: Vec<_> = open.connections.keys().copied().collect();
        if !open.close_idle() {
            break;
        }
        closed.extend(before.into_iter().filter(|id| !open.connections.contains_key(id)));
    }
    assert_eq!(closed[0], 3, "the network has two, and this one is older");
    closed.sort_unstable();
    assert_eq!(closed, [1, 3, 4, 5], "the busy one stays");
}
