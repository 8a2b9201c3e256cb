//! The facts that decisions use: plain data, no I/O and no clock.
//!
//! An API object has thousands of bytes; a decision needs a few of its fields. These types contain only
//! those, so that a pod takes a few hundred bytes in the view, and a test can construct one in a line.

mod budget;
#[cfg(test)]
pub(crate) mod build;
mod deadline;
mod drain_facts;
mod drain_pod;
mod moment;
mod node;
mod pause;
mod pod;
mod rate_limit;
mod taint;
mod toleration;
mod uid;
mod verdict;

pub use budget::{Amount, Budget, Demand, Requirement, Selector, Test};
pub use deadline::Deadline;
pub use drain_facts::{Autoscaler, Condition, ConditionStatus, Labels, NodeDrainFacts};
pub use drain_pod::{DrainPod, Existence, LocalVolume, LocalVolumeKind, Owner, Owners, Phase};
pub use moment::{Stamp, later, second_from, second_of};
pub use node::{Anchors, FirstSeen, Node, NodeName, Outage, Ready, Version};
pub use pause::{Pause, Resumption};
pub use pod::{Disruption, Pod, PodClass, PodRef};
pub use rate_limit::RateLimit;
pub use taint::{Effect, Taint};
pub use toleration::{Operator, Toleration};
pub use uid::{ParseUidError, Uid};
pub use verdict::{Anchor, AnchorSource, Budgets, Cause, Kept, Tolerance, Verdict};
