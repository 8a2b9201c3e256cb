//! List and watch: brings one resource's objects in, and keeps at it whatever happens.
//!
//! The stream is written for this program because the common ones cannot be trusted with its
//! promises: they have no timeouts, they repeat a request for ever when the server answers 410 by
//! status code, and one object that cannot be read makes them fail every list. Here every wait is
//! bounded, both forms of 410 lead to a new list, and an unreadable object is counted, named and
//! skipped, while the version of it that is known already stays.
//!
//! A watch that ends is taken up again at the last version seen, without a new list: the API
//! server cuts watches that lag in a burst, and a list of 150,000 pods is what it needs least
//! then.

use std::time::Duration;

use ahash::AHashSet;
use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use kube::client::Body;
use rand::Rng;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout};
use tracing::{debug, info, warn};

use super::{Api, DecodeError, Metrics, RequestError};
use crate::backoff::Backoff;
use crate::model::Uid;

/// Objects per page of a list. The server's own clients use the same.
const PAGE: usize = 500;
/// For how long one page may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// For how long a watch may take to answer with its headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(15);
/// A stream that is silent for this long is taken up anew: the server sends a bookmark about
/// once a minute, so the connection has died without a word.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// A stream that brought nothing but lasted for this long did not fail.
const LASTED: Duration = Duration::from_secs(30);
/// Seconds after which the server is asked to end a watch, jittered so that replicas spread.
const WATCH_SECONDS: std::ops::Range<u32> = 240..300;
/// An object of the API is at most 1.5 MiB (etcd's limit); what is longer is no event.
const LONGEST_EVENT: usize = 8 << 20;
/// Pause between tries. The longest is short: while a watch is down, pods are judged by old facts.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(200), most: Duration::from_secs(8) };

/// Where a watched resource's objects go.
pub trait Index: Send {
    /// The resource in the plural, as in its path: `pods`.
    const RESOURCE: &str;
    /// Query parameters of list and watch that select the objects, `""` for all.
    const SELECT: &str;

    /// Takes an object that is new or has changed, in JSON. Returns its UID. Versions of it may
    /// have been missed before one that comes `by` a list.
    ///
    /// # Errors
    /// It cannot be read.
    fn apply(&mut self, json: &str, by: Source) -> Result<Uid, DecodeError>;

    /// Takes the last state of an object that is gone, in JSON.
    ///
    /// # Errors
    /// It cannot be read.
    fn delete(&mut self, json: &str) -> Result<(), DecodeError>;

    /// A complete list has been taken: whatever has another UID is gone.
    fn retain(&mut self, seen: &AHashSet<Uid>);
}

/// How an object came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In a list: as it is now.
    List,
    /// As an event of a watch: the next version after the one known.
    Watch,
}

/// Lists and watches until the task is dropped. `synced` is called after each complete list.
pub async fn run<I: Index>(api: Api, metrics: Metrics, mut index: I, synced: impl Fn() + Send) {
    // Replicas and resources must not march in step.
    let who = rand::rng().random();
    let mut failures = 0u32;
    loop {
        match list(&api, &metrics, &mut index).await {
            Ok(version) => {
                failures = 0;
                metrics.listed(I::RESOURCE);
                synced();
                follow(&api, &metrics, &mut index, version, who).await;
            }
            Err(error) => {
                failures += 1;
                let pause = BACKOFF.pause(failures, who);
                warn!(resource = I::RESOURCE, %error, tries = failures, ?pause,
                    "cannot list; trying again");
                tokio::time::sleep(pause).await;
            }
        }
    }
}

#[derive(Deserialize)]
struct Page<'a> {
    kind: String,
    metadata: PageMeta,
    #[serde(borrow, default)]
    items: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMeta {
    resource_version: String,
    #[serde(default)]
    r#continue: Option<String>,
}

/// Takes a complete list, page by page, and returns the version to watch from.
async fn list<I: Index>(
    api: &Api,
    metrics: &Metrics,
    index: &mut I,
) -> Result<String, RequestError> {
    let mut seen = AHashSet::new();
    let mut token = String::new();
    loop {
        let mut query = format!("limit={PAGE}{}", I::SELECT);
        if !token.is_empty() {
            query.push_str("&continue=");
            query.extend(form_urlencoded::byte_serialize(token.as_bytes()));
        }
        let body = api.list_page(I::RESOURCE, &query, PAGE_TIMEOUT).await?;
        let page: Page<'_> = serde_json::from_slice(&body).map_err(|error| {
            RequestError::Body(format!(
                "the answer is not a list of {} but {}: {error}",
                I::RESOURCE,
                excerpt(&body)
            ))
        })?;
        // What lacks is taken for gone, so nothing else may pass for an empty list.
        if !page.kind.ends_with("List") {
            return Err(RequestError::Body(format!(
                "the answer is not a list of {} but a {:?}",
                I::RESOURCE,
                page.kind
            )));
        }
        for item in &page.items {
            match index.apply(item.get(), Source::List) {
                Ok(uid) => {
                    seen.insert(uid);
                }
                Err(error) => {
                    seen.extend(error.uid);
                    skipped::<I>(metrics, &error);
                }
            }
        }
        match page.metadata.r#continue {
            Some(next) if !next.is_empty() => token = next,
            _ => {
                index.retain(&seen);
                info!(resource = I::RESOURCE, objects = seen.len(), "list is complete");
                return Ok(page.metadata.resource_version);
            }
        }
    }
}

/// Why a watch stream ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The server ended it, as asked or because it lagged.
    Closed,
    /// The version is too old: only a new list helps.
    Expired,
    /// Nothing came for too long.
    Idle,
    /// The server refused, or the connection failed.
    Failed(String),
}

