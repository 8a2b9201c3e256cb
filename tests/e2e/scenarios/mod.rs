//! What ostrakon does in a cluster.

use crate::ctx::Scenario;

/// All of them; each module adds its own.
pub(crate) fn trials() -> Vec<Scenario> {
    Vec::new()
}
