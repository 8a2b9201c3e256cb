//! Records what happens to pods, with a watch of its own.
//!
//! For each pod, by UID: when its `deletionTimestamp` appeared, when the condition `DisruptionTarget`
//! appeared, and when the pod was gone. Times are those at which this process saw it. Every check also
//! asserts what must not have happened, earlier or to other pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures::TryStreamExt as _;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use ostrakon::clock::system_time;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::cluster::PodRef;

/// How long to wait before the list or the watch is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// When this process learned of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub at: Instant,
    /// The same by the wall clock, to compare with what the API says.
    pub wall: Timestamp,
}

impl Moment {
    pub fn now() -> Self {
        Self { at: Instant::now(), wall: system_time() }
    }
}

/// What is known of a pod.
#[derive(Clone, Debug)]
pub struct Sighting {
    pub pod: PodRef,
    /// Empty while it is not bound.
    pub node: String,
    pub first_seen: Moment,
    /// When `deletionTimestamp` appeared, or the pod vanished without.
    pub deleted: Option<Moment>,
    /// When the object was no longer there.
    pub gone: Option<Moment>,
    /// When `DisruptionTarget` appeared, and as it was last.
    pub disruption: Option<(Moment, PodCondition)>,
}

impl Sighting {
    /// When something first happened to it.
    pub fn touched(&self) -> Option<Moment> {
        let condition = self.disruption.as_ref().map(|(moment, _)| *moment);
        [self.deleted, condition].into_iter().flatten().min_by_key(|moment| moment.at)
    }
}

/// Watches the pods of one namespace.
#[derive(Debug)]
pub struct Witness {
    shared: Arc<Shared>,
    task: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    namespace: String,
    /// By UID.
    sightings: Mutex<BTreeMap<String, Sighting>>,
    changed: watch::Sender<()>,
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Witness {
    /// Begins to watch. What happens from the return on is seen.
    pub async fn start(client: Client, namespace: &str) -> Result<Self> {
        let pods: Api<Pod> = Api::namespaced(client, namespace);
        let shared = Arc::new(Shared {
            namespace: namespace.to_owned(),
            sightings: Mutex::default(),
            changed: watch::Sender::new(()),
        });
        let version = shared.list(&pods).await?;
        let task = tokio::spawn(Arc::clone(&shared).follow(pods, version)).abort_handle();
        Ok(Self { shared, task })
    }

    /// What is known of `pod`, if it was ever seen.
    pub fn sighting(&self, pod: &PodRef) -> Option<Sighting> {
        self.shared.sightings.lock().get(&pod.uid).cloned()
    }

    /// What is known of all pods of the namespace.
    pub fn sightings(&self) -> Vec<Sighting> {
        self.shared.sightings.lock().values().cloned().collect()
    }

    /// Waits until the witness knows of `pod`: a watch is a moment behind.
    pub async fn seen(&self, pod: &PodRef) -> Result<Sighting> {
        self.until(Duration::from_secs(60), || self.sighting(pod))
            .await
            .with_context(|| format!("the witness never saw {pod}"))
    }

    /// Waits until each of `pods` has a `deletionTimestamp` or is gone. In the order given.
    pub async fn deleted_within<'a>(
        &self,
        pods: impl IntoIterator<Item = &'a PodRef>,
        patience: Duration,
    ) -> Result<Vec<Sighting>> {
        self.all_within("deleted", pods, patience, |sighting| sighting.deleted.is_some()).await
    }

