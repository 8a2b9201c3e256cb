//! Requests of a drain: the pods of a node, budgets, owners, and the eviction itself.
//!
//! They are few and use JSON: a drain lists the pods of one node when it needs them, and reads more of a
//! pod than [`wire`](super::wire) supports.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};

use super::{Answer, Api, Call, JSON, REQUEST_TIMEOUT, RequestError, SMALL, pod_path, unreadable};
use bounded::{Few, First, Pick, Texts, cut};

use crate::model::{
    Amount, Budget, Demand, DrainPod, LocalVolume, LocalVolumeKind, NodeName, Owner, Phase, PodRef,
    Requirement, Selector, Test,
};

mod bounded;

/// A list that is longer is read in pages: what pods and budgets have in them is their tenants' choice.
const LONGEST_PAGE: usize = 16 << 20;
/// Objects on the first page of a list that is too long to be read as a whole.
const FIRST_PAGE: usize = 64;
/// A budget whose selector has more requirements and values is not foreseen. The API server asks it all
/// the same.
const LONGEST_SELECTOR: usize = 256;
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
    pub async fn list_pods_on(&self, node: &NodeName) -> Result<Vec<DrainPod>, RequestError> {
        let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}");
        let call = Call::list("pods");
        self.list(call, &path, "PodList", |pod: PodObject| pod.facts(node)).await
    }

    /// All disruption budgets, as they are stored now.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn list_budgets(&self) -> Result<Vec<Budget>, RequestError> {
        self.list_budgets_at("/apis/policy/v1/poddisruptionbudgets").await
    }

    async fn list_budgets_at(&self, path: &str) -> Result<Vec<Budget>, RequestError> {
        let call = Call::list("poddisruptionbudgets");
        let facts = |object: BudgetObject| Ok(budget(object));
        self.list(call, path, "PodDisruptionBudgetList", facts).await
    }

    /// Names of the budgets that select a pod, sorted; nothing if the pod is gone.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn budgets_over(&self, pod: &PodRef) -> Result<Vec<Arc<str>>, RequestError> {
        let Some((pod, budgets)) = self.pod_and_budgets(pod).await? else { return Ok(Vec::new()) };
        let budgets = budgets.into_iter().filter(|budget| budget.guards(&pod));
        let mut names: Vec<_> = budgets.map(|budget| budget.name).collect();
        names.sort();
        Ok(names)
    }

    /// The pod with what budgets look at, and all budgets of its namespace; `None` if it is gone.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn pod_and_budgets(
        &self,
        pod: &PodRef,
    ) -> Result<Option<(DrainPod, Vec<Budget>)>, RequestError> {
        let wanted = pod.uid;
        let call = Call::get("pods");
        let pod = match self.json(call, &pod_path(pod), JSON).await {
            Err(RequestError::Status(answer)) if answer.is_not_found() => return Ok(None),
            body => parse::<PodObject>(&body?)?.facts(&pod.node)?,
        };
        if pod.reference.uid != wanted {
            return Ok(None);
        }
        // Budgets guard pods of their own namespace.
        let namespace = &pod.reference.namespace;
        let path = format!("/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets");
        let budgets = self.list_budgets_at(&path).await?;
        Ok(Some((pod, budgets)))
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
        let (group, resource) = match known_resource(owner) {
            Some((group, resource)) => (group.to_owned(), resource.to_owned()),
            None => (group_path(owner), self.resource_of(owner).await?),
        };
        let name: String = form_urlencoded::byte_serialize(owner.name.as_bytes()).collect();
        let path = format!("{group}/namespaces/{namespace}/{resource}/{name}");
        let call = Call::get("owners");
        match self.json(call, &path, SMALL).await {
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
        let call = Call::evict_pod();
        let path = format!("{}/eviction", pod_path(pod));
        self.write(call, &path, JSON, &body).await
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
        let call = Call::delete_pod();
        self.write(call, &pod_path(pod), JSON, &options(pod, grace)).await
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
        let call = Call::get("apiresources");
        let body = self.json(call, &group_path(owner), JSON).await?;
        let Resources { resources } = parse(&body)?;
        let is_it = |r: &Resource| r.kind == *owner.kind && !r.name.contains('/') && r.namespaced;
        resources.into_iter().find(is_it).map(|resource| resource.name).ok_or_else(|| {
            RequestError::Body(format!(
                "the API server knows no kind {} in {} whose objects live in namespaces",
                owner.kind, owner.api_version
            ))
        })
    }

    /// A list as it is read by `facts`. It is asked for as a whole, which costs the server least, and in
    /// ever smaller pages if it is too long: others must not pay for what one of them has in it.
    async fn list<T: DeserializeOwned, F>(
        &self,
        call: Call,
        path: &str,
        kind: &str,
        facts: impl Fn(T) -> Result<F, RequestError>,
    ) -> Result<Vec<F>, RequestError> {
        #[derive(Deserialize)]
        struct List<T> {
            kind: String,
            #[serde(default)]
            metadata: ListMeta,
            items: Option<Vec<T>>,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct ListMeta {
            r#continue: String,
        }
        let mut all = Vec::new();
        let (mut limit, mut next) = (None, String::new());
        loop {
            let mut page = path.to_owned();
            if let Some(limit) = limit {
                let mark = if path.contains('?') { '&' } else { '?' };
                page = format!("{page}{mark}limit={limit}&continue={next}");
            }
            let request = call.request(&page, JSON, None, &Value::Null)?;
            let body = match self.send_for(request, REQUEST_TIMEOUT, LONGEST_PAGE).await {
                Err(RequestError::TooLarge(_)) if limit != Some(1) => {
                    limit = Some(limit.map_or(FIRST_PAGE, |limit| limit / 2).max(1));
                    continue;
                }
                answer => answer?.1,
            };
            let list: List<T> = parse(&body)?;
            if list.kind != kind {
                return Err(unreadable(format!("it is a {} instead of a {kind}", list.kind)));
            }
            for object in list.items.into_iter().flatten() {
                all.push(facts(object)?);
            }
            if limit.is_none() || list.metadata.r#continue.is_empty() {
                return Ok(all);
            }
            next = form_urlencoded::byte_serialize(list.metadata.r#continue.as_bytes()).collect();
        }
    }

    async fn json(&self, call: Call, path: &str, accept: &str) -> Result<Bytes, RequestError> {
        let request = call.request(path, accept, None, &Value::Null)?;
        self.send(request, REQUEST_TIMEOUT).await.map(|(_, body)| body)
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

/// The usual kinds need no discovery: the path of their group, and their name in it. The version that a
/// pod names is not asked for, as the server may not have it: it is the same object in each, and the
/// UID tells it from others.
fn known_resource(owner: &Owner) -> Option<(&'static str, &'static str)> {
    const APPS: &str = "/apis/apps/v1";
    Some(match (owner.group(), &*owner.kind) {
        ("apps" | "extensions", "DaemonSet") => (APPS, "daemonsets"),
        ("apps" | "extensions", "StatefulSet") => (APPS, "statefulsets"),
        ("apps" | "extensions", "ReplicaSet") => (APPS, "replicasets"),
        ("batch", "Job") => ("/apis/batch/v1", "jobs"),
        ("", "ReplicationController") => ("/api/v1", "replicationcontrollers"),
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
    #[serde(default)]
    labels: Texts,
    #[serde(default)]
    annotations: Texts,
    #[serde(default)]
    owner_references: First<Controller>,
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

/// The owner that is the controller.
struct Controller(Owner);

impl Pick for Controller {
    type Element = OwnerReference;

    fn pick(element: OwnerReference) -> Option<Self> {
        let OwnerReference { api_version, kind, name, uid, controller } = element;
        let owner = Owner {
            api_version: cut(api_version),
            kind: cut(kind),
            name: cut(name),
            uid: cut(uid),
        };
        (controller == Some(true)).then_some(Self(owner))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    priority: Option<i32>,
    termination_grace_period_seconds: Option<i64>,
    #[serde(default)]
    volumes: Few<LocalVolume>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    name: Arc<str>,
    empty_dir: Option<IgnoredAny>,
    host_path: Option<IgnoredAny>,
}

impl Pick for LocalVolume {
    type Element = Volume;

    fn pick(volume: Volume) -> Option<Self> {
        let kind = match volume {
            Volume { empty_dir: Some(_), .. } => LocalVolumeKind::EmptyDir,
            Volume { host_path: Some(_), .. } => LocalVolumeKind::HostPath,
            _ => return None,
        };
        Some(Self { name: volume.name, kind })
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodStatus {
    phase: String,
    conditions: First<IsReady>,
}

#[derive(Deserialize)]
struct PodCondition {
    r#type: String,
    status: String,
}

/// Its condition Ready is True.
struct IsReady;

impl Pick for IsReady {
    type Element = PodCondition;

    fn pick(condition: PodCondition) -> Option<Self> {
        (condition.r#type == "Ready" && condition.status == "True").then_some(Self)
    }
}

impl PodObject {
    fn facts(self, node: &NodeName) -> Result<DrainPod, RequestError> {
        let Self { metadata: meta, spec, status } = self;
        let uid = meta.uid.parse().map_err(|error| {
            unreadable(format!("pod {}/{}: metadata.uid: {error}", meta.namespace, meta.name))
        })?;
        let annotations: crate::model::Labels = meta.annotations.0.into_iter().collect();
        let grace = spec.termination_grace_period_seconds;
        Ok(DrainPod {
            phase: Phase::parse(&status.phase),
            mirror: annotations.get(MIRROR_ANNOTATION).is_some(),
            terminating: meta.deletion_timestamp,
            created: meta.creation_timestamp,
            ready: status.conditions.0.is_some(),
            labels: meta.labels.0.into_iter().collect(),
            annotations,
            controller: meta.owner_references.0.map(|Controller(owner)| owner),
            volumes: spec.volumes.0,
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

/// A disruption budget as JSON, as far as it is read. What else is in it, such as the times of those who
/// changed it, may be anything.
#[derive(Deserialize)]
struct BudgetObject {
    metadata: BudgetMeta,
    #[serde(default)]
    spec: BudgetSpec,
    #[serde(default)]
    status: BudgetStatus,
}

#[derive(Deserialize)]
struct BudgetMeta {
    name: Arc<str>,
    namespace: Arc<str>,
    generation: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct BudgetSpec {
    max_unavailable: Option<IntOrString>,
    min_available: Option<IntOrString>,
    selector: Option<LabelSelector>,
    unhealthy_pod_eviction_policy: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct BudgetStatus {
    observed_generation: Option<i64>,
    current_healthy: i32,
    desired_healthy: i32,
    expected_pods: i32,
    disruptions_allowed: i32,
}

fn budget(object: BudgetObject) -> Budget {
    let BudgetObject { metadata: meta, spec, status } = object;
    // Without a status nothing is observed: a stored object's generation is 1 at least.
    let observed = status.observed_generation.unwrap_or(0) >= meta.generation.unwrap_or(1);
    Budget {
        namespace: meta.namespace,
        name: meta.name,
        selector: spec.selector.map_or(Selector::Nothing, selector),
        demand: match (spec.max_unavailable, spec.min_available) {
            (Some(most), _) => amount(&most).map(Demand::MaxUnavailable),
            (None, Some(least)) => amount(&least).map(Demand::MinAvailable),
            (None, None) => None,
        },
        lets_unready_go: spec.unhealthy_pod_eviction_policy.as_deref() == Some("AlwaysAllow"),
        observed,
        healthy: status.current_healthy,
        desired: status.desired_healthy,
        expected: status.expected_pods,
        allowed: status.disruptions_allowed,
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
    let expressions = selector.match_expressions.iter().flatten();
    let length = expressions.map(|expression| 1 + expression.values.iter().flatten().count());
    let labels = selector.match_labels.as_ref().map_or(0, BTreeMap::len);
    if labels + length.sum::<usize>() > LONGEST_SELECTOR {
        return Selector::Nothing;
    }
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
