//! P7: the names that users, alerts and policies match on. They are listed here independently of the
//! controller, from docs/metrics.md and from what upstream and draino write.

use serde_json::Value;

use super::text;

/// Objects, types, reasons, components and messages of all events.
const EVENTS: &str = include_str!("../../../docs/events.md");

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

/// Whether an event is one that is promised, in the words of docs/events.md.
pub(super) fn is_known_event(event: &Value) -> bool {
    let [component, kind, level, reason, message] =
        ["/source/component", "/involvedObject/kind", "/type", "/reason", "/message"]
            .map(|field| text(event, field));
    let row = format!("| `{reason}` | {kind} | {level} | ");
    let sections = EVENTS.split("\n## ").skip(1);
    let section = sections.into_iter().find(|section| section.contains(&row));
    let Some((before, row)) = section.and_then(|section| section.split_once(&row)) else {
        return false;
    };
    let messages = row.split(" | ").next().unwrap_or_default();
    let [namespace, name] =
        ["/involvedObject/namespace", "/involvedObject/name"].map(|field| text(event, field));
    let messages = messages.replace("{namespace}/{name}", &format!("{namespace}/{name}"));
    component == text(event, "/reportingComponent")
        && before.contains(&format!("\nComponent `{component}`"))
        && messages.split('`').skip(1).step_by(2).any(|form| has_form(form, message))
}

/// Whether a message is of this form: the same but for what stands in braces.
fn has_form(form: &str, message: &str) -> bool {
    let mut rest = message;
    let is_alike = form.split('{').enumerate().all(|(number, part)| {
        let part = if number == 0 { part } else { part.split_once('}').map_or("", |(_, end)| end) };
        let Some(at) = rest.find(part).filter(|at| number > 0 || *at == 0) else { return false };
        rest = &rest[at + part.len()..];
        true
    });
    is_alike && (rest.is_empty() || form.ends_with('}'))
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
