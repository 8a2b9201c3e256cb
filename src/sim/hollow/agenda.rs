//! Pending work: lanes with a concurrency limit, and timers.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::future::poll_fn;
use std::hash::Hash;

use tokio::time::Instant;
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;

/// Things to be looked at, each once, in the order in which they were asked for; a few of them are
/// worked on at a time.
#[derive(Debug)]
pub(super) struct Lane<T> {
    width: usize,
    queue: VecDeque<T>,
    queued: HashSet<T>,
    busy: BTreeSet<T>,
}

impl<T: Clone + Eq + Hash + Ord> Lane<T> {
    /// A lane in which at most `width` things are worked on at a time.
    pub(super) fn new(width: usize) -> Self {
        Self {
            width: width.max(1),
            queue: VecDeque::new(),
            queued: HashSet::new(),
            busy: BTreeSet::new(),
        }
    }

    /// Asks for a look at it. What is being worked on is evaluated again afterwards anyway.
    pub(super) fn ask(&mut self, item: T) {
        if !self.busy.contains(&item) && self.queued.insert(item.clone()) {
            self.queue.push_back(item);
        }
    }

    /// The next thing to look at, while there is room to work on it.
    pub(super) fn take(&mut self) -> Option<T> {
        if self.busy.len() >= self.width {
            return None;
        }
        let item = self.queue.pop_front()?;
        self.queued.remove(&item);
        Some(item)
    }

    /// Work on it has begun.
    pub(super) fn begin(&mut self, item: T) {
        self.busy.insert(item);
    }

    /// Work on it is over; it is evaluated again.
    pub(super) fn end(&mut self, item: T) {
        self.busy.remove(&item);
        self.ask(item);
    }
}

/// At most one timer for each thing.
#[derive(Debug)]
pub(super) struct Timers<T> {
    queue: DelayQueue<T>,
    keys: HashMap<T, Key>,
}

impl<T: Clone + Eq + Hash> Timers<T> {
    /// No timers.
    pub(super) fn new() -> Self {
        Self { queue: DelayQueue::new(), keys: HashMap::new() }
    }

    /// Sets the thing's timer, in the place of one that it has.
    pub(super) fn set(&mut self, item: T, at: Instant) {
        if let Some(key) = self.keys.get(&item) {
            self.queue.reset_at(key, at);
        } else {
            let key = self.queue.insert_at(item.clone(), at);
            self.keys.insert(item, key);
        }
    }

    /// Takes the thing's timer away, if it has one.
    pub(super) fn clear(&mut self, item: &T) {
        if let Some(key) = self.keys.remove(item) {
            self.queue.remove(&key);
        }
    }

    /// Waits for the next timer that is due; forever if there is none.
    pub(super) async fn next(&mut self) -> T {
        if self.queue.is_empty() {
            return std::future::pending().await;
        }
        match poll_fn(|context| self.queue.poll_expired(context)).await {
            Some(expired) => {
                let item = expired.into_inner();
                self.keys.remove(&item);
                item
            }
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_lane_gives_each_thing_once_and_no_more_than_fit() {
        let mut lane = Lane::new(2);
        for item in [1, 2, 1, 3, 2] {
            lane.ask(item);
        }
        assert_eq!(lane.take(), Some(1));
        lane.begin(1);
        assert_eq!(lane.take(), Some(2));
        lane.begin(2);
        assert_eq!(lane.take(), None, "the lane is full");
        lane.end(1);
        assert_eq!(lane.take(), Some(3));
        assert_eq!(lane.take(), Some(1), "looked at again after the work");
        assert_eq!(lane.take(), None);
    }

    #[test]
    fn what_is_worked_on_is_not_given_twice() {
        let mut lane = Lane::new(4);
        lane.ask(1);
        let item = lane.take().unwrap();
        lane.begin(item);
        lane.ask(1);
        assert_eq!(lane.take(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_can_be_moved_and_cleared() {
        let start = Instant::now();
        let seconds = Duration::from_secs;
        let mut timers = Timers::new();
        timers.set("moved", start + seconds(1));
        timers.set("cleared", start + seconds(2));
        timers.set("moved", start + seconds(5));
        timers.clear(&"cleared");
        assert_eq!(timers.next().await, "moved");
        assert_eq!(start.elapsed().as_secs(), 5);
        timers.clear(&"moved");
        let quiet = tokio::time::timeout(seconds(100), timers.next()).await;
        assert!(quiet.is_err(), "no timer is left");
    }
}
