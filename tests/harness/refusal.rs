//! An admission policy that denies ostrakon's requests in one arena.

use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use super::arena::Arena;
use super::bed::Bed;
use super::cluster::{PodRef, pod};
use super::users::User;
use super::wait;

/// A policy works a moment after it was written.
const EFFECTIVE: Duration = Duration::from_secs(90);

/// What the refusals say.
pub const MESSAGE: &str = "refused by a test";

/// What is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// To delete a pod.
    Deletes,
    /// To write a pod's status.
    Statuses,
}

/// The policy. Lift it, or it lasts as long as the bed.
pub struct Refusal {
    name: String,
    what: Refused,
    admin: Client,
    /// Deleted, or written to, by way of trial. It is bound to no node, so that nobody else cares about it.
    probe: PodRef,
    pods: Api<Pod>,
}

impl Refusal {
    /// From the return on, ostrakon can delete no pod of `arena`; everybody else can.
    pub async fn of_deletes(bed: &Bed, arena: &Arena) -> Result<Self> {
        Self::of(bed, arena, Refused::Deletes, "Invalid").await
    }

    /// From the return on, ostrakon can write no status of a pod of `arena`, for this reason: `Invalid`
    /// (422) or `Forbidden` (403).
    pub async fn of_statuses(bed: &Bed, arena: &Arena, reason: &str) -> Result<Self> {
        Self::of(bed, arena, Refused::Statuses, reason).await
    }

    async fn of(bed: &Bed, arena: &Arena, what: Refused, reason: &str) -> Result<Self> {
        let namespace = arena.namespace();
        let admin = bed.admin()?;
        let (operation, resource) = match what {
            Refused::Deletes => ("DELETE", "pods"),
            Refused::Statuses => ("UPDATE", "pods/status"),
        };
        let name = format!("refuse-{}-{namespace}", resource.replace('/', "-"));
        let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": [operation],
                    "resources": [resource],
                }]},
                "validations": [{
                    "expression": format!(
                        "request.userInfo.username != '{}'", User::Ostrakon.name()
                    ),
                    "message": MESSAGE,
                    "reason": reason,
                }],
            },
        }))?;
        let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "policyName": name,
                "validationActions": ["Deny"],
                "matchResources": { "namespaceSelector": { "matchLabels": {
                    "kubernetes.io/metadata.name": namespace,
                }}},
            },
        }))?;
        let sketch = pod("refusal-probe").scheduler("nobody").grace(0);
        let refusal = Self {
            name,
            what,
            admin: admin.clone(),
            probe: arena.create(sketch).await?,
            pods: Api::namespaced(bed.client_for(User::Ostrakon)?, namespace),
        };
        Api::all(admin.clone()).create(&PostParams::default(), &policy).await?;
        Api::all(admin).create(&PostParams::default(), &binding).await?;
        refusal.wait_until(true).await?;
        Ok(refusal)
    }

    /// From the return on, it may again.
    pub async fn lift(self) -> Result<()> {
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(self.admin.clone());
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(self.admin.clone());
        let params = DeleteParams::default();
        bindings.delete(&self.name, &params).await.context("delete the binding")?;
        policies.delete(&self.name, &params).await.context("delete the policy")?;
        self.wait_until(false).await
    }

    async fn wait_until(&self, refused: bool) -> Result<()> {
        let what = if refused { "ostrakon to be refused" } else { "ostrakon to be accepted" };
        wait::until(what, EFFECTIVE, async || {
            let is_refused = match self.rehearse().await {
                Ok(()) => false,
                Err(kube::Error::Api(status)) if status.message.contains(MESSAGE) => true,
                Err(error) => return Err(error.into()),
            };
            Ok((is_refused == refused).then_some(()))
        })
        .await
    }

    /// Asks for what is refused, and changes nothing.
    async fn rehearse(&self) -> kube::Result<()> {
        let name = &self.probe.name;
        match self.what {
            Refused::Deletes => {
                let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
                self.pods.delete(name, &dry_run).await.map(|_| ())
            }
            Refused::Statuses => {
                let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
                let patch = Patch::Merge(json!({"status": {"message": "rehearsal"}}));
                self.pods.patch_status(name, &dry_run, &patch).await.map(|_| ())
            }
        }
    }
}
