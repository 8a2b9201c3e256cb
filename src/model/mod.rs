//! The facts that decisions are made from: plain data, no I/O and no clock.
//!
//! An API object is thousands of bytes; a decision needs a few of its fields. These types hold
//! just those, so that a pod costs a few hundred bytes in the view and a test can write one down
//! in a line. Nothing here knows where a fact came from or what will be done with it.

mod budget;
#[cfg(test)]
pub(crate) mod build;
mod deadline;
mod moment;
mod node;
mod pod;
mod resident;
mod taint;
mod toleration;
mod uid;
mod upkeep;
mod verdict;

pub use budget::{Amount, Budget, Demand, Requirement, Selector, Test};
pub use deadline::Deadline;
pub use moment::{Stamp, later, second_from, second_of};
pub use node::{Anchors, FirstSeen, Node, NodeName, Outage, Ready, Version};
pub use pod::{Disruption, Pod, PodClass, PodRef};
pub use resident::{Existence, LocalVolume, LocalVolumeKind, Owner, Owners, Phase, Resident};
pub use taint::{Effect, Taint};
pub use toleration::{Operator, Toleration};
pub use uid::{ParseUidError, Uid};
pub use upkeep::{Autoscaler, Condition, ConditionStatus, Labels, Upkeep};
pub use verdict::{Anchor, AnchorSource, Cause, Kept, Tolerance, Verdict};
