//! The start of a controller against an API server whose answers take a while, in virtual time.

use std::convert::Infallible;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tower::service_fn;

use super::*;
use crate::config::Compat;
use crate::model::build::noon;
use crate::observe::Readiness;
use crate::sim::embedded::{Embedded, Options, Resource};

/// The way to the API server and back.
const ANSWER: Duration = Duration::from_millis(100);
/// What virtual time needs for what takes none.
const LITTLE: Duration = Duration::from_millis(20);

/// A cluster with a pod on a node whose taint it does not tolerate.
struct Bench {
    cluster: Embedded,
    /// Method, path and moment of each request.
    asked: Arc<Mutex<Vec<(String, Duration)>>>,
    start: Instant,
}

impl Bench {
    fn new() -> Self {
        let cluster = Embedded::new(Clock::starting_at(noon()), Options::default());
        let node = json!({
            "metadata": {"name": "n1"},
            "spec": {"taints": [{"key": "a", "effect": "NoExecute"}]},
        });
        let pod = json!({
            "metadata": {"name": "web-0", "namespace": "default"},
            "spec": {"nodeName": "n1"},
            "status": {"phase": "Running"},
        });
        cluster.store().insert(Resource::Nodes, node).unwrap();
        cluster.store().insert(Resource::Pods, pod).unwrap();
        Self { cluster, asked: Arc::default(), start: Instant::now() }
    }

    /// A controller whose questions about rights take this long to be answered, and its readiness.
    async fn prepare(&self, question: Duration) -> (Result<Prepared, StartError>, Readiness) {
        let (inner, asked, start) = (self.cluster.client(), Arc::clone(&self.asked), self.start);
        let service = service_fn(move |request: Request<Body>| {
            let line = format!("{} {}", request.method(), request.uri().path());
            let is_question = line.ends_with("selfsubjectaccessreviews");
            asked.lock().push((line, start.elapsed()));
            let inner = inner.clone();
            async move {
                sleep(if is_question { question } else { ANSWER }).await;
                inner.send(request).await
            }
        });
        let config = Config {
            kubeconfig: None,
            context: None,
            listen: ([127, 0, 0, 1], 0).into(),
            compat: Compat::None,
            election: Some("kube-system".to_owned()),
            instance: "test".to_owned(),
            policies: Vec::new(),
        };
        let surroundings = Surroundings {
            clock: self.cluster.store().clock().clone(),
            wall: Arc::new(noon),
            identity: "test".to_owned(),
            times: Times::default(),
            hands: Hands::Task,
            seed: 1,
            flaw: None,
        };
        let client = Client::new(service, "default");
        let cluster = Cluster { client, server: "server".to_owned() };
        let prepared = Prepared::new(cluster, &config, surroundings, &Registry::new()).await;
        (prepared, Readiness::default())
    }

    /// When the first request was sent whose line contains this.
    fn first(&self, part: &str) -> Option<Duration> {
        self.asked.lock().iter().find(|(line, _)| line.contains(part)).map(|(_, at)| *at)
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

fn gates(readiness: &Readiness) -> (Gate, Gate) {
    (readiness.gate("nodes"), readiness.gate("pods"))
}

#[tokio::test(start_paused = true)]
async fn lists_wait_for_one_answer_only() {
    let bench = Bench::new();
    let (prepared, readiness) = bench.prepare(ANSWER).await;
    let gates = gates(&readiness);
    let begun = tokio::spawn(prepared.unwrap().begin(gates));
    while !readiness.awaited().is_empty() {
        sleep(Duration::from_millis(1)).await;
    }
    assert!(bench.elapsed() <= ANSWER * 2 + LITTLE, "{:?}", bench.elapsed());
    assert_eq!(bench.first("version"), Some(Duration::ZERO));
    let engine = begun.await.unwrap().unwrap();
    sleep(Duration::from_secs(5)).await;
    assert!(bench.first("DELETE").is_some(), "{:?}", bench.asked.lock());
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_before_all_rights_are_known_to_be_there() {
    let bench = Bench::new();
    let question = Duration::from_secs(10);
    let (prepared, readiness) = bench.prepare(question).await;
    let gates = gates(&readiness);
    let begun = tokio::spawn(prepared.unwrap().begin(gates));
    sleep(question * 2).await;
    assert!(readiness.awaited().is_empty(), "the lists are there long since");
    assert!(!begun.is_finished(), "there are more questions than are asked at once");
    let lines: Vec<_> = bench.asked.lock().iter().map(|(line, _)| line.clone()).collect();
    let harmless = |line: &String| line.starts_with("GET") || line.ends_with("accessreviews");
    assert!(lines.iter().all(harmless), "{lines:?}");
    assert_eq!(bench.first("leases"), None);
    let engine = begun.await.unwrap().unwrap();
    sleep(Duration::from_secs(5)).await;
    assert!(bench.first("leases") >= Some(question * 3) && bench.first("DELETE").is_some());
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_start_without_rights_fails_and_goes_on_with_nothing() {
    let bench = Bench::new();
    let (prepared, readiness) = bench.prepare(ANSWER).await;
    let mut prepared = prepared.unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    let lacking = service_fn(move |request: Request<Body>| {
        log.lock().push(request.uri().path().to_owned());
        let answer = json!({"status": {"allowed": false}}).to_string();
        std::future::ready(Ok::<_, Infallible>(Response::new(Body::from(answer.into_bytes()))))
    });
    let metrics = cluster::Metrics::register(&Registry::new()).unwrap();
    prepared.api = Api::new(Client::new(lacking, "default"), metrics);
    let Err(error) = prepared.begin(gates(&readiness)).await else { panic!("it has no rights") };
    assert!(matches!(error, PreflightError::Missing(_)), "{error}");
    let before = asked.lock().len();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(asked.lock().len(), before, "a list is tried again: {:?}", asked.lock());
}
