//! Writes a node, with what belongs to its record.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Conductor, Went};
use crate::cluster::{RequestError, StoredNode, UpkeepPatch};
#[cfg(test)]
use crate::controller::flaw::Flaw;
use crate::drain::{Change, Cordon, Record};
use crate::model::second_of;

impl Conductor {
    pub(super) async fn write(
        &self,
        stored: &StoredNode,
        mut change: Change,
    ) -> Result<Went, RequestError> {
        #[cfg(test)]
        if self.shared.flaw == Some(Flaw::UncordonsForeign) && change.record.is_none() {
            change.unschedulable = Some(false);
        }
        let taints = self.taints(stored, &mut change);
        let patch = UpkeepPatch {
            record: change.record.as_ref().map(Record::format),
            draino_conditions: stored
                .node
                .upkeep
                .as_deref()
                .and_then(|upkeep| change.draino_conditions(upkeep)),
            unschedulable: change.unschedulable,
            retry_taken: change.retry_taken,
            taints,
        };
        let written = self.api.patch_upkeep(stored, &patch, &self.drains.watched).await?;
        self.drains.reporter.tell(&stored.node, &change.news);
        Ok(Went::On(written))
    }

    /// All taints that the node is to have, if those change: ours comes and goes with our cordon.
    pub(super) fn taints(&self, stored: &StoredNode, change: &mut Change) -> Option<Vec<Value>> {
        let record = stored.node.upkeep.as_deref().and_then(Record::of);
        let had = record.and_then(|record| record.taint);
        let wanted = match &mut change.record {
            Some(record) if record.cordon == Cordon::Ours => {
                if change.unschedulable == Some(true) {
                    let policy = self.drains.policy(record.policy());
                    record.taint = policy.and_then(|policy| policy.status_taint.clone());
                }
                record.taint.clone()
            }
            Some(record) => {
                record.taint = None;
                None
            }
            None => None,
        };
        // A new cordon puts it on in any case: somebody may have taken it off meanwhile.
        let puts_on = wanted.is_some() && change.unschedulable == Some(true);
        if wanted == had && !puts_on {
            return None;
        }
        let is_ours = |taint: &Value, key: &Option<Arc<str>>| {
            taint["effect"] == "NoSchedule" && key.as_deref().is_some_and(|key| taint["key"] == key)
        };
        let others = |taint: &&Value| !is_ours(taint, &had) && !is_ours(taint, &wanted);
        let mut taints: Vec<Value> = stored.taints.iter().filter(others).cloned().collect();
        if let Some(key) = &wanted {
            let now = second_of(self.shared.clock.now());
            taints.push(json!({"key": &**key, "effect": "NoSchedule", "timeAdded": now}));
        }
        Some(taints)
    }
}
