//! Outages: which not-ready and unreachable taints belong to the same outage of a node.
//!
//! The node lifecycle controller removes these two taints from every node when it restarts, and adds them
//! again with a new `timeAdded`. It swaps them when the kubelet stops responding, and removes them all
//! while whole zones are down. Countdowns on a dead node must not start again because another program
//! restarted, and must not be shortened by an earlier outage of the node. So:
//!
//! - While all versions of a node are **watched**, an outage lasts as long as one of the taints is
//!   present, and through a gap of less than [`LONGEST_GAP`] in which Ready is not True. Ready=True alone
//!   does not end it while a taint is present, because the taint is removed a moment later. It ends when
//!   the taint is removed while Ready is True.
//! - A **recorded** outage from before a gap in watching only continues with proof: a taint that is not
//!   newer than the record, or a Ready condition that has not changed since. If Ready changed from False
//!   to Unknown meanwhile, it may have been True in between, so the outage counts as new: deadlines may
//!   be later than necessary, never earlier.
//!
//! The proof needs no tolerance for clocks or truncated times. Ready changes before the taint is written,
//! so within one outage its time is at or before that of the first taint; if Ready was True again after
//! the recorded taint, it has a later time.

use jiff::{SignedDuration, Timestamp};

use crate::model::{ConditionStatus, Outage, Ready, Stamp};

use super::anchor::{CLOCKS_APART, Past};

/// A gap of this length without either taint ends the outage.
///
/// A restarted node lifecycle controller adds its taints again within seconds, but only to one node per
/// ten seconds and zone. After a full disruption, it takes minutes.
pub const LONGEST_GAP: SignedDuration = SignedDuration::from_secs(60);

/// The earliest and the latest anchor of the present outage taints.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// The earliest.
    pub(super) first: Stamp,
    /// The latest.
    pub(super) last: Stamp,
}

impl Span {
    /// The span of `anchors`, or `None` if there are none.
    pub(super) fn of(anchors: impl Iterator<Item = Stamp>) -> Option<Self> {
        anchors.fold(None, |span, at| {
            let (first, last) = span.map_or((at, at), |span: Self| (span.first, span.last));
            Some(Self { first: first.min(at), last: last.max(at) })
        })
    }
}

/// The outage that the node is in at `now`.
pub(super) fn advance(
    past: Past<'_>,
    present: Option<Span>,
    ready: Ready,
    now: Timestamp,
) -> Option<Outage> {
    match (ongoing(past, present, ready, now), present) {
        (Some(outage), Some(span)) => Some(Outage {
            since: outage.since.min(span.first),
            through: outage.through.max(span.last),
            gap_from: None,
        }),
        (None, Some(span)) => {
            Some(Outage { since: span.first, through: span.last, gap_from: None })
        }
        (Some(outage), None) => Some(Outage { gap_from: outage.gap_from.or(Some(now)), ..outage }),
        (None, None) => None,
    }
}

/// The past outage, if it continues.
fn ongoing(past: Past<'_>, present: Option<Span>, ready: Ready, now: Timestamp) -> Option<Outage> {
    let recovered = ready.status == ConditionStatus::True;
    match past {
        Past::Unknown => None,
        Past::Watched(anchors) => anchors.outage.filter(|outage| match outage.gap_from {
            None => present.is_some() || !recovered,
            Some(from) => !recovered && is_short(from, now),
        }),
        Past::Recorded(anchors) => {
            let mut outage = anchors.outage?;
            // A record proves nothing about the time after it was written. Its times are from other
            // machines' clocks.
            let newest = now.saturating_add(CLOCKS_APART).unwrap_or(now);
            outage.through = outage.through.min(Stamp::exact(newest));
            let proven = |stamp: Stamp| stamp <= outage.through;
            let same_taint = present.is_some_and(|span| proven(span.first));
            let same_ready = !recovered && ready.since.is_some_and(proven);
            let gap = outage.gap_from.is_none_or(|from| is_short(from, now));
            (gap && (same_taint || same_ready)).then_some(outage)
        }
    }
}

