//! The policies of a story of drains.

use std::time::Duration;

use jiff::civil::{Time, Weekday};
use jiff::tz::TimeZone;
use ostrakon::drain::{
    AtDeadline, Cap, CapScope, ConditionRule, Limit, Limits, NodeSelector, Policy, Protection,
    Retry, Undrainable, Window,
};
use ostrakon::model::ConditionStatus;
use rand::Rng;
use rand::rngs::StdRng;

use super::super::observer::drains::{PROTECTED, STATUS_TAINT, ZONE};

/// Conditions that the policies are about.
pub(super) const KINDS: [&str; 2] = ["KernelDeadlock", "ReadonlyFilesystem"];
/// Labels that nodes bear, and policies select.
pub(super) const ZONES: [&str; 2] = ["a", "b"];

/// One policy, or one for each condition.
pub(super) fn policies(random: &mut StdRng) -> Vec<Policy> {
    let caps = caps(random);
    let windows = if random.random_bool(0.3) { windows(random) } else { Vec::new() };
    // Each condition is of one policy, so that the observer need not ask which it is about.
    let count = random.random_range(1..=KINDS.len());
    KINDS[..count]
        .iter()
        .enumerate()
        .map(|(index, kind)| {
            let pace = Limits {
                notice: seconds(random, 0..5),
                spacing: Duration::from_secs(random.random_range(0_u64..12).saturating_sub(6)),
                caps: caps.clone(),
            };
            let mut policy = policy(random, format!("p{index}"), kind);
            policy.pace = pace;
            policy.windows.clone_from(&windows);
            policy
        })
        .collect()
}

/// Most stories are about the default. Nothing random is drawn: the rest of the story stays what it is.
pub(super) fn with_ways_to_treat_the_undrainable(policies: &mut [Policy], seed: u64) {
    let ways = [
        Undrainable::DrainRest,
        Undrainable::DrainRest,
        Undrainable::DrainRest,
        Undrainable::Report,
        Undrainable::Cordon,
    ];
    let way = ways.iter().cycle().nth(usize::try_from(seed % 5).unwrap_or_default());
    for policy in policies {
        policy.undrainable = way.copied().unwrap_or(Undrainable::DrainRest);
    }
}

fn policy(random: &mut StdRng, name: String, kind: &str) -> Policy {
    let rule = ConditionRule::new(kind, ConditionStatus::True, seconds(random, 0..6));
    let clear_after = seconds(random, 2..12);
    let stale_after = seconds(random, 8..25);
    let rule = ConditionRule {
        clear_after: random.random_bool(0.9).then_some(clear_after),
        stale_after: random.random_bool(0.25).then_some(stale_after),
        ..rule
    };
    let mut policy = Policy::new(name, vec![rule]);
    policy.drain = random.random_bool(0.9);
    policy.headroom = seconds(random, 10..30);
    policy.at_deadline = match random.random_range(0..4) {
        0 => AtDeadline::Uncordon,
        1 => AtDeadline::DeleteRest,
        _ => AtDeadline::GiveUp,
    };
    policy.retry = Retry {
        first: seconds(random, 5..10),
        most: Duration::from_secs(20),
        attempts: random.random_range(2..8),
    };
    policy.stop_when_clear = random.random_bool(0.7);
    policy.undrainable =
        if random.random_bool(0.7) { Undrainable::Report } else { Undrainable::Cordon };
    policy.pods.protections = vec![Protection { key: PROTECTED.into(), value: None }];
    if random.random_bool(0.2) {
        let zone = ZONES[random.random_range(0..ZONES.len())];
        policy.nodes =
            NodeSelector { labels: vec![(ZONE.into(), zone.into())], ..NodeSelector::default() };
    }
    policy.status_taint = random.random_bool(0.3).then(|| STATUS_TAINT.into());
    policy
}

/// A cap on all nodes, and sometimes one on those with the same label.
fn caps(random: &mut StdRng) -> Vec<Cap> {
    let limit = match random.random_range(0..5) {
        0 => Limit::Percent(25),
        1 => Limit::Percent(75),
        2 => Limit::Count(1),
        3 => Limit::Count(2),
        _ => Limit::Count(4),
    };
    let mut caps = vec![Cap { scope: CapScope::Cluster, limit }];
    if random.random_bool(0.3) {
        let limit = if random.random_bool(0.5) { Limit::Count(1) } else { Limit::Percent(60) };
        caps.push(Cap { scope: CapScope::Label(ZONE.into()), limit });
    }
    caps
}

/// One that closes soon after the beginning of the story, if it is open at all, and one that opens
/// before its end.
fn windows(random: &mut StdRng) -> Vec<Window> {
    let time = |minute, second: i8| Time::constant(12, minute, second, 0);
    let window = |from, to| {
        let days = vec![Weekday::Thursday];
        Window { days, from, to, zone: TimeZone::UTC }
    };
    let mut windows =
        vec![window(time(1, random.random_range(0..60)), Time::constant(23, 0, 0, 0))];
    if random.random_bool(0.7) {
        let close = time(0, random.random_range(10..60));
        windows.push(window(Time::constant(11, 0, 0, 0), close));
    }
    windows
}

fn seconds(random: &mut StdRng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_secs(random.random_range(range))
}
