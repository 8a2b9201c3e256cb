//! Decides what to do about a node now: cordon, drain, uncordon or nothing.
//!
//! The decision depends only on the stored node, including its record, not on earlier actions. So it does
//! not matter who asks, how often, or after how many restarts. Each step is stored, and the next
//! decision starts from there.

use std::sync::Arc;

use jiff::Timestamp;

use super::belief::bounded;
use super::{Change, Claim, Cordon, DrainPhase, Orphans, Policy, Record, Report, brief};
use crate::model::{Autoscaler, ConditionStatus, Node, NodeDrainFacts, later, second_of};

mod standing;

use standing::{Badness, Clearing};

/// draino lists the conditions that it knows. What is longer is not its annotation.
const LONGEST_OF_DRAINO: usize = 16 * 1024;

/// What is to be done about a node.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant)] // Made and taken apart at once.
pub enum Step {
    /// Nothing, until the node changes.
    Rest,
    /// Nothing before this moment.
    Wait(Timestamp),
    /// This, now.
    Action(Action),
}

/// Something to do now.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Cordon the node, if the caps allow it and it can be drained, and plan its drain. A node that
    /// someone has cordoned already is only taken note of.
    Begin {
        /// Who wants it.
        claims: Vec<Claim>,
        /// Drains that failed before.
        failures: u32,
    },
    /// Plan the drain of a cordoned node.
    Schedule(Record),
    /// Begin to drain.
    Start(Record),
    /// Go on evicting.
    Continue(Record),
    /// The deadline is over.
    Expire(Record),
    /// Write this.
    Write(Change),
    /// Set the condition `DrainScheduled`.
    Mark {
        /// Its status.
        scheduled: bool,
        /// Its message.
        message: String,
    },
}

impl Action {
    /// Name of the policy by whose settings it is done.
    pub fn policy(&self) -> &str {
        match self {
            Self::Begin { claims, .. } => claims.first().map_or("", |claim| &claim.policy),
            Self::Schedule(record)
            | Self::Start(record)
            | Self::Continue(record)
            | Self::Expire(record) => record.policy(),
            Self::Write(change) => change.record.as_ref().map_or("", Record::policy),
            Self::Mark { .. } => "",
        }
    }
}

/// Why a drain is cancelled.
mod cancelled {
    /// Someone uncordoned the node.
    pub(super) const UNCORDONED: &str = "someone uncordoned the node";
    /// No condition is bad any more.
    pub(super) const CLEAR: &str = "its conditions have cleared, or no policy selects it any more";
    /// Its policies are configured no longer.
    pub(super) const ORPHANED: &str = "its policy is not configured any more";
    /// The kubelet is dead.
    pub(super) const UNREACHABLE: &str = "the node is unreachable, so its pods cannot be stopped; its \
        NoExecute taint evicts them";
    /// The policy does not drain.
    pub(super) const CORDON_ONLY: &str = "the policy only cordons";
}

/// Decides about a node.
pub fn next_step(node: &Node, policies: &[Policy], orphans: Orphans, now: Timestamp) -> Step {
    let Some(drain_facts) = node.drain_facts.as_deref() else {
        return Step::Rest;
    };
    let written = match drain_facts.record.as_deref().map(Record::parse).transpose() {
        Ok(written) => written,
        Err(_) if is_removed(drain_facts) => return Step::Rest,
        Err(error) => return unreadable(drain_facts, &brief(&error.to_string())),
    };
    if is_removed(drain_facts) {
        return left_to_the_autoscaler(
            drain_facts,
            written.or_else(|| adopted(drain_facts, policies)),
        );
    }
    let record = written
        .map(|record| record.plausible(policies, now))
        .or_else(|| adopted(drain_facts, policies));
    match record {
        record if is_left_by_draino(drain_facts, record.as_ref(), policies) => {
            let change =
                Change { record, unschedulable: None, retry_taken: false, report: Report::None };
            Step::Action(Action::Write(change))
        }
        None => match Badness::of(drain_facts, policies, now) {
            Badness { claims, .. } if !claims.is_empty() => begin(claims, 0),
            Badness { look_again: Some(at), .. } => Step::Wait(at),
            Badness { .. } => Step::Rest,
        },
        Some(record) => go_on(node, drain_facts, record, policies, orphans, now),
    }
}

