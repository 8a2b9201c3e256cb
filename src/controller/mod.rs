//! Wires the rooms into a running process.
//!
//! ```text
//! watch → ingest → view ─┐                      ┌→ evictor → API server
//!                        ├→ queues → handler → timed queue
//!                        └→ (newest facts) ──────┘ ↘ record lane → API server
//! ```
//!
//! [`handler`] is where decisions are asked for: it is the only place that arms or disarms a pod.
//! [`drain`] cordons and drains: the handler asks it what is to be done about a node, and it hands
//! pods to the same evictor. [`judge`] lets the evictor ask again, by the same rules.

mod drain;
mod engine;
mod handler;
mod ingest;
mod judge;
mod metrics;
mod preflight;
mod pump;
mod records;
mod requests;
mod run;
mod runner;
mod state;
mod time_watch;
mod work;

pub use engine::{Engine, Prepared, Surroundings};
pub use preflight::{drain_permissions, election_permissions, permissions};
pub use run::{Failed, Running, StartError, start};
pub use work::Hands;
