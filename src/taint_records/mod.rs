//! The record lane: keeps the beginnings of taints on the nodes, so that a restart counts on.
//!
//! It is written by the way: no eviction waits for it, and it is never a reason to fail.

mod undone;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use self::undone::Undone;
use crate::backoff::Backoff;
use crate::cluster::{Api, RequestError};
use crate::drain::brief;
use crate::informer::Facts;
use crate::model::NodeName;
use crate::observe::Recorder;
use crate::pipeline::{Fired, Outcome, Runner, TimedQueue};
use crate::taint::record;

/// Records written at the same time. Few: evictions matter more.
const AT_ONCE: usize = 4;
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(500), most: Duration::from_secs(60) };
/// How long the watch may take to show a record that was written, before it is looked at again. A
/// node's records are at least so far apart too, whatever happens to its taints; what happens
/// meanwhile is lost if the process dies, so it is short.
const UNTIL_SEEN: Duration = Duration::from_secs(1);
/// It is said that a record does not stay after so many writes.
const TOLD_AFTER: u32 = 3;

/// Keeps the records.
#[derive(Clone)]
pub(crate) struct RecordLane {
    pub facts: Arc<Facts>,
    /// Nodes whose record may have to be written.
    pub queue: Arc<TimedQueue<NodeName, ()>>,
    pub recorder: Recorder,
    pub api: Api,
}

impl RecordLane {
    /// Writes and removes records until `stop`.
    ///
    /// Nothing happens before `pods_listed`: a node without pods needs no record, and as long as the
    /// pods are not known, every node looks like that.
    pub(crate) async fn run(
        self,
        pods_listed: CancellationToken,
        stop: CancellationToken,
        runner: Runner,
    ) {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = pods_listed.cancelled() => {}
        }
        let queue = Arc::clone(&self.queue);
        let undone = Arc::new(Mutex::new(Undone::default()));
        let work = move |fired: &Fired<NodeName, ()>| {
            let (name, failures) = (fired.key.clone(), fired.failures);
            let (lane, undone) = (self.clone(), Arc::clone(&undone));
            async move { lane.bring_up_to_date(&undone, &name, failures).await }
        };
        runner.run_due("record", queue, AT_ONCE, stop, work).await;
    }

    /// Writes the record of one node, after so many attempts in a row that failed.
    async fn bring_up_to_date(
        &self,
        undone: &Mutex<Undone>,
        name: &NodeName,
        failures: u32,
    ) -> Outcome<()> {
        let attempts = failures + 1;
        let pause = BACKOFF.pause(attempts, spread_by(name.as_str()));
        match self.write(undone, name).await {
            Ok(Written::Needless) => return Outcome::Done,
            Ok(Written::Now { pause }) => return again(pause.max(UNTIL_SEEN), 0),
            Ok(Written::Outdated) => {
                debug!(node = %name, attempts, ?pause,
                    "the node has changed since; its record waits until the watch shows it");
            }
            Ok(Written::ByWrongClock) if attempts == 1 => {
                warn!(node = %name, "the clock is behind the API server's, so the \
                    node's record of when its taints began is not written; a restart now \
                    would count anew");
            }
            Err(error) if attempts == 1 => {
                warn!(node = %name, %error, ?pause, "cannot store when the node's taints \
                    began; after a restart, deadlines would count from then");
            }
            Ok(Written::ByWrongClock) | Err(_) => {}
        }
        again(pause, attempts)
    }

    /// Brings the node's annotation to what it should be.
    ///
    /// The record is written only on the version of the node by which it was computed. Where the watch is
    /// behind, a taint may have gone and come back, and the record would have the next leader count from
    /// before that: pods would go too early. The same goes for first sights by a clock that is behind.
    async fn write(
        &self,
        undone: &Mutex<Undone>,
        name: &NodeName,
    ) -> Result<Written, RequestError> {
        let Some(facts) = self.facts.view.node(name) else {
            return Ok(Written::Needless);
        };
        let Some(node) = facts.node else {
            return Ok(Written::Needless);
        };
        let (pods, rules) = (facts.pods.iter().map(|pod| &**pod), self.facts.taint_rules());
        let wanted = record::wanted(&facts.anchors, &node, pods, &rules);
        if wanted.as_deref() == node.since_annotation.as_deref() {
            return Ok(Written::Needless);
        }
        if wanted.is_some() && self.facts.clock_is_behind() {
            return Ok(Written::ByWrongClock);
        }
        if let Some(text) = &node.since_annotation
            && let Err(error) = record::parse(text)
        {
            // It quotes what is written there.
            let error = brief(&error.to_string());
            warn!(node = %name, %error, "cannot read the node's record of when its taints began; \
                replacing it");
            self.recorder.record_unreadable(name, node.uid, &error);
        }
        match self
            .api
            .annotate_node(name, node.uid, facts.version.as_ref(), wanted.as_deref())
            .await
        {
            // The node is gone: its watch will say so. If it is another one by now (422), so it will
            // too, but a policy may refuse in the same words.
            Err(RequestError::Status(answer)) if answer.is_not_found() => {
                Ok(Written::Now { pause: UNTIL_SEEN })
            }
            Err(RequestError::Status(answer)) if answer.is_conflict() => Ok(Written::Outdated),
            other => {
                other?;
                debug!(node = %name, record = wanted.as_deref().unwrap_or("none"), "record written");
                let found = node.since_annotation.as_deref();
                let (pause, times) = undone.lock().written(
                    (name, node.uid),
                    found,
                    wanted.as_deref(),
                    Instant::now(),
                );
                if times == TOLD_AFTER {
                    warn!(node = %name, "the node's record of when its taints began is removed or \
                        changed each time; writing it less often, a restart meanwhile would count anew");
                }
                Ok(Written::Now { pause })
            }
        }
    }
}

