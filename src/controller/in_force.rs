//! The configuration in force, and how another one takes its place while the controller works.
//!
//! A content of the file is taken as a whole or not at all. It is refused if it has errors, if it needs a
//! restart, if a permission is missing that it needs, or if the nodes cannot be read for it. The one before
//! then stays in force. What is armed, held or being drained stays as it is: a new configuration only leads to
//! new decisions.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tracing::{error, info, warn};

use super::config_metrics::ConfigMetrics;
use super::state::Shared;
use crate::cluster::watch::Relist;
use crate::cluster::{Api, WriteGate};
use crate::config::{
    ConfigFile, DryRun, Settings, changes, content_hash, listed, needs_restart, numbered, read,
    summary,
};
use crate::leader::LEASE;
use crate::observe::Recorder;
use crate::preflight;

/// For how long an API server is waited for that does not say whether a permission is granted.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// For how long a list of nodes is waited for that a new configuration needs.
const LISTED_WITHIN: Duration = Duration::from_secs(120);
/// What the cluster refused may be granted later without a change of the file: it is tried again after this.
const TRY_AGAIN: Duration = Duration::from_secs(60);

/// The configuration in force.
#[derive(Debug)]
pub struct Loaded {
    /// What it says.
    pub settings: Settings,
    /// The file that it comes from; `None` if it comes from flags.
    pub file: Option<ConfigFile>,
    /// Since when it is in force.
    pub since: Timestamp,
}

impl Loaded {
    /// What `/debug/config` shows.
    pub fn json(&self, now: Timestamp) -> Value {
        let file = self.file.as_ref();
        let mut shown = json!({
            "file": file.map(|file| file.path.display().to_string()),
            "hash": file.map(|file| &file.hash),
            "since": self.since.to_string(),
        });
        for (key, value) in summary::json(&self.settings, now) {
            shown[key] = value;
        }
        shown
    }
}

/// What became of a content of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// It is in force already.
    Same,
    /// It is in force now.
    Applied,
    /// It is refused, and the one before stays in force.
    Refused,
}

/// The configuration in force, which can be replaced.
pub struct InForce {
    shared: Arc<Shared>,
    api: Api,
    server: String,
    dry_run: Option<DryRun>,
    /// Asks for new lists of nodes.
    pub(super) nodes: Relist,
    recorder: Recorder,
    /// Only the leader sends events.
    gate: WriteGate,
    /// Namespace of the lease, which events are about; `None` without one.
    lease: Option<String>,
    metrics: Option<ConfigMetrics>,
    state: Mutex<State>,
    /// One content at a time.
    turn: tokio::sync::Mutex<()>,
}

struct State {
    loaded: Arc<Loaded>,
    refused: Option<Refusal>,
}

/// The last content, if it was refused.
struct Refusal {
    /// Its hash, or why it cannot be read.
    content: String,
    cause: String,
    /// When it is tried again, if it is not the file's fault.
    again: Option<Instant>,
    /// An event has told of it.
    told: bool,
}

/// Why a content is refused.
enum Fault {
    /// The file must change.
    File(String),
    /// The cluster refuses what it needs, or does not answer.
    Cluster(String),
}

impl InForce {
    pub(super) fn new(
        shared: Arc<Shared>,
        (api, server, dry_run): (Api, String, Option<DryRun>),
        (recorder, gate, lease): (Recorder, WriteGate, Option<String>),
        loaded: Loaded,
        metrics: Option<ConfigMetrics>,
    ) -> Self {
        if let Some(file) = &loaded.file {
            let settings = &loaded.settings;
            info!(file = %file.path.display(), hash = file.hash,
                drain_policies = settings.policies.len(), taint_rules = settings.taint_rules.len(),
                "configuration in force");
            if let Some(metrics) = &metrics {
                metrics.loaded(&file.hash, loaded.since);
            }
        }
        let state = Mutex::new(State { loaded: Arc::new(loaded), refused: None });
        let (nodes, turn) = (Relist::default(), tokio::sync::Mutex::default());
        Self { shared, api, server, dry_run, nodes, recorder, gate, lease, metrics, state, turn }
    }

    /// The configuration in force.
    pub fn loaded(&self) -> Arc<Loaded> {
        Arc::clone(&self.state.lock().loaded)
    }

    /// Takes a content of the file, or why it cannot be read. It is reported once, and again if somebody
    /// `asked` for it to be read.
    pub async fn offer(&self, content: Result<&[u8], &str>, asked: bool) -> Offered {
        let _turn = self.turn.lock().await;
        let name = content.map_or_else(|error| format!("unreadable: {error}"), content_hash);
        let loaded = self.loaded();
        let Some(file) = &loaded.file else { return Offered::Same };
        if content.is_ok() && name == file.hash {
            self.same(file, asked);
            return Offered::Same;
        }
        if !asked && self.was_refused(&name) {
            self.tell(file);
            return Offered::Refused;
        }
        let outcome = match content {
            Ok(bytes) => self.apply(&loaded, bytes, &name).await,
            Err(error) => Err(Fault::File(format!(
                "cannot be read: {error}; restore it, and check the mount and its permissions"
            ))),
        };
        match outcome {
            Ok(()) => Offered::Applied,
            Err(fault) => {
                self.refuse(file, name, fault, asked);
                Offered::Refused
            }
        }
    }

