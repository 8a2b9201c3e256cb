//! What people see: metrics, health, events, logs.
//!
//! Nothing here may hold up an eviction: events go through a bounded lane and are counted when it
//! is full, and a scrape reads counters.

mod connections;
mod events;
mod health;
mod http;
mod logs;
mod repeats;

pub use events::{Event, EventLane, EventMetrics, NodeEvent, Recorder};
pub use health::{Gate, Readiness, Sign};
pub use http::{Endpoints, ListenError, serve};
pub use logs::{LogFormat, LogLevel, LogLevelError, start_logs};
