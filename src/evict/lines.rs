//! Lines: evictions that are held, one line for each hold and for what it waits for.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use ahash::AHashMap;
use tokio::time::Instant;

use super::fairness::ByNamespace;
use super::hold::Wait;
use super::queue::Item;
use super::{Eviction, Key};
use crate::model::NodeName;

/// Identifies a line.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct LineId {
    pub(super) hold_index: usize,
    pub(super) line: Arc<str>,
}

/// Held evictions, by line. Within a line namespaces take turns, and within a namespace nodes do.
#[derive(Debug)]
pub(super) struct Lines<T> {
    by_id: AHashMap<LineId, Line<T>>,
    /// Lines to ask about now, in order.
    open: VecDeque<LineId>,
    /// When to ask about the other lines.
    times: BTreeSet<(Instant, LineId)>,
    /// The line, namespace and node of each held eviction.
    places: AHashMap<Key, (LineId, Arc<str>, NodeName)>,
}

#[derive(Debug)]
struct Line<T> {
    wait: Wait,
    /// The eviction that the last answer was about. It goes first.
    first: Option<Item<T>>,
    rest: ByNamespace<Item<T>>,
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
    pub(super) fn last_answer(&self, id: &LineId) -> Option<Wait> {
        self.by_id.get(id).filter(|line| line.len() > 0).map(|line| line.wait)
    }

    /// How many evictions are in a line.
    pub(super) fn len(&self, id: &LineId) -> usize {
        self.by_id.get(id).map_or(0, Line::len)
    }

    /// How many evictions are in all lines of a hold.
    pub(super) fn len_of(&self, hold_index: usize) -> usize {
        let lines = self.by_id.iter().filter(|(id, _)| id.hold_index == hold_index);
        lines.map(|(_, line)| line.len()).sum()
    }

    /// Adds an eviction to a line, behind the others of its node.
    pub(super) fn push(&mut self, id: LineId, wait: Wait, item: Item<T>) {
        self.enter(&id, &item.eviction);
        let line = self.by_id.entry(id).or_insert_with_key(|id| {
            if let Wait::Until(at) = wait {
                self.times.insert((at, id.clone()));
            }
            Line { wait, first: None, rest: ByNamespace::default() }
        });
        let (namespace, node) = place(&item.eviction);
        line.rest.push(&namespace, &node, item.is_retry, item);
    }

    /// Returns the first eviction of a line to its place, because it is still held.
    #[allow(clippy::needless_pass_by_value, reason = "the eviction leaves with its line")]
    pub(super) fn put_back(&mut self, id: LineId, wait: Wait, item: Item<T>) {
        self.close(&id, wait);
        self.enter(&id, &item.eviction);
        if let Some(line) = self.by_id.get_mut(&id) {
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

    /// The first eviction has left the line, so the hold is asked about the next one. Returns the line if it
    /// is empty now.
    pub(super) fn keep_open(&mut self, id: Option<LineId>) -> Option<LineId> {
        let id = id?;
        if self.by_id.get(&id).is_some_and(|line| line.len() > 0) {
            self.open.push_back(id);
            return None;
        }
        self.by_id.remove(&id).map(|_| id)
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

    /// Removes an eviction from its line. Returns the line too if it is empty now.
    pub(super) fn remove(&mut self, key: Key) -> Option<(Item<T>, Option<LineId>)> {
        let (id, namespace, node) = self.places.remove(&key)?;
        let line = self.by_id.get_mut(&id)?;
        let is_it = |item: &Item<T>| item.eviction.key() == key;
        let first = line.first.take_if(|first| is_it(first));
        let item = first.or_else(|| line.rest.remove(&namespace, &node, is_it))?;
        let emptied = line.len() == 0;
        if emptied {
            if let Wait::Until(at) = line.wait {
                self.times.remove(&(at, id.clone()));
            }
            self.by_id.remove(&id);
        }
        Some((item, emptied.then_some(id)))
    }

    fn enter(&mut self, id: &LineId, eviction: &Eviction) {
        let (namespace, node) = place(eviction);
        self.places.insert(eviction.key(), (id.clone(), namespace, node));
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
    fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }
}

fn place(eviction: &Eviction) -> (Arc<str>, NodeName) {
    (Arc::clone(&eviction.pod.namespace), eviction.pod.node.clone())
}
