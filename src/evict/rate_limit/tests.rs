use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::evict::hold_bench::{Gone, HoldBench, in_virtual_time};
use crate::evict::topology::tests::Named;
use crate::evict::{DrainEviction, TaintMethod};
use crate::model::build::at;

fn rate(pods: u32, per: u64, burst: u32) -> RateLimit {
    RateLimit { pods, per: Duration::from_secs(per), burst }
}

/// A rule with the name of the key that it is for.
fn rule(key: &str, limit: Option<RateLimit>) -> TaintRule {
    let method = TaintMethod::Delete;
    TaintRule { name: key.into(), key: key.into(), value: None, method, limit }
}

fn limits(cluster: Option<RateLimit>, zone: Option<RateLimit>) -> EvictionLimits {
    EvictionLimits { cluster, zone, ramp: None }
}

fn bench(rules: &[TaintRule], limits: &EvictionLimits) -> (HoldBench, Arc<RateLimits>) {
    let changed = Arc::<Notify>::default();
    let hold = Arc::new(RateLimits::new(Named::with(&[]), Arc::clone(&changed)));
    hold.configure(rules, limits);
    (HoldBench::new(vec![Box::new(Arc::clone(&hold))], changed), hold)
}

fn seconds(gone: &[Gone]) -> Vec<u64> {
    gone.iter().map(|(_, after)| after.as_secs()).collect()
}

#[tokio::test(start_paused = true)]
async fn without_limits_nothing_is_held() {
    let (mut bench, hold) = bench(&[rule("k", None)], &limits(None, None));
    for n in 0..100 {
        bench.due(&format!("a/{n}"), "z-1", "k");
    }
    assert_eq!(bench.handed_out().len(), 100);
    assert_eq!(hold.tokens(), []);
}

