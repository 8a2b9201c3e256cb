//! Reports taints that a rule ignores: once for each taint of a node, by an event and the log, and in metrics.

use std::sync::Arc;

use ahash::AHashMap;
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGauge, Registry};
use tracing::info;

use super::newest_facts::verdict;
use crate::cluster::NodeFacts;
use crate::config::Compat;
use crate::informer::Facts;
use crate::model::{Kept, Node, NodeName, Taint, Uid, Verdict};
use crate::observe::{NodeEvent, Reason, Recorder};
use crate::taint::rules::rule_of;
use crate::taint::{TaintMethod, TaintRule, no_execute};

/// The ignored taints that were reported in this term. Those that are gone or no longer ignored are
/// forgotten, so that they are reported when they come back.
#[derive(Default)]
pub(super) struct IgnoredTaints(Mutex<AHashMap<NodeName, Reported>>);

/// What was reported of a node.
struct Reported {
    uid: Uid,
    taints: Vec<(Taint, Arc<str>)>,
}

impl IgnoredTaints {
    /// Reports the ignored taints of a node that were not reported yet.
    pub(super) fn look_at(&self, name: &NodeName, known: &NodeFacts, facts: &Facts, to: &Recorder) {
        let rules = facts.taint_rules();
        let ignored = known.node.as_deref().map_or_else(Vec::new, |node| ignored(node, &rules));
        let Some(node) = known.node.as_deref().filter(|_| !ignored.is_empty()) else {
            self.0.lock().remove(name);
            return;
        };
        let reported = Reported { uid: node.uid, taints: ignored.clone() };
        let before = self.0.lock().insert(name.clone(), reported);
        let before = before.filter(|before| before.uid == node.uid);
        let before = before.map_or_else(Vec::new, |before| before.taints);
        for (taint, rule) in ignored.iter().filter(|taint| !before.contains(taint)) {
            let pods = staying(known, facts);
            info!(node = %name, %taint, rule = &**rule, pods, "a rule ignores the taint");
            let message = format!(
                "Evicting no pods for taint {taint}: rule {rule} ignores it; pods that stay: {pods}"
            );
            let (uid, reason) = (node.uid, Reason::TaintIgnored);
            to.about_taint(&NodeEvent { name, uid, reason, message: &message });
        }
    }

    /// Forgets everything, at the end of a term.
    pub(super) fn forget(&self) {
        self.0.lock().clear();
    }
}

/// The taints of a node that a rule ignores, each with the rule.
fn ignored(node: &Node, rules: &[TaintRule]) -> Vec<(Taint, Arc<str>)> {
    let by_rule = |taint: &Taint| {
        let rule = rule_of(rules, taint)?;
        (rule.method == TaintMethod::Ignore).then(|| (taint.clone(), Arc::clone(&rule.name)))
    };
    no_execute(&node.taints).filter_map(by_rule).collect()
}

/// How many pods of a node stay because a rule ignores its taints.
fn staying(known: &NodeFacts, facts: &Facts) -> usize {
    let node = known.node.as_deref();
    let stays = |verdict: Verdict| verdict == Verdict::Keep(Kept::Ignored);
    let pods = known.pods.iter();
    pods.filter(|pod| stays(verdict(facts, pod, node, &known.anchors, None))).count()
}

/// Counts ignored taints at each scrape.
struct Gauges {
    facts: Arc<Facts>,
    taints: IntGauge,
    pods: IntGauge,
}

/// Registers the metrics of ignored taints.
pub(super) fn register(registry: &Registry, facts: &Arc<Facts>) -> prometheus::Result<()> {
    registry.register(Box::new(Gauges {
        facts: Arc::clone(facts),
        taints: IntGauge::new(
            "ostrakon_ignored_taints",
            "NoExecute taints of nodes that a rule ignores.",
        )?,
        pods: IntGauge::new(
            "ostrakon_ignored_taint_pods",
            "Pods that stay only because a rule ignores taints of their node.",
        )?,
    }))
}

impl Collector for Gauges {
    fn desc(&self) -> Vec<&Desc> {
        [self.taints.desc(), self.pods.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let rules = self.facts.taint_rules();
        let (mut taints, mut pods) = (0, 0);
        let ignores = |rule: &TaintRule| rule.method == TaintMethod::Ignore;
        if self.facts.compat == Compat::None && rules.iter().any(ignores) {
            let mut names = Vec::new();
            self.facts.view.each_node(|node| {
                let here = ignored(node, &rules).len();
                if here > 0 {
                    taints += here;
                    names.push(node.name.clone());
                }
            });
            let known = names.iter().filter_map(|name| self.facts.view.node(name));
            pods = known.map(|known| staying(&known, &self.facts)).sum();
        }
        self.taints.set(i64::try_from(taints).unwrap_or(i64::MAX));
        self.pods.set(i64::try_from(pods).unwrap_or(i64::MAX));
        [self.taints.collect(), self.pods.collect()].concat()
    }
}
