//! The embedded cluster instead of a control plane, with the same users and tokens and the same audit log.
//! Every user has all permissions.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use http::header::{AUTHORIZATION, USER_AGENT};
use ostrakon::clock::Clock;
use ostrakon::sim::embedded::{
    Audited, Controllers, Embedded, Observed, Options, Served, Settings,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::request::{RequestInfo, Verb};
use super::users::{User, Users};

/// What the audit log of a control plane has of others than ostrakon: writes of these.
const OF_OTHERS: [&str; 3] = ["pods", "nodes", "events"];

/// A served cluster, and its controllers. They end with its value.
#[derive(Debug)]
pub struct EmbeddedPlane {
    served: Served,
    controllers: Controllers,
    /// Writes the audit log.
    _auditor: JoinSet<()>,
}

impl EmbeddedPlane {
    /// Starts it. Requests are written down in `audit`, as kube-apiserver does by the policy of
    /// [`super::audit`].
    pub async fn start(users: &Users, audit: &Path) -> Result<Self> {
        let cluster = Embedded::new(Clock::system(), Options::default());
        let mut log = File::create(audit).with_context(|| format!("make {}", audit.display()))?;
        let tokens = User::ALL.map(|user| (format!("Bearer {}", users.token(user)), user));
        let mut observed = cluster.follow();
        let mut auditor = JoinSet::new();
        auditor.spawn(async move {
            while let Some(observed) = observed.recv().await {
                let Observed::Answered(audited) = observed else { continue };
                let asks = audited.request.headers().get(AUTHORIZATION);
                let user = tokens.iter().find(|(token, _)| asks.is_some_and(|asks| asks == token));
                if let Some(line) = line(&audited, user.map(|(_, user)| *user)) {
                    // A lost line fails the scenario that looks for it.
                    let _ = log.write_all(format!("{line}\n").as_bytes());
                }
            }
        });
        let controllers = Controllers::start(cluster.store(), &Settings::default());
        let served = cluster.serve(([127, 0, 0, 1], 0).into()).await?;
        Ok(Self { served, controllers, _auditor: auditor })
    }

    pub fn url(&self) -> String {
        self.served.url()
    }

    pub async fn stop(self) {
        self.controllers.stop().await;
        self.served.stop().await;
    }
}

/// A request as the audit log has it, if it has it at all.
fn line(audited: &Audited, user: Option<User>) -> Option<Value> {
    let request = &audited.request;
    let info = RequestInfo::new(request.method(), request.uri());
    let is_write = Verb::WRITES.contains(&info.verb);
    let is_ours = user == Some(User::Ostrakon);
    if !(is_ours || is_write && OF_OTHERS.contains(&info.resource.as_str())) {
        return None;
    }
    let body: Value = if is_write && (is_ours || info.resource == "pods") {
        serde_json::from_slice(request.body()).unwrap_or_default()
    } else {
        Value::Null
    };
    let agent = request.headers().get(USER_AGENT).and_then(|agent| agent.to_str().ok());
    let now = audited.at;
    Some(json!({
        "verb": info.verb.as_str(),
        "requestURI": request.uri().to_string(),
        "user": { "username": user.map_or("system:anonymous", User::name) },
        "userAgent": agent.unwrap_or_default(),
        "objectRef": {
            "resource": info.resource,
            "subresource": info.subresource,
            "namespace": info.namespace,
            "name": info.name,
        },
        "responseStatus": { "code": audited.code },
        "requestObject": body,
        "requestReceivedTimestamp": now,
        "stageTimestamp": now,
        "stage": if info.verb == Verb::Watch { "ResponseStarted" } else { "ResponseComplete" },
    }))
}
