//! Leader election: of several replicas one works, by a lease that it renews.
//!
//! The lease is a coordination.k8s.io/v1 object as client-go's leader election has it, with the
//! same times. What to do next is [`decide`]d from what is stored and since when *this* process has
//! seen it stored; nobody's wall clock counts, so clocks may differ. [`run`] does it.
//!
//! Nothing here writes anything but the lease. That only the leader writes is the gate's business
//! ([`WriteGate`](crate::cluster::WriteGate)), which is asked at the moment of each write: to have
//! been the leader a moment ago is not enough.

mod decide;
mod elect;
mod metrics;

pub use decide::{Claim, Sight, Step, Times, decide};
pub use elect::{Candidate, LEASE, Lost, run};
pub use metrics::Metrics;

use crate::model::Uid;

/// The identity of a candidate on `host`: no two processes have the same, so that one which was
/// started again on the same host does not take itself for the old leader.
pub fn identity(host: &str) -> String {
    const VERSION_4: u128 = 0x4000 << 64;
    const VARIANT: u128 = 0b10 << 62;
    let random = rand::random::<u128>() & !(0xf000 << 64) & !(0b11 << 62);
    format!("{host}_{}", Uid(random | VERSION_4 | VARIANT))
}

#[cfg(test)]
mod tests {
    use super::identity;

    #[test]
    fn an_identity_is_the_hosts_name_and_a_random_uuid() {
        let (one, other) = (identity("node-1"), identity("node-1"));
        assert_ne!(one, other);
        let uuid = one.strip_prefix("node-1_").unwrap();
        assert_eq!((uuid.len(), &uuid[14..15]), (36, "4"), "{uuid}");
        assert!("89ab".contains(&uuid[19..20]), "{uuid}");
    }
}
