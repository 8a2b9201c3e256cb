//! Watches for steps of the wall clock, and lets the API server say which time is right.
//!
//! The deadlines' stamps come from the control plane's clocks. When this machine's wall clock
//! steps away from the time that has passed, either it was wrong before, or is wrong now, or the
//! machine slept. The API server's own time tells; until it does, time goes on as it did, so that
//! nothing comes early. What is seen for the first time until then is set right with the clock.
//!
//! A machine whose clock nobody sets drifts without a step, so the API server is asked now and then
//! in any case.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;
use tracing::{info, warn};

use super::ingest::recorded;
use super::state::Shared;
use crate::cluster::Api;
use crate::model::{Anchors, Node};
use crate::taint::anchor::{self, CLOCKS_APART};

/// How often the clocks are compared.
const EVERY: Duration = Duration::from_secs(1);
/// The API server is asked at least this often: a bad clock drifts by seconds a day.
const ASKED_EVERY: Duration = Duration::from_hours(1);
/// Differences below this are left alone: the API's own stamps are whole seconds.
const TOLERATED: SignedDuration = SignedDuration::from_secs(2);
/// What to do about a difference between clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ruling {
    /// The time that is kept is right.
    Keep,
    /// The system's time is right.
    TakeSystem,
    /// Neither is: the server's time is.
    TakeServer,
}

/// Rules between the time that is kept, the system's time and the server's.
fn rule(kept: Timestamp, system: Timestamp, server: Timestamp) -> Ruling {
    let agree = |a: Timestamp, b: Timestamp| a.duration_since(b).abs() <= CLOCKS_APART;
    if agree(kept, server) {
        Ruling::Keep
    } else if agree(system, server) {
        Ruling::TakeSystem
    } else {
        Ruling::TakeServer
    }
}

/// Compares the clocks at the start. Returns whether the API server told its time.
pub(super) async fn align(shared: &Shared, api: &Api) -> bool {
    let Ok(Some(server)) = api.server_time().await else {
        warn!(
            "the API server did not tell its time; until it does, deadlines are kept by this \
            machine's clock"
        );
        return false;
    };
    let kept = shared.clock.now();
    if rule(kept, kept, server) == Ruling::TakeServer {
        warn!(%server, system = %kept, "this machine's clock differs from the API server's; \
            deadlines are kept by the server's");
        shared.clock.set(server);
    }
    true
}

/// Compares the clocks until it is dropped. Unless they are `aligned`, the API server is asked until
/// it answers.
pub(super) fn run(
    shared: Arc<Shared>,
    api: Api,
    aligned: bool,
    wall: impl Fn() -> Timestamp,
) -> impl Future<Output = ()> {
    // Up to when the time that is kept is known to have been right; whatever came before was not
    // seen by this process.
    let mut right_until = shared.clock.now();
    async move {
        let offset_now = || wall().duration_since(shared.clock.now());
        let mut known = aligned.then(offset_now);
        let mut asked = Instant::now();
        loop {
            tokio::time::sleep(EVERY).await;
            let (kept, system) = (shared.clock.now(), wall());
            let change = known.and_then(|known| system.duration_since(kept).checked_sub(known));
            let is_steady = change.is_some_and(|change| change.abs() < TOLERATED);
            if is_steady {
                right_until = kept;
            }
            if is_steady && asked.elapsed() < ASKED_EVERY {
                continue;
            }
            asked = Instant::now();
            // Without a judge the time that is kept goes on, and the question stays open.
            let Ok(Some(server)) = api.server_time().await else {
                continue;
            };
            let kept = shared.clock.now();
            let system = wall();
            match rule(kept, system, server) {
                Ruling::Keep if known.is_none() || is_steady => {}
                Ruling::Keep => {
                    warn!(%system, %kept, %server, "the wall clock stepped, and the API server does \
                        not agree with it; deadlines stay as they are");
                }
                Ruling::TakeSystem => set(&shared, right_until, kept, system),
                Ruling::TakeServer => set(&shared, right_until, kept, server),
            }
            right_until = shared.clock.now();
            known = Some(offset_now());
        }
    }
}

