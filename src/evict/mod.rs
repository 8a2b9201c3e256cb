//! Carries verdicts out: asks again, marks the pod, deletes it, and tries for as long as it takes.
//!
//! What is due comes in as a [`Job`]; what became of it goes back as an [`Outcome`], and the
//! timed queue decides when the job comes again. So a pod that cannot be removed now waits in the
//! timed queue like any other, outside the window, and is decided afresh when its pause is over.
//!
//! Nothing is written on the word of an old decision: the verdict is asked for again right before
//! the first request and between the two, from the view and by the node as the API server has it
//! (see [`Evictor`]). Every request names the UID.
//!
//! A drain orders evictions as well ([`Order`]). They go the same way, by other requests (see
//! [`Drainer`]).

mod backlog;
mod confirm;
mod drain;
mod evictor;
mod failure;
mod metrics;
mod pace;
mod turns;

pub use backlog::{Backlog, Condemned, State};
pub use drain::{
    DrainJudge, DrainNotices, DrainRequests, Drainer, Order, OrderMetrics, OrderState, Ordered,
    OrderedJob, Orders, Refused,
};
pub use evictor::{Evictor, Job, Judge, Judgement, Notices, Outcome, Requests};
pub use failure::{Failure, FailureKind};
pub use metrics::Metrics;
pub use pace::{HANGS, Pace};
pub use turns::Turns;
