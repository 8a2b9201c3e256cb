//! Claims, and what may happen to the object that carries them.

#![allow(
    clippy::float_cmp,
    clippy::unnecessary_wraps,
    reason = "seconds are whole milliseconds, and a lease may be absent"
)]

use super::*;

const LEASE: u64 = 5;
const POD: &str = "p_11111111-1111-1111-1111-111111111111_";

fn me() -> Identity {
    Identity::named(&format!("{POD}00000001"))
}

fn claim(holder: &str, version: u64) -> Option<Claim> {
    let duration = Duration::from_secs(LEASE);
    Some(Claim {
        holder: holder.to_owned(),
        duration,
        version: version.to_string(),
        claimed_by: Some(holder.to_owned()),
        released_by: None,
    })
}

/// The holder was written over that of another.
fn by_hand(claim: Option<Claim>) -> Option<Claim> {
    claim.map(|claim| Claim { claimed_by: Some("another".to_owned()), ..claim })
}

fn lasting(claim: Option<Claim>, seconds: u64) -> Option<Claim> {
    claim.map(|claim| Claim { duration: Duration::from_secs(seconds), ..claim })
}

fn released(by: &str, version: u64) -> Option<Claim> {
    claim("", version).map(|claim| Claim { released_by: Some(by.to_owned()), ..claim })
}

/// A candidate that reads the lease at these seconds. Returns from which second on it may write.
fn free_at(reads: &[(f64, Option<Claim>)]) -> f64 {
    let start = Instant::now();
    let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
    let (first, more) = reads.split_first().unwrap();
    let mut sight = Sight::first(first.1.clone(), &Times::default(), at(first.0));
    for (second, stored) in more {
        sight.update(stored.clone(), &me(), at(*second));
    }
    let last = at(reads.last().unwrap().0);
    let decide = |now| sight.decide(&me(), &Times::default(), now);
    let (takes, silent) = match decide(last) {
        Step::Try(silent) => (last, silent),
        Step::Wait(until) => {
            assert_eq!(decide(until - Duration::from_millis(1)), Step::Wait(until));
            let Step::Try(silent) = decide(until) else { panic!("it waits for nothing") };
            (until, silent)
        }
    };
    ((takes + silent - start).as_secs_f64() * 1e3).round() / 1e3
}

#[test]
fn a_claim_counts_from_when_its_version_was_seen_first() {
    let a = |version| claim("a", version);
    assert_eq!(free_at(&[(0.0, a(1))]), 5.0);
    assert_eq!(free_at(&[(0.0, a(1)), (3.0, a(1))]), 5.0);
    assert_eq!(free_at(&[(0.0, a(1)), (3.0, a(2))]), 8.0);
    assert_eq!(free_at(&[(0.0, a(1)), (3.0, a(2)), (9.0, a(2))]), 9.0);
}

#[test]
fn a_release_by_the_holder_is_taken_at_once() {
    assert_eq!(free_at(&[(0.0, claim("a", 1)), (1.0, released("a", 2))]), 1.0);
    assert_eq!(free_at(&[(0.0, released("a", 2))]), 0.0, "also by one that has just started");
}

#[test]
fn a_holder_that_is_emptied_by_another_hand_is_waited_out() {
    assert_eq!(free_at(&[(0.0, claim("a", 1)), (4.0, claim("", 2))]), 9.0);
    // A release that is not the holder's, as from an old copy of the object.
    assert_eq!(free_at(&[(0.0, claim("b", 3)), (4.0, released("a", 4))]), 9.0);
    assert_eq!(free_at(&[(0.0, claim("", 1)), (1.0, released("", 2))]), 6.0);
    // The store has gone back to a release of an earlier claim.
    assert_eq!(free_at(&[(0.0, claim("a", 9)), (4.0, released("a", 4))]), 9.0);
}

#[test]
fn a_deleted_lease_is_waited_out_and_so_is_one_that_was_created_again() {
    // Two seconds for its holder to claim it again, and a lease for what the holder may have claimed
    // since the last look.
    assert_eq!(free_at(&[(0.0, claim("a", 1)), (4.0, None)]), 11.0);
    assert_eq!(free_at(&[(0.0, claim("a", 1)), (4.0, None), (5.0, None)]), 11.0);
    assert_eq!(free_at(&[(0.0, lasting(claim("a", 1), 30)), (1.0, None)]), 33.0);
    assert_eq!(free_at(&[(0.0, None)]), 7.0, "one that has just started may have missed the claim");
    assert_eq!(
        free_at(&[(0.0, None), (60.0, None)]),
        65.0,
        "created and deleted between two looks"
    );
    assert_eq!(free_at(&[(0.0, claim("a", 1)), (4.0, None), (6.0, claim("", 9))]), 11.0);
    assert_eq!(free_at(&[(0.0, claim("a", 1)), (4.0, None), (6.0, claim("a", 9))]), 11.0);
    // Ours, of which the answer was lost.
    let ours = claim(me().as_str(), 9);
    assert_eq!(free_at(&[(0.0, None), (60.0, None), (61.0, ours)]), 66.0);
    assert_eq!(free_at(&[(0.0, None), (1.0, claim("b", 1)), (2.0, released("b", 2))]), 6.0);
}

