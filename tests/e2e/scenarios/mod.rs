//! What ostrakon does in a cluster.

mod outside;
mod race;

use crate::ctx::Scenario;

/// All of them; each module adds its own.
pub(crate) fn trials() -> Vec<Scenario> {
    [race::trials()].concat()
}
