//! The record: the part of a node's anchors that is stored on the node, so that they survive a restart.
//!
//! It is the value of the annotation [`Node::SINCE_ANNOTATION`] of the node, as JSON:
//!
//! ```json
//! {
//!   "taints": [
//!     {"key": "example.com/gpu", "value": "broken", "since": "2026-01-01T12:00:00.25Z"},
//!     {"key": "example.com/nic", "timeAdded": "2099-01-01T00:00:00Z", "since": "2026-01-01T12:00:03Z"}
//!   ],
//!   "outage": {"since": "2026-01-01T11:00:00Z", "through": "2026-01-01T11:20:00Z"}
//! }
//! ```
//!
//! - `taints`: NoExecute taints without `timeAdded`, or with one in the future, and when each was first
//!   seen; sorted by key and value. A missing `value` is empty.
//! - `outage`: the node's current outage. Its taints count from `since`; `through` is the latest time of a
//!   taint that belongs to it. Both may be missing.
//! - Times are RFC 3339, with nanoseconds where needed, and count exactly: for a time with whole seconds,
//!   the end of its second is stored (see [`Stamp`]), so a time counts the same before it is written and
//!   after it is read. Unknown fields are ignored.
//!
//! It is written only while a pod's deadline depends on it, so most nodes never have one. Gaps in an
//! outage are not stored, because they are short; they start again after a restart.
//!
//! A record must never cause a failure: an unreadable one is reported, ignored and replaced.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::{Anchors, FirstSeen, Node, Outage, Pod, PodClass, Stamp};

use super::anchor::{CLOCKS_APART, is_lasting, needs_record};
use super::matching::used;
use super::rules::{TaintMethod, TaintRule, rule_of};

const SINCE_ANNOTATION: &str = Node::SINCE_ANNOTATION;

/// Why a record cannot be read. In every case, continue without it.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It is not JSON, or not of this shape.
    #[error("annotation {SINCE_ANNOTATION} is not a record of ours and will be replaced: {0}")]
    Shape(#[from] serde_json::Error),
    /// A time in it is none.
    #[error(
        "annotation {SINCE_ANNOTATION} will be replaced: {field} is {text:?}, \
         expected a time such as 2026-01-01T12:00:00Z"
    )]
    Time {
        /// Where it stands, for example `taints[1].since`.
        field: String,
        /// What stands there, at most 64 characters of it.
        text: String,
    },
    /// The outage in it ends before it begins.
    #[error(
        "annotation {SINCE_ANNOTATION} will be replaced: outage.since is later than outage.through"
    )]
    Order,
}

#[derive(Serialize, Deserialize)]
struct Record {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    taints: Vec<TaintRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    outage: Option<OutageRecord>,
}

#[derive(Serialize, Deserialize)]
struct TaintRecord {
    key: Arc<str>,
    #[serde(default)]
    value: Arc<str>,
    #[serde(rename = "timeAdded", default, skip_serializing_if = "Option::is_none")]
    added: Option<String>,
    since: String,
}

#[derive(Serialize, Deserialize)]
struct OutageRecord {
    since: String,
    through: String,
}

/// Parses a record.
pub fn parse(text: &str) -> Result<Anchors, RecordError> {
    let record: Record = serde_json::from_str(text)?;
    let mut first_seen = Vec::with_capacity(record.taints.len());
    for (index, taint) in record.taints.into_iter().enumerate() {
        first_seen.push(FirstSeen {
            since: Stamp::exact(time(|| format!("taints[{index}].since"), &taint.since)?),
            added: taint
                .added
                .map(|added| {
                    time(|| format!("taints[{index}].timeAdded"), &added).map(Stamp::of_second)
                })
                .transpose()?,
            key: taint.key,
            value: taint.value,
        });
    }
    let outage = match record.outage {
        None => None,
        Some(outage) => Some(Outage {
            since: Stamp::exact(time(|| "outage.since".to_owned(), &outage.since)?),
            through: Stamp::exact(time(|| "outage.through".to_owned(), &outage.through)?),
            gap_from: None,
        }),
    };
    if outage.is_some_and(|outage| outage.since > outage.through) {
        return Err(RecordError::Order);
    }
    Ok(Anchors { first_seen, outage })
}

