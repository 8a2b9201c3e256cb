//! Holds: limits, breakers and pauses that keep due evictions from being handed out.
//!
//! A hold is consulted right before an eviction would be handed out, so it decides by the current state.
//! It assigns the eviction to a *line*. Evictions in a line wait one behind the other: while the
//! first is held, the hold is not consulted about the others. So a hundred thousand evictions that wait
//! for one limit cost one question for each that the limit releases.
//!
//! A held eviction occupies no place in the window and delays only its own line. Without holds, nothing
//! is asked and nothing is stored.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::fairness::FairQueue;
use super::queue::Item;
use super::{Eviction, Key};
use crate::model::NodeName;

/// Minimum time between two questions about a line.
const LEAST: Duration = Duration::from_millis(1);

/// Holds some evictions back. Called under a lock: must not block or call the queue.
pub trait Hold: Send + Sync {
    /// A name for people, such as "rate limit".
    fn name(&self) -> &'static str;

    /// The line in which the eviction would wait; `None` if this hold does not apply to it.
    fn line(&self, eviction: &Eviction) -> Option<Arc<str>>;

    /// What the next eviction of the line must wait for; `None` if it may go.
    fn holds(&self, line: &str, now: Instant) -> Option<Wait>;

    /// Called when an eviction of the line is handed out, because no hold holds it.
    fn passed(&self, line: &str, now: Instant) {
        let _ = (line, now);
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

    pub(super) fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// Completes when a hold's answer has changed.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What holds an eviction back, and in which line. If its line is not empty, the eviction joins the end
    /// and no hold is consulted. An eviction that was the first of the line `from` does not join again.
    pub(super) fn ask<T>(
        &self,
        eviction: &Eviction,
        from: Option<&LineId>,
        lines: &Lines<T>,
        now: Instant,
    ) -> Option<(LineId, Held)> {
        let held = self.lines_of(eviction).find_map(|(hold, id)| {
            let waits = from.is_none().then(|| lines.last_answer(&id)).flatten();
            let wait = waits.or_else(|| hold.holds(&id.line, now))?.after(now);
            let held = Held { by: hold.name(), line: Arc::clone(&id.line), wait };
            Some((id, held))
        });
        if held.is_none() {
            self.lines_of(eviction).for_each(|(hold, id)| hold.passed(&id.line, now));
        }
        held
    }

    fn lines_of<'a>(
        &'a self,
        eviction: &'a Eviction,
    ) -> impl Iterator<Item = (&'a dyn Hold, LineId)> {
        self.holds.iter().enumerate().filter_map(|(hold_index, hold)| {
            let line = hold.line(eviction)?;
            Some((&**hold, LineId { hold_index, line }))
        })
    }
}

impl fmt::Debug for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.holds.iter().map(|hold| hold.name())).finish()
    }
}

/// Identifies a line.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct LineId {
    hold_index: usize,
    line: Arc<str>,
}

/// Held evictions, by line. Within a line nodes take turns, as they do among evictions that are not held.
#[derive(Debug)]
pub(super) struct Lines<T> {
    by_id: AHashMap<LineId, Line<T>>,
    /// Lines to ask about now, in order.
    open: VecDeque<LineId>,
    /// When to ask about the other lines.
    times: BTreeSet<(Instant, LineId)>,
    /// The line and node of each held eviction.
    places: AHashMap<Key, (LineId, NodeName)>,
}

#[derive(Debug)]
struct Line<T> {
    wait: Wait,
    /// The eviction that the last answer was about. It goes first.
    first: Option<Item<T>>,
    rest: FairQueue<Item<T>>,
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self {
            by_id: AHashMap::new(),
            open: VecDeque::new(),
            times: BTreeSet::new(),
            places: AHashMap::new(),
        }
    }
}

impl<T> Lines<T> {
    /// The last answer about a line, if the line is not empty.
    fn last_answer(&self, id: &LineId) -> Option<Wait> {
        self.by_id.get(id).filter(|line| !line.is_empty()).map(|line| line.wait)
    }

    /// Adds an eviction to a line, behind the others of its node.
    pub(super) fn push(&mut self, id: LineId, wait: Wait, item: Item<T>) {
        let node = item.eviction.pod.node.clone();
        self.places.insert(item.eviction.key(), (id.clone(), node.clone()));
        let line = self.by_id.entry(id).or_insert_with_key(|id| {
            if let Wait::Until(at) = wait {
                self.times.insert((at, id.clone()));
            }
            Line { wait, first: None, rest: FairQueue::default() }
        });
        line.rest.push(&node, item.is_retry, item);
    }

    /// Returns the first eviction of a line to its place, because it is still held.
    pub(super) fn put_back(&mut self, id: LineId, wait: Wait, item: Item<T>) {
        self.close(&id, wait);
        let node = item.eviction.pod.node.clone();
        if let Some(line) = self.by_id.get_mut(&id) {
            self.places.insert(item.eviction.key(), (id, node));
            line.first = Some(item);
        }
    }

    /// Takes the first eviction of an open line. The caller either [puts it back](Self::put_back) or
    /// [keeps the line open](Self::keep_open).
    pub(super) fn pop(&mut self, now: Instant) -> Option<(Option<LineId>, Item<T>)> {
        while let Some((at, _)) = self.times.first()
            && *at <= now
            && let Some((_, id)) = self.times.pop_first()
        {
            self.open.push_back(id);
        }
        while let Some(id) = self.open.pop_front() {
            let Some(line) = self.by_id.get_mut(&id) else { continue };
            if let Some(item) = line.first.take().or_else(|| line.rest.pop()) {
                self.places.remove(&item.eviction.key());
                return Some((Some(id), item));
            }
            self.by_id.remove(&id);
        }
        None
    }

    /// The first eviction has left the line, so the hold is asked about the next one.
    pub(super) fn keep_open(&mut self, id: Option<LineId>) {
        let Some(id) = id else { return };
        if self.by_id.get(&id).is_some_and(Line::is_empty) {
            self.by_id.remove(&id);
        } else {
            self.open.push_back(id);
        }
    }

    /// Opens all lines.
    pub(super) fn open_all(&mut self) {
        self.times.clear();
        self.open = self.by_id.keys().cloned().collect();
        self.open.make_contiguous().sort_unstable();
    }

    /// When the next line opens.
    pub(super) fn next_time(&self) -> Option<Instant> {
        self.times.first().map(|(at, _)| *at)
    }

    /// Removes an eviction from its line.
    pub(super) fn remove(&mut self, key: Key) -> Option<Item<T>> {
        let (id, node) = self.places.remove(&key)?;
        let line = self.by_id.get_mut(&id)?;
        let is_it = |item: &Item<T>| item.eviction.key() == key;
        let first = line.first.take_if(|first| is_it(first));
        let item = first.or_else(|| line.rest.remove(&node, is_it))?;
        if line.is_empty() {
            if let Wait::Until(at) = line.wait {
                self.times.remove(&(at, id.clone()));
            }
            self.by_id.remove(&id);
        }
        Some(item)
    }

    fn close(&mut self, id: &LineId, wait: Wait) {
        let Some(line) = self.by_id.get_mut(id) else { return };
        if let Wait::Until(at) = line.wait {
            self.times.remove(&(at, id.clone()));
        }
        if let Wait::Until(at) = wait {
            self.times.insert((at, id.clone()));
        }
        line.wait = wait;
    }
}

impl<T> Line<T> {
    fn is_empty(&self) -> bool {
        self.first.is_none() && self.rest.is_empty()
    }
}
