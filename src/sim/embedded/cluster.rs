//! The embedded cluster as a whole, and the two ways to talk to it.

use std::io;
use std::net::SocketAddr;

use http::{Request, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tower::BoxError;

use super::audit::{Audit, Observed};
use super::error::ApiError;
use super::faults::Faults;
use super::http::{Api, Body, Broken, refusal};
use super::resource::Resource;
use super::store::{Options, Snapshot, Store};
use crate::clock::Clock;

/// Larger requests are refused, as an API server refuses them.
const LARGEST_BODY: usize = 3 * 1024 * 1024;

/// A cluster in the process: the API server and what it stores. Clones share it.
///
/// Nothing runs by itself: nodes stay as ready as they are until someone changes them. See
/// [`Controllers`](super::Controllers) for what else runs in a control plane.
///
/// ```
/// use k8s_openapi::api::core::v1::Namespace;
/// use ostrakon::clock::Clock;
/// use ostrakon::sim::embedded::{Embedded, Options};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), kube::Error> {
/// let cluster = Embedded::new(Clock::system(), Options::default());
/// let namespaces = kube::Api::<Namespace>::all(cluster.client());
/// assert!(namespaces.get_opt("kube-system").await?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Embedded {
    api: Api,
}

impl Embedded {
    /// An empty cluster, whose time is that of `clock`.
    pub fn new(clock: Clock, options: Options) -> Self {
        let faults = Faults::new(options.seed);
        let streaming_lists = options.streaming_lists;
        let audit = Audit::default();
        let api = Api { store: Store::new(clock, options), faults, audit, streaming_lists };
        Self { api }
    }

    /// What the cluster stores: to set the stage and to see what happened.
    pub fn store(&self) -> &Store {
        &self.api.store
    }

    /// What goes wrong on the way to it.
    pub fn faults(&self) -> &Faults {
        &self.api.faults
    }

    /// Every change that is stored and every request that the API answers from now on, in order. A
    /// request is in the channel before its answer is sent, and after the changes that it made. What
    /// is not read is kept, so read it or drop it. See [`Store::follow`] for changes alone.
    pub fn follow(&self) -> mpsc::UnboundedReceiver<Observed> {
        let (feed, observed) = mpsc::unbounded_channel();
        self.api.audit.add(feed.clone());
        self.store().send_to(feed);
        observed
    }

    /// Goes back to an earlier state, as when etcd is restored from a backup and the API server with it:
    /// all watches break. Leases stay, since no election can hold through a lease that goes back in time.
    pub fn go_back_to(&self, snapshot: &Snapshot) {
        self.store().restore(snapshot, &[Resource::Leases]);
        for resource in Resource::ALL {
            self.faults().cut_watches(resource);
        }
    }

    /// A client that talks to it without sockets. It does not retry, so that one call is one
    /// request. Must be called within a tokio runtime.
    pub fn client(&self) -> kube::Client {
        self.client_through(|request, onward| async move { onward.answer(request).await })
    }

    /// The same, with `way` between the two, as a proxy is: it passes requests on as it likes, and what
    /// it returns is the answer, or how the connection breaks.
    pub fn client_through<W, F>(&self, way: W) -> kube::Client
    where
        W: Fn(Request<Bytes>, Onward) -> F + Clone + Send + 'static,
        F: Future<Output = Result<Response<Body>, BoxError>> + Send,
    {
        let onward = Onward { api: self.api.clone() };
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let (onward, way) = (onward.clone(), way.clone());
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                way(Request::from_parts(parts, body), onward).await
            }
        });
        kube::Client::new(service, "default")
    }

    /// Serves it on `address`; port 0 takes a free one. Meant for loopback: there are no users
    /// and no TLS.
    pub async fn serve(&self, address: SocketAddr) -> io::Result<Served> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(accept(listener, self.api.clone()));
        Ok(Served { address, task })
    }
}

/// The way on to the cluster, for who stands before it. Clones share it.
#[derive(Clone)]
pub struct Onward {
    api: Api,
}

impl Onward {
    /// The cluster's answer.
    ///
    /// # Errors
    /// A fault breaks the connection.
    pub async fn answer(&self, request: Request<Bytes>) -> Result<Response<Body>, BoxError> {
        Ok(self.api.answer(request).await?)
    }
}

/// A served cluster. Dropping it ends the service and breaks the connections.
#[derive(Debug)]
pub struct Served {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Served {
    /// Where it is served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL, as clients want it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A kubeconfig that leads to it, as YAML.
    pub fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1\n\
             kind: Config\n\
             clusters:\n\
             - name: ostrakon\n  cluster:\n    server: {}\n\
             users:\n\
             - name: ostrakon\n  user: {{}}\n\
             contexts:\n\
             - name: ostrakon\n  context:\n    cluster: ostrakon\n    user: ostrakon\n    \
             namespace: default\n\
             current-context: ostrakon\n",
            self.url()
        )
    }

    /// Ends the service, breaks the connections, and waits until the port is free.
    pub async fn stop(mut self) {
        self.task.abort();
        // The only way in which it ends is the abort.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, api: Api) {
    // Its tasks end with it.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    // An answer is often smaller than a segment and must not wait for the next.
                    let _ = stream.set_nodelay(true);
                    let api = api.clone();
                    connections.spawn(async move {
                        let service = service_fn(move |request| over_http(api.clone(), request));
                        let connection = http1::Builder::new()
                            .serve_connection(TokioIo::new(stream), service);
                        // A client that went away, or a fault that broke the connection.
                        let _ = connection.await;
                    });
                }
                // Out of file descriptors, most likely: wait for some to come back.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(100)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn over_http(api: Api, request: Request<Incoming>) -> Result<Response<Body>, Broken> {
    let (parts, body) = request.into_parts();
    let body: Bytes = match Limited::new(body, LARGEST_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            return Ok(refusal(&ApiError::too_large()));
        }
        Err(_) => return Err(Broken),
    };
    api.answer(Request::from_parts(parts, body)).await
}
