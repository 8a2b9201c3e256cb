//! Finds the cluster and opens a client to it.

use std::error::Error as _;
use std::path::Path;
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

/// How long a TCP and TLS handshake may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How the program calls itself to API servers: their audit logs and their request metrics tell by
/// it who asked.
pub const AGENT: &str = concat!("ostrakon/", env!("CARGO_PKG_VERSION"));

/// A cluster that can be talked to.
#[derive(Clone)]
pub struct Cluster {
    /// The way to it.
    pub client: Client,
    /// Its API server's URL, for messages.
    pub server: String,
}

/// No client could be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The named file cannot be used.
    #[error("cannot use kubeconfig {path}: {cause}; name another file with --kubeconfig")]
    File {
        /// The file.
        path: String,
        /// What is wrong with it.
        cause: String,
    },
    /// The file has no such context, or names none and none was asked for.
    #[error("kubeconfig {path} has no {wanted}; name one of its contexts with --context: {known}")]
    Context {
        /// The file.
        path: String,
        /// The context, in words.
        wanted: String,
        /// The contexts that it has.
        known: String,
    },
    /// Nothing was named and nothing was found.
    #[error(
        "no cluster found: {0}; name a file with --kubeconfig or KUBECONFIG, or run inside a pod"
    )]
    Nowhere(String),
    /// The address is none that can be asked.
    #[error(
        "cannot use the API server's address {0}: it begins with neither https:// nor http://; \
         correct it in the kubeconfig"
    )]
    Address(String),
    /// The configuration is there, but no client comes of it.
    #[error("cannot make a client for {url}: {cause}; check the credentials of that context")]
    Client {
        /// The API server.
        url: String,
        /// What went wrong.
        cause: String,
    },
}

/// Finds a cluster: by the file and context named, else by the usual rules (`KUBECONFIG`,
/// `~/.kube/config`, the service account of the pod). Must be called inside a tokio runtime.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> Result<Cluster, ConnectError> {
    let config = if let Some(path) = kubeconfig {
        let path_text = path.display().to_string();
        match Kubeconfig::read_from(path) {
            Ok(file) => of_context(file, path_text, context).await?,
            Err(error) => return Err(ConnectError::File { path: path_text, cause: cause(&error) }),
        }
    } else if context.is_some() {
        let file = Kubeconfig::read().map_err(|e| ConnectError::Nowhere(cause(&e)))?;
        let path = std::env::var("KUBECONFIG").unwrap_or_else(|_| "~/.kube/config".to_owned());
        of_context(file, path, context).await?
    } else {
        Config::infer().await.map_err(|error| {
            let kubeconfig = error.source().and_then(|source| source.downcast_ref()).map(cause);
            let in_cluster = Config::incluster().err().map(|error| chain(&error));
            let (kubeconfig, in_cluster) = (kubeconfig.as_deref(), in_cluster.as_deref());
            let unknown = "no cause is known";
            ConnectError::Nowhere(format!(
                "{}; inside a pod: {}",
                kubeconfig.unwrap_or(unknown),
                in_cluster.unwrap_or(unknown)
            ))
        })?
    };
    open(config)
}

/// Opens a client to the cluster of `config`.
///
/// It does not retry by itself, since it would do so for minutes inside one call: every caller
/// here has its own retry. Must be called inside a tokio runtime.
///
/// # Errors
/// [`ConnectError::Address`], [`ConnectError::Client`].
pub fn open(mut config: Config) -> Result<Cluster, ConnectError> {
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.headers.push((USER_AGENT, HeaderValue::from_static(AGENT)));
    let url = config.cluster_url.to_string();
    let server = url.trim_end_matches('/').to_owned();
    // The client would find that out with each request, as if nobody answered.
    if !matches!(config.cluster_url.scheme_str(), Some("https" | "http")) {
        return Err(ConnectError::Address(server));
    }
    let client = Client::try_from(config)
        .map_err(|e| ConnectError::Client { url: server.clone(), cause: chain(&e) })?;
    Ok(Cluster { client, server })
}

/// What `file` says about `context`, or about its current one.
async fn of_context(
    file: Kubeconfig,
    path: String,
    context: Option<&str>,
) -> Result<Config, ConnectError> {
    let names: Vec<&str> = file.contexts.iter().map(|context| context.name.as_str()).collect();
    if names.is_empty() {
        return Err(ConnectError::File { path, cause: "it has no contexts".to_owned() });
    }
    let current = file.current_context.as_deref().unwrap_or_default();
    let wanted = match context.unwrap_or(current) {
        "" => Some("current context".to_owned()),
        name if !names.contains(&name) => Some(format!("context {name:?}")),
        _ => None,
    };
    if let Some(wanted) = wanted {
        return Err(ConnectError::Context { path, wanted, known: names.join(", ") });
    }
    let context = context.map(str::to_owned);
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    Config::from_custom_kubeconfig(file, &options)
        .await
        .map_err(|error| ConnectError::File { path, cause: cause(&error) })
}

/// Why a kubeconfig cannot be used. Where it cannot be parsed, the parser's first line says where
/// and why; what follows is an excerpt, and such a file holds secrets.
fn cause(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::Parse(_) => {
            error.to_string().lines().next().unwrap_or_default().trim().to_owned()
        }
        _ => chain(error),
    }
}

/// An error with its causes in one line, each said once.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
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
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::sim::embedded::{Embedded, Observed, Options};

    #[tokio::test]
    async fn api_servers_are_told_who_asks() {
        let cluster = Embedded::new(Clock::system(), Options::default());
        let mut observed = cluster.follow();
        let served = cluster.serve("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let client = open(Config::new(served.url().parse().unwrap())).unwrap().client;
        client.apiserver_version().await.unwrap();
        let Some(Observed::Answered(asked)) = observed.recv().await else { panic!("a request") };
        assert_eq!(asked.operation.agent, format!("ostrakon/{}", env!("CARGO_PKG_VERSION")));
    }
}
