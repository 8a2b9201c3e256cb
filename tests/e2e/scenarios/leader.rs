//! Two replicas: one leads and writes, the other stands by, and takes over in every way in which a
//! leader can end.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::SignedDuration;
use ostrakon::clock::system_time;
use tokio::time::{Instant, sleep};

use super::evidence::{QUIET, SOON, only_these_evicted};
use crate::ctx::{Ctx, Scenario, trial};
use crate::harness::cluster::pod;
use crate::harness::ostrakon::Launch;
use crate::harness::{FaultProxy, Match, Ostrakon, User, no_execute, wait};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(a_stop_hands_over_at_once).alone(),
        trial!(a_killed_leader_is_followed_with_the_same_deadlines).alone(),
        trial!(a_frozen_leader_ends_and_writes_nothing).alone(),
    ]
}

/// How late a deletion may come after its deadline; nothing runs beside this.
const LATE: SignedDuration = SignedDuration::from_secs(5);

/// A lease of 15 s that is left behind, a look, and a busy machine.
const TAKE_OVER: Duration = Duration::from_secs(25);

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
    ensure!(begin.elapsed() > Duration::from_secs(10), "after {:?}", begin.elapsed());

    let due = tainted + SignedDuration::from_secs(TOLERATED);
    witness.deleted_between(&counting, due - SignedDuration::from_secs(2), due + LATE).await?;
    only_these_evicted(ctx.bed(), &arena, &[&counting]).await
}

async fn a_frozen_leader_ends_and_writes_nothing(ctx: &Ctx) -> Result<()> {
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
    let status = leader.ostrakon.ended(SOON).await?;
    ensure!(status.code() == Some(1), "{status}: {}", leader.ostrakon.log()?);
    let log = leader.ostrakon.log()?;
    let last = log.lines().last().context("no last words")?;
    ensure!(last.contains("lease"), "{last}");
    ensure!(leader.writes() == written, "it wrote after it was frozen at {frozen}");
    let pods: Vec<_> = pods.iter().collect();
    only_these_evicted(ctx.bed(), &arena, &pods).await
}
