//! The times of an election.

use std::time::Duration;

/// The times of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// How long a claim is valid that is not renewed.
    pub lease: Duration,
    /// How long the leader goes on without a renewal. Shorter than the lease, so that the leader has
    /// stopped when the next one starts.
    pub renew: Duration,
    /// Pause between two renewals, and between two attempts to renew.
    pub retry: Duration,
    /// Pause between two reads of the lease by a standby. Below a second, so that a released lease
    /// is taken within one.
    pub look: Duration,
}

/// The times contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimesError {
    /// The lease is out of bounds.
    #[error(
        "--leader-elect-lease-duration={0:?} is out of bounds; it must be between {least:?} and \
         {most:?}", least = Times::SHORTEST_LEASE, most = Times::LONGEST_LEASE
    )]
    Lease(Duration),
    /// The renew deadline leaves no margin.
    #[error(
        "--leader-elect-renew-deadline={renew:?} is too long for a lease of {lease:?}: writes in flight \
         at the deadline need the remaining time; use {most:?} or less, or a longer \
         --leader-elect-lease-duration"
    )]
    Renew {
        /// The renew deadline.
        renew: Duration,
        /// The lease.
        lease: Duration,
        /// The longest renew deadline for that lease.
        most: Duration,
    },
    /// No renewal fits before the deadline.
    #[error(
        "--leader-elect-retry-period={retry:?} is out of bounds; with a renew deadline of {renew:?} it \
         must be between {least:?} and {most:?}, so that a second attempt fits before the deadline",
        least = Times::SHORTEST_RETRY
    )]
    Retry {
        /// The retry period.
        retry: Duration,
        /// The renew deadline.
        renew: Duration,
        /// The longest retry period for that deadline.
        most: Duration,
    },
}

impl Default for Times {
    /// ADR 7 has the figures by which they were chosen.
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(5),
            renew: Duration::from_millis(3500),
            retry: Duration::from_secs(1),
            look: Duration::from_millis(800),
        }
    }
}

impl Times {
    /// The stored duration has whole seconds, and needs room for two attempts to renew.
    pub const SHORTEST_LEASE: Duration = Duration::from_secs(2);
    /// A stored claim is waited for no longer, whatever it says: no replica can have made a longer
    /// one, so a longer one was written by hand.
    pub const LONGEST_LEASE: Duration = Duration::from_secs(300);
    /// A shorter pause would be a burden on the API server.
    pub const SHORTEST_RETRY: Duration = Duration::from_millis(200);

    /// Checks that the times fit together.
    ///
    /// # Errors
    /// The first one that does not fit, and what would.
    pub fn new(lease: Duration, renew: Duration, retry: Duration) -> Result<Self, TimesError> {
        if !(Self::SHORTEST_LEASE..=Self::LONGEST_LEASE).contains(&lease) {
            return Err(TimesError::Lease(lease));
        }
        let most = lease * 4 / 5;
        if renew > most {
            return Err(TimesError::Renew { renew, lease, most });
        }
        let most = renew / 2;
        if !(Self::SHORTEST_RETRY..=most).contains(&retry) {
            return Err(TimesError::Retry { retry, renew, most });
        }
        Ok(Self { lease, renew, retry, ..Self::default() })
    }

    /// How long one request for the lease may take. Two fit before the renew deadline, so that a
    /// dead connection does not cost the lease.
    pub(super) fn request(&self) -> Duration {
        self.renew / 2
    }

    /// How long the holder of a lease that was deleted has to claim it again: it notices with its next
    /// renewal.
    pub(super) fn reclaim(&self) -> Duration {
        self.retry * 2
    }

    /// The duration to store: whole seconds, and never less than the claim is valid.
    pub(super) fn stored_seconds(&self) -> u64 {
        self.lease.as_secs() + u64::from(self.lease.subsec_nanos() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(lease: f64, renew: f64, retry: f64) -> Result<Times, TimesError> {
        let [lease, renew, retry] = [lease, renew, retry].map(Duration::from_secs_f64);
        Times::new(lease, renew, retry)
    }

    #[test]
    fn the_default_times_and_those_of_others_fit_together() {
        let default = Times::default();
        assert_eq!(Times::new(default.lease, default.renew, default.retry), Ok(default));
        // client-go's, and those of a distribution that survives long outages.
        for (lease, renew, retry) in [(15.0, 10.0, 2.0), (137.0, 107.0, 26.0), (60.0, 40.0, 5.0)] {
            assert!(times(lease, renew, retry).is_ok());
        }
    }

    #[test]
    fn times_that_do_not_fit_are_refused_with_the_flag_and_what_would_fit() {
        for (lease, renew, retry, words) in [
            (0.0, 0.0, 0.0, ["lease-duration", "2s and 300s"]),
            (3600.0, 10.0, 2.0, ["lease-duration", "2s and 300s"]),
            (15.0, 15.0, 2.0, ["renew-deadline", "12s or less"]),
            (15.0, 14.0, 2.0, ["renew-deadline", "12s or less"]),
            (15.0, 10.0, 6.0, ["retry-period", "200ms and 5s"]),
            (15.0, 10.0, 0.0, ["retry-period", "200ms and 5s"]),
        ] {
            let error = times(lease, renew, retry).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
        }
    }

    #[test]
    fn the_stored_duration_is_never_shorter_than_the_claim() {
        let stored = |lease| Times { lease, ..Times::default() }.stored_seconds();
        assert_eq!(stored(Duration::from_secs(5)), 5);
        assert_eq!(stored(Duration::from_millis(5001)), 6);
    }
}
