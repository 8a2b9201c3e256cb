//! The harness on itself: a scenario is worth as much as what it is watched with.

mod bed;
mod drain;
mod faults;
mod rights;
mod sight;
mod workloads;

use crate::ctx::Scenario;

pub(crate) fn trials() -> Vec<Scenario> {
    [
        bed::trials(),
        drain::trials(),
        faults::trials(),
        rights::trials(),
        sight::trials(),
        workloads::trials(),
    ]
    .concat()
}
