//! The pods of a node, as a drain sees them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::{Labels, PodRef};

/// A pod on a node that is to be drained.
///
/// It holds more than the view keeps of every pod of the cluster: a drain lists the pods of its
/// node when it needs them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Its names and identity.
    pub reference: PodRef,
    /// How far it has come.
    pub phase: Phase,
    /// It is the API's shadow of a static pod. Evicting it stops nothing.
    pub mirror: bool,
    /// Its deletion timestamp: the moment at which its grace is over.
    pub terminating: Option<Timestamp>,
    /// It is Ready.
    pub ready: bool,
    /// Its labels: what budgets select by.
    pub labels: Labels,
    /// Its annotations.
    pub annotations: Labels,
    /// The owner that would create it anew.
    pub controller: Option<Owner>,
    /// Its volumes on the node's own disk or in its memory.
    pub volumes: Vec<LocalVolume>,
    /// `spec.priority`.
    pub priority: i32,
    /// `spec.terminationGracePeriodSeconds`.
    pub grace: Duration,
}

/// How far a pod has come, as far as its eviction is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing of it runs yet. Budgets do not hold it back.
    Pending,
    /// It runs.
    Running,
    /// Succeeded or Failed: nothing runs any more. Budgets do not hold it back.
    Finished,
}

impl Phase {
    /// The phase that the API spells `text`. A phase that is not known is taken for a running pod.
    pub fn parse(text: &str) -> Self {
        match text {
            "Pending" => Self::Pending,
            "Succeeded" | "Failed" => Self::Finished,
            _ => Self::Running,
        }
    }
}

/// The controller of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// Group and version, for example `apps/v1`; `v1` for the core group.
    pub api_version: Arc<str>,
    /// Kind, for example `ReplicaSet`.
    pub kind: Arc<str>,
    /// Name, in the pod's namespace.
    pub name: Arc<str>,
    /// Identity.
    pub uid: Arc<str>,
}

impl Owner {
    /// Its API group; empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

/// Kind and name, for example `ReplicaSet web-7d4`.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// A volume whose content is lost with the pod or with the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalVolume {
    /// Its name in the pod.
    pub name: Arc<str>,
    /// What it is.
    pub kind: LocalVolumeKind,
}

/// What a local volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalVolumeKind {
    /// An `emptyDir`, on disk or in memory.
    EmptyDir,
    /// A path of the node. It belongs to the node and not to the pod.
    HostPath,
}

#[cfg(test)]
pub(crate) mod build {
    //! Builders for tests.

    use super::*;
    use crate::model::build::{pod, uid};

    /// A ready, running pod of a `ReplicaSet` on `n1`, without volumes or labels.
    pub(crate) fn resident(name: &str) -> Resident {
        Resident {
            reference: pod(name).reference(),
            phase: Phase::Running,
            mirror: false,
            terminating: None,
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

    impl Resident {
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
            self.terminating = Some(crate::model::build::at(seconds));
            self
        }

        pub(crate) fn in_namespace(mut self, namespace: &str) -> Self {
            self.reference.namespace = namespace.into();
            self
        }
    }
}
