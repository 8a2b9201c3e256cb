//! Compares what a dry run would have done with who really goes.
//!
//! Another manager evicts pods for taints at the same time, usually kube-controller-manager. It is told by
//! the condition that it writes right before a deletion. The time that counts is that of the request to
//! delete, not when the pod is gone. Pods that are deleted for other reasons are no difference.
//!
//! Pure: times and verdicts are handed in. Memory is bounded by the pods that exist, and by constants.

use std::sync::Arc;

use ahash::AHashMap;
use jiff::{SignedDuration, Timestamp};

use super::recent::Recent;
use crate::model::{AnchorSource, Kept, Pod, PodRef, Uid, Verdict};

mod reason;

pub(crate) use reason::Reason;

/// Up to so far apart both act at the same time. Times of the API have whole seconds, and each manager
/// needs a moment.
const SAME: SignedDuration = SignedDuration::from_secs(3);
/// A taint that the other one has acted on may still be on its way to us: nothing is called a difference
/// for so long.
const SETTLES: SignedDuration = SignedDuration::from_secs(10);
/// A pod that is due for so long and not deleted is reported. kube-controller-manager with its
/// default limit on requests needs almost four minutes for 1,500 pods.
const OVERDUE: SignedDuration = SignedDuration::from_mins(5);
/// At the end, a pod that has been due for less than this is not called lost.
const UNDECIDED: SignedDuration = SignedDuration::from_mins(1);
/// The condition belongs to a deletion that follows within this time.
const MARK_LASTS: SignedDuration = SignedDuration::from_mins(5);
/// So many differences are listed; further ones are only counted.
const LISTED: usize = 10_000;
/// So many pods and names are remembered for reasons.
const REMEMBERED: usize = 50_000;

/// How a pod's eviction compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Both at the same time.
    Same,
    /// The other one was later than ostrakon would have been.
    Later,
    /// The other one was earlier than ostrakon would have been.
    Earlier,
    /// Ostrakon would have evicted the pod; the other one has not.
    OnlyOstrakon,
    /// The other one has evicted the pod; ostrakon would not have.
    OnlyOther,
    /// Due, and then deleted by someone for another reason: no difference.
    DeletedByOthers,
    /// Due only shortly before the end: nobody knows.
    Undecided,
}

impl Kind {
    /// All of them.
    pub(crate) const ALL: [Self; 7] = [
        Self::Same,
        Self::Later,
        Self::Earlier,
        Self::OnlyOstrakon,
        Self::OnlyOther,
        Self::DeletedByOthers,
        Self::Undecided,
    ];

    /// Its name in reports and as a metric label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Later => "later",
            Self::Earlier => "earlier",
            Self::OnlyOstrakon => "only_ostrakon",
            Self::OnlyOther => "only_other",
            Self::DeletedByOthers => "deleted_by_others",
            Self::Undecided => "undecided",
        }
    }

    /// Whether it is a difference.
    pub(crate) fn differs(self) -> bool {
        matches!(self, Self::Later | Self::Earlier | Self::OnlyOstrakon | Self::OnlyOther)
    }
}

/// What became of one pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finding {
    /// How it compares.
    pub kind: Kind,
    /// The pod.
    pub pod: PodRef,
    /// The taint that decides, and how it is tolerated; or why the pod stays.
    pub verdict: String,
    /// When ostrakon would have evicted it.
    pub ostrakon: Option<Timestamp>,
    /// When its deletion was requested.
    pub other: Option<Timestamp>,
    /// Who wrote the condition.
    pub by: Option<Arc<str>>,
    /// Why, as far as the rules tell it.
    pub reason: Option<Reason>,
}

impl Finding {
    /// By how many seconds the other one was later; negative if it was earlier.
    pub(crate) fn seconds(&self) -> Option<f64> {
        Some(self.other?.duration_since(self.ostrakon?).as_secs_f64())
    }
}

/// A deletion that was seen.
#[derive(Clone, Debug)]
pub(crate) struct Deleted {
    /// When it was requested.
    pub requested: Timestamp,
    /// Since when the pod has had the condition of taint eviction, if it has.
    pub marked: Option<Timestamp>,
    /// Who wrote that.
    pub by: Option<Arc<str>>,
}

impl Deleted {
    fn is_by_taint(&self) -> bool {
        self.marked.is_some_and(|marked| self.requested.duration_since(marked) <= MARK_LASTS)
    }
}

