//! Requests of a drain: the pods of a node, budgets, owners, and the eviction itself.
//!
//! They are few and ask for JSON: a drain lists the pods of one node when it needs them, and what it
//! reads of a pod is more than [`wire`](super::wire) knows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};

use super::{
    Answer, Api, JSON, Label, REQUEST_TIMEOUT, RequestError, SMALL, pod_path, request, unreadable,
};
use crate::model::{
    Amount, Budget, Demand, LocalVolume, LocalVolumeKind, NodeName, Owner, Phase, PodRef,
    Requirement, Resident, Selector, Test,
};

const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
/// What the API server fills in for a pod that says nothing, in seconds.
const DEFAULT_GRACE: u64 = 30;
/// Reason of the cause by which a disruption budget refuses, which tells it from overload.
const BUDGET_CAUSE: &str = "DisruptionBudget";
/// In the message of the only refusal that has neither a reason nor a cause of its own.
const SEVERAL_BUDGETS: &str = "more than one PodDisruptionBudget";

/// Why disruption budgets keep a pod from being evicted, by the API server's own word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BudgetRefusal {
    /// The budget has nothing left, or its newest version is not counted yet.
    UsedUp {
        /// Its name, if the server tells it.
        budget: Option<String>,
        /// The server's words about it.
        message: String,
    },
    /// More than one budget selects the pod, which the API server does not support.
    Several,
}

impl Answer {
    /// Whether disruption budgets are why an eviction was refused. Without that a 429 tells of an
    /// overloaded server, and a 500 of one that failed; unless a [webhook](Self::by_webhook) answered.
    pub fn by_budget(&self) -> Option<BudgetRefusal> {
        if self.by_webhook().is_some() {
            return None;
        }
        if self.code == 500 && self.message.contains(SEVERAL_BUDGETS) {
            return Some(BudgetRefusal::Several);
        }
        let cause = self.causes.iter().find(|cause| cause.reason == BUDGET_CAUSE)?;
        let named = cause.message.strip_prefix("The disruption budget ");
        let budget = named.and_then(|rest| rest.split(' ').next()).filter(|name| !name.is_empty());
        let message = match &*cause.message {
            "" => self.message.clone(),
            message => message.to_owned(),
        };
        Some(BudgetRefusal::UsedUp { budget: budget.map(str::to_owned), message })
    }
}

