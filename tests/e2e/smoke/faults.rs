//! The fault proxy does each of the things that it is told to, and nothing else.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use kube::core::Status;
use kube::{Api, Client};
use ostrakon::clock::system_time;
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::ctx::{Ctx, SOON, Scenario, trial};
use crate::harness::cluster::pod;
use crate::harness::{
    Answer, Arena, Fault, FaultProxy, Match, NodeRef, PodRef, Refusal, Rule, User, Verb,
    no_execute, refusal, wait,
};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(without_rules_everything_passes_as_the_same_user),
        trial!(refusals_look_like_the_api_servers_own),
        trial!(a_rule_hits_only_what_it_names_and_only_so_often),
        trial!(chance_follows_the_seed),
        trial!(a_delayed_request_is_answered_late),
        trial!(a_hanging_request_is_never_answered),
        trial!(a_cut_request_ends_at_once_and_is_not_carried_out),
        trial!(garbage_looks_like_success_and_is_not_carried_out),
        trial!(an_answer_can_end_in_its_middle),
        trial!(a_lost_answer_was_a_write_all_the_same),
        trial!(a_watch_is_held_back_in_order),
        trial!(what_is_held_back_arrives_when_the_rule_goes),
        trial!(an_open_watch_is_cut_and_others_are_not),
        trial!(a_watch_can_be_told_that_it_is_too_old),
        trial!(deletes_are_refused_by_policy_until_it_is_lifted).real(),
        trial!(the_built_in_manager_evicts_wrongly_when_its_node_watch_is_late).alone(),
    ]
}

/// A pod on a node, and a client of ostrakon's that goes through a proxy.
struct Stage {
    arena: Arena,
    proxy: FaultProxy,
    client: Client,
    pod: PodRef,
}

impl Stage {
    async fn set(ctx: &Ctx) -> Result<Self> {
        Self::set_with_seed(ctx, 1).await
    }

    async fn set_with_seed(ctx: &Ctx, seed: u64) -> Result<Self> {
        let arena = ctx.arena().await?;
        let node = arena.node("n").await?;
        let pod = arena.create(pod("p").on(&node)).await?;
        let proxy = ctx.bed().fault_proxy(seed).await?;
        let client = ctx.bed().client_via(&proxy, User::Ostrakon)?;
        Ok(Self { arena, proxy, client, pod })
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.arena.namespace())
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    async fn delete(&self) -> Result<(), kube::Error> {
        self.pods().delete(&self.pod.name, &DeleteParams::default()).await.map(|_| ())
    }

    /// Whether the pod was deleted in truth.
    async fn is_deleted(&self) -> Result<bool> {
        let pod = self.arena.pods().get(&self.pod.name).await?;
        Ok(pod.metadata.deletion_timestamp.is_some())
    }
}

fn deletes() -> Match {
    Match::verbs([Verb::Delete]).resource("pods")
}

fn status_of(outcome: Result<(), kube::Error>) -> Result<Box<Status>> {
    match outcome {
        Err(kube::Error::Api(status)) => Ok(status),
        other => bail!("no status: {other:?}"),
    }
}

async fn without_rules_everything_passes_as_the_same_user(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let pods = stage.pods();
    ensure!(pods.list(&ListParams::default()).await?.items.len() == 1);
    let condition = json!({ "status": { "conditions": [{ "type": "Seen", "status": "True" }] } });
    let patch = Patch::Strategic(condition);
    pods.patch_status(&stage.pod.name, &PatchParams::default(), &patch).await?;
    stage.delete().await?;
    ensure!(stage.is_deleted().await?);
    ensure!(stage.proxy.count(&deletes()) == 1 && stage.proxy.count(&Match::all()) == 3);
    ensure!(stage.proxy.passed().iter().all(|passed| passed.fault.is_none()));
    ctx.bed()
        .audit_until("the delete in the audit log", SOON, |audit| {
            let ours = audit.by(User::Ostrakon).namespace(stage.arena.namespace());
            (ours.verb(Verb::Delete).succeeded().len() == 1).then_some(())
        })
        .await
}

