//! What a pod and a countdown cost, as a gate: 150,000 pods are to fit into 64 MiB with all that is
//! around them.
//!
//! Counted are the bytes that are asked for, which do not depend on the machine; an allocator adds
//! a tenth or so.

use allocation_counter::measure;
use bytes::Bytes;
use ostrakon::cluster::{PodDecoder, View, decode_node, wire};
use ostrakon::model::Pod;
use ostrakon::pipeline::TimedQueue;
use prost::Message;
use tokio::time::{Duration, Instant};

/// Objects of a cluster, in protobuf.
struct Cluster {
    nodes: Vec<Bytes>,
    pods: Vec<Bytes>,
}

/// A cluster as deployments make it: names of 28 bytes, the two tolerations that every pod gets.
fn cluster(nodes: usize, pods_per_node: usize) -> Cluster {
    let toleration = |key: &'static str| {
        let toleration = wire::Toleration {
            key: key.into(),
            operator: "Exists".into(),
            effect: "NoExecute".into(),
            toleration_seconds: Some(300),
            ..wire::Toleration::default()
        };
        Bytes::from(toleration.encode_to_vec())
    };
    let tolerations = vec![
        toleration("node.kubernetes.io/not-ready"),
        toleration("node.kubernetes.io/unreachable"),
    ];
    let metadata = |name: String, number: usize| {
        // Both ends look random, as all of a UID is.
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        wire::ObjectMeta {
            name: name.into(),
            uid: format!("{:08x}-0000-4000-8000-{:012x}", mixed >> 32, mixed >> 16).into(),
            creation_timestamp: Some(wire::Time { seconds: Some(1_790_000_000) }),
            ..wire::ObjectMeta::default()
        }
    };
    let node_name = |number: usize| format!("node-{}.eu-1.compute.internal", number % nodes);
    let node = |number: usize| {
        let metadata = metadata(node_name(number), number);
        body(&wire::Node { metadata, ..wire::Node::default() })
    };
    let pod = |number: usize| {
        let mut metadata = metadata(format!("checkout-6c5b9d8f7d-{number:08}"), number);
        metadata.namespace = format!("team-{}", number % 50).into();
        let (node_name, tolerations) = (node_name(number).into(), tolerations.clone());
        let spec = wire::PodSpec { node_name, tolerations };
        body(&wire::Pod { metadata, spec, ..wire::Pod::default() })
    };
    Cluster {
        nodes: (0..nodes).map(node).collect(),
        pods: (0..nodes * pods_per_node).map(pod).collect(),
    }
}

fn body(object: &impl Message) -> Bytes {
    let body = Bytes::from(object.encode_to_vec());
    drop(body.clone()); // The first clone of a body of its own makes it a shared one.
    body
}

fn take(cluster: &Cluster, decoder: &mut PodDecoder, view: &View) {
    for object in &cluster.nodes {
        if let Ok(node) = decode_node(object) {
            view.apply_node(node, |before, _| before.cloned().unwrap_or_default());
        }
    }
    for object in &cluster.pods {
        if let Ok(Some(pod)) = decoder.decode(object) {
            view.apply_pod(pod);
        }
    }
}

/// Bytes a pod, with its share of its node.
fn bytes_a_pod(nodes: usize, pods_per_node: usize) -> i64 {
    let cluster = cluster(nodes, pods_per_node);
    let (mut decoder, view) = (PodDecoder::default(), View::default());
    let used = measure(|| take(&cluster, &mut decoder, &view));
    assert_eq!(view.counts(), (nodes, nodes * pods_per_node));
    used.bytes_current / i64::try_from(nodes * pods_per_node).unwrap_or(1)
}

#[test]
fn a_pod_in_the_view_costs_little() {
    let per_pod = bytes_a_pod(1_000, 30);
    println!("{per_pod} bytes a pod, {} in its record", size_of::<Pod>());
    assert!(per_pod <= 215, "a pod costs {per_pod} bytes");
    assert!(size_of::<Pod>() <= 112, "a record is {} bytes", size_of::<Pod>());
}

#[test]
fn a_pod_costs_nearly_the_same_where_nodes_are_many_and_small() {
    let (common, sparse) = (bytes_a_pod(1_000, 30), bytes_a_pod(2_000, 15));
    println!("{common} bytes a pod with 30 on a node, {sparse} with 15");
    assert!(sparse * 100 <= common * 110, "{sparse} bytes a pod instead of {common}");
}

#[test]
fn a_version_that_says_nothing_new_costs_nothing_that_stays() {
    let cluster = cluster(1_000, 30);
    let (mut decoder, view) = (PodDecoder::default(), View::default());
    take(&cluster, &mut decoder, &view);
    let used = measure(|| take(&cluster, &mut decoder, &view));
    assert_eq!((used.bytes_current, used.count_current), (0, 0));
    let objects = cluster.pods.len() + cluster.nodes.len();
    let a_thing = used.count_total / u64::try_from(objects).unwrap_or(1);
    assert!(a_thing <= 1, "only the name is copied to be compared, not {a_thing} things");
}

/// Bytes a countdown, of a million with keys and values as small as they come.
fn bytes_a_countdown(change: impl Fn(&TimedQueue<u128, u64>, u64)) -> i64 {
    const COUNT: u64 = 1_000_000;
    let used = measure(|| {
        let queue = TimedQueue::new();
        for number in 0..COUNT {
            change(&queue, number);
        }
        std::mem::forget(queue);
    });
    used.bytes_current / i64::try_from(COUNT).unwrap_or(1)
}

#[test]
fn a_countdown_costs_little() {
    let now = Instant::now();
    let due = |number: u64| now + Duration::from_millis(number.wrapping_mul(7_919) % 300_000);
    let armed = bytes_a_countdown(|queue, number| {
        queue.arm(number.into(), due(number), number);
    });
    // Twice, so that what they were moved from is in the way.
    let moved = bytes_a_countdown(|queue, number| {
        queue.arm(number.into(), due(number), number);
        queue.arm(number.into(), due(number + 1), number);
    });
    println!("{armed} bytes a countdown, {moved} if it was moved");
    assert!(armed <= 100, "{armed} bytes");
    assert!(moved <= 130, "{moved} bytes");
}
