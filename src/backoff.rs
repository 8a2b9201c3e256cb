//! Growing, jittered pauses between tries.

use std::time::Duration;

use rand::Rng;

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
    pub fn pause(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let full = self.first.saturating_mul(1 << doublings).min(self.most);
        full.mul_f64(rand::rng().random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_are_never_less_than_half() {
        let backoff = Backoff { first: Duration::from_millis(250), most: Duration::from_secs(120) };
        for (failures, full) in [(1, 250), (2, 500), (3, 1_000), (9, 64_000), (10, 120_000)] {
            let pause = backoff.pause(failures);
            assert!(pause <= Duration::from_millis(full), "{failures}: {pause:?}");
            assert!(pause >= Duration::from_millis(full / 2), "{failures}: {pause:?}");
        }
        assert!(backoff.pause(u32::MAX) <= Duration::from_secs(120));
        assert!(backoff.pause(0) >= Duration::from_millis(125));
    }
}
