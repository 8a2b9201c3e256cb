use std::collections::BTreeSet;

use super::*;
use crate::evict::topology::tests::Named;
use crate::model::build::noon;

struct Bench {
    breaker: Breaker,
    nodes: Arc<Named>,
    paused: bool,
}

impl Bench {
    fn new(mode: BreakerMode, zones: &[(&str, usize)]) -> Self {
        let rules = BreakerRules { mode, ..BreakerRules::default() };
        Self { breaker: Breaker::new(rules), nodes: Named::with(zones), paused: false }
    }

    /// Pods of these nodes of a zone come due.
    fn due(&mut self, zone: &str, numbers: std::ops::Range<usize>) -> Vec<Change> {
        let now = Instant::now();
        let due = |number| {
            let (node, counts) =
                (NodeName::from(&*format!("{zone}-{number}")), self.nodes.counts());
            self.breaker.came_due(&node, zone.into(), &counts, now, noon())
        };
        numbers.flat_map(due).collect()
    }

    /// Time passes, with a look each second.
    async fn pass(&mut self, seconds: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        for _ in 0..seconds {
            tokio::time::advance(Duration::from_secs(1)).await;
            changes.extend(self.breaker.look(&*self.nodes, self.paused, Instant::now(), noon()));
        }
        changes
    }

    fn tripped(&self) -> BTreeSet<String> {
        self.breaker.tripped().keys().map(ToString::to_string).collect()
    }
}

fn scopes(changes: &[Change]) -> Vec<String> {
    let text = |change: &Change| match change {
        Change::Tripped(scope, trip) => format!("{scope}: {} of {}", trip.nodes, trip.of),
        Change::Calmed(scope) => format!("{scope} calm"),
        Change::Reset(scope) => format!("{scope} reset"),
    };
    changes.iter().map(text).collect()
}

#[tokio::test(start_paused = true)]
async fn it_trips_at_more_than_the_share_of_the_cluster() {
    let mut bench = Bench::new(BreakerMode::Enforce, &[("", 60)]);
    assert_eq!(bench.due("", 0..18), [], "30 % is not more than 30 %");
    assert_eq!(bench.due("", 0..18), [], "the same nodes");
    assert_eq!(scopes(&bench.due("", 18..30)), ["the cluster: 19 of 60"]);
}

#[tokio::test(start_paused = true)]
async fn a_few_nodes_are_never_many_and_six_of_six_are() {
    let mut bench = Bench::new(BreakerMode::Enforce, &[("", 5)]);
    assert_eq!(bench.due("", 0..5), []);
    let mut bench = Bench::new(BreakerMode::Enforce, &[("", 6)]);
    assert_eq!(scopes(&bench.due("", 0..6)), ["the cluster: 6 of 6"]);
}

#[tokio::test(start_paused = true)]
async fn a_zone_trips_alone_and_holds_no_other_zone() {
    let mut bench = Bench::new(BreakerMode::Enforce, &[("a", 20), ("b", 20), ("c", 60)]);
    assert_eq!(scopes(&bench.due("a", 0..10)), ["zone a: 7 of 20"]);
    assert!(bench.breaker.concerns(&"a".into()) && !bench.breaker.concerns(&"b".into()));
    // Enough for the cluster, and not for zone c.
    assert_eq!(bench.due("c", 0..18), []);
    assert_eq!(scopes(&bench.due("b", 0..3)), ["the cluster: 31 of 100"]);
    assert!(bench.breaker.concerns(&"b".into()));
}

#[tokio::test(start_paused = true)]
async fn the_only_zone_is_the_cluster() {
    let mut bench = Bench::new(BreakerMode::Enforce, &[("a", 20)]);
    assert_eq!(scopes(&bench.due("a", 0..20)), ["the cluster: 7 of 20"]);
}

