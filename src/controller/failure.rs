//! Why a controller could not start, or must end.

use tokio::task::JoinError;

use crate::observe::ListenError;
use crate::pipeline;
use crate::preflight::PreflightError;

/// The controller could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The cluster cannot be used.
    #[error(transparent)]
    Preflight(#[from] PreflightError),
    /// The endpoints cannot be served.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Two metrics have the same name.
    #[error("cannot register the metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// A part that must keep running has ended, so the process must end.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// A worker or dispatcher thread panicked.
    #[error(transparent)]
    Thread(#[from] pipeline::Failure),
    /// Worker threads could not be started.
    #[error("cannot start the worker threads: {0}; check the process and memory limits")]
    Threads(std::io::Error),
    /// A task ended or panicked.
    #[error("a task ended unexpectedly, so the process must restart: {0}")]
    Task(String),
}

/// The failure that a task has ended which must not.
pub(super) fn ended(task: Result<(), JoinError>) -> Failed {
    Failed::Task(match task {
        Ok(()) => "it returned".to_owned(),
        Err(error) => error.to_string(),
    })
}

/// The result of a task; a panic is a failure.
pub(super) fn flatten<E: Into<Failed>>(
    task: Result<Result<(), E>, JoinError>,
) -> Result<(), Failed> {
    task.map_err(|error| ended(Err(error)))?.map_err(Into::into)
}
