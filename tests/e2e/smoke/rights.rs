//! ostrakon's user may do what `deploy/` says, and no more.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use ostrakon::cluster::Permission;
use ostrakon::{leader, preflight};
use serde_json::json;

use crate::ctx::{Ctx, Scenario, trial};
use crate::harness::cluster::pod;
use crate::harness::{User, manifests};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(ostrakon_may_do_what_it_needs).real(),
        trial!(ostrakon_may_do_nothing_else).real(),
        trial!(a_stranger_may_do_nothing).real(),
        trial!(rights_hold_for_real_requests).real(),
        trial!(the_api_server_accepts_all_of_deploy).real(),
        trial!(the_deployments_pod_is_admitted_and_critical).real(),
    ]
}

/// What anyone may who is known: ask what they may.
const REVIEW: (&str, &str) = ("create", "authorization.k8s.io/selfsubjectaccessreviews");

/// The program's own list, and the request by which it looks for it.
fn needed() -> impl Iterator<Item = (&'static str, String)> {
    let own = preflight::permissions().iter().map(|permission| {
        let resource = match permission.subresource {
            "" => permission.resource.to_owned(),
            subresource => format!("{}/{subresource}", permission.resource),
        };
        (permission.verb, resource)
    });
    own.chain([(REVIEW.0, REVIEW.1.to_owned())])
}

const FORBIDDEN: [(&str, &str); 23] = [
    ("update", "nodes"),
    ("delete", "nodes"),
    ("create", "nodes"),
    ("update", "nodes/status"),
    ("create", "pods"),
    ("update", "pods"),
    ("patch", "pods"),
    ("deletecollection", "pods"),
    ("update", "pods/status"),
    ("get", "pods/eviction"),
    ("create", "pods/binding"),
    ("create", "pods/exec"),
    ("get", "pods/log"),
    ("get", "events"),
    ("patch", "events"),
    ("delete", "events"),
    ("get", "secrets"),
    ("update", "secrets"),
    ("list", "configmaps"),
    ("list", "namespaces"),
    ("impersonate", "users"),
    ("update", "coordination.k8s.io/leases"),
    ("create", "rbac.authorization.k8s.io/clusterrolebindings"),
];

async fn ostrakon_may_do_what_it_needs(ctx: &Ctx) -> Result<()> {
    let client = ctx.bed().client_for(User::Ostrakon)?;
    for (verb, resource) in needed() {
        ensure!(is_allowed(&client, verb, &resource).await?, "may not {verb} {resource}");
    }
    for permission in preflight::drain_permissions() {
        ensure!(ask(&client, attributes_of(permission)).await?, "may not {permission}");
    }
    let lease = "coordination.k8s.io/leases";
    for permission in preflight::election_permissions() {
        let (verb, name) = (permission.verb, leader::LEASE);
        let name = if verb == "create" { "" } else { name };
        ensure!(is_allowed_in(&client, "kube-system", verb, lease, name).await?, "{permission}");
        ensure!(!is_allowed_in(&client, "default", verb, lease, name).await?, "{permission}");
    }
    ensure!(!is_allowed_in(&client, "kube-system", "update", lease, "kube-scheduler").await?);
    Ok(())
}

async fn ostrakon_may_do_nothing_else(ctx: &Ctx) -> Result<()> {
    let client = ctx.bed().client_for(User::Ostrakon)?;
    for (verb, resource) in FORBIDDEN {
        ensure!(!is_allowed(&client, verb, resource).await?, "may {verb} {resource}");
    }
    Ok(())
}

async fn a_stranger_may_do_nothing(ctx: &Ctx) -> Result<()> {
    let client = ctx.bed().client_for(User::Stranger)?;
    let forbidden = FORBIDDEN.iter().map(|(verb, resource)| (*verb, (*resource).to_owned()));
    for (verb, resource) in needed().chain(forbidden) {
        let expected = resource == REVIEW.1;
        let allowed = is_allowed(&client, verb, &resource).await?;
        ensure!(allowed == expected, "{verb} {resource}: {allowed}");
    }
    Ok(())
}

/// `resource` is `[GROUP/]RESOURCE[/SUBRESOURCE]`; a group has a dot in its name.
async fn is_allowed(client: &Client, verb: &str, resource: &str) -> Result<bool> {
    is_allowed_in(client, "", verb, resource, "").await
}

