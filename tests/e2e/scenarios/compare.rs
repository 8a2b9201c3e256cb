//! kube-controller-manager's own taint eviction under the same faults, for comparison. Each trial
//! also shows that the fault is one: if the built-in manager passed, ours would have proved little.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::faults::{self, most_fail};
use super::outside::{figure, none_was_deleted_twice};
use super::race;
use crate::ctx::{Ctx, Scenario, trial};
use crate::harness::{Bed, BedOptions, Fault, FaultProxy, Match, TaintEviction, User, Verb};

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(the_built_in_manager_loses_pods_when_most_writes_fail).real().alone().on_request(),
        trial!(the_built_in_manager_evicts_pods_that_were_bound_after_the_taint_went)
            .real()
            .alone()
            .on_request(),
    ]
}

/// A control plane whose manager evicts by itself.
async fn bed() -> Result<Bed> {
    Ok(Bed::start(BedOptions::default().controller_manager(TaintEviction::BuiltIn)).await?)
}

/// From now on the manager talks to the API server through a proxy.
async fn lead_manager_through_a_proxy(bed: &Bed) -> Result<FaultProxy> {
    let proxy = bed.fault_proxy_for(User::ControllerManager, 1).await?;
    let kubeconfig = bed.kubeconfig_via(&proxy, User::ControllerManager)?;
    let component = bed.controller_manager()?;
    let mut args = component.args().await;
    let old = args.iter_mut().find(|arg| arg.starts_with("--kubeconfig="));
    *old.context("kube-controller-manager runs without --kubeconfig")? =
        format!("--kubeconfig={}", kubeconfig.display());
    component.restart_with(args).await?;
    // It is healthy before its caches are full.
    tokio::time::sleep(Duration::from_secs(5)).await;
    Ok(proxy)
}

async fn the_built_in_manager_loses_pods_when_most_writes_fail(_: &Ctx) -> Result<()> {
    let bed = bed().await?;
    let arena = bed.arena("compare").await?;
    let stage = faults::Stage::on(&bed, arena, 60, 20).await?;
    let proxy = lead_manager_through_a_proxy(&bed).await?;
    let ours = |verb, resource: &str| {
        let requests = Match::verbs([verb]).resource(resource);
        requests.namespace(stage.arena.namespace()).then(most_fail()).chance(0.85)
    };
    let rules = vec![
        ours(Verb::Patch, "pods/status"),
        ours(Verb::Delete, "pods"),
        ours(Verb::Create, "events"),
    ];
    proxy.set_rules(rules.clone());
    stage.taint().await?;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let meanwhile = stage.deleted();
    proxy.clear();
    // As long as ours may take.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let going = stage.going().count();
    let lost = going - stage.deleted();
    figure(format!(
        "the built-in manager: {meanwhile} of {going} pods went while {} writes failed, {lost} \
         never did",
        rules.iter().map(crate::harness::Rule::hits).sum::<u64>()
    ));
    let namespace = stage.arena.namespace();
    if let Err(twice) = none_was_deleted_twice(&bed, namespace, User::ControllerManager) {
        figure(format!("and: {twice}"));
    }
    ensure!(lost > 0, "it lost none");
    bed.stop().await
}

async fn the_built_in_manager_evicts_pods_that_were_bound_after_the_taint_went(
    _: &Ctx,
) -> Result<()> {
    let bed = bed().await?;
    let arena = bed.arena("compare").await?;
    let mut nodes = Vec::new();
    for n in 0..race::NODES {
        nodes.push(arena.node(&format!("n{n}")).await?);
    }
    let witness = arena.witness().await?;
    let proxy = lead_manager_through_a_proxy(&bed).await?;
    proxy.set_rules(vec![Match::watch("nodes").then(Fault::HoldBack(race::BEHIND))]);
    let pods = race::rounds(&arena, &witness, &nodes).await?;
    let touched = pods.iter().filter(|(_, touched)| *touched).count();
    figure(format!("the built-in manager: {touched} of {} pods evicted wrongly", pods.len()));
    ensure!(touched > 0, "it evicted none");
    bed.stop().await
}
