//! Garbage collection: pods whose owner is gone, namespaces that are being deleted, and old events.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::sim::embedded::deletion::DeleteOptions;
use crate::sim::embedded::object::{controller, is_terminating, meta, moment, text};
use crate::sim::embedded::resource::Resource;
use crate::sim::embedded::selector::Selector;
use crate::sim::embedded::store::Store;

/// For how long events are kept.
const EVENTS_KEPT: SignedDuration = SignedDuration::from_hours(1);

/// The controller.
pub(super) struct Housekeeping {
    store: Store,
    /// The version up to which the removal of owners was looked at.
    versions: Vec<(Resource, u64)>,
    swept_at: Option<Timestamp>,
}

impl Housekeeping {
    pub(super) fn new(store: Store) -> Self {
        let version = store.version();
        let owners = [Resource::ReplicaSets, Resource::StatefulSets, Resource::DaemonSets];
        Self { store, versions: owners.map(|owner| (owner, version)).into(), swept_at: None }
    }

    /// Cleans up what there is to clean up.
    pub(super) fn step(&mut self) {
        self.collect_orphans();
        self.empty_namespaces();
        let now = self.store.clock().now();
        let is_time =
            self.swept_at.is_none_or(|at| now.duration_since(at) >= SignedDuration::from_mins(1));
        if is_time {
            self.swept_at = Some(now);
            self.forget_events(now);
        }
    }

    /// Deletes the pods of owners that have been removed.
    fn collect_orphans(&mut self) {
        let mut gone: Vec<String> = Vec::new();
        for (resource, version) in &mut self.versions {
            match self.store.changes(*resource, *version, usize::MAX) {
                Ok((changes, through)) => {
                    *version = through;
                    let removed = changes.iter().filter(|change| change.deleted);
                    gone.extend(removed.map(|change| meta(&change.current, "uid").to_owned()));
                }
                // What was removed meanwhile is not known any more; its pods stay.
                Err(_) => *version = self.store.version(),
            }
        }
        if gone.is_empty() {
            return;
        }
        for pod in self.store.select(Resource::Pods, &Selector::default()) {
            let owner = controller(&pod).map(|owner| text(owner, &["uid"]));
            if owner.is_some_and(|owner| gone.iter().any(|uid| uid == owner)) {
                self.delete(Resource::Pods, &pod);
            }
        }
    }

    /// Removes what is in namespaces that are to go, and then them.
    fn empty_namespaces(&self) {
        for namespace in self.store.select(Resource::Namespaces, &Selector::default()) {
            if !is_terminating(&namespace) {
                continue;
            }
            let name = meta(&namespace, "name");
            let mut left = 0;
            for resource in Resource::ALL.into_iter().filter(|r| r.spec().namespaced) {
                let Ok(selector) = Selector::parse(resource, Some(name), "", "") else {
                    continue;
                };
                for object in self.store.select(resource, &selector) {
                    self.delete(resource, &object);
                }
                left += self.store.select(resource, &selector).len();
            }
            if left == 0 {
                self.store.remove_namespace(name);
            }
        }
    }

    fn forget_events(&self, now: Timestamp) {
        for event in self.store.select(Resource::Events, &Selector::default()) {
            let paths: [&[&str]; 4] = [
                &["series", "lastObservedTime"],
                &["lastTimestamp"],
                &["eventTime"],
                &["metadata", "creationTimestamp"],
            ];
            let last = paths.iter().find_map(|path| moment(&event, path));
            if last.is_some_and(|last| now.duration_since(last) > EVENTS_KEPT) {
                self.delete(Resource::Events, &event);
            }
        }
    }

    fn delete(&self, resource: Resource, object: &Arc<Value>) {
        let (namespace, name) = (meta(object, "namespace"), meta(object, "name"));
        // It may be gone by now.
        let _ = self.store.delete(resource, namespace, name, &DeleteOptions::default());
    }
}