/// Tells nodes apart, so that those which fail together are not tried again together.
fn spread_by(name: &str) -> u128 {
    name.bytes().fold(0, |sum: u128, byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
}

fn again(pause: Duration, failures: u32) -> Outcome<()> {
    Outcome::Retry { not_before: Instant::now() + pause, value: (), failures }
}

/// What came of a look at a node's record.
enum Written {
    /// It is as it should be.
    Needless,
    /// It was written.
    Now {
        /// Where the record does not last, the next one is not written before.
        pause: Duration,
    },
    /// It was not: the node has changed since what the view knows of it.
    Outdated,
    /// It was not: this process's clock is behind.
    ByWrongClock,
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use http_body_util::BodyExt;
    use kube::Client;
    use kube::client::Body;
    use prometheus::Registry;
    use tower::service_fn;

    use super::*;
    use crate::clock::Clock;
    use crate::cluster::Metrics;
    use crate::cluster::watch::Source;
    use crate::config::Compat;
    use crate::model::build::{exists, node, noon, pod, taint};
    use crate::model::{Node, Version, later};
    use crate::observe::{EventMetrics, Recorder};

    /// The lane with an API server that takes everything, and the bodies that it was sent.
    struct Lane {
        facts: Arc<Facts>,
        queue: Arc<TimedQueue<NodeName, ()>>,
        sent: Arc<Mutex<Vec<String>>>,
        pods_listed: CancellationToken,
        /// So many writes are refused first.
        conflicts: Arc<Mutex<u32>>,
    }

    impl Lane {
        fn start() -> Self {
            let sent = Arc::new(Mutex::new(Vec::new()));
            let behind = Arc::clone(&sent);
            let conflicts = Arc::new(Mutex::new(0));
            let left = Arc::clone(&conflicts);
            let service = service_fn(move |request: Request<Body>| {
                let (sent, left) = (Arc::clone(&behind), Arc::clone(&left));
                async move {
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    sent.lock().push(String::from_utf8_lossy(&body).into_owned());
                    let refused = {
                        let mut left = left.lock();
                        let refused = *left > 0;
                        *left -= u32::from(refused);
                        refused
                    };
                    if refused {
                        let status =
                            br#"{"kind":"Status","code":409,"reason":"Conflict"}"#.to_vec();
                        let answer = Response::builder().status(409).body(Body::from(status));
                        return Ok(answer.unwrap());
                    }
                    let answer = br#"{"kind":"PartialObjectMetadata"}"#.to_vec();
                    Ok::<_, Infallible>(Response::new(Body::from(answer)))
                }
            });
            let registry = Registry::new();
            let clock = Clock::starting_at(noon());
            let events = EventMetrics::register(&registry).unwrap();
            let (recorder, _) = Recorder::new("test", events, clock.clone());
            let facts = Arc::new(Facts::new(clock, Compat::None));
            let queue = Arc::<TimedQueue<NodeName, ()>>::default();
            let metrics = Metrics::register(&registry).unwrap();
            let api = Api::new(Client::new(service, "default"), metrics);
            let pods_listed = CancellationToken::new();
            let lane =
                RecordLane { facts: Arc::clone(&facts), queue: Arc::clone(&queue), recorder, api };
            let stop = CancellationToken::new();
            tokio::spawn(lane.run(pods_listed.clone(), stop, Runner::alone()));
            Self { facts, queue, sent, pods_listed, conflicts }
        }

        /// Takes in a version of the node, as the leader does.
        fn store(&self, node: Node, by: Source) {
            self.facts.store_node(node, by, true);
        }

        fn look(&self) {
            self.queue.arm("n1".into(), Instant::now(), ());
        }

        /// The record that was written last.
        fn stored(&self) -> Option<String> {
            let sent = self.sent.lock();
            let body: serde_json::Value = serde_json::from_str(sent.last()?).unwrap();
            body["metadata"]["annotations"][Node::SINCE_ANNOTATION].as_str().map(str::to_owned)
        }

        async fn sent_after(&self, time: Duration) -> Vec<String> {
            tokio::time::sleep(time).await;
            std::mem::take(&mut *self.sent.lock())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_follows_its_node_within_a_second_and_is_written_no_more_often() {
        let lane = Lane::start();
        lane.pods_listed.cancel();
        lane.facts.store_pod(pod("a").tolerating(exists("").lasting(7200)));
        for key in 0..100 {
            let stored = lane.stored();
            let tainted = node("n1").tainted(taint(&format!("k{key}"), ""));
            lane.store(tainted.annotated(stored.as_deref()), Source::Watch);
            lane.look();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let sent = lane.sent_after(Duration::from_secs(1)).await;
        assert!((10..=12).contains(&sent.len()), "{} in 10 s", sent.len());
        assert!(sent.last().unwrap().contains("k99"), "the newest: {sent:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_is_written_only_on_the_version_of_the_node_that_the_view_knows() {
        let lane = Lane::start();
        lane.pods_listed.cancel();
        lane.facts.store_pod(pod("a").tolerating(exists("").lasting(7200)));
        let tainted = node("n1").tainted(taint("k", ""));
        let version = |number| Some(Version::Number(number));
        lane.store(Node { version: version(7), ..tainted.clone() }, Source::Watch);
        // A heartbeat: nothing new, but for the version.
        lane.store(Node { version: version(8), ..tainted }, Source::Watch);
        *lane.conflicts.lock() = 3;
        lane.look();
        let sent = lane.sent_after(Duration::from_secs(10)).await;
        assert!(sent.len() > 3, "it is tried until the watch has caught up: {sent:?}");
        assert!(sent.iter().all(|sent| sent.contains(r#""resourceVersion":"8""#)), "{sent:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn no_record_is_written_by_a_clock_that_is_behind() {
        let lane = Lane::start();
        lane.pods_listed.cancel();
        lane.facts.store_pod(pod("a").tolerating(exists("").lasting(7200)));
        lane.store(node("n1").tainted(taint("k", "")), Source::Watch);
        lane.facts.heard_time(later(noon(), Duration::from_secs(3600)));
        lane.look();
        assert!(lane.sent_after(Duration::from_secs(60)).await.is_empty());
        lane.facts.heard_time(lane.facts.clock.now());
        assert!(!lane.sent_after(Duration::from_secs(61)).await.is_empty(), "once it agrees");
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_that_is_taken_off_each_time_is_written_less_and_less_often_until_it_stays() {
        let lane = Lane::start();
        lane.pods_listed.cancel();
        lane.facts.store_pod(pod("a").tolerating(exists("").lasting(7200)));
        lane.facts.store_pod(pod("b").on("n2").tolerating(exists("").lasting(7200)));
        let tainted = || node("n1").tainted(taint("k", ""));
        // The watch shows the node without it again, ten times a second.
        let stripped = async |seconds: u32| {
            for _ in 0..seconds * 10 {
                lane.store(tainted(), Source::Watch);
                lane.look();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            std::mem::take(&mut *lane.sent.lock()).len()
        };
        let first = stripped(60).await;
        assert!((5..=12).contains(&first), "{first} in the first minute");
        stripped(600).await;
        let later = stripped(3600).await;
        assert!((6..=24).contains(&later), "{later} in an hour");
        // Another node's follows within a second meanwhile.
        lane.store(node("n2").tainted(taint("k", "")), Source::Watch);
        lane.queue.arm("n2".into(), Instant::now(), ());
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(std::mem::take(&mut *lane.sent.lock()).len(), 1);
        // It stays: after a while the next change waits for nothing.
        stripped(300).await;
        let record = r#"{"taints":[{"key":"k","value":"","since":"2026-01-01T12:00:00Z"}]}"#;
        lane.store(tainted().annotated(Some(record)), Source::Watch);
        lane.look();
        lane.sent_after(Duration::from_secs(1800)).await;
        let mut stored = Some(record.to_owned());
        for key in ["l", "m"] {
            let show = |stored: Option<&str>| {
                let changed = node("n1").tainted(taint(key, "")).annotated(stored);
                lane.store(changed, Source::Watch);
                lane.look();
            };
            show(stored.as_deref());
            tokio::time::sleep(Duration::from_millis(100)).await;
            stored = lane.stored();
            assert!(stored.as_deref().is_some_and(|record| record.contains(key)), "{stored:?}");
            show(stored.as_deref());
            let sent = lane.sent_after(Duration::from_secs(2)).await;
            assert_eq!(sent.len(), 1, "{sent:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_record_is_removed_before_the_pods_are_known() {
        let lane = Lane::start();
        let since = r#"{"taints":[{"key":"k","value":"","since":"2026-01-01T11:00:00Z"}]}"#;
        lane.store(node("n1").tainted(taint("k", "")).annotated(Some(since)), Source::List);
        lane.look();
        assert!(lane.sent_after(Duration::from_secs(60)).await.is_empty());
        lane.facts.store_pod(pod("a").tolerating(exists("k").lasting(7200)));
        lane.pods_listed.cancel();
        assert!(lane.sent_after(Duration::from_secs(60)).await.is_empty(), "it is as it should be");

        let lane = Lane::start();
        lane.store(node("n1").tainted(taint("k", "")).annotated(Some(since)), Source::List);
        lane.look();
        lane.pods_listed.cancel();
        let sent = lane.sent_after(Duration::from_millis(100)).await;
        assert!(sent.len() == 1 && sent[0].contains("null"), "there is no such pod: {sent:?}");
    }
}
