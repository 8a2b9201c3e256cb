//! Two replicas: one leads and writes, the other stands by, and takes over in every way in which a
//! leader can end.

use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::DeleteParams;
use ostrakon::clock::system_time;
use ostrakon::leader::LEASE;
use tokio::time::{Instant, sleep};

use super::evidence::{QUIET, SOON, only_these_evicted};
use crate::ctx::{Ctx, Scenario, trial};
use crate::harness::audit::AuditRecord;
use crate::harness::cluster::pod;
use crate::harness::ostrakon::Launch;
use crate::harness::{FaultProxy, Match, Ostrakon, User, Verb, no_execute, wait};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(a_stop_hands_over_at_once).alone(),
        trial!(a_killed_leader_is_followed_with_the_same_deadlines).alone(),
        trial!(a_frozen_leader_stands_by_and_writes_nothing).alone(),
        trial!(a_lease_that_is_deleted_during_evictions_leaves_one_writer).alone(),
        trial!(an_api_server_that_hangs_ends_no_process_and_costs_no_list).alone(),
        trial!(a_container_that_is_started_again_goes_on_at_once).alone(),
    ]
}

/// How late a deletion may come after its deadline; nothing runs beside this.
const LATE: SignedDuration = SignedDuration::from_secs(5);

/// A lease that is left behind, a look, and a busy machine.
const TAKE_OVER: Duration = Duration::from_secs(40);

/// A replica with its own way to the API server, on which its requests are seen.
struct Replica {
    proxy: FaultProxy,
    ostrakon: Ostrakon,
}

impl Replica {
    async fn start(ctx: &Ctx) -> Result<Self> {
        let bed = ctx.bed();
        let proxy = bed.fault_proxy(1).await?;
        let launch = Launch::new(bed.kubeconfig_via(&proxy, User::Ostrakon)?);
        let ostrakon = launch.arg("--leader-elect").start(bed).await?;
        Ok(Self { proxy, ostrakon })
    }

    async fn leads(&self) -> Result<bool> {
        Ok(self.ostrakon.metrics().await?.get("ostrakon_leader") == Some(1.0))
    }

    async fn has_won(&self, patience: Duration) -> Result<()> {
        wait::until("the replica to lead", patience, async || {
            ensure!(self.leads().await?, "it stands by");
            Ok(Some(()))
        })
        .await
    }

    /// How many requests it has sent that only the leader may send.
    fn writes(&self) -> usize {
        let of = |resource| self.proxy.count(&Match::writes().resource(resource));
        of("pods") + of("nodes") + of("events")
    }
}

/// A leader and one that stands by, both ready.
async fn two(ctx: &Ctx) -> Result<(Replica, Replica)> {
    let leader = Replica::start(ctx).await?;
    leader.has_won(TAKE_OVER).await?;
    let standby = Replica::start(ctx).await?;
    sleep(QUIET).await;
    ensure!(!standby.leads().await?, "two lead");
    Ok((leader, standby))
}

async fn a_stop_hands_over_at_once(ctx: &Ctx) -> Result<()> {
    let arena = ctx.arena().await?;
    let node = arena.node("n").await?;
    let first = arena.create(pod("first").on(&node)).await?;
    let witness = arena.witness().await?;
    let (leader, standby) = two(ctx).await?;
    arena.taint(&node, no_execute("k").added_now()).await?;
    witness.deleted_within([&first], SOON).await?;
    ensure!(standby.writes() == 0, "{} writes by the one that stands by", standby.writes());

    let Replica { ostrakon, .. } = leader;
    ostrakon.stop().await?;
    let begin = Instant::now();
    standby.has_won(TAKE_OVER).await?;
    let took = begin.elapsed();
    ensure!(took < Duration::from_secs(2), "the hand-over took {took:?}");
    let second = arena.create(pod("second").on(&node)).await?;
    witness.deleted_within([&second], SOON).await?;
    only_these_evicted(ctx.bed(), &arena, &[&first, &second]).await
}