/// Whether the node is on its way out of the cluster. Nothing is done about it any more.
pub fn is_removed(drain_facts: &NodeDrainFacts) -> bool {
    drain_facts.terminating || drain_facts.autoscaler == Autoscaler::Removing
}

/// A node that is being removed is left alone. But an uncordon may be cluster-autoscaler's from now
/// on, which is noted. It comes together with the end of the removal: one that is there before that
/// is a person's. All else of the record stays as it is written, whether it is believed or not.
fn left_to_the_autoscaler(drain_facts: &NodeDrainFacts, record: Option<Record>) -> Step {
    let autoscaler = drain_facts.unschedulable;
    match record.filter(|_| drain_facts.autoscaler == Autoscaler::Removing) {
        Some(record) if record.autoscaler != autoscaler => {
            Step::Action(Action::Write(Change::note(Record { autoscaler, ..record })))
        }
        _ => Step::Rest,
    }
}

/// The cordon of a node that is not to be drained is taken back. It is ours.
pub fn given_back(record: Record, drain_facts: &NodeDrainFacts) -> Change {
    end(record, drain_facts, Some(false), Report::Uncordoned)
}

/// Takes away a record that stands only until the condition `DrainScheduled` is set right, if the node
/// bears one.
pub fn without_leftover(drain_facts: &NodeDrainFacts) -> Option<Change> {
    let record = Record::of(drain_facts)?;
    let is_leftover = record.phase == DrainPhase::Released && record.claims.is_empty();
    is_leftover.then(|| end(record, drain_facts, None, Report::None))
}

/// The record of a cordoned node whose cordon is [no policy's any more](Record::is_orphaned), and that no
/// policy finds bad: it would take over the cordon.
pub fn orphan(drain_facts: &NodeDrainFacts, policies: &[Policy], now: Timestamp) -> Option<Record> {
    let record = Record::of(drain_facts)?;
    let is_orphan = drain_facts.unschedulable
        && !is_removed(drain_facts)
        && record.is_orphaned(policies)
        && Badness::of(drain_facts, policies, now).claims.is_empty();
    is_orphan.then_some(record)
}

/// Whether a drain of this session is to go on evicting, by the node as it is stored.
pub fn is_draining(node: &Node, session: &str, policies: &[Policy], now: Timestamp) -> bool {
    // The drain of an orphan does not go on, whatever happens to its cordon.
    let step = next_step(node, policies, Orphans::Keep, now);
    matches!(step, Step::Action(Action::Continue(record)) if *record.session == *session)
}

/// The message of the condition `DrainScheduled`, as draino writes it.
fn scheduled_message(record: &Record) -> Option<String> {
    let scheduled = record.scheduled?;
    let begin = format!("Drain activity scheduled {scheduled}");
    Some(match (record.phase, record.ended) {
        (DrainPhase::Drained, Some(ended)) => format!("{begin} | Completed: {ended}"),
        (DrainPhase::Failed, Some(ended)) => format!("{begin} | Failed: {ended}"),
        (DrainPhase::Scheduled | DrainPhase::Draining, _) => begin,
        _ => format!("{begin} | Called off"),
    })
}

/// The record of a node that draino has cordoned: its annotation says for what.
fn adopted(drain_facts: &NodeDrainFacts, policies: &[Policy]) -> Option<Record> {
    let is_drainos = |text: &&str| !text.is_empty() && text.len() <= LONGEST_OF_DRAINO;
    let conditions = drain_facts.draino_conditions.as_deref().filter(is_drainos)?;
    if !drain_facts.unschedulable {
        return None;
    }
    let policy = policies.iter().find(|policy| policy.selects(&drain_facts.labels))?;
    let conditions = conditions.split(';').map(Arc::from).collect();
    let claim = Claim { policy: Arc::clone(&policy.name), conditions };
    Some(Record::new(Arc::from("draino"), Cordon::Ours, bounded(vec![claim])))
}

/// Whether the node bears draino's annotation and is in use: someone has uncordoned it. draino puts
/// the two on in one write, so the next cordon is not its own, and must not be taken for that.
fn is_left_by_draino(
    drain_facts: &NodeDrainFacts,
    record: Option<&Record>,
    policies: &[Policy],
) -> bool {
    drain_facts.draino_conditions.is_some()
        && !drain_facts.unschedulable
        && record.is_none_or(|record| record.cordon == Cordon::Lifted)
        && policies.iter().any(|policy| policy.selects(&drain_facts.labels))
}

