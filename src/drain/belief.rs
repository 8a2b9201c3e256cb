//! How far a record is believed.
//!
//! The record of a node stands on the node, and the node's kubelet may write there. So a record is
//! believed about its own node only, and only what this controller could have written there: anything
//! else would let one kubelet, or a slip of a person's, hold up the drains of all other nodes.
//!
//! What a kubelet may gain by a forged record is what it may do anyway:
//!
//! - `cordon: ours` has its node uncordoned, as it may do itself (`NodeRestriction` keeps it from
//!   changing taints and some labels, not from changing `spec.unschedulable`).
//! - `phase: released`, or a time that is far off, keeps its node from being drained; so does a
//!   condition that it reports to be good.
//! - `phase: draining` has its own pods evicted. It may delete them itself.
//! - `taint` names a taint to take off. That it must not gain, so only status taints are believed.
//! - `forced` passes by disruption budgets. It counts only where the policy says so itself.
//! - `started` and `scheduled` space the drains of other nodes: see [`Record::plans`] and
//!   [`NodeBudget`](super::NodeBudget).

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::{AtDeadline, Claim, DrainPhase, Policy, Record};
use crate::model::{NodeDrainFacts, later};

/// How far the clock of a record's writer may be ahead.
const CLOCKS_DIFFER: Duration = Duration::from_secs(300);
/// The latest that a drain may be planned: hundreds of nodes that are spaced by hours, in windows of
/// hours.
const FURTHEST_PLAN: Duration = Duration::from_secs(366 * 24 * 3600);
/// A deadline that is no further off is believed whatever the policies in force say: a drain keeps its
/// deadline when its policy is changed, removed, or succeeded by another one.
const FURTHEST_DEADLINE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Conditions that a record may have, of all its policies. A node reports a few dozen.
const MOST_CONDITIONS: usize = 64;
/// Under this prefix are the taints that a policy may put on: they do not keep cluster-autoscaler from
/// making nodes.
pub(crate) const STATUS_TAINTS: &str = "status-taint.cluster-autoscaler.kubernetes.io/";

impl Record {
    /// The record of a node as far as it can be believed, by the policies in force; `None` if there
    /// is none that can be read.
    pub fn believed(
        drain_facts: &NodeDrainFacts,
        policies: &[Policy],
        now: Timestamp,
    ) -> Option<Self> {
        Some(Self::of(drain_facts)?.plausible(policies, now))
    }

    /// What of a record this controller could have written.
    pub(super) fn plausible(mut self, policies: &[Policy], now: Timestamp) -> Self {
        let latest = later(now, CLOCKS_DIFFER);
        let has_been = |at: &Timestamp| *at <= latest;
        let policy = policies.iter().find(|policy| *policy.name == *self.policy());
        self.claims = bounded(std::mem::take(&mut self.claims));
        self.started = self.started.filter(has_been);
        self.ended = self.ended.filter(has_been);
        self.vanished = self.vanished.filter(has_been);
        self.forced &= self.phase == DrainPhase::Draining
            && policy.is_some_and(|policy| policy.at_deadline == AtDeadline::DeleteRest);
        self.overran &= self.failures > 0;
        let is_status_taint = |key: &Arc<str>| {
            let is_configured = |policy: &Policy| policy.status_taint.as_ref() == Some(key);
            key.starts_with(STATUS_TAINTS) || policies.iter().any(is_configured)
        };
        self.taint = self.taint.filter(is_status_taint);
        let notice = policy.map_or(Duration::ZERO, |policy| policy.pace.notice);
        let furthest = later(later(now, FURTHEST_PLAN), notice);
        self.scheduled = self.scheduled.filter(|at| *at <= furthest);
        // A pause that no policy asks for is over.
        let pause = policy.map_or(Duration::ZERO, |policy| policy.retry.most);
        let longest_pause = later(latest, pause);
        self.next = self.next.map(|next| if next <= longest_pause { next } else { now });
        if let (Some(started), Some(deadline)) = (self.started, self.deadline) {
            let longest = policy.map_or(Policy::LONGEST_GRACE, Policy::longest_drain);
            let is_plausible = deadline <= later(latest, longest.max(FURTHEST_DEADLINE));
            self.deadline = Some(if is_plausible { deadline } else { later(started, longest) });
        }
        let is_whole = match self.phase {
            DrainPhase::Scheduled => self.scheduled.is_some(),
            DrainPhase::Draining => self.started.is_some() && self.deadline.is_some(),
            _ => true,
        };
        if !is_whole {
            // It is scheduled again.
            self.phase = DrainPhase::Cordoned;
            (self.started, self.deadline, self.next, self.why) = (None, None, None, None);
        }
        self
    }

