//! Decides what a candidate does next. Pure.

use std::time::Duration;

use tokio::time::Instant;

use super::{Identity, Times};

/// What the lease says, as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Identity of the holder; empty if there is none.
    pub holder: String,
    /// How long the claim says that it is valid after each renewal; zero if it does not say.
    pub duration: Duration,
    /// The stored version, which every renewal changes.
    pub version: String,
    /// Who made the claim, by the mark that only a claim leaves. Another holder was written by hand.
    pub claimed_by: Option<String>,
    /// The holder that released the lease, by the mark that only a release leaves.
    pub released_by: Option<String>,
}

/// What a candidate knows of the lease, and how long it waits for the claims that it has seen.
///
/// A claim is a promise of its holder to write no longer than it lasts. The holder keeps it whatever
/// becomes of the object: if someone deletes the lease or edits it, the holder goes on until it
/// notices. So a claim ends in two ways only: its time runs out after it was last seen to change,
/// or its holder releases it. Everything else that is found stored (one without a holder, one with a
/// shorter duration, one with another holder) counts as a claim that was made just now.
///
/// A lease that is not there tells nothing: it may have been created, renewed and deleted since the last
/// look. There only the store can help. Its holder has a moment to claim it again. Then it is taken, so that
/// nobody can renew an older claim any more, and nothing is written before such a claim has run out.
///
/// Only the local monotonic clock counts. The stamps in the lease come from another clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sight {
    /// As it was read last; `None`: there is no lease.
    stored: Option<Claim>,
    /// How long claims are waited for: the longest duration seen, and at least our own.
    longest: Duration,
    /// When it was seen to change.
    changed: Instant,
    /// When the claim of the present holder has run out.
    until: Instant,
    /// When the claims of other holders have run out that may still be valid.
    others: Instant,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Try to take the lease, and write nothing for this long after that: someone may not know yet
    /// that it is taken. Zero if no claim of others is valid.
    Try(Duration),
    /// Someone may write until then.
    Wait(Instant),
}

impl Sight {
    /// What is known after the first read, at `now`.
    pub fn first(stored: Option<Claim>, times: &Times, now: Instant) -> Self {
        let longest = longest(times.lease, stored.as_ref());
        let is_released = stored.as_ref().is_some_and(|claim| {
            claim.holder.is_empty() && claim.released_by.as_ref().is_some_and(|by| !by.is_empty())
        });
        let until = if is_released { now } else { now + longest };
        Self { stored, longest, changed: now, until, others: now }
    }

    /// What is known once `claim` was stored by this process: every older claim has ended, or will have
    /// when it `opens`.
    pub fn own(claim: Claim, times: &Times, opens: Option<Instant>, now: Instant) -> Self {
        let others = opens.unwrap_or(now);
        Self { stored: Some(claim), longest: times.lease, changed: now, until: now, others }
    }

    /// Takes in what was read at `now`.
    pub fn update(&mut self, stored: Option<Claim>, me: &Identity, now: Instant) {
        let version = |claim: &Option<Claim>| claim.as_ref().map(|claim| claim.version.clone());
        if version(&self.stored) == version(&stored) {
            return;
        }
        self.longest = longest(self.longest, stored.as_ref());
        let before = holder(self.stored.as_ref());
        // Not if the store has gone back in time: that release was of an earlier claim.
        let is_released = !is_older(stored.as_ref(), self.stored.as_ref())
            && !before.is_empty()
            && holder(stored.as_ref()).is_empty()
            && stored.as_ref().and_then(|claim| claim.released_by.as_deref()) == Some(before);
        if is_released {
            self.until = now;
        } else {
            let is_other = before != holder(stored.as_ref()) && !is_owned(me, self.stored.as_ref());
            // Our own name, written by another hand: over whose claim, nobody knows.
            let is_forged = me.owns(holder(stored.as_ref())) && !is_owned(me, stored.as_ref());
            if is_other && (now < self.until || self.stored.is_none() || is_forged) {
                // Who held it may not know yet that it does no more, and may have renewed since.
                self.others = self.others.max(now + self.longest);
            }
            self.until = now + self.longest;
        }
        self.changed = now;
        self.stored = stored;
    }

    /// The holder of the lease; empty if there is none.
    pub fn holder(&self) -> &str {
        holder(self.stored.as_ref())
    }

    /// What `me` does next.
    pub fn decide(&self, me: &Identity, times: &Times, now: Instant) -> Step {
        let (until, silent) = if self.stored.is_none() {
            let others = self.others.saturating_duration_since(now);
            (self.changed + times.reclaim(), self.longest.max(others))
        } else {
            let until = if is_owned(me, self.stored.as_ref()) { now } else { self.until };
            (until.max(self.others), Duration::ZERO)
        };
        if until <= now { Step::Try(silent) } else { Step::Wait(until) }
    }
}

fn holder(stored: Option<&Claim>) -> &str {
    stored.map_or("", |claim| &claim.holder)
}

/// Whether a version was stored before another, as far as that can be told.
fn is_older(one: Option<&Claim>, other: Option<&Claim>) -> bool {
    let number = |claim: Option<&Claim>| claim?.version.parse::<u64>().ok();
    matches!((number(one), number(other)), (Some(one), Some(other)) if one < other)
}

/// Whether the claim was made by this process, or by a container of its pod that is dead.
fn is_owned(me: &Identity, stored: Option<&Claim>) -> bool {
    stored.is_some_and(|claim| {
        me.owns(&claim.holder) && claim.claimed_by.as_deref() == Some(&*claim.holder)
    })
}

fn longest(known: Duration, stored: Option<&Claim>) -> Duration {
    let claimed = stored.map_or(Duration::ZERO, |claim| claim.duration);
    known.max(claimed.min(Times::LONGEST_LEASE))
}

#[cfg(test)]
mod tests;
