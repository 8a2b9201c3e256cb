//! Holds: limits, breakers and pauses that keep due evictions from being handed out.
//!
//! A hold is consulted right before an eviction would be handed out, so it decides by the current state.
//! It assigns the eviction to a *line*. Evictions in a line wait one behind the other: while the
//! first is held, the hold is not consulted about the others. So a hundred thousand evictions that wait
//! for one limit cost one question for each that the limit releases.
//!
//! A held eviction occupies no place in the window and delays only its own line. In a line, namespaces take
//! turns, and within a namespace nodes do.
//!
//! An eviction that was handed out once is *admitted*. When it is retried, only those holds are asked that
//! [apply to retries](Hold::applies_to_retries): a pause stops it, a limit does not count it twice. Waiting
//! until the pod of an accepted eviction is gone asks no hold.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Eviction;
use super::lines::{LineId, Lines};
use super::queue::{Attempt, Item};

/// Minimum time between two questions about a line.
const LEAST: Duration = Duration::from_millis(1);

/// Holds some evictions back. Called under a lock: must not block or call the queue.
pub trait Hold: Send + Sync {
    /// A name for people, such as "rate limit".
    fn name(&self) -> &'static str;

    /// Whether evictions that were handed out before are held too. Holds that stop harm apply to them;
    /// limits do not, because they have counted them.
    fn applies_to_retries(&self) -> bool {
        true
    }

    /// An eviction has come due, and was not handed out before. Called before it is asked about, and not
    /// under the lock.
    fn came_due(&self, eviction: &Eviction, now: Instant) {
        let _ = (eviction, now);
    }

    /// The line in which the eviction would wait; `None` if this hold does not apply to it.
    fn line(&self, eviction: &Eviction) -> Option<Arc<str>>;

    /// What the next eviction of the line, which came due at `due`, must wait for; `None` if it may go.
    fn holds(&self, line: &str, due: Instant, now: Instant) -> Option<Wait>;

    /// Called when an eviction of the line is handed out, because no hold holds it.
    fn passed(&self, line: &str, now: Instant) {
        let _ = (line, now);
    }

    /// Called when the last eviction has left the line without being handed out: it was cancelled, or
    /// waits for another hold or in another line now. What was reserved for the line is free.
    fn left(&self, line: &str, now: Instant) {
        let _ = (line, now);
    }

    /// Forgets what it counted and reserved, at the end of a term.
    fn clear(&self) {}

    /// Why evictions in the line wait: a sentence for people.
    fn why(&self, line: &str) -> String {
        format!("waits for the {} ({line})", self.name())
    }

    /// When an eviction with so many others before it in the line may go, at the present pace; `None` if
    /// nobody knows. Namespaces take turns, so it may go earlier.
    fn turn(&self, line: &str, ahead: usize, now: Instant) -> Option<Instant> {
        let _ = (line, ahead, now);
        None
    }
}

impl<H: Hold + ?Sized> Hold for Arc<H> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn applies_to_retries(&self) -> bool {
        (**self).applies_to_retries()
    }

    fn came_due(&self, eviction: &Eviction, now: Instant) {
        (**self).came_due(eviction, now);
    }

    fn line(&self, eviction: &Eviction) -> Option<Arc<str>> {
        (**self).line(eviction)
    }

    fn holds(&self, line: &str, due: Instant, now: Instant) -> Option<Wait> {
        (**self).holds(line, due, now)
    }

    fn passed(&self, line: &str, now: Instant) {
        (**self).passed(line, now);
    }

    fn left(&self, line: &str, now: Instant) {
        (**self).left(line, now);
    }

    fn clear(&self) {
        (**self).clear();
    }

    fn why(&self, line: &str) -> String {
        (**self).why(line)
    }

    fn turn(&self, line: &str, ahead: usize, now: Instant) -> Option<Instant> {
        (**self).turn(line, ahead, now)
    }
}

/// When to ask again about a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// At this time, or earlier if the hold signals a change.
    Until(Instant),
    /// When the hold signals a change.
    ForChange,
}

