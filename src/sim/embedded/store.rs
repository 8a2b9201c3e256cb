//! The objects, their versions and their history. Synchronous, in memory, and the only place that
//! holds state: HTTP, watches and controllers are all made of calls on [`Store`].
//!
//! One lock guards everything, so that a version counts over all resources and a request that
//! touches two objects (an eviction and its budget) is one step. Nobody waits, computes or encodes
//! under it; objects are shared, so a list copies pointers.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::RwLock;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::Value;
use tokio::sync::watch;

use super::error::ApiError;
use super::history::{Change, History};
use super::object::{meta, set};
use super::resource::Resource;
use super::selector::Selector;
use crate::clock::Clock;

/// How the embedded API server behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where UIDs, generated names and the chances of faults come from.
    pub seed: u64,
    /// How many changes of each resource are remembered for watches; older ones answer 410.
    pub history: usize,
    /// Seconds for which pods tolerate an outage unless they say otherwise; `None` adds nothing.
    pub default_toleration_seconds: Option<i64>,
    /// Whether a new node is tainted not-ready:NoSchedule until it is ready.
    pub taint_new_nodes: bool,
    /// Whether lists may be streamed (`sendInitialEvents`); where not, that is answered 422.
    pub streaming_lists: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 0,
            history: 8192,
            default_toleration_seconds: Some(300),
            taint_new_nodes: true,
            streaming_lists: true,
        }
    }
}

/// The objects of the cluster. Clones share them.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    options: Options,
    state: RwLock<State>,
    /// For each resource, the version of its latest change.
    signals: Vec<watch::Sender<u64>>,
}

/// Called with each change, in order, while the store is locked.
type Observer = Box<dyn Fn(&Change) + Send + Sync>;

/// Everything behind the lock.
pub(super) struct State {
    version: u64,
    tables: Vec<Table>,
    observers: Vec<Observer>,
    touched: Vec<Resource>,
    pub(super) rng: StdRng,
}

struct Table {
    objects: BTreeMap<Key, Arc<Value>>,
    history: History,
}

/// Place of an object among those of its resource; the namespace is empty where there are none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Key {
    pub(super) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    fn of(object: &Value) -> Self {
        Self::new(meta(object, "namespace"), meta(object, "name"))
    }
}

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

impl Store {
    /// An empty store, but for the namespaces that every cluster has.
    pub fn new(clock: Clock, options: Options) -> Self {
        let tables = Resource::ALL
            .map(|_| Table { objects: BTreeMap::new(), history: History::new(options.history) });
        let state = State {
            version: 0,
            tables: Vec::from(tables),
            observers: Vec::new(),
            touched: Vec::new(),
            rng: StdRng::seed_from_u64(options.seed),
        };
        let store = Self {
            shared: Arc::new(Shared {
                clock,
                options,
                state: RwLock::new(state),
                signals: Resource::ALL.map(|_| watch::Sender::new(0)).into(),
            }),
        };
        for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            store.ensure_namespace(name);
        }
        store
    }

    /// The clock that stamps are taken from.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    pub(super) fn options(&self) -> &Options {
        &self.shared.options
    }

    /// Version of the latest change.
    pub fn version(&self) -> u64 {
        self.shared.state.read().version
    }

    /// How many objects of the resource there are.
    pub fn count(&self, resource: Resource) -> usize {
        self.shared.state.read().table(resource).objects.len()
    }

    /// The object. `namespace` is empty for resources without namespaces.
    pub fn get(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<Value>, ApiError> {
        self.shared.state.read().get(resource, namespace, name)
    }

    /// The objects that are selected, or a page of them.
    pub fn list(
        &self,
        resource: Resource,
        selector: &Selector,
        paging: &Paging,
    ) -> Result<Page, ApiError> {
        self.shared.state.read().list(resource, selector, paging)
    }

    /// All objects of the resource that are selected, as they are now.
    pub fn select(&self, resource: Resource, selector: &Selector) -> Vec<Arc<Value>> {
        let state = self.shared.state.read();
        state
            .in_namespace(resource, selector.namespace())
            .filter(|o| selector.matches(o))
            .cloned()
            .collect()
    }

    /// The changes of the resource after `version`, at most `limit` of them, oldest first, and the
    /// version up to which that is everything.
    pub fn changes(
        &self,
        resource: Resource,
        version: u64,
        limit: usize,
    ) -> Result<(Vec<Arc<Change>>, u64), ApiError> {
        let state = self.shared.state.read();
        if version > state.version {
            return Err(ApiError::too_large_version(version, state.version));
        }
        let after = state.table(resource).history.after(version)?;
        let changes: Vec<_> = after.take(limit).cloned().collect();
        let through = match changes.last() {
            Some(last) if changes.len() == limit => last.version,
            _ => state.version,
        };
        Ok((changes, through))
    }

    /// Shows the version of the resource's latest change, and wakes whoever waits for the next.
    pub fn signal(&self, resource: Resource) -> watch::Receiver<u64> {
        self.shared.signals[resource as usize].subscribe()
    }

    /// Forgets the history of the resource up to now, as compaction does: who was behind, and who
    /// asks for an earlier version, is answered 410.
    pub fn compact(&self, resource: Resource) {
        let mut state = self.shared.state.write();
        let version = state.version;
        state.tables[resource as usize].history.forget_through(version);
    }

    /// Has `observer` called with each change from now on, in order. It is called while the store
    /// is locked: it must not call the store, and must not wait.
    pub fn observe(&self, observer: impl Fn(&Change) + Send + Sync + 'static) {
        self.shared.state.write().observers.push(Box::new(observer));
    }

    /// Runs `work` as one step, and wakes who waits for what it changed.
    pub(super) fn transact<R>(&self, work: impl FnOnce(&mut State, Timestamp) -> R) -> R {
        let mut state = self.shared.state.write();
        let result = work(&mut state, self.shared.clock.now());
        let version = state.version;
        for resource in std::mem::take(&mut state.touched) {
            self.shared.signals[resource as usize].send_replace(version);
        }
        result
    }
}