#[test]
fn a_duration_that_is_shortened_absent_or_absurd_shortens_nothing_and_blocks_for_no_longer_than_plausible()
 {
    let long = lasting(claim("a", 1), 30);
    for seconds in [0, 1, 5] {
        let edited = lasting(claim("a", 2), seconds);
        assert_eq!(free_at(&[(0.0, long.clone()), (1.0, edited)]), 31.0, "{seconds}");
        assert_eq!(free_at(&[(0.0, lasting(claim("a", 1), seconds))]), 5.0, "at least our own");
    }
    assert_eq!(free_at(&[(0.0, claim("a", 1)), (1.0, lasting(claim("a", 2), u64::MAX))]), 301.0);
}

#[test]
fn another_holder_written_by_hand_ends_no_claim() {
    // Who is written in may even release: the first one does not know yet.
    assert_eq!(free_at(&[(0.0, claim("a", 1)), (2.0, claim("b", 2))]), 7.0);
    let edited = [(0.0, claim("a", 1)), (2.0, claim("b", 2)), (3.0, released("b", 3))];
    assert_eq!(free_at(&edited), 7.0);
    let mine = [(0.0, claim("a", 1)), (2.0, by_hand(claim(me().as_str(), 2)))];
    assert_eq!(free_at(&mine), 7.0, "our own name by another hand is no claim of ours");
}

#[test]
fn our_own_name_counts_only_where_we_may_have_written_it() {
    // Another may have taken what was released before someone wrote our name over it.
    let forged =
        [(0.0, claim("a", 1)), (1.0, released("a", 2)), (3.0, by_hand(claim(me().as_str(), 4)))];
    assert_eq!(free_at(&forged), 8.0);
    // The answer to our own claim was lost.
    assert_eq!(free_at(&[(0.0, released("a", 2)), (1.0, claim(me().as_str(), 3))]), 1.0);
    // The name of our pod, over the claim of another.
    let before = format!("{POD}00000000");
    assert_eq!(free_at(&[(0.0, by_hand(claim(&before, 1)))]), 5.0);
}

#[test]
fn one_who_took_over_in_time_may_release_at_once() {
    let reads = [(0.0, claim("a", 1)), (5.5, claim("b", 2)), (6.0, released("b", 3))];
    assert_eq!(free_at(&reads), 6.0);
}

#[test]
fn a_claim_of_the_same_pod_is_taken_at_once_unless_another_may_still_write() {
    let before = format!("{POD}00000000");
    assert_eq!(free_at(&[(0.0, claim(&before, 1))]), 0.0);
    assert_eq!(free_at(&[(0.0, claim("a", 1)), (1.0, claim(&before, 2))]), 6.0);
    assert_eq!(free_at(&[(0.0, claim("p_2_00000000", 1))]), 5.0, "another pod of that name");
}

#[test]
fn a_claim_that_was_lost_is_taken_again_at_once_unless_another_has_it() {
    let now = Instant::now();
    let later = |seconds| now + Duration::from_secs(seconds);
    let own = claim(me().as_str(), 7).unwrap();
    let mut sight = Sight::own(own, &Times::default(), None, now);
    let at_once = Step::Try(Duration::ZERO);
    let decide = |sight: &Sight, now| sight.decide(&me(), &Times::default(), now);
    assert_eq!(decide(&sight, now), at_once);
    // The answer to the last renewal was lost, and it was stored.
    sight.update(claim(me().as_str(), 8), &me(), later(9));
    assert_eq!(decide(&sight, later(9)), at_once);
    sight.update(claim("b", 9), &me(), later(10));
    assert_eq!(decide(&sight, later(10)), Step::Wait(later(15)));
    sight.update(released("b", 10), &me(), later(11));
    assert_eq!(decide(&sight, later(11)), at_once, "our own old claim holds nobody up");
}

#[test]
fn whoever_loses_a_lease_while_it_waits_for_an_older_claim_goes_on_waiting() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let times = Times::default();
    let mine = || claim(me().as_str(), 1).unwrap();
    let mut sight = Sight::own(mine(), &times, Some(at(15)), at(3));
    assert_eq!(sight.decide(&me(), &times, at(3)), Step::Wait(at(15)));
    assert_eq!(sight.decide(&me(), &times, at(15)), Step::Try(Duration::ZERO));
    sight.update(None, &me(), at(4));
    assert_eq!(sight.decide(&me(), &times, at(6)), Step::Try(Duration::from_secs(9)));
    let sight = Sight::own(mine(), &times, None, at(3));
    assert_eq!(sight.decide(&me(), &times, at(3)), Step::Try(Duration::ZERO));
}
