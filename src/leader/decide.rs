//! What a candidate does next. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// The times of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// For how long a claim holds that is not renewed.
    pub lease: Duration,
    /// For how long the leader goes on without a renewal. Less than the lease, so that it has
    /// stopped when the next one starts.
    pub renew: Duration,
    /// Pause between two renewals, and between two tries to renew.
    pub retry: Duration,
    /// Pause between two looks of one that stands by. Below a second, so that a lease that was
    /// given back is taken within one.
    pub look: Duration,
}

impl Default for Times {
    /// As the control plane's own components have them; only the look is ours.
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            renew: Duration::from_secs(10),
            retry: Duration::from_secs(2),
            look: Duration::from_millis(800),
        }
    }
}

/// Who claims the lease, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Identity of the holder; empty if the lease was given back.
    pub holder: String,
    /// For how long the claim holds after it was last renewed.
    pub duration: Duration,
    /// The stored version, which every renewal changes.
    pub version: String,
}

/// A claim, and since when this process has seen it stored like that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sight {
    /// The claim.
    pub claim: Claim,
    /// When this version was seen first.
    pub since: Instant,
}

impl Sight {
    /// What is known after `claim` was read at `now`: the same version keeps its time.
    pub fn updated(before: Option<Self>, claim: Claim, now: Instant) -> Self {
        match before {
            Some(before) if before.claim.version == claim.version => before,
            _ => Self { claim, since: now },
        }
    }
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The lease is ours: renew it.
    Hold,
    /// It is free or has run out: try to take it.
    Try,
    /// Another holds it.
    Wait,
}

/// What the candidate `me` does next about the lease as it has seen it last; `None` if there is no
/// such lease.
///
/// Whether a claim has run out is judged by the local time at which it was last seen to change. The
/// holder's own stamps do not count: its clock may be wrong. So one that has just started waits
/// for a whole lease before it takes over from one that is dead.
pub fn decide(sight: Option<&Sight>, me: &str, now: Instant) -> Step {
    let Some(Sight { claim, since }) = sight else { return Step::Try };
    if claim.holder == me {
        Step::Hold
    } else if claim.holder.is_empty() || *since + claim.duration <= now {
        Step::Try
    } else {
        Step::Wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(holder: &str, version: &str) -> Claim {
        let duration = Duration::from_secs(15);
        Claim { holder: holder.to_owned(), duration, version: version.to_owned() }
    }

    /// What `me` does after this claim has been seen unchanged for so many seconds.
    fn after(claim: Claim, seconds: u64) -> Step {
        let since = Instant::now();
        let sight = Sight { claim, since };
        decide(Some(&sight), "me", since + Duration::from_secs(seconds))
    }

    #[tokio::test(start_paused = true)]
    async fn each_case_has_its_step() {
        assert_eq!(decide(None, "me", Instant::now()), Step::Try, "there is no lease");
        for (holder, seconds, step) in [
            ("", 0, Step::Try),
            ("me", 0, Step::Hold),
            ("me", 100, Step::Hold),
            ("other", 0, Step::Wait),
            ("other", 14, Step::Wait),
            ("other", 15, Step::Try),
            ("me_2", 0, Step::Wait),
        ] {
            assert_eq!(after(claim(holder, "1"), seconds), step, "{holder} after {seconds} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_counts_from_when_its_version_was_seen_first() {
        let start = Instant::now();
        let seconds = |seconds| start + Duration::from_secs(seconds);
        let first = Sight::updated(None, claim("other", "1"), start);
        let again = Sight::updated(Some(first), claim("other", "1"), seconds(10));
        assert_eq!(again.since, start);
        let renewed = Sight::updated(Some(again), claim("other", "2"), seconds(12));
        assert_eq!(decide(Some(&renewed), "me", seconds(26)), Step::Wait);
        assert_eq!(decide(Some(&renewed), "me", seconds(27)), Step::Try);
    }

    #[test]
    fn the_leader_has_stopped_before_its_lease_ends() {
        let times = Times::default();
        assert!(times.retry < times.renew && times.renew < times.lease);
        assert!(times.look < Duration::from_secs(1));
    }
}
