use std::collections::VecDeque;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::{Registry, TextEncoder};

use super::super::*;
use crate::evict::DrainEviction;
use crate::model::build::{at, node, noon, pod};

/// The state of the view and the API server, the requests, and the notices.
struct World {
    /// The view's pod.
    known: Option<Pod>,
    /// The pod stored by the API server.
    stored: Option<Pod>,
    wanted: bool,
    /// Failures of the next evictions, before they succeed.
    refusals: VecDeque<Failure>,
    /// Reads of the node fail.
    node_fails: bool,
    budgets: Result<Vec<Arc<str>>, Failure>,
    requests: Vec<String>,
    told: Vec<String>,
}

#[derive(Clone)]
struct Fake(Arc<Mutex<World>>);

impl Fake {
    fn request(&self, name: impl Into<String>) {
        self.0.lock().requests.push(name.into());
    }

    fn tell(&self, text: impl Into<String>) {
        self.0.lock().told.push(text.into());
    }

    fn answer(&self) -> Result<(), Failure> {
        self.0.lock().refusals.pop_front().map_or(Ok(()), Err)
    }
}

impl Recheck for Fake {
    fn by_view(&self, eviction: &Eviction) -> Result<(Arc<Pod>, Cause), Spared> {
        match self.0.lock().known.clone() {
            None => Err(Spared::Unwanted(None)),
            Some(pod) if pod.class == PodClass::Terminating => Err(Spared::Going),
            Some(pod) => Ok((Arc::new(pod), eviction.cause.clone())),
        }
    }

    fn by_server(
        &self,
        eviction: &Eviction,
        _: Method,
        _: &Pod,
        node: Option<&Node>,
    ) -> Result<(), Spared> {
        let name = node.map(|node| &node.name);
        assert_eq!(name, Some(&eviction.pod.node), "decided by the node as read");
        if self.0.lock().wanted { Ok(()) } else { Err(Spared::Unwanted(None)) }
    }
}

impl Requests for Fake {
    async fn mark(&self, _: &Pod, _: Timestamp) -> Result<Pod, Failure> {
        panic!("the Eviction API marks the pod itself")
    }

    async fn delete(&self, _: &PodRef) -> Result<(), Failure> {
        panic!("a deletion of a drain says with which grace")
    }

    async fn pod(&self, _: &PodRef) -> Result<Option<Pod>, Failure> {
        self.request("pod");
        Ok(self.0.lock().stored.clone())
    }

    async fn node(&self, name: &NodeName) -> Result<Option<Node>, Failure> {
        self.request("node");
        if self.0.lock().node_fails {
            return Err(retry(FailureKind::Connection, None));
        }
        Ok(Some(node(name.as_str())))
    }

    async fn evict(&self, _: &PodRef, grace: Option<i64>) -> Result<(), Failure> {
        self.request(grace.map_or("evict".to_owned(), |grace| format!("evict within {grace}")));
        self.answer()
    }

    async fn delete_within(&self, _: &PodRef, grace: Option<i64>) -> Result<(), Failure> {
        self.request(grace.map_or("delete".to_owned(), |grace| format!("delete within {grace}")));
        self.answer()
    }

    async fn budgets_over(&self, _: &PodRef) -> Result<Vec<Arc<str>>, Failure> {
        self.request("budgets");
        self.0.lock().budgets.clone()
    }

    async fn hopeless_budget(&self, _: &PodRef) -> Result<Option<String>, Failure> {
        panic!("a drain says itself what its budgets forbid")
    }
}

impl Notices for Fake {
    fn evicting(&self, pod: &PodRef, _: &Cause) {
        self.tell(format!("evicting {pod}"));
    }

    fn unmarked(&self, _: &PodRef, _: &Cause, _: FailureKind, _: &str) {
        panic!("the Eviction API marks the pod itself")
    }

    fn failing(&self, _: &PodRef, _: &Cause, kind: FailureKind, _: &str) {
        self.tell(format!("failing: {}", kind.label()));
    }

    fn blocked(&self, _: &PodRef, _: &Cause, message: &str) {
        self.tell(format!("blocked: {message}"));
    }

    fn several_budgets(&self, _: &PodRef, _: &Cause, budgets: &[Arc<str>]) {
        self.tell(format!("several: {}", budgets.join(" ")));
    }
}

