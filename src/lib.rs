//! ostrakon evicts pods from nodes: by NoExecute taints at their deadlines, and by cordon and drain of
//! nodes with bad conditions.
//!
//! The modules, in the order of the data flow:
//!
//! - [`cluster`]: the API server. Watches nodes and pods into the view; sends requests.
//! - [`pipeline`]: work queues, shards, workers, timed queue. Independent of taints.
//! - [`taint`]: what a NoExecute taint means for a pod. Pure.
//! - `informer`: what is known of nodes and pods, and which of them have to be looked at again.
//! - [`drain`]: which nodes are cordoned and drained, and which of their pods are evicted. Pure.
//! - [`evict`]: carries verdicts out: asks again, patches, deletes, retries.
//! - [`leader`]: elects one of several replicas with a lease.
//! - [`observe`]: metrics, events, HTTP endpoints, logs.
//! - [`controller`]: wires everything into a running process.
//! - [`cli`] and [`config`]: the command line, and the validated configuration.
//!
//! The basis is [`model`], the facts that decisions use, [`clock`], the only source of time,
//! [`backoff`], the pauses between attempts, and [`signal`], values that others wait to see changed. `sim` is a simulated cluster for tests and the demo, behind
//! the feature `demo`; the image is built without it. `docs/architecture.md` describes threads and queues
//! with the reasons, `docs/glossary.md` our terms.

pub mod backoff;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod controller;
pub mod drain;
pub mod evict;
mod informer;
pub mod leader;
pub mod model;
pub mod observe;
pub mod pipeline;
pub mod signal;
#[cfg(feature = "demo")]
pub mod sim;
pub mod taint;

// The unit tests run against the embedded cluster.
#[cfg(all(test, not(feature = "demo")))]
compile_error!("the tests need the feature `demo`: run them with the default features");
