use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::evict::Ramp;
use crate::evict::hold_bench::{Gone, HoldBench, in_virtual_time};
use crate::evict::topology::tests::Named;

fn ramp(nodes: u32, share: u8, within: u64, interval: u64) -> Ramp {
    let (within, interval) = (Duration::from_secs(within), Duration::from_secs(interval));
    Ramp { nodes, share, within, interval }
}

fn bench(rules: Option<Ramp>, nodes: usize) -> (HoldBench, Arc<RampHold>) {
    let changed = Arc::<Notify>::default();
    let hold = Arc::new(RampHold::new(Named::with(&[("z", nodes)]), Arc::clone(&changed)));
    hold.configure(rules);
    (HoldBench::new(vec![Box::new(Arc::clone(&hold))], changed), hold)
}

/// When each node lost its first and its last pod.
fn nodes(gone: &[Gone]) -> Vec<(String, u64, u64)> {
    let mut nodes: Vec<(String, u64, u64)> = Vec::new();
    for (pod, after) in gone {
        let (node, second) = (pod.split_once('@').unwrap().1, after.as_secs());
        match nodes.iter_mut().find(|(known, ..)| known == node) {
            Some((_, _, last)) => *last = second,
            None => nodes.push((node.to_owned(), second, second)),
        }
    }
    nodes
}

#[tokio::test(start_paused = true)]
async fn the_first_nodes_go_at_once_and_further_ones_one_by_one_each_with_all_its_pods() {
    let (mut bench, hold) = bench(Some(ramp(3, 1, 600, 2)), 100);
    for node in 0..7 {
        for pod in 0..20 {
            bench.due(&format!("a/{pod}"), &format!("z-{node}"), "k");
        }
    }
    let gone = bench.run(60.0).await;
    assert_eq!(gone.len(), 140);
    let times: Vec<_> = nodes(&gone).into_iter().map(|(_, first, last)| (first, last)).collect();
    assert_eq!(times, [(0, 0), (0, 0), (0, 0), (2, 2), (4, 4), (6, 6), (8, 8)]);
    assert_eq!(hold.nodes(), (7, 0));
}

#[tokio::test(start_paused = true)]
async fn times_beyond_all_measure_do_not_overflow() {
    let rules = Ramp { nodes: 1, share: 1, within: Duration::MAX, interval: Duration::MAX };
    let (mut bench, hold) = bench(Some(rules), 10);
    for node in 0..5 {
        bench.due("a/1", &format!("z-{node}"), "k");
    }
    assert_eq!(bench.run(60.0).await.len(), 1);
    assert_eq!(hold.nodes(), (1, 4));
}

#[tokio::test(start_paused = true)]
async fn a_share_of_many_nodes_counts_if_it_is_more() {
    let (mut bench, _) = bench(Some(ramp(3, 5, 600, 1)), 200);
    for node in 0..30 {
        bench.due("a/1", &format!("z-{node}"), "k");
    }
    assert_eq!(bench.handed_out().len(), 10);
}

#[tokio::test(start_paused = true)]
async fn without_a_ramp_all_go_and_a_ramp_that_is_switched_on_counts_from_then() {
    let (mut bench, hold) = bench(None, 100);
    for node in 0..30 {
        bench.due("a/1", &format!("z-{node}"), "k");
    }
    assert_eq!(bench.handed_out().len(), 30);
    hold.configure(Some(ramp(1, 1, 600, 100)));
    for node in 0..30 {
        bench.due("a/2", &format!("z-{node}"), "k");
    }
    assert_eq!(bench.handed_out().len(), 1);
    hold.configure(None);
    assert_eq!(bench.run(0.1).await.len(), 29);
}

