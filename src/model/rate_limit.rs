//! A limit on how many pods are evicted at a time.

use std::time::Duration;

/// A token bucket: so many pods in each period, and so many at once after a quiet time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Pods in each period, at least 1.
    pub pods: u32,
    /// The period, at least a second.
    pub per: Duration,
    /// Pods at once, at least 1.
    pub burst: u32,
}
