//! What a NoExecute taint means for a pod: stay, go at a deadline, or go now.
//!
//! Data flows through here in this order: [`anchor`] says from when each taint of a node counts,
//! [`record`] keeps on the node what would be lost with this process, [`matching`] says which
//! toleration answers which taint, and [`decide`](mod@decide) makes a verdict of it all.
//! [`upstream`] is the other rule book, for `--compat upstream`.
//!
//! The room is pure: the same facts give the same verdict, in any process and at any time (P3).
//! So it must never do I/O, read a clock or remember anything by itself; time and the past are
//! handed in. Neither does it know who asks: timers, retries and limits are other rooms' work.

pub mod anchor;
pub mod decide;
pub mod matching;
pub mod record;
pub mod upstream;

mod outage;

#[cfg(test)]
mod tests_cases;
#[cfg(test)]
mod tests_stories;

pub use anchor::{Past, advance, gap_deadline, since};
pub use decide::decide;
pub use matching::{no_execute, tolerates};
pub use outage::LONGEST_GAP;
pub use record::RecordError;
