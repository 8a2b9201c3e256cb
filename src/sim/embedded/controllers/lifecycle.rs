//! Node lifecycle: a node without heartbeats becomes Unknown, and conditions become taints.
//!
//! NoSchedule taints follow the conditions at once. NoExecute taints, which remove pods, are added at a
//! limited rate: more slowly if many nodes are unhealthy, and not at all if every node is, because then
//! the nodes are probably not the cause. They are swapped and removed at once.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::Settings;
use super::feed::{Feed, News};
use super::taints::{has, is, taint, taints};
use crate::sim::embedded::error::ApiError;
use crate::sim::embedded::object::{
    at, condition, is_true, meta, moment, set, set_condition, text, time,
};
use crate::sim::embedded::resource::Resource;
use crate::sim::embedded::selector::Selector;
use crate::sim::embedded::store::Store;
use crate::sim::embedded::write::Part;

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Conditions that, when True, keep new pods away.
const PRESSURES: [(&str, &str); 4] = [
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "node.kubernetes.io/network-unavailable"),
];

const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// From this share of nodes that are out, the rate is reduced.
const MANY: f64 = 0.55;

/// In a cluster of up to this many nodes the reduced rate is none.
const SMALL: usize = 50;

/// Taints that wait for their turn are not looked at more often than this.
const SHORTEST: Duration = Duration::from_millis(100);

/// The reduced rate, in nodes per second.
const REDUCED_RATE: f64 = 0.01;

/// When a node was last heard of, by our own clock, and what was heard.
struct Heard {
    at: Timestamp,
    lease: String,
    heartbeat: String,
}

/// The controller.
pub(super) struct Lifecycle {
    store: Store,
    settings: Settings,
    nodes: Feed,
    heard: HashMap<String, Heard>,
    looked_at: Option<Timestamp>,
    /// Nodes that are out, and whose pods are marked for it.
    out: BTreeSet<String>,
    /// Nodes that wait for a NoExecute taint.
    waiting: BTreeSet<String>,
    /// How many may get one now; grows with time, up to one.
    tokens: f64,
    refilled_at: Option<Timestamp>,
}

impl Lifecycle {
    pub(super) fn new(store: Store, settings: Settings) -> Self {
        Self {
            store,
            settings,
            nodes: Feed::new(Resource::Nodes),
            heard: HashMap::new(),
            looked_at: None,
            out: BTreeSet::new(),
            waiting: BTreeSet::new(),
            tokens: 1.0,
            refilled_at: None,
        }
    }

    /// Looks at what has changed and, when it is time, at all signs of life. Says when to look
    /// again at the latest.
    pub(super) fn step(&mut self) -> Duration {
        let now = self.store.clock().now();
        match self.nodes.news(&self.store) {
            News::All(nodes) => {
                for node in nodes {
                    self.reconcile(&node, now);
                }
            }
            News::Some(news) => {
                for (node, gone) in news {
                    if gone {
                        self.heard.remove(meta(&node, "name"));
                        self.waiting.remove(meta(&node, "name"));
                        self.out.remove(meta(&node, "name"));
                    } else if let Ok(newest) =
                        self.store.get(Resource::Nodes, "", meta(&node, "name"))
                    {
                        self.reconcile(&newest, now);
                    }
                }
            }
        }
        let is_time = self
            .looked_at
            .is_none_or(|at| now.duration_since(at) >= signed(self.settings.monitor_period));
        if is_time {
            self.forgive(now);
            self.looked_at = Some(now);
            self.listen(now);
        }
        let period = self.settings.monitor_period;
        match self.put_on(now) {
            Some(rate) if rate > 0.0 => {
                let missing = (1.0 - self.tokens).max(0.0) / rate;
                let missing = Duration::try_from_secs_f64(missing).unwrap_or(period);
                missing.max(SHORTEST).min(period)
            }
            _ => period,
        }
    }

    /// If the last look is too long ago, this whole process stood still, and with it the kubelets
    /// that live in it: no node was silent for that time.
    fn forgive(&mut self, now: Timestamp) {
        let usual = signed(self.settings.monitor_period * 3);
        let still = self.looked_at.map_or(usual, |at| now.duration_since(at)) - usual;
        if still.is_positive() {
            for heard in self.heard.values_mut() {
                heard.at = heard.at.saturating_add(still).unwrap_or(now).min(now);
            }
        }
    }

