//! From a node in the queue to the armed timers of its pods: dispatch, view, verdicts, timed queue.
//!
//! `cargo bench --bench armed` prints times; add `-- --quick` for a look. `one_node` is the way of a
//! single node through sleeping threads, `all_shards` that of many through eight busy shards.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use jiff::Timestamp;
use ostrakon::cluster::View;
use ostrakon::model::{
    Anchors, ConditionStatus, Disruption, Effect, Node, NodeName, Operator, Outage, Pod, PodClass,
    PodRef, Ready, Stamp, Taint, Toleration, Uid, Verdict,
};
use ostrakon::pipeline::{Handler, Pipeline, SHARDS, Sharded, TimedQueue};
use ostrakon::taint::decide;
use tokio::runtime::Builder;
use tokio::time::Instant;

/// The kubelet's default limit.
const PODS_PER_NODE: u64 = 110;
const NODES: u64 = 1_000;

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key(NodeName);

impl Sharded for Key {
    fn node_name(&self) -> &str {
        self.0.as_str()
    }
}

/// Decides about a node's pods and arms their timers, as the controller does.
struct Decider {
    view: View,
    timers: [TimedQueue<Uid, (PodRef, Verdict)>; SHARDS],
    due: Instant,
    handled: AtomicUsize,
}

impl Handler for Decider {
    type Node = Key;
    type Pod = Key;

    fn node(&self, shard: usize, Key(name): &Key) {
        let Some(facts) = self.view.node(name) else { return };
        let Some(node) = facts.node else { return };
        for pod in &facts.pods {
            let verdict = decide(pod, &node, &facts.anchors);
            if matches!(verdict, Verdict::EvictAt { .. }) {
                self.timers[shard].arm(pod.uid, self.due, (pod.reference(), verdict));
            }
        }
        self.handled.fetch_add(1, Ordering::Release);
    }

    fn pod(&self, _: usize, _: &Key) {}
}

impl Decider {
    fn await_handled(&self, count: usize) {
        while self.handled.load(Ordering::Acquire) < count {
            spin_loop();
        }
    }

    fn reset(&self) {
        self.handled.store(0, Ordering::Release);
        for timers in &self.timers {
            timers.clear();
        }
    }
}

/// Nodes that are out, full of pods that bear it for five minutes.
fn view(names: &[NodeName]) -> View {
    let view = View::default();
    let began = Stamp::exact(Timestamp::UNIX_EPOCH);
    let taint = Taint {
        key: Taint::UNREACHABLE.into(),
        value: "".into(),
        effect: Effect::NoExecute,
        time_added: Some(began),
    };
    let taints: Arc<[Taint]> = [taint].into();
    let tolerations: Arc<[Toleration]> = [Taint::NOT_READY, Taint::UNREACHABLE]
        .map(|key| Toleration {
            index: 0,
            key: key.into(),
            operator: Operator::Exists,
            value: "".into(),
            effect: Some(Effect::NoExecute),
            seconds: Some(300),
        })
        .into();
    let mut number: u128 = 0;
    for name in names {
        let node = Node {
            name: name.clone(),
            uid: Uid(number),
            version: None,
            created: None,
            taints: Arc::clone(&taints),
            ready: Ready { status: ConditionStatus::Unknown, since: Some(began) },
            since_annotation: None,
            zone: None,
            drain_facts: None,
        };
        let outage = Outage { since: began, through: began, gap_from: None };
        view.apply_node(node, |_, _| Anchors { first_seen: Vec::new(), outage: Some(outage) });
        for pod in 0..PODS_PER_NODE {
            number += 1;
            view.apply_pod(Pod {
                uid: Uid(number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)),
                namespace: "shop".into(),
                name: format!("checkout-6c5b9d8f7d-{pod:05}").into(),
                node: name.clone(),
                tolerations: Arc::clone(&tolerations),
                bound: began,
                class: PodClass::Ordinary,
                disruption: Disruption::None,
                generation: 1,
            });
        }
    }
    view
}

fn armed(c: &mut Criterion) {
    let Ok(runtime) = Builder::new_current_thread().enable_time().build() else { return };
    let _context = runtime.enter();
    let names: Vec<_> = (0..NODES).map(|i| NodeName::from(&*format!("node-{i}"))).collect();
    let (nodes, pods) = (Arc::default(), Arc::default());
    let decider = Arc::new(Decider {
        view: view(&names),
        timers: std::array::from_fn(|_| TimedQueue::new()),
        due: Instant::now() + Duration::from_hours(1),
        handled: AtomicUsize::new(0),
    });
    let Ok(_pipeline) = Pipeline::start(&nodes, &pods, &decider, runtime.handle()) else { return };

    let mut group = c.benchmark_group("queue_to_armed_110_pods");
    group.throughput(Throughput::Elements(PODS_PER_NODE));
    group.bench_function("one_node", |b| {
        b.iter_batched(
            || decider.reset(),
            |()| {
                nodes.add(Key(names[0].clone()));
                decider.await_handled(1);
            },
            BatchSize::PerIteration,
        );
    });
    group.sample_size(10).throughput(Throughput::Elements(PODS_PER_NODE * NODES));
    group.bench_function("all_shards", |b| {
        b.iter_batched(
            || decider.reset(),
            |()| {
                for name in &names {
                    nodes.add(Key(name.clone()));
                }
                decider.await_handled(names.len());
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group!(benches, armed);
criterion_main!(benches);
