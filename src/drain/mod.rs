//! Cordon and drain by node conditions: what a policy says of a node, what a drain does to its
//! pods, and in which order. Pure: no I/O, no clock of its own.

mod budget;
mod filter;
mod order;
mod policy;
mod survey;

pub use budget::{Obstacle, obstacle};
pub use filter::{Fate, OwnerUnknown, Stay, Why, fate, owners_needed};
pub use order::{Turn, turn};
pub use policy::{
    AtDeadline, Cap, CapScope, GroupKind, Limit, Pace, PodRules, Policy, PriorityGroup, Protection,
    Retry, Undrainable,
};
pub use survey::{Hindrance, Left, Survey, survey};
