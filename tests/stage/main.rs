//! The shipped controller, in one thread and in virtual time, on an embedded cluster. A test changes the
//! cluster as a person, a kubelet or another controller would. All requests and changes of objects are
//! recorded, so that a test can also assert what did not happen.
//!
//! [`taints`] is about NoExecute taints, [`drains`] about cordon and drain, [`pauses`] about pauses,
//! [`dry_run`] about runs that write nothing, [`reload`] about changes
//! of the configuration file, [`refused`] about an API server that refuses everything.

// What helps tests may fail where it stands.
#![allow(clippy::unwrap_used, clippy::expect_used)]
// Metrics and times here are exact.
#![allow(clippy::float_cmp)]

mod drains;
mod dry_run;
mod limits;
mod metrics;
mod pauses;
mod process;
mod refused;
mod reload;
mod taints;

use jiff::Timestamp;

/// When every test begins.
fn noon() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}
