use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// Long enough for a thread that does not wait to have got there.
const SOON: Duration = Duration::from_millis(50);
/// Longer than any thread takes that works.
const NEVER: Duration = Duration::from_secs(60);

fn queue<const N: usize>(keys: [u32; N]) -> WorkQueue<u32> {
    let queue = WorkQueue::new();
    for key in keys {
        queue.add(key);
    }
    queue
}

#[test]
fn keys_come_out_in_the_order_in_which_they_went_in() {
    let queue = queue([3, 1, 2]);
    assert_eq!(queue.get(), Some(3));
    assert_eq!(queue.get(), Some(1));
    assert_eq!(queue.get(), Some(2));
    assert!(queue.is_empty());
}

#[test]
fn a_waiting_key_is_not_queued_again_and_keeps_its_turn() {
    let queue = queue([1, 2, 1, 1]);
    assert_eq!(queue.len(), 2);
    assert_eq!(queue.get(), Some(1));
    assert_eq!(queue.get(), Some(2));
    assert_eq!(queue.len(), 0);
}

#[test]
fn a_key_added_while_it_is_worked_on_runs_once_more_afterwards() {
    let queue = queue([1, 2]);
    assert_eq!(queue.get(), Some(1));
    queue.add(1);
    queue.add(1);
    assert_eq!(queue.len(), 1, "it does not wait while it is worked on");
    queue.done(&1);
    assert_eq!(queue.get(), Some(2));
    assert_eq!(queue.get(), Some(1));
    queue.done(&1);
    queue.done(&2);
    assert_eq!(queue.len(), 0, "and not twice more");
}

#[test]
fn a_finished_key_is_forgotten() {
    let queue = queue([1]);
    assert_eq!(queue.get(), Some(1));
    queue.done(&1);
    assert!(queue.state.lock().stages.is_empty());
    queue.add(1);
    assert_eq!(queue.get(), Some(1));
}

#[test]
fn done_for_a_key_that_nobody_works_on_changes_nothing() {
    let queue = queue([1]);
    queue.done(&1);
    queue.done(&7);
    queue.add(1);
    assert_eq!(queue.len(), 1);
    assert_eq!(queue.get(), Some(1));
    assert_eq!(queue.len(), 0);
}

#[test]
fn adds_and_depth_are_counted_as_client_go_does() {
    let queue = queue([1, 2, 2]);
    assert_eq!((queue.adds(), queue.depth()), (2, 2));
    queue.get();
    queue.add(1);
    queue.add(1);
    assert_eq!((queue.adds(), queue.depth()), (3, 1));
    queue.done(&1);
    assert_eq!((queue.adds(), queue.depth()), (3, 2));
    queue.shutdown();
    queue.add(5);
    assert_eq!((queue.adds(), queue.depth()), (3, 0));
}

#[test]
fn get_waits_for_a_key() {
    let queue = Arc::new(WorkQueue::new());
    let (got, out) = mpsc::channel();
    let getter = thread::spawn({
        let queue = Arc::clone(&queue);
        move || got.send(queue.get()).unwrap()
    });
    out.recv_timeout(SOON).unwrap_err();
    queue.add(1);
    assert_eq!(out.recv_timeout(NEVER), Ok(Some(1)));
    getter.join().unwrap();
}

#[test]
fn shutdown_wakes_all_who_wait() {
    let queue = Arc::new(WorkQueue::<u32>::new());
    let (got, out) = mpsc::channel();
    let getters: Vec<_> = (0..4)
        .map(|_| {
            let (queue, got) = (Arc::clone(&queue), got.clone());
            thread::spawn(move || got.send(queue.get()).unwrap())
        })
        .collect();
    out.recv_timeout(SOON).unwrap_err();
    queue.shutdown();
    for getter in getters {
        assert_eq!(out.recv_timeout(NEVER), Ok(None));
        getter.join().unwrap();
    }
}

#[test]
fn shutdown_drops_what_waits_and_takes_nothing_more() {
    let queue = queue([1, 2, 3]);
    assert_eq!(queue.get(), Some(1));
    queue.add(1);
    queue.shutdown();
    assert_eq!(queue.get(), None);
    queue.done(&1);
    queue.add(4);
    assert_eq!(queue.len(), 0);
    assert_eq!(queue.get(), None);
}