    /// Puts a content in force as a whole, or does nothing.
    async fn apply(&self, old: &Loaded, bytes: &[u8], hash: &str) -> Result<(), Fault> {
        let Some(ConfigFile { path, .. }) = old.file.clone() else { return Ok(()) };
        let (settings, warnings) =
            read(bytes).usable().map_err(|errors| Fault::File(listed(&errors)))?;
        if let Some(conflict) = settings.conflict_with(self.shared.facts.compat) {
            return Err(Fault::File(conflict.to_owned()));
        }
        if let Some(cause) = needs_restart(&old.settings, &settings) {
            return Err(Fault::File(cause));
        }
        let changes = changes(&old.settings, &settings);
        if !changes.is_empty() {
            let tasks = preflight::Tasks::of(&settings);
            let Self { api, server, dry_run, .. } = self;
            preflight::check(api, server, None, tasks, *dry_run, ANSWERS_WITHIN)
                .await
                .map_err(|error| Fault::Cluster(error.to_string()))?;
            self.prepare(&old.settings, &settings).await?;
            self.shared.configure(&settings);
            if old.settings.policies != settings.policies {
                // Old policies need not be read for any more.
                self.nodes.ask();
            }
        }
        let now = self.shared.facts.clock.now();
        for warning in warnings {
            warn!("{}:{}", path.display(), numbered(&warning));
        }
        let changed =
            if changes.is_empty() { "no setting changed".to_owned() } else { changes.join("; ") };
        info!(file = %path.display(), hash, changed, "new configuration in force");
        let file = Some(ConfigFile { path, hash: hash.to_owned() });
        let mut state = self.state.lock();
        state.loaded = Arc::new(Loaded { settings, file, since: now });
        state.refused = None;
        drop(state);
        if let Some(metrics) = &self.metrics {
            metrics.loaded(hash, now);
        }
        Ok(())
    }

    /// Has all nodes read for new policies, which may name other conditions and labels.
    async fn prepare(&self, old: &Settings, new: &Settings) -> Result<(), Fault> {
        let Some(drains) = self.shared.drains.as_ref().filter(|_| old.policies != new.policies)
        else {
            return Ok(());
        };
        drains.prepare(new.policies.clone().into());
        self.nodes.ask();
        if timeout(LISTED_WITHIN, self.nodes.completed()).await.is_err() {
            drains.prepare(old.policies.clone().into());
            return Err(Fault::Cluster(format!(
                "the nodes could not be listed again within {} s; check the API server",
                LISTED_WITHIN.as_secs()
            )));
        }
        Ok(())
    }

    fn same(&self, file: &ConfigFile, asked: bool) {
        if self.state.lock().refused.take().is_some() {
            info!(file = %file.path.display(), hash = file.hash,
                "the configuration file is the one in force again");
        } else if asked {
            info!(file = %file.path.display(), hash = file.hash,
                "the configuration file has not changed");
        }
        if let Some(metrics) = &self.metrics {
            metrics.read(true);
        }
    }

    /// Whether this content was refused, and is not to be tried again yet.
    fn was_refused(&self, name: &str) -> bool {
        self.state.lock().refused.as_ref().is_some_and(|refused| {
            refused.content == name && refused.again.is_none_or(|again| Instant::now() < again)
        })
    }

    fn refuse(&self, file: &ConfigFile, content: String, fault: Fault, asked: bool) {
        let (cause, again) = match fault {
            Fault::File(cause) => (cause, None),
            Fault::Cluster(cause) => (cause, Some(Instant::now() + TRY_AGAIN)),
        };
        let mut state = self.state.lock();
        let before = state.refused.take();
        let before = before.filter(|it| it.content == content && it.cause == cause);
        let is_known = before.is_some();
        let told = before.is_some_and(|before| before.told);
        state.refused = Some(Refusal { content, cause: cause.clone(), again, told });
        drop(state);
        if let Some(metrics) = &self.metrics {
            metrics.read(false);
        }
        if !is_known || asked {
            error!(file = %file.path.display(), in_force = file.hash, cause,
                "the new configuration is refused; the one before stays in force");
        }
        self.tell(file);
    }

    /// Tells of the refusal by an event, once. A process that does not lead sends none: it tells when it leads.
    fn tell(&self, file: &ConfigFile) {
        let Some(namespace) = self.lease.as_ref().filter(|_| self.gate.left().is_some()) else {
            return;
        };
        let mut state = self.state.lock();
        let Some(refused) = state.refused.as_mut().filter(|refused| !refused.told) else { return };
        refused.told = true;
        let message = format!(
            "{} is refused, and the configuration {} stays in force: {}",
            file.path.display(),
            file.hash,
            refused.cause
        );
        drop(state);
        self.recorder.config_refused(namespace, LEASE, &message);
    }
}
