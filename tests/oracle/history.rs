//! Random histories of a node, what an observer of them makes of them, and what is true.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use ostrakon::model::{
    Anchors, ConditionStatus, Disruption, Effect, Node, NodeName, Operator, Outage, Pod, PodClass,
    Ready, Stamp, Taint, Toleration, Uid, Verdict,
};
use ostrakon::taint::{Past, advance, decide, record, since};
use proptest::prelude::*;

use super::facts::NOON;

const SECOND: i128 = 1_000_000_000;

/// Something happens to the node, so many nanoseconds after the last thing.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    after: i64,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    /// Ready takes on this status.
    Ready(ConditionStatus),
    /// This outage taint is put on, or put on anew; by the controller, or by hand without a stamp.
    TaintOn { key: &'static str, stamped: bool },
    /// This outage taint is taken off.
    TaintOff(&'static str),
    /// Both are taken off, as the controller does when it starts.
    Strip,
    /// One is swapped for the other.
    Swap,
    /// Somebody toggles a taint of their own.
    Toggle(&'static str),
    /// Nothing that matters.
    Heartbeat,
}

const OUTAGE_KEYS: [&str; 2] = [Taint::NOT_READY, Taint::UNREACHABLE];

/// Up to `most` steps, from one second to two minutes apart.
pub(crate) fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    steps_with(most, 1)
}

/// The same, without outage taints that have no stamp.
pub(crate) fn stamped_steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    steps_with(most, 0)
}

fn steps_with(most: usize, unstamped: u32) -> impl Strategy<Value = Vec<Step>> {
    let status = prop_oneof![
        1 => Just(ConditionStatus::True),
        2 => Just(ConditionStatus::False),
        2 => Just(ConditionStatus::Unknown),
    ];
    let key = prop::sample::select(OUTAGE_KEYS.to_vec());
    let what = prop_oneof![
        4 => status.prop_map(What::Ready),
        5 => key.clone().prop_map(|key| What::TaintOn { key, stamped: true }),
        unstamped => key.clone().prop_map(|key| What::TaintOn { key, stamped: false }),
        1 => key.prop_map(What::TaintOff),
        5 => Just(What::Strip),
        1 => Just(What::Swap),
        2 => prop::sample::select(vec!["a", "b"]).prop_map(What::Toggle),
        1 => Just(What::Heartbeat),
    ];
    let after =
        prop_oneof![2 => 1_000_000_000..20_000_000_000i64, 1 => 20_000_000_000..150_000_000_000i64];
    let step = (after, what).prop_map(|(after, what)| Step { after, what });
    prop::collection::vec(step, 1..most)
}

/// A version of the node, and when it came to be, which is when it is seen.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    at: i128,
    pub(crate) node: Node,
}

impl Version {
    pub(crate) fn looked_at_later(&self, seconds: i64) -> Self {
        Self { at: self.at + i128::from(seconds) * SECOND, node: self.node.clone() }
    }

    fn has_outage_taint(&self) -> bool {
        self.node.taints.iter().any(|taint| OUTAGE_KEYS.contains(&&*taint.key))
    }

    fn is_ready(&self) -> bool {
        self.node.ready.status == ConditionStatus::True
    }

    fn has(&self, taint: &Taint) -> bool {
        self.node.taints.contains(taint)
    }
}

fn timestamp(nanosecond: i128) -> Timestamp {
    Timestamp::from_nanosecond(nanosecond).unwrap()
}

/// As the API stores it.
fn cut_to_the_second(nanosecond: i128) -> Stamp {
    Stamp::of_second(timestamp(nanosecond - nanosecond.rem_euclid(SECOND)))
}

/// The versions of a node that was ready at first and to which `steps` happened.
pub(crate) fn versions(steps: &[Step]) -> Vec<Version> {
    let mut at = NOON;
    let mut taints: Vec<Taint> = Vec::new();
    let mut ready = Ready {
        status: ConditionStatus::True,
        since: Some(cut_to_the_second(NOON - 5000 * SECOND)),
    };
    let mut versions = Vec::new();
    for step in steps {
        at += i128::from(step.after);
        let stamp = cut_to_the_second(at);
        let taint = |key: &str, stamped: bool| Taint {
            key: Arc::from(key),
            value: Arc::from(""),
            effect: Effect::NoExecute,
            time_added: stamped.then_some(stamp),
        };
        match &step.what {
            What::Ready(status) if ready.status == *status => {}
            What::Ready(status) => ready = Ready { status: *status, since: Some(stamp) },
            What::TaintOn { key, stamped } => {
                let already = taints.iter().any(|t| &*t.key == *key && t.time_added.is_none());
                if *stamped || !already {
                    taints.retain(|taint| &*taint.key != *key);
                    taints.push(taint(key, *stamped));
                }
            }
            What::TaintOff(key) => taints.retain(|taint| &*taint.key != *key),
            What::Strip => taints.retain(|taint| !OUTAGE_KEYS.contains(&&*taint.key)),
            What::Swap => {
                for old in &mut taints {
                    if let Some(index) = OUTAGE_KEYS.iter().position(|key| **key == *old.key) {
                        *old = taint(OUTAGE_KEYS[1 - index], true);
                    }
                }
            }
            What::Toggle(key) => {
                let before = taints.len();
                taints.retain(|taint| &*taint.key != *key);
                if taints.len() == before {
                    taints.insert(0, taint(key, false));
                }
            }
            What::Heartbeat => {}
        }
        let node = Node {
            name: NodeName::from("n1"),
            uid: Uid(1),
            version: None,
            created: None,
            taints: taints.clone().into(),
            ready,
            since_annotation: None,
            zone: None,
            drain_facts: None,
        };
        versions.push(Version { at, node });
    }
    versions
}

