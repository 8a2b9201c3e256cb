//! A queue of evictions for tests of holds: what is handed out, and when, in virtual time.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::*;
use crate::model::build::{pod, taint};
use crate::model::{self, Verdict};

/// All is wanted, but what was cancelled.
#[derive(Default)]
struct World(Mutex<ahash::AHashSet<u32>>);

impl Origin for World {
    type Ticket = u32;

    fn standing(&self, _: &Eviction, ticket: u32) -> Standing {
        if self.0.lock().contains(&ticket) { Standing::Cancelled } else { Standing::Current }
    }

    fn finish(&self, _: &Eviction, _: u32, _: &Outcome) {}
}

pub(super) struct HoldBench {
    pub(super) queue: Queue<u32>,
    world: World,
    start: Instant,
    tickets: u32,
}

/// A pod that was handed out, and after how long.
pub(super) type Gone = (String, Duration);

impl HoldBench {
    pub(super) fn new(holds: Vec<Box<dyn Hold>>, changed: Arc<Notify>) -> Self {
        let queue = Queue::new(Arc::default(), Holds::new(holds, changed));
        Self { queue, world: World::default(), start: Instant::now(), tickets: 0 }
    }

    /// A pod of this name, `NAMESPACE/NAME`, becomes due on a node for a taint with this key.
    pub(super) fn due(&mut self, name: &str, node: &str, key: &str) -> Eviction {
        let (namespace, name) = name.split_once('/').unwrap();
        let mut pod = pod(name).on(node).reference();
        pod.namespace = namespace.into();
        pod.uid = crate::model::build::uid(&format!("{namespace}/{name}/{node}"));
        let cause = model::Cause::new(taint(key, ""), None);
        // A rule has the name of the key that it is for.
        let cause = model::Cause { rule: Some(key.into()), ..cause };
        let cause = Cause::Taint(Verdict::EvictNow(cause));
        let eviction = Eviction { pod, cause, due: Instant::now() };
        self.push(eviction.clone(), false);
        eviction
    }

    pub(super) fn push(&mut self, eviction: Eviction, was_tried: bool) {
        self.tickets += 1;
        self.queue.push(eviction, self.tickets, was_tried);
    }

    /// The taint of a node is gone.
    pub(super) fn cancel(&self, eviction: &Eviction) {
        let recalled = self.queue.recall(eviction.key());
        recalled.expect("it was held");
    }

    /// What is handed out at once.
    pub(super) fn handed_out(&self) -> Vec<String> {
        let next = || self.queue.next(&self.world, |_, _, _| {});
        let gone = std::iter::from_fn(next);
        gone.map(|item| format!("{}@{}", item.eviction.pod, item.eviction.pod.node)).collect()
    }

    /// What is handed out within so many seconds, and when.
    pub(super) async fn run(&self, seconds: f64) -> Vec<Gone> {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let mut gone = Vec::new();
        loop {
            let after = self.start.elapsed();
            gone.extend(self.handed_out().into_iter().map(|pod| (pod, after)));
            let left = end.saturating_duration_since(Instant::now());
            if timeout(left, self.queue.next_question()).await.is_err() {
                return gone;
            }
        }
    }
}

/// Runs in virtual time.
pub(super) fn in_virtual_time<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(work)
}