struct Bench {
    world: Arc<Mutex<World>>,
    evictor: Evictor<Fake, Fake, Fake>,
    backlog: Arc<Backlog>,
    window: Arc<Window>,
    registry: Registry,
}

fn drain() -> DrainEviction {
    DrainEviction {
        policy: "p".into(),
        session: "s".into(),
        grace: None,
        deadline: at(600),
        delete: false,
    }
}

fn bench() -> Bench {
    let world = Arc::new(Mutex::new(World {
        known: Some(pod("a")),
        stored: Some(pod("a")),
        wanted: true,
        refusals: VecDeque::new(),
        node_fails: false,
        budgets: Ok(vec!["x".into(), "y".into()]),
        requests: Vec::new(),
        told: Vec::new(),
    }));
    let (backlog, window) = (Arc::<Backlog>::default(), Arc::<Window>::default());
    let registry = Registry::new();
    let metrics = Metrics::register(&registry, &backlog).unwrap();
    let fake = || Fake(Arc::clone(&world));
    let clock = Clock::starting_at(noon());
    let (b, w) = (Arc::clone(&backlog), Arc::clone(&window));
    let evictor = Evictor::new(fake(), fake(), fake(), b, metrics, clock, w);
    Bench { world, evictor, backlog, window, registry }
}

fn eviction(pod: &str, drain: DrainEviction) -> Eviction {
    let cause = Cause::Drain(Arc::new(drain));
    Eviction { pod: crate::model::build::pod(pod).reference(), cause, due: Instant::now() }
}

impl Bench {
    /// Carries out an eviction that the drain asks for, at once.
    async fn run(&self, drain: DrainEviction) -> Outcome {
        let eviction = eviction("a", drain);
        self.backlog.enter(&eviction.pod, &eviction.cause, eviction.due);
        self.evictor.carry_out(&eviction).await
    }

    fn entry(&self) -> BacklogEntry {
        self.backlog.get(&pod("a").reference(), CauseKind::Drain).unwrap()
    }

    async fn refused(&self, refusal: Failure) -> Duration {
        self.world.lock().refusals.push_back(refusal);
        match self.run(drain()).await {
            Outcome::Again(pause) => pause,
            Outcome::Reconsider => panic!("it was given up"),
        }
    }

    fn state(&self) -> State {
        self.entry().state
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.world.lock().requests)
    }

    fn told(&self) -> Vec<String> {
        std::mem::take(&mut self.world.lock().told)
    }

    fn counted(&self, result: &str) -> u64 {
        self.scraped(&format!("ostrakon_drain_evictions_total{{result=\"{result}\"}}"))
    }

    fn scraped(&self, series: &str) -> u64 {
        let text = TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(series)).expect(series);
        line.trim().parse().unwrap()
    }
}

fn going() -> Pod {
    pod("a").that_is(PodClass::Terminating)
}

fn retry(kind: FailureKind, after: Option<Duration>) -> Failure {
    Failure::Retry { kind, message: "no".to_owned(), after }
}

