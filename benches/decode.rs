//! What it costs to read a pod: protobuf into facts, slim JSON into the same facts, JSON into
//! the full type.
//!
//! The pod is one that a real API server answered with, in both forms: 3.5 KB of protobuf, 5.9 KB
//! of JSON, with managed fields, environment, probes and statuses.
//!
//! `cargo bench --bench decode` prints times and pods per second; add `-- --quick` for a look.

use std::borrow::Cow;
use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use jiff::Timestamp;
use ostrakon::cluster::{PodDecoder, decode_node, wire};
use prost::Message;
use serde::Deserialize;

const POD: &[u8] = include_bytes!("../tests/data/pod.pb");
const POD_JSON: &str = include_str!("../tests/data/pod.json");
const NODE: &[u8] = include_bytes!("../tests/data/node.pb");
const NODE_JSON: &str = include_str!("../tests/data/node.json");

/// The needed fields of a pod in JSON, texts borrowed where that is possible: as good as JSON gets.
#[derive(Deserialize)]
#[allow(dead_code)]
struct SlimPod<'a> {
    #[serde(borrow)]
    metadata: SlimMeta<'a>,
    #[serde(borrow)]
    spec: SlimSpec<'a>,
    #[serde(borrow)]
    status: SlimStatus<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code)]
struct SlimMeta<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: Cow<'a, str>,
    #[serde(borrow)]
    uid: Cow<'a, str>,
    creation_timestamp: Option<Timestamp>,
    deletion_timestamp: Option<Timestamp>,
    #[serde(default)]
    generation: i64,
    #[serde(borrow, default)]
    annotations: Option<SlimAnnotations<'a>>,
}

#[derive(Deserialize)]
#[allow(dead_code)]
struct SlimAnnotations<'a> {
    #[serde(borrow, rename = "kubernetes.io/config.mirror")]
    mirror: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code)]
struct SlimSpec<'a> {
    #[serde(borrow, default)]
    node_name: Cow<'a, str>,
    #[serde(borrow, default)]
    tolerations: Vec<SlimToleration<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code)]
struct SlimToleration<'a> {
    #[serde(borrow, default)]
    key: Cow<'a, str>,
    #[serde(borrow, default)]
    operator: Cow<'a, str>,
    #[serde(borrow, default)]
    value: Cow<'a, str>,
    #[serde(borrow, default)]
    effect: Cow<'a, str>,
    toleration_seconds: Option<i64>,
}

#[derive(Deserialize)]
#[allow(dead_code)]
struct SlimStatus<'a> {
    #[serde(borrow, default)]
    phase: Cow<'a, str>,
    #[serde(borrow, default)]
    conditions: Vec<SlimCondition<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code)]
struct SlimCondition<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    status: Cow<'a, str>,
    #[serde(borrow, default)]
    reason: Cow<'a, str>,
    #[serde(borrow, default)]
    message: Cow<'a, str>,
    last_transition_time: Option<Timestamp>,
}

fn of_a_pod(c: &mut Criterion) {
    let mut group = c.benchmark_group("decode_pod");
    group.throughput(Throughput::Elements(1));
    let envelope = Bytes::from_static(POD);
    let object = wire::open(&envelope, "Pod").unwrap_or_default();
    let event = wire::frame("MODIFIED", envelope).slice(4..);
    let mut decoder = PodDecoder::default();
    // As in a cluster, where some pod has the same texts.
    let held = decoder.decode(&object);
    group.bench_function("protobuf", |b| b.iter(|| decoder.decode(black_box(&object))));
    group.bench_function("protobuf_event", |b| {
        b.iter(|| {
            let event = wire::Event::decode(black_box(event.clone())).unwrap_or_default();
            let object = wire::open(&event.object.raw, "Pod").unwrap_or_default();
            let version = wire::Object::decode(object.clone());
            (decoder.decode(&object), version)
        });
    });
    drop(held);
    group.bench_function("slim_json", |b| {
        b.iter(|| serde_json::from_str::<SlimPod<'_>>(black_box(POD_JSON)));
    });
    group.bench_function("full_json", |b| {
        b.iter(|| serde_json::from_str::<k8s_openapi::api::core::v1::Pod>(black_box(POD_JSON)));
    });
    group.finish();
}

fn of_a_node(c: &mut Criterion) {
    let mut group = c.benchmark_group("decode_node");
    group.throughput(Throughput::Elements(1));
    let object = wire::open(&Bytes::from_static(NODE), "Node").unwrap_or_default();
    group.bench_function("protobuf", |b| b.iter(|| decode_node(black_box(&object))));
    group.bench_function("full_json", |b| {
        b.iter(|| serde_json::from_str::<k8s_openapi::api::core::v1::Node>(black_box(NODE_JSON)));
    });
    group.finish();
}

criterion_group!(benches, of_a_pod, of_a_node);
criterion_main!(benches);
