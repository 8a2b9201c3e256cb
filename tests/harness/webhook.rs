//! An admission webhook on `pods/eviction` of one arena that denies every request. Operators that move
//! their pods themselves use such a webhook: the request is their signal.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::arena::Arena;
use super::bed::Bed;
use super::cluster::{PodRef, pod};
use super::wait;

/// A configuration works a moment after it was written.
const EFFECTIVE: Duration = Duration::from_secs(90);

/// What the denials say.
pub const MESSAGE: &str = "the operator moves this pod";

/// How the webhook answers about one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It denies the request, with this code.
    Deny(u16),
    /// It fails itself, with this HTTP status.
    Fail(u16),
}

/// The webhook. It lasts as long as this.
pub struct EvictionWebhook {
    /// Its name, as the API server says it.
    pub name: String,
    admin: Client,
    shared: Arc<Shared>,
    task: AbortHandle,
}

#[derive(Default)]
struct Shared {
    /// By the names of pods. All others are denied with 429.
    verdicts: Mutex<BTreeMap<String, Verdict>>,
    /// The pods that it was asked about, in order.
    asked: Mutex<Vec<String>>,
}

impl Drop for EvictionWebhook {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl EvictionWebhook {
    /// From the return on, evictions in `arena` meet these verdicts.
    pub async fn start(bed: &Bed, arena: &Arena, verdicts: &[(&str, Verdict)]) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let verdicts = verdicts.iter().map(|(name, verdict)| ((*name).to_owned(), *verdict));
        shared.verdicts.lock().extend(verdicts);
        // The API server's own certificate is for this address, and holds its authority.
        let folder = bed.folder().join("kube-apiserver-tls");
        let certificate = std::fs::read(folder.join("apiserver.crt"))?;
        let key = std::fs::read(folder.join("apiserver.key"))?;
        let acceptor = acceptor(&certificate, &key)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("https://{}/", listener.local_addr()?);
        let task = tokio::spawn(serve(listener, acceptor, Arc::clone(&shared))).abort_handle();
        let namespace = arena.namespace();
        let name = format!("evictions.{namespace}.example.com");
        let mut configuration: ValidatingWebhookConfiguration = serde_json::from_value(json!({
            "metadata": { "name": name },
            "webhooks": [{
                "name": name,
                "admissionReviewVersions": ["v1"],
                "sideEffects": "NoneOnDryRun",
                "failurePolicy": "Fail",
                "timeoutSeconds": 10,
                "clientConfig": { "url": url },
                "namespaceSelector": { "matchLabels": {
                    "kubernetes.io/metadata.name": namespace,
                }},
                "rules": [{
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["pods/eviction"],
                }],
            }],
        }))?;
        for webhook in configuration.webhooks.iter_mut().flatten() {
            webhook.client_config.ca_bundle = Some(ByteString(certificate.clone()));
        }
        let admin = bed.admin()?;
        let probe = arena.create(pod("webhook-probe").scheduler("nobody").grace(0)).await?;
        Api::all(admin.clone()).create(&PostParams::default(), &configuration).await?;
        let webhook = Self { name, admin, shared, task };
        webhook.wait_until_asked(arena, &probe).await?;
        Ok(webhook)
    }

    /// How often it was asked about a pod.
    pub fn asked(&self, pod: &PodRef) -> usize {
        self.shared.asked.lock().iter().filter(|name| **name == pod.name).count()
    }

    /// From the return on, it is asked no more.
    pub async fn lift(self) -> Result<()> {
        let all: Api<ValidatingWebhookConfiguration> = Api::all(self.admin.clone());
        all.delete(&self.name, &DeleteParams::default()).await.context("delete the webhook")?;
        Ok(())
    }

    async fn wait_until_asked(&self, arena: &Arena, probe: &PodRef) -> Result<()> {
        let pods = arena.pods();
        let trial = PostParams { dry_run: true, ..PostParams::default() };
        let eviction = json!({"metadata": {"name": probe.name}});
        wait::until("the webhook to be asked", EFFECTIVE, async || {
            let asked =
                pods.create_subresource::<Value, Value>("eviction", &probe.name, &trial, &eviction);
            match asked.await {
                Ok(_) => Ok(None),
                Err(kube::Error::Api(status)) if status.message.contains(MESSAGE) => Ok(Some(())),
                Err(error) => Err(error.into()),
            }
        })
        .await
    }
}

fn acceptor(certificate: &[u8], key: &[u8]) -> Result<TlsAcceptor> {
    let chain = pem::parse_many(certificate)?;
    let chain = chain.into_iter().map(|one| CertificateDer::from(one.into_contents())).collect();
    let key =
        PrivateKeyDer::try_from(pem::parse(key)?.into_contents()).map_err(anyhow::Error::msg)?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let (acceptor, shared) = (acceptor.clone(), Arc::clone(&shared));
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let answer = service_fn(async |request: Request<Incoming>| {
                let body = request.into_body().collect().await?.to_bytes();
                let (code, answer) =
                    shared.review(&serde_json::from_slice(&body).unwrap_or_default());
                let response = Response::builder().status(code);
                let response = response.header("Content-Type", "application/json");
                let response = response.body(Full::new(Bytes::from(answer.to_string())));
                Ok::<_, hyper::Error>(response.unwrap_or_default())
            });
            let connection = hyper::server::conn::http1::Builder::new();
            // The API server closes it when it likes.
            let _ = connection.serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

impl Shared {
    fn review(&self, review: &Value) -> (u16, Value) {
        let request = &review["request"];
        let name = request["name"].as_str().unwrap_or_default();
        if request["dryRun"] != true {
            self.asked.lock().push(name.to_owned());
        }
        match self.verdicts.lock().get(name).copied().unwrap_or(Verdict::Deny(429)) {
            Verdict::Fail(code) => (code, json!({})),
            Verdict::Deny(code) => {
                let status = json!({ "code": code, "message": MESSAGE });
                let response = json!({ "uid": request["uid"], "allowed": false, "status": status });
                let kind = "AdmissionReview";
                let version = "admission.k8s.io/v1";
                (200, json!({ "apiVersion": version, "kind": kind, "response": response }))
            }
        }
    }
}
