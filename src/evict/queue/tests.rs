//! Evictions in the queue, with holds that a test opens and closes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use prometheus::Registry;

use super::*;
use crate::clock::Clock;
use crate::evict::{Cause, CauseKind, Failure, FailureKind, Hold, Method, Metrics, Spared, Wait};
use crate::model::build::{noon, pod, taint};
use crate::model::{self, Node, NodeName, Pod, PodRef, Verdict};

/// Holds the evictions for some taint keys, with one line per key.
#[derive(Clone, Default)]
struct Toy(Arc<Mutex<Lines>>);

#[derive(Default)]
struct Lines {
    /// Keys that are closed until a change.
    shut: BTreeSet<&'static str>,
    /// Keys of which one eviction may go each second, and when the next one may.
    paced: BTreeMap<&'static str, Instant>,
    asked: usize,
    passed: Vec<String>,
    left: Vec<String>,
    cleared: usize,
    /// It counts, as a limit does, so retries are not its business.
    is_limit: bool,
}

impl Hold for Toy {
    fn name(&self) -> &'static str {
        "toy"
    }

    fn applies_to_retries(&self) -> bool {
        !self.0.lock().is_limit
    }

    fn line(&self, eviction: &Eviction) -> Option<Arc<str>> {
        let Cause::Taint(verdict) = &eviction.cause else { return None };
        let key = &verdict.cause()?.taint.key;
        let lines = self.0.lock();
        let concerns = lines.shut.contains(&**key)
            || lines.paced.contains_key(&**key)
            || lines.passed.iter().any(|passed| **passed == **key);
        concerns.then(|| Arc::clone(key))
    }

    fn holds(&self, line: &str, _: Instant, now: Instant) -> Option<Wait> {
        let mut lines = self.0.lock();
        lines.asked += 1;
        if lines.shut.contains(line) {
            return Some(Wait::ForChange);
        }
        let next = lines.paced.get(line).copied()?;
        (next > now).then_some(Wait::Until(next))
    }

    fn passed(&self, line: &str, now: Instant) {
        let mut lines = self.0.lock();
        lines.passed.push(line.to_owned());
        if let Some(next) = lines.paced.get_mut(line) {
            *next = now + Duration::from_secs(1);
        }
    }

    fn left(&self, line: &str, _: Instant) {
        self.0.lock().left.push(line.to_owned());
    }

    fn clear(&self) {
        self.0.lock().cleared += 1;
    }

    fn turn(&self, line: &str, ahead: usize, _: Instant) -> Option<Instant> {
        let next = self.0.lock().paced.get(line).copied()?;
        Some(next + Duration::from_secs(ahead.try_into().unwrap()))
    }
}

impl Toy {
    fn shutting(keys: &[&'static str]) -> Self {
        let toy = Self::default();
        toy.0.lock().shut.extend(keys);
        toy
    }

    fn pacing(key: &'static str) -> Self {
        let toy = Self::default();
        toy.0.lock().paced.insert(key, Instant::now());
        toy
    }
}

/// Wants every eviction, accepts every request, and takes every eviction back.
#[derive(Clone, Default)]
struct World(Arc<Mutex<Facts>>);

#[derive(Default)]
struct Facts {
    /// Names of pods that were deleted, in order.
    deleted: Vec<String>,
    /// Outcomes, by ticket.
    finished: Vec<(u32, Outcome)>,
    replaced: BTreeSet<u32>,
    cancelled: BTreeSet<u32>,
    /// Failures of the next deletions, before they succeed.
    refusals: VecDeque<Failure>,
}

impl Origin for World {
    type Ticket = u32;

    fn standing(&self, _: &Eviction, ticket: u32) -> Standing {
        let facts = self.0.lock();
        if facts.cancelled.contains(&ticket) {
            Standing::Cancelled
        } else if facts.replaced.contains(&ticket) {
            Standing::Replaced
        } else {
            Standing::Current
        }
    }

    fn finish(&self, _: &Eviction, ticket: u32, outcome: &Outcome) {
        self.0.lock().finished.push((ticket, outcome.clone()));
    }
}

impl Recheck for World {
    fn by_view(&self, eviction: &Eviction) -> Result<(Arc<Pod>, Cause), Spared> {
        let pod = pod(&eviction.pod.name).on(eviction.pod.node.as_str());
        Ok((Arc::new(pod), eviction.cause.clone()))
    }

