use std::sync::Arc;

use super::*;
use crate::drain::build::{kept, policy};
use crate::drain::{Claim, Cordon, Limits, Window};
use crate::model::Node;
use crate::model::build::at;

/// A node budget with these nodes.
fn node_budget(nodes: &[Node]) -> NodeBudget {
    let mut by_zone = policy("p", &["Bad"]);
    by_zone.pace.caps = vec![Cap { scope: label("zone"), limit: Limit::Count(1) }];
    let mut node_budget = NodeBudget::new(&[by_zone]);
    for node in nodes {
        see(&mut node_budget, node);
    }
    node_budget
}

fn see(node_budget: &mut NodeBudget, node: &Node) {
    let drain_facts = node.drain_facts.as_deref().unwrap();
    node_budget.see(&node.name, drain_facts, Record::of(drain_facts).as_ref());
}

fn nodes(count: usize) -> Vec<Node> {
    (0..count).map(|n| kept(&format!("n{n}"))).collect()
}

fn label(key: &str) -> CapScope {
    CapScope::Label(Arc::from(key))
}

fn all(limit: Limit) -> Vec<Cap> {
    vec![Cap { scope: CapScope::Cluster, limit }]
}

fn grant(node_budget: &mut NodeBudget, name: &str, caps: &[Cap], now: i64) -> bool {
    node_budget.grant(&name.into(), Autoscaler::None, caps, at(now)).is_ok()
}

#[test]
fn without_a_cap_everybody_may() {
    let mut node_budget = node_budget(&nodes(5));
    for n in 0..5 {
        assert!(grant(&mut node_budget, &format!("n{n}"), &[], 0));
    }
}

#[test]
fn cordons_of_others_count_and_so_do_grants_that_are_not_seen_yet() {
    let mut nodes = nodes(5);
    nodes[4] = nodes[4].clone().unschedulable(true);
    let mut node_budget = node_budget(&nodes);
    let cap = all(Limit::Count(3));
    assert!(grant(&mut node_budget, "n0", &cap, 0) && grant(&mut node_budget, "n1", &cap, 0));
    assert!(grant(&mut node_budget, "n0", &cap, 0), "it has its grant already");
    let refused = node_budget.grant(&"n2".into(), Autoscaler::None, &cap, at(0)).unwrap_err();
    assert_eq!(refused.to_string(), "3 of 5 nodes are unavailable; the limit is 3");
    assert_eq!((node_budget.unavailable(), node_budget.waiting()), ((3, 5), 1));
    see(&mut node_budget, &nodes[0].clone().unschedulable(true));
    assert_eq!(node_budget.unavailable(), (3, 5), "seen, and not counted twice");
    see(&mut node_budget, &nodes[0]);
    assert!(grant(&mut node_budget, "n2", &cap, 1), "n0 is back in use");
    assert_eq!(node_budget.waiting(), 0);
}

#[test]
fn a_grant_that_is_given_back_or_never_shows_is_free_again() {
    let mut node_budget = node_budget(&nodes(3));
    let cap = all(Limit::Count(1));
    assert!(grant(&mut node_budget, "n0", &cap, 0));
    assert!(!grant(&mut node_budget, "n1", &cap, 0));
    node_budget.give_back(&"n0".into());
    assert!(grant(&mut node_budget, "n1", &cap, 1));
    assert!(!grant(&mut node_budget, "n2", &cap, 121), "n1 may be cordoned by now");
    assert!(grant(&mut node_budget, "n2", &cap, 122));
}

#[test]
fn a_node_that_is_gone_does_not_count_any_more() {
    let mut nodes = nodes(2);
    nodes[0] = nodes[0].clone().unschedulable(true);
    let mut node_budget = node_budget(&nodes);
    let cap = all(Limit::Count(1));
    assert!(!grant(&mut node_budget, "n1", &cap, 0));
    node_budget.forget(&"n0".into());
    assert_eq!(node_budget.unavailable(), (0, 1));
    assert!(grant(&mut node_budget, "n1", &cap, 0));
}