/// Four threads work on eight keys that two others keep adding.
#[test]
fn no_key_is_worked_on_twice_at_once_and_no_change_is_missed() {
    const KEYS: usize = 8;
    const ROUNDS: u64 = 5_000;

    #[derive(Default)]
    struct Fact {
        version: AtomicU64,
        seen: AtomicU64,
        in_work: AtomicBool,
    }

    let queue = Arc::new(WorkQueue::new());
    let facts: Arc<[Fact; KEYS]> = Arc::default();
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (queue, facts) = (Arc::clone(&queue), Arc::clone(&facts));
            thread::spawn(move || {
                while let Some(key) = queue.get() {
                    let fact: &Fact = &facts[key];
                    assert!(!fact.in_work.swap(true, Ordering::SeqCst), "twice at once");
                    let version = fact.version.load(Ordering::SeqCst);
                    fact.seen.store(version, Ordering::SeqCst);
                    thread::yield_now();
                    assert!(fact.in_work.swap(false, Ordering::SeqCst));
                    queue.done(&key);
                }
            })
        })
        .collect();
    let producers: Vec<_> = (0..2)
        .map(|_| {
            let (queue, facts) = (Arc::clone(&queue), Arc::clone(&facts));
            thread::spawn(move || {
                for _ in 0..ROUNDS {
                    for (key, fact) in facts.iter().enumerate() {
                        fact.version.fetch_add(1, Ordering::SeqCst);
                        queue.add(key);
                    }
                }
            })
        })
        .collect();
    for producer in producers {
        producer.join().unwrap();
    }
    while !queue.state.lock().stages.is_empty() {
        assert!(!workers.iter().any(thread::JoinHandle::is_finished));
        thread::yield_now();
    }
    queue.shutdown();
    for worker in workers {
        worker.join().unwrap();
    }
    for fact in facts.iter() {
        assert_eq!(fact.version.load(Ordering::SeqCst), 2 * ROUNDS);
        assert_eq!(fact.seen.load(Ordering::SeqCst), 2 * ROUNDS);
    }
}

/// client-go's work queue, as it is written there: two sets and a list.
#[derive(Default)]
struct ClientGo {
    dirty: BTreeSet<u32>,
    processing: BTreeSet<u32>,
    queue: VecDeque<u32>,
    adds: u64,
}

impl ClientGo {
    fn add(&mut self, key: u32) {
        if self.dirty.insert(key) {
            self.adds += 1;
            if !self.processing.contains(&key) {
                self.queue.push_back(key);
            }
        }
    }

    fn get(&mut self) -> Option<u32> {
        let key = self.queue.pop_front()?;
        self.dirty.remove(&key);
        self.processing.insert(key);
        Some(key)
    }

    fn done(&mut self, key: u32) {
        // client-go relies on `Done` being called for taken keys only.
        if self.processing.remove(&key) && self.dirty.contains(&key) {
            self.queue.push_back(key);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Add(u32),
    Get,
    Done(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6_u32).prop_map(Step::Add),
        3 => Just(Step::Get),
        3 => (0..6_u32).prop_map(Step::Done),
    ]
}

proptest! {
    #[test]
    fn it_behaves_like_client_gos(steps in prop::collection::vec(step(), 1..200)) {
        let queue = WorkQueue::new();
        let mut model = ClientGo::default();
        for step in steps {
            match step {
                Step::Add(key) => {
                    queue.add(key);
                    model.add(key);
                }
                Step::Get => {
                    // An empty queue would make us wait.
                    let got = (!queue.is_empty()).then(|| queue.get()).flatten();
                    prop_assert_eq!(got, model.get());
                }
                Step::Done(key) => {
                    queue.done(&key);
                    model.done(key);
                }
            }
            prop_assert_eq!(queue.len(), model.queue.len());
            prop_assert_eq!(queue.depth(), model.queue.len());
            prop_assert_eq!(queue.adds(), model.adds);
            let known = model.dirty.union(&model.processing).count();
            prop_assert_eq!(queue.state.lock().stages.len(), known);
        }
    }
}
