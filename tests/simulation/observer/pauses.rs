//! P5: while a pause is stored, nothing harmful is requested.

use ostrakon::sim::embedded::{Change, Resource};

use super::{Broken, seconds, text, time};

const PAUSE: &str = "/metadata/annotations/ostrakon.dev~1pause";
/// In a calm story a pause is known so long after it was stored: the lease is read each second.
const SEEN: f64 = 2.0;
/// Otherwise with the next renewal, without which nothing may be written.
const RENEWED: f64 = 11.0;
/// A clock that was set by the server's `Date`, which is in whole seconds, is behind by up to this.
const DATE: f64 = 1.1;

/// Whether a change of the lease removes a pause. A lease that was deleted is no change of one.
pub(super) fn ends(change: &Change) -> bool {
    let before = change.previous.as_deref().map_or("", |lease| text(lease, PAUSE));
    change.resource == Resource::Leases
        && !change.deleted
        && !before.is_empty()
        && text(&change.current, PAUSE).is_empty()
}

/// The pauses that were stored.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// From when and until when.
    spans: Vec<(f64, f64)>,
}

impl Pauses {
    /// Takes in a change of the lease.
    pub(super) fn changed(&mut self, change: &Change) {
        let at = seconds(change.at);
        let stored = if change.deleted { "" } else { text(&change.current, PAUSE) };
        let object = serde_json::from_str(stored).unwrap_or_default();
        let end = time(&object, "/until").unwrap_or(f64::INFINITY);
        match self.spans.last_mut().filter(|(_, to)| *to > at) {
            Some(open) if stored.is_empty() => open.1 = at,
            Some(open) => open.1 = end,
            None if !stored.is_empty() && end > at => self.spans.push((at, end)),
            None => {}
        }
    }

    /// Whether a pause is in force, or was within this time before `now`.
    pub(super) fn was_on(&self, now: f64, within: f64) -> bool {
        self.spans.last().is_some_and(|(from, to)| *from <= now && now - within <= *to + DATE)
    }

    /// Whether whoever sent a request at this time must have known of a pause.
    pub(super) fn allow(&self, who: &str, sent: f64, what: &str, calm: bool) -> Result<(), Broken> {
        let known = if calm { SEEN } else { RENEWED };
        let span = self.spans.iter().find(|(from, to)| from + known < sent && sent < *to - DATE);
        span.map_or(Ok(()), |(from, _)| {
            Err(format!("P5: {who} {what} at {sent:.3}, and all is paused since {from:.3}"))
        })
    }

    /// How many pauses there were.
    pub(super) fn count(&self) -> usize {
        self.spans.len()
    }
}
