//! A real control plane for tests, and what they watch it with.
//!
//! Each test target compiles this module for itself (`#[path = "../harness/mod.rs"] mod harness;`)
//! and starts one [`Bed`]: etcd, a kube-apiserver and, where asked for, kube-controller-manager
//! and kube-scheduler, as plain processes on loopback. From the ground up:
//!
//! - [`process`] and [`component`]: child processes that can be killed, restarted, frozen, and that
//!   do not outlive the test, however it ends;
//! - [`binaries`]: where etcd and the Kubernetes components come from;
//! - [`users`] and [`manifests`]: who may talk to the API server. ostrakon is its ServiceAccount,
//!   with the rights that `deploy/` gives it and no others;
//! - [`bed`]: all of it started in order; [`embedded`]: what can stand in for it; [`arena`]: the namespace and the nodes of one test;
//! - [`cluster`]: nodes, taints, pods in a line each; [`workloads`]: what makes pods anew, and
//!   budgets;
//! - [`ostrakon`]: the program under test as a child process;
//! - [`fault_proxy`] and [`silent_proxy`]: stand between the two and misbehave as told; [`refusal`]: an admission
//!   policy that says no;
//! - [`witness`], [`tally`] and [`audit`]: what happened, seen from outside: when pods went, how many
//!   were healthy, who asked for it.

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
