//! Deadlines are exact, and survive whatever restarts: ostrakon, kube-controller-manager, nodes.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use ostrakon::clock::system_time;
use ostrakon::model::Stamp;
use serde_json::Value;

use super::outside::{
    Downtimes, Due, backlog_is_empty, due_by, each_went_in_time, figure, none_was_deleted_twice,
    nothing_was_written_about, record_of, until,
};
use crate::ctx::{Ctx, Scenario, TooSlow, trial};
use crate::harness::cluster::{node, pod};
use crate::harness::{
    Arena, Bed, BedOptions, How, NodeRef, Ostrakon, PodRef, TaintEviction, User, no_execute, wait,
};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(deadlines_by_the_taints_stamp_survive_two_kills).alone(),
        trial!(deadlines_by_the_record_survive_two_kills_and_a_crash_loop).alone(),
        trial!(deadlines_of_an_outage_survive_restarts_of_the_lifecycle_controller).alone(),
        trial!(a_node_that_is_made_anew_is_judged_anew).alone(),
        trial!(a_storm_of_taints_evicts_nobody_early).alone(),
    ]
}

const KEY: &str = "fault";

/// How long a process that was killed stays down before it is started again.
const DOWN: Duration = Duration::from_secs(1);

fn seconds(seconds: i64) -> SignedDuration {
    SignedDuration::from_secs(seconds)
}

/// Kills ostrakon and starts it again; so often it is killed at once, in the middle of its start.
async fn kill_and_restart(
    bed: &Bed,
    ostrakon: Ostrakon,
    crashes: u32,
    down: &mut Downtimes,
) -> Result<Ostrakon> {
    let killed = system_time();
    let mut launch = ostrakon.kill9()?;
    tokio::time::sleep(DOWN).await;
    for crash in 1..=crashes {
        let ostrakon = launch.spawn(bed)?;
        tokio::time::sleep(Duration::from_millis(200) * crash).await;
        launch = ostrakon.kill9()?;
    }
    let ostrakon = launch.start(bed).await?;
    let up = system_time();
    figure(format!("down for {:#}", up.duration_since(killed)));
    down.add(killed, up);
    Ok(ostrakon)
}

async fn deadlines_by_the_taints_stamp_survive_two_kills(ctx: &Ctx) -> Result<()> {
    two_kills(ctx, true).await
}

async fn deadlines_by_the_record_survive_two_kills_and_a_crash_loop(ctx: &Ctx) -> Result<()> {
    two_kills(ctx, false).await
}

/// 200 pods on ten nodes go over 20 s, and ostrakon is killed twice meanwhile.
async fn two_kills(ctx: &Ctx, stamped: bool) -> Result<()> {
    const NODES: usize = 10;
    const PODS: usize = 200;
    let (bed, arena) = (ctx.bed(), ctx.arena().await?);
    let names = (0..NODES).map(|n| format!("n{n}")).collect::<Vec<_>>();
    let nodes = try_join_all(names.iter().map(|name| arena.node(name))).await?;
    // Ten pods per second, from the twelfth second on.
    let timed = (0..PODS).map(|p| {
        let tolerated = i64::try_from(12 + p / NODES).unwrap_or_default();
        pod(&format!("p{p}")).on(&nodes[p % NODES]).tolerates_for(KEY, tolerated)
    });
    arena.create_all(timed).await?;
    let stay = (0..NODES).map(|n| pod(&format!("stays-{n}")).on(&nodes[n]).tolerates(KEY));
    let stay = arena.create_all(stay).await?;
    let witness = arena.witness().await?;
    let mut ostrakon = Ostrakon::start(bed).await?;

    let taint = || if stamped { no_execute(KEY).added_now() } else { no_execute(KEY) };
    try_join_all(nodes.iter().map(|node| arena.taint(node, taint()))).await?;
    if !stamped {
        try_join_all(nodes.iter().map(|node| recorded(&arena, node))).await?;
    }
    let due = due_by(&arena, KEY).await?;
    ensure!(due.len() == PODS, "{} pods count down", due.len());
    let first = due[0].at;
    if system_time() + seconds(2) >= first {
        return Err(TooSlow::error("to begin before the first is due"));
    }

    let mut down = Downtimes::default();
    for (after, crashes) in [(5, 0), (11, if stamped { 0 } else { 4 })] {
        until(first + seconds(after)).await;
        ostrakon = kill_and_restart(bed, ostrakon, crashes, &mut down).await?;
    }
    until(due[PODS - 1].at + super::outside::LATE).await;
    let lateness = each_went_in_time(bed, &witness, &due, &down).await?;
    figure(&lateness);
    witness.never_deleted_for(&stay, Duration::from_secs(2)).await?;
    nothing_was_written_about(bed, &stay)?;
    none_was_deleted_twice(bed, arena.namespace(), User::Ostrakon)?;
    backlog_is_empty(&ostrakon).await?;
    ostrakon.stop().await?;
    Ok(())
}

