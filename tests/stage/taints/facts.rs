//! Builders of objects: `pod("a").tolerating(exists("gpu"))`. Each starts from plain defaults, so that a
//! test names only what matters to it. Times are seconds from noon. Pods are bound long before, so that
//! the time of the binding does not matter by default.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::noon;

/// So many seconds after noon.
pub(crate) fn at(seconds: i64) -> Timestamp {
    noon() + SignedDuration::from_secs(seconds)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Ordinary,
    Finished,
    Terminating,
    Mirror,
}

#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) class: Class,
    node: String,
    tolerations: Vec<Value>,
    bound: i64,
}

/// An ordinary pod on `n1`, without tolerations, bound an hour and more ago. Deleted, it is gone at once.
pub(crate) fn pod(name: &str) -> Pod {
    Pod {
        name: name.to_owned(),
        class: Class::Ordinary,
        node: "n1".to_owned(),
        tolerations: Vec::new(),
        bound: -5000,
    }
}

impl Pod {
    pub(crate) fn on(self, node: &str) -> Self {
        Self { node: node.to_owned(), ..self }
    }

    /// With one more toleration, after those it has.
    pub(crate) fn tolerating(mut self, toleration: Toleration) -> Self {
        self.tolerations.push(toleration.0);
        self
    }

    pub(crate) fn bound_at(self, bound: i64) -> Self {
        Self { bound, ..self }
    }

    pub(crate) fn that_is(self, class: Class) -> Self {
        Self { class, ..self }
    }

    pub(crate) fn object(&self) -> Value {
        let phase = if self.class == Class::Finished { "Succeeded" } else { "Running" };
        let mut object = json!({
            "metadata": {"name": self.name, "namespace": "default"},
            "spec": {
                "nodeName": self.node, "tolerations": self.tolerations,
                "terminationGracePeriodSeconds": 0,
            },
            "status": {"phase": phase, "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(self.bound).to_string()},
            ]},
        });
        if self.class == Class::Mirror {
            object["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("x");
        }
        object
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Toleration(Value);

/// A toleration of every NoExecute taint with this key, for ever.
pub(crate) fn exists(key: &str) -> Toleration {
    Toleration(json!({"key": key, "operator": "Exists", "effect": "NoExecute"}))
}

/// A toleration of this key and value, for ever.
pub(crate) fn equal(key: &str, value: &str) -> Toleration {
    Toleration(json!({"key": key, "operator": "Equal", "value": value, "effect": "NoExecute"}))
}

impl Toleration {
    pub(crate) fn lasting(mut self, seconds: i64) -> Self {
        self.0["tolerationSeconds"] = json!(seconds);
        self
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Taint(Value);

/// A `NoExecute` taint `key=value` without `timeAdded`.
pub(crate) fn taint(key: &str, value: &str) -> Taint {
    Taint(json!({"key": key, "value": value, "effect": "NoExecute"}))
}

pub(crate) fn not_ready(seconds: i64) -> Taint {
    taint("node.kubernetes.io/not-ready", "").added_at(seconds)
}

pub(crate) fn unreachable(seconds: i64) -> Taint {
    taint("node.kubernetes.io/unreachable", "").added_at(seconds)
}

impl Taint {
    pub(crate) fn added_at(mut self, seconds: i64) -> Self {
        self.0["timeAdded"] = json!(at(seconds).to_string());
        self
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) taints: Vec<Value>,
    pub(crate) ready: Value,
    /// The record of its taints, if it is to be another than the controller's.
    pub(crate) record: Option<String>,
}

/// A node without taints that has been ready for long.
pub(crate) fn node(name: &str) -> Node {
    let ready =
        json!({"type": "Ready", "status": "True", "lastTransitionTime": at(-9000).to_string()});
    Node { name: name.to_owned(), taints: Vec::new(), ready, record: None }
}

impl Node {
    /// With one more taint, after those it has.
    pub(crate) fn tainted(mut self, taint: Taint) -> Self {
        self.taints.push(taint.0);
        self
    }

    /// Not ready since so many seconds after noon.
    pub(crate) fn not_ready_since(mut self, seconds: i64) -> Self {
        self.ready = json!({"type": "Ready", "status": "False", "lastTransitionTime": at(seconds).to_string()});
        self
    }

    pub(crate) fn recorded(self, record: &str) -> Self {
        Self { record: Some(record.to_owned()), ..self }
    }

    pub(crate) fn object(&self) -> Value {
        let mut object = json!({
            "metadata": {"name": self.name, "annotations": {}},
            "spec": {"taints": self.taints},
            "status": {"conditions": [self.ready]},
        });
        if let Some(record) = &self.record {
            object["metadata"]["annotations"][super::RECORD] = json!(record);
        }
        object
    }
}
