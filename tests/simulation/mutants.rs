//! Mutants: controllers that break a promise, to prove that the observer notices.
//!
//! A mutant is the shipped controller with a difference from outside. It has another policy than the
//! observer, or a proxy client edits, delays or loses its requests, or falsifies the responses.

mod between;

pub(crate) use between::Between;

use std::time::Duration;

use ostrakon::config::{Compat, Election, Settings};
use ostrakon::drain::{Policy, Undrainable};
use ostrakon::taint::TaintMethod;

use crate::observer::rules::Rules;
use crate::story::Subject;
use crate::story::rules::as_configured;

/// What is wrong with both replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    Nothing,
    /// P1: requests name no UID.
    IgnoresUid,
    /// P1: a deletion that was decided is carried out some time later, whatever is known by then.
    TrustsTimers,
    /// P2: after a failure a pod is not deleted any more.
    ForgetsFailures,
    /// P3: seconds are counted from when the taint is seen, by each process anew.
    CountsFromObservation,
    /// P3: a pod is deleted a second and a half after its time.
    ActsLate,
    /// P4: both work.
    DoesNotElect,
    /// P4: a write whose leadership was checked is sent after a lease has had time to change hands.
    WritesUngated,
    /// P4: a lease that is not there is taken at once.
    TakesDeletedLease,
    /// P4: a lease without holder is taken at once, whoever emptied it.
    TakesEmptiedLease,
    /// P6: an annotation of somebody else is removed along with a write.
    UndoesForeign,
    /// P7: the condition's reason is another one.
    OtherWords,
    /// P7: an event about drains has another reason.
    OtherDrainWords,
    /// P1: pods are deleted whose rule respects their budgets.
    IgnoresBudgets,
    /// P1: pods are deleted before the time is over for which their budgets are respected.
    DeletesTooEarly,
    /// P1: pods are evicted for taints that are ignored.
    EvictsIgnored,
    /// P1: a drain evicts what the policy leaves.
    EvictsProtected,
    /// P1: an eviction that a drain has decided is carried out some time later, whatever has become of
    /// the node by then.
    TrustsOrders,
    /// P2: a drain that was begun before a restart is not gone on with.
    ForgetsDrains,
    /// P2: what is foreseen of a node's pods keeps it from being drained.
    TrustsForecasts,
    /// P2: a drain ends although a budget holds pods that may go.
    ForgetsHeld,
    /// P5: nodes are cordoned however many are unavailable.
    IgnoresCap,
    /// P5: a pause is not read, and evictions go on.
    IgnoresPause,
    /// P5: the same, and nodes are cordoned.
    IgnoresPauseOfDrains,
    /// P6: the cordon goes with the record, whose ever it is.
    UncordonsForeign,
}

impl Broken {
    pub(crate) const ALL: [Self; 24] = [
        Self::IgnoresBudgets,
        Self::DeletesTooEarly,
        Self::EvictsIgnored,
        Self::IgnoresUid,
        Self::TrustsTimers,
        Self::ForgetsFailures,
        Self::CountsFromObservation,
        Self::ActsLate,
        Self::DoesNotElect,
        Self::WritesUngated,
        Self::TakesDeletedLease,
        Self::TakesEmptiedLease,
        Self::UndoesForeign,
        Self::OtherWords,
        Self::OtherDrainWords,
        Self::EvictsProtected,
        Self::TrustsOrders,
        Self::ForgetsDrains,
        Self::TrustsForecasts,
        Self::ForgetsHeld,
        Self::IgnoresCap,
        Self::IgnoresPause,
        Self::IgnoresPauseOfDrains,
        Self::UncordonsForeign,
    ];

    /// The promise that it breaks.
    pub(crate) fn promise(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::IgnoresUid
            | Self::TrustsTimers
            | Self::IgnoresBudgets
            | Self::DeletesTooEarly
            | Self::EvictsIgnored
            | Self::EvictsProtected
            | Self::TrustsOrders => "P1",
            Self::ForgetsFailures
            | Self::ForgetsDrains
            | Self::TrustsForecasts
            | Self::ForgetsHeld => "P2",
            Self::CountsFromObservation | Self::ActsLate => "P3",
            Self::DoesNotElect
            | Self::WritesUngated
            | Self::TakesDeletedLease
            | Self::TakesEmptiedLease => "P4",
            Self::IgnoresCap | Self::IgnoresPause | Self::IgnoresPauseOfDrains => "P5",
            Self::UndoesForeign | Self::UncordonsForeign => "P6",
            Self::OtherWords | Self::OtherDrainWords => "P7",
        }
    }

    /// The stories that show it.
    pub(crate) fn subject(self) -> Subject {
        match self {
            Self::EvictsProtected
            | Self::TrustsOrders
            | Self::ForgetsDrains
            | Self::IgnoresCap
            | Self::IgnoresPauseOfDrains
            | Self::UncordonsForeign
            | Self::OtherDrainWords => Subject::Drains,
            Self::TrustsForecasts | Self::ForgetsHeld => Subject::Budgets,
            Self::IgnoresBudgets | Self::DeletesTooEarly | Self::EvictsIgnored => Subject::Rules,
            _ => Subject::Taints,
        }
    }

    /// By which rules it judges.
    pub(crate) fn compat(self) -> Compat {
        if self == Self::CountsFromObservation { Compat::Upstream } else { Compat::None }
    }

    /// How it is elected.
    pub(crate) fn election(self, election: Election) -> Option<Election> {
        (self != Self::DoesNotElect).then_some(election)
    }

    /// What it is configured with, where the observer goes by `policies` and `rules`.
    pub(crate) fn settings(self, policies: &[Policy], rules: &Rules) -> Settings {
        let mut taint_rules = as_configured(rules);
        for rule in &mut taint_rules {
            match (self, &mut rule.method) {
                (Self::IgnoresBudgets, method @ TaintMethod::Evict) => {
                    *method = TaintMethod::Delete
                }
                (Self::DeletesTooEarly, TaintMethod::EvictThenDelete { after }) => {
                    *after -= Duration::from_secs(3);
                }
                (Self::EvictsIgnored, method @ TaintMethod::Ignore) => *method = TaintMethod::Evict,
                _ => {}
            }
        }
        Settings { taint_rules, ..self.policies(policies).into() }
    }

    /// The policies that it goes by, where the observer goes by `policies`.
    fn policies(self, policies: &[Policy]) -> Vec<Policy> {
        let mut policies = policies.to_vec();
        for policy in &mut policies {
            match self {
                Self::IgnoresCap => policy.pace.caps.clear(),
                Self::TrustsForecasts => policy.undrainable = Undrainable::Cordon,
                Self::EvictsProtected => {
                    policy.pods.evict_daemonset = true;
                    policy.pods.evict_unreplicated = true;
                    policy.pods.protections.clear();
                }
                _ => {}
            }
        }
        policies
    }
}
