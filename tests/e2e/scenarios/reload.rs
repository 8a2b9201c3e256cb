//! The configuration file changes as a `ConfigMap` does, while ostrakon runs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use ostrakon::config::content_hash;
use serde_json::Value;
use tokio::process::Command;

use super::evidence::SOON;
use super::outside::figure;
use crate::ctx::{Ctx, Scenario, trial};
use crate::harness::cluster::pod;
use crate::harness::ostrakon::Launch;
use crate::harness::{Bed, Ostrakon, User, http, no_execute, wait};

pub(super) fn trials() -> Vec<Scenario> {
    vec![trial!(a_changed_config_map_counts_and_a_broken_one_is_refused).real().alone()]
}

/// Nothing may happen for so long.
const QUIET: Duration = Duration::from_secs(3);
const REFUSED: &str = "ostrakon_config_last_reload_successful";

/// A folder as the kubelet makes it of a `ConfigMap`.
struct ConfigMap {
    folder: PathBuf,
    versions: u32,
}

impl ConfigMap {
    fn new(bed: &Bed, content: &str) -> Result<Self> {
        let folder = bed.folder().join("config-map");
        fs::create_dir(&folder)?;
        symlink("..data/config.yaml", folder.join("config.yaml"))?;
        let mut map = Self { folder, versions: 0 };
        map.replace(content)?;
        Ok(map)
    }

    fn path(&self) -> PathBuf {
        self.folder.join("config.yaml")
    }

    /// The files of the new version are complete before the link is replaced.
    fn replace(&mut self, content: &str) -> Result<()> {
        let before = format!("..{}", self.versions);
        self.versions += 1;
        let version = format!("..{}", self.versions);
        fs::create_dir(self.folder.join(&version))?;
        fs::write(self.folder.join(&version).join("config.yaml"), content)?;
        symlink(&version, self.folder.join("..data_tmp"))?;
        fs::rename(self.folder.join("..data_tmp"), self.folder.join("..data"))?;
        if self.versions > 1 {
            fs::remove_dir_all(self.folder.join(before))?;
        }
        Ok(())
    }
}

fn file(method: &str) -> String {
    format!(
        "apiVersion: config.ostrakon.dev/v1alpha1\nkind: OstrakonConfiguration\n\
         taintEviction: {{rules: [{{name: r, key: k, method: {method}}}]}}\n"
    )
}

/// What `/debug/config` shows.
async fn shown(ostrakon: &Ostrakon) -> Result<Value> {
    let (code, text) = http::get(&ostrakon.url("/debug/config")).await?;
    ensure!(code == 200, "{code}: {text}");
    Ok(serde_json::from_str(&text)?)
}

/// This content is in force, by every sign.
async fn is_in_force(ostrakon: &Ostrakon, content: &str, successful: f64) -> Result<()> {
    let hash = content_hash(content.as_bytes());
    let metrics = ostrakon.metrics().await?;
    let info = metrics.sum("ostrakon_config_info", &[("hash", &hash)]);
    ensure!(info == Some(1.0), "{hash}: {metrics:?}");
    ensure!(metrics.sum("ostrakon_config_info", &[]) == Some(1.0), "more than one");
    ensure!(metrics.get(REFUSED) == Some(successful), "{metrics:?}");
    let shown = shown(ostrakon).await?;
    ensure!(shown["hash"] == hash.as_str(), "{shown:#}");
    Ok(())
}

async fn refusals(ctx: &Ctx) -> Result<Vec<Event>> {
    let events = Api::<Event>::namespaced(ctx.bed().admin()?, "kube-system");
    let all = events.list(&ListParams::default()).await?.items.into_iter();
    Ok(all.filter(|it| it.reason.as_deref() == Some("ConfigurationRefused")).collect())
}

async fn a_changed_config_map_counts_and_a_broken_one_is_refused(ctx: &Ctx) -> Result<()> {
    let (bed, arena) = (ctx.bed(), ctx.arena().await?);
    let n = arena.node("n").await?;
    let evicted = arena.create(pod("evicted").on(&n)).await?;
    let timed = arena.create(pod("timed").on(&n).tolerates_for("k", 3600)).await?;
    let witness = arena.witness().await?;
    let (ignores, deletes) = (file("Ignore"), file("Delete"));
    let mut map = ConfigMap::new(bed, &ignores)?;
    let launch = Launch::new(bed.kubeconfig(User::Ostrakon)?).arg("--leader-elect");
    let config = format!("--config={}", map.path().display());
    let mut ostrakon = launch.arg(&config).start(bed).await?;
    wait::until("ostrakon to lead", SOON, async || {
        Ok((ostrakon.metrics().await?.get("ostrakon_leader") == Some(1.0)).then_some(()))
    })
    .await?;
    is_in_force(&ostrakon, &ignores, 1.0).await?;
    arena.taint(&n, no_execute("k").added_now()).await?;

    // A broken file, noticed by itself.
    let broken = file("Ignroe");
    map.replace(&broken)?;
    wait::until("the file to be refused", SOON, async || {
        Ok((ostrakon.metrics().await?.get(REFUSED) == Some(0.0)).then_some(()))
    })
    .await?;
    is_in_force(&ostrakon, &ignores, 0.0).await?;
    ostrakon.says(&["the new configuration is refused", "Ignroe"], SOON).await?;
    let event =
        wait::until("an event about the lease", SOON, async || Ok(refusals(ctx).await?.pop()))
            .await?;
    ensure!(event.type_.as_deref() == Some("Warning"), "{event:?}");
    ensure!(event.involved_object.kind.as_deref() == Some("Lease"), "{event:?}");
    let message = event.message.unwrap_or_default();
    for part in ["config.yaml is refused", "Ignroe", &content_hash(ignores.as_bytes())] {
        ensure!(message.contains(part), "no {part:?} in {message}");
    }
    witness.never_deleted_for([&evicted, &timed], QUIET).await?;

    // The one before, with another line: in force at once after SIGHUP, and the process lives.
    map.replace(&deletes)?;
    ostrakon.hang_up()?;
    witness.deleted_within([&evicted], SOON).await?;
    ostrakon.says(&["new configuration in force", "changed r"], SOON).await?;
    is_in_force(&ostrakon, &deletes, 1.0).await?;
    witness.never_deleted_for([&timed], QUIET).await?;
    ensure!(refusals(ctx).await?.len() == 1, "told again");
    kubectl_refuses(ctx, &map).await?;
    ostrakon.stop().await?;
    Ok(())
}

/// The file is not a resource, and `kubectl apply` says so in these words, which docs/config.md quotes.
async fn kubectl_refuses(ctx: &Ctx, map: &ConfigMap) -> Result<()> {
    let kubeconfig = ctx.bed().kubeconfig(User::Admin)?;
    let applied = Command::new("kubectl")
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .args(["apply", "-f"])
        .arg(map.path())
        .kill_on_drop(true)
        .output()
        .await;
    let Ok(output) = applied else {
        figure("there is no kubectl to apply the file with");
        return Ok(());
    };
    let said = String::from_utf8_lossy(&output.stderr);
    figure(format!("kubectl apply: {said}"));
    ensure!(!output.status.success(), "it was applied");
    let words = "no matches for kind \"OstrakonConfiguration\" in version \
                 \"config.ostrakon.dev/v1alpha1\"";
    ensure!(said.contains(words), "{said}");
    Ok(())
}
