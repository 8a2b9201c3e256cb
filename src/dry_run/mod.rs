//! A dry run: everything is decided as in a run, and nothing is written.
//!
//! The code that decides is the same. Only where it would write, something else stands in its place:
//!
//! - the gate of the API client refuses everything but reads ([`WriteGate::read_only`]);
//! - evictions end in [`evict::Requests::record`], in place of requests;
//! - what would be written to nodes is kept in memory by [`Unwritten`], so that a cordon is followed by its
//!   drain;
//! - an eviction for a drain asks a [`Forecast`] in place of the Eviction API.
//!
//! [`Shadow`] compares what would have been done with who really goes, [`DrainStories`] keeps what drains would
//! have done, and [`Report`] is what people and programs get of both.
//!
//! Nothing here decides about an eviction or a drain.
//!
//! [`WriteGate::read_only`]: crate::cluster::WriteGate::read_only
//! [`evict::Requests::record`]: crate::evict::Requests::record

mod drain_stories;
mod forecast;
mod recent;
mod report;
mod shadow;
mod shadow_metrics;
mod unwritten;

pub(crate) use drain_stories::DrainStories;
pub(crate) use forecast::Forecast;
pub(crate) use report::{Report, check_writable};
pub(crate) use shadow::{Deleted, Finding, Shadow};
pub(crate) use shadow_metrics::ShadowMetrics;
pub(crate) use unwritten::Unwritten;
