//! What happened in the cluster, observed from outside through its history.
//!
//! Nothing here comes from the controller. Every stored change of a node or pod passes through, so
//! each deletion is held against what the pod bore at that very moment.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::oracle::{Taint, Tolerated, Toleration, is_left_alone, taints, text, tolerated};
use crate::sim::embedded::{Change, Resource};

/// The controller has a clock of its own: only what comes earlier than this is early.
const CLOCKS_AGREE: SignedDuration = SignedDuration::from_millis(100);

/// Something to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Observation {
    /// A node got a NoExecute taint.
    Tainted { node: String, key: String, outlook: Outlook },
    /// A taint was removed; this many countdowns on the node were cancelled.
    Untainted { node: String, key: String, cancelled: usize },
    /// A pod had to go and was deleted.
    Evicted(Eviction),
    /// A pod was deleted that had not to go, or not yet.
    Wrong(String),
}

/// A deletion that had to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Eviction {
    pub(super) pod: String,
    pub(super) uid: String,
    pub(super) node: String,
    pub(super) key: String,
    /// How many seconds it tolerated the taint; `None`: it did not.
    pub(super) seconds: Option<i64>,
    /// How long after the moment at which it had to go.
    pub(super) late: Duration,
}

/// What becomes of the pods of a node with its taints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outlook {
    /// So many go now.
    pub(super) at_once: usize,
    /// Number of pods by the seconds until they are due.
    pub(super) counting: BTreeMap<i64, usize>,
    /// So many stay.
    pub(super) staying: usize,
}

/// A node as it is now.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeRow {
    pub(super) name: String,
    /// Keys of its NoExecute taints.
    pub(super) taints: Vec<String>,
    /// Pods on it that are not terminating.
    pub(super) pods: usize,
    /// Those of them that will have to go.
    pub(super) counting: usize,
    /// When the next of them has to.
    pub(super) next: Option<Timestamp>,
    /// Pods on their way out.
    pub(super) going: usize,
}

/// Counts of everything up to now.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// Pods that are not terminating.
    pub(super) pods: usize,
    /// Overdue pods that are not terminating.
    pub(super) overdue: usize,
    /// Pods that had to go and were deleted.
    pub(super) evicted: usize,
    /// Countdowns that ended because a taint went.
    pub(super) cancelled: usize,
}

struct PodFacts {
    name: String,
    node: String,
    tolerations: Vec<Toleration>,
    bound: Timestamp,
    tolerated: Tolerated,
    deleted: bool,
    /// Whether it was there when the scenario began.
    from_the_first: bool,
}

#[derive(Default)]
struct NodeFacts {
    taints: Vec<Taint>,
    pods: BTreeSet<String>,
}

/// The outside view of the cluster.
#[derive(Default)]
pub(super) struct Observations {
    nodes: HashMap<String, NodeFacts>,
    pods: HashMap<String, PodFacts>,
    /// Whether the scenario is over: others may delete what they like then.
    over: bool,
    /// UIDs of pods that the scenario itself deletes.
    by_hand: HashSet<String>,
    evicted: Vec<(String, Duration)>,
    cancelled: usize,
    wrong: Vec<String>,
    unread: Vec<(Timestamp, Observation)>,
}

impl Observations {
    /// Takes a change in.
    pub(super) fn take(&mut self, change: &Change) {
        match change.resource {
            Resource::Pods if change.deleted => self.forget(&change.current),
            Resource::Pods => self.take_pod(&change.current, change.at),
            Resource::Nodes => {
                let name = meta(&change.current, "name");
                if change.deleted {
                    self.forget_node(name);
                } else {
                    self.take_node(name, &change.current, change.at);
                }
            }
            _ => {}
        }
    }

    /// The scenario begins: what is here now is the first fixtures.
    pub(super) fn begin(&mut self) {
        self.unread.clear();
        for pod in self.pods.values_mut() {
            pod.from_the_first = true;
        }
    }

    /// The scenario is over: only deletions by taint eviction matter from now on.
    pub(super) fn end(&mut self) {
        self.over = true;
    }

