//! The session with the API server, which outlives its credentials and connections.
//!
//! All requests go through it, and it can replace its parts while the process runs:
//!
//! - **Credentials** are read again from the kubeconfig, its files and its plugin every minute, and at
//!   once when the server answers 401 or a handshake fails. This is rate-limited, so that a server that
//!   rejects everyone does not run a plugin in a loop. A rejected request is sent once more if the
//!   credentials have changed.
//! - **Connections** can die silently, when a machine in between drops packets. A request without a
//!   response makes all connections of its pool suspect. The pool is replaced, reads are sent again on a
//!   new connection, and silent watches end and are resumed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::AUTHORIZATION;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use kube::client::Body;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tower::{BoxError, Service};
use tracing::{info, warn};

use super::credentials::{Because, Credentials, Renewals};
use super::kubeconfig::{Env, Settings, Source, process_env};
use super::pool::{Exchange, Secured, exchange_of};
use super::{ConnectError, CredentialsError, agent};
use crate::clock::system_time;

/// How often the files are read again: a pod's token and authority change like this.
const REREAD: Duration = Duration::from_secs(60);
/// For how long the answer to a read of one object may take before its connection is suspect. It
/// takes milliseconds; a lost segment is sent again within a second.
const READ_PATIENCE: Duration = Duration::from_secs(4);
/// A request that was given up sooner says nothing about its connection.
const GIVEN_UP: Duration = Duration::from_millis(1_500);
/// A pool that is younger is not replaced: its connections are new, so it is the server that is slow.
const YOUNG: Duration = Duration::from_secs(10);

type Answer = Response<BoxBody<Bytes, BoxError>>;

/// No answer came, and the connection may be dead.
#[derive(Debug, thiserror::Error)]
#[error("no answer; the connection may be dead")]
struct Silent;

/// Sends requests. Clones share everything.
#[derive(Clone)]
pub(super) struct Session(Arc<Shared>);

struct Shared {
    source: Source,
    live: Mutex<Live>,
    /// Renews one at a time.
    renewals: tokio::sync::Mutex<Renewals>,
    /// Tells open watches when connections become suspect.
    suspicion: watch::Sender<()>,
}

/// What requests go by now.
#[derive(Clone)]
struct Live {
    /// Grows with each renewal.
    number: u64,
    settings: Arc<Settings>,
    /// `None` until they are first asked for.
    credentials: Option<Arc<Credentials>>,
    read_at: Instant,
    pool: Option<Pool>,
}

/// Connections that are alike.
#[derive(Clone)]
struct Pool {
    secured: Secured,
    exchange: Exchange,
    born: Instant,
    /// Whether any request had an answer: until then there is no connection that could have died.
    answered: Arc<AtomicBool>,
}

/// Why a request is sent once more.
#[derive(Clone, Copy, Debug)]
enum Again {
    /// Nobody answered.
    Silent,
    /// The server rejects the credentials, or is not trusted.
    Refused,
}

impl Session {
    pub(super) fn new(source: Source, settings: Settings) -> Self {
        let live = Live {
            number: 0,
            settings: Arc::new(settings),
            credentials: None,
            read_at: Instant::now(),
            pool: None,
        };
        Self(Arc::new(Shared {
            source,
            live: Mutex::new(live),
            renewals: tokio::sync::Mutex::default(),
            suspicion: watch::Sender::new(()),
        }))
    }

    async fn carry(self, request: Request<Body>) -> Result<Answer, BoxError> {
        let spare = copy(&request);
        let live = self.current().await?;
        let first = self.send(&live, request, true).await;
        let Some(spare) = spare else { return first };
        let why = match &first {
            Err(error) if error.is::<Silent>() => Again::Silent,
            Err(error) if is_of_tls(&**error) => Again::Refused,
            Ok(answer) if answer.status() == StatusCode::UNAUTHORIZED => Again::Refused,
            _ => return first,
        };
        let next = match why {
            Again::Silent => self.current().await?,
            Again::Refused => {
                let next = self.renewed(live.number, Because::Refused).await;
                match next {
                    Ok(next) if !next.shows_the_same_as(&live) => next,
                    _ => return first,
                }
            }
        };
        self.send(&next, spare, false).await
    }

