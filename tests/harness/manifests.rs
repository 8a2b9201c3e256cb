//! The permissions that `deploy/` grants, applied to a test's API server.
//!
//! The files are those that users apply, so a verb that is missing in them is missing in the tests too.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde::Deserialize;

use super::users::User;

/// What is needed of `deploy/` where no pod of ostrakon's own is going to run.
const KINDS: [&str; 6] =
    ["Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];

#[derive(Deserialize)]
struct Kustomization {
    resources: Vec<String>,
}

/// Where the manifests are: those for every cluster, those for drains on top, and those of a dry run.
const FOLDERS: [&str; 3] = ["base", "components/drain", "dry-run"];

/// All objects of `deploy/kustomize`, in the order of each `kustomization.yaml`.
pub fn objects() -> Result<Vec<DynamicObject>> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("deploy/kustomize");
    let objects = FOLDERS.map(|folder| objects_in(&root.join(folder)));
    Ok(objects.into_iter().collect::<Result<Vec<_>>>()?.concat())
}

fn objects_in(folder: &Path) -> Result<Vec<DynamicObject>> {
    let read = |file: &str| {
        let path = folder.join(file);
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    };
    let kustomization: Kustomization = serde_saphyr::from_str(&read("kustomization.yaml")?)?;
    let mut objects = Vec::new();
    for file in kustomization.resources {
        let documents: Vec<DynamicObject> =
            serde_saphyr::from_multiple(&read(&file)?).with_context(|| format!("parse {file}"))?;
        objects.extend(documents);
    }
    Ok(objects)
}

/// Applies ostrakon's account and rights, and nothing else of `deploy/`.
pub async fn apply_rights(client: &Client) -> Result<()> {
    let mut account_is_there = false;
    for object in apply(client, &KINDS).await? {
        if object.types.is_some_and(|types| types.kind == "ServiceAccount") {
            let namespace = object.metadata.namespace.as_deref().unwrap_or("default");
            let name = object.metadata.name.as_deref().unwrap_or_default();
            account_is_there |=
                User::Ostrakon.name() == format!("system:serviceaccount:{namespace}:{name}");
        }
    }
    ensure!(
        account_is_there,
        "deploy/ has no ServiceAccount that is {}; change tests/harness/users.rs with it",
        User::Ostrakon.name()
    );
    Ok(())
}

/// Applies the flow schemas of `deploy/`, by which ostrakon's requests do not wait for those of tenants.
pub async fn apply_flow_schemas(client: &Client) -> Result<()> {
    ensure!(
        apply(client, &["FlowSchema"]).await?.len() == 2,
        "one for the lease, one for the rest"
    );
    Ok(())
}

/// Applies the objects of these kinds, and returns them as they are in the files.
async fn apply(client: &Client, kinds: &[&str]) -> Result<Vec<DynamicObject>> {
    let mut applied = Vec::new();
    for object in objects()? {
        let types = object.types.clone().context("an object without kind")?;
        if !kinds.contains(&types.kind.as_str()) {
            continue;
        }
        let name = object.metadata.name.clone().context("an object without name")?;
        let namespace = object.metadata.namespace.clone();
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
        let api: Api<DynamicObject> = match &namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        api.patch(&name, &PatchParams::apply("harness").force(), &Patch::Apply(&object))
            .await
            .with_context(|| format!("apply {} {name}", types.kind))?;
        applied.push(object);
    }
    Ok(applied)
}
