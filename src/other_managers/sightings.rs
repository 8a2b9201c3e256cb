//! What was seen of other managers, and what follows from it. Time is handed in.
//!
//! **Proof** is the condition `DisruptionTarget` with the reason of taint eviction, if another client than
//! ostrakon wrote it: the API server records who did. Nobody else has a reason to write it, and only who may
//! update `pods/status` can. It counts only
//!
//! - if this process saw it appear, on a pod of a tainted node, while it leads (the caller's part): an
//!   old condition, from before the switch-over to ostrakon, proves nothing;
//! - and if it was written more than [`CLOCKS_APART`] after this process began to lead, by the API server's
//!   clock: what was on its way at the switch-over proves nothing either.
//!
//! Other replicas of ostrakon write as the same client, so a change of leader is no proof.
//!
//! **Suspicion** is a pod that someone deleted right when it was due, before ostrakon asked for that. A
//! person, a Job or a scale-down may hit that moment by chance, or a script may delete what it taints. So it
//! takes, after the first seconds of a term, [`LEAST_PODS`] in [`LEAST_NAMESPACES`] namespaces and on [`LEAST_NODES`] nodes, and even then it is
//! only reported as what it is. Pods with a condition that says why they go, as after the Eviction API, pod
//! GC or a preemption, are not counted (the caller's part).

use std::collections::VecDeque;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use ahash::{AHashMap, AHashSet};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::clock::whole_seconds;
use crate::cluster::MarkAuthor;
use crate::model::{NodeName, PodRef};
use crate::taint::anchor::CLOCKS_APART;

/// Another manager counts as gone after this time without a sign of it. The one built into
/// kube-controller-manager spreads a large eviction over minutes, but never pauses for as long.
pub(crate) const GONE_AFTER: Duration = Duration::from_secs(300);

/// A deletion is suspicious up to this long after the pod was due. The built-in manager needs less.
pub(crate) const PROMPT: Duration = Duration::from_secs(2);
/// Suspicious deletions count for this time.
const REMEMBERED: Duration = Duration::from_secs(600);
/// What it takes for a suspicion.
const LEAST_PODS: usize = 5;
const LEAST_NAMESPACES: usize = 3;
const LEAST_NODES: usize = 2;
/// Of more suspicious deletions, the last ones are kept.
const MOST_DELETIONS: usize = 64;
/// With proof from so many namespaces, evictions in all namespaces are held if ostrakon must be exclusive.
/// With less, only those in the same namespaces: one tenant's word holds nobody else's evictions. It has to
/// come from [`LEAST_NODES`] nodes, too: a kubelet may write the status of all pods of its node.
const EVERYWHERE: usize = 3;
/// Of more namespaces or nodes with proof, the last ones are kept: they are enough to hold all.
const MOST_KEPT: usize = 64;

/// The current time, by the clock that deadlines are kept by and by the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub wall: Timestamp,
    pub instant: Instant,
}

/// What was seen in this term.
#[derive(Debug, Default)]
pub(super) struct Sightings {
    /// When the term began; absent while this process does not lead.
    began: Option<Timestamp>,
    /// The sightings without a pause of [`GONE_AFTER`] between them, and when the last one was.
    proof: Option<(Proof, Instant)>,
    /// When the last proof came from each namespace.
    namespaces: AHashMap<Arc<str>, Instant>,
    /// When the last proof came from each node.
    nodes: AHashMap<NodeName, Instant>,
    /// Suspicious deletions, the newest last.
    deletions: VecDeque<Deletion>,
}

#[derive(Debug)]
struct Deletion {
    at: Instant,
    namespace: Arc<str>,
    node: NodeName,
}

/// Whether another manager is at work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// No sign of one within [`GONE_AFTER`].
    Alone,
    /// There may be one.
    Suspected(Suspicion),
    /// There is one.
    Shared(Proof),
}

/// Pods that someone deleted right when they were due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Suspicion {
    /// How many, up to [`MOST_DELETIONS`].
    pub pods: usize,
    /// In how many namespaces.
    pub namespaces: usize,
    /// On how many nodes.
    pub nodes: usize,
}

/// Pods that another manager evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proof {
    /// As it calls itself.
    pub manager: Arc<str>,
    /// How many pods.
    pub pods: u64,
    /// When the first of them was seen.
    pub first: Timestamp,
    /// When the last of them was seen.
    pub last: Timestamp,
    /// The last of them.
    pub pod: PodRef,
}

impl Sightings {
    /// Nothing was seen yet in a term that begins now.
    pub(super) fn since(began: Timestamp) -> Self {
        Self { began: Some(began), ..Self::default() }
    }

