//! Simulation: seeded histories of a small cluster, with an observer that knows only what the
//! cluster stored and when, never what the controller knows.
//!
//! Each seed makes a random story: taints come and go, pods are bound, edited, deleted and created
//! again under their names, nodes vanish and return, watches lag, lists replace them, requests are
//! refused, the controller dies and another starts. Everything runs in one thread and in virtual
//! time, so a seed is the whole story. The observer checks after each step:
//!
//! - **no wrong eviction**: whenever a deletion is asked for, the pod was condemned by what was
//!   stored within the last second (that old may what was read of a node be);
//! - **no lost eviction**: once the faults are over and time has passed, no condemned pod is left,
//!   nothing counts down and the backlog is empty;
//! - **deadlines are what the API stores**: in stories without faults and lag, but with restarts, a
//!   pod goes at its deadline and not later.
//!
//! The simulation on the embedded cluster (`tests/simulation`) tells the same of two whole
//! replicas. What this one alone shows: with nothing between the cluster and the controller
//! but the order in which events are seen, a calm story allows for no lag at all, neither for what a
//! pod is condemned by nor, beyond the second that times are stored in, for when it goes; and watches
//! lag behind one another event by event.
//!
//! `OSTRAKON_SEED=n cargo test --lib simulation` replays one story;
//! `OSTRAKON_SEEDS=n` runs that many.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::model::build::{exists, node, pod, taint};
use crate::model::{Stamp, Taint, Toleration};

/// Stories in the test command.
const SEEDS: u64 = 10_000;
/// Steps of a story.
const STEPS: u32 = 40;
/// Longest toleration in a story, in seconds.
const LONGEST: i64 = 30;
/// For how long what was read of a node may be used, and a little for the clocks.
const SHARED: f64 = 1.01;
/// How late a pod may go in a calm story. A binding is stored in whole seconds, so the first sight of
/// a taint after a restart may lie between a binding's second and the binding itself.
const LATE: f64 = 1.1;
/// The longest pause between tries, and a little.
const LONGEST_PAUSE: f64 = 121.0;

/// What the cluster stored of a node, from when on.
struct NodeState {
    from: f64,
    /// Absent while there is no such node.
    taints: Option<Vec<(Taint, f64)>>,
}

/// What the cluster stored of a pod, from when on.
struct PodState {
    from: f64,
    tolerations: Arc<[Toleration]>,
    bound: f64,
    node: String,
}

/// All that was stored.
#[derive(Default)]
struct History {
    nodes: BTreeMap<String, Vec<NodeState>>,
    pods: BTreeMap<Uid, Vec<PodState>>,
}

/// An event on its way to the controller.
enum Event {
    Node(Node),
    NodeGone(NodeName, Uid),
    Pod(Pod),
    PodGone(NodeName, Uid),
}

struct Story {
    random: StdRng,
    stage: Stage,
    history: History,
    /// Events of nodes and of pods that were not seen yet; each kind keeps its order.
    coming: [VecDeque<Event>; 2],
    /// No faults and no lag.
    calm: bool,
    restarted: bool,
    serial: u128,
    checked: usize,
    /// Deletions that were asked for.
    evicted: usize,
}

type Verified = Result<(), String>;

/// When a pod with these tolerations has to go from a node with these taints; `None`: never.
/// Written from the rules, not with the controller's code.
fn deadline(taints: &[(Taint, f64)], pod: &PodState) -> Option<f64> {
    let of_taint = |(taint, put_on): &(Taint, f64)| {
        let fits = |t: &&Toleration| t.key.is_empty() || t.key == taint.key;
        let Some(toleration) = pod.tolerations.iter().find(fits) else { return Some(f64::MIN) };
        let since = taint.time_added.map_or(*put_on, end);
        match toleration.seconds {
            None => None,
            Some(..=0) => Some(f64::MIN),
            #[allow(clippy::cast_precision_loss)] // At most 30.
            Some(seconds) => Some(since.max(pod.bound) + seconds as f64),
        }
    };
    taints.iter().filter_map(of_taint).min_by(f64::total_cmp)
}

