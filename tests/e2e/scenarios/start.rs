//! The program at its start, on a real API server: what it says when it may not or cannot run,
//! and when it calls itself ready.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use ostrakon::cluster::Permission;
use ostrakon::preflight;
use serde_json::{Value, json};

use super::evidence::{QUIET, SOON};
use crate::ctx::{Ctx, Scenario, trial};
use crate::harness::cluster::pod;
use crate::harness::ostrakon::Launch;
use crate::harness::program::{self, Run};
use crate::harness::{Arena, Bed, Fault, Match, User, Verb, http, no_execute, wait};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(a_wrong_token_is_named_as_the_cause).real(),
        trial!(an_unknown_authority_is_named_as_the_cause).real(),
        trial!(plain_http_to_the_api_server_is_named_as_the_cause).real(),
        trial!(every_missing_permission_is_named).real(),
        trial!(who_may_not_ask_for_rights_starts_with_a_warning_and_evicts).real().alone(),
        trial!(a_port_in_use_is_named_with_the_flag_that_changes_it),
        trial!(it_says_what_it_waits_for_until_it_is_ready).alone(),
    ]
}

/// Nothing that ends by itself takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) async fn run(bed: &Bed, kubeconfig: &Path, args: &[&str]) -> Result<Run> {
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let all = [&["run", kubeconfig.as_str(), "--listen=127.0.0.1:0"], args].concat();
    program::run(bed.folder(), &all, &[], PATIENCE).await
}

/// It failed, and the one line that it says has all of these words.
pub(super) fn complains(run: &Run, words: &[&str]) -> Result<()> {
    ensure!(run.code() == Some(1) && run.stdout.is_empty(), "{run:?}");
    let line = run.complaint()?;
    ensure!(line.starts_with("error: "), "{line}");
    for word in words {
        ensure!(line.contains(word), "no {word:?} in: {line}");
    }
    Ok(())
}

/// The kubeconfig of ostrakon's user, changed.
fn changed(bed: &Bed, name: &str, change: impl FnOnce(&mut Value)) -> Result<std::path::PathBuf> {
    let original = std::fs::read_to_string(bed.kubeconfig(User::Ostrakon)?)?;
    let mut content: Value = serde_json::from_str(&original)?;
    change(&mut content);
    let path = bed.folder().join(format!("{name}.kubeconfig"));
    std::fs::write(&path, content.to_string())?;
    Ok(path)
}

async fn a_wrong_token_is_named_as_the_cause(ctx: &Ctx) -> Result<()> {
    let kubeconfig = changed(ctx.bed(), "wrong-token", |content| {
        content["users"][0]["user"]["token"] = json!("s3cr3t");
    })?;
    let run = run(ctx.bed(), &kubeconfig, &[]).await?;
    complains(&run, &["rejects the credentials", "401", "check the user of the kubeconfig"])?;
    ensure!(!run.stderr.contains("s3cr3t"), "{run:?}");
    // With none at all it is nobody, and nobody may not even ask.
    let kubeconfig = changed(ctx.bed(), "no-token", |content| {
        content["users"][0]["user"] = json!({});
    })?;
    let run = self::run(ctx.bed(), &kubeconfig, &[]).await?;
    complains(&run, &["cannot check permissions", "403", "system:anonymous"])
}

async fn an_unknown_authority_is_named_as_the_cause(ctx: &Ctx) -> Result<()> {
    let kubeconfig = changed(ctx.bed(), "no-authority", |content| {
        content["clusters"][0]["cluster"]["certificate-authority"] = Value::Null;
    })?;
    let run = run(ctx.bed(), &kubeconfig, &[]).await?;
    complains(&run, &["cannot reach the API server at https://127.0.0.1:", "certificate"])
}

async fn plain_http_to_the_api_server_is_named_as_the_cause(ctx: &Ctx) -> Result<()> {
    let kubeconfig = changed(ctx.bed(), "plain-http", |content| {
        let server = &mut content["clusters"][0]["cluster"]["server"];
        *server = json!(server.as_str().unwrap_or_default().replace("https", "http"));
    })?;
    let run = run(ctx.bed(), &kubeconfig, &[]).await?;
    complains(&run, &["400", "HTTP request to an HTTPS server"])
}

