use std::collections::VecDeque;

use parking_lot::Mutex;
use prometheus::Registry;

use super::super::*;
use crate::model::{
    self, ConditionStatus, Deadline, Effect, Kept, PodClass, Ready, Stamp, Taint, Uid, Verdict,
};

/// Generation of a pod that tolerates the taint as it is stored.
const STORED: i64 = 2;

pub(super) fn noon() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

pub(super) fn pod() -> Pod {
    Pod {
        uid: Uid(7),
        namespace: Arc::from("shop"),
        name: Arc::from("web-0"),
        node: "n1".into(),
        tolerations: Arc::from([]),
        bound: Stamp::exact("2026-01-01T11:00:00Z".parse().unwrap()),
        class: PodClass::Ordinary,
        disruption: Disruption::None,
        generation: 1,
    }
}

pub(super) fn cause() -> model::Cause {
    let taint = Taint {
        key: Arc::from("k"),
        value: Arc::from(""),
        effect: Effect::NoExecute,
        time_added: None,
    };
    model::Cause::new(taint, None)
}

fn now() -> Verdict {
    Verdict::EvictNow(cause())
}

fn keep() -> Verdict {
    Verdict::Keep(Kept::NoTaints)
}

/// The state of the view and the API server, and the requests to the latter.
pub(super) struct World {
    pod: Option<Pod>,
    pub(super) view: Verdict,
    pub(super) live: Verdict,
    /// The pod stored by the API server.
    pub(super) stored: Option<Pod>,
    refusals: VecDeque<(&'static str, Failure)>,
    /// Verdict by the view once the condition is written.
    pub(super) after_mark: Option<Verdict>,
    /// Verdict by the stored node once the condition is written.
    live_after_mark: Option<Verdict>,
    mark_takes: Duration,
    /// How long the response with the node takes.
    node_takes: Duration,
    /// The stored pod tolerates the taint; the view's does not.
    pub(super) spared_when_stored: bool,
    /// The time by which is decided.
    pub(super) now: Timestamp,
    /// Why the pod's budget can never be met.
    pub(super) hopeless: Option<String>,
    requests: Vec<&'static str>,
    told: Vec<String>,
}

pub(super) type Shared = Arc<Mutex<World>>;

#[derive(Clone)]
struct Fake(Shared);

impl Fake {
    fn request(&self, name: &'static str) -> Result<(), Failure> {
        let mut world = self.0.lock();
        world.requests.push(name);
        match world.refusals.front() {
            Some((at, _)) if *at == name => Err(world.refusals.pop_front().unwrap().1),
            _ => Ok(()),
        }
    }
}

impl Recheck for Fake {
    fn by_view(&self, _: &Eviction) -> Result<(Arc<Pod>, Cause), Spared> {
        let world = self.0.lock();
        match (&world.pod, &world.view) {
            (Some(pod), verdict) if verdict.is_due(world.now) => {
                Ok((Arc::new(pod.clone()), Cause::Taint(verdict.at(world.now).clone())))
            }
            (_, verdict) => Err(Spared::Unwanted(Some(verdict.clone()))),
        }
    }

    fn by_server(
        &self,
        _: &Eviction,
        method: Method,
        pod: &Pod,
        _: Option<&Node>,
    ) -> Result<(), Spared> {
        let verdict = match pod.class {
            PodClass::Terminating => return Err(Spared::Going),
            // Distinguishes the stored pod from the view's.
            _ if pod.generation == STORED => Verdict::Keep(Kept::Tolerated),
            _ => self.0.lock().live.clone(),
        };
        let now = self.0.lock().now;
        let is_milder = verdict.at(now).respects_budgets() && !method.asks_budgets();
        if verdict.is_due(now) && !is_milder { Ok(()) } else { Err(Spared::Unconfirmed(verdict)) }
    }
}

impl Requests for Fake {
    async fn mark(&self, pod: &Pod, _: Timestamp) -> Result<Pod, Failure> {
        self.request("mark")?;
        let takes = self.0.lock().mark_takes;
        tokio::time::sleep(takes).await;
        let mut world = self.0.lock();
        if let Some(verdict) = world.after_mark.take() {
            world.view = verdict;
        }
        if let Some(verdict) = world.live_after_mark.take() {
            world.live = verdict;
        }
        let generation = if world.spared_when_stored { STORED } else { pod.generation };
        Ok(Pod { generation, ..pod.clone() })
    }

