//! What the pipeline costs per item: the work queue, the way through the shards, the timed queue.
//!
//! `cargo bench --bench pipeline` prints times and items per second; add `-- --quick` for a look.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ostrakon::pipeline::{Handler, Outcome, Pipeline, SHARDS, Sharded, TimedQueue, WorkQueue};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

/// The kubelet's default limit.
const PODS_PER_NODE: u32 = 110;

#[derive(Clone, PartialEq, Eq, Hash)]
struct Node(Arc<str>);

#[derive(Clone, PartialEq, Eq, Hash)]
struct Pod {
    node: Arc<str>,
    uid: u128,
}

impl Sharded for Node {
    fn node_name(&self) -> &str {
        &self.0
    }
}

impl Sharded for Pod {
    fn node_name(&self) -> &str {
        &self.node
    }
}

fn node_names(count: usize) -> Vec<Arc<str>> {
    (0..count).map(|i| format!("node-{i}").into()).collect()
}

/// Spread over the key space as random UIDs are.
fn uid(number: u64) -> u128 {
    u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
}

fn length(count: u64) -> Throughput {
    Throughput::Elements(count)
}

fn work_queue(c: &mut Criterion) {
    const KEYS: u64 = 10_000;
    let mut group = c.benchmark_group("work_queue");
    group.throughput(length(KEYS));
    let queue = WorkQueue::new();
    group.bench_function("add_get_done", |b| {
        b.iter(|| {
            for number in 0..KEYS {
                queue.add(uid(number));
            }
            for _ in 0..KEYS {
                if let Some(key) = queue.get() {
                    queue.done(black_box(&key));
                }
            }
        });
    });
    group.bench_function("add_get_done_contended", |b| b.iter(|| contended(KEYS)));
    for number in 0..KEYS {
        queue.add(uid(number));
    }
    group.bench_function("add_what_waits_already", |b| {
        b.iter(|| {
            for number in 0..KEYS {
                queue.add(black_box(uid(number)));
            }
        });
    });
    group.finish();
}

/// Two threads add the same keys, two work on them, all on one queue.
fn contended(keys: u64) {
    let queue = WorkQueue::new();
    thread::scope(|scope| {
        let workers = [0, 1].map(|_| {
            scope.spawn(|| {
                while let Some(key) = queue.get() {
                    queue.done(black_box(&key));
                }
            })
        });
        let adders = [0, 1].map(|_| {
            scope.spawn(|| {
                for number in 0..keys {
                    queue.add(uid(number));
                }
            })
        });
        for adder in adders {
            let _ = adder.join();
        }
        while !queue.is_empty() {
            thread::yield_now();
        }
        queue.shutdown();
        for worker in workers {
            let _ = worker.join();
        }
    });
}

/// Counts what it handles; a node makes it arm all its pods.
struct Arming {
    handled: AtomicUsize,
    timed: [TimedQueue<u128, u32>; SHARDS],
    due: Instant,
}

impl Handler for Arming {
    type Node = Node;
    type Pod = Pod;

    fn node(&self, shard: usize, node: &Node) {
        let number: u64 = node.0["node-".len()..].parse().unwrap_or_default();
        for pod in 0..PODS_PER_NODE {
            let key = uid(number * u64::from(PODS_PER_NODE) + u64::from(pod));
            self.timed[shard].arm(key, self.due, pod);
        }
        self.handled.fetch_add(1, Ordering::Relaxed);
    }

    fn pod(&self, _: usize, pod: &Pod) {
        black_box(pod.uid);
        self.handled.fetch_add(1, Ordering::Relaxed);
    }
}

impl Arming {
    fn await_handled(&self, count: usize) {
        while self.handled.load(Ordering::Relaxed) < count {
            thread::park_timeout(Duration::from_micros(50));
        }
    }

    fn reset(&self) {
        self.handled.store(0, Ordering::Relaxed);
        for timed in &self.timed {
            timed.clear();
        }
    }
}

