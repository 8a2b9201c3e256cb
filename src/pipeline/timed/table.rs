//! The table of the timed queue: what is true about each key, and every change of it.
//!
//! ```text
//!               arm                  poll_next                complete: done
//!   (unknown) ───────► Counting ────────────────► Working ────────────────────► (unknown)
//!       ▲    disarm     │    ▲                    │     │
//!       └───────────────┘    └────────────────────┘     └─ arm, disarm: what is to come next
//!                             complete: retry, or armed meanwhile
//! ```
//!
//! Nothing here blocks or locks; the caller holds the lock. A key that is being worked on has
//! nothing in [`Waiting`]: so it cannot be handed out a second time.

use std::hash::Hash;
use std::task::Context;

use ahash::AHashMap;
use tokio::time::Instant;

use super::waiting::{Place, Turn, Waiting};
use super::{Armed, Fired, Outcome, Scheduled, Token};

pub(super) struct Table<K, V> {
    entries: AHashMap<K, Entry<V>>,
    waiting: Waiting<K>,
    working: usize,
    last_token: u64,
}

enum Entry<V> {
    /// It is to be handed out at its turn.
    Counting(Countdown<V>),
    /// It was handed out and is not completed. Boxed because few keys are, and many count down.
    Working(Box<Work<V>>),
}