/// When a thing had happened for certain of which this was stored: a whole second was cut off.
fn end(stamp: Stamp) -> f64 {
    seconds(stamp.latest())
}

fn seconds(moment: Timestamp) -> f64 {
    moment.duration_since(noon()).as_secs_f64()
}

impl History {
    /// Whether the pod was condemned at `now` by any state that was stored within `window` before.
    fn condemned(&self, uid: Uid, now: f64, window: f64) -> bool {
        let Some(pods) = self.pods.get(&uid) else { return false };
        let recent = |from: f64, next: Option<f64>| {
            from <= now && next.is_none_or(|next| next >= now - window)
        };
        pods.iter().enumerate().any(|(i, pod)| {
            let nodes = self.nodes.get(&pod.node).map_or(&[][..], Vec::as_slice);
            recent(pod.from, pods.get(i + 1).map(|next| next.from))
                && nodes.iter().enumerate().any(|(j, node)| {
                    recent(node.from, nodes.get(j + 1).map(|next| next.from))
                        && node
                            .taints
                            .as_ref()
                            .and_then(|taints| deadline(taints, pod))
                            .is_some_and(|deadline| deadline <= now + 1e-6)
                })
        })
    }

    /// When a pod that is there has to go by what is stored; `None`: it stays.
    fn due(&self, uid: Uid) -> Option<f64> {
        let pod = self.pods.get(&uid)?.last()?;
        let node = self.nodes.get(&pod.node)?.last()?;
        deadline(node.taints.as_ref()?, pod)
    }

    fn taints(&self, name: &str) -> Option<Vec<(Taint, f64)>> {
        self.nodes.get(name)?.last()?.taints.clone()
    }
}

