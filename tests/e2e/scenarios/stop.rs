//! The program at its end: what is on its way is finished, within a bound, and nothing new begins.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ostrakon::clock::system_time;
use serde_json::Value;
use tokio::time::Instant;

use super::evidence::{QUIET, SOON, only_these_evicted};
use crate::ctx::{Ctx, Scenario, trial};
use crate::harness::cluster::pod;
use crate::harness::ostrakon::Launch;
use crate::harness::{Arena, Fault, FaultProxy, Match, Ostrakon, User, Verb, no_execute, wait};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(idle_it_stops_at_once).alone(),
        trial!(it_stops_while_it_starts).alone(),
        trial!(requests_in_flight_are_finished_and_no_others_begun).alone(),
        trial!(a_taint_that_goes_while_it_stops_saves_the_pod).alone(),
        trial!(an_api_server_that_hangs_cannot_hold_it).alone(),
        trial!(a_second_signal_ends_it_at_once).alone(),
    ]
}

/// What it promises: 20 s for requests, and a little for what comes after.
const BOUND: Duration = Duration::from_secs(24);

/// An ostrakon with a fault proxy in front of it.
struct Stage {
    arena: Arena,
    proxy: FaultProxy,
    ostrakon: Ostrakon,
}

impl Stage {
    async fn set(ctx: &Ctx, args: &[&str]) -> Result<Self> {
        let bed = ctx.bed();
        let arena = ctx.arena().await?;
        let proxy = bed.fault_proxy(1).await?;
        let launch = Launch::new(bed.kubeconfig_via(&proxy, User::Ostrakon)?);
        let launch = args.iter().fold(launch, |launch, arg| launch.arg(arg));
        Ok(Self { ostrakon: launch.start(bed).await?, arena, proxy })
    }

    /// Waits until so many of these requests are on their way.
    async fn on_their_way(&self, requests: &Match, count: usize) -> Result<()> {
        wait::until("requests on their way", SOON, async || {
            let open = self.proxy.open(requests);
            ensure!(open >= count, "{open} of {count}");
            Ok(Some(()))
        })
        .await
    }

    /// SIGTERM, and waits for its end: its exit code, and how long it took.
    async fn stop(&mut self) -> Result<(Option<i32>, Duration)> {
        let begin = Instant::now();
        self.ostrakon.terminate()?;
        let status = self.ostrakon.ended(BOUND * 2).await?;
        Ok((status.code(), begin.elapsed()))
    }
}

fn deletes() -> Match {
    Match::verbs([Verb::Delete]).resource("pods")
}

async fn idle_it_stops_at_once(ctx: &Ctx) -> Result<()> {
    let mut stage = Stage::set(ctx, &[]).await?;
    let n = stage.arena.node("n").await?;
    let counting = stage.arena.create(pod("counting").on(&n).tolerates_for("k", 3600)).await?;
    let witness = stage.arena.witness().await?;
    stage.arena.taint(&n, no_execute("k")).await?;
    witness.never_deleted_for([&counting], QUIET).await?;
    let (code, took) = stage.stop().await?;
    ensure!(code == Some(0), "exit code {code:?}");
    ensure!(took < Duration::from_secs(3), "it took {took:?}");
    witness.never_deleted_for([&counting], QUIET).await?;
    only_these_evicted(ctx.bed(), &stage.arena, &[]).await
}

async fn it_stops_while_it_starts(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    for hanging in [Match::verbs([Verb::Create]), Match::verbs([Verb::List, Verb::Watch])] {
        let proxy = bed.fault_proxy(1).await?;
        proxy.set_rules(vec![hanging.clone().then(Fault::Hang)]);
        let launch = Launch::new(bed.kubeconfig_via(&proxy, User::Ostrakon)?);
        let mut ostrakon = launch.spawn(bed)?;
        wait::until("its first requests to hang", SOON, async || {
            Ok((proxy.open(&hanging) > 0).then_some(()))
        })
        .await?;
        let begin = Instant::now();
        ostrakon.terminate()?;
        let status = ostrakon.ended(BOUND * 2).await?;
        ensure!(status.code() == Some(0), "{status}: {}", ostrakon.log()?);
        ensure!(begin.elapsed() < Duration::from_secs(3), "it took {:?}", begin.elapsed());
    }
    Ok(())
}

async fn requests_in_flight_are_finished_and_no_others_begun(ctx: &Ctx) -> Result<()> {
    let mut stage = Stage::set(ctx, &["--log-format=json", "--log-level=trace"]).await?;
    let arena = stage.arena.clone();
    let n = arena.node("n").await?;
    let pods = ["a", "b", "c"].map(|name| pod(name).on(&n));
    let pods = arena.create_all(pods).await?;
    let due_soon = arena.create(pod("due-soon").on(&n).tolerates_for("k", 3)).await?;
    let witness = arena.witness().await?;
    stage.proxy.set_rules(vec![deletes().then(Fault::Delay(Duration::from_secs(5)))]);
    arena.taint(&n, no_execute("k").added_now()).await?;
    stage.on_their_way(&deletes(), 3).await?;
    let (code, took) = stage.stop().await?;
    ensure!(code == Some(0), "exit code {code:?}");
    ensure!(Duration::from_secs(2) < took && took < BOUND, "it took {took:?}");

    witness.only_these_deleted(&pods, SOON, QUIET).await?;
    witness.never_deleted_for([&due_soon], QUIET).await?;
    let evicted: Vec<_> = pods.iter().collect();
    only_these_evicted(ctx.bed(), &arena, &evicted).await?;

    let log = stage.ostrakon.log()?;
    let mut messages = Vec::new();
    for line in log.lines() {
        let entry: Value = serde_json::from_str(line).with_context(|| format!("log: {line}"))?;
        for field in ["timestamp", "level", "target"] {
            ensure!(entry[field].is_string(), "no {field}: {line}");
        }
        messages.extend(entry["message"].as_str().map(str::to_owned));
    }
    for said in ["started", "pod deleted", "finished requests in flight", "stopped"] {
        ensure!(messages.iter().any(|message| message == said), "never {said:?}: {messages:?}");
    }
    Ok(())
}

