//! A TCP proxy on loopback that can go silent: it then discards all data on open connections, in both
//! directions, without closing them. New connections work. A firewall or NAT gateway that has lost its
//! connection table behaves like this.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// The proxy. It takes no more connections after this value is dropped.
#[derive(Debug)]
pub struct SilentProxy {
    address: SocketAddr,
    /// How often it has fallen silent.
    silences: Arc<AtomicU64>,
    acceptor: AbortHandle,
}

impl Drop for SilentProxy {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

impl SilentProxy {
    /// Passes everything on to `upstream`, for now.
    pub async fn start(upstream: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let silences = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&silences);
        let acceptor = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let silences = Arc::clone(&counted);
                let begun = silences.load(Ordering::SeqCst);
                tokio::spawn(async move {
                    let server = TcpStream::connect(upstream).await?;
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    tokio::spawn(pass(from_client, to_server, Arc::clone(&silences), begun));
                    pass(from_server, to_client, silences, begun).await;
                    io::Result::Ok(())
                });
            }
        })
        .abort_handle();
        Ok(Self { address, silences, acceptor })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Swallows what passes through all connections that are open now.
    pub fn fall_silent(&self) {
        self.silences.fetch_add(1, Ordering::SeqCst);
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    silences: Arc<AtomicU64>,
    begun: u64,
) {
    let mut buffer = vec![0; 1 << 14];
    loop {
        let read = from.read(&mut buffer).await;
        if silences.load(Ordering::SeqCst) != begun {
            // Not even its end is passed on.
            if matches!(read, Ok(0) | Err(_)) {
                return std::future::pending().await;
            }
            continue;
        }
        match read {
            Ok(0) | Err(_) => return,
            Ok(length) => {
                if to.write_all(&buffer[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}