async fn refusals_look_like_the_api_servers_own(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let reasons = [
        (401, "Unauthorized"),
        (403, "Forbidden"),
        (409, "Conflict"),
        (410, "Expired"),
        (422, "Invalid"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
        (504, "Timeout"),
    ];
    for (code, reason) in reasons {
        stage.proxy.set_rules(vec![deletes().then(Fault::status(code))]);
        let status = status_of(stage.delete().await)?;
        ensure!(status.code == code && status.reason == reason, "{status:?}");
    }

    let budget = Answer::disruption_budget().retry_after(10);
    stage.proxy.set_rules(vec![deletes().then(Fault::Answer(budget))]);
    let status = status_of(stage.delete().await)?;
    let details = status.details.context("no details")?;
    ensure!(details.retry_after_seconds == 10, "{details:?}");
    ensure!(details.causes[0].reason == "DisruptionBudget", "{details:?}");
    let request = http::Request::delete(format!(
        "/api/v1/namespaces/{}/pods/{}",
        stage.arena.namespace(),
        stage.pod.name
    ));
    let response = stage.client.send(request.body(kube::client::Body::empty())?).await?;
    ensure!(response.status() == 429);
    ensure!(response.headers()["retry-after"] == "10", "{:?}", response.headers());
    ensure!(!stage.is_deleted().await?);
    Ok(())
}

async fn a_rule_hits_only_what_it_names_and_only_so_often(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let elsewhere = deletes().namespace("elsewhere").then(Fault::status(500));
    let another = deletes().name("another").then(Fault::status(500));
    let status = Match::writes().resource("pods/status").then(Fault::status(500));
    let twice = deletes().then(Fault::status(503)).at_most(2);
    let then = deletes().then(Fault::status(409)).at_most(1);
    let rules = [&elsewhere, &another, &status, &twice, &then];
    stage.proxy.set_rules(rules.map(Rule::clone).to_vec());
    let mut codes = Vec::new();
    for _ in 0..3 {
        codes.push(status_of(stage.delete().await)?.code);
    }
    ensure!(codes == [503, 503, 409], "{codes:?}");
    stage.pods().get(&stage.pod.name).await?;
    stage.delete().await?;
    let hits = rules.map(Rule::hits);
    ensure!(hits == [0, 0, 0, 2, 1], "{hits:?}");

    stage.proxy.set_rules(vec![Match::all().then(Fault::status(500))]);
    ensure!(stage.delete().await.is_err());
    stage.proxy.clear();
    stage.delete().await?;
    Ok(())
}

async fn chance_follows_the_seed(ctx: &Ctx) -> Result<()> {
    let either = Fault::AnyOf(vec![Fault::status(500), Fault::status(503)]);
    let mut runs = Vec::new();
    for seed in [7, 7, 8] {
        let stage = Stage::set_with_seed(ctx, seed).await?;
        let rule = Match::verbs([Verb::Get]).then(either.clone()).chance(0.5);
        stage.proxy.set_rules(vec![rule.clone()]);
        let mut codes = Vec::new();
        for _ in 0..40 {
            codes.push(match stage.pods().get(&stage.pod.name).await {
                Ok(_) => 200,
                Err(kube::Error::Api(status)) => status.code,
                Err(other) => bail!("{other}"),
            });
        }
        ensure!((8..32).contains(&rule.hits()), "{} of 40 at 50 %", rule.hits());
        ensure!(codes.contains(&500) && codes.contains(&503), "{codes:?}");
        runs.push(codes);
    }
    ensure!(runs[0] == runs[1] && runs[1] != runs[2], "{runs:?}");
    Ok(())
}

async fn a_delayed_request_is_answered_late(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    stage.proxy.set_rules(vec![deletes().then(Fault::Delay(Duration::from_secs(1)))]);
    let begin = system_time();
    stage.delete().await?;
    ensure!(stage.is_deleted().await?);
    let delete = ctx.bed().audit_until("the delete in the audit log", SOON, |audit| {
        let ours = audit.by(User::Ostrakon).namespace(stage.arena.namespace());
        ours.verb(Verb::Delete).records().first().cloned()
    });
    let late = delete.await?.request_received_timestamp.duration_since(begin);
    ensure!(late >= SignedDuration::from_secs(1), "it went through after {late:#}");
    Ok(())
}

async fn a_hanging_request_is_never_answered(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    stage.proxy.set_rules(vec![deletes().then(Fault::Hang)]);
    // Others are served meanwhile.
    let others = async {
        wait::until("the delete to hang", SOON, async || {
            Ok((stage.proxy.open(&deletes()) == 1).then_some(()))
        })
        .await?;
        stage.pods().get(&stage.pod.name).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        anyhow::Ok(())
    };
    tokio::select! {
        answer = stage.delete() => bail!("there was an answer: {answer:?}"),
        outcome = others => outcome?,
    }
    ensure!(!stage.is_deleted().await?);
    wait::until("the proxy to notice that the client has gone", SOON, async || {
        Ok((stage.proxy.open(&deletes()) == 0).then_some(()))
    })
    .await?;

    let silence = deletes().then(Fault::Silence(Duration::from_secs(1)));
    stage.proxy.set_rules(vec![silence]);
    let begin = Instant::now();
    ensure!(stage.delete().await.is_err(), "silence was an answer");
    ensure!(begin.elapsed() >= Duration::from_secs(1), "{:?}", begin.elapsed());
    ensure!(!stage.is_deleted().await?);
    Ok(())
}

async fn a_cut_request_ends_at_once_and_is_not_carried_out(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let cut = deletes().then(Fault::Cut);
    stage.proxy.set_rules(vec![cut.clone()]);
    match timeout(SOON, stage.delete()).await? {
        Err(kube::Error::Api(status)) => bail!("an answer: {status:?}"),
        Err(_) => {}
        Ok(()) => bail!("it succeeded"),
    }
    ensure!(cut.hits() == 1 && !stage.is_deleted().await?);
    stage.proxy.clear();
    stage.delete().await?;
    Ok(())
}

async fn garbage_looks_like_success_and_is_not_carried_out(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let page = "<html>sign in</html>";
    stage.proxy.set_rules(vec![deletes().then(Fault::Garbage(page))]);
    let path = format!("/api/v1/namespaces/{}/pods/{}", stage.arena.namespace(), stage.pod.name);
    let request = http::Request::delete(path).body(kube::client::Body::empty())?;
    let response = stage.client.send(request).await?;
    ensure!(response.status() == 200);
    let body = http_body_util::BodyExt::collect(response.into_body()).await?.to_bytes();
    ensure!(body == page, "{body:?}");
    ensure!(!stage.is_deleted().await?);
    Ok(())
}

async fn an_answer_can_end_in_its_middle(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let lists = Match::verbs([Verb::List]).resource("pods");
    stage.proxy.set_rules(vec![lists.then(Fault::CutBody(100))]);
    let path = format!("/api/v1/namespaces/{}/pods", stage.arena.namespace());
    let request = http::Request::get(path).body(kube::client::Body::empty())?;
    let response = stage.client.send(request).await?;
    ensure!(response.status() == 200);
    let mut body = http_body_util::BodyExt::into_data_stream(response.into_body());
    let mut arrived = Vec::new();
    let end = loop {
        match timeout(SOON, body.next()).await? {
            Some(Ok(bytes)) => arrived.extend_from_slice(&bytes),
            Some(Err(error)) => break error,
            None => bail!("the answer was whole: {}", String::from_utf8_lossy(&arrived)),
        }
    };
    ensure!(arrived.len() == 100, "{} bytes, then {end}", arrived.len());
    ensure!(stage.pods().list(&ListParams::default()).await.is_err());
    Ok(())
}

async fn a_lost_answer_was_a_write_all_the_same(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    stage.proxy.set_rules(vec![deletes().then(Fault::LoseAnswer)]);
    let outcome = timeout(SOON, stage.delete()).await?;
    ensure!(matches!(&outcome, Err(error) if !matches!(error, kube::Error::Api(_))), "{outcome:?}");
    ensure!(stage.is_deleted().await?, "the write was lost too");

    let stage = Stage::set(ctx).await?;
    stage.proxy.set_rules(vec![deletes().then(Fault::WithholdAnswer)]);
    let written = wait::until("the write behind the missing answer", SOON, async || {
        Ok(stage.is_deleted().await?.then_some(()))
    });
    tokio::select! {
        answer = stage.delete() => bail!("an answer came: {answer:?}"),
        outcome = written => outcome,
    }
}

async fn a_watch_is_held_back_in_order(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let hold = Match::watch("nodes").then(Fault::HoldBack(Duration::from_secs(1)));
    let node = NodeRef(format!("{}-n", stage.arena.namespace()));

    // Opened before there is a rule: that must not matter.
    let params = WatchParams::default().fields(&format!("metadata.name={node}"));
    let version = stage.nodes().list(&ListParams::default()).await?.metadata.resource_version;
    let version = version.context("a list without version")?;
    let nodes = stage.nodes();
    let stream = nodes.watch(&params, &version).await?;
    stage.proxy.set_rules(vec![hold.clone()]);

    let mut written = Vec::new();
    for key in ["one", "two", "three"] {
        written.push(Instant::now());
        stage.arena.taint(&node, no_execute(key)).await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let mut stream = std::pin::pin!(stream);
    for (count, written) in written.into_iter().enumerate() {
        let event = timeout(SOON, next_change(&mut stream)).await??;
        let late = written.elapsed();
        let taints = event.spec.and_then(|spec| spec.taints).unwrap_or_default();
        ensure!(taints.len() == count + 1, "out of order: {taints:?}");
        ensure!(late >= Duration::from_secs(1), "arrived after {late:?}");
    }
    ensure!(hold.hits() >= 3, "{} pieces", hold.hits());

    // What is not a watch goes its way.
    let hold = Match::watch("nodes").then(Fault::HoldBack(Duration::from_secs(600)));
    stage.proxy.set_rules(vec![hold]);
    timeout(SOON, stage.nodes().get(node.name())).await??;
    Ok(())
}

/// The next object of a watch that is not a bookmark.
async fn next_change<K>(
    stream: &mut (impl futures::Stream<Item = Result<WatchEvent<K>, kube::Error>> + Unpin),
) -> Result<K> {
    loop {
        match stream.try_next().await?.context("the watch ended")? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => return Ok(object),
            WatchEvent::Deleted(_) => bail!("deleted"),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) => bail!("{status:?}"),
        }
    }
}

