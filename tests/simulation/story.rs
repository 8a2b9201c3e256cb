//! One story: what happens to the cluster, and what goes wrong on the way.

mod cluster;
mod drains;
mod faults;
pub(super) mod hostile;
mod leases;
mod pauses;
mod policies;
pub(super) mod rules;
mod taints;
mod twins;

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ostrakon::clock::Clock;
use ostrakon::drain::Policy;
use ostrakon::sim::embedded::{Embedded, Observed, Options};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use prometheus::proto::MetricFamily;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::spawn_local;
use tokio::time::sleep;
use tracing::trace;

use self::hostile::Hostile;
pub(super) use self::twins::twins;
use super::mutants::Broken;
use super::observer::rules::Fate as Becomes;
use super::observer::{Drains, Observer, seconds, words};
use super::replica::{End, Replica};
use crate::time::{at, noon};

/// Steps of a story.
const STEPS: u32 = 30;
/// Longest toleration in a story, in seconds.
const LONGEST: i64 = 30;
/// How late a pod may go in a calm story, counted from when its deadline and a leader are there: a
/// binding is stored in whole seconds, and a record within a second of what it records.
const LATE: f64 = 2.2;
/// How late it may go before any replica has been restarted: nothing then depends on records.
const PROMPT: f64 = 1.1;
/// How late the end of a pause may be seen.
const SEEN: f64 = 1.1;
/// The longest pause between tries, and a little.
const LONGEST_PAUSE: f64 = 121.0;
/// Until a replica leads after the others have died: last words, a start, a lease, and a look.
const TAKE_OVER: f64 = 32.0;
/// Until a list is given up that was never answered. Where both replicas wait for one, nobody knows enough
/// to lead.
const UNANSWERED: f64 = 60.0;

const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// Those of a story of drains: so many that a cap can be anything.
const ALL_NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
const OUTAGE: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// What a story came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Played {
    /// Pods that were deleted by a controller.
    pub(super) evicted: usize,
    /// Processes that wrote.
    pub(super) writers: usize,
    /// Drains that came to their end.
    pub(super) drained: usize,
    /// How often somebody paused.
    pub(super) pauses: usize,
    /// The store's last version: the same for the same story.
    version: u64,
}

/// What stories are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Taints,
    /// Taints for which there are rules, and a budget.
    Rules,
    Drains,
    /// Drains in whose way budgets, protections and webhooks are.
    Budgets,
}

/// Plays a story, and says what it came to or what was wrong.
pub(super) fn play(subject: Subject, seed: u64, broken: Broken) -> Result<Played, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let here = tokio::task::LocalSet::new();
    here.block_on(&runtime, async { Story::new(subject, seed, broken).play().await })
}

#[allow(clippy::struct_excessive_bools, reason = "each is a trait of the story")]
struct Story {
    random: StdRng,
    /// For what is independent of the rest of the story.
    mischief: StdRng,
    cluster: Embedded,
    outside: Arc<Mutex<Outside>>,
    replicas: Vec<Replica>,
    subject: Subject,
    broken: Broken,
    /// No faults and no lag.
    calm: bool,
    /// Calm, and no replica is restarted.
    steady: bool,
    restarted: bool,
    serial: u64,
    /// Before it ends, the store is restored from a backup.
    rewinds: bool,
    /// Somebody pauses and resumes.
    pauses: Option<pauses::Chances>,
    /// Nobody wants a pause any more.
    is_resumed: bool,
    /// A node and a tenant that write what others never would.
    hostile: Option<Hostile>,
    /// Those of cordon and drain; none in stories of taints.
    policies: Vec<Policy>,
    /// Nodes of whose conditions nothing is heard.
    silent: BTreeSet<&'static str>,
    /// What each step has found.
    scenes: Vec<twins::Scene>,
}

/// The observer, and what it has not heard yet.
struct Outside {
    observer: Observer,
    observed: UnboundedReceiver<Observed>,
}

