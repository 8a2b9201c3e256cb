//! Beside tenants whose requests hang: in the priority levels that `deploy/` asks for, evictions and the
//! lease do not wait for them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use http::{Method, Request, Response};
use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{ListParams, PostParams};
use kube::client::Body;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::ctx::{Ctx, SOON, Scenario, TooSlow, trial};
use crate::harness::cluster::pod;
use crate::harness::ostrakon::Launch;
use crate::harness::{Arena, Bed, BedOptions, User, manifests, no_execute, wait};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(evictions_and_the_lease_do_not_wait_for_tenants_whose_creations_hang).real(),
        trial!(each_request_lands_in_the_level_that_deploy_asks_for).real(),
    ]
}

/// So few requests at a time that tenants can fill their level. Of these the level of all
/// service accounts has 13 and may borrow some more.
const FLAGS: [&str; 2] = ["--max-requests-inflight=20", "--max-mutating-requests-inflight=10"];
/// Pods that have to go.
const PODS: usize = 30;
/// Service accounts that create pods, and how many each at a time.
const TENANTS: (usize, usize) = (8, 8);
/// For how long evictions are looked at that have to wait for the tenants.
const LOOK: Duration = Duration::from_secs(15);
/// A request that has no answer after this long waits for others.
const WAITS: Duration = Duration::from_secs(4);
/// Until the tenants fill their level, on a machine that stalls.
const FILLED: Duration = Duration::from_secs(90);

/// Its own bed, with small limits.
async fn bed() -> Result<Bed> {
    let options = FLAGS.into_iter().fold(BedOptions::default(), BedOptions::apiserver_flag);
    Ok(Bed::start(options).await?)
}

async fn evictions_and_the_lease_do_not_wait_for_tenants_whose_creations_hang(
    _: &Ctx,
) -> Result<()> {
    let bed = bed().await?;
    let (ours, theirs) = (bed.arena("ours").await?, bed.arena("tenants").await?);
    let node = ours.node("n").await?;
    ours.create_all((0..PODS).map(|n| pod(&format!("p{n}")).on(&node).grace(0))).await?;
    let left = async || {
        Ok::<_, anyhow::Error>(ours.pods().list(&ListParams::default()).await?.items.len())
    };

    // As one ServiceAccount among many.
    let launch = Launch::new(bed.kubeconfig(User::Ostrakon)?);
    let among_tenants = launch.clone().start(&bed).await?;
    let _tenants = tenants(&bed, &theirs).await?;
    let fill = async || Ok((!is_served(&bed, &theirs).await?).then_some(()));
    wait::until("the tenants to fill their level", FILLED, fill).await?;
    ours.taint(&node, no_execute("k")).await?;
    sleep(LOOK).await;
    let stuck = left().await?;
    if is_served(&bed, &theirs).await? {
        return Err(TooSlow::error("to keep the tenants' level full"));
    }
    ensure!(stuck > 0, "all went although the level is full, so this shows nothing");
    among_tenants.kill9()?;

    // As deployed: it starts, takes the lease and evicts, while the level is as full as before.
    manifests::apply_flow_schemas(&bed.admin()?).await?;
    let ostrakon = launch.arg("--leader-elect=true").start(&bed).await?;
    let gone = async || Ok((left().await? == 0).then_some(()));
    wait::until("the pods to go", SOON, gone).await?;
    ensure!(ostrakon.metrics().await?.get("ostrakon_leader") == Some(1.0), "it has lost its lease");
    ensure!(!is_served(&bed, &theirs).await?, "the tenants' level was not full any more");
    ostrakon.stop().await?;
    bed.stop().await
}

/// Whether a ServiceAccount of theirs that asks for little is answered soon.
async fn is_served(bed: &Bed, theirs: &Arena) -> Result<bool> {
    let client = account(bed, theirs, "asks")?;
    match timeout(WAITS, client.apiserver_version()).await {
        Err(_) => Ok(false),
        // It has waited in the queue for as long as a request may.
        Ok(Err(kube::Error::Api(status))) if status.code == 429 => Ok(false),
        Ok(answer) => Ok(answer.map(|_| true)?),
    }
}

/// A client of a ServiceAccount in their namespace.
fn account(bed: &Bed, theirs: &Arena, name: &str) -> Result<Client> {
    let namespace = theirs.namespace();
    let groups =
        ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
    bed.client_as(&format!("system:serviceaccount:{namespace}:{name}"), &groups)
}

/// Has tenants create pods without end, through a webhook that never answers. They stop with the
/// value.
async fn tenants(bed: &Bed, theirs: &Arena) -> Result<JoinSet<()>> {
    let namespace = theirs.namespace();
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": { "name": namespace },
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin",
        },
        "subjects": [{
            "apiGroup": "rbac.authorization.k8s.io", "kind": "Group",
            "name": format!("system:serviceaccounts:{namespace}"),
        }],
    }))?;
    Api::all(bed.admin()?).create(&PostParams::default(), &binding).await?;
    let mut tenants = JoinSet::new();
    hanging_webhook(bed, theirs, &mut tenants).await?;
    for tenant in 0..TENANTS.0 {
        let pods = Api::namespaced(account(bed, theirs, &format!("tenant-{tenant}"))?, namespace);
        for _ in 0..TENANTS.1 {
            let pods = pods.clone();
            tenants.spawn(async move {
                loop {
                    let mut object = pod("").object();
                    object.metadata.name = None;
                    object.metadata.generate_name = Some("hangs-".to_owned());
                    // The webhook's time is over, or the queue was full.
                    let _ = pods.create(&PostParams::default(), &object).await;
                    sleep(Duration::from_millis(100)).await;
                }
            });
        }
    }
    Ok(tenants)
}

