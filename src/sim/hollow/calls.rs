//! The requests of hollow kubelets, each with a timeout.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1 as core;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Error as KubeError};
use serde_json::Value;
use tokio::time::timeout;

use super::lease;
use super::objects::{Node, Pod};
use crate::model::NodeName;

/// The name under which a kubelet's writes are booked in `managedFields`.
const FIELD_MANAGER: &str = "kubelet";

/// A request that did not do what it was to do.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The API server did not answer in time.
    #[error("no answer within {0:?}")]
    Silence(Duration),
    /// The API server refused, or could not be reached.
    #[error(transparent)]
    Failed(#[from] KubeError),
}

impl CallError {
    /// The object is not there.
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Failed(KubeError::Api(status)) if status.is_not_found())
    }

    /// An object of that name is there already.
    pub(super) fn is_already_exists(&self) -> bool {
        matches!(self, Self::Failed(KubeError::Api(status)) if status.is_already_exists())
    }

    /// Trying again would not help: the request itself, or who sends it, is refused.
    pub(super) fn is_final(&self) -> bool {
        let Self::Failed(KubeError::Api(status)) = self else {
            return false;
        };
        self.is_already_exists()
            || self.is_not_found()
            || matches!(status.code, 400 | 401 | 403 | 422)
    }
}

type Result<T> = std::result::Result<T, CallError>;

/// The API server, to hollow kubelets.
#[derive(Clone)]
pub(super) struct Calls {
    pub(super) client: Client,
    pub(super) timeout: Duration,
}

impl Calls {
    /// Creates the node.
    pub(super) async fn create_node(&self, node: &core::Node) -> Result<Node> {
        let api: Api<core::Node> = Api::all(self.client.clone());
        let created = self.within(api.create(&PostParams::default(), node)).await?;
        Ok(Node { metadata: created.metadata, ..Node::default() })
    }

    /// Patches the node's metadata.
    pub(super) async fn patch_node(&self, name: &NodeName, patch: &Value) -> Result<Node> {
        let api: Api<Node> = Api::all(self.client.clone());
        let patch = Patch::Merge(patch);
        self.within(api.patch(name.as_str(), &params(), &patch)).await
    }

    /// Patches the node's status.
    pub(super) async fn patch_node_status(&self, name: &NodeName, patch: &Value) -> Result<Node> {
        let api: Api<Node> = Api::all(self.client.clone());
        let patch = Patch::Strategic(patch);
        self.within(api.patch_status(name.as_str(), &params(), &patch)).await
    }

    /// Deletes the node.
    pub(super) async fn delete_node(&self, name: &NodeName) -> Result<()> {
        let api: Api<Node> = Api::all(self.client.clone());
        let params = DeleteParams::default();
        self.within(api.delete(name.as_str(), &params)).await.map(drop)
    }

    /// Creates a lease.
    pub(super) async fn create_lease(&self, lease: &Lease) -> Result<()> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), lease::NAMESPACE);
        self.within(api.create(&PostParams::default(), lease)).await.map(drop)
    }

    /// Renews a lease.
    pub(super) async fn patch_lease(&self, name: &NodeName, patch: &Value) -> Result<()> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), lease::NAMESPACE);
        let patch = Patch::Merge(patch);
        self.within(api.patch(name.as_str(), &params(), &patch)).await.map(drop)
    }

    /// Creates a pod, which is bound from the start.
    pub(super) async fn create_pod(&self, pod: &core::Pod) -> Result<Pod> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<core::Pod> = Api::namespaced(self.client.clone(), namespace);
        let request = kube::core::Request::new(api.resource_url());
        let body = serde_json::to_vec(pod).map_err(KubeError::SerdeError)?;
        let request =
            request.create(&PostParams::default(), body).map_err(KubeError::BuildRequest)?;
        self.within(self.client.request(request)).await
    }

    /// Patches a pod's status.
    pub(super) async fn patch_pod_status(&self, pod: &Pod, patch: &Value) -> Result<Pod> {
        let patch = Patch::Strategic(patch);
        self.within(self.pods_of(pod).patch_status(pod.name(), &params(), &patch)).await
    }

    /// Deletes a pod with no grace, provided that it is still this very pod.
    pub(super) async fn remove_pod(&self, pod: &Pod) -> Result<()> {
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: pod.metadata.uid.clone(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        self.within(self.pods_of(pod).delete(pod.name(), &params)).await.map(drop)
    }

    fn pods_of(&self, pod: &Pod) -> Api<Pod> {
        Api::namespaced(self.client.clone(), pod.namespace())
    }

    async fn within<T>(&self, call: impl Future<Output = kube::Result<T>>) -> Result<T> {
        match timeout(self.timeout, call).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(CallError::Silence(self.timeout)),
        }
    }
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}