/// Waits until the node's record is there.
async fn recorded(arena: &Arena, node: &NodeRef) -> Result<String> {
    wait::until("the record", Duration::from_secs(5), async || {
        Ok(record_of(&arena.nodes().get(node.name()).await?))
    })
    .await
}

/// Key and stamp of a node's taint that tells of an outage.
fn outage_taint(node: &Node) -> Option<(String, Timestamp)> {
    let taints = node.spec.as_ref()?.taints.as_ref()?;
    let told = |key: &str| matches!(key, NOT_READY | UNREACHABLE);
    let taint =
        taints.iter().find(|taint| taint.effect == "NoExecute" && told(taint.key.as_str()))?;
    Some((taint.key.clone(), taint.time_added.as_ref()?.0))
}

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// The node's outage taint, as soon as it is one that `wanted` takes.
async fn tainted(
    arena: &Arena,
    node: &NodeRef,
    what: &str,
    wanted: impl Fn(&str, Timestamp) -> bool,
) -> Result<(String, Timestamp)> {
    wait::until(what, Duration::from_secs(60), async || {
        let found = outage_taint(&arena.nodes().get(node.name()).await?);
        Ok(found.filter(|(key, at)| wanted(key, *at)))
    })
    .await
}

/// Waits until the record on the node tells of an outage of this length.
async fn outage_recorded(
    arena: &Arena,
    node: &NodeRef,
    since: Timestamp,
    through: Timestamp,
) -> Result<()> {
    wait::until("the outage's record", Duration::from_secs(3), async || {
        let text = record_of(&arena.nodes().get(node.name()).await?).context("no record")?;
        let record: Value = serde_json::from_str(&text)?;
        let noted = |field: &str| -> Result<Timestamp> {
            Ok(record["outage"][field].as_str().context("no outage")?.parse()?)
        };
        // A stamp of whole seconds counts as the end of its second.
        let [since, through] = [since, through].map(|stamp| Stamp::of_second(stamp).latest());
        ensure!(
            noted("since")? == since && noted("through")? >= through,
            "{text}, not {since} through {through}"
        );
        Ok(Some(()))
    })
    .await
}

