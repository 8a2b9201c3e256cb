//! Which conditions make a node bad, from when on, and when they clear.
//!
//! # When a condition clears
//!
//! For draino, any other status is a recovery. A restart of node-problem-detector sets all its conditions
//! to False, so a broken node was uncordoned. The API stores no difference: after a restart, the
//! condition has the same reason and transition time as after a recovery. So:
//!
//! - A condition clears once it has been good for `clear_after` without interruption. This works for
//!   problems that are checked repeatedly (plugins, health checks, counters): they are reported again
//!   before that.
//! - It does not work for problems that are read from a log once. Such a condition gets
//!   `clear_after: None`: only a person clears it.
//! - Unknown does not clear a condition whose bad status is True or False: its reporter does not know.
//! - A condition with an old heartbeat neither clears nor counts as bad: `stale_after`.
//!
//! Not used: several conditions that turn good in the same second do not prove a restart, because one
//! repair may fix several problems; and the reason is the same in both cases.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::duration::{DURATION_REMEDY, format_duration, parse_duration};
use super::syntax::SyntaxError;
use crate::model::{ConditionStatus, NodeDrainFacts, Stamp};

/// A condition that makes a node bad.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionRule {
    /// Type of the condition.
    pub kind: Arc<str>,
    /// The status that is bad.
    pub status: ConditionStatus,
    /// How long it must have the status to count as bad.
    pub min_age: Duration,
    /// How long it must have another status to clear. `None`: it does not clear by itself.
    pub clear_after: Option<Duration>,
    /// A heartbeat older than this, or none, makes it untrustworthy. `None`: it is always trusted.
    pub stale_after: Option<Duration>,
}

/// How a condition of a node stands to a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// The node has no such condition. Since when, the API does not store.
    Absent,
    /// It is not to be trusted: not heard of for too long, or Unknown where that is not what is
    /// bad. It neither starts nor clears anything.
    Stale,
    /// It has another status.
    Other {
        /// Since when; `None` forever.
        since: Option<Stamp>,
    },
    /// It has the bad status, but not for long enough.
    Young {
        /// When it will have.
        at: Timestamp,
    },
    /// It is bad.
    Bad,
}

impl ConditionRule {
    /// How long a condition must be good until it counts as over, where nothing else is said: the
    /// interval at which node-problem-detector repeats itself, and above those of its checks.
    pub const CLEAR_AFTER: Duration = Duration::from_secs(300);

    /// A rule for a status of some age, with defaults.
    pub fn new(kind: impl Into<Arc<str>>, status: ConditionStatus, min_age: Duration) -> Self {
        Self {
            kind: kind.into(),
            status,
            min_age,
            clear_after: Some(Self::CLEAR_AFTER),
            stale_after: None,
        }
    }

    /// Reads draino's form: `Type`, which stands for `Type=True,0s`, or `Type=Status,Duration`.
    ///
    /// Anything incomplete is an error, where draino panics or takes it for a rule that never
    /// matches. `Ready` alone is one too: it would make every healthy node bad. Who wants that
    /// writes `Ready=True,0s`.
    pub fn parse(text: &str) -> Result<Self, SyntaxError> {
        const FORM: &str = "write Type, or Type=Status,Duration such as Ready=Unknown,10m";
        let fault =
            |at, cause: String, remedy: &str| Err(SyntaxError::new(text, at, cause, remedy));
        let (kind, rest) = match text.split_once('=') {
            Some((kind, rest)) => (kind, Some(rest)),
            None => (text, None),
        };
        check_kind(text, kind, FORM)?;
        let Some(rest) = rest else {
            if kind == "Ready" {
                let cause = "Ready alone means Ready=True, so every healthy node would be bad";
                let remedy = "write Ready=Unknown,10m or Ready=False,10m, or, to select healthy \
                              nodes, Ready=True,0s";
                return fault(0, cause.into(), remedy);
            }
            return Ok(Self::new(kind, ConditionStatus::True, Duration::ZERO));
        };
        let at = kind.len() + 1;
        let (name, age) = match rest.split_once(',') {
            Some((name, age)) => (name, Some(age)),
            None => (rest, None),
        };
        let Some(status) = ConditionStatus::parse(name) else {
            let cause = match name {
                "" => "the status is missing".to_owned(),
                _ => format!("{name:?} is not a status"),
            };
            return fault(at, cause, "write True, False or Unknown");
        };
        let at = at + name.len();
        let Some(age) = age else {
            let remedy = format!("write {kind}={status},0s, or another age such as 10m");
            return fault(at, "the minimum age is missing".into(), &remedy);
        };
        let Some(min_age) = parse_duration(age) else {
            let cause = match age {
                "" => "the minimum age is missing".to_owned(),
                _ => format!("{age:?} is not a duration"),
            };
            return fault(at + 1, cause, DURATION_REMEDY);
        };
        Ok(Self::new(kind, status, min_age))
    }

