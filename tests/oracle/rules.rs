//! What the rules say about a pod, in plain steps and without a thought to speed.

use jiff::Timestamp;
use ostrakon::model::{
    AnchorSource, Anchors, Effect, Kept, Node, Operator, Pod, PodClass, Stamp, Taint, Toleration,
    Verdict,
};
use ostrakon::sim::tolerations::{self, Due, Tolerance};
use ostrakon::taint::{TaintMethod, TaintRule};

const SECOND: i128 = 1_000_000_000;

/// A verdict in other words: times are nanoseconds.
#[derive(Debug, PartialEq)]
pub(crate) enum Says {
    Stays(Kept),
    /// The taint, and the toleration with its seconds.
    Now(Taint, Option<(usize, i64)>),
    At(i128, Taint, Counted),
}

/// How a deadline was counted.
#[derive(Debug, PartialEq)]
pub(crate) struct Counted {
    toleration: usize,
    seconds: i64,
    from: i128,
    source: AnchorSource,
}

impl Says {
    /// A name for the kind of answer, to see that all of them come up.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Stays(Kept::NoTaints) => "no taints",
            Self::Stays(Kept::Tolerated) => "tolerated",
            Self::Stays(Kept::Mirror) => "mirror",
            Self::Stays(Kept::Finished) => "finished",
            Self::Stays(Kept::Terminating) => "terminating",
            Self::Stays(_) => "another reason to stay",
            Self::Now(_, None) => "untolerated",
            Self::Now(_, Some(_)) => "at once",
            Self::At(at, ..) if *at == Timestamp::MAX.as_nanosecond() => "end of time",
            Self::At(_, _, counted) => match counted.source {
                AnchorSource::TimeAdded => "time added",
                AnchorSource::FirstSeen => "first seen",
                AnchorSource::Outage => "outage",
                AnchorSource::Bound => "bound",
                AnchorSource::Observed => "observed",
            },
        }
    }
}

impl From<&Verdict> for Says {
    fn from(verdict: &Verdict) -> Self {
        match verdict.clone() {
            Verdict::Keep(kept) => Self::Stays(kept),
            Verdict::EvictNow(cause) => {
                let tolerance = cause.tolerance;
                assert!(tolerance.is_none_or(|tolerance| tolerance.anchor.is_none()));
                Self::Now(cause.taint, tolerance.map(|found| (found.index, found.seconds)))
            }
            Verdict::EvictAt { deadline, cause } => {
                let tolerance = cause.tolerance.unwrap();
                let anchor = tolerance.anchor.unwrap();
                let counted = Counted {
                    toleration: tolerance.index,
                    seconds: tolerance.seconds,
                    from: end_of(anchor.at),
                    source: anchor.source,
                };
                Self::At(deadline.0.as_nanosecond(), cause.taint, counted)
            }
        }
    }
}

/// Each NoExecute taint with its tolerance.
type Answers<'a> = Vec<(&'a Taint, Tolerance)>;

fn answers<'a>(pod: &Pod, node: &'a Node) -> Answers<'a> {
    let no_execute = node.taints.iter().filter(|taint| taint.effect == Effect::NoExecute);
    no_execute
        .map(|taint| {
            let (key, value) = (&*taint.key, &*taint.value);
            let as_stored = tolerations::Taint { key, value, effect: effect_of(taint.effect) };
            (taint, Tolerance::of(pod.tolerations.iter().map(as_stored_with_seconds), &as_stored))
        })
        .collect()
}

fn effect_of(effect: Effect) -> &'static str {
    match effect {
        Effect::NoExecute => "NoExecute",
        Effect::NoSchedule => "NoSchedule",
        Effect::PreferNoSchedule => "PreferNoSchedule",
        Effect::Unknown => "Unknown",
    }
}

fn as_stored_with_seconds(toleration: &Toleration) -> (tolerations::Toleration<'_>, Option<i64>) {
    let operator = match toleration.operator {
        Operator::Exists => "Exists",
        Operator::Equal => "Equal",
        Operator::Lt => "Lt",
        Operator::Gt => "Gt",
        Operator::Unknown => "Unknown",
    };
    let (key, value) = (&*toleration.key, &*toleration.value);
    let effect = toleration.effect.map_or("", effect_of);
    (tolerations::Toleration { key, operator, value, effect }, toleration.seconds)
}

/// The answers that hold for both profiles; otherwise the taints with a positive time.
fn common<'a>(answers: &Answers<'a>) -> Result<Says, Vec<(&'a Taint, usize, i64)>> {
    if answers.is_empty() {
        return Ok(Says::Stays(Kept::NoTaints));
    }
    for (taint, answer) in answers {
        if *answer == Tolerance::None {
            return Ok(Says::Now((*taint).clone(), None));
        }
    }
    let mut timed = Vec::new();
    for (taint, answer) in answers {
        if let Tolerance::For { index, seconds } = answer {
            timed.push((*taint, *index, *seconds));
        }
    }
    if timed.is_empty() {
        return Ok(Says::Stays(Kept::Tolerated));
    }
    Err(timed)
}

fn at_once(timed: &[(&Taint, usize, i64)]) -> Option<Says> {
    let (taint, index, seconds) = timed.iter().find(|(_, _, seconds)| *seconds <= 0)?;
    Some(Says::Now((*taint).clone(), Some((*index, *seconds))))
}

