//! The ramp: the first nodes lose their pods for taints at full speed, further ones one by one.
//!
//! A node is admitted when the first eviction from it is handed out, and stays admitted for the time in which
//! nodes are counted. So its other pods follow at full speed. Among the nodes that wait, the one that has
//! waited longest is the next.
//!
//! It concerns taints only. How many nodes are drained at a time is limited by the caps of drain policies.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use ahash::AHashSet;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::turns::Turns;
use super::{Cause, Eviction, Hold, Topology, Wait};
use crate::drain::format_duration;

/// The ramp. Its lines are nodes.
pub struct RampHold {
    topology: Arc<dyn Topology>,
    state: Mutex<State>,
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    rules: Option<super::Ramp>,
    admitted: AHashSet<Arc<str>>,
    /// When each was admitted, in order.
    since: VecDeque<(Instant, Arc<str>)>,
    /// Nodes that wait, by when their first pod became due.
    turns: Turns<Instant>,
    /// When the next node may go that is not among the first.
    next: Option<Instant>,
}

impl RampHold {
    /// No ramp as yet. Tells `changed` when a node may go earlier than it was told.
    pub fn new(topology: Arc<dyn Topology>, changed: Arc<Notify>) -> Self {
        Self { topology, state: Mutex::default(), changed }
    }

    /// Has this ramp count from now on. Nodes that were counted stay counted.
    pub fn configure(&self, rules: Option<super::Ramp>) {
        self.state.lock().rules = rules.map(super::Ramp::cut);
        self.changed.notify_one();
    }

    /// How many nodes have been admitted within the time in which they are counted, and how many wait.
    pub(super) fn nodes(&self) -> (usize, usize) {
        let mut state = self.state.lock();
        state.expire(Instant::now());
        (state.admitted.len(), state.turns.len())
    }

    /// How many nodes go at full speed.
    fn first(&self, rules: &super::Ramp) -> usize {
        let share = self.topology.counts().total * usize::from(rules.share) / 100;
        share.max(usize::try_from(rules.nodes).unwrap_or(usize::MAX))
    }
}

impl Hold for RampHold {
    fn name(&self) -> &'static str {
        "ramp"
    }

    fn applies_to_retries(&self) -> bool {
        false
    }

    fn line(&self, eviction: &Eviction) -> Option<Arc<str>> {
        let Cause::Taint(_) = eviction.cause else { return None };
        self.state.lock().rules?;
        Some(Arc::clone(&eviction.pod.node.0))
    }

    fn holds(&self, line: &str, due: Instant, now: Instant) -> Option<Wait> {
        let mut state = self.state.lock();
        let rules = state.rules?;
        let first = self.first(&rules);
        state.holds((line, due), &rules, first, now).map(Wait::Until)
    }

    fn passed(&self, line: &str, now: Instant) {
        let mut state = self.state.lock();
        let Some(rules) = state.rules else { return };
        let first = self.first(&rules);
        state.passed(line, &rules, first, now);
    }

    fn left(&self, line: &str, _: Instant) {
        let mut state = self.state.lock();
        if state.turns.leave(line).is_some() && state.turns.len() > 0 {
            self.changed.notify_one();
        }
    }

    /// Who leads later counts from the nodes that this process has seen lose pods.
    fn clear(&self) {
        self.state.lock().turns = Turns::default();
    }

    fn why(&self, line: &str) -> String {
        let Some(rules) = self.state.lock().rules else {
            return format!("waits for the ramp ({line})");
        };
        let (first, within) = (self.first(&rules), format_duration(rules.within));
        let interval = format_duration(rules.interval);
        format!(
            "{first} nodes lose pods for taints within {within}, further ones one each {interval}"
        )
    }

    fn turn(&self, line: &str, _: usize, now: Instant) -> Option<Instant> {
        // Once the node is admitted, all its pods go.
        let state = self.state.lock();
        let rules = state.rules?;
        state.until(state.turns.ahead(line), &rules, self.first(&rules), now)
    }
}

impl State {
    /// Forgets the nodes that are not counted any more.
    fn expire(&mut self, now: Instant) {
        let Some(rules) = self.rules else { return };
        while let Some((_, node)) =
            self.since.pop_front_if(|(since, _)| *since + rules.within <= now)
        {
            self.admitted.remove(&node);
        }
    }

    /// Until when a node has to wait whose pod came due at this time; `None` if it may go.
    fn holds(
        &mut self,
        (node, due): (&str, Instant),
        rules: &super::Ramp,
        first: usize,
        now: Instant,
    ) -> Option<Instant> {
        self.expire(now);
        if self.admitted.contains(node) {
            return None;
        }
        let ahead = self.turns.join(node, due);
        let until = self.until(ahead, rules, first, now);
        if until.is_none() {
            self.turns.leave(node);
        }
        until
    }

    /// Until when a node has to wait with so many before it; `None` if it may go.
    fn until(
        &self,
        ahead: usize,
        rules: &super::Ramp,
        first: usize,
        now: Instant,
    ) -> Option<Instant> {
        let free = first.saturating_sub(self.admitted.len());
        let behind = ahead.checked_sub(free)?;
        let slot = self.next.map_or(now, |next| next.max(now));
        if behind == 0 && slot <= now {
            return None;
        }
        let times = u32::try_from(behind).unwrap_or(u32::MAX);
        let slot = slot + rules.interval.saturating_mul(times);
        // Or when so many are not counted any more that it is among the first.
        let over = self.admitted.len().saturating_sub(first);
        let expires = self.since.get(over + behind).map(|(since, _)| *since + rules.within);
        let until = expires.map_or(slot, |expires| expires.min(slot));
        // Nodes that are admitted until then may expire before a slot that is far away.
        Some(until.min(now + rules.within))
    }

    fn passed(&mut self, node: &str, rules: &super::Ramp, first: usize, now: Instant) {
        self.expire(now);
        self.turns.leave(node);
        if self.admitted.contains(node) {
            return;
        }
        let node: Arc<str> = Arc::from(node);
        self.admitted.insert(Arc::clone(&node));
        self.since.push_back((now, node));
        if self.admitted.len() >= first {
            self.next = Some(now + rules.interval);
        }
    }
}

impl fmt::Debug for RampHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RampHold").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
