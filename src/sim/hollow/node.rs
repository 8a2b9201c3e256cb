//! A hollow node: its registration and its reported status.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node as NodeObject, NodeSpec, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::mirror::StaticPod;
use super::objects::Condition;
use super::report::seconds;
use super::switches::{Conduct, HollowCondition, Switch};
use crate::model::NodeName;

/// The kubelet version that a hollow node claims: the release whose behaviour is imitated.
const KUBELET_VERSION: &str = "v1.36.3";

const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";
const OS_LABEL: &str = "kubernetes.io/os";
const ARCH_LABEL: &str = "kubernetes.io/arch";
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
const REGION_LABEL: &str = "topology.kubernetes.io/region";

/// A node to be registered.
#[derive(Clone, Debug)]
pub struct HollowNode {
    pub(super) name: NodeName,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    taints: Vec<Taint>,
    capacity: BTreeMap<String, String>,
    pub(super) static_pods: Vec<StaticPod>,
    pub(super) switches: Vec<Switch>,
}

impl HollowNode {
    /// A node with the labels that every kubelet sets, 4 CPUs, 16 GiB of memory, 100 GiB of
    /// ephemeral storage and room for 110 pods.
    pub fn new(name: &str) -> Self {
        let labels = [(HOSTNAME_LABEL, name), (OS_LABEL, "linux"), (ARCH_LABEL, "amd64")];
        let capacity =
            [("cpu", "4"), ("memory", "16Gi"), ("ephemeral-storage", "100Gi"), ("pods", "110")];
        Self {
            name: NodeName::from(name),
            labels: labels.map(owned).into(),
            annotations: BTreeMap::new(),
            taints: Vec::new(),
            capacity: capacity.map(owned).into(),
            static_pods: Vec::new(),
            switches: Vec::new(),
        }
    }