#[test]
fn a_percentage_is_rounded_down_but_the_first_one_always_may() {
    for (total, part, may) in [(7, 75, 5), (7, 40, 2), (7, 10, 1), (2, 100, 2), (4, 0, 1)] {
        let mut node_budget = node_budget(&nodes(total));
        let cap = all(Limit::Percent(part));
        let granted =
            (0..total).filter(|n| grant(&mut node_budget, &format!("n{n}"), &cap, 0)).count();
        assert_eq!(granted, may, "{part} % of {total}");
    }
}

#[test]
fn no_node_may_where_none_may() {
    assert!(!grant(&mut node_budget(&nodes(3)), "n0", &all(Limit::Count(0)), 0));
}

#[test]
fn a_drain_that_overran_gives_its_place_back_but_no_more_do_than_there_are() {
    let claims = vec![Claim { policy: Arc::from("p"), conditions: Vec::new() }];
    let record = Record::new(Arc::from("1"), Cordon::Ours, claims);
    let overran = Record { phase: DrainPhase::Failed, failures: 1, overran: true, ..record };
    let stuck = |n| kept(&format!("n{n}")).unschedulable(true).recorded(Some(&overran));
    let cap = all(Limit::Count(2));
    let mut node_budget = node_budget(&nodes(8));
    see(&mut node_budget, &stuck(0));
    assert!(grant(&mut node_budget, "n1", &cap, 0) && grant(&mut node_budget, "n2", &cap, 0));
    assert!(!grant(&mut node_budget, "n3", &cap, 0), "two others are unavailable");
    assert_eq!(node_budget.unavailable(), (3, 8), "it is unavailable all the same");
    for n in [1, 2, 3] {
        see(&mut node_budget, &stuck(n));
    }
    assert!(
        !grant(&mut node_budget, "n4", &cap, 0),
        "four are stuck, and two gave their places back"
    );
    see(&mut node_budget, &kept("n0"));
    see(&mut node_budget, &kept("n1"));
    assert!(grant(&mut node_budget, "n4", &cap, 0) && grant(&mut node_budget, "n5", &cap, 0));
    node_budget.forget(&"n2".into());
    node_budget.forget(&"n3".into());
    assert_eq!(node_budget.unavailable(), (2, 6));
}

#[test]
fn a_cap_by_label_counts_the_nodes_with_the_same_value() {
    let zone = |name, zone| kept(name).labelled(&[("zone", zone)]);
    let mut node_budget =
        node_budget(&[zone("a0", "a"), zone("a1", "a"), zone("b0", "b"), kept("c0"), kept("c1")]);
    let caps = [Cap { scope: label("zone"), limit: Limit::Count(1) }];
    assert!(grant(&mut node_budget, "a0", &caps, 0));
    let refused = node_budget.grant(&"a1".into(), Autoscaler::None, &caps, at(0)).unwrap_err();
    assert_eq!(refused.to_string(), "1 of 2 nodes with zone=a are unavailable; the limit is 1");
    assert!(grant(&mut node_budget, "b0", &caps, 0), "another zone");
    assert!(grant(&mut node_budget, "c0", &caps, 0), "no zone");
    assert!(!grant(&mut node_budget, "c1", &caps, 0), "no zone either");
}

#[test]
fn all_caps_must_have_room_and_who_waits_for_one_is_not_in_the_way_of_another() {
    let zone = |name, zone| kept(name).labelled(&[("zone", zone)]);
    let mut node_budget =
        node_budget(&[zone("a0", "a"), zone("b0", "b"), zone("b1", "b"), zone("b2", "b")]);
    let mut caps = all(Limit::Count(2));
    caps.push(Cap { scope: label("zone"), limit: Limit::Count(1) });
    assert!(grant(&mut node_budget, "b0", &caps, 0));
    assert!(
        !grant(&mut node_budget, "b1", &caps, 0) && !grant(&mut node_budget, "b2", &caps, 0),
        "zone b"
    );
    assert!(grant(&mut node_budget, "a0", &caps, 1), "those wait for zone b, and longer");
}

