//! Limits how often a node is written to.
//!
//! Otherwise a kubelet, a script or a webhook that undoes each write would cause a write loop, as fast as
//! the API server accepts requests.

use std::time::Duration;

use tokio::time::Instant;

use crate::drain::{Action, Change};

/// Writes in a row that wait for nothing. A whole drain takes eight.
const FREE: u32 = 16;
/// One of them is forgotten after each of these.
const FORGOTTEN: Duration = Duration::from_secs(15);
/// The pause after the first one too many; it doubles with each.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);

/// What bounds the writes to a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Restraints {
    uncordons: Restraint,
    others: Restraint,
}

impl Restraints {
    /// What bounds such an action. Evictions are none of its business, and what takes a cordon back is
    /// held back by no other write.
    pub(super) fn on(&mut self, action: &Action) -> Option<&mut Restraint> {
        match action {
            Action::Continue(_) => None,
            Action::Write(Change { unschedulable: Some(false), .. }) => Some(&mut self.uncordons),
            _ => Some(&mut self.others),
        }
    }
}

/// The recent writes to a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Restraint {
    recent: u32,
    /// The last one, and since when they are forgotten.
    last: Option<(Instant, Instant)>,
}

impl Restraint {
    /// How long the next write has to wait; `None` if it may be sent now.
    pub(super) fn pause(&mut self, now: Instant) -> Option<Duration> {
        let (last, since) = self.last.as_mut()?;
        let forgotten = (now - *since).as_secs() / FORGOTTEN.as_secs();
        let forgotten = u32::try_from(forgotten).unwrap_or(u32::MAX);
        *since += FORGOTTEN.saturating_mul(forgotten.min(self.recent));
        self.recent = self.recent.saturating_sub(forgotten);
        let over = self.recent.checked_sub(FREE)?;
        let pause = FIRST.saturating_mul(1 << over.min(16)).min(LONGEST);
        let at = *last + pause;
        (at > now).then(|| at - now)
    }

    /// A write was sent.
    pub(super) fn count(&mut self, now: Instant) {
        self.pause(now);
        self.recent = self.recent.saturating_add(1);
        let since = self.last.filter(|_| self.recent > 1).map_or(now, |(_, since)| since);
        self.last = Some((now, since));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// How many writes there are within `time` if each is sent as soon as it may be.
    fn writes(restraint: &mut Restraint, now: &mut Instant, time: Duration) -> usize {
        let end = *now + time;
        let mut count = 0;
        while *now < end {
            if let Some(pause) = restraint.pause(*now) {
                *now += pause;
            } else {
                restraint.count(*now);
                count += 1;
                *now += Duration::from_millis(10);
            }
        }
        count
    }

    #[test]
    fn the_first_writes_wait_for_nothing_and_the_others_longer_and_longer() {
        let (mut restraint, mut now) = (Restraint::default(), Instant::now());
        assert_eq!(writes(&mut restraint, &mut now, SECOND), 16);
        restraint.count(now);
        let mut pauses = Vec::new();
        for _ in 0..3 {
            pauses.push(restraint.pause(now).unwrap().as_secs());
            now += restraint.pause(now).unwrap();
            restraint.count(now);
        }
        assert_eq!(pauses, [2, 4, 8]);
    }

    #[test]
    fn for_hours_there_are_a_few_a_minute() {
        let (mut restraint, mut now) = (Restraint::default(), Instant::now());
        writes(&mut restraint, &mut now, 600 * SECOND);
        let count = writes(&mut restraint, &mut now, 3600 * SECOND);
        assert!((60..=300).contains(&count), "{count} in an hour");
    }

    #[test]
    fn what_is_long_ago_is_forgotten() {
        let (mut restraint, mut now) = (Restraint::default(), Instant::now());
        writes(&mut restraint, &mut now, 600 * SECOND);
        now += 600 * SECOND;
        assert_eq!(writes(&mut restraint, &mut now, SECOND), 16);
    }
}