/// Whose the cordon is cannot be told any more, so it counts as someone else's.
fn unreadable(drain_facts: &NodeDrainFacts, error: &str) -> Step {
    let record = drain_facts
        .unschedulable
        .then(|| Record::new(Arc::from("unknown"), Cordon::Foreign, Vec::new()));
    let report = Report::Unreadable(error.to_owned());
    Step::Action(Action::Write(Change { record, unschedulable: None, retry_taken: false, report }))
}

fn begin(claims: Vec<Claim>, failures: u32) -> Step {
    Step::Action(Action::Begin { claims, failures })
}

/// A node that is cordoned by us, or drained on someone else's cordon.
fn go_on(
    node: &Node,
    drain_facts: &NodeDrainFacts,
    record: Record,
    policies: &[Policy],
    orphans: Orphans,
    now: Timestamp,
) -> Step {
    let bad = Badness::of(drain_facts, policies, now);
    let clearing = Clearing::of(&record, drain_facts, policies, now);
    let needs_cordon = record.cordon != Cordon::Lifted
        || matches!(record.phase, DrainPhase::Scheduled | DrainPhase::Draining);
    if !drain_facts.unschedulable && needs_cordon {
        return uncordoned_by_others(record, drain_facts, &bad);
    }
    let is_orphan = bad.claims.is_empty() && record.is_orphaned(policies);
    // Of an orphan's conditions, nobody reads which are missing.
    if !is_orphan && let Some(step) = keep_vanished(&record, &clearing, now) {
        return step;
    }
    if record.autoscaler && drain_facts.unschedulable {
        // It changed its mind without touching the cordon. An uncordon from now on is a person's.
        return Step::Action(Action::Write(Change::note(Record { autoscaler: false, ..record })));
    }
    let look_again = bad.look_again;
    let step = if record.phase == DrainPhase::Released {
        released(&record, drain_facts, bad, &clearing, now)
    } else if is_orphan {
        orphaned(drain_facts, record, orphans)
    } else {
        in_progress(node, drain_facts, record, policies, &bad, &clearing, now)
    };
    // A condition may become old enough, or stale, without any event.
    match (step, look_again) {
        (Step::Rest, Some(at)) => Step::Wait(at),
        (Step::Wait(known), Some(at)) => Step::Wait(known.min(at)),
        (step, _) => step,
    }
}

/// A node whose cordon or drain is in progress, or ends.
fn in_progress(
    node: &Node,
    drain_facts: &NodeDrainFacts,
    record: Record,
    policies: &[Policy],
    bad: &Badness,
    clearing: &Clearing,
    now: Timestamp,
) -> Step {
    let mark = mark(&record, drain_facts).map(Step::Action);
    if bad.claims.is_empty() {
        // What takes something back does not wait for a decoration.
        return match (while_clear(node, drain_facts, record, policies, clearing, now), mark) {
            (Step::Action(Action::Write(change)), _) => Step::Action(Action::Write(change)),
            (_, Some(mark)) => mark,
            (step, None) => step,
        };
    }
    if let Some(mark) = mark {
        return mark;
    }
    let claims = bad.joined(&record, clearing);
    if claims != record.claims {
        return Step::Action(Action::Write(Change::note(Record { claims, ..record })));
    }
    match settings(&record, policies) {
        Some(policy) => still_bad(node, drain_facts, record, policy, now),
        None => Step::Rest,
    }
}

/// Nobody asks for the cordon any more: no drain begins or goes on, and the settings decide about the cordon,
/// which is ours.
fn orphaned(drain_facts: &NodeDrainFacts, record: Record, orphans: Orphans) -> Step {
    if matches!(record.phase, DrainPhase::Scheduled | DrainPhase::Draining) {
        return call_off(record, cancelled::ORPHANED);
    }
    match orphans {
        Orphans::Uncordon => ended(record, drain_facts, Some(false), Report::Uncordoned),
        Orphans::Keep => mark(&record, drain_facts).map_or(Step::Rest, Step::Action),
    }
}

/// The policy whose settings are those of the drain.
fn settings<'a>(record: &Record, policies: &'a [Policy]) -> Option<&'a Policy> {
    policies.iter().find(|policy| &*policy.name == record.policy())
}

