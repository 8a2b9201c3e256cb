//! Shows the comparison of a dry run what it needs: who is deleted, and what is due by our verdict.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{debug, info, warn};

use super::newest_facts::verdict;
use crate::cluster::{Api, PodFacts, decode_deletion, other_mark_author};
use crate::dry_run::{Deleted, DrainStories, Finding, Report, Shadow, ShadowMetrics};
use crate::evict::Schedule;
use crate::informer::{DeletionListener, Facts};
use crate::model::{Disruption, Kept, Node, Pod, PodClass, PodRef, Verdict};

/// How often open cases are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How often the lease of kube-controller-manager is read.
const LEASE_EVERY: Duration = Duration::from_secs(5);
const LEASE_WITHIN: Duration = Duration::from_secs(4);
/// Where kube-controller-manager elects its leader, by default.
const LEASE: (&str, &str) = ("kube-system", "kube-controller-manager");

/// The comparison of a dry run with who really goes.
pub(crate) struct Shadowing {
    facts: Arc<Facts>,
    schedule: Arc<Schedule>,
    shadow: Mutex<Shadow>,
    metrics: ShadowMetrics,
    stories: Arc<DrainStories>,
    began: Timestamp,
}

impl Shadowing {
    pub(super) fn new(
        facts: Arc<Facts>,
        schedule: Arc<Schedule>,
        stories: Arc<DrainStories>,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let (shadow, metrics) = (Mutex::default(), ShadowMetrics::register(registry)?);
        let began = facts.clock.now();
        Ok(Self { facts, schedule, shadow, metrics, stories, began })
    }

    /// The pod would have been evicted now.
    pub(super) fn would_evict(&self, pod: &PodRef, verdict: &Verdict) {
        let now = self.facts.clock.now();
        let findings = self.shadow.lock().would_evict(pod, verdict, now);
        tell(findings);
    }

    /// Compares for as long as it is polled.
    pub(super) async fn run(self: Arc<Self>, api: Api) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut lease = Lease::default();
        loop {
            looks.tick().await;
            if let Some(restarted) = lease.look(&api).await {
                info!(at = %restarted, "kube-controller-manager has a new leader: it counts anew");
                self.shadow.lock().restarted(restarted);
            }
            let now = self.facts.clock.now();
            let findings = {
                let mut shadow = self.shadow.lock();
                let findings = shadow.tick(now, |pod| self.known(pod), |pod| self.judge(pod));
                self.metrics.update(&shadow);
                findings
            };
            tell(findings);
        }
    }

    /// Ends the comparison.
    pub(crate) fn report(&self) -> Report {
        let now = self.facts.clock.now();
        let mut shadow = self.shadow.lock();
        tell(shadow.end(now, |pod| self.judge(pod)));
        self.metrics.update(&shadow);
        Report::new((self.began, now), &shadow, self.stories.all())
    }

    /// The verdict about a pod by the view; `None` if it is not there.
    fn known(&self, pod: &PodRef) -> Option<Verdict> {
        let facts = self.facts.view.pod(&pod.node, pod.uid)?;
        let node = facts.node.as_deref();
        let armed = self.schedule.armed_verdict(pod);
        Some(verdict(&self.facts, &facts.pod, node, &facts.anchors, armed.as_ref()))
    }

    /// The verdict about a pod as it was, by what is known of its node now.
    fn judge(&self, pod: &Arc<Pod>) -> Verdict {
        let Some((node, anchors)) = self.facts.view.node_alone(&pod.node) else {
            return Verdict::Keep(Kept::NodeGone);
        };
        let node: Option<&Node> = Some(&node);
        let armed = self.schedule.armed_verdict(&pod.reference());
        verdict(&self.facts, pod, node, &anchors, armed.as_ref())
    }

    fn deleted(&self, before: &PodFacts, deleted: Deleted) {
        let verdict = self.judge(&before.pod);
        let now = self.facts.clock.now();
        let findings = self.shadow.lock().deleted(&before.pod, &verdict, deleted, now);
        tell(findings);
    }
}

/// Logs each difference.
fn tell(findings: Vec<Finding>) {
    for finding in findings {
        let Finding { kind, pod, verdict, ostrakon, other, by, reason } = &finding;
        let (ostrakon, other) = (ostrakon.map(|at| at.to_string()), other.map(|at| at.to_string()));
        let (text, cause) = match reason {
            Some(reason) => (reason.text.as_str(), reason.code),
            None => ("", ""),
        };
        let seconds = finding.seconds();
        if kind.differs() {
            warn!(%pod, uid = %pod.uid, node = %pod.node, kind = kind.label(), verdict, ostrakon, other,
                    seconds, by = by.as_deref(), cause, reason = text, "the other manager differs");
        } else {
            debug!(%pod, uid = %pod.uid, node = %pod.node, kind = kind.label(), ostrakon, other,
                    seconds, "compared");
        }
    }
}

impl DeletionListener for Shadowing {
    fn seen(&self, before: Option<&PodFacts>, pod: &Pod, object: &Bytes) {
        let Some(before) = before else { return };
        if before.node.as_ref().is_none_or(|node| node.taints.is_empty())
            && pod.disruption != Disruption::ByTaint
        {
            // Its end is of interest if it was due before.
            if pod.class != PodClass::Terminating {
                return;
            }
        }
        let now = self.facts.clock.now();
        if pod.class == PodClass::Terminating && before.pod.class != PodClass::Terminating {
            let deletion = decode_deletion(object);
            let by = deletion.marked.map(|_| author(object));
            let requested = deletion.requested.unwrap_or(now);
            self.deleted(before, Deleted { requested, marked: deletion.marked, by });
            return;
        }
        if pod.disruption == Disruption::ByTaint && before.pod.disruption != Disruption::ByTaint {
            self.shadow.lock().marked(pod.uid, now);
        }
        if pod.tolerations != before.pod.tolerations {
            self.shadow.lock().edited(pod.uid, now);
        }
    }

    fn gone(&self, before: &PodFacts) {
        if before.pod.class != PodClass::Terminating {
            // It had no grace, or nobody was watching.
            let now = self.facts.clock.now();
            let marked = (before.pod.disruption == Disruption::ByTaint).then_some(now);
            self.deleted(before, Deleted { requested: now, marked, by: None });
        }
        self.shadow.lock().gone(before.pod.uid);
    }
}

fn author(object: &Bytes) -> Arc<str> {
    other_mark_author(object).map_or_else(|| "ostrakon".into(), |author| author.manager.into())
}

/// The lease of kube-controller-manager, as it was read last.
#[derive(Default)]
struct Lease {
    next: Option<Instant>,
    acquired: Option<Timestamp>,
    /// It was reported that it cannot be read.
    is_reported: bool,
}

impl Lease {
    /// When another leader has begun, if one has since this was asked last.
    async fn look(&mut self, api: &Api) -> Option<Timestamp> {
        let now = Instant::now();
        if self.next.is_some_and(|next| now < next) {
            return None;
        }
        self.next = Some(now + LEASE_EVERY);
        let (namespace, name) = LEASE;
        let acquired = match api.lease(namespace, name, LEASE_WITHIN).await {
            Ok(lease) => lease.and_then(|lease| lease.acquired)?,
            Err(error) => {
                if !std::mem::replace(&mut self.is_reported, true) {
                    warn!(%error, "cannot read the lease {namespace}/{name}: a restart of \
                        kube-controller-manager cannot be named as the reason of a difference");
                }
                return None;
            }
        };
        let before = self.acquired.replace(acquired);
        (before.is_some() && before != Some(acquired)).then_some(acquired)
    }
}
