//! Tables for `kubectl get`. The server defines the columns.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::form::{Rows, metadata};
use super::route::View;
use crate::sim::embedded::object::{
    at, condition, is_finished, is_terminating, list, meta, moment, number, text,
};
use crate::sim::embedded::resource::Resource;

/// A column: name, type, and whether it is shown only on `-o wide`.
type Column = (&'static str, &'static str, bool);

const NODES: &[Column] = &[
    ("Name", "string", false),
    ("Status", "string", false),
    ("Roles", "string", false),
    ("Age", "string", false),
    ("Version", "string", false),
    ("Internal-IP", "string", true),
    ("External-IP", "string", true),
    ("OS-Image", "string", true),
    ("Kernel-Version", "string", true),
    ("Container-Runtime", "string", true),
];

const PODS: &[Column] = &[
    ("Name", "string", false),
    ("Ready", "string", false),
    ("Status", "string", false),
    ("Restarts", "string", false),
    ("Age", "string", false),
    ("IP", "string", true),
    ("Node", "string", true),
    ("Nominated Node", "string", true),
    ("Readiness Gates", "string", true),
];

const EVENTS: &[Column] = &[
    ("Last Seen", "string", false),
    ("Type", "string", false),
    ("Reason", "string", false),
    ("Object", "string", false),
    ("Subobject", "string", true),
    ("Source", "string", true),
    ("Message", "string", false),
    ("First Seen", "string", true),
    ("Count", "string", true),
    ("Name", "string", true),
];

const BUDGETS: &[Column] = &[
    ("Name", "string", false),
    ("Min Available", "string", false),
    ("Max Unavailable", "string", false),
    ("Allowed Disruptions", "integer", false),
    ("Age", "string", false),
];

const LEASES: &[Column] =
    &[("Name", "string", false), ("Holder", "string", false), ("Age", "string", false)];

const NAMESPACES: &[Column] =
    &[("Name", "string", false), ("Status", "string", false), ("Age", "string", false)];

const REPLICATED: &[Column] = &[
    ("Name", "string", false),
    ("Desired", "integer", false),
    ("Current", "integer", false),
    ("Ready", "integer", false),
    ("Age", "string", false),
];

const OTHERS: &[Column] = &[("Name", "string", false), ("Age", "string", false)];

fn columns(view: View) -> &'static [Column] {
    match view.resource {
        Resource::Nodes => NODES,
        Resource::Pods => PODS,
        Resource::Events => EVENTS,
        Resource::PodDisruptionBudgets => BUDGETS,
        Resource::Leases => LEASES,
        Resource::Namespaces => NAMESPACES,
        Resource::ReplicaSets
        | Resource::StatefulSets
        | Resource::Deployments
        | Resource::ReplicationControllers => REPLICATED,
        _ => OTHERS,
    }
}

/// A table of these rows. `list` is the metadata of the list.
pub(super) fn table(view: View, list: Value, rows: Vec<Value>) -> Value {
    let column = |(name, kind, wide): &Column| {
        json!({
            "name": name,
            "type": kind,
            "format": if *name == "Name" { "name" } else { "" },
            "description": "",
            "priority": i32::from(*wide),
        })
    };
    let columns: Vec<_> = columns(view).iter().map(column).collect();
    let mut table = json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "columnDefinitions": columns,
    });
    table["metadata"] = list;
    table["rows"] = rows.into();
    table
}

/// The row of an object.
pub(super) fn row(view: View, object: &Value, rows: Rows, now: Timestamp) -> Value {
    let cells = match view.resource {
        Resource::Nodes => node(object, now),
        Resource::Pods => pod(object, now),
        Resource::Events => event(object, now),
        Resource::PodDisruptionBudgets => budget(object, now),
        Resource::Leases => {
            let holder = text(object, &["spec", "holderIdentity"]);
            json!([meta(object, "name"), holder, age(object, now)])
        }
        Resource::Namespaces => {
            let phase = text(object, &["status", "phase"]);
            json!([meta(object, "name"), phase, age(object, now)])
        }
        Resource::ReplicaSets
        | Resource::StatefulSets
        | Resource::Deployments
        | Resource::ReplicationControllers => {
            let count = |path: &[&str]| number(object, path).unwrap_or(0);
            json!([
                meta(object, "name"),
                count(&["spec", "replicas"]),
                count(&["status", "replicas"]),
                count(&["status", "readyReplicas"]),
                age(object, now),
            ])
        }
        _ => json!([meta(object, "name"), age(object, now)]),
    };
    match rows {
        Rows::Bare => json!({"cells": cells}),
        Rows::Metadata => json!({"cells": cells, "object": metadata(object)}),
        Rows::Whole => json!({"cells": cells, "object": object}),
    }
}