impl Api {
    /// The pods that are bound to a node, as they are stored now.
    ///
    /// # Errors
    /// See [`RequestError`]. One pod that cannot be read fails them all: nobody may take a node for
    /// drained because a pod was left out.
    pub async fn list_pods_on(&self, node: &NodeName) -> Result<Vec<Resident>, RequestError> {
        let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}");
        let label = Label { verb: "list", resource: "pods" };
        let pods: Vec<PodObject> = self.list(label, &path, "PodList").await?;
        pods.into_iter().map(|pod| pod.facts(node)).collect()
    }

    /// All disruption budgets, as they are stored now.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn list_budgets(&self) -> Result<Vec<Budget>, RequestError> {
        let label = Label { verb: "list", resource: "poddisruptionbudgets" };
        let path = "/apis/policy/v1/poddisruptionbudgets";
        let budgets: Vec<PodDisruptionBudget> =
            self.list(label, path, "PodDisruptionBudgetList").await?;
        Ok(budgets.into_iter().map(budget).collect())
    }

    /// Names of the budgets that select a pod, sorted; nothing if the pod is gone.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn budgets_over(&self, pod: &PodRef) -> Result<Vec<Arc<str>>, RequestError> {
        let pods = self.list_pods_on(&pod.node).await?;
        let Some(pod) = pods.into_iter().find(|other| other.reference.uid == pod.uid) else {
            return Ok(Vec::new());
        };
        let budgets = self.list_budgets().await?.into_iter().filter(|budget| budget.guards(&pod));
        let mut names: Vec<_> = budgets.map(|budget| budget.name).collect();
        names.sort();
        Ok(names)
    }

    /// Whether the owner is there: this one, and not another under its name.
    ///
    /// # Errors
    /// See [`RequestError`]. A kind that the server does not know is one: its group may be served
    /// by a server that is down.
    pub async fn owner_exists(&self, namespace: &str, owner: &Owner) -> Result<bool, RequestError> {
        #[derive(Deserialize)]
        struct Object {
            metadata: Meta,
        }
        #[derive(Deserialize)]
        struct Meta {
            uid: Arc<str>,
        }
        let resource = match known_resource(owner) {
            Some(known) => known.to_owned(),
            None => self.resource_of(owner).await?,
        };
        let name: String = form_urlencoded::byte_serialize(owner.name.as_bytes()).collect();
        let path = format!("{}/namespaces/{namespace}/{resource}/{name}", group_path(owner));
        let label = Label { verb: "get", resource: "owners" };
        match self.json(label, &path, SMALL).await {
            Err(RequestError::Status(answer)) if answer.is_not_found() => Ok(false),
            Err(error) => Err(error),
            Ok(body) => Ok(parse::<Object>(&body)?.metadata.uid == owner.uid),
        }
    }

    /// Evicts the pod, unless it is another pod by now (409), with this grace in seconds instead of
    /// its own if one is given.
    ///
    /// # Errors
    /// See [`RequestError`], and [`Answer::by_budget`] for refusals.
    pub async fn evict_pod(&self, pod: &PodRef, grace: Option<i64>) -> Result<(), RequestError> {
        let body = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": &*pod.namespace, "name": &*pod.name},
            "deleteOptions": options(pod, grace),
        });
        let label = Label { verb: "create", resource: "pods/eviction" };
        let path = format!("{}/eviction", pod_path(pod));
        self.write(label, Method::POST, &path, JSON, &body).await
    }

    /// Deletes the pod, whatever its budgets say, unless it is another pod by now (409); with this
    /// grace in seconds instead of its own if one is given.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn delete_pod_within(
        &self,
        pod: &PodRef,
        grace: Option<i64>,
    ) -> Result<(), RequestError> {
        let label = Label { verb: "delete", resource: "pods" };
        self.write(label, Method::DELETE, &pod_path(pod), JSON, &options(pod, grace)).await
    }

    /// The name in paths of an owner's kind, as the server has it.
    async fn resource_of(&self, owner: &Owner) -> Result<String, RequestError> {
        #[derive(Deserialize)]
        struct Resources {
            resources: Vec<Resource>,
        }
        #[derive(Deserialize)]
        struct Resource {
            name: String,
            kind: String,
            namespaced: bool,
        }
        let label = Label { verb: "get", resource: "apiresources" };
        let body = self.json(label, &group_path(owner), JSON).await?;
        let Resources { resources } = parse(&body)?;
        let is_it = |r: &Resource| r.kind == *owner.kind && !r.name.contains('/') && r.namespaced;
        resources.into_iter().find(is_it).map(|resource| resource.name).ok_or_else(|| {
            RequestError::Body(format!(
                "the API server knows no kind {} in {} whose objects live in namespaces",
                owner.kind, owner.api_version
            ))
        })
    }

    async fn list<T: DeserializeOwned>(
        &self,
        label: Label,
        path: &str,
        kind: &str,
    ) -> Result<Vec<T>, RequestError> {
        #[derive(Deserialize)]
        struct List<T> {
            kind: String,
            items: Option<Vec<T>>,
        }
        let list: List<T> = parse(&self.json(label, path, JSON).await?)?;
        if list.kind != kind {
            return Err(unreadable(format!("it is a {} instead of a {kind}", list.kind)));
        }
        Ok(list.items.unwrap_or_default())
    }

    async fn json(&self, label: Label, path: &str, accept: &str) -> Result<Bytes, RequestError> {
        let request = request(Method::GET, path, accept, None, &Value::Null)?;
        self.send(label, request, REQUEST_TIMEOUT).await.map(|(_, body)| body)
    }
}

fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, RequestError> {
    serde_json::from_slice(body).map_err(|error| {
        let begin = String::from_utf8_lossy(&body[..body.len().min(120)]);
        unreadable(format!("{error}; it begins with {begin:?}"))
    })
}

fn options(pod: &PodRef, grace: Option<i64>) -> Value {
    let mut options = json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": pod.uid.to_string()},
    });
    if let Some(grace) = grace {
        options["gracePeriodSeconds"] = json!(grace);
    }
    options
}

/// The usual kinds need no discovery.
fn known_resource(owner: &Owner) -> Option<&'static str> {
    Some(match (&*owner.api_version, &*owner.kind) {
        ("apps/v1", "DaemonSet") => "daemonsets",
        ("apps/v1", "StatefulSet") => "statefulsets",
        ("apps/v1", "ReplicaSet") => "replicasets",
        ("batch/v1", "Job") => "jobs",
        ("v1", "ReplicationController") => "replicationcontrollers",
        _ => return None,
    })
}

fn group_path(owner: &Owner) -> String {
    let root = if owner.group().is_empty() { "/api" } else { "/apis" };
    let parts = owner.api_version.split('/');
    parts.fold(root.to_owned(), |mut path, part| {
        path.push('/');
        path.extend(form_urlencoded::byte_serialize(part.as_bytes()));
        path
    })
}