/// A pod that would have been evicted and is still there.
#[derive(Clone, Debug)]
struct Open {
    pod: PodRef,
    verdict: Verdict,
    due: Timestamp,
    /// It was reported that it is overdue.
    is_overdue: bool,
}

/// A pod that the other one has evicted, and ostrakon would not have by what is known.
#[derive(Clone, Debug)]
struct Early {
    /// As it was before its deletion.
    pod: Arc<Pod>,
    deleted: Deleted,
    seen: Timestamp,
}

/// What else was seen of a pod, for reasons.
#[derive(Clone, Copy, Debug, Default)]
struct Hints {
    /// Its tolerations were edited.
    edited: Option<Timestamp>,
    /// The condition was written.
    marked: Option<Timestamp>,
}

/// Compares.
#[derive(Debug)]
pub(crate) struct Shadow {
    open: AHashMap<Uid, Open>,
    early: AHashMap<Uid, Early>,
    hints: Recent<Uid, Hints>,
    /// Pods whose deletion was seen. What would have been evicted may be told a moment after it.
    deleted: Recent<Uid, ()>,
    /// Pods that were due, by namespace and name.
    names: Recent<(Arc<str>, Arc<str>), Uid>,
    restarts: Vec<Timestamp>,
    tallies: [u64; Kind::ALL.len()],
    differences: Vec<Finding>,
    omitted: u64,
}

impl Default for Shadow {
    fn default() -> Self {
        Self {
            open: AHashMap::new(),
            early: AHashMap::new(),
            hints: Recent::new(REMEMBERED),
            deleted: Recent::new(REMEMBERED),
            names: Recent::new(REMEMBERED),
            restarts: Vec::new(),
            tallies: [0; Kind::ALL.len()],
            differences: Vec::new(),
            omitted: 0,
        }
    }
}

impl Shadow {
    /// A pod would have been evicted now, by this verdict.
    pub(crate) fn would_evict(
        &mut self,
        pod: &PodRef,
        verdict: &Verdict,
        now: Timestamp,
    ) -> Vec<Finding> {
        let name = (Arc::clone(&pod.namespace), Arc::clone(&pod.name));
        *self.names.entry(name, || pod.uid) = pod.uid;
        if let Some(early) = self.early.remove(&pod.uid) {
            return vec![self.same(pod, verdict, now, &early.deleted)];
        }
        if self.deleted.get(&pod.uid).is_some() {
            return Vec::new();
        }
        let open = Open {
            pod: pod.clone(),
            verdict: verdict.clone(),
            due: due_time(verdict).unwrap_or(now),
            is_overdue: false,
        };
        self.open.entry(pod.uid).or_insert(open);
        Vec::new()
    }

    /// The tolerations of a pod on a tainted node were edited.
    pub(crate) fn edited(&mut self, uid: Uid, now: Timestamp) {
        self.hints.entry(uid, Hints::default).edited = Some(now);
    }

    /// The condition of taint eviction was written to a pod.
    pub(crate) fn marked(&mut self, uid: Uid, now: Timestamp) {
        self.hints.entry(uid, Hints::default).marked = Some(now);
    }

    /// kube-controller-manager has begun to lead: its countdowns begin anew.
    pub(crate) fn restarted(&mut self, at: Timestamp) {
        const MOST: usize = 64;
        if self.restarts.len() == MOST {
            self.restarts.remove(0);
        }
        self.restarts.push(at);
    }

    /// The deletion of a pod was seen. `before` is the pod as it was, with the verdict about it then.
    pub(crate) fn deleted(
        &mut self,
        before: &Arc<Pod>,
        verdict: &Verdict,
        deleted: Deleted,
        now: Timestamp,
    ) -> Vec<Finding> {
        let pod = before.reference();
        self.deleted.entry(pod.uid, || ());
        if let Some(open) = self.open.remove(&pod.uid) {
            return vec![self.compared(&open, &deleted)];
        }
        if !deleted.is_by_taint() {
            return Vec::new();
        }
        if is_due_at(verdict, deleted.requested) {
            return vec![self.same(&pod, verdict, now, &deleted)];
        }
        self.early.insert(pod.uid, Early { pod: Arc::clone(before), deleted, seen: now });
        Vec::new()
    }