/// When what was stored with this stamp had happened for certain: a stamp is cut off to whole seconds,
/// and then holds for the whole second.
pub(crate) fn end_of(stamp: Stamp) -> i128 {
    stamp.latest().as_nanosecond()
}

fn plus(from: i128, seconds: i64) -> i128 {
    let end = Timestamp::MAX.as_nanosecond();
    (from + i128::from(seconds) * SECOND).min(end)
}

/// Anchor of a taint by the design's paragraph on deadlines.
fn since(anchors: &Anchors, taint: &Taint) -> (i128, AnchorSource) {
    let mut since = match taint.time_added {
        Some(at) => (end_of(at), AnchorSource::TimeAdded),
        None => (Timestamp::MAX.as_nanosecond(), AnchorSource::FirstSeen),
    };
    for seen in &anchors.first_seen {
        let of_it = (&seen.key, &seen.value, seen.added);
        let at = end_of(seen.since);
        // A first sight in place of a stamp makes it earlier, never later.
        if of_it == (&taint.key, &taint.value, taint.time_added) && at < since.0 {
            since = (at, AnchorSource::FirstSeen);
        }
    }
    let key = taint.key.strip_prefix("node.kubernetes.io/");
    if let (Some("not-ready" | "unreachable"), Some(outage)) = (key, anchors.outage) {
        let at = end_of(outage.since);
        if outage.gap_from.is_none() && at < since.0 {
            since = (at, AnchorSource::Outage);
        }
    }
    since
}

pub(crate) fn default_profile(pod: &Pod, node: &Node, anchors: &Anchors) -> Says {
    match pod.class {
        PodClass::Mirror => return Says::Stays(Kept::Mirror),
        PodClass::Finished => return Says::Stays(Kept::Finished),
        PodClass::Terminating => return Says::Stays(Kept::Terminating),
        PodClass::Ordinary => {}
    }
    let timed = match common(&answers(pod, node)) {
        Ok(says) => return says,
        Err(timed) => timed,
    };
    if let Some(says) = at_once(&timed) {
        return says;
    }
    let mut says: Option<(i128, Says)> = None;
    for (taint, toleration, seconds) in timed {
        let ((since, mut source), bound) = (since(anchors, taint), end_of(pod.bound));
        let tolerance = Tolerance::For { index: toleration, seconds };
        let Due::At(at) = tolerance.due(since, bound, plus) else { continue };
        if bound > since {
            source = AnchorSource::Bound;
        }
        let from = since.max(bound);
        if says.as_ref().is_none_or(|(earliest, _)| at < *earliest) {
            let counted = Counted { toleration, seconds, from, source };
            says = Some((at, Says::At(at, taint.clone(), counted)));
        }
    }
    says.unwrap().1
}

/// By rules: when the pod is due, and when it may be deleted without asking its budgets. `i128::MIN` is at
/// once.
pub(crate) fn by_rules(
    rules: &[TaintRule],
    pod: &Pod,
    node: &Node,
    anchors: &Anchors,
) -> (Option<i128>, Option<i128>) {
    let (mut due, mut deleted) = (Vec::new(), Vec::new());
    if pod.class != PodClass::Ordinary {
        return (None, None);
    }
    for (taint, tolerance) in answers(pod, node) {
        let (since, bound) = (since(anchors, taint).0, end_of(pod.bound));
        // From when `after` counts.
        let (at, from) = match tolerance.due(since, bound, plus) {
            Due::Never => continue,
            Due::AtOnce => (i128::MIN, since.max(bound)),
            Due::At(at) => (at, at),
        };
        let named = |rule: &&TaintRule| {
            let key = &*rule.key == "*" || rule.key == taint.key;
            key && rule.value.as_ref().is_none_or(|value| *value == taint.value)
        };
        match rules.iter().find(named).map_or(TaintMethod::Delete, |rule| rule.method) {
            TaintMethod::Ignore => {}
            TaintMethod::Evict => due.push(at),
            TaintMethod::Delete => {
                due.push(at);
                deleted.push(at);
            }
            TaintMethod::EvictThenDelete { after } => {
                due.push(at);
                let after = i64::try_from(after.as_secs()).unwrap();
                deleted.push(plus(from, after));
            }
        }
    }
    (due.into_iter().min(), deleted.into_iter().min())
}

pub(crate) fn upstream_profile(
    pod: &Pod,
    node: &Node,
    now: Timestamp,
    running: Option<&Verdict>,
) -> Says {
    if pod.class == PodClass::Terminating {
        return Says::Stays(Kept::Terminating);
    }
    let mut timed = match common(&answers(pod, node)) {
        Ok(says) => return says,
        Err(timed) => timed,
    };
    timed.retain(|(_, _, seconds)| *seconds < i64::MAX);
    if timed.is_empty() {
        return Says::Stays(Kept::Tolerated);
    }
    if let Some(running @ Verdict::EvictAt { .. }) = running {
        return Says::from(running);
    }
    if let Some(says) = at_once(&timed) {
        return says;
    }
    let least = timed.iter().map(|(_, _, seconds)| *seconds).min().unwrap();
    let first = timed.into_iter().find(|(_, _, seconds)| *seconds == least);
    let (taint, toleration, seconds) = first.unwrap();
    let counted =
        Counted { toleration, seconds, from: now.as_nanosecond(), source: AnchorSource::Observed };
    Says::At(plus(now.as_nanosecond(), seconds), taint.clone(), counted)
}