/// Sets the time that is kept, which may have been wrong since `doubtful`.
fn set(shared: &Shared, doubtful: Timestamp, kept: Timestamp, right: Timestamp) {
    let set_right = |anchors: &Anchors, node: &Node| {
        let anchors = anchor::set_right(anchors, doubtful, kept, right);
        // What the leader has recorded was nonsense by the wrong time, and counts by the right one.
        match recorded(node).filter(|_| !shared.leads()) {
            Some(record) => {
                let adopted = anchor::adopted(&anchors, &record);
                anchor::advance(anchor::Past::Recorded(&adopted), node, right)
            }
            None => anchors,
        }
    };
    let mut names = shared.view.node_names();
    // First, or what was seen by the wrong time would be judged by the right one.
    names.retain(|name| shared.view.refresh_node(name, set_right));
    shared.clock.set(right);
    let timers = shared.rearm();
    for name in names {
        shared.node_changed(name);
    }
    info!(%kept, %right, timers, "the time was set, as the API server confirms; timers were set \
        anew");
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;
    use crate::clock::Clock;
    use crate::cluster::watch::Source;
    use crate::config::Compat;
    use crate::controller::ingest::take_node;
    use crate::model::build::{node, noon, taint};
    use crate::observe::{EventMetrics, Recorder};
    use crate::sim::embedded::{Embedded, Options};

    fn at(text: &str) -> Timestamp {
        format!("2026-01-01T{text}Z").parse().unwrap()
    }

    #[test]
    fn a_step_that_the_server_does_not_share_changes_nothing() {
        assert_eq!(rule(at("12:00:00"), at("14:00:00"), at("12:00:01")), Ruling::Keep);
        assert_eq!(rule(at("12:00:00"), at("10:00:00"), at("11:59:58")), Ruling::Keep);
    }

    #[test]
    fn a_machine_that_slept_takes_the_systems_time() {
        assert_eq!(rule(at("12:00:00"), at("14:00:00"), at("14:00:02")), Ruling::TakeSystem);
    }

    #[test]
    fn a_clock_that_was_wrong_all_along_follows_the_server() {
        assert_eq!(rule(at("12:00:00"), at("14:00:00"), at("09:00:00")), Ruling::TakeServer);
    }

    /// What a controller shares whose clock shows noon.
    fn shared() -> Shared {
        let clock = Clock::starting_at(noon());
        let metrics = EventMetrics::register(&Registry::new()).unwrap();
        let (recorder, _) = Recorder::new("test", metrics, clock.clone());
        Shared::new(clock, Compat::None, recorder)
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_seen_while_the_clock_was_behind_counts_from_when_it_was_seen() {
        let shared = shared();
        take_node(&shared, node("n1").tainted(taint("k", "")), Source::Watch);
        set(&shared, noon(), noon(), at("13:00:00"));
        let (_, anchors) = shared.view.node_alone(&"n1".into()).unwrap();
        assert_eq!(anchors.first_seen[0].since, at("13:00:00"));
        assert_eq!(shared.clock.now(), at("13:00:00"));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_stands_by_and_slept_counts_as_the_leader_has_recorded_meanwhile() {
        let shared = shared();
        let record = |since: &str| {
            format!(r#"{{"taints":[{{"key":"k","value":"","since":"2026-01-01T{since}Z"}}]}}"#)
        };
        take_node(&shared, node("n1"), Source::List);
        // Seen at 13:00, while its own clock still shows noon.
        let tainted = node("n1").tainted(taint("k", ""));
        let tainted = tainted.annotated(Some(&record("12:30:00")));
        take_node(&shared, tainted, Source::Watch);
        set(&shared, noon(), noon(), at("13:00:00"));
        let (_, anchors) = shared.view.node_alone(&"n1".into()).unwrap();
        assert_eq!(anchors.first_seen[0].since, at("12:30:00"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_drifts_without_a_step_is_set_right_within_the_hour() {
        let shared = Arc::new(shared());
        let cluster = Embedded::new(Clock::starting_at(at("12:01:00")), Options::default());
        let metrics = crate::cluster::Metrics::register(&Registry::new()).unwrap();
        let api = Api::new(cluster.client(), metrics);
        let clock = shared.clock.clone();
        let watch = run(shared, api, true, {
            let clock = clock.clone();
            move || clock.now()
        });
        let _ = tokio::time::timeout(Duration::from_mins(61), watch).await;
        let off = clock.now().duration_since(cluster.store().clock().now());
        assert!(off.abs() <= CLOCKS_APART, "{off}");
    }
}