    /// Looks for signs of life of every node.
    fn listen(&mut self, now: Timestamp) {
        for node in self.store.select(Resource::Nodes, &Selector::default()) {
            let name = meta(&node, "name");
            let lease = self.store.get(Resource::Leases, "kube-node-lease", name);
            let lease =
                lease.map_or(String::new(), |l| text(&l, &["spec", "renewTime"]).to_owned());
            let ready = condition(&node, "Ready");
            let heartbeat = ready.map_or("", |c| text(c, &["lastHeartbeatTime"])).to_owned();
            let created = moment(&node, &["metadata", "creationTimestamp"]).unwrap_or(now);
            let grace = if ready.is_none() && lease.is_empty() {
                self.settings.startup_grace
            } else {
                self.settings.monitor_grace
            };
            let is_news = self
                .heard
                .get(name)
                .is_none_or(|heard| heard.lease != lease || heard.heartbeat != heartbeat);
            if is_news {
                let is_first = !self.heard.contains_key(name);
                let at =
                    if is_first && ready.is_none() && lease.is_empty() { created } else { now };
                let heard = Heard { at, lease, heartbeat };
                self.heard.insert(name.to_owned(), heard);
            }
            let silent_for = now.duration_since(self.heard[name].at);
            if silent_for > signed(grace) {
                self.lose(name, now);
            }
        }
    }

    /// Marks the state of a node that is not heard of as unknown.
    fn lose(&self, name: &str, now: Timestamp) {
        let unknown = |node: &Value| {
            let mut next = node.clone();
            for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
                let old = condition(node, kind);
                if old.is_some_and(|c| text(c, &["status"]) == "Unknown") {
                    continue;
                }
                let (reason, message) = match old {
                    Some(_) => ("NodeStatusUnknown", "Kubelet stopped posting node status."),
                    None => ("NodeStatusNeverUpdated", "Kubelet never posted node status."),
                };
                let created = at(node, &["metadata", "creationTimestamp"]);
                let heartbeat = old.map_or(created, |c| at(c, &["lastHeartbeatTime"]));
                let condition = json!({
                    "type": kind,
                    "status": "Unknown",
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": heartbeat,
                    "lastTransitionTime": time(now),
                });
                set_condition(&mut next, condition);
            }
            Ok(next)
        };
        // It may be gone by now; then there is nothing to mark.
        let _ = self.store.modify(Resource::Nodes, "", name, Part::Status, false, unknown);
    }

    /// Brings the node's taints in line with its conditions, but for NoExecute taints that are
    /// still to be put on: those wait for their turn.
    fn reconcile(&mut self, node: &Value, now: Timestamp) {
        let name = meta(node, "name");
        let outage = outage_key(node);
        match outage {
            None => drop(self.waiting.remove(name)),
            Some(_) if has_outage_taint(node) => drop(self.waiting.remove(name)),
            Some(_) => drop(self.waiting.insert(name.to_owned())),
        }
        let swapped = |node: &Value| Ok(reconciled(node, now));
        // It may be gone by now; then there is nothing to taint.
        let _ = self.store.modify(Resource::Nodes, "", name, Part::Whole, false, swapped);
        if outage.is_none() {
            self.out.remove(name);
        } else if self.out.insert(name.to_owned()) {
            self.mark_pods(name, now);
        }
    }

    /// Marks the pods of a node that is not ready as not ready.
    fn mark_pods(&self, node: &str, now: Timestamp) {
        let fields = format!("spec.nodeName={node}");
        let Ok(selector) = Selector::parse(Resource::Pods, None, "", &fields) else {
            return;
        };
        for pod in self.store.select(Resource::Pods, &selector) {
            if !is_true(&pod, "Ready") {
                continue;
            }
            let unready = |pod: &Value| {
                let mut next = pod.clone();
                if let Some(old) = condition(pod, "Ready") {
                    let mut ready = old.clone();
                    set(&mut ready, &["status"], "False");
                    set(&mut ready, &["lastTransitionTime"], time(now));
                    set_condition(&mut next, ready);
                }
                Ok(next)
            };
            let (namespace, name) = (meta(&pod, "namespace"), meta(&pod, "name"));
            // It may be gone by now.
            let _ =
                self.store.modify(Resource::Pods, namespace, name, Part::Status, false, unready);
        }
    }

    /// Puts NoExecute taints on, as many as the rate allows. Gives the rate, if nodes wait for it.
    fn put_on(&mut self, now: Timestamp) -> Option<f64> {
        if self.waiting.is_empty() {
            return None;
        }
        let nodes = self.store.select(Resource::Nodes, &Selector::default());
        let out = nodes.iter().filter(|node| outage_key(node).is_some()).count();
        let Some(rate) = self.rate(nodes.len(), out) else {
            self.take_all_off(&nodes);
            return None;
        };
        let since = self.refilled_at.replace(now).unwrap_or(now);
        let gained = now.duration_since(since).as_secs_f64().max(0.0) * rate;
        self.tokens = (self.tokens + gained).min(rate.max(1.0));
        while self.tokens >= 1.0
            && let Some(name) = self.waiting.pop_first()
        {
            self.tokens -= 1.0;
            let tainted = |node: &Value| -> Result<Value, ApiError> {
                let mut next = node.clone();
                if let Some(key) = outage_key(node).filter(|_| !has_outage_taint(node)) {
                    let mut all = taints(node);
                    all.push(taint(key, "NoExecute", &time(now)));
                    set(&mut next, &["spec", "taints"], all);
                }
                Ok(next)
            };
            // It may be gone by now.
            let _ = self.store.modify(Resource::Nodes, "", &name, Part::Whole, false, tainted);
        }
        (!self.waiting.is_empty()).then_some(rate)
    }

    /// Nodes per second that may be tainted; `None` if every node is out.
    fn rate(&self, nodes: usize, out: usize) -> Option<f64> {
        #[allow(clippy::cast_precision_loss)]
        let share = out as f64 / nodes.max(1) as f64;
        if out == nodes {
            None
        } else if share < MANY || out <= 2 {
            Some(self.settings.taint_rate)
        } else if nodes > SMALL {
            Some(REDUCED_RATE.min(self.settings.taint_rate))
        } else {
            Some(0.0)
        }
    }

    /// Takes the NoExecute taints of an outage off every node: all are out, so we may be.
    fn take_all_off(&self, nodes: &[std::sync::Arc<Value>]) {
        for node in nodes.iter().filter(|node| has_outage_taint(node)) {
            let without = |node: &Value| Ok(without_outage_taints(node));
            let name = meta(node, "name");
            // It may be gone by now.
            let _ = self.store.modify(Resource::Nodes, "", name, Part::Whole, false, without);
        }
    }
}

