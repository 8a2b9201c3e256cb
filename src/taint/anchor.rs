//! Anchors: the times from which `tolerationSeconds` count.
//!
//! A taint with `timeAdded` is its own anchor. Two kinds of taints need memory: those without
//! `timeAdded`, or with one in the future, count from when they were first seen; the two outage taints
//! count from the start of the outage (see the module `outage`). This memory is [`Anchors`]. It is
//! computed from its predecessor and the next version of the node. The caller keeps it while it watches
//! the node; [`record`] carries it across restarts.
//!
//! An anchor must never be earlier than its taint, because pods would be evicted early. In doubt, it is
//! later.
//!
//! [`record`]: super::record

use jiff::{SignedDuration, Timestamp};

use crate::model::{Anchor, AnchorSource, Anchors, FirstSeen, Node, Outage, Stamp, Taint};

use super::matching::no_execute;
use super::outage::{self, LONGEST_GAP, Span};

/// The clocks of a cluster's machines may be apart by so much without anyone setting them right: what
/// one learns of another is in whole seconds, and travels. What one of them has recorded must then count on another as it stands: a record that changes with who
/// reads it would move deadlines at each change of leaders.
pub const CLOCKS_APART: SignedDuration = SignedDuration::from_secs(5);

/// What is known of a node from before this version.
///
/// It is either memory or a record, never both: a record only counts without unbroken memory, so that
/// editing it on a watched node moves no deadline.
#[derive(Clone, Copy, Debug)]
pub enum Past<'a> {
    /// Nothing: the node is new to us and has no readable record.
    Unknown,
    /// The node is new to us, or versions may have been missed (a relist): these are the anchors of its
    /// record, or those known before the gap.
    Recorded(&'a Anchors),
    /// The anchors at the previous version, with none missed in between.
    Watched(&'a Anchors),
}

impl<'a> Past<'a> {
    /// The past of a node that is first seen with this record.
    pub fn recorded(record: Option<&'a Anchors>) -> Self {
        record.map_or(Self::Unknown, Self::Recorded)
    }

    /// When a taint was first seen, if it was present before.
    fn first_sight(self, taint: &Taint, now: Timestamp) -> Option<Stamp> {
        match self {
            Self::Unknown => None,
            Self::Watched(anchors) => first_sight(anchors, taint),
            Self::Recorded(anchors) => first_sight(anchors, taint)
                .map(|since| if is_nonsense(since, now) { Stamp::exact(now) } else { since }),
        }
    }
}

/// The anchors at this version of `node`, first seen at `now`.
///
/// Call it with every version of a node, in order, and again with the same version at
/// [`gap_deadline`]. A node that is registered again with another UID is another node.
pub fn advance(past: Past<'_>, node: &Node, now: Timestamp) -> Anchors {
    let remembered = |taint: &Taint| {
        let known = past.first_sight(taint, now);
        // It cannot have been added later than it was seen.
        let is_plausible = taint.time_added.is_some_and(|added| added.written() <= now);
        (known.is_some() || !is_plausible).then(|| FirstSeen {
            key: taint.key.clone(),
            value: taint.value.clone(),
            added: taint.time_added,
            since: known.unwrap_or(Stamp::exact(now)),
        })
    };
    let mut first_seen: Vec<_> = no_execute(&node.taints).filter_map(remembered).collect();
    // Sorted, so that taints which change places do not change the record.
    first_seen.sort_unstable_by(|a, b| (&a.key, &a.value).cmp(&(&b.key, &b.value)));
    first_seen.dedup_by(|a, b| a.key == b.key && a.value == b.value);
    let mut anchors = Anchors { first_seen, outage: None };
    let outage_taints = no_execute(&node.taints).filter(|taint| taint.is_outage());
    let present = Span::of(outage_taints.map(|taint| own(&anchors, taint).at));
    anchors.outage = outage::advance(past, present, node.ready, now);
    anchors
}

/// A standby's anchors after the leader has written this record: those of the record, plus what only
/// memory knows.
///
/// Two replicas first see a taint at different times, but after a takeover the same times must count.
/// Use the result as [`Past::Recorded`].
pub fn adopted(memory: &Anchors, record: &Anchors) -> Anchors {
    let mut first_seen = record.first_seen.clone();
    let same =
        |a: &FirstSeen, b: &FirstSeen| (&a.key, &a.value, a.added) == (&b.key, &b.value, b.added);
    let unrecorded =
        memory.first_seen.iter().filter(|seen| !record.first_seen.iter().any(|r| same(r, seen)));
    first_seen.extend(unrecorded.cloned());
    let gap_from = memory.outage.and_then(|outage| outage.gap_from);
    let outage = record.outage.map(|outage| Outage { gap_from, ..outage }).or(memory.outage);
    Anchors { first_seen, outage }
}

/// Corrects the anchors when the clock is set from `kept` to `right` and may have been wrong since
/// `doubtful`: times first seen since then move by the same amount, but never into the future.
/// So does an outage that began with such a first sight.
pub fn set_right(
    anchors: &Anchors,
    doubtful: Timestamp,
    kept: Timestamp,
    right: Timestamp,
) -> Anchors {
    let behind = right.duration_since(kept).max(SignedDuration::ZERO);
    let moved = |seen: Timestamp| {
        let seen =
            if seen >= doubtful { seen.saturating_add(behind).unwrap_or(right) } else { seen };
        seen.min(right)
    };
    let mut anchors = anchors.clone();
    for seen in &mut anchors.first_seen {
        seen.since = Stamp::exact(moved(seen.since.latest()));
    }
    if let Some(outage) = &mut anchors.outage {
        // What the taints say themselves stays: it is another clock's.
        for stamp in [&mut outage.since, &mut outage.through] {
            if !stamp.is_of_second() {
                *stamp = Stamp::exact(moved(stamp.latest()));
            }
        }
        // A gap that began in the future counts as long.
        outage.gap_from =
            outage.gap_from.map(|from| if from <= right { moved(from) } else { from });
    }
    anchors
}

/// From when the `tolerationSeconds` for `taint` count, on a node with these `anchors`.
///
/// A taint that the anchors do not contain (they are of another version of the node) counts from the end
/// of time: it evicts no pod until the anchors are advanced.
pub fn since(anchors: &Anchors, taint: &Taint) -> Anchor {
    let own = own(anchors, taint);
    match anchors.outage {
        Some(outage) if outage.gap_from.is_none() && outage.since < own.at && taint.is_outage() => {
            Anchor { at: outage.since, source: AnchorSource::Outage }
        }
        _ => own,
    }
}

/// When the anchors must be advanced again even if the node does not change: when a gap in an outage
/// becomes too long, so that its record is removed in time.
pub fn gap_deadline(anchors: &Anchors) -> Option<Timestamp> {
    let from = anchors.outage?.gap_from?;
    Some(from.saturating_add(LONGEST_GAP).unwrap_or(Timestamp::MAX))
}

/// Whether a restart would lose the anchor of `taint` unless it is recorded: now, or as soon as the node
/// lifecycle controller adds the taint again.
pub(super) fn needs_record(anchors: &Anchors, taint: &Taint) -> bool {
    taint.is_outage() || seen_of(anchors, taint).any(is_lasting)
}

/// Whether the first sight of the taint counts: it has no `timeAdded`, or one that is further in the
/// future than clocks may differ.
pub(super) fn is_lasting(seen: &FirstSeen) -> bool {
    let ahead = |added: Stamp| added.written().duration_since(seen.since.latest());
    seen.added.is_none_or(|added| ahead(added) > CLOCKS_APART)
}

/// The anchor of a taint, ignoring outages.
fn own(anchors: &Anchors, taint: &Taint) -> Anchor {
    let sight = first_sight(anchors, taint);
    match taint.time_added {
        Some(at) if sight.is_none_or(|sight| at <= sight) => {
            Anchor { at, source: AnchorSource::TimeAdded }
        }
        _ => Anchor {
            at: sight.unwrap_or(Stamp::exact(Timestamp::MAX)),
            source: AnchorSource::FirstSeen,
        },
    }
}

/// Whether a recorded time is so far in the future that it comes from a wrong clock.
fn is_nonsense(recorded: Stamp, now: Timestamp) -> bool {
    recorded.latest().duration_since(now) > CLOCKS_APART
}

/// The entry for this taint. A taint with another `timeAdded` is another taint.
fn seen_of<'a>(anchors: &'a Anchors, taint: &'a Taint) -> impl Iterator<Item = &'a FirstSeen> {
    let same = move |seen: &&FirstSeen| {
        seen.key == taint.key && seen.value == taint.value && seen.added == taint.time_added
    };
    anchors.first_seen.iter().filter(same)
}

fn first_sight(anchors: &Anchors, taint: &Taint) -> Option<Stamp> {
    seen_of(anchors, taint).map(|seen| seen.since).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::build::{at, node, not_ready, stamp, taint, unreachable};
    use crate::model::{ConditionStatus, Effect};

    fn seen(key: &str, value: &str, seconds: i64) -> FirstSeen {
        FirstSeen { key: key.into(), value: value.into(), added: None, since: stamp(seconds) }
    }

    fn sights(first_seen: Vec<FirstSeen>) -> Anchors {
        Anchors { first_seen, outage: None }
    }

    #[test]
    fn a_taint_with_time_added_needs_no_memory() {
        let tainted = taint("k", "v").added_at(-30);
        let node = node("n1").tainted(tainted.clone());
        let anchors = advance(Past::Unknown, &node, at(0));
        assert_eq!(anchors, Anchors::default());
        let anchor = since(&anchors, &tainted);
        assert_eq!((anchor.at, anchor.source), (stamp(-30), AnchorSource::TimeAdded));
    }

    #[test]
    fn a_taint_without_time_added_counts_from_its_first_sight() {
        let node = node("n1").tainted(taint("k", "v"));
        let first = advance(Past::Unknown, &node, at(0));
        assert_eq!(first, sights(vec![seen("k", "v", 0)]));
        let second = advance(Past::Watched(&first), &node, at(500));
        assert_eq!(second, first);
        let anchor = since(&second, &taint("k", "v"));
        assert_eq!((anchor.at, anchor.source), (stamp(0), AnchorSource::FirstSeen));
    }

    #[test]
    fn one_that_stands_by_counts_as_the_leader_has_recorded() {
        let memory = sights(vec![seen("k", "", 3), seen("new", "", 9)]);
        let record = Anchors {
            first_seen: vec![seen("k", "", 1), seen("gone", "", 0)],
            outage: Some(Outage { since: stamp(2), through: stamp(5), gap_from: None }),
        };
        let adopted = adopted(&memory, &record);
        let node = node("n1").tainted(taint("k", "")).tainted(taint("new", ""));
        let anchors = advance(Past::Recorded(&adopted), &node, at(10));
        assert_eq!(anchors.first_seen, [seen("k", "", 1), seen("new", "", 9)]);
        assert_eq!(adopted.outage, record.outage);
        let gap = Outage { since: stamp(4), through: stamp(5), gap_from: Some(at(8)) };
        let memory = Anchors { outage: Some(gap), ..memory };
        let both = super::adopted(&memory, &record).outage.unwrap();
        assert_eq!((both.since, both.gap_from), (stamp(2), Some(at(8))));
        assert_eq!(super::adopted(&memory, &sights(vec![])).outage, Some(gap));
    }

    /// A taint that was put on so many seconds after noon, as the API stores it.
    fn stored(second: i64) -> Taint {
        Taint { time_added: Some(Stamp::of_second(at(second))), ..taint("k", "v") }
    }

    fn after(millisecond: i64) -> Timestamp {
        at(0) + SignedDuration::from_millis(millisecond)
    }

    #[test]
    fn a_taint_from_the_future_counts_from_its_first_sight_until_it_is_another_one() {
        let far = node("n1").tainted(stored(2_000_000_000));
        let first = advance(Past::Unknown, &far, after(500));
        let anchor = since(&first, &far.taints[0]);
        let seen = Stamp::exact(after(500));
        assert_eq!((anchor.at, anchor.source), (seen, AnchorSource::FirstSeen));
        for past in [Past::Watched(&first), Past::Recorded(&first)] {
            assert_eq!(advance(past, &far, at(900)), first);
        }
        let anew = node("n1").tainted(stored(2_000_000_001));
        let other = advance(Past::Watched(&first), &anew, at(900));
        assert_eq!(since(&other, &anew.taints[0]).at, stamp(900));
        assert_eq!(since(&first, &anew.taints[0]).source, AnchorSource::TimeAdded);
    }

    #[test]
    fn a_first_sight_in_place_of_a_stamp_is_kept_although_the_stamp_has_come_by_now() {
        let ahead = node("n1").tainted(stored(60));
        let first = advance(Past::Unknown, &ahead, after(500));
        let later = advance(Past::Watched(&first), &ahead, at(100));
        assert_eq!(since(&later, &ahead.taints[0]).at, Stamp::exact(after(500)));
    }

    #[test]
    fn a_stamp_of_this_very_second_counts_as_its_end_and_needs_no_memory() {
        let tainted = node("n1").tainted(stored(0));
        for millisecond in [0, 1, 999] {
            let anchors = advance(Past::Unknown, &tainted, after(millisecond));
            assert_eq!(anchors, Anchors::default());
            let anchor = since(&anchors, &tainted.taints[0]);
            assert_eq!(anchor.at.latest(), at(0) + SignedDuration::from_nanos(999_999_999));
            assert_eq!(anchor.source, AnchorSource::TimeAdded);
        }
    }

    #[test]
    fn another_value_is_another_taint() {
        let first = sights(vec![seen("k", "v", 0)]);
        let node = node("n1").tainted(taint("k", "w"));
        let anchors = advance(Past::Watched(&first), &node, at(9));
        assert_eq!(anchors, sights(vec![seen("k", "w", 9)]));
    }

    #[test]
    fn a_taint_that_goes_and_comes_back_is_seen_for_the_first_time_again() {
        let tainted = node("n1").tainted(taint("k", "v"));
        let there = advance(Past::Unknown, &tainted, at(0));
        let gone = advance(Past::Watched(&there), &node("n1"), at(10));
        assert_eq!(gone, Anchors::default());
        let back = advance(Past::Watched(&gone), &tainted, at(11));
        assert_eq!(back, sights(vec![seen("k", "v", 11)]));
    }

    #[test]
    fn other_effects_are_not_remembered() {
        let node = node("n1").tainted(taint("k", "v").with(Effect::NoSchedule));
        assert_eq!(advance(Past::Unknown, &node, at(0)), Anchors::default());
    }

    #[test]
    fn taints_that_change_places_do_not_change_the_anchors() {
        let (a, b) = (taint("a", ""), taint("b", ""));
        let one_way = node("n1").tainted(a.clone()).tainted(b.clone());
        let other_way = node("n1").tainted(b).tainted(a);
        let first = advance(Past::Unknown, &one_way, at(0));
        assert_eq!(advance(Past::Watched(&first), &other_way, at(5)), first);
    }

    #[test]
    fn a_record_counts_at_the_first_sight_of_the_node() {
        let node = node("n1").tainted(taint("k", "v")).tainted(taint("new", ""));
        let record = sights(vec![
            seen("gone", "", -900),
            seen("k", "other", -800),
            seen("k", "v", -300),
            seen("k", "v", -400),
        ]);
        let anchors = advance(Past::Recorded(&record), &node, at(0));
        assert_eq!(anchors, sights(vec![seen("k", "v", -400), seen("new", "", 0)]));
    }

    #[test]
    fn a_record_from_the_future_is_nonsense_and_now_counts() {
        let node = node("n1").tainted(taint("k", "v"));
        let record = sights(vec![seen("k", "v", 3600)]);
        let anchors = advance(Past::Recorded(&record), &node, at(0));
        assert_eq!(anchors, sights(vec![seen("k", "v", 0)]));
    }

    #[test]
    fn a_record_of_a_machine_whose_clock_is_a_little_ahead_counts_as_it_stands() {
        let node = node("n1").tainted(taint("k", "v"));
        for ahead in [0, 3, 5] {
            let record = sights(vec![seen("k", "v", ahead)]);
            assert_eq!(advance(Past::Recorded(&record), &node, at(0)), record);
        }
        let record = sights(vec![seen("k", "v", 6)]);
        let anchors = advance(Past::Recorded(&record), &node, at(0));
        assert_eq!(anchors, sights(vec![seen("k", "v", 0)]));
    }

    #[test]
    fn what_was_seen_by_a_clock_that_was_behind_is_set_right_with_it_and_nothing_else_is() {
        let anchors = sights(vec![seen("old", "", -500), seen("k", "", 1), seen("now", "", 2)]);
        let forward = set_right(&anchors, at(0), at(2), at(3602));
        let expected = vec![seen("old", "", -500), seen("k", "", 3601), seen("now", "", 3602)];
        assert_eq!(forward, sights(expected));
        let ahead = sights(vec![seen("k", "", 3600), seen("old", "", -500)]);
        let back = set_right(&ahead, at(-1000), at(3600), at(0));
        assert_eq!(back, sights(vec![seen("k", "", 0), seen("old", "", -500)]));
    }

    #[test]
    fn an_outage_that_was_seen_by_a_clock_that_was_behind_is_set_right_with_its_first_sight() {
        let ahead = unreachable(3600);
        let node = node("n1").tainted(ahead.clone()).ready_is(ConditionStatus::Unknown, 3590);
        let seen = advance(Past::Unknown, &node, at(2));
        assert_eq!(since(&seen, &ahead).at, Stamp::exact(at(2)));
        let right = set_right(&seen, at(0), at(10), at(3610));
        assert_eq!(since(&right, &ahead).at, stamp(3600), "by its own word, and no earlier");
        let outage = right.outage.unwrap();
        assert_eq!((outage.since, outage.through), (stamp(3602), stamp(3602)));
        // What the taint says itself was never in doubt.
        let stored = Taint { time_added: Some(Stamp::of_second(at(1))), ..unreachable(1) };
        let plain = advance(Past::Unknown, &self::node("n1").tainted(stored), at(2));
        assert_eq!(set_right(&plain, at(0), at(10), at(3610)), plain);
    }

    #[test]
    fn a_memory_from_the_future_is_kept_since_the_clock_may_go_right_again() {
        let node = node("n1").tainted(taint("k", "v"));
        let memory = sights(vec![seen("k", "v", 3600)]);
        let anchors = advance(Past::Watched(&memory), &node, at(0));
        assert_eq!(anchors, memory);
    }

    #[test]
    fn an_outage_taint_without_time_added_counts_from_its_first_sight() {
        let bare = taint(Taint::UNREACHABLE, "");
        let node = node("n1").ready_is(ConditionStatus::Unknown, -5);
        let first = advance(Past::Unknown, &node.clone().tainted(bare.clone()), at(0));
        assert_eq!(first.first_seen, [seen(Taint::UNREACHABLE, "", 0)]);
        assert_eq!(first.outage.map(|outage| outage.since), Some(stamp(0)));

        let gap = advance(Past::Watched(&first), &node, at(10));
        assert_eq!(gap.first_seen, []);
        let back = advance(Past::Watched(&gap), &node.tainted(bare.clone()), at(20));
        assert_eq!(back.first_seen, [seen(Taint::UNREACHABLE, "", 20)]);
        let anchor = since(&back, &bare);
        assert_eq!((anchor.at, anchor.source), (stamp(0), AnchorSource::Outage));
    }

    #[test]
    fn the_first_taint_of_an_outage_is_its_own_anchor() {
        let node = node("n1").tainted(not_ready(0)).tainted(unreachable(8));
        let anchors = advance(Past::Unknown, &node, at(9));
        let anchor = since(&anchors, &not_ready(0));
        assert_eq!((anchor.at, anchor.source), (stamp(0), AnchorSource::TimeAdded));
        let anchor = since(&anchors, &unreachable(8));
        assert_eq!((anchor.at, anchor.source), (stamp(0), AnchorSource::Outage));
    }

    #[test]
    fn the_outage_of_a_gap_is_no_anchor_before_the_return_was_looked_at() {
        let gap = Anchors {
            first_seen: Vec::new(),
            outage: Some(Outage { since: stamp(0), through: stamp(0), gap_from: Some(at(50)) }),
        };
        let anchor = since(&gap, &not_ready(70));
        assert_eq!((anchor.at, anchor.source), (stamp(70), AnchorSource::TimeAdded));
    }

    #[test]
    fn a_gap_is_to_be_looked_at_when_it_has_become_too_long() {
        let gap = |gap_from| Anchors {
            first_seen: Vec::new(),
            outage: Some(Outage { since: stamp(0), through: stamp(0), gap_from }),
        };
        assert_eq!(gap_deadline(&gap(Some(at(100)))), Some(at(160)));
        assert_eq!(gap_deadline(&gap(None)), None);
        assert_eq!(gap_deadline(&Anchors::default()), None);
        let end = gap_deadline(&gap(Some(Timestamp::MAX)));
        assert_eq!(end, Some(Timestamp::MAX));
    }
}
