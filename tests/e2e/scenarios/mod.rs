//! What ostrakon does in a cluster.

mod compare;
mod exact;
mod faults;
mod outside;
mod race;
mod watches;

use crate::ctx::Scenario;

/// All of them; each module adds its own.
pub(crate) fn trials() -> Vec<Scenario> {
    [compare::trials(), exact::trials(), faults::trials(), race::trials(), watches::trials()]
        .concat()
}
