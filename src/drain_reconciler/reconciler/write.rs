//! Writes a node together with its record.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::unstored::Annotations;
use super::{DrainReconciler, StepResult};
use crate::cluster::{Answer, NodeDrainPatch, RequestError, StoredNode};
use crate::drain::{Change, Cordon, Record, Report};
use crate::model::{ConditionStatus, Node, NodeDrainFacts, second_of};

impl DrainReconciler {
    pub(super) async fn write(
        &self,
        stored: &StoredNode,
        mut change: Change,
    ) -> Result<StepResult, RequestError> {
        let taints = self.taints(stored, &mut change);
        let patch = NodeDrainPatch {
            record: Some(change.record.as_ref().map(Record::format)),
            draino_conditions: self
                .known(stored)
                .and_then(|known| change.draino_conditions(&known)),
            unschedulable: change.unschedulable,
            retry_taken: change.retry_taken || self.is_retry_taken(stored),
            taints,
        };
        if change.report == Report::Uncordoned && change.unschedulable == Some(false) {
            self.drains.reporter.uncordoning(&stored.node);
        }
        let written = self.store(stored, &patch).await?;
        self.drains.reporter.tell(&stored.node, &change.report);
        Ok(StepResult::Continue(written))
    }

    /// Writes the node. Its annotations tell others, and a later process, what is done about it: where
    /// they are refused, the rest is written without them, and they are kept in memory.
    async fn store(
        &self,
        stored: &StoredNode,
        patch: &NodeDrainPatch,
    ) -> Result<StoredNode, RequestError> {
        let (now, unstored) = (self.facts.clock.now(), &self.drains.unstored);
        let (node, name) = (&stored.node, &stored.node.name);
        let wanted = wanted(node, patch);
        let cause = if unstored.again(name).is_some_and(|again| again > now) {
            None
        } else {
            match self.patch_node(stored, patch).await {
                Ok(written) => {
                    let is_whole =
                        |drain_facts: &NodeDrainFacts| patch.annotations_are_on(drain_facts);
                    if written.node.drain_facts.as_deref().is_none_or(is_whole) {
                        unstored.annotated(name);
                    } else {
                        let attempts = unstored.keep(&written.node, wanted, true, now);
                        let cause = "it was removed or changed at once, perhaps by a webhook";
                        self.drains.reporter.unstored(node, "record", cause, attempts);
                    }
                    return Ok(written);
                }
                Err(RequestError::Status(answer)) if may_concern_annotations(&answer, patch) => {
                    Some(RequestError::Status(answer).to_string())
                }
                Err(error) => return Err(error),
            }
        };
        let rest = patch.without_annotations();
        let written = if rest == NodeDrainPatch::default() {
            stored.clone()
        } else {
            self.patch_node(stored, &rest).await?
        };
        if written
            .node
            .drain_facts
            .as_deref()
            .is_none_or(|drain_facts| patch.annotations_are_on(drain_facts))
        {
            unstored.annotated(name);
            return Ok(written);
        }
        let attempts = unstored.keep(node, wanted, cause.is_some(), now);
        if let Some(cause) = cause {
            self.drains.reporter.unstored(node, "record", &cause, attempts);
        }
        Ok(written)
    }

    /// Sets the condition `DrainScheduled`. It tells others; nothing waits for it where it is refused.
    pub(super) async fn mark(
        &self,
        stored: &StoredNode,
        scheduled: bool,
        message: &str,
    ) -> Result<StepResult, RequestError> {
        let (now, unstored) = (self.facts.clock.now(), &self.drains.unstored);
        let (written, cause) = match self.mark_scheduled(stored, scheduled, message).await {
            Ok(written) if is_marked(&written.node, scheduled) => {
                unstored.marked(&stored.node.name);
                return Ok(StepResult::Continue(written));
            }
            Ok(written) => (written, "it was removed at once, perhaps by a webhook".to_owned()),
            Err(RequestError::Status(answer)) if is_refused_for_good(&answer) => {
                (stored.clone(), RequestError::Status(answer).to_string())
            }
            Err(error) => return Err(error),
        };
        let attempts = unstored.keep_mark(&stored.node, scheduled, now);
        self.drains.reporter.unstored(&stored.node, "mark", &cause, attempts);
        Ok(StepResult::Continue(written))
    }

    /// Whether a request for one more try was taken, and could not be removed.
    fn is_retry_taken(&self, stored: &StoredNode) -> bool {
        let is_asked = |node: &Node| {
            node.drain_facts.as_deref().is_some_and(|drain_facts| drain_facts.retry_asked)
        };
        let recalled = self.drains.unstored.recall(&stored.node, self.facts.clock.now());
        is_asked(&stored.node) && recalled.is_some_and(|recalled| !is_asked(&recalled))
    }