impl End {
    fn label(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Expired => "expired",
            Self::Idle => "idle",
            Self::Failed(_) => "failed",
        }
    }
}

/// Watches from `version` on, and returns when only a new list helps.
async fn follow<I: Index>(
    api: &Api,
    metrics: &Metrics,
    index: &mut I,
    mut version: String,
    who: u128,
) {
    let mut failures = 0u32;
    loop {
        let (before, opened) = (version.clone(), Instant::now());
        let end = watch_once(api, metrics, index, &mut version).await;
        metrics.connected(I::RESOURCE, false);
        metrics.watch_ended(I::RESOURCE, end.label());
        if end == End::Expired {
            info!(resource = I::RESOURCE, version, "the watch's version has expired; listing anew");
            return;
        }
        // A quiet stream that lasted was no failure.
        if before == version && opened.elapsed() < LASTED {
            failures += 1;
        } else {
            failures = 0;
        }
        match end {
            End::Closed if failures <= 1 => debug!(resource = I::RESOURCE, "watch was closed"),
            _ => {
                let pause = BACKOFF.pause(failures.max(1), who);
                if failures > 1 {
                    warn!(
                        resource = I::RESOURCE,
                        ?end,
                        tries = failures,
                        ?pause,
                        "watch keeps ending; trying again"
                    );
                } else {
                    info!(resource = I::RESOURCE, ?end, "watch ended; taking it up again");
                }
                tokio::time::sleep(pause).await;
            }
        }
    }
}

async fn watch_once<I: Index>(
    api: &Api,
    metrics: &Metrics,
    index: &mut I,
    version: &mut String,
) -> End {
    let seconds = rand::rng().random_range(WATCH_SECONDS);
    let query = format!(
        "watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={version}{}",
        I::SELECT
    );
    let mut body = match api.open_watch(I::RESOURCE, &query, HEADER_TIMEOUT).await {
        Ok(body) => body,
        Err(RequestError::Status(answer)) if answer.code == 410 => return End::Expired,
        Err(error) => return End::Failed(error.to_string()),
    };
    metrics.connected(I::RESOURCE, true);
    let mut lines = Lines::default();
    loop {
        match timeout(IDLE_TIMEOUT, lines.next(&mut body)).await {
            Err(_) => return End::Idle,
            Ok(Err(error)) => return End::Failed(error),
            Ok(Ok(None)) => return End::Closed,
            Ok(Ok(Some(line))) => match take_event(metrics, index, &line) {
                Ok(Some(newer)) => *version = newer,
                Ok(None) => {}
                Err(end) => return end,
            },
        }
    }
}

#[derive(Deserialize)]
struct Event<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Versioned {
    metadata: VersionedMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VersionedMeta {
    resource_version: String,
}

#[derive(Deserialize)]
struct ErrorStatus {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
}

/// Takes one event of a watch and returns the version that it brings the index to.
fn take_event<I: Index>(
    metrics: &Metrics,
    index: &mut I,
    line: &[u8],
) -> Result<Option<String>, End> {
    let event: Event<'_> = serde_json::from_slice(line)
        .map_err(|error| End::Failed(format!("not a watch event: {}: {error}", excerpt(line))))?;
    let json = event.object.get();
    let outcome = match event.r#type {
        "ADDED" | "MODIFIED" => index.apply(json, Source::Watch).map(|_| ()),
        "DELETED" => index.delete(json),
        "BOOKMARK" => Ok(()),
        "ERROR" => {
            let status: ErrorStatus = serde_json::from_str(json)
                .unwrap_or(ErrorStatus { code: 0, message: excerpt(line) });
            return Err(if status.code == 410 {
                End::Expired
            } else {
                End::Failed(format!("error event {}: {}", status.code, status.message))
            });
        }
        other => return Err(End::Failed(format!("unknown watch event type {other:?}"))),
    };
    if let Err(error) = outcome {
        skipped::<I>(metrics, &error);
    }
    Ok(serde_json::from_str::<Versioned>(json).ok().map(|v| v.metadata.resource_version))
}

fn skipped<I: Index>(metrics: &Metrics, error: &DecodeError) {
    metrics.undecodable(I::RESOURCE);
    tracing::error!(
        resource = I::RESOURCE,
        object = error.object,
        reason = error.reason,
        "object cannot be read and is skipped; what was known of it before stays"
    );
}

/// Cuts a body into lines.
#[derive(Default)]
struct Lines {
    buffer: BytesMut,
    /// How much of the buffer is known to hold no line end.
    searched: usize,
}

impl Lines {
    /// The next line without its end, or `None` at the end of the body. Safe to cancel: what was
    /// read stays in the buffer.
    async fn next(&mut self, body: &mut Body) -> Result<Option<Bytes>, String> {
        loop {
            if let Some(offset) = self.buffer[self.searched..].iter().position(|b| *b == b'\n') {
                let line = self.buffer.split_to(self.searched + offset).freeze();
                self.buffer.advance(1);
                self.searched = 0;
                if line.is_empty() {
                    continue;
                }
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            if self.searched > LONGEST_EVENT {
                return Err(format!("an event is longer than {LONGEST_EVENT} bytes"));
            }
            match body.frame().await {
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err("the stream was cut in the middle of an event".to_owned()),
                Some(Err(error)) => return Err(error.to_string()),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

/// The beginning of a body, for an error message.
fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(120)]);
    format!("{text:?}")
}

#[cfg(test)]
mod tests;
