//! Leader election: of several replicas one works, by a lease that it renews.
//!
//! The lease is a coordination.k8s.io/v1 object as client-go's leader election has it. What to do next
//! is [`decided`](Sight::decide) from what is stored and since when *this* process has
//! seen it stored; nobody's wall clock counts, so clocks may differ. [`run`] does it. Who loses the
//! lease stands by and takes part again.
//!
//! Nothing here writes anything but the lease. That only the leader writes is the gate's business
//! ([`WriteGate`](crate::cluster::WriteGate)), which is asked at the moment of each write: to have
//! been the leader a moment ago is not enough.

mod decide;
mod elect;
mod identity;
mod metrics;
mod term;
mod times;

pub use decide::{Claim, Sight, Step};
pub use elect::{CLAIMED_BY, Candidate, LEASE, Lost, RELEASED_BY, run};
pub use identity::Identity;
pub use metrics::Metrics;
pub use term::Term;
pub use times::{Times, TimesError};
