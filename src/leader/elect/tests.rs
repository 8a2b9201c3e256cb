//! Candidates on the embedded cluster, in virtual time.

use k8s_openapi::api::coordination::v1::Lease;
use prometheus::Registry;
use serde_json::json;
use tokio::task::JoinHandle;

use super::*;
use crate::cluster;
use crate::model::build::noon;
use crate::sim::embedded::{Embedded, Fault, Options, Resource, Rule, RuleId, Verb};

const NAMESPACE: &str = "kube-system";

/// A candidate at work, with its own way to the cluster.
struct Process {
    gate: WriteGate,
    leads: CancellationToken,
    stop: CancellationToken,
    task: JoinHandle<Result<(), Lost>>,
}

impl Process {
    fn start(cluster: &Embedded, identity: &str) -> Self {
        let registry = Registry::new();
        let api = Api::new(cluster.client(), cluster::Metrics::register(&registry).unwrap());
        let clock = cluster.store().clock().clone();
        let wall = clock.clone();
        let gate = WriteGate::shut(move || wall.now());
        let candidate = Candidate {
            api: api.gated(gate.clone()),
            namespace: NAMESPACE.to_owned(),
            identity: identity.to_owned(),
            times: Times::default(),
            gate: gate.clone(),
            metrics: Metrics::register(&registry, false).unwrap(),
            clock,
        };
        let (leads, stop) = (CancellationToken::new(), CancellationToken::new());
        let task = tokio::spawn(run(candidate, leads.clone(), stop.clone()));
        Self { gate, leads, stop, task }
    }

    fn leads(&self) -> bool {
        self.leads.is_cancelled() && self.gate.left().is_some()
    }

    async fn won(&self) {
        timeout(Duration::from_secs(60), self.leads.cancelled()).await.unwrap();
    }

    async fn lost(self) -> Lost {
        timeout(Duration::from_secs(60), self.task).await.unwrap().unwrap().unwrap_err()
    }

    /// As if the process was killed: nothing is given back.
    fn kill(self) {
        self.task.abort();
    }
}

fn cluster() -> Embedded {
    Embedded::new(Clock::starting_at(noon()), Options::default())
}

fn stored(cluster: &Embedded) -> Lease {
    let lease = cluster.store().get(Resource::Leases, NAMESPACE, LEASE).unwrap();
    serde_json::from_value((*lease).clone()).unwrap()
}

fn writes_fail(cluster: &Embedded, fault: &Fault) -> RuleId {
    let rule = Rule::always(fault.clone()).of(Resource::Leases).on(Verb::Update);
    cluster.faults().add(rule)
}

