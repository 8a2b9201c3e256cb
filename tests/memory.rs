//! What a pod costs, as a gate: 150,000 of them are to fit into 64 MiB with all that is around them.
//!
//! Counted are the bytes that are asked for, which do not depend on the machine; an allocator adds
//! a tenth or so.

use allocation_counter::measure;
use bytes::Bytes;
use ostrakon::cluster::{PodDecoder, View, wire};
use ostrakon::model::Pod;
use prost::Message;

const NODES: usize = 1_000;
const PODS_PER_NODE: usize = 30;
const PODS: usize = NODES * PODS_PER_NODE;

/// Pods as a deployment makes them: 28 bytes of name, the two tolerations that every pod gets.
fn cluster() -> Vec<Bytes> {
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
    let pod = |number: usize| {
        let uid = format!("{:08x}-0000-4000-8000-{number:012x}", number.wrapping_mul(0x9e37_79b9));
        let mut pod = wire::Pod::default();
        pod.metadata.name = format!("checkout-6c5b9d8f7d-{number:08}").into();
        pod.metadata.namespace = format!("team-{}", number % 50).into();
        pod.metadata.uid = uid[uid.len() - 36..].to_owned().into();
        pod.metadata.creation_timestamp = Some(wire::Time { seconds: Some(1_790_000_000) });
        pod.spec.node_name = format!("node-{}.eu-1.compute.internal", number % NODES).into();
        pod.spec.tolerations.clone_from(&tolerations);
        let object = Bytes::from(pod.encode_to_vec());
        drop(object.clone()); // The first clone of a body of its own makes it a shared one.
        object
    };
    (0..PODS).map(pod).collect()
}

fn take(cluster: &[Bytes], decoder: &mut PodDecoder, view: &View) {
    for object in cluster {
        if let Ok(Some(pod)) = decoder.decode(object) {
            view.apply_pod(pod);
        }
    }
}

#[test]
fn a_pod_in_the_view_costs_little() {
    let (cluster, mut decoder, view) = (cluster(), PodDecoder::default(), View::default());
    let used = measure(|| take(&cluster, &mut decoder, &view));
    assert_eq!(view.counts(), (0, PODS));
    let per_pod = used.bytes_current / i64::try_from(PODS).unwrap();
    println!("{per_pod} bytes a pod, {} in its record", size_of::<Pod>());
    assert!(per_pod <= 215, "a pod costs {per_pod} bytes");
    assert!(size_of::<Pod>() <= 112, "a record is {} bytes", size_of::<Pod>());
}

#[test]
fn a_version_that_says_nothing_new_costs_nothing_that_stays() {
    let (cluster, mut decoder, view) = (cluster(), PodDecoder::default(), View::default());
    take(&cluster, &mut decoder, &view);
    let used = measure(|| take(&cluster, &mut decoder, &view));
    assert_eq!((used.bytes_current, used.count_current), (0, 0));
    let per_pod = used.count_total / u64::try_from(PODS).unwrap();
    assert!(per_pod <= 1, "only the name is copied to be compared, not {per_pod} things");
}
