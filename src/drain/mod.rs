//! Cordon and drain by node conditions: what a policy says of a node, what a drain does to its
//! pods, and in which order. Pure: no I/O, no clock of its own.

mod budget;
mod decide;
mod filter;
mod ledger;
mod order;
mod pods;
mod policy;
mod record;
mod survey;

pub use budget::{Amount, Budget, Demand, Obstacle, Requirement, Selector, Test, obstacle};
pub use decide::{Act, Change, News, Step, decide, is_draining};
pub use filter::{Existence, Fate, OwnerUnknown, Owners, Stay, Why, fate, owners_needed};
pub use ledger::{Capped, Ledger};
pub use order::{Turn, turn};
pub use pods::{LocalVolume, LocalVolumeKind, Owner, Phase, Resident};
pub use policy::{
    AtDeadline, Cap, CapScope, GroupKind, Limit, Pace, PodRules, Policy, PriorityGroup, Protection,
    Retry, Undrainable,
};
pub use record::{Claim, Cordon, DrainPhase, ParseRecordError, Record};
pub use survey::{Hindrance, Left, Survey, survey};
