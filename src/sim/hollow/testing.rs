//! Builders for the tests of this module.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::objects::{MIRROR_ANNOTATION, Pod};

/// The time at which the pods of these tests started.
pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_767_268_800 + seconds).unwrap()
}

/// A pending pod on `n1` with one container, as the API server would send it.
pub(super) fn pod(name: &str) -> PodBuilder {
    PodBuilder(json!({
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid(name),
            "resourceVersion": "1",
            "generation": 1,
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
        },
        "spec": {
            "nodeName": "n1",
            "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "main", "image": "pause"}],
        },
        "status": {"phase": "Pending"},
    }))
}

/// A UID that belongs to that name.
pub(super) fn uid(name: &str) -> String {
    let digits = name.bytes().fold(7u128, |hash, byte| hash.wrapping_mul(257) + u128::from(byte));
    crate::model::Uid(digits).to_string()
}

/// See [`pod`].
#[derive(Clone)]
pub(super) struct PodBuilder(pub(super) Value);

impl PodBuilder {
    pub(super) fn on(mut self, node: &str) -> Self {
        self.0["spec"]["nodeName"] = json!(node);
        self
    }

    pub(super) fn uid(mut self, uid: &str) -> Self {
        self.0["metadata"]["uid"] = json!(uid);
        self
    }

    pub(super) fn version(mut self, version: u64) -> Self {
        self.0["metadata"]["resourceVersion"] = json!(version.to_string());
        self
    }

    pub(super) fn phase(mut self, phase: &str) -> Self {
        self.0["status"]["phase"] = json!(phase);
        self
    }

    pub(super) fn condition(mut self, kind: &str, status: &str, since: i64) -> Self {
        let condition = json!({"type": kind, "status": status, "lastTransitionTime": at(since)});
        match &mut self.0["status"]["conditions"] {
            Value::Array(conditions) => conditions.push(condition),
            none => *none = json!([condition]),
        }
        self
    }

    /// Running since the start, with its containers and itself ready or not.
    pub(super) fn running(mut self, containers_ready: &str, ready: &str) -> Self {
        self.0["status"]["startTime"] = json!(at(0));
        self.phase("Running")
            .condition("ContainersReady", containers_ready, 0)
            .condition("Ready", ready, 0)
    }

    pub(super) fn ready_after(mut self, seconds: u32) -> Self {
        self.0["spec"]["containers"][0]["readinessProbe"] = json!({"initialDelaySeconds": seconds});
        self
    }

    /// Deleted with that grace.
    pub(super) fn deleted(mut self, grace: i64) -> Self {
        self.0["metadata"]["deletionTimestamp"] = json!(at(grace));
        self.0["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        self
    }

    pub(super) fn grace(mut self, seconds: i64) -> Self {
        self.0["spec"]["terminationGracePeriodSeconds"] = json!(seconds);
        self
    }

    pub(super) fn priority(mut self, priority: i32) -> Self {
        self.0["spec"]["priority"] = json!(priority);
        self
    }

    pub(super) fn mirror(mut self) -> Self {
        self.0["metadata"]["annotations"] = json!({MIRROR_ANNOTATION: "hash", "other": "x"});
        self
    }

    pub(super) fn build(self) -> Pod {
        serde_json::from_value(self.0).unwrap()
    }
}