/// A pod as JSON, as far as a drain reads it.
#[derive(Deserialize)]
struct PodObject {
    metadata: PodMeta,
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodMeta {
    name: Arc<str>,
    namespace: Arc<str>,
    uid: String,
    creation_timestamp: Option<Timestamp>,
    deletion_timestamp: Option<Timestamp>,
    labels: Option<BTreeMap<Arc<str>, Arc<str>>>,
    annotations: Option<BTreeMap<Arc<str>, Arc<str>>>,
    owner_references: Option<Vec<OwnerReference>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OwnerReference {
    api_version: Arc<str>,
    kind: Arc<str>,
    name: Arc<str>,
    uid: Arc<str>,
    controller: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    priority: Option<i32>,
    termination_grace_period_seconds: Option<i64>,
    volumes: Option<Vec<Volume>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    name: Arc<str>,
    empty_dir: Option<IgnoredAny>,
    host_path: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodStatus {
    phase: String,
    conditions: Option<Vec<PodCondition>>,
}

#[derive(Deserialize)]
struct PodCondition {
    r#type: String,
    status: String,
}

impl PodObject {
    fn facts(self, node: &NodeName) -> Result<Resident, RequestError> {
        let Self { metadata: meta, spec, status } = self;
        let uid = meta.uid.parse().map_err(|error| {
            unreadable(format!("pod {}/{}: metadata.uid: {error}", meta.namespace, meta.name))
        })?;
        let annotations: crate::model::Labels = meta.annotations.into_iter().flatten().collect();
        let owners = meta.owner_references.into_iter().flatten();
        let grace = spec.termination_grace_period_seconds;
        let mut conditions = status.conditions.iter().flatten();
        Ok(Resident {
            phase: Phase::parse(&status.phase),
            mirror: annotations.get(MIRROR_ANNOTATION).is_some(),
            terminating: meta.deletion_timestamp,
            created: meta.creation_timestamp,
            ready: conditions.any(|c| c.r#type == "Ready" && c.status == "True"),
            labels: meta.labels.into_iter().flatten().collect(),
            annotations,
            controller: owners.into_iter().find(|owner| owner.controller == Some(true)).map(
                |OwnerReference { api_version, kind, name, uid, .. }| Owner {
                    api_version,
                    kind,
                    name,
                    uid,
                },
            ),
            volumes: spec.volumes.into_iter().flatten().filter_map(local).collect(),
            priority: spec.priority.unwrap_or(0),
            grace: Duration::from_secs(
                grace.map_or(DEFAULT_GRACE, |seconds| u64::try_from(seconds).unwrap_or(1)),
            ),
            reference: PodRef {
                uid,
                namespace: meta.namespace,
                name: meta.name,
                node: node.clone(),
            },
        })
    }
}

fn local(volume: Volume) -> Option<LocalVolume> {
    let kind = match volume {
        Volume { empty_dir: Some(_), .. } => LocalVolumeKind::EmptyDir,
        Volume { host_path: Some(_), .. } => LocalVolumeKind::HostPath,
        _ => return None,
    };
    Some(LocalVolume { name: volume.name, kind })
}

fn budget(object: PodDisruptionBudget) -> Budget {
    let (meta, spec) = (object.metadata, object.spec.unwrap_or_default());
    let status = object.status.unwrap_or_default();
    // Without a status nothing is observed: a stored object's generation is 1 at least.
    let observed = status.observed_generation.unwrap_or(0) >= meta.generation.unwrap_or(1);
    Budget {
        namespace: meta.namespace.unwrap_or_default().into(),
        name: meta.name.unwrap_or_default().into(),
        selector: spec.selector.map_or(Selector::Nothing, selector),
        demand: match (spec.max_unavailable, spec.min_available) {
            (Some(most), _) => amount(&most).map(Demand::MaxUnavailable),
            (None, Some(least)) => amount(&least).map(Demand::MinAvailable),
            (None, None) => None,
        },
        lets_unready_go: spec.unhealthy_pod_eviction_policy.as_deref() == Some("AlwaysAllow"),
        observed,
        healthy: status.current_healthy.unwrap_or(0),
        desired: status.desired_healthy.unwrap_or(0),
        expected: status.expected_pods.unwrap_or(0),
        allowed: status.disruptions_allowed.unwrap_or(0),
    }
}

fn amount(value: &IntOrString) -> Option<Amount> {
    match value {
        IntOrString::Int(count) => Some(Amount::Count(*count)),
        IntOrString::String(text) => {
            text.strip_suffix('%').and_then(|digits| digits.parse().ok()).map(Amount::Percent)
        }
    }
}

fn selector(selector: LabelSelector) -> Selector {
    let equal = |(key, value): (String, String)| Requirement {
        key: key.into(),
        test: Test::In(vec![value.into()]),
    };
    let labels = selector.match_labels.into_iter().flatten().map(equal).map(Some);
    let more = selector.match_expressions.into_iter().flatten().map(requirement);
    labels.chain(more).collect::<Option<_>>().map_or(Selector::Nothing, Selector::All)
}

/// `None` if it cannot be read: then the whole selector selects nothing.
fn requirement(requirement: LabelSelectorRequirement) -> Option<Requirement> {
    let LabelSelectorRequirement { key, operator, values } = requirement;
    let values: Vec<Arc<str>> = values.into_iter().flatten().map(Arc::from).collect();
    let test = match (&*operator, values.is_empty()) {
        ("In", false) => Test::In(values),
        ("NotIn", false) => Test::NotIn(values),
        ("Exists", true) => Test::Exists,
        ("DoesNotExist", true) => Test::Absent,
        _ => return None,
    };
    Some(Requirement { key: key.into(), test })
}

#[cfg(test)]
mod tests;
