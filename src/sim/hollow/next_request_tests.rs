//! Tests of the kubelets' decisions in virtual time: events go in, requests come out, nothing is sent.

use std::time::Duration;

use kube::runtime::watcher::Event;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::{advance, timeout};

use super::calls::CallError;
use super::mirror::StaticPod;
use super::node::HollowNode;
use super::objects::{Node, Pod};
use super::shutdown::ShutdownPlan;
use super::state::{Call, Reply, Request, State};
use super::switches::{HollowCondition, Switch};
use super::testing::{PodBuilder, at, pod, uid};
use super::{BACKOFF, Clock, Options};
use crate::model::NodeName;

/// Kubelets of some nodes, without an API server.
struct Bed {
    state: State,
    version: u64,
}

impl Bed {
    /// Nothing but what was listed: nothing.
    fn empty() -> Self {
        let options = Options {
            clock: Clock::starting_at(at(0)),
            stop_time: Duration::from_secs(3),
            seed: 1,
            ..Options::default()
        };
        let rng = StdRng::seed_from_u64(options.seed);
        let mut bed = Self { state: State::new(options, rng), version: 10 };
        for event in [Event::Init, Event::InitDone] {
            bed.state.pod_event(event);
        }
        for event in [Event::Init, Event::InitDone] {
            bed.state.node_event(event);
        }
        bed
    }

    /// With one node `n1`, which has nothing to do right now.
    fn with(node: HollowNode) -> Self {
        let mut bed = Self::empty();
        bed.adopt(node);
        bed
    }

    fn adopt(&mut self, node: HollowNode) {
        let patch = node.status_patch("172.16.0.1", &<_>::default(), &[], at(0));
        let stored = self.stored_node(node.name.as_str(), &patch);
        self.state.adopt(node, "172.16.0.1".to_owned(), stored);
    }

    /// The node as the API server stores it after that patch.
    fn stored_node(&mut self, name: &str, patch: &Value) -> Node {
        self.version += 1;
        let meta =
            json!({"name": name, "uid": uid(name), "resourceVersion": self.version.to_string()});
        let node = json!({"metadata": meta, "status": patch["status"]});
        serde_json::from_value(node).unwrap()
    }

    fn apply(&mut self, pod: PodBuilder) {
        self.version += 1;
        let pod = pod.version(self.version).build();
        self.state.pod_event(Event::Apply(pod));
    }

    fn set(&mut self, switch: Switch) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        self.state.set(&NodeName::from("n1"), switch, done);
        is_done
    }

    /// All requests that are due now.
    fn requests(&mut self) -> Vec<Request> {
        std::iter::from_fn(|| self.state.next_request()).collect()
    }

    /// The same, in short.
    fn sent(&mut self) -> Vec<String> {
        self.requests().iter().map(short).collect()
    }

    /// Answers a request as the API server would, with what it stores then.
    fn succeed(&mut self, request: Request) {
        let reply = match request.call {
            Call::PatchNodeStatus(name, patch) => {
                Reply::Node(Box::new(self.stored_node(name.as_str(), &patch)))
            }
            Call::PatchPodStatus(pod, patch) => Reply::Pod(Box::new(self.patched(*pod, &patch))),
            Call::CreateLease(_)
            | Call::RenewLease(..)
            | Call::CreatePod(_)
            | Call::RemovePod(_) => Reply::Done,
        };
        self.state.settle(request.work, &request.node, Ok(reply));
    }

    fn patched(&mut self, mut pod: Pod, patch: &Value) -> Pod {
        self.version += 1;
        pod.metadata.resource_version = Some(self.version.to_string());
        pod.status = serde_json::from_value(patch["status"].clone()).unwrap();
        pod
    }

    fn fail(&mut self, request: Request, code: u16) {
        let mut status =
            kube::core::Status::failure("no", if code == 404 { "NotFound" } else { "" });
        status.code = code;
        let error = CallError::Failed(kube::Error::Api(Box::new(status)));
        self.state.settle(request.work, &request.node, Err(error));
    }

    /// Sends whatever is due, and succeeds, until nothing is; returns what was sent.
    fn work_off(&mut self) -> Vec<String> {
        let mut sent = Vec::new();
        loop {
            let requests = self.requests();
            if requests.is_empty() {
                return sent;
            }
            for request in requests {
                sent.push(short(&request));
                self.succeed(request);
            }
            assert!(sent.len() < 1000, "there is no end to it: {:?}", &sent[990..]);
        }
    }

    /// Lets time pass, with all that comes due; returns what was sent.
    async fn pass(&mut self, seconds: u64) -> Vec<String> {
        let mut sent = self.work_off();
        for _ in 0..seconds * 10 {
            advance(Duration::from_millis(100)).await;
            while let Ok(work) = timeout(Duration::ZERO, self.state.timers.next()).await {
                self.state.ask(work);
            }
            sent.extend(self.work_off());
        }
        sent
    }

    /// The same, without what keeps the node alive.
    async fn pass_on_pods(&mut self, seconds: u64) -> Vec<String> {
        let mut sent = self.pass(seconds).await;
        sent.retain(|request| request != "renew n1" && request != "status n1");
        sent
    }
}

