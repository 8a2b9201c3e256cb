//! Observability: metrics, health, events, logs.
//!
//! Nothing here may delay an eviction: events go through a bounded queue and are counted when it is full,
//! and a scrape only reads counters.

mod connections;
mod events;
mod health;
mod http;
mod logs;
mod reasons;
mod repeats;

pub use events::{Event, EventLane, EventMetrics, NodeEvent, Recorder};
pub use health::{Gate, Readiness, Sign};
pub use http::{Endpoints, ListenError, serve};
pub use logs::{LogFormat, LogLevel, LogLevelError, start_logs};
pub use reasons::Reason;