    async fn delete(&self, _: &PodRef) -> Result<(), Failure> {
        self.request("delete")
    }

    async fn pod(&self, _: &PodRef) -> Result<Option<Pod>, Failure> {
        self.request("pod")?;
        let world = self.0.lock();
        let generation = if world.spared_when_stored { STORED } else { 1 };
        Ok(world.stored.clone().map(|pod| Pod { generation, ..pod }))
    }

    async fn node(&self, name: &NodeName) -> Result<Option<Node>, Failure> {
        self.request("node")?;
        let takes = self.0.lock().node_takes;
        tokio::time::sleep(takes).await;
        Ok(Some(Node {
            name: name.clone(),
            uid: Uid(1),
            version: None,
            created: None,
            taints: Arc::from([]),
            ready: Ready { status: ConditionStatus::True, since: None },
            since_annotation: None,
            zone: None,
            drain_facts: None,
        }))
    }

    async fn evict(&self, _: &PodRef, grace: Option<i64>) -> Result<(), Failure> {
        assert_eq!(grace, None, "taints cut no grace");
        self.request("evict")
    }

    async fn delete_within(&self, _: &PodRef, _: Option<i64>) -> Result<(), Failure> {
        panic!("taints cut no grace")
    }

    async fn budgets_over(&self, _: &PodRef) -> Result<Vec<Arc<str>>, Failure> {
        self.request("budgets")?;
        Ok(vec!["x".into(), "y".into()])
    }

    async fn hopeless_budget(&self, _: &PodRef) -> Result<Option<String>, Failure> {
        self.request("hopeless")?;
        Ok(self.0.lock().hopeless.clone())
    }
}

impl Notices for Fake {
    fn evicting(&self, pod: &PodRef, cause: &Cause) {
        let asks = if cause.method().asks_budgets() { " if budgets allow it" } else { "" };
        self.0.lock().told.push(format!("evicting {pod}{asks}"));
    }

    fn unmarked(&self, pod: &PodRef, _: &Cause, kind: FailureKind, _: &str) {
        self.0.lock().told.push(format!("unmarked {pod} {}", kind.label()));
    }

    fn failing(&self, pod: &PodRef, _: &Cause, kind: FailureKind, _: &str) {
        self.0.lock().told.push(format!("failing {pod} {}", kind.label()));
    }

    fn blocked(&self, pod: &PodRef, _: &Cause, message: &str) {
        self.0.lock().told.push(format!("blocked {pod}: {message}"));
    }

    fn several_budgets(&self, pod: &PodRef, _: &Cause, budgets: &[Arc<str>]) {
        self.0.lock().told.push(format!("several {pod}: {}", budgets.join(" ")));
    }
}

pub(super) struct Bench {
    pub(super) world: Shared,
    pub(super) backlog: Arc<Backlog>,
    registry: Registry,
    evictor: Evictor<Fake, Fake, Fake>,
}

impl Bench {
    pub(super) fn new() -> Self {
        let world = Arc::new(Mutex::new(World {
            pod: Some(pod()),
            view: now(),
            live: now(),
            stored: Some(pod()),
            refusals: VecDeque::new(),
            after_mark: None,
            live_after_mark: None,
            mark_takes: Duration::ZERO,
            node_takes: Duration::from_millis(5),
            spared_when_stored: false,
            now: noon(),
            hopeless: None,
            requests: vec![],
            told: vec![],
        }));
        let backlog = Arc::new(Backlog::default());
        let registry = Registry::new();
        let metrics = Metrics::register(&registry, &backlog).unwrap();
        let fake = Fake(Arc::clone(&world));
        let evictor = Evictor::new(
            fake.clone(),
            fake.clone(),
            fake,
            Arc::clone(&backlog),
            metrics,
            Clock::starting_at(noon()),
            Arc::default(),
        );
        Self { world, backlog, registry, evictor }
    }

