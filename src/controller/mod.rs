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
//! pods to the same evictor. [`recheck`] lets the evictor ask again, by the same rules. [`due`] brings
//! evictions to it when they are due.
//!
//! A process calls [`start`]. Who owns the time, as a simulation does, goes by [`Prepared`] and [`Engine`]
//! with [`Surroundings`] of its own: the same controller without endpoints, signals and the system's clock.

mod drain;
mod due;
mod engine;
mod failure;
mod handler;
mod ingest;
mod metrics;
mod preflight;
mod recheck;
mod records;
mod requests;
mod run;
mod state;
mod time_watch;
mod work;

pub use engine::{Engine, Prepared, Surroundings};
pub use failure::{Failed, StartError};
pub use preflight::{drain_permissions, election_permissions, permissions};
pub use run::{Running, start};
pub use work::Hands;
