//! Watches over the time that deadlines are kept by, and says when this machine's clock disagrees with
//! the API server's.
//!
//! The time is kept by this machine's clock: read once, it goes on with the monotonic clock. The stamps
//! that deadlines are counted from come from other clocks, so what the API server's `Date` says is
//! compared with it. But one answer is one party's word, a proxy's perhaps, so:
//!
//! - **No answer alone moves the time.** A difference is reported.
//! - **The time never goes ahead of this machine's clock**, whoever says so: nothing goes before that
//!   says that it is due.
//! - It is *held back* by what several answers of some minutes, each over a connection of its own,
//!   agree on. Only that can be a clock that was ahead all along.
//! - At the start three answers that agree are enough, since a process that has not begun can be cautious,
//!   but for a few minutes only: what the answers of these minutes do not bear out is let go again.
//! - A time before this program was written is believed of nobody.
//! - What is seen for the first time while the time is held back is taken along when it is let go.
//! - When the machine's clock *steps* away from the time that has passed, the machine slept, or
//!   somebody set it. Then both the machine's clock and the API server's must say that it is later (or
//!   earlier) before the time is set; until then it goes on as it did. What is seen for the first time
//!   until then is set right with it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use prometheus::{Gauge, Registry};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::cluster::Api;
use crate::evict::Schedule;
use crate::informer::{Facts, WorkQueues, recorded};
use crate::leader::LEASE;
use crate::model::{Anchors, Node};
use crate::observe::{Readiness, Recorder};
use crate::taint::anchor::{self, CLOCKS_APART};

/// How often the clocks of this machine are compared.
const EVERY: Duration = Duration::from_secs(1);
/// How often the API server is asked.
const ASKED_EVERY: Duration = Duration::from_secs(60);
/// How often while the machine's clock has stepped and nothing confirms it.
const ASKED_IN_DOUBT: Duration = Duration::from_secs(15);
/// Differences below this are left alone: the API's own stamps are whole seconds.
const TOLERATED: SignedDuration = SignedDuration::from_secs(2);
/// So many answers must agree at the start.
const AT_START: usize = 3;
/// So many must agree later, over so long a time.
const AGREEING: usize = 5;
const AGREEING_FOR: Duration = Duration::from_secs(240);
/// For so long the time is held back by the answers at the start alone.
const UNCONFIRMED: Duration = Duration::from_secs(480);
/// An API server that shows an earlier time shows a wrong one: the first second of 2025.
const EARLIEST: Timestamp = Timestamp::constant(1_735_689_600, 0);

/// Three clocks at the same moment.
#[derive(Clone, Copy, Debug)]
struct Clocks {
    /// The time that is kept.
    kept: Timestamp,
    /// The same, had it followed the steps of the machine's clock since the clocks were last in accord.
    stepped: Timestamp,
    /// The API server's.
    server: Timestamp,
}

/// What is made of three clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ruling {
    /// The time that is kept is right.
    Keep,
    /// It is this: the machine's clock and the API server's both say so.
    Set(Timestamp),
    /// The API server's clock stands alone.
    Disagree,
}

fn agree(one: Timestamp, other: Timestamp) -> bool {
    one.duration_since(other).abs() <= CLOCKS_APART
}

impl Clocks {
    fn rule(self) -> Ruling {
        let Self { kept, stepped, server } = self;
        let by_both = stepped.min(server);
        if agree(kept, server) {
            Ruling::Keep
        } else if agree(stepped, server) {
            Ruling::Set(stepped)
        } else if by_both.duration_since(kept) > CLOCKS_APART {
            Ruling::Set(by_both)
        } else {
            Ruling::Disagree
        }
    }
}

/// The latest answers that disagree with the time that is kept, as long as they agree with one
/// another.
#[derive(Debug, Default)]
struct Witnesses(VecDeque<(Instant, SignedDuration)>);

