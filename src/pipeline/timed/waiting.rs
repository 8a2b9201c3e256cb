//! A heap of countdowns, and the sleep until the first one ends.
//!
//! A heap that tracks the position of each entry would have to update the table at every move. This one
//! does not: the entry of a cancelled or moved countdown stays in it as a *stale* entry until it reaches
//! the top, or until stale entries are the majority. So a cancellation costs one table lookup. tokio-util's
//! `DelayQueue` with a map takes half as long again and more memory, panics on delays beyond 2.18 years,
//! and reuses its keys; it is only faster when everything is overdue at once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::Token;

/// The longest that the consumer sleeps at a stretch. tokio's timers reach 2.18 years.
const LONGEST_SLEEP: Duration = Duration::from_hours(24 * 365);
/// So many stale turns are not worth a clean-up.
const FEW: usize = 64;

/// A moment, in nanoseconds from the table's beginning: half as large as an `Instant`. It reaches
/// 292 years.
pub(super) type Nanos = i64;

/// The turn of a countdown: what is due first goes first, then what was armed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    pub(super) due: Nanos,
    pub(super) token: Token,
}

/// The turns of countdowns, each with the slot that it is in.
pub(super) struct Waiting {
    turns: BinaryHeap<Reverse<(Turn, usize)>>,
    stale: usize,
    /// Made by the first consumer: it needs a runtime.
    sleep: Option<Pin<Box<Sleep>>>,
    /// The waiting task, and the time until which it waits at most.
    consumer: Option<(Waker, Nanos)>,
}

impl Waiting {
    pub(super) fn new() -> Self {
        Self { turns: BinaryHeap::new(), stale: 0, sleep: None, consumer: None }
    }

    /// Puts a turn in.
    pub(super) fn put(&mut self, turn: Turn, slot: usize) {
        self.turns.push(Reverse((turn, slot)));
        if self.consumer.as_ref().is_some_and(|(_, until)| turn.due < *until) {
            self.wake();
        }
    }

    /// A turn that was put in has become stale. `is_live` tells those that have not.
    pub(super) fn now_stale(&mut self, is_live: impl Fn(Turn, usize) -> bool) {
        self.stale += 1;
        if self.stale > FEW && self.stale > self.turns.len() / 2 {
            self.turns.retain(|Reverse((turn, slot))| is_live(*turn, *slot));
            self.stale = 0;
        }
    }

    /// The first turn and its slot. It may be stale.
    pub(super) fn first(&self) -> Option<(Turn, usize)> {
        self.turns.peek().map(|Reverse(first)| *first)
    }

    /// Takes the first turn out.
    pub(super) fn drop_first(&mut self, is_stale: bool) {
        self.turns.pop();
        self.stale = self.stale.saturating_sub(usize::from(is_stale));
    }

    /// Has the task of `cx` woken at `due`, which is the instant `at`; `None`: when something is put
    /// in. False if that moment has come.
    pub(super) fn sleep(&mut self, cx: &mut Context<'_>, until: Option<(Nanos, Instant)>) -> bool {
        let due = until.map_or(Nanos::MAX, |(due, _)| due);
        self.consumer = Some((cx.waker().clone(), due));
        let Some((_, at)) = until else {
            return true;
        };
        let at = at.min(Instant::now() + LONGEST_SLEEP);
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if sleep.deadline() != at {
            sleep.as_mut().reset(at);
        }
        sleep.as_mut().poll(cx).is_pending()
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        self.turns = BinaryHeap::new();
        self.stale = 0;
        self.wake();
    }

    fn wake(&mut self) {
        if let Some((consumer, _)) = self.consumer.take() {
            consumer.wake();
        }
    }
}
