//! Reports another manager: at once, then each hour while it is at work, and when it is gone.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::{OtherManagers, Proof, Standing};
use crate::leader::LEASE;
use crate::observe::{Readiness, Recorder};

/// While another manager is at work, it is reported again after this time.
const AGAIN: Duration = Duration::from_secs(3600);
/// While another manager is at work, its state is read this often.
const EVERY: Duration = Duration::from_secs(10);
const REMEDY: &str = "run only one: start kube-controller-manager with \
                      --controllers=*,-taint-eviction-controller, or stop ostrakon";

/// Tells people about another manager.
pub(crate) struct Reporter {
    pub others: Arc<OtherManagers>,
    pub readiness: Readiness,
    pub recorder: Recorder,
    /// Namespace of the lease, if there is one.
    pub lease: Option<String>,
}

impl Reporter {
    const NOTE: &str = "other manager";

    /// Reports until it is dropped.
    pub(crate) async fn run(self) {
        let mut last: Option<(Instant, bool)> = None;
        loop {
            let standing = self.others.standing();
            let is_proven = matches!(standing, Standing::Shared(_));
            if standing == Standing::Alone {
                if last.take().is_some() {
                    self.readiness.note(Self::NOTE, None);
                    info!(
                        "no sign of another controller that evicts pods for NoExecute taints any \
                           more"
                    );
                }
                self.others.changed.notified().await;
                continue;
            }
            let message = format!("{standing}; {REMEDY}");
            self.readiness.note(Self::NOTE, Some(message.clone()));
            let is_news = last
                .is_none_or(|(at, was_proven)| at.elapsed() >= AGAIN || is_proven && !was_proven);
            if is_news {
                warn!("{message}");
                if let Standing::Shared(proof) = &standing {
                    self.event(proof, &message);
                }
                last = Some((Instant::now(), is_proven));
            }
            // A suspicion may become proof at any time.
            tokio::select! {
                () = self.others.changed.notified(), if !is_proven => {}
                () = sleep(EVERY) => {}
            }
        }
    }

    fn event(&self, proof: &Proof, message: &str) {
        match &self.lease {
            Some(namespace) => self.recorder.other_manager(namespace, LEASE, message),
            None => self.recorder.other_manager_on(&proof.pod.node, message),
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;
    use crate::clock::Clock;
    use crate::cluster::MarkAuthor;
    use crate::informer::PodListener;
    use crate::model::build::{at, noon, pod};
    use crate::model::{Disruption, Pod};
    use crate::observe::{EventLane, EventMetrics};

    struct Bench {
        others: Arc<OtherManagers>,
        readiness: Readiness,
        lane: EventLane,
    }

    fn start(lease: Option<&str>) -> Bench {
        let clock = Clock::starting_at(noon());
        let metrics = EventMetrics::register(&Registry::new()).unwrap();
        let (recorder, lane) = Recorder::new("test", metrics, clock.clone());
        let others = Arc::new(OtherManagers::new(clock));
        let readiness = Readiness::default();
        let reporter = Reporter {
            others: Arc::clone(&others),
            readiness: readiness.clone(),
            recorder,
            lease: lease.map(str::to_owned),
        };
        tokio::spawn(reporter.run());
        others.lead();
        Bench { others, readiness, lane }
    }

    impl Bench {
        fn mark(&self, name: &str, second: i64) {
            let author = MarkAuthor { manager: "kcm".to_owned(), written: Some(at(second)) };
            self.others.marked(&pod(name).reference(), &author);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn another_manager_is_reported_at_once_then_each_hour_and_noted_until_it_is_gone() {
        let mut bench = start(Some("kube-system"));
        sleep(Duration::from_secs(60)).await;
        assert!(bench.lane.take_messages().is_empty() && bench.readiness.notes().is_empty());
        bench.mark("a", 60);
        sleep(Duration::from_millis(10)).await;
        let messages = bench.lane.take_messages();
        assert_eq!(messages.len(), 1);
        assert!(messages[0].contains("kcm evicts pods for NoExecute taints too: 1 pod since"));
        assert!(messages[0].contains("-taint-eviction-controller"), "{messages:?}");
        for minute in 2..62 {
            bench.mark("b", minute * 60);
            sleep(Duration::from_secs(60)).await;
        }
        assert_eq!(bench.lane.take_messages().len(), 1, "an hour later");
        let [note] = &bench.readiness.notes()[..] else { panic!() };
        assert!(note.starts_with("other manager: kcm") && note.contains("61 pods"), "{note}");
        assert!(bench.readiness.reasons().is_empty(), "it is ready all the same");
        sleep(Duration::from_secs(300)).await;
        assert!(bench.lane.take_messages().is_empty() && bench.readiness.notes().is_empty());
        bench.mark("c", 9_000);
        sleep(Duration::from_millis(10)).await;
        assert_eq!(bench.lane.take_messages().len(), 1, "it is back");
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspicion_is_noted_and_makes_no_event() {
        let mut bench = start(Some("kube-system"));
        sleep(Duration::from_secs(6)).await;
        for number in 0..5 {
            let pod = pod("a").on(&format!("n{number}"));
            let pod = Pod { namespace: format!("ns{number}").into(), ..pod };
            let foreign = Pod { disruption: Disruption::Foreign, ..pod.clone() };
            bench.others.deleted(&foreign, Duration::ZERO);
            bench.others.deleted(&pod, Duration::from_secs(3));
            sleep(Duration::from_millis(10)).await;
            assert!(bench.readiness.notes().is_empty());
            bench.others.deleted(&pod, Duration::ZERO);
        }
        sleep(Duration::from_millis(10)).await;
        let [note] = &bench.readiness.notes()[..] else { panic!() };
        assert!(note.contains("may evict pods for NoExecute taints too"), "{note}");
        assert!(bench.lane.take_messages().is_empty());
        bench.mark("a", 60);
        sleep(Duration::from_millis(10)).await;
        assert_eq!(bench.lane.take_messages().len(), 1, "it has become proof");
        sleep(Duration::from_secs(620)).await;
        assert!(bench.readiness.notes().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_lease_the_event_is_about_the_node_and_a_term_that_ends_takes_it_all_back() {
        let mut bench = start(None);
        bench.mark("a", 60);
        sleep(Duration::from_millis(10)).await;
        assert_eq!(bench.lane.take_messages().len(), 1);
        bench.others.stand_by();
        sleep(Duration::from_secs(11)).await;
        assert!(bench.readiness.notes().is_empty());
        bench.mark("b", 120);
        sleep(Duration::from_secs(11)).await;
        assert!(bench.readiness.notes().is_empty(), "the leader reports it");
    }
}
