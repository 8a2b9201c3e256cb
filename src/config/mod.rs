//! One validated configuration of a run, from flags and a file.

mod file;
mod lint;
#[cfg(test)]
mod tests;
mod validate;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use crate::drain::Policy;

pub use lint::lint;
pub use validate::{Problem, protection};

/// By which rules pods are judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Compat {
    /// Deadlines are counted from when the taint was put on, survive restarts, and follow every
    /// change of taints and tolerations.
    #[default]
    None,
    /// As kube-controller-manager does: counted from when this process sees the taint, never
    /// moved once counting, and finished pods are deleted too.
    Upstream,
}

impl Compat {
    /// Whose rules these are, for the logs.
    pub fn rules(self) -> &'static str {
        match self {
            Self::None => "own",
            Self::Upstream => "upstream",
        }
    }
}

/// Everything that a run of the controller can be told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Kubeconfig file; `None` for the usual rules.
    pub kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig; `None` for its current one.
    pub context: Option<String>,
    /// How long a start waits for an API server that cannot be reached or cannot answer.
    pub api_server_wait: Duration,
    /// Address of the HTTP endpoints.
    pub listen: SocketAddr,
    /// By which rules pods are judged.
    pub compat: Compat,
    /// Namespace of the lease by which one of several replicas is elected to work; `None` if there
    /// is but one, which works at once.
    pub election: Option<String>,
    /// Name of this process in events: the pod's name, or the host's.
    pub instance: String,
    /// Which nodes are cordoned and drained, and how. Empty: none.
    pub policies: Vec<Policy>,
}

/// Why a text is no configuration file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It has not the shape of one. The first place is named.
    #[error("{0}; docs/config.md has all keys")]
    Shape(String),
    /// Its settings make no sense. All of them are named.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; also "))]
    Invalid(Vec<Problem>),
}

/// Reads a configuration file, in YAML.
pub fn read_policies(text: &str) -> Result<Vec<Policy>, FileError> {
    let file = serde_saphyr::from_str(text);
    let file = file.map_err(|error| FileError::Shape(error.without_snippet().to_string()))?;
    validate::policies(file).map_err(FileError::Invalid)
}

/// The JSON schema of a configuration file.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(file::File).to_value()
}
