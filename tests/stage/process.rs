//! A controller as it ships, at work on an embedded cluster in one thread and in virtual time, and the
//! wire between the two, on which a test can listen.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Method, Request, Response};
use hyper::body::Bytes;
use ostrakon::clock::Clock;
use ostrakon::cluster::Cluster;
use ostrakon::config::{Compat, Config};
use ostrakon::controller::{Hands, Prepared, Surroundings};
use ostrakon::drain::Policy;
use ostrakon::leader::Identity;
use ostrakon::observe::Readiness;
use ostrakon::sim::embedded::{Body, Embedded, Onward};
use parking_lot::Mutex;
use prometheus::Registry;
use prometheus::proto::LabelPair;
use tokio::sync::oneshot;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// A running controller. It dies when it is dropped: from then on it writes nothing.
pub(crate) struct Process {
    registry: Registry,
    wire: Arc<Wire>,
    alive: Arc<AtomicBool>,
    _end: oneshot::Sender<()>,
}

/// What result over the wire.
#[derive(Default)]
pub(crate) struct Wire {
    /// Messages of the events that were created.
    events: Mutex<Vec<String>>,
}

impl Process {
    /// One that begins to work now, and for good: there is no election. `clock` is its own.
    pub(crate) fn start(
        cluster: &Embedded,
        clock: Clock,
        compat: Compat,
        policies: &[Policy],
    ) -> Self {
        let registry = Registry::new();
        let (wire, alive) = (Arc::new(Wire::default()), Arc::new(AtomicBool::new(true)));
        let client = cluster.client_through({
            let (wire, alive) = (Arc::clone(&wire), Arc::clone(&alive));
            move |request, onward| {
                let (wire, alive) = (Arc::clone(&wire), Arc::clone(&alive));
                async move { wire.carry(request, onward, &alive).await }
            }
        });
        let config = Config {
            kubeconfig: None,
            context: None,
            api_server_wait: Duration::from_secs(300),
            listen: ([127, 0, 0, 1], 0).into(),
            compat,
            election: None,
            pod_uid: None,
            instance: "test".to_owned(),
            policies: policies.to_vec(),
        };
        let wall = cluster.store().clock().clone();
        let surroundings = Surroundings {
            clock,
            wall: Arc::new(move || wall.now()),
            identity: Identity::named("test"),
            hands: Hands::Inline,
            seed: 1,
        };
        let (end, ended) = oneshot::channel();
        let served = registry.clone();
        tokio::spawn(async move {
            let work = async {
                let cluster = Cluster { client, server: "embedded".to_owned() };
                let prepared = Prepared::new(cluster, &config, surroundings, &served).await;
                let prepared = prepared.expect("the embedded cluster can be worked with");
                let readiness = Readiness::default();
                let gates = (readiness.gate("nodes"), readiness.gate("pods"));
                prepared.begin(gates, &readiness)
            };
            tokio::pin!(ended);
            tokio::select! {
                engine = work => {
                    let _ = ended.await;
                    engine.abort();
                }
                _ = &mut ended => {}
            }
        });
        Self { registry, wire, alive, _end: end }
    }

    /// Messages of the events that it has told so far.
    pub(crate) fn events(&self) -> Vec<String> {
        self.wire.events.lock().clone()
    }

    /// The sum of a metric that it serves, over all its labels that these are among.
    pub(crate) fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let families = self.registry.gather();
        let Some(family) = families.iter().find(|family| family.name() == name) else { return 0.0 };
        let metrics = family.get_metric().iter().filter(|metric| {
            let values: Vec<_> = metric.get_label().iter().map(LabelPair::value).collect();
            labels.iter().all(|label| values.contains(label))
        });
        metrics.map(|it| it.get_counter().get_value() + it.get_gauge().get_value()).sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.alive.store(false, Ordering::Relaxed);
    }
}

impl Wire {
    async fn carry(
        &self,
        request: Request<Bytes>,
        onward: Onward,
        alive: &AtomicBool,
    ) -> Result<Response<Body>, Failed> {
        if !alive.load(Ordering::Relaxed) {
            return Err("the process is dead".into());
        }
        if request.method() == Method::POST && request.uri().path().ends_with("/events") {
            let event: serde_json::Value = serde_json::from_slice(request.body())?;
            self.events.lock().push(event["message"].as_str().unwrap_or_default().to_owned());
        }
        onward.answer(request).await
    }
}
