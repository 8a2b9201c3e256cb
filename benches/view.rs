//! What the view costs: pods that are new, pods that say nothing new, a new list of all of them.
//!
//! `cargo bench --bench view` prints times and pods per second. Names of groups say nodes/pods.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use ahash::AHashSet;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use jiff::Timestamp;
use ostrakon::cluster::View;
use ostrakon::model::{
    Anchors, ConditionStatus, Disruption, Effect, Node, NodeName, Operator, Pod, PodClass, Ready,
    Stamp, Taint, Toleration, Uid,
};

/// Nodes and pods: a common cluster, the largest that is supported, and beyond.
const SIZES: [(u64, u64); 3] = [(500, 15_000), (5_000, 150_000), (65_000, 1_000_000)];

/// Spread over the key space as random UIDs are.
fn uid(number: u64) -> Uid {
    Uid(u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

fn pods(nodes: u64, pods: u64) -> Vec<Pod> {
    let names: Vec<_> = (0..nodes).map(|i| NodeName::from(&*format!("node-{i}"))).collect();
    let namespace: Arc<str> = "shop".into();
    let toleration = |key: &str| Toleration {
        index: 0,
        key: key.into(),
        operator: Operator::Exists,
        value: "".into(),
        effect: Some(Effect::NoExecute),
        seconds: Some(300),
    };
    let tolerations: Arc<[Toleration]> =
        [toleration(Taint::NOT_READY), toleration(Taint::UNREACHABLE)].into();
    // As a list has them: by name, so that neighbours are on different nodes.
    let on = |number: u64| names.get(usize::try_from(number % nodes).unwrap_or(0));
    (0..pods)
        .filter_map(|number| {
            Some(Pod {
                uid: uid(number),
                namespace: Arc::clone(&namespace),
                name: format!("checkout-6c5b9d8f7d-{number:08}").into(),
                node: on(number)?.clone(),
                tolerations: Arc::clone(&tolerations),
                bound: Stamp::exact(Timestamp::UNIX_EPOCH),
                class: PodClass::Ordinary,
                disruption: Disruption::None,
                generation: 1,
            })
        })
        .collect()
}

fn filled(pods: &[Pod]) -> View {
    let view = View::default();
    for pod in pods {
        view.apply_pod(pod.clone());
    }
    view
}

fn of_all_pods(c: &mut Criterion) {
    for (nodes, count) in SIZES {
        let size = format!("{nodes}/{count}");
        let pods = pods(nodes, count);
        let mut group = c.benchmark_group("view");
        group.throughput(Throughput::Elements(count)).sample_size(10);
        group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(3));

        group.bench_function(BenchmarkId::new("new_pods", &size), |b| {
            b.iter_batched(
                || pods.clone(),
                |pods| {
                    let view = View::default();
                    for pod in pods {
                        view.apply_pod(pod);
                    }
                    view
                },
                BatchSize::PerIteration,
            );
        });
        let view = filled(&pods);
        group.bench_function(BenchmarkId::new("nothing_new", &size), |b| {
            b.iter_batched(
                || pods.clone(),
                |pods| {
                    for pod in pods {
                        view.apply_pod(pod);
                    }
                },
                BatchSize::PerIteration,
            );
        });
        group.bench_function(BenchmarkId::new("relist", &size), |b| {
            b.iter_batched(
                || pods.clone(),
                |pods| {
                    let mut seen = AHashSet::new();
                    for pod in pods {
                        seen.insert(pod.uid);
                        view.apply_pod(pod);
                    }
                    view.pods_other_than(&seen)
                },
                BatchSize::PerIteration,
            );
        });
        group.finish();
    }
}

fn of_one_node(c: &mut Criterion) {
    const PODS: u64 = 110;
    let view = filled(&pods(1, PODS));
    let name = NodeName::from("node-0");
    let node = |taints: Arc<[Taint]>| Node {
        name: name.clone(),
        uid: Uid(1),
        version: None,
        created: None,
        taints,
        ready: Ready { status: ConditionStatus::True, since: None },
        since_annotation: None,
        zone: None,
        drain_facts: None,
    };
    let untainted: Arc<[Taint]> = [].into();
    let keep = |before: Option<&Anchors>, _: &Node| before.cloned().unwrap_or_default();
    view.apply_node(node(Arc::clone(&untainted)), keep);

    let mut group = c.benchmark_group("view_node");
    group.bench_function("heartbeat", |b| {
        b.iter(|| view.apply_node(node(Arc::clone(&untainted)), keep));
    });
    group.bench_function("one_pod", |b| b.iter(|| view.pod(black_box(&name), uid(7))));
    group.throughput(Throughput::Elements(PODS));
    group.bench_function("its_110_pods", |b| b.iter(|| view.node(black_box(&name))));
    group.finish();
}

criterion_group!(benches, of_all_pods, of_one_node);
criterion_main!(benches);
