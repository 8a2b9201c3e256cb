//! Watches one resource forever, through broken connections, errors and silent servers.
//!
//! kube's watcher lists and resumes. This module adds what it leaves to its user: pauses after errors, a
//! timeout for lists, and a new list if the server cannot resume.

use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt;
use kube::Api;
use kube::runtime::watcher::{self, Event, watcher};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::BACKOFF;

/// For how long the server keeps one watch open, in seconds. A connection that died unnoticed is
/// found out a few seconds after that.
const WATCH_SECONDS: u32 = 60;

/// A watch that brought nothing for so long is begun afresh: the wait for its response headers
/// has no limit of its own.
const WATCH_PATIENCE: Duration = Duration::from_secs(150);

/// Sends each event of the resource to `events`, until nobody listens any more.
///
/// `list_patience` is how long the answer to one list request may take.
pub(super) async fn follow<K>(
    api: Api<K>,
    selector: Option<&'static str>,
    list_patience: Duration,
    events: mpsc::Sender<Event<K>>,
) where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut config = watcher::Config::default().timeout(WATCH_SECONDS);
    if let Some(selector) = selector {
        config = config.fields(selector);
    }
    let mut failures = 0;
    loop {
        let mut stream = watcher(api.clone(), config.clone()).boxed();
        let mut listing = true;
        loop {
            let patience = if listing { list_patience } else { WATCH_PATIENCE };
            match timeout(patience, stream.next()).await {
                Ok(Some(Ok(event))) => {
                    match &event {
                        Event::Init => listing = true,
                        Event::InitDone => listing = false,
                        Event::InitApply(_) | Event::Apply(_) | Event::Delete(_) => {}
                    }
                    if !matches!(event, Event::Init) {
                        failures = 0;
                    }
                    if events.send(event).await.is_err() {
                        return;
                    }
                }
                Ok(Some(Err(error))) => {
                    debug!(kind = %K::kind(&()), %error, "watch failed");
                    failures += 1;
                    sleep(BACKOFF.pause(failures, 0)).await;
                    if is_expired(&error) {
                        break;
                    }
                }
                Ok(None) | Err(_) => {
                    debug!(kind = %K::kind(&()), listing, "watch went silent");
                    failures += 1;
                    sleep(BACKOFF.pause(failures, 0)).await;
                    break;
                }
            }
        }
    }
}

/// The version from which to resume is too old: the watcher would ask for it again and again.
fn is_expired(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 410)
}
