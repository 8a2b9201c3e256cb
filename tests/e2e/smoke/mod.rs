//! The harness on itself: a scenario is worth as much as what it is watched with.

mod bed;
mod faults;
mod rights;
mod sight;
mod workloads;

use crate::ctx::Scenario;

pub(crate) fn trials() -> Vec<Scenario> {
    [bed::trials(), faults::trials(), rights::trials(), sight::trials(), workloads::trials()]
        .concat()
}
