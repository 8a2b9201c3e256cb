//! What tenants write costs others nothing, and no stamp of theirs makes a pod go early.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Toleration;
use ostrakon::clock::system_time;
use tokio::time::sleep;

use super::evidence::Stage;
use super::outside::figure;
use crate::ctx::{Ctx, SOON, Scenario, trial};
use crate::harness::cluster::pod;
use crate::harness::{Ostrakon, no_execute, wait};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(no_pod_goes_before_its_seconds_are_over_whenever_it_was_bound),
        trial!(a_hundred_pods_of_a_megabyte_in_a_row_leave_no_memory_behind).alone(),
    ]
}

/// Bound after the taint, at odd milliseconds: what the API stores of that is cut to the second.
async fn no_pod_goes_before_its_seconds_are_over_whenever_it_was_bound(ctx: &Ctx) -> Result<()> {
    const SECONDS: i64 = 4;
    let stage = Stage::set(ctx).await?;
    let (arena, witness) = (&stage.arena, &stage.witness);
    let node = arena.node("n").await?;
    arena.taint(&node, no_execute("k").added_now()).await?;
    let mut bound = Vec::new();
    for n in 0..8 {
        sleep(Duration::from_millis(137)).await;
        let before = system_time();
        let sketch = pod(&format!("p{n}")).on(&node).tolerates_for("k", SECONDS);
        bound.push((before, arena.create(sketch).await?));
    }
    for (before, pod) in &bound {
        let earliest = *before + SignedDuration::from_secs(SECONDS);
        let latest = earliest + SignedDuration::try_from(SOON)?;
        witness.deleted_between(pod, earliest, latest).await?;
    }
    Ok(())
}

/// Each is created, seen and deleted before the next.
async fn a_hundred_pods_of_a_megabyte_in_a_row_leave_no_memory_behind(ctx: &Ctx) -> Result<()> {
    const PODS: usize = 100;
    const MOST_MIB: f64 = 10.0;
    let (bed, arena) = (ctx.bed(), ctx.arena().await?);
    let node = arena.node("n").await?;
    let ostrakon = Ostrakon::start(bed).await?;
    let witness = arena.witness().await?;
    let huge = |name: &str| {
        (0..12_000).fold(pod(name).on(&node).grace(0), |pod, n| {
            pod.toleration(Toleration {
                key: Some(format!("{n}-{}", "x".repeat(40))),
                operator: Some("Exists".to_owned()),
                effect: Some("NoExecute".to_owned()),
                toleration_seconds: Some(n),
                ..Toleration::default()
            })
        })
    };
    let pass = async |name: &str| {
        let pod = arena.create(huge(name)).await?;
        witness.seen(&pod).await?;
        arena.remove(&pod).await
    };
    pass("first").await?;
    sleep(Duration::from_secs(2)).await;
    let before = resident_mib(ostrakon.pid())?;
    for n in 0..PODS {
        pass(&format!("p{n}")).await?;
    }
    let mut after = f64::MAX;
    let settled = wait::until("the memory to be given back", SOON, async || {
        after = resident_mib(ostrakon.pid())?;
        Ok((after - before <= MOST_MIB).then_some(()))
    });
    settled.await.with_context(|| format!("{before:.1} MiB before"))?;
    figure(format!("resident {before:.1} MiB after one, {after:.1} MiB after {PODS} more"));
    // It has seen them: one that is not tolerated goes.
    let last = arena.create(pod("last").on(&node)).await?;
    arena.taint(&node, no_execute("k")).await?;
    witness.deleted_within([&last], SOON).await?;
    ostrakon.stop().await?;
    Ok(())
}

fn resident_mib(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.split_whitespace().next().context("no number")?.parse()?;
    Ok(kib / 1024.0)
}
