//! Changes to a node's record, and what to report about them.

use std::sync::Arc;

use jiff::Timestamp;

use super::{Cordon, Record};
use crate::model::NodeDrainFacts;

/// A new version of the node's record, with what belongs to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The record; `None` takes it and draino's annotation away.
    pub record: Option<Record>,
    /// Cordon (`true`) or uncordon.
    pub unschedulable: Option<bool>,
    /// Take the request for one more try away.
    pub retry_taken: bool,
    /// What to tell people.
    pub report: Report,
}

impl Change {
    /// A new version of the record, and nothing else.
    pub fn note(record: Record) -> Self {
        Self { record: Some(record), unschedulable: None, retry_taken: false, report: Report::None }
    }

    /// What becomes of draino's annotation with it: nothing (`None`), or it is set or removed. It
    /// stands beside a cordon of ours and goes with that. On a node in use it says nothing; nor beside
    /// a record that cannot be read, by which the cordon counts as someone else's.
    pub fn draino_conditions(&self, drain_facts: &NodeDrainFacts) -> Option<Option<String>> {
        if let Some(record) = self.record.as_ref().filter(|record| record.cordon == Cordon::Ours) {
            return Some(Some(record.draino_conditions()));
        }
        let is_foreign = || Record::of(drain_facts).is_some_and(|had| had.cordon != Cordon::Ours);
        let goes =
            drain_facts.draino_conditions.is_some() && !(drain_facts.unschedulable && is_foreign());
        goes.then_some(None)
    }
}

/// What there is to tell of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// Nothing.
    None,
    /// The node was cordoned.
    Cordoned,
    /// The node was cordoned again, after cluster-autoscaler had uncordoned it.
    CordonedAgain,
    /// The node was uncordoned.
    Uncordoned,
    /// A drain is planned.
    Scheduled(Timestamp),
    /// A planned drain, or one under way, is called off.
    Cancelled(&'static str),
    /// A drain begins.
    Started,
    /// A drain is done. `cause` says if it was not by its evictions.
    Drained {
        /// For example `node_deleted`.
        cause: &'static str,
        /// Which pods were left on the node, and why; in the record as well.
        left: Option<Arc<str>>,
    },
    /// A drain goes on, and some pods are not going.
    Waits(Arc<str>),
    /// A drain failed.
    Failed {
        /// For example `deadline`.
        cause: &'static str,
        /// What was left.
        why: Arc<str>,
    },
    /// It cannot be drained for now; `why` is in the record.
    Held(Arc<str>),
    /// The node is still there, long after its drain.
    Lingers,
    /// The record cannot be read and is replaced.
    Unreadable(String),
}