/// Key of the taint that stands for the node's outage, if it is out.
fn outage_key(node: &Value) -> Option<&'static str> {
    match condition(node, "Ready").map(|c| text(c, &["status"])) {
        Some("False") => Some(NOT_READY),
        Some("Unknown") => Some(UNREACHABLE),
        _ => None,
    }
}

fn has_outage_taint(node: &Value) -> bool {
    has(node, NOT_READY, "NoExecute") || has(node, UNREACHABLE, "NoExecute")
}

fn without_outage_taints(node: &Value) -> Value {
    let mut all = taints(node);
    all.retain(|t| !is(t, NOT_READY, "NoExecute") && !is(t, UNREACHABLE, "NoExecute"));
    with_taints(node, all)
}

fn with_taints(node: &Value, taints: Vec<Value>) -> Value {
    let mut next = node.clone();
    if taints.is_empty() {
        crate::sim::embedded::object::remove(&mut next, &["spec"], "taints");
    } else {
        set(&mut next, &["spec", "taints"], taints);
    }
    next
}

/// The node with the NoSchedule taints that its conditions call for, and its NoExecute taint
/// swapped or taken off if it is not the right one any more.
fn reconciled(node: &Value, now: Timestamp) -> Value {
    let now = time(now);
    let mut wanted: Vec<&str> = Vec::new();
    wanted.extend(outage_key(node));
    if condition(node, "Ready").is_none() && has(node, NOT_READY, "NoSchedule") {
        // It has not reported yet: the API server put this on.
        wanted.push(NOT_READY);
    }
    wanted.extend(PRESSURES.iter().filter(|(kind, _)| is_true(node, kind)).map(|(_, key)| key));
    if at(node, &["spec", "unschedulable"]) == &Value::Bool(true) {
        wanted.push(UNSCHEDULABLE);
    }
    let ours = PRESSURES.iter().map(|(_, key)| *key).chain([NOT_READY, UNREACHABLE, UNSCHEDULABLE]);
    let mut all = taints(node);
    for key in ours {
        let is_there = all.iter().any(|t| is(t, key, "NoSchedule"));
        match (is_there, wanted.contains(&key)) {
            (true, false) => all.retain(|t| !is(t, key, "NoSchedule")),
            (false, true) => all.push(taint(key, "NoSchedule", &now)),
            _ => {}
        }
    }
    let right = outage_key(node);
    for (key, other) in [(NOT_READY, UNREACHABLE), (UNREACHABLE, NOT_READY)] {
        if right != Some(key) && all.iter().any(|t| is(t, key, "NoExecute")) {
            all.retain(|t| !is(t, key, "NoExecute"));
            if right == Some(other) && !all.iter().any(|t| is(t, other, "NoExecute")) {
                all.push(taint(other, "NoExecute", &now));
            }
        }
    }
    if all == taints(node) {
        return node.clone();
    }
    with_taints(node, all)
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}
