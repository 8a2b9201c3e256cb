//! A dry run beside kube-controller-manager's own taint eviction: it writes nothing, and names what the other
//! one loses.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::outside::figure;
use crate::ctx::{Ctx, Scenario, trial};
use crate::harness::cluster::pod;
use crate::harness::component::How;
use crate::harness::ostrakon::Launch;
use crate::harness::{Bed, BedOptions, TaintEviction, User, no_execute, wait};

const NODES: usize = 10;
const PODS: usize = 270;
/// Pods that the other manager may not delete.
const DENIED: usize = 30;
/// How long the pods tolerate the taint, in seconds.
const TOLERATED: i64 = 30;
const SOON: Duration = Duration::from_secs(180);

pub(super) fn trials() -> Vec<Scenario> {
    vec![
        trial!(a_dry_run_names_what_the_built_in_manager_loses_and_writes_nothing)
            .real()
            .alone()
            .within(Duration::from_secs(600)),
    ]
}

/// From now on kube-controller-manager may not delete pods whose names begin with `denied-`.
async fn deny_deletes(bed: &Bed) -> Result<()> {
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": {"name": "denied"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"],
                "resources": ["pods"],
            }]},
            "validations": [{
                "expression": "!oldObject.metadata.name.startsWith('denied-') || \
                    request.userInfo.username != 'system:kube-controller-manager'",
                "message": "this pod stays",
            }],
        },
    }))?;
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
        "metadata": {"name": "denied"},
        "spec": {"policyName": "denied", "validationActions": ["Deny"]},
    }))?;
    let admin = bed.admin()?;
    Api::all(admin.clone()).create(&PostParams::default(), &policy).await?;
    Api::all(admin).create(&PostParams::default(), &binding).await?;
    Ok(())
}

async fn a_dry_run_names_what_the_built_in_manager_loses_and_writes_nothing(_: &Ctx) -> Result<()> {
    let options = BedOptions::default()
        .controller_manager(TaintEviction::BuiltIn)
        .controller_manager_flag("--leader-elect=true")
        .controller_manager_flag("--leader-elect-lease-duration=5s")
        .controller_manager_flag("--leader-elect-renew-deadline=3s")
        .controller_manager_flag("--leader-elect-retry-period=1s");
    let bed = Bed::start(options).await?;
    deny_deletes(&bed).await?;
    let arena = bed.arena("dry").await?;
    let report = bed.folder().join("report.json");
    let launch = Launch::new(bed.kubeconfig(User::DryRun)?).arg("--dry-run");
    let launch = launch.arg("--leader-elect=true").arg(&format!("--report={}", report.display()));
    let dry_run = launch.start(&bed).await?;
    let log = dry_run.log_path().to_owned();

    let mut nodes = Vec::new();
    for number in 0..NODES {
        nodes.push(arena.node(&format!("n{number}")).await?);
    }
    let sketch = |name: &str, number: usize| {
        let pod = pod(&format!("{name}-{number}")).on(&nodes[number % NODES]).running();
        pod.tolerates_for("k", TOLERATED)
    };
    let denied = arena.create_all((0..DENIED).map(|number| sketch("denied", number))).await?;
    let pods = arena.create_all((0..PODS).map(|number| sketch("web", number))).await?;
    // The policy works by then, and the lease was read.
    sleep(Duration::from_secs(10)).await;
    for node in &nodes {
        arena.taint(node, no_execute("k").added_now()).await?;
    }
    sleep(Duration::from_secs(12)).await;
    bed.controller_manager()?.restart(How::Kill).await?;
    wait::until("the built-in manager to delete the pods", SOON, async || {
        for pod in &pods {
            let stored = arena.pods().get_opt(&pod.name).await?;
            let is_going = stored.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
            ensure!(is_going, "{pod} is still there");
        }
        Ok(Some(()))
    })
    .await?;
    // Until those that it lost are no longer taken for slow.
    sleep(Duration::from_secs(65)).await;
    let metrics = dry_run.metrics().await?;
    let evictions = metrics.sum("dry_run_ostrakon_evictions_total", &[("result", "deleted")]);
    ensure!(evictions == Some((PODS + DENIED) as f64), "{evictions:?}");
    ensure!(metrics.get("ostrakon_evictions_total").is_none(), "a real run's name");
    dry_run.stop().await?;

    let report: Value = serde_json::from_slice(&std::fs::read(&report)?)?;
    let differences = report["differences"].as_array().context("no differences")?;
    let named = |kind: &str, cause: &str| -> BTreeSet<String> {
        let is_it = |it: &&Value| it["kind"] == kind && it["cause"] == cause;
        let name = |it: &Value| it["name"].as_str().unwrap_or_default().to_owned();
        differences.iter().filter(is_it).map(name).collect()
    };
    let names = |pods: &[crate::harness::PodRef]| -> BTreeSet<String> {
        pods.iter().map(|pod| pod.name.clone()).collect()
    };
    let summary = &report["pods"];
    ensure!(named("only_ostrakon", "lost_after_five_attempts") == names(&denied), "{summary}");
    ensure!(named("later", "restart") == names(&pods), "{summary}");
    ensure!(differences.len() == PODS + DENIED, "{summary}");
    let by = differences.iter().filter(|it| it["deletedBy"] == "kube-controller-manager").count();
    ensure!(by == PODS, "deleted by kube-controller-manager: {by}");
    let later: Vec<f64> = differences.iter().filter_map(|it| it["secondsLater"].as_f64()).collect();
    let (least, most) =
        (later.iter().copied().fold(f64::MAX, f64::min), later.iter().copied().fold(0.0, f64::max));
    figure(format!("{summary}; later by {least:.0} to {most:.0} s"));
    let log = std::fs::read_to_string(log)?;
    let begin = log.find("Dry run of ").context("no summary")?;
    figure(log[begin..].to_owned());

    let writes = bed.audit()?.by(User::DryRun).writes();
    let others: Vec<_> = writes
        .records()
        .iter()
        .filter(|record| record.resource() != "selfsubjectaccessreviews")
        .map(|record| record.request_uri.clone())
        .collect();
    ensure!(others.is_empty(), "the dry run wrote: {others:?}");
    ensure!(bed.audit()?.by(User::DryRun).len() > 10, "its requests are in the audit log");
    bed.stop().await
}
