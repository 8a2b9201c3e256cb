//! The decoder against bytes that a real API server sent, and against the same bytes broken.
//!
//! `tests/data` holds a pod and a node as kube-apiserver 1.36 answers with them, in both forms, and
//! the streamed list of that one node. `PROPTEST_CASES=100000 cargo test --release --test wire` looks
//! longer.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use ostrakon::cluster::{DecodeError, PodDecoder, decode_node, wire};
use ostrakon::model::{ConditionStatus, Effect, Operator, PodClass, Stamp};
use proptest::prelude::*;
use prost::Message;
use serde_json::Value;

/// What libFuzzer calls as well (`make fuzz`).
#[path = "fuzz/checks.rs"]
mod checks;

const POD: &[u8] = include_bytes!("data/pod.pb");
const POD_JSON: &str = include_str!("data/pod.json");
const NODE: &[u8] = include_bytes!("data/node.pb");
const NODE_JSON: &str = include_str!("data/node.json");
const WATCH: &[u8] = include_bytes!("data/watch.bin");

fn pod() -> Bytes {
    wire::open(&Bytes::from_static(POD), "Pod").unwrap()
}

fn node() -> Bytes {
    wire::open(&Bytes::from_static(NODE), "Node").unwrap()
}

fn text<'a>(json: &'a Value, pointer: &str) -> &'a str {
    json.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("no {pointer}"))
}

fn time(json: &Value, pointer: &str) -> Stamp {
    Stamp::of_second(text(json, pointer).parse().unwrap())
}

/// The frames of a watch without their lengths.
fn frames(mut body: Bytes) -> Vec<Bytes> {
    let mut frames = Vec::new();
    while let Some(prefix) = body.first_chunk::<4>() {
        let length = usize::try_from(u32::from_be_bytes(*prefix)).unwrap();
        frames.push(body.slice(4..4 + length));
        body = body.slice(4 + length..);
    }
    assert!(body.is_empty());
    frames
}

#[test]
fn a_pod_says_the_same_in_both_forms() {
    let json: Value = serde_json::from_str(POD_JSON).unwrap();
    let pod = PodDecoder::default().decode(&pod()).unwrap().unwrap();
    assert_eq!(pod.uid.to_string(), text(&json, "/metadata/uid"));
    assert_eq!(&*pod.name, text(&json, "/metadata/name"));
    assert_eq!(&*pod.namespace, text(&json, "/metadata/namespace"));
    assert_eq!(pod.node.as_str(), text(&json, "/spec/nodeName"));
    assert_eq!(Some(pod.generation), json.pointer("/metadata/generation").unwrap().as_i64());
    assert_eq!(text(&json, "/status/conditions/4/type"), "PodScheduled");
    assert_eq!(pod.bound, time(&json, "/status/conditions/4/lastTransitionTime"));
    assert_eq!(pod.class, PodClass::Ordinary);
    assert_eq!(pod.tolerations.len(), 2);
    for (index, toleration) in pod.tolerations.iter().enumerate() {
        let json = json.pointer(&format!("/spec/tolerations/{index}")).unwrap();
        assert_eq!(&*toleration.key, text(json, "/key"));
        assert_eq!(toleration.operator, Operator::Exists);
        assert_eq!(toleration.effect, Some(Effect::NoExecute));
        assert_eq!(toleration.seconds, json["tolerationSeconds"].as_i64());
    }
}

fn assert_is_the_node(object: &Bytes) {
    let json: Value = serde_json::from_str(NODE_JSON).unwrap();
    let node = decode_node(object).unwrap();
    assert_eq!(node.uid.to_string(), text(&json, "/metadata/uid"));
    assert_eq!(node.name.as_str(), text(&json, "/metadata/name"));
    let taints: Vec<_> = node.taints.iter().map(ToString::to_string).collect();
    let removing = ["node.kubernetes.io/unreachable:NoExecute", "maintenance=disk:NoExecute"];
    assert_eq!(taints, removing, "and not the NoSchedule taint before them");
    assert_eq!(node.taints[0].time_added, Some(time(&json, "/spec/taints/1/timeAdded")));
    assert_eq!(node.taints[1].time_added, None);
    assert_eq!(text(&json, "/status/conditions/3/type"), "Ready");
    assert_eq!(node.ready.status, ConditionStatus::True);
    assert_eq!(node.ready.since, Some(time(&json, "/status/conditions/3/lastTransitionTime")));
    assert_eq!(node.since_annotation.as_deref(), Some("{}"));
}

#[test]
fn a_node_says_the_same_in_both_forms() {
    assert_is_the_node(&node());
}

