use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crossbeam_channel::unbounded;
use futures::FutureExt;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::*;
use crate::pipeline::{TimedQueue, shard_of};

/// Long enough for a thread that does not wait to have got there.
const SOON: Duration = Duration::from_millis(50);
/// Longer than any thread takes that works.
const NEVER: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Item {
    node: &'static str,
    number: u32,
}

impl Sharded for Item {
    fn node_name(&self) -> &str {
        self.node
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Node(Item),
    Pod(Item),
}

fn node(node: &'static str, number: u32) -> Work {
    Work::Node(Item { node, number })
}

fn pod(node: &'static str, number: u32) -> Work {
    Work::Pod(Item { node, number })
}

/// Handles everything with one function of the shard and the work.
struct Doing<F>(F);

impl<F: Fn(usize, Work) + Send + Sync + 'static> Handler for Doing<F> {
    type Node = Item;
    type Pod = Item;

    fn node(&self, shard: usize, node: &Item) {
        (self.0)(shard, Work::Node(*node));
    }

    fn pod(&self, shard: usize, pod: &Item) {
        (self.0)(shard, Work::Pod(*pod));
    }
}

/// A pipeline, with its queues and the runtime that it needs.
struct Rig {
    nodes: Arc<WorkQueue<Item>>,
    pods: Arc<WorkQueue<Item>>,
    pipeline: Pipeline<Item, Item>,
    runtime: Runtime,
}

fn rig(doing: impl Fn(usize, Work) + Send + Sync + 'static) -> Rig {
    let (nodes, pods) = (Arc::default(), Arc::default());
    let runtime = runtime();
    let handler = Arc::new(Doing(doing));
    let pipeline = Pipeline::start(&nodes, &pods, &handler, runtime.handle()).unwrap();
    Rig { nodes, pods, pipeline, runtime }
}

impl Rig {
    fn add(&self, work: impl IntoIterator<Item = Work>) {
        for work in work {
            match work {
                Work::Node(item) => self.nodes.add(item),
                Work::Pod(item) => self.pods.add(item),
            }
        }
    }

    /// Waits until the channels of a node's shard hold so many node and pod items.
    fn await_waiting(&self, node: &str, nodes: usize, pods: usize) {
        await_that(|| {
            let (waiting_nodes, waiting_pods) = &self.pipeline.channels[shard_of(node)];
            (waiting_nodes.len(), waiting_pods.len()) == (nodes, pods)
        });
    }
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().build().unwrap()
}

fn await_that(condition: impl Fn() -> bool) {
    for _ in 0..60_000 {
        if condition() {
            return;
        }
        thread::park_timeout(Duration::from_millis(1));
    }
    panic!("it did not come to pass");
}

/// What `body` returns, or a panic if it hangs.
fn in_time<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(body()));
    told.recv_timeout(NEVER).expect("it hangs, or it panicked")
}

#[test]
fn an_item_is_handled_by_the_thread_of_its_nodes_shard() {
    let (tell, told) = unbounded();
    let rig = rig(move |shard, work| {
        let thread = thread::current().name().unwrap().to_owned();
        tell.send((shard, thread, work)).unwrap();
    });
    for name in ["", "node-0", "node-1", "node-2", "node1", "worker-0"] {
        for work in [node(name, 0), pod(name, 0)] {
            rig.add([work]);
            let shard = shard_of(name);
            assert_eq!(told.recv_timeout(NEVER), Ok((shard, format!("shard-{shard}"), work)));
        }
    }
    told.recv_timeout(SOON).unwrap_err();
}

#[test]
fn what_was_queued_before_the_start_is_handled() {
    let (nodes, pods) = (Arc::default(), Arc::<WorkQueue<_>>::default());
    for number in 0..100 {
        let node = "node-0";
        pods.add(Item { node, number });
    }
    let (tell, told) = unbounded();
    let handler = Arc::new(Doing(move |_, work| tell.send(work).unwrap()));
    let runtime = runtime();
    let _pipeline = Pipeline::start(&nodes, &pods, &handler, runtime.handle()).unwrap();
    for number in 0..100 {
        assert_eq!(told.recv_timeout(NEVER), Ok(pod("node-0", number)));
    }
}