    /// Takes in who wrote the condition that has appeared on a pod. Returns whether it counts.
    pub(super) fn marked(&mut self, pod: &PodRef, author: &MarkAuthor, now: Now) -> bool {
        if !self.is_of_this_term(author) {
            return false;
        }
        remember(&mut self.namespaces, &pod.namespace, now.instant);
        remember(&mut self.nodes, &pod.node, now.instant);
        let manager = Arc::from(author.manager.as_str());
        match &mut self.proof {
            Some((proof, last)) if now.instant - *last < GONE_AFTER => {
                proof.pods += 1;
                (proof.manager, proof.pod) = (manager, pod.clone());
                (proof.last, *last) = (now.wall, now.instant);
            }
            _ => {
                let (first, last) = (now.wall, now.wall);
                let proof = Proof { manager, pods: 1, first, last, pod: pod.clone() };
                self.proof = Some((proof, now.instant));
            }
        }
        true
    }

    /// Until when evictions in a namespace are to be held, as far as is known now, if ostrakon must be
    /// exclusive.
    pub(super) fn held_until(&self, namespace: &str, now: Instant) -> Option<Instant> {
        let here = self.namespaces.get(namespace).copied();
        let namespaces = newest(&self.namespaces, EVERYWHERE);
        let nodes = newest(&self.nodes, LEAST_NODES);
        let everywhere = namespaces.zip(nodes).map(|(one, other)| one.min(other));
        let until = here.max(everywhere)? + GONE_AFTER;
        (until > now).then_some(until)
    }

    /// Takes in that someone else deleted a pod right when it was due. Returns whether it counts.
    pub(super) fn deleted(&mut self, pod: &PodRef, now: Now) -> bool {
        if self.began.is_none_or(|began| now.wall.duration_since(began) <= CLOCKS_APART) {
            return false;
        }
        if self.deletions.len() == MOST_DELETIONS {
            self.deletions.pop_front();
        }
        let (namespace, node) = (Arc::clone(&pod.namespace), pod.node.clone());
        self.deletions.push_back(Deletion { at: now.instant, namespace, node });
        true
    }

    fn suspicion(&self, now: Now) -> Option<Suspicion> {
        let recent = || self.deletions.iter().filter(|one| now.instant - one.at < REMEMBERED);
        let namespaces: AHashSet<_> = recent().map(|one| &one.namespace).collect();
        let nodes: AHashSet<_> = recent().map(|one| &one.node).collect();
        let found =
            Suspicion { pods: recent().count(), namespaces: namespaces.len(), nodes: nodes.len() };
        let is_enough = found.pods >= LEAST_PODS
            && found.namespaces >= LEAST_NAMESPACES
            && found.nodes >= LEAST_NODES;
        is_enough.then_some(found)
    }

    fn is_of_this_term(&self, author: &MarkAuthor) -> bool {
        let (Some(began), Some(written)) = (self.began, author.written) else { return false };
        written.duration_since(began) > CLOCKS_APART
    }

    /// Whether another manager is at work now.
    pub(super) fn standing(&self, now: Now) -> Standing {
        match &self.proof {
            Some((proof, last)) if now.instant - *last < GONE_AFTER => {
                Standing::Shared(proof.clone())
            }
            _ => self.suspicion(now).map_or(Standing::Alone, Standing::Suspected),
        }
    }
}

/// Notes the newest proof of a namespace or a node. The oldest makes room.
fn remember<K: Clone + Eq + Hash>(proofs: &mut AHashMap<K, Instant>, key: &K, now: Instant) {
    proofs.retain(|_, last| now - *last < GONE_AFTER);
    if proofs.len() >= MOST_KEPT && !proofs.contains_key(key) {
        let oldest = proofs.iter().min_by_key(|(_, last)| **last);
        if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
            proofs.remove(&oldest);
        }
    }
    proofs.insert(key.clone(), now);
}

/// Since when there was proof from at least so many.
fn newest<K>(proofs: &AHashMap<K, Instant>, count: usize) -> Option<Instant> {
    let mut all: Vec<Instant> = proofs.values().copied().collect();
    all.sort_unstable_by(|one, other| other.cmp(one));
    all.get(count - 1).copied()
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alone => f.write_str("no other controller evicts pods for NoExecute taints"),
            Self::Suspected(suspicion) => suspicion.fmt(f),
            Self::Shared(proof) => proof.fmt(f),
        }
    }
}