async fn every_missing_permission_is_named(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let arena = ctx.arena().await?;
    let run_of_stranger = run(bed, &bed.kubeconfig(User::Stranger)?, &[]).await?;
    let all: Vec<String> = preflight::permissions().iter().map(ToString::to_string).collect();
    let remedy = "apply the ClusterRole in deploy/";
    complains(&run_of_stranger, &["missing permission", &all.join(", "), remedy])?;

    for (number, missing) in preflight::permissions().iter().enumerate() {
        let account = Account::without(bed, &arena, number, *missing).await?;
        // Rights count a moment after they are written.
        let said = wait::until("only one right to be missing", SOON, async || {
            let run = run(bed, &account.kubeconfig, &[]).await?;
            complains(&run, &[remedy])?;
            let rest = run.stderr.split("missing permission: ").nth(1).map(str::to_owned);
            let rest = rest.with_context(|| format!("{run:?}"))?;
            let missing = rest.split(';').next().unwrap_or_default().to_owned();
            Ok((!missing.contains(',')).then_some(missing))
        })
        .await;
        account.remove(bed).await?;
        let said = said?;
        ensure!(said == missing.to_string(), "{missing} is missing, and it says {said:?}");
    }
    Ok(())
}

/// A ServiceAccount with some permissions.
pub(super) struct Account {
    role: String,
    pub(super) kubeconfig: std::path::PathBuf,
}

impl Account {
    /// One that may do all that ostrakon needs but for one thing.
    async fn without(bed: &Bed, arena: &Arena, number: usize, missing: Permission) -> Result<Self> {
        let others = preflight::permissions().iter().filter(|right| **right != missing);
        let rules = others.map(|right| PolicyRule {
            api_groups: Some(vec![String::new()]),
            resources: Some(vec![match right.subresource {
                "" => right.resource.to_owned(),
                subresource => format!("{}/{subresource}", right.resource),
            }]),
            verbs: vec![right.verb.to_owned()],
            ..PolicyRule::default()
        });
        Self::granted(bed, arena, &format!("lacks-{number}"), rules.collect()).await
    }

    /// One with these permissions.
    pub(super) async fn granted(
        bed: &Bed,
        arena: &Arena,
        name: &str,
        rules: Vec<PolicyRule>,
    ) -> Result<Self> {
        let (client, create) = (arena.client(), PostParams::default());
        let role_name = format!("{}-{name}", arena.namespace());
        let mut role = ClusterRole { rules: Some(rules), ..ClusterRole::default() };
        role.metadata.name = Some(role_name.clone());
        Api::<ClusterRole>::all(client.clone()).create(&create, &role).await?;
        let binding: ClusterRoleBinding = serde_json::from_value(json!({
            "metadata": { "name": role_name },
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role_name,
            },
            "subjects": [{
                "kind": "ServiceAccount", "name": name, "namespace": arena.namespace(),
            }],
        }))?;
        Api::<ClusterRoleBinding>::all(client.clone()).create(&create, &binding).await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client, arena.namespace());
        let mut account = ServiceAccount::default();
        account.metadata.name = Some(name.to_owned());
        accounts.create(&create, &account).await?;
        let spec =
            TokenRequestSpec { expiration_seconds: Some(600), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let token = accounts.create_token_request(name, &create, &request).await?;
        let token = token.status.context("a token request without answer")?.token;
        let kubeconfig = changed(bed, &role_name, |content| {
            content["users"][0]["user"]["token"] = json!(token);
        })?;
        Ok(Self { role: role_name, kubeconfig })
    }

    pub(super) async fn remove(self, bed: &Bed) -> Result<()> {
        let (client, params) = (bed.admin()?, DeleteParams::default());
        Api::<ClusterRoleBinding>::all(client.clone()).delete(&self.role, &params).await?;
        Api::<ClusterRole>::all(client).delete(&self.role, &params).await?;
        Ok(())
    }
}

