//! Pauses between attempts.

use std::time::Duration;

/// After the first failure.
const FIRST: Duration = Duration::from_millis(200);

/// At the most. A real kubelet waits up to 7 s; a trial should not.
const LONGEST: Duration = Duration::from_secs(5);

/// Pauses that double with each failure in a row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pause {
    failures: u32,
}

impl Pause {
    /// The pause after one more failure.
    pub(super) fn next(&mut self) -> Duration {
        let pause = FIRST.saturating_mul(1 << self.failures.min(5));
        self.failures = self.failures.saturating_add(1);
        pause.min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut pause = Pause::default();
        let pauses: Vec<_> = (0..7).map(|_| pause.next().as_millis()).collect();
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 5000, 5000]);
    }
}