fn node(node: &Value, now: Timestamp) -> Value {
    let mut status = match condition(node, "Ready").map(|c| text(c, &["status"])) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if at(node, &["spec", "unschedulable"]) == &Value::Bool(true) {
        status.push_str(",SchedulingDisabled");
    }
    let labels = at(node, &["metadata", "labels"]).as_object();
    let labels = labels.into_iter().flatten().map(|(label, _)| label);
    let roles: Vec<_> = labels.filter_map(|l| l.strip_prefix("node-role.kubernetes.io/")).collect();
    let address = |kind: &str| {
        let all = list(node, &["status", "addresses"]).iter();
        let found = all.filter(|a| text(a, &["type"]) == kind).map(|a| text(a, &["address"]));
        or(found.clone().next().unwrap_or_default(), "<none>")
    };
    let info = |field| or(text(node, &["status", "nodeInfo", field]), "<unknown>");
    json!([
        meta(node, "name"),
        status,
        or(&roles.join(","), "<none>"),
        age(node, now),
        text(node, &["status", "nodeInfo", "kubeletVersion"]),
        address("InternalIP"),
        address("ExternalIP"),
        info("osImage"),
        info("kernelVersion"),
        info("containerRuntimeVersion"),
    ])
}

fn pod(pod: &Value, now: Timestamp) -> Value {
    let statuses = list(pod, &["status", "containerStatuses"]);
    let ready = statuses.iter().filter(|s| at(s, &["ready"]) == &Value::Bool(true));
    let restarts: i64 = statuses.iter().filter_map(|s| number(s, &["restartCount"])).sum();
    json!([
        meta(pod, "name"),
        format!("{}/{}", ready.count(), list(pod, &["spec", "containers"]).len()),
        pod_status(pod),
        restarts.to_string(),
        age(pod, now),
        or(text(pod, &["status", "podIP"]), "<none>"),
        or(text(pod, &["spec", "nodeName"]), "<none>"),
        or(text(pod, &["status", "nominatedNodeName"]), "<none>"),
        "<none>",
    ])
}

fn pod_status(pod: &Value) -> &str {
    if is_terminating(pod) && !is_finished(pod) {
        return "Terminating";
    }
    let reason = text(pod, &["status", "reason"]);
    if !reason.is_empty() {
        return reason;
    }
    let of_containers = list(pod, &["status", "containerStatuses"]).iter().find_map(|status| {
        let why = |state| Some(text(status, &["state", state, "reason"])).filter(|r| !r.is_empty());
        why("waiting").or_else(|| why("terminated"))
    });
    of_containers.unwrap_or_else(|| text(pod, &["status", "phase"]))
}

fn event(event: &Value, now: Timestamp) -> Value {
    let since = |paths: &[&[&str]]| paths.iter().find_map(|path| moment(event, path));
    let first = since(&[&["firstTimestamp"], &["eventTime"]]);
    let last = since(&[&["series", "lastObservedTime"], &["lastTimestamp"], &["eventTime"]]);
    let shown = |at: Option<Timestamp>| at.map_or("<unknown>".to_owned(), |at| duration(at, now));
    let count = number(event, &["series", "count"]).or_else(|| number(event, &["count"]));
    let count = count.unwrap_or(1).max(1);
    let seen = if count > 1 {
        format!("{} (x{count} over {})", shown(last), shown(first))
    } else {
        shown(last.or(first))
    };
    let kind = text(event, &["involvedObject", "kind"]).to_lowercase();
    let source = or(text(event, &["source", "component"]), text(event, &["reportingComponent"]));
    json!([
        seen,
        text(event, &["type"]),
        text(event, &["reason"]),
        format!("{kind}/{}", text(event, &["involvedObject", "name"])),
        text(event, &["involvedObject", "fieldPath"]),
        source,
        text(event, &["message"]).trim(),
        shown(first),
        count.to_string(),
        meta(event, "name"),
    ])
}

