//! An API server in the process: the part of the Kubernetes API that ostrakon, hollow kubelets and
//! `kubectl` use, over memory.

mod admission;
mod budget;
mod deletion;
mod error;
mod eviction;
mod history;
mod object;
mod patch;
mod resource;
mod selector;
mod store;
#[cfg(test)]
mod store_tests;
mod write;

pub use deletion::DeleteOptions;
pub use error::ApiError;
pub use history::{Change, Seen};
pub use patch::Patch;
pub use resource::{Resource, Spec};
pub use selector::Selector;
pub use store::{AtVersion, Options, Page, Paging, Store};
pub use write::{Deleted, Part};
