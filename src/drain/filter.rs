//! Which pods of a node a drain evicts, which it waits for, and which stay.
//!
//! These are draino's filters in a different order: kinds whose pods stay come first. Filters only keep
//! pods, so the order does not change which pods stay, only the reason. The reason determines what the pod
//! means for the drain ([`Retention`]). Most DaemonSet pods have an `emptyDir`; that must not make a node
//! undrainable.

use std::fmt;
use std::sync::Arc;

use ahash::AHashSet;

use super::{GroupKind, PodRules, Protection};
use crate::model::{
    DrainPod, Existence, LocalVolume, LocalVolumeKind, Owner, Owners, Phase, PodRef,
};

/// cluster-autoscaler's annotation that says whether a pod may be evicted.
const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
/// cluster-autoscaler's annotation that lists local volumes whose content may be lost.
const SAFE_VOLUMES: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes";
/// API groups in which a DaemonSet or StatefulSet is Kubernetes' own; the second one up to 1.15.
const OWN_GROUPS: [&str; 2] = ["apps", "extensions"];

/// What a drain does with a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodDecision {
    /// It is evicted.
    Evict,
    /// It is terminating: the drain waits for it, and does not evict it again.
    Await,
    /// It stays on the node.
    Leave(Why, Retention),
}

/// Why a pod stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is a mirror pod.
    Mirror,
    /// Its controller is of a kind whose pods stay.
    Controller(Owner),
    /// It was bound to the node during the drain.
    CameLater,
    /// It has an `emptyDir` volume of this name.
    LocalStorage(Arc<str>),
    /// No controller would recreate it.
    Unreplicated,
    /// It has an annotation of pods that stay.
    Protected(Protection),
    /// cluster-autoscaler's annotation says that it must not be evicted.
    NotSafeToEvict,
    /// cluster-autoscaler's annotation says that it must run until it has finished.
    RunsToCompletion,
}

/// How long a pod stays, and what that means for the drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// It may stay: the node counts as drained with it. This applies to mirror pods, to kinds of controllers
    /// that the policy keeps, and to finished pods.
    Expected,
    /// The drain waits until the pod has finished.
    UntilFinished,
    /// The pod would be lost with the node, and is protected against that: it stays and is reported.
    /// cluster-autoscaler would not remove such a node.
    Permanent,
}

/// A pod for which the decision depends on an unknown owner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot check whether the {owner} of pod {pod} exists: {error}; allow ostrakon to get this kind, \
     or let the policy evict its pods"
)]
pub struct OwnerUnknown {
    /// The pod.
    pub pod: PodRef,
    /// Its owner.
    pub owner: Owner,
    /// What went wrong.
    pub error: Arc<str>,
}

/// The owners that must be looked up before [`decide_pod`] can decide about these pods: each once, with
/// its namespace.
pub fn owners_needed<'a>(
    pods: impl IntoIterator<Item = &'a DrainPod>,
    rules: &PodRules,
) -> Vec<(Arc<str>, Owner)> {
    let mut seen = AHashSet::new();
    let pods = pods.into_iter().filter(|pod| !pod.mirror);
    let left =
        pods.filter_map(|pod| Some((&pod.reference.namespace, left_controller(pod, rules)?)));
    left.filter(|owned| seen.insert(*owned))
        .map(|(namespace, owner)| (Arc::clone(namespace), owner.clone()))
        .collect()
}

/// What a drain by these rules does with a pod.
///
/// - Mirror pods stay: only the kubelet can stop them.
/// - Pods of kinds of controllers that the rules keep stay while their controller exists. An orphan is
///   handled like any other pod.
/// - A terminating pod is awaited, whatever the rules are. Only a DaemonSet's pod stays, because the
///   DaemonSet creates the next one at once.
/// - A finished pod needs no controller, but other filters apply: its files may still be read.
/// - With `safe-to-evict: "true"`, neither local storage nor the lack of a controller keeps the pod, as in
///   cluster-autoscaler.
///
/// # Errors
/// The decision depends on the pod's owner, which is unknown.
pub fn decide_pod(
    pod: &DrainPod,
    rules: &PodRules,
    owners: &Owners,
) -> Result<PodDecision, Box<OwnerUnknown>> {
    if pod.mirror {
        return Ok(PodDecision::Leave(Why::Mirror, Retention::Expected));
    }
    let left = left_controller(pod, rules);
    if pod.terminating.is_some() && !left.is_some_and(is_daemon_set) {
        return Ok(PodDecision::Await);
    }
    if let Some(owner) = left {
        match owners.get(&(Arc::clone(&pod.reference.namespace), owner.clone())) {
            Some(Existence::Exists) => {
                return Ok(PodDecision::Leave(Why::Controller(owner.clone()), Retention::Expected));
            }
            Some(Existence::Absent) if pod.terminating.is_some() => return Ok(PodDecision::Await),
            Some(Existence::Absent) => {}
            Some(Existence::Unknown(error)) => return Err(unknown(pod, owner, Arc::clone(error))),
            None => return Err(unknown(pod, owner, "it was not looked up".into())),
        }
    }
    Ok(match own_reason(pod, rules) {
        None => PodDecision::Evict,
        Some(why) => {
            let retention = match why {
                _ if pod.phase == Phase::Finished => Retention::Expected,
                Why::RunsToCompletion => Retention::UntilFinished,
                _ => Retention::Permanent,
            };
            PodDecision::Leave(why, retention)
        }
    })
}

