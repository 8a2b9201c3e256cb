//! An in-memory API server: the part of the Kubernetes API that ostrakon, hollow kubelets and `kubectl`
//! use. The caller controls its clock and its faults.
//!
//! Everything that clients act on (codes, reasons, versions, the order of watch events) follows
//! kube-apiserver 1.36. Some long messages are shorter. There are no users, permissions or TLS: it is for
//! loopback and tests only.
//!
//! ```
//! use ostrakon::clock::Clock;
//! use ostrakon::sim::embedded::{Controllers, Embedded, Options, Resource, Settings};
//! use serde_json::json;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cluster = Embedded::new(Clock::system(), Options::default());
//! let controllers = Controllers::start(cluster.store(), &Settings::default());
//! cluster.store().insert(Resource::Nodes, json!({"metadata": {"name": "n1"}}))?;
//! let served = cluster.serve(([127, 0, 0, 1], 0).into()).await?;
//! println!("{}", served.kubeconfig());
//! served.stop().await;
//! controllers.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! The parts, from the outside in:
//!
//! - `cluster`: the two kinds of access, over loopback and without sockets;
//! - `faults`, `operation`, `audit`: injected faults, the requests that they match, and the audit log;
//! - `http`: paths, forms of responses, watches, discovery;
//! - `controllers`: the other components of a control plane;
//! - `write`, `checks`, `admission`, `deletion`, `eviction`, `budget`, `patch`, `strategic`: what a
//!   request does to an object, without I/O;
//! - `store`, `listing`, `history`, `selector`: the objects, earlier versions, and changes;
//! - `resource`, `object`, `error`: types that all of them use.

mod admission;
mod audit;
mod budget;
mod checks;
mod cluster;
mod controllers;
mod deletion;
mod error;
mod eviction;
mod faults;
mod history;
mod http;
#[cfg(test)]
mod http_tests;
mod listing;
mod managed;
mod object;
mod operation;
mod patch;
mod resource;
mod selector;
mod store;
#[cfg(test)]
mod store_tests;
mod strategic;
mod write;

pub use audit::{Audited, Observed};
pub use cluster::{Embedded, Onward, Served};
pub use controllers::{Controllers, Settings};
pub use deletion::DeleteOptions;
pub use error::ApiError;
pub use faults::{Fault, Faults, Rule, RuleId};
pub use history::{Change, Seen};
pub use http::Body;
pub use listing::{AtVersion, Page, Paging};
pub use operation::{Operation, Verb};
pub use patch::Patch;
pub use resource::{Resource, Spec};
pub use selector::Selector;
pub use store::{Options, Snapshot, Store};
pub use write::{Deleted, Part};