async fn what_is_held_back_arrives_when_the_rule_goes(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    stage
        .proxy
        .set_rules(vec![Match::watch("pods").then(Fault::HoldBack(Duration::from_secs(600)))]);
    let version = stage.pods().list(&ListParams::default()).await?.metadata.resource_version;
    let pods = stage.pods();
    let stream = pods.watch(&WatchParams::default(), &version.unwrap_or_default()).await?;
    let mut stream = std::pin::pin!(stream);
    let created = stage.arena.create(pod("new")).await?;
    let early = timeout(Duration::from_millis(700), next_change(&mut stream)).await;
    ensure!(early.is_err(), "it was not held back");
    stage.proxy.clear();
    let arrived = timeout(SOON, next_change(&mut stream)).await??;
    ensure!(arrived.metadata.uid == Some(created.uid), "another pod");
    Ok(())
}

async fn an_open_watch_is_cut_and_others_are_not(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let (pods, nodes) = (stage.pods(), stage.nodes());
    let version = pods.list(&ListParams::default()).await?.metadata.resource_version;
    let version = version.unwrap_or_default();
    let on_pods = pods.watch(&WatchParams::default(), &version).await?;
    let node = NodeRef(format!("{}-n", stage.arena.namespace()));
    let ours = WatchParams::default().fields(&format!("metadata.name={node}"));
    let on_nodes = nodes.watch(&ours, &version).await?;
    let mut on_pods = std::pin::pin!(on_pods);
    let mut on_nodes = std::pin::pin!(on_nodes);
    ensure!(stage.proxy.open(&Match::watch("pods")) == 1);
    ensure!(stage.proxy.open(&Match::watch("nodes")) == 1);

    ensure!(stage.proxy.cut(&Match::watch("pods")) == 1);
    let end = timeout(SOON, next_change(&mut on_pods)).await?;
    ensure!(end.is_err(), "the pod watch goes on");
    stage.arena.taint(&node, no_execute("k")).await?;
    timeout(SOON, next_change(&mut on_nodes)).await??;

    stage.proxy.cut_connections();
    let end = timeout(SOON, async {
        loop {
            if next_change(&mut on_nodes).await.is_err() {
                return;
            }
        }
    });
    end.await.context("the node watch goes on")?;
    stage.delete().await?;
    Ok(())
}