    /// Waits until each of `pods` is no longer there. In the order given.
    pub async fn gone_within<'a>(
        &self,
        pods: impl IntoIterator<Item = &'a PodRef>,
        patience: Duration,
    ) -> Result<Vec<Sighting>> {
        self.all_within("gone", pods, patience, |sighting| sighting.gone.is_some()).await
    }

    /// Waits until `end`, and fails as soon as one of `pods` is deleted or marked for it. What is
    /// learned of after the end does not count: this process may have stalled.
    pub async fn never_deleted_until<'a>(
        &self,
        pods: impl IntoIterator<Item = &'a PodRef>,
        end: Timestamp,
    ) -> Result<()> {
        let left = end.duration_since(system_time()).max(SignedDuration::ZERO);
        self.never_deleted_for(pods, left.try_into()?).await
    }

    /// As [`Witness::never_deleted_until`], from now on for `duration`.
    pub async fn never_deleted_for<'a>(
        &self,
        pods: impl IntoIterator<Item = &'a PodRef>,
        duration: Duration,
    ) -> Result<()> {
        let end = Instant::now() + duration;
        let uids: BTreeSet<&str> = pods.into_iter().map(|pod| pod.uid.as_str()).collect();
        let touched = || {
            let sightings = self.shared.sightings.lock();
            let mut wanted = uids.iter().filter_map(|uid| sightings.get(*uid));
            let in_time = |moment: Moment| moment.at <= end;
            wanted.find(|sighting| sighting.touched().is_some_and(in_time)).cloned()
        };
        match self.until(duration, touched).await {
            Some(sighting) => bail!("{} was to be left alone: {sighting:?}", sighting.pod),
            None => Ok(()),
        }
    }

    /// Waits until `pod` is deleted, no sooner than `earliest` and no later than `latest`.
    ///
    /// `earliest` is compared with this machine's wall clock, which is the API server's as well.
    pub async fn deleted_between(
        &self,
        pod: &PodRef,
        earliest: Timestamp,
        latest: Timestamp,
    ) -> Result<Sighting> {
        // Not a wait until `earliest` and then one for the deletion: a timer may fire a moment late,
        // and a deletion in that moment is neither early nor late.
        let left = latest.duration_since(system_time()).max(SignedDuration::ZERO);
        let sightings = self.deleted_within([pod], left.try_into()?).await?;
        let sighting = sightings.into_iter().next().context("one pod, one sighting")?;
        let touched = sighting.touched().context("a deleted pod is a touched one")?;
        ensure!(
            touched.wall >= earliest,
            "{pod} was touched at {}, before {earliest}",
            touched.wall
        );
        Ok(sighting)
    }

    /// Waits until each of `pods` is deleted, and then for `quiet`; fails as soon as any other pod
    /// of the namespace is.
    pub async fn only_these_deleted<'a>(
        &self,
        pods: impl IntoIterator<Item = &'a PodRef>,
        patience: Duration,
        quiet: Duration,
    ) -> Result<Vec<Sighting>> {
        let pods: Vec<&PodRef> = pods.into_iter().collect();
        let named: BTreeSet<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
        let stranger = || {
            let sightings = self.shared.sightings.lock();
            let mut others = sightings.iter().filter(|(uid, _)| !named.contains(uid.as_str()));
            others.find_map(|(_, other)| other.touched().map(|_| other.clone()))
        };
        let whole = async {
            let sightings = self.deleted_within(pods.iter().copied(), patience).await?;
            tokio::time::sleep(quiet).await;
            anyhow::Ok(sightings)
        };
        tokio::select! {
            other = self.until(patience + quiet + AGAIN, stranger) => match other {
                Some(other) => bail!("{} was to be left alone: {other:?}", other.pod),
                None => bail!("it took longer than {patience:?} and {quiet:?} of quiet"),
            },
            outcome = whole => {
                if let Some(other) = stranger() {
                    bail!("{} was to be left alone: {other:?}", other.pod);
                }
                outcome
            }
        }
    }

    async fn all_within<'a>(
        &self,
        state: &str,
        pods: impl IntoIterator<Item = &'a PodRef>,
        patience: Duration,
        reached: impl Fn(&Sighting) -> bool,
    ) -> Result<Vec<Sighting>> {
        let pods: Vec<&PodRef> = pods.into_iter().collect();
        let done = || {
            let sightings = self.shared.sightings.lock();
            let of = |pod: &&PodRef| sightings.get(&pod.uid).filter(|sighting| reached(sighting));
            pods.iter().map(of).map(Option::<&Sighting>::cloned).collect::<Option<Vec<_>>>()
        };
        if let Some(sightings) = self.until(patience, done).await {
            return Ok(sightings);
        }
        let missing: Vec<String> = pods
            .iter()
            .filter(|pod| !self.sighting(pod).is_some_and(|sighting| reached(&sighting)))
            .map(ToString::to_string)
            .collect();
        bail!(
            "{} of {} pods not {state} within {patience:?}: {}",
            missing.len(),
            pods.len(),
            missing.join(", ")
        );
    }

    /// The value of `probe` as soon as it has one; `None` when `patience` is over.
    async fn until<T>(&self, patience: Duration, probe: impl Fn() -> Option<T>) -> Option<T> {
        let mut changed = self.shared.changed.subscribe();
        let search = async {
            loop {
                changed.mark_unchanged();
                if let Some(value) = probe() {
                    return Some(value);
                }
                // The sender lives as long as `self`.
                changed.changed().await.ok()?;
            }
        };
        tokio::time::timeout(patience, search).await.ok().flatten()
    }
}