impl State {
    fn table(&self, resource: Resource) -> &Table {
        &self.tables[resource as usize]
    }

    pub(super) fn get(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<Value>, ApiError> {
        let object = self.find(resource, &Key::new(namespace, name));
        object.ok_or_else(|| ApiError::not_found(resource, name))
    }

    pub(super) fn find(&self, resource: Resource, key: &Key) -> Option<Arc<Value>> {
        self.table(resource).objects.get(key).cloned()
    }

    pub(super) fn in_namespace<'a>(
        &'a self,
        resource: Resource,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Arc<Value>> {
        let objects = &self.table(resource).objects;
        let start = Key::new(namespace.unwrap_or_default(), "");
        let from_there = objects.range(start..);
        from_there
            .take_while(move |(key, _)| namespace.is_none_or(|n| key.namespace == n))
            .map(|(_, object)| object)
    }

    /// Stores the object under a new version.
    pub(super) fn put(&mut self, resource: Resource, object: Value, now: Timestamp) -> Arc<Value> {
        let (version, current) = self.stamped(object);
        let previous =
            self.tables[resource as usize].objects.insert(Key::of(&current), Arc::clone(&current));
        self.record(Change {
            version,
            at: now,
            resource,
            current: Arc::clone(&current),
            previous,
            deleted: false,
        });
        current
    }

    /// Removes the object. Its last state gets the version of the removal.
    pub(super) fn take(
        &mut self,
        resource: Resource,
        key: &Key,
        now: Timestamp,
    ) -> Option<Arc<Value>> {
        let previous = self.tables[resource as usize].objects.remove(key)?;
        let (version, current) = self.stamped((*previous).clone());
        self.record(Change {
            version,
            at: now,
            resource,
            current: Arc::clone(&current),
            previous: Some(previous),
            deleted: true,
        });
        Some(current)
    }

    fn stamped(&mut self, mut object: Value) -> (u64, Arc<Value>) {
        self.version += 1;
        set(&mut object, &["metadata", "resourceVersion"], self.version.to_string());
        (self.version, Arc::new(object))
    }

    fn record(&mut self, change: Change) {
        for observer in &self.observers {
            observer(&change);
        }
        self.touched.push(change.resource);
        self.tables[change.resource as usize].history.push(Arc::new(change));
    }

    fn list(
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