async fn pass(seconds: f64) {
    sleep(Duration::from_secs_f64(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn one_of_two_leads_and_the_other_never_does_while_it_renews() {
    let cluster = cluster();
    let one = Process::start(&cluster, "one");
    one.won().await;
    let other = Process::start(&cluster, "other");
    for _ in 0..300 {
        pass(1.0).await;
        assert!(one.leads() && !other.leads());
    }
    let spec = stored(&cluster).spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("one"));
    assert_eq!((spec.lease_duration_seconds, spec.lease_transitions), (Some(15), Some(0)));
    assert_ne!(spec.renew_time, spec.acquire_time);
}

#[tokio::test(start_paused = true)]
async fn two_that_start_at_once_do_not_both_lead() {
    for _ in 0..20 {
        let cluster = cluster();
        let both = [Process::start(&cluster, "one"), Process::start(&cluster, "other")];
        pass(20.0).await;
        assert_eq!(both.iter().filter(|process| process.leads()).count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_clean_stop_hands_over_within_a_second() {
    let cluster = cluster();
    let one = Process::start(&cluster, "one");
    one.won().await;
    let other = Process::start(&cluster, "other");
    pass(31.3).await;
    let begin = Instant::now();
    one.stop.cancel();
    one.task.await.unwrap().unwrap();
    assert_eq!(one.gate.left(), None);
    other.won().await;
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    assert_eq!(stored(&cluster).spec.unwrap().lease_transitions, Some(1));
}

#[tokio::test(start_paused = true)]
async fn after_a_kill_the_other_leads_once_the_lease_has_run_out() {
    let cluster = cluster();
    let one = Process::start(&cluster, "one");
    one.won().await;
    let other = Process::start(&cluster, "other");
    pass(30.0).await;
    one.kill();
    let begin = Instant::now();
    other.won().await;
    let took = begin.elapsed();
    assert!((12..18).contains(&took.as_secs()), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn one_that_starts_beside_a_dead_leader_waits_for_a_whole_lease_whatever_its_stamps_say() {
    let cluster = cluster();
    let lease = json!({
        "metadata": {"name": LEASE, "namespace": NAMESPACE},
        "spec": {"holderIdentity": "dead", "leaseDurationSeconds": 15,
            "renewTime": "2001-01-01T00:00:00.000000Z"},
    });
    cluster.store().insert(Resource::Leases, lease).unwrap();
    let one = Process::start(&cluster, "one");
    let begin = Instant::now();
    one.won().await;
    assert!((15..17).contains(&begin.elapsed().as_secs()), "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_stops_writing_before_the_other_begins_and_ends() {
    for fault in [
        Fault::Hang,
        Fault::Cut,
        Fault::Refuse { code: 500, retry_after: None },
        Fault::Refuse { code: 403, retry_after: None },
    ] {
        let cluster = cluster();
        let one = Process::start(&cluster, "one");
        one.won().await;
        let other = Process::start(&cluster, "other");
        pass(30.0).await;
        let rule = writes_fail(&cluster, &fault);
        let begin = Instant::now();
        while one.gate.left().is_some() {
            pass(0.1).await;
        }
        let silent = begin.elapsed();
        assert!((7..=10).contains(&silent.as_secs()), "{fault:?}: {silent:?}");
        let lost = one.lost().await;
        assert!(matches!(lost, Lost::NotRenewed { .. }), "{fault:?}: {lost}");
        assert!(begin.elapsed() <= Duration::from_secs(11), "{fault:?}: {:?}", begin.elapsed());
        assert!(!other.leads(), "{fault:?}");
        cluster.faults().remove(rule);
        other.won().await;
        let took = begin.elapsed();
        assert!(took > silent + Duration::from_secs(2), "{fault:?}: {silent:?}, {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_is_survived() {
    let cluster = cluster();
    let one = Process::start(&cluster, "one");
    one.won().await;
    let other = Process::start(&cluster, "other");
    for _ in 0..10 {
        pass(20.0).await;
        cluster.faults().set_down(true);
        pass(5.0).await;
        cluster.faults().set_down(false);
        pass(5.0).await;
        assert!(one.leads() && !other.leads());
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_is_lost_counts_and_does_not_confuse() {
    let cluster = cluster();
    let one = Process::start(&cluster, "one");
    one.won().await;
    let rule = writes_fail(&cluster, &Fault::LoseAnswer);
    pass(5.0).await;
    cluster.faults().remove(rule);
    pass(60.0).await;
    assert!(one.leads());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_another_hand_takes_is_lost_at_once() {
    let cluster = cluster();
    let one = Process::start(&cluster, "one");
    one.won().await;
    pass(3.0).await;
    let mut lease = stored(&cluster);
    lease.spec.as_mut().unwrap().holder_identity = Some("usurper".to_owned());
    let lease = serde_json::to_value(&lease).unwrap();
    let leases: kube::Api<Lease> = kube::Api::namespaced(cluster.client(), NAMESPACE);
    let lease: Lease = serde_json::from_value(lease).unwrap();
    leases.replace(LEASE, &kube::api::PostParams::default(), &lease).await.unwrap();
    pass(2.1).await;
    assert_eq!(one.gate.left(), None);
    let lost = one.lost().await;
    assert!(matches!(&lost, Lost::Taken { holder, .. } if holder == "usurper"), "{lost}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_removed_is_written_again() {
    let cluster = cluster();
    let one = Process::start(&cluster, "one");
    one.won().await;
    let leases: kube::Api<Lease> = kube::Api::namespaced(cluster.client(), NAMESPACE);
    leases.delete(LEASE, &kube::api::DeleteParams::default()).await.unwrap();
    pass(12.0).await;
    assert!(one.leads());
    assert_eq!(stored(&cluster).spec.unwrap().holder_identity.as_deref(), Some("one"));
}

/// A process that did not run for longer than it may go on without a renewal.
#[tokio::test(start_paused = true)]
async fn one_that_was_frozen_ends_and_does_not_renew() {
    let cluster = cluster();
    let one = Process::start(&cluster, "one");
    one.won().await;
    pass(2.5).await;
    let version = stored(&cluster).metadata.resource_version;
    tokio::time::advance(Duration::from_secs(12)).await;
    assert_eq!(one.gate.left(), None);
    let lost = one.lost().await;
    assert!(matches!(lost, Lost::NotRenewed { .. }), "{lost}");
    assert_eq!(stored(&cluster).metadata.resource_version, version);
}

#[tokio::test(start_paused = true)]
async fn where_there_is_no_namespace_for_it_nobody_leads() {
    let cluster = cluster();
    let deny = Rule::always(Fault::Refuse { code: 404, retry_after: None });
    cluster.faults().add(deny.of(Resource::Leases).on(Verb::Create));
    let one = Process::start(&cluster, "one");
    pass(60.0).await;
    assert!(!one.leads());
    cluster.faults().clear();
    one.won().await;
}