impl Outside {
    fn hear(&mut self, observed: &Observed) {
        match observed {
            Observed::Changed(change) => {
                trace!(current = %change.current, deleted = change.deleted, "stored");
                self.observer.changed(change);
            }
            Observed::Answered(audited) => {
                let now = seconds(audited.at);
                let (method, uri) = (audited.request.method(), audited.request.uri());
                trace!(now, %method, %uri, code = audited.code, "asked");
                self.observer.audited(audited, now);
            }
        }
    }

    /// Has the observer hear all that happened up to now.
    fn catch_up(&mut self) {
        while let Ok(observed) = self.observed.try_recv() {
            self.hear(&observed);
        }
    }

    /// Has it hear of everything as it happens.
    fn keep_up(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while let Poll::Ready(Some(observed)) = self.observed.poll_recv(context) {
            self.hear(&observed);
        }
        Poll::Pending
    }
}

type Verified = Result<(), String>;

impl Story {
    fn new(subject: Subject, seed: u64, broken: Broken) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let options = Options {
            seed,
            default_toleration_seconds: None,
            taint_new_nodes: false,
            streaming_lists: random.random_bool(0.8),
            ..Options::default()
        };
        let cluster = Embedded::new(Clock::starting_at(noon()), options);
        let calm = random.random_bool(0.3);
        let mut observer = Observer::of_story(calm);
        let mut policies = Vec::new();
        if subject == Subject::Rules {
            observer.rules = rules::rules(seed);
        }
        if matches!(subject, Subject::Drains | Subject::Budgets) {
            policies = policies::policies(&mut random);
            if subject == Subject::Budgets {
                policies::with_ways_to_treat_the_undrainable(&mut policies, seed);
            }
            observer.drains = Some(Drains::new(policies.clone(), calm));
        }
        // By a chance of its own: with or without it, the rest of the story is the same.
        let mut other = StdRng::seed_from_u64(seed ^ 0x0068_6f73_7469_6c65);
        let rewinds = subject == Subject::Taints && other.random_bool(0.1);
        let is_hostile = subject == Subject::Taints && other.random_bool(0.05);
        let hostile = is_hostile.then(|| Hostile::new(other));
        let steady = StdRng::seed_from_u64(seed ^ 0x0073_7465_6164_7900).random_bool(0.3);
        let outside = Outside { observer, observed: cluster.follow() };
        let outside = Arc::new(Mutex::new(outside));
        let watching = Arc::clone(&outside);
        // So that a replay tells of them in their order.
        spawn_local(poll_fn(move |context| watching.lock().keep_up(context)));
        Self {
            random,
            mischief: StdRng::seed_from_u64(!seed),
            cluster,
            outside,
            replicas: Vec::new(),
            subject,
            broken,
            calm,
            steady: calm && steady && subject == Subject::Taints,
            restarted: false,
            serial: 0,
            rewinds,
            pauses: pauses::Chances::new(seed).filter(|_| !rewinds),
            is_resumed: false,
            hostile,
            policies,
            silent: BTreeSet::new(),
            scenes: Vec::new(),
        }
    }

    fn now(&self) -> f64 {
        seconds(self.cluster.store().clock().now())
    }

    /// The observer, which knows all that happened up to now.
    fn observer(&self) -> MappedMutexGuard<'_, Observer> {
        let mut outside = self.outside.lock();
        outside.catch_up();
        MutexGuard::map(outside, |outside| &mut outside.observer)
    }

    async fn play(mut self) -> Result<Played, String> {
        self.run().await?;
        let observer = self.observer();
        let drained = observer.drained();
        let version = self.cluster.store().version();
        Ok(Played {
            evicted: observer.evicted(),
            writers: observer.writers(),
            drained,
            pauses: observer.pauses(),
            version,
        })
    }

    async fn run(&mut self) -> Verified {
        let is_of_drains = !self.policies.is_empty();
        let names = if is_of_drains { &ALL_NODES[..] } else { &NODES };
        for name in names {
            self.create_node(name);
        }
        if is_of_drains {
            self.set_drain_scene();
        }
        self.release_lease();
        for index in 0..2 {
            let rules = self.observer().rules.clone();
            let settings = self.broken.settings(&self.policies, &rules);
            let replica = Replica::start(&self.cluster, index, self.broken, settings);
            self.replicas.push(replica);
            self.pass(0.3).await?;
        }
        for _ in 0..STEPS {
            self.note_scene();
            if is_of_drains {
                self.drain_step();
            } else if self.subject == Subject::Rules {
                self.rules_step();
            } else {
                self.step();
            }
            if !self.calm && self.mischief.random_bool(0.06) {
                self.meddle_with_lease();
            }
            self.pause_or_resume();
            let time = self.random.random_range(0.0..4.0);
            self.pass(time).await?;
        }
        self.end_pause();
        self.end_hostility();
        if is_of_drains {
            self.drain_end().await?;
        } else {
            self.end().await?;
        }
        self.check_metrics()
    }

    /// A replica is stopped or killed, and started again after a while.
    fn restart(&mut self) {
        if self.steady {
            return;
        }
        self.restarted = true;
        let index = self.random.random_range(0..self.replicas.len());
        let down = Duration::from_millis(self.random.random_range(10..3000));
        let how = match self.random.random_bool(0.5) {
            true => End::Stop(down),
            false if self.mischief.random_bool(0.5) => End::Crash(down),
            false => End::Kill(down),
        };
        self.replicas[index].end(how);
    }

    /// So many seconds before now, as the API stores times.
    fn ago(&self, seconds_ago: i64) -> String {
        #[allow(clippy::cast_possible_truncation)] // Minutes at most.
        let now = self.now() as i64;
        at(now - seconds_ago).to_string()
    }

    /// Time passes, in pieces; after each the observer is asked.
    async fn pass(&mut self, time: f64) -> Verified {
        let end = self.now() + time;
        while self.now() < end {
            let left = Duration::from_secs_f64((end - self.now()).clamp(0.001, 1.0));
            sleep(left).await;
            self.see_to_resumption();
            self.kubelets();
            self.disruption_controller();
            self.heartbeats();
            self.harass();
            self.check()?;
        }
        Ok(())
    }

    fn check(&mut self) -> Verified {
        let now = self.now();
        let late = if self.restarted { LATE } else { PROMPT };
        let mut observer = self.observer();
        observer.verdict()?;
        if self.calm {
            let (leader, since) = observer.leader();
            let leads = self.replicas.iter().any(|replica| replica.works_as(leader));
            // Whoever leads now began with what was overdue.
            if leads
                && now - since > late
                && !observer.was_paused(now, late + SEEN)
                && let Some(pod) = observer.overdue(Becomes::Deleted, now - late)
            {
                return Err(format!("P3: {pod} and is there at {now:.3}; {leader:?} leads"));
            }
        }
        Ok(())
    }

    /// A pod that had to go and is there.
    fn overdue(&self) -> Option<String> {
        self.observer().overdue(Becomes::Due, self.now() - LATE)
    }

    /// What a replica says is to go although nothing is left that has to.
    fn left(&self) -> Option<String> {
        let pods: f64 = self.replicas.iter().map(|it| it.gauge("ostrakon_backlog_pods")).sum();
        (pods > 0.0).then(|| format!("the backlog is said to hold {pods} pods"))
    }

    /// P7: the metrics are those of the documentation.
    fn check_metrics(&self) -> Verified {
        for served in self.replicas.iter().map(Replica::metrics) {
            let names: Vec<_> = served.iter().map(MetricFamily::name).collect();
            if !names.is_empty() {
                words::metrics(&names, !self.policies.is_empty())?;
            }
        }
        Ok(())
    }

    /// Time passes until a replica leads.
    async fn pass_until_led(&mut self) -> Verified {
        let wait = if self.calm { TAKE_OVER } else { TAKE_OVER + UNANSWERED };
        let latest = self.now() + wait;
        while self.now() < latest {
            self.pass(0.5).await?;
            let observer = self.observer();
            let (leader, _) = observer.leader();
            if self.replicas.iter().any(|replica| replica.works_as(leader)) {
                return Ok(());
            }
        }
        match self.broken {
            Broken::DoesNotElect => Ok(()),
            _ => Err(format!("P2: nobody leads within {wait} s")),
        }
    }
}
