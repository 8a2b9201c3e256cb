//! The objects of a resource, kept up to date from the store's history.

use std::sync::Arc;

use serde_json::Value;

use crate::sim::embedded::listing::Paging;
use crate::sim::embedded::resource::Resource;
use crate::sim::embedded::selector::Selector;
use crate::sim::embedded::store::Store;

/// What is new since the last look.
pub(super) enum News {
    /// Everything that there is, the first time and when the history has been forgotten.
    All(Vec<Arc<Value>>),
    /// Objects as they are now, and those that are gone in their last state.
    Some(Vec<(Arc<Value>, Gone)>),
}

/// Whether an object is gone.
pub(super) type Gone = bool;

/// A place in the history of a resource.
pub(super) struct Feed {
    resource: Resource,
    version: Option<u64>,
}

impl Feed {
    pub(super) fn new(resource: Resource) -> Self {
        Self { resource, version: None }
    }

    /// What is new since the last call.
    pub(super) fn news(&mut self, store: &Store) -> News {
        if let Some(version) = self.version
            && let Ok((changes, through)) = store.changes(self.resource, version, usize::MAX)
        {
            self.version = Some(through);
            let news = changes.iter().map(|c| (Arc::clone(&c.current), c.deleted));
            return News::Some(news.collect());
        }
        match store.list(self.resource, &Selector::default(), &Paging::default()) {
            Ok(page) => {
                self.version = Some(page.version);
                News::All(page.items)
            }
            // The newest list of everything cannot be refused; if it were, the next look would
            // try again.
            Err(_) => News::Some(Vec::new()),
        }
    }
}