impl Story {
    fn new(seed: u64, broken: Broken) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let compat = match broken {
            Broken::CountsFromObservation => Compat::Upstream,
            _ => Compat::None,
        };
        let clock = Clock::starting_at(noon());
        Self {
            calm: random.random_bool(0.3),
            stage: Stage::starting(compat, clock, Arc::default(), broken).seen_late(),
            random,
            history: History::default(),
            coming: Default::default(),
            restarted: false,
            serial: 1,
            checked: 0,
            evicted: 0,
        }
    }

    fn now(&self) -> f64 {
        seconds(self.stage.clock.now())
    }

    async fn play(mut self) -> Result<usize, String> {
        for name in ["n1", "n2", "n3"] {
            self.store_node(name, Some(vec![]));
        }
        for _ in 0..STEPS {
            self.step().await;
            self.deliver().await;
            self.check()?;
            self.pass().await?;
        }
        self.end().await?;
        Ok(self.evicted)
    }

    /// One random thing happens.
    async fn step(&mut self) {
        let name = ["n1", "n2", "n3"][self.random.random_range(0..3)];
        let taints = self.history.taints(name);
        match (self.random.random_range(0..100), taints) {
            (0..30, _) => self.bind(name),
            (30..50, Some(mut taints)) => {
                let new = self.taint();
                let moved = taints.iter_mut().find(|(taint, _)| taint.key == new.key);
                match moved {
                    Some(known) => known.0 = new,
                    None => taints.push((new, self.now())),
                }
                self.store_node(name, Some(taints));
            }
            (50..68, Some(mut taints)) if !taints.is_empty() => {
                let gone = self.random.random_range(0..taints.len());
                taints.remove(gone);
                self.store_node(name, Some(taints));
            }
            (68..72, Some(_)) => self.store_node(name, None),
            (68..72, None) => self.store_node(name, Some(vec![])),
            (72..80, _) => self.replace(),
            // A first sight that no deadline depends on is not kept through a restart: one that
            // comes to depend on it later is counted from the restart, and not exact.
            (80..86, _) if !(self.calm && self.restarted) => self.edit(),
            (86..92, _) => self.restart().await,
            (92..95, _) => self.relist().await,
            (95..98, _) if !self.calm => self.stage.deny(FailureKind::Server),
            (98..100, _) => self.stage.allow(),
            _ => {}
        }
    }

    fn taint(&mut self) -> Taint {
        if self.random.random_bool(0.5) {
            // One that does not tell when it was put on; never the same one twice, since one that
            // result and came back while nobody watched cannot be told from one that stayed.
            self.serial += 1;
            taint(&format!("u{}", self.serial), "")
        } else {
            let key = ["a", "b"][self.random.random_range(0..2)];
            #[allow(clippy::cast_possible_truncation)] // Minutes at most.
            let now = self.now() as i64;
            taint(key, "").added_at(now - self.random.random_range(0..20))
        }
    }

    fn tolerations(&mut self) -> Arc<[Toleration]> {
        let count = self.random.random_range(0..3);
        (0..count)
            .map(|_| {
                let toleration = exists(["a", "b", "", ""][self.random.random_range(0..4)]);
                match self.random.random_range(0..10) {
                    0..2 => toleration,
                    2 => toleration.lasting(0),
                    _ => toleration.lasting(self.random.random_range(1..=LONGEST)),
                }
            })
            .collect()
    }

    /// A pod is bound, under a name that is free.
    fn bind(&mut self, node: &str) {
        let name = format!("web-{}", self.random.random_range(0..6));
        let taken = self.stage.cluster.lock().pods.values().any(|pod| *pod.name == *name);
        if !taken {
            self.create(&name, node);
        }
    }

    fn create(&mut self, name: &str, node: &str) {
        self.serial += 1;
        #[allow(clippy::cast_possible_truncation)]
        let bound = self.now() as i64;
        let created = Pod {
            uid: Uid(self.serial),
            tolerations: self.tolerations(),
            ..pod(name).on(node).bound_at(bound)
        };
        self.store_pod(created);
    }

    /// A pod is deleted by its owner, and mostly created again under its name at once.
    fn replace(&mut self) {
        let Some(old) = self.some_pod() else { return };
        self.stage.cluster.lock().pods.remove(&old.uid);
        self.coming[1].push_back(Event::PodGone(old.node.clone(), old.uid));
        if self.random.random_bool(0.8) {
            let node = ["n1", "n2", "n3"][self.random.random_range(0..3)];
            self.create(&old.name, node);
        }
    }

    fn edit(&mut self) {
        if let Some(pod) = self.some_pod() {
            let tolerations = self.tolerations();
            self.store_pod(Pod { tolerations, ..pod });
        }
    }

    fn some_pod(&mut self) -> Option<Pod> {
        let pods: Vec<_> = self.stage.cluster.lock().pods.values().cloned().collect();
        (!pods.is_empty()).then(|| pods[self.random.random_range(0..pods.len())].clone())
    }

    fn store_pod(&mut self, pod: Pod) {
        let from = self.now();
        self.history.pods.entry(pod.uid).or_default().push(PodState {
            from,
            tolerations: Arc::clone(&pod.tolerations),
            bound: end(pod.bound),
            node: pod.node.to_string(),
        });
        self.stage.cluster.lock().pods.insert(pod.uid, pod.clone());
        self.coming[1].push_back(Event::Pod(pod));
    }

    /// Stores a node with these taints, or removes it.
    fn store_node(&mut self, name: &str, taints: Option<Vec<(Taint, f64)>>) {
        let from = self.now();
        let mut cluster = self.stage.cluster.lock();
        let before = cluster.nodes.remove(name);
        let event = match (&taints, before) {
            (None, None) => return,
            (None, Some(before)) => Event::NodeGone(before.name, before.uid),
            (Some(taints), before) => {
                let stored =
                    taints.iter().fold(node(name), |n, (taint, _)| n.tainted(taint.clone()));
                let (uid, since_annotation) = before.map_or_else(
                    || {
                        self.serial += 1;
                        (Uid(self.serial << 64), None)
                    },
                    |before| (before.uid, before.since_annotation),
                );
                let stored = Node { uid, since_annotation, ..stored };
                cluster.nodes.insert(name.to_owned(), stored.clone());
                Event::Node(stored)
            }
        };
        drop(cluster);
        self.coming[0].push_back(event);
        let states = self.history.nodes.entry(name.to_owned()).or_default();
        states.push(NodeState { from, taints });
    }

    /// The controller sees some of what is on its way to it; in a calm story, all.
    async fn deliver(&mut self) {
        loop {
            let kind = self.random.random_range(0..2);
            let kind = if self.coming[kind].is_empty() { 1 - kind } else { kind };
            if !self.calm && self.random.random_bool(0.3) {
                break;
            }
            let Some(event) = self.coming[kind].pop_front() else { break };
            let shared = &self.stage.shared;
            match event {
                Event::Node(node) => ingest::take_node(shared, node, Source::Watch),
                Event::NodeGone(name, uid) => ingest::drop_node(shared, &name, uid),
                Event::Pod(pod) => ingest::take_pod(shared, pod),
                Event::PodGone(node, uid) => ingest::drop_pod(shared, &node, uid),
            }
            if self.calm || self.random.random_bool(0.5) {
                self.stage.settle().await;
            }
            if self.calm {
                self.see_deletions();
            }
        }
        self.stage.settle().await;
        if self.calm || self.random.random_bool(0.7) {
            self.write_records();
        }
        self.see_deletions();
    }

    /// What was deleted is on its way to be seen.
    fn see_deletions(&mut self) {
        let cluster = self.stage.cluster.lock();
        for (uid, states) in &self.history.pods {
            let node = NodeName::from(states.last().map_or("", |state| &state.node));
            let known = self.stage.shared.view.pod(&node, *uid).is_some();
            if known && !cluster.pods.contains_key(uid) {
                let coming = self.coming[1].iter().any(|event| match event {
                    Event::PodGone(_, gone) => gone == uid,
                    _ => false,
                });
                if !coming {
                    self.coming[1].push_back(Event::PodGone(node, *uid));
                }
            }
        }
    }

    /// The record lane writes what the controller wants to be kept.
    fn write_records(&mut self) {
        let mut cluster = self.stage.cluster.lock();
        for stored in cluster.nodes.values_mut() {
            let Some(facts) = self.stage.shared.view.node(&stored.name) else { continue };
            let Some(known) = facts.node.filter(|known| known.uid == stored.uid) else { continue };
            let pods = facts.pods.iter().map(|pod| &**pod);
            let wanted = crate::taint::record::wanted(&facts.anchors, &known, pods);
            if wanted.as_deref() != known.since_annotation.as_deref() {
                stored.since_annotation = wanted.map(Arc::from);
                self.coming[0].push_back(Event::Node(stored.clone()));
            }
        }
    }

    async fn restart(&mut self) {
        self.restarted = true;
        self.coming = Default::default();
        let empty = Stage::starting(
            self.stage.compat,
            self.stage.clock.clone(),
            Arc::default(),
            self.stage.fault,
        );
        let old = std::mem::replace(&mut self.stage, empty);
        self.stage = old.restart().await;
    }

    /// The watches break and are replaced by lists.
    async fn relist(&mut self) {
        self.coming = Default::default();
        let (nodes, pods) = {
            let cluster = self.stage.cluster.lock();
            let nodes: Vec<_> = cluster.nodes.values().cloned().collect();
            (nodes, cluster.pods.values().cloned().collect::<Vec<_>>())
        };
        let shared = &self.stage.shared;
        let seen = nodes.iter().map(|node| node.uid).collect();
        for node in nodes {
            ingest::take_node(shared, node, Source::List);
        }
        for (name, uid) in shared.view.nodes_other_than(&seen) {
            ingest::drop_node(shared, &name, uid);
        }
        let seen = pods.iter().map(|pod| pod.uid).collect();
        for pod in pods {
            ingest::take_pod(shared, pod);
        }
        ingest::retain_pods(shared, &seen);
        self.stage.settle().await;
    }

    /// Time passes; in a calm story what happens meanwhile is seen at once.
    async fn pass(&mut self) -> Verified {
        let time = self.random.random_range(0.0..4.0);
        self.advance(time).await
    }

    async fn advance(&mut self, time: f64) -> Verified {
        let end = self.now() + time;
        while self.now() < end {
            let left = Duration::from_secs_f64((end - self.now()).max(0.001));
            let until_due =
                self.stage.next_due().map(|due| due.saturating_duration_since(Instant::now()));
            let step = until_due.map_or(left, |due| due.max(STEP).min(left));
            tokio::time::advance(step).await;
            self.stage.settle().await;
            if self.calm {
                self.deliver().await;
            }
            self.check()?;
        }
        Ok(())
    }

    /// The observer looks at what was asked since it last looked, and at what was not.
    fn check(&mut self) -> Verified {
        let now = self.now();
        let cluster = self.stage.cluster.lock();
        for entry in &cluster.log[self.checked..] {
            if entry.asked == Asked::Deleted {
                let window = if self.calm { 0.0 } else { SHARED };
                if !self.history.condemned(entry.uid, entry.at, window) {
                    return Err(format!(
                        "wrong: pod {} ({}) was not condemned at {:.3}",
                        entry.name, entry.uid, entry.at
                    ));
                }
                self.evicted += 1;
            }
        }
        self.checked = cluster.log.len();
        if self.calm {
            for pod in cluster.pods.values() {
                if let Some(due) = self.history.due(pod.uid).filter(|due| due + LATE < now) {
                    return Err(format!(
                        "late: pod {} ({}) was due at {due:.3} and is there at {now:.3}",
                        pod.name, pod.uid
                    ));
                }
            }
        }
        Ok(())
    }

    /// The faults are over: what is condemned goes, and the rest stays in peace.
    async fn end(&mut self) -> Verified {
        self.stage.allow();
        let calm = std::mem::replace(&mut self.calm, true);
        self.deliver().await;
        self.calm = calm;
        #[allow(clippy::cast_precision_loss)]
        let time = LONGEST as f64 + LONGEST_PAUSE;
        self.advance(time).await?;
        self.calm = true;
        // Once for what is on its way, once for what was deleted meanwhile.
        self.deliver().await;
        self.deliver().await;
        let now = self.now();
        let cluster = self.stage.cluster.lock();
        for pod in cluster.pods.values() {
            if let Some(due) = self.history.due(pod.uid).filter(|due| *due < now - LONGEST_PAUSE) {
                return Err(format!(
                    "lost: pod {} ({}) was due at {due:.3} and is there at {now:.3}",
                    pod.name, pod.uid
                ));
            }
        }
        let left = self.stage.shared.backlog.len();
        if left > 0 {
            return Err(format!("{left} pods are left in the backlog"));
        }
        Ok(())
    }
}

