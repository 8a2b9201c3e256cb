//! An API server in the process: the part of the Kubernetes API that ostrakon, hollow kubelets and
//! `kubectl` use, over memory.

mod admission;
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

pub use cluster::{Embedded, Served};
pub use controllers::{Controllers, Settings};
pub use deletion::DeleteOptions;
pub use error::ApiError;
pub use faults::{Fault, Faults, Rule, RuleId};
pub use history::{Change, Seen};
pub use operation::{Operation, Verb};
pub use patch::Patch;
pub use resource::{Resource, Spec};
pub use selector::Selector;
pub use store::{AtVersion, Options, Page, Paging, Store};
pub use write::{Deleted, Part};
