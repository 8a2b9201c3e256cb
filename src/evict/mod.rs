//! Evicts pods: everything from "due" to "gone", for taints and for drains.
//!
//! ```text
//! timers ─due→ queue (nodes take turns; holds) ─place in the window→ evictor ─outcome→ timers
//! ```
//!
//! A due eviction enters as an [`Eviction`] with its [`Cause`]. Each attempt ends with an [`Outcome`],
//! which goes back to the timed queue; the timed queue schedules the next attempt. So a pod that cannot
//! be evicted now waits outside the window, and is decided again when its pause is over.
//!
//! - [`Eviction`]: the pod, the [`Cause`], and the [`Method`] that follows from it: which request is sent.
//! - [`Schedule`]: armed evictions: counts down, cancels, and schedules the next attempt.
//! - [`Queue`]: due evictions that wait for their turn. [`hand_out`] passes them to the evictor.
//! - [`Hold`]: keeps due evictions from being handed out. A limit, a breaker or a pause is one file each.
//! - [`Pauses`]: whether everything is held, by an annotation of the lease.
//! - [`RateLimits`]: how many evictions at a time, by rule, zone and cluster. [`RampHold`]: from how many nodes.
//! - [`BreakerHold`]: holds evictions where they concern a large part of the nodes.
//! - [`Window`]: how many evictions may be in flight.
//! - [`Evictor`]: one attempt, from the second check to the outcome.
//! - [`Recheck`]: the second check. Nothing is written because of an old decision.
//! - [`Backlog`]: evictions whose pods are not yet gone, for people, drains and metrics.
//!
//! Every request names the UID. No eviction is lost: each is finished, scheduled again, or in the queue.

mod backlog;
mod breaker;
mod breaker_hold;
mod breaker_metrics;
mod breaker_record;
mod confirm;
mod evict_metrics;
mod eviction;
mod evictor;
mod failure;
mod fairness;
mod hold;
mod limit_metrics;
mod limits;
mod lines;
mod pause;
mod queue;
mod ramp;
mod rate_limit;
mod recheck;
mod schedule;
mod token_bucket;
mod topology;
mod turns;
mod window;

pub use backlog::{Backlog, BacklogEntry, Retry, State};
pub(crate) use breaker::{Change, Scope, Trip};
pub use breaker_hold::BreakerHold;
pub(crate) use breaker_hold::News;
pub(crate) use breaker_metrics::register as register_breaker;
pub use evict_metrics::Metrics;
pub use eviction::{Cause, CauseKind, DrainEviction, Eviction, Key, Method};
pub use evictor::{Evictor, Notices, Outcome, Requests};
pub use failure::{Failure, FailureKind};
pub use hold::{Held, Hold, Holds, Wait};
pub(crate) use limit_metrics::register as register_limits;
pub use limits::{BreakerMode, BreakerRules, EvictionLimits, Ramp, RateLimit, ZONE_LABEL};
pub(crate) use pause::PauseHold;
pub use pause::Pauses;
pub use queue::{Origin, Queue, Standing, hand_out};
pub use ramp::RampHold;
pub use rate_limit::RateLimits;
pub use recheck::{Recheck, Spared};
pub(crate) use schedule::Schedule;
pub use topology::{NodeCounts, Topology};
pub use window::Window;

pub use crate::taint::rules::{TaintMethod, TaintRule, may_delete, rule_of};

#[cfg(test)]
mod hold_bench;