/// The anchor of `taint`, which is on the last version, if every version was seen.
pub(crate) fn anchor(versions: &[Version], taint: &Taint) -> i128 {
    let (last, earlier) = versions.split_last().unwrap();
    if !OUTAGE_KEYS.contains(&&*taint.key) {
        return stamp(versions, taint);
    }
    let mut earliest = newest_stamps(versions);
    let mut after = last;
    let mut rest = earlier;
    loop {
        // Back over the versions without a taint, to the one before them.
        let gap = rest.iter().rev().take_while(|version| !version.has_outage_taint()).count();
        let (before, gap) = rest.split_at(rest.len() - gap);
        let Some((previous, older)) = before.split_last() else {
            return earliest;
        };
        if let Some(first) = gap.first() {
            let recovered = gap.iter().any(Version::is_ready) || after.is_ready();
            if recovered || after.at - first.at >= 60 * SECOND {
                return earliest;
            }
        }
        earliest = earliest.min(newest_stamps(before));
        after = previous;
        rest = older;
    }
}

/// The earliest stamp of the outage taints on the last of `versions`.
fn newest_stamps(versions: &[Version]) -> i128 {
    let taints = &versions.last().unwrap().node.taints;
    let outage = taints.iter().filter(|taint| OUTAGE_KEYS.contains(&&*taint.key));
    outage.map(|taint| stamp(versions, taint)).min().unwrap()
}

/// When `taint` was put on, by its own account or else by that of who watches.
fn stamp(versions: &[Version], taint: &Taint) -> i128 {
    if let Some(at) = taint.time_added {
        return at.written().as_nanosecond() + SECOND - 1;
    }
    let there = versions.iter().rev().take_while(|version| version.has(taint));
    there.last().unwrap().at
}

/// What the anchor of `taint` must not be earlier than, whoever saw what. Of a taint without a
/// stamp that came and went unseen, nobody can say more than when it came first.
pub(crate) fn earliest_anchor(versions: &[Version], taint: &Taint) -> i128 {
    if OUTAGE_KEYS.contains(&&*taint.key) {
        return earliest_of_outage(versions);
    }
    let first = versions.iter().find(|version| version.has(taint)).unwrap();
    first.at
}

/// The earliest stamp since the node was last ready and without an outage taint.
fn earliest_of_outage(versions: &[Version]) -> i128 {
    let mut earliest = i128::MAX;
    for seen in (1..=versions.len()).rev() {
        let version = &versions[seen - 1];
        if version.has_outage_taint() {
            earliest = earliest.min(newest_stamps(&versions[..seen]));
        } else if version.is_ready() {
            break;
        }
    }
    earliest
}

/// A process that watches the node and keeps its record, for a pod that tolerates everything for
/// 300 s.
#[derive(Clone, Default)]
pub(crate) struct Observer {
    anchors: Option<Anchors>,
    record: Option<Arc<str>>,
}

impl Observer {
    pub(crate) fn see(&mut self, version: &Version) {
        let node = Node { since_annotation: self.record.clone(), ..version.node.clone() };
        let stored = self.record.as_deref().map(|text| record::parse(text).unwrap());
        let past = match &self.anchors {
            Some(anchors) => Past::Watched(anchors),
            None => Past::recorded(stored.as_ref()),
        };
        let anchors = advance(past, &node, timestamp(version.at));
        self.record = record::wanted(&anchors, &node, [&pod()], &[]).map(Arc::from);
        self.anchors = Some(anchors);
    }

    /// Its successor, which has only the record.
    pub(crate) fn restarted(&self) -> Self {
        Self { anchors: None, record: self.record.clone() }
    }

    pub(crate) fn since(&self, taint: &Taint) -> Stamp {
        since(self.anchors.as_ref().unwrap(), taint).at
    }

    pub(crate) fn verdict(&self, version: &Version) -> Verdict {
        decide(&pod(), &version.node, self.anchors.as_ref().unwrap())
    }

    pub(crate) fn outage(&self) -> Option<Outage> {
        self.anchors.as_ref()?.outage
    }

    pub(crate) fn in_gap(&self) -> bool {
        self.outage().is_some_and(|outage| outage.gap_from.is_some())
    }
}

fn pod() -> Pod {
    Pod {
        uid: Uid(7),
        namespace: Arc::from("default"),
        name: Arc::from("a"),
        node: NodeName::from("n1"),
        tolerations: Arc::from([Toleration {
            index: 0,
            key: Arc::from(""),
            operator: Operator::Exists,
            value: Arc::from(""),
            effect: None,
            seconds: Some(300),
        }]),
        bound: Stamp::exact(timestamp(NOON) - SignedDuration::from_hours(1)),
        class: PodClass::Ordinary,
        disruption: Disruption::None,
        generation: 1,
    }
}