#[test]
fn the_items_of_a_shard_are_handled_one_after_the_other() {
    let busy: [AtomicBool; SHARDS] = Default::default();
    let (tell, told) = unbounded();
    let rig = rig(move |shard, _| {
        assert!(!busy[shard].swap(true, Ordering::SeqCst), "two at once");
        thread::yield_now();
        busy[shard].store(false, Ordering::SeqCst);
        tell.send(()).unwrap();
    });
    for number in 0..500 {
        for name in ["node-0", "node-1"] {
            rig.add([node(name, number), pod(name, number)]);
        }
    }
    for _ in 0..2_000 {
        told.recv_timeout(NEVER).unwrap();
    }
    assert_eq!(rig.pipeline.stop(), Ok(()));
}

#[test]
fn waiting_nodes_are_handled_before_a_waiting_pod() {
    let (open, gate) = bounded::<()>(0);
    let (tell, told) = unbounded();
    let rig = rig(move |_, work| {
        tell.send(work).unwrap();
        if work == pod("node-0", 0) {
            gate.recv().unwrap_err();
        }
    });
    rig.add([pod("node-0", 0)]);
    assert_eq!(told.recv_timeout(NEVER), Ok(pod("node-0", 0)));

    rig.add([pod("node-0", 1)]);
    rig.await_waiting("node-0", 0, 1);
    rig.add((0..5).map(|number| node("node-0", number)));
    rig.await_waiting("node-0", 5, 1);
    drop(open);

    for number in 0..5 {
        assert_eq!(told.recv_timeout(NEVER), Ok(node("node-0", number)));
    }
    assert_eq!(told.recv_timeout(NEVER), Ok(pod("node-0", 1)));
    told.recv_timeout(SOON).unwrap_err();
}

/// A worker of shard 0 whose channels hold so many nodes and one pod, and nothing after those.
fn worker<F>(waiting_nodes: u32, stop: Stop, doing: F) -> Worker<Doing<F>>
where
    F: Fn(usize, Work) + Send + Sync + 'static,
{
    let node = "node-0";
    let (to_nodes, nodes) = unbounded();
    let (to_pods, pods) = unbounded();
    for number in 0..waiting_nodes {
        to_nodes.send(Item { node, number }).unwrap();
    }
    to_pods.send(Item { node, number: 0 }).unwrap();
    Worker {
        shard: 0,
        handler: Arc::new(Doing(doing)),
        control: Arc::new(Control {
            nodes: Arc::default(),
            pods: Arc::default(),
            running: Mutex::default(),
            failure: watch::Sender::new(None),
        }),
        nodes,
        pods,
        stop,
    }
}

#[test]
fn an_endless_stream_of_nodes_does_not_starve_a_pod() {
    let (order, handled) = unbounded();
    let (_running, stop) = bounded(0);
    let worker = worker(5_000, stop, move |_, work| order.send(work).unwrap());
    in_time(move || worker.run());
    let before = handled.iter().take_while(|work| matches!(work, Work::Node(_)));
    let before = before.count();
    // The pod is picked at random from what is ready, so a few nodes may come before that.
    assert!(before >= NODES_BEFORE_POD, "nodes come first");
    assert!(before < NODES_BEFORE_POD + 100, "{before} nodes came first");
}

#[test]
fn a_worker_that_is_stopped_handles_nothing_more() {
    // What it picks first is random, with the same seed in every thread.
    in_time(|| {
        for _ in 0..50 {
            let (running, stop) = bounded(0);
            let running = Mutex::new(Some(running));
            let (tell, told) = unbounded();
            let worker = worker(5, stop, move |_, work| {
                tell.send(work).unwrap();
                running.lock().take();
            });
            worker.run();
            assert_eq!(told.try_iter().collect::<Vec<_>>(), [node("node-0", 0)]);
        }
    });
}