    /// A pod is gone.
    pub(crate) fn gone(&mut self, uid: Uid) {
        self.open.remove(&uid);
        if !self.early.contains_key(&uid) {
            self.hints.remove(&uid);
        }
    }

    /// Looks at what is open. `judge` has the verdict about a pod by what is known now; for a pod that is
    /// known no more `None`.
    pub(crate) fn tick(
        &mut self,
        now: Timestamp,
        open_verdict: impl Fn(&PodRef) -> Option<Verdict>,
        early_verdict: impl Fn(&Arc<Pod>) -> Verdict,
    ) -> Vec<Finding> {
        let mut findings = self.settle(now, SETTLES, early_verdict);
        let mut cancelled = Vec::new();
        for (uid, open) in &mut self.open {
            match open_verdict(&open.pod) {
                Some(verdict) if is_cancelled(&verdict, now) => cancelled.push((*uid, verdict)),
                _ if !open.is_overdue && now.duration_since(open.due) >= OVERDUE => {
                    open.is_overdue = true;
                    let hints = self.hints.get(uid).copied().unwrap_or_default();
                    let reason = reason::not_deleted(open, hints, &self.restarts, now);
                    findings.push(open.finding(Kind::OnlyOstrakon, None, Some(reason)));
                }
                _ => {}
            }
        }
        for (uid, verdict) in cancelled {
            let Some(open) = self.open.remove(&uid) else { continue };
            let after = now.duration_since(open.due);
            // Nobody could have been faster.
            if after < SAME {
                findings.push(self.tallied(open.finding(Kind::Undecided, None, None)));
                continue;
            }
            let reason = reason::cancelled(&verdict, after);
            let finding = open.finding(Kind::OnlyOstrakon, None, Some(reason));
            findings.push(self.tallied(finding));
        }
        findings
    }

    /// Decides about what is open at the end.
    pub(crate) fn end(
        &mut self,
        now: Timestamp,
        early_verdict: impl Fn(&Arc<Pod>) -> Verdict,
    ) -> Vec<Finding> {
        let mut findings = self.settle(now, SignedDuration::ZERO, early_verdict);
        let mut open: Vec<Open> = self.open.drain().map(|(_, open)| open).collect();
        open.sort_by(|a, b| (&a.pod.namespace, &a.pod.name).cmp(&(&b.pod.namespace, &b.pod.name)));
        for open in open {
            let finding = if now.duration_since(open.due) < UNDECIDED {
                open.finding(Kind::Undecided, None, None)
            } else {
                let hints = self.hints.get(&open.pod.uid).copied().unwrap_or_default();
                let reason = reason::not_deleted(&open, hints, &self.restarts, now);
                open.finding(Kind::OnlyOstrakon, None, Some(reason))
            };
            let was_said = open.is_overdue;
            let finding = self.tallied(finding);
            if !was_said {
                findings.push(finding);
            }
        }
        findings
    }

    /// How many pods there were of a kind.
    pub(crate) fn count(&self, kind: Kind) -> u64 {
        self.tallies[kind as usize]
    }

    /// The differences, in the order in which they were found, and how many are not in the list.
    pub(crate) fn differences(&self) -> (&[Finding], u64) {
        (&self.differences, self.omitted)
    }

