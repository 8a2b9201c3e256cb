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

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::clock::whole_seconds;
use crate::cluster::MarkAuthor;
use crate::model::PodRef;
use crate::taint::anchor::CLOCKS_APART;

/// Another manager counts as gone after this time without a sign of it. The one built into
/// kube-controller-manager spreads a large eviction over minutes, but never pauses for as long.
pub(crate) const GONE_AFTER: Duration = Duration::from_secs(300);

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
}

/// Whether another manager is at work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// No sign of one within [`GONE_AFTER`].
    Alone,
    /// There is one.
    Shared(Proof),
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
            _ => Standing::Alone,
        }
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alone => f.write_str("no other controller evicts pods for NoExecute taints"),
            Self::Shared(proof) => proof.fmt(f),
        }
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
        assert_eq!(seen.standing(time.at(61)), Standing::Alone);
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