    /// What requests go by, with credentials and a pool.
    async fn current(&self) -> Result<Live, BoxError> {
        let live = self.0.live.lock().clone();
        let (Some(credentials), Some(_)) = (&live.credentials, &live.pool) else {
            return Ok(self.renewed(live.number, Because::Due).await?);
        };
        let now = system_time();
        if credentials.expires.is_some_and(|expires| expires <= now) {
            return Ok(self.renewed(live.number, Because::Due).await.unwrap_or(live));
        }
        let is_due = credentials.due.is_some_and(|due| due <= now);
        if is_due || live.read_at.elapsed() >= REREAD {
            // Requests go on with the old ones meanwhile.
            let (session, number) = (self.clone(), live.number);
            tokio::spawn(async move { session.renew(number, Because::Due).await });
        }
        Ok(live)
    }

    /// Replaces credentials of this generation or older. The renewal continues if the caller goes away.
    async fn renewed(&self, number: u64, because: Because) -> Result<Live, CredentialsError> {
        let session = self.clone();
        let renewal = tokio::spawn(async move { session.renew(number, because).await });
        renewal.await.unwrap_or_else(|error| Err(CredentialsError::passing(error.to_string())))
    }

    async fn renew(&self, number: u64, because: Because) -> Result<Live, CredentialsError> {
        let mut renewals = self.0.renewals.lock().await;
        let live = self.0.live.lock().clone();
        if live.number != number {
            return Ok(live);
        }
        let old = live.credentials.clone();
        if old.as_ref().is_some_and(|old| old.accepted.load(Ordering::Relaxed)) {
            renewals.refusals = 0;
        }
        if renewals.is_too_soon(because) {
            return match &renewals.error {
                Some(error) if old.is_none() => Err(error.clone()),
                _ => Ok(live),
            };
        }
        let outcome = self.anew(&live, because).await;
        renewals.pace(because, outcome.is_ok());
        let mut next = match outcome {
            Ok(next) => next,
            Err(error) if old.is_none() => {
                renewals.error = Some(error.clone());
                return Err(error);
            }
            Err(error) => {
                warn!(%error, "cannot renew the credentials; using the old ones");
                // The files are not read for each request meanwhile.
                self.0.live.lock().read_at = Instant::now();
                return Ok(live);
            }
        };
        if because == Because::Refused && !next.shows_the_same_as(&live) {
            info!(server = %next.settings.server, "credentials changed; using the new ones");
        }
        let mut now = self.0.live.lock();
        // Meanwhile the connections may have become suspect.
        if let (Some(now), Some(next)) = (&now.pool, &mut next.pool)
            && now.secured == next.secured
        {
            *next = now.clone();
        }
        *now = next.clone();
        Ok(next)
    }

    /// Reads everything again.
    async fn anew(&self, live: &Live, because: Because) -> Result<Live, CredentialsError> {
        let source = self.0.source.clone();
        let env: Env<'static> = &process_env;
        let settings = tokio::task::spawn_blocking(move || source.read(env)).await;
        let settings = settings
            .map_err(|error| CredentialsError::passing(error.to_string()))?
            .map_err(|error: ConnectError| CredentialsError::lasting(error.to_string()))?;
        let (is, was) = (&settings.server, &live.settings.server);
        if is != was {
            return Err(CredentialsError::lasting(format!(
                "the kubeconfig now has the API server {is}, but this process uses {was}; restart it"
            )));
        }
        let old = live.credentials.as_deref();
        let credentials = Credentials::obtain(&settings, old, because).await?;
        let secured = Secured::of(&settings, credentials.identity.clone());
        let pool = match &live.pool {
            Some(pool) if pool.secured == secured => pool.clone(),
            _ => Pool::new(secured).map_err(CredentialsError::lasting)?,
        };
        Ok(Live {
            number: live.number + 1,
            settings: Arc::new(settings),
            credentials: Some(Arc::new(credentials)),
            read_at: Instant::now(),
            pool: Some(pool),
        })
    }

