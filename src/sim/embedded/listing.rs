//! Lists: of one version over all their pages, whatever happens in between.
//!
//! Only the newest state is kept. An earlier one is had by undoing the changes since, as far as
//! the history reaches.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::error::ApiError;
use super::resource::Resource;
use super::selector::Selector;
use super::store::{Key, State};

/// Which version of the collection a list is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtVersion {
    /// The newest one.
    #[default]
    Newest,
    /// The newest one, which must not be older than this.
    NotOlderThan(u64),
    /// Exactly this one.
    Exactly(u64),
}

/// Which part of a collection is listed.
#[derive(Clone, Debug, Default)]
pub struct Paging {
    /// The most objects that are wanted; 0 for all.
    pub limit: usize,
    /// `next` of the page before.
    pub from: Option<String>,
    /// Of which version.
    pub version: AtVersion,
}

/// A list, or a page of one.
#[derive(Clone, Debug)]
pub struct Page {
    /// The objects, by namespace and name.
    pub items: Vec<Arc<Value>>,
    /// Version of the collection.
    pub version: u64,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
    /// How many objects follow, where that is known without looking at them.
    pub remaining: Option<usize>,
}

impl State {
    pub(super) fn list(
        &self,
        resource: Resource,
        selector: &Selector,
        paging: &Paging,
    ) -> Result<Page, ApiError> {
        let (version, start) = self.beginning(paging)?;
        let then = self.differences(resource, version)?;
        let table = self.table(resource);
        let namespace = selector.namespace();
        let start = start.unwrap_or_else(|| Key::new(namespace.unwrap_or_default(), ""));
        let unchanged =
            table.objects.range(start.clone()..).filter(|(key, _)| !then.contains_key(key));
        let changed = then.range(start..).filter_map(|(key, o)| Some((key, o.as_ref()?)));
        let mut all = Ordered { left: unchanged.peekable(), right: changed.peekable() }
            .take_while(|(key, _)| namespace.is_none_or(|n| key.namespace == n))
            .filter(|(_, object)| selector.matches(object));
        let limit = if paging.limit == 0 { usize::MAX } else { paging.limit };
        let items: Vec<_> =
            all.by_ref().take(limit).map(|(_, object)| Arc::clone(object)).collect();
        let next = all.next().map(|(key, _)| format!("{version}:{}/{}", key.namespace, key.name));
        let remaining = (next.is_some() && !selector.is_partial()).then(|| 1 + all.count());
        Ok(Page { items, version, next, remaining })
    }

    /// The version that is to be listed, and the key that the page begins with.
    fn beginning(&self, paging: &Paging) -> Result<(u64, Option<Key>), ApiError> {
        let asked = match &paging.from {
            Some(token) => {
                let parts = token.split_once(':').and_then(|(version, key)| {
                    let (namespace, name) = key.split_once('/')?;
                    Some((version.parse().ok()?, Key::new(namespace, name)))
                });
                let (version, key) = parts.ok_or_else(|| {
                    ApiError::bad_request("continue key is not valid: it was not given out here")
                })?;
                (version, Some(key))
            }
            None => match paging.version {
                AtVersion::Newest => (self.version, None),
                AtVersion::NotOlderThan(version) => (version.max(self.version), None),
                AtVersion::Exactly(version) => (version, None),
            },
        };
        if asked.0 > self.version {
            return Err(ApiError::too_large_version(asked.0, self.version));
        }
        Ok(asked)
    }

    /// For each object that changed after `version`, what it was then.
    fn differences(
        &self,
        resource: Resource,
        version: u64,
    ) -> Result<BTreeMap<Key, Option<Arc<Value>>>, ApiError> {
        let mut then = BTreeMap::new();
        if version == self.version {
            return Ok(then);
        }
        let later = self.table(resource).history.after(version).map_err(|_| {
            ApiError::expired(
                "The provided continue parameter is too old to display a consistent list result. \
                 You can start a new list without the continue parameter.",
            )
        })?;
        for change in later {
            then.entry(Key::of(&change.current)).or_insert_with(|| change.previous.clone());
        }
        Ok(then)
    }
}

/// Two iterators over different keys, each in order, as one in order.
struct Ordered<L: Iterator, R: Iterator> {
    left: std::iter::Peekable<L>,
    right: std::iter::Peekable<R>,
}

impl<'a, L, R> Iterator for Ordered<L, R>
where
    L: Iterator<Item = (&'a Key, &'a Arc<Value>)>,
    R: Iterator<Item = (&'a Key, &'a Arc<Value>)>,
{
    type Item = (&'a Key, &'a Arc<Value>);

    fn next(&mut self) -> Option<Self::Item> {
        match (self.left.peek(), self.right.peek()) {
            (Some(left), Some(right)) if right.0 < left.0 => self.right.next(),
            (Some(_), _) => self.left.next(),
            (None, _) => self.right.next(),
        }
    }
}
