//! Holds evictions for taints while another manager is at work (`--require-exclusive`).
//!
//! A line is a namespace. Proof from one namespace holds only its own evictions, because a tenant that may
//! update `pods/status` can forge it; proof from three namespaces and two nodes holds all. A suspicion holds nothing.
//! Evictions for drains are not held: the other manager does not drain.

use std::sync::Arc;

use tokio::time::Instant;

use super::OtherManagers;
use crate::evict::{Cause, Eviction, Hold, Wait};

/// The hold of `--require-exclusive`.
pub(crate) struct RequireExclusive(pub Arc<OtherManagers>);

impl Hold for RequireExclusive {
    fn name(&self) -> &'static str {
        "other manager"
    }

    fn line(&self, eviction: &Eviction) -> Option<Arc<str>> {
        match eviction.cause {
            Cause::Taint(_) => Some(Arc::clone(&eviction.pod.namespace)),
            Cause::Drain(_) => None,
        }
    }

    fn holds(&self, line: &str, _: Instant, now: Instant) -> Option<Wait> {
        // Later proof holds for longer: it is asked for when this time has come.
        self.0.held_until(line, now).map(Wait::Until)
    }

    fn why(&self, line: &str) -> String {
        format!(
            "waits until there was no sign of another manager for 5 minutes in namespace {line} or in \
             three namespaces and on two nodes: {}",
            self.0.standing()
        )
    }

    fn turn(&self, line: &str, _: usize, now: Instant) -> Option<Instant> {
        self.0.held_until(line, now)
    }
}