    /// Sends a request once. A read that may be sent again is not waited for at a connection that may
    /// be dead.
    async fn send(
        &self,
        live: &Live,
        mut request: Request<Body>,
        may_repeat: bool,
    ) -> Result<Answer, BoxError> {
        let (Some(pool), Some(credentials)) = (&live.pool, &live.credentials) else {
            return Err(CredentialsError::passing("there are no credentials yet".to_owned()).into());
        };
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let is_read = request.method() == Method::GET && request.uri().query().is_none();
        *request.uri_mut() = at(&live.settings.server, request.uri())?;
        let headers = request.headers_mut();
        headers.insert(http::header::USER_AGENT, agent());
        for (name, value) in &live.settings.impersonation {
            headers.append(name.clone(), value.clone());
        }
        if let Some(authorization) = &credentials.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let mut exchange = pool.exchange.clone();
        let mut suspicion = self.0.suspicion.subscribe();
        let mut waiting = Waiting { session: self, pool, since: Instant::now(), answered: false };
        let answer = exchange.call(request);
        let answer = if is_read && may_repeat {
            tokio::select! {
                biased;
                answer = answer => answer,
                () = sleep(READ_PATIENCE) => {
                    self.suspect(pool);
                    waiting.answered = true;
                    return Err(Silent.into());
                }
                Ok(()) = suspicion.changed() => {
                    waiting.answered = true;
                    return Err(Silent.into());
                }
            }
        } else {
            answer.await
        };
        waiting.answered = true;
        let answer = answer?;
        pool.answered.store(true, Ordering::Relaxed);
        if answer.status() != StatusCode::UNAUTHORIZED {
            credentials.accepted.store(true, Ordering::Relaxed);
        }
        let suspicion = self.0.suspicion.subscribe();
        Ok(answer.map(|body| {
            if is_watch {
                BoxBody::new(watched(body, suspicion))
            } else {
                BoxBody::new(body.map_err(BoxError::from))
            }
        }))
    }

    /// Lets new requests have new connections, and reads and silent watches too.
    fn suspect(&self, pool: &Pool) {
        if pool.born.elapsed() < YOUNG || !pool.answered.load(Ordering::Relaxed) {
            return;
        }
        let mut live = self.0.live.lock();
        if live.pool.as_ref().is_none_or(|now| now.born != pool.born) {
            return;
        }
        match Pool::new(pool.secured.clone()) {
            Ok(fresh) => live.pool = Some(fresh),
            // It was made of the same before.
            Err(error) => warn!(error, "cannot replace the connections"),
        }
        drop(live);
        info!("no answer from the API server; replacing its connections");
        self.0.suspicion.send_replace(());
    }
}

impl Service<Request<Body>> for Session {
    type Response = Answer;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Answer, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().carry(request))
    }
}

impl Live {
    fn shows_the_same_as(&self, other: &Self) -> bool {
        let secured = |live: &Self| live.pool.as_ref().map(|pool| pool.secured.clone());
        let header =
            |live: &Self| live.credentials.as_ref().and_then(|one| one.authorization.clone());
        secured(self) == secured(other) && header(self) == header(other)
    }
}

impl Pool {
    fn new(secured: Secured) -> Result<Self, String> {
        let exchange = exchange_of(&secured)?;
        Ok(Self { secured, exchange, born: Instant::now(), answered: Arc::default() })
    }
}

/// A request that waits for its answer. If it is given up, its connection is suspect.
struct Waiting<'a> {
    session: &'a Session,
    pool: &'a Pool,
    since: Instant,
    answered: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.answered && self.since.elapsed() >= GIVEN_UP {
            self.session.suspect(self.pool);
        }
    }
}

/// The body of a watch, which ends if it is silent while the connections become suspect.
fn watched(
    body: Incoming,
    suspicion: watch::Receiver<()>,
) -> impl hyper::body::Body<Data = Bytes, Error = BoxError> {
    struct State {
        body: Incoming,
        suspicion: watch::Receiver<()>,
        heard: Instant,
    }
    type Piece = Result<Frame<Bytes>, BoxError>;
    let state = State { body, suspicion, heard: Instant::now() };
    StreamBody::new(futures::stream::unfold(Some(state), async |state| {
        let mut state = state?;
        loop {
            tokio::select! {
                biased;
                frame = state.body.frame() => {
                    state.heard = Instant::now();
                    let piece: Piece = frame?.map_err(BoxError::from);
                    return Some((piece, Some(state)));
                }
                Ok(()) = state.suspicion.changed() => {
                    if state.heard.elapsed() >= GIVEN_UP {
                        return Some((Err(Silent.into()), None));
                    }
                }
            }
        }
    }))
}

/// The same request once more, if its body can be had twice.
fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let body = request.body().try_clone()?;
    let mut copy = Request::new(body);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

/// `path` at the server, below the path that its URL has.
fn at(server: &Uri, path: &Uri) -> Result<Uri, http::Error> {
    let below = server.path().trim_end_matches('/');
    let path = path.path_and_query().map(http::uri::PathAndQuery::as_str).unwrap_or_default();
    let scheme = server.scheme_str().unwrap_or("https");
    let authority = server.authority().map(http::uri::Authority::as_str).unwrap_or_default();
    Uri::builder()
        .scheme(scheme)
        .authority(authority)
        .path_and_query(format!("{below}{path}"))
        .build()
}

/// Whether a handshake failed: the server is not trusted, or does not trust this client.
fn is_of_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    super::causes(error).any(<dyn std::error::Error>::is::<rustls::Error>)
}
