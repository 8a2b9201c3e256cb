//! Cordons a bad node and schedules its drain.

use std::time::Duration;

use jiff::Timestamp;

use super::look::in_one_line;
use super::{DrainReconciler, StepResult, UNTIL_ROOM, is_unschedulable};
use crate::cluster::{RequestError, StoredNode};
use crate::drain::{
    Change, Claim, Cordon, DrainPhase, Policy, Record, Report, Undrainable, without_leftover,
};
use crate::model::{ConditionStatus, NodeName, later, second_from};

impl DrainReconciler {
    pub(super) async fn begin(
        &self,
        stored: &StoredNode,
        policy: &Policy,
        claims: Vec<Claim>,
        failures: u32,
    ) -> Result<StepResult, RequestError> {
        let node = &stored.node;
        if !self.is_granted(node, policy) {
            return Ok(StepResult::RetryAfter(UNTIL_ROOM));
        }
        let is_foreign = is_unschedulable(node);
        let cordon = if is_foreign { Cordon::Foreign } else { Cordon::Ours };
        let mut record = Record::new(self.session(), cordon, claims);
        record.failures = failures;
        let mut scheduled = None;
        if policy.drain && node.ready.status != ConditionStatus::Unknown {
            let vetoes = self.vetoes(node, policy).await?;
            if vetoes.is_empty() {
                scheduled = Some(self.slot(&node.name, policy));
            } else {
                let why = in_one_line(&vetoes);
                let pause = self.blocked(node, &why, &vetoes);
                if !is_foreign && policy.undrainable == Undrainable::Report {
                    {
                        let mut node_budget = self.drains.node_budget.lock();
                        node_budget.give_back(&node.name);
                        node_budget.withdraw(&node.name);
                    }
                    // Of a cordon that was taken back.
                    if let Some(change) = node.drain_facts.as_deref().and_then(without_leftover) {
                        self.write(stored, change).await?;
                    }
                    return Ok(StepResult::RetryAfter(pause));
                }
                record.next = Some(second_from(self.after(pause)));
                record.why = Some(why);
            }
        }
        if let Some(at) = scheduled {
            record.phase = DrainPhase::Scheduled;
            record.scheduled = Some(at);
        }
        self.drains.reporter.wanted_by(node, &record.claims);
        let report = if is_foreign { Report::None } else { Report::Cordoned };
        if !is_foreign {
            self.drains.reporter.cordoning(node);
        }
        let change = Change {
            record: Some(record),
            unschedulable: (!is_foreign).then_some(true),
            retry_taken: false,
            report,
        };
        let result = self.write(stored, change).await?;
        if let Some(at) = scheduled {
            self.drains.reporter.tell(node, &Report::Scheduled(at));
        }
        Ok(result)
    }

    pub(super) async fn schedule(
        &self,
        stored: &StoredNode,
        policy: &Policy,
        record: Record,
    ) -> Result<StepResult, RequestError> {
        let node = &stored.node;
        let vetoes = self.vetoes(node, policy).await?;
        if !vetoes.is_empty() {
            return self.hold(stored, policy, record, &vetoes).await;
        }
        let at = self.slot(&node.name, policy);
        let record = Record {
            phase: DrainPhase::Scheduled,
            scheduled: Some(at),
            next: None,
            why: None,
            ..record
        };
        self.write(stored, Change { report: Report::Scheduled(at), ..Change::note(record) }).await
    }

    fn slot(&self, name: &NodeName, policy: &Policy) -> Timestamp {
        let slot = self.drains.node_budget.lock().slot(name, policy, self.facts.clock.now());
        second_from(slot)
    }

    pub(super) fn after(&self, pause: Duration) -> Timestamp {
        later(self.facts.clock.now(), pause)
    }
}