#[tokio::test(start_paused = true)]
async fn nodes_at_the_pace_of_kube_controller_manager_do_not_trip_a_large_cluster() {
    let mut bench = Bench::new(BreakerMode::Enforce, &[("", 300)]);
    for node in 0..200 {
        assert_eq!(bench.due("", node..node + 1), []);
        assert_eq!(bench.pass(10).await, [], "at most 60 nodes are counted");
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_whose_taints_are_gone_count_no_more_and_calm_resets_it() {
    let mut bench = Bench::new(BreakerMode::Enforce, &[("", 60)]);
    let window = Duration::from_hours(1);
    let rules = BreakerRules { mode: BreakerMode::Enforce, window, ..BreakerRules::default() };
    bench.breaker.configure(rules);
    bench.due("", 0..30);
    assert_eq!(bench.pass(100).await, []);
    bench.nodes.untainted.lock().extend((0..21).map(|n| NodeName::from(&*format!("-{n}"))));
    assert_eq!(bench.pass(301).await, [], "9 of 60 are half of 30 %, and not less");
    bench.nodes.untainted.lock().insert("-21".into());
    assert_eq!(scopes(&bench.pass(299).await), [] as [&str; 0]);
    assert_eq!(scopes(&bench.pass(2).await), ["the cluster calm"]);
    assert_eq!(bench.breaker.counted(&Scope::Cluster), 8);
}

#[tokio::test(start_paused = true)]
async fn while_nodes_are_held_it_does_not_reset_by_itself() {
    let mut bench = Bench::new(BreakerMode::Enforce, &[("", 60)]);
    bench.due("", 0..30);
    let now = Instant::now();
    for node in 0..30 {
        assert!(bench.breaker.holds(&format!("-{node}"), now, now).is_some());
    }
    assert_eq!(bench.pass(3_600).await, []);
    assert_eq!(bench.tripped(), BTreeSet::from(["the cluster".to_owned()]));
    // In the mode that holds nothing, the window ends it.
    let mut bench = Bench::new(BreakerMode::Observe, &[("", 60)]);
    bench.due("", 0..30);
    assert_eq!(scopes(&bench.pass(905).await), ["the cluster calm"]);
}

#[tokio::test(start_paused = true)]
async fn a_pause_does_not_make_nodes_count_no_more() {
    let mut bench = Bench::new(BreakerMode::Enforce, &[("", 60)]);
    bench.due("", 0..18);
    bench.paused = true;
    assert_eq!(bench.pass(3_600).await, []);
    assert_eq!(scopes(&bench.due("", 18..19)), ["the cluster: 19 of 60"]);
    assert_eq!(bench.pass(3_600).await, []);
    bench.paused = false;
    bench.pass(60).await;
    assert_eq!(bench.breaker.counted(&Scope::Cluster), 0);
}

#[tokio::test(start_paused = true)]
async fn it_may_look_at_the_end_of_a_pause_before_the_queue_does() {
    let mut bench = Bench::new(BreakerMode::Enforce, &[("", 60)]);
    bench.due("", 0..30);
    bench.paused = true;
    assert_eq!(bench.pass(3_600).await, []);
    bench.paused = false;
    assert_eq!(bench.pass(2).await, []);
    let now = Instant::now();
    assert_eq!(bench.breaker.holds("-0", now, now), None, "the trickle lets one go");
    bench.breaker.passed("-0", now);
    let held = (0..30).filter(|node| bench.breaker.holds(&format!("-{node}"), now, now).is_some());
    assert_eq!(held.count(), 29);
    assert_eq!(bench.pass(3_600).await, [], "the mistake is still there");
    assert_eq!(bench.breaker.counted(&Scope::Cluster), 29);
}

#[tokio::test(start_paused = true)]
async fn one_that_observes_counts_what_it_would_hold_also_after_the_first_of_the_trickle() {
    let mut bench = Bench::new(BreakerMode::Observe, &[("", 60)]);
    bench.due("", 0..30);
    let would_hold = |bench: &mut Bench, nodes: std::ops::Range<usize>| {
        let now = Instant::now();
        nodes.filter(|node| bench.breaker.would_hold(&format!("-{node}"), now)).count()
    };
    assert_eq!(would_hold(&mut bench, 0..10), 10);
    bench.pass(300).await;
    assert_eq!(would_hold(&mut bench, 10..30), 19, "one of these would go");
    assert_eq!(would_hold(&mut bench, 10..11), 0, "and all its pods with it");
}

#[tokio::test(start_paused = true)]
async fn times_beyond_all_measure_do_not_overflow() {
    let longest = Duration::MAX;
    let rules = BreakerRules {
        mode: BreakerMode::Enforce,
        window: longest,
        calm: longest,
        trickle: longest,
        ..BreakerRules::default()
    };
    let mut bench = Bench::new(BreakerMode::Enforce, &[("", 60)]);
    bench.breaker = Breaker::new(rules);
    bench.due("", 0..30);
    let now = Instant::now();
    assert!(bench.breaker.holds("-1", now, now).is_some());
    bench.nodes.untainted.lock().extend((0..30).map(|n| NodeName::from(&*format!("-{n}"))));
    assert_eq!(bench.pass(3).await, []);
    bench.breaker.passed("-1", now);
    bench.breaker.configure(rules);
    bench.breaker.adopt([(Scope::Cluster, Trip::new(noon(), usize::MAX, 0))].into(), now);
    assert_eq!(bench.pass(3).await, []);
}

#[tokio::test(start_paused = true)]
async fn the_trickle_lets_one_node_go_after_the_other_and_no_other_earlier() {
    let mut bench = Bench::new(BreakerMode::Enforce, &[("", 60)]);
    bench.due("", 0..30);
    let start = Instant::now();
    let mut went = Vec::new();
    for _ in 0..270 {
        let now = Instant::now();
        for node in (0..30).map(|n| format!("-{n}")) {
            // The later its number, the earlier it was due.
            let number: u64 = node[1..].parse().unwrap();
            let due = start - Duration::from_secs(number);
            if !went.iter().any(|(gone, _)| *gone == node)
                && bench.breaker.holds(&node, due, now).is_none()
            {
                bench.breaker.passed(&node, now);
                assert_eq!(bench.breaker.holds(&node, due, now), None, "its other pods follow");
                went.push((node, (now - start).as_secs()));
            }
        }
        bench.pass(1).await;
    }
    let expected = [("-29", 60), ("-28", 120), ("-27", 180), ("-26", 240)];
    assert_eq!(went, expected.map(|(node, at)| (node.to_owned(), at)));
}

#[tokio::test(start_paused = true)]
async fn after_a_reset_what_came_due_before_does_not_count_and_more_does() {
    let mut bench = Bench::new(BreakerMode::Enforce, &[("", 60)]);
    bench.due("", 0..30);
    assert_eq!(scopes(&bench.breaker.reset()), ["the cluster reset"]);
    assert_eq!(bench.pass(5).await, []);
    assert_eq!(bench.due("", 20..48), [], "18 others");
    assert_eq!(scopes(&bench.due("", 48..49)), ["the cluster: 19 of 60"]);
}

#[tokio::test(start_paused = true)]
async fn what_another_process_has_stored_holds_from_the_start() {
    let mut bench = Bench::new(BreakerMode::Enforce, &[("", 60)]);
    let tripped = [(Scope::Cluster, Trip::new(noon(), 19, 60))];
    bench.breaker.adopt(tripped.into(), Instant::now());
    let now = Instant::now();
    assert!(bench.breaker.concerns(&"z".into()));
    assert!(bench.breaker.holds("-1", now, now).is_some());
    assert_eq!(bench.due("", 0..30), [], "it has tripped already");
}

#[tokio::test(start_paused = true)]
async fn off_counts_nothing_and_ends_what_has_tripped() {
    let mut bench = Bench::new(BreakerMode::Off, &[("", 10)]);
    assert_eq!(bench.due("", 0..10), []);
    assert!(!bench.breaker.is_active());
    let mut bench = Bench::new(BreakerMode::Enforce, &[("", 10)]);
    bench.due("", 0..10);
    bench.breaker.configure(BreakerRules { mode: BreakerMode::Off, ..BreakerRules::default() });
    assert_eq!(scopes(&bench.pass(1).await), ["the cluster calm"]);
}
