//! Tells people when the breaker trips and resets, and stores where it has tripped.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tracing::{info, warn};

use crate::cluster::Api;
use crate::evict::{BreakerHold, BreakerMode, Change, News, Scope, Trip};
use crate::leader::LEASE;
use crate::observe::Recorder;

/// The annotation of the lease.
const ANNOTATION: &str = BreakerHold::ANNOTATION;
/// How often the breaker looks at the nodes that it counts, and how often storing is retried.
const LOOK: Duration = Duration::from_secs(1);
/// How long a response may take.
const WITHIN: Duration = Duration::from_secs(5);

/// Reports the breaker, and keeps it going.
pub(super) struct BreakerReports {
    pub(super) breaker: Arc<BreakerHold>,
    pub(super) recorder: Recorder,
    pub(super) api: Api,
    /// Namespace of the lease.
    pub(super) namespace: String,
    /// Whether the state is stored on the lease. Without an election there may be none.
    pub(super) stores: bool,
}

impl BreakerReports {
    /// Reports until it is dropped.
    pub(super) async fn run(self) {
        let mut annotations = self.breaker.subscribe();
        let mut open = true;
        loop {
            if let Some(news) = self.breaker.look() {
                self.report(&news);
                if self.stores {
                    let known = annotations.borrow_and_update().get(ANNOTATION).cloned();
                    if known != news.record {
                        self.store(news.record.as_deref()).await;
                    }
                }
            }
            tokio::select! {
                () = self.breaker.has_news() => {}
                changed = annotations.changed(), if open => open = changed.is_ok(),
                () = sleep(LOOK), if self.breaker.is_active() => {}
            }
        }
    }

    /// A failure is retried, since the annotation that is read then is not the one that should be stored.
    async fn store(&self, record: Option<&str>) {
        let stored =
            self.api.annotate_lease(&self.namespace, LEASE, ANNOTATION, record, WITHIN).await;
        if let Err(error) = stored {
            warn!(namespace = self.namespace, lease = LEASE, %error,
                "cannot store the state of the breaker, so a restart would forget it; retrying");
            sleep(LOOK).await;
        }
    }

    fn report(&self, news: &News) {
        if let Some(error) = &news.unreadable {
            warn!(
                error,
                annotation = ANNOTATION,
                lease = LEASE,
                "the stored state of the breaker cannot be read; ignoring it"
            );
        }
        for change in &news.changes {
            match change {
                Change::Tripped(scope, trip) => self.tripped(scope, trip),
                Change::Calmed(scope) => {
                    self.reset(scope, "few nodes have had due pods for a while");
                }
                Change::Reset(scope) => {
                    let by = news.reset.as_ref().and_then(|reset| reset.by.as_ref());
                    let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
                    let why = news.reset.as_ref().map_or("", |reset| &reset.reason);
                    self.reset(scope, &format!("reset{by}: {why}"));
                }
            }
        }
    }

    fn tripped(&self, scope: &Scope, Trip { nodes, of, .. }: &Trip) {
        let rules = self.breaker.rules();
        let effect = match rules.mode {
            BreakerMode::Enforce => {
                "Evictions for taints there are held, but for one node after the other. Remove the taints \
                 if they are a mistake; otherwise: ostrakon resume --breaker"
            }
            BreakerMode::Observe | BreakerMode::Off => {
                "They would be held with breaker.mode Enforce; now they go on. To stop them: ostrakon pause"
            }
        };
        let message = format!(
            "{nodes} of {of} nodes of {scope} have come to have due pods for taints, more than {} %. \
             {effect}",
            rules.share
        );
        warn!(%scope, nodes, of, mode = ?rules.mode, "the breaker has tripped: {message}");
        self.recorder.breaker_tripped(&self.namespace, LEASE, &message);
    }

    fn reset(&self, scope: &Scope, how: &str) {
        info!(%scope, how, "the breaker is reset");
        let message = format!("The breaker for {scope} is reset ({how}); what is due goes on");
        self.recorder.breaker_reset(&self.namespace, LEASE, &message);
    }
}