/// Plays a story, and says how many pods were evicted in it or what was wrong.
fn play(seed: u64, broken: Broken) -> Result<usize, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async { Story::new(seed, broken).play().await })
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn no_story_breaks_a_promise() {
    let seeds = match number("OSTRAKON_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("OSTRAKON_SEEDS").unwrap_or(SEEDS),
    };
    let stories = seeds.end - seeds.start;
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let evicted: usize = std::thread::scope(|scope| {
        let share = |worker| {
            let mine = seeds.clone().skip(worker).step_by(workers);
            let played = mine.map(|seed| {
                play(seed, Broken::Nothing).unwrap_or_else(|error| {
                    let replay = format!("OSTRAKON_SEED={seed} cargo test --lib simulation");
                    panic!("seed {seed}: {error}\nreplay: {replay}")
                })
            });
            scope.spawn(move || played.sum::<usize>())
        };
        let shares: Vec<_> = (0..workers).map(share).collect();
        shares.into_iter().map(|share| share.join().expect("no story breaks a promise")).sum()
    });
    let evicted = u64::try_from(evicted).unwrap();
    assert!(stories == 1 || evicted > stories, "the stories must be about something: {evicted}");
}

#[test]
fn the_same_seed_tells_the_same_story() {
    for seed in 0..20 {
        assert_eq!(play(seed, Broken::Nothing), play(seed, Broken::Nothing));
    }
}

#[test]
fn every_broken_controller_is_caught() {
    for broken in [
        Broken::IgnoresUid,
        Broken::ForgetsFailures,
        Broken::TrustsTimers,
        Broken::CountsFromObservation,
    ] {
        let caught = (0..2000).find_map(|seed| play(seed, broken).err().map(|error| (seed, error)));
        let (seed, error) = caught.unwrap_or_else(|| panic!("{broken:?} was not caught"));
        println!("{broken:?} is caught by seed {seed}: {error}");
    }
}
