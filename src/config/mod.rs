//! One validated configuration of a run.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::ValueEnum;

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
    /// Address of the HTTP endpoints.
    pub listen: SocketAddr,
    /// By which rules pods are judged.
    pub compat: Compat,
    /// Namespace of the lease by which one of several replicas is elected to work; `None` if there
    /// is but one, which works at once.
    pub election: Option<String>,
    /// Name of this process in events: the pod's name, or the host's.
    pub instance: String,
}