async fn a_killed_leader_is_followed_with_the_same_deadlines(ctx: &Ctx) -> Result<()> {
    const TOLERATED: i64 = 45;
    let arena = ctx.arena().await?;
    let node = arena.node("n").await?;
    let counting = arena.create(pod("counting").on(&node).tolerates_for("k", TOLERATED)).await?;
    let witness = arena.witness().await?;
    let (leader, standby) = two(ctx).await?;
    // Nothing but the leader's first sight says since when it is there.
    let tainted = arena.taint(&node, no_execute("k")).await?;
    wait::until("the record", SOON, async || {
        let annotations = arena.annotations(&node).await?;
        Ok(annotations.get("ostrakon.dev/noexecute-since").cloned())
    })
    .await?;
    let begin = Instant::now();
    let Replica { ostrakon, proxy: _proxy } = leader;
    ostrakon.kill9()?;
    standby.has_won(TAKE_OVER).await?;
    // Its claim of 5 s, less the second that may have passed since it was renewed.
    ensure!(begin.elapsed() > Duration::from_secs(3), "after {:?}", begin.elapsed());
    tell("after kill -9 the standby leads", begin.elapsed());

    let due = tainted + SignedDuration::from_secs(TOLERATED);
    witness.deleted_between(&counting, due - SignedDuration::from_secs(2), due + LATE).await?;
    only_these_evicted(ctx.bed(), &arena, &[&counting]).await
}

async fn a_frozen_leader_stands_by_and_writes_nothing(ctx: &Ctx) -> Result<()> {
    let arena = ctx.arena().await?;
    let node = arena.node("n").await?;
    let witness = arena.witness().await?;
    let (mut leader, standby) = two(ctx).await?;
    // Its countdowns end while it is frozen: it wakes up with much to do.
    let sketches = (0..20).map(|i| pod(&format!("p{i}")).on(&node).tolerates_for("k", 10));
    let pods = arena.create_all(sketches).await?;
    arena.taint(&node, no_execute("k").added_now()).await?;
    sleep(Duration::from_secs(3)).await;
    leader.ostrakon.freeze()?;
    let frozen = system_time();
    let written = leader.writes();
    sleep(Duration::from_secs(20)).await;
    standby.has_won(TAKE_OVER).await?;
    witness.deleted_within(&pods, SOON).await?;
    leader.ostrakon.thaw()?;
    leader.ostrakon.says(&["lost the lease", "writing nothing"], SOON).await?;
    sleep(QUIET * 3).await;
    ensure!(!leader.leads().await? && standby.leads().await?, "two lead, or none");
    ensure!(leader.writes() == written, "it wrote after it was frozen at {frozen}");
    let pods: Vec<_> = pods.iter().collect();
    only_these_evicted(ctx.bed(), &arena, &pods).await
}

async fn a_lease_that_is_deleted_during_evictions_leaves_one_writer(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let arena = ctx.arena().await?;
    let node = arena.node("n").await?;
    let witness = arena.witness().await?;
    let leases: Api<Lease> = Api::namespaced(bed.admin()?, "kube-system");
    let (leader, standby) = two(ctx).await?;
    let pods = arena.create_all((0..200).map(|i| pod(&format!("p{i}")).on(&node))).await?;
    arena.taint(&node, no_execute("k").added_now()).await?;
    for _ in 0..4 {
        leases.delete(LEASE, &DeleteParams::default()).await?;
        sleep(Duration::from_secs(3)).await;
    }
    witness.deleted_within(&pods, SOON).await?;
    ensure!(standby.writes() == 0, "two writers: {} writes by the standby", standby.writes());
    ensure!(leader.leads().await? && !standby.leads().await?, "the holder claims it again");
    let pods: Vec<_> = pods.iter().collect();
    only_these_evicted(bed, &arena, &pods).await
}

