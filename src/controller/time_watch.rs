//! Watches for steps of the wall clock, and lets the API server say which time is right.
//!
//! The deadlines' stamps come from the control plane's clocks. When this machine's wall clock
//! steps away from the time that has passed, either it was wrong before, or is wrong now, or the
//! machine slept. The API server's own time tells; until it does, time goes on as it did, so that
//! nothing comes early.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tracing::{info, warn};

use super::state::Shared;
use crate::cluster::Api;

/// How often the clocks are compared.
const EVERY: Duration = Duration::from_secs(1);
/// Differences below this are left alone: the API's own stamps are whole seconds.
const TOLERATED: SignedDuration = SignedDuration::from_secs(2);
/// Two clocks that differ by less than this agree, given the whole seconds of the server's answer
/// and the time that it travels.
const AGREE: SignedDuration = SignedDuration::from_secs(5);

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
    let agree = |a: Timestamp, b: Timestamp| a.duration_since(b).abs() <= AGREE;
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
pub(super) async fn run(
    shared: Arc<Shared>,
    api: Api,
    aligned: bool,
    wall: impl Fn() -> Timestamp,
) {
    let offset_now = || wall().duration_since(shared.clock.now());
    let mut known = aligned.then(offset_now);
    loop {
        tokio::time::sleep(EVERY).await;
        let system = wall();
        let offset = system.duration_since(shared.clock.now());
        let change = known.and_then(|known| offset.checked_sub(known));
        if change.is_some_and(|change| change.abs() < TOLERATED) {
            continue;
        }
        // Without a judge the time that is kept goes on, and the question stays open.
        let Ok(Some(server)) = api.server_time().await else {
            continue;
        };
        let kept = shared.clock.now();
        let system = wall();
        match rule(kept, system, server) {
            Ruling::Keep if known.is_none() => {}
            Ruling::Keep => {
                warn!(%system, %kept, %server, "the wall clock stepped, and the API server does \
                    not agree with it; deadlines stay as they are");
            }
            Ruling::TakeSystem => set(&shared, kept, system),
            Ruling::TakeServer => set(&shared, kept, server),
        }
        known = Some(offset_now());
    }
}

fn set(shared: &Shared, kept: Timestamp, right: Timestamp) {
    shared.clock.set(right);
    let timers = shared.rearm();
    info!(%kept, %right, timers, "the wall clock stepped, as the API server confirms; timers were \
        set anew");
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
