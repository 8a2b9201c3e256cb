//! Wires the rooms into a running process.
//!
//! ```text
//! watch → ingest → view ─┐                      ┌→ evictor → API server
//!                        ├→ queues → handler → timed queue
//!                        └→ (newest facts) ──────┘ ↘ record lane → API server
//! ```
//!
//! [`handler`] is where decisions are asked for: it is the only place that arms or disarms a pod.
//! [`newest_facts`] lets the evictor ask again, by the same rules.
//! [`due`] brings evictions to it when they are due. [`work`] is a term of leadership, [`engine`] the whole
//! of a controller, and [`run`] a process.

mod breaker_reports;
mod config_metrics;
mod controller_metrics;
mod due;
mod engine;
mod failure;
mod file_watch;
mod handler;
mod holds;
mod ignored_taints;
mod in_force;
mod newest_facts;
mod pause_metrics;
mod pause_reports;
mod requests;
mod run;
mod shadowing;
mod state;
mod topology;
mod work;
mod would_evict;

pub use engine::{Engine, Prepared, Surroundings};
pub use failure::{Failed, StartError};
pub use in_force::{InForce, Loaded, Offered};
pub use run::{Running, start};
pub(crate) use shadowing::Shadowing;
pub use work::Hands;