/// Why a pod stays because of its own fields.
fn own_reason(pod: &DrainPod, rules: &PodRules) -> Option<Why> {
    let finished = pod.phase == Phase::Finished;
    let safe = rules.honour_safe_to_evict.then(|| pod.annotations.get(SAFE_TO_EVICT)).flatten();
    let is_safe = safe == Some("true");
    if !rules.evict_local_storage
        && !is_safe
        && let Some(volume) = local_storage(pod, rules)
    {
        return Some(Why::LocalStorage(volume));
    }
    if !rules.evict_unreplicated && !is_safe && !finished && pod.controller.is_none() {
        return Some(Why::Unreplicated);
    }
    if let Some(protection) = rules.protections.iter().find(|p| protects(p, pod)) {
        return Some(Why::Protected(protection.clone()));
    }
    match safe {
        Some("false") => Some(Why::NotSafeToEvict),
        Some("on-completion") if !finished => Some(Why::RunsToCompletion),
        _ => None,
    }
}

/// The first `emptyDir` whose content must not be lost.
fn local_storage(pod: &DrainPod, rules: &PodRules) -> Option<Arc<str>> {
    let safe = rules.honour_safe_to_evict.then(|| pod.annotations.get(SAFE_VOLUMES)).flatten();
    let is_safe = |name: &str| safe.is_some_and(|safe| safe.split(',').any(|s| s.trim() == name));
    let kept =
        |volume: &&LocalVolume| volume.kind == LocalVolumeKind::EmptyDir && !is_safe(&volume.name);
    pod.volumes.iter().find(kept).map(|volume| Arc::clone(&volume.name))
}

fn protects(protection: &Protection, pod: &DrainPod) -> bool {
    match (pod.annotations.get(&protection.key), &protection.value) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(value), Some(expected)) => value == &**expected,
    }
}

/// The pod's controller, if it is of a kind whose pods stay.
fn left_controller<'a>(pod: &'a DrainPod, rules: &PodRules) -> Option<&'a Owner> {
    let owner = pod.controller.as_ref()?;
    let left = !rules.evict_daemonset && is_daemon_set(owner)
        || !rules.evict_statefulset && is_own(owner, "StatefulSet")
        || rules.left_controllers.iter().any(|kind| is_of(owner, kind));
    left.then_some(owner)
}

pub(super) fn is_daemon_set(owner: &Owner) -> bool {
    is_own(owner, "DaemonSet")
}

fn is_own(owner: &Owner, kind: &str) -> bool {
    &*owner.kind == kind && OWN_GROUPS.contains(&owner.group())
}

fn is_of(owner: &Owner, kind: &GroupKind) -> bool {
    owner.kind == kind.kind && kind.group.as_deref().is_none_or(|group| group == owner.group())
}

fn unknown(pod: &DrainPod, owner: &Owner, error: Arc<str>) -> Box<OwnerUnknown> {
    Box::new(OwnerUnknown { pod: pod.reference.clone(), owner: owner.clone(), error })
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mirror => f.write_str("it is a mirror pod, which only the kubelet can stop"),
            Self::Controller(owner) => {
                write!(f, "it belongs to {owner}, a kind whose pods the policy keeps")
            }
            Self::CameLater => {
                f.write_str("it was created after the drain started, so it tolerates the cordon")
            }
            Self::LocalStorage(volume) => {
                write!(f, "its emptyDir volume {volume} would be lost")
            }
            Self::Unreplicated => f.write_str("no controller would recreate it"),
            Self::Protected(Protection { key, value: None }) => {
                write!(f, "its annotation {key} protects it")
            }
            Self::Protected(Protection { key, value: Some(value) }) => {
                write!(f, "its annotation {key}={value} protects it")
            }
            Self::NotSafeToEvict => write!(f, "its annotation {SAFE_TO_EVICT}=false protects it"),
            Self::RunsToCompletion => {
                write!(f, "its annotation {SAFE_TO_EVICT}=on-completion lets it run to completion")
            }
        }
    }
}

#[cfg(test)]
mod tests;
