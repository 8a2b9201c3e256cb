//! What ostrakon does in a cluster.

mod exact;
mod outside;
mod race;

use crate::ctx::Scenario;

/// All of them; each module adds its own.
pub(crate) fn trials() -> Vec<Scenario> {
    [exact::trials(), race::trials()].concat()
}