/// The trusted part of the record of `node` at `now`.
///
/// Everyone who can write the node's annotations can write it, for example its kubelet. So times before
/// the node was registered are ignored, and so are entries for taints with a `timeAdded`, unless that is
/// in the future. The rest can only move deadlines of pods on this node.
///
/// # Errors
/// It cannot be read.
pub fn believed(node: &Node, now: Timestamp) -> Result<Option<Anchors>, RecordError> {
    let Some(text) = node.since_annotation.as_deref() else { return Ok(None) };
    let mut anchors = parse(text)?;
    let is_older = |since: Stamp| {
        let before = |created: Stamp| created.written().duration_since(since.latest());
        node.created.is_some_and(|created| before(created) > CLOCKS_APART)
    };
    anchors.first_seen.retain(|seen| {
        !is_older(seen.since) && seen.added.is_none_or(|added| added.written() > now)
    });
    anchors.outage = anchors.outage.filter(|outage| !is_older(outage.since));
    Ok(Some(anchors))
}

/// Formats the record of `anchors`. Equal anchors give equal texts.
pub fn render(anchors: &Anchors) -> String {
    let mut first_seen: Vec<_> =
        anchors.first_seen.iter().filter(|seen| is_lasting(seen)).collect();
    first_seen.sort_by(|a, b| (&a.key, &a.value).cmp(&(&b.key, &b.value)));
    let taints = first_seen.into_iter().map(|seen| TaintRecord {
        key: Arc::clone(&seen.key),
        value: Arc::clone(&seen.value),
        added: seen.added.map(|added| added.to_string()),
        since: seen.since.latest().to_string(),
    });
    let record = Record {
        taints: taints.collect(),
        outage: anchors.outage.map(|outage| OutageRecord {
            since: outage.since.latest().to_string(),
            through: outage.through.latest().to_string(),
        }),
    };
    // It contains only lists and strings, so serialization cannot fail.
    serde_json::to_string(&record).unwrap_or_default()
}

/// The value that the annotation of `node` should have; `None` if it should not exist.
///
/// `anchors` are those of this version of the node, `pods` all pods on it. Compare the result with
/// [`Node::since_annotation`], and update it if they differ.
///
/// The annotation should exist while a pod's deadline depends on it, and during a gap in an outage that
/// it already contains: deadlines depend on it again when the taint returns.
pub fn wanted<'a>(
    anchors: &Anchors,
    node: &Node,
    pods: impl IntoIterator<Item = &'a Pod>,
    rules: &[TaintRule],
) -> Option<String> {
    let in_gap = anchors.outage.is_some_and(|outage| outage.gap_from.is_some());
    let keep = in_gap && tells_of_outage(node);
    let wanted = keep || pods.into_iter().any(|pod| depends(pod, node, anchors, rules));
    wanted.then(|| render(anchors))
}

fn tells_of_outage(node: &Node) -> bool {
    let text = node.since_annotation.as_deref();
    text.is_some_and(|text| parse(text).is_ok_and(|record| record.outage.is_some()))
}