#[test]
fn a_node_that_waits_and_is_cordoned_by_hand_waits_no_more() {
    let mut nodes = nodes(3);
    nodes[0] = nodes[0].clone().unschedulable(true);
    let mut node_budget = node_budget(&nodes);
    let cap = all(Limit::Count(1));
    assert!(!grant(&mut node_budget, "n1", &cap, 0));
    see(&mut node_budget, &nodes[1].clone().unschedulable(true));
    assert_eq!(node_budget.waiting(), 0);
    see(&mut node_budget, &kept("n0"));
    see(&mut node_budget, &kept("n1"));
    assert!(grant(&mut node_budget, "n2", &cap, 1));
}

#[test]
fn who_waits_longest_is_next_and_candidates_of_the_autoscaler_go_first() {
    let mut nodes = nodes(4);
    nodes[0] = nodes[0].clone().unschedulable(true);
    let mut node_budget = node_budget(&nodes);
    let cap = all(Limit::Count(1));
    let ask = |node_budget: &mut NodeBudget, name: &str, autoscaler, now| {
        node_budget.grant(&name.into(), autoscaler, &cap, at(now)).is_ok()
    };
    assert!(!ask(&mut node_budget, "n1", Autoscaler::None, 0));
    assert!(!ask(&mut node_budget, "n2", Autoscaler::None, 1));
    assert!(!ask(&mut node_budget, "n3", Autoscaler::Candidate, 2));
    see(&mut node_budget, &kept("n0"));
    assert!(!ask(&mut node_budget, "n2", Autoscaler::None, 3), "two go before it");
    assert!(!ask(&mut node_budget, "n1", Autoscaler::None, 3), "the candidate goes before it");
    assert!(ask(&mut node_budget, "n3", Autoscaler::Candidate, 3));
    node_budget.give_back(&"n3".into());
    node_budget.withdraw(&"n1".into());
    assert!(ask(&mut node_budget, "n2", Autoscaler::None, 4), "nobody waits before it any more");
}

/// With this notice and spacing, in seconds.
fn paced(notice: u64, spacing: u64) -> Policy {
    let seconds = Duration::from_secs;
    let pace = Limits { notice: seconds(notice), spacing: seconds(spacing), caps: Vec::new() };
    Policy { pace, ..policy("p", &["Bad"]) }
}

/// A node with a record in this phase, of a drain that is to begin then.
fn planned(name: &str, phase: DrainPhase, scheduled: i64) -> Node {
    let claims = vec![Claim { policy: Arc::from("p"), conditions: Vec::new() }];
    let record = Record::new(Arc::from("1"), Cordon::Ours, claims);
    let begun = matches!(phase, DrainPhase::Draining | DrainPhase::Drained).then(|| at(scheduled));
    let record = Record { phase, scheduled: Some(at(scheduled)), started: begun, ..record };
    kept(name).unschedulable(true).recorded(Some(&record))
}

#[test]
fn drains_begin_after_their_notice_and_spaced() {
    let spaced = paced(10, 60);
    let mut node_budget = NodeBudget::new(std::slice::from_ref(&spaced));
    assert_eq!(node_budget.slot(&"n1".into(), &spaced, at(0)), at(10));
    assert_eq!(node_budget.slot(&"n2".into(), &spaced, at(0)), at(70));
    assert_eq!(node_budget.slot(&"n1".into(), &spaced, at(5)), at(10), "it has been promised");
    assert_eq!(node_budget.slot(&"n4".into(), &spaced, at(1000)), at(1010), "never in the past");
    let other = Policy { name: Arc::from("other"), ..spaced };
    assert_eq!(node_budget.slot(&"n5".into(), &other, at(1000)), at(1010), "a chain of its own");
}