impl fmt::Display for Suspicion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pods, namespaces, nodes } = self;
        write!(
            f,
            "someone may evict pods for NoExecute taints too: within ten minutes, {pods} pods in \
             {namespaces} namespaces on {nodes} nodes were deleted right when they were due, before \
             ostrakon asked for it"
        )
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { manager, pods, first, last, pod } = self;
        let s = if *pods == 1 { "" } else { "s" };
        let (first, last) = (whole_seconds(*first), whole_seconds(*last));
        write!(
            f,
            "{manager} evicts pods for NoExecute taints too: {pods} pod{s} since {first}, the last at \
             {last}: {pod} on node {}",
            pod.node
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::build::{at, noon, pod};

    /// So many seconds after the term began at noon.
    struct Time(Instant);

    impl Time {
        fn at(&self, seconds: u64) -> Now {
            let instant = self.0 + Duration::from_secs(seconds);
            Now { wall: at(seconds.cast_signed()), instant }
        }
    }

    fn author(second: i64) -> MarkAuthor {
        MarkAuthor { manager: "kube-controller-manager".to_owned(), written: Some(at(second)) }
    }

    fn start() -> (Sightings, Time) {
        (Sightings::since(noon()), Time(Instant::now()))
    }

    #[test]
    fn a_condition_that_another_client_wrote_in_this_term_is_proof() {
        let (mut seen, time) = start();
        assert_eq!(seen.standing(time.at(0)), Standing::Alone);
        assert!(seen.marked(&pod("a").reference(), &author(60), time.at(61)));
        assert!(seen.marked(&pod("b").on("n2").reference(), &author(62), time.at(63)));
        assert_eq!(
            seen.standing(time.at(64)).to_string(),
            "kube-controller-manager evicts pods for NoExecute taints too: 2 pods since \
             2026-01-01T12:01:01Z, the last at 2026-01-01T12:01:03Z: default/b on node n2"
        );
    }

    #[test]
    fn what_was_written_before_the_term_or_at_its_beginning_proves_nothing() {
        let (mut seen, time) = start();
        for second in [-86_400, -1, 0, 5] {
            assert!(!seen.marked(&pod("a").reference(), &author(second), time.at(60)), "{second}");
        }
        let unknown = MarkAuthor { written: None, ..author(0) };
        assert!(!seen.marked(&pod("a").reference(), &unknown, time.at(60)));
        assert_eq!(seen.standing(time.at(60)), Standing::Alone);
        assert!(seen.marked(&pod("a").reference(), &author(6), time.at(60)));
    }

    #[test]
    fn who_does_not_lead_sees_nothing() {
        let (mut seen, time) = (Sightings::default(), Time(Instant::now()));
        assert!(!seen.marked(&pod("a").reference(), &author(60), time.at(61)));
        assert!(!seen.deleted(&pod("a").reference(), time.at(61)));
        assert_eq!(seen.standing(time.at(61)), Standing::Alone);
    }

    fn mark_in(seen: &mut Sightings, namespace: &str, now: Now) {
        mark_on(seen, &format!("node-of-{namespace}"), namespace, now);
    }

    fn mark_on(seen: &mut Sightings, node: &str, namespace: &str, now: Now) {
        let pod = PodRef { namespace: namespace.into(), ..pod("a").on(node).reference() };
        assert!(seen.marked(&pod, &author(60), now));
    }

    /// In how many seconds after the beginning evictions in this namespace go on.
    fn held_until(seen: &Sightings, namespace: &str, time: &Time, now: u64) -> Option<u64> {
        let until = seen.held_until(namespace, time.at(now).instant);
        until.map(|until| (until - time.0).as_secs())
    }

    #[test]
    fn proof_from_one_namespace_holds_its_own_evictions_for_five_minutes_and_no_others() {
        let (mut seen, time) = start();
        assert_eq!(held_until(&seen, "a", &time, 0), None);
        for second in [60, 100] {
            mark_in(&mut seen, "a", time.at(second));
        }
        mark_in(&mut seen, "b", time.at(200));
        assert_eq!(held_until(&seen, "a", &time, 200), Some(400));
        assert_eq!(held_until(&seen, "b", &time, 200), Some(500));
        assert_eq!(held_until(&seen, "c", &time, 200), None, "it is no tenant's business");
        assert_eq!(held_until(&seen, "a", &time, 400), None);
    }

    #[test]
    fn proof_from_three_namespaces_holds_all_for_as_long_as_it_comes_from_three() {
        let (mut seen, time) = start();
        for (namespace, second) in [("a", 60), ("b", 70), ("c", 80)] {
            mark_in(&mut seen, namespace, time.at(second));
        }
        assert_eq!(held_until(&seen, "d", &time, 80), Some(360));
        for second in [100, 200, 300] {
            mark_in(&mut seen, "c", time.at(second));
        }
        assert_eq!(held_until(&seen, "d", &time, 359), Some(360), "one alone does not prolong it");
        assert_eq!(held_until(&seen, "d", &time, 360), None);
        mark_in(&mut seen, "c", time.at(400));
        assert_eq!(held_until(&seen, "d", &time, 400), None);
        assert_eq!(held_until(&seen, "c", &time, 400), Some(700));
    }

    #[test]
    fn proof_from_one_node_may_be_its_kubelets_and_holds_no_other_namespace() {
        let (mut seen, time) = start();
        for namespace in ["a", "b", "c", "d"] {
            mark_on(&mut seen, "n1", namespace, time.at(60));
        }
        assert_eq!(held_until(&seen, "e", &time, 60), None);
        assert_eq!(held_until(&seen, "a", &time, 60), Some(360));
        mark_on(&mut seen, "n2", "a", time.at(90));
        assert_eq!(
            held_until(&seen, "e", &time, 90),
            Some(360),
            "as long as from three and from two"
        );
    }

    #[test]
    fn more_namespaces_than_are_kept_hold_all_just_as_well() {
        let (mut seen, time) = start();
        for number in 0..10_000 {
            mark_in(&mut seen, &format!("ns{number}"), time.at(60 + number / 1000));
        }
        assert_eq!((seen.namespaces.len(), seen.nodes.len()), (MOST_KEPT, MOST_KEPT));
        assert_eq!(held_until(&seen, "other", &time, 70), Some(369));
    }

    /// Whether so many deletions, of which each is in the next of these namespaces and on the next of these
    /// nodes, are a suspicion.
    fn is_suspicion(count: usize, namespaces: usize, nodes: usize) -> bool {
        let (mut seen, time) = start();
        for number in 0..count {
            let pod = pod("a").on(&format!("n{}", number % nodes)).reference();
            let namespace = format!("ns{}", number % namespaces).into();
            assert!(seen.deleted(&PodRef { namespace, ..pod }, time.at(60)));
        }
        let later = seen.standing(time.at(660));
        assert_eq!(later, Standing::Alone, "ten minutes later");
        matches!(seen.standing(time.at(659)), Standing::Suspected(_))
    }

    #[test]
    fn deletions_are_a_suspicion_only_if_several_cannot_be_one_persons_or_one_owners() {
        assert!(is_suspicion(5, 3, 2));
        assert!(is_suspicion(1000, 50, 50));
        assert!(!is_suspicion(4, 4, 4), "a few by chance");
        assert!(!is_suspicion(1000, 1, 100), "a Job or a scale-down is in one namespace");
        assert!(!is_suspicion(1000, 2, 100));
        assert!(!is_suspicion(1000, 100, 1), "someone who empties a node");
    }

    #[test]
    fn a_suspicion_is_described_and_is_less_than_proof() {
        let (mut seen, time) = start();
        for number in 0..6 {
            let pod = pod("a").on(&format!("n{number}")).reference();
            let namespace = format!("ns{number}").into();
            seen.deleted(&PodRef { namespace, ..pod }, time.at(60));
        }
        let suspicion = seen.standing(time.at(61)).to_string();
        assert!(suspicion.contains("6 pods in 6 namespaces on 6 nodes"), "{suspicion}");
        seen.marked(&pod("a").reference(), &author(62), time.at(62));
        assert!(matches!(seen.standing(time.at(63)), Standing::Shared(_)));
        assert!(matches!(seen.standing(time.at(400)), Standing::Suspected(_)));
        let (mut early, time) = start();
        assert!(!early.deleted(&pod("a").reference(), time.at(5)), "by the last leader perhaps");
    }

    #[test]
    fn it_counts_as_gone_after_five_minutes_without_a_sign() {
        let (mut seen, time) = start();
        seen.marked(&pod("a").reference(), &author(60), time.at(60));
        seen.marked(&pod("b").reference(), &author(350), time.at(350));
        assert!(matches!(seen.standing(time.at(649)), Standing::Shared(_)));
        assert_eq!(seen.standing(time.at(650)), Standing::Alone);
        seen.marked(&pod("c").reference(), &author(700), time.at(700));
        let Standing::Shared(proof) = seen.standing(time.at(700)) else { panic!() };
        assert_eq!((proof.pods, proof.first), (1, at(700)), "counted anew");
    }
}
