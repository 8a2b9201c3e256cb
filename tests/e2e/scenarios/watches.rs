//! Watches that fail in every way there is: what is known is acted on meanwhile, nothing is acted
//! on that has changed, and what happened meanwhile is found out.

use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::SignedDuration;
use ostrakon::clock::system_time;

use super::outside::{
    Downtimes, Due, LATE, backlog_is_empty, due_by, each_went_in_time, figure,
    none_was_deleted_twice, nothing_was_taken_about, nothing_was_written_about, ostrakon_behind,
    until,
};
use crate::ctx::{Ctx, Scenario, trial};
use crate::harness::cluster::{PodSketch, pod};
use crate::harness::{
    Answer, Fault, FaultProxy, Match, NodeRef, PodRef, Rule, User, Verb, no_execute, wait,
};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(refused_watches_are_taken_up_where_they_ended).alone(),
        trial!(an_expired_version_told_by_status_leads_to_a_list).alone(),
        trial!(an_expired_version_told_by_an_event_leads_to_a_list).alone(),
        trial!(garbage_is_no_list_and_no_event).alone(),
        trial!(an_event_that_is_cut_in_its_middle_is_read_again).alone(),
        trial!(a_watch_that_hangs_is_given_up).alone(),
        trial!(a_list_that_hangs_is_given_up).alone(),
    ]
}

const KEY: &str = "fault";
/// Longest pause between two tries of a watch or a list, and time to do what was found.
const SOON: Duration = Duration::from_secs(12);

/// How the watches fail, and how long it takes after that.
struct Blindness {
    /// From when they are cut on.
    meanwhile: Vec<Rule>,
    /// From when they may come back on.
    afterwards: Vec<Rule>,
    /// How long after that all is known again.
    over_within: Duration,
}

fn watches() -> Match {
    Match::verbs([Verb::Watch])
}

/// For the first watch of each resource that goes on from a version.
fn once_each(fault: &Fault) -> Vec<Rule> {
    let once = |resource| Match::resumed().resource(resource).then(fault.clone()).at_most(1);
    ["nodes", "pods"].map(once).to_vec()
}

async fn refused_watches_are_taken_up_where_they_ended(ctx: &Ctx) -> Result<()> {
    let lists = Match::lists().then(Fault::status(503));
    let blindness = Blindness {
        meanwhile: vec![lists.clone(), watches().then(Fault::status(503))],
        afterwards: vec![lists.clone()],
        over_within: SOON,
    };
    live_through(ctx, blindness).await?;
    // All lists were refused, so what was seen came by the watches.
    ensure!(lists.hits() > 0, "nobody asked how far the store is");
    Ok(())
}

async fn an_expired_version_told_by_status_leads_to_a_list(ctx: &Ctx) -> Result<()> {
    let blindness = Blindness {
        meanwhile: vec![watches().then(Fault::status(503))],
        afterwards: once_each(&Fault::status(410)),
        over_within: SOON,
    };
    live_through(ctx, blindness).await
}

async fn an_expired_version_told_by_an_event_leads_to_a_list(ctx: &Ctx) -> Result<()> {
    let blindness = Blindness {
        meanwhile: vec![watches().then(Fault::Cut)],
        afterwards: once_each(&Fault::WatchError(Answer::new(410))),
        over_within: SOON,
    };
    live_through(ctx, blindness).await
}

async fn garbage_is_no_list_and_no_event(ctx: &Ctx) -> Result<()> {
    // The version is lost first, so that both lists and watches meet it.
    let mut meanwhile = once_each(&Fault::WatchError(Answer::new(410)));
    let page = Fault::Garbage("<html>Please sign in</html>\n");
    let nonsense = Fault::Garbage("{\"type\":\"ADDED\",\"object\":{\"metadata\":{}}}\n");
    let empty = Fault::Garbage("{\"metadata\":{\"resourceVersion\":\"1\"}}\n");
    let any = Fault::AnyOf(vec![page, nonsense, empty, Fault::Garbage("")]);
    meanwhile.push(watches().then(any.clone()));
    meanwhile.push(Match::lists().then(any));
    let blindness = Blindness { meanwhile, afterwards: Vec::new(), over_within: SOON };
    live_through(ctx, blindness).await
}

async fn an_event_that_is_cut_in_its_middle_is_read_again(ctx: &Ctx) -> Result<()> {
    let cut = watches().then(Fault::CutBody(200));
    let blindness =
        Blindness { meanwhile: vec![cut.clone()], afterwards: Vec::new(), over_within: SOON };
    live_through(ctx, blindness).await?;
    ensure!(cut.hits() >= 4, "only {} watches were cut", cut.hits());
    Ok(())
}

async fn a_watch_that_hangs_is_given_up(ctx: &Ctx) -> Result<()> {
    let blindness = Blindness {
        meanwhile: vec![watches().then(Fault::Hang)],
        afterwards: Vec::new(),
        // A watch may take 15 s to begin.
        over_within: Duration::from_secs(15) + SOON,
    };
    live_through(ctx, blindness).await
}

async fn a_list_that_hangs_is_given_up(ctx: &Ctx) -> Result<()> {
    let mut meanwhile = once_each(&Fault::WatchError(Answer::new(410)));
    meanwhile.push(Match::lists().then(Fault::Hang));
    let blindness = Blindness {
        meanwhile,
        afterwards: Vec::new(),
        // A streamed list may take 15 s to begin, and a page of another 60 s.
        over_within: Duration::from_secs(60) + SOON,
    };
    live_through(ctx, blindness).await
}

