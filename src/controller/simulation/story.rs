//! One story: what happens to the cluster, and what goes wrong on the way.

mod drains;
mod policies;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use parking_lot::Mutex;
use prometheus::proto::MetricFamily;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::Broken;
use super::observer::{Drains, Observer, seconds, words};
use super::replica::{End, Replica};
use crate::clock::Clock;
use crate::drain::Policy;
use crate::model::build::{at, noon};
use crate::sim::embedded::{
    DeleteOptions, Embedded, Fault, Options, Part, Resource, Rule, Selector, Verb,
};

/// Steps of a story.
const STEPS: u32 = 30;
/// Longest toleration in a story, in seconds.
const LONGEST: i64 = 30;
/// How late a pod may go in a calm story, counted from when its deadline and a leader are there: a
/// binding is stored in whole seconds, and a record within a second of what it records.
const LATE: f64 = 2.2;
/// The longest pause between tries, and a little.
const LONGEST_PAUSE: f64 = 121.0;
/// Until a replica leads after the others have died: last words, a start, a lease, and a look.
const TAKE_OVER: f64 = 32.0;

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
    /// The store's last version: the same for the same story.
    version: u64,
}

/// What stories are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Taints,
    Drains,
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

struct Story {
    random: StdRng,
    cluster: Embedded,
    observer: Arc<Mutex<Observer>>,
    replicas: Vec<Replica>,
    broken: Broken,
    /// No faults and no lag.
    calm: bool,
    restarted: bool,
    serial: u64,
    /// Those of cordon and drain; none in stories of taints.
    policies: Vec<Policy>,
    /// Nodes of whose conditions nothing is heard.
    silent: BTreeSet<&'static str>,
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
        let observer = Arc::new(Mutex::new(Observer::default()));
        let watching = Arc::clone(&observer);
        cluster.store().observe(move |change| watching.lock().changed(change));
        let (auditing, clock) = (Arc::clone(&observer), cluster.store().clock().clone());
        cluster.audit(move |audited| auditing.lock().audited(audited, seconds(clock.now())));
        let calm = random.random_bool(0.3);
        let mut policies = Vec::new();
        if subject == Subject::Drains {
            policies = policies::policies(&mut random);
            observer.lock().drains = Some(Drains::new(policies.clone(), calm));
        }
        Self {
            random,
            cluster,
            observer,
            replicas: Vec::new(),
            broken,
            calm,
            restarted: false,
            serial: 0,
            policies,
            silent: BTreeSet::new(),
        }
    }

    fn now(&self) -> f64 {
        seconds(self.cluster.store().clock().now())
    }

    async fn play(mut self) -> Result<Played, String> {
        let is_of_drains = !self.policies.is_empty();
        let names = if is_of_drains { &ALL_NODES[..] } else { &NODES };
        for name in names {
            self.create_node(name);
        }
        if is_of_drains {
            self.set_drain_scene();
        }
        for index in 0..2 {
            let replica = Replica::start(&self.cluster, index, self.broken, &self.policies);
            self.replicas.push(replica);
            self.pass(0.3).await?;
        }
        for _ in 0..STEPS {
            if is_of_drains {
                self.drain_step();
            } else {
                self.step();
            }
            let time = self.random.random_range(0.0..4.0);
            self.pass(time).await?;
        }
        if is_of_drains {
            self.drain_end().await?;
        } else {
            self.end().await?;
        }
        self.check_metrics()?;
        let observer = self.observer.lock();
        let drained = observer.drained();
        let version = self.cluster.store().version();
        Ok(Played { evicted: observer.evicted(), writers: observer.writers(), drained, version })
    }

    /// One random thing happens.
    fn step(&mut self) {
        let name = self.some_node();
        match self.random.random_range(0..100) {
            0..26 => self.bind(name),
            26..42 => self.taint(name),
            42..54 => self.untaint(name),
            54..58 => self.come_or_go(name),
            58..66 => self.replace(),
            // A first sight that no deadline depends on is not kept through a restart: one that
            // comes to depend on it later is counted from the restart, and not exact.
            66..71 if !(self.calm && self.restarted) => self.edit(),
            71..77 => self.flip(name),
            77..83 => self.restart(),
            83..92 if !self.calm => self.go_wrong(),
            92..100 => self.cluster.faults().clear(),
            _ => {}
        }
    }

    /// Something goes wrong, until everything is mended.
    fn go_wrong(&mut self) {
        let faults = self.cluster.faults();
        let resource =
            [Resource::Nodes, Resource::Pods, Resource::Leases][self.random.random_range(0..3)];
        let verbs = [Verb::Get, Verb::Patch, Verb::Delete, Verb::Update, Verb::Watch, Verb::List];
        let verb = verbs[self.random.random_range(0..verbs.len())];
        let code = [429, 500, 503, 504, 403][self.random.random_range(0..5)];
        match self.random.random_range(0..13) {
            0..3 => {
                let delay = Duration::from_millis(self.random.random_range(10..4000));
                faults.add(Rule::always(Fault::Latency(delay)).of(resource).with_probability(0.7));
            }
            3..5 => {
                let retry_after = self.random.random_bool(0.3).then_some(1);
                let rule = Rule::always(Fault::Refuse { code, retry_after });
                faults.add(rule.of(resource).on(verb).with_probability(0.6));
            }
            5 => drop(faults.add(Rule::always(Fault::Hang).of(resource).on(verb).times(3))),
            6 => drop(faults.add(Rule::always(Fault::Cut).of(resource).with_probability(0.5))),
            7 => drop(faults.add(Rule::always(Fault::LoseAnswer).with_probability(0.3))),
            8 => faults.hold_watches(resource, true),
            9 => {
                // Who is behind must list anew, and sees only what came of it.
                self.cluster.store().compact(resource);
                faults.cut_watches(resource);
            }
            10 => faults.set_down(true),
            11 => {
                let rule = Rule::always(Fault::Refuse { code: 503, retry_after: None });
                faults.add(rule.of(Resource::Leases));
            }
            _ => {
                let ahead = SignedDuration::from_secs(self.random.random_range(-7200..7200));
                let replica = self.random.random_range(0..self.replicas.len());
                self.replicas[replica].step_clock(ahead);
            }
        }
    }

    /// A replica is stopped or killed, and started again after a while.
    fn restart(&mut self) {
        self.restarted = true;
        let index = self.random.random_range(0..self.replicas.len());
        let down = Duration::from_millis(self.random.random_range(10..3000));
        let how = if self.random.random_bool(0.5) { End::Stop(down) } else { End::Kill(down) };
        self.replicas[index].end(how);
    }

    fn some_node(&mut self) -> &'static str {
        let all = if self.policies.is_empty() { &NODES[..] } else { &ALL_NODES };
        all[self.random.random_range(0..all.len())]
    }

    fn create_node(&mut self, name: &str) {
        let mut spec = json!({"podCIDR": "10.0.0.0/24"});
        if self.random.random_bool(0.2) {
            spec["unschedulable"] = json!(true);
        }
        let node = json!({
            "metadata": {"name": name, "annotations": {"example.com/owner": "somebody"}},
            "spec": spec,
            "status": {"conditions": [ready("True", self.cluster.store().clock())]},
        });
        // There is none of that name.
        let _ = self.cluster.store().insert(Resource::Nodes, node);
    }

    /// Changes a node, if there is one.
    fn change_node(&self, name: &str, part: Part, change: impl FnOnce(&mut Value)) {
        let changed = |node: &Value| {
            let mut node = node.clone();
            change(&mut node);
            Ok(node)
        };
        let _ = self.cluster.store().modify(Resource::Nodes, "", name, part, false, changed);
    }

    fn change_taints(&self, name: &str, change: impl FnOnce(&mut Vec<Value>)) {
        self.change_node(name, Part::Whole, |node| {
            let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
            change(&mut taints);
            node["spec"]["taints"] = Value::Array(taints);
        });
    }

    /// Puts a taint on, in place of one with the same key.
    fn taint(&mut self, name: &str) {
        let new = if self.random.random_bool(0.5) {
            // One that does not tell when it was put on; never the same one twice, since one that
            // went and came back while nobody watched cannot be told from one that stayed.
            self.serial += 1;
            json!({"key": format!("u{}", self.serial), "effect": "NoExecute"})
        } else {
            let key = ["a", "b"][self.random.random_range(0..2)];
            let ago = self.random.random_range(0..20);
            json!({"key": key, "effect": "NoExecute", "timeAdded": self.ago(ago)})
        };
        self.change_taints(name, |taints| {
            taints.retain(|taint| taint["key"] != new["key"]);
            taints.push(new);
        });
    }

    /// So many seconds before now, as the API stores times.
    fn ago(&self, seconds_ago: i64) -> String {
        #[allow(clippy::cast_possible_truncation)] // Minutes at most.
        let now = self.now() as i64;
        at(now - seconds_ago).to_string()
    }

    fn untaint(&mut self, name: &str) {
        let which = self.random.random_range(0..8);
        self.change_taints(name, |taints| {
            let is_ours = |taint: &Value| !OUTAGE.contains(&taint["key"].as_str().unwrap_or(""));
            let ours: Vec<_> = (0..taints.len()).filter(|i| is_ours(&taints[*i])).collect();
            if let Some(gone) = ours.get(which % ours.len().max(1)) {
                taints.remove(*gone);
            }
        });
    }

    /// A node is removed, or registered again under its name.
    fn come_or_go(&mut self, name: &str) {
        let options = DeleteOptions::default();
        if self.cluster.store().delete(Resource::Nodes, "", name, &options).is_err() {
            self.create_node(name);
        }
    }

    /// A node falls silent, is not ready, or has recovered: condition first, then taint, as the
    /// node lifecycle controller has it.
    fn flip(&mut self, name: &str) {
        let status = ["True", "False", "Unknown"][self.random.random_range(0..3)];
        let condition = ready(status, self.cluster.store().clock());
        self.change_node(name, Part::Status, |node| {
            let was = node["status"]["conditions"][0]["status"].clone();
            if was != status {
                node["status"]["conditions"] = json!([condition]);
            }
        });
        let key = match status {
            "False" => Some(OUTAGE[0]),
            "Unknown" => Some(OUTAGE[1]),
            _ => None,
        };
        let added = self.ago(0);
        self.change_taints(name, |taints| {
            let key = key.map(Value::from);
            let is_there = taints.iter().any(|taint| Some(&taint["key"]) == key.as_ref());
            let is_outage =
                |taint: &Value| OUTAGE.contains(&taint["key"].as_str().unwrap_or_default());
            taints.retain(|taint| !is_outage(taint) || Some(&taint["key"]) == key.as_ref());
            if let Some(key) = key.filter(|_| !is_there) {
                taints.push(json!({"key": key, "effect": "NoExecute", "timeAdded": added}));
            }
        });
    }

    fn toleration(&mut self) -> Value {
        let keys = ["a", "b", "", ""];
        let mut toleration = json!({"operator": "Exists", "effect": "NoExecute"});
        let key = keys[self.random.random_range(0..keys.len())];
        if !key.is_empty() {
            toleration["key"] = json!(key);
        }
        match self.random.random_range(0..10) {
            0..2 => {}
            2 => toleration["tolerationSeconds"] = json!(0),
            _ => {
                toleration["tolerationSeconds"] = json!(self.random.random_range(1..=LONGEST));
            }
        }
        toleration
    }

    /// A pod is bound, under a name that is free.
    fn bind(&mut self, node: &str) {
        let name = format!("web-{}", self.random.random_range(0..6));
        self.create_pod(&name, node);
    }

    fn create_pod(&mut self, name: &str, node: &str) {
        let tolerations: Vec<_> =
            (0..self.random.random_range(0..3)).map(|_| self.toleration()).collect();
        let grace = if self.random.random_bool(0.7) { 0 } else { 2 };
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}},
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": grace,
            },
            "status": {"phase": "Running", "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.ago(0)},
            ]},
        });
        // What says nothing the API leaves out.
        if !tolerations.is_empty() {
            pod["spec"]["tolerations"] = Value::Array(tolerations);
        }
        // The name may be taken: then nothing happens.
        let _ = self.cluster.store().insert(Resource::Pods, pod);
    }

    fn some_pod(&mut self) -> Option<Arc<Value>> {
        let all = Selector::parse(Resource::Pods, None, "", "").ok()?;
        let pods = self.cluster.store().select(Resource::Pods, &all);
        let index = self.random.random_range(0..pods.len().max(1));
        pods.get(index).cloned()
    }

    /// A pod is deleted by its owner, and mostly created again under its name at once.
    fn replace(&mut self) {
        let Some(pod) = self.some_pod() else { return };
        let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        self.remove_pod(&name);
        if self.random.random_bool(0.8) {
            let node = self.some_node();
            self.create_pod(&name, node);
        }
    }

    fn remove_pod(&self, name: &str) {
        let at_once = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
        let _ = self.cluster.store().delete(Resource::Pods, "default", name, &at_once);
    }

    /// A pod is given another toleration.
    fn edit(&mut self) {
        let Some(pod) = self.some_pod() else { return };
        let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let new = self.toleration();
        self.tolerate(&name, new);
    }

    /// Puts a toleration before those that the pod has.
    fn tolerate(&self, name: &str, new: Value) {
        let changed = |pod: &Value| {
            let mut pod = pod.clone();
            match pod["spec"]["tolerations"].as_array_mut() {
                Some(tolerations) => tolerations.insert(0, new),
                None => pod["spec"]["tolerations"] = json!([new]),
            }
            Ok(pod)
        };
        let store = self.cluster.store();
        let _ = store.modify(Resource::Pods, "default", name, Part::Whole, false, changed);
    }

    /// Pods that were told to go have gone, as their kubelet reports.
    fn kubelets(&self) {
        let Ok(all) = Selector::parse(Resource::Pods, None, "", "") else { return };
        for pod in self.cluster.store().select(Resource::Pods, &all) {
            let end = pod["metadata"]["deletionTimestamp"].as_str().and_then(|t| t.parse().ok());
            if end.is_some_and(|end: jiff::Timestamp| seconds(end) <= self.now()) {
                self.remove_pod(pod["metadata"]["name"].as_str().unwrap_or_default());
            }
        }
    }

    /// Time passes, in pieces; after each the observer is asked.
    async fn pass(&mut self, time: f64) -> Verified {
        let end = self.now() + time;
        while self.now() < end {
            let left = Duration::from_secs_f64((end - self.now()).clamp(0.001, 1.0));
            sleep(left).await;
            self.kubelets();
            self.disruption_controller();
            self.heartbeats();
            self.check()?;
        }
        Ok(())
    }

    fn check(&mut self) -> Verified {
        let now = self.now();
        let mut observer = self.observer.lock();
        observer.verdict()?;
        if self.calm {
            let (leader, since) = observer.leader();
            let leads = self.replicas.iter().any(|replica| replica.works_as(leader));
            // Whoever leads now began with what was overdue.
            if leads
                && now - since > LATE
                && let Some(pod) = observer.overdue(now - LATE)
            {
                return Err(format!("P3: {pod} and is there at {now:.3}; {leader:?} leads"));
            }
        }
        Ok(())
    }

    /// The faults are over: what is condemned goes, and the rest stays in peace.
    async fn end(&mut self) -> Verified {
        self.cluster.faults().clear();
        for replica in &self.replicas {
            replica.step_clock(SignedDuration::ZERO);
        }
        self.pass_until_led().await?;
        if !self.calm {
            self.scene().await?;
            self.cluster.faults().clear();
            self.pass_until_led().await?;
        }
        // One is enough, and which must not matter.
        let index = self.random.random_range(0..self.replicas.len());
        self.replicas[index].end(End::Stop(Duration::from_secs(3600)));
        #[allow(clippy::cast_precision_loss)]
        let longest = LONGEST as f64;
        self.pass(longest + LATE).await?;
        let latest = self.now() + TAKE_OVER + LONGEST_PAUSE;
        while let Some(why) = self.overdue().or_else(|| self.left()) {
            if self.now() > latest {
                return Err(format!("P2: at {:.3} {why}", self.now()));
            }
            self.pass(1.0).await?;
        }
        Ok(())
    }

    /// A pod that had to go and is there.
    fn overdue(&self) -> Option<String> {
        self.observer.lock().overdue(self.now() - LATE)
    }

    /// What a replica says is to go although nothing is left that has to.
    fn left(&self) -> Option<String> {
        let served = self.replicas.iter().flat_map(Replica::metrics);
        let backlog = served.filter(|family| family.name() == "ostrakon_backlog_pods");
        let pods: f64 = backlog
            .flat_map(|family| family.get_metric().to_vec())
            .map(|metric| metric.get_gauge().get_value())
            .sum();
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
        let latest = self.now() + TAKE_OVER;
        while self.now() < latest {
            self.pass(0.5).await?;
            let observer = self.observer.lock();
            let (leader, _) = observer.leader();
            if self.replicas.iter().any(|replica| replica.works_as(leader)) {
                return Ok(());
            }
        }
        match self.broken {
            Broken::DoesNotElect => Ok(()),
            _ => Err(format!("P2: nobody leads within {TAKE_OVER} s")),
        }
    }

    /// A pod counts down, and what should save it, or delay it, goes unnoticed by the controller.
    async fn scene(&mut self) -> Verified {
        let (here, elsewhere) = ("n1", "n2");
        for node in [here, elsewhere] {
            self.create_node(node);
            self.change_taints(node, Vec::clear);
        }
        let name = "extra";
        self.remove_pod(name);
        self.bind_extra(name, here, 3);
        let added = self.ago(0);
        self.change_taints(here, |taints| {
            taints.push(json!({"key": "a", "effect": "NoExecute", "timeAdded": added}));
        });
        self.pass(1.0).await?;
        match self.random.random_range(0..5) {
            // Another pod gets its name, on a node that is well.
            0 => {
                self.cluster.faults().hold_watches(Resource::Pods, true);
                self.remove_pod(name);
                self.bind_extra(name, elsewhere, 0);
            }
            // The taint goes.
            1 => {
                self.cluster.faults().hold_watches(Resource::Nodes, true);
                self.change_taints(here, Vec::clear);
            }
            // The deletion is refused.
            2 => {
                let refusal = Fault::Refuse { code: 500, retry_after: None };
                let rule = Rule::always(refusal).of(Resource::Pods).on(Verb::Delete);
                self.cluster.faults().add(rule);
            }
            // Nothing runs for a while, and then everything is due at once.
            3 => {
                let from = self.now();
                tokio::time::advance(Duration::from_secs(13)).await;
                self.observer.lock().paused(from, self.now());
            }
            // Its owner gives it a toleration.
            _ => {
                self.cluster.faults().hold_watches(Resource::Pods, true);
                self.tolerate(name, json!({"operator": "Exists", "effect": "NoExecute"}));
            }
        }
        self.pass(12.0).await
    }

    fn bind_extra(&self, name: &str, node: &str, tolerated: i64) {
        let pod = json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 0,
                "tolerations": [{"operator": "Exists", "tolerationSeconds": tolerated}],
            },
            "status": {"phase": "Running", "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.ago(0)},
            ]},
        });
        let _ = self.cluster.store().insert(Resource::Pods, pod);
    }
}

/// The condition Ready with this status, since now.
fn ready(status: &str, clock: &Clock) -> Value {
    #[allow(clippy::cast_possible_truncation)]
    let now = seconds(clock.now()) as i64;
    json!({"type": "Ready", "status": status, "lastTransitionTime": at(now).to_string()})
}