    /// How many pods would have been evicted and are still there, and how many of these are overdue.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let overdue = self.open.values().filter(|open| open.is_overdue).count();
        (self.open.len(), overdue)
    }

    /// Decides about pods that the other one has evicted this long ago.
    fn settle(
        &mut self,
        now: Timestamp,
        settles: SignedDuration,
        verdict: impl Fn(&Arc<Pod>) -> Verdict,
    ) -> Vec<Finding> {
        let mut decided = Vec::new();
        for (uid, early) in &self.early {
            let verdict = verdict(&early.pod);
            let is_due = is_due_at(&verdict, early.deleted.requested);
            if is_due || now.duration_since(early.seen) >= settles {
                decided.push((*uid, verdict, is_due));
            }
        }
        decided.sort_by_key(|(uid, ..)| uid.0);
        let mut findings = Vec::new();
        for (uid, verdict, is_due) in decided {
            let Some(Early { pod, deleted, .. }) = self.early.remove(&uid) else { continue };
            let reference = pod.reference();
            if is_due {
                findings.push(self.same(&reference, &verdict, deleted.requested, &deleted));
                continue;
            }
            let hints = self.hints.remove(&uid).unwrap_or_default();
            let name = (Arc::clone(&reference.namespace), Arc::clone(&reference.name));
            let namesake = self.names.get(&name).filter(|other| **other != uid).copied();
            let ostrakon = due_time(&verdict);
            let kind = if ostrakon.is_some() { Kind::Earlier } else { Kind::OnlyOther };
            let reason = reason::not_due(&verdict, hints, namesake, deleted.requested);
            findings.push(self.tallied(Finding {
                kind,
                pod: reference,
                verdict: verdict.to_string(),
                ostrakon,
                other: Some(deleted.requested),
                by: deleted.by,
                reason,
            }));
        }
        findings
    }

    /// A pod that would have been evicted was deleted.
    fn compared(&mut self, open: &Open, deleted: &Deleted) -> Finding {
        let hints = self.hints.remove(&open.pod.uid).unwrap_or_default();
        let late = deleted.requested.duration_since(open.due);
        let finding = if !deleted.is_by_taint() {
            if hints.marked.is_some() || late >= OVERDUE {
                let lost = reason::not_deleted(open, hints, &self.restarts, deleted.requested);
                let text =
                    format!("{}; someone else deleted it {} later", lost.text, in_seconds(late));
                let reason = Some(Reason { text, ..lost });
                open.finding(Kind::OnlyOstrakon, Some(deleted), reason)
            } else {
                open.finding(Kind::DeletedByOthers, Some(deleted), None)
            }
        } else if late > SAME {
            let reason = reason::late(open, hints, &self.restarts, deleted.requested);
            open.finding(Kind::Later, Some(deleted), Some(reason))
        } else {
            open.finding(Kind::Same, Some(deleted), None)
        };
        self.tallied(finding)
    }

    fn same(&mut self, pod: &PodRef, verdict: &Verdict, at: Timestamp, by: &Deleted) -> Finding {
        self.hints.remove(&pod.uid);
        let due = due_time(verdict).unwrap_or_else(|| at.min(by.requested));
        let (pod, verdict) = (pod.clone(), verdict.clone());
        let open = Open { pod, verdict, due, is_overdue: false };
        self.compared(&open, by)
    }

    fn tallied(&mut self, finding: Finding) -> Finding {
        self.tallies[finding.kind as usize] += 1;
        if finding.kind.differs() {
            if self.differences.len() < LISTED {
                self.differences.push(finding.clone());
            } else {
                self.omitted += 1;
            }
        }
        finding
    }
}

impl Open {
    fn finding(&self, kind: Kind, deleted: Option<&Deleted>, reason: Option<Reason>) -> Finding {
        Finding {
            kind,
            pod: self.pod.clone(),
            verdict: self.verdict.to_string(),
            ostrakon: Some(self.due),
            other: deleted.map(|deleted| deleted.requested),
            by: deleted.and_then(|deleted| deleted.by.clone()),
            reason,
        }
    }

    /// From when ostrakon has counted, and for how long.
    fn countdown(&self) -> Option<(Timestamp, SignedDuration)> {
        let tolerance = self.verdict.cause()?.tolerance?;
        let anchor = tolerance.anchor.filter(|anchor| anchor.source != AnchorSource::Observed)?;
        Some((anchor.at.written(), SignedDuration::from_secs(tolerance.seconds)))
    }
}

/// When a verdict is due, if it names a time.
fn due_time(verdict: &Verdict) -> Option<Timestamp> {
    match verdict {
        Verdict::EvictAt { deadline, .. } => Some(deadline.0),
        Verdict::EvictNow(_) | Verdict::Keep(_) => None,
    }
}

/// Whether a pod was due at that time, or as good as.
fn is_due_at(verdict: &Verdict, at: Timestamp) -> bool {
    match verdict {
        Verdict::Keep(_) => false,
        Verdict::EvictNow(_) => true,
        Verdict::EvictAt { deadline, .. } => deadline.0.duration_since(at) <= SAME,
    }
}

/// Whether a pod that was due is due no more.
fn is_cancelled(verdict: &Verdict, now: Timestamp) -> bool {
    match verdict {
        Verdict::Keep(Kept::NoTaints | Kept::Tolerated | Kept::NodeGone) => true,
        Verdict::Keep(_) => false,
        verdict => !verdict.is_due(now),
    }
}

fn in_seconds(span: SignedDuration) -> String {
    format!("{} s", span.as_secs())
}

#[cfg(test)]
mod tests;
