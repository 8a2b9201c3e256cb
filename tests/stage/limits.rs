//! Limits and the breaker: how much harm a mistake does before a person takes it back, and that a real outage
//! comes to its end. `docs/reliability.md` has the figures.

use std::sync::Arc;
use std::time::Duration;

use ostrakon::clock::Clock;
use ostrakon::config::Settings;
use ostrakon::evict::{BreakerMode, BreakerRules, EvictionLimits, RateLimit, ZONE_LABEL};
use ostrakon::sim::embedded::{Embedded, Options, Part, Resource};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::noon;
use crate::process::{Process, Wire};

const PODS: usize = 10;
const RECORD: &str = "ostrakon.dev/breaker";
const RESET: &str = "ostrakon.dev/breaker-reset";

/// A cluster with zones of nodes, each with ten pods, and a leader.
struct Bed {
    cluster: Embedded,
    settings: Settings,
    replicas: Vec<(Process, Arc<Wire>)>,
    nodes: usize,
}

fn settings(mode: BreakerMode, ramp: bool) -> Settings {
    let limits = EvictionLimits::default();
    let ramp = limits.ramp.filter(|_| ramp);
    Settings {
        limits: EvictionLimits { ramp, ..limits },
        breaker: BreakerRules { mode, ..BreakerRules::default() },
        ..Settings::default()
    }
}

impl Bed {
    async fn new(settings: Settings, zones: &[(&str, usize)]) -> Self {
        let options = Options { default_toleration_seconds: None, ..Options::default() };
        let cluster = Embedded::new(Clock::starting_at(noon()), options);
        let mut bed = Self { cluster, settings, replicas: Vec::new(), nodes: 0 };
        for (zone, nodes) in zones {
            for _ in 0..*nodes {
                bed.node(zone);
            }
        }
        bed.start("a");
        bed.pass(30).await;
        bed
    }

