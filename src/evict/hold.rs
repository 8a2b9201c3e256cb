//! What holds evictions back that are due: limits, a breaker, a pause.
//!
//! A hold is asked when an eviction is about to be handed out, never before, so it judges by what is
//! true then. It names a *line* for the eviction, and evictions of one line wait one behind the
//! other: while the first of them is held, the others are not asked about. So a hundred thousand
//! evictions that wait for one limit cost one question each time that it lets one go.
//!
//! What is held keeps no place of the window and stands in nobody's way but its own line's. With no hold
//! configured nothing is asked and nothing is kept.

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

/// A line is asked about no more often.
const LEAST: Duration = Duration::from_millis(1);

/// Holds some evictions back. It is asked under a lock: it must not wait, nor call the queue.
pub trait Hold: Send + Sync {
    /// Its name, for people: "rate limit".
    fn name(&self) -> &'static str;

    /// The line in which an eviction would wait; `None` if it does not concern this hold.
    fn line(&self, eviction: &Eviction) -> Option<Arc<str>>;

    /// What the next eviction of a line has to wait for at `now`; `None` if it may go.
    fn holds(&self, line: &str, now: Instant) -> Option<Wait>;

    /// An eviction of the line is handed out, as no hold holds it.
    fn passed(&self, line: &str, now: Instant) {
        let _ = (line, now);
    }
}

/// When to ask again about a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// At this time, or when something changes before.
    Until(Instant),
    /// When something changes.
    ForChange,
}

impl Wait {
    /// The same, but not now: whoever says "until now" is asked again a little later.
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
    /// When the line is asked about again.
    pub wait: Wait,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.by, self.line)
    }
}

/// The holds that are configured, in the order in which they are asked.
#[derive(Default)]
pub struct Holds {
    holds: Vec<Box<dyn Hold>>,
    /// A hold lets go what it held.
    changed: Arc<Notify>,
}

impl Holds {
    /// These holds. Each of them tells by `changed` that an answer of its has changed before the time that
    /// it gave.
    pub fn new(holds: Vec<Box<dyn Hold>>, changed: Arc<Notify>) -> Self {
        Self { holds, changed }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// Completes when an answer has changed.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What holds an eviction back, and in which line. One that comes new goes behind those that wait in
    /// its line; the first of a line, `from` which it comes, is only asked about.
    pub(super) fn ask<T>(
        &self,
        eviction: &Eviction,
        from: Option<&LineId>,
        lines: &Lines<T>,
        now: Instant,
    ) -> Option<(LineId, Held)> {
        let held = self.lines_of(eviction).find_map(|(hold, id)| {
            let waits = from.is_none().then(|| lines.last_word(&id)).flatten();
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

/// Tells a line from all others.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct LineId {
    hold_index: usize,
    line: Arc<str>,
}

/// Evictions that are held, by line. In each line nodes take turns, as they do among those that are not.
#[derive(Debug)]
pub(super) struct Lines<T> {
    by_id: AHashMap<LineId, Line<T>>,
    /// Those that are to be asked about, in turn.
    open: VecDeque<LineId>,
    /// When others of them are.
    times: BTreeSet<(Instant, LineId)>,
    /// In which line an eviction is.
    places: AHashMap<Key, (LineId, NodeName)>,
}

#[derive(Debug)]
struct Line<T> {
    wait: Wait,
    /// It was asked about and goes first.
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
    /// What was answered about a line last, if anything waits there.
    fn last_word(&self, id: &LineId) -> Option<Wait> {
        self.by_id.get(id).filter(|line| !line.is_empty()).map(|line| line.wait)
    }

    /// Puts an eviction into a line, behind the others of its node.
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

    /// Puts the first of a line back, which is held for longer.
    pub(super) fn put_back(&mut self, id: LineId, wait: Wait, item: Item<T>) {
        self.close(&id, wait);
        let node = item.eviction.pod.node.clone();
        if let Some(line) = self.by_id.get_mut(&id) {
            self.places.insert(item.eviction.key(), (id, node));
            line.first = Some(item);
        }
    }

    /// Takes the first of a line that is to be asked about. It is to be put back, or the line
    /// [kept open](Self::keep_open).
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

    /// The first of a line is gone from it, so the next is to be asked about.
    pub(super) fn keep_open(&mut self, id: Option<LineId>) {
        let Some(id) = id else { return };
        if self.by_id.get(&id).is_some_and(Line::is_empty) {
            self.by_id.remove(&id);
        } else {
            self.open.push_back(id);
        }
    }

    /// Has all lines asked about.
    pub(super) fn open_all(&mut self) {
        self.times.clear();
        self.open = self.by_id.keys().cloned().collect();
        self.open.make_contiguous().sort_unstable();
    }

    /// When the next line is to be asked about.
    pub(super) fn next_time(&self) -> Option<Instant> {
        self.times.first().map(|(at, _)| *at)
    }

    /// Takes an eviction out.
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