    /// Number of initial pods that exist and are not terminating.
    pub(super) fn kept(&self) -> usize {
        self.pods.values().filter(|pod| pod.from_the_first && !pod.deleted).count()
    }

    /// The scenario is about to delete this pod itself.
    pub(super) fn expect_by_hand(&mut self, uid: &str) {
        self.by_hand.insert(uid.to_owned());
    }

    /// Observations since the last call, with their times.
    pub(super) fn new_observations(&mut self) -> Vec<(Timestamp, Observation)> {
        std::mem::take(&mut self.unread)
    }

    /// Wrong deletions, each as a sentence.
    pub(super) fn wrong(&self) -> &[String] {
        &self.wrong
    }

    /// UIDs of the pods that had to go and were deleted, in the order in which they were, and how
    /// late each was.
    pub(super) fn evicted(&self) -> &[(String, Duration)] {
        &self.evicted
    }

    /// Counts of everything, `now`.
    pub(super) fn counts(&self, now: Timestamp) -> Counts {
        Counts {
            pods: self.pods.values().filter(|pod| !pod.deleted).count(),
            overdue: self.overdue(now).count(),
            evicted: self.evicted.len(),
            cancelled: self.cancelled,
        }
    }

    /// Names of the pods that are overdue at `now` and not terminating.
    pub(super) fn overdue(&self, now: Timestamp) -> impl Iterator<Item = &str> {
        let tainted = self.nodes.values().filter(|node| !node.taints.is_empty());
        let pods = tainted.flat_map(|node| &node.pods).filter_map(|uid| self.pods.get(uid));
        pods.filter(move |pod| {
            !pod.deleted && matches!(pod.tolerated, Tolerated::Until { due, .. } if due <= now)
        })
        .map(|pod| pod.name.as_str())
    }

    /// Names of the nodes that have NoExecute taints.
    pub(super) fn tainted(&self) -> BTreeSet<&str> {
        let tainted = self.nodes.iter().filter(|(_, node)| !node.taints.is_empty());
        tainted.map(|(name, _)| name.as_str()).collect()
    }

    /// The node as it is now.
    pub(super) fn row(&self, name: &str) -> NodeRow {
        let mut row = NodeRow { name: name.to_owned(), ..NodeRow::default() };
        let Some(node) = self.nodes.get(name) else { return row };
        row.taints = node.taints.iter().map(|taint| taint.key.clone()).collect();
        for pod in node.pods.iter().filter_map(|uid| self.pods.get(uid)) {
            if pod.deleted {
                row.going += 1;
                continue;
            }
            row.pods += 1;
            if let Tolerated::Until { due, .. } = pod.tolerated {
                row.counting += 1;
                row.next = Some(row.next.map_or(due, |next| next.min(due)));
            }
        }
        row
    }

    fn forget(&mut self, pod: &Value) {
        let Some(facts) = self.pods.remove(meta(pod, "uid")) else { return };
        if let Some(node) = self.nodes.get_mut(&facts.node) {
            node.pods.remove(meta(pod, "uid"));
        }
    }

    fn take_pod(&mut self, pod: &Value, at: Timestamp) {
        let uid = meta(pod, "uid");
        let tolerations =
            if is_left_alone(pod) { Toleration::of_everything() } else { Toleration::all_of(pod) };
        let facts = self.pods.entry(uid.to_owned()).or_insert_with(|| PodFacts {
            name: format!("{}/{}", meta(pod, "namespace"), meta(pod, "name")),
            node: String::new(),
            tolerations: tolerations.clone(),
            bound: at,
            tolerated: Tolerated::Always,
            deleted: false,
            from_the_first: false,
        });
        if facts.node.is_empty() {
            let node = pod.get("spec").map_or("", |spec| text(spec, "nodeName"));
            if !node.is_empty() {
                node.clone_into(&mut facts.node);
                facts.bound = at;
                let home = self.nodes.entry(node.to_owned()).or_default();
                home.pods.insert(uid.to_owned());
                facts.tolerated = tolerated(&facts.tolerations, &home.taints, at);
            }
        }
        // Someone has given it a toleration, or it has finished. A deletion is judged by what was
        // before.
        if !facts.deleted && tolerations != facts.tolerations {
            facts.tolerations = tolerations;
            if let Some(home) = self.nodes.get(&facts.node) {
                facts.tolerated = tolerated(&facts.tolerations, &home.taints, facts.bound);
            }
        }
        if !facts.deleted && !meta(pod, "deletionTimestamp").is_empty() {
            facts.deleted = true;
            if !self.over || is_by_taint(pod) {
                self.judge(uid, at);
            }
        }
    }