impl Shared {
    async fn follow(self: Arc<Self>, pods: Api<Pod>, mut version: String) {
        loop {
            // A watch that has only run out goes on where it was, so that no pod is missed that
            // comes and goes meanwhile.
            if self.watch(&pods, &mut version).await.is_ok() {
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            // Whatever went wrong, a new list tells what is true.
            version = loop {
                if let Ok(version) = self.list(&pods).await {
                    break version;
                }
                tokio::time::sleep(AGAIN).await;
            };
        }
    }

    async fn list(&self, pods: &Api<Pod>) -> Result<String> {
        let list = pods
            .list(&ListParams::default())
            .await
            .with_context(|| format!("list the pods of {}", self.namespace))?;
        let here: BTreeSet<String> =
            list.items.iter().filter_map(|pod| pod.metadata.uid.clone()).collect();
        for pod in &list.items {
            self.see(pod);
        }
        let now = Moment::now();
        for (uid, sighting) in self.sightings.lock().iter_mut() {
            if !here.contains(uid) && sighting.gone.is_none() {
                sighting.gone = Some(now);
                sighting.deleted.get_or_insert(now);
            }
        }
        self.changed.send_replace(());
        list.metadata.resource_version.context("a list without resourceVersion")
    }

    async fn watch(&self, pods: &Api<Pod>, version: &mut String) -> Result<()> {
        let stream = pods.watch(&WatchParams::default(), version).await?;
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.try_next().await? {
            match event {
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                    self.see(&pod);
                    *version = pod.metadata.resource_version.unwrap_or_default();
                }
                WatchEvent::Deleted(pod) => {
                    self.see(&pod);
                    self.lose(&pod);
                    *version = pod.metadata.resource_version.unwrap_or_default();
                }
                WatchEvent::Bookmark(bookmark) => *version = bookmark.metadata.resource_version,
                WatchEvent::Error(status) => bail!("the watch failed: {}", status.message),
            }
        }
        Ok(())
    }

    fn see(&self, pod: &Pod) {
        let Ok(identity) = PodRef::of(pod) else {
            return;
        };
        let now = Moment::now();
        let mut sightings = self.sightings.lock();
        let sighting = sightings.entry(identity.uid.clone()).or_insert_with(|| Sighting {
            pod: identity,
            node: String::new(),
            first_seen: now,
            deleted: None,
            gone: None,
            disruption: None,
        });
        if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) {
            sighting.node.clone_from(node);
        }
        if pod.metadata.deletion_timestamp.is_some() {
            sighting.deleted.get_or_insert(now);
        }
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        let condition = conditions
            .into_iter()
            .flatten()
            .find(|condition| condition.type_ == "DisruptionTarget" && condition.status == "True");
        if let Some(condition) = condition {
            let since = sighting.disruption.as_ref().map_or(now, |(since, _)| *since);
            sighting.disruption = Some((since, condition.clone()));
        }
        drop(sightings);
        self.changed.send_replace(());
    }

    fn lose(&self, pod: &Pod) {
        let now = Moment::now();
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if let Some(sighting) = self.sightings.lock().get_mut(uid) {
            sighting.deleted.get_or_insert(now);
            sighting.gone.get_or_insert(now);
        }
        self.changed.send_replace(());
    }
}
