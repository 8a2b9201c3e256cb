//! A real control plane for tests, and the means to observe it.
//!
//! Each test target compiles this module for itself (`#[path = "../harness/mod.rs"] mod harness;`)
//! and starts one [`Bed`]: etcd, a kube-apiserver and, if requested, kube-controller-manager and
//! kube-scheduler, as plain processes on loopback. From the bottom up:
//!
//! - [`process`] and [`component`]: child processes that can be killed, restarted and frozen, and that
//!   never outlive the test;
//! - [`binaries`]: where etcd and the Kubernetes components come from;
//! - [`users`] and [`manifests`]: the users of the API server. ostrakon is its ServiceAccount, with only
//!   the permissions that `deploy/` grants;
//! - [`bed`]: starts everything in order; [`embedded`]: the embedded cluster instead; [`arena`]: the
//!   namespace and nodes of one test;
//! - [`cluster`]: builders of nodes, taints and pods; [`workloads`]: workloads that recreate pods, and
//!   disruption budgets;
//! - [`ostrakon`]: the program under test as a child process;
//! - [`fault_proxy`] and [`silent_proxy`]: proxies between the two that misbehave on request; [`refusal`]:
//!   an admission policy that denies requests;
//! - [`witness`], [`tally`] and [`audit`]: outside observation: when pods were deleted, how many were
//!   healthy, who sent which request.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "each test target compiles this for itself and uses a part of it"
)]

pub mod arena;
pub mod audit;
pub mod bed;
pub mod binaries;
pub mod cluster;
pub mod component;
pub mod embedded;
pub mod fault_proxy;
pub mod http;
pub mod manifests;
pub mod metrics;
pub mod ostrakon;
pub mod ports;
pub mod process;
pub mod program;
pub mod refusal;
pub mod request;
pub mod silent_proxy;
pub mod tally;
pub mod users;
pub mod wait;
pub mod webhook;
pub mod witness;
pub mod workloads;

pub use arena::Arena;
pub use bed::{Bed, BedOptions, StartError, TaintEviction};
pub use cluster::{NodeRef, PodRef, PodSketch, TaintSketch, no_execute};
pub use component::How;
pub use fault_proxy::{Answer, Fault, FaultProxy, Match, Rule};
pub use ostrakon::Ostrakon;
pub use refusal::Refusal;
pub use request::Verb;
pub use silent_proxy::SilentProxy;
pub use tally::Tally;
pub use users::User;
pub use webhook::EvictionWebhook;
pub use witness::Witness;