impl Witnesses {
    /// Takes in by how much the time that is kept is `ahead`. Returns how far it has to be held back
    /// (less than nothing: how far it is held back too much), once enough answers agree on that.
    fn agreed(&mut self, at: Instant, ahead: SignedDuration) -> Option<SignedDuration> {
        let differs = |(_, other): &(Instant, SignedDuration)| {
            other.checked_sub(ahead).is_none_or(|apart| apart.abs() > CLOCKS_APART)
        };
        if self.0.iter().any(differs) {
            self.0.clear();
        }
        self.0.push_back((at, ahead));
        let since = self.0.front().map_or(at, |(at, _)| *at);
        let are_enough = self.0.len() >= AGREEING && at - since >= AGREEING_FOR;
        while self.0.len() > AGREEING && at - since >= 2 * AGREEING_FOR {
            self.0.pop_front();
        }
        let ahead = self.0.iter().map(|(_, ahead)| *ahead);
        // The nearest to zero: a `Date` is cut off, and no more is moved than all agree on.
        are_enough.then(|| ahead.min_by_key(|ahead| ahead.abs())).flatten()
    }

    /// Takes in whether an answer agrees with the time that is kept. Returns whether enough of them do.
    fn confirm(&mut self, agrees: bool) -> bool {
        if !agrees {
            self.clear();
            return false;
        }
        self.agreed(Instant::now(), SignedDuration::ZERO).is_some()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// The time that is kept, and all that goes by it.
#[derive(Clone)]
pub(crate) struct KeptTime {
    pub facts: Arc<Facts>,
    pub queues: Arc<WorkQueues>,
    pub schedule: Arc<Schedule>,
}

/// Tells people that the clocks disagree, by all ways there are.
pub(crate) struct Skew {
    gauge: Gauge,
    readiness: Readiness,
    recorder: Recorder,
    /// Namespace of the lease, if there is one.
    lease: Option<String>,
    /// What was told last, if they disagree.
    told: Option<String>,
}

impl Skew {
    const NOTE: &str = "clock";

    pub(crate) fn register(
        registry: &Registry,
        recorder: Recorder,
        lease: Option<String>,
    ) -> prometheus::Result<Self> {
        let gauge = Gauge::new(
            "ostrakon_clock_skew_seconds",
            "How far this machine's clock is ahead of the API server's, by its last response.",
        )?;
        registry.register(Box::new(gauge.clone()))?;
        let readiness = Readiness::default();
        Ok(Self { gauge, readiness, recorder, lease, told: None })
    }

    /// Shows it beside this readiness from now on.
    pub(crate) fn beside(&mut self, readiness: &Readiness) {
        self.readiness = readiness.clone();
        self.readiness.note(Self::NOTE, self.told.clone());
    }

    fn tell(&mut self, system: Timestamp, server: Timestamp) {
        let ahead = system.duration_since(server);
        self.gauge.set(ahead.as_secs_f64());
        let disagrees = ahead.abs() > CLOCKS_APART;
        if !disagrees {
            if self.told.take().is_some() {
                self.readiness.note(Self::NOTE, None);
                info!(%system, %server, "this machine's clock and the API server's agree again");
            }
            return;
        }
        let how = if ahead.is_negative() { "behind" } else { "ahead of" };
        let message = format!(
            "this machine's clock is {} s {how} the API server's; synchronize both with NTP, and check \
             that no other server answers at its address",
            ahead.abs().as_secs()
        );
        self.readiness.note(Self::NOTE, Some(message.clone()));
        if self.told.replace(message.clone()).is_none() {
            warn!(%system, %server, "{message}");
            if let Some(namespace) = &self.lease {
                self.recorder.clock_skew(namespace, LEASE, &message);
            }
        }
    }
}

/// Compares the clocks at the start. Returns how far the time was held back; `None` if the API server
/// did not tell its own.
pub(crate) async fn align(
    kept_time: &KeptTime,
    api: &Api,
    skew: &mut Skew,
    wall: impl Fn() -> Timestamp,
) -> Option<SignedDuration> {
    let mut told = Vec::with_capacity(AT_START);
    for _ in 0..AT_START {
        let Ok(Some(server)) = api.server_time().await else {
            warn!(
                "the API server's responses have no date; using only this machine's clock for \
                 deadlines until they do"
            );
            return None;
        };
        skew.tell(wall(), server);
        kept_time.facts.heard_time(server);
        let ahead = kept_time.facts.clock.now().duration_since(server);
        if ahead <= CLOCKS_APART || server < EARLIEST {
            return Some(SignedDuration::ZERO);
        }
        told.push(ahead);
    }
    let Some(least) = agreed_at_start(&told) else { return Some(SignedDuration::ZERO) };
    let kept = kept_time.facts.clock.now();
    let right = kept.saturating_sub(least).unwrap_or(kept);
    set(kept_time, right, kept, right);
    Some(least)
}

/// How far answers of one moment say that the time is ahead, if they agree with each other.
fn agreed_at_start(told: &[SignedDuration]) -> Option<SignedDuration> {
    let (least, most) = (told.iter().min()?, told.iter().max()?);
    (most.saturating_sub(*least) <= CLOCKS_APART).then_some(*least)
}

/// Compares the clocks until it is dropped. `held_back` is what [`align`] has returned: if the API server
/// did not tell its time, it is asked until it does.
///
/// The time that is kept was this machine's when the process began. Whatever the machine's clock has
/// stepped since is a step, also if it was before this.
pub(crate) fn run(
    kept_time: KeptTime,
    api: Api,
    held_back: Option<SignedDuration>,
    mut skew: Skew,
    wall: impl Fn() -> Timestamp,
) -> impl Future<Output = ()> {
    // Up to when the time that is kept is known to have been right, by the API server's word; whatever
    // came before the start was not seen by this process.
    let mut right_until = kept_time.facts.clock.now();
    async move {
        // How far the machine's clock is ahead of the time that is kept, when last in accord.
        let offset_now = || wall().duration_since(kept_time.facts.clock.now());
        let mut known = held_back.unwrap_or_default();
        let mut aligned = held_back.is_some();
        let mut witnesses = Witnesses::default();
        // Whether the API server agreed with the time that is kept when it was asked last.
        let mut in_accord = false;
        // Up to when what was seen was not seen while the time is held back, if it is.
        let mut held_since = (known > CLOCKS_APART).then_some(right_until);
        // Until when it is held back by the answers at the start alone.
        let mut unconfirmed = held_since.map(|_| Instant::now() + UNCONFIRMED);
        let mut confirming = Witnesses::default();
        let mut next_question = Instant::now() + if aligned { ASKED_EVERY } else { EVERY };
        loop {
            tokio::time::sleep(EVERY).await;
            let step = offset_now().saturating_sub(known);
            let is_steady = step.abs() < TOLERATED;
            if is_steady && in_accord {
                right_until = kept_time.facts.clock.now();
            }
            if !aligned {
                let held = align(&kept_time, &api, &mut skew, &wall).await;
                aligned = held.is_some();
                if let Some(held) = held.filter(|held| !held.is_zero()) {
                    // What was seen until now counts as seen at that moment.
                    let since = kept_time.facts.clock.now().saturating_sub(TOLERATED);
                    held_since = Some(since.unwrap_or(right_until));
                    unconfirmed = Some(Instant::now() + UNCONFIRMED);
                    // A step of the machine's clock meanwhile is still one.
                    known = known.saturating_add(held);
                }
                next_question = Instant::now() + ASKED_EVERY;
                continue;
            }
            if let Some(since) = held_since
                && unconfirmed.is_some_and(|until| until <= Instant::now())
            {
                let (kept, system) = (kept_time.facts.clock.now(), wall());
                let let_go = system.saturating_sub(step).unwrap_or(system).min(system).max(kept);
                warn!(%kept, %let_go, "several minutes of responses do not confirm the API server's time \
                    at startup; using this machine's clock for deadlines again");
                set(&kept_time, since, kept, let_go);
                (held_since, unconfirmed, in_accord) = (None, None, false);
                witnesses.clear();
                known = offset_now();
                continue;
            }
            if !is_steady {
                let pause = if witnesses.is_empty() { Duration::ZERO } else { ASKED_IN_DOUBT };
                next_question = next_question.min(Instant::now() + pause);
            }
            if Instant::now() < next_question {
                continue;
            }
            // Without an answer the time that is kept goes on, and the question stays open.
            let Ok(Some(server)) = api.server_time().await else { continue };
            let (kept, system) = (kept_time.facts.clock.now(), wall());
            skew.tell(system, server);
            kept_time.facts.heard_time(server);
            let step = system.duration_since(kept).saturating_sub(known);
            let stepped = kept.saturating_add(step).unwrap_or(kept);
            next_question = Instant::now() + ASKED_EVERY;
            in_accord = false;
            if unconfirmed.is_some() && confirming.confirm(agree(kept, server)) {
                unconfirmed = None;
            }
            match (Clocks { kept, stepped, server }).rule() {
                Ruling::Keep => {
                    witnesses.clear();
                    if step.abs() >= TOLERATED {
                        warn!(%system, %kept, %server, "this machine's clock stepped, but the API \
                            server disagrees; keeping deadlines as they are");
                    }
                }
                Ruling::Set(right) => {
                    witnesses.clear();
                    set(&kept_time, right_until, kept, right);
                }
                Ruling::Disagree if server < EARLIEST => witnesses.clear(),
                Ruling::Disagree => {
                    let ahead = kept.duration_since(server);
                    let Some(ahead) = witnesses.agreed(Instant::now(), ahead) else { continue };
                    let told = kept.saturating_sub(ahead).unwrap_or(kept);
                    // Held back, or let go again, but not beyond the machine's clock.
                    let right = told.min(system.max(kept));
                    if right.duration_since(kept).abs() <= CLOCKS_APART {
                        continue;
                    }
                    witnesses.clear();
                    // Let go, what was seen meanwhile was seen by the time that was held back.
                    let doubtful = held_since.map_or(right_until, |since| since.min(right_until));
                    set(&kept_time, doubtful, kept, right);
                    let is_held = system.duration_since(right) > CLOCKS_APART;
                    held_since = is_held.then_some(held_since.unwrap_or(right).min(right));
                    unconfirmed = None;
                }
            }
            in_accord = agree(kept_time.facts.clock.now(), server);
            if in_accord {
                right_until = kept_time.facts.clock.now();
            }
            known = offset_now();
        }
    }
}

/// Sets the time that is kept, which may have been wrong since `doubtful`.
fn set(kept_time: &KeptTime, doubtful: Timestamp, kept: Timestamp, right: Timestamp) {
    let KeptTime { facts, queues, schedule } = kept_time;
    let set_right = |anchors: &Anchors, node: &Node| {
        let anchors = anchor::set_right(anchors, doubtful, kept, right);
        // What the leader has recorded was nonsense by the wrong time, and counts by the right one.
        match recorded(node, right).filter(|_| !queues.leads()) {
            Some(record) => {
                let adopted = anchor::adopted(&anchors, &record);
                anchor::advance(anchor::Past::Recorded(&adopted), node, right)
            }
            None => anchors,
        }
    };
    let mut names = facts.view.node_names();
    // First, or what was seen by the wrong time would be judged by the right one.
    names.retain(|name| facts.view.refresh_node(name, set_right));
    facts.clock.set(right);
    let timers = queues.rearm() + schedule.rearm();
    for name in names {
        queues.node_changed(name);
    }
    info!(%kept, %right, timers, "corrected the time, as several clocks agree; rescheduled timers");
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;
    use crate::clock::Clock;
    use crate::cluster::watch::Source;
    use crate::config::Compat;
    use crate::evict::Holds;
    use crate::model::build::{node, noon, taint};
    use crate::observe::{EventLane, EventMetrics};
    use crate::sim::embedded::{Embedded, Options};

    fn at(text: &str) -> Timestamp {
        format!("2026-01-01T{text}Z").parse().unwrap()
    }

    fn rule(kept: &str, stepped: &str, server: &str) -> Ruling {
        Clocks { kept: at(kept), stepped: at(stepped), server: at(server) }.rule()
    }

    #[test]
    fn a_step_that_the_server_does_not_share_changes_nothing() {
        assert_eq!(rule("12:00:00", "14:00:00", "12:00:01"), Ruling::Keep);
        assert_eq!(rule("12:00:00", "10:00:00", "11:59:58"), Ruling::Keep);
    }

    #[test]
    fn a_machine_that_slept_takes_its_own_time_which_the_server_shares() {
        assert_eq!(rule("12:00:00", "14:00:00", "14:00:02"), Ruling::Set(at("14:00:00")));
        assert_eq!(rule("12:00:00", "10:00:00", "09:59:58"), Ruling::Set(at("10:00:00")));
    }

    #[test]
    fn the_time_goes_forward_only_as_far_as_both_clocks_say() {
        assert_eq!(rule("12:00:00", "14:00:00", "14:05:00"), Ruling::Set(at("14:00:00")));
        assert_eq!(rule("12:00:00", "14:00:00", "13:00:00"), Ruling::Set(at("13:00:00")));
        assert_eq!(rule("12:00:00", "12:00:00", "13:00:00"), Ruling::Disagree);
        assert_eq!(rule("12:00:00", "14:00:00", "09:00:00"), Ruling::Disagree);
    }

    #[tokio::test(start_paused = true)]
    async fn several_answers_of_some_minutes_are_needed_to_agree_on_a_difference() {
        let mut witnesses = Witnesses::default();
        let hour = SignedDuration::from_hours(1);
        let mut found = Vec::new();
        for _ in 0..5 {
            found.push(witnesses.agreed(Instant::now(), hour));
            tokio::time::advance(ASKED_EVERY).await;
        }
        assert_eq!(found, [None, None, None, None, Some(hour)]);
        let other = SignedDuration::from_mins(30);
        assert_eq!(witnesses.agreed(Instant::now(), other), None, "another one begins anew");
        for _ in 0..20 {
            assert_eq!(witnesses.agreed(Instant::now(), other), None, "all at the same moment");
        }
    }

    #[test]
    fn answers_at_the_start_that_differ_hold_nothing_back() {
        let told = |seconds: [i64; 3]| agreed_at_start(&seconds.map(SignedDuration::from_secs));
        assert_eq!(told([3600, 3601, 3605]), Some(SignedDuration::from_secs(3600)));
        assert_eq!(told([3600, 3606, 3600]), None);
        assert_eq!(told([3600, 30, 7200]), None);
    }

    impl KeptTime {
        fn starting_by(clock: Clock) -> Self {
            let queues = Arc::<WorkQueues>::default();
            let schedule = Schedule::new(clock.clone(), Arc::clone(&queues), Holds::default());
            let facts = Arc::new(Facts::new(clock, Compat::None));
            Self { facts, queues, schedule: Arc::new(schedule) }
        }
    }

    /// The time of a controller whose clock shows noon.
    fn kept_time() -> KeptTime {
        let clock = Clock::starting_at(noon());
        KeptTime::starting_by(clock)
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_seen_while_the_clock_was_behind_counts_from_when_it_was_seen() {
        let kept_time = kept_time();
        kept_time.facts.store_node(node("n1").tainted(taint("k", "")), Source::Watch, false);
        set(&kept_time, noon(), noon(), at("13:00:00"));
        let (_, anchors) = kept_time.facts.view.node_alone(&"n1".into()).unwrap();
        assert_eq!(anchors.first_seen[0].since.written(), at("13:00:00"));
        assert_eq!(kept_time.facts.clock.now(), at("13:00:00"));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_stands_by_and_slept_counts_as_the_leader_has_recorded_meanwhile() {
        let kept_time = kept_time();
        let record = |since: &str| {
            format!(r#"{{"taints":[{{"key":"k","value":"","since":"2026-01-01T{since}Z"}}]}}"#)
        };
        kept_time.facts.store_node(node("n1"), Source::List, false);
        // Seen at 13:00, while its own clock still shows noon.
        let tainted = node("n1").tainted(taint("k", ""));
        let tainted = tainted.annotated(Some(&record("12:30:00")));
        kept_time.facts.store_node(tainted, Source::Watch, false);
        set(&kept_time, noon(), noon(), at("13:00:00"));
        let (_, anchors) = kept_time.facts.view.node_alone(&"n1".into()).unwrap();
        assert_eq!(anchors.first_seen[0].since.written(), at("12:30:00"));
    }

    const NOT_HELD_BACK: Option<SignedDuration> = Some(SignedDuration::ZERO);

    /// A controller whose clock shows noon, and an API server whose clock shows something else.
    struct Bench {
        kept_time: KeptTime,
        cluster: Embedded,
        api: Api,
        registry: Registry,
        readiness: Readiness,
        events: EventLane,
        skew: Option<Skew>,
        /// How far the machine's wall clock has stepped, in seconds.
        step: Arc<AtomicI64>,
    }

    impl Bench {
        fn new(server: &str) -> Self {
            let registry = Registry::new();
            let clock = Clock::starting_at(noon());
            let metrics = EventMetrics::register(&registry).unwrap();
            let (recorder, events) = Recorder::new("test", metrics, clock.clone());
            let kept_time = KeptTime::starting_by(clock);
            let cluster = Embedded::new(Clock::starting_at(at(server)), Options::default());
            let metrics = crate::cluster::Metrics::register(&registry).unwrap();
            let api = Api::new(cluster.client(), metrics);
            let lease = Some("kube-system".to_owned());
            let mut skew = Skew::register(&registry, recorder, lease).unwrap();
            let readiness = Readiness::default();
            skew.beside(&readiness);
            let (skew, step) = (Some(skew), Arc::default());
            Self { kept_time, cluster, api, registry, readiness, events, skew, step }
        }

        /// The machine's clock: it began at noon and goes right but for its steps.
        fn wall(&self) -> impl Fn() -> Timestamp + use<> {
            let step = Arc::clone(&self.step);
            let clock = Clock::starting_at(self.kept_time.facts.clock.now());
            move || clock.now() + SignedDuration::from_secs(step.load(Ordering::Relaxed))
        }

        async fn align(&mut self) -> Option<SignedDuration> {
            let wall = self.wall();
            let mut skew = self.skew.take().unwrap();
            let held_back = align(&self.kept_time, &self.api, &mut skew, wall).await;
            self.skew = Some(skew);
            held_back
        }

        /// How far the time that is kept is ahead of the server's, in seconds.
        fn ahead(&self) -> i64 {
            let server = self.cluster.store().clock().now();
            self.kept_time.facts.clock.now().duration_since(server).as_secs()
        }

        /// Whether the gauge shows so many seconds; a `Date` is cut off.
        fn shows(&self, seconds: f64) -> bool {
            let families = self.registry.gather();
            let skew = families.iter().find(|f| f.name() == "ostrakon_clock_skew_seconds").unwrap();
            (skew.get_metric()[0].get_gauge().get_value() - seconds).abs() <= 1.0
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_answer_that_is_an_hour_ahead_moves_no_deadline_and_is_reported() {
        let mut bench = Bench::new("12:00:00");
        let (wall, skew) = (bench.wall(), bench.skew.take().unwrap());
        let watch = run(bench.kept_time.clone(), bench.api.clone(), NOT_HELD_BACK, skew, wall);
        let watch = tokio::spawn(watch);
        let truth = bench.cluster.store().clock().clone();
        tokio::time::sleep(Duration::from_secs(55)).await;
        truth.set(truth.now() + SignedDuration::from_hours(1));
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(bench.shows(-3600.0));
        assert!(bench.readiness.notes()[0].contains("3600 s behind"), "{:?}", bench.readiness);
        assert!(bench.events.take_messages()[0].contains("3600 s behind"));
        truth.set(truth.now() - SignedDuration::from_hours(1));
        tokio::time::sleep(Duration::from_secs(70)).await;
        assert!(bench.ahead() == 0 && bench.shows(0.0));
        assert!(bench.readiness.notes().is_empty());
        assert_eq!(bench.kept_time.facts.clock.now(), at("12:02:15"));
        watch.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_of_the_machines_clock_before_the_first_answer_is_not_forgotten() {
        let mut bench = Bench::new("13:00:00");
        bench.cluster.faults().set_down(true);
        let (wall, skew) = (bench.wall(), bench.skew.take().unwrap());
        let watch = run(bench.kept_time.clone(), bench.api.clone(), None, skew, wall);
        let watch = tokio::spawn(watch);
        tokio::time::sleep(Duration::from_secs(20)).await;
        bench.step.store(3600, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(bench.ahead(), -3600, "nobody confirms it");
        bench.cluster.faults().set_down(false);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(bench.ahead(), 0);
        watch.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_between_the_start_and_the_first_comparison_is_one_too() {
        // As when a machine has booted with a wrong clock, which NTP sets while the API server is waited
        // for.
        let mut bench = Bench::new("13:00:00");
        let wall = bench.wall();
        bench.step.store(3600, Ordering::Relaxed);
        let held_back = bench.align().await;
        let skew = bench.skew.take().unwrap();
        let watch = run(bench.kept_time.clone(), bench.api.clone(), held_back, skew, wall);
        let watch = tokio::spawn(watch);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(bench.ahead(), 0);
        watch.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_goes_before_this_machines_clock_says_so_whatever_all_answers_say() {
        let mut bench = Bench::new("13:00:00");
        let held_back = bench.align().await;
        assert!(held_back.is_some());
        let (wall, skew) = (bench.wall(), bench.skew.take().unwrap());
        let watch =
            tokio::spawn(run(bench.kept_time.clone(), bench.api.clone(), held_back, skew, wall));
        tokio::time::sleep(Duration::from_mins(90)).await;
        assert_eq!(bench.kept_time.facts.clock.now(), at("13:30:00"));
        assert!(bench.shows(-3600.0));
        assert_eq!(bench.events.take_messages().len(), 1, "it is said once");
        watch.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_ahead_is_held_back_at_the_start_and_later_by_answers_of_some_minutes()
    {
        let mut bench = Bench::new("11:00:00");
        let wall = bench.wall();
        let held_back = bench.align().await;
        assert!(held_back.is_some());
        assert_eq!(bench.ahead(), 0);
        let truth = bench.cluster.store().clock().clone();
        truth.set(truth.now() - SignedDuration::from_secs(100));
        let skew = bench.skew.take().unwrap();
        let watch =
            tokio::spawn(run(bench.kept_time.clone(), bench.api.clone(), held_back, skew, wall));
        tokio::time::sleep(Duration::from_secs(200)).await;
        assert_eq!(bench.ahead(), 100, "too few agree");
        tokio::time::sleep(Duration::from_secs(150)).await;
        assert_eq!(bench.ahead(), 0);
        watch.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_slept_goes_on_with_the_time_that_both_clocks_say() {
        let mut bench = Bench::new("12:00:00");
        let (wall, skew) = (bench.wall(), bench.skew.take().unwrap());
        let watch = tokio::spawn(run(
            bench.kept_time.clone(),
            bench.api.clone(),
            NOT_HELD_BACK,
            skew,
            wall,
        ));
        tokio::time::sleep(Duration::from_secs(5)).await;
        let truth = bench.cluster.store().clock().clone();
        truth.set(truth.now() + SignedDuration::from_hours(2));
        bench.step.store(7200, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(bench.ahead(), 0);
        // An hour that only the machine's clock claims is none.
        bench.step.store(10_800, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(200)).await;
        assert_eq!(bench.ahead(), 0);
        watch.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_before_this_program_was_written_holds_nothing_back() {
        let mut bench = Bench::new("12:00:00");
        let truth = bench.cluster.store().clock().clone();
        truth.set("1970-01-01T00:00:00Z".parse().unwrap());
        let wall = bench.wall();
        let held_back = bench.align().await;
        assert!(held_back.is_some());
        assert_eq!(bench.kept_time.facts.clock.now(), at("12:00:00"));
        let skew = bench.skew.take().unwrap();
        let watch =
            tokio::spawn(run(bench.kept_time.clone(), bench.api.clone(), held_back, skew, wall));
        tokio::time::sleep(Duration::from_mins(30)).await;
        assert_eq!(bench.kept_time.facts.clock.now(), at("12:30:00"));
        assert_eq!(bench.events.take_messages().len(), 1, "it is reported");
        watch.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_start_held_back_is_let_go_after_minutes_of_answers_that_do_not_bear_it_out() {
        let mut bench = Bench::new("11:00:00");
        let wall = bench.wall();
        let held_back = bench.align().await;
        assert!(held_back.is_some());
        let begin = Instant::now();
        let skew = bench.skew.take().unwrap();
        let watch =
            tokio::spawn(run(bench.kept_time.clone(), bench.api.clone(), held_back, skew, wall));
        let truth = bench.cluster.store().clock().clone();
        tokio::time::sleep(Duration::from_secs(90)).await;
        bench.kept_time.facts.store_node(node("n1").tainted(taint("k", "")), Source::Watch, false);
        // From now on every other answer tells the right time: no answers of some minutes agree.
        for at_truth in [true, false].repeat(4) {
            let hour = SignedDuration::from_hours(1);
            truth.set(if at_truth { truth.now() + hour } else { truth.now() - hour });
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        assert!(begin.elapsed() < Duration::from_mins(10));
        assert_eq!(bench.kept_time.facts.clock.now(), noon() + SignedDuration::from_secs(570));
        let (_, anchors) = bench.kept_time.facts.view.node_alone(&"n1".into()).unwrap();
        let since = anchors.first_seen[0].since.written();
        assert_eq!(
            since,
            at("12:01:30"),
            "what was seen meanwhile does not count from an hour earlier"
        );
        watch.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_that_answers_of_some_minutes_bear_out_goes_on_being_held_back() {
        let mut bench = Bench::new("11:00:00");
        let wall = bench.wall();
        let held_back = bench.align().await;
        assert!(held_back.is_some());
        let skew = bench.skew.take().unwrap();
        let watch =
            tokio::spawn(run(bench.kept_time.clone(), bench.api.clone(), held_back, skew, wall));
        tokio::time::sleep(Duration::from_mins(60)).await;
        assert_eq!(bench.ahead(), 0);
        watch.abort();
    }
}