/// kube-controller-manager is restarted twice, and takes the taints of nodes in an outage off and
/// puts them on again with new stamps; ostrakon is killed with it the second time. One node's
/// taint is swapped for the other kind on top.
async fn deadlines_of_an_outage_survive_restarts_of_the_lifecycle_controller(
    _: &Ctx,
) -> Result<()> {
    // Its own bed: in the others' nodes are not meant to be taken for lost after 6 s.
    let options = BedOptions::default().controller_manager(TaintEviction::Off);
    let options = options.node_monitor(Duration::from_secs(6));
    let bed = Bed::start(options).await?;
    let arena = bed.arena("outage").await?;
    // These two do not make the zone a disrupted one, where nobody would be tainted. Not all nodes
    // may be excluded, or the zone would be forgotten and set up again each second.
    let make = |name: &str| {
        arena.create_node(node(name).label("node.kubernetes.io/exclude-disruption", "true"))
    };
    let (silent, failing) = (make("silent").await?, make("failing").await?);
    let _healthy = arena.node("healthy").await?;
    let sketch = |name: String, node: &NodeRef, tolerated: i64| {
        pod(&name)
            .on(node)
            .tolerates_for(NOT_READY, tolerated)
            .tolerates_for(UNREACHABLE, tolerated)
    };
    let mut sketches = Vec::new();
    for n in 0..15 {
        sketches.push(sketch(format!("silent-{n}"), &silent, 50 + n));
        sketches.push(sketch(format!("failing-{n}"), &failing, 58 + n));
    }
    let pods = arena.create_all(sketches).await?;
    let stay = [&silent, &failing].map(|node| {
        pod(&format!("stays-{}", node.name())).on(node).tolerates(NOT_READY).tolerates(UNREACHABLE)
    });
    let stay = arena.create_all(stay).await?;
    let witness = arena.witness().await?;
    let mut ostrakon = Ostrakon::start(&bed).await?;

    arena.set_ready(&failing, "False").await?;
    arena.silence(&silent);
    let any = |_: &str, _: Timestamp| true;
    let (key, failing_since) = tainted(&arena, &failing, "a not-ready taint", any).await?;
    ensure!(key == NOT_READY, "{key}");
    let (key, silent_since) = tainted(&arena, &silent, "an unreachable taint", any).await?;
    ensure!(key == UNREACHABLE, "{key}");
    let due: Vec<Due> = pods
        .iter()
        .map(|pod| {
            let (node, n) = pod.name.split_once('-').context("a name without number")?;
            let n: i64 = n.parse()?;
            let at = match node {
                "silent" => silent_since + seconds(50 + n),
                _ => failing_since + seconds(58 + n),
            };
            Ok(Due { pod: pod.clone(), at })
        })
        .collect::<Result<_>>()?;
    outage_recorded(&arena, &silent, silent_since, silent_since).await?;
    outage_recorded(&arena, &failing, failing_since, failing_since).await?;
    // The kubelet of this one falls silent too: the taint is swapped, on top of the restarts.
    arena.silence(&failing);

    let mut down = Downtimes::default();
    let (mut last_silent, mut last_failing) = (silent_since, failing_since);
    for with_ostrakon in [false, true] {
        // Stamps are whole seconds, and the new ones are to differ.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let begin = system_time();
        let restart = bed.controller_manager()?.restart(How::Kill);
        if with_ostrakon {
            let launch = ostrakon.kill9()?;
            restart.await?;
            ostrakon = launch.start(&bed).await?;
        } else {
            restart.await?;
        }
        let newer = |last: Timestamp| move |key: &str, at| key == UNREACHABLE && at > last;
        let what = "the taints with new stamps";
        last_silent = tainted(&arena, &silent, what, newer(last_silent)).await?.1;
        last_failing = tainted(&arena, &failing, what, newer(last_failing)).await?.1;
        // While the taints are off nothing is due.
        down.add(begin, system_time());
        outage_recorded(&arena, &silent, silent_since, last_silent).await?;
        outage_recorded(&arena, &failing, failing_since, last_failing).await?;
    }
    let moved = last_silent.duration_since(silent_since);
    ensure!(moved >= seconds(3), "the stamp moved by {moved:#} only, which proves little");
    figure(format!("the stamps moved by {moved:#}"));

    let last = due.iter().map(|due| due.at).max().context("no pods")?;
    until(last + super::outside::LATE).await;
    let lateness = each_went_in_time(&bed, &witness, &due, &down).await?;
    figure(&lateness);
    nothing_was_written_about(&bed, &stay)?;
    none_was_deleted_twice(&bed, arena.namespace(), User::Ostrakon)?;
    ostrakon.stop().await?;
    bed.stop().await
}

/// The node object goes while pods count down, and one of the same name comes: with the taint,
/// counted from its own first sight, or without.
async fn a_node_that_is_made_anew_is_judged_anew(ctx: &Ctx) -> Result<()> {
    let (bed, arena) = (ctx.bed(), ctx.arena().await?);
    let (again, clean, stamped) =
        (arena.node("again").await?, arena.node("clean").await?, arena.node("stamped").await?);
    let on = |node: &NodeRef, name: &str| {
        let (node, name) = (node.clone(), name.to_owned());
        (0..10).map(move |n| pod(&format!("{name}-{n}")).on(&node).tolerates_for(KEY, 8))
    };
    let pods = on(&again, "again").chain(on(&clean, "clean")).chain(on(&stamped, "stamped"));
    let pods = arena.create_all(pods).await?;
    let witness = arena.witness().await?;
    let ostrakon = Ostrakon::start(bed).await?;
    let nodes = [&again, &clean, &stamped];
    try_join_all(nodes.iter().map(|node| arena.taint(node, no_execute(KEY)))).await?;
    let old = try_join_all(nodes.iter().map(|node| recorded(&arena, node))).await?;
    let first = due_by(&arena, KEY).await?;
    try_join_all(nodes.iter().map(|node| arena.delete_node(node))).await?;
    // Their deadlines pass while there is no node.
    let passed = first.last().context("no pods")?.at + seconds(3);
    witness.never_deleted_until(&pods, passed).await?;

    // The first two come back as they were, the record with them: it is of another node.
    let old_record = |n: usize| old[n].as_str();
    let stamp = no_execute(KEY).added_at(system_time() - seconds(3));
    arena
        .create_node(node("again").taint(no_execute(KEY)).annotation(super::outside::RECORD, "{}"))
        .await?;
    arena.create_node(node("clean").annotation(super::outside::RECORD, old_record(1))).await?;
    arena.create_node(node("stamped").taint(stamp)).await?;
    wait::until("a new record", Duration::from_secs(5), async || {
        let found = record_of(&arena.nodes().get(again.name()).await?);
        Ok(found.filter(|text| text.contains(KEY) && text != old_record(0)))
    })
    .await?;
    let second = due_by(&arena, KEY).await?;
    ensure!(second.len() == 20, "{} pods count down", second.len());
    until(second[19].at + super::outside::LATE).await;
    let lateness = each_went_in_time(bed, &witness, &second, &Downtimes::default()).await?;
    figure(&lateness);
    let stay: Vec<&PodRef> = pods.iter().filter(|pod| pod.name.starts_with("clean")).collect();
    witness.never_deleted_for(stay.iter().copied(), Duration::from_secs(2)).await?;
    nothing_was_written_about(bed, stay)?;
    wait::until("no record where nothing counts", Duration::from_secs(10), async || {
        Ok(record_of(&arena.nodes().get(clean.name()).await?).is_none().then_some(()))
    })
    .await?;
    ostrakon.stop().await?;
    Ok(())
}

