//! The history of changes, from which watches are served.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::error::ApiError;
use super::object::set;
use super::resource::Resource;
use super::selector::Selector;

/// One committed change of one object.
#[derive(Clone, Debug)]
pub struct Change {
    /// The resourceVersion that it got; counts over all resources.
    pub version: u64,
    /// When it was committed.
    pub at: Timestamp,
    /// Resource of the object.
    pub resource: Resource,
    /// The object from now on or, if it was removed, its last state (with this version).
    pub current: Arc<Value>,
    /// The object before; `None` if it was created.
    pub previous: Option<Arc<Value>>,
    /// Whether the object was removed.
    pub deleted: bool,
}

/// A change as someone sees it who watches a selection.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// The object is new in the selection.
    Added(Arc<Value>),
    /// The object was and is in the selection.
    Modified(Arc<Value>),
    /// The object is gone, or has left the selection.
    Deleted(Arc<Value>),
}

impl Change {
    /// What the watcher of a selection sees of it; `None` if nothing.
    pub fn seen_by(&self, selector: &Selector) -> Option<Seen> {
        let was_in = self.previous.as_ref().is_some_and(|p| selector.matches(p));
        let is_in = !self.deleted && selector.matches(&self.current);
        match (was_in, is_in) {
            (false, false) => None,
            (false, true) => Some(Seen::Added(Arc::clone(&self.current))),
            (true, true) => Some(Seen::Modified(Arc::clone(&self.current))),
            (true, false) if self.deleted => Some(Seen::Deleted(Arc::clone(&self.current))),
            (true, false) => {
                // It only left the selection: the watcher gets the last state that was in it, but
                // with the version of the change, so that it can resume from there.
                let mut last = self.previous.as_deref().cloned().unwrap_or_default();
                set(&mut last, &["metadata", "resourceVersion"], self.version.to_string());
                Some(Seen::Deleted(Arc::new(last)))
            }
        }
    }
}

/// The latest changes of one resource, oldest first, and how far back they reach.
#[derive(Debug)]
pub(super) struct History {
    changes: VecDeque<Arc<Change>>,
    /// Version of the newest change that was forgotten.
    forgotten: u64,
    capacity: usize,
}

impl History {
    pub(super) fn new(capacity: usize) -> Self {
        Self { changes: VecDeque::new(), forgotten: 0, capacity }
    }

    pub(super) fn push(&mut self, change: Arc<Change>) {
        self.changes.push_back(change);
        while self.changes.len() > self.capacity {
            if let Some(oldest) = self.changes.pop_front() {
                self.forgotten = oldest.version;
            }
        }
    }

    /// Forgets everything, and goes on after `version`, which may be an earlier one.
    pub(super) fn restart_at(&mut self, version: u64) {
        self.changes.clear();
        self.forgotten = version;
    }

    /// Forgets everything up to `version`.
    pub(super) fn forget_through(&mut self, version: u64) {
        self.changes.retain(|change| change.version > version);
        self.forgotten = self.forgotten.max(version);
    }

    /// The changes after `version`, oldest first.
    pub(super) fn after(
        &self,
        version: u64,
    ) -> Result<impl Iterator<Item = &Arc<Change>>, ApiError> {
        if version < self.forgotten {
            let text = format!("too old resource version: {version} ({})", self.forgotten);
            return Err(ApiError::expired(text));
        }
        let start = self.changes.partition_point(|c| c.version <= version);
        Ok(self.changes.range(start..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn change(version: u64, before: Option<&str>, after: Option<&str>) -> Change {
        let on = |node: &str| Arc::new(json!({"spec": {"nodeName": node}}));
        Change {
            version,
            at: Timestamp::UNIX_EPOCH,
            resource: Resource::Pods,
            current: on(after.or(before).unwrap()),
            previous: before.map(on),
            deleted: after.is_none(),
        }
    }

    fn seen(before: Option<&str>, after: Option<&str>) -> &'static str {
        let selector = Selector::parse(Resource::Pods, None, "", "spec.nodeName=n1").unwrap();
        match change(7, before, after).seen_by(&selector) {
            None => "nothing",
            Some(Seen::Added(_)) => "added",
            Some(Seen::Modified(_)) => "modified",
            Some(Seen::Deleted(object)) => {
                assert_eq!(object["spec"]["nodeName"], "n1");
                "deleted"
            }
        }
    }

    #[test]
    fn a_watcher_sees_a_selection_and_not_the_rest() {
        assert_eq!(seen(None, Some("n1")), "added");
        assert_eq!(seen(Some(""), Some("n1")), "added");
        assert_eq!(seen(Some("n1"), Some("n1")), "modified");
        assert_eq!(seen(Some("n1"), Some("n2")), "deleted");
        assert_eq!(seen(Some("n1"), None), "deleted");
        assert_eq!(seen(Some("n2"), Some("n2")), "nothing");
        assert_eq!(seen(Some("n2"), None), "nothing");
    }

    #[test]
    fn a_version_that_was_forgotten_is_refused_and_the_next_one_is_not() {
        let mut history = History::new(2);
        for version in [3, 5, 9] {
            history.push(Arc::new(change(version, None, Some("n1"))));
        }
        assert_eq!(history.after(2).err().unwrap().code, 410);
        assert_eq!(history.after(3).unwrap().count(), 2);
        assert_eq!(history.after(5).unwrap().count(), 1);
        assert_eq!(history.after(9).unwrap().count(), 0);
        history.forget_through(9);
        assert_eq!(history.after(8).err().unwrap().reason, "Expired");
        assert_eq!(history.after(9).unwrap().count(), 0);
    }
}
