//! Strategic merge patches of a pod's status.
//!
//! A patch contains only the kubelet's own conditions, so those of others (`PodScheduled`,
//! `DisruptionTarget`) stay. It contains the UID, so it never changes another pod with the same name.

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
        Said::new("False", "ContainersNotReady", "the readiness delay is not over")
    };
    let mut conditions = vec![
        condition(pod, "Initialized", Said::new("True", "", ""), now),
        condition(pod, "ContainersReady", readiness, now),
        condition(pod, "Ready", readiness, now),
    ];
    if pod.condition("PodScheduled").is_none() {
        // Bound by whoever created it, past the scheduler: then the kubelet says so.
        conditions.push(condition(pod, "PodScheduled", Said::new("True", "", ""), now));
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
    let mut conditions =
        vec![condition(pod, "ContainersReady", over, now), condition(pod, "Ready", over, now)];
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
            "message": format!("Pod was rejected: {}", rejection.message),
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
        Self { status, reason, message }
    }
}

/// A condition; its transition time moves only if its status does.
fn condition(pod: &Pod, kind: &str, said: Said<'_>, now: Timestamp) -> Value {
    let stored = pod.condition(kind).filter(|stored| stored.status == said.status);
    let since = stored.and_then(|stored| stored.last_transition_time);
    json!({
        "type": kind,
        "status": said.status,
        "reason": said.reason,
        "message": said.message,
        "lastTransitionTime": seconds(since.unwrap_or(now)),
        "observedGeneration": generation(pod),
    })
}

/// The containers, all in one state. `ran`: whether they ever were started.
fn containers(pod: &Pod, ready: bool, ran: bool, state: &Value) -> Vec<Value> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let running = state.get("running").is_some();
    let report = |container: &Container| {
        let (image_id, id) = if ran {
            (container.image.as_str(), format!("hollow://{uid}/{}", container.name))
        } else {
            ("", String::new())
        };
        json!({
            "name": container.name,
            "image": container.image,
            "imageID": image_id,
            "containerID": id,
            "ready": ready,
            "started": running,
            "restartCount": 0,
            "state": state,
        })
    };
    pod.spec.containers.iter().map(report).collect()
}

/// The version of the spec that is reported on.
fn generation(pod: &Pod) -> i64 {
    pod.metadata.generation.unwrap_or(0)
}

fn status(pod: &Pod, mut status: Value) -> Value {
    status["observedGeneration"] = json!(generation(pod));
    json!({"metadata": {"uid": pod.metadata.uid}, "status": status})
}

/// The form in which the API stores times.
pub(super) fn seconds(time: Timestamp) -> String {
    format!("{time:.0}")
}

#[cfg(test)]
mod tests {
    use super::super::testing::{at, pod, uid};
    use super::*;

    const PLACE: Place<'static> = Place { host_ip: "172.16.0.1", pod_ip: "10.0.0.1" };

    fn types(report: &Value) -> Vec<&str> {
        let conditions = report["status"]["conditions"].as_array().unwrap();
        conditions.iter().map(|c| c["type"].as_str().unwrap()).collect()
    }

    fn find<'a>(report: &'a Value, kind: &str) -> &'a Value {
        let conditions = report["status"]["conditions"].as_array().unwrap();
        conditions.iter().find(|c| c["type"] == kind).unwrap()
    }

    #[test]
    fn a_running_pod_is_reported_with_all_that_others_read() {
        let report = running(&pod("a").build(), true, PLACE, at(0));
        assert_eq!(report["metadata"], json!({"uid": uid("a")}), "a namesake is not met");
        let status = &report["status"];
        assert_eq!(status["phase"], "Running");
        assert_eq!(status["startTime"], seconds(at(0)));
        assert_eq!(
            (&status["podIP"], &status["hostIP"]),
            (&json!("10.0.0.1"), &json!("172.16.0.1"))
        );
        assert_eq!(types(&report), ["Initialized", "ContainersReady", "Ready", "PodScheduled"]);
        assert_eq!(find(&report, "Ready")["status"], "True");
        let container = &status["containerStatuses"][0];
        assert_eq!((&container["name"], &container["ready"]), (&json!("main"), &json!(true)));
        assert_eq!(container["state"]["running"]["startedAt"], seconds(at(0)));
    }

    #[test]
    fn conditions_of_others_are_not_named_and_times_move_only_with_the_status() {
        let pod = pod("a")
            .running("False", "False")
            .condition("PodScheduled", "True", -5)
            .condition("DisruptionTarget", "True", -5)
            .build();
        let report = running(&pod, false, PLACE, at(50));
        assert_eq!(types(&report), ["Initialized", "ContainersReady", "Ready"]);
        assert_eq!(find(&report, "Ready")["lastTransitionTime"], seconds(at(0)));
        let report = running(&pod, true, PLACE, at(50));
        assert_eq!(find(&report, "Ready")["lastTransitionTime"], seconds(at(50)));
        assert_eq!(report["status"]["startTime"], seconds(at(0)), "the start stays");
    }

    #[test]
    fn an_address_is_kept_and_a_host_network_pod_has_its_nodes() {
        let mut with_ip = pod("a");
        with_ip.0["status"]["podIP"] = json!("10.9.9.9");
        let report = running(&with_ip.build(), true, PLACE, at(0));
        assert_eq!(report["status"]["podIP"], "10.9.9.9");
        let mut host = pod("a");
        host.0["spec"]["hostNetwork"] = json!(true);
        let report = running(&host.build(), true, PLACE, at(0));
        assert_eq!(report["status"]["podIP"], "172.16.0.1");
    }

    #[test]
    fn an_end_is_terminal_and_not_ready_and_says_how_the_containers_ended() {
        let up = pod("a").running("True", "True").build();
        #[rustfmt::skip]
        let table = [
            (Ending::Stopped, "Succeeded", "PodCompleted", 0, "Completed"),
            (Ending::Killed, "Failed", "PodFailed", 137, "Error"),
            (Ending::ShutDown, "Failed", "PodFailed", 137, "Error"),
            (Ending::NeverRan, "Failed", "PodFailed", 137, "ContainerStatusUnknown"),
        ];
        for (ending, phase, reason, exit_code, exit_reason) in table {
            let report = finished(&up, ending, at(9));
            assert_eq!(report["status"]["phase"], phase);
            let ready = find(&report, "Ready");
            assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!(reason)));
            assert_eq!(ready["lastTransitionTime"], seconds(at(9)));
            let container = &report["status"]["containerStatuses"][0];
            assert_eq!(container["ready"], false);
            let terminated = &container["state"]["terminated"];
            assert_eq!(terminated["exitCode"], exit_code);
            assert_eq!(terminated["reason"], exit_reason);
            let by_kubelet = types(&report).contains(&"DisruptionTarget");
            assert_eq!(by_kubelet, ending == Ending::ShutDown);
        }
    }

    #[test]
    fn a_rejection_names_no_containers() {
        let report = rejected(&pod("a").build(), &Rejection::new("OutOfcpu", "no"), at(0));
        assert_eq!(report["status"]["phase"], "Failed");
        assert_eq!(report["status"]["reason"], "OutOfcpu");
        assert_eq!(report["status"]["message"], "Pod was rejected: no");
        assert!(report["status"].get("containerStatuses").is_none());
    }

    #[test]
    fn times_have_whole_seconds() {
        assert_eq!(seconds("2026-01-01T12:00:00.999Z".parse().unwrap()), "2026-01-01T12:00:00Z");
    }
}
