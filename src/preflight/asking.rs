//! Asks the API server whether permissions are granted, and waits for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::PreflightError;
use super::patience::{Meaning, Notice, Patience};
use crate::backoff::Backoff;
use crate::cluster::{Api, Permission, RequestError};
use crate::drain::format_duration;
use crate::leader;

/// Concurrent requests. One after the other they take as long as the rest of the startup before the
/// lists; each concurrent one opens a connection.
const AT_ONCE: usize = 4;
/// Pauses between attempts. The longest is the time that may be lost once the server is up.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(250), most: Duration::from_secs(4) };

/// Questions to one API server.
pub(super) struct Asking<'a> {
    api: &'a Api,
    server: &'a str,
    patience: Mutex<Patience>,
    wait: Duration,
    /// Whether the warning that permissions cannot be checked was logged.
    warned: AtomicBool,
}

impl<'a> Asking<'a> {
    /// Starts with this long to wait for the API server, if it does not answer.
    pub(super) fn new(api: &'a Api, server: &'a str, wait: Duration) -> Self {
        let patience = Mutex::new(Patience::new(wait, Instant::now()));
        Self { api, server, patience, wait, warned: AtomicBool::new(false) }
    }

    /// The missing permissions, as a text; empty if there are none.
    pub(super) async fn missing(
        &self,
        needed: &[Permission],
        namespace: &str,
    ) -> Result<String, PreflightError> {
        let mut missing = Vec::new();
        let asked = needed.iter().copied().map(async |permission| {
            // Objects are created under any name or none.
            let named = !namespace.is_empty() && permission.verb != "create";
            let name = if named { leader::LEASE } else { "" };
            (permission, self.ask(permission, namespace, name).await)
        });
        let mut answers = stream::iter(asked).buffered(AT_ONCE);
        while let Some((permission, answer)) = answers.next().await {
            match answer {
                Ok(true) => {}
                Ok(false) => missing.push(permission.to_string()),
                Err(cause) => return Err(self.failed(cause)),
            }
        }
        Ok(missing.join(", "))
    }

    /// Asks for a permission, and retries while the server cannot answer.
    async fn ask(
        &self,
        permission: Permission,
        namespace: &str,
        name: &str,
    ) -> Result<bool, RequestError> {
        let mut failures = 0;
        loop {
            let answer = self.api.is_allowed(permission, namespace, name).await;
            let meaning = Meaning::of(&answer);
            let (mut left, mut notice) = self.patience.lock().hear(meaning, Instant::now());
            let is_refused = meaning == Meaning::MayNotAsk || answer == Ok(false);
            if left.is_none() && is_refused && !self.api.is_ready().await {
                (left, notice) = self.patience.lock().hear(Meaning::NotReady, Instant::now());
            }
            if let Some(notice) = notice {
                self.tell(notice, answer.as_ref().err());
            }
            let Some(left) = left else {
                return match &answer {
                    Err(error) if meaning == Meaning::MayNotAsk => {
                        self.warn_once(error);
                        Ok(true)
                    }
                    _ => answer,
                };
            };
            let asked = match &answer {
                Err(RequestError::Status(answer)) => answer.retry_after,
                _ => None,
            };
            failures += 1;
            sleep(BACKOFF.pause_asked(failures, 0, asked).min(left)).await;
        }
    }

    /// In hardened clusters, permissions may be granted although nobody may check them.
    fn warn_once(&self, error: &RequestError) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            warn!(%error, "cannot check permissions at startup; a missing one shows when a request \
                is refused");
        }
    }

    fn waited(&self) -> Duration {
        self.patience.lock().waited(Instant::now())
    }

    fn tell(&self, notice: Notice, error: Option<&RequestError>) {
        let server = self.server;
        let waited = format_duration(Duration::from_secs(self.waited().as_secs()));
        match notice {
            Notice::Waits => {
                let error = error.map(tracing::field::display);
                let wait = format_duration(self.wait);
                warn!(server, error, waited, wait, "waiting for the API server");
            }
            Notice::Answers => info!(server, waited, "the API server answers"),
        }
    }

    fn failed(&self, cause: RequestError) -> PreflightError {
        let (server, waited) = (self.server.to_owned(), self.waited());
        match &cause {
            RequestError::Status(answer) if answer.code == 401 => {
                PreflightError::Unauthorized(cause)
            }
            RequestError::Credentials(cause) => {
                PreflightError::Credentials { server, cause: cause.clone(), waited }
            }
            RequestError::Timeout(_) | RequestError::Transport(_) | RequestError::WrongPeer(_) => {
                PreflightError::Unreachable { server, cause, waited }
            }
            _ => PreflightError::Refused { server, cause, waited },
        }
    }
}

#[cfg(test)]
mod tests;