    pub(super) fn eviction(&self) -> Eviction {
        let cause = Cause::Taint(self.world.lock().view.clone());
        Eviction { pod: pod().reference(), cause, due: Instant::now() }
    }

    pub(super) async fn run(&self) -> Outcome {
        self.carry_out(&self.eviction()).await
    }

    /// Carries out an eviction that is in the backlog.
    pub(super) async fn carry_out(&self, eviction: &Eviction) -> Outcome {
        self.backlog.enter(&eviction.pod, &eviction.cause, eviction.due);
        self.evictor.carry_out(eviction).await
    }

    pub(super) fn refuse(&self, at: &'static str, failure: Failure) {
        self.world.lock().refusals.push_back((at, failure));
    }

    pub(super) fn requests(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.world.lock().requests)
    }

    pub(super) fn told(&self) -> Vec<String> {
        std::mem::take(&mut self.world.lock().told)
    }

    pub(super) fn state(&self) -> Option<State> {
        self.backlog.get(&pod().reference(), CauseKind::Taint).map(|entry| entry.state)
    }

    pub(super) fn deletions(&self) -> f64 {
        let families = self.registry.gather();
        let family = families
            .iter()
            .find(|f| f.name() == "taint_eviction_controller_pod_deletions_total")
            .unwrap();
        family.get_metric()[0].get_counter().get_value()
    }
}