/// The node is schedulable although our record says that it is cordoned.
fn uncordoned_by_others(record: Record, drain_facts: &NodeDrainFacts, bad: &Badness) -> Step {
    if record.autoscaler && record.cordon == Cordon::Ours {
        if bad.claims.is_empty() {
            return ended(record, drain_facts, None, Report::Uncordoned);
        }
        return Step::Action(Action::Write(Change {
            record: Some(Record { autoscaler: false, ..record }),
            unschedulable: Some(true),
            retry_taken: false,
            report: Report::CordonedAgain,
        }));
    }
    let record = Record {
        phase: DrainPhase::Released,
        cordon: Cordon::Lifted,
        next: None,
        why: Some(Arc::from(cancelled::UNCORDONED)),
        ..record
    };
    let report = Report::Cancelled(cancelled::UNCORDONED);
    Step::Action(Action::Write(Change { report, ..Change::note(record) }))
}

/// Takes the record away, and a request for one more try with it. Only a record can ask for the
/// condition to be set right; so one stays until that is done, which holds nothing else back.
fn ended(
    record: Record,
    drain_facts: &NodeDrainFacts,
    unschedulable: Option<bool>,
    report: Report,
) -> Step {
    Step::Action(Action::Write(end(record, drain_facts, unschedulable, report)))
}

fn end(
    record: Record,
    drain_facts: &NodeDrainFacts,
    unschedulable: Option<bool>,
    report: Report,
) -> Change {
    let over = Record {
        phase: DrainPhase::Released,
        scheduled: record.scheduled,
        ..Record::new(record.session, Cordon::Lifted, Vec::new())
    };
    let record = mark(&over, drain_facts).map(|_| over);
    let retry_taken = drain_facts.retry_asked;
    Change { record, unschedulable, retry_taken, report }
}

/// Notes since when a condition is not reported any more, or that it is again.
fn keep_vanished(record: &Record, clearing: &Clearing, now: Timestamp) -> Option<Step> {
    let vanished = match (clearing.some_absent, record.vanished) {
        (true, None) => Some(second_of(now)),
        (false, Some(_)) => None,
        _ => return None,
    };
    let record = Record { vanished, ..record.clone() };
    Some(Step::Action(Action::Write(Change::note(record))))
}

/// Someone wants the node used although it is bad.
fn released(
    record: &Record,
    drain_facts: &NodeDrainFacts,
    bad: Badness,
    clearing: &Clearing,
    now: Timestamp,
) -> Step {
    // Another minimum age makes no other condition of it.
    let subject = |condition: &Arc<str>| -> Arc<str> {
        condition
            .rsplit_once(',')
            .map_or_else(|| Arc::clone(condition), |(subject, _)| subject.into())
    };
    let known: Vec<Arc<str>> =
        record.claims.iter().flat_map(|claim| &claim.conditions).map(subject).collect();
    let is_new = |condition: &Arc<str>| !known.contains(&subject(condition));
    let report = bad.claims.iter().flat_map(|claim| &claim.conditions).any(is_new);
    if let Some(mark) = mark(record, drain_facts) {
        Step::Action(mark)
    } else if report || drain_facts.unschedulable && !bad.claims.is_empty() {
        begin(bad.claims, 0)
    } else {
        match clearing.clear_at {
            Some(at) if at <= now && bad.claims.is_empty() => {
                ended(record.clone(), drain_facts, None, Report::None)
            }
            Some(at) if at > now => Step::Wait(at),
            _ => bad.look_again.map_or(Step::Rest, Step::Wait),
        }
    }
}

/// The condition `DrainScheduled`, if it is not as it should be.
fn mark(record: &Record, drain_facts: &NodeDrainFacts) -> Option<Action> {
    let wanted = matches!(record.phase, DrainPhase::Scheduled | DrainPhase::Draining);
    let is = drain_facts
        .condition(NodeDrainFacts::SCHEDULED_CONDITION)
        .is_some_and(|condition| condition.status == ConditionStatus::True);
    let message = scheduled_message(record)?;
    (is != wanted).then_some(Action::Mark { scheduled: wanted, message })
}

