//! The only way to the API server: a request says what it may do by the constructor of its [`Call`], and
//! no write is sent unless the gate is open.
//!
//! The constructor tells harm from recovery too: an eviction or a cordon is refused during a pause, an
//! uncordon or a report never.
//!
//! The HTTP method follows from the call, so a request that is made as a read cannot write.

use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::transport::transport;
use super::{RequestError, refusal};
use crate::cluster::WriteGate;

/// What a request may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cluster) enum Access {
    /// It changes nothing.
    Read,
    /// It evicts or cordons, which only the leader may do, and nobody during a pause.
    Harm,
    /// It takes harm back or reports, which only the leader may do.
    Recovery,
    /// It writes the lease itself, which is how one becomes the leader.
    Lease,
}

/// A verb of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
}

/// A verb on a resource. It is also what the request is counted as.
#[derive(Clone, Copy, Debug)]
pub(in crate::cluster) struct Call {
    verb: Verb,
    resource: &'static str,
    access: Access,
}

impl Call {
    const LEASES: &str = "leases";

    const fn read(verb: Verb, resource: &'static str) -> Self {
        Self { verb, resource, access: Access::Read }
    }

    const fn harm(verb: Verb, resource: &'static str) -> Self {
        Self { verb, resource, access: Access::Harm }
    }

    const fn recovery(verb: Verb, resource: &'static str) -> Self {
        Self { verb, resource, access: Access::Recovery }
    }

    pub(in crate::cluster) const fn get(resource: &'static str) -> Self {
        Self::read(Verb::Get, resource)
    }

    pub(in crate::cluster) const fn list(resource: &'static str) -> Self {
        Self::read(Verb::List, resource)
    }

    pub(in crate::cluster) const fn watch(resource: &'static str) -> Self {
        Self::read(Verb::Watch, resource)
    }

    /// Asks for the rights of the credentials in use. It is sent by POST, but stores nothing.
    pub(in crate::cluster) const fn review_access() -> Self {
        Self::read(Verb::Create, "selfsubjectaccessreviews")
    }

    /// Asks who the credentials in use belong to. It is sent by POST, but stores nothing.
    pub(in crate::cluster) const fn review_self() -> Self {
        Self::read(Verb::Create, "selfsubjectreviews")
    }

    /// Evicts a pod by the Eviction API.
    pub(in crate::cluster) const fn evict_pod() -> Self {
        Self::harm(Verb::Create, "pods/eviction")
    }

    pub(in crate::cluster) const fn delete_pod() -> Self {
        Self::harm(Verb::Delete, "pods")
    }

    /// Writes the condition `DisruptionTarget`, by which others treat the pod as lost.
    pub(in crate::cluster) const fn mark_pod() -> Self {
        Self::harm(Verb::Patch, "pods/status")
    }

    /// Makes a node unschedulable, or puts a taint on it.
    pub(in crate::cluster) const fn cordon() -> Self {
        Self::harm(Verb::Patch, "nodes")
    }

    /// Changes a node without a cordon: uncordons it, removes taints, or writes annotations.
    pub(in crate::cluster) const fn uncordon_or_annotate() -> Self {
        Self::recovery(Verb::Patch, "nodes")
    }

    /// Writes a condition of a node, which people and autoscalers read.
    pub(in crate::cluster) const fn mark_node() -> Self {
        Self::recovery(Verb::Patch, "nodes/status")
    }

    pub(in crate::cluster) const fn create_event() -> Self {
        Self::recovery(Verb::Create, "events")
    }

    /// Writes an annotation of the lease, which neither claims nor renews it.
    pub(in crate::cluster) const fn annotate_lease() -> Self {
        Self::recovery(Verb::Patch, Self::LEASES)
    }

    pub(in crate::cluster) const fn create_lease() -> Self {
        Self { verb: Verb::Create, resource: Self::LEASES, access: Access::Lease }
    }