    /// Holds a deletion against what the pod bore.
    fn judge(&mut self, uid: &str, at: Timestamp) {
        if self.by_hand.remove(uid) {
            return;
        }
        let Some(pod) = self.pods.get(uid) else { return };
        let early = match &pod.tolerated {
            Tolerated::Until { due, key, seconds } => {
                let late = at.duration_since(*due);
                if late >= -CLOCKS_AGREE {
                    let late = Duration::try_from(late).unwrap_or(Duration::ZERO);
                    self.evicted.push((uid.to_owned(), late));
                    let eviction = Eviction {
                        pod: pod.name.clone(),
                        uid: uid.to_owned(),
                        node: pod.node.clone(),
                        key: key.clone(),
                        seconds: *seconds,
                        late,
                    };
                    self.unread.push((at, Observation::Evicted(eviction)));
                    return;
                }
                format!("{:.1} s too early", (-late).as_secs_f64())
            }
            Tolerated::Always => "but tolerates all taints of its node".to_owned(),
        };
        let wrong = format!("{} on {} was deleted, {early}", pod.name, pod.node);
        self.wrong.push(wrong.clone());
        self.unread.push((at, Observation::Wrong(wrong)));
    }

    /// Its pods disappear with it, without an eviction.
    fn forget_node(&mut self, name: &str) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.taints.clear();
        for uid in &node.pods {
            if let Some(pod) = self.pods.get_mut(uid) {
                pod.tolerated = Tolerated::Always;
            }
        }
    }

    fn take_node(&mut self, name: &str, node: &Value, at: Timestamp) {
        let facts = self.nodes.entry(name.to_owned()).or_default();
        let before = std::mem::take(&mut facts.taints);
        facts.taints = taints(node, &before, at);
        if facts.taints == before {
            return;
        }
        let (mut cancelled, mut outlook) = (0, Outlook::default());
        for uid in &facts.pods {
            let Some(pod) = self.pods.get_mut(uid).filter(|pod| !pod.deleted) else { continue };
            let next = tolerated(&pod.tolerations, &facts.taints, pod.bound);
            match &next {
                Tolerated::Always => outlook.staying += 1,
                Tolerated::Until { due, seconds, .. } => {
                    match seconds.filter(|seconds| *seconds > 0 && *due > at) {
                        None => outlook.at_once += 1,
                        Some(seconds) => *outlook.counting.entry(seconds).or_default() += 1,
                    }
                }
            }
            if next == Tolerated::Always && pod.tolerated != Tolerated::Always {
                cancelled += 1;
            }
            pod.tolerated = next;
        }
        self.cancelled += cancelled;
        for taint in &before {
            if facts.taints.iter().any(|other| other.key == taint.key) {
                continue;
            }
            // Of several that go at once the first is reported as having ended the countdowns.
            let (node, key) = (name.to_owned(), taint.key.clone());
            let cancelled = std::mem::take(&mut cancelled);
            self.unread.push((at, Observation::Untainted { node, key, cancelled }));
        }
        let is_new = |taint: &&Taint| {
            !before.iter().any(|old| old.key == taint.key && old.value == taint.value)
        };
        for taint in facts.taints.iter().filter(is_new) {
            let (node, key, outlook) = (name.to_owned(), taint.key.clone(), outlook.clone());
            self.unread.push((at, Observation::Tainted { node, key, outlook }));
        }
    }
}

/// Whether the pod carries the mark that taint eviction leaves before it deletes.
fn is_by_taint(pod: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|c| text(c, "reason") == "DeletionByTaintManager")
}

fn meta<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get("metadata").map_or("", |metadata| text(metadata, field))
}

#[cfg(test)]
#[path = "observations_tests.rs"]
mod tests;