#[test]
fn a_drain_that_is_cancelled_delays_no_other() {
    let spaced = paced(10, 60);
    let mut node_budget = NodeBudget::new(std::slice::from_ref(&spaced));
    for n in 0..100 {
        see(&mut node_budget, &planned(&format!("n{n}"), DrainPhase::Scheduled, 10 + n * 60));
    }
    for n in 1..100 {
        see(&mut node_budget, &kept(&format!("n{n}")));
    }
    assert_eq!(node_budget.slot(&"next".into(), &spaced, at(5)), at(70));
    node_budget.forget(&"n0".into());
    node_budget.forget(&"next".into());
    assert_eq!(node_budget.slot(&"last".into(), &spaced, at(5)), at(15));
}

#[test]
fn a_restart_finds_the_beginnings_on_the_nodes() {
    let spaced = paced(0, 60);
    for phase in [DrainPhase::Scheduled, DrainPhase::Draining, DrainPhase::Drained] {
        let mut node_budget = NodeBudget::new(std::slice::from_ref(&spaced));
        see(&mut node_budget, &planned("n1", phase, 500));
        assert_eq!(node_budget.slot(&"n2".into(), &spaced, at(490)), at(560), "{phase}");
    }
}

#[test]
fn a_drain_counts_for_the_spacing_also_when_its_node_is_gone() {
    let spaced = paced(0, 60);
    let mut node_budget = NodeBudget::new(std::slice::from_ref(&spaced));
    assert_eq!(node_budget.begin(&"n1".into(), &spaced, at(100)), Ok(()));
    node_budget.forget(&"n1".into());
    assert_eq!(node_budget.slot(&"n2".into(), &spaced, at(110)), at(160));
}

fn settle(node_budget: &mut NodeBudget, node: &Node) {
    node_budget.settle(&node.name, node.drain_facts.as_deref().unwrap());
}

#[test]
fn a_beginning_that_was_not_stored_holds_up_neither_its_own_next_try_nor_others() {
    let spaced = paced(0, 60);
    let (n1, n2) = ("n1".into(), "n2".into());
    let mut node_budget = NodeBudget::new(std::slice::from_ref(&spaced));
    for after in ["a conflict", "no answer"] {
        assert_eq!(node_budget.begin(&n1, &spaced, at(100)), Ok(()), "{after}");
        assert!(node_budget.is_beginning(&n1));
        assert_eq!(node_budget.begin(&n2, &spaced, at(100)), Err(at(160)), "it may begin");
        settle(&mut node_budget, &planned("n1", DrainPhase::Scheduled, 100));
        assert!(!node_budget.is_beginning(&n1));
    }
    assert_eq!(node_budget.begin(&n2, &spaced, at(101)), Ok(()));
}

#[test]
fn a_beginning_that_was_stored_counts_whoever_tells_of_it() {
    let spaced = paced(0, 60);
    let (n1, n2) = ("n1".into(), "n2".into());
    for is_seen in [true, false] {
        let mut node_budget = NodeBudget::new(std::slice::from_ref(&spaced));
        assert_eq!(node_budget.begin(&n1, &spaced, at(100)), Ok(()));
        let begun = planned("n1", DrainPhase::Draining, 100);
        if is_seen {
            see(&mut node_budget, &begun);
        }
        settle(&mut node_budget, &begun);
        assert_eq!(node_budget.begin(&n2, &spaced, at(159)), Err(at(160)), "{is_seen}");
        assert_eq!(node_budget.begin(&n2, &spaced, at(160)), Ok(()), "{is_seen}");
    }
}

#[test]
fn an_older_version_of_a_node_does_not_take_a_beginning_back() {
    let spaced = paced(0, 60);
    let mut node_budget = NodeBudget::new(std::slice::from_ref(&spaced));
    assert_eq!(node_budget.begin(&"n1".into(), &spaced, at(100)), Ok(()));
    see(&mut node_budget, &planned("n1", DrainPhase::Scheduled, 100));
    assert_eq!(node_budget.begin(&"n2".into(), &spaced, at(101)), Err(at(160)));
}

