//! Graceful node shutdown: pods are killed in groups, the lowest priority first.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::switches::Rejection;

/// Priority from which a pod counts as critical to the cluster.
const CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// Pods of one range of priorities, and the time that a shutdown gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownGroup {
    /// Lowest priority in the group; the next group's begins the next range. Pods below all
    /// groups belong to the lowest.
    pub priority: i32,
    /// How long the group may take. It also caps the grace of each of its pods.
    pub period: Duration,
}

/// The groups of a shutdown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShutdownPlan {
    groups: Vec<ShutdownGroup>,
}

impl ShutdownPlan {
    /// A plan of these groups, in any order.
    pub fn new(groups: impl IntoIterator<Item = ShutdownGroup>) -> Self {
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|group| group.priority);
        Self { groups }
    }
}

/// Ordinary pods get 20 s, critical ones 10 s after that.
impl Default for ShutdownPlan {
    fn default() -> Self {
        let group =
            |priority, seconds| ShutdownGroup { priority, period: Duration::from_secs(seconds) };
        Self::new([group(0, 20), group(CRITICAL_PRIORITY, 10)])
    }
}

/// A shutdown under way.
#[derive(Clone, Debug)]
pub(super) struct Shutdown {
    plan: ShutdownPlan,
    /// The group whose turn it is; those before it are over.
    current: usize,
    /// Since when it is that group's turn.
    since: Timestamp,
}

impl Shutdown {
    /// Begins with the lowest group.
    pub(super) fn begin(plan: ShutdownPlan, now: Timestamp) -> Self {
        Self { plan, current: 0, since: now }
    }

    /// Goes on to the group whose turn it is, given the priorities of the pods that still run.
    /// A group is over when it is empty or its time is. Returns when to look again at the latest.
    pub(super) fn advance(&mut self, running: &[i32], now: Timestamp) -> Option<Timestamp> {
        while let Some(group) = self.plan.groups.get(self.current) {
            let period = SignedDuration::try_from(group.period).unwrap_or(SignedDuration::MAX);
            let end = self.since.saturating_add(period).unwrap_or(Timestamp::MAX);
            let empty = !running.iter().any(|priority| self.group_of(*priority) == self.current);
            if !empty && now < end {
                return Some(end);
            }
            self.current += 1;
            self.since = now;
        }
        None
    }

    /// The longest grace of a pod with that priority, once its group's turn has come.
    pub(super) fn grace(&self, priority: i32) -> Option<Duration> {
        let group = self.group_of(priority);
        if group > self.current {
            return None;
        }
        self.plan.groups.get(group).map(|group| group.period)
    }

    /// What a pod is told that arrives now.
    pub(super) fn rejection() -> Rejection {
        Rejection::new("NodeShutdown", "Pod was rejected as the node is shutting down.")
    }

    fn group_of(&self, priority: i32) -> usize {
        let up_to = self.plan.groups.iter().take_while(|group| group.priority <= priority);
        up_to.count().saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn shutdown() -> Shutdown {
        Shutdown::begin(ShutdownPlan::default(), at(0))
    }

    #[test]
    fn the_lowest_group_goes_first_and_critical_pods_wait() {
        let mut shutdown = shutdown();
        assert_eq!(shutdown.advance(&[0, CRITICAL_PRIORITY], at(0)), Some(at(20)));
        assert_eq!(shutdown.grace(0), Some(Duration::from_secs(20)));
        assert_eq!(shutdown.grace(-5), Some(Duration::from_secs(20)));
        assert_eq!(shutdown.grace(CRITICAL_PRIORITY), None);
    }

    #[test]
    fn a_group_ends_when_its_pods_are_gone() {
        let mut shutdown = shutdown();
        assert_eq!(shutdown.advance(&[CRITICAL_PRIORITY], at(3)), Some(at(13)));
        assert_eq!(shutdown.grace(CRITICAL_PRIORITY), Some(Duration::from_secs(10)));
    }

    #[test]
    fn a_group_ends_when_its_time_is_over() {
        let mut shutdown = shutdown();
        let running = [7, CRITICAL_PRIORITY + 1000];
        assert_eq!(shutdown.advance(&running, at(19)), Some(at(20)));
        assert_eq!(shutdown.advance(&running, at(20)), Some(at(30)));
        assert_eq!(shutdown.advance(&running, at(30)), None);
    }

    #[test]
    fn empty_groups_cost_no_time_and_no_group_kills_nothing() {
        assert_eq!(shutdown().advance(&[], at(0)), None);
        let mut none = Shutdown::begin(ShutdownPlan::new([]), at(0));
        assert_eq!(none.advance(&[0], at(0)), None);
        assert_eq!(none.grace(0), None);
    }
}
