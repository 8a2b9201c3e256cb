//! Wires the rooms into a running process.
//!
//! ```text
//! watch → ingest → view ─┐                      ┌→ evictor → API server
//!                        ├→ queues → handler → timed queue
//!                        └→ (newest facts) ──────┘ ↘ record lane → API server
//! ```
//!
//! [`handler`] is where decisions are asked for: it is the only place that arms or disarms a pod.
//! [`judge`] lets the evictor ask again, by the same rules.

mod engine;
#[cfg(test)]
mod flaw;
mod handler;
mod ingest;
mod judge;
mod metrics;
mod preflight;
mod pump;
mod records;
mod requests;
mod run;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod stage;
mod state;
mod time_watch;
mod work;

pub use preflight::{election_permissions, permissions};
pub use run::{Failed, Running, StartError, start};