impl Wait {
    /// The same, but at least [`LEAST`] from now.
    fn after(self, now: Instant) -> Self {
        match self {
            Self::Until(at) => Self::Until(at.max(now + LEAST)),
            Self::ForChange => Self::ForChange,
        }
    }
}

/// What holds an eviction back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The hold's name.
    pub by: &'static str,
    /// The line in which the eviction waits.
    pub line: Arc<str>,
    /// When to ask again about the line.
    pub wait: Wait,
    /// When it is this eviction's turn at the latest, as foreseen when it joined the line; `None` if nobody
    /// knows.
    pub turn: Option<Instant>,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.by, self.line)
    }
}

/// The configured holds, in the order in which they are consulted.
#[derive(Default)]
pub struct Holds {
    holds: Vec<Box<dyn Hold>>,
    /// Notified when a hold's answer changes.
    changed: Arc<Notify>,
}

impl Holds {
    /// Each hold notifies `changed` when an answer changes before the time that it gave.
    pub fn new(holds: Vec<Box<dyn Hold>>, changed: Arc<Notify>) -> Self {
        Self { holds, changed }
    }

    /// Tells the holds of an eviction that has come due.
    pub(super) fn came_due(&self, eviction: &Eviction) {
        let now = Instant::now();
        self.holds.iter().for_each(|hold| hold.came_due(eviction, now));
    }

    /// Their names.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.holds.iter().map(|hold| hold.name())
    }

    /// Completes when a hold's answer has changed.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What holds an eviction back, and in which line. If its line is not empty, the eviction joins the end
    /// and no hold is consulted. An eviction that was the first of the line `from` does not join again.
    pub(super) fn ask<T>(
        &self,
        item: &Item<T>,
        from: Option<&LineId>,
        lines: &Lines<T>,
        now: Instant,
    ) -> Option<(LineId, Held)> {
        let held = self.lines_of(item).find_map(|(hold, id)| {
            let waits = from.is_none().then(|| lines.last_answer(&id)).flatten();
            let wait = waits.or_else(|| hold.holds(&id.line, item.eviction.due, now))?.after(now);
            let ahead = if from == Some(&id) { 0 } else { lines.len(&id) };
            let next = match wait {
                Wait::Until(at) if ahead == 0 => Some(at),
                _ => None,
            };
            let turn = next.or_else(|| hold.turn(&id.line, ahead, now));
            let held = Held { by: hold.name(), line: Arc::clone(&id.line), wait, turn };
            Some((id, held))
        });
        if held.is_none() {
            self.lines_of(item).for_each(|(hold, id)| hold.passed(&id.line, now));
        }
        held
    }

    /// Tells the hold of a line that it is empty, and that its last eviction was not handed out.
    pub(super) fn left(&self, LineId { hold_index, line }: &LineId, now: Instant) {
        if let Some(hold) = self.holds.get(*hold_index) {
            hold.left(line, now);
        }
    }

    /// Has all holds forget what they counted, at the end of a term.
    pub(super) fn clear(&self) {
        self.holds.iter().for_each(|hold| hold.clear());
    }

    /// Why an eviction waits: a sentence for people.
    pub(super) fn why(&self, held: &Held) -> String {
        let hold = self.holds.iter().find(|hold| hold.name() == held.by);
        hold.map_or_else(|| held.to_string(), |hold| hold.why(&held.line))
    }

    fn lines_of<'a, T>(
        &'a self,
        item: &'a Item<T>,
    ) -> impl Iterator<Item = (&'a dyn Hold, LineId)> {
        self.holds.iter().enumerate().filter_map(|(hold_index, hold)| {
            let applies = match item.attempt {
                Attempt::First => true,
                Attempt::Again => hold.applies_to_retries(),
                Attempt::Poll => false,
            };
            let line = applies.then(|| hold.line(&item.eviction)).flatten()?;
            Some((&**hold, LineId { hold_index, line }))
        })
    }
}

impl fmt::Debug for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.holds.iter().map(|hold| hold.name())).finish()
    }
}
