//! Builders for tests: pods of a node that is drained.

use std::time::Duration;

use super::{at, pod, uid};
use crate::model::{DrainPod, Labels, LocalVolume, LocalVolumeKind, Owner, Phase};

/// A ready, running pod of a `ReplicaSet` on `n1`, without volumes or labels.
pub(crate) fn drain_pod(name: &str) -> DrainPod {
    DrainPod {
        reference: pod(name).reference(),
        phase: Phase::Running,
        mirror: false,
        terminating: None,
        created: None,
        ready: true,
        labels: Labels::default(),
        annotations: Labels::default(),
        controller: Some(owner("apps/v1", "ReplicaSet", "web")),
        volumes: Vec::new(),
        priority: 0,
        grace: Duration::from_secs(30),
    }
}

/// An owner whose identity depends on its name alone.
pub(crate) fn owner(api_version: &str, kind: &str, name: &str) -> Owner {
    Owner {
        api_version: api_version.into(),
        kind: kind.into(),
        name: name.into(),
        uid: uid(name).to_string().into(),
    }
}

impl DrainPod {
    pub(crate) fn owned_by(mut self, owner: Owner) -> Self {
        self.controller = Some(owner);
        self
    }

    pub(crate) fn unowned(mut self) -> Self {
        self.controller = None;
        self
    }

    pub(crate) fn finished(mut self) -> Self {
        self.phase = Phase::Finished;
        self.ready = false;
        self
    }

    pub(crate) fn unready(mut self) -> Self {
        self.ready = false;
        self
    }

    pub(crate) fn annotated_with<const N: usize>(mut self, of: [(&str, &str); N]) -> Self {
        self.annotations = of.into_iter().collect();
        self
    }

    pub(crate) fn labelled<const N: usize>(mut self, of: [(&str, &str); N]) -> Self {
        self.labels = of.into_iter().collect();
        self
    }

    pub(crate) fn with_volume(mut self, name: &str, kind: LocalVolumeKind) -> Self {
        self.volumes.push(LocalVolume { name: name.into(), kind });
        self
    }

    pub(crate) fn of_priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Being deleted; its grace is over so many seconds after noon.
    pub(crate) fn going_until(mut self, seconds: i64) -> Self {
        self.terminating = Some(at(seconds));
        self
    }

    pub(crate) fn in_namespace(mut self, namespace: &str) -> Self {
        self.reference.namespace = namespace.into();
        self
    }
}
