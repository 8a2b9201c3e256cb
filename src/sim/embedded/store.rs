//! The objects, their versions and their history. Synchronous, in memory, and the only place that holds
//! state: HTTP, watches and controllers all call [`Store`].
//!
//! One lock guards everything, so that versions are global, and a request that changes two objects (an
//! eviction and its budget) is atomic. No code waits, encodes or calls back under the lock. Objects are
//! shared, so a list copies pointers.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::RwLock;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::Value;
use tokio::sync::mpsc;

use super::audit::Observed;
use super::error::ApiError;
use super::history::{Change, History};
use super::listing::{Page, Paging};
use super::object::{meta, set};
use super::resource::Resource;
use super::selector::Selector;
use crate::clock::Clock;
use crate::signal::{Follower, Signal};

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
    signals: Vec<Signal<u64>>,
}

/// Where changes are sent as they are stored. A channel and not a callback: a callback under the lock
/// waits forever for whatever its caller holds while it waits for the store. Unbounded, because a
/// bounded one would make the store wait for its reader, or lose changes.
enum Feed {
    Changes(mpsc::UnboundedSender<Arc<Change>>),
    Everything(mpsc::UnboundedSender<Observed>),
}

impl Feed {
    /// Whether someone still reads it.
    fn send(&self, change: &Arc<Change>) -> bool {
        match self {
            Self::Changes(feed) => feed.send(Arc::clone(change)).is_ok(),
            Self::Everything(feed) => feed.send(Observed::Changed(Arc::clone(change))).is_ok(),
        }
    }
}

/// What was stored at one moment, to go back to.
#[derive(Clone, Debug)]
pub struct Snapshot {
    version: u64,
    objects: Vec<BTreeMap<Key, Arc<Value>>>,
}

/// Everything behind the lock.
pub(super) struct State {
    pub(super) version: u64,
    tables: Vec<Table>,
    feeds: Vec<Feed>,
    touched: Vec<Resource>,
    pub(super) rng: StdRng,
}

/// The objects of one resource.
pub(super) struct Table {
    pub(super) objects: BTreeMap<Key, Arc<Value>>,
    pub(super) history: History,
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

    pub(super) fn of(object: &Value) -> Self {
        Self::new(meta(object, "namespace"), meta(object, "name"))
    }
}

impl Store {
    /// An empty store, but for the namespaces that every cluster has.
    pub fn new(clock: Clock, options: Options) -> Self {
        let tables = Resource::ALL
            .map(|_| Table { objects: BTreeMap::new(), history: History::new(options.history) });
        let state = State {
            version: 0,
            tables: Vec::from(tables),
            feeds: Vec::new(),
            touched: Vec::new(),
            rng: StdRng::seed_from_u64(options.seed),
        };
        let store = Self {
            shared: Arc::new(Shared {
                clock,
                options,
                state: RwLock::new(state),
                signals: Resource::ALL.map(|_| Signal::default()).into(),
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
    pub fn signal(&self, resource: Resource) -> Follower<u64> {
        self.shared.signals[resource as usize].follow()
    }

    /// Forgets the history of the resource up to now, as compaction does: who was behind, and who
    /// asks for an earlier version, is answered 410.
    pub fn compact(&self, resource: Resource) {
        let mut state = self.shared.state.write();
        let version = state.version;
        state.tables[resource as usize].history.forget_through(version);
    }

    /// What is stored now.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.shared.state.read();
        let objects = state.tables.iter().map(|table| table.objects.clone()).collect();
        Snapshot { version: state.version, objects }
    }

    /// Goes back to what was stored once, but for objects of the resources in `except`. Versions begin
    /// again at that of the snapshot, and nobody remembers what lies between. Who follows the changes is
    /// told of the differences as of changes that happen now.
    pub(super) fn restore(&self, snapshot: &Snapshot, except: &[Resource]) {
        self.transact(|state, now| {
            state.version = snapshot.version;
            for (resource, then) in Resource::ALL.into_iter().zip(&snapshot.objects) {
                if !except.contains(&resource) {
                    state.restore(resource, then, now);
                }
            }
        });
    }

    /// Every change from now on, in order. A change is in the channel before the call that made it
    /// returns. The reader may call the store. What is not read is kept, so read it or drop it.
    pub fn follow(&self) -> mpsc::UnboundedReceiver<Arc<Change>> {
        let (feed, changes) = mpsc::unbounded_channel();
        self.shared.state.write().feeds.push(Feed::Changes(feed));
        changes
    }

    /// Has every change from now on sent there, in order.
    pub(super) fn send_to(&self, feed: mpsc::UnboundedSender<Observed>) {
        self.shared.state.write().feeds.push(Feed::Everything(feed));
    }

    /// Runs `work` as one step, and wakes who waits for what it changed.
    pub(super) fn transact<R>(&self, work: impl FnOnce(&mut State, Timestamp) -> R) -> R {
        let mut state = self.shared.state.write();
        let result = work(&mut state, self.shared.clock.now());
        let version = state.version;
        for resource in std::mem::take(&mut state.touched) {
            self.shared.signals[resource as usize].change(|last| *last = version);
        }
        result
    }
}

impl State {
    pub(super) fn table(&self, resource: Resource) -> &Table {
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

    fn restore(&mut self, resource: Resource, then: &BTreeMap<Key, Arc<Value>>, now: Timestamp) {
        let version = self.version;
        let change = |current: &Arc<Value>, previous: Option<&Arc<Value>>, deleted| {
            let (current, previous) = (Arc::clone(current), previous.cloned());
            Arc::new(Change { version, at: now, resource, current, previous, deleted })
        };
        let table = &mut self.tables[resource as usize];
        let gone = table.objects.iter().filter(|(key, _)| !then.contains_key(key));
        let mut changes: Vec<_> =
            gone.map(|(_, object)| change(object, Some(object), true)).collect();
        for (key, object) in then {
            let before = table.objects.get(key);
            if before != Some(object) {
                changes.push(change(object, before, false));
            }
        }
        table.objects.clone_from(then);
        table.history.restart_at(version);
        for change in changes {
            self.feeds.retain(|feed| feed.send(&change));
        }
        self.touched.push(resource);
    }

    fn record(&mut self, change: Change) {
        let change = Arc::new(change);
        self.feeds.retain(|feed| feed.send(&change));
        self.touched.push(change.resource);
        self.tables[change.resource as usize].history.push(change);
    }
}