    fn by_server(&self, _: &Eviction, _: Method, _: &Pod, _: Option<&Node>) -> Result<(), Spared> {
        Ok(())
    }
}

impl Requests for World {
    async fn pod(&self, reference: &PodRef) -> Result<Option<Pod>, Failure> {
        Ok(Some(pod(&reference.name).on(reference.node.as_str())))
    }

    async fn node(&self, name: &NodeName) -> Result<Option<Node>, Failure> {
        Ok(Some(crate::model::build::node(name.as_str())))
    }

    async fn mark(&self, pod: &Pod, _: Timestamp) -> Result<Pod, Failure> {
        Ok(pod.clone())
    }

    async fn delete(&self, pod: &PodRef) -> Result<(), Failure> {
        let mut facts = self.0.lock();
        facts.refusals.pop_front().map_or(Ok(()), Err)?;
        facts.deleted.push(pod.name.to_string());
        Ok(())
    }

    async fn evict(&self, _: &PodRef, _: Option<i64>) -> Result<(), Failure> {
        panic!("no drain asks for it")
    }

    async fn delete_within(&self, _: &PodRef, _: Option<i64>) -> Result<(), Failure> {
        panic!("no drain asks for it")
    }

    async fn budgets_over(&self, _: &PodRef) -> Result<Vec<Arc<str>>, Failure> {
        panic!("no budget is asked")
    }

    async fn hopeless_budget(&self, _: &PodRef) -> Result<Option<String>, Failure> {
        panic!("no budget is asked")
    }
}

impl Notices for World {
    fn evicting(&self, _: &PodRef, _: &Cause) {}
    fn unmarked(&self, _: &PodRef, _: &Cause, _: FailureKind, _: &str) {}
    fn failing(&self, _: &PodRef, _: &Cause, _: FailureKind, _: &str) {}
    fn blocked(&self, _: &PodRef, _: &Cause, _: &str) {}
    fn several_budgets(&self, _: &PodRef, _: &Cause, _: &[Arc<str>]) {}
}

struct Bench {
    world: World,
    queue: Arc<Queue<u32>>,
    backlog: Arc<Backlog>,
    window: Arc<Window>,
    registry: Registry,
    changed: Arc<Notify>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    tickets: std::cell::Cell<u32>,
}

fn bench(holds: &[&Toy]) -> Bench {
    let (world, backlog, changed) = (World::default(), Arc::<Backlog>::default(), Arc::default());
    let holds = holds.iter().map(|toy| Box::new((*toy).clone()) as Box<dyn Hold>).collect();
    let holds = Holds::new(holds, Arc::clone(&changed));
    let queue = Arc::new(Queue::new(Arc::clone(&backlog), holds));
    let (registry, window) = (Registry::new(), Arc::<Window>::default());
    let evictor = Arc::new(Evictor::new(
        world.clone(),
        world.clone(),
        world.clone(),
        Arc::clone(&backlog),
        Metrics::register(&registry, &backlog).unwrap(),
        Clock::starting_at(noon()),
        Arc::clone(&window),
    ));
    let (stop, origin) = (CancellationToken::new(), Arc::new(world.clone()));
    let task =
        tokio::spawn(hand_out(Arc::clone(&queue), origin, evictor, Runner::alone(), stop.clone()));
    let tickets = std::cell::Cell::default();
    Bench { world, queue, backlog, window, registry, changed, stop, task, tickets }
}

/// An eviction of a pod on a node for a taint with this key.
fn eviction(name: &str, node: &str, key: &str) -> Eviction {
    let cause = Verdict::EvictNow(model::Cause::new(taint(key, ""), None));
    let pod = pod(name).on(node).reference();
    Eviction { pod, cause: Cause::Taint(cause), due: Instant::now() }
}

impl Bench {
    /// Queues an eviction, and returns its ticket.
    fn push(&self, name: &str, node: &str, key: &str) -> u32 {
        let ticket = self.tickets.get() + 1;
        self.tickets.set(ticket);
        self.queue.push(eviction(name, node, key), ticket, false);
        ticket
    }