#[tokio::test(start_paused = true)]
async fn drains_and_retries_are_not_counted_and_not_held() {
    let (mut bench, hold) = bench(Some(ramp(1, 1, 600, 1_000)), 10);
    let first = bench.due("a/1", "z-1", "k");
    assert_eq!(bench.handed_out().len(), 1);
    bench.due("a/1", "z-3", "k");
    assert_eq!(bench.handed_out(), Vec::<String>::new());
    bench.push(first.clone(), true);
    let drain = crate::evict::DrainEviction {
        policy: "p".into(),
        session: "s".into(),
        grace: None,
        deadline: crate::model::build::at(0),
        delete: false,
    };
    let pod = crate::model::build::pod("drained").on("z-4").reference();
    bench.push(Eviction { pod, cause: Cause::Drain(Arc::new(drain)), due: first.due }, false);
    assert_eq!(bench.handed_out().len(), 2);
    assert_eq!(hold.nodes(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn nodes_are_counted_for_the_window_and_then_others_go_at_full_speed() {
    let (mut bench, _) = bench(Some(ramp(2, 1, 100, 1_000)), 10);
    for node in 0..5 {
        bench.due("a/1", &format!("z-{node}"), "k");
    }
    assert_eq!(bench.handed_out().len(), 2);
    // At 100 s the first two are not counted any more, so two others are among the first.
    let times: Vec<_> = nodes(&bench.run(1_100.0).await).iter().map(|(_, at, _)| *at).collect();
    assert_eq!(times, [100, 100, 200]);
}

#[tokio::test(start_paused = true)]
async fn the_node_that_waits_longest_is_next_and_a_cancelled_one_keeps_no_place() {
    let (mut bench, hold) = bench(Some(ramp(1, 1, 600, 10)), 10);
    bench.due("a/1", "z-1", "k");
    bench.handed_out();
    let third = bench.due("a/1", "z-3", "k");
    let fourth = bench.due("a/1", "z-4", "k");
    bench.due("a/1", "z-5", "k");
    // It was due before the others and is asked about last.
    let mut early = third.clone();
    (early.pod.node, early.pod.uid) = ("z-0".into(), crate::model::build::uid("early"));
    early.due -= Duration::from_secs(1);
    bench.push(early, false);
    bench.handed_out();
    assert_eq!(hold.nodes(), (1, 4));
    bench.cancel(&third);
    bench.cancel(&fourth);
    let gone = nodes(&bench.run(60.0).await);
    let expected = [("z-0".to_owned(), 10, 10), ("z-5".to_owned(), 20, 20)];
    assert_eq!(gone, expected);
}

#[tokio::test(start_paused = true)]
async fn the_backlog_says_when_a_node_may_go() {
    let (mut bench, _) = bench(Some(ramp(1, 1, 600, 10)), 10);
    let evictions: Vec<_> =
        (0..5).map(|node| bench.due("a/1", &format!("z-{node}"), "k")).collect();
    let start = Instant::now();
    bench.handed_out();
    let entry = bench.queue.backlog().get(&evictions[4].pod, crate::evict::CauseKind::Taint);
    let held = entry.unwrap().held.unwrap();
    assert_eq!(held.turn, Some(start + Duration::from_secs(40)));
    assert_eq!(held.to_string(), "ramp (z-4)");
    assert_eq!(
        bench.queue.why(&held),
        "1 nodes lose pods for taints within 10m0s, further ones one each 10s"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever becomes due: of the nodes within the window, all but the first come no faster than one each
    /// interval, and every node goes.
    #[test]
    fn further_nodes_keep_the_interval_and_none_is_lost(
        first in 1_u32..5,
        within in 5_u64..100,
        interval in 1_u64..5,
        due in prop::collection::vec((0_u64..3_000, 0_u8..30, any::<bool>()), 1..60),
    ) {
        let rules = ramp(first, 1, within, interval);
        let gone = in_virtual_time(async {
            let (mut bench, _) = bench(Some(rules), 30);
            let (mut gone, mut cancelled) = (Vec::new(), 0);
            for (number, (pause, node, cancels)) in due.iter().enumerate() {
                let eviction = bench.due(&format!("a/{number}"), &format!("z-{node}"), "k");
                gone.extend(bench.run(Duration::from_millis(*pause).as_secs_f64()).await);
                if *cancels && bench.queue.recall(eviction.key()).is_some() {
                    cancelled += 1;
                }
            }
            gone.extend(bench.run(60.0 * 5.0 + 10.0).await);
            assert_eq!(gone.len() + cancelled, due.len());
            gone
        });
        // When nodes were admitted: at a pod of theirs that was gone when they were not counted.
        let mut admitted: Vec<(&str, Duration)> = Vec::new();
        for (pod, at) in &gone {
            let node = pod.split_once('@').unwrap().1;
            let counts = |(known, since): &&(&str, Duration)| *known == node && *at < *since + rules.within;
            if !admitted.iter().any(|it| counts(&it)) {
                admitted.push((node, *at));
            }
        }
        let mut further = None;
        for (index, (_, at)) in admitted.iter().enumerate() {
            let counted = admitted[..index].iter().filter(|(_, since)| *at < *since + rules.within);
            if counted.count() >= first as usize {
                if let Some(before) = further {
                    prop_assert!(*at >= before + rules.interval, "{:?}", admitted);
                }
                further = Some(*at);
            }
        }
    }
}