    /// Whether the record tells of a drain that others of its policy are spaced from: there is such a
    /// policy, for this node, and the node is cordoned.
    pub fn plans(&self, drain_facts: &NodeDrainFacts, policies: &[Policy]) -> bool {
        let is_its = |policy: &&Policy| *policy.name == *self.policy();
        drain_facts.unschedulable
            && policies
                .iter()
                .find(is_its)
                .is_some_and(|policy| policy.drain && policy.selects(&drain_facts.labels))
    }
}

/// As many claims as a record may have.
pub(super) fn bounded(claims: Vec<Claim>) -> Vec<Claim> {
    let mut left = MOST_CONDITIONS;
    let bounded = claims.into_iter().take(MOST_CONDITIONS).map(|mut claim| {
        claim.conditions.truncate(left);
        left -= claim.conditions.len();
        claim
    });
    bounded.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::Cordon;
    use crate::drain::build::{kept, policy};
    use crate::model::Node;
    use crate::model::build::at;

    const FAR: &str = "9000-01-01T00:00:00Z";

    fn far() -> Timestamp {
        FAR.parse().unwrap()
    }

    fn claim(policy: &str) -> Claim {
        Claim { policy: Arc::from(policy), conditions: vec![Arc::from("Bad=True,0s")] }
    }

    fn ours(phase: DrainPhase) -> Record {
        Record { phase, ..Record::new(Arc::from("1"), Cordon::Ours, vec![claim("p")]) }
    }

    fn draining() -> Record {
        Record {
            scheduled: Some(at(0)),
            started: Some(at(0)),
            deadline: Some(at(600)),
            ..ours(DrainPhase::Draining)
        }
    }

    /// What is believed at noon of a record on a cordoned node, with one policy.
    #[track_caller]
    fn believed(record: &Record) -> Record {
        by(&policy("p", &["Bad"]), record)
    }

    #[track_caller]
    fn by(policy: &Policy, record: &Record) -> Record {
        let node = kept("n1").unschedulable(true).recorded(Some(record));
        let policies = std::slice::from_ref(policy);
        Record::believed(node.drain_facts.as_deref().unwrap(), policies, at(0)).unwrap()
    }

    #[test]
    fn what_this_controller_writes_is_believed_as_it_is() {
        let failed = Record {
            started: Some(at(-900)),
            ended: Some(at(-60)),
            next: Some(at(7200)),
            failures: 7,
            ..ours(DrainPhase::Failed)
        };
        let scheduled = Record { scheduled: Some(at(86_400)), ..ours(DrainPhase::Scheduled) };
        let drained = Record { ended: Some(at(-1)), lingers: true, ..ours(DrainPhase::Drained) };
        let tainted = Record {
            taint: Some(Arc::from("status-taint.cluster-autoscaler.kubernetes.io/bad")),
            vanished: Some(at(-5)),
            ..ours(DrainPhase::Cordoned)
        };
        let released = Record { cordon: Cordon::Lifted, ..ours(DrainPhase::Released) };
        for record in [failed, scheduled, drained, tainted, draining(), released] {
            assert_eq!(believed(&record), record);
        }
    }

    #[test]
    fn a_clock_that_is_a_little_ahead_is_no_reason_for_doubt() {
        let ahead = Record { started: Some(at(200)), deadline: Some(at(800)), ..draining() };
        assert_eq!(believed(&ahead), ahead);
        let ended = Record { ended: Some(at(250)), ..ours(DrainPhase::Drained) };
        assert_eq!(believed(&ended), ended);
    }

    #[test]
    fn a_drain_that_begins_or_began_when_none_could_is_planned_anew() {
        let cordoned = |record: &Record| {
            let believed = believed(record);
            assert_eq!(believed.phase, DrainPhase::Cordoned, "{record:?}");
            let times = [believed.started, believed.deadline, believed.next, believed.scheduled];
            assert!(times.iter().flatten().all(|at| *at < far()), "{believed:?}");
        };
        cordoned(&Record { scheduled: Some(far()), ..ours(DrainPhase::Scheduled) });
        cordoned(&ours(DrainPhase::Scheduled));
        cordoned(&Record { started: Some(far()), ..draining() });
        cordoned(&Record { started: Some(at(301)), ..draining() });
        cordoned(&Record { started: None, ..draining() });
        cordoned(&Record { deadline: None, ..draining() });
    }

    #[test]
    fn no_deadline_is_later_than_a_policy_could_have_set_it() {
        let p = policy("p", &["Bad"]);
        let endless = Record { deadline: Some(far()), ..draining() };
        let four_hours = i64::try_from(p.longest_drain().as_secs()).unwrap();
        assert_eq!(by(&p, &endless).deadline, Some(at(four_hours)));
        let weeks = Duration::from_secs(21 * 86_400);
        let patient = Policy { deadline: Some(weeks), ..p.clone() };
        let long = Record { deadline: Some(at(21 * 86_400)), ..draining() };
        assert_eq!(by(&patient, &long), long, "the policy asks for it");
        assert_eq!(by(&p, &long).deadline, Some(at(four_hours)), "it does not");
        let nobodys = Record { claims: vec![claim("other")], ..endless };
        assert_eq!(by(&p, &nobodys).deadline, Some(at(4 * 3600)), "there is no such policy");
    }

    #[test]
    fn a_deadline_of_a_policy_that_has_changed_or_is_gone_is_kept() {
        let days = Record { deadline: Some(at(3 * 86_400)), ..draining() };
        let p = policy("p", &["Bad"]);
        assert_eq!(by(&p, &days), days);
        let nobodys = Record { claims: vec![claim("other")], ..days };
        assert_eq!(by(&p, &nobodys), nobodys);
    }

    #[test]
    fn budgets_are_passed_by_only_where_the_policy_says_so() {
        let forced = Record { forced: true, ..draining() };
        assert!(!believed(&forced).forced);
        let harsh = Policy { at_deadline: AtDeadline::DeleteRest, ..policy("p", &["Bad"]) };
        assert!(by(&harsh, &forced).forced);
        let drained = Record { phase: DrainPhase::Drained, ..forced };
        assert!(!by(&harsh, &drained).forced, "nothing is deleted any more");
    }

    #[test]
    fn no_taint_is_taken_off_that_no_policy_could_have_put_on() {
        let tainted =
            |key: &str| Record { taint: Some(Arc::from(key)), ..ours(DrainPhase::Cordoned) };
        assert_eq!(believed(&tainted("node-role.kubernetes.io/control-plane")).taint, None);
        let sick = Policy { status_taint: Some(Arc::from("sick")), ..policy("p", &["Bad"]) };
        assert_eq!(by(&sick, &tainted("sick")).taint.as_deref(), Some("sick"));
        assert_eq!(by(&sick, &tainted("other")).taint, None);
    }

    #[test]
    fn a_pause_ends_when_the_longest_one_would_have() {
        let failed = |next| Record { next: Some(next), failures: 1, ..ours(DrainPhase::Failed) };
        assert_eq!(believed(&failed(far())).next, Some(at(0)));
        assert_eq!(believed(&failed(at(7200))).next, Some(at(7200)));
    }

    #[test]
    fn what_has_not_been_is_not_remembered() {
        let later =
            Record { ended: Some(far()), vanished: Some(far()), ..ours(DrainPhase::Drained) };
        let believed = believed(&later);
        assert_eq!((believed.ended, believed.vanished), (None, None));
        assert_eq!(believed.phase, DrainPhase::Drained);
    }

    #[test]
    fn a_record_has_no_more_conditions_than_one_of_ours() {
        let many = (0..300).map(|n| Arc::from(format!("C{n}=True,0s"))).collect();
        let claims = vec![claim("a"), Claim { policy: Arc::from("p"), conditions: many }];
        let record = Record { claims: claims.clone(), ..ours(DrainPhase::Cordoned) };
        let count = |claims: &[Claim]| claims.iter().map(|c| c.conditions.len()).sum::<usize>();
        assert_eq!(count(&believed(&record).claims), 64);
        assert_eq!(bounded(bounded(claims.clone())), bounded(claims), "and no fewer each time");
    }

    #[test]
    fn others_are_spaced_from_a_drain_only_where_it_can_be_one() {
        let plans = |node: Node, record: &Record, policy: Policy| {
            record.plans(node.drain_facts.as_deref().unwrap(), &[policy])
        };
        let (p, cordoned) = (policy("p", &["Bad"]), kept("n1").unschedulable(true));
        assert!(plans(cordoned.clone(), &draining(), p.clone()));
        assert!(!plans(kept("n1"), &draining(), p.clone()), "the node is in use");
        let other = Record { claims: vec![claim("other")], ..draining() };
        assert!(!plans(cordoned.clone(), &other, p.clone()), "there is no such policy");
        let nobodys = Record { claims: Vec::new(), ..draining() };
        assert!(!plans(cordoned.clone(), &nobodys, p.clone()));
        let mut selective = p.clone();
        selective.nodes.labels = vec![(Arc::from("gpu"), Arc::from("yes"))];
        assert!(!plans(cordoned.clone(), &draining(), selective), "it is not for this node");
        assert!(!plans(cordoned, &draining(), Policy { drain: false, ..p }));
    }
}
