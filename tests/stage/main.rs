//! The whole controller as it ships, in one thread and in virtual time, on an embedded cluster that a
//! test sets up and changes as a person, a kubelet or another controller would. What it asks of the
//! cluster, and what becomes of the objects, is written down, so that a test can say what was never done.
//!
//! [`taints`] is about NoExecute taints, [`drains`] about cordon and drain, [`refused`] about an API server
//! that refuses everything.

// What helps tests may fail where it stands.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod drains;
mod process;
mod refused;
mod taints;

use jiff::Timestamp;

/// When every test begins.
fn noon() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}