#[test]
fn an_item_that_changes_while_it_is_handled_is_handled_once_more() {
    let (open, gate) = bounded::<()>(0);
    let (tell, told) = unbounded();
    let rig = rig(move |_, work| {
        tell.send(work).unwrap();
        let _ = gate.recv();
    });
    rig.add([pod("node-0", 0)]);
    assert_eq!(told.recv_timeout(NEVER), Ok(pod("node-0", 0)));
    for _ in 0..10 {
        rig.add([pod("node-0", 0)]);
    }
    told.recv_timeout(SOON).unwrap_err();
    drop(open);
    assert_eq!(told.recv_timeout(NEVER), Ok(pod("node-0", 0)));
    told.recv_timeout(SOON).unwrap_err();
}

#[test]
fn a_busy_shard_holds_up_the_other_shards_pods_but_not_their_nodes() {
    let (open, gate) = bounded::<()>(0);
    let (tell, told) = unbounded();
    let rig = rig(move |_, work| {
        tell.send(work).unwrap();
        if work == pod("node-0", 0) {
            gate.recv().unwrap_err();
        }
    });
    // Dropped before the rig, whose threads wait for it, also if something below fails.
    let open = open;
    // One is being handled, one is in the channel, one is in the dispatcher's hand.
    rig.add((0..3).map(|number| pod("node-0", number)));
    assert_eq!(told.recv_timeout(NEVER), Ok(pod("node-0", 0)));
    rig.await_waiting("node-0", 0, 1);
    await_that(|| rig.pods.is_empty());

    rig.add([pod("node-1", 0), node("node-1", 0)]);
    assert_eq!(told.recv_timeout(NEVER), Ok(node("node-1", 0)));
    told.recv_timeout(SOON).unwrap_err();
    assert_eq!(rig.pods.len(), 1);
    // The second one may have waited too, for the worker to take the first.
    assert!((1..=2).contains(&rig.pods.full_channels()), "{}", rig.pods.full_channels());
    assert_eq!(rig.nodes.full_channels(), 0);

    drop(open);
    let mut rest: Vec<_> = (0..3).map(|_| told.recv_timeout(NEVER).unwrap()).collect();
    rest.sort_by_key(|work| format!("{work:?}"));
    assert_eq!(rest, [pod("node-0", 1), pod("node-0", 2), pod("node-1", 0)]);
    told.recv_timeout(SOON).unwrap_err();
}

#[test]
fn a_worker_arms_its_shards_timed_queue_and_the_consumer_is_woken() {
    let timed = Arc::new(TimedQueue::new());
    let armed = Arc::clone(&timed);
    let rig = rig(move |_, work| {
        let due = tokio::time::Instant::now() + SOON;
        armed.arm(format!("{work:?}"), due, ());
    });
    rig.add([pod("node-0", 0)]);
    let fired = rig.runtime.block_on(async { timeout(NEVER, timed.next()).await });
    assert_eq!(fired.unwrap().key, format!("{:?}", pod("node-0", 0)));
}

#[test]
fn stopping_ends_every_thread() {
    let (nodes, pods) = (Arc::default(), Arc::default());
    let handler = Arc::new(Doing(|_, _| ()));
    let runtime = runtime();
    let pipeline = Pipeline::start(&nodes, &pods, &handler, runtime.handle()).unwrap();
    assert_eq!(Arc::strong_count(&handler), 1 + SHARDS);
    assert_eq!(pipeline.threads.lock().len(), SHARDS + 2);

    let pipeline = in_time(move || {
        assert_eq!(pipeline.stop(), Ok(()));
        pipeline
    });
    // Each thread held the handler or a queue.
    assert_eq!(Arc::strong_count(&handler), 1);
    assert_eq!(Arc::strong_count(&pipeline.control), 1);
    assert_eq!(pipeline.stop(), Ok(()), "a second time is fine");
    drop(pipeline);
    assert_eq!(Arc::strong_count(&nodes), 1);
    assert_eq!(Arc::strong_count(&pods), 1);
}

