//! A token bucket: so many evictions in each period, and so many at once after a quiet time.

use std::time::Duration;

use tokio::time::Instant;

use super::RateLimit;
use super::limits::LONGEST;

/// Counts tokens. In any time it gives no more than rate · time + burst.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenBucket {
    limit: RateLimit,
    /// When all tokens are back if none is taken: each that was taken moves this by the time of one.
    full_at: Instant,
}

impl TokenBucket {
    /// A full one.
    pub(super) fn new(limit: RateLimit, now: Instant) -> Self {
        Self { limit, full_at: now }
    }

    /// When the next token is there: `now` if there is one.
    pub(super) fn next(&self, now: Instant) -> Instant {
        // With no more than this missing, a token is left.
        let allowed = self.each().saturating_mul(self.limit.burst.saturating_sub(1)).min(LONGEST);
        let missing = self.full_at.saturating_duration_since(now);
        now + missing.saturating_sub(allowed)
    }

    /// Takes a token. The caller has asked for the [`next`](Self::next) one.
    pub(super) fn take(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now) + self.each();
    }

    /// How many tokens are left.
    pub(super) fn tokens(&self, now: Instant) -> u32 {
        let missing = self.full_at.saturating_duration_since(now).as_nanos();
        let missing = missing.div_ceil(self.each().as_nanos());
        self.limit.burst.saturating_sub(u32::try_from(missing).unwrap_or(u32::MAX))
    }

    /// Has another limit count from now on. What was taken stays taken.
    pub(super) fn configure(&mut self, limit: RateLimit, now: Instant) {
        if self.limit == limit {
            return;
        }
        let missing = self.full_at.saturating_duration_since(now).as_secs_f64();
        let taken = missing / self.each().as_secs_f64();
        self.limit = limit;
        let missing = Duration::try_from_secs_f64(taken * self.each().as_secs_f64());
        self.full_at = now + missing.unwrap_or(LONGEST).min(LONGEST);
    }

    /// Whether nothing is known of it that a new one would not say.
    pub(super) fn is_full(&self, now: Instant) -> bool {
        self.full_at <= now
    }

    /// The limit in force.
    pub(super) fn limit(&self) -> RateLimit {
        self.limit
    }

    /// The time in which one token comes, rounded up, so that no fraction adds up to another one.
    pub(super) fn each(&self) -> Duration {
        let nanos = self.limit.per.as_nanos().div_ceil(u128::from(self.limit.pods.max(1)));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bucket(pods: u32, per: u64, burst: u32) -> TokenBucket {
        let limit = RateLimit { pods, per: Duration::from_secs(per), burst };
        TokenBucket::new(limit, Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_goes_at_once_and_then_one_each_period() {
        let (mut bucket, start) = (bucket(2, 10, 3), Instant::now());
        let mut times = Vec::new();
        let mut now = start;
        for _ in 0..5 {
            now = bucket.next(now);
            bucket.take(now);
            times.push((now - start).as_secs());
        }
        assert_eq!(times, [0, 0, 0, 5, 10]);
        assert_eq!(bucket.tokens(now), 0);
        let later = now + Duration::from_secs(60);
        assert_eq!(
            (bucket.tokens(later), bucket.next(later)),
            (3, later),
            "no more than the burst"
        );
        assert!(bucket.is_full(later) && !bucket.is_full(now));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_taken_stays_taken_under_another_limit() {
        let (mut bucket, now) = (bucket(1, 1, 4), Instant::now());
        for _ in 0..4 {
            bucket.take(now);
        }
        let slower = RateLimit { pods: 1, per: Duration::from_secs(10), burst: 4 };
        bucket.configure(slower, now);
        assert_eq!((bucket.tokens(now), bucket.next(now) - now), (0, Duration::from_secs(10)));
        bucket.configure(RateLimit { burst: 6, ..slower }, now);
        assert_eq!((bucket.tokens(now), bucket.next(now)), (2, now));
    }

    #[test]
    fn extreme_limits_overflow_nowhere() {
        for (pods, per, burst) in
            [(1, u64::MAX, u32::MAX), (u32::MAX, 1, u32::MAX), (u32::MAX, u64::MAX, 1), (1, 1, 1)]
        {
            let (mut bucket, now) = (bucket(pods, per, burst), Instant::now());
            bucket.take(now);
            let next = bucket.next(now);
            bucket.take(next);
            bucket.configure(RateLimit { pods: 1, per: Duration::MAX, burst: 1 }, next);
            assert!(bucket.next(next) >= next);
        }
    }

    proptest! {
        /// Whoever asks whenever: in each stretch of time no more is given than rate · time + burst. And
        /// whoever waits until the time that is given has it.
        #[test]
        fn no_stretch_of_time_gives_more_than_its_rate_and_the_burst(
            pods in 1_u32..50,
            per in 1_u64..20,
            burst in 1_u32..20,
            pauses in prop::collection::vec(0_u64..5_000, 1..80),
        ) {
            let (mut bucket, start) = (bucket(pods, per, burst), Instant::now());
            let mut now = start;
            let mut given = Vec::new();
            for pause in pauses {
                now += Duration::from_millis(pause);
                let next = bucket.next(now);
                prop_assert_eq!(next <= now, bucket.tokens(now) > 0);
                prop_assert_eq!(bucket.next(next), next, "it is there at the time that was given");
                // Half of those who ask wait for it.
                if next <= now || pause % 2 == 0 {
                    now = next;
                    bucket.take(now);
                    given.push(now);
                }
            }
            let rate = f64::from(pods) / Duration::from_secs(per).as_secs_f64();
            for (first, from) in given.iter().enumerate() {
                for (last, to) in given.iter().enumerate().skip(first) {
                    let count = f64::from(u32::try_from(last - first + 1).unwrap());
                    let most = rate * (*to - *from).as_secs_f64() + f64::from(burst) + 1e-6;
                    prop_assert!(count <= most, "{} > {}", count, most);
                }
            }
        }
    }
}