/// A webhook for pods in their namespace that takes each request and never answers.
async fn hanging_webhook(bed: &Bed, theirs: &Arena, tasks: &mut JoinSet<()>) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    // The API server's own certificate is good for this address too.
    let (chain, key) = bed.server_certificate()?;
    let authority = chain.iter().map(|der| pem::Pem::new("CERTIFICATE", der.clone()));
    let authority = pem::encode_many(&authority.collect::<Vec<_>>());
    let chain = chain.into_iter().map(CertificateDer::from).collect();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    tasks.spawn(async move {
        let mut connections = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(connection) = acceptor.accept(stream).await {
                connections.push(connection);
            }
        }
    });
    let webhook = json!({
        "metadata": { "name": theirs.namespace() },
        "webhooks": [{
            "name": "hangs.ostrakon.dev",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": 30,
            "failurePolicy": "Fail",
            "clientConfig": {
                "url": format!("https://127.0.0.1:{port}/"),
                "caBundle": k8s_openapi::ByteString(authority.into_bytes()),
            },
            "namespaceSelector": {
                "matchLabels": { "kubernetes.io/metadata.name": theirs.namespace() },
            },
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["pods"],
            }],
        }],
    });
    let webhook: k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration =
        serde_json::from_value(webhook)?;
    Api::all(bed.admin()?).create(&PostParams::default(), &webhook).await?;
    Ok(())
}

async fn each_request_lands_in_the_level_that_deploy_asks_for(_: &Ctx) -> Result<()> {
    let bed = Bed::start(BedOptions::default()).await?;
    let admin = bed.admin()?;
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/ostrakon";
    let elsewhere = "/apis/coordination.k8s.io/v1/namespaces/default/leases/ostrakon";
    // No object of these names is there, which matters not: the level is chosen before.
    let asked = [
        (Method::GET, lease, "leader-election"),
        (Method::PUT, lease, "leader-election"),
        (Method::POST, lease.strip_suffix("/ostrakon").unwrap_or_default(), "leader-election"),
        (Method::GET, elsewhere, "workload-high"),
        (Method::GET, "/api/v1/nodes?limit=1", "workload-high"),
        (Method::GET, "/api/v1/pods?limit=1", "workload-high"),
        (Method::PATCH, "/api/v1/nodes/none", "workload-high"),
        (Method::PATCH, "/api/v1/namespaces/default/pods/none/status", "workload-high"),
        (Method::DELETE, "/api/v1/namespaces/default/pods/none", "workload-high"),
        (Method::POST, "/api/v1/namespaces/default/pods/none/eviction", "workload-high"),
        (Method::POST, "/api/v1/namespaces/default/events", "workload-high"),
        (Method::POST, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "workload-high"),
        (Method::GET, "/version", "workload-high"),
    ];
    for (method, path, _) in &asked {
        let level = level(&bed, User::Ostrakon, method, path).await?;
        ensure!(level == "workload-low", "{method} {path} without schemas of ours: {level}");
    }
    manifests::apply_flow_schemas(&admin).await?;
    let in_force = async || {
        let (method, path, wanted) = &asked[0];
        let by_lease = level(&bed, User::Ostrakon, method, path).await? == *wanted;
        let (method, path, wanted) = &asked[3];
        Ok((by_lease && level(&bed, User::Ostrakon, method, path).await? == *wanted).then_some(()))
    };
    wait::until("the flow schemas to be in force", SOON, in_force).await?;
    for (method, path, wanted) in &asked {
        let level = level(&bed, User::Ostrakon, method, path).await?;
        ensure!(level == *wanted, "{method} {path}: {level}, not {wanted}");
    }
    // Nobody else is moved.
    let level = level(&bed, User::Stranger, &Method::GET, lease).await?;
    ensure!(level == "global-default", "{level}");
    for schema in Api::<FlowSchema>::all(admin).list(&ListParams::default()).await? {
        let conditions = schema.status.unwrap_or_default().conditions.unwrap_or_default();
        let is_dangling = conditions.iter().any(|condition| {
            condition.type_.as_deref() == Some("Dangling")
                && condition.status.as_deref() == Some("True")
        });
        ensure!(!is_dangling, "{:?} names a level that is not there", schema.metadata.name);
    }
    bed.stop().await
}

/// Name of the priority level in which such a request of `user` is carried out.
async fn level(bed: &Bed, user: User, method: &Method, path: &str) -> Result<String> {
    let request = Request::builder().method(method).uri(path);
    let media = if *method == Method::PATCH {
        "application/strategic-merge-patch+json"
    } else {
        "application/json"
    };
    let request = request.header("content-type", media).body(Body::from(b"{}".to_vec()))?;
    let answer: Response<Body> = bed.client_for(user)?.send(request).await?;
    let uid = answer.headers().get("x-kubernetes-pf-prioritylevel-uid");
    let uid = uid.with_context(|| format!("no level: {}", answer.status()))?.to_str()?;
    let levels: Api<PriorityLevelConfiguration> = Api::all(bed.admin()?);
    let levels = levels.list(&ListParams::default()).await?;
    let names: BTreeMap<_, _> =
        levels.iter().filter_map(|level| Some((level.uid()?, level.name_any()))).collect();
    let Some(name) = names.get(uid) else { bail!("there is no level {uid}: {names:?}") };
    Ok(name.clone())
}
