//! Credentials from the kubeconfig, a token file or an exec plugin, and how often they are renewed.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use http::HeaderValue;
use jiff::Timestamp;
use secrecy::ExposeSecret as _;
use tokio::time::Instant;

use super::CredentialsError;
use super::exec::{Issued, Plugin};
use super::kubeconfig::{Settings, bearer};
use super::tls::Identity;
use crate::backoff::Backoff;
use crate::clock::system_time;

/// How long before its end a token of a plugin is replaced.
const AHEAD: Duration = Duration::from_secs(60);
/// Pauses between two renewals that the server has asked for in vain.
const RENEWALS: Backoff = Backoff { first: Duration::from_secs(5), most: Duration::from_secs(60) };

/// What requests and handshakes show.
#[derive(Debug)]
pub(super) struct Credentials {
    pub(super) authorization: Option<HeaderValue>,
    pub(super) identity: Option<Arc<Identity>>,
    issued: Option<(Plugin, Issued)>,
    /// When they should be replaced, and when they must be.
    pub(super) due: Option<Timestamp>,
    pub(super) expires: Option<Timestamp>,
    /// The server has accepted them.
    pub(super) accepted: AtomicBool,
}

/// Why credentials are renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Because {
    /// It is time.
    Due,
    /// The server does not accept them, or cannot be trusted.
    Refused,
}

/// How often credentials are renewed.
#[derive(Default)]
pub(super) struct Renewals {
    /// When they may be renewed again because it is due, or because they are refused.
    due: Option<Instant>,
    refused: Option<Instant>,
    /// Renewals in a row that did not help.
    failures: u32,
    pub(super) refusals: u32,
    /// Why there are none.
    pub(super) error: Option<CredentialsError>,
}

impl Renewals {
    pub(super) fn is_too_soon(&self, because: Because) -> bool {
        let next = match because {
            Because::Due => self.due,
            Because::Refused => self.refused,
        };
        next.is_some_and(|next| Instant::now() < next)
    }

    pub(super) fn pace(&mut self, because: Because, is_ok: bool) {
        self.failures = if is_ok { 0 } else { self.failures + 1 };
        let now = Instant::now();
        match because {
            Because::Due => self.due = Some(now + RENEWALS.pause(self.failures, 0)),
            Because::Refused => {
                self.refusals += 1;
                self.refused = Some(now + RENEWALS.pause(self.refusals, 0));
            }
        }
    }
}

impl Credentials {
    /// Reads the token file, or runs the plugin if what it has issued must be replaced.
    pub(super) async fn obtain(
        settings: &Settings,
        old: Option<&Self>,
        because: Because,
    ) -> Result<Self, CredentialsError> {
        let user = &settings.user;
        let mut credentials = Self {
            authorization: user.authorization.clone(),
            identity: user.identity.clone(),
            issued: None,
            due: None,
            expires: None,
            accepted: AtomicBool::new(false),
        };
        if let Some(path) = &user.token_file {
            let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
            let token = text.and_then(|text| match text.trim() {
                "" => Err("it is empty".to_owned()),
                token => bearer(token),
            });
            match token {
                Ok(token) => credentials.authorization = Some(token),
                // A file that is removed after startup, so that nothing else can read it.
                Err(_) if old.is_some_and(|old| old.authorization.is_some()) => {
                    credentials.authorization = old.and_then(|old| old.authorization.clone());
                }
                Err(_) if credentials.authorization.is_some() => {}
                Err(cause) => {
                    let path = path.display();
                    let text = format!("cannot use token file {path}: {cause}");
                    return Err(CredentialsError::lasting(text));
                }
            }
        }
        let Some(plugin) = &user.plugin else { return Ok(credentials) };
        let now = system_time();
        let issued_before = old.and_then(|old| old.issued.as_ref());
        let is_due = old.and_then(|old| old.due).is_some_and(|due| due <= now);
        let (issued, due) = match issued_before {
            Some((same, issued)) if same == plugin && because == Because::Due && !is_due => {
                (issued.clone(), old.and_then(|old| old.due))
            }
            _ => {
                let issued = plugin.run().await?;
                let due = issued.expires.map(|expires| due_of(now, expires));
                (issued, due)
            }
        };
        if let Some(token) = &issued.token {
            let token = bearer(token.expose_secret());
            credentials.authorization = Some(token.map_err(|cause| {
                CredentialsError::lasting(format!(
                    "cannot use the output of the exec plugin: {cause}"
                ))
            })?);
        }
        credentials.identity = issued.identity.clone().or(credentials.identity);
        credentials.due = due;
        credentials.expires = issued.expires;
        credentials.issued = Some((plugin.clone(), issued));
        Ok(credentials)
    }
}

/// When credentials are replaced that end at `expires`: a while before, but not with every request
/// where they are short-lived.
fn due_of(now: Timestamp, expires: Timestamp) -> Timestamp {
    let left = Duration::try_from(expires.duration_since(now)).unwrap_or_default();
    expires.checked_sub(AHEAD.min(left / 5)).unwrap_or(expires)
}
