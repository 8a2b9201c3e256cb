//! Nodes and pods as the API server stores them: JSON, of the size and with the parts that they
//! have in a cluster at work.

use bytes::Bytes;
use serde_json::{Value, json};

/// A pod that a loader writes.
#[derive(Clone, Debug)]
pub(crate) struct StoredPod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl StoredPod {
    pub(crate) fn key(&self) -> String {
        format!("/registry/pods/{}/{}", self.namespace, self.name)
    }
}

/// What differs from pod to pod, in the template. No other `@` may be there.
const NAMESPACE: &str = "@namespace@";
const NAME: &str = "@name@";
const UID: &str = "@uid@";
const NODE: &str = "@node@";
const ADDRESS: &str = "@address@";

/// A pod of 5 KB, to be filled in: a web server of a `ReplicaSet`, running for a while.
#[derive(Debug)]
pub(crate) struct PodTemplate(String);

impl PodTemplate {
    /// A template for pods that were created at `born`.
    pub(crate) fn new(born: &str) -> Self {
        let object = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": pod_metadata(born),
            "spec": pod_spec(),
            "status": pod_status(born),
        });
        Self(object.to_string())
    }

    pub(crate) fn fill(&self, pod: &StoredPod, node: &str, address: &str) -> Bytes {
        let mut text = String::with_capacity(self.0.len() + 256);
        let mut rest = self.0.as_str();
        while let Some((before, after)) = rest.split_once('@') {
            text.push_str(before);
            let Some((word, after)) = after.split_once('@') else {
                break;
            };
            text.push_str(match word {
                "namespace" => &pod.namespace,
                "name" => &pod.name,
                "uid" => &pod.uid,
                "node" => node,
                _ => address,
            });
            rest = after;
        }
        text.push_str(rest);
        text.into()
    }
}

fn pod_metadata(born: &str) -> Value {
    let owner = "k:{\"uid\":\"7d5f8c1e-4a0b-4f55-9a52-6a1f6f1f0c3b\"}";
    let container = "k:{\"name\":\"web\"}";
    let condition = json!({
        ".": {}, "f:lastProbeTime": {}, "f:lastTransitionTime": {}, "f:observedGeneration": {},
        "f:status": {}, "f:type": {},
    });
    let variable = json!({ ".": {}, "f:name": {}, "f:value": {} });
    let probe = json!({
        ".": {}, "f:failureThreshold": {}, "f:httpGet": { ".": {}, "f:path": {}, "f:port": {},
        "f:scheme": {} }, "f:periodSeconds": {}, "f:successThreshold": {}, "f:timeoutSeconds": {},
    });
    json!({
        "name": NAME,
        "generateName": "web-6d4b75cb6d-",
        "namespace": NAMESPACE,
        "uid": UID,
        "generation": 1,
        "creationTimestamp": born,
        "labels": {
            "app.kubernetes.io/name": "web",
            "app.kubernetes.io/instance": NAMESPACE,
            "app.kubernetes.io/version": "2.14.3",
            "pod-template-hash": "6d4b75cb6d",
        },
        "annotations": {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": "9102",
            "checksum/config": "8c1f7f6b4f4b0a0e5f3b2f8dbf1b9d2c8bb3b0f2c4f2d9f0f2f8c0a1b2c3d4e5",
        },
        "ownerReferences": [{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-6d4b75cb6d",
            "uid": "7d5f8c1e-4a0b-4f55-9a52-6a1f6f1f0c3b", "controller": true,
            "blockOwnerDeletion": true,
        }],
        "managedFields": [
            {
                "manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
                "time": born, "fieldsType": "FieldsV1",
                "fieldsV1": {
                    "f:metadata": {
                        "f:annotations": { ".": {}, "f:checksum/config": {},
                            "f:prometheus.io/port": {}, "f:prometheus.io/scrape": {} },
                        "f:generateName": {},
                        "f:labels": { ".": {}, "f:app.kubernetes.io/instance": {},
                            "f:app.kubernetes.io/name": {}, "f:app.kubernetes.io/version": {},
                            "f:pod-template-hash": {} },
                        "f:ownerReferences": { ".": {}, owner: {} },
                    },
                    "f:spec": {
                        "f:containers": { container: {
                            ".": {},
                            "f:env": { ".": {}, "k:{\"name\":\"LOG_LEVEL\"}": variable,
                                "k:{\"name\":\"DATABASE_URL\"}": variable,
                                "k:{\"name\":\"CACHE_ADDRESS\"}": variable },
                            "f:image": {}, "f:imagePullPolicy": {}, "f:name": {},
                            "f:livenessProbe": probe, "f:readinessProbe": probe,
                            "f:ports": { ".": {}, "k:{\"containerPort\":8080,\"protocol\":\"TCP\"}":
                                { ".": {}, "f:containerPort": {}, "f:name": {}, "f:protocol": {} } },
                            "f:resources": { ".": {}, "f:limits": { ".": {}, "f:memory": {} },
                                "f:requests": { ".": {}, "f:cpu": {}, "f:memory": {} } },
                            "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {},
                        } },
                        "f:dnsPolicy": {}, "f:enableServiceLinks": {}, "f:restartPolicy": {},
                        "f:schedulerName": {}, "f:securityContext": {},
                        "f:terminationGracePeriodSeconds": {},
                    },
                },
            },
            {
                "manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": born,
                "fieldsType": "FieldsV1", "subresource": "status",
                "fieldsV1": { "f:status": {
                    "f:conditions": { "k:{\"type\":\"ContainersReady\"}": condition,
                        "k:{\"type\":\"Initialized\"}": condition,
                        "k:{\"type\":\"Ready\"}": condition },
                    "f:containerStatuses": {}, "f:hostIP": {}, "f:hostIPs": {},
                    "f:observedGeneration": {}, "f:phase": {}, "f:podIP": {}, "f:podIPs": {},
                    "f:startTime": {},
                } },
            },
        ],
    })
}