/// Between the condition and the deletion it asks again, to the last.
async fn a_taint_that_goes_while_it_stops_saves_the_pod(ctx: &Ctx) -> Result<()> {
    let mut stage = Stage::set(ctx, &[]).await?;
    let arena = stage.arena.clone();
    let n = arena.node("n").await?;
    let saved = arena.create(pod("saved").on(&n)).await?;
    let witness = arena.witness().await?;
    let marks = Match::verbs([Verb::Patch]).resource("pods/status");
    stage.proxy.set_rules(vec![marks.clone().then(Fault::Delay(Duration::from_secs(6)))]);
    arena.taint(&n, no_execute("k").added_now()).await?;
    stage.on_their_way(&marks, 1).await?;
    let begin = Instant::now();
    stage.ostrakon.terminate()?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    arena.untaint(&n, "k").await?;
    let status = stage.ostrakon.ended(BOUND * 2).await?;
    ensure!(status.code() == Some(0), "{status}");
    ensure!(begin.elapsed() < BOUND, "it took {:?}", begin.elapsed());
    let sighting = witness.seen(&saved).await?;
    ensure!(sighting.deleted.is_none(), "deleted for a taint that was gone: {sighting:?}");
    let deletes = ctx.bed().audit()?.by(User::Ostrakon).namespace(arena.namespace());
    ensure!(deletes.verb(Verb::Delete).is_empty());
    Ok(())
}

async fn an_api_server_that_hangs_cannot_hold_it(ctx: &Ctx) -> Result<()> {
    // More nodes than records are written at a time.
    const NODES: usize = 12;
    let mut stage = Stage::set(ctx, &[]).await?;
    let arena = stage.arena.clone();
    let mut pods = Vec::new();
    let mut nodes = Vec::new();
    for number in 0..NODES {
        let node = arena.node(&format!("n{number}")).await?;
        pods.push(arena.create(pod(&format!("goes-{number}")).on(&node)).await?);
        let counting = pod(&format!("counts-{number}")).on(&node).tolerates_for("k", 3600);
        pods.push(arena.create(counting).await?);
        nodes.push(node);
    }
    let witness = arena.witness().await?;
    let (writes, records) = (Match::writes(), Match::verbs([Verb::Patch]).resource("nodes"));
    stage.proxy.set_rules(vec![writes.clone().then(Fault::Hang)]);
    for node in &nodes {
        arena.taint(node, no_execute("k")).await?;
    }
    let marks = Match::verbs([Verb::Patch]).resource("pods/status");
    stage.on_their_way(&marks, 1).await?;
    stage.on_their_way(&records, 4).await?;
    // From here on nothing at all is answered.
    stage.proxy.set_rules(vec![Match::all().then(Fault::Hang)]);
    stage.proxy.cut(&Match::verbs([Verb::Watch]));
    let stopped_at = system_time();
    let (code, took) = stage.stop().await?;
    ensure!(code == Some(0), "exit code {code:?}");
    ensure!(took < BOUND, "it took {took:?}");
    witness.never_deleted_for(&pods, QUIET).await?;
    let written = ctx.bed().audit()?.by(User::Ostrakon).writes().since(stopped_at);
    ensure!(written.is_empty(), "{:#?}", written.records());
    Ok(())
}

async fn a_second_signal_ends_it_at_once(ctx: &Ctx) -> Result<()> {
    let mut stage = Stage::set(ctx, &["--log-level=error"]).await?;
    let n = stage.arena.node("n").await?;
    let victim = stage.arena.create(pod("victim").on(&n)).await?;
    let witness = stage.arena.witness().await?;
    stage.proxy.set_rules(vec![deletes().then(Fault::Hang)]);
    stage.arena.taint(&n, no_execute("k").added_now()).await?;
    stage.on_their_way(&deletes(), 1).await?;
    stage.ostrakon.terminate()?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (code, took) = stage.stop().await?;
    ensure!(code == Some(1), "exit code {code:?}");
    ensure!(took < Duration::from_secs(2), "it took {took:?}");
    let log = stage.ostrakon.log()?;
    let said = "error: ended by a second signal (SIGTERM); requests in flight were abandoned\n";
    ensure!(log == said, "{log:?}");
    let sighting = witness.seen(&victim).await?;
    ensure!(sighting.deleted.is_none(), "the proxy let it through: {sighting:?}");
    Ok(())
}
