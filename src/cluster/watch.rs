//! List and watch: delivers the objects of one resource, whatever happens.
//!
//! It is our own code because existing implementations do not meet our promises (ADR 1): they have no
//! timeouts, they repeat a request forever when the server answers 410 as a status code, one unreadable
//! object makes every list fail, and they use JSON, which costs the API server six times as much as
//! protobuf. Here every wait has a limit, both forms of 410 lead to a new list, and an unreadable object
//! is counted, reported and skipped, while its last readable version is kept.
//!
//! A list is streamed: the server sends all objects as events of a watch, marks the end, and the watch
//! continues from there. Neither side holds the whole list. If a server refuses this, lists are taken in
//! pages from then on.
//!
//! A watch that ends is resumed at the last version, without a new list: the API server cuts slow watches
//! during a burst, which is the worst time for listing 150,000 pods. But a store that was restored from a
//! backup has lower versions, and a watch at a higher version is silent. So a broken watch is only resumed
//! if the store has reached its version, a silent watch is followed by a list, and so is any version
//! that is lower than a previous one. If no watch works, or none delivers anything while the store
//! advances, a list is taken about once a minute, so that facts are at most slightly outdated.

mod relist;
mod stream;

use std::time::Duration;

use ahash::AHashSet;
use bytes::Bytes;
use prost::Message;
use tokio::time::Instant;
use tracing::{debug, info, warn};

pub use self::relist::Relist;
pub(super) use self::stream::End;
use self::stream::{Change, Stream};
use super::{Api, DecodeError, Metrics, RequestError, rewind, wire};
use crate::backoff::{self, Backoff};
use crate::model::Uid;
use crate::signal::Follower;

/// Objects per page of a list. The server's own clients use the same.
const PAGE: usize = 500;
/// A longer page is asked for again with half the objects: 500 pods with much in them are some 20 MB,
/// and an object is at most 1.5 MiB.
const LONGEST_PAGE: usize = 32 << 20;
/// After this many bytes of objects, the task yields.
const IN_ONE_GO: usize = 1 << 20;
/// For how long one page may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// For how long a watch may take to answer with its headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(15);
/// Where the store has moved on for so long and no watch brings anything, something between lets lists
/// through and no watch. A watch that works brings a bookmark about once a minute.
const DEAF: Duration = Duration::from_secs(75);
/// A stream that brought nothing but lasted for this long did not fail.
const LASTED: Duration = Duration::from_secs(30);
/// Time after which the server is asked to end a watch, jittered so that replicas spread.
const WATCH_LEAST: Duration = Duration::from_secs(240);
const WATCH_MOST: Duration = Duration::from_secs(300);
/// After so many streamed lists in a row that broke off, one is taken in pages: what lies between
/// may not let a long answer through.
const BROKEN_OFF: u32 = 2;
/// So many times in a row an event of a watch may be unreadable, which takes ten seconds and more with
/// the pauses between; then a list is taken, which does without it.
const GARBLED: u32 = 7;
/// Marks the bookmark that comes after the last object of a streamed list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";
/// Pause between attempts. The longest is short: while a watch is down, pods are judged by old facts.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(200), most: Duration::from_secs(8) };

/// Maximum pause that a server's `Retry-After` is honoured for.
const LONGEST_ASKED: Duration = Duration::from_secs(30);

/// Where a watched resource's objects go.
pub trait Index: Send {
    /// The resource in the plural, as in its path: `pods`.
    const RESOURCE: &str;
    /// The kind of its objects: `Pod`.
    const KIND: &str;
    /// Query parameters of list and watch that select the objects, `""` for all.
    const SELECT: &str;

    /// Takes an object that is new or has changed, in protobuf. Returns its UID. Versions of it
    /// may have been missed before one that comes `by` a list.
    ///
    /// # Errors
    /// It cannot be read.
    fn apply(&mut self, object: &Bytes, by: Source) -> Result<Uid, DecodeError>;

    /// Takes the last state of an object that is gone, in protobuf.
    ///
    /// # Errors
    /// It cannot be read.
    fn delete(&mut self, object: &Bytes) -> Result<(), DecodeError>;

    /// Takes that an object is gone of whose last state no more than the UID can be read.
    fn forget(&mut self, uid: Uid);

    /// A complete list has been taken: whatever has another UID is gone. Not called if nothing
    /// was known when the list began.
    fn retain(&mut self, seen: &AHashSet<Uid>);