#[tokio::test(start_paused = true)]
async fn evictions_over_the_limit_of_the_cluster_wait_and_all_of_them_go() {
    let (mut bench, hold) = bench(&[], &limits(Some(rate(1, 1, 3)), None));
    for n in 0..10 {
        bench.due(&format!("a/{n}"), "z-1", "k");
    }
    let gone = bench.run(60.0).await;
    assert_eq!(seconds(&gone), [0, 0, 0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(hold.tokens(), [Tokens { id: LimitId::Cluster, left: 3 }]);
}

#[tokio::test(start_paused = true)]
async fn drains_count_for_zone_and_cluster_and_only_taints_for_a_rule() {
    let rules = [rule("k", Some(rate(1, 10, 1)))];
    let (mut bench, hold) = bench(&rules, &limits(Some(rate(1, 1, 9)), Some(rate(1, 1, 5))));
    let taint = bench.due("a/taint", "z-1", "k");
    bench.due("a/other", "z-1", "l");
    let drain = DrainEviction {
        policy: "p".into(),
        session: "s".into(),
        grace: None,
        deadline: at(0),
        delete: false,
    };
    let cause = Cause::Drain(Arc::new(drain));
    let pod = crate::model::build::pod("drain").on("y-1").reference();
    bench.push(Eviction { pod, cause, due: taint.due }, false);
    assert_eq!(bench.handed_out().len(), 3);
    let left = |id| hold.tokens().into_iter().find(|tokens| tokens.id == id).unwrap().left;
    assert_eq!(left(LimitId::Cluster), 6);
    assert_eq!((left(LimitId::Zone("z".into())), left(LimitId::Zone("y".into()))), (3, 4));
    assert_eq!(left(LimitId::Rule("k".into())), 0);
    bench.due("a/second", "z-1", "k");
    assert_eq!(seconds(&bench.run(60.0).await), [10]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_takes_no_token_and_waits_for_none() {
    let (mut bench, hold) = bench(&[], &limits(Some(rate(1, 60, 1)), None));
    let first = bench.due("a/1", "z-1", "k");
    assert_eq!(bench.handed_out().len(), 1);
    bench.due("a/2", "z-1", "k");
    bench.push(first, true);
    assert_eq!(bench.handed_out(), ["a/1@z-1"]);
    assert_eq!(hold.tokens()[0].left, 0);
    assert_eq!(seconds(&bench.run(100.0).await), [60]);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_with_three_pods_does_not_wait_for_one_with_a_thousand() {
    let (mut bench, _) = bench(&[], &limits(Some(rate(1, 1, 1)), None));
    for n in 0..1_000 {
        bench.due(&format!("large/{n}"), &format!("z-{}", n % 20), "k");
    }
    bench.handed_out();
    for n in 0..3 {
        bench.due(&format!("small/{n}"), "z-1", "k");
    }
    let gone = bench.run(2_000.0).await;
    let small: Vec<_> = gone.iter().filter(|(pod, _)| pod.starts_with("small")).cloned().collect();
    assert!(seconds(&small).iter().all(|second| *second <= 7), "{small:?}");
    assert_eq!((small.len(), gone.len()), (3, 1_002), "and the others are not lost");
}

#[tokio::test(start_paused = true)]
async fn zones_take_turns_under_the_limit_of_the_cluster_and_a_full_zone_delays_no_other() {
    let (mut bench, _) = bench(&[], &limits(Some(rate(1, 1, 1)), Some(rate(1, 1, 1))));
    for n in 0..30 {
        for zone in ["a", "b", "c"] {
            bench.due(&format!("x/{zone}{n}"), &format!("{zone}-1"), "k");
        }
    }
    let gone = bench.run(29.5).await;
    let mut by_zone = BTreeMap::<_, u32>::new();
    for (pod, _) in &gone {
        *by_zone.entry(pod.split_once('@').unwrap().1.to_owned()).or_default() += 1;
    }
    assert_eq!(gone.len(), 30);
    assert!(by_zone.values().all(|gone| (9..=11).contains(gone)), "{by_zone:?}");

    let (mut bench, _) = self::bench(&[], &limits(None, Some(rate(1, 100, 1))));
    for n in 0..3 {
        bench.due(&format!("x/a{n}"), "a-1", "k");
    }
    bench.due("x/b", "b-1", "k");
    assert_eq!(bench.handed_out(), ["x/a0@a-1", "x/b@b-1"]);
}

#[tokio::test(start_paused = true)]
async fn the_backlog_says_what_is_waited_for_and_when_it_is_its_turn() {
    let rules = [rule("gpu", Some(rate(1, 10, 1)))];
    let (mut bench, _) = bench(&rules, &limits(None, None));
    let evictions: Vec<_> = (0..4).map(|n| bench.due(&format!("a/{n}"), "z-1", "gpu")).collect();
    let start = Instant::now();
    bench.handed_out();
    let held = |n: usize| {
        let entry = bench.queue.backlog().get(&evictions[n].pod, super::super::CauseKind::Taint);
        entry.unwrap().held
    };
    assert!(held(0).is_none());
    let turns = [1, 2, 3].map(|n| (held(n).unwrap().turn.unwrap() - start).as_secs());
    assert_eq!(turns, [10, 20, 30]);
    let held = held(3).unwrap();
    assert_eq!(held.to_string(), "rate limit (rule gpu)");
    assert_eq!(bench.queue.why(&held), "waits for the limit of rule gpu: 1 pods each 10s");
}

#[tokio::test(start_paused = true)]
async fn when_what_waits_first_is_cancelled_the_next_one_does_not_wait_for_its_turn() {
    let (mut bench, _) = bench(&[], &limits(Some(rate(1, 10, 1)), Some(rate(100, 1, 100))));
    bench.due("x/0", "a-1", "k");
    bench.handed_out();
    let first = bench.due("x/1", "a-1", "k");
    bench.due("x/2", "b-1", "k");
    bench.due("x/3", "c-1", "k");
    bench.handed_out();
    bench.cancel(&first);
    assert_eq!(seconds(&bench.run(100.0).await), [10, 20]);
}

#[tokio::test(start_paused = true)]
async fn other_limits_count_from_when_they_are_set_and_forget_nothing() {
    let (mut bench, hold) = bench(&[], &limits(Some(rate(1, 100, 5)), None));
    for n in 0..20 {
        bench.due(&format!("a/{n}"), "z-1", "k");
    }
    assert_eq!(bench.handed_out().len(), 5);
    hold.configure(&[], &limits(Some(rate(1, 1, 5)), None));
    assert_eq!(seconds(&bench.run(3.5).await), [1, 2, 3], "no second burst");
    hold.configure(&[], &limits(None, None));
    assert_eq!(bench.run(0.1).await.len(), 12);
}

#[tokio::test(start_paused = true)]
async fn many_zones_are_forgotten_when_their_tokens_are_back() {
    let (_, hold) = bench(&[], &limits(None, Some(rate(1, 1, 1))));
    let mut state = hold.state.lock();
    for n in 0..3 * MANY {
        let zone = LimitId::Zone(n.to_string().into());
        state.bucket(&zone, Instant::now()).unwrap();
    }
    assert!(state.buckets.len() <= MANY);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever becomes due and is cancelled: no limit is exceeded in any stretch of time, nothing is lost,
    /// and what is left goes.
    #[test]
    fn no_limit_is_exceeded_and_everything_goes(
        (rule_pods, zone_pods, cluster_pods) in (1_u32..20, 1_u32..20, 1_u32..30),
        (rule_burst, zone_burst, cluster_burst) in (1_u32..6, 1_u32..6, 1_u32..6),
        due in prop::collection::vec((0_u64..2_000, 0_u8..3, 0_u8..3, 0_u8..4, any::<bool>()), 1..60),
    ) {
        let rules = [rule("k0", Some(rate(rule_pods, 10, rule_burst)))];
        let zone = rate(zone_pods, 10, zone_burst);
        let cluster = rate(cluster_pods, 10, cluster_burst);
        let gone = in_virtual_time(async {
            let (mut bench, _) = bench(&rules, &limits(Some(cluster), Some(zone)));
            let (mut gone, mut cancelled) = (Vec::new(), 0);
            let mut held = None;
            for (number, (pause, zone, key, namespace, cancels)) in due.iter().enumerate() {
                let name = format!("ns{namespace}/p{number}-k{key}");
                let eviction = bench.due(&name, &format!("z{zone}-1"), &format!("k{key}"));
                gone.extend(bench.run(Duration::from_millis(*pause).as_secs_f64()).await);
                if let Some(eviction) = held.take().filter(|_| *cancels)
                    && bench.queue.recall(Eviction::key(&eviction)).is_some()
                {
                    cancelled += 1;
                }
                held = Some(eviction);
            }
            // The slowest rate is one pod in ten seconds.
            gone.extend(bench.run(10.0 * 60.0 + 60.0).await);
            assert_eq!(gone.len() + cancelled, due.len());
            gone
        });
        let check = |limit: RateLimit, applies: &dyn Fn(&str) -> bool| {
            let times: Vec<_> = gone.iter().filter(|(pod, _)| applies(pod)).collect();
            for (first, (_, from)) in times.iter().enumerate() {
                for (last, (_, to)) in times.iter().enumerate().skip(first) {
                    let rate = f64::from(limit.pods) / limit.per.as_secs_f64();
                    let most = rate * (*to - *from).as_secs_f64() + f64::from(limit.burst) + 1e-6;
                    let count = u32::try_from(last - first + 1).unwrap();
                    assert!(f64::from(count) <= most);
                }
            }
        };
        check(cluster, &|_| true);
        check(rules[0].limit.unwrap(), &|pod| pod.contains("-k0@"));
        for z in 0..3 {
            check(zone, &|pod| pod.ends_with(&format!("@z{z}-1")));
        }
    }
}