/// As [`is_allowed`], in a namespace, to the object of this name.
async fn is_allowed_in(
    client: &Client,
    namespace: &str,
    verb: &str,
    resource: &str,
    name: &str,
) -> Result<bool> {
    let (group, resource) = match resource.split_once('/') {
        Some((group, resource)) if group.contains('.') => (group, resource),
        _ => ("", resource),
    };
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let attributes = ResourceAttributes {
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        verb: Some(verb.to_owned()),
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        subresource: Some(subresource.to_owned()),
        ..ResourceAttributes::default()
    };
    ask(client, attributes).await
}

fn attributes_of(permission: &Permission) -> ResourceAttributes {
    ResourceAttributes {
        verb: Some(permission.verb.to_owned()),
        group: Some(permission.group.to_owned()),
        resource: Some(permission.resource.to_owned()),
        subresource: Some(permission.subresource.to_owned()),
        ..ResourceAttributes::default()
    }
}

async fn ask(client: &Client, attributes: ResourceAttributes) -> Result<bool> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await?;
    Ok(answer.status.context("a review without status")?.allowed)
}

async fn rights_hold_for_real_requests(ctx: &Ctx) -> Result<()> {
    let arena = ctx.arena().await?;
    let node = arena.node("n").await?;
    let pod = arena.create(pod("p").on(&node)).await?;
    let client = ctx.bed().client_for(User::Ostrakon)?;
    let pods: Api<Pod> = Api::namespaced(client, arena.namespace());

    let condition = json!({ "status": { "conditions": [{
        "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
    }]}});
    let patch = Patch::Strategic(condition);
    pods.patch_status(&pod.name, &PatchParams::default(), &patch).await?;

    let labels = Patch::Merge(json!({ "metadata": { "labels": { "a": "b" } } }));
    match pods.patch(&pod.name, &PatchParams::default(), &labels).await {
        Err(kube::Error::Api(status)) if status.is_forbidden() => Ok(()),
        other => anyhow::bail!("patching the pod itself: {other:?}"),
    }
}

async fn the_api_server_accepts_all_of_deploy(ctx: &Ctx) -> Result<()> {
    let client = ctx.bed().admin()?;
    let mut kinds = Vec::new();
    for object in manifests::objects()? {
        let types = object.types.clone().context("an object without kind")?;
        let name = object.metadata.name.clone().context("an object without name")?;
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let mut params = PatchParams::apply("smoke").force().dry_run();
        params.field_validation = Some(kube::api::ValidationDirective::Strict);
        api.patch(&name, &params, &Patch::Apply(&object))
            .await
            .with_context(|| format!("dry run of {} {name}", types.kind))?;
        kinds.push(types.kind);
    }
    ensure!(kinds.iter().any(|kind| kind == "Deployment"), "no Deployment among {kinds:?}");
    Ok(())
}

/// A Deployment is accepted whatever its pods look like; this is what would come out of it.
async fn the_deployments_pod_is_admitted_and_critical(ctx: &Ctx) -> Result<()> {
    let objects = manifests::objects()?;
    let deployment = objects
        .into_iter()
        .find(|object| object.types.as_ref().is_some_and(|types| types.kind == "Deployment"));
    let deployment: Deployment = deployment.context("no Deployment")?.try_parse()?;
    let namespace = deployment.metadata.namespace.context("a Deployment without namespace")?;
    let template = deployment.spec.context("a Deployment without spec")?.template;
    let mut pod = Pod { metadata: template.metadata.unwrap_or_default(), ..Pod::default() };
    pod.spec = template.spec;
    pod.metadata.name = Some("would-be".to_owned());

    let pods: Api<Pod> = Api::namespaced(ctx.bed().admin()?, &namespace);
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let admitted = pods.create(&dry_run, &pod).await?;
    let spec = admitted.spec.context("a pod without spec")?;
    ensure!(spec.priority == Some(2_000_000_000), "priority {:?}", spec.priority);
    ensure!(
        format!(
            "system:serviceaccount:{namespace}:{}",
            spec.service_account_name.unwrap_or_default()
        ) == User::Ostrakon.name()
    );
    // Admission adds no toleration: those of the Deployment are all there are.
    let tolerations = spec.tolerations.unwrap_or_default();
    ensure!(tolerations.len() == 4, "{tolerations:?}");

    // Not because nobody looks: the namespace refuses a pod with less care.
    pod.spec.get_or_insert_default().security_context = None;
    let careless = pods.create(&dry_run, &pod).await;
    ensure!(careless.is_err(), "admitted without securityContext");
    Ok(())
}
