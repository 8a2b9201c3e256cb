//! ostrakon removes pods from nodes: by NoExecute taints, at their deadlines, and by cordon and drain,
//! where a node's conditions are bad.
//!
//! The rooms, in the order in which data flows through them:
//!
//! - [`cluster`]: the API server. Watches nodes and pods into the view; sends requests out.
//! - [`pipeline`]: work queues, shards, workers, timed queue. Knows nothing of taints.
//! - [`taint`]: what a NoExecute taint means for a pod. Pure.
//! - [`drain`]: which nodes are cordoned and drained, and which of their pods go. Pure.
//! - [`evict`]: carries verdicts out: asks again, patches, deletes, retries.
//! - [`leader`]: of several replicas one works, by a lease.
//! - [`observe`]: metrics, events, HTTP endpoints, logs.
//! - [`controller`]: wires the rooms into a running process.
//! - [`cli`] and [`config`]: what a person types, and the one validated form of it.
//!
//! On the ground lie [`model`], the facts that decisions are made from, [`clock`], the one source
//! of time, and [`backoff`], the pauses between tries. `sim` stands beside them: a cluster without
//! machines, for tests and trials. It comes with the feature `demo`, which the image is built without. `docs/architecture.md` has the threads, queues and reasons.

pub mod backoff;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod controller;
pub mod drain;
pub mod evict;
pub mod leader;
pub mod model;
pub mod observe;
pub mod pipeline;
#[cfg(feature = "demo")]
pub mod sim;
pub mod taint;

// The unit tests run against the embedded cluster.
#[cfg(all(test, not(feature = "demo")))]
compile_error!("the tests need the feature `demo`: run them with the default features");
