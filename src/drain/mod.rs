//! Cordon and drain by node conditions: what a policy says of a node, what a drain does to its
//! pods, and in which order. Pure: no I/O, no clock of its own.

mod policy;

pub use policy::{
    AtDeadline, Cap, CapScope, GroupKind, Limit, Pace, PodRules, Policy, PriorityGroup, Protection,
    Retry, Undrainable,
};
