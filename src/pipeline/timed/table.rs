//! The table of the timed queue: the state of each key, and its transitions.
//!
//! ```text
//!               arm                  poll_next                complete: done
//!   (unknown) ───────► counting ────────────────► working ────────────────────► (unknown)
//!       ▲    disarm     │    ▲                    │     │
//!       └───────────────┘    └────────────────────┘     └─ arm, disarm: what is to come next
//!                             complete: retry, or armed meanwhile
//! ```
//!
//! Keys are stored in slots, and a hash table contains slot numbers, so that its spare capacity, which is
//! half of it, costs little. It stores half of each hash beside the slot number, so that it can grow and
//! skip other keys without reading the keys, which are scattered in memory. Nothing here blocks or locks;
//! the caller holds the lock.
//!
//! A heap entry in [`Waiting`] only counts while its slot holds a countdown with the same token. Tokens
//! are never reused, so a stale entry cannot be mistaken for another, and a key that is being handled
//! cannot be returned a second time.

use std::hash::Hash;
use std::task::Context;
use std::time::Duration;

use ahash::RandomState;
use hashbrown::HashTable;
use slab::Slab;
use tokio::time::Instant;

use super::waiting::{Nanos, Turn, Waiting};
use super::{Armed, Fired, Outcome, Scheduled, Token};

pub(super) struct Table<K, V> {
    /// Slots by the keys in them.
    by_key: HashTable<Place>,
    hasher: RandomState,
    slots: Slab<Entry<K, V>>,
    waiting: Waiting,
    working: usize,
    last_token: u64,
    /// From when on time is counted.
    origin: Instant,
}

/// Where a key is.
#[derive(Clone, Copy)]
struct Place {
    /// Four thousand million of them would take 400 GB.
    slot: u32,
    hash: Hashed,
}

/// Half of a key's hash: tells nearly all keys apart, and is as long as a slot's number.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Hashed(u32);

impl Hashed {
    /// As a hash table wants it, which looks at both ends.
    fn wide(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.0)
    }
}

struct Entry<K, V> {
    key: K,
    stage: Stage<V>,
}

enum Stage<V> {
    /// It is to be handed out at its turn.
    Counting(Turn, V),
    /// The same, and it must not be moved to before a floor, which a retry has set. That goes with
    /// the countdown, not with the key: once it is handed out or disarmed, the key starts afresh.
    Retrying(Box<Retry<V>>),
    /// It was handed out and is not completed. Boxed, as a retry is, because few keys are, and many
    /// count down.
    Working(Box<Work<V>>),
}

struct Retry<V> {
    turn: Turn,
    value: V,
    floor: Nanos,
    failures: u32,
}

struct Work<V> {
    turn: Turn,
    value: V,
    cancelled: bool,
    /// What the key was armed with since, to be counted down when the work is completed.
    next: Option<(Turn, V)>,
}

