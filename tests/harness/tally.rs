//! The minimum and maximum number of objects in a state over a period, counted with a watch so that no
//! change is missed.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Error, Result, bail, ensure};
use futures::TryStreamExt as _;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::task::AbortHandle;

/// How long to wait before a watch that has ended is taken up again.
const AGAIN: Duration = Duration::from_millis(100);

/// Counts objects that are in a state, from its start on.
pub struct Tally {
    counts: Arc<Mutex<Counts>>,
    task: AbortHandle,
}

#[derive(Debug, Default)]
struct Counts {
    now: BTreeSet<String>,
    least: usize,
    most: usize,
    /// Why it has stopped.
    broken: Option<String>,
}

impl Counts {
    fn set(&mut self, name: String, counts: bool) {
        if counts {
            self.now.insert(name);
        } else {
            self.now.remove(&name);
        }
        self.least = self.least.min(self.now.len());
        self.most = self.most.max(self.now.len());
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Tally {
    /// Counts those objects with these labels of which `counts` is true.
    pub async fn start<K>(api: Api<K>, labels: &str, counts: fn(&K) -> bool) -> Result<Self>
    where
        K: kube::Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let list = api.list(&ListParams::default().labels(labels)).await?;
        let now: BTreeSet<_> =
            list.items.iter().filter(|one| counts(one)).map(ResourceExt::name_any).collect();
        let shared = Counts { least: now.len(), most: now.len(), now, broken: None };
        let shared = Arc::new(Mutex::new(shared));
        let version = list.metadata.resource_version.context("a list without resourceVersion")?;
        let params = WatchParams::default().labels(labels);
        let (counted, log) = (counts, Arc::clone(&shared));
        let following = async move {
            if let Err(error) = follow(&api, &params, version, counted, &log).await {
                log.lock().broken = Some(format!("{error:#}"));
            }
        };
        Ok(Self { counts: shared, task: tokio::spawn(following).abort_handle() })
    }

    /// The least and the most so far. Fails if the watch has broken.
    pub fn range(&self) -> Result<(usize, usize)> {
        let counts = self.counts.lock();
        ensure!(counts.broken.is_none(), "the watch broke: {:?}", counts.broken);
        Ok((counts.least, counts.most))
    }
}

/// Follows the objects until the API server says that it cannot tell of all of them.
async fn follow<K>(
    api: &Api<K>,
    params: &WatchParams,
    mut version: String,
    counts: fn(&K) -> bool,
    log: &Mutex<Counts>,
) -> Result<()>
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + 'static,
{
    loop {
        match watch(api, params, &mut version, counts, log).await {
            // From where it was, so no moment is missed.
            Err(error) if !is_broken(&error) => {}
            outcome => outcome?,
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Whether nothing but a new list would help.
fn is_broken(error: &Error) -> bool {
    matches!(error.downcast_ref(), None | Some(kube::Error::Api(_)))
}

async fn watch<K>(
    api: &Api<K>,
    params: &WatchParams,
    version: &mut String,
    counts: fn(&K) -> bool,
    log: &Mutex<Counts>,
) -> Result<()>
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + 'static,
{
    let mut stream = std::pin::pin!(api.watch(params, version).await?);
    while let Some(event) = stream.try_next().await? {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                *version = object.resource_version().unwrap_or_default();
                log.lock().set(object.name_any(), counts(&object));
            }
            WatchEvent::Deleted(object) => {
                *version = object.resource_version().unwrap_or_default();
                log.lock().set(object.name_any(), false);
            }
            WatchEvent::Bookmark(bookmark) => *version = bookmark.metadata.resource_version,
            WatchEvent::Error(status) => bail!("{}", status.message),
        }
    }
    Ok(())
}