async fn an_api_server_that_hangs_ends_no_process_and_costs_no_list(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let arena = ctx.arena().await?;
    let node = arena.node("n").await?;
    let (leader, standby) = two(ctx).await?;
    let frozen = system_time();
    // It hangs: connections stay open, and nothing is answered.
    bed.apiserver()?.freeze().await?;
    sleep(Duration::from_secs(20)).await;
    let leads = [leader.leads().await?, standby.leads().await?];
    bed.apiserver()?.thaw().await?;
    ensure!(leads == [false, false], "nobody may write: {leads:?}");
    let begin = Instant::now();
    wait::until("one of them to lead again", TAKE_OVER, async || {
        let leads = [leader.leads().await?, standby.leads().await?];
        ensure!(leads != [true, true], "two lead");
        Ok(leads.contains(&true).then_some(()))
    })
    .await?;
    tell("after a hang of 20 s one leads again", begin.elapsed());
    let witness = arena.witness().await?;
    let victim = arena.create(pod("victim").on(&node)).await?;
    arena.taint(&node, no_execute("k").added_now()).await?;
    witness.deleted_within([&victim], SOON).await?;
    let anew = bed.audit()?.by(User::Ostrakon).since(frozen).that(lists_all);
    ensure!(anew.is_empty(), "they have listed anew: {:#?}", anew.records());
    let resumed = bed.audit()?.by(User::Ostrakon).since(frozen).verb(Verb::Watch);
    ensure!(!resumed.is_empty(), "nothing was taken up again, so nothing was shown");
    only_these_evicted(bed, &arena, &[&victim]).await?;
    leader.ostrakon.stop().await?;
    standby.ostrakon.stop().await?;
    Ok(())
}

async fn a_container_that_is_started_again_goes_on_at_once(ctx: &Ctx) -> Result<()> {
    let bed = ctx.bed();
    let arena = ctx.arena().await?;
    let node = arena.node("n").await?;
    let witness = arena.witness().await?;
    let launch = Launch::new(bed.kubeconfig(User::Ostrakon)?)
        .arg("--leader-elect")
        .env("HOSTNAME", "ostrakon-0")
        .env("POD_UID", "2f8a61f6-95a6-4cf3-9a53-0f8a4f4c2c11");
    let ostrakon = launch.start(bed).await?;
    wait::until("it to lead", TAKE_OVER, async || {
        Ok((ostrakon.metrics().await?.get("ostrakon_leader") == Some(1.0)).then_some(()))
    })
    .await?;
    let pods = arena.create_all((0..3).map(|i| pod(&format!("p{i}")).on(&node))).await?;
    let launch = ostrakon.kill9()?;
    arena.taint(&node, no_execute("k").added_now()).await?;
    let begin = Instant::now();
    let ostrakon = launch.spawn(bed)?;
    witness.deleted_within(&pods, SOON).await?;
    tell("a container that is started again has evicted", begin.elapsed());
    let pods: Vec<_> = pods.iter().collect();
    only_these_evicted(bed, &arena, &pods).await?;
    let log = ostrakon.log()?;
    ensure!(!log.contains("standing by"), "it waited: {log}");
    ostrakon.stop().await?;
    Ok(())
}

/// Whether a request is for all objects. One for a single object only asks for the store's version.
fn lists_all(request: &AuditRecord) -> bool {
    let has = |wanted| {
        let query = request.request_uri.split_once('?').map_or("", |(_, query)| query);
        query.split('&').any(|pair| pair == wanted)
    };
    match request.verb {
        Verb::List => !has("limit=1"),
        Verb::Watch => has("sendInitialEvents=true"),
        _ => false,
    }
}

/// A figure, for who measures: no bound holds on a machine that stalls.
#[allow(clippy::print_stderr, reason = "figures are for people")]
fn tell(what: &str, after: Duration) {
    eprintln!("e2e: {what} after {after:.1?}");
}
