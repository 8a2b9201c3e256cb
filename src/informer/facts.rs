//! The facts about nodes and pods, as they count at the current time.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::cluster::watch::Source;
use crate::cluster::{NodeSeen, PodSeen, View};
use crate::config::Compat;
use crate::dry_run::Unwritten;
use crate::model::{Anchors, Node, Pod, later};
use crate::taint::anchor::{self, CLOCKS_APART, Past};
use crate::taint::{TaintRule, record};

/// The view, the clock by which it is read, and the rules for taints.
pub(crate) struct Facts {
    pub clock: Clock,
    pub compat: Compat,
    pub view: View,
    /// How pods are evicted for taints.
    taint_rules: RwLock<Arc<[TaintRule]>>,
    /// In a dry run, what would have been written to nodes.
    pub unwritten: Option<Arc<Unwritten>>,
    /// The API server's time by its last response, and when it came.
    server_time: Mutex<Option<(Instant, Timestamp)>>,
}

impl Facts {
    pub(crate) fn new(clock: Clock, compat: Compat) -> Self {
        let (view, server_time) = (View::default(), Mutex::default());
        let taint_rules = RwLock::default();
        Self { clock, compat, view, taint_rules, unwritten: None, server_time }
    }

    /// The taint rules in force.
    pub(crate) fn taint_rules(&self) -> Arc<[TaintRule]> {
        Arc::clone(&self.taint_rules.read())
    }

    /// Replaces the taint rules. Returns whether they are others; then all pods must be decided about again.
    pub(crate) fn set_taint_rules(&self, rules: Arc<[TaintRule]>) -> bool {
        let mut in_force = self.taint_rules.write();
        let are_others = *in_force != rules;
        *in_force = rules;
        are_others
    }

    /// In a dry run: what would be written to nodes is kept in memory.
    pub(crate) fn writing_nothing(mut self) -> Self {
        self.unwritten = Some(Arc::default());
        self
    }

    /// Takes in the API server's time.
    pub(crate) fn heard_time(&self, server: Timestamp) {
        *self.server_time.lock() = Some((Instant::now(), server));
    }

    /// Whether the clock that is kept is behind, by the API server's last word. What is seen first by such
    /// a clock lasts as long as it should by the same clock, but by another one it would have been seen
    /// long ago.
    pub(crate) fn clock_is_behind(&self) -> bool {
        let heard = *self.server_time.lock();
        heard.is_some_and(|(at, server)| {
            later(server, at.elapsed()).duration_since(self.clock.now()) > CLOCKS_APART
        })
    }

    /// Has a version of a node count as it does for who reads it now.
    pub(crate) fn see_node(&self, node: &mut Node) {
        if node.drain_facts.is_some() {
            let known = self.view.node_alone(&node.name);
            node.seen_at(self.clock.now(), known.as_ref().map(|(known, _)| &**known));
        }
        if let Some(unwritten) = &self.unwritten {
            unwritten.apply(node);
        }
    }

    /// Has a version of a pod count as it does for who reads it now.
    pub(crate) fn see_pod(&self, pod: &mut Pod) {
        let now = self.clock.now();
        if pod.bound.written() > now {
            let known = self.view.pod(&pod.node, pod.uid);
            pod.seen_at(now, known.as_ref().map(|known| &*known.pod));
        }
    }

    /// Stores a version of a node, [as it counts](Self::see_node), and advances its anchors. Who stands by
    /// takes over what the leader has recorded since the version before.
    pub(crate) fn store_node(&self, node: Node, by: Source, leads: bool) -> NodeSeen {
        let now = self.clock.now();
        let news = (!leads).then(|| self.new_record(&node, now)).flatten();
        let advance = |before: Option<&Anchors>, node: &Node| match (before, &news, by) {
            (Some(before), Some(record), _) => {
                anchor::advance(Past::Recorded(&anchor::adopted(before, record)), node, now)
            }
            (Some(before), None, Source::Watch) => {
                anchor::advance(Past::Watched(before), node, now)
            }
            (Some(before), None, Source::List) => {
                anchor::advance(Past::Recorded(before), node, now)
            }
            (None, ..) => anchor::advance(Past::recorded(recorded(node, now).as_ref()), node, now),
        };
        self.view.apply_node(node, advance)
    }

    /// What a version of a node says that the leader has recorded since the version before.
    fn new_record(&self, node: &Node, now: Timestamp) -> Option<Anchors> {
        let (before, _) = self.view.node_alone(&node.name)?;
        let is_new = before.uid == node.uid && before.since_annotation != node.since_annotation;
        is_new.then(|| recorded(node, now)).flatten()
    }

    /// Stores a version of a pod, as it counts for who reads it now.
    pub(crate) fn store_pod(&self, mut pod: Pod) -> PodSeen {
        self.see_pod(&mut pod);
        self.view.apply_pod(pod)
    }

    /// Takes over what is recorded on the nodes. Another process may have led before this one knew that
    /// it leads no more, and what that one has recorded since counts.
    pub(crate) fn adopt_records(&self) {
        for name in self.view.node_names() {
            self.view.refresh_node(&name, |anchors, node| match recorded(node, self.clock.now()) {
                Some(record) => anchor::adopted(anchors, &record),
                None => anchors.clone(),
            });
        }
    }
}

/// What the node's record says, as far as it can be believed. One that cannot be read is reported
/// and replaced by the record lane.
pub(crate) fn recorded(node: &Node, now: Timestamp) -> Option<Anchors> {
    record::believed(node, now).ok().flatten()
}
