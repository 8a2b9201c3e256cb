//! Tells people when a pause begins and ends: log, event, note of readiness.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::cluster::WriteGate;
use crate::evict::Pauses;
use crate::leader::LEASE;
use crate::model::Pause;
use crate::observe::{Readiness, Recorder};

/// A pause without an end is reported again after this: someone may have forgotten it.
const AGAIN: Duration = Duration::from_secs(3600);
/// How often a pause is looked at that may end by itself.
const LOOK: Duration = Duration::from_millis(500);
/// Name of the note of readiness.
const NOTE: &str = "paused";

/// Reports pauses.
pub(super) struct PauseReports {
    pub(super) pauses: Arc<Pauses>,
    /// Tells the queue of evictions that the answer of its hold has changed.
    pub(super) changed: Arc<Notify>,
    /// Only the leader sends events.
    pub(super) gate: WriteGate,
    pub(super) recorder: Recorder,
    pub(super) readiness: Readiness,
    /// Namespace of the lease.
    pub(super) namespace: String,
}

impl PauseReports {
    /// Reports until it is dropped.
    pub(super) async fn run(self) {
        let mut stored = self.pauses.subscribe();
        let mut known: Option<(Arc<Pause>, Instant)> = None;
        loop {
            stored.borrow_and_update();
            let pause = self.pauses.current();
            let is_news = known.as_ref().map(|(pause, _)| pause) != pause.as_ref();
            if is_news {
                self.changed.notify_one();
            }
            known = match (known, pause) {
                (None, None) => None,
                (Some((old, said)), Some(pause)) if old == pause => {
                    let again = pause.until.is_none() && said.elapsed() >= AGAIN;
                    if again {
                        self.paused(&pause, true);
                    }
                    Some((pause, if again { Instant::now() } else { said }))
                }
                (_, Some(pause)) => {
                    self.paused(&pause, false);
                    Some((pause, Instant::now()))
                }
                (Some((old, _)), None) => {
                    self.resumed(&old);
                    None
                }
            };
            tokio::select! {
                changed = stored.changed() => if changed.is_err() {
                    // Nobody reads the lease any more: the process ends.
                    return std::future::pending().await;
                },
                () = sleep(LOOK), if known.is_some() => {}
            }
        }
    }

    fn paused(&self, pause: &Pause, again: bool) {
        let still = if again { "still " } else { "" };
        warn!(
            by = pause.by,
            since = pause.since.map(tracing::field::display),
            until = pause.until.map(tracing::field::display),
            reason = pause.reason,
            "evictions, cordons and starts of drains are {still}paused; end it with: ostrakon resume"
        );
        self.readiness.note(NOTE, Some(pause.to_string()));
        if self.gate.left().is_some() {
            let message = format!(
                "Evictions, cordons and starts of drains are {still}{pause}; end it with: ostrakon \
                 resume"
            );
            self.recorder.paused(&self.namespace, LEASE, &message);
        }
    }

    fn resumed(&self, pause: &Pause) {
        let over = self.pauses.is_over(pause);
        let resumption = self.pauses.resumption().filter(|_| !over);
        let resumption = resumption.filter(|it| pause.since.is_none_or(|since| since <= it.at));
        let how = match &resumption {
            Some(resumption) => resumption.to_string(),
            None if over => "its time was over".to_owned(),
            None => "it was removed".to_owned(),
        };
        info!(%pause, how, "the pause is over; what is due goes on");
        self.readiness.note(NOTE, None);
        if self.gate.left().is_some() {
            let message = format!("The pause is over ({how}); it was: {pause}");
            self.recorder.resumed(&self.namespace, LEASE, &message);
        }
    }
}
