//! Through proxies of each kind.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// An HTTP proxy that leads to `server`, whatever it is asked for; and what it was asked for.
async fn http_proxy(server: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(client.read_u8().await.unwrap());
            }
            heard.lock().push(String::from_utf8(head).unwrap());
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let mut server = TcpStream::connect(server).await.unwrap();
            tokio::spawn(async move { copy_bidirectional(&mut client, &mut server).await });
        }
    });
    (address, asked)
}

#[tokio::test]
async fn a_proxy_url_leads_to_the_server_and_tls_is_the_servers() {
    let server = TestServer::tls("old-server").await;
    let (proxy, asked) = http_proxy(server.address).await;
    let folder = Folder::new();
    let authority = folder.write("ca.pem", pem("old-authority"));
    let cluster = json!({
        "server": "https://api.test:6443",
        "certificate-authority": authority,
        "proxy-url": format!("http://me:p%40ss@{proxy}"),
    });
    let api = folder.api(&cluster, &json!({"token": "t"})).unwrap();
    ask(&api).await.unwrap();
    assert_eq!(server.authorizations(), ["Bearer t"]);
    let asked = asked.lock().join("");
    assert!(asked.starts_with("CONNECT api.test:6443 HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("Proxy-Authorization: Basic bWU6cEBzcw=="), "{asked}");
    assert!(!asked.contains("Bearer"), "the proxy does not learn the token: {asked}");
}

#[tokio::test]
async fn a_socks_proxy_leads_to_the_server() {
    let server = TestServer::tls("old-server").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    let upstream = server.address;
    let asked = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut greeting = [0; 3];
        client.read_exact(&mut greeting).await.unwrap();
        client.write_all(&[5, 0]).await.unwrap();
        // Version, connect, reserved, a name of so many bytes.
        let mut head = [0; 5];
        client.read_exact(&mut head).await.unwrap();
        let mut name = vec![0; usize::from(head[4]) + 2];
        client.read_exact(&mut name).await.unwrap();
        client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
        let mut server = TcpStream::connect(upstream).await.unwrap();
        tokio::spawn(async move { copy_bidirectional(&mut client, &mut server).await });
        (head[3], name)
    });
    let folder = Folder::new();
    let authority = folder.write("ca.pem", pem("old-authority"));
    let cluster = json!({
        "server": "https://api.test:6443",
        "certificate-authority": authority,
        "proxy-url": format!("socks5://{proxy}"),
    });
    ask(&folder.api(&cluster, &json!({})).unwrap()).await.unwrap();
    let (kind, name) = asked.await.unwrap();
    assert_eq!((kind, &name[..8]), (3, &b"api.test"[..]), "the proxy resolves the name");
}

#[tokio::test]
async fn the_environments_proxy_is_used_also_inside_a_pod_unless_no_proxy_exempts_the_server() {
    let folder = Folder::new();
    folder.write("ca.crt", pem("old-authority"));
    folder.write("token", "t");
    let source = Source::Pod { server: "https://10.0.0.1:443".to_owned(), folder: folder.path("") };
    let settings = |no_proxy: &str| {
        let env = |name: &str| match name {
            "HTTPS_PROXY" => Some("http://proxy:3128".to_owned()),
            "NO_PROXY" => Some(no_proxy.to_owned()),
            _ => None,
        };
        source.read(&env).unwrap().proxy
    };
    assert!(settings("").is_some() && settings("10.0.0.0/8").is_none());
    assert!(source.read(&nothing).unwrap().proxy.is_none());
}