fn budget(budget: &Value, now: Timestamp) -> Value {
    let limit = |field| match at(budget, &["spec", field]) {
        Value::Null => "N/A".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    json!([
        meta(budget, "name"),
        limit("minAvailable"),
        limit("maxUnavailable"),
        number(budget, &["status", "disruptionsAllowed"]).unwrap_or(0),
        age(budget, now),
    ])
}

fn or<'a>(text: &'a str, otherwise: &'a str) -> String {
    if text.is_empty() { otherwise } else { text }.to_owned()
}

fn age(object: &Value, now: Timestamp) -> String {
    let created = moment(object, &["metadata", "creationTimestamp"]);
    created.map_or("<unknown>".to_owned(), |created| duration(created, now))
}

/// The time from `since` to `now`, as `kubectl` shows it: two units at most, fewer the longer it
/// is.
fn duration(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let years = days / 365;
    let two = |large: i64, unit: char, small: i64, rest: char| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{rest}"),
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, 'm', seconds % 60, 's'),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, 'h', minutes % 60, 'm'),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, 'd', hours % 24, 'h'),
        _ if years < 2 => format!("{days}d"),
        _ if years < 8 => two(years, 'y', days % 365, 'd'),
        _ => format!("{years}y"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(resource: Resource, object: &Value) -> Vec<Value> {
        let view = View { resource, new_events: false };
        let now = "2026-01-01T12:05:00Z".parse().unwrap();
        let row = row(view, object, Rows::Bare, now);
        let cells = row["cells"].as_array().unwrap().clone();
        assert_eq!(cells.len(), columns(view).len());
        cells
    }

    #[test]
    fn a_row_has_as_many_cells_as_there_are_columns() {
        for resource in Resource::ALL {
            cells(resource, &json!({"metadata": {"name": "a"}}));
        }
    }

    #[test]
    fn a_cordoned_node_says_so() {
        let node = json!({
            "metadata": {
                "name": "n1",
                "creationTimestamp": "2026-01-01T12:00:00Z",
                "labels": {"node-role.kubernetes.io/worker": ""},
            },
            "spec": {"unschedulable": true},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        let cells = cells(Resource::Nodes, &node);
        assert_eq!(cells[1], "Ready,SchedulingDisabled");
        assert_eq!((&cells[2], &cells[3]), (&json!("worker"), &json!("5m")));
    }

    #[test]
    fn a_terminating_pod_says_so_until_it_has_ended() {
        let mut pod = json!({
            "metadata": {"name": "a", "deletionTimestamp": "2026-01-01T12:00:30Z"},
            "spec": {"containers": [{}, {}], "nodeName": "n1"},
            "status": {"phase": "Running", "containerStatuses": [{"ready": true}]},
        });
        let before = cells(Resource::Pods, &pod);
        assert_eq!((&before[1], &before[2]), (&json!("1/2"), &json!("Terminating")));
        pod["status"]["phase"] = json!("Failed");
        assert_eq!(cells(Resource::Pods, &pod)[2], "Failed");
    }

    #[test]
    fn an_event_tells_how_often_it_was_seen() {
        let event = json!({
            "involvedObject": {"kind": "Pod", "name": "a"},
            "firstTimestamp": "2026-01-01T12:00:00Z",
            "lastTimestamp": "2026-01-01T12:04:00Z",
            "count": 3,
        });
        let cells = cells(Resource::Events, &event);
        assert_eq!(cells[0], "60s (x3 over 5m)");
        assert_eq!(cells[3], "pod/a");
    }

    #[test]
    fn durations_are_short() {
        let shown = |seconds: i64| {
            let now = Timestamp::from_second(1_000_000_000).unwrap();
            duration(Timestamp::from_second(1_000_000_000 - seconds).unwrap(), now)
        };
        for (seconds, wanted) in [
            (-5, "<invalid>"),
            (0, "0s"),
            (119, "119s"),
            (121, "2m1s"),
            (3600, "60m"),
            (10_860, "3h1m"),
            (90_000, "25h"),
            (176_400, "2d1h"),
            (86_400 * 30, "30d"),
            (86_400 * 731, "2y1d"),
        ] {
            assert_eq!(shown(seconds), wanted);
        }
    }
}
