//! Cordon and drain by node conditions: what a policy says of a node, what a drain does to its
//! pods, and in which order. Pure: no I/O, no clock of its own.

mod condition;
mod duration;
mod policy;
mod syntax;
mod window;

pub use condition::{ConditionRule, Holding, format_conditions, recorded_conditions};
pub use duration::{DURATION_REMEDY, format_duration, parse_duration};
pub use policy::{
    AtDeadline, Cap, CapScope, GroupKind, Limit, NodeSelector, Pace, PodRules, Policy,
    PriorityGroup, Protection, Retry, Undrainable,
};
pub use syntax::SyntaxError;
pub use window::Window;