#[test]
fn stopping_waits_for_the_item_in_hand_and_drops_the_others() {
    let (open, gate) = bounded::<()>(0);
    let (tell, told) = unbounded();
    let rig = rig(move |_, work| {
        let _ = gate.recv();
        tell.send(work).unwrap();
    });
    // The pod dispatcher ends up waiting at the full channel.
    rig.add((0..10).map(|number| pod("node-0", number)));
    rig.await_waiting("node-0", 0, 1);
    await_that(|| rig.pods.len() == 7);

    let (stopped, stop) = mpsc::channel();
    let pods = Arc::clone(&rig.pods);
    let control = Arc::clone(&rig.pipeline.control);
    thread::spawn(move || stopped.send(rig.pipeline.stop()));
    await_that(|| control.running.lock().is_none());
    stop.recv_timeout(SOON).unwrap_err();
    drop(open);
    assert_eq!(stop.recv_timeout(NEVER), Ok(Ok(())));
    assert_eq!(told.iter().collect::<Vec<_>>(), [pod("node-0", 0)]);
    assert!(pods.is_empty());
}

#[test]
fn dropping_it_stops_it() {
    let (nodes, pods) = (Arc::default(), Arc::default());
    let handler = Arc::new(Doing(|_, _| ()));
    let runtime = runtime();
    let pipeline = Pipeline::start(&nodes, &pods, &handler, runtime.handle()).unwrap();
    in_time(move || drop(pipeline));
    assert_eq!(Arc::strong_count(&handler), 1);
    nodes.add(Item { node: "node-0", number: 0 });
    assert!(nodes.is_empty(), "the queues are closed");
}

#[test]
fn shutting_a_queue_down_stops_it() {
    let rig = rig(|_, _| ());
    let failed = rig.pipeline.failed();
    rig.nodes.shutdown();
    await_that(|| rig.pipeline.threads.lock().iter().all(JoinHandle::is_finished));
    assert_eq!(failed.now_or_never(), None);
    assert_eq!(rig.pipeline.stop(), Ok(()));
}

#[test]
fn a_panic_is_reported_and_stops_everything() {
    let handled = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&handled);
    let rig = rig(move |_, work| {
        counter.fetch_add(1, Ordering::SeqCst);
        assert!(work != pod("node-1", 1), "no way to judge {}", "node-1");
    });
    let failed = rig.pipeline.failed();
    rig.add([pod("node-1", 0)]);
    await_that(|| handled.load(Ordering::SeqCst) == 1);
    assert_eq!(rig.pipeline.failed().now_or_never(), None, "all is well");

    rig.add([pod("node-1", 1)]);
    let failure = in_time(move || runtime().block_on(failed));
    assert_eq!(failure.thread, "shard-3");
    assert!(failure.message.contains("no way to judge node-1"), "{failure}");

    await_that(|| rig.pipeline.threads.lock().iter().all(JoinHandle::is_finished));
    rig.add([pod("node-1", 1), pod("node-0", 0), node("node-2", 0)]);
    assert_eq!(handled.load(Ordering::SeqCst), 2, "nothing is handled any more");
    // Who asks later is told as well.
    assert_eq!(rig.pipeline.failed().now_or_never(), Some(failure.clone()));
    assert_eq!(rig.pipeline.stop(), Err(failure));
}

#[test]
fn a_pipeline_that_was_stopped_has_not_failed() {
    let rig = rig(|_, _| ());
    let failed = rig.pipeline.failed();
    assert_eq!(rig.pipeline.stop(), Ok(()));
    drop(rig);
    assert_eq!(failed.now_or_never(), None);
}