/// As in hardened clusters: nobody may create `selfsubjectaccessreviews`, and all else is as before.
async fn who_may_not_ask_for_rights_starts_with_a_warning_and_evicts(ctx: &Ctx) -> Result<()> {
    const BINDING: &str = "system:basic-user";
    let bed = ctx.bed();
    let arena = ctx.arena().await?;
    let witness = arena.witness().await?;
    let n = arena.node("n").await?;
    let victim = arena.create(pod("victim").on(&n).grace(0)).await?;
    arena.create(pod("guest").on(&n).tolerates("k")).await?;
    let bindings: Api<ClusterRoleBinding> = Api::all(bed.admin()?);
    let mut binding = bindings.get(BINDING).await?;
    bindings.delete(BINDING, &DeleteParams::default()).await?;
    let outcome = async {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": { "verb": "get", "resource": "nodes" } },
        });
        let reviews: Api<SelfSubjectAccessReview> = Api::all(bed.client_for(User::Ostrakon)?);
        let review = serde_json::from_value(review)?;
        wait::until("nobody to be allowed to ask for rights", SOON, async || {
            let answer = reviews.create(&PostParams::default(), &review).await;
            Ok(answer.is_err().then_some(()))
        })
        .await?;
        let ostrakon = Launch::new(bed.kubeconfig(User::Ostrakon)?).start(bed).await?;
        ostrakon
            .says(&["WARN", "cannot check permissions", "selfsubjectaccessreviews"], SOON)
            .await?;
        arena.taint(&n, no_execute("k").added_now()).await?;
        witness.only_these_deleted([&victim], SOON, QUIET).await?;
        ostrakon.stop().await.map(drop)
    };
    let outcome = outcome.await;
    binding.metadata.resource_version = None;
    binding.metadata.uid = None;
    bindings.create(&PostParams::default(), &binding).await?;
    outcome
}

async fn a_port_in_use_is_named_with_the_flag_that_changes_it(ctx: &Ctx) -> Result<()> {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = taken.local_addr()?.to_string();
    let kubeconfig = ctx.bed().kubeconfig(User::Ostrakon)?;
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let args = ["run", &kubeconfig, &format!("--listen={address}"), "--log-level=warn"];
    let run = program::run(ctx.bed().folder(), &args, &[], PATIENCE).await?;
    complains(&run, &["cannot listen on", &address, "in use", "--listen"])
}

async fn it_says_what_it_waits_for_until_it_is_ready(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let arena = ctx.arena().await?;
    let n = arena.node("n").await?;
    let (victim, guest) = (pod("victim").on(&n), pod("guest").on(&n).tolerates("k"));
    let (victim, guest) = (arena.create(victim).await?, arena.create(guest).await?);
    arena.taint(&n, no_execute("k").added_now()).await?;
    let witness = arena.witness().await?;

    let proxy = bed.fault_proxy(1).await?;
    // A list may come as the beginning of a watch.
    let lists = |resource: &str| Match::verbs([Verb::List, Verb::Watch]).resource(resource);
    let hang = |resource: &str| lists(resource).then(Fault::Hang);
    proxy.set_rules(vec![hang("nodes"), hang("pods")]);
    let kubeconfig = bed.kubeconfig_via(&proxy, User::Ostrakon)?;
    let mut ostrakon = Launch::new(kubeconfig).spawn(bed)?;
    let readyz = ostrakon.url("/readyz");
    let answers = async |code: u16, body: &str| {
        wait::until(&format!("/readyz to say {code} {body}"), SOON, async || {
            let answer = http::get(&readyz).await?;
            ensure!(answer == (code, body.to_owned()), "it says {answer:?}");
            Ok(Some(()))
        })
        .await
    };
    answers(503, "waiting for: list of nodes, list of pods\n").await?;
    ensure!(http::get(&ostrakon.url("/livez")).await?.0 == 200, "it waits, and is alive");
    let metrics = ostrakon.metrics().await?;
    ensure!(metrics.get("ostrakon_build_info") == Some(1.0), "metrics are there from the start");
    ensure!(http::get(&ostrakon.url("/nothing")).await?.0 == 404);
    witness.never_deleted_for([&victim, &guest], QUIET).await?;

    proxy.set_rules(vec![hang("nodes")]);
    ensure!(proxy.cut(&lists("pods")) == 1, "the list of pods hangs no more");
    answers(503, "waiting for: list of nodes\n").await?;
    witness.never_deleted_for([&victim, &guest], QUIET).await?;
    proxy.clear();
    ensure!(proxy.cut(&lists("nodes")) == 1, "the list of nodes hangs no more");
    ostrakon.ready().await?;
    answers(200, "ok\n").await?;
    witness.only_these_deleted([&victim], SOON, QUIET).await?;
    ostrakon.stop().await?;
    Ok(())
}
