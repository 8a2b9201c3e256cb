//! Limits how often a node is evaluated because of updates.
//!
//! A node's kubelet can update it as often as the API server allows, and each update that changes a fact
//! costs a decision on all its pods, and perhaps requests. So each node has a token bucket of evaluations.
//! A node without tokens is evaluated when the next one arrives, with its newest facts. This delays no
//! other node, and loses nothing.

use std::time::Duration;

use ahash::AHashMap;
use tokio::time::Instant;

use crate::model::NodeName;

/// Looks that a node has at once: more than any controller needs that means well.
const AT_ONCE: u32 = 30;
/// In which one look grows back.
const EACH: Duration = Duration::from_secs(1);

/// The nodes that were changed lately, each with when it will have all its looks again.
#[derive(Debug, Default)]
pub(super) struct Rates {
    full_at: AHashMap<NodeName, Instant>,
    kept: usize,
}

impl Rates {
    /// Takes a look at a node. If it has none left, returns after how long it is looked at all the same,
    /// which takes none: so it is looked at twice a second at the most.
    pub(super) fn take(&mut self, node: &NodeName) -> Option<Duration> {
        let now = Instant::now();
        if self.full_at.len() >= self.kept.max(64) * 2 {
            self.full_at.retain(|_, full_at| *full_at > now);
            self.kept = self.full_at.len();
        }
        let full_at = match self.full_at.get_mut(node) {
            Some(full_at) => full_at,
            None => self.full_at.entry(node.clone()).or_insert(now),
        };
        let next = (*full_at).max(now) + EACH;
        let wait = next.saturating_duration_since(now + EACH * AT_ONCE);
        if wait.is_zero() {
            *full_at = next;
            None
        } else {
            Some(wait)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_node_that_changes_without_end_is_looked_at_once_a_second_and_others_at_once() {
        let mut rates = Rates::default();
        let (noisy, quiet) = (NodeName::from("noisy"), NodeName::from("quiet"));
        let mut looks = 0;
        for _ in 0..1_000 {
            looks += u32::from(rates.take(&noisy).is_none());
            tokio::time::advance(Duration::from_millis(100)).await;
            assert_eq!(rates.take(&quiet), None, "at a change each second no node waits");
            tokio::time::advance(Duration::from_millis(900)).await;
            for _ in 0..9 {
                looks += u32::from(rates.take(&noisy).is_none());
            }
        }
        assert!((1_000..1_040).contains(&looks), "{looks}");
        let wait = rates.take(&noisy).unwrap();
        assert!(wait <= EACH, "{wait:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_that_were_not_changed_lately_take_no_room() {
        let mut rates = Rates::default();
        for number in 0..10_000 {
            assert_eq!(rates.take(&NodeName::from(&*number.to_string())), None);
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert!(rates.full_at.len() <= 200, "{}", rates.full_at.len());
    }
}