    pub(in crate::cluster) const fn update_lease() -> Self {
        Self { verb: Verb::Update, resource: Self::LEASES, access: Access::Lease }
    }

    pub(super) const fn verb(self) -> &'static str {
        match self.verb {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
        }
    }

    pub(super) const fn resource(self) -> &'static str {
        self.resource
    }

    fn creates_event(self) -> bool {
        self.verb == Verb::Create && self.resource == "events"
    }

    const fn method(self) -> Method {
        match self.verb {
            Verb::Get | Verb::List | Verb::Watch => Method::GET,
            Verb::Create => Method::POST,
            Verb::Update => Method::PUT,
            Verb::Patch => Method::PATCH,
            Verb::Delete => Method::DELETE,
        }
    }

    /// The request of this call. `content` is the media type of the body, if there is one.
    pub(in crate::cluster) fn request(
        self,
        path: &str,
        accept: &str,
        content: Option<&'static str>,
        body: &Value,
    ) -> Result<CallRequest, RequestError> {
        let mut builder = Request::builder().method(self.method()).uri(path).header(ACCEPT, accept);
        if let Some(content) = content {
            builder = builder.header(CONTENT_TYPE, content);
        }
        let body =
            if body.is_null() { Body::empty() } else { Body::from(body.to_string().into_bytes()) };
        let request = builder.body(body);
        let request = request.map_err(|error| RequestError::Transport(error.to_string()))?;
        Ok(CallRequest { call: self, request })
    }
}

/// A request together with the call that it was made for.
pub(in crate::cluster) struct CallRequest {
    call: Call,
    request: Request<Body>,
}

impl CallRequest {
    pub(super) fn call(&self) -> Call {
        self.call
    }

    pub(super) fn headers_mut(&mut self) -> &mut HeaderMap {
        self.request.headers_mut()
    }
}

/// The connections to the API server behind the gate. Clones share both.
#[derive(Clone)]
pub(super) struct GatedClient {
    client: Client,
    gate: WriteGate,
}

impl GatedClient {
    pub(super) fn new(client: Client, gate: WriteGate) -> Self {
        Self { client, gate }
    }

    pub(super) fn gated(self, gate: WriteGate) -> Self {
        Self { gate, ..self }
    }

    /// Sends a request and has `read` read the response of a success, both within one time limit. A write
    /// is not sent unless the gate is open, nor a harmful one during a pause, and none is awaited beyond the
    /// end of the lease. In a dry run nothing but a read is sent, whatever the lease is.
    pub(super) async fn send<T>(
        &self,
        request: CallRequest,
        within: Duration,
        read: impl AsyncFnOnce(Response<Body>) -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        let start = Instant::now();
        let CallRequest { call, request } = request;
        let dry_run = self.gate.reads_only();
        if let Some(events) = dry_run
            && call.access != Access::Read
            && !(events && call.creates_event())
        {
            return Err(RequestError::DryRun);
        }
        let needs_lease = dry_run.is_none()
            && match call.access {
                Access::Harm | Access::Recovery => true,
                Access::Read | Access::Lease => false,
            };
        if needs_lease && self.gate.left().is_none() {
            return Err(RequestError::NotLeading);
        }
        if call.access == Access::Harm && self.gate.is_paused() {
            return Err(RequestError::Paused);
        }
        let lease_ended = async {
            if needs_lease {
                self.gate.ended().await;
            } else {
                std::future::pending().await
            }
        };
        let exchange = async {
            let response = self.client.send(request).await.map_err(transport)?;
            if !response.status().is_success() {
                return Err(refusal(response).await);
            }
            read(response).await
        };
        tokio::select! {
            biased;
            result = timeout(within, exchange) => {
                result.unwrap_or(Err(RequestError::Timeout(within)))
            }
            () = lease_ended => Err(RequestError::Timeout(start.elapsed())),
        }
    }
}

#[cfg(test)]
mod tests;
