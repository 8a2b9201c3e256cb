//! ostrakon evicts pods from nodes: by NoExecute taints at their deadlines, and by cordon and drain of
//! nodes with bad conditions.
//!
//! The modules, in the order of the data flow:
//!
//! - [`cluster`]: the API server. Watches nodes and pods into the view; sends requests, writes only
//!   behind a gate.
//! - [`pipeline`]: work queues, shards, workers, timed queue. Independent of taints.
//! - [`taint`]: what a NoExecute taint means for a pod. Pure.
//! - `informer`: takes in what the watches bring: current facts about nodes and pods, and the queues of
//!   those to evaluate again.
//! - [`drain`]: which nodes are cordoned and drained, and which of their pods are evicted. Pure.
//! - [`evict`]: carries out verdicts: counts down, checks again, patches, deletes, retries.
//! - `taint_records`: records on nodes when their taints began, so that deadlines survive a restart.
//! - `drain_reconciler`: executes the steps that `drain` decides: cordons, drains, uncordons.
//! - `dry_run`: what stands in the place of writes where nothing is written.
//! - [`leader`]: elects one of several replicas with a lease.
//! - [`observe`]: metrics, events, HTTP endpoints, logs.
//! - `other_managers`: notices another controller that evicts pods for NoExecute taints too.
//! - [`preflight`]: checks at startup that the API server responds and grants all permissions.
//! - `clock_watch`: compares this machine's clock with the API server's, and corrects the time.
//! - [`controller`]: wires everything into a running process.
//! - [`cli`] and [`config`]: the command line, and the validated configuration.
//!
//! The basis is [`model`], the facts that decisions use, [`clock`], the only source of time, [`backoff`],
//! the pauses between attempts, [`signal`], a value that others wait to see changed, and `shared_reads`,
//! requests whose answer several callers share. No two rooms use
//! each other, and only `cli` uses `controller`. `sim` is a simulated cluster for tests and the demo, behind
//! the feature `demo`; the image is built without it. `docs/architecture.md` describes threads and queues
//! with the reasons, `docs/glossary.md` our terms.

pub mod backoff;
pub mod cli;
pub mod clock;
mod clock_watch;
pub mod cluster;
pub mod config;
pub mod controller;
pub mod drain;
mod drain_reconciler;
mod dry_run;
pub mod evict;
mod informer;
pub mod leader;
pub mod model;
pub mod observe;
mod other_managers;
pub mod pipeline;
pub mod preflight;
mod shared_reads;
pub mod signal;
#[cfg(feature = "demo")]
pub mod sim;
pub mod taint;
mod taint_records;

// The unit tests run against the embedded cluster.
#[cfg(all(test, not(feature = "demo")))]
compile_error!("the tests need the feature `demo`: run them with the default features");