/// Nothing is bad at the moment: no drain begins or goes on, and the cordon goes once that has
/// lasted.
fn while_clear(
    node: &Node,
    drain_facts: &NodeDrainFacts,
    record: Record,
    policies: &[Policy],
    clearing: &Clearing,
    now: Timestamp,
) -> Step {
    let goes_on = record.phase == DrainPhase::Draining
        && settings(&record, policies).is_some_and(|policy| {
            policy.drain && !policy.stop_when_clear && policy.selects(&drain_facts.labels)
        });
    if goes_on {
        return draining(node, record, now);
    }
    // What is not to be trusted neither begins anything nor ends it.
    match record.phase {
        DrainPhase::Draining if clearing.some_stale => return draining(node, record, now),
        DrainPhase::Scheduled if clearing.some_stale => return Step::Rest,
        DrainPhase::Draining | DrainPhase::Scheduled => return call_off(record, cancelled::CLEAR),
        _ => {}
    }
    match clearing.clear_at {
        Some(at) if at <= now => {
            let is_ours = record.cordon == Cordon::Ours;
            let unschedulable = is_ours.then_some(false);
            let report = if is_ours { Report::Uncordoned } else { Report::None };
            ended(record, drain_facts, unschedulable, report)
        }
        Some(at) => Step::Wait(at),
        None => Step::Rest,
    }
}

/// Back to a cordon without a plan.
fn call_off(record: Record, why: &'static str) -> Step {
    let record = Record {
        phase: DrainPhase::Cordoned,
        started: None,
        deadline: None,
        next: None,
        why: Some(Arc::from(why)),
        forced: false,
        ..record
    };
    Step::Action(Action::Write(Change { report: Report::Cancelled(why), ..Change::note(record) }))
}

/// The node is bad, cordoned, and ours to drain.
fn still_bad(
    node: &Node,
    drain_facts: &NodeDrainFacts,
    record: Record,
    policy: &Policy,
    now: Timestamp,
) -> Step {
    let is_dead = node.ready.status == ConditionStatus::Unknown;
    match record.phase {
        DrainPhase::Cordoned => {
            let held = if !policy.drain {
                Some(cancelled::CORDON_ONLY)
            } else if is_dead {
                Some(cancelled::UNREACHABLE)
            } else {
                None
            };
            match (held, record.next) {
                (Some(why), _) if record.why.as_deref() == Some(why) => Step::Rest,
                (Some(why), _) => {
                    let report = Report::Held(Arc::from(why));
                    let record = Record { why: Some(Arc::from(why)), next: None, ..record };
                    Step::Action(Action::Write(Change { report, ..Change::note(record) }))
                }
                (None, Some(next)) if next > now => Step::Wait(next),
                (None, _) => Step::Action(Action::Schedule(record)),
            }
        }
        DrainPhase::Scheduled | DrainPhase::Draining if !policy.drain => {
            call_off(record, cancelled::CORDON_ONLY)
        }
        DrainPhase::Failed if !policy.drain => Step::Rest,
        DrainPhase::Scheduled if is_dead => call_off(record, cancelled::UNREACHABLE),
        DrainPhase::Scheduled => {
            let scheduled = record.scheduled.unwrap_or(now);
            let begins = opens(policy, scheduled.max(now));
            if begins > now { Step::Wait(begins) } else { Step::Action(Action::Start(record)) }
        }
        DrainPhase::Draining => draining(node, record, now),
        DrainPhase::Drained => {
            let at = later(record.ended.unwrap_or(now), policy.lingering);
            if record.lingers {
                Step::Rest
            } else if at > now {
                Step::Wait(at)
            } else {
                let record = Record { lingers: true, ..record };
                Step::Action(Action::Write(Change {
                    report: Report::Lingers,
                    ..Change::note(record)
                }))
            }
        }
        DrainPhase::Failed => {
            let is_asked = drain_facts.retry_asked;
            let next = record.next.map(|next| opens(policy, next.max(now)));
            match next {
                _ if is_dead => Step::Rest,
                Some(next) if next > now && !is_asked => Step::Wait(next),
                None if !is_asked => Step::Rest,
                _ if record.cordon == Cordon::Lifted => {
                    begin(record.claims.clone(), record.failures)
                }
                _ => Step::Action(Action::Start(record)),
            }
        }
        // Seen to before.
        DrainPhase::Released => Step::Rest,
    }
}

fn draining(node: &Node, record: Record, now: Timestamp) -> Step {
    if node.ready.status == ConditionStatus::Unknown {
        return call_off(record, cancelled::UNREACHABLE);
    }
    match record.deadline {
        Some(deadline) if deadline > now => Step::Action(Action::Continue(record)),
        _ => Step::Action(Action::Expire(record)),
    }
}

/// The first moment from this one on at which a drain may begin.
fn opens(policy: &Policy, from: Timestamp) -> Timestamp {
    policy.next_opening(from).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;
