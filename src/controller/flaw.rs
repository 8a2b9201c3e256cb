//! What is wrong with a controller on purpose, so that a check can show that it is able to fail.

use crate::leader;

/// A flaw inside of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// What was armed once is carried out, whatever is known by now.
    TrustsTimers,
    /// What failed is not tried again.
    ForgetsFailures,
    /// Leadership is checked when work is taken up, and not when it is written.
    WritesUngated,
    /// Drains cordon however many are out of use.
    IgnoresCap,
    /// Who takes a record away uncordons, whoever has cordoned.
    UncordonsForeign,
    /// A drain that was begun before the process is not gone on with.
    ForgetsDrains,
    /// What is foreseen of a node's pods keeps it from being drained, whatever the policy says.
    TrustsForecasts,
    /// A drain ends while disruption budgets hold pods that may go.
    ForgetsHeld,
    /// What a drain ordered once is carried out, whatever has become of the node.
    TrustsOrders,
    /// Drains evict what the policy leaves.
    EvictsProtected,
    /// A lease that is not there is taken at once.
    TakesDeletedLease,
    /// A lease without holder is taken at once, whoever emptied it.
    TakesEmptiedLease,
}

impl Flaw {
    /// The same, if it is one of the election.
    pub(super) fn of_candidate(self) -> Option<leader::Flaw> {
        match self {
            Self::TakesDeletedLease => Some(leader::Flaw::TakesDeletedLease),
            Self::TakesEmptiedLease => Some(leader::Flaw::TakesEmptiedLease),
            _ => None,
        }
    }
}