async fn a_watch_can_be_told_that_it_is_too_old(ctx: &Ctx) -> Result<()> {
    let stage = Stage::set(ctx).await?;
    let expired = Match::watch("pods").then(Fault::WatchError(Answer::new(410))).at_most(1);
    stage.proxy.set_rules(vec![expired]);
    let pods = stage.pods();
    let stream = pods.watch(&WatchParams::default(), "1").await?;
    let mut stream = std::pin::pin!(stream);
    match timeout(SOON, stream.try_next()).await?? {
        Some(WatchEvent::Error(status)) => {
            ensure!(status.code == 410 && status.reason == "Expired", "{status:?}");
        }
        other => bail!("{other:?}"),
    }
    ensure!(timeout(SOON, stream.try_next()).await??.is_none(), "it goes on");
    Ok(())
}

async fn deletes_are_refused_by_policy_until_it_is_lifted(ctx: &Ctx) -> Result<()> {
    let (refused, free) = (Stage::set(ctx).await?, Stage::set(ctx).await?);
    let refusal = Refusal::of_deletes(ctx.bed(), &refused.arena).await?;
    let status = status_of(refused.delete().await)?;
    ensure!(status.code == 422 || status.code == 403, "{status:?}");
    ensure!(status.message.contains(refusal::MESSAGE), "{status:?}");
    ensure!(!refused.is_deleted().await?);
    free.delete().await?;
    refusal.lift().await?;
    refused.delete().await?;
    Ok(())
}

