//! Stand-ins for what ostrakon meets outside: used by tests, trials and demonstrations.
//!
//! - [`hollow`]: kubelets without machines. They register nodes, keep them alive and lead pods
//!   from Pending to gone, against a real API server or an embedded one.
//!
//! Nothing in here may be called by the controller, and nothing in here knows its policies.

pub mod hollow;
