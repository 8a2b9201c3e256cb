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

/// The frame of an event about a pod `hostile`, whose spec or status is this.
fn frame(number: usize, change: impl FnOnce(&mut wire::Pod)) -> Bytes {
    let mut pod = wire::Pod::default();
    pod.metadata.name = format!("hostile-{number}").into();
    pod.metadata.namespace = "tenant".into();
    pod.metadata.uid = format!("{number:08x}-0000-4000-8000-000000000000").into();
    pod.metadata.creation_timestamp = Some(wire::Time { seconds: Some(1_790_000_000) });
    pod.spec.node_name = "node-0".into();
    change(&mut pod);
    wire::frame("ADDED", wire::seal("Pod", &pod))
}

/// As a watch takes it in.
fn watch(frames: &mut wire::Frames, decoder: &mut PodDecoder, frame: &Bytes) -> Option<Pod> {
    for piece in frame.chunks(16 << 10) {
        frames.push(piece);
    }
    let event = frames.cut().ok().flatten().and_then(|cut| wire::Event::decode(cut).ok())?;
    let object = wire::open(&event.object.raw, "Pod").ok()?;
    decoder.decode(&object).ok().flatten()
}

#[test]
fn a_hundred_pods_of_a_megabyte_of_tolerations_in_a_row_leave_nothing_behind() {
    let frames: Vec<_> = (0..100)
        .map(|number| {
            frame(number, |pod| {
                let toleration = |key: usize| wire::Toleration {
                    key: format!("tenant.example.com/{number}-{key:060}").into(),
                    operator: "Exists".into(),
                    effect: if key.is_multiple_of(2) {
                        "NoExecute".into()
                    } else {
                        "NoSchedule".into()
                    },
                    ..wire::Toleration::default()
                };
                pod.spec.tolerations =
                    (0..12_000).map(|key| toleration(key).encode_to_vec().into()).collect();
            })
        })
        .collect();
    assert!(frames[0].len() > 1_200_000, "{}", frames[0].len());
    let (mut body, mut decoder, view) =
        (wire::Frames::default(), PodDecoder::default(), View::default());
    let used = measure(|| {
        for frame in &frames {
            let Some(pod) = watch(&mut body, &mut decoder, frame) else { continue };
            let (node, uid) = (pod.node.clone(), pod.uid);
            view.apply_pod(pod);
            view.remove_pod(&node, uid);
        }
    });
    println!("{} bytes stay, {} at the most", used.bytes_current, used.bytes_max);
    assert!(used.bytes_current < 1 << 20, "{} bytes stay", used.bytes_current);
    assert!(used.bytes_max < 8 << 20, "{} bytes at the most", used.bytes_max);
    let held = measure(|| {
        for frame in &frames {
            if let Some(pod) = watch(&mut body, &mut decoder, frame) {
                view.apply_pod(pod);
            }
        }
    });
    assert_eq!(view.counts().1, 100);
    println!("{} bytes for each that is there", held.bytes_current / 100);
    assert!(held.bytes_current / 100 < 16 << 10, "{}", held.bytes_current);
}

#[test]
fn an_object_of_many_small_parts_costs_no_multiple_of_its_length() {
    let frames = [
        frame(0, |pod| pod.status.conditions = vec![wire::Condition::default(); 500_000]),
        frame(1, |pod| pod.spec.tolerations = vec![Bytes::new(); 300_000]),
        frame(2, |pod| pod.metadata.annotations = vec![wire::MapEntry::default(); 500_000]),
    ];
    for frame in frames {
        let (mut body, mut decoder) = (wire::Frames::default(), PodDecoder::default());
        let used = measure(|| assert!(watch(&mut body, &mut decoder, &frame).is_some()));
        let most = u64::try_from(4 * frame.len()).unwrap_or(0);
        assert!(used.bytes_max < most, "{} bytes for {}", used.bytes_max, frame.len());
    }
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
