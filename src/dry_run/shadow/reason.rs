//! Why the other manager differs, as far as its rules tell it.
//!
//! kube-controller-manager counts from when it sees a taint, never moves a countdown that runs, forgets all
//! countdowns when it ends, deletes by name, and gives up after five attempts.

use jiff::{SignedDuration, Timestamp};

use super::{Hints, Open, SAME, in_seconds};
use crate::model::{Kept, Uid, Verdict};

/// It has begun to count this soon after it began to lead.
const UNTIL_COUNTING: SignedDuration = SignedDuration::from_secs(30);

/// Why the other manager differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reason {
    /// For programs and sums.
    pub code: &'static str,
    /// For people.
    pub text: String,
}

impl Reason {
    fn new(code: &'static str, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// The tolerations were edited.
    fn edited(at: Timestamp) -> Self {
        let at = whole(at);
        let text = format!(
            "its tolerations were edited at {at}; kube-controller-manager does not change a countdown \
             that runs"
        );
        Self { code: "edited_toleration", text }
    }
}

/// Why it has not deleted a pod that is due.
pub(super) fn not_deleted(
    open: &Open,
    hints: Hints,
    restarts: &[Timestamp],
    now: Timestamp,
) -> Reason {
    if let Some(at) = hints.marked {
        let at = whole(at);
        let text = format!(
            "it wrote the condition at {at}, but the deletion was not accepted; kube-controller-manager \
             gives up after five attempts"
        );
        return Reason::new("lost_after_five_attempts", text);
    }
    if let Some((anchor, seconds)) = open.countdown() {
        if let Some(at) = hints.edited {
            return Reason::edited(at);
        }
        if let Some(restart) = restarts.iter().rev().find(|restart| **restart > anchor)
            && let Ok(ends) = restart.checked_add(seconds)
            && ends > now
        {
            let (restart, ends) = (whole(*restart), whole(ends));
            let text = format!(
                "kube-controller-manager restarted at {restart} and counts anew, until about {ends}"
            );
            return Reason::new("restart", text);
        }
    }
    Reason::new("no_attempt_seen", "no sign that it tried")
}

/// Why it deleted a pod so late.
pub(super) fn late(
    open: &Open,
    hints: Hints,
    restarts: &[Timestamp],
    requested: Timestamp,
) -> Reason {
    if let Some((anchor, seconds)) = open.countdown() {
        if let Some(at) = hints.edited {
            return Reason::edited(at);
        }
        if let Ok(counted_from) = requested.checked_sub(seconds)
            && counted_from.duration_since(anchor) > SAME
        {
            let began = |restart: &&Timestamp| {
                let after = counted_from.duration_since(**restart);
                after >= -SAME && after <= UNTIL_COUNTING
            };
            let (counted_from, anchor) = (whole(counted_from), whole(anchor));
            return match restarts.iter().rev().find(began).copied().map(whole) {
                Some(restart) => Reason::new(
                    "restart",
                    format!("kube-controller-manager restarted at {restart} and counted anew"),
                ),
                None => Reason::new(
                    "counted_anew",
                    format!(
                        "it counted from {counted_from}, and not from {anchor}: kube-controller-manager \
                         counts anew after a restart and when a taint is replaced"
                    ),
                ),
            };
        }
    }
    match hints.marked.filter(|marked| requested.duration_since(*marked) > SAME) {
        Some(marked) => Reason::new(
            "slow_deletion",
            format!(
                "it wrote the condition at {}; then its deletion was slow or refused at first",
                whole(marked)
            ),
        ),
        None => Reason::new("slow", "its requests wait in line: 20 a second by default"),
    }
}

/// Why a pod was due, and is no more before it was deleted.
pub(super) fn cancelled(verdict: &Verdict, after: SignedDuration) -> Reason {
    let after = in_seconds(after);
    let text = match verdict {
        Verdict::Keep(kept) => format!("no longer due {after} later: {kept}"),
        _ => format!("no longer due {after} later: {verdict}"),
    };
    Reason { code: "no_longer_due", text }
}

/// Why it deleted a pod that is not due.
pub(super) fn not_due(
    verdict: &Verdict,
    hints: Hints,
    namesake: Option<Uid>,
    requested: Timestamp,
) -> Option<Reason> {
    if let Some(uid) = namesake {
        let text = format!(
            "an earlier pod of this name was due (UID {uid}); kube-controller-manager deletes by name"
        );
        return Some(Reason::new("re_created_name", text));
    }
    if let Some(at) = hints.edited {
        return Some(Reason::edited(at));
    }
    Some(match verdict {
        Verdict::Keep(Kept::Finished) => Reason::new(
            "finished_pod",
            "it has finished; kube-controller-manager deletes finished pods too, and their logs with \
             them",
        ),
        Verdict::Keep(Kept::NoTaints) => Reason::new(
            "no_taint",
            "its node has no NoExecute taint; kube-controller-manager does not read the node again",
        ),
        Verdict::Keep(kept) => Reason::new("not_due", kept.to_string()),
        Verdict::EvictNow(_) => return None,
        Verdict::EvictAt { cause, .. } => {
            let seconds = cause.tolerance.map(|it| SignedDuration::from_secs(it.seconds))?;
            let from = whole(requested.checked_sub(seconds).ok()?);
            Reason::new("counted_earlier", format!("it counted from {from}"))
        }
    })
}

/// A time without fractions of a second.
fn whole(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