fn pod_spec() -> Value {
    let probe = |path: &str| {
        json!({
            "httpGet": { "path": path, "port": "http", "scheme": "HTTP" }, "timeoutSeconds": 1,
            "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
        })
    };
    let tolerated = |key: &str| json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 });
    json!({
        "volumes": [
            { "name": "kube-api-access-x7k2p", "projected": { "defaultMode": 420, "sources": [
                { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
                { "configMap": { "name": "kube-root-ca.crt",
                    "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
                { "downwardAPI": { "items": [{ "path": "namespace",
                    "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.namespace" } }] } },
            ] } },
            { "name": "config", "configMap": { "name": "web-config", "defaultMode": 420 } },
        ],
        "containers": [{
            "name": "web",
            "image": "registry.example.com/shop/web:2.14.3",
            "ports": [{ "name": "http", "containerPort": 8080, "protocol": "TCP" }],
            "env": [
                { "name": "LOG_LEVEL", "value": "info" },
                { "name": "DATABASE_URL", "value": "postgres://db.shop.svc.cluster.local/shop" },
                { "name": "CACHE_ADDRESS", "value": "cache.shop.svc.cluster.local:6379" },
                { "name": "POD_IP", "valueFrom": { "fieldRef":
                    { "apiVersion": "v1", "fieldPath": "status.podIP" } } },
            ],
            "resources": { "limits": { "memory": "512Mi" },
                "requests": { "cpu": "250m", "memory": "256Mi" } },
            "volumeMounts": [
                { "name": "config", "mountPath": "/etc/web", "readOnly": true },
                { "name": "kube-api-access-x7k2p", "readOnly": true,
                    "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount" },
            ],
            "livenessProbe": probe("/livez"),
            "readinessProbe": probe("/readyz"),
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "imagePullPolicy": "IfNotPresent",
        }],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "nodeName": NODE,
        "securityContext": {},
        "schedulerName": "default-scheduler",
        // What admission gives every pod; none of it tolerates the taint of the bench.
        "tolerations": [
            tolerated("node.kubernetes.io/not-ready"),
            tolerated("node.kubernetes.io/unreachable"),
        ],
        "priority": 0,
        "enableServiceLinks": true,
        "preemptionPolicy": "PreemptLowerPriority",
    })
}

fn pod_status(born: &str) -> Value {
    let condition = |name: &str| {
        json!({ "type": name, "status": "True", "observedGeneration": 1, "lastProbeTime": null,
            "lastTransitionTime": born })
    };
    let conditions =
        ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"]
            .map(condition);
    json!({
        "phase": "Running",
        "observedGeneration": 1,
        "conditions": conditions,
        "hostIP": "10.1.0.1",
        "hostIPs": [{ "ip": "10.1.0.1" }],
        "podIP": ADDRESS,
        "podIPs": [{ "ip": ADDRESS }],
        "startTime": born,
        "containerStatuses": [{
            "name": "web",
            "state": { "running": { "startedAt": born } },
            "lastState": {},
            "ready": true,
            "restartCount": 0,
            "image": "registry.example.com/shop/web:2.14.3",
            "imageID": "sha256:4f6b1c0c5f0e4f5f7a9be4a3b3f2f1d6d8c7b6a5948372615049382716051423",
            "containerID": "containerd://0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9",
            "started": true,
            "allocatedResources": { "cpu": "250m", "memory": "256Mi" },
        }],
        "qosClass": "Burstable",
    })
}

/// A node that is Ready, with its heartbeat at `born`.
pub(crate) fn node(name: &str, uid: &str, born: &str, taint: Option<&Value>) -> Bytes {
    let condition = |name: &str, status: &str, reason: &str| {
        json!({ "type": name, "status": status, "reason": reason, "message": reason,
            "lastHeartbeatTime": born, "lastTransitionTime": born })
    };
    let image = |name: &str| {
        json!({ "names": [format!("registry.example.com/{name}@sha256:4f6b1c0c5f0e4f5f7a9be4a3b3f2f1d6d8c7b6a5948372615049382716051423"),
            format!("registry.example.com/{name}:1.0")], "sizeBytes": 52_428_800 })
    };
    let images = ["shop/web", "shop/api", "shop/db", "system/dns"].map(image);
    let size =
        json!({ "cpu": "16", "memory": "64Gi", "pods": "110", "ephemeral-storage": "200Gi" });
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": uid,
            "creationTimestamp": born,
            // The node lifecycle controller would write those with `beta` by itself.
            "labels": {
                "beta.kubernetes.io/arch": "amd64",
                "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": "m16",
                "topology.kubernetes.io/region": "r1",
                "topology.kubernetes.io/zone": "r1-a",
            },
            "annotations": { "volumes.kubernetes.io/controller-managed-attach-detach": "true" },
        },
        "spec": {
            "providerID": format!("bench:///{name}"),
            "taints": taint.map(|taint| vec![taint]),
        },
        "status": {
            "capacity": size,
            "allocatable": size,
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                condition("Ready", "True", "KubeletReady"),
            ],
            "addresses": [
                { "type": "InternalIP", "address": "10.1.0.1" },
                { "type": "Hostname", "address": name },
            ],
            "daemonEndpoints": { "kubeletEndpoint": { "Port": 10250 } },
            "nodeInfo": {
                "machineID": "1", "systemUUID": "1", "bootID": "1", "kernelVersion": "6.12.0",
                "osImage": "Linux", "containerRuntimeVersion": "containerd://2.1.0",
                "kubeletVersion": "v1.36.3", "kubeProxyVersion": "", "operatingSystem": "linux",
                "architecture": "amd64",
            },
            "images": images,
        },
    })
    .to_string()
    .into()
}