/// Whether a gap is short enough. If the clock went backwards since, its length is unknown, so it counts
/// as long.
fn is_short(from: Timestamp, now: Timestamp) -> bool {
    let length = now.duration_since(from);
    !length.is_negative() && length < LONGEST_GAP
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Anchors;
    use crate::model::build::{at, stamp};
    use ConditionStatus::{False, True, Unknown};

    fn outage(since: i64, through: i64, gap_from: Option<i64>) -> Outage {
        Outage { since: stamp(since), through: stamp(through), gap_from: gap_from.map(at) }
    }

    fn anchors(outage: Outage) -> Anchors {
        Anchors { first_seen: Vec::new(), outage: Some(outage) }
    }

    fn taints(seconds: &[i64]) -> Option<Span> {
        Span::of(seconds.iter().map(|seconds| stamp(*seconds)))
    }

    fn ready(status: ConditionStatus, since: i64) -> Ready {
        Ready { status, since: Some(stamp(since)) }
    }

    fn watched(past: Outage, present: &[i64], ready: Ready, now: i64) -> Option<Outage> {
        let past = anchors(past);
        advance(Past::Watched(&past), taints(present), ready, at(now))
    }

    fn recorded(past: Outage, present: &[i64], ready: Ready, now: i64) -> Option<Outage> {
        let past = anchors(past);
        advance(Past::Recorded(&past), taints(present), ready, at(now))
    }

    #[test]
    fn it_begins_with_the_earliest_taint_of_a_node_without_a_past() {
        let found = advance(Past::Unknown, taints(&[7, 3]), ready(False, 0), at(9));
        assert_eq!(found, Some(outage(3, 7, None)));
        let found = advance(Past::Unknown, None, ready(False, 0), at(9));
        assert_eq!(found, None);
    }

    #[test]
    fn it_goes_on_while_one_of_the_taints_is_there_whatever_ready_says() {
        for status in [False, Unknown, True] {
            let newer = watched(outage(0, 0, None), &[90], ready(status, 80), 91);
            assert_eq!(newer, Some(outage(0, 90, None)));
            let both = watched(outage(0, 0, None), &[0, 90], ready(status, 80), 91);
            assert_eq!(both, Some(outage(0, 90, None)));
            let same = watched(outage(0, 90, None), &[90], ready(status, 80), 91);
            assert_eq!(same, Some(outage(0, 90, None)));
        }
    }

    #[test]
    fn it_is_over_when_the_taint_goes_while_ready_is_true() {
        assert_eq!(watched(outage(0, 0, None), &[], ready(True, 80), 91), None);
    }

    #[test]
    fn a_gap_begins_when_the_taint_goes_while_ready_is_not_true() {
        for status in [False, Unknown] {
            let gap = watched(outage(0, 0, None), &[], ready(status, -5), 91);
            assert_eq!(gap, Some(outage(0, 0, Some(91))));
            let later = watched(outage(0, 0, Some(91)), &[], ready(status, -5), 120);
            assert_eq!(later, Some(outage(0, 0, Some(91))));
        }
    }

    #[test]
    fn ready_in_a_gap_ends_it_at_once() {
        let gap = outage(0, 0, Some(91));
        assert_eq!(watched(gap, &[], ready(True, 92), 92), None);
        let back = watched(gap, &[93], ready(True, 92), 94);
        assert_eq!(back, Some(outage(93, 93, None)));
    }

    #[test]
    fn a_gap_of_59_s_does_not_break_it_and_one_of_60_s_does() {
        let gap = outage(0, 0, Some(100));
        let unready = ready(False, -5);
        assert_eq!(watched(gap, &[159], unready, 159), Some(outage(0, 159, None)));
        assert_eq!(watched(gap, &[159], unready, 160), Some(outage(159, 159, None)));
        assert_eq!(watched(gap, &[], unready, 159), Some(gap));
        assert_eq!(watched(gap, &[], unready, 160), None);
    }

    #[test]
    fn a_clock_that_went_backwards_in_a_gap_breaks_it() {
        let gap = outage(0, 0, Some(100));
        assert_eq!(watched(gap, &[], ready(False, -5), 99), None);
        let back = watched(gap, &[98], ready(False, -5), 99);
        assert_eq!(back, Some(outage(98, 98, None)));
    }

    #[test]
    fn a_recorded_outage_goes_on_with_the_taint_that_was_recorded() {
        for status in [False, Unknown, True] {
            for stamp in [10, 50] {
                let found = recorded(outage(0, 50, None), &[stamp], ready(status, 70), 99);
                assert_eq!(found, Some(outage(0, 50, None)), "{status:?} {stamp}");
            }
            let both = recorded(outage(0, 50, None), &[50, 80], ready(status, 70), 99);
            assert_eq!(both, Some(outage(0, 80, None)));
        }
    }

    #[test]
    fn a_recorded_outage_goes_on_with_a_newer_taint_if_ready_has_not_changed_since() {
        for status in [False, Unknown] {
            for since in [-5, 50] {
                let found = recorded(outage(0, 50, None), &[80], ready(status, since), 99);
                assert_eq!(found, Some(outage(0, 80, None)));
            }
        }
    }

    #[test]
    fn a_newer_taint_begins_another_outage_if_ready_may_have_been_true_since() {
        let another = Some(outage(80, 80, None));
        let past = outage(0, 50, None);
        assert_eq!(recorded(past, &[80], ready(False, 51), 99), another);
        assert_eq!(recorded(past, &[80], ready(Unknown, 70), 99), another);
        assert_eq!(recorded(past, &[80], ready(True, -5), 99), another);
        let silent = Ready { status: Unknown, since: None };
        assert_eq!(recorded(past, &[80], silent, 99), another);
    }

    #[test]
    fn a_recorded_outage_without_a_taint_is_a_gap_only_if_ready_has_not_changed_since() {
        let past = outage(0, 50, None);
        let gap = Some(outage(0, 50, Some(99)));
        assert_eq!(recorded(past, &[], ready(False, -5), 99), gap);
        assert_eq!(recorded(past, &[], ready(False, 51), 99), None);
        assert_eq!(recorded(past, &[], ready(True, -5), 99), None);
        assert_eq!(recorded(past, &[], ready(True, 60), 99), None);
    }

    #[test]
    fn what_was_known_of_a_gap_before_a_hole_still_counts_against_it() {
        let past = outage(0, 50, Some(60));
        let unready = ready(False, -5);
        assert_eq!(recorded(past, &[], unready, 99), Some(past));
        assert_eq!(recorded(past, &[], unready, 120), None);
        let back = recorded(past, &[110], unready, 120);
        assert_eq!(back, Some(outage(110, 110, None)));
    }

    #[test]
    fn an_outage_goes_on_for_one_whose_clock_is_a_little_behind_those_that_stamped_it() {
        // The taints were swapped just now, by a clock that is 3 s ahead of this one.
        let past = outage(0, 103, None);
        assert_eq!(recorded(past, &[103], ready(Unknown, 103), 100), Some(past));
        assert_eq!(recorded(past, &[], ready(Unknown, 103), 100), Some(outage(0, 103, Some(100))));
    }

    #[test]
    fn a_record_from_the_future_vouches_for_nothing_after_now() {
        let forged = outage(0, 1_000_000, None);
        let another = Some(outage(80, 80, None));
        // Written at 70 at the latest, or it would know of the taint.
        assert_eq!(recorded(forged, &[80], ready(False, 76), 70), another);
        let future = outage(500, 1_000_000, None);
        let found = recorded(future, &[80], ready(False, 0), 99);
        assert_eq!(found, Some(outage(80, 104, None)));
    }
}
