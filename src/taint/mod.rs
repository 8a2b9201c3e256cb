//! What a NoExecute taint means for a pod: keep it, evict it at a deadline, or evict it now.
//!
//! Data flow: [`anchor`] determines from when each taint of a node counts, [`record`] stores on the node
//! what a restart would lose, [`matching`] finds the toleration for each taint, and
//! [`decide`](mod@decide) computes the verdict, by the [`rules`] for taints. [`upstream`] has the rules of `--compat upstream`.
//!
//! This module is pure: the same facts give the same verdict, in any process and at any time (P3). It
//! must never do I/O, read a clock or keep state; the caller passes time and the past. Timers, retries
//! and limits are the task of other modules.

pub mod anchor;
pub mod decide;
pub mod inputs;
pub mod matching;
pub mod record;
pub mod rules;
pub mod upstream;

mod outage;

#[cfg(test)]
mod tests_cases;
#[cfg(test)]
mod tests_rules;
#[cfg(test)]
mod tests_stories;

pub use anchor::{Past, advance, gap_deadline, since};
pub use decide::{decide, decide_by};
pub use matching::{no_execute, tolerates};
pub use outage::LONGEST_GAP;
pub use record::RecordError;
pub use rules::{TaintMethod, TaintRule};