#[test]
fn a_streamed_list_is_the_objects_and_a_bookmark_that_ends_it() {
    let frames = frames(Bytes::from_static(WATCH));
    let events: Vec<_> =
        frames.into_iter().map(|frame| wire::Event::decode(frame).unwrap()).collect();
    assert_eq!(events.len(), 2);
    assert_eq!(events[0].r#type, "ADDED");
    assert_is_the_node(&wire::open(&events[0].object.raw, "Node").unwrap());
    assert_eq!(events[1].r#type, "BOOKMARK");
    let bookmark = wire::open(&events[1].object.raw, "Node").unwrap();
    let bookmark = wire::Object::decode(bookmark).unwrap().metadata;
    assert_eq!(bookmark.resource_version, "327");
    assert_eq!(bookmark.annotations.len(), 1);
    assert_eq!(bookmark.annotations[0].key, "k8s.io/initial-events-end");
    assert_eq!(bookmark.annotations[0].value, "true");
}

/// One thing that goes wrong on the way; positions are parts of the whole.
#[derive(Clone, Debug)]
enum Mishap {
    /// The rest is missing.
    Cut(f64),
    /// A byte is another one.
    Change(f64, u8),
    /// Something is missing in between.
    Lose(f64, usize),
    /// Something is there that was not sent.
    Add(f64, Vec<u8>),
    /// A part comes twice.
    Repeat(f64, usize),
}

fn mishap() -> impl Strategy<Value = Mishap> {
    let at = || 0.0..1.0;
    prop_oneof![
        at().prop_map(Mishap::Cut),
        (at(), any::<u8>()).prop_map(|(at, byte)| Mishap::Change(at, byte)),
        (at(), 1..40usize).prop_map(|(at, length)| Mishap::Lose(at, length)),
        (at(), prop::collection::vec(any::<u8>(), 1..12))
            .prop_map(|(at, more)| Mishap::Add(at, more)),
        (at(), 1..400usize).prop_map(|(at, length)| Mishap::Repeat(at, length)),
    ]
}

#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
fn happen(mut bytes: Vec<u8>, mishap: &Mishap) -> Vec<u8> {
    let length = bytes.len();
    let place = |at: f64| ((at * length as f64) as usize).min(length);
    match mishap {
        Mishap::Cut(at) => bytes.truncate(place(*at)),
        Mishap::Change(at, byte) => {
            if let Some(changed) = bytes.get_mut(place(*at)) {
                *changed = *byte;
            }
        }
        Mishap::Lose(at, many) => drop(bytes.drain(place(*at)..(place(*at) + many).min(length))),
        Mishap::Add(at, more) => drop(bytes.splice(place(*at)..place(*at), more.iter().copied())),
        Mishap::Repeat(at, many) => {
            let part = bytes[place(*at)..(place(*at) + many).min(length)].to_vec();
            bytes.splice(place(*at)..place(*at), part);
        }
    }
    bytes
}

fn broken(whole: impl Into<Vec<u8>>) -> impl Strategy<Value = Bytes> {
    let whole = whole.into();
    prop::collection::vec(mishap(), 1..4)
        .prop_map(move |mishaps| mishaps.iter().fold(whole.clone(), happen).into())
}

/// What is said of bytes that cannot be read is fit for a log line.
fn is_clear(error: &DecodeError) -> bool {
    !error.reason.is_empty() && error.to_string().len() < 8_000
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_broken_envelope_is_refused_or_still_one(body in broken(POD)) {
        match wire::open(&body, "Pod") {
            Ok(object) => drop(PodDecoder::default().decode(&object)),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
        drop(wire::open(&body, "PodList").map(wire::List::decode));
        drop(wire::open(&body, "Status").map(wire::Status::decode));
    }

    #[test]
    fn a_broken_pod_costs_only_itself(object in broken(pod())) {
        let mut decoder = PodDecoder::default();
        let whole = decoder.decode(&pod()).unwrap();
        if let Err(error) = decoder.decode(&object) {
            prop_assert!(is_clear(&error), "{error}");
        }
        prop_assert_eq!(decoder.decode(&pod()).unwrap(), whole);
    }

    #[test]
    fn a_broken_node_is_refused_or_still_one(object in broken(node())) {
        if let Err(error) = decode_node(&object) {
            prop_assert!(is_clear(&error), "{error}");
        }
    }

    #[test]
    fn a_broken_frame_is_refused_or_still_one(frame in broken(&WATCH[4..])) {
        if let Ok(event) = wire::Event::decode(frame)
            && let Ok(object) = wire::open(&event.object.raw, "Node")
        {
            drop(decode_node(&object));
        }
    }

    #[test]
    fn a_broken_watch_says_the_same_in_whatever_pieces_it_comes(body in broken(WATCH)) {
        checks::stream(&body);
    }

    #[test]
    fn a_broken_page_of_a_list_is_no_more_than_came(
        items in prop::collection::vec(broken(pod()), 0..4),
        mishaps in prop::collection::vec(mishap(), 0..3),
    ) {
        let list = wire::List { items, ..wire::List::default() };
        let page = wire::seal("PodList", &list).to_vec();
        checks::list(&mishaps.iter().fold(page, happen));
    }

    #[test]
    fn a_broken_object_is_the_same_by_itself_and_as_an_event(
        object in prop_oneof![broken(pod()), broken(node())],
    ) {
        checks::object(&object);
    }

    #[test]
    fn any_bytes_may_come(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let bytes = Bytes::from(bytes);
        drop(PodDecoder::default().decode(&bytes));
        drop(decode_node(&bytes));
        drop(wire::Event::decode(bytes.clone()));
        drop(wire::List::decode(bytes.clone()));
        drop(wire::open(&bytes, "Pod"));
        checks::stream(&bytes);
        checks::list(&bytes);
        checks::object(&bytes);
    }
}
