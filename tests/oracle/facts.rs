//! Random facts: few keys and values, so that they meet, and times that are near or extreme.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use ostrakon::model::{
    Anchor, AnchorSource, Anchors, Cause, ConditionStatus, Deadline, Disruption, Effect, FirstSeen,
    Kept, Node, NodeName, Operator, Outage, Pod, PodClass, Ready, Stamp, Taint, Tolerance,
    Toleration, Uid, Verdict,
};
use ostrakon::taint::{TaintMethod, TaintRule};
use proptest::prelude::*;

/// Noon of the first of January 2026, in nanoseconds.
pub(crate) const NOON: i128 = 1_767_268_800_000_000_000;

/// Mostly within ten minutes around noon, to the nanosecond or to the second.
pub(crate) fn time() -> impl Strategy<Value = Timestamp> + Clone {
    let near = |nanosecond: i64| Timestamp::from_nanosecond(NOON + i128::from(nanosecond)).unwrap();
    prop_oneof![
        8 => (-300..300i64).prop_map(move |second| near(second * 1_000_000_000)),
        8 => (-300_000_000_000..300_000_000_000i64).prop_map(near),
        1 => Just(Timestamp::MIN),
        1 => Just(Timestamp::MAX),
    ]
}

/// The same, stored.
pub(crate) fn stamp() -> impl Strategy<Value = Stamp> + Clone {
    prop_oneof![time().prop_map(Stamp::of_second), time().prop_map(Stamp::exact)]
}

fn key() -> impl Strategy<Value = Arc<str>> {
    let keys = ["a", "b", Taint::NOT_READY, Taint::UNREACHABLE];
    prop::sample::select(keys.to_vec()).prop_map(Arc::from)
}

fn value() -> impl Strategy<Value = Arc<str>> {
    let values = ["1", "2", "10", "-1", "-0", "01", "+1", "1.0", "x"];
    let some = prop::sample::select(values.to_vec()).prop_map(Arc::from);
    prop_oneof![2 => Just(Arc::from("")), 1 => some]
}

fn effect() -> impl Strategy<Value = Effect> {
    prop_oneof![
        9 => Just(Effect::NoExecute),
        1 => Just(Effect::NoSchedule),
        1 => Just(Effect::PreferNoSchedule),
        1 => Just(Effect::Unknown),
    ]
}

pub(crate) fn taint() -> impl Strategy<Value = Taint> {
    let time_added = prop::option::weighted(0.5, stamp());
    (key(), value(), effect(), time_added).prop_map(|(key, value, effect, time_added)| Taint {
        key,
        value,
        effect,
        time_added,
    })
}

fn seconds() -> impl Strategy<Value = i64> {
    let rare = [0, -1, i64::MIN, i64::MAX, 9_223_372_037, 10_000_000_000, 20_000_000_000];
    prop_oneof![4 => 1..600i64, 1 => prop::sample::select(rare.to_vec())]
}

pub(crate) fn toleration() -> impl Strategy<Value = Toleration> {
    let operator = prop_oneof![
        8 => Just(Operator::Exists),
        3 => Just(Operator::Equal),
        1 => Just(Operator::Lt),
        1 => Just(Operator::Gt),
        1 => Just(Operator::Unknown),
    ];
    let key = prop_oneof![1 => Just(Arc::from("")), 2 => key()];
    let effect = prop::option::weighted(0.7, effect());
    let seconds = prop::option::weighted(0.7, seconds());
    (key, operator, value(), effect, seconds).prop_map(|(key, operator, value, effect, seconds)| {
        Toleration { index: 0, key, operator, value, effect, seconds }
    })
}

pub(crate) fn pod() -> impl Strategy<Value = Pod> {
    let class = prop_oneof![
        20 => Just(PodClass::Ordinary),
        1 => Just(PodClass::Mirror),
        1 => Just(PodClass::Finished),
        1 => Just(PodClass::Terminating),
    ];
    let tolerations = prop::collection::vec(toleration(), 0..7);
    let bound = prop_oneof![stamp(), Just(Stamp::exact(Timestamp::UNIX_EPOCH))];
    (tolerations, bound, class).prop_map(|(tolerations, bound, class)| Pod {
        uid: Uid(7),
        namespace: Arc::from("default"),
        name: Arc::from("a"),
        node: NodeName::from("n1"),
        tolerations: (0..)
            .zip(tolerations)
            .map(|(index, one)| Toleration { index, ..one })
            .collect(),
        bound,
        class,
        disruption: Disruption::None,
        generation: 1,
    })
}

pub(crate) fn node() -> impl Strategy<Value = Node> {
    prop_oneof![1 => 0..1usize, 5 => 1..4usize]
        .prop_flat_map(|count| prop::collection::vec(taint(), count))
        .prop_map(|taints| Node {
            name: NodeName::from("n1"),
            uid: Uid(1),
            version: None,
            created: None,
            taints: taints.into(),
            ready: Ready { status: ConditionStatus::Unknown, since: None },
            since_annotation: None,
            zone: None,
            drain_facts: None,
        })
}

/// Anchors of some node, which need not be the one at hand.
pub(crate) fn anchors() -> impl Strategy<Value = Anchors> {
    let added = prop::option::weighted(0.3, time().prop_map(Stamp::of_second));
    let first_seen = (key(), value(), added, stamp())
        .prop_map(|(key, value, added, since)| FirstSeen { key, value, added, since });
    let gap_from = prop::option::weighted(0.2, time());
    let outage = (stamp(), stamp(), gap_from).prop_map(|(one, other, gap_from)| Outage {
        since: one.min(other),
        through: one.max(other),
        gap_from,
    });
    let first_seen = prop::collection::vec(first_seen, 0..10);
    (first_seen, prop::option::of(outage))
        .prop_map(|(first_seen, outage)| Anchors { first_seen, outage })
}

/// Rules for the keys that taints have.
pub(crate) fn rules() -> impl Strategy<Value = Vec<TaintRule>> {
    let key = prop_oneof![4 => key(), 1 => Just(Arc::from("*"))];
    let method = prop_oneof![
        1 => Just(TaintMethod::Delete),
        2 => Just(TaintMethod::Evict),
        2 => Just(TaintMethod::Ignore),
        2 => (1..900u64).prop_map(|after| {
            TaintMethod::EvictThenDelete { after: Duration::from_secs(after) }
        }),
    ];
    let value = prop::option::weighted(0.2, value());
    let rule = (key, value, method).prop_map(|(key, value, method)| TaintRule {
        name: "a".into(),
        key,
        value,
        method,
        limit: None,
    });
    prop::collection::vec(rule, 0..4)
}

/// A verdict that may be running already.
pub(crate) fn running() -> impl Strategy<Value = Option<Verdict>> {
    let cause = (taint(), 0..4usize, 1..600i64, stamp()).prop_map(|(taint, index, seconds, at)| {
        let source = AnchorSource::Observed;
        let anchor = Some(Anchor { at, source });
        let tolerance = Some(Tolerance { index, seconds, anchor });
        Cause::new(taint, tolerance)
    });
    let cause = cause.boxed();
    prop_oneof![
        2 => Just(None),
        1 => Just(Some(Verdict::Keep(Kept::Tolerated))),
        1 => cause.clone().prop_map(|cause| Some(Verdict::EvictNow(cause))),
        3 => (time(), cause).prop_map(|(deadline, cause)| Some(Verdict::EvictAt {
            deadline: Deadline(deadline),
            cause,
        })),
    ]
}
