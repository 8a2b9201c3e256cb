//! What is reported of a pod: the strategic merge patches of its status.
//!
//! A patch names only the kubelet's own conditions, so those of others (`PodScheduled`,
//! `DisruptionTarget`) stay. It carries the UID, so it never meets a namesake.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::lifecycle::Ending;
use super::objects::{Container, Pod};
use super::switches::Rejection;

/// Where a pod runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// Address of its node.
    pub(super) host_ip: &'a str,
    /// Address for the pod, unless it has one or uses its node's.
    pub(super) pod_ip: &'a str,
}

/// It runs, and is ready or not.
pub(super) fn running(pod: &Pod, ready: bool, place: Place<'_>, now: Timestamp) -> Value {
    let started = pod.status.start_time.unwrap_or(now);
    let pod_ip = match &pod.status.pod_ip {
        Some(ip) => ip.as_str(),
        None if pod.spec.host_network => place.host_ip,
        None => place.pod_ip,
    };
    let readiness = if ready {
        Said::new("True", "", "")
    } else {
        Said::new(
            "False",
            "ContainersNotReady",
            "the readiness delay is not over",
        )
    };
    let mut conditions = vec![
        condition(pod, "Initialized", Said::new("True", "", ""), now),
        condition(pod, "ContainersReady", readiness, now),
        condition(pod, "Ready", readiness, now),
    ];
    if pod.condition("PodScheduled").is_none() {
        // Bound by whoever created it, past the scheduler: then the kubelet says so.
        conditions.push(condition(
            pod,
            "PodScheduled",
            Said::new("True", "", ""),
            now,
        ));
    }
    let state = json!({"running": {"startedAt": seconds(started)}});
    status(
        pod,
        json!({
            "phase": "Running",
            "startTime": seconds(started),
            "hostIP": place.host_ip,
            "hostIPs": [{"ip": place.host_ip}],
            "podIP": pod_ip,
            "podIPs": [{"ip": pod_ip}],
            "conditions": conditions,
            "containerStatuses": containers(pod, ready, true, &state),
        }),
    )
}

/// It came to an end.
pub(super) fn finished(pod: &Pod, ending: Ending, now: Timestamp) -> Value {
    let (phase, reason) = match ending {
        Ending::Stopped => ("Succeeded", "PodCompleted"),
        Ending::Killed | Ending::NeverRan | Ending::ShutDown => ("Failed", "PodFailed"),
    };
    let started = pod.status.start_time.unwrap_or(now);
    let (exit_code, exit_reason) = match ending {
        Ending::Stopped => (0, "Completed"),
        Ending::Killed | Ending::ShutDown => (137, "Error"),
        Ending::NeverRan => (137, "ContainerStatusUnknown"),
    };
    let mut terminated = json!({"exitCode": exit_code, "reason": exit_reason});
    if ending != Ending::NeverRan {
        terminated["startedAt"] = json!(seconds(started));
        terminated["finishedAt"] = json!(seconds(now));
    }
    let state = json!({"terminated": terminated});
    let over = Said::new("False", reason, "");
    let mut conditions = vec![
        condition(pod, "ContainersReady", over, now),
        condition(pod, "Ready", over, now),
    ];
    let mut report = json!({
        "phase": phase,
        "startTime": seconds(started),
        "containerStatuses": containers(pod, false, ending != Ending::NeverRan, &state),
    });
    if ending == Ending::ShutDown {
        let message = "Pod was terminated in response to imminent node shutdown.";
        let disrupted = Said::new("True", "TerminationByKubelet", message);
        conditions.push(condition(pod, "DisruptionTarget", disrupted, now));
        report["reason"] = json!("Terminated");
        report["message"] = json!(message);
    }
    report["conditions"] = json!(conditions);
    status(pod, report)
}

/// It was not taken.
pub(super) fn rejected(pod: &Pod, rejection: &Rejection, now: Timestamp) -> Value {
    status(
        pod,
        json!({
            "phase": "Failed",
            "reason": rejection.reason,
            "message": rejection.message,
            "startTime": seconds(now),
        }),
    )
}

/// Status, reason and message of a condition.
#[derive(Clone, Copy)]
struct Said<'a> {
    status: &'a str,
    reason: &'a str,
    message: &'a str,
}

impl<'a> Said<'a> {
    fn new(status: &'a str, reason: &'a str, message: &'a str) -> Self {
        Self {
            status,
            reason,
            message,
        }
    }
}

/// A condition; its transition time moves only if its status does.
fn condition(pod: &Pod, kind: &str, said: Said<'_>, now: Timestamp) -> Value {
    let stored = pod
        .condition(kind)
        .filter(|stored| stored.status == said.status);
    let since = stored.and_then(|stored| stored.last_transition_time);
    // A null takes an old reason or message away.
    let text = |text: &str| {
        if text.is_empty() {
            Value::Null
        } else {
            json!(text)
        }
    };
    json!({
        "type": kind,
        "status": said.status,
        "reason": text(said.reason),
        "message": text(said.message),
        "lastTransitionTime": seconds(since.unwrap_or(now)),
        "observedGeneration": pod.metadata.generation,
    })
}

/// The containers, all in one state. `ran`: whether they ever were started.
fn containers(pod: &Pod, ready: bool, ran: bool, state: &Value) -> Vec<Value> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let running = state.get("running").is_some();
    let report = |container: &Container| {
        let id = format!("hollow://{uid}/{}", container.name);
        json!({
            "name": container.name,
            "image": container.image,
            "imageID": if ran { container.image.as_str() } else { "" },
            "containerID": ran.then_some(id),
            "ready": ready,
            "started": running,
            "restartCount": 0,
            "state": state,
        })
    };
    pod.spec.containers.iter().map(report).collect()
}

fn status(pod: &Pod, mut status: Value) -> Value {
    status["observedGeneration"] = json!(pod.metadata.generation);
    json!({"metadata": {"uid": pod.metadata.uid}, "status": status})
}

/// The form in which the API stores times.
pub(super) fn seconds(time: Timestamp) -> String {
    format!("{time:.0}")
}