    /// The node's drain facts as they are stored, but with the record that it should have.
    fn known(&self, stored: &StoredNode) -> Option<NodeDrainFacts> {
        let mut known = stored.node.drain_facts.as_deref()?.clone();
        let recalled = self.drains.unstored.recall(&stored.node, self.facts.clock.now());
        if let Some(recalled) = recalled.as_ref().and_then(|node| node.drain_facts.as_deref()) {
            known.record.clone_from(&recalled.record);
        }
        Some(known)
    }

    /// All taints that the node is to have, if those change: ours comes and goes with our cordon.
    pub(super) fn taints(&self, stored: &StoredNode, change: &mut Change) -> Option<Vec<Value>> {
        let now = self.facts.clock.now();
        let known = self.known(stored);
        let rules = self.drains.rules();
        let record = known.and_then(|known| Record::believed(&known, &rules.policies, now));
        let had = record.and_then(|record| record.taint);
        let wanted = match &mut change.record {
            Some(record) if record.cordon == Cordon::Ours => {
                if change.unschedulable == Some(true) {
                    let policy = rules.policy(record.policy());
                    record.taint = policy.and_then(|policy| policy.status_taint.clone());
                    record.taint.clone()
                } else {
                    // What a record says that is not believed is not put on either.
                    had.clone()
                }
            }
            Some(record) => {
                record.taint = None;
                None
            }
            None => None,
        };
        // A new cordon puts it on in any case: someone may have taken it off meanwhile.
        let Some(stored) = &stored.taints else {
            // They could not be written back as they are.
            if let Some(record) = &mut change.record {
                record.taint = had;
            }
            return None;
        };
        let puts_on = wanted.is_some() && change.unschedulable == Some(true);
        if wanted == had && !puts_on {
            return None;
        }
        let is_ours = |taint: &Value, key: &Option<Arc<str>>| {
            taint["effect"] == "NoSchedule" && key.as_deref().is_some_and(|key| taint["key"] == key)
        };
        let others = |taint: &&Value| !is_ours(taint, &had) && !is_ours(taint, &wanted);
        let mut taints: Vec<Value> = stored.iter().filter(others).cloned().collect();
        if let Some(key) = &wanted {
            let now = second_of(now);
            taints.push(json!({"key": &**key, "effect": "NoSchedule", "timeAdded": now}));
        }
        Some(taints)
    }
}

/// The annotations of a node as they are to be after a patch.
fn wanted(node: &Node, patch: &NodeDrainPatch) -> Annotations {
    let stored = node.drain_facts.as_deref().cloned().unwrap_or_default();
    let text = |text: &Option<String>| text.as_deref().map(Arc::from);
    Annotations {
        record: patch.record.as_ref().map_or(stored.record, text),
        draino_conditions: patch.draino_conditions.as_ref().map_or(stored.draino_conditions, text),
        retry_taken: patch.retry_taken,
    }
}

/// Whether a refusal may be for the annotations only. The rest is then tried without them, which
/// tells; without a rest only what says so itself counts. A right that is missing is never for them:
/// who gives rights does not know what is written. It may be there a moment later, as when the API
/// server has read its roles, and a cordon without a record would be nobody's after a restart.
fn may_concern_annotations(answer: &Answer, patch: &NodeDrainPatch) -> bool {
    let has_rest = patch.without_annotations() != NodeDrainPatch::default();
    is_refused_for_good(answer)
        && !answer.is_missing_right()
        && (has_rest || answer.code != 403 || is_by_policy(answer))
}

/// Whether the server, a policy or a webhook has judged a request, and would judge it so again.
fn is_refused_for_good(answer: &Answer) -> bool {
    matches!(answer.code, 400 | 403 | 422)
        || answer.is_too_large()
        || answer.by_webhook().is_some() && answer.message.contains("denied the request")
}

/// Whether admission refused, and not authorization.
fn is_by_policy(answer: &Answer) -> bool {
    answer.by_webhook().is_some() || answer.message.contains("denied request")
}

fn is_marked(node: &Node, scheduled: bool) -> bool {
    let mark = |drain_facts: &NodeDrainFacts| {
        drain_facts
            .condition(NodeDrainFacts::SCHEDULED_CONDITION)
            .is_some_and(|condition| condition.status == ConditionStatus::True)
    };
    node.drain_facts.as_deref().is_none_or(|drain_facts| mark(drain_facts) == scheduled)
}
