//! Pods, as far as a drain is concerned.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use jiff::Timestamp;

use super::{Labels, PodRef};

/// A pod on a node that is to be drained.
///
/// It holds more than the view keeps of every pod of the cluster: a drain lists the pods of its
/// node when it needs them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainPod {
    /// Its names and identity.
    pub reference: PodRef,
    /// How far it has come.
    pub phase: Phase,
    /// It is the API's shadow of a static pod. Evicting it stops nothing.
    pub mirror: bool,
    /// Its deletion timestamp: the moment at which its grace is over.
    pub terminating: Option<Timestamp>,
    /// When it was created; absent where the server does not say.
    pub created: Option<Timestamp>,
    /// It is Ready.
    pub ready: bool,
    /// Its labels: what budgets select by.
    pub labels: Labels,
    /// Its annotations.
    pub annotations: Labels,
    /// The owner that would recreate it.
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

/// Whether an object is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Existence {
    /// It is.
    Exists,
    /// It is not, or another one has its name.
    Absent,
    /// It could not be found out, because of this error.
    Unknown(Arc<str>),
}

/// What is known of owners, each in its namespace.
///
/// A pod names the UID of its owner itself, and nobody checks that: by UID alone, what one pod says
/// would decide about the pods of others.
pub type Owners = AHashMap<(Arc<str>, Owner), Existence>;

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
