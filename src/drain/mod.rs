//! Cordon and drain by node conditions: what a policy says of a node, what a drain does to its
//! pods, and in which order. Pure: no I/O, no clock of its own.

pub mod decide;
mod ledger;
mod policy;
mod record;

pub use decide::{Act, Change, News, Step, decide, is_draining};
pub use ledger::{Capped, Ledger};
pub use policy::{
    AtDeadline, Cap, CapScope, GroupKind, Limit, Pace, PodRules, Policy, PriorityGroup, Protection,
    Retry, Undrainable,
};
pub use record::{Cordon, Owner, ParseRecordError, Phase, Record};
