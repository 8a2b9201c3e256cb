//! What a verdict costs, one by one and for a full node.
//!
//! `cargo bench --bench decide` prints times and verdicts per second; add `-- --quick` for a look.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use jiff::Timestamp;
use ostrakon::model::{
    Anchors, ConditionStatus, Disruption, Effect, Node, NodeName, Operator, Outage, Pod, PodClass,
    Ready, Stamp, Taint, Toleration, Uid,
};
use ostrakon::taint::decide;

/// The kubelet's default limit.
const PODS_PER_NODE: u64 = 110;

fn stamp(seconds: i64) -> Stamp {
    Stamp::exact(Timestamp::from_second(1_790_000_000 + seconds).unwrap_or_default())
}

fn toleration(key: &str, operator: Operator, seconds: Option<i64>) -> Toleration {
    let effect = Some(Effect::NoExecute);
    Toleration { index: 0, key: key.into(), operator, value: "".into(), effect, seconds }
}

/// The two tolerations that every pod gets, and these before them.
fn pod(number: u64, own: &[Toleration]) -> Pod {
    let given = [Taint::NOT_READY, Taint::UNREACHABLE]
        .map(|key| toleration(key, Operator::Exists, Some(300)));
    Pod {
        uid: Uid(number.into()),
        namespace: "shop".into(),
        name: format!("web-{number}").into(),
        node: NodeName::from("n1"),
        tolerations: own.iter().cloned().chain(given).collect(),
        bound: stamp(-5000),
        class: PodClass::Ordinary,
        disruption: Disruption::None,
        generation: 1,
    }
}

fn taint(key: &str) -> Taint {
    let time_added = Some(stamp(0));
    Taint { key: key.into(), value: "".into(), effect: Effect::NoExecute, time_added }
}

fn node(taints: &[&str]) -> Node {
    Node {
        name: NodeName::from("n1"),
        uid: Uid(1),
        version: None,
        created: None,
        taints: taints.iter().map(|key| taint(key)).collect(),
        ready: Ready { status: ConditionStatus::Unknown, since: Some(stamp(0)) },
        since_annotation: None,
        zone: None,
        drain_facts: None,
    }
}

fn outage() -> Anchors {
    let outage = Outage { since: stamp(0), through: stamp(0), gap_from: None };
    Anchors { first_seen: Vec::new(), outage: Some(outage) }
}

fn verdicts(c: &mut Criterion) {
    let mut group = c.benchmark_group("decide");
    group.throughput(Throughput::Elements(1));
    let plain = pod(1, &[]);
    let daemon = pod(1, &[toleration("", Operator::Exists, None)]);
    let finished = Pod { class: PodClass::Finished, ..plain.clone() };
    let (calm, out) = (Anchors::default(), outage());
    let cases = [
        ("keep_no_taints", &plain, node(&[]), &calm),
        ("keep_finished", &finished, node(&["maintenance"]), &calm),
        ("keep_tolerated", &daemon, node(&["maintenance"]), &calm),
        ("evict_now", &plain, node(&["maintenance"]), &calm),
        ("evict_at", &plain, node(&[Taint::UNREACHABLE]), &out),
        ("evict_at_of_two", &plain, node(&[Taint::NOT_READY, Taint::UNREACHABLE]), &out),
    ];
    for (name, pod, node, anchors) in cases {
        group.bench_function(name, |b| {
            b.iter(|| decide(black_box(pod), black_box(&node), black_box(anchors)));
        });
    }
    group.finish();
}

fn full_node(c: &mut Criterion) {
    let mut group = c.benchmark_group("decide_node");
    group.throughput(Throughput::Elements(PODS_PER_NODE));
    let pods: Vec<_> = (0..PODS_PER_NODE).map(|number| Arc::new(pod(number, &[]))).collect();
    let (node, anchors) = (node(&[Taint::UNREACHABLE]), outage());
    group.bench_function("110_pods", |b| {
        b.iter(|| {
            for pod in &pods {
                black_box(decide(black_box(pod), &node, &anchors));
            }
        });
    });
    group.finish();
}

criterion_group!(benches, verdicts, full_node);
criterion_main!(benches);