    /// Whether nothing is known, so that no list can tell that something is gone.
    fn is_empty(&self) -> bool;
}

/// How an object came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In a list: as it is now.
    List,
    /// As an event of a watch: the next version after the one known.
    Watch,
}

/// Lists and watches until the task is dropped. `synced` is called after each complete list. The
/// jitter of pauses depends on `who`, so that replicas and resources do not march in step. A new list is
/// taken when it is asked for by `relist`.
pub async fn run<I: Index>(
    api: Api,
    metrics: Metrics,
    index: I,
    who: u128,
    relist: Relist,
    synced: impl Fn() + Send,
) {
    let mut watcher = Watcher {
        rewound: api.rewinds().noticed(),
        asked: relist.follow(),
        api,
        metrics,
        index,
        who,
        opened: 0,
        streams: true,
        broken_off: 0,
        page: PAGE,
        version: String::new(),
        deaf: None,
    };
    let mut failures = 0u32;
    loop {
        // What is noticed from here on may be missing in the list.
        let was_told = watcher.rewound.has_changed();
        watcher.rewound.see();
        let asked = watcher.asked.see();
        match watcher.list().await {
            Ok(listed) => {
                watcher.compare(&listed.version, was_told);
                let begun = Instant::now();
                watcher.metrics.listed(I::RESOURCE);
                synced();
                relist.complete(asked);
                watcher.follow(listed).await;
                failures = if begun.elapsed() < LASTED { failures + 1 } else { 0 };
                if failures > 0 {
                    // Where the version of a list is always too old, a list follows the other.
                    tokio::time::sleep(BACKOFF.pause(failures, who)).await;
                }
            }
            Err(error) => {
                failures += 1;
                let pause = pause(failures, who, error.asked);
                let error = error.cause;
                watcher.metrics.lost_sight(I::RESOURCE, &error);
                warn!(
                    resource = I::RESOURCE,
                    error,
                    attempts = failures,
                    ?pause,
                    "cannot list; retrying"
                );
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// The pause after so many failures in a row: no shorter than the server asks for, within bounds, and
/// spread so that not all come back at once.
fn pause(failures: u32, who: u128, asked: Option<Duration>) -> Duration {
    let asked = asked.unwrap_or_default().min(LONGEST_ASKED);
    let spread = asked.mul_f64(0.25 * backoff::spread(who, failures));
    BACKOFF.pause(failures, who).max(asked + spread)
}

/// Why a list was not had.
struct Failure {
    cause: String,
    /// For how long the server asks to wait.
    asked: Option<Duration>,
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Self {
        let asked = match &error {
            RequestError::Status(answer) => answer.retry_after,
            _ => None,
        };
        Self { cause: error.to_string(), asked }
    }
}

impl From<String> for Failure {
    fn from(cause: String) -> Self {
        Self { cause, asked: None }
    }
}

struct Watcher<I> {
    /// Changes when someone has noticed that the store went back in time.
    rewound: Follower<u64>,
    /// Changes when someone asks for a new list.
    asked: Follower<u64>,
    api: Api,
    metrics: Metrics,
    index: I,
    /// Seed of the jitter of pauses.
    who: u128,
    /// How many watches were opened.
    opened: u32,
    /// Whether the server streams lists, as far as is known.
    streams: bool,
    /// How many streamed lists in a row broke off.
    broken_off: u32,
    /// Objects per page.
    page: usize,
    /// The latest version that was seen; empty before the first list.
    version: String,
    /// Since when the store is known to have moved on although no watch brings anything.
    deaf: Option<Instant>,
}

/// A complete list that was taken.
struct Listed {
    /// The version to watch from.
    version: String,
    /// The watch that it came by, if it was streamed.
    stream: Option<Stream>,
}

/// What a list has brought so far.
struct Seen {
    /// How many objects it had.
    objects: usize,
    /// The UIDs of all that came; not kept where nothing was known before, so that nothing can be gone.
    /// Of a million pods they would take 35 MB.
    uids: Option<AHashSet<Uid>>,
}

impl Seen {
    /// An object of the list.
    fn add(&mut self, uid: Option<Uid>) {
        self.objects += usize::from(uid.is_some());
        self.note(uid);
    }

    /// An object that changed meanwhile.
    fn note(&mut self, uid: Option<Uid>) {
        if let Some(uids) = &mut self.uids {
            uids.extend(uid);
        }
    }
}

/// Why a streamed list was not taken to its end.
enum Unlisted {
    /// The server does not stream lists.
    Refused(String),
    /// It had begun.
    BrokenOff(String),
    /// Any other reason.
    Failed(Failure),
}

impl<I: Index> Watcher<I> {
    /// Takes in the version of a complete list. If it is lower than what was seen before, and that is not
    /// why it was taken, others are told.
    fn compare(&mut self, version: &str, was_told: bool) {
        if rewind::is_lower(version, &self.version) {
            warn!(
                resource = I::RESOURCE,
                version,
                before = self.version,
                "the API server's store went back in time; using the new list"
            );
            if !was_told {
                self.api.rewinds().notice();
                self.rewound.see();
            }
        }
        version.clone_into(&mut self.version);
    }

    async fn list(&mut self) -> Result<Listed, Failure> {
        if self.streams && self.broken_off < BROKEN_OFF {
            match self.streamed_list().await {
                Ok(listed) => {
                    self.broken_off = 0;
                    return Ok(listed);
                }
                Err(Unlisted::Refused(reason)) => {
                    info!(
                        resource = I::RESOURCE,
                        reason, "the server does not stream lists; listing in pages"
                    );
                    self.streams = false;
                }
                Err(Unlisted::BrokenOff(error)) => {
                    self.broken_off += 1;
                    return Err(error.into());
                }
                Err(Unlisted::Failed(error)) => return Err(error),
            }
        }
        let version = self.paged_list().await?;
        self.broken_off = 0;
        Ok(Listed { version, stream: None })
    }

    /// Takes a complete list as the beginning of a watch.
    async fn streamed_list(&mut self) -> Result<Listed, Unlisted> {
        let query = format!(
            "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=\
             &allowWatchBookmarks=true&timeoutSeconds={}{}",
            self.watch_seconds(),
            I::SELECT
        );
        let opened = self.api.open_watch(I::RESOURCE, &query, HEADER_TIMEOUT).await;
        let mut stream = match opened {
            Ok(body) => Stream::new(body),
            Err(error) if refuses_streaming(&error) => {
                return Err(Unlisted::Refused(error.to_string()));
            }
            // As when something between waits for the end of the answer before it passes it on.
            Err(error @ RequestError::Timeout(_)) => {
                return Err(Unlisted::BrokenOff(error.to_string()));
            }
            Err(error) => return Err(Unlisted::Failed(error.into())),
        };
        let broken_off = |end| Unlisted::BrokenOff(format!("the streamed list ended: {end:?}"));
        let mut seen = self.nothing_seen();
        loop {
            // The list is ADDED events. What changes meanwhile comes among them.
            match stream.next(I::KIND).await.map_err(broken_off)? {
                Change::Added(object) => seen.add(self.apply(&object, Source::List)),
                Change::Modified(object) => seen.note(self.apply(&object, Source::Watch)),
                Change::Deleted(object) => self.delete(&object),
                Change::Bookmark(object) => {
                    let Some(version) = list_end(&object) else { continue };
                    self.complete(&seen, "streamed");
                    return Ok(Listed { version, stream: Some(stream) });
                }
                // A server whose store cannot do it says so only now, as an internal error.
                Change::Error(status) if status.code == 500 && seen.objects == 0 => {
                    return Err(Unlisted::Refused(status.message));
                }
                Change::Error(status) => return Err(broken_off(End::by(&status))),
            }
        }
    }

    /// Takes a complete list page by page, and returns its version.
    async fn paged_list(&mut self) -> Result<String, RequestError> {
        let mut seen = self.nothing_seen();
        let mut token = String::new();
        loop {
            let mut query = format!("limit={}{}", self.page, I::SELECT);
            if !token.is_empty() {
                query.push_str("&continue=");
                query.extend(form_urlencoded::byte_serialize(token.as_bytes()));
            }
            let page = self.api.list_page(I::RESOURCE, &query, PAGE_TIMEOUT, LONGEST_PAGE).await;
            let body = match page {
                // The token is good for a smaller page as well.
                Err(RequestError::TooLarge(most)) if self.page > 1 => {
                    self.page /= 2;
                    let page = self.page;
                    info!(resource = I::RESOURCE, most, page, "a page is too large; halving it");
                    continue;
                }
                Err(error @ RequestError::Timeout(_)) => {
                    self.page = (self.page / 2).max(1);
                    return Err(error);
                }
                other => other?,
            };
            if body.len() < LONGEST_PAGE / 4 {
                self.page = (self.page * 2).min(PAGE);
            }
            let kind = format!("{}List", I::KIND);
            let page = wire::open(&body, &kind)
                .and_then(|page| Ok(wire::List::decode(page)?))
                .map_err(|error| RequestError::Body(format!("the list is {error}")))?;
            let mut taken = 0;
            for object in &page.items {
                seen.add(self.apply(object, Source::List));
                taken += object.len();
                if taken > IN_ONE_GO {
                    taken = 0;
                    tokio::task::yield_now().await;
                }
            }
            let before = std::mem::replace(&mut token, page.metadata.r#continue);
            if token == before && !token.is_empty() {
                let same = "the list does not end: a page names itself as the next one";
                return Err(RequestError::Body(same.to_owned()));
            }
            if token.is_empty() {
                self.complete(&seen, "paged");
                return Ok(page.metadata.resource_version);
            }
        }
    }

    fn nothing_seen(&self) -> Seen {
        Seen { objects: 0, uids: (!self.index.is_empty()).then(AHashSet::new) }
    }

    fn complete(&mut self, seen: &Seen, form: &str) {
        if let Some(uids) = &seen.uids {
            self.index.retain(uids);
        }
        info!(resource = I::RESOURCE, objects = seen.objects, form, "list complete");
    }

    /// Watches from a list on, and returns when only a new list helps.
    async fn follow(&mut self, listed: Listed) {
        let Listed { mut version, mut stream } = listed;
        let (mut failures, mut garbled) = (0u32, 0u32);
        let mut broke = false;
        self.deaf = None;
        loop {
            let (before, opened) = (version.clone(), Instant::now());
            let mut asked = None;
            let end = match stream.take() {
                Some(stream) => self.watch(stream, &mut version).await,
                None => match self.open(&version, broke, &mut asked).await {
                    Ok(stream) => self.watch(stream, &mut version).await,
                    Err(end) => end,
                },
            };
            version.clone_into(&mut self.version);
            if before != version {
                self.deaf = None;
            }
            // As the server was asked to: nothing happened to it.
            broke = end != End::Closed || opened.elapsed() < WATCH_LEAST;
            self.metrics.connected(I::RESOURCE, false);
            self.metrics.watch_ended(I::RESOURCE, end.label());
            if end != End::Asked {
                self.metrics.lost_sight(I::RESOURCE, end.cause());
            }
            if end == End::Expired {
                info!(
                    resource = I::RESOURCE,
                    version, "the watch's resource version has expired; listing again"
                );
                return;
            }
            if end == End::Asked {
                info!(resource = I::RESOURCE, version, "listing again for a new configuration");
                return;
            }
            if end == End::Rewound || end == End::Idle && before == version {
                info!(
                    resource = I::RESOURCE,
                    version,
                    ?end,
                    "the watch may have missed changes; listing again"
                );
                return;
            }
            let is_stuck = before == version && matches!(end, End::Garbled(_));
            garbled = if is_stuck { garbled + 1 } else { 0 };
            if garbled == GARBLED {
                warn!(
                    resource = I::RESOURCE,
                    version,
                    ?end,
                    "cannot read the events after this version; listing again"
                );
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
                    let pause = pause(failures.max(1), self.who, asked);
                    if failures > 1 {
                        warn!(
                            resource = I::RESOURCE,
                            ?end,
                            attempts = failures,
                            ?pause,
                            "watch keeps ending; retrying"
                        );
                    } else {
                        info!(resource = I::RESOURCE, ?end, "watch ended; resuming it");
                    }
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// After how many seconds the server shall end the next watch.
    fn watch_seconds(&mut self) -> u64 {
        self.opened = self.opened.wrapping_add(1);
        let spread = WATCH_MOST.saturating_sub(WATCH_LEAST);
        (WATCH_LEAST + spread.mul_f64(backoff::spread(self.who, self.opened))).as_secs()
    }

    /// Opens a watch at this version. If the one before `broke`, the server may be another one by now: then
    /// only if its store is that far, or if it refuses to say.
    async fn open(
        &mut self,
        version: &str,
        broke: bool,
        asked: &mut Option<Duration>,
    ) -> Result<Stream, End> {
        let mut failed = |error: RequestError| {
            let failure = Failure::from(error);
            *asked = failure.asked;
            End::Failed(failure.cause)
        };
        if broke {
            match self.stored_version().await {
                Ok(stored) if rewind::is_lower(&stored, version) => return Err(End::Rewound),
                Ok(stored) if stored == version => self.deaf = None,
                Ok(_) => {
                    if self.deaf.get_or_insert_with(Instant::now).elapsed() >= DEAF {
                        return Err(End::Idle);
                    }
                }
                // A server may refuse lists and still serve watches. A watch at a version that its store has
                // not reached is silent, which leads to a list as well, but later.
                Err(RequestError::Status(answer)) if answer.code != 429 => self.deaf = None,
                Err(error) => {
                    self.deaf = None;
                    return Err(failed(error));
                }
            }
        }
        let query = format!(
            "watch=true&allowWatchBookmarks=true&timeoutSeconds={}&resourceVersion={version}{}",
            self.watch_seconds(),
            I::SELECT
        );
        match self.api.open_watch(I::RESOURCE, &query, HEADER_TIMEOUT).await {
            Ok(body) => Ok(Stream::new(body)),
            Err(RequestError::Status(answer)) if answer.code == 410 => Err(End::Expired),
            Err(error) => Err(failed(error)),
        }
    }

    /// The version that the server's store is at.
    async fn stored_version(&self) -> Result<String, RequestError> {
        let query = format!("limit=1{}", I::SELECT);
        let body = self.api.list_page(I::RESOURCE, &query, HEADER_TIMEOUT, LONGEST_PAGE).await?;
        let page = wire::open(&body, &format!("{}List", I::KIND))
            .and_then(|page| Ok(wire::List::decode(page)?))
            .map_err(|error| RequestError::Body(format!("the list is {error}")))?;
        Ok(page.metadata.resource_version)
    }

    /// Takes the events of a watch until it ends, and keeps the version that they bring to.
    async fn watch(&mut self, mut stream: Stream, version: &mut String) -> End {
        self.metrics.connected(I::RESOURCE, true);
        loop {
            let next = tokio::select! {
                biased;
                // It cannot be closed: the API has its other end.
                () = self.rewound.changed() => return End::Rewound,
                () = self.asked.changed() => return End::Asked,
                next = stream.next(I::KIND) => next,
            };
            let object = match next {
                Ok(Change::Added(object) | Change::Modified(object)) => {
                    self.apply(&object, Source::Watch);
                    object
                }
                Ok(Change::Deleted(object)) => {
                    self.delete(&object);
                    object
                }
                Ok(Change::Bookmark(object)) => object,
                Ok(Change::Error(status)) => return End::by(&status),
                Err(end) => return end,
            };
            if let Some(newer) = wire::version(&object) {
                if rewind::is_lower(newer, version) {
                    return End::Rewound;
                }
                newer.clone_into(version);
            }
        }
    }

    /// Takes an object in and returns its UID, if that at least can be read.
    fn apply(&mut self, object: &Bytes, by: Source) -> Option<Uid> {
        match self.index.apply(object, by) {
            Ok(uid) => Some(uid),
            Err(error) => {
                self.skipped(&error);
                error.uid
            }
        }
    }

    fn delete(&mut self, object: &Bytes) {
        if let Err(error) = self.index.delete(object) {
            self.skipped(&error);
            if let Some(uid) = error.uid {
                self.index.forget(uid);
            }
        }
    }

    fn skipped(&self, error: &DecodeError) {
        self.metrics.undecodable(I::RESOURCE);
        tracing::error!(
            resource = I::RESOURCE,
            object = error.object,
            reason = error.reason,
            "cannot decode an object; skipping this version and keeping the last one"
        );
    }
}

/// Whether the server says that it does not know the parameters of a streamed list, or does not
/// allow them. A missing right is another matter.
fn refuses_streaming(error: &RequestError) -> bool {
    let RequestError::Status(answer) = error else {
        return false;
    };
    let named = ["sendInitialEvents", "resourceVersionMatch"];
    matches!(answer.code, 400 | 422)
        || answer.code == 403 && named.iter().any(|field| answer.message.contains(field))
}

/// The metadata of an object, up to where it cannot be read.
fn metadata(object: &Bytes) -> wire::ObjectMeta {
    let mut wire = wire::Object::default();
    let _ = wire.merge(object.clone());
    wire.metadata
}

/// The version that a streamed list brings to, if this bookmark is its end.
fn list_end(bookmark: &Bytes) -> Option<String> {
    let meta = metadata(bookmark);
    let marked = |entry: &wire::MapEntry| entry.key == INITIAL_EVENTS_END && entry.value == "true";
    let version = std::str::from_utf8(&meta.resource_version).ok()?;
    meta.annotations.iter().any(marked).then(|| version.to_owned())
}

#[cfg(test)]
mod tests;
