//! P7: the names that users, alerts and policies match on. They are listed here independently of the
//! controller, from docs/metrics.md and from what upstream and draino write.

use serde_json::Value;

use super::text;

/// Component of the events of taint evictions.
const TAINTS: &str = "taint-eviction-controller";
/// Component of the events of cordons and drains.
const DRAINS: &str = "ostrakon";
/// Kind, type and reason of those about cordons and drains, and about the process itself.
const OF_DRAINS: [(&str, &str, &str); 23] = [
    ("Lease", "Warning", "ClockSkew"),
    ("Node", "Normal", "CordonStarting"),
    ("Node", "Normal", "CordonSucceeded"),
    ("Node", "Warning", "CordonFailed"),
    ("Node", "Normal", "CordonDeferred"),
    ("Node", "Normal", "UncordonStarting"),
    ("Node", "Normal", "UncordonSucceeded"),
    ("Node", "Warning", "UncordonFailed"),
    ("Node", "Normal", "DrainScheduled"),
    ("Node", "Warning", "DrainSchedulingFailed"),
    ("Node", "Normal", "DrainCancelled"),
    ("Node", "Normal", "DrainStarting"),
    ("Node", "Normal", "DrainSucceeded"),
    ("Node", "Warning", "DrainFailed"),
    ("Node", "Warning", "DrainStalled"),
    ("Node", "Warning", "DrainWaits"),
    ("Node", "Warning", "DrainedNodeLingers"),
    ("Node", "Warning", "DrainRecordRefused"),
    ("Node", "Warning", "DrainConditionRefused"),
    ("Node", "Warning", "DrainRecordUnreadable"),
    ("Node", "Warning", "GracePeriodCut"),
    ("Pod", "Normal", "DrainEviction"),
    ("Pod", "Warning", "DrainEvictionBlocked"),
];

/// How the messages begin that draino writes, by their reasons.
const DRAINO: [(&str, &str); 11] = [
    ("CordonStarting", "Cordoning node"),
    ("CordonSucceeded", "Cordoned node"),
    ("CordonFailed", "Cordoning failed: "),
    ("UncordonStarting", "Uncordoning node"),
    ("UncordonSucceeded", "Uncordoned node"),
    ("UncordonFailed", "Uncordoning failed: "),
    ("DrainScheduled", "Will drain node after "),
    ("DrainSchedulingFailed", "Drain scheduling failed: "),
    ("DrainStarting", "Draining node"),
    ("DrainSucceeded", "Drained node"),
    ("DrainFailed", "Draining failed: "),
];

/// The metrics that others' dashboards know, and must find.
const METRICS: [&str; 2] = [
    "taint_eviction_controller_pod_deletions_total",
    "taint_eviction_controller_pod_deletion_duration_seconds",
];
const DRAIN_METRICS: [&str; 4] = [
    "draino_cordoned_nodes_total",
    "draino_uncordoned_nodes_total",
    "draino_drain_scheduled_nodes_total",
    "draino_drained_nodes_total",
];

/// Whether an event is one that is promised.
pub(super) fn is_known_event(event: &Value) -> bool {
    let component = text(event, "/source/component");
    component == text(event, "/reportingComponent")
        && match component {
            TAINTS => is_of_taints(event),
            DRAINS => is_of_drains(event),
            _ => false,
        }
}

fn is_of_taints(event: &Value) -> bool {
    let (kind, reason) = (text(event, "/involvedObject/kind"), text(event, "/reason"));
    let about =
        ["/involvedObject/namespace", "/involvedObject/name"].map(|field| text(event, field));
    match (kind, text(event, "/type"), reason) {
        ("Pod", "Normal", "TaintManagerEviction") => {
            let about = about.join("/");
            let message = text(event, "/message");
            message == format!("Marking for deletion Pod {about}")
                || message == format!("Cancelling deletion of Pod {about}")
        }
        ("Pod", "Warning", "TaintManagerEvictionFailed" | "DisruptionConditionRefused")
        | ("Node", "Warning", "TaintRecordUnreadable") => true,
        _ => false,
    }
}

fn is_of_drains(event: &Value) -> bool {
    let [kind, level, reason, message] =
        ["/involvedObject/kind", "/type", "/reason", "/message"].map(|field| text(event, field));
    let begin = DRAINO.iter().find(|(of, _)| *of == reason).map_or("", |(_, begin)| begin);
    OF_DRAINS.contains(&(kind, level, reason)) && message.starts_with(begin)
}

/// Whether the condition `DrainScheduled` is as draino writes it.
pub(super) fn is_known_mark(condition: &Value) -> bool {
    matches!(text(condition, "/status"), "True" | "False")
        && text(condition, "/reason") == "Draino"
        && text(condition, "/message").starts_with("Drain activity scheduled ")
}

/// Whether the annotation `draino.planet.com/conditions` names these conditions, as draino writes
/// them: `Type=Status,Duration`, with semicolons.
pub(super) fn is_known_list(annotation: &str, record: &Value) -> bool {
    let claims = record.get("claims").and_then(Value::as_array).into_iter().flatten();
    let conditions = claims.filter_map(|claim| claim.get("conditions")?.as_array());
    let mut wanted: Vec<_> = conditions.flatten().filter_map(Value::as_str).collect();
    let mut listed: Vec<_> = annotation.split(';').collect();
    let is_one = |text: &&str| {
        let (_, rest) = text.split_once('=').unwrap_or_default();
        let (status, age) = rest.split_once(',').unwrap_or_default();
        matches!(status, "True" | "False" | "Unknown") && age.ends_with('s')
    };
    wanted.sort_unstable();
    wanted.dedup();
    listed.sort_unstable();
    listed == wanted && listed.iter().all(is_one)
}

/// What is wrong with the names of the metrics that a process serves.
pub(crate) fn metrics(served: &[&str], of_drains: bool) -> Result<(), String> {
    let page = include_str!("../../../docs/metrics.md");
    let is_documented =
        |name: &&str| page.lines().any(|line| line.starts_with(&format!("| `{name}` |")));
    if let Some(name) = served.iter().find(|name| !is_documented(name)) {
        return Err(format!("P7: a metric that docs/metrics.md does not know: {name}"));
    }
    let wanted = METRICS.iter().chain(if of_drains { &DRAIN_METRICS[..] } else { &[] });
    match wanted.into_iter().find(|name| !served.contains(name)) {
        Some(name) => Err(format!("P7: no metric {name} is served")),
        None => Ok(()),
    }
}
