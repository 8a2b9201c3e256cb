//! Builders for tests: facts written down in one line, `pod("a").tolerating(exists("gpu"))`.
//!
//! Each starts from the dullest object of its kind, so that a test names only what it is about.
//! Times are seconds from [`noon`]; a pod is bound long before, so that its binding plays no part
//! unless the test says so.

mod drain_pod;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{
    ConditionStatus, Disruption, Effect, Node, NodeName, Operator, Pod, PodClass, Ready, Stamp,
    Taint, Toleration, Uid,
};

pub(crate) use drain_pod::{drain_pod, owner};

/// The time at which tests begin.
pub(crate) fn noon() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

/// So many seconds after noon.
pub(crate) fn at(seconds: i64) -> Timestamp {
    noon() + SignedDuration::from_secs(seconds)
}

/// So many seconds after noon, known exactly: what is stored counts a second later.
pub(crate) fn stamp(seconds: i64) -> Stamp {
    Stamp::exact(at(seconds))
}

/// An ordinary pod on `n1`, without tolerations, bound an hour and more ago.
pub(crate) fn pod(name: &str) -> Pod {
    Pod {
        uid: uid(name),
        namespace: Arc::from("default"),
        name: Arc::from(name),
        node: NodeName::from("n1"),
        tolerations: Arc::from([]),
        bound: stamp(-5000),
        class: PodClass::Ordinary,
        disruption: Disruption::None,
        generation: 1,
    }
}

impl Pod {
    pub(crate) fn on(mut self, node: &str) -> Self {
        self.node = NodeName::from(node);
        self
    }

    /// With one more toleration, after those it has.
    pub(crate) fn tolerating(mut self, toleration: Toleration) -> Self {
        let index = u32::try_from(self.tolerations.len()).unwrap();
        let toleration = Toleration { index, ..toleration };
        let one_more = self.tolerations.iter().cloned().chain([toleration]);
        self.tolerations = one_more.collect();
        self
    }

    pub(crate) fn bound_at(mut self, seconds: i64) -> Self {
        self.bound = stamp(seconds);
        self
    }

    pub(crate) fn that_is(mut self, class: PodClass) -> Self {
        self.class = class;
        self
    }
}

/// A toleration of every taint with this key, forever; of every taint at all if it is empty.
pub(crate) fn exists(key: &str) -> Toleration {
    Toleration {
        index: 0,
        key: Arc::from(key),
        operator: Operator::Exists,
        value: Arc::from(""),
        effect: Some(Effect::NoExecute),
        seconds: None,
    }
}

/// A toleration of this key and value, forever.
pub(crate) fn equal(key: &str, value: &str) -> Toleration {
    comparing(key, Operator::Equal, value)
}

/// A toleration with an operator that compares, forever.
pub(crate) fn comparing(key: &str, operator: Operator, value: &str) -> Toleration {
    Toleration { operator, value: Arc::from(value), ..exists(key) }
}

impl Toleration {
    pub(crate) fn lasting(mut self, seconds: i64) -> Self {
        self.seconds = Some(seconds);
        self
    }

    pub(crate) fn of_effect(mut self, effect: Option<Effect>) -> Self {
        self.effect = effect;
        self
    }
}

/// A `NoExecute` taint `key=value` without `timeAdded`.
pub(crate) fn taint(key: &str, value: &str) -> Taint {
    Taint {
        key: Arc::from(key),
        value: Arc::from(value),
        effect: Effect::NoExecute,
        time_added: None,
    }
}

/// The not-ready taint, added so many seconds after noon.
pub(crate) fn not_ready(seconds: i64) -> Taint {
    taint(Taint::NOT_READY, "").added_at(seconds)
}

/// The unreachable taint, added so many seconds after noon.
pub(crate) fn unreachable(seconds: i64) -> Taint {
    taint(Taint::UNREACHABLE, "").added_at(seconds)
}

impl Taint {
    pub(crate) fn added_at(mut self, seconds: i64) -> Self {
        self.time_added = Some(stamp(seconds));
        self
    }

    pub(crate) fn with(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }
}

/// A node without taints that has been ready for long.
pub(crate) fn node(name: &str) -> Node {
    Node {
        name: NodeName::from(name),
        uid: uid(name),
        version: None,
        created: None,
        taints: Arc::from([]),
        ready: Ready { status: ConditionStatus::True, since: Some(stamp(-9000)) },
        since_annotation: None,
        zone: None,
        drain_facts: None,
    }
}

impl Node {
    /// With one more taint, after those it has.
    pub(crate) fn tainted(mut self, taint: Taint) -> Self {
        self.taints = self.taints.iter().cloned().chain([taint]).collect();
        self
    }

    /// With this Ready status since so many seconds after noon.
    pub(crate) fn ready_is(mut self, status: ConditionStatus, seconds: i64) -> Self {
        self.ready = Ready { status, since: Some(stamp(seconds)) };
        self
    }

    pub(crate) fn annotated(mut self, record: Option<&str>) -> Self {
        self.since_annotation = record.map(Arc::from);
        self
    }
}

/// An identity that depends on the name alone.
pub(crate) fn uid(name: &str) -> Uid {
    let fold = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(0x0100_0000_01b3);
    Uid(name.bytes().fold(0x6c62_272e_07bb_0142, fold))
}