    fn node(&mut self, zone: &str) {
        let name = format!("n{}", self.nodes);
        self.nodes += 1;
        let node = json!({
            "metadata": {"name": name, "labels": {ZONE_LABEL: zone}}, "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        self.cluster.store().insert(Resource::Nodes, node).unwrap();
        for pod in 0..PODS {
            let pod = json!({
                "metadata": {"name": format!("{name}-{pod}"), "namespace": "default"},
                "spec": {"nodeName": name, "terminationGracePeriodSeconds": 0},
                "status": {"phase": "Running"},
            });
            self.cluster.store().insert(Resource::Pods, pod).unwrap();
        }
    }

    fn start(&mut self, identity: &str) {
        let clock = Clock::starting_at(self.cluster.store().clock().now());
        let wire = Arc::default();
        let settings = self.settings.clone();
        let process = Process::configured(&self.cluster, clock, identity, settings, &wire);
        self.replicas.push((process, wire));
    }

    fn taint(&self, node: usize, tainted: bool) {
        let now = self.cluster.store().clock().now().to_string();
        let change = |node: &Value| {
            let mut node = node.clone();
            let taint = json!({"key": "k", "effect": "NoExecute", "timeAdded": now});
            node["spec"]["taints"] = if tainted { json!([taint]) } else { json!([]) };
            Ok(node)
        };
        let store = self.cluster.store();
        store.modify(Resource::Nodes, "", &format!("n{node}"), Part::Whole, false, change).unwrap();
    }

    fn annotate(&self, name: &str, value: &str) {
        let change = |lease: &Value| {
            let mut lease = lease.clone();
            lease["metadata"]["annotations"][name] = json!(value);
            Ok(lease)
        };
        let store = self.cluster.store();
        store
            .modify(Resource::Leases, "kube-system", "ostrakon", Part::Whole, false, change)
            .unwrap();
    }

    fn record(&self) -> Value {
        let lease = self.cluster.store().get(Resource::Leases, "kube-system", "ostrakon").unwrap();
        lease["metadata"]["annotations"][RECORD].clone()
    }

    /// How many pods are gone.
    fn gone(&self) -> usize {
        self.nodes * PODS - self.cluster.store().count(Resource::Pods)
    }

    async fn pass(&self, seconds: u64) {
        sleep(Duration::from_secs(seconds)).await;
    }

    fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        self.replicas.last().unwrap().0.metric(name, labels)
    }

    fn events(&self, words: &str) -> usize {
        let events = self.replicas.iter().flat_map(|(_, wire)| wire.events());
        events.filter(|message| message.contains(words)).count()
    }
}

/// Half of 60 nodes are tainted by mistake, one each `each` seconds, and the taints are taken back after two
/// minutes. Returns how many of the 300 pods are gone then, and ten minutes later.
async fn mistake(settings: Settings, each: u64) -> (usize, usize) {
    let bed = Bed::new(settings, &[("a", 20), ("b", 20), ("c", 20)]).await;
    for node in 0..30 {
        bed.taint(node * 2, true);
        bed.pass(each).await;
    }
    bed.pass(120 - 30 * each).await;
    let gone = bed.gone();
    for node in 0..30 {
        bed.taint(node * 2, false);
    }
    bed.pass(600).await;
    (gone, bed.gone())
}

#[tokio::test(start_paused = true)]
async fn half_of_the_nodes_tainted_by_mistake_and_taken_back_after_two_minutes() {
    let mut figures = Vec::new();
    for (mode, ramp) in
        [(BreakerMode::Off, false), (BreakerMode::Observe, true), (BreakerMode::Enforce, true)]
    {
        for each in [0, 2] {
            let (gone, later) = mistake(settings(mode, ramp), each).await;
            assert_eq!(gone, later, "nothing more goes once the taints are taken back");
            figures.push(gone);
        }
    }
    eprintln!("pods gone of 300: {figures:?}");
    assert_eq!(figures[..4], [300, 300, 300, 300]);
    // At once: it trips before more than a few are handed out. Then the trickle. In a minute: six of each zone,
    // until that zone trips.
    assert!((10..=40).contains(&figures[4]), "{figures:?}");
    assert!((100..=160).contains(&figures[5]), "{figures:?}");
}

/// All nodes of zone a are lost, and kube-controller-manager taints one each ten seconds. Returns after how
/// many seconds all their pods are gone.
async fn outage(mode: BreakerMode, zones: &[(&str, usize)]) -> u64 {
    let bed = Bed::new(settings(mode, true), zones).await;
    let lost = zones[0].1;
    let mut seconds = 0;
    while bed.gone() < lost * PODS {
        if seconds % 10 == 0 && seconds / 10 < lost as u64 {
            bed.taint(usize::try_from(seconds / 10).unwrap(), true);
        }
        bed.pass(1).await;
        seconds += 1;
        assert!(seconds < 20_000, "{} of {} pods are gone", bed.gone(), lost * PODS);
    }
    bed.pass(60).await;
    assert_eq!(bed.gone(), lost * PODS, "and no others");
    seconds
}

#[tokio::test(start_paused = true)]
async fn a_real_outage_of_a_zone_ends_with_every_pod_gone() {
    let clusters: [&[(&str, usize)]; 4] =
        [&[("a", 20), ("b", 20), ("c", 20)], &[("a", 60)], &[("a", 6)], &[("a", 200), ("b", 1)]];
    let mut figures = Vec::new();
    for zones in clusters {
        figures.push((
            outage(BreakerMode::Off, zones).await,
            outage(BreakerMode::Enforce, zones).await,
        ));
    }
    eprintln!("seconds until all pods are gone, Off and Enforce: {figures:?}");
    for ((off, _), zones) in figures.iter().zip(clusters) {
        assert_eq!(*off, zones[0].1 as u64 * 10 - 9, "neither ramp nor window delay this pace");
    }
    assert_eq!(
        figures[3].0, figures[3].1,
        "60 nodes within the window are not more than 30 % of 200"
    );
}

#[tokio::test(start_paused = true)]
async fn observing_says_what_would_be_held_and_holds_nothing() {
    let bed = Bed::new(settings(BreakerMode::Observe, true), &[("a", 10)]).await;
    for node in 0..8 {
        bed.taint(node, true);
    }
    bed.pass(5).await;
    assert_eq!(bed.gone(), 80);
    assert_eq!(bed.events("They would be held with breaker.mode Enforce"), 1);
    assert_eq!(bed.metric("ostrakon_breaker_tripped", &["cluster"]), 1.0);
    assert!(bed.metric("ostrakon_breaker_would_hold_pods_total", &[]) > 0.0);
    assert_eq!(bed.metric("ostrakon_held_pods", &["breaker"]), 0.0);
}

#[tokio::test(start_paused = true)]
async fn failover_keeps_what_has_tripped_and_an_annotation_resets_it() {
    let mut bed = Bed::new(settings(BreakerMode::Enforce, true), &[("a", 40)]).await;
    bed.start("b");
    bed.pass(30).await;
    for node in 0..20 {
        bed.taint(node, true);
    }
    bed.pass(5).await;
    let gone = bed.gone();
    assert!(gone < 150, "{gone}");
    assert_eq!(bed.events("nodes of the cluster have come to have due pods for taints"), 1);
    assert!(bed.record().as_str().unwrap().contains("\"nodes\":13,\"of\":40"), "{}", bed.record());
    // The leader dies.
    bed.replicas.remove(0);
    bed.pass(40).await;
    assert_eq!(bed.metric("ostrakon_leader", &[]), 1.0);
    assert_eq!(bed.metric("ostrakon_breaker_tripped", &["cluster"]), 1.0);
    assert!(bed.gone() <= gone + PODS, "no burst: {} after {gone}", bed.gone());
    assert!(bed.metric("ostrakon_held_pods", &["breaker"]) > 0.0);
    bed.annotate(RESET, r#"{"reason":"we mean it","by":"jane"}"#);
    bed.pass(30).await;
    assert_eq!(bed.gone(), 200);
    assert_eq!(bed.events("is reset (reset by jane: we mean it)"), 1);
    assert_eq!(bed.record(), Value::Null);
}

#[tokio::test(start_paused = true)]
async fn taking_the_taints_back_resets_it_without_a_person() {
    let bed = Bed::new(settings(BreakerMode::Enforce, true), &[("a", 40)]).await;
    for node in 0..20 {
        bed.taint(node, true);
    }
    bed.pass(5).await;
    for node in 0..20 {
        bed.taint(node, false);
    }
    bed.pass(5).await;
    let gone = bed.gone();
    assert_eq!(bed.metric("ostrakon_backlog_pods", &[]), 0.0, "cancelling waits for nothing");
    bed.pass(310).await;
    assert_eq!(bed.metric("ostrakon_breaker_tripped", &["cluster"]), 0.0);
    assert_eq!((bed.gone(), bed.record()), (gone, Value::Null));
}

#[tokio::test(start_paused = true)]
async fn a_stored_state_that_cannot_be_read_holds_nothing() {
    let mut bed = Bed::new(settings(BreakerMode::Enforce, true), &[("a", 10)]).await;
    bed.replicas.clear();
    bed.annotate(RECORD, &"[".repeat(10_000));
    bed.pass(30).await;
    bed.start("b");
    bed.pass(30).await;
    bed.taint(0, true);
    bed.pass(2).await;
    assert_eq!(bed.gone(), PODS);
    assert_eq!(bed.record(), Value::Null, "it was replaced");
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_the_cluster_delays_evictions_and_loses_none() {
    let limit = RateLimit { pods: 1, per: Duration::from_secs(1), burst: 5 };
    let mut settings = settings(BreakerMode::Off, false);
    settings.limits.cluster = Some(limit);
    let bed = Bed::new(settings, &[("a", 10)]).await;
    for node in 0..6 {
        bed.taint(node, true);
    }
    let mut last = 0;
    for second in 0..55 {
        let gone = bed.gone();
        assert!(gone <= 5 + second + 1, "{gone} after {second} s");
        assert!(gone >= last);
        last = gone;
        bed.pass(1).await;
    }
    assert!(bed.metric("ostrakon_held_pods", &["rate_limit"]) > 0.0);
    // Recovery waits for no limit.
    bed.taint(5, false);
    bed.pass(10).await;
    assert_eq!(bed.metric("ostrakon_backlog_pods", &[]), 0.0);
    assert!((50..60).contains(&bed.gone()), "{}", bed.gone());
}
