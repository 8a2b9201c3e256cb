//! Finds the cluster and opens a client to it.

use std::path::Path;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// How long a TCP and TLS handshake may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

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
    /// Nothing was named and nothing was found.
    #[error(
        "no cluster found: {0}; name a file with --kubeconfig or KUBECONFIG, or run inside a cluster"
    )]
    Nowhere(String),
    /// The configuration is there, but no client comes of it.
    #[error("cannot make a client for {url}: {cause}; check the credentials of that context")]
    Client {
        /// The API server.
        url: String,
        /// What went wrong.
        cause: String,
    },
}

/// Opens a client: by the file and context named, else by the usual rules (`KUBECONFIG`,
/// `~/.kube/config`, the service account of the pod).
///
/// The client does not retry by itself, since it would do so for minutes inside one call: every
/// caller here has its own retry. Must be called inside a tokio runtime.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> Result<Client, ConnectError> {
    let options =
        KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let mut config = if let Some(path) = kubeconfig {
        let unusable =
            |cause: String| ConnectError::File { path: path.display().to_string(), cause };
        let file = Kubeconfig::read_from(path).map_err(|e| unusable(chain(&e)))?;
        Config::from_custom_kubeconfig(file, &options).await.map_err(|e| unusable(chain(&e)))?
    } else if context.is_some() {
        Config::from_kubeconfig(&options).await.map_err(|e| ConnectError::Nowhere(chain(&e)))?
    } else {
        Config::infer().await.map_err(|e| ConnectError::Nowhere(chain(&e)))?
    };
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    let url = config.cluster_url.to_string();
    Client::try_from(config).map_err(|e| ConnectError::Client { url, cause: chain(&e) })
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
