//! Lists. All pages of a list show the same version.
//!
//! Only the newest state is stored. An earlier one is computed by undoing later changes, as far back as
//! the history goes.

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
    /// How many objects follow, where that is known without looking at them: in a list of the whole
    /// collection.
    pub remaining: Option<usize>,
}

/// Where a page begins. As text it is the token that the page before gives out.
struct Beginning {
    version: u64,
    /// How many objects the pages before had.
    seen: usize,
    /// The first object of the page, or `None` for that of the collection.
    key: Option<Key>,
}

impl Beginning {
    fn parse(token: &str) -> Option<Self> {
        let mut parts = token.splitn(3, ':');
        let version = parts.next()?.parse().ok()?;
        let seen = parts.next()?.parse().ok()?;
        let (namespace, name) = parts.next()?.split_once('/')?;
        Some(Self { version, seen, key: Some(Key::new(namespace, name)) })
    }
}

fn token(version: u64, seen: usize, key: &Key) -> String {
    format!("{version}:{seen}:{}/{}", key.namespace, key.name)
}

impl State {
    pub(super) fn list(
        &self,
        resource: Resource,
        selector: &Selector,
        paging: &Paging,
    ) -> Result<Page, ApiError> {
        let Beginning { version, seen, key } = self.beginning(paging)?;
        let then = self.differences(resource, version)?;
        let table = self.table(resource);
        let namespace = selector.namespace();
        let start = key.unwrap_or_else(|| Key::new(namespace.unwrap_or_default(), ""));
        let unchanged =
            table.objects.range(start.clone()..).filter(|(key, _)| !then.contains_key(key));
        let changed = then.range(start..).filter_map(|(key, o)| Some((key, o.as_ref()?)));
        let mut all = Ordered { left: unchanged.peekable(), right: changed.peekable() }
            .take_while(|(key, _)| namespace.is_none_or(|n| key.namespace == n))
            .filter(|(_, object)| selector.matches(object));
        let limit = if paging.limit == 0 { usize::MAX } else { paging.limit };
        let items: Vec<_> =
            all.by_ref().take(limit).map(|(_, object)| Arc::clone(object)).collect();
        let seen = seen + items.len();
        let next = all.next().map(|(key, _)| token(version, seen, key));
        let is_whole = namespace.is_none() && !selector.is_partial();
        let remaining = (next.is_some() && is_whole).then(|| {
            let now = then.keys().filter(|key| table.objects.contains_key(key)).count();
            let before = then.values().flatten().count();
            (table.objects.len() + before).saturating_sub(now + seen)
        });
        Ok(Page { items, version, next, remaining })
    }

    /// Where the page begins, and of which version it is.
    fn beginning(&self, paging: &Paging) -> Result<Beginning, ApiError> {
        let start = |version| Beginning { version, seen: 0, key: None };
        let beginning = match (&paging.from, paging.version) {
            (Some(token), _) => Beginning::parse(token).ok_or_else(|| {
                ApiError::bad_request("continue key is not valid: it was not given out here")
            })?,
            (None, AtVersion::Newest) => start(self.version),
            (None, AtVersion::NotOlderThan(version)) => start(version.max(self.version)),
            (None, AtVersion::Exactly(version)) => start(version),
        };
        if beginning.version > self.version {
            return Err(ApiError::too_large_version(beginning.version, self.version));
        }
        Ok(beginning)
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
