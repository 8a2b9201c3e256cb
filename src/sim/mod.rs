//! A simulated cluster on which the unchanged controller runs, for the demo and for tests.
//!
//! - [`embedded`]: an in-memory API server with minimal controllers.
//! - [`hollow`]: kubelets without machines. They register nodes, renew their leases and take pods from
//!   Pending to gone, with a real API server or the embedded one.
//! - [`tolerations`]: which taints a toleration matches, implemented independently of the controller.
//!
//! The controller must not call anything in here, and nothing in here knows its policies.

pub mod embedded;
pub mod hollow;
pub mod tolerations;