    /// Names of pods that are deleted within this time.
    async fn after(&self, time: Duration) -> Vec<String> {
        tokio::time::sleep(time).await;
        std::mem::take(&mut self.world.0.lock().deleted)
    }

    async fn soon(&self) -> Vec<String> {
        self.after(Duration::from_millis(1)).await
    }

    fn held(&self, name: &str) -> Option<String> {
        let pod = pod(name).reference();
        let entry = self.backlog.get(&pod, CauseKind::Taint).expect("it is in the backlog");
        entry.held.map(|held| held.to_string())
    }

    /// Cancels an eviction. Returns whether it was held.
    fn cancel(&self, name: &str, key: &str, ticket: u32) -> bool {
        self.world.0.lock().cancelled.insert(ticket);
        self.queue.recall(eviction(name, "n1", key).key()).is_some()
    }

    fn entry(&self, name: &str) -> crate::evict::BacklogEntry {
        self.backlog.get(&pod(name).reference(), CauseKind::Taint).unwrap()
    }

    fn counted(&self, series: &str) -> u64 {
        let text = prometheus::TextEncoder::new().encode_to_string(&self.registry.gather());
        let text = text.unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.map_or(0, |count| count.trim().parse().unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_eviction_is_in_the_backlog_and_neither_takes_a_place_nor_delays_others() {
    let toy = Toy::shutting(&["a"]);
    let bench = bench(&[&toy]);
    for n in 0..100 {
        bench.push(&format!("a{n}"), "n1", "a");
    }
    bench.push("b", "n1", "b");
    bench.push("c", "n2", "a");
    assert_eq!(bench.soon().await, ["b"], "of the same node, behind a hundred that are held");
    assert_eq!(bench.window.in_flight(), 0);
    assert_eq!(bench.held("a99").as_deref(), Some("toy (a)"));
    assert_eq!(bench.held("b"), None);
    assert_eq!(toy.0.lock().asked, 1, "asked about a line, not about each eviction in it");
    assert_eq!(bench.counted("ostrakon_backlog_pods{state=\"held\"}"), 101);
    assert_eq!(bench.counted("ostrakon_backlog_pods{state=\"due\"}"), 0);
    assert!(bench.after(Duration::from_secs(3600)).await.is_empty(), "for as long as it takes");
    assert_eq!(toy.0.lock().asked, 1);
}

#[tokio::test(start_paused = true)]
async fn a_changed_hold_is_asked_again_and_the_others_keep_holding() {
    let toy = Toy::shutting(&["a", "b"]);
    let bench = bench(&[&toy]);
    for name in ["a1", "a2"] {
        bench.push(name, "n1", "a");
    }
    bench.push("b1", "n1", "b");
    assert!(bench.soon().await.is_empty());
    toy.0.lock().shut.remove("a");
    assert!(bench.soon().await.is_empty(), "no change was signalled");
    bench.changed.notify_one();
    assert_eq!(bench.soon().await, ["a1", "a2"]);
    assert_eq!(bench.held("a1"), None);
    assert_eq!(bench.held("b1").as_deref(), Some("toy (b)"));
    assert_eq!(bench.counted("ostrakon_backlog_pods{state=\"held\"}"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_line_continues_at_its_time_and_in_its_order() {
    let toy = Toy::pacing("a");
    let bench = bench(&[&toy]);
    for n in 0..1000 {
        bench.push(&format!("a{n}"), "n1", "a");
    }
    let mut went = bench.soon().await;
    for n in 0..9 {
        went.extend(bench.after(Duration::from_secs(1)).await);
        // A later one does not overtake the waiting ones.
        bench.push(&format!("late{n}"), "n2", "a");
    }
    let first_four = ["a0", "a1", "a2", "a3"];
    assert_eq!(went.len(), 10, "one each second: {went:?}");
    assert_eq!(went[..4], first_four);
    assert!(
        went.iter().filter(|name| name.starts_with("late")).count() < 6,
        "nodes take turns: {went:?}"
    );
    let asked = toy.0.lock().asked;
    assert!(asked <= 22, "a thousand waiting evictions cost {asked} questions");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_eviction_waits_for_no_hold() {
    let toy = Toy::shutting(&["a"]);
    let bench = bench(&[&toy]);
    let [first, second, third] = ["a1", "a2", "a3"].map(|name| bench.push(name, "n1", "a"));
    bench.soon().await;
    // The first of a line, and one in the middle.
    for (name, ticket) in [("a1", first), ("a2", second)] {
        assert!(bench.cancel(name, "a", ticket), "{name}: it was held");
        assert!(!bench.cancel(name, "a", ticket), "once");
    }
    toy.0.lock().shut.clear();
    bench.changed.notify_one();
    assert_eq!(bench.soon().await, ["a3"]);
    let finished: Vec<_> = bench.world.0.lock().finished.iter().map(|(of, _)| *of).collect();
    assert_eq!(finished, [third]);
    assert!(!bench.cancel("a3", "a", third), "it is not held any more");
}

#[tokio::test(start_paused = true)]
async fn an_eviction_that_is_no_longer_requested_is_not_handed_out() {
    let bench = bench(&[]);
    let [gone, other, third] = ["a1", "a2", "a3"].map(|name| bench.push(name, "n1", "a"));
    assert!(!bench.cancel("a1", "a", gone), "nothing is held");
    bench.world.0.lock().replaced.insert(other);
    assert_eq!(bench.soon().await, ["a3"]);
    let again = Outcome::Again(Duration::from_secs(30));
    let back = [(gone, Outcome::Reconsider), (other, Outcome::Reconsider), (third, again)];
    assert_eq!(bench.world.0.lock().finished, back);
    assert_eq!(bench.counted("ostrakon_evictions_total{result=\"withdrawn\"}"), 1);
    assert_eq!(
        bench.backlog.len(),
        2,
        "one waits until its pod is seen gone, one becomes due again"
    );
}

#[tokio::test(start_paused = true)]
async fn released_evictions_and_others_take_turns() {
    let toy = Toy::shutting(&["a"]);
    let bench = bench(&[&toy]);
    for n in 0..40 {
        bench.push(&format!("a{n}"), "n1", "a");
    }
    bench.soon().await;
    toy.0.lock().shut.clear();
    for n in 0..40 {
        bench.push(&format!("b{n}"), "n2", "b");
    }
    bench.changed.notify_one();
    // Neither kind waits for the end of the other.
    let went = bench.after(Duration::from_secs(1)).await;
    assert_eq!(went.len(), 80);
    let half = &went[..40];
    let held = half.iter().filter(|name| name.starts_with('a')).count();
    assert!((10..=30).contains(&held), "{half:?}");
}

#[tokio::test(start_paused = true)]
async fn with_two_holds_an_eviction_goes_when_neither_holds_it_and_counts_for_both() {
    let (one, two) = (Toy::shutting(&["a"]), Toy::shutting(&["a"]));
    let bench = bench(&[&one, &two]);
    bench.push("a1", "n1", "a");
    bench.push("a2", "n1", "a");
    bench.soon().await;
    for toy in [&one, &two] {
        assert!(bench.soon().await.is_empty());
        let mut lines = toy.0.lock();
        lines.shut.clear();
        // The hold still applies to the key, but no longer holds it.
        lines.paced.insert("a", Instant::now());
        drop(lines);
        bench.changed.notify_one();
    }
    assert_eq!(bench.soon().await, ["a1"]);
    assert_eq!((one.0.lock().passed.len(), two.0.lock().passed.len()), (1, 1));
    assert_eq!(bench.after(Duration::from_secs(3)).await, ["a2"]);
    assert_eq!((one.0.lock().passed.len(), two.0.lock().passed.len()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn after_the_stop_nothing_is_handed_out_even_if_holds_release_it() {
    let toy = Toy::shutting(&["a"]);
    let bench = bench(&[&toy]);
    bench.push("a1", "n1", "a");
    bench.soon().await;
    bench.stop.cancel();
    toy.0.lock().shut.clear();
    bench.changed.notify_one();
    bench.push("b1", "n1", "b");
    assert!(bench.after(Duration::from_secs(60)).await.is_empty());
    assert!(bench.task.is_finished() && bench.window.in_flight() == 0);
    bench.queue.clear();
    assert_eq!(bench.queue.recall(eviction("a1", "n1", "a").key()).map(|_| ()), None);
}

#[tokio::test(start_paused = true)]
async fn a_hold_with_a_full_window_costs_nothing_until_a_place_is_free() {
    let toy = Toy::pacing("a");
    let bench = bench(&[&toy]);
    bench.push("a1", "n1", "a");
    bench.push("a2", "n1", "a");
    assert_eq!(bench.soon().await, ["a1"]);
    while bench.window.enter() {}
    let before = toy.0.lock().asked;
    assert!(bench.after(Duration::from_secs(60)).await.is_empty());
    assert_eq!(toy.0.lock().asked, before);
    bench.window.leave();
    bench.push("b1", "n2", "b");
    assert_eq!(bench.soon().await, ["b1", "a2"]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_held_too_and_its_hold_is_shown_apart_from_its_failure() {
    let toy = Toy::default();
    let bench = bench(&[&toy]);
    let message = "no".to_owned();
    let failure = Failure::Retry { kind: FailureKind::Server, message, after: None };
    bench.world.0.lock().refusals.push_back(failure);
    bench.push("a1", "n1", "a");
    assert!(bench.soon().await.is_empty());
    toy.0.lock().shut.insert("a");
    bench.push("a1", "n1", "a");
    assert!(bench.soon().await.is_empty());
    let entry = bench.backlog.get(&pod("a1").reference(), CauseKind::Taint).unwrap();
    assert_eq!(entry.state, State::Failing(FailureKind::Server));
    assert!(entry.held.is_some() && entry.refusal() == Some("no"));
    toy.0.lock().shut.clear();
    bench.changed.notify_one();
    assert_eq!(bench.soon().await, ["a1"]);
}

#[tokio::test(start_paused = true)]
async fn waiting_until_an_accepted_eviction_is_seen_asks_no_hold() {
    let toy = Toy::pacing("a");
    let bench = bench(&[&toy]);
    bench.push("a1", "n1", "a");
    assert_eq!(bench.soon().await, ["a1"]);
    assert_eq!(bench.entry("a1").state, State::Sent);
    let asked = toy.0.lock().asked;
    toy.0.lock().shut.insert("a");
    bench.push("a2", "n1", "a");
    bench.push("a1", "n1", "a");
    assert_eq!(bench.soon().await, ["a1"], "the world still has the pod; the other is held");
    let lines = toy.0.lock();
    assert_eq!((lines.asked, lines.passed.len()), (asked + 1, 1), "asked about the other only");
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_stopped_by_a_pause_and_not_counted_again_by_a_limit() {
    let (limit, pause) = (Toy::pacing("a"), Toy::default());
    limit.0.lock().is_limit = true;
    let bench = bench(&[&limit, &pause]);
    let message = "no".to_owned();
    let failure = Failure::Retry { kind: FailureKind::Server, message, after: None };
    bench.world.0.lock().refusals.push_back(failure);
    bench.push("a1", "n1", "a");
    assert!(bench.soon().await.is_empty());
    assert_eq!(limit.0.lock().passed.len(), 1, "the attempt that failed is counted");
    // The limit's next token comes in a second.
    bench.push("new", "n1", "a");
    pause.0.lock().shut.insert("a");
    bench.push("a1", "n1", "a");
    assert!(bench.soon().await.is_empty());
    assert_eq!(bench.held("a1").as_deref(), Some("toy (a)"), "a pause stops it");
    pause.0.lock().shut.clear();
    bench.changed.notify_one();
    assert_eq!(bench.soon().await, ["a1"], "no token is needed");
    assert_eq!(limit.0.lock().passed.len(), 1);
    assert_eq!(bench.after(Duration::from_secs(1)).await, ["new"], "a new one waits for its token");
    assert_eq!(limit.0.lock().passed.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_eviction_for_another_taint_is_counted_anew() {
    let toy = Toy::pacing("a");
    toy.0.lock().is_limit = true;
    toy.0.lock().paced.insert("b", Instant::now());
    let bench = bench(&[&toy]);
    let message = "no".to_owned();
    let failure = Failure::Retry { kind: FailureKind::Server, message, after: None };
    bench.world.0.lock().refusals.push_back(failure);
    bench.push("a1", "n1", "a");
    assert!(bench.soon().await.is_empty());
    bench.push("a1", "n1", "b");
    assert_eq!(bench.soon().await, ["a1"]);
    assert_eq!(toy.0.lock().passed, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn in_a_line_a_namespace_with_many_pods_does_not_make_others_wait() {
    let toy = Toy::pacing("a");
    let bench = bench(&[&toy]);
    let push = |namespace: &str, name: &str| {
        let mut eviction = eviction(name, "n1", "a");
        eviction.pod.namespace = namespace.into();
        bench.queue.push(eviction, 1, false);
    };
    for n in 0..1000 {
        push("large", &format!("l{n}"));
    }
    for name in ["s1", "s2", "s3"] {
        push("small", name);
    }
    let mut went = bench.soon().await;
    for _ in 0..7 {
        went.extend(bench.after(Duration::from_secs(1)).await);
    }
    assert_eq!(went.len(), 8);
    let small = went.iter().filter(|name| name.starts_with('s')).count();
    assert_eq!(small, 3, "{went:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hold_hears_that_a_line_is_empty_unless_its_last_eviction_went() {
    let (first, second) = (Toy::shutting(&["a", "b"]), Toy::shutting(&["b"]));
    let bench = bench(&[&first, &second]);
    let [one, two] = ["a1", "a2"].map(|name| bench.push(name, "n1", "a"));
    bench.soon().await;
    assert!(bench.cancel("a2", "a", two));
    assert!(first.0.lock().left.is_empty(), "another waits in the line");
    assert!(bench.cancel("a1", "a", one));
    assert_eq!(first.0.lock().left, ["a"]);
    // It waits for the other hold now, and then goes.
    bench.push("b1", "n1", "b");
    bench.soon().await;
    first.0.lock().shut.clear();
    first.0.lock().paced.insert("b", Instant::now());
    bench.changed.notify_one();
    assert!(bench.soon().await.is_empty());
    assert_eq!(first.0.lock().left, ["a", "b"]);
    second.0.lock().shut.clear();
    bench.changed.notify_one();
    assert_eq!(bench.soon().await, ["b1"]);
    assert_eq!(first.0.lock().left, ["a", "b"]);
    assert!(second.0.lock().left.is_empty(), "it went from there");
}

#[tokio::test(start_paused = true)]
async fn at_the_end_of_a_term_holds_forget() {
    let toy = Toy::pacing("a");
    let bench = bench(&[&toy]);
    bench.push("a1", "n1", "a");
    bench.soon().await;
    assert_eq!(toy.0.lock().cleared, 0);
    bench.queue.clear();
    assert_eq!(toy.0.lock().cleared, 1);
}

#[tokio::test(start_paused = true)]
async fn the_backlog_says_what_a_held_eviction_waits_for_and_when_it_is_its_turn() {
    let toy = Toy::pacing("a");
    let bench = bench(&[&toy]);
    let start = Instant::now();
    for name in ["a0", "a1", "a2", "a3"] {
        bench.push(name, "n1", "a");
    }
    assert_eq!(bench.soon().await, ["a0"]);
    for (name, seconds) in [("a1", 1), ("a2", 2), ("a3", 3)] {
        let held = bench.entry(name).held.unwrap();
        assert_eq!((held.by, &*held.line), ("toy", "a"));
        assert_eq!(bench.queue.why(&held), "waits for the toy (a)");
        let turn = held.turn.unwrap() - start;
        assert!(turn.abs_diff(Duration::from_secs(seconds)).as_millis() < 10, "{name}: {turn:?}");
    }
    assert_eq!(bench.entry("a0").held, None);
    let toy = Toy::shutting(&["a"]);
    let bench = self::bench(&[&toy]);
    bench.push("a1", "n1", "a");
    bench.soon().await;
    assert_eq!(bench.entry("a1").held.unwrap().turn, None, "nobody knows");
}