/// What the proxy is for: a race that is never seen by chance becomes a certainty.
async fn the_built_in_manager_evicts_wrongly_when_its_node_watch_is_late(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let arena = ctx.arena().await?;
    let (node, other) = (arena.node("n").await?, arena.node("other").await?);
    let proxy = bed.fault_proxy_for(User::Reference, 1).await?;
    let kubeconfig = bed.kubeconfig_via(&proxy, User::Reference)?;
    let _reference = bed.start_reference(&kubeconfig).await?;
    let witness = arena.witness().await?;
    let bystander = arena.create(pod("bystander").on(&other)).await?;

    arena.taint(&node, no_execute("not-yet").added_now()).await?;
    let rightly = arena.create(pod("rightly").on(&node).grace(0)).await?;
    witness.deleted_within([&rightly], Duration::from_secs(60)).await?;

    let late = Match::watch("nodes").then(Fault::HoldBack(Duration::from_secs(1)));
    proxy.set_rules(vec![late.clone()]);
    arena.untaint(&node, "not-yet").await?;
    let wrongly = arena.create(pod("wrongly").on(&node).grace(0)).await?;
    let expected = [&rightly, &wrongly];
    witness.only_these_deleted(expected, SOON, Duration::from_secs(2)).await?;
    ensure!(late.hits() > 0, "nothing was held back");
    let spared = arena.create(pod("spared").on(&node)).await?;
    witness.never_deleted_for([&spared, &bystander], Duration::from_secs(2)).await?;

    let deletes = bed.audit()?.by(User::Reference).verb(Verb::Delete);
    let deletes = deletes.namespace(arena.namespace()).succeeded();
    // It may delete one twice.
    let names: BTreeSet<&str> = deletes.records().iter().map(|record| record.name()).collect();
    ensure!(names == BTreeSet::from(["rightly", "wrongly"]), "{names:?}");
    Ok(())
}
