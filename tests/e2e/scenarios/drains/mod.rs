//! Cordon and drain by node conditions.

mod autoscaler;
mod budgets;
mod cordons;
mod crowds;
mod endings;
mod pods;
mod policies;
mod stage;
mod story;
mod strain;

pub(crate) use policies::shared as shared_policies;

use crate::ctx::Scenario;

pub(super) fn trials() -> Vec<Scenario> {
    [
        autoscaler::trials(),
        budgets::trials(),
        cordons::trials(),
        crowds::trials(),
        endings::trials(),
        pods::trials(),
        story::trials(),
        strain::trials(),
    ]
    .concat()
}
