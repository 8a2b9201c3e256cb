//! A cluster without machines, on which the unchanged controller runs: for newcomers, trials and
//! tests.
//!
//! - [`embedded`]: an API server in the process, over memory, with small controllers beside it.
//! - [`hollow`]: kubelets without machines. They register nodes, keep them alive and lead pods
//!   from Pending to gone, against a real API server or the embedded one.
//! - [`tolerations`]: which taints a toleration is for, by a rule of its own.
//!
//! Nothing in here may be called by the controller, and nothing in here knows its policies.

pub mod embedded;
pub mod hollow;
pub mod tolerations;
