//! Finds the cluster and creates a client for it.

use std::error::Error;
use std::io;
use std::iter::successors;
use std::path::Path;

use http::HeaderValue;
use kube::{Client, Config};
use rustls::pki_types::CertificateDer;
use secrecy::ExposeSecret as _;

use self::kubeconfig::{Env, Settings, Source, User, bearer, process_env};
use self::session::Session;
use self::tls::Trust;

mod credentials;
mod exec;
mod kubeconfig;
mod pool;
mod proxy;
mod session;
mod tls;

/// The user agent: audit logs and request metrics of the API server identify clients by it.
pub const AGENT: &str = concat!("ostrakon/", env!("CARGO_PKG_VERSION"));

/// A cluster and a client for it.
#[derive(Clone)]
pub struct Cluster {
    /// The client.
    pub client: Client,
    /// The API server's URL, for messages.
    pub server: String,
}

/// The client could not be created.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be used.
    #[error("cannot use kubeconfig {path}: {cause}; choose another file with --kubeconfig")]
    File {
        /// The file.
        path: String,
        /// What is wrong with it.
        cause: String,
    },
    /// The kubeconfig has no such context, or no current context and none was chosen.
    #[error(
        "kubeconfig {path} has no {wanted}; choose one of its contexts with --context: {known}"
    )]
    Context {
        /// The file.
        path: String,
        /// The context, as a text.
        wanted: String,
        /// The contexts that it has.
        known: String,
    },
    /// No kubeconfig was given and none was found.
    #[error("no cluster found: {0}; set --kubeconfig or KUBECONFIG to a file, or run inside a pod")]
    Nowhere(String),
    /// The address of the API server has an unknown scheme.
    #[error(
        "cannot use the API server's address {0}: it does not begin with https:// or http://; fix it \
         in the kubeconfig"
    )]
    Address(String),
}

/// Credentials could not be obtained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct CredentialsError {
    text: String,
    /// Whether it is temporary, for example because a plugin cannot reach its server.
    pub passes: bool,
}

impl CredentialsError {
    fn passing(text: String) -> Self {
        Self { text, passes: true }
    }

    fn lasting(text: String) -> Self {
        Self { text, passes: false }
    }
}

/// Finds a cluster: by the given file and context, otherwise by the usual rules (`KUBECONFIG`,
/// `~/.kube/config`, the service account of the pod). Must be called inside a tokio runtime.
///
/// Nothing is sent yet, and no plugin runs: credentials are obtained with the first request.
///
/// # Errors
/// See [`ConnectError`].
pub fn connect(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Cluster, ConnectError> {
    connect_in(kubeconfig, context, &process_env)
}

fn connect_in(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
    env: Env<'_>,
) -> Result<Cluster, ConnectError> {
    let source = Source::find(kubeconfig, context, env)?;
    let settings = source.read(env)?;
    of_settings(source.pinned(&settings.context), settings)
}

/// Creates a client for the cluster of `config`.
///
/// The client does not retry by itself: every caller has its own retries, and a call must not take
/// minutes. Must be called inside a tokio runtime.
///
/// # Errors
/// [`ConnectError::Address`], [`ConnectError::File`].
pub fn open(config: Config) -> Result<Cluster, ConnectError> {
    let unusable = |cause| ConnectError::File { path: "given".to_owned(), cause };
    let trust = match config.root_cert {
        _ if config.accept_invalid_certs => Trust::Anybody,
        None => Trust::System,
        Some(all) => Trust::These(all.into_iter().map(CertificateDer::from).collect()),
    };
    let token = config.auth_info.token.as_ref().map(|token| bearer(token.expose_secret()));
    let settings = Settings {
        context: String::new(),
        server: config.cluster_url,
        trust,
        server_name: config.tls_server_name,
        proxy: None,
        impersonation: Vec::new(),
        user: User { authorization: token.transpose().map_err(unusable)?, ..User::default() },
    };
    of_settings(Source::Given(Box::new(settings.clone())), settings)
}

fn of_settings(source: Source, settings: Settings) -> Result<Cluster, ConnectError> {
    let server = settings.server.to_string().trim_end_matches('/').to_owned();
    if !matches!(settings.server.scheme_str(), Some("https" | "http")) {
        return Err(ConnectError::Address(server));
    }
    let client = Client::new(Session::new(source, settings), "default");
    Ok(Cluster { client, server })
}

fn agent() -> HeaderValue {
    HeaderValue::from_static(AGENT)
}

/// The error and its causes. An I/O error tells the causes of what it wraps, and not what that is.
pub(super) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |&error| match error.downcast_ref().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    })
}

/// An error with its causes in one line, each said once.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text.replace('\n', " ")
}

#[cfg(test)]
mod tests;