/// Whether the pod has a deadline to which a taint with a recorded anchor contributes. The taint need not
/// be the deciding one: it may become that when another is removed, or when the rules change.
fn depends(pod: &Pod, node: &Node, anchors: &Anchors, rules: &[TaintRule]) -> bool {
    if pod.class != PodClass::Ordinary {
        return false;
    }
    let mut depends = false;
    for (taint, toleration) in used(pod, node) {
        let method = || rule_of(rules, taint).map(|rule| rule.method).unwrap_or_default();
        match toleration.map(|(_, toleration)| toleration.seconds) {
            None | Some(Some(..=0)) => match method() {
                // It is deleted at once, whenever the taint was added.
                TaintMethod::Delete => return false,
                // It is evicted at once, but when it is deleted depends on when the taint was added.
                TaintMethod::EvictThenDelete { .. } => depends |= needs_record(anchors, taint),
                TaintMethod::Evict | TaintMethod::Ignore => {}
            },
            Some(None) => {}
            Some(Some(_)) => depends |= needs_record(anchors, taint),
        }
    }
    depends
}

fn time(field: impl FnOnce() -> String, text: &str) -> Result<Timestamp, RecordError> {
    text.parse()
        .map_err(|_| RecordError::Time { field: field(), text: text.chars().take(64).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::build::{at, exists, node, not_ready, pod, stamp, taint};
    use crate::model::{ConditionStatus, Taint};
    use crate::taint::{Past, advance};

    fn known() -> Anchors {
        let seen = |key: &str, value: &str, since: &str| FirstSeen {
            key: key.into(),
            value: value.into(),
            added: None,
            since: Stamp::exact(since.parse().unwrap()),
        };
        Anchors {
            first_seen: vec![
                seen("a/b", "", "2026-01-01T12:00:00.123456789Z"),
                seen("a/b", "say \"hi\"", "2026-01-01T12:00:00Z"),
            ],
            outage: Some(Outage { since: stamp(-60), through: stamp(60), gap_from: None }),
        }
    }

    #[test]
    fn it_reads_as_the_documentation_says() {
        assert_eq!(
            render(&known()),
            r#"{"taints":[{"key":"a/b","value":"","since":"2026-01-01T12:00:00.123456789Z"},"#
                .to_owned()
                + r#"{"key":"a/b","value":"say \"hi\"","since":"2026-01-01T12:00:00Z"}],"#
                + r#""outage":{"since":"2026-01-01T11:59:00Z","through":"2026-01-01T12:01:00Z"}}"#
        );
        assert_eq!(render(&Anchors::default()), "{}");
    }

    #[test]
    fn nothing_but_the_gap_is_lost_on_the_way() {
        let mut anchors = known();
        assert_eq!(parse(&render(&anchors)).unwrap(), anchors);
        if let Some(outage) = &mut anchors.outage {
            outage.gap_from = Some(at(90));
        }
        assert_eq!(parse(&render(&anchors)).unwrap(), known());
        assert_eq!(parse("{}").unwrap(), Anchors::default());
    }

    /// A taint that claims to have been put on at this second after noon, seen first at noon.
    fn claiming(second: i64) -> (Node, Anchors) {
        let added = Some(Stamp::of_second(at(second)));
        let node = node("n1").tainted(Taint { time_added: added, ..taint("k", "") });
        let anchors = advance(Past::Unknown, &node, at(0));
        (node, anchors)
    }

    #[test]
    fn the_first_sight_of_a_taint_from_the_future_is_recorded_and_moves_nothing_by_a_restart() {
        let (node, anchors) = claiming(2_000_000_000);
        let pods = [pod("a").tolerating(exists("k").lasting(5))];
        let text = wanted(&anchors, &node, &pods, &[]).unwrap();
        assert_eq!(
            text,
            r#"{"taints":[{"key":"k","value":"","timeAdded":"2089-05-18T15:33:20Z","#.to_owned()
                + r#""since":"2026-01-01T12:00:00Z"}]}"#
        );
        let node = node.annotated(Some(&text));
        let read = believed(&node, at(3)).unwrap().unwrap();
        assert_eq!(advance(Past::Recorded(&read), &node, at(3)), anchors);
    }

    #[test]
    fn clocks_a_little_apart_are_no_reason_to_record_anything() {
        let (node, anchors) = claiming(3);
        assert_eq!(
            wanted(&anchors, &node, &[pod("a").tolerating(exists("k").lasting(5))], &[]),
            None
        );
    }

    #[test]
    fn a_forged_record_moves_no_taint_that_says_by_itself_when_it_was_put_on() {
        let (node, _) = claiming(0);
        let forged = r#"{"taints":[{"key":"k","timeAdded":"2026-01-01T12:00:00Z","#.to_owned()
            + r#""since":"2020-01-01T00:00:00Z"},{"key":"k","since":"2020-01-01T00:00:00Z"}]}"#;
        let node = node.annotated(Some(&forged));
        let read = believed(&node, at(1)).unwrap().unwrap();
        let anchors = advance(Past::Recorded(&read), &node, at(1));
        assert_eq!(crate::taint::since(&anchors, &node.taints[0]).at, Stamp::of_second(at(0)));
    }

    #[test]
    fn nothing_that_a_record_says_of_the_time_before_its_node_was_registered_is_believed() {
        let text = |since: i64| {
            let since = at(since);
            format!(r#"{{"taints":[{{"key":"k","since":"{since}"}}],"#)
                + &format!(r#""outage":{{"since":"{since}","through":"{since}"}}}}"#)
        };
        let registered = Node { created: Some(Stamp::of_second(at(-100))), ..node("n1") };
        for (since, counts) in [(-4_000_000, false), (-106, false), (-105, true), (-50, true)] {
            let node = registered.clone().annotated(Some(&text(since)));
            let read = believed(&node, at(0)).unwrap().unwrap();
            assert_eq!(!read.first_seen.is_empty(), counts, "{since}");
            assert_eq!(read.outage.is_some(), counts, "{since}");
        }
    }

    #[test]
    fn order_in_memory_does_not_show_in_the_text() {
        let mut anchors = known();
        anchors.first_seen.reverse();
        assert_eq!(render(&anchors), render(&known()));
    }

    #[test]
    fn fields_of_a_later_version_are_ignored() {
        let text = r#"{"version":2,"taints":[{"key":"k","since":"2026-01-01T12:00:00Z","x":1}]}"#;
        let anchors = parse(text).unwrap();
        assert_eq!(anchors.first_seen.len(), 1);
        assert_eq!(&*anchors.first_seen[0].value, "");
    }

    #[test]
    fn garbage_is_refused_and_the_error_says_where_it_is() {
        for (text, expected) in [
            ("", "EOF"),
            ("yesterday", "line 1 column 1"),
            ("[1]", "invalid type"),
            (r#"{"taints":{}}"#, "expected a sequence"),
            (r#"{"taints":[{"since":"2026-01-01T12:00:00Z"}]}"#, "missing field `key`"),
            (r#"{"taints":[{"key":"k"}]}"#, "missing field `since`"),
            (r#"{"taints":[{"key":"k","since":1767268800}]}"#, "expected a string"),
            (r#"{"taints":[{"key":7,"since":"2026-01-01T12:00:00Z"}]}"#, "expected a string"),
            (r#"{"taints":[{"key":"k","since":"noon"}]}"#, r#"taints[0].since is "noon""#),
            (r#"{"outage":{"since":"2026-01-01T12:00:00Z"}}"#, "missing field `through`"),
            (
                r#"{"outage":{"since":"2026-01-01T12:00:00Z","through":"2026-13-01T12:00:00Z"}}"#,
                "outage.through",
            ),
            (
                r#"{"outage":{"since":"2026-01-01T12:00:01Z","through":"2026-01-01T12:00:00Z"}}"#,
                "outage.since is later",
            ),
            ("{} {}", "trailing"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(error.contains(SINCE_ANNOTATION), "{error}");
            assert!(error.contains("will be replaced"), "{error}");
        }
    }

    #[test]
    fn a_long_garbage_text_is_not_repeated_at_length() {
        let since = "x".repeat(10_000);
        let text = format!(r#"{{"taints":[{{"key":"k","since":"{since}"}}]}}"#);
        assert!(parse(&text).unwrap_err().to_string().len() < 300);
    }

    /// What should be on a node with this taint, given these pods.
    fn wanted_for(tainted: Taint, pods: &[Pod]) -> Option<String> {
        let node = node("n1").tainted(tainted);
        let anchors = advance(Past::Unknown, &node, at(0));
        wanted(&anchors, &node, pods, &[])
    }

    #[test]
    fn it_is_wanted_while_a_deadline_depends_on_it() {
        let timed = [pod("a"), pod("b").tolerating(exists("k").lasting(300))];
        assert_eq!(
            wanted_for(taint("k", ""), &timed).as_deref(),
            Some(r#"{"taints":[{"key":"k","value":"","since":"2026-01-01T12:00:00Z"}]}"#)
        );
    }

    #[test]
    fn it_is_wanted_for_an_outage_although_its_taint_has_time_added() {
        let timed = [pod("a").tolerating(exists("").lasting(300))];
        assert_eq!(
            wanted_for(not_ready(0), &timed).as_deref(),
            Some(r#"{"outage":{"since":"2026-01-01T12:00:00Z","through":"2026-01-01T12:00:00Z"}}"#)
        );
    }

    #[test]
    fn it_is_not_wanted_where_no_deadline_depends_on_it() {
        let timed = || pod("a").tolerating(exists("").lasting(300));
        assert_eq!(wanted_for(taint("k", "").added_at(0), &[timed()]), None);
        assert_eq!(wanted_for(taint("k", ""), &[]), None);
        for stranger in [
            pod("untolerating"),
            pod("for ever").tolerating(exists("k")),
            pod("for no time").tolerating(exists("k").lasting(0)),
            pod("of another taint").tolerating(exists("other").lasting(300)),
            timed().that_is(PodClass::Mirror),
            timed().that_is(PodClass::Finished),
            timed().that_is(PodClass::Terminating),
        ] {
            let name = Arc::clone(&stranger.name);
            assert_eq!(wanted_for(taint("k", ""), &[stranger]), None, "{name}");
        }
    }

    #[test]
    fn it_is_not_wanted_for_a_pod_that_goes_at_once_by_another_taint() {
        let node = node("n1").tainted(taint("k", "")).tainted(taint("z", ""));
        let anchors = advance(Past::Unknown, &node, at(0));
        let pod = pod("a").tolerating(exists("k").lasting(300));
        assert_eq!(wanted(&anchors, &node, [&pod], &[]), None);
    }

    #[test]
    fn it_is_wanted_although_another_taint_decides_for_now() {
        let node = node("n1").tainted(taint("k", "")).tainted(taint("z", "").added_at(0));
        let anchors = advance(Past::Unknown, &node, at(0));
        let pod = pod("a").tolerating(exists("k").lasting(300)).tolerating(exists("z").lasting(10));
        assert!(wanted(&anchors, &node, [&pod], &[]).is_some());
    }

    #[test]
    fn it_stays_through_a_gap_if_it_tells_of_the_outage_and_is_not_written_then() {
        let gap = Anchors {
            first_seen: Vec::new(),
            outage: Some(Outage { since: stamp(0), through: stamp(0), gap_from: Some(at(50)) }),
        };
        let untainted = node("n1").ready_is(ConditionStatus::False, -5);
        let text = render(&gap);
        let annotated = untainted.clone().annotated(Some(&text));
        assert_eq!(wanted(&gap, &annotated, [], &[]), Some(text.clone()));
        assert_eq!(wanted(&gap, &untainted, [], &[]), None);
        for other in ["{}", "garbage"] {
            let annotated = untainted.clone().annotated(Some(other));
            assert_eq!(wanted(&gap, &annotated, [], &[]), None);
        }
        let over = Anchors::default();
        let annotated = untainted.annotated(Some(&text));
        assert_eq!(wanted(&over, &annotated, [], &[]), None);
    }
}