fn shards(c: &mut Criterion) {
    const NODES: usize = 200;
    let runtime = runtime(false);
    let _context = runtime.enter();
    let (nodes, pods) = (Arc::default(), Arc::default());
    let handler = Arc::new(Arming {
        handled: AtomicUsize::new(0),
        timed: std::array::from_fn(|_| TimedQueue::new()),
        due: Instant::now() + Duration::from_hours(1),
    });
    let Ok(_pipeline) = Pipeline::start(&nodes, &pods, &handler, runtime.handle()) else {
        return;
    };
    let names = node_names(NODES);
    let all_pods: Vec<_> = names
        .iter()
        .flat_map(|node| {
            (0..PODS_PER_NODE).map(|pod| Pod { node: Arc::clone(node), uid: uid(pod.into()) })
        })
        .collect();

    let mut group = c.benchmark_group("shards");
    group.throughput(length(all_pods.len() as u64));
    group.sample_size(10);
    group.bench_function("pod_items", |b| {
        b.iter_batched(
            || handler.reset(),
            |()| {
                for pod in &all_pods {
                    pods.add(pod.clone());
                }
                handler.await_handled(all_pods.len());
            },
            BatchSize::PerIteration,
        );
    });
    group.bench_function("pods_armed_by_node_items", |b| {
        b.iter_batched(
            || handler.reset(),
            |()| {
                for name in &names {
                    nodes.add(Node(Arc::clone(name)));
                }
                handler.await_handled(NODES);
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

#[allow(clippy::expect_used)]
fn runtime(paused: bool) -> Runtime {
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(paused).build();
    runtime.expect("a benchmark without a runtime is none")
}

/// Deadlines from 1 ms to 300 s away, in no order.
fn delay(number: u64) -> Duration {
    Duration::from_millis(1 + number.wrapping_mul(7_919) % 300_000)
}

fn armed(count: u64) -> TimedQueue<u128, u64> {
    let queue = TimedQueue::new();
    let now = Instant::now();
    for number in 0..count {
        queue.arm(uid(number), now + delay(number), number);
    }
    queue
}

fn timed_queue(c: &mut Criterion) {
    let mut group = c.benchmark_group("timed_queue");
    group.sample_size(10);
    for count in [10_000, 100_000, 1_000_000] {
        group.throughput(length(count));
        {
            let runtime = runtime(false);
            let _context = runtime.enter();
            group.bench_function(BenchmarkId::new("insert", count), |b| {
                b.iter_batched(|| (), |()| armed(count), BatchSize::PerIteration);
            });
            group.bench_function(BenchmarkId::new("re_arm", count), |b| {
                b.iter_batched(
                    || armed(count),
                    |queue| {
                        let now = Instant::now();
                        for number in 0..count {
                            queue.arm(uid(number), now + delay(number + 1), number);
                        }
                        queue
                    },
                    BatchSize::PerIteration,
                );
            });
            group.bench_function(BenchmarkId::new("cancel", count), |b| {
                b.iter_batched(
                    || armed(count),
                    |queue| {
                        for number in 0..count {
                            black_box(queue.disarm(&uid(number)));
                        }
                        queue
                    },
                    BatchSize::PerIteration,
                );
            });
        }
        // All are overdue when the first is asked for: the worst storm.
        let runtime = runtime(true);
        group.bench_function(BenchmarkId::new("expire", count), |b| {
            b.iter_batched(
                || {
                    runtime.block_on(async {
                        let queue = armed(count);
                        tokio::time::advance(Duration::from_secs(301)).await;
                        queue
                    })
                },
                |queue| {
                    runtime.block_on(async {
                        for _ in 0..count {
                            let fired = queue.next().await;
                            queue.complete(&fired.key, fired.token, Outcome::Done);
                        }
                    });
                    queue
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

criterion_group!(pipeline, work_queue, shards, timed_queue);
criterion_main!(pipeline);