/// Some pods of a kind on a node.
fn some(kind: &str, node: &NodeRef, make: impl Fn(PodSketch) -> PodSketch) -> Vec<PodSketch> {
    (0..3).map(|n| make(pod(&format!("{kind}-{n}")).on(node).grace(0))).collect()
}

/// Cuts all watches and keeps them down for some seconds, in which everything happens that can.
async fn live_through(ctx: &Ctx, blindness: Blindness) -> Result<()> {
    let (bed, arena) = (ctx.bed(), ctx.arena().await?);
    let tainted = arena.node("tainted").await?;
    let released = arena.node("released").await?;
    let struck = arena.node("struck").await?;
    let vanishing = arena.node("vanishing").await?;
    let quiet = arena.node("quiet").await?;
    let for_6 = |pod: PodSketch| pod.tolerates_for(KEY, 6);
    let for_24 = |pod: PodSketch| pod.tolerates_for(KEY, 24);
    let create = async |pods: Vec<PodSketch>| arena.create_all(pods).await;

    let due_meanwhile = create(some("due-meanwhile", &tainted, for_6)).await?;
    let due_later = create(some("due-later", &tainted, for_24)).await?;
    let replaced = create(some("replaced", &tainted, for_24)).await?;
    let moved = create(some("moved", &tainted, for_24)).await?;
    let removed = create(some("removed", &tainted, for_24)).await?;
    let saved = create(some("saved", &released, for_6)).await?;
    let condemned = create(some("condemned", &struck, |pod| pod)).await?;
    let orphaned = create(some("orphaned", &vanishing, for_6)).await?;
    let mut untouched = create(some("quiet", &quiet, for_6)).await?;
    untouched.extend(create(some("stays", &tainted, |pod| pod.tolerates(KEY))).await?);
    let witness = arena.witness().await?;
    let proxy = bed.fault_proxy(3).await?;
    let ostrakon = ostrakon_behind(bed, &proxy).await?;

    for node in [&tainted, &released, &vanishing] {
        arena.taint(node, no_execute(KEY).added_now()).await?;
    }
    let first = due_by(&arena, KEY).await?;
    let of = |due: &[Due], pods: &[PodRef]| -> Vec<Due> {
        due.iter().filter(|due| pods.contains(&due.pod)).cloned().collect()
    };
    tokio::time::sleep(Duration::from_secs(1)).await;

    let blind = system_time();
    proxy.set_rules(blindness.meanwhile);
    ensure!(proxy.cut(&watches()) >= 2, "there were no watches to cut");
    arena.untaint(&released, KEY).await?;
    arena.delete_node(&vanishing).await?;
    arena.taint(&struck, no_execute(KEY).added_now()).await?;
    for pod in replaced.iter().chain(&moved).chain(&removed) {
        arena.remove(pod).await?;
    }
    let replacing = create(some("replaced", &tainted, for_24)).await?;
    untouched.extend(create(some("moved", &quiet, for_24)).await?);
    let new = create(some("new", &tainted, |pod| pod)).await?;
    let second = due_by(&arena, KEY).await?;

    // What was known before is acted on in time, as far as it is still so.
    let known = of(&first, &due_meanwhile);
    until(first[0].at + LATE).await;
    let lateness = each_went_in_time(bed, &witness, &known, &Downtimes::default()).await?;
    figure(format!("while blind: {lateness}"));
    let blind_for = system_time().duration_since(blind);
    ensure!(blind_for >= SignedDuration::from_secs(4), "blind for {blind_for:#} only");
    witness.never_deleted_for(saved.iter().chain(&orphaned), Duration::from_secs(1)).await?;

    let over = system_time();
    proxy.set_rules(blindness.afterwards);
    let found = condemned.iter().chain(&new);
    let sightings = witness.deleted_within(found, blindness.over_within).await?;
    let last = sightings.iter().filter_map(|one| one.deleted).map(|moment| moment.wall).max();
    let last = last.unwrap_or(over);
    figure(format!("what was missed was done {:#} after", last.duration_since(over)));
    wait::until("both watches", SOON, async || Ok(are_open(&proxy).then_some(()))).await?;
    let caught_up = system_time();

    let last = first.iter().chain(&second).map(|due| due.at).max().unwrap_or(over);
    until(last + LATE).await;
    let mut down = Downtimes::default();
    let due = [of(&first, &due_later), of(&second, &replacing)].concat();
    ensure!(due.len() == 6, "{} pods count down", due.len());
    down.add(blind, caught_up);
    let lateness = each_went_in_time(bed, &witness, &due, &down).await?;
    figure(format!("afterwards: {lateness}"));
    untouched.extend(saved);
    witness.never_deleted_for(&untouched, Duration::from_secs(1)).await?;
    // Whoever else collects the pods of a node that is gone: it was not ostrakon.
    untouched.extend(orphaned);
    nothing_was_written_about(bed, &untouched)?;
    nothing_was_taken_about(bed, replaced.iter().chain(&moved).chain(&removed))?;
    none_was_deleted_twice(bed, arena.namespace(), User::Ostrakon)?;
    backlog_is_empty(&ostrakon).await?;
    ostrakon.stop().await?;
    Ok(())
}

fn are_open(proxy: &FaultProxy) -> bool {
    ["nodes", "pods"].iter().all(|resource| proxy.open(&Match::watch(resource)) == 1)
}