fn server_error() -> Failure {
    Failure::Retry { kind: FailureKind::Server, message: "500".into(), after: None }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_due_is_marked_and_deleted_once_its_node_was_read() {
    let bench = Bench::new();
    assert!(matches!(bench.run().await, Outcome::Again(_)));
    assert_eq!(bench.requests(), ["node", "mark", "delete"]);
    assert_eq!(bench.told(), ["evicting shop/web-0"]);
    assert_eq!(bench.state(), Some(State::Sent), "it stays in the backlog until it is seen to go");
    assert!((bench.deletions() - 1.0).abs() < f64::EPSILON);
}

#[tokio::test(start_paused = true)]
async fn the_latency_is_counted_in_seconds_from_the_first_due_time() {
    let bench = Bench::new();
    let eviction = bench.eviction();
    tokio::time::advance(Duration::from_secs(2)).await;
    bench.refuse("delete", server_error());
    bench.carry_out(&eviction).await;
    tokio::time::advance(Duration::from_secs(1)).await;
    bench.carry_out(&Eviction { due: Instant::now(), ..eviction }).await;
    let families = bench.registry.gather();
    let family = families.iter().find(|f| f.name().ends_with("deletion_duration_seconds")).unwrap();
    let sum = family.get_metric()[0].get_histogram().get_sample_sum();
    assert!((sum - 3.0).abs() < 0.1, "{sum}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_no_longer_due_for_eviction_is_not_touched() {
    let bench = Bench::new();
    let eviction = bench.eviction();
    bench.world.lock().view = keep();
    assert_eq!(bench.carry_out(&eviction).await, Outcome::Reconsider);
    assert!(bench.requests().is_empty());
    assert!(bench.told().is_empty());
    assert_eq!(bench.state(), None);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_moved_away_is_not_due() {
    let bench = Bench::new();
    let eviction = bench.eviction();
    let deadline = Deadline::exactly(noon(), 60);
    bench.world.lock().view = Verdict::EvictAt { deadline, cause: cause() };
    assert_eq!(bench.carry_out(&eviction).await, Outcome::Reconsider);
    assert!(bench.requests().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_gone_from_the_view_is_not_touched() {
    let bench = Bench::new();
    let eviction = bench.eviction();
    bench.world.lock().pod = None;
    assert_eq!(bench.carry_out(&eviction).await, Outcome::Reconsider);
    assert!(bench.requests().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_pod_goes_only_if_the_api_server_confirms_the_taint() {
    let bench = Bench::new();
    bench.world.lock().live = keep();
    let outcome = bench.run().await;
    assert_eq!(outcome, Outcome::Again(UNTIL_CAUGHT_UP));
    assert_eq!(bench.requests(), ["node"], "nothing is written");
    assert!(bench.told().is_empty());
    assert_eq!(bench.state(), Some(State::Unconfirmed));

    bench.world.lock().live = now();
    tokio::time::advance(UNTIL_CAUGHT_UP).await;
    bench.run().await;
    assert_eq!(bench.requests(), ["node", "mark", "delete"]);
}

#[tokio::test(start_paused = true)]
async fn a_countdown_asks_the_api_server_too() {
    let bench = Bench::new();
    let over = Verdict::EvictAt { deadline: Deadline(noon()), cause: cause() };
    bench.world.lock().view = over.clone();
    bench.world.lock().live = over;
    bench.run().await;
    assert_eq!(bench.requests(), ["node", "mark", "delete"]);
}

#[tokio::test(start_paused = true)]
async fn pods_of_one_node_share_one_read_of_it() {
    let bench = Bench::new();
    let eviction = bench.eviction();
    let many = (0..20).map(|n| {
        let mut eviction = eviction.clone();
        eviction.pod.uid = Uid(n);
        let bench = &bench;
        async move { bench.carry_out(&eviction).await }
    });
    futures::future::join_all(many).await;
    let requests = bench.requests();
    assert_eq!(requests.iter().filter(|r| **r == "node").count(), 1);
    assert_eq!(requests.iter().filter(|r| **r == "delete").count(), 20);
    tokio::time::advance(Duration::from_millis(1500)).await;
    let pod = PodRef { uid: Uid(99), ..eviction.pod };
    bench.carry_out(&Eviction { pod, ..eviction }).await;
    assert_eq!(bench.requests()[0], "node", "an old answer is not used");
}

#[tokio::test(start_paused = true)]
async fn a_read_from_before_a_pod_was_due_is_not_used_for_it() {
    let bench = Bench::new();
    bench.run().await;
    tokio::time::advance(Duration::from_millis(100)).await;
    bench.requests();
    bench.world.lock().live = keep();
    let pod = PodRef { uid: Uid(99), ..pod().reference() };
    let later = Eviction { pod, ..bench.eviction() };
    assert_eq!(bench.carry_out(&later).await, Outcome::Again(UNTIL_CAUGHT_UP));
    assert_eq!(bench.requests(), ["node"], "asked anew, and left alone");
}

#[tokio::test(start_paused = true)]
async fn the_node_is_read_again_when_the_condition_took_long_to_write() {
    let bench = Bench::new();
    bench.world.lock().mark_takes = Duration::from_millis(500);
    bench.run().await;
    assert_eq!(bench.requests(), ["node", "mark", "delete"], "an answer lasts for a second");

    let bench = Bench::new();
    {
        let mut world = bench.world.lock();
        world.mark_takes = Duration::from_secs(3);
        world.live_after_mark = Some(keep());
    }
    assert_eq!(bench.run().await, Outcome::Again(UNTIL_CAUGHT_UP));
    assert_eq!(bench.requests(), ["node", "mark", "node"], "the taint has gone meanwhile");
}

#[tokio::test(start_paused = true)]
async fn a_taint_that_is_removed_while_the_condition_is_written_saves_the_pod() {
    let bench = Bench::new();
    bench.world.lock().after_mark = Some(keep());
    assert_eq!(bench.run().await, Outcome::Reconsider);
    assert_eq!(bench.requests(), ["node", "mark"]);
    assert_eq!(bench.state(), None);
}

#[tokio::test(start_paused = true)]
async fn a_taint_that_is_removed_while_the_node_is_read_saves_the_pod() {
    for (slow_from, expected) in [("start", &["node"][..]), ("mark", &["node", "mark", "node"])] {
        let bench = Bench::new();
        let slow = Duration::from_secs(14);
        {
            let mut world = bench.world.lock();
            if slow_from == "start" {
                world.node_takes = slow;
            } else {
                world.mark_takes = Duration::from_secs(3);
            }
        }
        let running = bench.run();
        let meanwhile = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            bench.world.lock().node_takes = slow;
            tokio::time::sleep(Duration::from_secs(5)).await;
            bench.world.lock().view = keep();
        };
        let (outcome, ()) = tokio::join!(running, meanwhile);
        assert_eq!(outcome, Outcome::Reconsider, "{slow_from}");
        assert_eq!(bench.requests(), expected, "{slow_from}");
        assert_eq!(bench.state(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_is_there_is_not_written_again() {
    let bench = Bench::new();
    bench.world.lock().pod.as_mut().unwrap().disruption = Disruption::ByTaint;
    bench.run().await;
    assert_eq!(bench.requests(), ["node", "pod", "delete"]);

    let bench = Bench::new();
    bench.refuse("delete", server_error());
    bench.run().await;
    assert_eq!(bench.requests(), ["node", "mark", "delete"]);
    tokio::time::advance(Duration::from_secs(1)).await;
    bench.run().await;
    assert_eq!(bench.requests(), ["node", "pod", "delete"], "marked, although the view lags");
    assert_eq!(bench.told().iter().filter(|t| t.starts_with("evicting")).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_was_removed_is_written_again() {
    let bench = Bench::new();
    bench.refuse("delete", server_error());
    bench.run().await;
    bench.requests();
    tokio::time::advance(Duration::from_secs(121)).await;
    bench.run().await;
    assert_eq!(bench.requests(), ["node", "mark", "delete"]);
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_failure_is_retried_forever_with_growing_pauses() {
    for code in [401, 403, 400, 422, 429, 500, 503, 504, 418] {
        let bench = Bench::new();
        let kind = FailureKind::of_code(code);
        for n in 0..40 {
            let failure = Failure::Retry { kind, message: code.to_string(), after: None };
            bench.refuse("delete", failure);
            let Outcome::Again(pause) = bench.run().await else { panic!("{code}: lost") };
            let most = Duration::from_millis(250).saturating_mul(1 << n.min(20));
            assert!(pause <= most.min(Duration::from_secs(120)), "{code} {n}: {pause:?}");
            assert_eq!(bench.state(), Some(State::Failing(kind)));
            tokio::time::advance(pause).await;
        }
        let told = bench.told();
        let warned = told.iter().filter(|t| t.starts_with("failing")).count();
        assert_eq!(warned, 1, "one warning per pod and cause: {told:?}");
        bench.run().await;
        assert_eq!(bench.state(), Some(State::Sent), "{code}: gone once the cause is fixed");
    }
}

#[tokio::test(start_paused = true)]
async fn the_pause_that_the_server_requests_is_honoured() {
    let bench = Bench::new();
    let after = Some(Duration::from_secs(30));
    bench.refuse(
        "mark",
        Failure::Retry { kind: FailureKind::Throttled, message: "x".into(), after },
    );
    assert_eq!(bench.run().await, Outcome::Again(Duration::from_secs(30)));
    assert_eq!(bench.requests(), ["node", "mark"], "not deleted without its condition");
}

#[tokio::test(start_paused = true)]
async fn no_server_makes_a_pod_wait_longer_than_the_longest_pause() {
    for after in [Duration::from_hours(1), Duration::from_secs(u64::MAX)] {
        let bench = Bench::new();
        let message = "x".to_owned();
        let failure = Failure::Retry { kind: FailureKind::Throttled, message, after: Some(after) };
        bench.refuse("delete", failure);
        assert_eq!(bench.run().await, Outcome::Again(Duration::from_secs(120)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_gone_at_the_server_is_no_failure() {
    for at in ["mark", "delete"] {
        let bench = Bench::new();
        bench.refuse(at, Failure::Gone);
        assert!(matches!(bench.run().await, Outcome::Again(UNTIL_SEEN)));
        assert_eq!(bench.state(), Some(State::Sent));
        assert!(bench.told().iter().all(|t| !t.starts_with("failing")));
        assert!(bench.deletions().abs() < f64::EPSILON, "counted apart");
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_conflict_the_pod_is_read() {
    let bench = Bench::new();
    bench
        .refuse("delete", Failure::Doubtful { kind: FailureKind::Conflict, message: "UID".into() });
    bench.world.lock().stored = None;
    bench.run().await;
    assert_eq!(bench.requests(), ["node", "mark", "delete", "pod"]);
    assert_eq!(bench.state(), Some(State::Sent), "another pod has the name: gone");

    let bench = Bench::new();
    bench.refuse("mark", refusal(FailureKind::Invalid));
    bench.world.lock().stored = None;
    bench.run().await;
    assert_eq!(bench.requests(), ["node", "mark", "pod"], "another pod has the name");
    assert_eq!(bench.state(), Some(State::Sent));
    assert!(bench.told().iter().all(|told| !told.starts_with("unmarked")));
}

/// A refusal by an admission policy.
fn refusal(kind: FailureKind) -> Failure {
    let message = "policy".to_owned();
    match kind {
        FailureKind::Invalid => Failure::Doubtful { kind, message },
        _ => Failure::Retry { kind, message, after: None },
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_condition_is_refused_is_deleted_without_it_and_reported_once() {
    for kind in [FailureKind::Forbidden, FailureKind::Invalid] {
        let bench = Bench::new();
        bench.refuse("mark", refusal(kind));
        bench.refuse("delete", server_error());
        bench.refuse("mark", refusal(kind));
        bench.run().await;
        assert_eq!(bench.requests(), ["node", "mark", "pod", "delete"], "{kind:?}");
        tokio::time::advance(Duration::from_secs(1)).await;
        bench.run().await;
        assert_eq!(bench.requests(), ["node", "mark", "pod", "delete"], "it is asked for again");
        assert_eq!(bench.state(), Some(State::Sent));
        let told = bench.told();
        let unmarked = format!("unmarked shop/web-0 {}", kind.label());
        assert_eq!(told.iter().filter(|told| **told == unmarked).count(), 1, "{told:?}");
        assert!((bench.deletions() - 1.0).abs() < f64::EPSILON);
    }
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_refuses_the_condition_is_retried_a_few_times_and_does_not_shrink_the_window()
 {
    let bench = Bench::new();
    let window = bench.evictor.window.window();
    for n in 0..3 {
        bench.refuse("mark", refusal(FailureKind::Webhook));
        bench.run().await;
        assert_eq!(bench.requests(), ["node", "mark"], "{n}");
        tokio::time::advance(Duration::from_secs(5)).await;
    }
    bench.refuse("mark", refusal(FailureKind::Webhook));
    bench.refuse("delete", refusal(FailureKind::Webhook));
    bench.run().await;
    assert_eq!(bench.requests(), ["node", "mark", "pod", "delete"]);
    assert_eq!(bench.state(), Some(State::Failing(FailureKind::Webhook)), "it refuses that too");
    assert_eq!(bench.evictor.window.window(), window, "the server works");
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_fails_without_a_refusal_is_not_left_out() {
    for code in [401, 409, 429, 500, 503, 504, 418] {
        let bench = Bench::new();
        let kind = FailureKind::of_code(code);
        bench.refuse("mark", Failure::Retry { kind, message: "x".into(), after: None });
        bench.run().await;
        assert_eq!(bench.requests(), ["node", "mark"], "{code}");
        assert_eq!(bench.state(), Some(State::Failing(kind)));
        assert!(bench.told().iter().all(|told| !told.starts_with("unmarked")), "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_condition_does_not_bypass_the_second_check() {
    let bench = Bench::new();
    bench.refuse("mark", refusal(FailureKind::Forbidden));
    bench.world.lock().spared_when_stored = true;
    assert_eq!(bench.run().await, Outcome::Again(UNTIL_CAUGHT_UP));
    assert_eq!(bench.requests(), ["node", "mark", "pod"]);

    let bench = Bench::new();
    bench.refuse("mark", refusal(FailureKind::Forbidden));
    bench.world.lock().stored = Some(Pod { class: PodClass::Terminating, ..pod() });
    bench.run().await;
    assert_eq!(bench.requests(), ["node", "mark", "pod"], "it is going already");
}

#[tokio::test(start_paused = true)]
async fn an_accepted_deletion_is_not_sent_twice_while_the_watch_lags() {
    let bench = Bench::new();
    bench.run().await;
    bench.requests();
    let terminating = Pod { class: PodClass::Terminating, ..pod() };
    for stored in [Some(terminating), None] {
        bench.world.lock().stored = stored;
        tokio::time::advance(UNTIL_SEEN).await;
        assert_eq!(bench.run().await, Outcome::Again(UNTIL_SEEN));
        assert_eq!(bench.requests(), ["pod"]);
    }
    assert!((bench.deletions() - 1.0).abs() < f64::EPSILON);
}

#[tokio::test(start_paused = true)]
async fn an_accepted_deletion_that_was_not_carried_out_is_sent_again() {
    let bench = Bench::new();
    bench.run().await;
    bench.requests();
    tokio::time::advance(UNTIL_SEEN).await;
    bench.run().await;
    assert_eq!(bench.requests(), ["pod", "node", "delete"]);
}

#[tokio::test(start_paused = true)]
async fn after_a_deletion_without_a_response_the_pod_is_read_before_it_is_sent_again() {
    for kind in [FailureKind::Timeout, FailureKind::Connection, FailureKind::Unexpected] {
        let lost = || Failure::Retry { kind, message: "no answer".into(), after: None };
        let bench = Bench::new();
        bench.refuse("delete", lost());
        bench.run().await;
        bench.requests();
        bench.world.lock().stored = Some(Pod { class: PodClass::Terminating, ..pod() });
        tokio::time::advance(Duration::from_secs(1)).await;
        bench.run().await;
        assert_eq!(bench.requests(), ["node", "pod"], "it was carried out");
        assert_eq!(bench.state(), Some(State::Sent));

        let bench = Bench::new();
        bench.refuse("delete", lost());
        bench.run().await;
        bench.requests();
        tokio::time::advance(Duration::from_secs(1)).await;
        bench.run().await;
        assert_eq!(bench.requests(), ["node", "pod", "delete"], "it was not");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_read_of_the_node_postpones_the_eviction() {
    let bench = Bench::new();
    bench.refuse("node", server_error());
    bench.run().await;
    assert_eq!(bench.requests(), ["node"]);
    assert_eq!(bench.state(), Some(State::Failing(FailureKind::Server)));
}

#[tokio::test(start_paused = true)]
async fn a_toleration_that_the_view_does_not_know_yet_saves_the_pod() {
    // The current pod comes with the response to the patch, or from a read if there is no patch.
    for marked in [false, true] {
        let bench = Bench::new();
        if marked {
            bench.world.lock().pod.as_mut().unwrap().disruption = Disruption::ByTaint;
        }
        bench.world.lock().spared_when_stored = true;
        assert_eq!(bench.run().await, Outcome::Again(UNTIL_CAUGHT_UP));
        assert!(!bench.requests().contains(&"delete"));
        assert_eq!(bench.state(), Some(State::Unconfirmed));
    }
}

#[tokio::test(start_paused = true)]
async fn an_eviction_that_a_pause_stops_on_its_way_is_no_failure_and_goes_after_it() {
    let bench = Bench::new();
    bench.refuse("delete", Failure::Paused);
    let outcome = bench.run().await;
    assert!(matches!(outcome, Outcome::Again(pause) if pause <= Duration::from_secs(1)));
    assert_eq!(bench.requests(), ["node", "mark", "delete"]);
    assert_eq!(bench.told(), ["evicting shop/web-0"]);
    let entry = bench.backlog.get(&pod().reference(), CauseKind::Taint).unwrap();
    assert_eq!((entry.state, entry.retry.failures), (State::Due, 0));
    assert!(bench.deletions().abs() < f64::EPSILON);
    bench.run().await;
    assert_eq!(bench.requests().last(), Some(&"delete"));
    assert!(bench.told().is_empty(), "said once");
    assert_eq!(bench.state(), Some(State::Sent));
}