    /// Adds a label, or replaces one.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.extend([owned((key, value))]);
        self
    }

    /// Puts it into a zone.
    pub fn zone(self, zone: &str) -> Self {
        self.label(ZONE_LABEL, zone)
    }

    /// Puts it into a region.
    pub fn region(self, region: &str) -> Self {
        self.label(REGION_LABEL, region)
    }

    /// Adds an annotation, or replaces one.
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.extend([owned((key, value))]);
        self
    }

    /// Registers it with that taint.
    pub fn taint(mut self, key: &str, value: &str, effect: &str) -> Self {
        self.taints.push(Taint {
            key: key.to_owned(),
            value: Some(value.to_owned()),
            effect: effect.to_owned(),
            time_added: None,
        });
        self
    }

    /// Gives it that much of a resource (`cpu`, `memory`, `pods`, `ephemeral-storage` or any
    /// other), as a quantity.
    pub fn capacity(mut self, resource: &str, quantity: &str) -> Self {
        self.capacity.extend([owned((resource, quantity))]);
        self
    }

    /// Has it run that static pod.
    pub fn static_pod(mut self, pod: StaticPod) -> Self {
        self.static_pods.push(pod);
        self
    }

    /// Sets that switch from the beginning.
    pub fn with(mut self, switch: Switch) -> Self {
        self.switches.push(switch);
        self
    }

    /// The object that is created.
    pub(super) fn object(&self) -> NodeObject {
        NodeObject {
            metadata: ObjectMeta {
                name: Some(self.name.to_string()),
                labels: Some(self.labels.clone()),
                annotations: (!self.annotations.is_empty()).then(|| self.annotations.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec {
                taints: (!self.taints.is_empty()).then(|| self.taints.clone()),
                ..NodeSpec::default()
            }),
            status: None,
        }
    }

    /// The merge patch for a node that is there already: a kubelet re-asserts its labels.
    pub(super) fn labels_patch(&self) -> Value {
        json!({"metadata": {"labels": self.labels, "annotations": self.annotations}})
    }

    /// The strategic merge patch of its status. `stored`: the conditions that it has.
    pub(super) fn status_patch(
        &self,
        address: &str,
        conduct: &Conduct,
        stored: &[Condition],
        now: Timestamp,
    ) -> Value {
        let stamped = |said: &HollowCondition| stamp(said, stored, now);
        let mut conditions: Vec<_> = conditions(conduct).iter().map(stamped).collect();
        for kind in &conduct.withdrawn {
            conditions.push(json!({"type": kind, "$patch": "delete"}));
        }
        json!({"status": {
            "capacity": self.capacity,
            "allocatable": self.capacity,
            "addresses": [
                {"type": "InternalIP", "address": address},
                {"type": "Hostname", "address": self.name.as_str()},
            ],
            "nodeInfo": {
                "machineID": self.name.as_str(),
                "systemUUID": self.name.as_str(),
                "bootID": self.name.as_str(),
                "kernelVersion": "0.0.0-hollow",
                "osImage": "hollow",
                "containerRuntimeVersion": "hollow://0.0.0",
                "kubeletVersion": KUBELET_VERSION,
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
            "conditions": conditions,
        }})
    }
}

/// Whether the stored conditions say something else than the node does.
pub(super) fn is_outdated(stored: &[Condition], conduct: &Conduct) -> bool {
    let withdrawn = stored.iter().any(|condition| conduct.withdrawn.contains(&condition.kind));
    let is_stored = |said: &HollowCondition| {
        stored.iter().any(|stored| {
            (&stored.kind, &stored.status, &stored.reason, &stored.message)
                == (&said.kind, &said.status, &said.reason, &said.message)
        })
    };
    withdrawn || !conditions(conduct).iter().all(is_stored)
}

/// What the node says of itself; Ready comes last, as from a kubelet.
fn conditions(conduct: &Conduct) -> Vec<HollowCondition> {
    let pressure = |kind, on, [good, bad]: [&str; 2], what| {
        let (status, reason, has) =
            if on { ("True", bad, "has") } else { ("False", good, "has no") };
        HollowCondition::new(kind, status).because(reason, &format!("kubelet {has} {what}"))
    };
    let memory = ["KubeletHasSufficientMemory", "KubeletHasInsufficientMemory"];
    let disk = ["KubeletHasNoDiskPressure", "KubeletHasDiskPressure"];
    let pid = ["KubeletHasSufficientPID", "KubeletHasInsufficientPID"];
    let own = [
        pressure("MemoryPressure", conduct.memory_pressure, memory, "memory pressure"),
        pressure("DiskPressure", conduct.disk_pressure, disk, "disk pressure"),
        pressure("PIDPressure", conduct.pid_pressure, pid, "PID pressure"),
    ];
    let not_ready =
        |message| HollowCondition::new("Ready", "False").because("KubeletNotReady", message);
    let ready = if conduct.shutdown.is_some() {
        not_ready("node is shutting down")
    } else if conduct.not_ready {
        not_ready("container runtime is down")
    } else {
        HollowCondition::new("Ready", "True")
            .because("KubeletReady", "kubelet is posting ready status")
    };
    let mut all: Vec<_> = own.into_iter().collect();
    all.retain(|condition| !conduct.conditions.contains_key(&condition.kind));
    all.extend(conduct.conditions.values().filter(|said| said.kind != "Ready").cloned());
    all.push(conduct.conditions.get("Ready").cloned().unwrap_or(ready));
    all
}

/// The condition with its times. The transition time moves only if the status does.
fn stamp(said: &HollowCondition, stored: &[Condition], now: Timestamp) -> Value {
    let same = stored.iter().find(|old| old.kind == said.kind && old.status == said.status);
    let since = said.since.or_else(|| same?.last_transition_time);
    json!({
        "type": said.kind,
        "status": said.status,
        "reason": said.reason,
        "message": said.message,
        "lastHeartbeatTime": seconds(now),
        "lastTransitionTime": seconds(since.unwrap_or(now)),
    })
}

fn owned((key, value): (&str, &str)) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::shutdown::ShutdownPlan;
    use super::super::testing::at;
    use super::*;

    fn conduct(switches: impl IntoIterator<Item = Switch>) -> Conduct {
        let mut conduct = Conduct::default();
        for switch in switches {
            conduct.apply(switch, at(0));
        }
        conduct
    }

    /// What is stored after the patch was written.
    fn stored(conduct: &Conduct, now: Timestamp) -> Vec<Condition> {
        let patch = HollowNode::new("n1").status_patch("172.16.0.1", conduct, &[], now);
        serde_json::from_value(patch["status"]["conditions"].clone()).unwrap()
    }

    fn of<'a>(conditions: &'a [Condition], kind: &str) -> &'a Condition {
        conditions.iter().find(|c| c.kind == kind).unwrap()
    }

    #[test]
    fn a_node_is_registered_with_the_labels_of_a_kubelet_and_its_own() {
        let node = HollowNode::new("n1").zone("a").region("r").label("x", "y");
        let labels = node.taint("dedicated", "gpu", "NoExecute").object().metadata.labels.unwrap();
        let pairs: Vec<_> =
            labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(
            pairs,
            [
                ("kubernetes.io/arch", "amd64"),
                ("kubernetes.io/hostname", "n1"),
                ("kubernetes.io/os", "linux"),
                ("topology.kubernetes.io/region", "r"),
                ("topology.kubernetes.io/zone", "a"),
                ("x", "y"),
            ]
        );
    }

    #[test]
    fn a_healthy_node_reports_four_conditions_with_ready_last() {
        let conditions = stored(&conduct([]), at(0));
        let said: Vec<_> = conditions
            .iter()
            .map(|c| (c.kind.as_str(), c.status.as_str(), c.reason.as_str()))
            .collect();
        assert_eq!(
            said,
            [
                ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                ("PIDPressure", "False", "KubeletHasSufficientPID"),
                ("Ready", "True", "KubeletReady"),
            ]
        );
    }

    #[test]
    fn each_switch_shows_in_its_condition() {
        let shutdown = Switch::Shutdown(Some(ShutdownPlan::default()));
        let deadlock = HollowCondition::new("KernelDeadlock", "True").because("Stuck", "");
        let overruled = HollowCondition::new("Ready", "Unknown").because("Lost", "");
        #[rustfmt::skip]
        let table = [
            (Switch::NotReady(true), "Ready", "False", "KubeletNotReady"),
            (shutdown, "Ready", "False", "KubeletNotReady"),
            (Switch::MemoryPressure(true), "MemoryPressure", "True", "KubeletHasInsufficientMemory"),
            (Switch::DiskPressure(true), "DiskPressure", "True", "KubeletHasDiskPressure"),
            (Switch::PidPressure(true), "PIDPressure", "True", "KubeletHasInsufficientPID"),
            (Switch::Condition(deadlock), "KernelDeadlock", "True", "Stuck"),
            (Switch::Condition(overruled), "Ready", "Unknown", "Lost"),
        ];
        let healthy = stored(&conduct([]), at(0));
        for (switch, kind, status, reason) in table {
            let conduct = conduct([switch]);
            assert!(is_outdated(&healthy, &conduct), "{kind}");
            let conditions = stored(&conduct, at(0));
            assert!(!is_outdated(&conditions, &conduct), "{kind}");
            assert_eq!(conditions.iter().filter(|c| c.kind == kind).count(), 1);
            assert_eq!(conditions.last().unwrap().kind, "Ready");
            let said = of(&conditions, kind);
            assert_eq!((said.status.as_str(), said.reason.as_str()), (status, reason));
        }
    }

    #[test]
    fn a_transition_time_moves_only_when_the_status_does() {
        let node = HollowNode::new("n1");
        let healthy = stored(&conduct([]), at(0));
        let patch = |conduct: &Conduct| node.status_patch("", conduct, &healthy, at(60));
        let after = |conduct| -> Vec<Condition> {
            serde_json::from_value(patch(&conduct)["status"]["conditions"].clone()).unwrap()
        };
        let same = after(conduct([]));
        assert_eq!(of(&same, "Ready").last_transition_time, Some(at(0)));
        let failed = after(conduct([Switch::NotReady(true)]));
        assert_eq!(of(&failed, "Ready").last_transition_time, Some(at(60)));
        assert_eq!(of(&failed, "DiskPressure").last_transition_time, Some(at(0)));
        let dated = HollowCondition::new("Old", "True").since(at(-3600));
        let dated = after(conduct([Switch::Condition(dated)]));
        assert_eq!(of(&dated, "Old").last_transition_time, Some(at(-3600)));
    }

    #[test]
    fn a_condition_that_was_taken_off_is_deleted_and_that_of_others_is_not() {
        let set = Switch::Condition(HollowCondition::new("Mine", "True"));
        let stored = stored(&conduct([set.clone()]), at(0));
        let conduct = conduct([set, Switch::NoCondition("Mine".to_owned())]);
        assert!(is_outdated(&stored, &conduct));
        let patch = HollowNode::new("n1").status_patch("", &conduct, &stored, at(0));
        let conditions = patch["status"]["conditions"].as_array().unwrap();
        assert!(conditions.contains(&json!({"type": "Mine", "$patch": "delete"})));

        let mut healthy = self::stored(&Conduct::default(), at(0));
        healthy.push(Condition { kind: "NetworkUnavailable".to_owned(), ..Condition::default() });
        assert!(!is_outdated(&healthy, &Conduct::default()));
    }
}