#[test]
fn drains_that_were_due_while_none_could_begin_are_spaced_from_now_on() {
    let spaced = paced(0, 60);
    let mut node_budget = NodeBudget::new(std::slice::from_ref(&spaced));
    for n in 0..3 {
        see(&mut node_budget, &planned(&format!("n{n}"), DrainPhase::Scheduled, 10 + n * 60));
    }
    assert_eq!(node_budget.begin(&"n0".into(), &spaced, at(5000)), Ok(()));
    assert_eq!(node_budget.begin(&"n1".into(), &spaced, at(5000)), Err(at(5060)));
    assert_eq!(node_budget.begin(&"n2".into(), &spaced, at(5000)), Err(at(5120)));
    assert_eq!(node_budget.begin(&"n1".into(), &spaced, at(5060)), Ok(()));
}

#[test]
fn a_slot_lies_in_a_window_and_the_next_one_after_it() {
    let mut spaced = paced(0, 3600);
    spaced.windows = vec![Window {
        days: vec![jiff::civil::Weekday::Thursday],
        from: jiff::civil::time(20, 0, 0, 0),
        to: jiff::civil::time(23, 0, 0, 0),
        zone: jiff::tz::TimeZone::UTC,
    }];
    let mut node_budget = NodeBudget::new(std::slice::from_ref(&spaced));
    // Noon is that of a Thursday.
    assert_eq!(node_budget.slot(&"n1".into(), &spaced, at(0)), at(8 * 3600));
    assert_eq!(node_budget.slot(&"n2".into(), &spaced, at(0)), at(9 * 3600));
}

#[test]
fn whatever_a_node_says_of_its_own_plan_takes_up_one_slot_and_no_more() {
    let spaced = paced(0, 60);
    let far = "9000-01-01T00:00:00Z".parse::<Timestamp>().unwrap();
    for told in [far.as_second() - at(0).as_second(), 86_400, 60, 30] {
        let mut node_budget = NodeBudget::new(std::slice::from_ref(&spaced));
        see(&mut node_budget, &planned("liar", DrainPhase::Scheduled, told));
        let slot = node_budget.slot(&"n1".into(), &spaced, at(0));
        let next = node_budget.slot(&"n2".into(), &spaced, at(0));
        assert!(slot <= at(120) && next <= at(180), "{told}: {slot}, {next}");
        assert!(slot.duration_since(at(told)).abs().as_secs() >= 60, "{told}: {slot}");
    }
}

#[test]
fn a_slot_fills_the_first_gap_that_is_wide_enough() {
    let spaced = paced(0, 60);
    let mut node_budget = NodeBudget::new(std::slice::from_ref(&spaced));
    for (name, scheduled) in [("a", 10), ("b", 100), ("c", 260)] {
        see(&mut node_budget, &planned(name, DrainPhase::Scheduled, scheduled));
    }
    assert_eq!(
        node_budget.slot(&"n1".into(), &spaced, at(0)),
        at(160),
        "none between the first two"
    );
    assert_eq!(node_budget.slot(&"n2".into(), &spaced, at(0)), at(320));
}

#[test]
fn who_leads_knows_itself_which_drains_it_has_begun() {
    let spaced = paced(0, 60);
    let mut node_budget = NodeBudget::new(std::slice::from_ref(&spaced));
    see(&mut node_budget, &planned("before", DrainPhase::Draining, 80));
    node_budget.lead(Some(at(100)));
    assert_eq!(
        node_budget.begin(&"n1".into(), &spaced, at(110)),
        Err(at(140)),
        "a leader before it"
    );
    for now in [140, 170, 199] {
        see(&mut node_budget, &planned("liar", DrainPhase::Draining, now));
        see(&mut node_budget, &planned("another", DrainPhase::Drained, now - 1));
    }
    assert_eq!(node_budget.begin(&"n1".into(), &spaced, at(200)), Ok(()));
    settle(&mut node_budget, &planned("n1", DrainPhase::Draining, 200));
    assert_eq!(node_budget.begin(&"n2".into(), &spaced, at(210)), Err(at(260)), "its own counts");
    see(&mut node_budget, &planned("late", DrainPhase::Draining, 90));
    assert_eq!(
        node_budget.begin(&"n2".into(), &spaced, at(260)),
        Ok(()),
        "seen late, and long ago"
    );
}

