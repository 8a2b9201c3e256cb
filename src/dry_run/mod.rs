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
//! Nothing here decides about an eviction or a drain.
//!
//! [`WriteGate::read_only`]: crate::cluster::WriteGate::read_only
//! [`evict::Requests::record`]: crate::evict::Requests::record

mod forecast;
mod unwritten;

pub(crate) use forecast::Forecast;
pub(crate) use unwritten::Unwritten;