fn blocked_by(budget: &str, after: Option<u64>) -> Failure {
    Failure::Blocked {
        budget: Some(budget.to_owned()),
        message: format!("{budget} has nothing left"),
        after: after.map(Duration::from_secs),
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_evicted_once_its_node_was_read_and_then_awaited() {
    let bench = bench();
    assert_eq!(bench.run(drain()).await, Outcome::Again(UNTIL_SEEN));
    assert_eq!(bench.requests(), ["node", "evict"]);
    assert_eq!(bench.told(), ["evicting default/a"]);
    assert_eq!(bench.state(), State::Sent);
    assert_eq!(bench.counted("evicted"), 1);

    bench.world.lock().known = Some(going());
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert_eq!(bench.run(drain()).await, Outcome::Again(UNTIL_SEEN));
    assert!(bench.requests().is_empty(), "no requests during a long grace period");
    assert!(bench.told().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_grace_of_the_drain_is_sent_and_the_last_resort_deletes() {
    let bench = bench();
    bench.run(DrainEviction { grace: Some(7), ..drain() }).await;
    assert_eq!(bench.requests(), ["node", "evict within 7"]);

    let bench = self::bench();
    bench.run(DrainEviction { delete: true, grace: Some(7), ..drain() }).await;
    assert_eq!(bench.requests(), ["node", "delete within 7"]);
    assert_eq!((bench.counted("deleted"), bench.counted("evicted")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_the_drain_no_longer_wants_to_evict_is_left_alone() {
    let bench = bench();
    bench.world.lock().wanted = false;
    assert_eq!(bench.run(drain()).await, Outcome::Reconsider);
    assert_eq!(bench.requests(), ["node"]);
    assert!(bench.told().is_empty());
    assert_eq!(bench.counted("withdrawn"), 1);

    let bench = self::bench();
    bench.world.lock().known = None;
    assert_eq!(bench.run(drain()).await, Outcome::Reconsider, "it is gone");
    assert!(bench.requests().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_be_read_postpones_the_eviction() {
    let bench = bench();
    bench.world.lock().node_fails = true;
    let outcome = bench.run(drain()).await;
    assert!(matches!(outcome, Outcome::Again(_)));
    assert_eq!(bench.state(), State::Failing(FailureKind::Connection));
    assert_eq!(bench.requests(), ["node"]);
}

#[tokio::test(start_paused = true)]
async fn a_terminating_pod_is_never_evicted() {
    let bench = bench();
    bench.world.lock().known = Some(going());
    assert_eq!(bench.run(drain()).await, Outcome::Again(UNTIL_SEEN));
    assert!(bench.requests().is_empty() && bench.told().is_empty());
    assert_eq!(bench.state(), State::Sent);
}

#[tokio::test(start_paused = true)]
async fn after_an_eviction_that_the_watch_does_not_show_the_pod_is_read_before_it_is_evicted_again()
{
    let bench = bench();
    bench.run(drain()).await;
    bench.requests();
    bench.world.lock().stored = Some(going());
    bench.run(drain()).await;
    assert_eq!(bench.requests(), ["pod"], "it is terminating, and the watch lags");
    bench.world.lock().stored = None;
    bench.run(drain()).await;
    assert_eq!(bench.requests(), ["pod"], "it is gone, and the watch lags");
    bench.world.lock().stored = Some(pod("a"));
    tokio::time::advance(Duration::from_secs(2)).await;
    bench.run(drain()).await;
    assert_eq!(bench.requests(), ["pod", "node", "evict"], "it is still there");
    assert_eq!(bench.told(), ["evicting default/a"], "announced once");
}

#[tokio::test(start_paused = true)]
async fn gone_or_another_pod_is_no_failure() {
    let bench = bench();
    assert_eq!(bench.refused(Failure::Gone).await, UNTIL_SEEN);
    assert_eq!((bench.state(), bench.counted("already_gone")), (State::Sent, 1));

    let doubtful = || {
        let message = "UID".to_owned();
        Failure::Doubtful { kind: FailureKind::Conflict, message }
    };
    let bench = self::bench();
    bench.world.lock().stored = None;
    bench.refused(doubtful()).await;
    assert_eq!(bench.requests(), ["node", "evict", "pod"]);
    assert_eq!(bench.state(), State::Sent);

    let bench = self::bench();
    bench.refused(doubtful()).await;
    assert_eq!(bench.state(), State::Failing(FailureKind::Conflict), "it is the same pod");
}

#[tokio::test(start_paused = true)]
async fn a_budget_is_reported_once_and_retried_with_growing_pauses() {
    let bench = bench();
    let window = bench.window.window();
    let mut pauses = Vec::new();
    for _ in 0..5 {
        pauses.push(bench.refused(blocked_by("x", None)).await);
    }
    assert_eq!(bench.state(), State::Blocked);
    assert_eq!(bench.told(), ["evicting default/a", "blocked: x has nothing left"]);
    assert_eq!(bench.counted("blocked"), 5);
    assert!(pauses[0] >= Duration::from_secs(5) && pauses[0] <= Duration::from_secs(10));
    assert!(pauses[4] >= Duration::from_secs(30) && pauses[4] <= Duration::from_secs(60));
    assert_eq!(bench.window.window(), window, "a budget is no overload");
    let retry = bench.entry().retry;
    assert_eq!((retry.refusals, retry.failures), (5, 0));
    assert_eq!(retry.last_error.as_deref(), Some("x has nothing left"));
    assert!(retry.next.is_some());

    bench.refused(blocked_by("y", None)).await;
    assert_eq!(bench.told(), ["blocked: y has nothing left"], "another budget is reported again");
}

#[tokio::test(start_paused = true)]
async fn the_pause_that_the_server_requests_is_honoured_within_bounds() {
    let bench = bench();
    let pause = bench.refused(blocked_by("x", Some(45))).await;
    assert!(pause >= Duration::from_secs(45), "{pause:?}");
    let pause = bench.refused(blocked_by("x", Some(86_400))).await;
    assert_eq!(pause, Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn two_budgets_are_named_once_and_retried_rarely() {
    let bench = bench();
    assert_eq!(bench.refused(Failure::SeveralBudgets).await, UNTIL_ONE_BUDGET);
    assert_eq!(bench.told(), ["evicting default/a", "several: x y"]);
    assert_eq!(bench.state(), State::SeveralBudgets);
    bench.requests();
    assert_eq!(bench.refused(Failure::SeveralBudgets).await, UNTIL_ONE_BUDGET);
    assert!(!bench.requests().contains(&"budgets".to_owned()), "their names are known");
    assert!(bench.told().is_empty());

    let bench = self::bench();
    bench.world.lock().budgets = Err(retry(FailureKind::Forbidden, None));
    bench.refused(Failure::SeveralBudgets).await;
    assert_eq!(bench.told(), ["evicting default/a", "several: "], "reported without names");
}

#[tokio::test(start_paused = true)]
async fn overload_shrinks_the_window_and_every_failure_is_retried() {
    let bench = bench();
    let window = bench.window.window();
    let after = Some(Duration::from_secs(3));
    let pause = bench.refused(retry(FailureKind::Throttled, after)).await;
    assert!(pause >= Duration::from_secs(3));
    assert!(bench.window.window() < window);
    assert_eq!(bench.state(), State::Failing(FailureKind::Throttled));
    for kind in FailureKind::ALL {
        bench.refused(retry(kind, None)).await;
        assert_eq!(bench.state(), State::Failing(kind));
    }
    let told = bench.told();
    assert_eq!(told.len(), 1 + FailureKind::ALL.len(), "each kind once: {told:?}");
    let pause = bench.refused(retry(FailureKind::Server, None)).await;
    assert!(pause <= BACKOFF.most);
    bench.run(drain()).await;
    assert_eq!(bench.state(), State::Sent);
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_refuses_is_retried_with_growing_pauses_and_is_no_overload() {
    let bench = bench();
    let window = bench.window.window();
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let refusal = retry(FailureKind::Webhook, None);
        pauses.push(bench.refused(refusal).await);
    }
    assert!(pauses[0] >= Duration::from_secs(2) && pauses[0] <= Duration::from_secs(4));
    assert!(pauses[2] > pauses[0] && pauses[7] >= Duration::from_secs(30), "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= WEBHOOK.most), "{pauses:?}");
    let after = Some(Duration::from_secs(59));
    let pause = bench.refused(retry(FailureKind::Webhook, after)).await;
    assert!(pause >= Duration::from_secs(59), "{pause:?}");
    assert_eq!(bench.window.window(), window, "the server works");
    assert_eq!(bench.told(), ["evicting default/a", "failing: webhook"]);
    let failed = |cause: &str| {
        bench.scraped(&format!("ostrakon_drain_eviction_failures_total{{cause=\"{cause}\"}}"))
    };
    assert_eq!((failed("webhook"), failed("throttled")), (9, 0));
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_node_share_one_read_of_it() {
    let bench = bench();
    bench.run(drain()).await;
    bench.evictor.carry_out(&eviction("b", drain())).await;
    assert_eq!(bench.requests(), ["node", "evict", "evict"]);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_eviction_does_not_return_to_the_backlog() {
    let bench = bench();
    bench.evictor.carry_out(&eviction("a", drain())).await;
    assert!(bench.backlog.is_empty());
}

#[tokio::test]
async fn the_backlog_of_drains_is_counted_at_each_scrape() {
    let bench = bench();
    let Eviction { pod, cause, due } = eviction("a", drain());
    bench.backlog.enter(&pod, &cause, due);
    assert_eq!(bench.scraped("ostrakon_drain_backlog_pods{state=\"due\"}"), 1);
    assert_eq!(bench.scraped("ostrakon_drain_backlog_pods{state=\"blocked\"}"), 0);
    assert_eq!(
        bench.scraped("ostrakon_backlog_pods{state=\"due\"}"),
        0,
        "it is not due for a taint"
    );
}
