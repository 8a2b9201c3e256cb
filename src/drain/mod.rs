//! Cordon and drain by node conditions: what a policy decides about a node, what a drain does with its
//! pods, and in which order. Pure: no I/O and no clock.

mod belief;
mod budget;
#[cfg(test)]
pub(crate) mod build;
mod change;
mod condition;
mod duration;
mod expr;
mod filter;
mod label;
mod next_step;
mod node_budget;
mod orphans;
mod pod_plan;
mod policy;
mod record;
mod remaining;
mod sequence;
mod syntax;
mod window;

pub(crate) use belief::STATUS_TAINTS;
pub use budget::{BudgetBlocker, budget_blocker};
pub use change::{Change, Report};
pub use condition::{ConditionRule, Holding, format_conditions, recorded_conditions};
pub use duration::{DURATION_REMEDY, format_duration, parse_duration};
pub use expr::LabelExpr;
pub use filter::{OwnerUnknown, PodDecision, Retention, Why, decide_pod, owners_needed};
pub use label::{is_label_key, is_label_value};
pub use next_step::{
    Action, Step, given_back, is_draining, is_removed, next_step, orphan, without_leftover,
};
pub use node_budget::{Capped, NodeBudget};
pub use orphans::Orphans;
pub use pod_plan::{Blocker, Left, PodPlan, plan_pods};
pub use policy::{
    AtDeadline, Cap, CapScope, GroupKind, Limit, Limits, NodeSelector, PodRules, Policy,
    PriorityGroup, Protection, Retry, Undrainable,
};
pub use record::{Claim, Cordon, DrainPhase, ParseRecordError, Record};
pub use remaining::{Remaining, brief, listed};
pub use sequence::{Sequence, sequence};
pub use syntax::SyntaxError;
pub use window::Window;