struct Countdown<V> {
    turn: Turn,
    value: V,
    place: Place,
    /// Set by a retry. It goes with the countdown, not with the key: once that is handed out or
    /// disarmed, the key starts afresh.
    floor: Option<Instant>,
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
        Self { entries: AHashMap::new(), waiting: Waiting::new(), working: 0, last_token: 0 }
    }

    pub(super) fn arm(&mut self, key: K, due: Instant, value: V) -> Armed {
        let token = fresh(&mut self.last_token);
        match self.entries.get_mut(&key) {
            None => {
                let turn = Turn { due, token };
                let place = self.waiting.put(key.clone(), turn);
                let countdown = Countdown { turn, value, place, floor: None };
                self.entries.insert(key, Entry::Counting(countdown));
                Armed::New
            }
            Some(Entry::Counting(countdown)) => {
                let due = countdown.lifted(due);
                if countdown.turn.due == due && countdown.value == value {
                    return Armed::Unchanged;
                }
                countdown.shift(&mut self.waiting, &key, Turn { due, token });
                countdown.value = value;
                Armed::Moved
            }
            Some(Entry::Working(work)) => match &mut work.next {
                Some((turn, old)) if turn.due == due && *old == value => Armed::Unchanged,
                next => match next.replace((Turn { due, token }, value)) {
                    None => Armed::New,
                    Some(_) => Armed::Moved,
                },
            },
        }
    }

    pub(super) fn disarm(&mut self, key: &K) -> bool {
        match self.entries.get_mut(key) {
            None => false,
            Some(Entry::Counting(countdown)) => {
                self.waiting.take(countdown.place, countdown.turn);
                self.entries.remove(key);
                true
            }
            Some(Entry::Working(work)) => {
                work.cancelled = true;
                work.next.take().is_some()
            }
        }
    }

    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Option<Fired<K, V>> {
        self.empty_wheel(cx);
        let (turn, key) = self.waiting.pop_due(cx)?;
        let Some(entry @ Entry::Counting(_)) = self.entries.get_mut(&key) else {
            debug_assert!(false, "the list held a stranger");
            // It cannot be; but if it were, to sleep on would lose what is due behind it.
            cx.waker().wake_by_ref();
            return None;
        };
        let value = entry.value().clone();
        *entry = Entry::Working(Box::new(Work {
            turn,
            value: value.clone(),
            cancelled: false,
            next: None,
        }));
        self.working += 1;
        Some(Fired { key, token: turn.token, value, due: turn.due })
    }

    /// Moves what has left the wheel to the list, or back into it if that was only a hop.
    fn empty_wheel(&mut self, cx: &mut Context<'_>) {
        while let Some((key, place)) = self.waiting.poll_wheel(cx) {
            match self.entries.get_mut(&key) {
                Some(Entry::Counting(countdown)) if countdown.place == place => {
                    countdown.place = self.waiting.put(key, countdown.turn);
                }
                _ => debug_assert!(false, "the wheel held a stranger"),
            }
        }
    }

    pub(super) fn complete(&mut self, key: &K, token: Token, outcome: Outcome<V>) -> bool {
        let Some(entry) = self.entries.get_mut(key) else {
            return false;
        };
        let Entry::Working(work) = entry else {
            return false;
        };
        if work.turn.token != token {
            return false;
        }
        self.working -= 1;
        let (turn, value, floor) = match (outcome, work.next.take()) {
            (Outcome::Done, Some((turn, value))) => (turn, value, None),
            (Outcome::Retry { not_before, .. }, Some((turn, value))) => {
                let due = turn.due.max(not_before);
                (Turn { due, ..turn }, value, Some(not_before))
            }
            (Outcome::Retry { not_before, value }, None) if !work.cancelled => {
                let due = not_before;
                let token = fresh(&mut self.last_token);
                (Turn { due, token }, value, Some(not_before))
            }
            (Outcome::Done | Outcome::Retry { .. }, None) => {
                self.entries.remove(key);
                return true;
            }
        };
        let place = self.waiting.put(key.clone(), turn);
        *entry = Entry::Counting(Countdown { turn, value, place, floor });
        true
    }

    pub(super) fn is_current(&self, key: &K, token: Token) -> bool {
        match self.entries.get(key) {
            Some(Entry::Working(work)) => work.turn.token == token && !work.cancelled,
            Some(Entry::Counting(_)) | None => false,
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<Scheduled<V>> {
        self.entries.get(key).filter(|entry| !entry.is_cancelled()).map(Entry::scheduled)
    }

    pub(super) fn snapshot(&self) -> Vec<(K, Scheduled<V>)> {
        let entries = self.entries.iter();
        entries.map(|(key, entry)| (key.clone(), entry.scheduled())).collect()
    }

    pub(super) fn rearm_all(&mut self, due_of: impl Fn(&V) -> Option<Instant>) -> usize {
        let mut moved = 0;
        for (key, entry) in &mut self.entries {
            match entry {
                Entry::Counting(countdown) => {
                    let due = due_of(&countdown.value).map(|due| countdown.lifted(due));
                    if let Some(due) = due.filter(|due| *due != countdown.turn.due) {
                        let token = countdown.turn.token;
                        countdown.shift(&mut self.waiting, key, Turn { due, token });
                        moved += 1;
                    }
                }
                Entry::Working(work) => {
                    if let Some((turn, value)) = &mut work.next
                        && let Some(due) = due_of(value).filter(|due| *due != turn.due)
                    {
                        turn.due = due;
                        moved += 1;
                    }
                }
            }
        }
        moved
    }

    pub(super) fn clear(&mut self) {
        self.entries = AHashMap::new();
        self.waiting.clear();
        self.working = 0;
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn working(&self) -> usize {
        self.working
    }
}

impl<V: Clone> Entry<V> {
    /// What it counts down to, or was handed out with.
    fn value(&self) -> &V {
        match self {
            Self::Counting(countdown) => &countdown.value,
            Self::Working(work) => &work.value,
        }
    }

    /// Whether it is only being worked on still, and nobody wants the work any more.
    fn is_cancelled(&self) -> bool {
        matches!(self, Self::Working(work) if work.cancelled && work.next.is_none())
    }

    fn scheduled(&self) -> Scheduled<V> {
        let (turn, value, running) = match self {
            Self::Counting(countdown) => (countdown.turn, &countdown.value, false),
            Self::Working(work) => match &work.next {
                Some((turn, value)) => (*turn, value, true),
                None => (work.turn, &work.value, true),
            },
        };
        Scheduled { due: turn.due, value: value.clone(), running }
    }
}

impl<V> Countdown<V> {
    /// `due`, or the floor if that is later.
    fn lifted(&self, due: Instant) -> Instant {
        self.floor.map_or(due, |floor| due.max(floor))
    }

    fn shift<K: Clone>(&mut self, waiting: &mut Waiting<K>, key: &K, to: Turn) {
        self.place = waiting.shift(key, self.place, self.turn, to);
        self.turn = to;
    }
}

fn fresh(last_token: &mut u64) -> Token {
    *last_token += 1;
    Token(*last_token)
}