/// Ten nodes are tainted and untainted fifty times within seconds. Half of them keep the taint in
/// the end.
async fn a_storm_of_taints_evicts_nobody_early(ctx: &Ctx) -> Result<()> {
    const NODES: usize = 10;
    const FLAPS: usize = 50;
    let (bed, arena) = (ctx.bed(), ctx.arena().await?);
    let names = (0..NODES).map(|n| format!("n{n}")).collect::<Vec<_>>();
    let nodes = try_join_all(names.iter().map(|name| arena.node(name))).await?;
    let pods =
        (0..NODES * 5).map(|p| pod(&format!("p{p}")).on(&nodes[p % NODES]).tolerates_for(KEY, 4));
    let pods = arena.create_all(pods).await?;
    let witness = arena.witness().await?;
    let ostrakon = Ostrakon::start(bed).await?;

    let begin = system_time();
    let storm = async |(n, node): (usize, &NodeRef)| {
        for flap in 0..FLAPS {
            // Half of the nodes get stamps.
            let taint = no_execute(KEY);
            let taint = if n % 4 < 2 { taint.added_now() } else { taint };
            arena.taint(node, taint).await?;
            if flap + 1 < FLAPS || n % 2 == 0 {
                arena.untaint(node, KEY).await?;
            }
        }
        anyhow::Ok(())
    };
    try_join_all(nodes.iter().enumerate().map(storm)).await?;
    let lasted = system_time().duration_since(begin);
    let kept: Vec<&NodeRef> = nodes.iter().skip(1).step_by(2).collect();
    let unstamped = kept.iter().enumerate().filter(|(n, _)| (2 * n + 1) % 4 >= 2);
    try_join_all(unstamped.map(|(_, node)| recorded(&arena, node))).await?;
    let due = due_by(&arena, KEY).await?;
    ensure!(due.len() == pods.len() / 2, "{} pods count down", due.len());
    until(due[due.len() - 1].at + super::outside::LATE).await;
    let lateness = each_went_in_time(bed, &witness, &due, &Downtimes::default()).await?;
    let metrics = ostrakon.metrics().await?;
    let sent = metrics.sum("ostrakon_events_total", &[("result", "sent")]);
    let decided = metrics.sum("workqueue_adds_total", &[("name", "noexec_taint_node")]);
    figure(format!(
        "{lateness}; a storm of {lasted:#}, {decided:?} node items, {sent:?} events sent"
    ));
    // One cancellation a minute for each pod, and the evictions.
    let minutes = lasted.as_secs_f64() / 60.0 + 1.0;
    let most = pods.len() as f64 * minutes.ceil() + due.len() as f64;
    ensure!(sent.is_some_and(|sent| sent <= most), "{sent:?} events, {most} at the most");
    let gone: Vec<&PodRef> = due.iter().map(|due| &due.pod).collect();
    let stay: Vec<&PodRef> = pods.iter().filter(|pod| !gone.contains(pod)).collect();
    witness.never_deleted_for(stay.iter().copied(), Duration::from_secs(6)).await?;
    nothing_was_written_about(bed, stay)?;
    ostrakon.stop().await?;
    Ok(())
}