#[test]
fn a_drain_that_failed_does_not_hold_up_those_of_others() {
    let mut spaced = policy("p", &["Bad"]);
    spaced.pace.spacing = Duration::from_secs(60);
    let claims = vec![Claim { policy: Arc::from("p"), conditions: Vec::new() }];
    let mut record = Record::new(Arc::from("1"), Cordon::Ours, claims);
    (record.scheduled, record.failures) = (Some(at(500)), 3);
    let mut node_budget = NodeBudget::new(std::slice::from_ref(&spaced));
    see(&mut node_budget, &kept("n1").unschedulable(true).recorded(Some(&record)));
    assert_eq!(node_budget.slot(&"n2".into(), &spaced, at(0)), at(0));
    assert_eq!(node_budget.slot(&"n3".into(), &spaced, at(0)), at(60));
}

/// Seven nodes, three of them cordoned, as the table of the cordon limiter of draino's fork has them.
#[test]
fn the_caps_of_the_fork_hold_by_count_by_percent_and_by_label() {
    use CapScope::Cluster;
    use Limit::{Count, Percent};

    let seven = || {
        let labels = [&["a"][..], &["a"], &["a", "b"], &["a", "b"], &["a", "b", "c"]];
        let labels = labels.into_iter().chain([&["a", "b", "c"][..], &["d"]]);
        let nodes = labels.enumerate().map(|(n, labels)| {
            let labels: Vec<_> = labels.iter().map(|label| (*label, "x")).collect();
            kept(&format!("n{n}")).labelled(&labels).unschedulable(n % 2 == 1)
        });
        let cap = |key| Cap { scope: label(key), limit: Count(0) };
        let mut by_label = policy("p", &["Bad"]);
        by_label.pace.caps = ["a", "b", "c", "d"].map(cap).into();
        let mut node_budget = NodeBudget::new(&[by_label]);
        nodes.for_each(|node| see(&mut node_budget, &node));
        node_budget
    };
    let (ab, cordoned, d) = ("n2", "n3", "n6");
    for (caps, node, refused) in [
        (&[][..], ab, None),
        (&[(Cluster, Count(0))], cordoned, None),
        (&[(Cluster, Count(3))], ab, Some("3 of 7 nodes are")),
        (&[(Cluster, Percent(75))], ab, None),
        (&[(Cluster, Percent(40))], ab, Some("3 of 7 nodes are")),
        (
            &[(Cluster, Percent(75)), (label("b"), Percent(40)), (label("b"), Count(10))],
            ab,
            Some("2 of 4 nodes with b=x are"),
        ),
        (
            &[(label("a"), Percent(75)), (label("a"), Count(3)), (label("b"), Percent(80))],
            ab,
            Some("3 of 6 nodes with a=x are"),
        ),
        (&[(label("b"), Percent(80))], ab, None),
        (&[(label("d"), Percent(75))], d, None),
        (&[(label("c"), Count(1))], "n4", Some("1 of 2 nodes with c=x are")),
    ] {
        let caps: Vec<_> =
            caps.iter().map(|(scope, limit)| Cap { scope: scope.clone(), limit: *limit }).collect();
        let answer = seven().grant(&node.into(), Autoscaler::None, &caps, at(0));
        match (answer, refused) {
            (Ok(()), None) => {}
            (Err(capped), Some(begin)) if capped.to_string().starts_with(begin) => {}
            (answer, _) => panic!("{node} under {caps:?}: {answer:?}"),
        }
    }
}
