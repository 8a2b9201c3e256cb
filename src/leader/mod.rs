//! Leader election: one of several replicas works, and holds a lease that it renews.
//!
//! The lease is a coordination.k8s.io/v1 object, as in client-go's leader election. The next step is
//! [`decided`](Sight::decide) from the stored lease and since when *this* process has seen it
//! unchanged; wall clocks do not count, so they may differ. [`run`] executes it. A replica that loses the
//! lease becomes a standby and takes part in the next election.
//!
//! This module writes only the lease. The gate ([`WriteGate`](crate::cluster::WriteGate)) ensures that
//! only the leader writes: it is checked at the moment of each write, because having been the leader a
//! moment ago is not enough.

mod annotations;
mod candidate;
mod elect;
mod identity;
mod leader_metrics;
mod term;
mod times;

pub use annotations::{Annotations, StoredAnnotations, first_look, poll};
pub use candidate::{Claim, Sight, Step};
pub use elect::{CLAIMED_BY, Candidate, LEASE, Lost, RELEASED_BY, run};
pub use identity::Identity;
pub use leader_metrics::Metrics;
pub use term::Term;
pub use times::{Times, TimesError};