impl<K, V> Table<K, V>
where
    K: Clone + Eq + Hash,
    V: Clone + PartialEq,
{
    pub(super) fn new() -> Self {
        Self {
            by_key: HashTable::new(),
            hasher: RandomState::new(),
            slots: Slab::new(),
            waiting: Waiting::new(),
            working: 0,
            last_token: 0,
            origin: Instant::now(),
        }
    }

    pub(super) fn arm(&mut self, key: K, due: Instant, value: V) -> Armed {
        let turn = Turn { due: self.nanos(due), token: self.fresh() };
        let hash = self.hash(&key);
        let Some(slot) = self.slot(hash, &key) else {
            let slot = self.insert(hash, key, Stage::Counting(turn, value));
            self.waiting.put(turn, slot);
            return Armed::New;
        };
        let Some(Entry { stage, .. }) = self.slots.get_mut(slot) else {
            return Armed::Unchanged;
        };
        if let Stage::Working(work) = stage {
            return match &mut work.next {
                Some((old, known)) if old.due == turn.due && *known == value => Armed::Unchanged,
                next => match next.replace((turn, value)) {
                    None => Armed::New,
                    Some(_) => Armed::Moved,
                },
            };
        }
        let turn = stage.lifted(turn);
        let (old, known) = stage.countdown_mut();
        if old.due == turn.due && *known == value {
            return Armed::Unchanged;
        }
        (*old, *known) = (turn, value);
        self.waiting.put(turn, slot);
        self.now_stale();
        Armed::Moved
    }

    pub(super) fn disarm(&mut self, key: &K) -> bool {
        let hash = self.hash(key);
        let slots = &mut self.slots;
        let Ok(found) = self.by_key.find_entry(hash.wide(), is_at(slots, hash, key)) else {
            return false;
        };
        let slot = found.get().slot as usize;
        if let Some(Entry { stage: Stage::Working(work), .. }) = slots.get_mut(slot) {
            work.cancelled = true;
            return work.next.take().is_some();
        }
        found.remove();
        slots.try_remove(slot);
        self.now_stale();
        true
    }

    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Option<Fired<K, V>> {
        loop {
            let Some((turn, slot)) = self.waiting.first() else {
                self.waiting.sleep(cx, None);
                return None;
            };
            let entry = self.slots.get_mut(slot).filter(|entry| entry.stage.counts_to(turn));
            let Some(entry) = entry else {
                self.waiting.drop_first(true);
                continue;
            };
            let due = instant(self.origin, turn.due);
            if due > Instant::now() {
                if self.waiting.sleep(cx, Some((turn.due, due))) {
                    return None;
                }
                continue;
            }
            self.waiting.drop_first(false);
            self.working += 1;
            let failures = entry.stage.failures();
            let value = entry.stage.countdown_mut().1.clone();
            let work = Work { turn, value: value.clone(), cancelled: false, next: None };
            entry.stage = Stage::Working(Box::new(work));
            return Some(Fired { key: entry.key.clone(), token: turn.token, value, due, failures });
        }
    }

    pub(super) fn complete(&mut self, key: &K, token: Token, outcome: Outcome<V>) -> bool {
        let floor = match &outcome {
            Outcome::Retry { not_before, .. } => Some(self.nanos(*not_before)),
            Outcome::Done | Outcome::Early { .. } => None,
        };
        let origin = self.origin;
        let fresh = self.fresh();
        let hash = self.hash(key);
        let Some(slot) = self.slot(hash, key) else {
            return false;
        };
        let Some(Entry { stage, .. }) = self.slots.get_mut(slot) else {
            return false;
        };
        let Stage::Working(work) = stage else {
            return false;
        };
        if work.turn.token != token {
            return false;
        }
        let next = match (outcome, floor, work.next.take()) {
            (Outcome::Retry { failures, .. }, Some(floor), Some((turn, value))) => {
                let turn = Turn { due: turn.due.max(floor), ..turn };
                Some((turn, Stage::Retrying(Box::new(Retry { turn, value, floor, failures }))))
            }
            (Outcome::Retry { value, failures, .. }, Some(floor), None) if !work.cancelled => {
                let turn = Turn { due: floor, token: fresh };
                Some((turn, Stage::Retrying(Box::new(Retry { turn, value, floor, failures }))))
            }
            (Outcome::Early { due, value }, _, None) if !work.cancelled => {
                let turn = Turn { due: nanos(origin, due), token: fresh };
                Some((turn, Stage::Counting(turn, value)))
            }
            (_, _, Some((turn, value))) => Some((turn, Stage::Counting(turn, value))),
            (_, _, None) => None,
        };
        self.working -= 1;
        match next {
            Some((turn, next)) => {
                *stage = next;
                self.waiting.put(turn, slot);
            }
            None => self.remove(hash, slot),
        }
        true
    }

    pub(super) fn is_current(&self, key: &K, token: Token) -> bool {
        match self.entry(key) {
            Some(Entry { stage: Stage::Working(work), .. }) => {
                work.turn.token == token && !work.cancelled
            }
            _ => false,
        }
    }

    pub(super) fn is_newest(&self, key: &K, token: Token) -> bool {
        match self.entry(key) {
            Some(Entry { stage: Stage::Working(work), .. }) => {
                work.turn.token == token && !work.cancelled && work.next.is_none()
            }
            _ => false,
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<Scheduled<V>> {
        let entry = self.entry(key).filter(|entry| !entry.stage.is_cancelled())?;
        Some(entry.stage.scheduled(self.origin))
    }

    pub(super) fn snapshot(&self) -> Vec<(K, Scheduled<V>)> {
        let entries = self.slots.iter();
        entries.map(|(_, entry)| (entry.key.clone(), entry.stage.scheduled(self.origin))).collect()
    }

    pub(super) fn rearm_all(&mut self, due_of: impl Fn(&V) -> Option<Instant>) -> usize {
        let (origin, mut moved, mut stale) = (self.origin, 0, 0);
        for (slot, Entry { stage, .. }) in &mut self.slots {
            let changed = |turn: Turn, value: &V| {
                let due = nanos(origin, due_of(value)?);
                (due != turn.due).then_some(Turn { due, ..turn })
            };
            if let Stage::Working(work) = stage {
                if let Some((turn, value)) = &mut work.next
                    && let Some(changed) = changed(*turn, value)
                {
                    *turn = changed;
                    moved += 1;
                }
                continue;
            }
            let (turn, value) = stage.countdown_mut();
            let (old, changed) = (*turn, changed(*turn, value));
            let Some(changed) = changed.map(|changed| stage.lifted(changed)) else { continue };
            if changed != old {
                *stage.countdown_mut().0 = changed;
                self.waiting.put(changed, slot);
                moved += 1;
                stale += 1;
            }
        }
        for _ in 0..stale {
            self.now_stale();
        }
        moved
    }

    pub(super) fn clear(&mut self) {
        self.by_key = HashTable::new();
        self.slots = Slab::new();
        self.waiting.clear();
        self.working = 0;
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn working(&self) -> usize {
        self.working
    }

    #[allow(clippy::cast_possible_truncation)] // One half is enough.
    fn hash(&self, key: &K) -> Hashed {
        Hashed(self.hasher.hash_one(key) as u32)
    }

    fn slot(&self, hash: Hashed, key: &K) -> Option<usize> {
        let place = self.by_key.find(hash.wide(), is_at(&self.slots, hash, key))?;
        Some(place.slot as usize)
    }

    fn entry(&self, key: &K) -> Option<&Entry<K, V>> {
        self.slots.get(self.slot(self.hash(key), key)?)
    }

    /// Puts a key in that is not in.
    fn insert(&mut self, hash: Hashed, key: K, stage: Stage<V>) -> usize {
        let slot = self.slots.insert(Entry { key, stage });
        let Ok(number) = u32::try_from(slot) else {
            panic!("{slot} countdowns are more than a timed queue can hold");
        };
        let place = Place { slot: number, hash };
        self.by_key.insert_unique(hash.wide(), place, |place| place.hash.wide());
        slot
    }

    fn remove(&mut self, hash: Hashed, slot: usize) {
        let is_it = |place: &Place| place.slot as usize == slot;
        if let Ok(found) = self.by_key.find_entry(hash.wide(), is_it) {
            found.remove();
        }
        self.slots.try_remove(slot);
    }

    fn now_stale(&mut self) {
        let slots = &self.slots;
        self.waiting.now_stale(|turn, slot| {
            slots.get(slot).is_some_and(|entry| entry.stage.counts_to(turn))
        });
    }

    fn nanos(&self, at: Instant) -> Nanos {
        nanos(self.origin, at)
    }

    fn fresh(&mut self) -> Token {
        self.last_token += 1;
        Token(self.last_token)
    }
}

/// Tells the place of a key from others.
fn is_at<K: Eq, V>(slots: &Slab<Entry<K, V>>, hash: Hashed, key: &K) -> impl Fn(&Place) -> bool {
    move |place| {
        let entry = (place.hash == hash).then(|| slots.get(place.slot as usize)).flatten();
        entry.is_some_and(|entry| entry.key == *key)
    }
}

impl<V: Clone> Stage<V> {
    /// Whether it is a countdown with this turn.
    fn counts_to(&self, turn: Turn) -> bool {
        match self {
            Self::Counting(own, _) => *own == turn,
            Self::Retrying(retry) => retry.turn == turn,
            Self::Working(_) => false,
        }
    }

    /// `turn`, or the same at the floor if that is later.
    fn lifted(&self, turn: Turn) -> Turn {
        match self {
            Self::Retrying(retry) => Turn { due: turn.due.max(retry.floor), ..turn },
            Self::Counting(..) | Self::Working(_) => turn,
        }
    }

    /// How many attempts have failed before the countdown.
    fn failures(&self) -> u32 {
        match self {
            Self::Retrying(retry) => retry.failures,
            Self::Counting(..) | Self::Working(_) => 0,
        }
    }

    /// The turn and the value of a countdown, or what was handed out.
    fn countdown_mut(&mut self) -> (&mut Turn, &mut V) {
        match self {
            Self::Counting(turn, value) => (turn, value),
            Self::Retrying(retry) => (&mut retry.turn, &mut retry.value),
            Self::Working(work) => (&mut work.turn, &mut work.value),
        }
    }

    /// Whether it is still being handled although the work is no longer wanted.
    fn is_cancelled(&self) -> bool {
        matches!(self, Self::Working(work) if work.cancelled && work.next.is_none())
    }

    fn scheduled(&self, origin: Instant) -> Scheduled<V> {
        let (turn, value, running) = match self {
            Self::Counting(turn, value) => (*turn, value, false),
            Self::Retrying(retry) => (retry.turn, &retry.value, false),
            Self::Working(work) => match &work.next {
                Some((turn, value)) => (*turn, value, true),
                None => (work.turn, &work.value, true),
            },
        };
        Scheduled { due: instant(origin, turn.due), value: value.clone(), running }
    }
}

fn nanos(origin: Instant, at: Instant) -> Nanos {
    let nanos = |duration: Duration| Nanos::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX);
    if at >= origin { nanos(at - origin) } else { -nanos(origin - at) }
}

fn instant(origin: Instant, at: Nanos) -> Instant {
    let distance = Duration::from_nanos(at.unsigned_abs());
    let moved = if at >= 0 { origin.checked_add(distance) } else { origin.checked_sub(distance) };
    moved.unwrap_or(origin)
}
