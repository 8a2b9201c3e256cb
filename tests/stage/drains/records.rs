//! Records that others write, refuse or remove.

use ostrakon::drain::{AtDeadline, Claim, Cordon};

use super::*;

const FAR: &str = "9000-01-01T00:00:00Z";

/// Drains begin ten seconds after the cordon, and ten minutes after one another.
fn spaced() -> Stage {
    stage(|policy| {
        policy.pace.notice = Duration::from_secs(10);
        policy.pace.spacing = Duration::from_secs(600);
    })
}

/// A record as a kubelet may write it on its own node.
fn forged(phase: DrainPhase, at: Timestamp) -> String {
    let claim = Claim { policy: Arc::from("p"), conditions: vec![Arc::from("Bad=True,0s")] };
    let record = Record::new(Arc::from("forged"), Cordon::Ours, vec![claim]);
    let later = at.saturating_add(jiff::SignedDuration::from_hours(1)).unwrap();
    let (scheduled, started, deadline) = (Some(at), Some(at), Some(later));
    Record { phase, scheduled, started, deadline, ended: Some(at), ..record }.format()
}

impl Stage {
    fn forge(&self, name: &str, text: &str) {
        self.annotate(name, NodeDrainFacts::RECORD_ANNOTATION, text);
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_of_the_year_9000_moves_no_drain_of_another_node() {
    for phase in DrainPhase::ALL {
        for is_cordoned in [false, true] {
            let stage = spaced();
            stage.bad_node("liar");
            seconds(5).await;
            stage.set_unschedulable("liar", is_cordoned);
            stage.forge("liar", &forged(phase, FAR.parse().unwrap()));
            stage.bad_node("n1");
            stage.pod("a", "n1");
            minutes(21).await;
            let found = (phase, is_cordoned);
            assert_eq!(stage.phase("n1"), Some(DrainPhase::Drained), "{found:?}");
            assert_eq!(stage.gone(), ["a"], "{found:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_tells_again_and_again_of_a_drain_just_begun_holds_up_no_other() {
    let stage = spaced();
    stage.bad_node("liar");
    seconds(5).await;
    let (n1, n2) = ("n1", "n2");
    for (name, pod) in [(n1, "a"), (n2, "b")] {
        stage.bad_node(name);
        stage.pod(pod, name);
    }
    for _ in 0..80 {
        stage.set_unschedulable("liar", true);
        stage.forge("liar", &forged(DrainPhase::Draining, stage.clock.now()));
        seconds(30).await;
    }
    assert_eq!(stage.gone(), ["a", "b"]);
    let began = |name: &str| stage.record(name).unwrap().started.unwrap();
    assert!(began(n2).duration_since(began(n1)).as_secs() >= 600, "and they are spaced");
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_has_no_taint_of_others_taken_off_its_node() {
    let stage = stage(|_| {});
    stage.node("n1");
    stage.change_node("n1", Part::Whole, |node| {
        node["spec"]["taints"] = json!([{"key": "dedicated", "effect": "NoSchedule"}]);
        node["spec"]["unschedulable"] = json!(true);
    });
    let claim = Claim { policy: Arc::from("p"), conditions: Vec::new() };
    let record = Record::new(Arc::from("forged"), Cordon::Ours, vec![claim]);
    stage.forge("n1", &Record { taint: Some(Arc::from("dedicated")), ..record }.format());
    minutes(10).await;
    let node = stage.stored("n1");
    assert_eq!(node["spec"]["taints"][0]["key"], "dedicated", "{node}");
    assert!(stage.record("n1").is_none(), "the record is over");
}

#[tokio::test(start_paused = true)]
async fn what_a_kubelet_writes_again_and_again_is_answered_less_and_less_often() {
    let stage = spaced();
    stage.node("liar");
    seconds(5).await;
    let mut before = stage.requests("patch", "nodes");
    let mut answers = Vec::new();
    for _ in 0..10 {
        for _ in 0..60 {
            stage.forge("liar", &forged(DrainPhase::Draining, stage.clock.now()));
            seconds(1).await;
        }
        let now = stage.requests("patch", "nodes");
        answers.push(now - before);
        before = now;
    }
    assert!(answers[0] <= 40 && answers[9] <= 6, "{answers:?} a minute");
    stage.bad_node("n1");
    stage.pod("a", "n1");
    minutes(2).await;
    assert_eq!(stage.gone(), ["a"], "another node is not held up");
    minutes(10).await;
    stage.report("liar", "Bad", "True");
    seconds(30).await;
    assert!(stage.is_cordoned("liar"), "and it is all forgotten after a while");
}

/// As many annotations as a node may have, but for so many bytes.
fn fill(stage: &Stage, name: &str, left: usize) {
    stage.annotate(name, "x", &"x".repeat((256 << 10) - 1 - left));
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_annotations_are_full_is_cordoned_drained_and_uncordoned_all_the_same() {
    let stage = stage(notice(10));
    stage.node("n1");
    stage.pod("a", "n1");
    fill(&stage, "n1", 10);
    stage.report("n1", "Bad", "True");
    seconds(2).await;
    assert!(stage.is_cordoned("n1") && stage.record("n1").is_none());
    assert_eq!(stage.told("Cannot store annotation"), 1);
    assert_eq!(stage.mark("n1").unwrap().0, "True");
    seconds(30).await;
    assert_eq!(stage.gone(), ["a"]);
    assert!(stage.mark("n1").unwrap().1.contains("Completed"));
    stage.report("n1", "Bad", "False");
    minutes(6).await;
    assert!(!stage.is_cordoned("n1"), "it was ours");
    for told in ["Cordoned node", "Draining node", "Drained node", "Uncordoned node"] {
        assert_eq!(stage.told(told), 1, "{told}");
    }
    let patches = stage.requests("patch", "nodes");
    minutes(60).await;
    assert!(stage.requests("patch", "nodes") <= patches + 1, "and nothing is left to do");
    stage.set_unschedulable("n1", true);
    minutes(30).await;
    assert!(stage.is_cordoned("n1"), "the next cordon is a person's");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_was_refused_is_written_once_there_is_room() {
    let stage = stage(notice(3600));
    stage.node("n1");
    fill(&stage, "n1", 10);
    stage.report("n1", "Bad", "True");
    minutes(5).await;
    assert!(stage.is_cordoned("n1") && stage.record("n1").is_none());
    stage.annotate("n1", "x", "");
    minutes(11).await;
    let record = stage.record("n1").unwrap();
    assert_eq!((record.phase, record.cordon), (DrainPhase::Scheduled, Cordon::Ours));
    assert_eq!(
        stage.stored("n1")["metadata"]["annotations"]["draino.planet.com/conditions"],
        "Bad=True,0s"
    );
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_a_cordon_without_a_record_is_somebody_elses() {
    let mut stage = stage(notice(3600));
    stage.node("n1");
    fill(&stage, "n1", 10);
    stage.report("n1", "Bad", "True");
    minutes(1).await;
    assert!(stage.is_cordoned("n1"));
    stage.kill();
    stage.start();
    seconds(5).await;
    stage.report("n1", "Bad", "False");
    minutes(60).await;
    assert!(stage.is_cordoned("n1"), "nobody can tell whose it is");
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_strips_the_record_is_asked_less_and_less_often() {
    let stage = stage(notice(10));
    let rule = Rule::always(Fault::StripAnnotations).on(Verb::Patch).of(Resource::Nodes).at("");
    stage.cluster.faults().add(rule);
    stage.bad_node("n1");
    stage.pod("a", "n1");
    seconds(40).await;
    assert!(stage.is_cordoned("n1") && stage.record("n1").is_none());
    assert_eq!((stage.gone(), stage.cordons("n1")), (vec!["a".to_owned()], 1));
    let first = stage.requests("patch", "nodes");
    assert!(first <= 10, "{first} patches");
    minutes(60).await;
    let later = stage.requests("patch", "nodes") - first;
    assert!(later <= 12, "{later} patches in an hour");
    assert!(stage.told("Cannot store annotation") <= 5);
    stage.report("n1", "Bad", "False");
    minutes(6).await;
    assert!(!stage.is_cordoned("n1"), "it was ours");
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_is_refused_holds_up_neither_drain_nor_uncordon() {
    for code in [403, 422] {
        let stage = stage(notice(10));
        stage.refuse(Verb::Patch, Resource::Nodes, "status", code, None);
        stage.bad_node("n1");
        stage.pod("a", "n1");
        seconds(40).await;
        assert_eq!(stage.phase("n1"), Some(DrainPhase::Drained), "{code}");
        assert_eq!((stage.gone().len(), stage.mark("n1")), (1, None), "{code}");
        assert_eq!(stage.told("Cannot set condition DrainScheduled"), 1, "{code}");
        stage.report("n1", "Bad", "False");
        minutes(6).await;
        assert!(!stage.is_cordoned("n1") && stage.record("n1").is_none(), "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_right_that_is_missing_leaves_the_node_in_use() {
    let stage = stage(notice(10));
    stage.refuse(Verb::Patch, Resource::Nodes, "", 403, None);
    stage.bad_node("n1");
    stage.pod("a", "n1");
    minutes(5).await;
    assert!(!stage.is_cordoned("n1") && stage.gone().is_empty());
    assert!(stage.told("Cordoning failed") > 0 && stage.told("Cannot store annotation") == 0);
    // Nor is anything done that cannot be written down.
    stage.set_unschedulable("n1", true);
    minutes(5).await;
    assert!(stage.gone().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_right_that_is_missing_for_a_moment_leaves_no_cordon_without_its_record() {
    let mut stage = stage(|policy| {
        notice(3600)(policy);
        policy.status_taint = Some("status-taint.cluster-autoscaler.kubernetes.io/bad".into());
    });
    stage.refuse(Verb::Patch, Resource::Nodes, "", 403, Some(1));
    stage.bad_node("n1");
    seconds(5).await;
    let record = stage.record("n1").unwrap();
    assert!(stage.is_cordoned("n1") && record.cordon == Cordon::Ours && record.taint.is_some());
    assert_eq!((stage.told("Cordoning failed"), stage.told("The record")), (1, 0));
    assert_eq!(stage.cordons("n1"), 1);
    stage.kill();
    stage.start();
    stage.report("n1", "Bad", "False");
    minutes(6).await;
    assert!(!stage.is_cordoned("n1"), "who comes after knows whose it was");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_was_refused_is_not_tried_on_a_node_that_is_removed() {
    let stage = stage(notice(3600));
    stage.node("n1");
    fill(&stage, "n1", 10);
    stage.report("n1", "Bad", "True");
    seconds(5).await;
    assert!(stage.is_cordoned("n1") && stage.record("n1").is_none());
    stage.scale_down("n1");
    stage.annotate("n1", "x", "");
    seconds(1).await;
    let before = stage.stored("n1");
    minutes(30).await;
    assert_eq!(stage.stored("n1"), before);
    stage.change_node("n1", Part::Whole, |node| node["spec"]["taints"] = json!([]));
    minutes(11).await;
    assert_eq!(stage.record("n1").unwrap().cordon, Cordon::Ours);
}

#[tokio::test(start_paused = true)]
async fn a_forged_taint_is_not_put_on_when_the_record_is_written_again() {
    let stage = stage(notice(3600));
    stage.bad_node("n1");
    seconds(5).await;
    let taint = Some(std::sync::Arc::from("example.com/not-ours"));
    let forged = Record { taint, ..stage.record("n1").unwrap() };
    stage.annotate("n1", NodeDrainFacts::RECORD_ANNOTATION, &forged.format());
    stage.scale_down("n1");
    seconds(5).await;
    assert!(stage.record("n1").unwrap().autoscaler, "it was written again");
    let taints = stage.stored("n1")["spec"]["taints"].clone();
    assert_eq!(taints.as_array().unwrap().len(), 1, "{taints}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_asks_for_centuries_keeps_no_place_under_the_cap_for_good() {
    let stage = stage(|policy| {
        policy.at_deadline = AtDeadline::GiveUp;
        policy.pace.caps = vec![ostrakon::drain::Cap {
            scope: ostrakon::drain::CapScope::Cluster,
            limit: ostrakon::drain::Limit::Count(1),
        }];
    });
    stage.bad_node("n1");
    stage.pod_with("slow", "n1", |pod| {
        pod["spec"]["terminationGracePeriodSeconds"] = json!(9_000_000_000_i64);
        pod["metadata"]["finalizers"] = json!(["example.com/wait"]);
    });
    seconds(10).await;
    let record = stage.record("n1").unwrap();
    let time = record.deadline.unwrap().duration_since(record.started.unwrap());
    assert_eq!(time.as_secs(), 4 * 3600 + 600);
    stage.bad_node("n2");
    stage.pod("a", "n2");
    minutes(60).await;
    assert!(!stage.is_cordoned("n2"), "its time is not over");
    minutes(192).await;
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Failed));
    assert!(stage.is_cordoned("n1"));
    assert_eq!(stage.phase("n2"), Some(DrainPhase::Drained), "it has the place");
    // Tried again, the node takes no place again.
    minutes(20).await;
    assert_eq!(stage.phase("n1"), Some(DrainPhase::Draining));
    stage.bad_node("n3");
    minutes(1).await;
    assert!(!stage.is_cordoned("n3"), "the other one is unavailable");
    assert_eq!(stage.told("Draining failed"), 1);
}
