//! One open watch: splits its body into frames and decodes their events.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use kube::client::Body;
use prost::Message;
use tokio::time::timeout;

use crate::cluster::wire::{self, Frames};

/// A stream that is silent for this long is taken up anew: the server sends a bookmark about
/// once a minute, so the connection has died without a word.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// What an event of a watch says.
#[derive(Debug, PartialEq)]
pub(super) enum Change {
    /// The object is new to this watch.
    Added(Bytes),
    /// It has changed.
    Modified(Bytes),
    /// It is gone; this was its last state.
    Deleted(Bytes),
    /// Nothing but a version. The object has only metadata.
    Bookmark(Bytes),
    /// The watch has failed.
    Error(wire::Status),
}

/// Why a watch stream ended.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cluster) enum End {
    /// The server ended it, as asked or because it lagged.
    Closed,
    /// The version is too old: only a new list helps.
    Expired,
    /// Nothing came for too long.
    Idle,
    /// The server's store went back in time: what it stores from now on has versions that were seen.
    Rewound,
    /// A new list was asked for.
    Asked,
    /// An event cannot be read. The same may come again: the server sends what follows the version
    /// that was seen last.
    Garbled(String),
    /// The server refused, or the connection failed.
    Failed(String),
}

impl End {
    /// All labels, for the metrics that show each of them from the start.
    pub(in crate::cluster) const LABELS: [&str; 7] =
        ["closed", "expired", "idle", "rewound", "asked", "garbled", "failed"];

    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Expired => "expired",
            Self::Idle => "idle",
            Self::Rewound => "rewound",
            Self::Asked => "asked",
            Self::Garbled(_) => "garbled",
            Self::Failed(_) => "failed",
        }
    }

    /// Why it ended, in as many words as are known.
    pub(super) fn cause(&self) -> &str {
        match self {
            Self::Garbled(cause) | Self::Failed(cause) => cause,
            _ => self.label(),
        }
    }

    /// How a watch ends that has received this.
    pub(super) fn by(status: &wire::Status) -> Self {
        if status.code == 410 {
            Self::Expired
        } else {
            Self::Failed(format!("error event {}: {}", status.code, status.message))
        }
    }
}

/// An open watch.
pub(super) struct Stream {
    body: Body,
    frames: Frames,
    /// How much was cut since others had their turn.
    cut: usize,
}

impl Stream {
    pub(super) fn new(body: Body) -> Self {
        Self { body, frames: Frames::default(), cut: 0 }
    }

    /// What the next event says, which must be about an object of this kind.
    pub(super) async fn next(&mut self, kind: &str) -> Result<Change, End> {
        match timeout(IDLE_TIMEOUT, self.frame()).await {
            Err(_) => Err(End::Idle),
            Ok(Err(end)) => Err(end),
            Ok(Ok(None)) => Err(End::Closed),
            Ok(Ok(Some(frame))) => read(&frame, kind).map_err(End::Garbled),
        }
    }

    /// The next frame, or `None` at the end of the body. Safe to cancel: what was read stays.
    async fn frame(&mut self) -> Result<Option<Bytes>, End> {
        if self.cut > super::IN_ONE_GO {
            self.cut = 0;
            tokio::task::yield_now().await;
        }
        loop {
            let cut = self.frames.cut().map_err(|error| End::Garbled(error.to_string()))?;
            if let Some(frame) = &cut {
                self.cut += frame.len();
                return Ok(cut);
            }
            match self.body.frame().await {
                None if self.frames.is_empty() => return Ok(None),
                None => {
                    let cut = "the stream was cut in the middle of an event";
                    return Err(End::Failed(cut.to_owned()));
                }
                Some(Err(error)) => return Err(End::Failed(error.to_string())),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.frames.push(&data);
                    }
                }
            }
        }
    }
}

fn read(frame: &Bytes, kind: &str) -> Result<Change, String> {
    let wrong = |error: wire::WireError| format!("cannot read a watch event: {error}");
    let event = wire::Event::decode(frame.clone()).map_err(|error| wrong(error.into()))?;
    let open = |kind| wire::open(&event.object.raw, kind).map_err(wrong);
    Ok(match &event.r#type[..] {
        b"ADDED" => Change::Added(open(kind)?),
        b"MODIFIED" => Change::Modified(open(kind)?),
        b"DELETED" => Change::Deleted(open(kind)?),
        b"BOOKMARK" => Change::Bookmark(open(kind)?),
        b"ERROR" => {
            let status = wire::Status::decode(open("Status")?);
            Change::Error(status.map_err(|error| wrong(error.into()))?)
        }
        other => {
            let other = String::from_utf8_lossy(other);
            return Err(format!("unknown type of watch event {other:?}"));
        }
    })
}
