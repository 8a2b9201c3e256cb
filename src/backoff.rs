//! Growing, jittered pauses between attempts.

use std::time::Duration;

/// An exponential backoff: doubling from `first` up to `most`, each pause jittered down by up to
/// a half so that many retriers do not march in step.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// Pause after the first failure.
    pub first: Duration,
    /// Longest pause.
    pub most: Duration,
}

impl Backoff {
    /// The pause after the `failures`-th failure in a row, counted from 1.
    ///
    /// The jitter is a function of who waits: `who` tells retriers apart, for example by the UID of
    /// a pod. So it needs no source of chance, and what happened can be played again.
    pub fn pause(&self, failures: u32, who: u128) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let full = self.first.saturating_mul(1 << doublings).min(self.most);
        full.mul_f64(1.0 - 0.5 * spread(who, failures))
    }

    /// The same, and not less than the server asks for; but whoever asks for more than the longest
    /// is not waited for: some proxies ask for hours.
    pub fn pause_asked(&self, failures: u32, who: u128, asked: Option<Duration>) -> Duration {
        self.pause(failures, who).max(asked.unwrap_or_default().min(self.most))
    }
}

/// A number in 0..1 that looks random and depends on nothing but what is given.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)] // Folded, then 53 bits.
pub(crate) fn spread(who: u128, turn: u32) -> f64 {
    let mut x = (who ^ (who >> 64)) as u64 ^ (u64::from(turn) << 32);
    // The finalizer of splitmix64: every bit of the input moves every bit of the output.
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff =
        Backoff { first: Duration::from_millis(250), most: Duration::from_secs(120) };

    #[test]
    fn pauses_double_up_to_the_longest_and_are_never_less_than_half() {
        for who in 0..1000 {
            for (failures, full) in [(1, 250), (2, 500), (3, 1_000), (9, 64_000), (10, 120_000)] {
                let pause = BACKOFF.pause(failures, who);
                assert!(pause <= Duration::from_millis(full), "{failures}: {pause:?}");
                assert!(pause >= Duration::from_millis(full / 2), "{failures}: {pause:?}");
            }
            assert!(BACKOFF.pause(u32::MAX, who) <= Duration::from_secs(120));
            assert!(BACKOFF.pause(0, who) >= Duration::from_millis(125));
        }
    }

    #[test]
    fn retriers_spread_evenly_and_each_differs_from_try_to_try() {
        let pauses: Vec<_> = (0..1000).map(|who| BACKOFF.pause(10, who << 64).as_secs()).collect();
        for low in (60..120).step_by(10) {
            let count = pauses.iter().filter(|pause| (low..low + 10).contains(*pause)).count();
            assert!(
                (120..220).contains(&count),
                "{count} of 1000 between {low} and {} s",
                low + 10
            );
        }
        assert_ne!(BACKOFF.pause(11, 7), BACKOFF.pause(12, 7));
        assert_eq!(BACKOFF.pause(11, 7), BACKOFF.pause(11, 7));
    }
}
