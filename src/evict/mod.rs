//! Evicts pods: everything from "due" to "gone", for whatever cause.
//!
//! ```text
//! timers ─due→ queue (nodes take turns; holds) ─place in the window→ evictor ─outcome→ timers
//! ```
//!
//! What is due comes in as an [`Eviction`], which says why the pod goes, by taints or by a drain; what
//! became of it goes back as an [`Outcome`], and the timed queue decides when it comes again. So a pod
//! that cannot be evicted now waits in the timed queue like any other, outside the window, and is decided
//! afresh when its pause is over.
//!
//! - [`Eviction`]: the pod, the [`Cause`], and by it the [`Method`]: what is asked of the API server.
//! - [`Schedule`]: counts down, cancels, takes an eviction back for its next try.
//! - [`Queue`]: waits its turn; [`hand_out`] is the loop that gives it to the evictor.
//! - [`Hold`]: holds due evictions back: a limit, a breaker, a pause is one file each.
//! - [`Window`]: how many are evicted at the same time.
//! - [`Evictor`]: one try of one eviction, from the second look to the outcome.
//! - [`Recheck`]: the second look. Nothing is written on the word of an old decision.
//! - [`Backlog`]: what is due and not yet gone, for people, drains and metrics.
//!
//! Every request names the UID. No eviction is lost: each is finished, comes again, or is in the queue.

mod backlog;
mod confirm;
mod eviction;
mod evictor;
mod failure;
mod fairness;
mod hold;
mod metrics;
mod queue;
mod recheck;
mod schedule;
mod window;

pub use backlog::{Backlog, BacklogEntry, Retry, State};
pub use eviction::{Cause, CauseKind, DrainEviction, Eviction, Key, Method};
pub use evictor::{Evictor, Notices, Outcome, Requests};
pub use failure::{Failure, FailureKind};
pub use hold::{Held, Hold, Holds, Wait};
pub use metrics::Metrics;
pub use queue::{Origin, Queue, Standing, hand_out};
pub use recheck::{Recheck, Spared};
pub(crate) use schedule::Schedule;
pub use window::Window;