fn short(request: &Request) -> String {
    match &request.call {
        Call::CreateLease(lease) => format!("lease {}", lease.metadata.name.as_deref().unwrap()),
        Call::RenewLease(name, _) => format!("renew {name}"),
        Call::PatchNodeStatus(name, _) => format!("status {name}"),
        Call::CreatePod(pod) => format!("create {}", pod.metadata.name.as_deref().unwrap()),
        Call::PatchPodStatus(pod, patch) => {
            let conditions = patch["status"]["conditions"].as_array().into_iter().flatten();
            let ready =
                conditions.into_iter().find(|c| c["type"] == "Ready" && c["status"] == "True");
            let phase = patch["status"]["phase"].as_str().unwrap();
            let ready = if ready.is_some() { " ready" } else { "" };
            format!("{} {phase}{ready}", pod.name())
        }
        Call::RemovePod(pod) => format!("remove {}", pod.name()),
    }
}

fn count(sent: &[String], what: &str) -> usize {
    sent.iter().filter(|request| *request == what).count()
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_every_ten_seconds_and_the_status_only_after_five_minutes() {
    let mut bed = Bed::with(HollowNode::new("n1"));
    let sent = bed.pass(299).await;
    let renewals = count(&sent, "renew n1");
    assert!((28..=30).contains(&renewals), "{renewals} renewals");
    assert_eq!(sent.len(), renewals, "nothing but renewals");
    assert_eq!(count(&bed.pass(2).await, "status n1"), 1);
}

#[tokio::test(start_paused = true)]
async fn the_leases_of_nodes_that_start_together_are_renewed_apart() {
    let mut bed = Bed::empty();
    for index in 0..100 {
        bed.adopt(HollowNode::new(&format!("n{index}")));
    }
    let mut busiest = 0;
    for _ in 0..10 {
        busiest = busiest.max(bed.pass(1).await.len());
    }
    assert!(busiest < 30, "{busiest} of 100 in one second");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_gone_is_created_again() {
    let mut bed = Bed::with(HollowNode::new("n1"));
    bed.state.kubelets.get_mut("n1").unwrap().lease_due = at(0);
    let request = bed.requests().remove(0);
    bed.fail(request, 404);
    let request = bed.requests().remove(0);
    let Call::CreateLease(lease) = &request.call else {
        panic!("{request:?}");
    };
    assert_eq!(lease.metadata.owner_references.as_ref().unwrap()[0].uid, uid("n1"));
    bed.succeed(request);
    assert_eq!(count(&bed.pass(11).await, "renew n1"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_sends_nothing_and_comes_back_with_its_lease_and_status() {
    let mut bed =
        Bed::with(HollowNode::new("n1").static_pod(StaticPod::new("kube-system", "proxy")));
    bed.apply(pod("a"));
    let done = bed.set(Switch::Silent(true));
    assert!(done.await.is_ok());
    bed.apply(pod("b"));
    assert_eq!(bed.pass(400).await, Vec::<String>::new());
    bed.set(Switch::Silent(false)).await.unwrap();
    let mut sent = bed.work_off();
    sent.sort();
    assert_eq!(
        sent,
        ["a Running ready", "b Running ready", "create proxy-n1", "renew n1", "status n1"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_counts_as_silent_when_its_last_request_is_answered() {
    let mut bed = Bed::with(HollowNode::new("n1"));
    bed.apply(pod("a"));
    let request = bed.requests().remove(0);
    let mut done = bed.set(Switch::Silent(true));
    assert!(done.try_recv().is_err(), "a request is still on its way");
    bed.succeed(request);
    assert!(done.try_recv().is_ok());
    assert_eq!(bed.sent(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn an_unknown_node_gets_no_answer() {
    let mut bed = Bed::empty();
    assert!(bed.set(Switch::Silent(true)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn what_others_wrote_over_a_status_is_put_right_within_the_sync_interval() {
    let mut bed = Bed::with(HollowNode::new("n1"));
    let lost = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    let node = bed.stored_node("n1", &lost);
    bed.state.node_event(Event::Apply(node));
    assert_eq!(count(&bed.pass(9).await, "status n1"), 0);
    assert_eq!(count(&bed.pass(2).await, "status n1"), 1);
    assert_eq!(count(&bed.pass(30).await, "status n1"), 0);
}

#[tokio::test(start_paused = true)]
async fn switches_that_follow_each_other_are_each_written_at_once() {
    let mut bed = Bed::with(HollowNode::new("n1"));
    bed.work_off();
    bed.set(Switch::MemoryPressure(true)).await.unwrap();
    let first = bed.requests().remove(0);
    bed.set(Switch::Condition(HollowCondition::new("Broken", "True"))).await.unwrap();
    assert_eq!(bed.sent(), Vec::<String>::new(), "one at a time");
    bed.succeed(first);
    let second = bed.requests().remove(0);
    let Call::PatchNodeStatus(_, patch) = &second.call else {
        panic!("{second:?}");
    };
    let conditions = patch["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|c| c["type"] == "Broken"));
}

#[tokio::test(start_paused = true)]
async fn a_status_that_could_not_be_written_does_not_wait_for_the_next_sync() {
    let mut bed = Bed::with(HollowNode::new("n1"));
    bed.work_off();
    bed.set(Switch::MemoryPressure(true)).await.unwrap();
    let request = bed.requests().remove(0);
    bed.fail(request, 500);
    assert_eq!(count(&bed.pass(1).await, "status n1"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_fails_is_sent_again_after_growing_pauses() {
    let mut bed = Bed::with(HollowNode::new("n1"));
    bed.apply(pod("a"));
    let pauses = [1, 2, 3].map(|failures| BACKOFF.pause(failures, 0));
    assert!(pauses.is_sorted() && pauses[0] < pauses[2], "{pauses:?}");
    for pause in pauses {
        let request = bed.requests().remove(0);
        bed.fail(request, 500);
        bed.apply(pod("a"));
        assert_eq!(bed.sent(), Vec::<String>::new(), "not even if the pod changes");
        advance(pause.saturating_sub(Duration::from_millis(20))).await;
        assert!(timeout(Duration::ZERO, bed.state.timers.next()).await.is_err());
        advance(Duration::from_millis(21)).await;
        let work = bed.state.timers.next().await;
        bed.state.ask(work);
    }
    assert_eq!(bed.work_off(), ["a Running ready"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_runs_stops_and_goes() {
    let mut bed = Bed::with(HollowNode::new("n1"));
    bed.apply(pod("a"));
    assert_eq!(bed.pass_on_pods(20).await, ["a Running ready"]);
    bed.apply(pod("a").running("True", "True").deleted(30));
    assert_eq!(bed.pass_on_pods(2).await, Vec::<String>::new());
    let end = bed.pass_on_pods(2).await;
    assert_eq!(end, ["a Succeeded", "remove a"]);
    assert_eq!(bed.pass_on_pods(20).await, Vec::<String>::new(), "and that once");
}

#[tokio::test(start_paused = true)]
async fn an_old_event_that_comes_after_the_answer_repeats_nothing() {
    let mut bed = Bed::with(HollowNode::new("n1"));
    bed.apply(pod("a"));
    assert_eq!(bed.work_off(), ["a Running ready"]);
    let old = pod("a").version(5).build();
    bed.state.pod_event(Event::Apply(old));
    assert_eq!(bed.work_off(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_the_pod_is_gone_does_not_revive_it() {
    let mut bed = Bed::with(HollowNode::new("n1"));
    bed.apply(pod("a"));
    let request = bed.requests().remove(0);
    bed.state.pod_event(Event::Delete(pod("a").build()));
    bed.succeed(request);
    assert!(bed.state.pods.is_empty() && bed.state.pods_of.is_empty());
    let done = bed.set(Switch::Silent(true));
    assert!(done.await.is_ok(), "the request is not counted for ever");
}

#[tokio::test(start_paused = true)]
async fn pods_that_a_new_list_does_not_name_are_forgotten() {
    let mut bed = Bed::with(HollowNode::new("n1"));
    bed.apply(pod("stays"));
    bed.apply(pod("goes"));
    bed.work_off();
    bed.state.pod_event(Event::Init);
    bed.state.pod_event(Event::InitApply(pod("stays").version(90).running("True", "True").build()));
    assert_eq!(bed.state.pods.len(), 2, "the list is not complete");
    bed.state.pod_event(Event::InitDone);
    assert_eq!(bed.state.pods.len(), 1);
    assert_eq!(bed.work_off(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn pods_wait_for_a_node_that_is_added_later_and_others_nodes_are_left_alone() {
    let mut bed = Bed::empty();
    bed.apply(pod("a"));
    bed.apply(pod("b").on("elsewhere"));
    assert_eq!(bed.pass(20).await, Vec::<String>::new());
    bed.adopt(HollowNode::new("n1"));
    assert_eq!(bed.work_off(), ["a Running ready"]);
}

#[tokio::test(start_paused = true)]
async fn no_more_writes_are_on_their_way_than_allowed_and_leases_do_not_wait_for_pods() {
    let mut bed = Bed::with(HollowNode::new("n1"));
    for index in 0..100 {
        bed.apply(pod(&format!("p{index}")));
    }
    let on_their_way = bed.requests();
    assert_eq!(on_their_way.len(), 16);
    bed.set(Switch::MemoryPressure(true)).await.unwrap();
    assert_eq!(bed.sent(), ["status n1"]);
    for request in on_their_way {
        bed.succeed(request);
    }
    assert_eq!(bed.work_off().len(), 84);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_mirror_pod_is_let_go_and_published_again_once() {
    let mut bed = Bed::with(HollowNode::new("n1").static_pod(StaticPod::new("default", "proxy")));
    assert_eq!(bed.work_off(), ["create proxy-n1"]);
    let mirror = || pod("proxy-n1").mirror();
    bed.apply(mirror());
    assert_eq!(bed.pass_on_pods(30).await, ["proxy-n1 Running ready"]);
    bed.apply(mirror().running("True", "True").deleted(30));
    assert_eq!(bed.work_off(), ["remove proxy-n1", "create proxy-n1"]);
    bed.state.pod_event(Event::Delete(mirror().build()));
    bed.apply(mirror().uid(&uid("another")));
    assert_eq!(bed.pass_on_pods(30).await, ["proxy-n1 Running ready"]);
}

#[tokio::test(start_paused = true)]
async fn no_mirror_pod_is_published_for_a_node_that_is_not_there() {
    let mut bed = Bed::with(HollowNode::new("n1").static_pod(StaticPod::new("default", "proxy")));
    let node = bed.stored_node("n1", &json!({"status": {}}));
    bed.state.node_event(Event::Delete(node));
    assert_eq!(bed.pass(60).await, Vec::<String>::new(), "and no lease is renewed");
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_restarts_is_silent_and_then_finishes_what_was_deleted() {
    let mut bed = Bed::with(HollowNode::new("n1"));
    bed.apply(pod("a").running("True", "True").deleted(30));
    bed.pass(2).await;
    let (done, is_done) = oneshot::channel();
    bed.state.restart(&NodeName::from("n1"), Duration::from_secs(20), done);
    assert!(is_done.await.is_ok());
    assert_eq!(bed.pass(19).await, Vec::<String>::new());
    let mut back = bed.pass(2).await;
    back.sort();
    assert_eq!(back, ["renew n1", "status n1"]);
    assert_eq!(bed.pass_on_pods(3).await, ["a Succeeded", "remove a"], "it stops anew");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_ordinary_pods_before_critical_ones_and_takes_no_new_ones() {
    let proxy = StaticPod::new("kube-system", "proxy");
    let mut bed = Bed::with(HollowNode::new("n1").static_pod(proxy));
    assert_eq!(bed.work_off(), ["create proxy-n1"]);
    bed.apply(pod("plain").running("True", "True"));
    bed.apply(pod("critical").priority(2_000_000_000).running("True", "True"));
    bed.apply(pod("over").phase("Succeeded"));
    bed.work_off();
    bed.set(Switch::Shutdown(Some(ShutdownPlan::default()))).await.unwrap();
    bed.apply(pod("new"));
    assert_eq!(bed.work_off(), ["status n1", "new Failed"]);
    assert_eq!(bed.pass_on_pods(4).await, ["plain Failed"]);
    assert_eq!(bed.pass_on_pods(4).await, ["critical Failed"]);
    assert_eq!(bed.pass_on_pods(30).await, Vec::<String>::new(), "the objects stay");
}