    /// Reads the type of a condition alone.
    pub fn kind(text: &str) -> Result<Arc<str>, SyntaxError> {
        check_kind(text, text, "write only the type, such as KernelDeadlock")?;
        Ok(text.into())
    }

    /// How the node's condition stands to this rule.
    ///
    /// A condition without a transition time has had its status forever, as draino has it.
    pub fn judge(&self, drain_facts: &NodeDrainFacts, now: Timestamp) -> Holding {
        let Some(condition) = drain_facts.condition(&self.kind) else {
            return Holding::Absent;
        };
        if self.stale_from(condition.heartbeat).is_some_and(|at| at <= now) {
            return Holding::Stale;
        }
        if condition.status != self.status {
            return match condition.status {
                ConditionStatus::Unknown => Holding::Stale,
                _ => Holding::Other { since: condition.since },
            };
        }
        match condition.since.map(|since| since.plus(self.min_age)) {
            Some(at) if at > now => Holding::Young { at },
            _ => Holding::Bad,
        }
    }

    /// From when on a condition that stands so counts as over, if it stays as it is; `None` if it
    /// does not.
    ///
    /// That of an absent one depends on since when it is missed, which the caller knows.
    pub fn over_from(&self, holding: Holding) -> Option<Timestamp> {
        let Holding::Other { since } = holding else { return None };
        let clear_after = self.clear_after?;
        Some(since.map_or(Timestamp::MIN, |since| since.plus(clear_after)))
    }

    /// When the node is to be judged again though nobody writes to it: the next moment at which
    /// [`Self::judge`] or [`Self::over_from`] says something else. `None` if there is none.
    pub fn looks_again_at(
        &self,
        drain_facts: &NodeDrainFacts,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let holding = self.judge(drain_facts, now);
        if holding == Holding::Stale {
            return None;
        }
        let heartbeat = drain_facts.condition(&self.kind)?.heartbeat;
        let next = match holding {
            Holding::Young { at } => Some(at),
            other => self.over_from(other),
        };
        [next, self.stale_from(heartbeat)].into_iter().flatten().filter(|at| *at > now).min()
    }

    /// From when on a condition with this last heartbeat is stale.
    fn stale_from(&self, heartbeat: Option<Stamp>) -> Option<Timestamp> {
        let after = self.stale_after?;
        Some(heartbeat.map_or(Timestamp::MIN, |heartbeat| heartbeat.plus(after)))
    }
}

/// Whether `kind`, with which `text` begins, can be the type of a condition.
fn check_kind(text: &str, kind: &str, remedy: &str) -> Result<(), SyntaxError> {
    if kind.is_empty() {
        return Err(SyntaxError::new(text, 0, "the condition type is missing", remedy));
    }
    let foreign = |c: char| !(c.is_ascii_alphanumeric() || "-_./".contains(c));
    match kind.char_indices().find(|(_, c)| foreign(*c)) {
        None => Ok(()),
        Some((at, c)) => {
            let cause = format!("a condition type cannot contain {c:?}");
            Err(SyntaxError::new(text, at, cause, remedy))
        }
    }
}

/// As draino writes it: `Type=Status,Duration`.
impl fmt::Display for ConditionRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={},{}", self.kind, self.status, format_duration(self.min_age))
    }
}

/// The value of the annotation `draino.planet.com/conditions` for these rules, in their order.
pub fn format_conditions<'a>(rules: impl IntoIterator<Item = &'a ConditionRule>) -> String {
    rules.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(";")
}

/// Reads the annotation `draino.planet.com/conditions`. Whoever wrote it, the node is cordoned by
/// now, so what cannot be understood in it is left out.
pub fn recorded_conditions(text: &str) -> Vec<ConditionRule> {
    let read = |entry: &str| match entry {
        "Ready" => Some(ConditionRule::new(entry, ConditionStatus::True, Duration::ZERO)),
        _ => ConditionRule::parse(entry).ok(),
    };
    text.split(';').filter_map(|entry| read(entry.trim())).collect()
}

#[cfg(test)]
mod tests;
